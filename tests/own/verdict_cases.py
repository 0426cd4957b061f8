"""Models' answers by hand, and the verdict on them."""

from itertools import product

from t3lib.own import verdict
from t3lib.own.answers import GENERIC, KEPT, Text, build_inquiry, name_of, plan
from t3lib.own.assess import counts_of
from t3lib.own.questions import SAMPLERS
from t3lib.tofu.samples import Sampler

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

    answers, sampled = [], forget if sampled is None else sampled
    for samplers, questions in plan(inquiry.questions).items():
        for each, sampler in product(questions, samplers):
            way = each.way + name_of(sampler)
            for _ in range(sampler.n):
                text = of(sampled if sampler.tau else forget, each.row, way)
                text = each.start + text.removeprefix(each.start)
                answers.append(Text(each.row, each.kind, way, text))
    drawn = name_of(Sampler(1, *SAMPLERS[0]))
    for name, rows in inquiry.kept.items():
        given = {"retain": kept, GENERIC: [generic] * len(rows)}.get(name, fresh)
        greedy = [inquiry.rows[n]["answer"] for n in rows] if given is None else given
        answers += [Text(n, KEPT, name, text) for n, text in zip(rows, greedy, strict=True)]
        texts = warm if warm and name == "retain" else greedy
        answers += [Text(n, KEPT, name + drawn, text) for n, text in zip(rows, texts, strict=True)]
    return answers


def report(tokenizer, rows, keep, before=None, other=FRESH, **after):
    """The report and the verdict on a base that knows everything and a model that says `after`."""
    inquiry = build_inquiry(tokenizer, rows, {"retain": keep} | ({"other": other} if other else {}))
    known = {"forget": [row["answer"] for row in rows]}
    found = counts_of(inquiry, said(inquiry, **(before or known)), said(inquiry, **after))
    return found, verdict.verdict(found)
