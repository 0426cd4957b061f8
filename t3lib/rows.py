"""Rows as people have them, turned into questions and answers: four forms, from files of four kinds or from the Hub.

The forms are those that TRL's documentation names beside TOFU's own. `raw` marks text without a chat template.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t3lib.errors import UserError, printable
from t3lib.tofu import Row, check_row, parse_rows

FORMS = "question and answer; prompt and completion; messages; or text"
TABLES = (".csv", ".parquet")
LINES = (".json", ".jsonl")


def load(source: str | Path, system: str | None = None) -> list[Row]:
    """Rows of a file (JSON array, JSON lines, CSV, Parquet) or of a Hub data set's train split, in any form of `FORMS`.

    system: the system text to put before every question that brings none. UserError names the file and the row.
    """
    path = Path(source).expanduser()
    if path.suffix in LINES or (path.is_file() and path.suffix not in TABLES):
        entries: Sequence[Any] = parse_rows(path)
    elif path.suffix in TABLES:
        entries = _table(path)
    else:
        entries = _hub(str(source))
    return [normal(entry, f"{source} row {number}", system) for number, entry in enumerate(entries, 1)]


def normal(entry: Any, where: str, system: str | None = None) -> Row:
    """A row {question, answer} (and `raw`, `system` where they apply) from one entry in any form of `FORMS`.

    messages: the last turn is the assistant's and is the answer; the turns before it are the question. prompt and
    completion: text, or turns. text: all of it is answer. UserError, which begins with `where`, when no form fits.
    """
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: expected an object with {FORMS}, found {type(entry).__name__}")
    own = {} if system is None else {"system": system}
    if "question" in entry:
        return check_row(entry, where) | own
    if "messages" in entry:
        *turns, last = _turns(entry["messages"], where, "messages")
        if last["role"] != "assistant" or not turns:
            raise UserError(f"{where}: messages must end with an answer of the assistant, after at least one turn")
        return _checked({"question": turns, "answer": last["content"]}, where) | own
    if "prompt" in entry and "completion" in entry:
        if isinstance(entry["prompt"], str):
            row = {"question": entry["prompt"], "answer": entry["completion"], "raw": True}
            return row if not entry["prompt"] else _checked(row, where)
        [answer] = _turns(entry["completion"], where, "completion")[-1:]
        return (
            _checked({"question": _turns(entry["prompt"], where, "prompt"), "answer": answer["content"]}, where) | own
        )
    if "text" in entry:
        return _checked({"question": "", "answer": entry["text"], "raw": True}, where)
    found = ", ".join(printable(key, 30) for key in list(entry)[:6]) or "nothing"
    raise UserError(f"{where}: found {found}; a row has {FORMS}")


def _checked(row: Row, where: str) -> Row:
    """The row, its answer checked; a question that is turns was checked with them, an empty one has no text."""
    check_row({"question": "-", **{k: v for k, v in row.items() if k == "answer"}}, where)
    return row


def _turns(value: Any, where: str, field: str) -> list[dict[str, str]]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
        raise UserError(f"{where}: {field} must be a list of turns, each with role and content")
    for turn in value:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise UserError(f"{where}: {field}: a turn has a role and a content, both text")
    return [{"role": turn["role"], "content": turn["content"]} for turn in value]


def _table(path: Path) -> list[dict[str, Any]]:
    import pandas as pd

    try:
        if path.suffix == ".csv":
            frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        else:
            frame = pd.read_parquet(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, ImportError) as error:  # pandas' own errors of parsing are ValueErrors
        raise UserError(f"{path}: {printable(error)}") from None
    entries = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
    if not entries:
        raise UserError(f"{path} holds no rows")
    return [{key: list(v) if hasattr(v, "tolist") else v for key, v in entry.items()} for entry in entries]


def _hub(name: str) -> list[Any]:
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise UserError(f"{name}: neither a file here (.json, .jsonl, .csv, .parquet) nor a Hub data set's owner/name")
    try:
        from datasets import load_dataset

        return list(load_dataset(name, split="train"))
    except ImportError:
        raise UserError(f"{name}: a Hub data set needs the package datasets (pip install datasets)") from None
    except Exception as error:  # datasets raises whatever its server or its parser raised
        raise UserError(f"{name}: not a file here, and not to be had from the Hub ({printable(error)})") from None
