"""Notebook 07: some questions, answered by an unlearned model at any T and w."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from t3lab.explore.language import language
from t3lab.explore.stories import answered
from t3lab.report.render import Html
from t3lib.core.rows import Row
from t3lib.own.questions import question_text
from t3lib.own.unlearn import weighted
from t3lib.sampler.tilt import T3ForCausalLM

STEPS = (1.0, 2.0, 3.0, 4.0)  # of both sliders, beside the model's own T and w
DIALS = ((1.0, 1.0), (1.0, 3.0), (3.0, 1.0))  # (T, w) of the table


def table(model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row]) -> pd.DataFrame:
    """Build a table of a greedy and a sampled answer to each row at every (T, w) of `DIALS`.

    model: has one head. rows: {head of a column, such as "to forget": row}.
    """
    lines = {
        "question": [question_text(row) for row in rows.values()],
        "true answer": [row["answer"] for row in rows.values()],
    }
    tilts = [(weighted(model.heads[0], w), T) for T, w in DIALS]
    for (T, w), both in zip(DIALS, answered(model.base, tokenizer, [*rows.values()], tilts)):
        name = f"T = {T:g}, w = {w:g}"
        lines |= {f"{name}, greedy": both["greedy"], f"{name}, sampled at τ = 1": both["sampled"]}
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=[*rows])
    return frame.rename_axis("").reset_index()


def dials(model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row]) -> Html:
    """Build sliders for T and w, with the next token and the answers to each row (`language`).

    model: has one head, whose T and w are among the choices. The sliders start at the first of
    `DIALS`. rows: by what to call them, such as "to keep"; the row to forget comes first.
    """
    [head], T = model.heads, float(model.temperature)  # type: ignore[arg-type]
    grid = [sorted({*STEPS, value}) for value in (T, head.w)]
    sides = {name: [row] for name, row in rows.items()}
    return language(model.base, head, tokenizer, sides, temperatures=grid[0], strengths=grid[1],
                    start=DIALS[0])  # fmt: skip
