"""Draw the figures of cost from Table 3 and from the table `benchmarks`."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from t3lab.report import tables
from t3lab.report.look import (
    PAPER,
    counted,
    log_axis,
    of_splits,
    panels,
    splits_of,
    styled,
    with_key,
)
from t3lab.report.render import cell


@styled()
def runtime(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Draw Table 3: seconds of training on a logarithmic scale, ours on the left and the paper's
    GPU on the right.

    printed: the paper's Table 3. On both sides, T3 (preprocessed) is training on stored features.
    The seconds for computing our features are in the caption. The paper does not give its own.
    """
    main = tables.main_runs(frame)
    splits = splits_of(main)
    sources = {"ours": tables.runtime(frame)} | ({} if printed is None else {PAPER: printed})
    data = {name: table.astype({"train_s": float}) for name, table in sources.items()}
    ran = pd.concat(data).dropna(subset=["train_s"])["method"]
    names = [name for name in dict.fromkeys(sources["ours"]["method"]) if name in set(ran)]
    figure, axes = panels(
        1, len(sources), (3.4 * len(sources), 0.7 + 0.26 * max(3, len(names))), sharey=True
    )

    for axis, (source, table) in zip(axes.flat, data.items()):
        here, by, _ = of_splits(table.dropna(subset=["train_s"]), splits)
        sns.barplot(here, x="train_s", y="method", order=names, saturation=1, ax=axis, **by)
        for bars in axis.containers:
            axis.bar_label(bars, fmt=lambda value: f" {cell(value, 'train_s')}", fontsize=5.5)
        log_axis(axis)
        axis.set(title=source, xlabel="seconds", ylabel="")
        if len(here):
            axis.set_xlim(here["train_s"].min() / 3, here["train_s"].max() * 4)

    # what the features cost, for the caption
    stored = sources["ours"].query("method == 'T3 (preprocessed)'").dropna(subset=["features_s"])
    told = [
        f"{cell(spent, 'features_s')} s ({splits[split]})"
        for split, spent in zip(stored["split"], stored["features_s"])
    ]

    return with_key(
        figure,
        "Seconds of training, on a logarithmic scale that starts at a third of the shortest. T3"
        " (preprocessed) trains on features of the base that are stored once, which took"
        f" {' and '.join(told) or 'no time'} more. T3 (naive) runs the base at every step."
        f" {counted(main, paper=printed is not None)}",
    )


@styled()
def seconds(rows: pd.DataFrame) -> Figure:
    """Draw median and quartiles of every row of the table `benchmarks` that has seconds, on a
    logarithmic scale.
    """
    shown = rows[rows["unit"] == "s"]
    figure, [[axis]] = panels(1, 1, (6.8, 0.6 + 0.2 * len(shown)))
    sizes = shown["shape"].str.extract(r"(\d+ \+ \d+ rows)", expand=False).fillna(shown["shape"])
    height = range(len(shown))
    spread = [shown["median"] - shown["low"], shown["high"] - shown["median"]]
    axis.errorbar(shown["median"], height, xerr=spread, ls="", marker="o", ms=3, capsize=2)
    axis.set_yticks(height, shown["what"] + "  [" + sizes + "]")
    for y, value in zip(height, shown["median"]):
        axis.annotate(f"{value:.3g}", (value, y), (0, 3), textcoords="offset points", fontsize=6)
    axis.set(ylim=(len(shown) - 0.5, -0.8), xlabel="seconds")
    log_axis(axis)
    return with_key(
        figure,
        "Seconds on this machine: median and quartiles of"
        f" {shown['repeats'].min():.0f} to {shown['repeats'].max():.0f} repeats. In brackets: rows"
        " to forget + rows to keep, or the base and its batch.",
    )
