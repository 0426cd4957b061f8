"""Notebook 00_t3_in_five_minutes: what the base and T3 answer to the same questions at many T.

`open_profile` loads the base and the rows, `read` decodes all answers, and `table`, `slider` and
`figure` show them.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lab.report.look import PALETTE, STYLE, panels, with_key
from t3lab.study.study import stage_of
from t3lab.world import bases
from t3lib.classifier.head import T3Head
from t3lib.core.models import load_model, pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.tofu import data as tofu
from t3lib.tofu.evaluation import answer_text
from t3lib.tofu.likelihood import UNTILTED, Reading, Tilt, answer_losses
from t3lib.tofu.writing import eos_ids, greedy

TEMPERATURES = tuple(step / 10 for step in range(10, 31))  # of the slider: 1.0, 1.1, … 3.0
SHOWN = (1.0, 1.5, 2.0, 2.5, 3.0)  # of the table
BASE = "base"  # key of the model before unlearning, beside the temperatures of T3


@dataclass(frozen=True)
class Answers:
    """Greedy answers of the base and of T3 to some rows.

    rows: questions with their true answers.
    texts: {"base" or a temperature: one answer for each row}.
    probability: for the same keys, the probability of each row's true answer, as the geometric mean
    over its tokens.
    """

    rows: Sequence[Row]
    texts: Mapping[str | float, list[str]]
    probability: Mapping[str | float, np.ndarray]

    def recited(self, model: str | float) -> list[bool]:
        """Return for each row whether its answer is the true answer, word for word.

        model: "base" or one of the temperatures.
        """
        return [text == row["answer"] for text, row in zip(self.texts[model], self.rows)]


def open_profile(profile: Mapping[str, Any]) -> tuple[Any, Any, list[Row], list[Row]]:
    """Load a profile's base and the rows of its split forget10.

    profile: as of `profiles.load_profile`. A built-in base that is not in the cache is trained
    first. Returns the base, its tokenizer, the rows to forget and the rows to keep.
    """
    stage = stage_of(profile["data"], profile["stage"])
    place = profile["models"].get("full") or bases.ensure_base(stage, "full")
    base, tokenizer = load_model(place, **profile["load"])
    source: tofu.Source = profile["data"] if profile["models"] else bases.rows(stage)
    retain = tofu.retain_of("forget10")
    return base, tokenizer, tofu.load_rows(source, "forget10"), tofu.load_rows(source, retain)


def read(
    base: Any,
    head: T3Head,
    tokenizer: Any,
    rows: Sequence[Row],
    temperatures: Sequence[float] = TEMPERATURES,
    max_new_tokens: int = 60,
) -> Answers:
    """Decode the greedy answers of the base and of T3 at all temperatures in one pass.

    rows: questions with their true answers. max_new_tokens: the longest answer, in tokens.
    """
    examples = encode_rows(tokenizer, rows)
    tilts: list[Tilt] = [*UNTILTED, *((head, T) for T in temperatures)]
    reading = Reading(pad_id(tokenizer), eos_ids(base, tokenizer), progress=False)
    prompts = [example.ids[: example.n_prompt] for example in examples]
    written = greedy(base, prompts, reading, tilts, max_new_tokens=max_new_tokens)
    texts = [[answer_text(tokenizer, ids) for ids in answers] for answers in written]
    probability = np.exp(-answer_losses(base, examples, reading, tilts))
    names: list[str | float] = [BASE, *temperatures]
    return Answers(rows, dict(zip(names, texts)), dict(zip(names, probability)))


def first_that_goes(answers: Answers, T: float = 1.5) -> int:
    """Return the index of the first row that the base and T3 at T = 1 recite and T3 at `T` does
    not, or 0.
    """
    known, leaked, left = (answers.recited(model) for model in (BASE, 1.0, T))
    return next((n for n, each in enumerate(zip(known, leaked, left)) if each == (1, 1, 0)), 0)


def table(forget: Answers, keep: Answers, row: int, kept: int = 0) -> pd.DataFrame:
    """Build a table of two questions, one to forget and one to keep, with the true answers and one
    line for each model.

    row, kept: index of the question in `forget` and in `keep`.
    """
    asked = forget.rows[row], keep.rows[kept]
    named = {"question": "question", "true answer": "answer"}
    lines = [(name, *(each[key] for each in asked)) for name, key in named.items()]
    lines += [
        (model if model == BASE else f"T3, T = {model:g}", forget.texts[model][row], now[kept])
        for model, now in keep.texts.items()
        if model in (BASE, *SHOWN)
    ]
    return pd.DataFrame(lines, columns=["", "to forget", "to keep"])


def slider(forget: Answers, keep: Answers, row: int, kept: int = 0) -> tuple[dict[str, Any], Any]:
    """Build widgets that show the answers to one question of each kind while T moves.

    row, kept: indices of the questions that are shown first. Returns the widgets by name (T,
    forget, keep) and the box to display. Moving a widget runs no model.
    """
    import ipywidgets as widgets  # type: ignore[import-untyped]

    wide = widgets.Layout(width="98%")
    sides = {"forget": (forget, row), "keep": (keep, kept)}
    steps = [(f"{T:g}", T) for T in forget.texts if T != BASE]
    controls: dict[str, Any] = {"T": widgets.SelectionSlider(options=steps, description="T")}
    for name, (answers, start) in sides.items():
        questions = [(each["question"], n) for n, each in enumerate(answers.rows)]
        controls[name] = widgets.Dropdown(
            options=questions, value=start, description=name, layout=wide
        )
    page = widgets.HTML(layout=wide)

    def show(_: object = None) -> None:
        T, parts = controls["T"].value, []
        for name, (answers, _start) in sides.items():
            n = controls[name].value
            texts = {"base": answers.texts[BASE][n], f"T3, T = {T:g}": answers.texts[T][n]}
            parts.append(f"<p><b>to {name}:</b> {html.escape(answers.rows[n]['question'])}")
            parts += [f"<br><b>{who}</b> {html.escape(text)}" for who, text in texts.items()]
        page.value = "".join(parts)

    for control in controls.values():
        control.observe(show, "value")
    show()
    return controls, widgets.VBox([*controls.values(), page])


@rc_context(STYLE)
def figure(forget: Answers, keep: Answers) -> Figure:
    """Draw the share of rows recited word for word, and the probability of the true answer, against
    T.
    """
    sides = (f"{len(forget.rows)} to forget", forget), (f"{len(keep.rows)} to keep", keep)
    frame = pd.DataFrame(
        {"T": T, "rows": name, "word for word": np.mean(answers.recited(T)),
         "probability": answers.probability[T].mean()}
        for name, answers in sides for T in answers.texts if T != BASE
    )  # fmt: skip
    colours = dict(zip((name for name, _ in sides), (PALETTE[3], PALETTE[0])))
    chart, [axes] = panels(1, 2, (6.8, 2.4), sharey=True)
    titles = {"word for word": "rows answered word for word",
              "probability": "probability of the true answer"}  # fmt: skip
    for axis, (column, title) in zip(axes, titles.items()):
        sns.lineplot(frame, x="T", y=column, hue="rows", palette=colours, marker=".", ax=axis)
        axis.set(xlabel="temperature $T$", ylabel="", title=title, ylim=(-0.03, 1.03))
    return with_key(
        chart,
        "Share of rows answered word for word, and probability of the true answer (geometric mean"
        " over its tokens, then mean over rows), against T.",
    )
