"""Figures of cost: the tables of `bench` and `bench_head.scaling` in, matplotlib Figure out."""

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lib.report.plots import GREY, PALETTE, STYLE, T3_COLOUR

AXES = {"pairs": "forget rows", "vocab": "vocabulary $|V|$", "d": "hidden size $d$", "rank": "rank $h$"}


def labels(rows: pd.DataFrame) -> list[str]:
    """What was measured, and at which size: the rows of head training, else the shape of the base."""
    sizes = rows["shape"].str.extract(r"(\d+ \+ \d+ rows)", expand=False).fillna(rows["shape"])
    return [f"{what}  [{size}]" for what, size in zip(rows["what"], sizes)]


@rc_context(STYLE)
def bounds(rows: pd.DataFrame) -> Figure:
    """Each measured time over its lower bound, on a logarithmic axis from 1: how much is left to gain at most."""
    shown = rows.dropna(subset=["over_bound"])[::-1]
    figure = Figure(figsize=(6.8, 0.6 + 0.2 * len(shown)), layout="constrained")
    axis = figure.subplots()
    colours = [T3_COLOUR if "ours" in what or "one problem" in what else PALETTE[0] for what in shown["what"]]
    axis.barh(range(len(shown)), shown["over_bound"] - 1, left=1, color=colours, height=0.7)
    for y, value in enumerate(shown["over_bound"]):
        axis.text(value * 1.04, y, f"{value:.1f}", va="center", fontsize=6, color=GREY)
    axis.set(yticks=range(len(shown)), xscale="log", xlabel="busy time / lower bound")
    axis.set_yticklabels(labels(shown))
    axis.axvline(1, color="black", lw=0.8)
    axis.grid(axis="y", visible=False)
    return figure


@rc_context(STYLE)
def scaling(frame: pd.DataFrame) -> Figure:
    """Seconds of a whole fit against one size at a time (`bench_head.scaling`), with least and most of the repeats.

    The dotted line through the last point is proportional growth.
    """
    names = list(dict.fromkeys(frame["axis"]))
    figure = Figure(figsize=(6.8, 1.9), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axis, name in zip(axes, names):
        part = frame[frame["axis"] == name].sort_values("value")
        x, y = part["value"].to_numpy(), part["seconds"].to_numpy()
        spread = [y - part["low"], part["high"] - y]
        axis.errorbar(x, y, spread, color=T3_COLOUR, marker="o", ms=3, capsize=2)
        axis.plot(x, y[-1] * x / x[-1], ls=":", color=GREY, lw=0.9)
        axis.set(xlabel=AXES.get(name, name), xscale="log", yscale="log", xticks=x)
        axis.set_xticklabels([f"{value:g}" for value in x])
        axis.minorticks_off()
    axes[0].set_ylabel("head training (s)")
    return figure


@rc_context(STYLE)
def seconds(rows: pd.DataFrame) -> Figure:
    """Measured seconds, their extremes, and the lower bound as a tick, for every row that has seconds."""
    shown = rows[rows["unit"] == "s"][::-1]
    figure = Figure(figsize=(6.8, 0.6 + 0.2 * len(shown)), layout="constrained")
    axis = figure.subplots()
    height = range(len(shown))
    spread = [shown["median"] - shown["low"], shown["high"] - shown["median"]]
    axis.errorbar(shown["median"], height, xerr=spread, ls="", marker="o", ms=3, color=GREY, capsize=2, label="wall")
    axis.plot(shown["busy"], height, ls="", marker="s", ms=3, color=T3_COLOUR, label="busy")
    axis.plot(shown["lower_bound"].astype(float), height, ls="", marker="|", ms=8, color="black", label="lower bound")
    axis.set(yticks=height, xscale="log", xlabel="seconds (bars: all repeats)")
    axis.set_yticklabels(labels(shown))
    figure.legend(loc="outside upper center", ncols=3)
    return figure
