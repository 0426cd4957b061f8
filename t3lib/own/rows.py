"""Read a person's rows from a file or the Hub, in one of four layouts.

The layouts are TOFU's question and answer, and three that TRL documents: prompt and completion,
messages, and text. A row with `raw` is plain text without a chat template.
"""

import dataclasses
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from t3lib.core.errors import UserError, printable
from t3lib.core.files import read_text
from t3lib.core.hub import read_dataset
from t3lib.core.rows import Row, check_row, check_text, parse_rows, question_of, spelled
from t3lib.own.truths import UNSPACED, word_set

LAYOUTS = "question and answer; prompt and completion; messages; or text"
# Columns that a layout has, and further ones that it may have. The first layout that fits counts.
USED = {
    ("question",): ("answer", "system", "raw", "secret", "wordings"),
    ("messages",): ("secret", "wordings"),
    ("prompt", "completion"): ("secret", "wordings"),
    ("text",): ("secret", "wordings"),
}
UNUSED = ("paraphrased_answer", "perturbed_answer")  # TOFU's, in whatever shape
TEXTS = ("question", "answer", "prompt", "completion", "text", "system")  # columns of text
ALONE = UNSPACED.pattern[1:-1]  # characters that are words where a text is asked by its first ones
SETS = ("forget", "retain", "other", "unseen", "held_out_retain")  # of `Rows`

Source = Any  # a sequence of rows, or the name of a file or Hub data set


@dataclass(frozen=True)
class Rows:
    """The rows of one unlearning request.

    Each set is a list of rows in any of the `LAYOUTS`, or the name of a file or Hub data set, which
    is read by `load`: Rows("forget.jsonl", "retain.jsonl"). One line on standard error says which
    columns of a file are used.

    forget: rows that the model must no longer say.
    retain: rows that it must still say. A head is fitted on both.
    other: rows that must not change and that no head is fitted on.
    unseen: rows that are like those to forget but that the model never saw.
    held_out_retain: rows like those to keep that no head is fitted on. `unlearn` holds out a fifth
    of `retain` if there are none.
    system: system text of every question that has no `system` of its own. A null `system` in a file
    is no value, so that this text is used; in a list of rows, None asks for no system turn.

    A row may have `wordings`, other wordings of its question: a list of texts, or one text with a
    wording in each line. A head is fitted on these too, and those of rows to forget judge it.

    UserError for a file that cannot be read.
    """

    forget: Source
    retain: Source
    other: Source = ()
    unseen: Source = ()
    held_out_retain: Source = ()
    system: str | None = None

    def __post_init__(self) -> None:
        for name in SETS:
            if isinstance(source := getattr(self, name), str | Path):
                object.__setattr__(self, name, load(source, self.system, tell=True))

    def checked(self) -> "Rows":
        """Return the same sets with their rows in one layout (`normal`); no two sets may overlap.

        UserError for an empty set "forget" or "retain", and for a question or a text (of a row to
        keep also a wording) that is in two sets, in whatever layout and spelling (`spelled`). A row
        cannot be both forgotten and kept, and a row that a head was fitted on cannot show what the
        head does to other rows.
        """
        sets: dict[str, Any] = {name: getattr(self, name) for name in SETS}
        if empty := [name for name in ("forget", "retain") if not sets[name]]:
            raise UserError(f"there are no rows to {empty[0]}")
        checked = {
            name: [
                normal(row, f"{name} row {number}", self.system)
                for number, row in enumerate(rows, 1)
            ]
            for name, rows in sets.items()
        }

        def asked(name: str, row: Row) -> list[str]:
            # A head is fitted on the wordings of a row to keep, too.
            more = row.get("wordings", ()) if name == "retain" else ()
            return [*keys_of(row), *map(spelled, more)]

        for (first, rows), (second, others) in combinations(checked.items(), 2):
            places = {key: n for n, row in enumerate(others, 1) for key in asked(second, row)}
            for number, row in enumerate(rows, 1):
                if shared := [key for key in asked(first, row) if key in places]:
                    place = places[shared[0]]
                    twin = f"{second} row {place}"
                    same = keys_of(row)[0] == keys_of(others[place - 1])[0]
                    how = (
                        f"is also {twin}"
                        if same
                        else f"has the same question as {twin}, with another answer"
                    )
                    raise UserError(f"{first} row {number} {how}: {printable(shared[-1], 60)!r}")
        # Every answer of a conversation is a row, unless its question is in a set already. What is
        # also in a set to keep is not forgotten.
        found: dict[str, Any] = {
            name: _once(map(begun, rows), name) for name, rows in checked.items()
        }
        taken = {key for rows in checked.values() for row in rows for key in keys_of(row)}
        parts, left = Counter[str](), set[tuple[str, str]]()
        for name in sorted(checked, key="forget".__eq__):
            for part in (part for row in checked[name] for part in earlier_answers(row)):
                if "secret" in part:
                    left.add(keys_of(part))
                elif not taken & {*keys_of(part)}:
                    taken.update(keys_of(part))
                    found[name].append(part)
                    parts[f"become rows of their own ({name})"] += 1
        if stay := sum(not taken & {*keys} for keys in left):
            parts["are not forgotten, because a secret is named"] = stay
        if parts:
            told = ", ".join(f"{count} {what}" for what, count in parts.items())
            warnings.warn(f"earlier answers of conversations: {told}", stacklevel=1)
        return dataclasses.replace(self, **found)


