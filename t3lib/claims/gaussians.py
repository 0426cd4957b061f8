"""One function per claim about the Gaussian experiments (Appendix E, Figures 2 to 5), from the table `synthetic`.

How a sentence about a curve is judged: see claims_curves. Figures 4 and 5 are judged on notebook 01's own example.
"""

from functools import cache

import numpy as np
import pandas as pd

from t3lib.claims.curves import (
    best_at_one,
    curve_at,
    curves,
    falls_throughout,
    headline,
    in_experiment_1,
    in_experiment_2,
    lower,
    minima,
    minimum,
    pairs,
    rises_everywhere,
    rows_of,
    three_points,
)
from t3lib.claims.findings import MISSING, Finding, Tables
from t3lib.theory import experiments as synthetic
from t3lib.theory.logistic import probability
from t3lib.theory.mixture import METHODS, GaussianMixture

SUBSTANTIAL = 0.5  # "substantially reduce": at least halved
NEGLIGIBLE = 0.1  # of what is there
OVERLAP = 0.05  # the partition function is over-estimated by less: "negligible overlap"
SHARP, MIDDLE, FLAT = 1e-6, 1e-3, 1.0


# ---- Experiment 1 ----------------------------------------------------------------------------------------------------
def sharp_decreases(tables: Tables) -> Finding:
    return in_experiment_1(tables, lambda rows: falls_throughout(curve_at(rows, "v_f", SHARP)))


def middle_falls_then_rises(tables: Tables) -> Finding:
    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        curve = curve_at(rows, "v_f", MIDDLE)
        if curve is None:
            return None
        best = minimum(curve)
        inside = curve["T"].min() < best["T"] < curve["T"].max()
        first, last = curve.iloc[0], curve.iloc[-1]
        holds = inside and all(lower(best, end) for end in (first, last))
        return holds, three_points(curve, best)

    return in_experiment_1(tables, check)


def flat_is_best_untempered(tables: Tables) -> Finding:
    return in_experiment_1(tables, lambda rows: best_at_one(curve_at(rows, "v_f", FLAT)))


def sharper_wants_hotter(tables: Tables) -> Finding:
    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        best = minima(rows, "v_f")
        falling = list(best.values())
        holds = len(best) > 1 and sorted(falling, reverse=True) == falling and falling[0] > falling[-1]
        return (holds, "best T: " + pairs(best, "v_f")) if len(best) > 1 else None

    return in_experiment_1(tables, check)


def retain_error_increases_with_temperature(tables: Tables) -> Finding:
    return in_experiment_1(tables, lambda rows: rises_everywhere(rows, "v_f"))


def flat_is_most_sensitive(tables: Tables) -> Finding:
    """Retain Error grows from the first to the last T by more for v_f = 1 than for any other v_f."""

    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        growth = {v: float(c["retain_error"].iloc[-1] - c["retain_error"].iloc[0]) for v, c in curves(rows, "v_f")}
        if FLAT not in growth or len(growth) < 2:
            return None
        holds = growth[FLAT] > max(value for v, value in growth.items() if v != FLAT)
        return holds, "growth: " + pairs(growth, "v_f")

    return in_experiment_1(tables, check)


def tempering_reduces_forget_error(tables: Tables) -> Finding:
    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        ratios = {v: minimum(c)["forget_error"] / c["forget_error"].iloc[0] for v, c in curves(rows, "v_f") if v < 0.01}
        told = "least Forget Error over that at T = 1: " + pairs(ratios, "v_f")
        return (max(ratios.values()) <= SUBSTANTIAL, told) if ratios else None

    return in_experiment_1(tables, check)


def guidance_can_fail(tables: Tables) -> Finding:
    """At T = 1 the Forget Error passes max p_r for the sharpest v_f, and is a tenth of it or less for v_f = 1."""

    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        first = {v: float(c["forget_error"].iloc[0]) for v, c in curves(rows, "v_f")}
        if not {SHARP, FLAT} <= set(first):
            return None
        return first[SHARP] > _top() > 10 * first[FLAT], f"T = 1, max p_r = {_top():.3f}: Forget Error " + pairs(
            first, "v_f"
        )

    return in_experiment_1(tables, check)


