"""Draw the figures of the audit from its tables (`report.audit`). A figure's label is its
caption.
"""

from collections.abc import Sequence
from itertools import cycle
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from t3lab.audit.labels import AUDIT
from t3lab.report import audit
from t3lab.report.look import (
    BAND,
    COLOURS,
    DOTTED,
    GREY,
    LIGHT,
    MARKERS,
    T3_COLOUR,
    WHOLE,
    Look,
    counted,
    label_ends,
    log_axis,
    method_points,
    panels,
    splits_of,
    styled,
    with_error,
    with_key,
)
from t3lab.report.render import SCORES
from t3lib.baselines.losses import BASELINES, METHODS

AGAINST_T = ("recognized_verbatim", "recognized_paraphrased", "auc", "auc_min_k")
FRONTIER = ("recognized_verbatim", "auc", "leak")
# Column on the x axis of `attacked` -> its name.
ACROSS = {
    "steps": "steps of training",
    "bits": "bits (32: not rounded)",
    "authors": "authors",
}


@styled()
def leak_curves(leak: pd.DataFrame, models: pd.DataFrame) -> Figure:
    """Draw leak@k against k: what the best of k sampled answers gives away. Bars are standard
    errors over rows.

    leak: `audit.leak`; only the sampler at temperature 1 is drawn. models: `audit.models` of the
    same runs, for the number of rows.
    """
    leak = leak[(leak["tau"] == 1) & (leak["top_p"] == leak["top_p"].max())]
    splits = splits_of(models)
    figure, axes = panels(1, len(splits), (0.8 + 3.0 * len(splits), 3.0), sharey=True)

    for axis, (split, name) in zip(axes.flat, splits.items()):
        ends, others = list[tuple[str, float, Any]](), list[float]()
        # baselines are thin grey lines, and one label at their median names all of them
        here = leak[leak["split"] == split].sort_values("k")
        for names, line in here.groupby(audit.NAMES[1:], dropna=False):
            k, value, last = line["k"], line["value"], line["value"].iloc[-1]
            if names[0] in BASELINES:
                axis.plot(k, value, color=LIGHT, lw=0.8)
                others.append(last)
                continue
            colour = COLOURS[names[0]]
            look = {"marker": MARKERS[names[0]], "color": colour, "ms": 4, "mew": 0}
            axis.errorbar(k, value, line["se"], elinewidth=0.6, **look)
            ends.append((audit.label(*names), last, colour))
        label_ends(axis, ends + [("baselines", np.median(others), GREY) for _ in others[:1]])
        log_axis(axis)
        axis.set(xlabel="answers drawn, $k$", title=name, xticks=sorted(here["k"].unique()))

    axes[0, 0].set_ylabel("leak@k (ROUGE-L recall)")
    figure.set_label(
        "How much of a forgotten row's answer the best of k sampled answers contains, with standard"
        " errors over rows. A method that forgot lies on the line of Retrained. A method above this"
        " line leaks, and one below it says less than a model that never saw the rows. Each grey"
        f" line is a baseline. {counted(models[models['leak'].notna()], 'n_written')}"
    )

    return figure


@styled()
def by_product(leak: pd.DataFrame, k: int) -> Figure:
    """Draw what the best of k answers of T3 gives away against the sampler's temperature times T.

    leak: `audit.leak` of one split with several tau. Only samples from whole distributions (top p =
    1) are drawn.
    """
    here = leak[(leak["method"] == "T3") & (leak["top_p"] == 1) & (leak["k"] == k)]
    here = here.assign(
        hotness=here["tau"] * here["T"],
        **{
            "product w T": [f"{each:g}" for each in here["w"] * here["T"]],
            "T3 at": [f"T = {T:g}, w = {w:g}" for T, w in zip(here["T"], here["w"])],
        },
    )
    here = with_error(here, "value", "se")
    figure, axes = panels(1, 1, (5.2, 2.8))
    by = {"hue": "product w T", "style": "T3 at", "markers": True, "dashes": False}
    bars = {"errorbar": WHOLE, "err_style": "bars", "err_kws": {"elinewidth": 0.6}}
    sns.lineplot(here, x="hotness", y="value", **by, **bars, ax=axes[0, 0])
    axes[0, 0].set(xlabel=r"sampler's temperature times $T$", ylabel=f"leak@{k} (ROUGE-L recall)")
    return with_key(
        figure,
        f"T3's best of {k} sampled answers against the sampler's temperature times T, with standard"
        " errors over rows. Models with the same product w T have one colour and lie on one curve:"
        " T hides nothing from a user who sets the sampler's temperature.",
        place="right center",
        ncols=1,
    )