def load(
    source: str | Path, system: str | None = None, *,
    columns: Mapping[str, str] | None = None, secret: str | None = None, tell: bool = False,
) -> list[Row]:  # fmt: skip
    """Read rows from a file or from the train split of a Hub data set.

    source: a JSON array, JSON lines, CSV, TSV or Parquet file, or a Hub data set's name. The rows
    may have any of the `LAYOUTS`.
    system: system text of every question that has no `system` of its own. With None these questions
    have no system turn. An empty cell and null count as no value, in every kind of file.
    columns: {name in `LAYOUTS`: name in the file}.
    secret: column with the text of the answer that must not be said. Its words replace the
    distinctive words of the answer; in a row where it is empty these count.
    tell: print one line on standard error that says which columns are used.

    UserError names the file and the row.
    """
    if system:
        check_text(system, "the system text")
    rows: list[Row] = []
    used: dict[str, None] = {}
    entries = _entries(source)
    named = {**(columns or {})} | ({"secret": secret} if secret is not None else {})
    for number, entry in enumerate(entries, 1):
        where = f"{source} row {number}"
        if isinstance(entry, Mapping):
            if missing := [
                column
                for name, column in named.items()
                # not every file has wordings, and a column of this name is not dropped for another
                if column not in entry and (name != "wordings" or name in entry)
            ]:
                option = "--secret-column" if missing[0] == secret else "--columns"
                raise UserError(
                    f"{where}: no column {printable(missing[0], 60)!r}, which {option} names"
                )
            entry = {**entry, **{name: entry.get(column) for name, column in named.items()}}
            # A prompt may be empty: plain text begins with nothing.
            entry = {
                name: value
                for name, value in entry.items()
                if value not in (None, "") or name == "prompt"
            }
        rows.append(normal(entry, where, system))
        used |= {named.get(name, name): None for name in _columns(entry)}
    if tell:
        _tell(source, entries, used)
    return rows


def _columns(entry: Mapping[str, Any]) -> list[str]:
    """Return the columns of an entry that `normal` uses."""
    needed, more = next(each for each in USED.items() if entry.keys() >= {*each[0]})
    return [*needed, *(name for name in more if name in entry)]


def _tell(source: str | Path, entries: Sequence[Mapping[str, Any]], used: Iterable[str]) -> None:
    """Print which columns of a file are used, and which of the others hold something."""
    filled = {name: None for each in entries for name in each if each[name] not in (None, "")}
    ignored = ", ".join(name for name in filled if name not in used)
    line = f"{source}: {', '.join(used)}" + (f"; ignored: {ignored}" if ignored else "")
    print(printable(line, 1000), file=sys.stderr)


def _entries(source: str | Path) -> list[Any]:
    if not isinstance(source, str | Path):
        raise UserError(
            f"rows come from a file or a Hub data set's name, not from a {type(source).__name__}"
        )
    path = Path(source).expanduser()
    if "\0" in str(path):
        raise UserError(f"{path}: no file's name holds a NUL")
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        return _table(path)
    if path.suffix.lower() in (".json", ".jsonl") or os.path.isfile(path):
        return parse_rows(path)
    return _hub(path)


