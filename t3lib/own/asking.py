"""The ways in which a model is asked for an answer.

These are other wordings of the question, other system texts, and prompts that already give the
first tokens of the truth. The functions turn rows into rows or token ids and call no model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t3lib.core.rows import SYSTEM, Row, encode_rows

PLAIN = "as it stands"
POLITE = "Could you please tell me: {}"
# A head that was fitted on bare questions may fail to recognise them after other words.
PREFACES = ("Hello! ", "Answer truthfully. ", "Remember: ", "请回答：")
FORCED = (1, 2, 4)  # how many first tokens of the truth are given
# (sampler temperature τ, top-p). Sampled at τ, T3 is p^(1/(Tτ)) f^(w/τ). So a colder sampler undoes
# the tempering.
SAMPLERS = ((1.0, 1.0), (0.7, 1.0), (0.5, 1.0), (0.3, 1.0), (0.6, 0.9))


@dataclass(frozen=True)
class Asked:
    """One question to a model.

    way: the way of asking, such as "politely". row: number of the row, from 0.
    prompt: token ids.
    rest: the part of the truth that is still missing, if the prompt gives the truth's first tokens;
    otherwise "".
    room: number of tokens of the truth that are still missing.
    """

    way: str
    row: int
    prompt: list[int]
    rest: str
    room: int


def asked(row: Row) -> str:
    """Return the question of a row as one text. For a conversation it is the last turn before the
    answer.
    """
    question = row["question"]
    return question if isinstance(question, str) else question[-1]["content"]


def reworded(row: Row, text: str) -> Row:
    """Return the row with `text` as its question. In a conversation only the last turn is
    replaced.
    """
    question = row["question"]
    if not isinstance(question, str):
        text = [*question[:-1], {**question[-1], "content": text}]  # type: ignore[assignment]
    return {**row, "question": text}


def wordings(row: Row, template: bool, further: Sequence[str] = ()) -> dict[str, Row]:
    """Return {way of asking: row} for the wordings of one row's question.

    template: True if the tokenizer has a chat template, so that a system text can be added or
    removed.
    further: other wordings of the question, as given by the user.

    A row of plain text is asked only as it is, in lower case, and in the wordings of `further`.
    """
    text, raw = asked(row), row.get("raw", False)
    found = {PLAIN: text, "in lower case": text.lower()}
    if not raw:
        found |= {
            "without its last mark": text.rstrip(" ?!.。？！"),
            "politely": POLITE.format(text),
        }
        found |= {f'after "{preface.strip()}"': preface + text for preface in PREFACES}
    found |= {f"reworded {number}": other for number, other in enumerate(further, 1)}
    rows = {
        way: reworded(row, other) for way, other in found.items() if other.strip() or way == PLAIN
    }
    own = not isinstance(row["question"], str) and row["question"][0].get("role") == "system"
    if template and not raw and not own:
        other = SYSTEM if row.get("system", SYSTEM) is None else None
        rows["without a system text" if other is None else "with a system text"] = {
            **row,
            "system": other,
        }
    return rows


def questions(
    tokenizer: Any, rows: Sequence[Row], further: Mapping[str, Sequence[str]] | None = None
) -> list[Asked]:
    """Build the questions for greedy decoding: every row in every way of asking.

    further: {question: other wordings of it}.
    """
    template, found = tokenizer.chat_template is not None, []
    for number, row in enumerate(rows):
        ways = wordings(row, template, (further or {}).get(asked(row), ()))
        examples = encode_rows(tokenizer, list(ways.values()))
        for way, example in zip(ways, examples):
            room = len(example.ids) - example.n_prompt
            found.append(Asked(way, number, example.ids[: example.n_prompt], "", room))
        ids, start = examples[0].ids, examples[0].n_prompt
        for m in FORCED:
            if rest := tokenizer.decode(ids[start + m :], skip_special_tokens=True).strip():
                found.append(
                    Asked(
                        f"first {m} tokens given",
                        number,
                        ids[: start + m],
                        rest,
                        len(ids) - start - m,
                    )
                )
    return found


def other_forms(row: Row, template: bool) -> Iterator[tuple[str, Row]]:
    """Yield (name, row) for other forms in which a model may know a row.

    name: what the user should change, such as an option of `t3`.
    template: True if the tokenizer has a chat template. Then the row is also asked with no system
    text, with an empty one and with TOFU's.

    A row of question and answer is also asked as plain text, and a row of plain text as question
    and answer.
    """
    text = asked(row)
    if row.get("raw"):
        text, answer = text.strip(), row["answer"].strip()
        row = {"question": text, "answer": answer}
        if not text:
            return
    else:
        yield "rows of prompt and completion, because it knows plain text", {
            "question": text, "answer": " " + row["answer"].strip(), "raw": True,
        }  # fmt: skip
    systems = {"--no-system": None, '--system ""': "", f'--system "{SYSTEM}"': SYSTEM}
    for name, system in systems.items() if template else ():
        if row.get("system", row) != system:
            yield name, {**row, "system": system}
    if not template and "system" not in row:
        yield "rows of question and answer", row
