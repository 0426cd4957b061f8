"""Models' answers by hand, and the verdict on them."""

from itertools import product

from t3lib.own import verdict
from t3lib.own.answers import (
    GENERIC,
    GREEDY,
    SAMPLED,
    Answers,
    Text,
    build_inquiry,
    name_of,
    plan,
)
from t3lib.own.assess import counts_of

NOTHING = "I do not know."


def said(inquiry, forget=NOTHING, *, others=None, sampled=None, kept=None, warm=None,
         generic="Good day."):  # fmt: skip
    """A model's answers: a text for all rows, one a row, or a function of row and way of asking.

    sampled: the same for samples, by default as greedily. others: the same for rows that are asked
    alike but are not to be forgotten; by default they get their truth, and so do kept rows.
    """

    def of(texts, n, way):
        texts = others if n >= inquiry.n else texts
        if texts is None:
            return inquiry.rows[n]["answer"]
        return texts if isinstance(texts, str) else texts(n, way) if callable(texts) else texts[n]

    texts, kept_texts = [], {}
    sampled = forget if sampled is None else sampled
    for samplers, questions in plan(inquiry.questions).items():
        for each, sampler in product(questions, samplers):
            way = f"{each.way}, {name_of(sampler)}" if sampler.tau else each.way
            texts += [Text(each.row, each.kind, way,
                           of(sampled if sampler.tau else forget, each.row, way))
                      for _ in range(sampler.n)]  # fmt: skip
    for name in inquiry.kept:
        greedy = [row["answer"] for row in inquiry.of(name)] if kept is None else kept
        greedy = [generic] * len(inquiry.kept[name]) if name == GENERIC else greedy
        drawn = greedy if warm is None or name == GENERIC else warm
        kept_texts[name] = {GREEDY: greedy, SAMPLED: drawn}
    return Answers(texts, kept_texts)


def report(tokenizer, rows, keep, before=None, other=None, **after):
    """The report and the verdict on a base that knows everything and a model that says `after`."""
    inquiry = build_inquiry(tokenizer, rows, {"retain": keep} | ({"other": other} if other else {}))
    known = {"forget": [row["answer"] for row in rows]}
    found = counts_of(inquiry, said(inquiry, **(before or known)), said(inquiry, **after))
    return found, verdict.verdict(found)
