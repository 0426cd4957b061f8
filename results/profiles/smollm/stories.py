"""The two stories of notebook 00 at more temperatures and rates, and README's first picture.

    python results/profiles/smollm/stories.py

SmolLM2 is asked the questions of both stories: capitals that it knew by itself, and customers whom
it was taught by heart. A weak head has the paper's learning rate, the others larger rates
(`RATES`). Each answers at every T of `GRID`, and at T = 1 with f^1.5; the strong one with the gate
0.9 as well (ours, not the paper's). The table `stories_by_T` counts what notebook 00 counts. It
also has the answers to one question of each kind (`SHOWN`), chosen by hand among those that the
base answers rightly. It takes half an hour of two cores.
"""

import argparse
import copy
from textwrap import shorten
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea

import t3lib
from t3lab import script
from t3lab.explore import stories
from t3lab.report import render
from t3lab.report.look import LARGE, label_ends, styled
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
# Answers in the picture, those of T3 with the strong head: label -> (T, gate).
ANSWERS = {
    "base": (None, None),
    "T = 1": (1.0, 1.0),
    "T = 2": (2.0, 1.0),
    "T = 2, gate": (2.0, GATE),
}
# Colours of the picture on a light and on a dark page: letters, frame and grid, what is said, what
# is kept, what is kept with the gate.
INKS = (
    ("#1f2328", "0.8", "#c0392b", "#0757c0", "#0a6b3d"),
    ("#e8eaed", "0.35", "#ff9a92", "#8ab4f8", "#5fd39b"),
)
INKED = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
CAPTION = (
    "Two stories of forgetting, on SmolLM2, by head (learning rate lr), T, w and gate: rows to"
    " forget that are said, rows to keep whose answer is as before, greedy and sampled at the"
    " temperature 1, with the greedy answers to one question of each kind."
)


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
    """Return the (T, w, gate) at which a head answers. called: its name in `RATES`."""
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


def figure(table: pd.DataFrame, ink: tuple[str, ...] = INKS[0]) -> Figure:
    """Draw the story of rows learned by heart: what is said of the rows to forget against T for
    each head; what the strong head keeps, with and without the gate; and some of its answers.

    table: `stories_by_T`. ink: one of `INKS`.
    """
    part = table[table["story"] == [*STORIES][1]]
    text, frame, said, kept, gated = ink
    with styled(
        LARGE | dict.fromkeys(INKED, text) | {"axes.edgecolor": frame, "grid.color": frame}
    ):
        drawn = Figure(figsize=(8.3, 5.8), layout="constrained", facecolor="none")
        plots, answers = drawn.subfigures(2, 1, height_ratios=(3.0, 2.5))
        left, right = plots.subplots(1, 2, sharex=True, sharey=True)
        for axis in (left, right):
            axis.set(xlabel="temperature T", ylim=(0, 104), xticks=[1, 2, 3, 4], facecolor="none")

        # numbers that are said, by head
        ends = []
        for number, (name, rate) in enumerate(RATES.items()):
            line = at(part, head=name, w=1, gate=1).sort_values("T")
            share = 100 * line["said"] / line["asked"]
            left.plot(
                line["T"], share, color=said, marker=".", alpha=1 - 0.2 * number, clip_on=False
            )
            ends.append((f"{name} f ({rate:g})", float(share.iloc[-1]), said))
        left.set_title("to forget: greedy answers that say it")
        left.set_ylabel("% of answers")

        # what stays of the rows to keep, with the strong head
        base, kept_ends = part[part["T"].isna()].iloc[0], []
        for label, gate, column, colour, style in (
            ("greedy", 1, "as_before", kept, "-"),
            ("sampled", 1, "as_before_sampled", kept, "--"),
            ("sampled, gate", GATE, "as_before_sampled", gated, "--"),
        ):
            line = at(part, head="strong", w=1, gate=gate).sort_values("T")
            share = 100 * line[column] / line["kept"]
            right.plot(line["T"], share, style, color=colour, marker=".", clip_on=False)
            kept_ends.append((label, float(share.iloc[-1]), colour))
        of_base = 100 * base["as_before_sampled"] / base["kept"]
        right.axhline(of_base, color=text, ls=":", lw=0.8)
        right.set_title("to keep: answers as before (strong f)")
        label_ends(left, ends)
        label_ends(right, [*kept_ends, ("the base, sampled", of_base, text)])

        # whole answers, with the secret in colour
        y = 0.97
        for kind, question in zip(("forget", "keep"), SHOWN[[*STORIES][1]]):
            answers.text(0.01, y, f"to {kind}: {question}", va="top", style="italic")
            truth = stories.SECRET.search(base[f"{kind}_answer"])
            for label, (T, gate) in ANSWERS.items():
                y -= 0.095
                row = base if T is None else at(part, head="strong", w=1, gate=gate, T=T).iloc[0]
                colour = said if kind == "forget" else kept
                written(answers, (0.01, y), label, row[f"{kind}_answer"], truth[0], colour)
            y -= 0.12
    return drawn


def at(part: pd.DataFrame, **dials: Any) -> pd.DataFrame:
    """Return the lines of a table with these dials."""
    wanted = pd.Series(dials)
    return part[(part[wanted.index] == wanted).all(axis=1)]


def written(
    place: Any, corner: tuple[float, float], label: str, answer: str, secret: str, colour: str
) -> None:
    """Write an answer into a figure, with the secret in bold and in this colour where it is said.

    place: a subfigure. corner: the upper left one of the text, as shares of its width and height.
    label: what precedes the answer.
    """
    before, found, after = shorten(answer, 100, placeholder=" …").partition(secret)
    parts = [
        (f"{label}: ", {}),
        (before, {}),
        (found, {"color": colour, "weight": "bold"}),
        (after, {}),
    ]
    pieces = [
        TextArea(piece.replace("$", r"\$"), textprops=props) for piece, props in parts if piece
    ]
    box = HPacker(children=pieces, pad=0, sep=0)
    place.add_artist(
        AnnotationBbox(
            box, corner, xycoords=place.transSubfigure, box_alignment=(0, 1), frameon=False, pad=0
        )
    )


def make(_: argparse.Namespace) -> None:
    """Write the table and the picture below results/profiles/smollm."""
    folder = project_root() / "results" / "profiles" / "smollm"
    table = pd.concat([tell(name) for name in STORIES], ignore_index=True)
    render.write_table(folder / "tables", "stories_by_T", table, caption=CAPTION)
    for name, ink in zip(("stories", "stories-dark"), INKS):
        render.save_figure(folder / "figures" / name, figure(table, ink), CAPTION)


if __name__ == "__main__":
    script.run(make, __doc__, {}, as_jobs=False)
