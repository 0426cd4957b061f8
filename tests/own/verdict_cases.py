"""Models' answers by hand, and the verdict on them."""

from itertools import product

from t3lib.own import verdict
from t3lib.own.answers import (
    GENERIC,
    GREEDY,
    SAMPLED,
    Answers,
    build_inquiry,
    name_of,
    plan,
)
from t3lib.own.assess import counts_of

NOTHING = "I do not know."
FRESH = [
    {"question": f"Where is {what}?", "answer": f"At {place}.", "system": None}
    for what, place in (("the mill", "Quellwick"), ("the ferry", "Sandfold"))
]


def said(inquiry, forget=NOTHING, *, others=None, sampled=None, kept=None, warm=None, fresh=None,
         generic="Good day."):  # fmt: skip
    """A model's answers: a text for all rows, one a row, or a function of row and way of asking.

    sampled: the same for samples, by default as greedily. others: the same for rows that are asked
    alike but are not to be forgotten; by default they get their truth, and so do kept rows.
    kept, warm: greedy and sampled answers to the fitted rows to keep. fresh: to those never fitted.
    """

    def of(texts, n, way):
        texts = others if n >= inquiry.n else texts
        if texts is None:
            return inquiry.rows[n]["answer"]
        return texts if isinstance(texts, str) else texts(n, way) if callable(texts) else texts[n]

    answers, kept_texts = Answers([], {}), {}
    sampled = forget if sampled is None else sampled
    for samplers, questions in plan(inquiry.questions).items():
        for each, sampler in product(questions, samplers):
            way = f"{each.way}, {name_of(sampler)}" if sampler.tau else each.way
            for _ in range(sampler.n):
                text = of(sampled if sampler.tau else forget, each.row, way)
                answers.add(each, name_of(sampler), text.removeprefix(each.start))
    for name in inquiry.kept:
        given = {"retain": kept, GENERIC: [generic] * len(inquiry.kept[name])}.get(name, fresh)
        greedy = [inquiry.rows[n]["answer"] for n in inquiry.kept[name]] if given is None else given
        drawn = warm if warm and name == "retain" else greedy
        kept_texts[name] = {GREEDY: greedy, SAMPLED: drawn}
    return Answers(answers.texts, kept_texts)


def report(tokenizer, rows, keep, before=None, other=FRESH, **after):
    """The report and the verdict on a base that knows everything and a model that says `after`."""
    inquiry = build_inquiry(tokenizer, rows, {"retain": keep} | ({"other": other} if other else {}))
    known = {"forget": [row["answer"] for row in rows]}
    found = counts_of(inquiry, said(inquiry, **(before or known)), said(inquiry, **after))
    return found, verdict.verdict(found)
