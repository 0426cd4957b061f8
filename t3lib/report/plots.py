"""Figures: tidy frame (`results.tidy`) or run files in, matplotlib Figure out; nothing read, nothing written, no state.

Colours are seaborn's colour-blind palette; a method is told by its marker too, so that the figures survive a black and
white printer. Sizes are inches of a printed page (3.3 = one column, 6.8 = the page), letters 8 points.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import FuncFormatter, NullFormatter

from t3lib.names import BASELINES, METHODS, SPLITS
from t3lib.report import tables
from t3lib.report.render import cell

PALETTE = sns.color_palette("colorblind")
SPLIT_NAMES = {"forget05": "5% split", "forget10": "10% split"}
SPLIT_COLOURS = {"forget05": PALETTE[0], "forget10": PALETTE[1]}
SPLIT_MARKERS = {"forget05": "o", "forget10": "s"}
T3_COLOUR, GREY = PALETTE[3], "0.45"
BASELINE_COLOURS = dict(zip(BASELINES, (PALETTE[i] for i in (0, 1, 2, 4, 5, 6, 7, 8, 9, 0))))
COLOURS: dict[str, Any] = {"Original": "0.25", "Retrained": "0.25", **BASELINE_COLOURS, "T3": T3_COLOUR}
MARKERS = dict(zip(METHODS, ("X", "P", "o", "s", "^", "v", "D", "<", ">", "p", "h", "d", "*")))
SUMMARY_NAMES = {"fq": "Forget Quality", "mu_rouge": "MU-ROUGE", "mu": "Model Utility"}
STYLE: Any = {  # Any: the stubs want a literal type of every setting's name
    **{"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7},
    **{"ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6},
    **{"axes.grid": True, "grid.color": "0.9", "grid.linewidth": 0.5, "axes.axisbelow": True, "lines.linewidth": 1.3},
    **{"legend.frameon": False, "figure.dpi": 120, "savefig.facecolor": "white"},
}


@rc_context(STYLE)
def temperature(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 5 as a figure: Forget Quality and MU-ROUGE of T3 against T, ours (mean, every seed) and the paper's.

    `printed` is the paper's Table 5. A dotted line marks MU-ROUGE before unlearning where Original has run.
    """
    main = frame[frame["setting"].isna()]
    runs = main[main["method"] == "T3"]
    splits = [split for split in SPLITS if (runs["split"] == split).any()] or list(SPLITS)
    figure, axes = _figure(1, 2, (6.8, 2.5))
    for axis, metric in zip(axes.flat, ("fq", "mu_rouge")):
        for split in splits:
            look = {"color": SPLIT_COLOURS[split], "marker": SPLIT_MARKERS[split], "markersize": 4}
            if printed is not None:
                theirs = printed[printed["split"] == split]
                axis.plot(theirs["T"], theirs[metric], ls="--", lw=1, mfc="white", **look)
            ours = runs[runs["split"] == split].dropna(subset=[metric])
            if len(ours):
                means = ours.groupby("T")[metric].mean()
                axis.plot(means.index, means, **look)
                axis.scatter(ours["T"], ours[metric], s=6, color=SPLIT_COLOURS[split], alpha=0.5, lw=0)
            before = main[(main["method"] == "Original") & (main["split"] == split)]["mu_rouge"]
            if metric == "mu_rouge" and before.notna().any():
                axis.axhline(before.mean(), color=SPLIT_COLOURS[split], lw=0.8, ls=":")
        low = np.floor(10 * axis.get_ylim()[0]) / 10 if metric == "mu_rouge" else 0.0  # the utility moves little: zoom
        axis.set(xlabel="temperature $T$", ylabel=SUMMARY_NAMES[metric], ylim=(low - 0.03, 1.03))
    looks = [(SPLIT_NAMES[s], {"color": SPLIT_COLOURS[s], "marker": SPLIT_MARKERS[s]}) for s in splits]
    looks += [("ours (mean; dots: seeds)", {"color": GREY})]
    if printed is not None:
        looks += [("paper, Llama 3.1 8B", {"color": GREY, "ls": "--", "marker": "o", "mfc": "white", "lw": 1})]
    looks += [("before unlearning", {"color": GREY, "ls": ":", "lw": 0.8})]
    handles = [Line2D([], [], ms=4, label=label, **look) for label, look in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


@rc_context(STYLE)
def truth_ratio_cdfs(runs: Iterable[Mapping[str, Any]], *, columns: int = 4) -> Figure:
    """The two truth-ratio distributions behind each Forget Quality, one panel a run, with the KS distance D drawn.

    Forget Quality is the p-value of that distance: the black bar is all that it sees. The horizontal axis is
    logarithmic; failed runs have no panel.
    """
    shown = [run for run in runs if run["status"] == "ok" and len(run["truth_ratio"].get("reference", []))]
    rows = max(1, -(-len(shown) // columns))
    figure, axes = _figure(rows, min(columns, max(1, len(shown))), (6.8, 0.4 + 1.45 * rows), sharex=True, sharey=True)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    if not shown:
        figure.text(0.5, 0.5, "no finished runs", ha="center")
    for axis, run in zip(axes.flat, shown):
        ratios = {name: np.sort(np.asarray(run["truth_ratio"][name], dtype=float)) for name in ("forget", "reference")}
        for name, look in (("reference", {"color": GREY, "ls": "--"}), ("forget", {"color": COLOURS[run["method"]]})):
            values = ratios[name]
            axis.step(values, np.arange(1, len(values) + 1) / len(values), where="post", lw=1.1, **look)
        at, low, high = _ks_gap(ratios["forget"], ratios["reference"])
        axis.plot([at, at], [low, high], color="black", lw=2.2)
        T = "" if run["T"] is None else f" at $T={run['T']:g}$"
        axis.set_title(f"{run['method']}{T}\nFQ {_short(run['metrics']['fq'])}, D {high - low:.3f}", loc="left", pad=3)
        axis.set(xscale="log", ylim=(0, 1.02), yticks=(0, 0.5, 1))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis in axes.flat[max(0, len(shown) - axes.shape[1]) : len(shown)]:
        axis.tick_params(labelbottom=True)  # the lowest panel of its column
    figure.supxlabel("truth ratio of a forget row", fontsize=8)
    figure.supylabel("share of rows below", fontsize=8)
    handles = [
        Line2D([], [], color=GREY, ls="--", label="retrained without the forget rows"),
        Line2D([], [], color=T3_COLOUR, label="after unlearning (a colour a method)"),
        Line2D([], [], color="black", lw=2.2, label="D"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


@rc_context(STYLE)
def tradeoff(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Every method in the plane of Forget Quality and MU-ROUGE: large = mean over seeds, small = each seed, ours.

    With the paper's Table 4 as `printed` its seeds and means fill a second row of panels. Top right is best.
    """
    ours = tables.at_tuned_temperature(frame)
    sources = [("ours", ours)] + ([("paper", printed)] if printed is not None else [])
    figure, axes = _figure(len(sources), 2, (6.8, 0.5 + 2.5 * len(sources)), sharex=True, sharey=True)
    for row, (source, data) in zip(axes, sources):
        for axis, split in zip(row, SPLITS):
            part = data[data["split"] == split]
            for method in METHODS:
                points = part[part["method"] == method].dropna(subset=["fq", "mu_rouge"])
                if points.empty:
                    continue
                look = {"color": COLOURS[method], "marker": MARKERS[method], "linewidths": 0.4}
                axis.scatter(points["mu_rouge"], points["fq"], s=10, alpha=0.4, **look)
                size = 130 if method == "T3" else 45
                axis.scatter(points["mu_rouge"].mean(), points["fq"].mean(), s=size, edgecolors="white", **look)
            axis.set_title(f"{SPLIT_NAMES[split]}, {source}", loc="left")
            axis.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
        row[0].set_ylabel("Forget Quality")
    for axis in axes[-1]:
        axis.set_xlabel("MU-ROUGE")
    handles = [
        Line2D([], [], ls="", marker=MARKERS[name], color=COLOURS[name], ms=9 if name == "T3" else 5, label=name)
        for name in METHODS
    ]
    figure.legend(handles=handles, loc="outside right center", labelspacing=0.8)
    return figure


@rc_context(STYLE)
def per_seed(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 4 as a figure: Forget Quality of every seed; filled ours with the mean as a bar, hollow the paper's."""
    ours = tables.at_tuned_temperature(frame)
    figure, axes = _figure(1, 2, (6.8, 3.1), sharex=True, sharey=True)
    for axis, split in zip(axes.flat, SPLITS):
        for y, method in enumerate(METHODS):
            mine = ours[(ours["split"] == split) & (ours["method"] == method)]["fq"].dropna()
            axis.scatter(mine, np.full(len(mine), y - 0.16), s=13, color=COLOURS[method], alpha=0.8, lw=0)
            if len(mine):
                axis.plot([mine.mean()] * 2, [y - 0.38, y + 0.02], color=COLOURS[method], lw=1.6)
            if printed is not None:
                theirs = printed[(printed["split"] == split) & (printed["method"] == method)]["fq"].dropna()
                axis.scatter(theirs, np.full(len(theirs), y + 0.2), s=11, facecolors="none", edgecolors=GREY, lw=0.7)
        axis.set_title(SPLIT_NAMES[split], loc="left")
        axis.set(xlabel="Forget Quality of a seed", xlim=(-0.03, 1.03), ylim=(len(METHODS) - 0.5, -0.6))
        axis.set_yticks(range(len(METHODS)), METHODS)
        axis.grid(axis="x", visible=False)
    handles = [
        Line2D([], [], ls="", marker="o", ms=4, color=GREY, label="ours"),
        Line2D([], [], ls="", marker="|", ms=8, mew=1.6, color=GREY, label="our mean"),
    ]
    if printed is not None:
        handles += [Line2D([], [], ls="", marker="o", ms=4, mfc="none", color=GREY, label="paper, Llama 3.1 8B")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


@rc_context(STYLE)
def runtime(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Table 3 as a figure: seconds to unlearn (features and training), ours left, the paper's GPU right; log scale."""
    sources = [("ours", tables.runtime(frame))] + ([("paper, Llama 3.1 8B", printed)] if printed is not None else [])
    figure, axes = _figure(1, len(sources), (3.4 * len(sources), 3.0), sharey=True)
    names = list(dict.fromkeys(sources[0][1]["method"]))
    for axis, (source, table) in zip(axes.flat, sources):
        for offset, split in ((-0.19, "forget05"), (0.19, "forget10")):
            rows = table[table["split"] == split].set_index("method").reindex(names)
            seconds = rows[["features_s", "train_s"]].astype(float).sum(axis=1, min_count=1)
            bars = [y + offset for y in range(len(names))]
            axis.barh(bars, seconds, height=0.36, color=SPLIT_COLOURS[split], label=SPLIT_NAMES[split])
            for y, value in zip(bars, seconds):
                if np.isfinite(value):
                    axis.text(value, y, " " + cell(value, "train_s"), va="center", fontsize=5.5)
        axis.set_title(source, loc="left")
        axis.set(xscale="log", xlabel="seconds", ylim=(len(names) - 0.4, -0.6))
        known = table[["features_s", "train_s"]].astype(float).sum(axis=1, min_count=1).dropna()
        if len(known):
            axis.set_xlim(known.min() / 3, known.max() * 4)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="y", visible=False)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@rc_context(STYLE)
def architecture() -> Figure:
    """Figure 1: frozen base (grey), trained head (red) on pooled hidden states; one entry trains, the vector tilts."""
    figure = Figure(figsize=(6.8, 2.4), layout="constrained")
    axis = figure.add_subplot()
    axis.set(xlim=(-0.5, 100.5), ylim=(-4.5, 34))
    axis.set_axis_off()
    frozen, trained, plain = ("0.88", "0.45"), ("#f6d5cc", T3_COLOUR), ("white", "0.45")
    _box(axis, 0, 12, 13, 10, "context $x$\ntokens $1…L$", plain)
    _box(axis, 17, 9, 13, 16, "base model\n$p_{\\theta^*}$\nfrozen", frozen)
    _box(axis, 40, 22, 12, 10, "LM head\nfrozen", frozen)
    _box(axis, 56, 22, 15, 10, "$\\log\\,p(\\cdot\\mid x)\\;/\\;T$\ntemper", plain)
    _box(axis, 40, 2, 12, 10, "mean over\ntokens, $d$", plain)
    _box(axis, 56, 2, 6.5, 10, "$A$\n$h{\\times}d$", trained)
    _box(axis, 64.5, 2, 6.5, 10, "$B$\n$V{\\times}h$", trained)
    _box(axis, 75, 2, 9, 10, "$\\sigma$\n$g_\\phi(x)$", plain)
    _box(axis, 89, 10, 11, 14, "softmax\n$\\hat p(\\cdot\\mid x)$", plain)
    for left, right, y in ((13, 17, 17), (52, 56, 27), (52, 56, 7), (62.5, 64.5, 7), (71, 75, 7)):
        _arrow(axis, (left, y), (right, y))
    for start, end in (((30, 20), (40, 27)), ((30, 14), (40, 7)), ((71, 27), (89, 19.5)), ((84, 8.5), (89, 14.5))):
        _arrow(axis, start, end)
    _arrow(axis, (79.5, 2), (79.5, -1.2))
    for x, height, text, colour in (
        (33.5, 26, "$H_L$", "black"),
        (33, 6.5, "$H_1…H_L$", "black"),
        (63.5, 14, "linear head: $h(d+V)$ weights", T3_COLOUR),
        (79.5, -3.4, "training: cross-entropy of the one entry $[g_\\phi(x)]_y$", T3_COLOUR),
        (88, 29.5, "inference: add\n$\\log\\,g_\\phi(x)$, all $V$ entries", GREY),
    ):
        axis.text(x, height, text, fontsize=7, color=colour, ha="center", va="center")
    return figure


def _figure(
    rows: int, columns: int, size: tuple[float, float], *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, np.ndarray]:
    """A Figure without pyplot, which would keep it alive, and its axes (rows, columns)."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    return figure, axes


def _ks_gap(values: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """(x, low, high) of the largest distance between two empirical CDFs, sorted samples given."""
    both = np.concatenate([values, reference])
    heights = [np.searchsorted(sample, both, side="right") / len(sample) for sample in (values, reference)]
    i = int(np.argmax(np.abs(heights[0] - heights[1])))
    low, high = sorted((float(heights[0][i]), float(heights[1][i])))
    return float(both[i]), low, high


def _short(p: float) -> str:
    return f"{p:.3f}" if p >= 5e-4 else f"{p:.0e}".replace("e-0", "e-")


def _box(axis: Axes, x: float, y: float, w: float, h: float, text: str, look: tuple[Any, Any]) -> None:
    axis.add_patch(FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0,rounding_size=1.2", fc=look[0], ec=look[1], lw=1))
    axis.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=8, linespacing=1.4)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, lw=0.9, color="0.25", shrinkA=0, shrinkB=0)
    axis.add_patch(arrow)
