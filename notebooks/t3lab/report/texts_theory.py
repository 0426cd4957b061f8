"""Say in words what the tables of notebook 01 show."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from t3lib.theory.mixture import GaussianMixture

KNOWS_NOTHING = np.array([np.log(9), 0, 0])  # a classifier with f = 0.9 everywhere


def findings(first: pd.DataFrame, best: pd.DataFrame, bounds: pd.DataFrame) -> str:
    """Write three findings as a numbered Markdown list: the best T, the best λ, loose bounds.

    first: rows of `synthetic` of Experiment 1 at one n. best: rows of `alternatives`, at each
    (v_f, n, λ) the one with the T of smallest Forget Error at w = 1. bounds: the table `bounds`.
    """
    v_f, n = first["v_f"].min(), first["n"].iloc[0]
    curve = first[(first["method"] == "exact") & (first["v_f"] == v_f)].set_index("T")
    cold, hot = curve.loc[1.0], curve.loc[curve["forget_error"].idxmin()]
    least = best[best["least_risk"]].set_index(["v_f", "n"])["forget_error"]
    gain = (least / best.groupby(["v_f", "n"])["forget_error"].min()).sort_values()
    (v, size), most = gain.index[-1], gain.iloc[-1]
    here = best[(best["v_f"] == v) & (best["n"] == size)].sort_values("forget_error")
    retain = here.set_index("least_risk")["retain_error"]
    flat = float(GaussianMixture(v_f=v).forget_error(KNOWS_NOTHING, 4.0))
    times = (bounds["value"] / bounds["error"]).groupby(bounds["bound"].str.split(",").str[0])
    loose = ", ".join(
        f"{times.median()[name]:.0f} times {'the error ' * (place == 0)}in {name}"
        for place, name in enumerate(("Theorem 3.4", "Theorem 3.7", "Proposition C.1"))
    )
    return (
        "1. Where the spike is sharp, tempering does what the paper says: with v_f ="
        f" {v_f:g} and n = {n}, T = {hot.name:g} lowers the Forget Error from"
        f" {cold['forget_error']:.2g} to {hot['forget_error']:.2g} and raises the Retain Error from"
        f" {cold['retain_error']:.2g} to {hot['retain_error']:.2g}.\n"
        f"2. The Forget Error alone rewards flattening: with v_f = {v:g} and n = {size} another λ,"
        f" at its best T, has a Forget Error {most:.1f} times lower and a Retain Error of"
        f" {retain.iloc[0]:.2g} instead of {retain.loc[True]:.2g}. A classifier that knows nothing"
        f" has a Forget Error of {flat:.2g} at T = 4.\n"
        f"3. Every bound holds in all {len(bounds)} cases, and three are loose: the median bound is"
        f" {loose}."
    )


def untilted(v_f: float) -> float:
    """Return the Forget Error of p itself, with no classifier, where p_f has the variance v_f."""
    return float(GaussianMixture(v_f=v_f).forget_error(KNOWS_NOTHING, 1.0))


def evidence(panels: Mapping[str, pd.DataFrame], n: int) -> dict[str, str]:
    """Write what is shown beside the verdict on each of the paper's sentences, by claim.

    panels: {"n = 25": rows by v_f, …, "every n": rows by n}, with the columns (measure, T). n: the
    one of which errors are shown.
    """
    least = pd.DataFrame(
        {case: rows["forget_error"].idxmin(axis=1) for case, rows in panels.items() if "=" in case}
    )
    by_v_f = (f"{v:g}: {', '.join(f'{T:g}' for T in row)}" for v, row in least.iterrows())
    best = f"T of the least Forget Error at {', '.join(least)}, by v_f: {'; '.join(by_v_f)}"
    shown = panels[f"n = {n}"]["forget_error"]
    tilted = (f"{v:g}: {untilted(v):.3g} → {cold:.3g}" for v, cold in shown[1.0].items())
    return dict.fromkeys(
        ("e1-sharp-monotone", "e1-middle-tradeoff", "e1-flat-untempered", "e1-hotter"), best
    ) | {
        "guidance-can-fail": f"Forget Error of p → with f, T = 1, n = {n}, by v_f: "
        + ", ".join(tilted),
        "e1-flat-sensitive": _over_T(panels[f"n = {n}"], "retain_error"),
        "retain-rises": _over_T(panels["every n"], "retain_error"),
        "e2-best-t": _over_T(panels["every n"], "forget_error"),
        "e2-untempered": _over_T(panels["every n"], "forget_error"),
    }


def _over_T(rows: pd.DataFrame, measure: str) -> str:
    """Write the values of a measure at T = 1, where they are least, and at the highest T."""
    error = rows[measure]
    ends = zip(error.index, error.iloc[:, 0], error.min(axis=1), error.idxmin(axis=1))
    parts = [
        f"{value:g}: {cold:.3g} → {low:.3g} (T = {T:g}) → {hot:.3g}"
        for (value, cold, low, T), hot in zip(ends, error.iloc[:, -1])
    ]
    over = f"T = 1 → least → T = {error.columns[-1]:g}, by {error.index.name}"
    return f"{measure.replace('_', ' ').title()} at {over}: {', '.join(parts)}"
