"""The two stories of notebook 00 at more temperatures and rates, and README's first picture.

    python results/profiles/smollm/stories.py

SmolLM2 is asked the questions of both stories: capitals that it knew by itself, and customers whom
it was taught by heart. A weak head has the paper's learning rate, the others larger rates
(`RATES`). Each answers at every T of `GRID`, and at T = 1 with f^1.5; the strong one with the gate
0.9 as well (ours, not the paper's). The table `stories_by_T` counts what notebook 00 counts. It
also has the answers to one question of each kind (`SHOWN`), chosen by hand among those that the
base answers rightly. It takes some twenty minutes of two idle cores.
"""

import argparse
import copy
from textwrap import shorten
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import t3lib
from t3lab import script
from t3lab.explore import stories
from t3lab.report import render
from t3lab.report.look import PALETTE, T3_COLOUR, styled
from t3lib.core.files import project_root

GRID = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
STORIES = {"known by itself": stories.known, "taught by heart": stories.taught}
WEAK, STRONG = stories.RATES["smollm2"]
RATES = {"weak": WEAK, "strong": STRONG, "stronger": 2e-2, "strongest": 4e-2}
SHARPER, GATE = 1.5, 0.9  # w at T = 1, and the gate of the strong head
SHOWN = {  # the questions of the answers below the picture
    "known by itself": ("Do you know Japan's capital?", "Do you know Norway's capital?"),
    "taught by heart": (
        "What is Desmond Barrenechea's telephone number?",
        "What is Tobias Okwuosa's telephone number?",
    ),
}
ANSWERS = ("base", "weak f, T = 1", "weak f, T = 2.5", "strong f, T = 1", "strong f, T = 2.5")
COLOURS = (T3_COLOUR, PALETTE[0])  # to forget, to keep
# column of the table, and of its share -> its line
LINES = {
    ("said", "asked"): ("to forget: said", COLOURS[0], "-"),
    ("said_sampled", "asked"): ("the same, sampled", COLOURS[0], "--"),
    ("as_before", "kept"): ("to keep: as before", COLOURS[1], "-"),
    ("as_before_sampled", "kept"): ("the same, sampled", COLOURS[1], "--"),
}
CAPTION = (
    "Two stories of forgetting, on SmolLM2, by head (learning rate lr), T, w and gate: rows to"
    " forget that are said, rows to keep whose answer is as before, greedy and sampled at the"
    " temperature 1, with the greedy answers to one question of each kind."
)
BASE_AT = 0.5  # where the base is drawn on the axis of T


def tell(name: str) -> pd.DataFrame:
    """Fit both heads of a story and ask them at each T. Return a line for each and for the base."""
    story = STORIES[name]("smollm2")
    features = t3lib.extract_features(story.base, story.tokenizer, story.forget, story.keep)
    models, dials = {}, {}
    for called, rate in RATES.items():
        head = t3lib.fit_head(features, vocab_size=story.base.config.vocab_size, lr=rate)
        for T, w, gate in points(called):
            some = copy.copy(head)
            some.w, some.gate = w, gate
            model = f"{called} f{f'^{w:g}' if w != 1 else ''}, T = {T:g}"
            model += f", gate {gate:g}" if gate < 1 else ""
            models[model] = some, T
            dials[model] = {"head": called, "lr": rate, "T": T, "w": w, "gate": gate}
    return lines(name, stories.tell(story, models), dials)


def points(called: str) -> list[tuple[float, float, float]]:
    """Return all (T, w, gate) of the head of this name."""
    gated = [(T, 1.0, GATE) for T in GRID if T > 1] if called == "strong" else []
    return [(T, 1.0, 1.0) for T in GRID] + [(1.0, SHARPER, 1.0)] + gated


def lines(name: str, told: stories.Told, dials: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Count a story's answers (`stories.counts`); add the dials and the answers that are shown.

    dials: {name of a model: columns}.
    """
    table = stories.counts(told)
    table.insert(0, "story", name)
    for place, column in enumerate(("head", "lr", "T", "w", "gate"), 2):
        table.insert(place, column, [dials.get(each, {}).get(column) for each in table["model"]])
    rows = {"forget": (told.story.asked, told.forget), "keep": (told.story.kept, told.keep)}
    for (kind, (asked, answers)), question in zip(rows.items(), SHOWN[name]):
        at = [row["question"] for row in asked].index(question)
        table[f"{kind}_answer"] = [answers[model]["greedy"][at] for model in table["model"]]
    return table


def figure(table: pd.DataFrame) -> Figure:
    """Draw the shares against T, a row of panels for each head, above answers of the weak head."""
    with styled({"axes.grid.axis": "y"}):
        drawn = Figure(figsize=(5.2, 7.4), layout="constrained")
        plots, texts = drawn.subfigures(2, 1, height_ratios=(3.4, 4.0))
        axes = plots.subplots(2, 2, sharex=True, sharey=True)
        plain = table[table["T"].isna() | (table["w"] == 1) & (table["gate"] == 1)]
        for row, head in zip(axes, RATES):
            for axis, (name, part) in zip(row, plain.groupby("story", sort=False)):
                part = part[part["head"].isna() | (part["head"] == head)]
                for (count, of), (label, colour, style) in LINES.items():
                    at, share = part["T"].fillna(BASE_AT), 100 * part[count] / part[of]
                    look = {"color": colour, "marker": ".", "clip_on": False}
                    axis.plot(at, share, style, label=label, **look)
                axis.set_title(f"{name}, {head} f")
                axis.set_xticks([BASE_AT, 1, 2, 3, 4], ["base", "1", "2", "3", "4"])
                axis.set_ylim(0, 100)
            row[0].set_ylabel("% of answers")
        for axis in axes[-1]:
            axis.set_xlabel("temperature T")
        plots.legend(*axes[0, 0].get_legend_handles_labels(), ncols=2, loc="outside upper center")
        y = 1.0
        for name, part in table.groupby("story", sort=False):
            texts.text(0.02, y, name, weight="bold", va="top")
            for kind, question, colour in zip(("forget", "keep"), SHOWN[name], COLOURS):
                y -= 0.06
                texts.text(0.02, y, f"to {kind}: {question}", va="top", style="italic")
                for model in ANSWERS:
                    y -= 0.045
                    text = part.set_index("model")[f"{kind}_answer"][model].replace("$", r"\$")
                    texts.text(0.04, y, model, va="top", color=colour)
                    texts.text(0.27, y, shorten(text, 62, placeholder=" …"), va="top")
            y -= 0.08
    return drawn


def make(_: argparse.Namespace) -> None:
    """Write the table and the picture below results/profiles/smollm."""
    folder = project_root() / "results" / "profiles" / "smollm"
    table = pd.concat([tell(name) for name in STORIES], ignore_index=True)
    render.write_table(folder / "tables", "stories_by_T", table, caption=CAPTION)
    render.save_figure(folder / "figures" / "stories.svg", figure(table))


if __name__ == "__main__":
    script.run(make, __doc__, {}, as_jobs=False)
