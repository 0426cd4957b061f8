"""Decide the claims about the Gaussian experiments (Appendix E, Figures 2 to 5).

Each function is named like its claim, and its docstring says what must be true for the claim to
hold.

A sentence about a figure is checked in four ways: with the exact partition function or with the
paper's, and at every T of the table `synthetic` or in steps of 0.5. It holds if it is true with the
exact one at every T. If only another way makes it true, the Finding names that way.

The paper gives no n for Experiment 1, so a sentence about it holds if it is true at every n of the
table. If it is true at some n only, the Finding names them. The numbers are those at n = 50. A
minimum counts against a claim only if it is lower by more than the standard error
of the difference. A curve falls only if both its mean and its median fall. These differences are
paired, because every T sees the same data sets.
"""

from collections.abc import Callable
from functools import wraps

import numpy as np
import pandas as pd

from t3lab.claims.findings import Finding, Missing, Tables, listed
from t3lib.theory.mixture import METHODS

HEADLINE = 50
PAPERS, COARSE = "the paper's partition function", "T in steps of 0.5"
SHARP, MIDDLE, FLAT = 1e-6, 1e-3, 1.0
# The largest value of p_r. A Forget Error above it is a leak that no retain density explains.
TOP = float((2 * np.pi) ** -0.5)

# rows of `synthetic` -> (True if the sentence holds, its numbers)
Check = Callable[[pd.DataFrame], tuple[bool, str]]


# ---- the four ways ------------------------------------------------------------------------------
def _rows_of(
    tables: Tables, experiment: int | None, method: str, every: bool = True
) -> pd.DataFrame:
    rows = tables["synthetic"]
    rows = rows[
        (rows["method"] == method) & (rows["experiment"].eq(experiment) if experiment else True)
    ]
    rows = rows if every else rows[np.isclose((2 * rows["T"]) % 1, 0)]
    if rows.empty or rows["T"].min() > 1 or rows["T"].nunique() < 3:
        raise Missing("synthetic")
    return rows.sort_values(["v_f", "n", "T"])


def _four_ways(tables: Tables, experiment: int | None, check: Check) -> Finding:
    holds, told = check(_rows_of(tables, experiment, "exact"))
    if holds:
        return Finding(True, told)
    for every in (True, False):
        for method in METHODS:
            under = " and ".join([PAPERS] * (method != "exact") + [COARSE] * (not every))
            if under and (answer := check(_rows_of(tables, experiment, method, every)))[0]:
                return Finding(False, f"{told}; with {under}: {answer[1]}", under=under)
    return Finding(False, told)


def in_experiment_1(check: Check) -> Callable[[Tables], Finding]:
    """Decorate a check of Experiment 1 so that it is made at every n. Ways other than exact curves
    at every T are tried at the headline n.
    """

    @wraps(check)
    def decide(tables: Tables) -> Finding:
        parts = dict([*_rows_of(tables, 1, "exact").groupby("n")])
        n = HEADLINE if HEADLINE in parts else min(parts)
        found = _four_ways(tables, 1, lambda rows: check(rows[rows["n"] == n]))
        agrees = [size for size, part in parts.items() if check(part)[0]]
        shown, every = (", ".join(map(str, sizes)) for sizes in (agrees, parts))
        told = f"n = {n}: {found.numbers}; exact curves agree at n = {shown or 'none'} of {every}"
        holds = len(agrees) == len(parts)
        return Finding(holds, told, under="" if holds else shown or found.under)

    return decide


# ---- curves: the rows of one v_f and n, by T ----------------------------------------------------
def _curves(rows: pd.DataFrame, vary: str, *needed: float) -> dict[float, pd.DataFrame]:
    """Return {value of `vary`: its curve}. Missing without the needed values, or if there is
    nothing to compare.
    """
    curves = {float(value): part.sort_values("T") for value, part in rows.groupby(vary)}
    if set(needed) - set(curves) or len(curves) < (1 if needed else 2):
        raise Missing("synthetic")
    return curves


def _minimum(curve: pd.DataFrame) -> pd.Series:
    return curve.loc[curve["forget_error"].idxmin()]


def _lower(a: pd.Series, b: pd.Series) -> bool:
    """True if the Forget Error at a is lower than at b by more than the standard error of the
    difference.
    """
    return bool(b["forget_error"] - a["forget_error"] > np.hypot(a["forget_se"], b["forget_se"]))


def _best_untempered(curve: pd.DataFrame) -> tuple[bool, str]:
    return not _lower(_minimum(curve), curve.iloc[0]), _three_points(curve)


