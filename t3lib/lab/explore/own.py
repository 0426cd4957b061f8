"""The two sliders of notebook 07: some questions, answered by an unlearned model at any T and w."""

import html
from collections.abc import Sequence
from typing import Any

import ipywidgets

from t3lib.core.rows import Row, encode_rows
from t3lib.lab.audit.samples import sample_answers
from t3lib.lab.own.answers import answers_to
from t3lib.lab.own.asking import asked
from t3lib.lab.own.own import weighted
from t3lib.sampler.tilt import T3ForCausalLM

STEPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dials(
    model: T3ForCausalLM, tokenizer: Any, rows: Sequence[Row], labels: Sequence[str], room: int = 40
) -> tuple[ipywidgets.SelectionSlider, ipywidgets.SelectionSlider, ipywidgets.VBox]:
    """Build sliders for T and w, and below them a greedy and a sampled answer (τ = 1) to each row.

    model: has one head, whose T and w are the start.
    labels: what each row is, such as "to forget" or "to keep".
    room: longest sampled answer, in tokens.
    Returns the two sliders and the box to display. Answers are decoded whenever a slider moves.
    """
    head = model.heads[0]
    sliders = [
        ipywidgets.SelectionSlider(
            options=[(f"{v:g}", v) for v in sorted({*steps, v0})], value=v0, description=name
        )
        for name, steps, v0 in (
            ("T", STEPS[1:], float(model.temperature)),
            ("w", STEPS, float(head.w)),
        )  # type: ignore[arg-type]
    ]
    page = ipywidgets.HTML()
    prompts = [example.ids[: example.n_prompt] for example in encode_rows(tokenizer, rows)]

    def show(_: Any = None) -> None:
        T, w = (slider.value for slider in sliders)
        tilted = T3ForCausalLM(model.base, weighted(head, w), T)
        [greedy] = answers_to(tilted, tokenizer, rows, progress=False)
        drawn = sample_answers(
            tilted, tokenizer, prompts, 1, seed=0, max_new_tokens=room, progress=False
        )
        page.value = "".join(
            f"<p><b>{html.escape(label)}</b>: {html.escape(asked(row))}<br>truth:"
            f" {html.escape(row['answer'])}<br>greedy at T = {T:g}, w = {w:g}:"
            f" {html.escape(text)}<br>sampled: {html.escape(sample)}</p>"
            for label, row, text, [sample] in zip(labels, rows, greedy, drawn)
        )

    for slider in sliders:
        slider.observe(show, "value")
    show()
    return *sliders, ipywidgets.VBox([*sliders, page])