def sharp_needs_tempering(tables: Tables) -> Finding:
    """For v_f = 1e-6 the Forget Error is above max p_r at T = 1 and below it at some T, whatever the n."""
    table = rows_of(tables, 1, "exact", "all")
    if table is None:
        return MISSING
    told, verdicts = [], []
    for n, rows in table.groupby("n"):
        curve = curve_at(rows, "v_f", SHARP)
        if curve is None:
            return MISSING
        first, best = float(curve["forget_error"].iloc[0]), float(minimum(curve)["forget_error"])
        verdicts.append(first > _top() > best)
        told.append(f"n = {n}: {first:.2f} → {best:.2f}")
    return Finding(all(verdicts), f"max p_r = {_top():.3f}; Forget Error at T = 1 → best T: {'; '.join(told)}")


def bias_is_negligible_for_sharp(tables: Tables) -> Finding:
    """Forget Error of the Bayes classifier at the last T (tempering bias alone) against that of the fitted ones."""
    table = rows_of(tables, 1, "exact", "all")
    curve = None if table is None else curve_at(table[table["n"] == headline(table)], "v_f", SHARP)
    if curve is None:
        return MISSING
    T, error = float(curve["T"].iloc[-1]), float(curve["forget_error"].iloc[-1])
    m = GaussianMixture(v_f=SHARP)
    bias = float(np.asarray(m.forget_error(m.phi_star, T)))
    told = f"v_f = 1e-06, T = {T:g}: bias {bias:.3f}, Forget Error of fitted classifiers {error:.3f}"
    return Finding(bias <= NEGLIGIBLE * error, f"{told}, p_r under the spike {np.exp(m.logp_r(np.zeros(1)))[0]:.3f}")


def overlap_is_negligible(tables: Tables) -> Finding:
    """exp(difference of the two Retain Errors) is the over-estimate of the partition function."""
    table = rows_of(tables, 1, None, "all")
    if table is None:
        return MISSING
    rows = table[(table["n"] == headline(table)) & (table["T"] == table["T"].max())]
    wide = rows.pivot(index="v_f", columns="method", values="retain_error")
    if set(METHODS) - set(wide.columns):
        return MISSING
    excess = np.expm1(wide["negligible_overlap"] - wide["exact"])
    told = "over-estimate of the partition function: " + ", ".join(f"v_f = {v:g}: {x:.2%}" for v, x in excess.items())
    return Finding(bool(excess.max() <= OVERLAP), f"T = {rows['T'].iloc[0]:g}, {told}")


# ---- Experiment 2 ----------------------------------------------------------------------------------------------------
def best_temperature_falls_with_n(tables: Tables) -> Finding:
    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        best = minima(rows, "n")
        falling = list(best.values())
        holds = sorted(falling, reverse=True) == falling and falling[0] > falling[-1]
        return (holds, "best T: " + pairs(best, "n")) if len(best) > 1 else None

    return in_experiment_2(tables, check)


def many_samples_need_no_tempering(tables: Tables) -> Finding:
    return in_experiment_2(tables, lambda rows: best_at_one(curve_at(rows, "n", 400)))


def retain_error_increases_for_every_n(tables: Tables) -> Finding:
    return in_experiment_2(tables, lambda rows: rises_everywhere(rows, "n"))


def tempering_helps_small_samples_more(tables: Tables) -> Finding:
    """Least Forget Error over that at T = 1 rises with n: the gain shrinks."""

    def check(rows: pd.DataFrame) -> tuple[bool, str] | None:
        ratios = {n: minimum(c)["forget_error"] / c["forget_error"].iloc[0] for n, c in curves(rows, "n")}
        values = list(ratios.values())
        told = "least Forget Error over that at T = 1: " + pairs(ratios, "n")
        return (values == sorted(values) and values[0] < 1, told) if len(values) > 1 else None

    return in_experiment_2(tables, check)


