"""Draw the figures of the theory (Appendix E and the theorems) from tables.

Colours are the paper's: purple, blue and yellow for v_f = 1e-6, 1e-3 and 1, and from purple to
yellow as n grows. Markers repeat this for black and white print. Solid lines are exact, and dashed
lines use the paper's partition function.
"""

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from t3lab.report.look import PLAIN, WHOLE, Look, few_ticks, panels, styled, with_error, with_key
from t3lab.theory.experiments import Fits
from t3lab.theory.table import LOWER, N
from t3lib import theory
from t3lib.theory.logistic import probability
from t3lib.theory.quadrature import Array

PURPLE, BLUE, YELLOW, RED = "#6a3d9a", "#2f7fc1", "#dda200", "#d1495b"
MARKERS = "osD^vP"
AXES = {"forget": r"Forget Error $\mathcal{E}_f$", "retain": r"Retain Error $\mathcal{E}_r$"}
PAPERS = "the paper's partition function"


@styled()
def errors(table: pd.DataFrame, vary: str, trials: int) -> Figure:
    """Draw Figure 2 (vary="v_f") or Figure 3 (vary="n"): Forget Error above and Retain Error below,
    against T.

    table: `synthetic`. There is one column of panels for each value of the other of the two
    parameters. Lines are means over `trials` data sets, with a band of one standard error. Dashed
    lines use the paper's partition function.
    """
    fixed = "n" if vary == "v_f" else "v_f"
    named, by = _named(table, vary)
    values, exact = sorted(named[fixed].unique()), named["method"] == "exact"
    look = {"dashes": False, "markevery": max(1, table["T"].nunique() // 7), "mew": 0, "ms": 4}
    plain = {"style": None, "markers": None, "ls": "--", "lw": 1, "legend": False}
    figure, axes = panels(
        2,
        len(values),
        (max(3.4, 1.5 * len(values)), 3.2 if len(values) > 1 else 4.4),
        sharex=True,
        sharey="row",
    )

    for row, (side, name) in zip(axes, AXES.items()):
        error = f"{side}_error"
        spread = with_error(named[exact], error, f"{side}_se")
        for axis, value in zip(row, values):
            draw = partial(sns.lineplot, x="T", y=error, ax=axis)
            draw(spread[spread[fixed] == value], errorbar=WHOLE, **by, **look)
            draw(named[~exact & (named[fixed] == value)], errorbar=None, **by | plain)
            axis.set(xlabel="temperature $T$", ylabel=name)
            axis.set_title(f"${fixed}$ = {value:g}" if side == "forget" else "")
            axis.label_outer()

    axes[0, 0].set_yscale("log" if vary == "v_f" else "linear")

    return with_key(
        figure,
        f"Figure {2 if vary == 'v_f' else 3}: errors against T. Lines: means over {trials} data"
        " sets, with a classifier for each; bands: ± one standard error; dashed: the same with"
        f" {PAPERS}.",
        [(PAPERS, {"color": "0.3", "ls": "--", "lw": 1})],
        "upper center",
        ncols=2 if len(by["hue_order"]) <= 3 else 3,
    )


@styled()
def classifier(fits: Fits, trial: int) -> Figure:
    """Draw Figure 4: the samples of one trial (counts, left axis) and the classifier fitted to them
    (probability, right axis).

    trial: index of the data set in `fits`.
    """
    figure, [[axis]] = panels(1, 1, (4.4, 2.6))
    z, s, x = fits.z[trial], fits.s[trial], _fine(fits, -2, 4)
    sns.histplot(
        x=z,
        hue=s,
        palette={0: YELLOW, 1: BLUE},
        multiple="stack",
        bins=[*np.linspace(-2, 4, 49)],
        alpha=1,
        lw=0,
        legend=False,
        ax=axis,
    )
    axis.set(xlabel="$z$", ylabel="samples", xlim=(-2, 4))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # the lines keep clear of the bars
    right = axis.twinx()
    right.grid(False)
    fitted, best = fits.phi[trial], fits.mixture.phi_star
    right.plot(x, probability(fitted, x), color="black", lw=1.1, label=r"$\hat f(z)$")
    right.plot(x, probability(best, x), color="0.3", lw=1.1, ls="--", label="$f^*(z)$")
    right.set(ylabel="probability of retain", ylim=(0, 1.05))
    return with_key(
        figure,
        f"Figure 4: one data set of n = {len(z)} samples, {int((s == 0).sum())} of them to forget."
        " Solid: the classifier fitted to it. Dashed: the Bayes classifier.",
        [("forget", {"color": YELLOW, "lw": 5}), ("retain", {"color": BLUE, "lw": 5})],
        "upper center",
    )


@styled()
def densities(fits: Fits, trial: int, temperatures: Sequence[float] = (1.0, 1.5, 2.0)) -> Figure:
    """Draw Figure 5: p̂_T of the same classifier (black) over p_r (blue) at each T. The red line
    uses the paper's partition function.
    """
    figure, [axes] = panels(1, len(temperatures), (6.8, 2.3), sharey=True)
    x, mixture, phi = _fine(fits, -2, 4), fits.mixture, fits.phi[trial]
    looks = (
        {"color": "black", "lw": 1.1, "label": r"$\hat p_r^{(T)}$, exact"},
        {"color": RED, "lw": 0.8, "ls": (0, (2, 3)), "label": f"with {PAPERS}"},
    )
    for axis, T in zip(axes, temperatures, strict=True):
        axis.fill_between(x, np.exp(mixture.logp_r(x)), color=BLUE, alpha=0.3, lw=0, label="$p_r$")
        axis.plot(x, np.exp(mixture.logp(x)), color=YELLOW, lw=0.9, label="$p$")
        for method, look in zip(theory.METHODS, looks, strict=True):
            axis.plot(x, mixture.density(x, phi, T, method), **look)
        retain, forget = mixture.errors(phi, T)
        both = rf"$\mathcal{{E}}_r$ = {retain:.3f},  $\mathcal{{E}}_f$ = {forget:.3f}"
        axis.set_title(f"$T$ = {T:g}:  {both}", fontsize=7)
        axis.set(xlabel="$z$", xlim=(-2, 4))
    axes[0].set(ylabel="density", ylim=(0, None))
    return with_key(
        figure,
        f"Figure 5: the tilted, tempered density of that classifier (n = {fits.z.shape[1]}) over"
        " p_r.",
        place="upper center",
    )


@styled()
def bounds(table: pd.DataFrame) -> Figure:
    """Draw error against bound for every row of the table `bounds`, one panel for each bound. On
    the diagonal a bound is tight.
    """
    names = list(dict.fromkeys(table["bound"]))
    figure, axes = panels(2, (len(names) + 1) // 2, (6.8, 3.6))
    table, look = _named(table, "v_f")

    for axis, name in zip(axes.flat, names):
        part = table[(table["bound"] == name) & (table["error"] > 0) & np.isfinite(table["value"])]
        both = part[["value", "error"]].to_numpy()
        axis.plot([both.min(), both.max()], [both.min(), both.max()], color="0.4", lw=0.8)
        sns.scatterplot(part, x="value", y="error", **look, s=9, linewidth=0, alpha=0.7, ax=axis)
        side = "lower" if name in LOWER else "upper"
        axis.set(xscale="log", yscale="log", title=f"{name.split(',')[0]} ({side})")
        axis.set(xlabel="", ylabel="", box_aspect=1)
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_locator(few_ticks(both.min(), both.max()))
            if both.max() / both.min() < 100:
                ticks.set_major_formatter(PLAIN)
            ticks.set_minor_locator(NullLocator())

    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()

    figure.supxlabel("bound", fontsize=8)
    figure.supylabel("error", fontsize=8)

    return with_key(
        figure,
        f"Every theorem's bound against the error it bounds, {len(table)} cases; classifiers fitted"
        f" to n = {N} samples. On the diagonal a bound is tight.",
        place="upper center",
    )


@styled()
def slopes(
    delta: float,
    gamma: float,
    fitted: pd.DataFrame,
    trials: int,
    temperatures: Sequence[float] = (1.0, 1.5, 2.0, 3.0),
) -> Figure:
    """Draw the Forget Error against ‖p_f‖_∞: on the left the witness of Theorem 3.5, on the right
    fitted classifiers.

    delta, gamma: excess risk and forget share of the witness, which is tempered or sharpened.
    fitted: rows of Experiment 1 at one n (columns of `synthetic`, method "exact"), as means over
    `trials` data sets.
    """
    figure, [axes] = panels(1, 2, (6.8, 2.8))
    peaks = np.logspace(0, 8, 200)
    names = {T: f"$T$ = {T:g}" for T in temperatures}
    shades = dict(zip(names.values(), sns.color_palette("viridis", len(names))))

    for T, name in names.items():
        error = theory.witness(delta, gamma, peaks, T=T).forget_error
        axes[0].plot(peaks, error, color=shades[name])

    for w, dash in ((1.5, "--"), (2.0, "-.")):
        error = theory.witness(delta, gamma, peaks, sharpen=w).forget_error
        name = f"sharpened $f^{{{w:g}}}$"
        axes[0].plot(peaks, error, color=YELLOW, ls=dash, label=name)

    upper = theory.bound_forget_untempered(delta, gamma, peaks)
    axes[0].plot(peaks, upper, color="0.6", lw=0.9, ls=":", label="bound, Theorem 3.4")
    rows = with_error(fitted[fitted["T"].isin(temperatures)], "forget_error", "forget_se")
    rows = rows.assign(peak=(2 * np.pi * rows["v_f"]) ** -0.5, name=rows["T"].map(names))
    sns.lineplot(
        rows,
        x="peak",
        y="forget_error",
        hue="name",
        style="name",
        palette=shades,
        markers=[*MARKERS[: len(names)]],
        dashes=False,
        errorbar=WHOLE,
        err_style="bars",
        ms=5,
        ax=axes[1],
    )
    n = int(fitted["n"].iloc[0])
    witness = rf"the witness, $\delta$ = {delta:g}, $\gamma$ = {gamma:g}"

    for axis, title in zip(axes, (witness, f"fitted to $n$ = {n} samples, mean ± s.e.")):
        axis.set(xscale="log", yscale="log", xlabel=r"peak forget density $\|p_f\|_\infty$")
        axis.set(ylabel=AXES["forget"] if axis is axes[0] else "", title=title)

    return with_key(
        figure,
        "Forget Error against the peak of p_f. Left: the example of Theorem 3.5, in which tempering"
        " changes the slope from 1 to 1/T, and sharpening only lowers the line. Right: means over"
        f" {trials} data sets of n = {n} samples, each with its classifier, on other axes.",
        place="right center",
        ncols=1,
    )


@styled()
def price(measured: pd.DataFrame, epsilon: float = 1e-3) -> Figure:
    """Draw what tempering adds to the Retain Error at a memorised token, against the vocabulary.

    epsilon: probability of all other tokens together, which share it evenly.
    measured: as of `t3lab.theory.table.measured_price`.
    """
    figure, [[axis]] = panels(1, 1, (3.3, 2.6))
    vocabularies = np.logspace(2, np.log10(2e5), 20).round().astype(int)
    temperatures = sorted({*measured["T"]} | {1.25, 1.5, 2.0, 3.0})
    for T, shade in zip(temperatures, sns.color_palette("viridis", len(temperatures))):
        costs = []
        for V in vocabularies:
            rest = np.full(V - 1, epsilon / (V - 1))
            costs.append(theory.tempering_price(np.log([1 - epsilon, *rest]), T))
        axis.plot(vocabularies, costs, color=shade, label=f"$T$ = {T:g}")
        points = measured[measured["T"] == T]
        axis.plot(points["V"], points["retain_error"], "o", color=shade, ms=4)
    axis.set(xscale="log", yscale="log", ylim=(5e-3, 10))
    axis.set(xlabel="tokens of the vocabulary", ylabel="added Retain Error, nats a token")
    return with_key(
        figure,
        "What tempering adds to the Retain Error where one token has the probability"
        f" {1 - epsilon:g} and all others share the rest evenly. Points: T3 at profile cpu beside a"
        " retrained model, less its Retain Error at T = 1, means over built-in worlds.",
        place="right center",
        ncols=1,
    )


def _named(table: pd.DataFrame, vary: str) -> tuple[pd.DataFrame, Look]:
    """Add a column "curve" with the values of `vary` as text, and return seaborn's look for it.

    In the text, 1e-06 becomes 10^-6. Other numbers stay as they are.
    """
    powers = {v: re.sub(r"1e-0?(\d+)", r"10^{-\1}", f"{v:g}") for v in sorted(set(table[vary]))}
    names = [f"${vary}$ = ${power}$" for power in powers.values()]
    look = {
        **dict.fromkeys(("hue", "style"), "curve"),
        **dict.fromkeys(("hue_order", "style_order"), names),
        "palette": sns.blend_palette([PURPLE, BLUE, YELLOW], len(names)),
        "markers": [*MARKERS[: len(names)]],
    }
    return table.assign(curve=table[vary].map(dict(zip(powers, names)))), look


def _fine(fits: Fits, low: float, high: float) -> Array:
    """Return a grid that is fine enough for the spike as well as for the whole axis."""
    mixture = fits.mixture
    spike = mixture.mu_f + np.sqrt(mixture.v_f) * np.linspace(-8, 8, 401)
    return np.union1d(np.linspace(low, high, 1201), spike.clip(low, high))