@styled()
def attacked(entries: pd.DataFrame, x: str, hue: str, values: list[str]) -> Figure:
    """Draw some columns of the table recover or requests against x, one panel for each column.

    x: "steps", "bits" or "authors". hue: the column that gives each line its colour. values:
    columns to draw; "leaking" is the share of rows that leak.
    """
    entries = entries.assign(leaking=entries["rows_leaking"] / entries["rows"])
    figure, axes = panels(1, len(values), (6.8, 2.2), sharex=True)
    names = {"leaking": "share of rows that leak"} | {n: m.title for n, m in SCORES.items()}
    look = {"palette": _attacked_colours(entries[hue].unique()), "markers": True}
    for axis, value in zip(axes.flat, values):
        sns.lineplot(entries, x=x, y=value, hue=hue, style=hue, ax=axis, **look)
        axis.set(ylim=(-0.03, 1.03), xlabel=ACROSS[x], ylabel="", title=names[value])
        axis.set_xticks(sorted(entries[x].unique()))
    caption = f"Up to {entries['rows'].max():g} forgotten rows are asked."
    return with_key(figure, caption, place="right center", ncols=1)


def _attacked_colours(names: Sequence[str]) -> Look:
    """Return {name: colour}: a method's own, and shades of T3's for its kinds and for heads."""
    known = COLOURS | {"retrained": COLOURS["Retrained"]}
    kinds = {name: name.split(", head")[0] for name in names}
    ours = [*dict.fromkeys(kind for kind in kinds.values() if kind == "T3" or kind not in known)]
    shades = dict(zip(ours, sns.dark_palette(T3_COLOUR, len(ours) + 1, reverse=True)))
    return {name: (known | shades)[kind] for name, kind in kinds.items()}


@styled()
def by_way(entries: pd.DataFrame) -> Figure:
    """Draw a table of how many rows leak in each way of asking (rows) of each model (columns).

    entries: rows of the table recover whose attack is asking. Ways in which the original answers no
    row are left out.
    """
    entries = entries[entries["rows"] > 0]
    share = entries["rows_leaking"] / entries["rows"]
    counts = entries["rows_leaking"].astype(str) + " / " + entries["rows"].astype(str)
    entries = entries.assign(share=share, counts=counts)
    shares, texts = (
        entries.pivot(index="way", columns="model", values=name).reindex(
            index=entries["way"].unique(), columns=entries["model"].unique()
        )
        for name in ("share", "counts")
    )
    figure, axes = panels(1, 1, (6.8, 0.6 + 0.2 * len(shares)))
    look = {"cmap": "Greys", "vmin": 0, "vmax": 1.5, "cbar": False}  # numbers stay readable
    sns.heatmap(shares, annot=texts, fmt="", ax=axes[0, 0], **look)
    axes[0, 0].set(xlabel="", ylabel="")
    figure.set_label(
        "For each way of asking: the number of forgotten rows that leak / the number of rows that"
        " the original answers in this way. The darker, the larger the share."
    )
    return figure


@styled()
def against_temperature(table: pd.DataFrame, models: pd.DataFrame) -> Figure:
    """Draw recognition and membership of T3 at w = 1 against T, with the retrained models and the
    original.

    table: `audit.audit`. models: `audit.models`, for the band from the lowest to the highest
    retrained model, with its error.
    """
    splits = splits_of(models[models["method"] == "T3"])
    figure, axes = panels(len(splits), len(AGAINST_T), (6.8, 0.5 + 1.7 * len(splits)), sharex=True)
    for row, (split, title) in zip(axes, splits.items()):
        here = table[table["split"] == split]
        tilted = here[(here["method"] == "T3") & (here["w"] == 1)].sort_values("T")
        retrained = models[(models["split"] == split) & (models["method"] == audit.YARDSTICK)]
        for axis, name in zip(row, AGAINST_T):
            around = with_error(retrained, name, f"{name}_se")[name].dropna()
            if len(around):
                axis.axhspan(around.min(), around.max(), **BAND)
            for value in here.loc[here["method"] == "Original", name]:
                axis.axhline(value, label="before unlearning", **DOTTED)

            axis.plot(tilted["T"], tilted[name], color=T3_COLOUR, marker="*", ms=7, label="T3")
            axis.set(ylim=(-0.03, 1.03), xlabel="temperature $T$", ylabel=title)
            axis.set_title(AUDIT[name].title.replace(", ", ",\n"))
            axis.label_outer()

    return with_key(
        figure,
        "Recognition and membership against T3's temperature. Grey: retrained models, with their"
        " error over rows. Membership is best at 0.5. Above 0.5 forgotten rows still look known,"
        f" and below 0.5 they look stranger than text that no model saw. {counted(models)}",
    )


