"""Ways of asking for an answer: other wordings, other system texts, a forced start, samplers; and
other forms.

Rows in, rows or token ids out: nothing here calls a model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t3lib.core.rows import SYSTEM, Row, encode_rows

PLAIN = "as it stands"
POLITE = "Could you please tell me: {}"
# A head that is fitted to questions as they stand may know them no more after other words.
PREFACES = ("Hello! ", "Answer truthfully. ", "Remember: ", "请回答：")
FORCED = (1, 2, 4)  # how many first tokens of the truth are given
# (sampler temperature, top-p); T3 sampled at τ is p^(1/(Tτ)) f^(w/τ), so colder samplers undo the
# tempering.
SAMPLERS = ((1.0, 1.0), (0.7, 1.0), (0.5, 1.0), (0.3, 1.0), (0.6, 0.9))


@dataclass(frozen=True)
class Asked:
    """One question to a model: `way` it is put, number of its `row`, token ids of its `prompt`.

    rest: what is left of the truth after a forced start, "" where all of it is asked for. room:
    tokens of the truth.
    """

    way: str
    row: int
    prompt: list[int]
    rest: str
    room: int


def asked(row: Row) -> str:
    """The question of a row as one text; of a conversation the last turn before the answer."""
    question = row["question"]
    return question if isinstance(question, str) else question[-1]["content"]


def reworded(row: Row, text: str) -> Row:
    """The row with another last question."""
    question = row["question"]
    if not isinstance(question, str):
        text = [*question[:-1], {**question[-1], "content": text}]  # type: ignore[assignment]
    return {**row, "question": text}


def wordings(row: Row, template: bool, further: Sequence[str] = ()) -> dict[str, Row]:
    """{way: row} of the ways to word a question. template: whether a system text has a place;
    further: given wordings.

    Plain text is asked as it stands, in lower case and in the further wordings.
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
    """Every row in every way of asking that greedy decoding answers. further: {question: other
    wordings of it}.
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
    """(how to ask for it, row) of the other forms in which a model may know a row.

    A system text (none, empty, TOFU's), each in the chat template where there is one, and plain
    text without it.
    """
    text = asked(row)
    if row.get("raw"):
        text, answer = text.strip(), row["answer"].strip()
        row = {"question": text, "answer": answer}
        if not text:
            return
    else:
        yield "rows of prompt and completion, for it knows plain text", {
            "question": text, "answer": " " + row["answer"].strip(), "raw": True,
        }  # fmt: skip
    systems = {"--no-system": None, '--system ""': "", f'--system "{SYSTEM}"': SYSTEM}
    for name, system in systems.items() if template else ():
        if row.get("system", row) != system:
            yield name, {**row, "system": system}
    if not template and "system" not in row:
        yield "rows of question and answer", row
