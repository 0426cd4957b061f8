"""Notebook 07: some questions, answered by an unlearned model at any T and w."""

import html
from collections.abc import Mapping
from typing import Any

import ipywidgets
import pandas as pd

from t3lib.core.rows import Row, encode_rows
from t3lib.own.answers import answers_to
from t3lib.own.asking import asked
from t3lib.own.audit.samples import sample_answers
from t3lib.own.unlearn import weighted
from t3lib.sampler.tilt import T3ForCausalLM

STEPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of both sliders; T from 1
DIALS = ((1.0, 1.0), (1.0, 3.0), (3.0, 1.0))  # (T, w) of the table


def answered(
    model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row], T: float, w: float
) -> list[tuple[str, str]]:
    """Return a greedy answer and one sampled at τ = 1 to each row, with another T and w.

    model: has one head. rows: by what to call them.
    """
    tilted = T3ForCausalLM(model.base, weighted(model.heads[0], w), T)
    prompts = [each.ids[: each.n_prompt] for each in encode_rows(tokenizer, list(rows.values()))]
    [greedy] = answers_to(tilted, tokenizer, list(rows.values()), progress=False)
    drawn = sample_answers(tilted, tokenizer, prompts, 1, seed=0, max_new_tokens=40, progress=False)
    return [(text, sample) for text, [sample] in zip(greedy, drawn)]


def table(model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row]) -> pd.DataFrame:
    """Build a table of a greedy and a sampled answer to each row at every (T, w) of `DIALS`.

    model: has one head. rows: {head of a column, such as "to forget": row}.
    """
    lines = {
        "question": [asked(row) for row in rows.values()],
        "true answer": [row["answer"] for row in rows.values()],
    }
    for T, w in DIALS:
        greedy, sampled = zip(*answered(model, tokenizer, rows, T, w))
        name = f"T = {T:g}, w = {w:g}"
        lines |= {f"{name}, greedy": [*greedy], f"{name}, sampled at τ = 1": [*sampled]}
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=[*rows])
    return frame.rename_axis("").reset_index()


def dials(
    model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row]
) -> tuple[ipywidgets.SelectionSlider, ipywidgets.SelectionSlider, ipywidgets.VBox]:
    """Build sliders for T and w, and below them a greedy and a sampled answer to each row.

    model: has one head, whose T and w are the start. rows: by what to call them, such as "to keep".
    Returns the two sliders and the box to display. Answers are decoded whenever a slider moves.
    """
    starts = {"T": (STEPS[1:], float(model.temperature)), "w": (STEPS, float(model.heads[0].w))}  # type: ignore[arg-type]
    sliders = [
        ipywidgets.SelectionSlider(
            options=[(f"{v:g}", v) for v in sorted({*steps, v0})], value=v0, description=name
        )
        for name, (steps, v0) in starts.items()
    ]
    page = ipywidgets.HTML()

    def show(_: Any = None) -> None:
        T, w = (slider.value for slider in sliders)
        texts = answered(model, tokenizer, rows, T, w)
        page.value = "".join(
            f"<p><b>{html.escape(name)}</b>: {html.escape(asked(row))}<br>true answer:"
            f" {html.escape(row['answer'])}<br>greedy: {html.escape(greedy)}<br>sampled:"
            f" {html.escape(sampled)}</p>"
            for (name, row), (greedy, sampled) in zip(rows.items(), texts)
        )

    for slider in sliders:
        slider.observe(show, "value")
    show()
    return *sliders, ipywidgets.VBox([*sliders, page])
