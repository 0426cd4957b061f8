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
# The panels of the picture: head -> title.
PANELS = {
    "weak": "a weak f, as in the paper",
    "strong": "a strong f",
    "strongest": "the strongest f",
}
# Answers below the panels: label -> (head, T).
ANSWERS = {
    "base": None,
    "weak f, T = 2": ("weak", 2.0),
    "strong f, T = 2": ("strong", 2.0),
    "strongest f, T = 1": ("strongest", 1.0),
}
# Colours of the picture on a light and on a dark page: letters, frame and grid, what is said, what
# is kept, what is gone.
INKS = (
    ("#1f2328", "0.8", "#c0392b", "#0757c0", "0.45"),
    ("#e8eaed", "0.35", "#ff9a92", "#8ab4f8", "0.65"),
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
    """Draw the story of rows learned by heart: for three heads what is said of the rows to forget,
    and what stays of the answers to keep, against T. Below are answers to a question of each kind.

    table: `stories_by_T`. ink: one of `INKS`.
    """
    part = table[table["story"] == [*STORIES][1]]
    base = part[part["T"].isna()].iloc[0]
    text, frame, said, kept, gone = ink
    with styled(
        LARGE | dict.fromkeys(INKED, text) | {"axes.edgecolor": frame, "grid.color": frame}
    ):
        drawn = Figure(figsize=(8.3, 5.0), layout="constrained", facecolor="none")
        plots, answers = drawn.subfigures(2, 1, height_ratios=(3.0, 2.3))
        axes = plots.subplots(1, len(PANELS), sharex=True, sharey=True)
        ends, of_base = [], 100 * base["as_before_sampled"] / base["kept"]
        for axis, (head, title) in zip(axes, PANELS.items()):
            lines = at(part, head=head, w=1, gate=1).sort_values("T")
            for label, column, of, colour, style in (
                ("said", "said", "asked", said, "-"),
                ("kept", "as_before", "kept", kept, "-"),
                ("kept, sampled", "as_before_sampled", "kept", kept, "--"),
            ):
                share = 100 * lines[column] / lines[of]
                axis.plot(lines["T"], share, style, color=colour, marker=".", clip_on=False)
                ends.append((label, float(share.iloc[-1]), colour))
            axis.axhline(of_base, color=text, ls=":", lw=0.8)
            axis.set(ylim=(0, 104), xticks=[1, 2, 3, 4], facecolor="none")
            axis.set_title(f"{title}\n(learning rate {RATES[head]:g})")
        axes[0].set_ylabel("% of answers")
        axes[1].set_xlabel("temperature T")
        best = best_of(part)
        where = dict(zip(PANELS, axes))[best["head"]]
        where.annotate("best", (best["T"], 0), (best["T"] + 0.03, 5), color=text)
        label_ends(axes[-1], [*ends[-3:], ("the base, sampled", of_base, text)])

        # whole answers: the secret in colour where it is said, struck out behind the answer if not
        y = 0.98
        for kind, question in zip(("forget", "keep"), SHOWN[[*STORIES][1]]):
            answers.text(0.01, y, f"to {kind}: {question}", va="top", style="italic")
            secret = stories.SECRET.search(base[f"{kind}_answer"])[0]
            colour = said if kind == "forget" else kept
            for label, dials in ANSWERS.items():
                y -= 0.1
                row = base if dials is None else one(part, *dials)
                label += " (best)" * (row["model"] == best["model"])
                parts = pieces(label, row[f"{kind}_answer"], secret, colour, gone)
                written(answers, (0.01, y), parts)
            y -= 0.12
    return drawn


def best_of(part: pd.DataFrame) -> pd.Series:
    """Return the ungated line of `PANELS` that says least; at a tie, that which keeps most
    greedily, then sampled.
    """
    lines = at(part[part["head"].isin(PANELS)], w=1, gate=1)
    order = ["said", "as_before", "as_before_sampled"]
    return lines.sort_values(order, ascending=[True, False, False]).iloc[0]


def one(part: pd.DataFrame, head: str, T: float) -> pd.Series:
    """Return the line of a head at a temperature."""
    return at(part, head=head, w=1, gate=1, T=T).iloc[0]


def at(part: pd.DataFrame, **dials: Any) -> pd.DataFrame:
    """Return the lines of a table with these dials."""
    wanted = pd.Series(dials)
    return part[(part[wanted.index] == wanted).all(axis=1)]


def pieces(
    label: str, answer: str, secret: str, colour: str, gone: str
) -> list[tuple[str, dict[str, Any]]]:
    """Cut an answer into texts with their looks: the secret in bold and in this colour where it is
    said, else behind the answer, struck out.

    label: what precedes the answer.
    """
    before, found, after = answer.partition(secret)
    if found:
        said = [(before, {}), (found, {"color": colour, "weight": "bold"}), (after, {})]
    else:
        struck = "".join(f"{letter}\u0336" for letter in secret)
        said = [(shorten(answer, 62, placeholder=" … "), {}), (f"  {struck}", {"color": gone})]
    return [(f"{label}: ", {"color": gone}), *said]


def written(
    place: Any, corner: tuple[float, float], parts: list[tuple[str, dict[str, Any]]]
) -> None:
    """Write texts with their looks into one line of a figure.

    place: a subfigure. corner: the upper left one of the line, as shares of its width and height.
    """
    texts = [TextArea(text.replace("$", r"\$"), textprops=look) for text, look in parts if text]
    box = HPacker(children=texts, pad=0, sep=0)
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
