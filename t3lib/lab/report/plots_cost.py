"""Figures of cost: Table 3 and the table `benchmarks` in, matplotlib Figure out."""

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lib.lab.report import tables
from t3lib.lab.report.look import (
    PAPER,
    SPLIT_LOOKS,
    STYLE,
    counted,
    key,
    log_axis,
    panels,
    splits_of,
)
from t3lib.lab.report.render import cell


@rc_context(STYLE)
def runtime(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 3 as a figure: seconds of training, ours left and the paper's GPU right; log scale.

    T3 (preprocessed) means the same on both sides, training on stored features; their own seconds,
    which the paper does not give, are a number beside the bar.
    """
    sources = {"ours": tables.runtime(frame)} | ({} if printed is None else {PAPER: printed})
    costs = {
        name: table.set_index(["split", "method"]).astype({"train_s": float})
        for name, table in sources.items()
    }
    seconds = pd.concat([table["train_s"] for table in costs.values()])
    names = [
        name for name in dict.fromkeys(sources["ours"]["method"]) if seconds.notna()[:, name].any()
    ]
    splits = splits_of(tables.main_runs(frame))
    figure, axes = panels(
        1, len(sources), (3.4 * len(sources), 0.7 + 0.26 * max(3, len(names))), sharey=True
    )
    for axis, (source, table) in zip(axes.flat, costs.items()):
        for offset, split in zip((-0.2, 0.2), splits):
            spent = table.reindex([(split, name) for name in names])
            places = np.arange(len(names)) + offset
            axis.barh(places, spent["train_s"], height=0.36, color=SPLIT_LOOKS[split]["color"])
            for y, train, features in zip(places, spent["train_s"], spent["features_s"]):
                extra = "" if pd.isna(features) else f" + features {cell(features, 'features_s')}"
                if pd.notna(train):
                    axis.text(
                        train, y, f" {cell(train, 'train_s')}{extra}", va="center", fontsize=5.5
                    )
        log_axis(axis)
        axis.set(title=source, xlabel="seconds", ylim=(len(names) - 0.4, -0.6))
        if table["train_s"].notna().any():
            axis.set_xlim(table["train_s"].min() / 3, table["train_s"].max() * 4)
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="y", visible=False)
    key(
        figure,
        [(name, {"color": SPLIT_LOOKS[split]["color"], "lw": 5}) for split, name in splits.items()],
    )
    figure.set_label(
        "Seconds of training. T3 (preprocessed): on features of the base, stored once, with their"
        " seconds beside the bar; T3 (naive): the base is read at every step. Logarithmic; bars"
        " start at a third of the shortest."
        f" {counted(tables.main_runs(frame), paper=printed is not None)}"
    )
    return figure


@rc_context(STYLE)
def seconds(rows: pd.DataFrame) -> Figure:
    """Median and quartiles of every row of the table `benchmarks` that has seconds; log scale."""
    shown = rows[rows["unit"] == "s"][::-1]
    figure, [[axis]] = panels(1, 1, (6.8, 0.6 + 0.2 * len(shown)))
    spread = [shown["median"] - shown["low"], shown["high"] - shown["median"]]
    height = range(len(shown))
    axis.errorbar(shown["median"], height, xerr=spread, ls="", marker="o", ms=3, capsize=2)
    for y, value in zip(height, shown["median"]):
        axis.annotate(f"{value:.3g}", (value, y), (0, 3), textcoords="offset points", fontsize=6)
    sizes = shown["shape"].str.extract(r"(\d+ \+ \d+ rows)", expand=False).fillna(shown["shape"])
    axis.set_yticks(height, shown["what"] + "  [" + sizes + "]")
    axis.set(ylim=(-0.6, len(shown) - 0.2), xlabel="seconds")
    log_axis(axis)
    least, most = shown["repeats"].min(), shown["repeats"].max()
    figure.set_label(
        "Seconds on this machine: median and quartiles. In brackets: forget + retain rows, or the"
        f" base and its batch; n = {least:.0f} to {most:.0f} repeats each."
    )
    return figure
