"""The look that all figures share: colours, markers, sizes, panels, keys and captions.

Colours are seaborn's colour-blind palette. Each method also has its own marker, so that figures can
be read in black and white. Sizes are inches of a printed page: 3.3 is one column, 6.8 the page.
Letters have 8 points.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from scipy.optimize import isotonic_regression

from t3lab.names import SPLITS
from t3lab.results import split_labels
from t3lib.baselines.losses import BASELINES, METHODS

Look = dict[str, Any]  # what matplotlib draws a line with

PALETTE = sns.color_palette("colorblind")
LIGHT, GREY, DARK = "0.75", "0.45", "0.25"
T3_COLOUR = PALETTE[3]
# The palette has nine other colours for ten baselines, and its yellow is too pale.
INDIGO, OCHRE = "#332288", "#b8a800"
BASELINE_COLOURS = (*(PALETTE[i] for i in (0, 1, 2, 4, 5, 6, 7)), OCHRE, PALETTE[9], INDIGO)
COLOURS: Look = {
    "Original": DARK,
    "Retrained": DARK,
    **dict(zip(BASELINES, cycle(BASELINE_COLOURS))),
    "T3": T3_COLOUR,
}
# Two baselines may share a colour or a marker, but not both.
MARKERS = {
    "Original": "X",
    "Retrained": "P",
    **dict(zip(BASELINES, cycle("os^vD<>phdH"))),
    "T3": "*",
}
SPLIT_COLOURS = {"forget05": PALETTE[0], "forget10": PALETTE[1]}
SPLIT_MARKERS = {"forget05": "o", "forget10": "s"}
PAPER = "paper, Llama 3.1 8B"
WHOLE = ("pi", 100)  # seaborn's error bar over all values
DOTTED: Look = {"color": GREY, "ls": ":", "lw": 0.8}
BAND: Look = {"color": GREY, "alpha": 0.25, "lw": 0.8, "label": "retrained models"}
STYLE: Any = {  # Any, because the stubs allow only literal names of settings
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 120,
    "savefig.facecolor": "white",
}
# Of the figure in README, which must be readable at half its size.
LARGE = {"font.size": 10, "axes.titlesize": 10, "xtick.labelsize": 9, "ytick.labelsize": 10}


@contextmanager
def styled(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw with the defaults of Matplotlib, `STYLE` and `more`, whatever a matplotlibrc says."""
    with rc_context():
        rcdefaults()
        rcParams.update(STYLE | dict(more or {}))
        yield


PLAIN = FuncFormatter(lambda value, _: f"{value:g}")  # 0.1, 1, 10 on a logarithmic axis


def panels(
    rows: int, columns: int, size: tuple[float, float], **share: Any
) -> tuple[Figure, np.ndarray]:
    """Make a figure, and return it with its axes (rows, columns).

    It is made without pyplot, which would keep it in memory. size: inches. share: options of
    `Figure.subplots`, such as sharex.
    """
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **share)


def with_key(
    figure: Figure,
    caption: str,
    entries: Iterable[tuple[str, Look]] = (),
    place: str = "lower center",
    **more: Any,
) -> Figure:
    """Give a figure a caption, kept as its label, and one legend outside the panels. Return the
    figure.

    The legend has the labels of all panels and then `entries`, pairs of a label and the look of its
    line. place, more: for matplotlib's legend.
    """
    shown: dict[str, Any] = {}
    for axis in figure.axes:
        shown |= {label: artist for artist, label in zip(*axis.get_legend_handles_labels())}
        if legend := axis.get_legend():
            legend.remove()
    shown |= {label: Line2D([], [], **Look(ms=4) | look) for label, look in entries}
    settings: Look = {"loc": f"outside {place}", "ncols": len(shown)} | more
    figure.legend([*shown.values()], [*shown], **settings)
    figure.set_label(caption)
    return figure


