"""Models' answers by hand, and the verdict on them."""

from t3lib.own import verdict
from t3lib.own.answers import (
    GENERIC,
    GREEDY,
    KEPT_SAMPLERS,
    SAMPLES,
    Answers,
    build_inquiry,
    sampler_name,
)
from t3lib.own.assess import counts_of
from t3lib.own.questions import SAMPLED

NOTHING = "I do not know."
WARM = [sampler_name(*sampler) for sampler in KEPT_SAMPLERS]


def said(inquiry, forget=NOTHING, *, sampled=None, forced=None, kept=None, warm=None,
         generic="Good day."):  # fmt: skip
    """A model's answers: a text for all rows, one a row, or a function of row and way of asking.

    Rows that are asked alike but are not to be forgotten get their truth, and so do kept rows.
    """

    def of(texts, n, way):
        if n >= inquiry.n:
            return inquiry.rows[n]["answer"]
        return texts if isinstance(texts, str) else texts(n, way) if callable(texts) else texts[n]

    texts = {n: {} for n in inquiry.compared_rows}
    for each in inquiry.questions:
        given = forced if each.rest and forced is not None else NOTHING if each.rest else forget
        given = forget if callable(forget) else given
        texts[each.row][each.way] = [of(given, each.row, each.way)]
    for n in inquiry.compared_rows:
        for way, samplers in SAMPLED.items():
            for sampler in samplers if way in texts[n] else ():
                name = sampler_name(*sampler, way)
                texts[n][name] = [of(NOTHING if sampled is None else sampled, n, name)] * SAMPLES
    kept_texts = {}
    for name in inquiry.kept:
        greedy = [row["answer"] for row in inquiry.of(name)] if kept is None else kept
        greedy = [generic] * len(inquiry.kept[name]) if name == GENERIC else greedy
        kept_texts[name] = {GREEDY: greedy} | dict.fromkeys(
            WARM, greedy if warm is None or name == GENERIC else warm
        )
    return Answers(texts, {n: {} for n in range(inquiry.n)}, kept_texts)


def report(tokenizer, rows, keep, before=None, other=None, **after):
    """The report and the verdict on a base that knows everything and a model that says `after`."""
    inquiry = build_inquiry(tokenizer, rows, {"retain": keep} | ({"other": other} if other else {}))
    truths = [row["answer"] for row in rows]
    known = {"forget": truths, "sampled": truths, "forced": truths}
    found = counts_of(inquiry, said(inquiry, **(before or known)), said(inquiry, **after))
    return found, verdict.verdict(found)
