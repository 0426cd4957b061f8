"""Decide the claims about the theory, from the tables of notebook 01 or by computing.

Each function is named like its claim, and its docstring says what must be true for the claim to
hold.

What is computed needs no results folder, takes milliseconds and is the same everywhere.
"""

from functools import cache, partial

import numpy as np
import pandas as pd

from t3lab.claims.findings import Finding, Missing, Tables
from t3lib import theory
from t3lib.theory.logistic import probability
from t3lib.theory.mixture import GaussianMixture
from t3lib.tofu.metrics import forget_quality_approximation, forget_quality_lattice

NEARLY_EQUAL = 0.5  # "effectively equating": within a factor of two
TS = (1.5, 2.0, 3.0)


# ---- bounds that the table `bounds` tries -------------------------------------------------------
def _rows(tables: Tables, *bounds: str) -> pd.DataFrame:
    rows = tables["bounds"][tables["bounds"]["bound"].isin(bounds)]
    if rows.empty:
        raise Missing("bounds")
    return rows


def thm_3_3_equal(tables: Tables) -> Finding:
    """At the smallest γ of the table `bounds`, the median ratio of Retain Error to the bound of
    Theorem 3.3 is at least one half.
    """
    rows = _rows(tables, "Theorem 3.3")
    rows = rows[rows["gamma"] == rows["gamma"].min()]
    ratio = rows["error"] / rows["value"]
    told = (
        f"γ = {rows['gamma'].iloc[0]:g}, {len(rows)} fitted classifiers: error/bound median"
        f" {ratio.median():.2g}"
    )
    return Finding(bool(ratio.median() >= NEARLY_EQUAL), told)


# ---- without tempering --------------------------------------------------------------------------
def tempering_proved_necessary(tables: Tables) -> Finding:
    """At T = 1, two classifiers with the same excess risk both leak, although one errs only on
    retain samples and the other only on forget samples.

    The first must have at least a tenth of the second's Forget Error.
    """
    m, delta = GaussianMixture(v_f=1e-6), 1e-2
    low, high = -np.expm1(-delta / (1 - m.gamma)), -np.expm1(-delta / m.gamma)
    best = partial(probability, m.phi_star)
    pair = {
        "(1 − a) f*": lambda z: (1 - low) * best(z),
        "f* + b (1 − f*)": lambda z: best(z) + high * (1 - best(z)),
    }
    risk = {name: float(np.asarray(m.excess_risk(f))) for name, f in pair.items()}
    harmless, leaky = leaks = [float(np.asarray(m.forget_error(f, 1.0))) for f in pair.values()]
    told = "; ".join(
        f"{name} δ = {risk[name]:.3f}, Forget Error {leak:.2g}" for name, leak in zip(pair, leaks)
    )
    return Finding(harmless > 0.1 * leaky, f"peak {m.peak_forget():.0f}, T = 1: {told}")


# ---- with tempering -----------------------------------------------------------------------------
def thm_3_7_improves(tables: Tables) -> Finding:
    """At γ = 0.1 and the sharpest p_f, the bound of Theorem 3.7, including its bias, is lower at
    some T > 1 than the bound of Theorem 3.4.
    """
    rows = _rows(tables, "Theorem 3.4", "Theorem 3.7")
    rows = rows[np.isclose(rows["gamma"], 0.1) & (rows["v_f"] == rows["v_f"].min())]
    medians = rows.groupby(["bound", "T"])[["value", "error"]].median()
    cold, tempered = medians.loc["Theorem 3.4"].iloc[0], medians.loc["Theorem 3.7"].query("T > 1")
    if tempered.empty:
        raise Missing("bounds")
    T = tempered["value"].idxmin()
    warm = tempered.loc[T]
    told = (
        f"bound {cold['value']:.3g} → {warm['value']:.3g}, error {cold['error']:.3g} →"
        f" {warm['error']:.2g}"
    )
    return Finding(bool(warm["value"] < cold["value"]), f"T = 1 → {T:g}: {told}")


def bias_grows(tables: Tables) -> Finding:
    """The Forget Error of the Bayes classifier is 0 at T = 1 and grows with T."""
    bias = {
        v: np.asarray((m := GaussianMixture(v_f=v)).forget_error(m.phi_star, [1.0, *TS]))
        for v in (1e-3, 1.0)
    }
    told = "; ".join(
        f"v_f = {v:g}: " + ", ".join(f"{b:.3f}" for b in values[1:]) for v, values in bias.items()
    )
    holds = all(bool((np.diff(values) > 0).all() and values[0] < 1e-9) for values in bias.values())
    return Finding(holds, f"Bayes classifier, Forget Error at T = 1.5, 2, 3: {told}")


def thm_3_8_entropy(tables: Tables) -> Finding:
    """The bias at δ = 0 and T = 2, and its bound, fall as the entropy H(p_r) grows.

    The same mixture is computed in other units: scaling it by s changes the entropy by ln s.
    """
    entropy, bias, bound = [], [], []
    for s in 10.0 ** np.arange(-2, 3):
        m = GaussianMixture(mu_r=s, v_r=s * s, v_f=1e-3 * s * s)
        entropy.append(m.entropy_retain())
        bias.append(float(np.asarray(m.retain_error(m.phi_star, 2.0))))
        bound.append(
            float(
                theory.bound_retain_tempered(
                    m, 0.0, 2.0, theory.tau_star_retain(m, m.phi_star, 2.0)
                )
            )
        )
    falls = all(bool((np.diff(values) < -1e-9).all()) for values in (bias, bound))
    shown = [" ".join(f"{value:.3g}" for value in values) for values in (entropy, bias, bound)]
    return Finding(falls, f"H = {shown[0]}: bias {shown[1]}; its bound {shown[2]}")


# ---- Appendices D to F --------------------------------------------------------------------------
_lattice = cache(forget_quality_lattice)  # 400 exact tests


def fq_formula(tables: Tables) -> Finding:
    """2 exp(−|D_f| D²) is the exact two-sample p-value within 0.05, for 400 rows."""
    exact = _lattice(400)
    apart = np.abs(forget_quality_approximation(400, np.arange(1, 401) / 400) - exact)
    limit, high = exact[apart <= 0.01].max(), apart[exact > 0.9].min()
    told = f"n = 400: within 0.01 up to FQ {limit:.2f}, off by {high:.2f} or more above 0.9"
    return Finding(bool(apart.max() <= 0.05), told)
