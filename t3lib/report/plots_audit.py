"""Figures of the audit: its tables (`report.audit`) in, matplotlib Figure out; a figure's label is its caption."""

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lib.metrics import AUDIT
from t3lib.names import METHODS, SPLITS
from t3lib.report import audit
from t3lib.report.look import COLOURS, GREY, MARKERS, SPLIT_NAMES, STYLE, T3_COLOUR, key, log_axis, panels

AGAINST_T = ("recognized_verbatim", "recognized_paraphrased", "auc", "auc_min_k")
FRONTIER = ("recognized_verbatim", "auc", "leak")
DASHES = ("-", "--", ":")  # T3's sampled (T, w)


@rc_context(STYLE)
def leak_curves(leak: pd.DataFrame) -> Figure:
    """leak@k against k: what the best of k sampled answers gives away; bars are standard errors over rows.

    Of several nuclei the widest is drawn, which every method has.
    """
    leak = leak[leak["top_p"] == leak["top_p"].max()]
    splits = _splits(leak)
    figure, axes = panels(1, len(splits), (1.2 + 2.8 * len(splits), 2.8), sharey=True)
    entries = {}
    for axis, split in zip(axes.flat, splits):
        here = leak[leak["split"] == split]
        for method in METHODS:
            curves = here[here["method"] == method].groupby(["T", "w"], dropna=False)
            for dash, ((T, w), curve) in zip(DASHES, curves):
                look = {"color": COLOURS[method], "marker": MARKERS[method], "ls": dash if method == "T3" else "-"}
                look |= {"lw": 2.0} if method in ("T3", "Retrained") else {}
                look |= {"ls": ":"} if method == "Original" else {}
                axis.errorbar(curve["k"], curve["value"], curve["se"], ms=3, elinewidth=0.6, **look)
                entries[audit.label(method, T, w)] = look
        log_axis(axis)
        axis.set(xlabel="answers drawn, $k$", title=SPLIT_NAMES[split], xticks=sorted(here["k"].unique()))
    axes[0, 0].set_ylabel("leak@k (ROUGE-L recall)")
    key(figure, entries.items(), "right center", ncols=1)
    figure.set_label(
        "What the best of k sampled answers says of a forgotten row. A method that forgot lies on Retrained; above it "
        "leaks, below it says less than a model that never knew."
    )
    return figure


@rc_context(STYLE)
def against_temperature(table: pd.DataFrame, spread: pd.DataFrame) -> Figure:
    """Recognition and membership of T3 (w = 1) against T, with the band of the retrained models and the original.

    table: `audit.audit`; spread: `audit.models`, for the band (lowest to highest retrained model, with its error).
    """
    splits = _splits(table[table["method"] == "T3"])
    figure, axes = panels(len(splits), len(AGAINST_T), (6.8, 0.5 + 1.7 * len(splits)), sharex=True)
    for row, split in zip(axes, splits):
        here = table[table["split"] == split]
        retrained = spread[(spread["split"] == split) & (spread["method"] == audit.YARDSTICK)]
        tilted = here[(here["method"] == "T3") & (here["w"] == 1)].sort_values("T")
        for axis, name in zip(row, AGAINST_T):
            low, high = retrained[name] - retrained[f"{name}_se"], retrained[name] + retrained[f"{name}_se"]
            if len(retrained):
                axis.axhspan(low.min(), high.max(), color=GREY, alpha=0.25, lw=0)
            for value in here.loc[here["method"] == "Original", name]:
                axis.axhline(value, color=GREY, lw=0.8, ls=":")
            axis.plot(tilted["T"], tilted[name], color=T3_COLOUR, marker=MARKERS["T3"], ms=5)
            axis.set(ylim=(-0.03, 1.03))
            if split == splits[0]:
                axis.set_title(AUDIT[name].title.replace(", ", ",\n"), fontsize=7)
        row[0].set_ylabel(SPLIT_NAMES[split])
    for axis in axes[-1]:
        axis.set_xlabel("temperature $T$")
    band = {"color": GREY, "alpha": 0.4, "lw": 6}
    entries = [("T3", {"color": T3_COLOUR, "marker": MARKERS["T3"]}), ("retrained models", band)]
    key(figure, [*entries, ("before unlearning", {"color": GREY, "ls": ":", "lw": 0.8})])
    figure.set_label(
        "Recognition and membership against T3's temperature. Grey: retrained models, with their error over rows. "
        "Membership is perfect at .5: above, forgotten rows still look known; below, stranger than text never seen."
    )
    return figure


@rc_context(STYLE)
def frontier(table: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """What is left of the forgotten rows against MU-ROUGE: T3 at every (T, w), the other methods, retrained models.

    table: `audit.audit`; runs: `results.tidy` of the main runs and of those at other w, which know MU-ROUGE.
    """
    means = runs.groupby(["split", "method", "T", "w"], dropna=False)["mu_rouge"].mean().reset_index()
    points = table.merge(means, how="inner", on=["split", "method", "T", "w"])
    splits = _splits(points)
    figure, axes = panels(len(splits), len(FRONTIER), (6.8, 0.7 + 2.0 * len(splits)), sharex=True)
    for row, split in zip(axes, splits):
        here = points[points["split"] == split]
        for axis, name in zip(row, FRONTIER):
            target = here.loc[here["method"] == audit.YARDSTICK, name].mean()
            if not np.isnan(target):
                axis.axhline(target, color=GREY, lw=0.8)
            for _, of_w in here[here["method"] == "T3"].dropna(subset=[name]).groupby("w"):
                path = of_w.sort_values("T")
                axis.plot(path["mu_rouge"], path[name], color=T3_COLOUR, marker=MARKERS["T3"], ms=4, lw=0.8)
                for x, y, T in zip(path["mu_rouge"], path[name], path["T"]):
                    axis.annotate(f"{T:g}", (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
            for method in (m for m in METHODS if m != "T3"):
                part = here[here["method"] == method]
                look = {"color": COLOURS[method], "marker": MARKERS[method], "s": 22, "edgecolors": "white", "lw": 0.3}
                axis.scatter(part["mu_rouge"], part[name], **look)
            axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
            if split == splits[0]:
                axis.set_title(AUDIT[name].title, fontsize=7)
        row[0].set_ylabel(SPLIT_NAMES[split])
    for axis in axes[-1]:
        axis.set_xlabel("MU-ROUGE")
    ran = [method for method in METHODS if method in set(points["method"])]
    looks = [(name, {"marker": MARKERS[name], "color": COLOURS[name], "ls": ""}) for name in ran]
    key(figure, looks, "right center", ncols=1)
    figure.set_label(
        "What is left of the forgotten rows against what is kept: T3 at every T (numbers), the other methods, and the "
        "retrained models' level (line). Best: on the line, far right."
    )
    return figure


def _splits(frame: pd.DataFrame) -> list[str]:
    """The splits that occur, in the paper's order; all where none does, for an empty figure."""
    return [split for split in SPLITS if (frame["split"] == split).any()] or list(SPLITS)
