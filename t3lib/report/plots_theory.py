"""Figures of the theory (Appendix E and the walk through the theorems): table in, matplotlib Figure out.

Colours mean what they mean in the paper: purple, blue, yellow for v_f = 1e-6, 1e-3, 1; brighter for larger n, the
largest yellow. Markers repeat it for black and white print. Solid: exact; dashed: the paper's partition function.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from t3lib import theory
from t3lib.report.plots import STYLE
from t3lib.theory.experiments import Cell
from t3lib.theory.logistic import probability
from t3lib.theory.quadrature import Array
from t3lib.theory.table import LOWER

PURPLE, BLUE, YELLOW = "#6a3d9a", "#2f7fc1", "#dda200"
MARKERS = "osD^vP"
DASHES = {"exact": "-", "negligible_overlap": "--"}
NAMES = {"exact": "exact", "negligible_overlap": "paper's partition function"}
AXES = {"retain": r"Retain Error $\mathcal{E}_r$", "forget": r"Forget Error $\mathcal{E}_f$"}


@rc_context(STYLE)
def errors(table: pd.DataFrame, side: str, vary: str, methods: Sequence[str] = theory.METHODS) -> Figure:
    """Figure 2 (vary="v_f") or 3 (vary="n"), half `side`: mean error ± standard error against T, both ways."""
    figure, axis = _figure((3.4, 3.0))
    values = sorted(table[vary].unique())
    colours = _colours(vary, values)
    for value, marker in zip(values, MARKERS, strict=False):
        for method in methods:
            part = table[(table[vary] == value) & (table["method"] == method)].sort_values("T")
            mean, se = part[f"{side}_error"], part[f"{side}_se"]
            look: dict[str, Any] = {
                "color": colours[value],
                "ls": DASHES[method],
                "lw": 1.3 if method == "exact" else 1.0,
            }
            if method == "exact":
                every = max(1, len(part) // 9)
                look |= {"marker": marker, "ms": 3.5, "markevery": every}
                axis.fill_between(part["T"], mean - se, mean + se, color=colours[value], alpha=0.2, lw=0)
            axis.plot(part["T"], mean, **look)
    axis.set(xlabel="base model temperature $T$", ylabel=AXES[side])
    if side == "forget" and table["forget_error"].max() > 20 * table["forget_error"].median():
        axis.set_yscale("log")
    name = {"v_f": "$v_f$", "n": "$n$"}[vary]
    handles = [
        Line2D([], [], color=colours[v], marker=m, ms=3.5, label=f"{name} = {_short(v)}")
        for v, m in zip(values, MARKERS, strict=False)
    ]
    ways = [Line2D([], [], color="0.3", ls=DASHES[m], label=NAMES[m]) for m in methods]
    if len(handles) <= 3:  # a legend fills its columns first: the curves in one row, the two ways below
        ways += [Line2D([], [], ls="", label=" ")] * (len(handles) - len(ways))
        handles = [handle for pair in zip(handles, ways, strict=True) for handle in pair]
    else:
        handles += ways
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=2.2, columnspacing=1.2)
    return figure


@rc_context(STYLE)
def errors_by_n(table: pd.DataFrame, method: str = "exact") -> Figure:
    """Figure 2 for every n that ran: Forget Error above, Retain Error below, one column an n; mean ± standard error."""
    sizes = sorted(table["n"].unique())
    figure = Figure(figsize=(max(3.4, 1.5 * len(sizes)), 3.2), layout="constrained")
    axes = figure.subplots(2, len(sizes), squeeze=False, sharex=True, sharey="row")
    colours = _colours("v_f", sorted(table["v_f"].unique()))
    for column, n in enumerate(sizes):
        for row, side in enumerate(("forget", "retain")):
            for (value, colour), marker in zip(colours.items(), MARKERS, strict=False):
                part = table[(table["n"] == n) & (table["v_f"] == value) & (table["method"] == method)].sort_values("T")
                mean, se = part[f"{side}_error"], part[f"{side}_se"]
                every = max(1, len(part) // 5)
                axes[row, column].plot(part["T"], mean, color=colour, marker=marker, ms=3, markevery=every)
                axes[row, column].fill_between(part["T"], mean - se, mean + se, color=colour, alpha=0.2, lw=0)
        axes[0, column].set(title=f"$n$ = {n}", yscale="log")
        axes[1, column].set_xlabel("temperature $T$")
    axes[0, 0].set_ylabel(AXES["forget"])
    axes[1, 0].set_ylabel(AXES["retain"])
    labels = [f"$v_f$ = {_short(v)}" for v in colours]
    figure.legend(axes[0, 0].lines, labels, loc="outside upper center", ncols=len(labels))
    return figure


@rc_context(STYLE)
def classifier(cell: Cell, trial: int) -> Figure:
    """Figure 4: the samples of one trial (counts, left axis) and the classifier it gives (probability, right axis)."""
    figure, axis = _figure((4.4, 2.6))
    z, s = cell.z[trial], cell.s[trial]
    bins = np.linspace(-2, 4, 49)
    axis.hist([z[s == 0], z[s == 1]], bins=list(bins), stacked=True, color=[YELLOW, BLUE], label=["forget", "retain"])
    axis.set(xlabel="$z$", ylabel="samples", xlim=(-2, 4))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    right = axis.twinx()
    right.grid(False)
    right.spines["right"].set_visible(True)
    x = _fine(cell, -2, 4)
    right.plot(x, probability(cell.phi[trial], x), color="black", lw=1.1, label=r"$\hat f(z)$")
    right.plot(x, probability(cell.mixture.phi_star, x), color="0.55", lw=0.9, ls=":", label="$f^*(z)$")
    right.set(ylabel="probability of retain", ylim=(0, 1.05))
    handles = [*axis.get_legend_handles_labels()[0], *right.lines]
    figure.legend(handles, ["forget", "retain", r"$\hat f(z)$", "$f^*(z)$"], loc="outside upper center", ncols=4)
    return figure


@rc_context(STYLE)
def densities(cell: Cell, trial: int, temperatures: Sequence[float] = (1.0, 1.5, 2.0)) -> Figure:
    """Figure 5: p̂_T of that classifier (black) over p_r (blue) at each T, and with the paper's partition (dashed)."""
    figure = Figure(figsize=(6.8, 2.3), layout="constrained")
    axes = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    x, mixture, phi = _fine(cell, -2, 4), cell.mixture, cell.phi[trial]
    for axis, T in zip(axes, temperatures, strict=True):
        axis.fill_between(x, np.exp(mixture.logp_r(x)), color=BLUE, alpha=0.3, lw=0, label="$p_r$")
        axis.plot(x, np.exp(mixture.logp(x)), color=YELLOW, lw=0.9, label="$p$")
        axis.plot(x, mixture.density(x, phi, T), color="black", lw=1.1, label=r"$\hat p_r^{(T)}$, exact")
        papers = mixture.density(x, phi, T, "negligible_overlap")
        axis.plot(x, papers, color="#d1495b", lw=0.8, ls=(0, (2, 3)), label="with the paper's partition function")
        retain, forget = mixture.errors(phi, T)
        axis.set(title=f"$T$ = {T:g}:  $\\mathcal{{E}}_r$ = {retain:.3f},  $\\mathcal{{E}}_f$ = {forget:.3f}")
        axis.set(xlabel="$z$", xlim=(-2, 4), ylim=(0, 1.1))
    axes[0].set_ylabel("density")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