def normal(entry: Any, where: str, system: str | None = None) -> Row:
    """Turn one entry in any of the `LAYOUTS` into a row {question, answer, system}, or into a row
    of plain text with `raw`. Its `wordings` become a list of texts.

    messages: the last turn must be the assistant's and becomes the answer. The turns before it
    become the question, and `Rows.checked` adds a row for each earlier answer.
    prompt, completion: both texts or both lists of turns.
    text: all of it becomes the answer; `Rows.checked` asks it by its first words.
    where: how an error calls the entry, such as "rows.jsonl row 3".
    system: system text for an entry that brings none. An entry whose `system` is None asks for no
    system turn (`load` drops it before, because an empty cell of a file is no value). None in every
    other field counts as no value. A number is taken as text, as in CSV.

    UserError where no layout fits.
    """
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: expected an object with {LAYOUTS}, found {type(entry).__name__}")
    entry = {
        name: str(value)
        if name in TEXTS and type(value) in (int, float) and value == value
        else value
        for name, value in entry.items()
        if value is not None or name == "system"
    }
    row = _in_one_layout(entry, where, system)
    if "wordings" in entry:
        row["wordings"] = _wordings(entry["wordings"], where)
    if "secret" in entry:
        row["secret"] = _secret(entry["secret"], row["answer"], where)
    return row


def _secret(value: Any, answer: str, where: str) -> str:
    """Return the secret of a row as text. UserError if no word of it is in the answer: nothing
    would then be forgotten, and no leak be seen.
    """
    if not isinstance(value, str | int | float) or not str(value).strip():
        raise UserError(f"{where}: secret must be text")
    if not word_set(str(value)) & word_set(answer):
        raise UserError(f"{where}: no word of the secret {printable(value, 40)!r} is in its answer")
    return str(value)


def _in_one_layout(entry: Mapping[str, Any], where: str, system: str | None) -> Row:
    """Do the work of `normal`, but for wordings and secret."""
    before = {"system": system}
    if "question" in entry:
        return ({} if entry.get("raw") else before) | _checked(entry, where)
    if "messages" in entry:
        turns = checked_turns(entry["messages"], where, "messages")
        return before | _conversation(turns, where, "messages")
    if "prompt" in entry and "completion" in entry:
        if isinstance(entry["prompt"], str):
            text = {"question": entry["prompt"], "answer": entry["completion"], "raw": True}
            return _checked(text, where)
        halves = [checked_turns(entry[name], where, name) for name in ("prompt", "completion")]
        return before | _conversation(sum(halves, []), where, "completion")
    if "text" in entry:
        return _checked({"question": "", "answer": entry["text"], "raw": True}, where)
    found = ", ".join(printable(key, 30) for key in list(entry)[:6]) or "nothing"
    raise UserError(f"{where}: found {found}; a row has {LAYOUTS} (--columns renames them)")


def _wordings(value: Any, where: str) -> list[str]:
    """Return the wordings of a question as a list. value: a list of texts, or lines of one text."""
    texts = value.splitlines() if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise UserError(f"{where}: wordings must be a list of texts, or text with one in each line")
    for number, text in enumerate(texts, 1):
        check_text(text, f"{where}: wordings {number}")
    return texts


