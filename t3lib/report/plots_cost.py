"""Figures of cost: the tables of `t3 bench`, `bench.head.scaling` and Table 3 in, matplotlib Figure out."""

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from t3lib.report import tables
from t3lib.report.look import (
    GREY,
    PALETTE,
    PAPER,
    PLAIN,
    SPLIT_LOOKS,
    STYLE,
    T3_COLOUR,
    Look,
    counted,
    key,
    log_axis,
    panels,
    splits_of,
)
from t3lib.report.render import cell

AXES = {"pairs": "forget rows", "vocab": "vocabulary $|V|$", "d": "hidden size $d$", "rank": "rank $h$"}


@rc_context(STYLE)
def runtime(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 3 as a figure: seconds of training, ours left and the paper's GPU right; log scale.

    T3 (preprocessed) means the same on both sides, training on stored features; their own seconds, which the paper does
    not give, are a number beside the bar.
    """
    sources = {"ours": tables.runtime(frame)} | ({} if printed is None else {PAPER: printed})
    costs = {name: table.set_index(["split", "method"]).astype({"train_s": float}) for name, table in sources.items()}
    seconds = pd.concat([table["train_s"] for table in costs.values()])
    names = [name for name in dict.fromkeys(sources["ours"]["method"]) if seconds.notna()[:, name].any()]
    splits = splits_of(tables.main_runs(frame))
    figure, axes = panels(1, len(sources), (3.4 * len(sources), 0.7 + 0.26 * max(3, len(names))), sharey=True)
    for axis, (source, table) in zip(axes.flat, costs.items()):
        for offset, split in zip((-0.2, 0.2), splits):
            spent = table.reindex([(split, name) for name in names])
            places = np.arange(len(names)) + offset
            axis.barh(places, spent["train_s"], height=0.36, color=SPLIT_LOOKS[split]["color"])
            for y, train, features in zip(places, spent["train_s"], spent["features_s"]):
                extra = "" if pd.isna(features) else f" + features {cell(features, 'features_s')}"
                if pd.notna(train):
                    axis.text(train, y, f" {cell(train, 'train_s')}{extra}", va="center", fontsize=5.5)
        log_axis(axis)
        axis.set(title=source, xlabel="seconds", ylim=(len(names) - 0.4, -0.6))
        if table["train_s"].notna().any():
            axis.set_xlim(table["train_s"].min() / 3, table["train_s"].max() * 4)
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="y", visible=False)
    key(figure, [(name, {"color": SPLIT_LOOKS[split]["color"], "lw": 5}) for split, name in splits.items()])
    figure.set_label(
        "Seconds of training. T3 (preprocessed): on features of the base, stored once, with their seconds beside the "
        "bar; T3 (naive): the base is read at every step. Logarithmic; bars start at a third of the shortest. "
        f"{counted(tables.main_runs(frame), paper=printed is not None)}"
    )
    return figure


@rc_context(STYLE)
def bounds(rows: pd.DataFrame) -> Figure:
    """Each measured time over its lower bound, on a logarithmic axis: how much is left to gain at most."""
    shown = rows.dropna(subset=["over_bound"])[::-1]
    figure, axis = _list_of(shown)
    ours = shown["what"].str.contains("ours|one problem")
    axis.hlines(range(len(shown)), 1, shown["over_bound"], color="0.8", lw=1)
    axis.scatter(shown["over_bound"], range(len(shown)), c=[T3_COLOUR if flag else PALETTE[0] for flag in ours], s=18)
    for y, value in enumerate(shown["over_bound"]):
        axis.text(value * 1.06, y, f"{value:.1f}", va="center", fontsize=6, color=GREY)
    log_axis(axis)
    axis.set_xlabel("busy time / lower bound")
    axis.axvline(1, color="black", lw=0.8)
    axis.grid(axis="y", visible=False)
    figure.set_label(
        "Time over its lower bound. 1 is the bound; red: training T3's head as this library does. In brackets: forget "
        f"+ retain rows, or the base's shape; {_repeats(shown)}."
    )
    return figure


@rc_context(STYLE)
def scaling(frame: pd.DataFrame) -> Figure:
    """Seconds of a whole fit against one size at a time (`bench.head.scaling`), with least and most of the repeats.

    The dotted line through the last point is proportional growth.
    """
    names = list(dict.fromkeys(frame["axis"]))
    figure, [axes] = panels(1, len(names), (6.8, 1.9), sharey=True)
    for axis, name in zip(axes, names):
        part = frame[frame["axis"] == name].sort_values("value")
        x, y = part["value"].to_numpy(), part["seconds"].to_numpy()
        axis.errorbar(x, y, [y - part["low"], part["high"] - y], color=T3_COLOUR, marker="o", ms=3, capsize=2)
        axis.plot(x, y[-1] * x / x[-1], ls=":", color=GREY, lw=0.9)
        axis.set(xlabel=AXES.get(name, name), xscale="log", yscale="log", xticks=x)
        axis.set_xticklabels([f"{value:g}" for value in x])
        axis.minorticks_off()
    axes[0].set(ylabel="head training (s)", ylim=(frame["low"].min() / 2, frame["high"].max() * 1.5))
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes[0].yaxis.set_major_formatter(PLAIN)
    sizes = [(words.partition(" $")[0], frame.loc[frame["axis"] != name, name].max()) for name, words in AXES.items()]
    figure.set_label(
        "Seconds to train a head with one size varied; bars: least and most of the repeats; dotted: in proportion. The "
        f"others are {', '.join(f'{words} {size:g}' for words, size in sizes if pd.notna(size))}."
    )
    return figure


@rc_context(STYLE)
def seconds(rows: pd.DataFrame) -> Figure:
    """Measured seconds, their extremes, and the lower bound as a tick, for every row that has seconds."""
    shown = rows[rows["unit"] == "s"][::-1]
    figure, axis = _list_of(shown)
    height = np.arange(len(shown))
    spread = [shown["median"] - shown["low"], shown["high"] - shown["median"]]
    # One above the other: where both clocks agree, neither hides the other's mark or bar.
    axis.errorbar(shown["median"], height + 0.17, xerr=spread, ls="", marker="o", ms=3, color=GREY, capsize=2)
    axis.plot(shown["busy"], height - 0.17, ls="", marker="s", ms=3, color=T3_COLOUR)
    axis.plot(shown["lower_bound"].astype(float), height, ls="", marker="|", ms=8, color="black")
    log_axis(axis)
    axis.set_xlabel("seconds")
    entries: list[tuple[str, Look]] = [("wall clock, median and extremes", {"marker": "o", "color": GREY})]
    entries += [
        ("busy", {"marker": "s", "color": T3_COLOUR}),
        ("lower bound", {"marker": "|", "ms": 8, "color": "black"}),
    ]
    key(figure, [(label, {"ls": ""} | look) for label, look in entries], "upper center")
    figure.set_label(
        "What each part costs on this machine: wall clock, the processor's own time (busy) and the lower bound. In "
        f"brackets: forget + retain rows, or the base's shape; {_repeats(shown)}."
    )
    return figure


def labels(rows: pd.DataFrame) -> list[str]:
    """What was measured, and at which size: the rows of head training, else the shape of the base."""
    sizes = rows["shape"].str.extract(r"(\d+ \+ \d+ rows)", expand=False).fillna(rows["shape"])
    return [f"{what}  [{size}]" for what, size in zip(rows["what"], sizes)]


def _list_of(rows: pd.DataFrame) -> tuple[Figure, Axes]:
    """A panel with a line for each row."""
    figure, [[axis]] = panels(1, 1, (6.8, 0.6 + 0.2 * len(rows)))
    axis.set_yticks(range(len(rows)), labels(rows))
    axis.set_ylim(-0.6, len(rows) - 0.4)
    return figure, axis


def _repeats(rows: pd.DataFrame) -> str:
    least, most = rows["repeats"].min(), rows["repeats"].max()
    return f"n = {least:.0f} to {most:.0f} repeats each"
