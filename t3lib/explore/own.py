"""The slider of notebook 07: a few questions answered by an unlearned model at any T."""

import html
from collections.abc import Sequence
from typing import Any

import ipywidgets

from t3lib.audit.answers import asked, measure
from t3lib.sampler import T3ForCausalLM
from t3lib.tofu import Row


def slider(
    model: T3ForCausalLM, tokenizer: Any, rows: Sequence[Row], labels: Sequence[str], start: float
) -> tuple[ipywidgets.SelectionSlider, ipywidgets.VBox]:
    """A slider over T and, below it, each row's question, truth and greedy answer, which are written beforehand.

    model: with one head. labels: what each row is, "to forget" or "to keep". Returns the slider and the panel.
    """
    steps = sorted({1 + 0.5 * step for step in range(11)} | {start})
    tilts = [(model.heads[0], T) for T in steps]
    answers = measure(model.base, tokenizer, {"rows": rows}, tilts, progress=False)
    texts = {T: written["rows"] for T, (_, written) in zip(steps, answers)}
    handle = ipywidgets.SelectionSlider(options=[(f"{T:g}", T) for T in steps], value=start, description="T")
    page = ipywidgets.HTML()

    def show(_: Any = None) -> None:
        page.value = "".join(
            f"<p><b>{html.escape(label)}</b>: {html.escape(asked(row))}<br>truth: {html.escape(row['answer'])}<br>"
            f"answer at T = {handle.value:g}: {html.escape(text)}</p>"
            for label, row, text in zip(labels, rows, texts[handle.value])
        )

    handle.observe(show, "value")
    show()
    return handle, ipywidgets.VBox([handle, page])
