"""Decide the claims about the Gaussian experiments (Appendix E, Figures 2 to 5).

Each function is named like its claim, and its docstring says what must be true for the claim to
hold.

A sentence about a figure is checked in four ways: with the exact partition function or with the
paper's, and at every T of the table `synthetic` or in steps of 0.5. It holds if it is true with the
exact one at every T. If only another way makes it true, the Finding names that way.

Experiment 1 is judged at n = 50, because the paper gives no n. The numbers say at which n the
sentence holds. A minimum counts against a claim only if it is lower by more than the standard error
of the difference. A curve falls only if both its mean and its median fall. These differences are
paired, because every T sees the same data sets.
"""

from collections.abc import Callable
from functools import wraps

import numpy as np
import pandas as pd

from t3lab.claims.findings import Finding, Missing, Tables, listed
from t3lib.theory.mixture import METHODS, GaussianMixture

HEADLINE = 50
PAPERS, COARSE = "the paper's partition function", "T in steps of 0.5"
SUBSTANTIAL = 0.5  # "substantially reduce": at least halved
NEGLIGIBLE = 0.1  # "negligible": at most this share of the whole
OVERLAP = 0.05  # "negligible overlap": the partition function is too large by at most this share
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


def _headline(rows: pd.DataFrame) -> int:
    return HEADLINE if HEADLINE in set(rows["n"]) else int(rows["n"].min())


def in_experiment_1(check: Check) -> Callable[[Tables], Finding]:
    """Decorate a check of Experiment 1 so that it is made at the headline n. The numbers then name
    every n at which the exact curves agree.
    """

    @wraps(check)
    def decide(tables: Tables) -> Finding:
        rows = _rows_of(tables, 1, "exact")
        n = _headline(rows)
        finding = _four_ways(tables, 1, lambda rows: check(rows[rows["n"] == n]))
        agrees = {str(size): check(part)[0] for size, part in rows.groupby("n")}
        told = (
            "exact curves agree at n ="
            f" {', '.join(size for size in agrees if agrees[size]) or 'none'}"
        )
        return finding._replace(
            numbers=f"n = {n}: {finding.numbers}; {told} of {', '.join(agrees)}"
        )

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


def _best_falls(rows: pd.DataFrame, vary: str) -> tuple[bool, str]:
    best = {value: float(_minimum(curve)["T"]) for value, curve in _curves(rows, vary).items()}
    falling = list(best.values())
    holds = sorted(falling, reverse=True) == falling and falling[0] > falling[-1]
    return holds, "best T: " + listed(best, vary + " = {:g}: {:.3g}")


def _best_at_one(curve: pd.DataFrame) -> tuple[bool, str]:
    return not _lower(_minimum(curve), curve.iloc[0]), _three_points(curve)


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
    return _best_at_one(_curves(rows, "v_f", FLAT)[FLAT])


@in_experiment_1
def e1_hotter(rows: pd.DataFrame) -> tuple[bool, str]:
    """The T with the lowest Forget Error falls as v_f grows."""
    return _best_falls(rows, "v_f")


@in_experiment_1
def e1_flat_sensitive(rows: pd.DataFrame) -> tuple[bool, str]:
    """From the first to the last T, the Retain Error grows more at v_f = 1 than at any other
    v_f.
    """
    curves = _curves(rows, "v_f")
    growth = {
        v: float(np.subtract(*curve["retain_error"].iloc[[-1, 0]])) for v, curve in curves.items()
    }
    return max(growth, key=growth.__getitem__) == FLAT, "growth: " + listed(
        growth, "v_f = {:g}: {:.3g}"
    )


@in_experiment_1
def e1_reduction(rows: pd.DataFrame) -> tuple[bool, str]:
    """At v_f below 0.01 the lowest Forget Error is at most half of the Forget Error at T = 1."""
    sharp = _curves(rows[rows["v_f"] < 0.01], "v_f", SHARP)
    ratios = {
        v: float(_minimum(curve)["forget_error"] / curve["forget_error"].iloc[0])
        for v, curve in sharp.items()
    }
    told = "least Forget Error over that at T = 1: " + listed(ratios, "v_f = {:g}: {:.3g}")
    return max(ratios.values()) <= SUBSTANTIAL, told


def e1_sharp_bias(tables: Tables) -> Finding:
    """At v_f = 1e-6 and the largest T, the bias of tempering is at most a tenth of the Forget Error
    of fitted classifiers.

    The bias is the Forget Error of the Bayes classifier.
    """
    rows = _rows_of(tables, 1, "exact")
    last = _curves(rows[rows["n"] == _headline(rows)], "v_f", SHARP)[SHARP].iloc[-1]
    m = GaussianMixture(v_f=SHARP)
    bias = float(np.asarray(m.forget_error(m.phi_star, last["T"])))
    told = f"v_f = 1e-06, T = {last['T']:g}: bias {bias:.3f}, Forget Error of fitted classifiers"
    told += (
        f" {last['forget_error']:.3f}, p_r under the spike {np.exp(m.logp_r(np.zeros(1)))[0]:.3f}"
    )
    return Finding(bool(bias <= NEGLIGIBLE * last["forget_error"]), told)


