"""Models' answers by hand, and the verdict on them."""

from t3lib.own import verdict
from t3lib.own.answers import GREEDY, KEPT_SAMPLERS, SAMPLES, TALKS, Said, inquiry, sampler_name
from t3lib.own.asking import SAMPLED
from t3lib.own.evidence import numbers

NOTHING = "I do not know."
WARM = [sampler_name(*sampler) for sampler in KEPT_SAMPLERS]


def said(asked, forget=NOTHING, *, sampled=None, forced=None, kept=None, warm=None,
         recognised=False, smalltalk="Good day."):  # fmt: skip
    """A model's answers: a text for all rows, one a row, or a function of row and way of asking.

    Rows that are asked alike but are not to be forgotten get their truth, and so do kept rows.
    """

    def of(texts, n, way):
        if n >= asked.n:
            return asked.rows[n]["answer"]
        return texts if isinstance(texts, str) else texts(n, way) if callable(texts) else texts[n]

    texts = {n: {} for n in asked.alike}
    for each in asked.asked:
        given = forced if each.rest and forced is not None else NOTHING if each.rest else forget
        given = forget if callable(forget) else given
        texts[each.row][each.way] = [of(given, each.row, each.way)]
    for n in asked.alike:
        for way, samplers in SAMPLED.items():
            for sampler in samplers if way in texts[n] else ():
                name = sampler_name(*sampler, way)
                texts[n][name] = [of(NOTHING if sampled is None else sampled, n, name)] * SAMPLES
    kept_texts = {}
    for name in asked.kept:
        greedy = [row["answer"] for row in asked.of(name)] if kept is None else kept
        kept_texts[name] = {GREEDY: greedy} | dict.fromkeys(WARM, greedy if warm is None else warm)
    talk = {GREEDY: [[smalltalk]] * len(asked.smalltalk)}
    talk |= {how: [[smalltalk] * TALKS] * len(asked.smalltalk) for how in WARM}
    return Said(
        texts,
        {n: {} for n in range(asked.n)},
        kept_texts,
        talk,
        [recognised] * asked.n,
        [False] * asked.n,
    )


def report(tokenizer, rows, keep, before=None, other=None, **after):
    """The report and the verdict on a base that knows everything and a model that says `after`."""
    asked = inquiry(tokenizer, rows, {"retain": keep} | ({"other": other} if other else {}))
    truths = [row["answer"] for row in rows]
    known = {"forget": truths, "sampled": truths, "forced": truths, "recognised": True}
    found = numbers(asked, said(asked, **(before or known)), said(asked, **after))
    return found, verdict.verdict(found)
