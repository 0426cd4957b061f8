"""Count which answers to rows to keep stay as they were. These functions call no model."""

from collections.abc import Mapping, Sequence
from typing import Any

from t3lib.own.answers import GENERIC, KEPT, Inquiry, Text, way_of
from t3lib.own.known import knows
from t3lib.own.leak import LEVEL, Counts
from t3lib.own.questions import question_text

STAY = 0.95  # a set to keep fails where a test shows that fewer of its answers stay
FRAME = "Question:"  # a model without a template may go on with the next question


def stayed(inquiry: Inquiry, name: str, before: Sequence[Text], after: Sequence[Text]) -> Counts:
    """Count what a model keeps of the rows in one set.

    name: key of the set in `inquiry.kept`. before, after: answers of the base and of the model. All
    counts below are among the rows that the base knows. Where the base goes on beyond its answer,
    texts are compared up to the answer's end (`answer_in`).

    Returns a dict. Some of its keys:
    known_before: rows that the base knows, out of `rows`. It knows every generic prompt.
    unchanged: rows with the same greedy answer as the base.
    unchanged_sampled: rows whose one sampled answer is the base's sampled or greedy answer. Where
    nothing was sampled, the greedy answer stands for the sample.
    changed: question, truth and both answers of every row that changed. changed_sampled: the same
    with the sampled answer, of rows whose sampled answer is another one.
    """
    numbers = inquiry.kept[name]
    every = [texts for each in (before, after) for texts in answers_of(name, each)]
    longer = {n for n, text in every[0].items() if text != answer_in(text, inquiry.rows[n])}
    was, was_sampled, now, now_sampled = (
        {n: answer_in(text, inquiry.rows[n]) if n in longer else text for n, text in texts.items()}
        for texts in every
    )
    known = [n for n in numbers if name == GENERIC or knows(inquiry, n, was[n])]
    changed = {n: now[n] for n in known if now[n] != was[n]}
    sampled = now_sampled or now
    others = {n: sampled[n] for n in known if sampled[n] not in (was_sampled.get(n), was[n])}

    def listed(rows: dict[int, str]) -> list[dict[str, str]]:
        return [
            {
                "question": question_text(inquiry.rows[n]),
                "truth": inquiry.rows[n]["answer"],
                "base": was[n],
                "answer": answer,
            }
            for n, answer in rows.items()
        ]

    return {
        "rows": len(numbers),
        "known_before": len(known),
        "unchanged": len(known) - len(changed),
        "unchanged_sampled": len(known) - len(others),
        "changed": listed(changed),
        "changed_sampled": listed(others) if now_sampled else [],
    }


def answers_of(name: str, answers: Sequence[Text]) -> tuple[dict[int, str], dict[int, str]]:
    """Return {row: greedy answer} and {row: sampled answer} of one set to keep."""
    mine = [each for each in answers if each.kind == KEPT and way_of(each) == name]
    return (
        {each.row: each.text.strip() for each in mine if each.way == name},
        {each.row: each.text.strip() for each in mine if each.way != name},
    )


def answer_in(text: str, row: Mapping[str, Any]) -> str:
    """Return a text up to the end of its answer: its first line, if the truth has one line, before
    the next "Question:".
    """
    text = text.partition(FRAME)[0].strip()
    return text if "\n" in row["answer"].strip() else text.partition("\n")[0].strip()


def too_few(stay: int, known: int) -> bool:
    """True if a test shows that fewer than 95% (`STAY`) of such answers stay: binomial, one-sided
    at `LEVEL`.
    """
    from scipy.stats import binom

    return bool(binom.sf(known - stay - 1, known, 1 - STAY) <= LEVEL)