def excess_risk_falls_with_n(tables: Tables) -> Finding:
    risk = _risk(tables)
    return MISSING if risk is None else Finding(bool(risk.is_monotonic_decreasing), "mean δ: " + pairs(dict(risk), "n"))


def excess_risk_rate(tables: Tables) -> Finding:
    """δ falls at least like n^(−1/2) between the smallest and the largest n."""
    risk = _risk(tables)
    if risk is None:
        return MISSING
    slope = float(np.log(risk.iloc[-1] / risk.iloc[0]) / np.log(risk.index[-1] / risk.index[0]))
    told = f"slope of mean δ in n from {risk.index[0]} to {risk.index[-1]}: {slope:.2f}"
    return Finding(slope <= -0.5, f"{told}; at least −0.5 is claimed")


# ---- Figures 4 and 5 -------------------------------------------------------------------------------------------------
def labels_of_the_spike_are_right(tables: Tables) -> Finding:
    """In most two-class data sets of 25 samples f̂ < ½ at every forget sample."""
    cell, shown = _example()
    two = np.flatnonzero(cell.s.min(axis=1) < cell.s.max(axis=1))
    right = [bool((probability(cell.phi[i], cell.z[i][cell.s[i] == 0]) < 0.5).all()) for i in two]
    here = probability(cell.phi[shown], cell.z[shown][cell.s[shown] == 0]).max()
    told = f"{np.mean(right):.0%} of {len(two)} two-class data sets; in the one of notebook 01 f̂ reaches {here:.2f}"
    return Finding(bool(np.mean(right) > 0.5), told)


def dip_is_too_wide(tables: Tables) -> Finding:
    cell, shown = _example()
    x = np.linspace(-2, 4, 6001)
    fitted, best = (float((probability(phi, x) < 0.9).mean() * 6) for phi in (cell.phi[shown], cell.mixture.phi_star))
    return Finding(fitted > best, f"width of the region below 0.9: f̂ {fitted:.2f}, f* {best:.2f}")


def spike_is_suppressed(tables: Tables) -> Finding:
    heights = [float(_density(T, 0.0)[0]) for T in (1.0, 1.5, 2.0)]
    return Finding(
        heights == sorted(heights, reverse=True), "p̂(0) at T = 1, 1.5, 2: " + ", ".join(f"{h:.2f}" for h in heights)
    )


def density_dips_beside_the_spike(tables: Tables) -> Finding:
    x = np.linspace(0.1, 0.4, 301)
    p_r = np.exp(GaussianMixture().logp_r(x))
    depth = [float((_density(T, x) - p_r).min()) for T in (1.0, 1.5, 2.0)]
    told = ", ".join(f"{d:+.3f}" for d in depth)
    return Finding(max(depth) < 0, f"least p̂ − p_r on 0.1 < z < 0.4 at T = 1, 1.5, 2: {told}")


def mismatch_grows_away_from_the_spike(tables: Tables) -> Finding:
    x = np.linspace(0.5, 4, 3501)
    p_r = np.exp(GaussianMixture().logp_r(x))
    apart = [float(np.abs(_density(T, x) - p_r).mean() * 3.5) for T in (1.0, 1.5, 2.0)]
    told = ", ".join(f"{a:.3f}" for a in apart)
    return Finding(apart == sorted(apart), f"∫ |p̂ − p_r| over 0.5 < z < 4 at T = 1, 1.5, 2: {told}")


# ---- pieces ---------------------------------------------------------------------------------------------------------
def _risk(tables: Tables) -> pd.Series | None:
    table = tables["synthetic_cells"]
    if table is None:
        return None
    rows = table[np.isclose(table["v_f"], MIDDLE, rtol=1e-6)].sort_values("n").set_index("n")["delta_mean"]
    return rows if len(rows) > 1 else None


def _top() -> float:
    m = GaussianMixture()
    return float(np.exp(m.logp_r(np.array([m.mu_r])))[0])


@cache
def _example() -> tuple[synthetic.Cell, int]:
    return synthetic.example()


def _density(T: float, z: float | np.ndarray) -> np.ndarray:
    cell, shown = _example()
    return cell.mixture.density(np.atleast_1d(z), cell.phi[shown], T)
