"""The look that all figures share: colours, markers, sizes, panels and keys, splits by name, rows
counted.

Colours are seaborn's colour-blind palette; a method has a marker of its own too, so that the
figures survive a black and white printer. Sizes are inches of a printed page (3.3 = one column, 6.8
= the page), letters 8 points.
"""

from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from t3lib.baselines.losses import BASELINES, METHODS
from t3lib.core.names import SPLITS
from t3lib.lab.results import split_labels

Look = dict[str, Any]  # what matplotlib draws a line with

PALETTE = sns.color_palette("colorblind")
GREY, DARK = "0.45", "0.25"
T3_COLOUR = PALETTE[3]
INDIGO, OCHRE = (
    "#332288",
    "#b8a800",
)  # the palette has nine other colours for ten baselines, and its yellow is too pale
BASELINE_COLOURS = (*(PALETTE[i] for i in (0, 1, 2, 4, 5, 6, 7)), OCHRE, PALETTE[9], INDIGO)
COLOURS: Look = {
    "Original": DARK,
    "Retrained": DARK,
    **dict(zip(BASELINES, cycle(BASELINE_COLOURS))),
    "T3": T3_COLOUR,
}
# Ten colours and eleven markers: two baselines share one of them, but not both.
MARKERS = {
    "Original": "X",
    "Retrained": "P",
    **dict(zip(BASELINES, cycle("os^vD<>phdH"))),
    "T3": "*",
}
SPLIT_LOOKS: dict[str, Look] = {
    "forget05": {"color": PALETTE[0], "marker": "o"},
    "forget10": {"color": PALETTE[1], "marker": "s"},
}
PAPER = "paper, Llama 3.1 8B"
STYLE: Any = {  # Any: the stubs want a literal type of every setting's name
    **{
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "legend.fontsize": 7,
        "xtick.labelsize": 7,
    },
    **{
        "ytick.labelsize": 7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
    },
    **{
        "axes.grid": True,
        "grid.color": "0.9",
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
        "lines.linewidth": 1.3,
    },
    **{
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "figure.dpi": 120,
        "savefig.facecolor": "white",
    },
}
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")  # 0.1, 1, 10 on a logarithmic axis


def panels(
    rows: int, columns: int, size: tuple[float, float], **share: Any
) -> tuple[Figure, np.ndarray]:
    """A Figure without pyplot, which would keep it alive, and its axes (rows, columns)."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **share)


def key(
    figure: Figure, entries: Iterable[tuple[str, Look]], place: str = "lower center", **more: Any
) -> None:
    """The figure's legend, outside its panels: a label and the look of its line for each entry."""
    usual: Look = {"ms": 4}
    handles = [Line2D([], [], label=label, **(usual | look)) for label, look in entries]
    settings: Look = {"loc": f"outside {place}", "ncols": len(handles)} | more
    figure.legend(handles=handles, **settings)


def log_axis(axis: Any, which: str = "x") -> None:
    """A logarithmic axis whose ticks are plain numbers."""
    axis.set(**{f"{which}scale": "log"})
    ticks = axis.xaxis if which == "x" else axis.yaxis
    ticks.set_major_formatter(PLAIN)
    ticks.set_minor_formatter(NullFormatter())


def ends(values: Any, *, rising: bool = True, margin: float = 0.04) -> tuple[float, float]:
    """Ends of an axis that shows [0, 1] and every finite value beyond; rising=False puts the
    smallest at the end.

    values: numbers, or columns of them. margin: empty share of the axis at either end.
    """
    numbers = np.ravel(np.asarray(values, dtype=float))
    known = [0.0, 1.0, *numbers[np.isfinite(numbers)]]
    low, high = min(known), max(known)
    room = margin * (high - low)
    return (low - room, high + room) if rising else (high + room, low - room)


def splits_of(runs: pd.DataFrame) -> dict[str, str]:
    """{"forget10": "10% split"} of the splits that occur, in the paper's order; all where none
    does.
    """
    shown = [split for split in SPLITS if (runs["split"] == split).any()] or SPLITS
    return {split: f"{split_labels(runs)[split]} split" for split in shown}


def counted(runs: pd.DataFrame, rows: str = "n_forget", *, paper: bool = False) -> str:
    """ "n = 40 (5%) and 80 (10%) forget rows, 3 seeds." of the runs that a figure draws; rows: the
    column that counts.

    The model before unlearning and retrained models have seeds of their own, which do not count.
    paper: the figure draws the paper's numbers as well.
    """
    shares, most = split_labels(runs), runs.groupby("split")[rows].max().dropna()
    n = " and ".join(f"{number:.0f} ({shares[split]})" for split, number in most.items())
    seeds = runs[runs["method"].isin((*BASELINES, "T3"))]["seed"].nunique()
    ours = f"n = {n or 0} forget rows, {seeds} seed{'s' * (seeds != 1)}"
    return f"Ours: {ours}; the paper: n = 200 (5%) and 400 (10%), 5 seeds." if paper else f"{ours}."


def method_key(figure: Figure, methods: Iterable[str]) -> None:
    """The key of a figure whose points are methods, at its right: the marker of each that
    occurs.
    """
    shown = [name for name in METHODS if name in set(methods)]
    looks = [
        (name, {"marker": MARKERS[name], "color": COLOURS[name], "ls": "", "ms": 5})
        for name in shown
    ]
    key(figure, looks, "right center", ncols=1, labelspacing=0.8)