def overlap(tables: Tables) -> Finding:
    """The paper's partition function is too large by at most 5%, at the largest T.

    The excess is exp(difference of the two Retain Errors) − 1.
    """
    both = [_rows_of(tables, 1, method) for method in ("negligible_overlap", "exact")]
    n, T = _headline(both[0]), both[0]["T"].max()
    papers, exact = (
        rows[(rows["n"] == n) & (rows["T"] == T)].set_index("v_f")["retain_error"] for rows in both
    )
    excess = np.expm1(papers - exact)
    told = (
        f"T = {T:g}, over-estimate of the partition function:"
        f" {listed(excess.to_dict(), 'v_f = {:g}: {:.2%}')}"
    )
    return Finding(bool(excess.max() <= OVERLAP), told)


# ---- Experiment 2, and both ---------------------------------------------------------------------
def e2_best_t(tables: Tables) -> Finding:
    """The T with the lowest Forget Error falls as n grows."""
    return _four_ways(tables, 2, lambda rows: _best_falls(rows, "n"))


def e2_n400(tables: Tables) -> Finding:
    """At n = 400 no T has a lower Forget Error than T = 1."""
    return _four_ways(tables, 2, lambda rows: _best_at_one(_curves(rows, "n", 400)[400]))


def retain_rises(tables: Tables) -> Finding:
    """The Retain Error never falls from one T to the next, at every v_f of Experiment 1 (headline
    n) and every n of Experiment 2.
    """

    def check(rows: pd.DataFrame) -> tuple[bool, str]:
        dips = {}
        rows = rows[(rows["n"] == _headline(rows)) | (rows["experiment"] == 2)]
        for (_, v, n), curve in rows.groupby(["experiment", "v_f", "n"]):
            if _steps(curve, "retain", -1).any():
                low = curve.loc[curve["retain_error"].idxmin()]
                drop = curve["retain_error"].iloc[0] - low["retain_error"]
                dips[f"v_f = {v:g}, n = {n}"] = f"least at T = {low['T']:g}, {drop:.4f} below T = 1"
        return not dips, listed(dips, "{} {}") or "no fall in any curve"  # type: ignore[arg-type]

    return _four_ways(tables, None, check)


# ---- what else lowers the Forget Error: the table `alternatives` --------------------------------
def tempering_needed_in_practice(tables: Tables) -> Finding:
    """At v_f = 1e-6 and every n, some T > 1 brings the Forget Error below max p_r, and at T = 1 no
    f̂^w and no λ does.
    """
    rows, told, verdicts = tables["alternatives"], [], []
    for n, part in rows[np.isclose(rows["v_f"], SHARP, rtol=1e-6)].groupby("n"):
        least, warm, sharp = part["least_risk"], part["T"] > 1, part["w"] > 1
        tries = {"as is": least & ~warm & ~sharp, "best T": least & warm, "best w": least & sharp}
        tries["best λ"] = ~least & ~warm
        best = {name: float(part["forget_error"][chosen].min()) for name, chosen in tries.items()}
        verdicts.append(best["best T"] < TOP <= min(best["best w"], best["best λ"]))
        told.append(f"n = {n}: {listed(best, '{} {:.2f}')}")
    return Finding(all(verdicts), f"max p_r = {TOP:.3f}, Forget Error: {'; '.join(told)}")


def least_risk(tables: Tables) -> Finding:
    """No λ has both a larger excess risk and a lower Forget Error than the λ of least risk, each at
    its best T.

    The numbers also show both Retain Errors, and the Forget Error of a classifier that knows
    nothing (1 − γ everywhere) at T = 3, 4 and 5.
    """
    rows, told, pairs = tables["alternatives"], [], []
    for (v, n), part in rows[rows["w"] == 1].groupby(["v_f", "n"]):
        tuned = _minimum(part[part["least_risk"]])
        other = _minimum(part[part["delta"] > tuned["delta"]])
        ends = [f"{end['forget_error']:.3f} ({end['retain_error']:.2g})" for end in (tuned, other)]
        told.append(f"v_f = {v:g}, n = {n}: {' → '.join(ends)}")
        pairs += (
            [(other["retain_error"] / tuned["retain_error"], v, told[-1], other)]
            if _lower(other, tuned)
            else []
        )
    numbers = f"Forget Error (Retain Error) by λ of least risk → another: {'; '.join(told)}"
    if not pairs:
        return Finding(True, numbers)
    _, v, case, other = max(pairs, key=lambda pair: pair[0])
    m = GaussianMixture(v_f=v)
    blind = {T: float(np.asarray(m.forget_error(_knows_nothing(m), T))) for T in (3.0, 4.0, 5.0)}
    nothing = f"a classifier that knows nothing: {listed(blind, '{1:.3f} at T = {0:g}')}"
    return Finding(False, f"{numbers}; most in {case}; {nothing}")


def _knows_nothing(m: GaussianMixture) -> np.ndarray:
    """Return the weights for [1, z, z²] of a classifier that is 1 − γ everywhere."""
    return np.array([np.log(1 / m.gamma - 1), 0.0, 0.0])
