"""Figures of the audit: its tables (`report.audit`) in, matplotlib Figure out; a figure's label is
its caption.
"""

from itertools import cycle
from textwrap import fill

import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lib.baselines.losses import METHODS
from t3lib.lab.report import audit
from t3lib.lab.report.look import (
    COLOURS,
    GREY,
    MARKERS,
    STYLE,
    T3_COLOUR,
    counted,
    key,
    log_axis,
    method_key,
    panels,
    splits_of,
)
from t3lib.tofu.metrics import AUDIT

AGAINST_T = ("recognized_verbatim", "recognized_paraphrased", "auc", "auc_min_k")
FRONTIER = ("recognized_verbatim", "auc", "leak")
DASHES = ("-", "--", ":")  # T3's sampled (T, w)


@rc_context(STYLE)
def leak_curves(leak: pd.DataFrame, models: pd.DataFrame) -> Figure:
    """leak@k against k: what the best of k sampled answers gives away; bars are standard errors
    over rows.

    leak: `audit.leak`, of several nuclei the widest, which every method has; models: `audit.models`
    of the same runs, for the rows that were asked.
    """
    nuclei, splits = sorted(leak["top_p"].unique()), splits_of(models)
    leak = leak[leak["top_p"] == leak["top_p"].max()]
    figure, axes = panels(1, len(splits), (1.2 + 2.8 * len(splits), 2.8), sharey=True)
    entries = {}
    for axis, (split, name) in zip(axes.flat, splits.items()):
        here = leak[leak["split"] == split]
        for method in METHODS:
            curves = here[here["method"] == method].groupby(["T", "w"], dropna=False)
            for dash, ((T, w), curve) in zip(DASHES, curves):
                look = {
                    "color": COLOURS[method],
                    "marker": MARKERS[method],
                    "ls": dash if method == "T3" else "-",
                }
                look |= {"lw": 2.0} if method in ("T3", "Retrained") else {}
                look |= {"ls": ":"} if method == "Original" else {}
                axis.errorbar(curve["k"], curve["value"], curve["se"], ms=3, elinewidth=0.6, **look)
                entries[audit.label(method, T, w)] = (METHODS.index(method), T), look
        log_axis(axis)
        axis.set(xlabel="answers drawn, $k$", title=name, xticks=sorted(here["k"].unique()))
    axes[0, 0].set_ylabel("leak@k (ROUGE-L recall)")
    shown = sorted(entries.items(), key=lambda entry: entry[1][0])
    key(figure, [(name, look) for name, (_, look) in shown], "right center", ncols=1)
    figure.set_label(
        "What the best of k sampled answers says of a forgotten row; bars: standard errors over"
        " rows. A method that forgot lies on Retrained; above it leaks, below it says less than a"
        " model that never knew."
        f" {_drawn_from(nuclei)}{counted(models[models['leak'].notna()], 'n_written')}"
    )
    return figure


