"""The sliders of notebooks 00_explore and 07 on text: the next token under the base and under T3,
at any T and w of a grid, and what both answer.

A question is read once: the base's log p and the head's log f at every position of its true answer
depend on neither T nor w. So what the sliders show at a setting is exact: Eq. 5 of the tokens that
are stored, with the sum over the whole vocabulary stored for each setting.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
import torch

from t3lab.explore import widget
from t3lab.explore.stories import answered
from t3lab.report.render import Html
from t3lib.classifier.head import T3Head
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.own.questions import question_text
from t3lib.own.unlearn import weighted
from t3lib.tofu.likelihood import UNTILTED, answer_positions
from t3lib.tofu.reader import Reading

TEMPERATURES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
TOP = 10  # tokens of a position that are stored for a setting: those with the largest p or p̂
Place = dict[str, Any]


@torch.no_grad()
def places(
    base: Any,
    head: T3Head,
    tokenizer: Any,
    rows: Sequence[Row],
    temperatures: Sequence[float] = TEMPERATURES,
    strengths: Sequence[float] = (1.0,),
) -> list[list[Place]]:
    """Read the true answers of some rows, and return what each of their positions needs.

    A place has `before`, the text of the answer before it, and of each stored token `words`, its
    text, `logp`, and `logf` at w = 1. `target` is the index of the true token among these. z is
    ln Σ p^(1/T) over the whole vocabulary, for each T. zf is ln Σ p^(1/T) f^w, for each T a list
    over w. All is computed in float64 from float32 logits.
    """
    examples = encode_rows(tokenizer, rows)
    answers = [each.answer for each in examples]
    found: list[list[Place]] = [[{} for _ in ids] for ids in answers]
    plain, reading = weighted(head, 1.0), Reading(pad_id(tokenizer))

    for part in answer_positions(base, examples, reading, [plain]):
        assert part.z is not None, "a head is read"
        logp, logf = part.logits.double().log_softmax(-1), plain.logf(part.z).double()
        tempered = torch.stack([logp / T for T in temperatures], 1)[:, :, None]  # (N, T, 1, V)
        tilted = tempered + logf.new_tensor(strengths)[:, None] * logf[:, None, None]
        z, zf = tempered.logsumexp(-1)[..., 0], tilted.logsumexp(-1)  # (N, T) and (N, T, w)

        # of each place the tokens that some setting of the dials makes likely
        larger = torch.maximum(logp[:, None, None], tilted - zf[..., None])
        shown = larger.topk(min(TOP, logp.shape[-1])).indices.flatten(1).tolist()

        for n, (row, step) in enumerate(zip(part.example.tolist(), part.step.tolist())):
            target = answers[row][step]
            tokens = sorted({target, *shown[n]})
            numbers = {"logp": logp[n, tokens], "logf": logf[n, tokens], "z": z[n], "zf": zf[n]}
            found[row][step] = {
                "before": tokenizer.decode(answers[row][:step]),
                "words": [tokenizer.decode([token]) for token in tokens],
                "target": tokens.index(target),
                **{name: values.round(decimals=5).tolist() for name, values in numbers.items()},
            }

    return found


def language(
    base: Any,
    head: T3Head,
    tokenizer: Any,
    sides: Mapping[str, Sequence[Row]],
    secrets: Sequence[str] = (),
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    strengths: Sequence[float] = (1.0,),
    start: tuple[float, float] = (1.0, 1.0),
) -> Html:
    """Build sliders for T, for w if there are several, and for the position in the true answer.

    sides: {"to forget": rows, "to keep": rows}, rows to choose from. secrets: for each row of the
    first side, the words that give it away. The position is first that of their first token, and
    without secrets that of the token with the smallest f. start: the first (T, w). A greedy and a
    sampled answer to each row are stored for the base and for every (T, w).
    """
    dials = [*product(temperatures, [weighted(head, w) for w in strengths])]
    tilts = [*UNTILTED, *((tilt, T) for T, tilt in dials)]
    labels = [f"T = {T:g}" + f", w = {tilt.w:g}" * (len(strengths) > 1) for T, tilt in dials]
    data, static = [], {"": ["question", "answer in the row", "base", *labels]}
    for name, rows in sides.items():
        both = answered(base, tokenizer, rows, tilts)
        texts = [*zip(*(zip(each["greedy"], each["sampled"]) for each in both))]  # by row
        read = places(base, head, tokenizer, rows, temperatures, strengths)
        data.append([
            {"question": question_text(row), "truth": row["answer"], "answers": answers,
             "places": each}
            for row, answers, each in zip(rows, texts, read)
        ])  # fmt: skip
        static[name] = [
            question_text(rows[0]),
            rows[0]["answer"],
            *(greedy for greedy, _ in texts[0]),
        ]
    first = [temperatures.index(start[0]), strengths.index(start[1])]
    return widget.page("language", pd.DataFrame(static), T=temperatures, w=strengths, start=first,
                       names=[*sides], sides=data, secrets=[*secrets])  # fmt: skip
