"""Curves of the table `synthetic`, and the four ways in which a sentence about a figure of Appendix E is tried.

With the exact partition function and with the paper's, at every T of the table and in steps of 0.5. A sentence holds
when the exact one at every T says so; where only another way does, the Finding names it. Experiment 1 is judged at
n = 50 (the paper gives no n), and the numbers say at which n it holds. A minimum counts against a claim where it is
lower by more than the standard error of the difference; a curve falls where its mean and its median do (all T see the
same data sets, so these differences are paired).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from t3lib.claims.findings import MISSING, Finding, Tables
from t3lib.theory.mixture import METHODS

HEADLINE = 50
WAYS = {"exact": "", "negligible_overlap": "the paper's partition function"}
GRIDS = {"all": "", "coarse": "T in steps of 0.5"}

Check = Callable[[pd.DataFrame], tuple[bool, str] | None]


def in_experiment_1(tables: Tables, check: Check) -> Finding:
    """Experiment 1 at the headline n; the numbers also name every n at which the exact curve at every T agrees."""
    table = rows_of(tables, 1, "exact", "all")
    if table is None:
        return MISSING
    n = headline(table)
    found = _four_ways(tables, 1, lambda rows: check(rows[rows["n"] == n]))
    answers = {k: check(rows) for k, rows in table.groupby("n")}
    agreeing = [str(k) for k, answer in answers.items() if answer is not None and answer[0]]
    told = f"exact curves agree at n = {', '.join(agreeing) or 'none'} of {', '.join(str(k) for k in answers)}"
    return found if found.holds is None else found._replace(numbers=f"n = {n}: {found.numbers}; {told}")


def in_experiment_2(tables: Tables, check: Check) -> Finding:
    return _four_ways(tables, 2, check)


def _four_ways(tables: Tables, experiment: int, check: Check) -> Finding:
    strict: tuple[bool, str] | None = None
    for grid in GRIDS:
        for method in METHODS:
            rows = rows_of(tables, experiment, method, grid)
            answer = None if rows is None else check(rows)
            if grid == "all" and method == "exact":
                if answer is None or answer[0]:
                    return MISSING if answer is None else Finding(True, answer[1])
                strict = answer
            elif answer is not None and answer[0] and strict is not None:
                under = " and ".join(filter(None, (WAYS[method], GRIDS[grid])))
                return Finding(False, f"{strict[1]}; with {under}: {answer[1]}", under=under)
    return Finding(False, strict[1]) if strict else MISSING


def rows_of(tables: Tables, experiment: int, method: str | None, grid: str) -> pd.DataFrame | None:
    table = tables["synthetic"]
    if table is None:
        return None
    rows = table[table["experiment"] == experiment]
    rows = rows if method is None else rows[rows["method"] == method]
    rows = rows if grid == "all" else rows[np.isclose((2 * rows["T"]) % 1, 0)]
    spans = len(rows) and rows["T"].min() == 1 and rows["T"].nunique() >= 3
    return rows.sort_values(["v_f", "n", "T"]) if spans else None


def headline(table: pd.DataFrame) -> int:
    sizes = sorted(table["n"].unique())
    return HEADLINE if HEADLINE in sizes else int(sizes[0])


def curves(rows: pd.DataFrame, vary: str) -> list[tuple[float, pd.DataFrame]]:
    return [(value, part.sort_values("T")) for value, part in rows.groupby(vary)]


def curve_at(rows: pd.DataFrame, vary: str, value: float) -> pd.DataFrame | None:
    part = rows[np.isclose(rows[vary], value, rtol=1e-6, atol=0)].sort_values("T")
    return part if len(part) >= 3 else None


def minimum(curve: pd.DataFrame) -> pd.Series:
    return curve.loc[curve["forget_error"].idxmin()]


def lower(a: pd.Series, b: pd.Series) -> bool:
    """Forget Error at a below that at b by more than the standard error of the difference."""
    return bool(b["forget_error"] - a["forget_error"] > np.hypot(a["forget_se"], b["forget_se"]))


def minima(rows: pd.DataFrame, vary: str) -> dict[float, float]:
    return {value: float(minimum(curve)["T"]) for value, curve in curves(rows, vary)}


def best_at_one(curve: pd.DataFrame | None) -> tuple[bool, str] | None:
    if curve is None:
        return None
    best = minimum(curve)
    return not lower(best, curve.iloc[0]), three_points(curve, best)


def falls_throughout(curve: pd.DataFrame | None) -> tuple[bool, str] | None:
    if curve is None:
        return None
    rising = _steps(curve, "forget", +1)
    return not rising.any(), three_points(curve, minimum(curve))


def rises_everywhere(rows: pd.DataFrame, vary: str) -> tuple[bool, str] | None:
    told, fine = [], True
    for value, curve in curves(rows, vary):
        falling = _steps(curve, "retain", -1)
        low = curve.loc[curve["retain_error"].idxmin()]
        if falling.any():
            fine = False
            drop = curve["retain_error"].iloc[0] - low["retain_error"]
            told.append(f"{vary} = {value:g} least at T = {low['T']:g}, {drop:.4f} below T = 1")
    return fine, "; ".join(told) or "no fall in any curve"


def _steps(curve: pd.DataFrame, side: str, sign: int) -> np.ndarray:
    """Where mean and median both move in the direction `sign` from one T to the next."""
    moves = [sign * np.diff(curve[f"{side}_{what}"]) > 1e-9 for what in ("error", "median")]
    return moves[0] & moves[1]


def three_points(curve: pd.DataFrame, best: pd.Series) -> str:
    points = {float(row["T"]): row for row in (curve.iloc[0], best, curve.iloc[-1])}
    shown = [f"{row['forget_error']:.3g} ± {row['forget_se']:.1g} at T = {T:g}" for T, row in sorted(points.items())]
    return "Forget Error " + ", ".join(shown)


def pairs(values: dict[float, float], name: str) -> str:
    return ", ".join(f"{name} = {key:g}: {value:.3g}" for key, value in values.items())
