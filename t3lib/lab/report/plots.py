"""Figures of the study: tidy frame (`results.tidy`) or run files in, matplotlib Figure out; nothing
read or written.

A figure's label is its caption, with n: `render.show` prints it and `render.save_figure` keeps it
in the file.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy.stats import ks_2samp

from t3lib.baselines.losses import METHODS
from t3lib.lab.report import tables
from t3lib.lab.report.look import (
    COLOURS,
    GREY,
    MARKERS,
    PAPER,
    SPLIT_LOOKS,
    STYLE,
    T3_COLOUR,
    Look,
    counted,
    ends,
    key,
    log_axis,
    method_key,
    panels,
    splits_of,
)
from t3lib.tofu.metrics import AUDIT, HIDING, METRICS

CAUGHT = 0.05  # Forget Quality below which the test tells the model from the retrained one
HOLLOW = {"ls": "--", "lw": 1, "mfc": "white"}


@rc_context(STYLE)
def temperature(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 5 as a figure: Forget Quality, MU-ROUGE and Model Utility of T3 against T, ours and the
    paper's.

    `printed` is the paper's Table 5 (`tables.printed`). Dotted lines: the model before unlearning.
    """
    main = tables.on_held_out(tables.main_runs(frame))
    runs = tables.t3_runs(main)
    splits = splits_of(runs)
    figure, [axes] = panels(1, 3, (6.8, 2.4))
    for axis, metric in zip(axes, tables.SUMMARY):
        for split in splits:
            look = SPLIT_LOOKS[split] | {"markersize": 4}
            ours = runs[runs["split"] == split].dropna(subset=[metric])
            means = ours.groupby("T")[metric].mean()
            axis.plot(means.index, means, **look)
            axis.scatter(ours["T"], ours[metric], s=6, color=look["color"], alpha=0.5, lw=0)
            if printed is not None:
                theirs = printed[(printed["split"] == split) & printed["T"].notna()]
                axis.plot(theirs["T"], theirs[metric], **look | HOLLOW)
            for source, dash in ((main, ":"), (printed, (0, (1, 4)))):
                if source is not None and metric != "fq":
                    for before in _of(source, split, "Original")[metric].dropna():
                        axis.axhline(before, color=look["color"], lw=0.8, ls=dash)
        axis.set(xlabel="temperature $T$", title=METRICS[metric].title)
    axes[0].set_ylim(ends(runs[tables.SUMMARY[0]], margin=0.03))
    entries = [(name, SPLIT_LOOKS[split]) for split, name in splits.items()]
    if printed is not None:
        entries += [
            ("ours", {"color": GREY, "marker": "."}),
            (PAPER, {"color": GREY, "marker": "o"} | HOLLOW),
        ]
    key(figure, [*entries, ("before unlearning", {"color": GREY, "ls": ":", "lw": 0.8})])
    figure.set_label(
        "Forgetting and keeping against T3's temperature. Lines: means over seeds; dots: every"
        " seed; dotted: before"
        f" unlearning{'' if printed is None else ' (widely dotted: the paper)'}."
        f" {compared_with(runs)} {counted(main, paper=printed is not None)}"
    )
    return figure


@rc_context(STYLE)
def dials(search: pd.DataFrame, title: str, n: int) -> Figure:
    """Forget Quality and D against the strength w of the classifier in p^(1/T) f^w, a line a
    temperature.

    search: rows of `study.ablations.run_dials` of one split; title: what the split is; n: its
    forget rows.
    """
    figure, [axes] = panels(1, 2, (6.8, 2.6))
    temperatures = sorted(search["T"].unique())
    shades = dict(zip(temperatures, colormaps["viridis"](np.linspace(0, 0.9, len(temperatures)))))
    for axis, column, name in zip(axes, ("fq", "D"), ("fq", "ks_statistic")):
        for T, shade in shades.items():
            line = search[search["T"] == T].sort_values("w")
            axis.plot(line["w"], line[column], color=shade, marker=".", lw=1)
        log_axis(axis)
        axis.set(xlabel="strength $w$ of the classifier", title=METRICS[name].title)
    axes[0].axhline(CAUGHT, color=GREY, lw=0.8, ls=":")
    axes[0].set_ylim(-0.03, 1.03)
    lines: list[tuple[str, Look]] = [
        (f"T = {T:g}", {"color": shade}) for T, shade in shades.items()
    ]
    key(figure, [*lines, (f"Forget Quality {CAUGHT}", {"color": GREY, "ls": ":", "lw": 0.8})])
    seeds = int(search["n_seeds"].max())
    figure.set_label(
        f"T3's two dials, p^(1/T) f^w, {title}: can a sharper classifier stand in for tempering?"
        f" Below the dotted line the test tells the model from a retrained one. n = {n} forget"
        f" rows, means over {seeds} seed{'s' * (seeds != 1)}."
    )
    return figure