@styled()
def by_model(models: pd.DataFrame, names: list[str]) -> Figure:
    """Draw measures of several models: one row for each model, one dot for each seed, one panel for
    each measure.

    models: `audit.models` of one split. names: measures of `labels.AUDIT`. The band is what the
    retrained models have.
    """
    places = models["method"].map(METHODS.index)
    frame = models.assign(place=places).sort_values(["place", "T", "w"])
    frame["model"] = [audit.label(*each) for each in zip(frame["method"], frame["T"], frame["w"])]
    height = 0.9 + 0.17 * frame["model"].nunique()
    figure, axes = panels(1, len(names), (6.8, height), sharey=True, sharex=True)
    retrained = frame[frame["method"] == audit.YARDSTICK]
    for axis, name in zip(axes.flat, names):
        low, high = (retrained[name] + sign * retrained[f"{name}_se"] for sign in (-1, 1))
        axis.axvspan(low.min(), high.max(), **BAND)
        look = {"hue": "method", "palette": COLOURS, "legend": False, "jitter": False}
        sns.stripplot(frame, x=name, y="model", size=4, ax=axis, **look)
        axis.set(title=fill(AUDIT[name].title, 64 // len(names)), xlabel="", ylabel="")
    figure.set_label(
        "Every model, one dot for each seed. Grey: the range of retrained models, with their error"
        f" over rows. {counted(models)}"
    )
    return figure


@styled()
def frontier(table: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Draw what is left of the forgotten rows against MU-ROUGE: T3 at every (T, w), the other
    methods, and retrained models.

    table: `audit.audit`. runs: `results.tidy` of the main runs and of those at other w, which hold
    MU-ROUGE.
    """
    means = runs.groupby([*audit.NAMES], dropna=False)["mu_rouge"].mean().reset_index()
    points = table.merge(means, how="inner", on=audit.NAMES).sort_values("T")
    splits = splits_of(runs[runs["split"].isin(points["split"])])
    figure, axes = panels(len(splits), len(FRONTIER), (6.8, 0.7 + 2.0 * len(splits)), sharex=True)

    for row, (split, title) in zip(axes, splits.items()):
        here = points[points["split"] == split]
        for axis, name in zip(row, FRONTIER):
            for level in here.loc[here["method"] == audit.YARDSTICK, name].dropna():
                axis.axhline(level, color=GREY, lw=0.8)
            method_points(axis, here, "mu_rouge", name, 25)

            tilted = here[here["method"] == "T3"].dropna(subset=[name])
            for _, path in tilted.groupby("w"):
                axis.plot(path["mu_rouge"], path[name], color=T3_COLOUR, lw=0.8)
            # Labels change sides, so that those of neighbours do not overlap.
            sides = cycle([("right", (-4, 0)), ("left", (4, 0))])
            for (side, away), point in zip(sides, tilted[::-1].to_dict("records")):
                words = f"{point['T']:g}" + (f", w = {point['w']:g}" if point["w"] != 1 else "")
                axis.annotate(
                    words,
                    (point["mu_rouge"], point[name]),
                    away,
                    textcoords="offset points",
                    ha=side,
                    va="center",
                    fontsize=6,
                )

            axis.set(xlim=(-0.03, 1.1), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1))
            axis.set(xlabel="MU-ROUGE", ylabel=title, title=AUDIT[name].title)
            axis.label_outer()

    return with_key(
        figure,
        "What is left of the forgotten rows against what is kept, as means over seeds: T3 at every"
        " T (the numbers, with w if it is not 1), the other methods, and the level of retrained"
        " models (line). T3 is tuned for each T, so its line may turn where its settings change."
        f" The best place is on the line and far to the right. {counted(runs)}",
        place="right center",
        ncols=1,
        labelspacing=0.8,
    )
