"""Build the tables and the figure of a study that was repeated in several worlds, from run files.

D and Forget Quality are against each world's second retrained model. No setting was chosen on any
model of these worlds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import t as student

from t3lib.core.names import SPLITS
from t3lib.lab import results
from t3lib.lab.report import tables
from t3lib.lab.report.look import COLOURS, STYLE, panels
from t3lib.lab.report.render import SPLIT_LABELS

# The measures of the tables: {column of a run: True if more is better}.
MEASURES = {"ks_held_out": False, "fq_held_out": True, "mu_rouge": True, "mu": True}
TITLES = {"ks_held_out": "D", "fq_held_out": "Forget Quality", "mu_rouge": "MU-ROUGE", "mu": "MU"}
LEVEL = 0.95


def scores(folders: Mapping[int, Path], tuned: Mapping[str, float]) -> pd.DataFrame:
    """Build the table `worlds_each`: world, split, method, T and every measure, one row for each
    run.

    folders: {seed of a world: its results folder}.
    tuned: {split: T3's temperature}, as chosen in another world. T3's runs at other temperatures
    are left out.
    """
    runs = pd.concat(
        tables.main_runs(results.tidy(results.read_runs(folder / "runs"))).assign(world=seed)
        for seed, folder in folders.items()
    )
    chosen = (runs["method"] != "T3") | (runs["T"] == runs["split"].map(tuned))
    return runs[chosen][["world", "split", "method", "T", *MEASURES]].reset_index(drop=True)


def summary(each: pd.DataFrame) -> pd.DataFrame:
    """Build the table `worlds`: the mean of each measure over the worlds, with its 95% interval.

    first: in how many worlds the method has the best value of all unlearning methods.
    t3_less: T3's value minus the method's, within each world; its interval is t3_low to t3_high. If
    that interval covers zero, the worlds show no order between T3 and the method.
    """
    rows = []
    for (split, method), part in each.groupby(["split", "method"], sort=False):
        here = each[each["split"] == split]
        rivals = here[here["method"].isin(tables.UNLEARNING)]
        for measure, more in MEASURES.items():
            values = part.set_index("world")[measure].dropna()
            by_world = rivals.groupby("world")[measure]
            best = (by_world.max() if more else by_world.min()).reindex(values.index)
            first = int((values == best).sum()) if method in tables.UNLEARNING else pd.NA
            t3 = here[here["method"] == "T3"].set_index("world")[measure]
            gap = interval((t3 - values).dropna()) if method != "T3" else (np.nan,) * 3
            rows.append((split, method, measure, len(values), *interval(values), first, *gap))
    names = ["split", "method", "measure", "worlds", "mean", "low", "high", "first"]
    table = pd.DataFrame(rows, columns=[*names, "t3_less", "t3_low", "t3_high"])
    order = [split for split in tables.SPLITS if split in set(table["split"])]
    table["split"] = pd.Categorical(table["split"], order)
    table["method"] = pd.Categorical(table["method"], tables.METHODS)
    table["measure"] = pd.Categorical(table["measure"], list(MEASURES))
    table = table.sort_values(["split", "measure", "method"], ignore_index=True)
    return table.astype({"split": str, "method": str, "measure": str, "first": "Int64"})


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Return the mean of n values and the ends of its 95% interval, mean ± t(n − 1) sd / √n.

    Student's t has n − 1 degrees of freedom. The ends are nan if n < 2.
    """
    n = len(values)
    mean = float(np.mean(values)) if n else np.nan
    if n < 2:
        return mean, np.nan, np.nan
    half = float(student.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / n**0.5)
    return mean, mean - half, mean + half


@rc_context(STYLE)
def figure(each: pd.DataFrame) -> Figure:
    """Draw each method in each world, and its mean with a 95% interval (grey), one panel for each
    measure.
    """
    splits = [split for split in SPLITS if split in set(each["split"])]
    names = [name for name in tables.METHODS if name in set(each["method"])]
    size = (6.8, 0.5 + len(splits) * (0.4 + 0.15 * len(names)))
    drawn, axes = panels(len(splits), len(MEASURES), size, sharex="col", sharey=True)
    for row, split in zip(axes, splits):
        for axis, measure in zip(row, MEASURES):
            shared = {
                "data": each[each["split"] == split],
                "x": measure,
                "y": "method",
                "order": names,
                "ax": axis,
            }
            sns.stripplot(
                **shared,
                hue="method",
                hue_order=names,
                palette=COLOURS,
                legend=False,
                size=2.5,
                jitter=False,
            )
            sns.pointplot(
                **shared,
                errorbar=lambda x: interval(x)[1:],
                color="0.3",
                markersize=2.5,
                linewidth=0.8,
                ls="",
            )
            axis.set(xlabel="", ylabel="", title=TITLES[measure], xlim=(-0.04, 1.04))
        row[0].set_ylabel(f"{SPLIT_LABELS[split]} split")
    drawn.set_label(
        f"Every method in {each['world'].nunique()} built-in worlds, with settings that were chosen"
        " in another. Coloured: one world. Grey: the mean with its 95% interval (Student's t)."
        " D and Forget Quality compare with each world's second retrained model. For D 0 is best,"
        " for the other measures 1."
    )
    return drawn