@rc_context(STYLE)
def truth_ratio_cdfs(runs: Iterable[Mapping[str, Any]], *, columns: int = 4) -> Figure:
    """The two truth-ratio distributions behind each Forget Quality, one panel a run, with the KS
    distance D drawn.

    Forget Quality is the p-value of that distance: the black bar is all that it sees. The
    horizontal axis is logarithmic and holds 99 of 100 rows of each panel; failed runs have no
    panel.
    """
    shown = [
        run
        for run in runs
        if run["status"] == "ok" and len(run["truth_ratio"].get("reference", []))
    ]
    rows = max(1, -(-len(shown) // columns))
    columns = max(1, -(-len(shown) // rows))  # six panels are two rows of three, not five and one
    figure, axes = panels(rows, columns, (6.8, 0.4 + 1.45 * rows), sharex=True, sharey=True)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    if not shown:
        figure.text(0.5, 0.5, "no finished runs", ha="center")
    ends = []
    for axis, run in zip(axes.flat, shown):
        ratios = [
            np.sort(np.asarray(run["truth_ratio"][name], float)) for name in ("reference", "forget")
        ]
        looks: list[Look] = [{"color": GREY, "ls": "--"}, {"color": COLOURS[run["method"]]}]
        for values, look in zip(ratios, looks):
            axis.step(
                values, np.arange(1, len(values) + 1) / len(values), where="post", lw=1.1, **look
            )
            ends.append(np.quantile(values[values > 0], [0.005, 0.995]))
        test = ks_2samp(*ratios, method="asymp")  # for D and its place; the p-value is the run's
        ends_of_d = sorted(float((values <= test.statistic_location).mean()) for values in ratios)
        axis.plot([test.statistic_location] * 2, ends_of_d, color="black", lw=2.2)
        T, p = "" if run["T"] is None else f" at $T={run['T']:g}$", run["metrics"]["fq"]
        quality = f"{p:.3f}" if p >= 5e-4 else f"{p:.0e}".replace("e-0", "e-")
        axis.set_title(f"{run['method']}{T}\nFQ {quality}, D {test.statistic:.3f}", pad=3)
        log_axis(axis)
        axis.set(ylim=(0, 1.02), yticks=(0, 0.5, 1))
    # the panels share their axis: one far method must not squeeze the others, so the ends' middle
    # counts
    if shown:
        low, high = (
            np.quantile(np.array(ends), 0.2, axis=0)[0],
            np.quantile(np.array(ends), 0.8, axis=0)[1],
        )
        axes[0, 0].set_xlim(low / 2, high * 2)
        axes[0, 0].xaxis.set_major_locator(
            LogLocator(subs=(1, 3) if high / low < 100 else (1,), numticks=5)
        )
    for axis in axes.flat[max(0, len(shown) - axes.shape[1]) : len(shown)]:
        axis.tick_params(labelbottom=True)  # the lowest panel of its column
    figure.supxlabel("truth ratio of a forget row", fontsize=8)
    figure.supylabel("share of rows below", fontsize=8)
    entries: list[tuple[str, Look]] = [
        ("retrained without the forget rows", {"color": GREY, "ls": "--"})
    ]
    entries += [
        ("after unlearning (a colour a method)", {"color": T3_COLOUR}),
        ("D", {"color": "black", "lw": 2.2}),
    ]
    key(figure, entries, "upper center")
    n = sorted({len(run["truth_ratio"]["forget"]) for run in shown})
    figure.set_label(
        "What Forget Quality looks at: truth ratios after unlearning and of the retrained model,"
        f" cumulated; D is their largest distance. n = {', '.join(map(str, n)) or 0} forget rows a"
        " panel, one seed each."
    )
    return figure


@rc_context(STYLE)
def tradeoff(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Every method in the plane of forgetting and MU-ROUGE: large = mean over seeds, small = each
    seed. Top right wins.

    With the paper's Table 4 as `printed` (`tables.printed`) its seeds and means fill a second row
    of panels. Where next to no method reaches a Forget Quality above CAUGHT, the KS statistic D is
    drawn in its place, 0 at the top.
    """
    ours = tables.on_held_out(tables.at_tuned_temperature(frame))
    splits = splits_of(ours)
    sources = [(splits, "ours", ours)]
    if printed is not None:
        sources.append((splits_of(frame[:0]), "paper", printed))
    figure, axes = panels(
        len(sources), len(splits), (6.8, 0.5 + 2.5 * len(sources)), sharex=True, sharey="row"
    )
    for row, (names, source, data) in zip(axes, sources):
        metric = _forgetting(data)
        for axis, split in zip(row, splits):
            for method in METHODS:
                points = _of(data, split, method).dropna(subset=["mu_rouge", metric])
                if points.empty:
                    continue
                look = {"color": COLOURS[method], "marker": MARKERS[method], "linewidths": 0.4}
                axis.scatter(points["mu_rouge"], points[metric], s=10, alpha=0.4, **look)
                size = 130 if method == "T3" else 45
                axis.scatter(
                    points["mu_rouge"].mean(),
                    points[metric].mean(),
                    s=size,
                    edgecolors="white",
                    **look,
                )
            axis.set_title(f"{names[split]}, {source}")
            axis.set(xlim=_ends("mu_rouge", data), ylim=_ends(metric, data))
        row[0].set_ylabel(METRICS[metric].title)
    for axis in axes[-1]:
        axis.set_xlabel("MU-ROUGE")
    method_key(figure, pd.concat([data["method"] for _, _, data in sources]))
    figure.set_label(
        "Forgetting against keeping: every method (large: mean) and every seed (small). Top right"
        f" is best. {compared_with(ours)} {counted(ours, paper=printed is not None)}"
    )
    return figure


@rc_context(STYLE)
def per_seed(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 4 as a figure: forgetting of every seed; filled ours with the mean as a bar, hollow the
    paper's.

    Where next to no method reaches a Forget Quality above CAUGHT, D is drawn in its place, and the
    paper, which prints no D, is left out.
    """
    ours = tables.on_held_out(tables.at_tuned_temperature(frame))
    metric = _forgetting(ours)
    theirs = ours[:0] if printed is None or metric != "fq" else printed
    methods = [method for method in METHODS if method in {*ours["method"], *theirs["method"]}]
    splits = splits_of(ours)
    figure, axes = panels(
        1, len(splits), (6.8, 0.6 + 0.2 * max(4, len(methods))), sharex=True, sharey=True
    )
    for axis, (split, name) in zip(axes.flat, splits.items()):
        for y, method in enumerate(methods):
            values, papers = (_of(data, split, method)[metric].dropna() for data in (ours, theirs))
            axis.scatter(
                values, np.full(len(values), y - 0.16), s=13, color=COLOURS[method], alpha=0.8, lw=0
            )
            axis.plot([values.mean()] * 2, [y - 0.38, y + 0.02], color=COLOURS[method], lw=1.6)
            axis.scatter(
                papers,
                np.full(len(papers), y + 0.2),
                s=11,
                facecolors="none",
                edgecolors=GREY,
                lw=0.7,
            )
        axis.set(
            title=name,
            xlabel=f"{METRICS[metric].title} of a seed",
            xlim=_ends(metric, ours, theirs),
        )
        axis.set_ylim(len(methods) - 0.5, -0.6)
        axis.set_yticks(range(len(methods)), methods)
        axis.grid(axis="x", visible=False)
    entries: list[tuple[str, Look]] = [
        ("ours", {"marker": "o"}),
        ("our mean", {"marker": "|", "ms": 8, "mew": 1.6}),
    ]
    entries += [(PAPER, {"marker": "o", "mfc": "none"})] if len(theirs) else []
    key(figure, [(label, look | {"ls": "", "color": GREY}) for label, look in entries])
    size = counted(ours, paper=len(theirs) > 0)
    figure.set_label(f"{METRICS[metric].title} seed by seed. {compared_with(ours)} {size}")
    return figure


@rc_context(STYLE)
def ablations(frame: pd.DataFrame, audited: pd.DataFrame | None = None) -> Figure:
    """T3's other choices, one a row: Table 1's measures, recognition and AUC of every seed (small),
    means large.

    `frame` holds runs with a `setting` (`results.read_ablations`); the first row is T3 as tuned,
    dotted through. audited: `audit.models`, whose retrained models are the yardstick of recognition
    and AUC.
    """
    varied = frame[frame["setting"].notna() & (frame["setting"] != "naive")]
    names = set(varied["setting"])
    settings = [name for name in tables.SETTINGS if name in names]
    splits = splits_of(varied)
    beside = audited is not None and len(audited) > 0
    shown = [
        name for name in (*tables.SUMMARY, HIDING[0], HIDING[-1]) if varied[name].notna().any()
    ] or ["fq"]
    figure, axes = panels(
        1, len(shown), (1.9 + 1.15 * len(shown), 0.8 + 0.2 * max(4, len(settings))), sharey=True
    )
    for axis, metric in zip(axes.flat, shown):
        for split, offset in zip(splits, (0.0,) if len(splits) == 1 else (-0.15, 0.15)):
            look = SPLIT_LOOKS[split] | {"lw": 0}
            for y, setting in enumerate(settings):
                values = varied[(varied["split"] == split) & (varied["setting"] == setting)][
                    metric
                ].dropna()
                axis.scatter(values, np.full(len(values), y + offset), s=6, alpha=0.5, **look)
                axis.scatter([values.mean()], [y + offset], s=26, **look)
                if setting == "tuned":
                    axis.axvline(values.mean(), color=look["color"], lw=0.8, ls=":")
            if metric in HIDING and beside:
                axis.axvline(
                    _of(audited, split, "Retrained")[metric].mean(),
                    color=look["color"],
                    lw=0.8,
                    ls="--",
                )
        title = (
            (METRICS | AUDIT)[metric]
            .title.replace(", ", ",\n")
            .replace("Membership ", "Membership\n")
        )
        axis.set(
            xlabel=title,
            xlim=ends(varied[metric], margin=0.06),
            ylim=(max(1, len(settings)) - 0.5, -0.5),
        )
        axis.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 5, 10]))
        axis.set_yticks(range(len(settings)), [tables.SETTINGS[name] for name in settings])
    entries = [(name, SPLIT_LOOKS[split] | {"ls": ""}) for split, name in splits.items()]
    entries += [("as tuned", {"color": GREY, "ls": ":", "lw": 0.8})]
    entries += [("retrained models", {"color": GREY, "ls": "--", "lw": 0.8})] if beside else []
    key(figure, entries)
    goal = (
        "In the last two panels neither end is best, but what retrained models have. "
        if {*HIDING} & {*shown}
        else ""
    )
    figure.set_label(
        "T3's other choices. Large: means over seeds; small: every seed; dotted: T3 as tuned."
        f" {goal}{counted(varied)}"
    )
    return figure


def compared_with(runs: pd.DataFrame) -> str:
    """The retrained models that Forget Quality and D of these runs compare with, as a sentence of a
    caption.
    """
    most = runs["n_references"].max()
    if not most > 0:
        return (
            "Ours compare with the retrained model that settings were chosen on: none is held out."
        )
    return f"Ours compare with retrained models that nothing was tuned on (mean over {most:.0f})."


def _of(runs: pd.DataFrame, split: str, method: str) -> pd.DataFrame:
    """The runs of a method on a split."""
    return runs[(runs["split"] == split) & (runs["method"] == method)]


def _forgetting(runs: pd.DataFrame) -> str:
    """The measure that separates the methods: Forget Quality, or D where at most one mean of it is
    above CAUGHT.
    """
    means = runs[runs["method"].isin(tables.UNLEARNING)].groupby(["split", "method"])["fq"].mean()
    return (
        "ks_statistic"
        if "ks_statistic" in runs and len(means) and (means > CAUGHT).sum() <= 1
        else "fq"
    )


def _ends(metric: str, *sources: pd.DataFrame) -> tuple[float, float]:
    """Ends of an axis that holds a metric of these runs, the best at the top or at the right."""
    return ends(
        pd.concat([runs[metric] for runs in sources]),
        rising=METRICS[metric].larger_is_better is not False,
    )