def label_ends(axis: Axes, ends: Sequence[tuple[str, float, Any]], left: bool = False) -> None:
    """Write a label at the right (or left) end of each line of a panel, in the line's colour.

    Call it after the panel is drawn, because it fixes the limits of the y axis. Labels that would
    overlap move apart, and a thin line joins each to its end. ends: (label, y, colour).
    """
    low, high = axis.get_ylim()
    axis.set_ylim(low, high)
    height = axis.get_position().height * axis.figure.bbox.height / axis.figure.dpi * 72
    ends = sorted(ends, key=lambda end: end[1])
    apart = np.arange(len(ends)) * 8 / height  # 8 points from a label to the next
    places = [(y - low) / (high - low) for _, y, _ in ends] - apart
    for (label, y, colour), place in zip(ends, isotonic_regression(places).x + apart):
        axis.annotate(
            label,
            (axis.dataLim.x0 if left else axis.dataLim.x1, y),
            (-0.06 if left else 1.06, place),
            textcoords="axes fraction",
            color=colour,
            fontsize=7,
            ha="right" if left else "left",
            va="center",
            annotation_clip=False,
            arrowprops=Look(arrowstyle="-", color=colour, lw=0.5, shrinkA=0, shrinkB=2)
            | {"relpos": (int(left), 0.5)},
        )


def better(title: str, larger: bool | None) -> str:
    """Add a line with an arrow to the title of a measure: which direction is better. None adds
    nothing.
    """
    return title + {True: "\nbetter →", False: "\n← better", None: ""}[larger]


def of_splits(data: pd.DataFrame, splits: dict[str, str]) -> tuple[pd.DataFrame, Look, list[str]]:
    """Select the rows of these splits and rename the splits as in `splits_of`. Also return
    seaborn's colours and the markers.
    """
    look = {
        "hue": "split",
        "hue_order": [*splits.values()],
        "palette": {splits[name]: SPLIT_COLOURS[name] for name in splits},
    }
    named = data[data["split"].isin(splits)].replace({"split": splits})
    return named, look, [SPLIT_MARKERS[name] for name in splits]


def method_points(axis: Axes, data: pd.DataFrame, x: str, y: str, s: float, **look: Any) -> None:
    """Draw one point for each row, in the colour and marker of its method.

    s: area of a point in square points. T3's star gets twice the area, because it would look small
    otherwise. Nothing is drawn if no row has both numbers.
    """
    known = data.dropna(subset=[x, y])
    if known.empty:
        return
    order = [name for name in METHODS if name in set(data["method"])]
    by = {
        **dict.fromkeys(("hue", "style", "size"), "method"),
        **dict.fromkeys(("hue_order", "style_order"), order),
        **{"palette": COLOURS, "markers": MARKERS},
        "sizes": {name: s * (2 if name == "T3" else 1) for name in order},
    }
    sns.scatterplot(known, x=x, y=y, ax=axis, **by, **look)


def with_error(table: pd.DataFrame, value: str, error: str) -> pd.DataFrame:
    """Triple each row: `value` one error lower, as it is, and one error higher.

    seaborn computes the mean and, with errorbar=WHOLE, the range of the three. That draws the value
    with its error bar.
    """
    return pd.concat([table.assign(**{value: table[value] + k * table[error]}) for k in (-1, 0, 1)])


def log_axis(axis: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers at its ticks."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(PLAIN)
    axis.xaxis.set_minor_formatter(NullFormatter())


def few_ticks(low: float, high: float) -> LogLocator:
    """Place at most five ticks on a logarithmic axis: powers of ten, and on a short axis also 3
    times these.
    """
    return LogLocator(subs=(1, 3) if high / low < 100 else (1,), numticks=5)


def splits_of(runs: pd.DataFrame) -> dict[str, str]:
    """Return names such as {"forget10": "10% split"} for the splits that occur, in the paper's
    order. Without any, return all.
    """
    shown = [split for split in SPLITS if (runs["split"] == split).any()] or SPLITS
    return {split: f"{split_labels(runs)[split]} split" for split in shown}


def counted(runs: pd.DataFrame, rows: str = "n_forget", *, paper: bool = False) -> str:
    """Write the sizes behind a figure, such as "n = 40 (5%) and 80 (10%) forget rows, 3 seeds."

    runs: the runs that the figure draws. rows: the column with the number of rows. paper: True if
    the figure also draws the paper's numbers. Only seeds of unlearning methods are counted.
    """
    shares, most = split_labels(runs), runs.groupby("split")[rows].max().dropna()
    n = " and ".join(f"{number:.0f} ({shares[split]})" for split, number in most.items())
    seeds = runs[runs["method"].isin((*BASELINES, "T3"))]["seed"].nunique()
    ours = f"n = {n or 0} forget rows, {seeds} seed{'s' * (seeds != 1)}"
    return f"Ours: {ours}; the paper: n = 200 (5%) and 400 (10%), 5 seeds." if paper else f"{ours}."