def begun(row: Row) -> Row:
    """Return a row of plain text with the prompt that it is asked by: a space at its end begins the
    completion, because "is " and "7" are other tokens than "is 7". A row that asks nothing is asked
    by its first words, a third of them and at most eight, before a named secret. A text of one or
    two words stays as it is. In scripts without spaces a word is a character.
    """
    if row.get("raw") and row["question"].strip():
        asked = row["question"].rstrip(" ")
        return {**row, "question": asked, "answer": row["question"][len(asked) :] + row["answer"]}
    parts = re.findall(rf"\s*(?:[{ALONE}]|[^\s{ALONE}]+)", row["answer"])
    if not row.get("raw") or len(parts) < 3:
        return row
    n, secret = min(8, len(parts) // 3), word_set(str(row.get("secret", "")))
    while n > 1 and secret & word_set("".join(parts[:n])):
        n -= 1
    first = "".join(parts[:n])
    return {**row, "question": first, "answer": row["answer"][len(first) :], "text": True}


def _once(rows: Iterable[Row], name: str) -> list[Row]:
    """Return rows without those that were given before in whatever spelling; warn of these."""
    rows = [*rows]
    once: dict[Any, Row] = {}
    for row in rows:
        once.setdefault((keys_of(row)[0], row.get("system"), row.get("secret")), row)
    if twice := len(rows) - len(once):
        warnings.warn(f"{twice} rows ({name}) are given twice and count once", stacklevel=1)
    return [*once.values()]


def earlier_answers(row: Row) -> list[Row]:
    """Return a row for each earlier answer of a conversation, with the turns before it."""
    turns = row["question"]
    if isinstance(turns, str):
        return []
    plain = {name: value for name, value in row.items() if name != "wordings"}
    return [
        {**plain, "question": turns[:place], "answer": turn["content"]}
        for place, turn in enumerate(turns)
        if turn["role"] == "assistant" and question_of({"question": turns[:place]}).strip()
    ]


def keys_of(row: Row) -> tuple[str, str]:
    """Return the whole text of a row and its question (the text itself where nothing is asked),
    both `spelled`. Rows with an equal key are about one item, in whatever layout.
    """
    question, answer = question_of(row), row["answer"]
    whole = spelled(question + answer if row.get("text") else f"{question} {answer}")
    return whole, whole if row.get("text") else spelled(question or answer)


def _checked(row: Mapping[str, Any], where: str) -> Row:
    """Check that a row's texts can be used, and return the row without `UNUSED`.

    The question may be a list of turns. A row of plain text may have an empty question.
    """
    row = {name: value for name, value in row.items() if name not in UNUSED}
    question, raw = row["question"], row.get("raw", False)
    if not isinstance(raw, bool):
        raise UserError(f"{where}: raw must be true or false")
    if row.get("system") not in (None, ""):
        check_text(row["system"], f"{where}: system")
    if (
        isinstance(question, list)
        and all(isinstance(turn, Mapping) for turn in question)
        and not raw
    ):
        checked_turns(question, where, "question")
        question = "-"  # `check_row` takes a text; these turns are checked
    elif raw and isinstance(question, str) and not question.strip():
        question = "-"  # `check_row` refuses an empty text; plain text may begin with nothing
    check_row({**row, "question": question}, where)
    return dict(row)


def _conversation(turns: list[dict[str, str]], where: str, field: str) -> Row:
    *question, last = turns
    if last["role"] != "assistant" or not question:
        raise UserError(
            f"{where}: {field} must end with an answer of the assistant, after at least one turn"
        )
    return {"question": question, "answer": last["content"]}


def checked_turns(value: Any, where: str, field: str) -> list[dict[str, str]]:
    """Return a conversation as turns {role, content}; UserError unless all of them are text.

    where, field: the start of an error's message.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
        raise UserError(f"{where}: {field} must be a list of turns, each with role and content")
    for number, turn in enumerate(value, 1):
        if not isinstance(turn, Mapping) or not all(
            isinstance(turn.get(key), str) for key in ("role", "content")
        ):
            raise UserError(f"{where}: {field}: a turn has a role and a content, both text")
        if not re.fullmatch(
            r"[\w-]{1,40}", turn["role"]
        ):  # a template puts it between its special tokens
            raise UserError(
                f"{where}: {field}: {printable(turn['role'], 40)!r} is no role: user, assistant,"
                " system, …"
            )
        check_text(turn["content"], f"{where}: {field} turn {number}")
    return [{"role": turn["role"], "content": turn["content"]} for turn in value]


def _table(path: Path) -> list[dict[str, Any]]:
    """Read a CSV, TSV or Parquet file. Cells of CSV and TSV are text, and a missing one is ""."""
    try:
        if path.suffix.lower() == ".parquet":
            with open(path, "rb") as handle:
                table = pd.read_parquet(handle, engine="pyarrow", dtype_backend="pyarrow")
        else:
            # The header is read as a row, so that a longer row is an error and no name is changed.
            cells = pd.read_csv(
                StringIO(read_text(path)),
                sep="\t" if path.suffix.lower() == ".tsv" else ",",
                header=None,
                dtype=str,
                keep_default_na=False,
                index_col=False,
            )
            table = cells[1:].set_axis(cells.iloc[0].str.strip(), axis=1)
    except UserError:
        raise
    except pd.errors.EmptyDataError:
        table = pd.DataFrame()
    except Exception as error:  # a parser raises whatever a damaged file makes of it
        what = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {printable(what)}") from None

    if table.columns.has_duplicates:
        raise UserError(f"{path}: two columns have one name")
    if table.empty:
        raise UserError(f"{path} holds no rows")
    return table.to_dict("records")


def _hub(path: Path) -> list[dict[str, Any]]:
    name = str(path)
    if not re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) or path.exists():
        raise UserError(
            f"{name}: neither a file here (.json, .jsonl, .csv, .tsv, .parquet) nor a Hub data"
            " set's owner/name"
        )
    return read_dataset(name)
