"""Figures of the theory (Appendix E and the walk through the theorems): table in, matplotlib Figure
out.

Colours mean what they mean in the paper: purple, blue, yellow for v_f = 1e-6, 1e-3, 1; brighter for
larger n, the largest yellow. Markers repeat it for black and white print. Solid: exact; dashed: the
paper's partition function.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from t3lib import theory
from t3lib.lab.report.look import PLAIN, STYLE, key, panels
from t3lib.theory.experiments import Fits
from t3lib.theory.logistic import probability
from t3lib.theory.quadrature import Array
from t3lib.theory.table import LOWER, N

PURPLE, BLUE, YELLOW, RED = "#6a3d9a", "#2f7fc1", "#dda200", "#d1495b"
MARKERS = "osD^vP"
AXES = {"retain": r"Retain Error $\mathcal{E}_r$", "forget": r"Forget Error $\mathcal{E}_f$"}


@rc_context(STYLE)
def errors(table: pd.DataFrame, side: str, vary: str, trials: int) -> Figure:
    """Figure 2 (vary="v_f") or 3 (vary="n"), half `side`: mean error ± standard error against T.

    Over `trials` data sets, with the exact partition function (bands and markers) and with the
    paper's (dashed).
    """
    figure, [[axis]] = panels(1, 1, (3.4, 3.0))
    looks = _looks(sorted(table[vary].unique()))
    for value, look in looks.items():
        exact, papers = (
            table[(table[vary] == value) & (table["method"] == method)].sort_values("T")
            for method in theory.METHODS
        )
        _curve(axis, exact, side, look)
        axis.plot(papers["T"], papers[f"{side}_error"], color=look["color"], ls="--", lw=1)
    axis.set(xlabel="base model temperature $T$", ylabel=AXES[side])
    if side == "forget" and table["forget_error"].max() > 20 * table["forget_error"].median():
        axis.set_yscale("log")
    entries = [*_entries(vary, looks), ("paper's partition function", {"color": "0.3", "ls": "--"})]
    key(figure, entries, "upper center", ncols=2 if len(entries) <= 4 else 3)
    fixed = "n" if vary == "v_f" else "v_f"
    what = ", ".join(f"{fixed} = {value:g}" for value in sorted(table[fixed].unique()))
    figure.set_label(
        f"Figure {2 if vary == 'v_f' else 3}, {side.title()} Error against T at {what}. Lines:"
        f" means over {trials} data sets, a classifier each; bands: ± one standard error; dashed:"
        " the paper's partition function."
    )
    return figure


@rc_context(STYLE)
def errors_by_n(table: pd.DataFrame, trials: int) -> Figure:
    """Figure 2 for every n that ran: Forget Error above, Retain Error below, one column an n; mean
    ± standard error.
    """
    sizes = sorted(table["n"].unique())
    figure, axes = panels(
        2, len(sizes), (max(3.4, 1.5 * len(sizes)), 3.2), sharex=True, sharey="row"
    )
    looks, exact = _looks(sorted(table["v_f"].unique())), table[table["method"] == "exact"]
    for column, n in zip(axes.T, sizes):
        for axis, side in zip(column, ("forget", "retain")):
            for value, look in looks.items():
                part = exact[(exact["n"] == n) & (exact["v_f"] == value)].sort_values("T")
                _curve(axis, part, side, look)
        column[0].set(title=f"$n$ = {n}", yscale="log")
        column[0].yaxis.set_major_locator(LogLocator(numticks=6))
        column[1].set_xlabel("temperature $T$")
    for axis, side in zip(axes[:, 0], ("forget", "retain")):
        axis.set_ylabel(AXES[side])
    key(figure, _entries("v_f", looks), "upper center")
    figure.set_label(
        f"Figure 2 for every n that ran: means over {trials} data sets each, bands ± one standard"
        " error; with the exact partition function."
    )
    return figure


@rc_context(STYLE)
def classifier(fits: Fits, trial: int) -> Figure:
    """Figure 4: the samples of one trial (counts, left axis) and the classifier it gives
    (probability, right axis).
    """
    figure, [[axis]] = panels(1, 1, (4.4, 2.6))
    z, s = fits.z[trial], fits.s[trial]
    axis.hist(
        [z[s == 0], z[s == 1]], bins=[*np.linspace(-2, 4, 49)], stacked=True, color=[YELLOW, BLUE]
    )
    axis.set(xlabel="$z$", ylabel="samples", xlim=(-2, 4))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # the lines keep clear of the bars
    right = axis.twinx()
    right.grid(False)
    right.spines["right"].set_visible(True)
    x = _fine(fits, -2, 4)
    lines = {
        r"$\hat f(z)$": {"color": "black", "lw": 1.1},
        "$f^*(z)$": {"color": "0.3", "lw": 1.1, "ls": "--"},
    }
    for look, phi in zip(lines.values(), (fits.phi[trial], fits.mixture.phi_star)):
        right.plot(x, probability(phi, x), **look)
    right.set(ylabel="probability of retain", ylim=(0, 1.05))
    bars = {"forget": {"color": YELLOW, "lw": 5}, "retain": {"color": BLUE, "lw": 5}}
    key(figure, (bars | lines).items(), "upper center")
    figure.set_label(
        f"Figure 4: one data set of n = {len(z)} samples, of the forget set {int((s == 0).sum())};"
        " the classifier fitted to it (solid) and the Bayes classifier (dashed)."
    )
    return figure


@rc_context(STYLE)
def densities(fits: Fits, trial: int, temperatures: Sequence[float] = (1.0, 1.5, 2.0)) -> Figure:
    """Figure 5: p̂_T of that classifier (black) over p_r (blue) at each T, and with the paper's
    partition (dashed).
    """
    figure, [axes] = panels(1, len(temperatures), (6.8, 2.3), sharey=True)
    x, mixture, phi = _fine(fits, -2, 4), fits.mixture, fits.phi[trial]
    looks: dict[str, dict[str, Any]] = {
        "$p$": {"color": YELLOW, "lw": 0.9},
        r"$\hat p_r^{(T)}$, exact": {"color": "black", "lw": 1.1},
        "with the paper's partition function": {"color": RED, "lw": 0.8, "ls": (0, (2, 3))},
    }
    for axis, T in zip(axes, temperatures, strict=True):
        axis.fill_between(x, np.exp(mixture.logp_r(x)), color=BLUE, alpha=0.3, lw=0)
        curves = (
            np.exp(mixture.logp(x)),
            *(mixture.density(x, phi, T, method) for method in theory.METHODS),
        )
        for curve, look in zip(curves, looks.values(), strict=True):
            axis.plot(x, curve, **look)
        retain, forget = mixture.errors(phi, T)
        axis.set_title(
            f"$T$ = {T:g}:  $\\mathcal{{E}}_r$ = {retain:.3f},  $\\mathcal{{E}}_f$ = {forget:.3f}",
            fontsize=7,
        )
        axis.set(xlabel="$z$", xlim=(-2, 4))
    axes[0].set(ylabel="density", ylim=(0, None))
    key(figure, [("$p_r$", {"color": BLUE, "alpha": 0.3, "lw": 5}), *looks.items()], "upper center")
    figure.set_label(
        f"Figure 5: the tilted, tempered density of that classifier (n = {fits.z.shape[1]}) over"
        " p_r."
    )
    return figure


@rc_context(STYLE)
def bounds(table: pd.DataFrame) -> Figure:
    """Error against bound for every row of `bounds`, one panel a bound; on the diagonal the bound
    is tight.
    """
    names = list(dict.fromkeys(table["bound"]))
    columns = (len(names) + 1) // 2
    figure, axes = panels(2, columns, (6.8, 3.6))
    looks = _looks(sorted(table["v_f"].unique()))
    for axis, name in zip(axes.flat, names):
        part = table[(table["bound"] == name) & (table["error"] > 0) & np.isfinite(table["value"])]
        for value, look in looks.items():
            here = part[part["v_f"] == value]
            axis.scatter(here["value"], here["error"], s=7, lw=0, alpha=0.7, **look)
        side = "lower" if name in LOWER else "upper"
        axis.set(xscale="log", yscale="log", title=f"{name.split(',')[0]} ({side})")
        (left, bottom), (right, top) = (
            part[["value", "error"]].min(),
            part[["value", "error"]].max(),
        )
        # Each axis fits its points and reaches the diagonal, so that points far below it stay
        # apart.
        axis.set(
            xlim=(min(left, top) / 2, max(right, bottom) * 2),
            ylim=(min(bottom, right) / 2, max(top, left) * 2),
        )
        axis.axline((1, 1), (2, 2), color="0.4", lw=0.8)
        for ticks, (low, high) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
            narrow = high / low < 100
            ticks.set_major_locator(LogLocator(subs=(1, 3) if narrow else (1,), numticks=4))
            if narrow:
                ticks.set_major_formatter(PLAIN)
            ticks.set_minor_locator(NullLocator())
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("error")
    figure.supxlabel("bound", fontsize=8)
    key(
        figure,
        [(label, look | {"ls": ""}) for label, look in _entries("v_f", looks)],
        "upper center",
    )
    figure.set_label(
        f"Every theorem's bound against the error it bounds, {len(table)} cases; classifiers fitted"
        f" to n = {N} samples. On the diagonal a bound is tight."
    )
    return figure


@rc_context(STYLE)
def slopes(
    delta: float,
    gamma: float,
    fitted: pd.DataFrame,
    trials: int,
    temperatures: Sequence[float] = (1.0, 1.5, 2.0, 3.0),
) -> Figure:
    """Forget Error against ‖p_f‖_∞: the witness of Theorem 3.5, tempered and sharpened, beside
    fitted classifiers.

    `fitted` is Experiment 1 at one n over several v_f (columns of `synthetic`, method "exact"),
    means over `trials`.
    """
    figure, [axes] = panels(1, 2, (6.8, 2.8))
    peaks = np.logspace(0, 8, 200)
    shades = colormaps["viridis"](np.linspace(0, 0.8, len(temperatures)))
    upper = theory.bound_forget_untempered(delta, gamma, peaks)
    axes[0].plot(peaks, upper, color="0.6", lw=0.9, ls=":", label="bound, Theorem 3.4")
    for T, shade in zip(temperatures, shades, strict=True):
        error = theory.witness(delta, gamma, peaks, T=T).forget_error
        axes[0].plot(
            peaks,
            error,
            color=shade,
            label=f"$T$ = {T:g}: slope 1/{T:g}" if T > 1 else "$T$ = 1: slope 1",
        )
    for w, dash in ((1.5, "--"), (2.0, "-.")):
        error = theory.witness(delta, gamma, peaks, sharpen=w).forget_error
        axes[0].plot(peaks, error, color=YELLOW, ls=dash, label=f"sharpened $f^{{{w:g}}}$: slope 1")
    axes[0].set(
        title=f"the witness, $\\delta$ = {delta:g}, $\\gamma$ = {gamma:g}", ylabel=AXES["forget"]
    )
    for T, shade, marker in zip(temperatures, shades, MARKERS):
        part = fitted[np.isclose(fitted["T"], T)].sort_values("v_f")
        x, mean, se = (2 * np.pi * part["v_f"]) ** -0.5, part["forget_error"], part["forget_se"]
        axes[1].errorbar(
            x, mean, se, color=shade, marker=marker, ms=3.5, lw=1.2, label=f"$T$ = {T:g}"
        )
    n = int(fitted["n"].iloc[0])
    axes[1].set_title(f"classifiers fitted to $n$ = {n} samples, mean ± s.e.")
    axes[1].legend()
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel=r"peak forget density $\|p_f\|_\infty$")
    axes[0].legend(handlelength=1.6, borderpad=0.1, labelspacing=0.3, fontsize=6)
    axes[0].set_ylim(top=3e8)  # room for the legend
    figure.set_label(
        "Forget Error against the peak of p_f: tempering turns the slope, sharpening only lowers"
        f" the line. Left: the witness of Theorem 3.5. Right: means over {trials} data sets of n ="
        f" {n} samples, each with its classifier."
    )
    return figure


def _curve(axis: Axes, part: pd.DataFrame, side: str, look: Mapping[str, Any]) -> None:
    """Mean error against T with a band of one standard error, a marker now and then."""
    mean, se = part[f"{side}_error"], part[f"{side}_se"]
    axis.plot(part["T"], mean, ms=3.5, markevery=max(1, len(part) // 7), **look)
    axis.fill_between(part["T"], mean - se, mean + se, color=look["color"], alpha=0.2, lw=0)


def _looks(values: Sequence[float]) -> dict[float, dict[str, Any]]:
    """Dark to bright, the last one yellow: purple, blue, yellow for three values, as in the
    paper.
    """
    dark: list[Any] = [PURPLE, BLUE]
    if len(values) > 3:
        dark = [colormaps["viridis"](x) for x in np.linspace(0.0, 0.7, len(values) - 1)]
    return {v: {"color": c, "marker": m} for v, c, m in zip(values, [*dark, YELLOW], MARKERS)}


def _entries(vary: str, looks: Mapping[float, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The key's line of each value: 1e-06 as 10^-6 in mathtext, other numbers as they are."""
    entries = []
    for value, look in looks.items():
        power = np.log10(value)
        text = f"10^{{{power:.0f}}}" if value < 1 and power == round(power) else f"{value:g}"
        entries.append((f"${vary}$ = ${text}$", look))
    return entries


def _fine(fits: Fits, low: float, high: float) -> Array:
    """A grid that resolves the spike as well as the page."""
    mixture = fits.mixture
    spike = mixture.mu_f + np.sqrt(mixture.v_f) * np.linspace(-8, 8, 401)
    return np.unique(
        np.concatenate([np.linspace(low, high, 1201), spike[(spike > low) & (spike < high)]])
    )
