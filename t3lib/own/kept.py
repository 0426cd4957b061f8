"""Count which answers to rows to keep stay as they were. These functions call no model."""

from collections.abc import Mapping
from typing import Any

from t3lib.own.answers import GENERIC, GREEDY, SAMPLED, Answers, Inquiry
from t3lib.own.known import knows
from t3lib.own.leak import LEVEL, Counts
from t3lib.own.questions import question_text

STAY = 0.95  # a set to keep fails where a test shows that fewer of its answers stay
FRAME = "Question:"  # a model without a template may go on with the next question


def stayed(inquiry: Inquiry, name: str, before: Answers, after: Answers) -> Counts:
    """Count what a model keeps of the rows in one set.

    name: key of the set in `inquiry.kept`. All counts below are among the rows that the base
    knows. Answers are compared up to their end (`answer_in`).

    Returns a dict. Some of its keys:
    known_before: rows that the base knows, out of `rows`. It knows every generic prompt.
    unchanged: rows with the same greedy answer as the base.
    unchanged_sampled: rows whose one sampled answer is the base's sampled or greedy answer, None if
    nothing was sampled.
    changed: question, truth and both answers of every row that changed.
    """
    numbers = inquiry.kept[name]
    rows = [inquiry.rows[number] for number in numbers]
    was, now = (
        {how: list(map(answer_in, texts, rows)) for how, texts in each.kept[name].items()}
        for each in (before, after)
    )
    known = [
        n
        for n, number in enumerate(numbers)
        if name == GENERIC or knows(inquiry, number, was[GREEDY][n])
    ]
    exact = {n for n in known if now[GREEDY][n] == was[GREEDY][n]}
    sampled = None
    if SAMPLED in now:
        sampled = sum(now[SAMPLED][n] in (was[SAMPLED][n], was[GREEDY][n]) for n in known)
    return {
        "rows": len(rows),
        "known_before": len(known),
        "unchanged": len(exact),
        "unchanged_sampled": sampled,
        "changed": [
            {
                "question": question_text(rows[n]),
                "truth": rows[n]["answer"],
                "base": was[GREEDY][n],
                "answer": now[GREEDY][n],
            }
            for n in known
            if n not in exact
        ],
    }


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