@rc_context(STYLE)
def against_temperature(table: pd.DataFrame, models: pd.DataFrame) -> Figure:
    """Recognition and membership of T3 (w = 1) against T, with the band of the retrained models and
    the original.

    table: `audit.audit`; models: `audit.models`, for the band (lowest to highest retrained model,
    with its error).
    """
    splits = splits_of(models[models["method"] == "T3"])
    figure, axes = panels(len(splits), len(AGAINST_T), (6.8, 0.5 + 1.7 * len(splits)), sharex=True)
    for row, (split, title) in zip(axes, splits.items()):
        here = table[table["split"] == split]
        retrained = models[(models["split"] == split) & (models["method"] == audit.YARDSTICK)]
        tilted = here[(here["method"] == "T3") & (here["w"] == 1)].sort_values("T")
        for axis, name in zip(row, AGAINST_T):
            low, high = (
                retrained[name] - retrained[f"{name}_se"],
                retrained[name] + retrained[f"{name}_se"],
            )
            if len(retrained):
                axis.axhspan(low.min(), high.max(), color=GREY, alpha=0.25, lw=0)
            for value in here.loc[here["method"] == "Original", name]:
                axis.axhline(value, color=GREY, lw=0.8, ls=":")
            axis.plot(tilted["T"], tilted[name], color=T3_COLOUR, marker=MARKERS["T3"], ms=5)
            axis.set(ylim=(-0.03, 1.03))
        row[0].set_ylabel(title)
    for axis, name in zip(axes[0], AGAINST_T):
        axis.set_title(AUDIT[name].title.replace(", ", ",\n"), fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("temperature $T$")
    band = {"color": GREY, "alpha": 0.4, "lw": 6}
    entries = [("T3", {"color": T3_COLOUR, "marker": MARKERS["T3"]}), ("retrained models", band)]
    key(figure, [*entries, ("before unlearning", {"color": GREY, "ls": ":", "lw": 0.8})])
    figure.set_label(
        "Recognition and membership against T3's temperature. Grey: retrained models, with their"
        " error over rows. Membership is perfect at .5: above, forgotten rows still look known;"
        f" below, stranger than text never seen. {counted(models)}"
    )
    return figure


@rc_context(STYLE)
def by_model(models: pd.DataFrame, names: list[str]) -> Figure:
    """A row a model, a dot a seed, a panel a measure; the band is what the retrained models have.

    models: `audit.models` of one split; names: measures of `metrics.AUDIT`.
    """
    places = models["method"].map(METHODS.index)
    frame = models.assign(place=places).sort_values(["place", "T", "w"])
    frame["model"] = [audit.label(*each) for each in zip(frame["method"], frame["T"], frame["w"])]
    height = 0.9 + 0.17 * frame["model"].nunique()
    figure, axes = panels(1, len(names), (6.8, height), sharey=True, sharex=True)
    retrained = frame[frame["method"] == audit.YARDSTICK]
    for axis, name in zip(axes.flat, names):
        low, high = (retrained[name] + sign * retrained[f"{name}_se"] for sign in (-1, 1))
        axis.axvspan(low.min(), high.max(), color=GREY, alpha=0.25, lw=0)
        look = {"hue": "method", "palette": COLOURS, "legend": False, "jitter": False}
        sns.stripplot(frame, x=name, y="model", size=4, ax=axis, **look)
        axis.set(title=fill(AUDIT[name].title, 64 // len(names)), xlabel="", ylabel="")
    figure.set_label(
        "Every model beside retrained ones (grey: their range, with its error over rows); a dot is"
        f" one seed. {counted(models)}"
    )
    return figure


@rc_context(STYLE)
def frontier(table: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """What is left of the forgotten rows against MU-ROUGE: T3 at every (T, w), the other methods,
    retrained models.

    table: `audit.audit`; runs: `results.tidy` of the main runs and of those at other w, which know
    MU-ROUGE.
    """
    means = (
        runs.groupby(["split", "method", "T", "w"], dropna=False)["mu_rouge"].mean().reset_index()
    )
    points = table.merge(means, how="inner", on=["split", "method", "T", "w"])
    splits = splits_of(runs[runs["split"].isin(points["split"])])
    figure, axes = panels(len(splits), len(FRONTIER), (6.8, 0.7 + 2.0 * len(splits)), sharex=True)
    for row, (split, title) in zip(axes, splits.items()):
        here = points[points["split"] == split]
        for axis, name in zip(row, FRONTIER):
            for level in here.loc[here["method"] == audit.YARDSTICK, name].dropna():
                axis.axhline(level, color=GREY, lw=0.8)
            for w, of_w in here[here["method"] == "T3"].dropna(subset=[name]).groupby("w"):
                path = of_w.sort_values("T")
                axis.plot(
                    path["mu_rouge"],
                    path[name],
                    color=T3_COLOUR,
                    marker=MARKERS["T3"],
                    ms=4,
                    lw=0.8,
                )
                # From the hottest on, which lies furthest left, labels change sides: neighbours do
                # not overlap.
                sides = cycle([("right", (-4, 0)), ("left", (4, 0))])
                for (side, away), (x, y, T) in zip(
                    sides, path[["mu_rouge", name, "T"]].to_numpy()[::-1]
                ):
                    look = {"textcoords": "offset points", "va": "center", "fontsize": 6}
                    axis.annotate(
                        f"{T:g}" if w == 1 else f"{T:g}, w = {w:g}",
                        (x, y),
                        xytext=away,
                        ha=side,
                        **look,
                    )
            for method in (m for m in METHODS if m != "T3"):
                part = here[here["method"] == method]
                look = {
                    "color": COLOURS[method],
                    "marker": MARKERS[method],
                    "s": 22,
                    "edgecolors": "white",
                    "lw": 0.3,
                }
                axis.scatter(part["mu_rouge"], part[name], **look)
            axis.set(xlim=(-0.03, 1.1), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1))
        row[0].set_ylabel(title)
    for axis, name in zip(axes[0], FRONTIER):
        axis.set_title(AUDIT[name].title, fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("MU-ROUGE")
    method_key(figure, points["method"])
    figure.set_label(
        "What is left of the forgotten rows against what is kept: T3 at every T (numbers; w where"
        " it is not 1), the other methods, and the retrained models' level (line); means over"
        " seeds. T3 is tuned for each T, so its line may turn where its settings change. Best: on"
        f" the level, far right. {counted(runs)}"
    )
    return figure


def _drawn_from(nuclei: list[float]) -> str:
    """What the figure's answers were drawn from, where it is not the whole distribution alone."""
    drawn = "" if nuclei[-1:] in ([], [1.0]) else f"Drawn from the nucleus top p = {nuclei[-1]:g}. "
    others = ", ".join(f"{top_p:g}" for top_p in nuclei[:-1])
    return drawn + (
        f"Table leak has draws from a nucleus (top p {others}) as well. " if others else ""
    )
