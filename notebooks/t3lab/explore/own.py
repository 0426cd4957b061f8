"""Notebook 07: some questions, answered by an unlearned model at any T and w."""

import html
from collections.abc import Mapping
from typing import Any

import ipywidgets
import pandas as pd

from t3lab.explore.stories import Both, answered
from t3lib.core.rows import Row
from t3lib.own.asking import asked
from t3lib.own.unlearn import weighted
from t3lib.sampler.tilt import T3ForCausalLM

STEPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of both sliders; T from 1
DIALS = ((1.0, 1.0), (1.0, 3.0), (3.0, 1.0))  # (T, w) of the table; the sliders start at the first


def with_dials(
    model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row], *dials: tuple[float, float]
) -> list[Both]:
    """Answer some rows with the head of a model at each (T, w), see `stories.answered`."""
    tilts = [(weighted(model.heads[0], w), T) for T, w in dials]
    return answered(model.base, tokenizer, list(rows.values()), tilts)


def table(model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row]) -> pd.DataFrame:
    """Build a table of a greedy and a sampled answer to each row at every (T, w) of `DIALS`.

    model: has one head. rows: {head of a column, such as "to forget": row}.
    """
    lines = {
        "question": [asked(row) for row in rows.values()],
        "true answer": [row["answer"] for row in rows.values()],
    }
    for (T, w), both in zip(DIALS, with_dials(model, tokenizer, rows, *DIALS)):
        name = f"T = {T:g}, w = {w:g}"
        lines |= {f"{name}, greedy": both["greedy"], f"{name}, sampled at τ = 1": both["sampled"]}
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=[*rows])
    return frame.rename_axis("").reset_index()


def dials(
    model: T3ForCausalLM, tokenizer: Any, rows: Mapping[str, Row]
) -> tuple[ipywidgets.SelectionSlider, ipywidgets.SelectionSlider, ipywidgets.VBox]:
    """Build sliders for T and w, and below them a greedy and a sampled answer to each row.

    model: has one head, whose T and w are among the choices. rows: by what to call them, such as
    "to keep". The sliders start at the first of `DIALS`. Returns them and the box to display.
    Answers are decoded whenever a slider moves.
    """
    choices = {"T": {*STEPS[1:], float(model.temperature)}, "w": {*STEPS, float(model.heads[0].w)}}  # type: ignore[arg-type]
    sliders = [
        ipywidgets.SelectionSlider(
            options=[(f"{v:g}", v) for v in sorted(values)], value=start, description=name
        )
        for (name, values), start in zip(choices.items(), DIALS[0])
    ]
    page = ipywidgets.HTML()

    def show(_: Any = None) -> None:
        dials = tuple(slider.value for slider in sliders)
        [both] = with_dials(model, tokenizer, rows, dials)
        page.value = "".join(
            f"<p><b>{html.escape(name)}</b>: {html.escape(asked(row))}<br>true answer:"
            f" {html.escape(row['answer'])}<br>greedy: {html.escape(greedy)}<br>sampled:"
            f" {html.escape(sampled)}</p>"
            for (name, row), (greedy, sampled) in zip(rows.items(), zip(*both.values()))
        )

    for slider in sliders:
        slider.observe(show, "value")
    show()
    return *sliders, ipywidgets.VBox([*sliders, page])