@rc_context(STYLE)
def bounds(table: pd.DataFrame) -> Figure:
    """Error against bound for every row of `bounds`, one panel a bound; on the diagonal the bound is tight."""
    names = list(dict.fromkeys(table["bound"]))
    columns = (len(names) + 1) // 2
    figure = Figure(figsize=(6.8, 3.6), layout="constrained")
    axes = figure.subplots(2, columns, squeeze=False).ravel()
    colours = _colours("v_f", sorted(table["v_f"].unique()))
    for axis, name in zip(axes, names, strict=False):
        part = table[(table["bound"] == name) & (table["error"] > 0) & np.isfinite(table["value"])]
        for (value, colour), marker in zip(colours.items(), MARKERS, strict=False):
            here = part[part["v_f"] == value]
            axis.scatter(here["value"], here["error"], s=7, color=colour, marker=marker, lw=0, alpha=0.7)
        ends = [part[["value", "error"]].min().min() / 2, part[["value", "error"]].max().max() * 2]
        axis.plot(ends, ends, color="0.4", lw=0.8)
        side = "lower" if name in LOWER else "upper"
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=f"{name.split(',')[0]} ({side})")
        for ticks in (axis.xaxis, axis.yaxis):
            narrow = ends[1] / ends[0] < 100
            ticks.set_major_locator(LogLocator(subs=(1, 3) if narrow else (1,), numticks=4))
            ticks.set_minor_locator(NullLocator())
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    for axis in (axes[0], axes[columns]):
        axis.set_ylabel("error")
    figure.supxlabel("bound", fontsize=8)
    handles = [
        Line2D([], [], color=c, marker=m, ls="", ms=4, label=f"$v_f$ = {_short(v)}")
        for (v, c), m in zip(colours.items(), MARKERS, strict=False)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


@rc_context(STYLE)
def slopes(
    delta: float, gamma: float, fitted: pd.DataFrame | None = None, temperatures: Sequence[float] = (1.0, 1.5, 2.0, 3.0)
) -> Figure:
    """Forget Error against ‖p_f‖_∞: the witness of Theorem 3.5, tempered and sharpened, beside fitted classifiers.

    `fitted` is Experiment 1 at one n over several v_f (columns of `synthetic`, method "exact").
    """
    figure = Figure(figsize=(6.8, 2.8), layout="constrained")
    axes = figure.subplots(1, 1 if fitted is None else 2, squeeze=False)[0]
    peaks = np.logspace(0, 8, 200)
    shades = colormaps["viridis"](np.linspace(0, 0.8, len(temperatures)))
    upper = theory.bound_forget_untempered(delta, gamma, peaks)
    axes[0].plot(peaks, upper, color="0.6", lw=0.9, ls=":", label="bound, Theorem 3.4")
    for T, shade in zip(temperatures, shades, strict=True):
        error = theory.witness(delta, gamma, peaks, T=T).forget_error
        axes[0].plot(peaks, error, color=shade, label=f"$T$ = {T:g}: slope 1/{T:g}" if T > 1 else "$T$ = 1: slope 1")
    for w, dash in ((1.5, "--"), (2.0, "-.")):
        error = theory.witness(delta, gamma, peaks, sharpen=w).forget_error
        axes[0].plot(peaks, error, color=YELLOW, ls=dash, label=f"sharpened $f^{{{w:g}}}$: slope 1")
    axes[0].set(title=f"the witness, $\\delta$ = {delta:g}, $\\gamma$ = {gamma:g}", ylabel=AXES["forget"])
    if fitted is not None:
        for T, shade, marker in zip(temperatures, shades, MARKERS, strict=False):
            part = fitted[np.isclose(fitted["T"], T)].sort_values("v_f")
            x, mean, se = (2 * np.pi * part["v_f"]) ** -0.5, part["forget_error"], part["forget_se"]
            axes[1].errorbar(x, mean, se, color=shade, marker=marker, ms=3.5, lw=1.2, label=f"$T$ = {T:g}")
        axes[1].set(title=f"classifiers fitted to $n$ = {int(fitted['n'].iloc[0])} samples, mean ± s.e.")
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel=r"peak forget density $\|p_f\|_\infty$")
    axes[0].legend(handlelength=1.6, borderpad=0.1, labelspacing=0.3, fontsize=6)
    if fitted is not None:
        axes[1].legend()
    axes[0].set_ylim(top=3e8)  # room for the legend
    return figure


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _colours(vary: str, values: Sequence[float]) -> Mapping[float, str]:
    """Dark to bright, the last one yellow: purple, blue, yellow for three values, as in the paper."""
    if len(values) <= 3:
        return dict(zip(values, (PURPLE, BLUE, YELLOW), strict=False))
    dark = [colormaps["viridis"](x) for x in np.linspace(0.0, 0.7, len(values) - 1)]
    return dict(zip(values, [*dark, YELLOW], strict=True))


def _fine(cell: Cell, low: float, high: float) -> Array:
    """A grid that resolves the spike as well as the page."""
    mixture = cell.mixture
    spike = mixture.mu_f + np.sqrt(mixture.v_f) * np.linspace(-8, 8, 401)
    return np.unique(np.concatenate([np.linspace(low, high, 1201), spike[(spike > low) & (spike < high)]]))


def _short(value: float) -> str:
    """1e-06 as 10^-6 in mathtext, small integers as they are."""
    exponent = np.log10(value)
    if value < 1 and exponent == round(exponent):
        return f"$10^{{{round(exponent)}}}$"
    return f"{value:g}"