def _best_falls(rows: pd.DataFrame, vary: str) -> tuple[bool, str]:
    """Check that the best T never rises with `vary`, and that each of the two outer curves is lower
    at its own best T than at that of the other.
    """
    curves = {value: curve.set_index("T") for value, curve in _curves(rows, vary).items()}
    best = {value: float(curve["forget_error"].idxmin()) for value, curve in curves.items()}
    (low, first), *_, (high, last) = sorted((T, value) for value, T in best.items())
    apart = all(
        _lower(curves[value].loc[own], curves[value].loc[other])
        for value, own, other in ((first, low, high), (last, high, low))
    )
    falls = bool((np.diff([*best.values()]) <= 0).all())
    return falls and apart, "best T: " + listed(best, vary + " = {:g}: {:.3g}")


def _steps(curve: pd.DataFrame, side: str, sign: int) -> np.ndarray:
    """Mark each step to the next T at which both the mean and the median move in the direction
    `sign`.
    """
    moves = [sign * np.diff(curve[f"{side}_{what}"]) > 1e-9 for what in ("error", "median")]
    return moves[0] & moves[1]


def _three_points(curve: pd.DataFrame) -> str:
    points = {float(row["T"]): row for row in (curve.iloc[0], _minimum(curve), curve.iloc[-1])}
    shown = [
        f"{row['forget_error']:.3g} ± {row['forget_se']:.1g} at T = {T:g}"
        for T, row in sorted(points.items())
    ]
    return "Forget Error " + ", ".join(shown)


# ---- Experiment 1 -------------------------------------------------------------------------------
@in_experiment_1
def guidance_can_fail(rows: pd.DataFrame) -> tuple[bool, str]:
    """At T = 1 the Forget Error exceeds max p_r for the sharpest spike. For v_f = 1 it is below a
    tenth of max p_r.
    """
    first = {
        v: float(curve["forget_error"].iloc[0])
        for v, curve in _curves(rows, "v_f", SHARP, FLAT).items()
    }
    told = f"T = 1, max p_r = {TOP:.3f}: Forget Error {listed(first, 'v_f = {:g}: {:.3g}')}"
    return first[SHARP] > TOP > 10 * first[FLAT], told


@in_experiment_1
def e1_sharp_monotone(rows: pd.DataFrame) -> tuple[bool, str]:
    """At v_f = 1e-6 the Forget Error never rises from one T to the next."""
    curve = _curves(rows, "v_f", SHARP)[SHARP]
    return not _steps(curve, "forget", +1).any(), _three_points(curve)


@in_experiment_1
def e1_middle_tradeoff(rows: pd.DataFrame) -> tuple[bool, str]:
    """At v_f = 1e-3 the lowest Forget Error is at a T inside the range, and it is lower than at
    both ends.
    """
    curve = _curves(rows, "v_f", MIDDLE)[MIDDLE]
    best = _minimum(curve)
    inside = curve["T"].min() < best["T"] < curve["T"].max()
    return inside and all(_lower(best, curve.iloc[end]) for end in (0, -1)), _three_points(curve)


@in_experiment_1
def e1_flat_untempered(rows: pd.DataFrame) -> tuple[bool, str]:
    """At v_f = 1 no T has a lower Forget Error than T = 1."""
    return _best_untempered(_curves(rows, "v_f", FLAT)[FLAT])


@in_experiment_1
def e1_hotter(rows: pd.DataFrame) -> tuple[bool, str]:
    """The T with the lowest Forget Error falls as v_f grows."""
    return _best_falls(rows, "v_f")


@in_experiment_1
def e1_flat_sensitive(rows: pd.DataFrame) -> tuple[bool, str]:
    """At every T above 1 the Retain Error has risen most since T = 1 at v_f = 1."""
    curves = _curves(rows, "v_f", SHARP, FLAT)
    rise = pd.DataFrame({v: c.set_index("T")["retain_error"] for v, c in curves.items()})
    rise = (rise - rise.iloc[0]).iloc[1:]
    told = (
        f"rise to T = {rise.index[-1]:g}: {listed(rise.iloc[-1].to_dict(), 'v_f = {:g}: {:.3f}')}"
    )
    return bool((rise.idxmax(axis=1) == FLAT).all()), told


# ---- Experiment 2, and both ---------------------------------------------------------------------
def e2_best_t(tables: Tables) -> Finding:
    """The T with the lowest Forget Error falls as n grows."""
    return _four_ways(tables, 2, lambda rows: _best_falls(rows, "n"))


def e2_untempered(tables: Tables) -> Finding:
    """At the largest n no T has a lower Forget Error than T = 1."""
    return _four_ways(tables, 2, lambda rows: _best_untempered(rows[rows["n"] == rows["n"].max()]))


def retain_rises(tables: Tables) -> Finding:
    """The Retain Error never falls from one T to the next, at every v_f and n."""

    def check(rows: pd.DataFrame) -> tuple[bool, str]:
        dips = {
            f"v_f = {v:g}, n = {n}": curve["retain_error"].iloc[0] - curve["retain_error"].min()
            for (v, n, _), curve in rows.groupby(["v_f", "n", "experiment"])
            if _steps(curve, "retain", -1).any()
        }
        return not dips, listed(dips, "{} falls by {:.4f}") or "no fall in any curve"

    return _four_ways(tables, None, check)
