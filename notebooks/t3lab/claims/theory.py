"""Decide the claims about the theory, from the tables of notebook 01 or by computing.

Each function but `in_notebook_01` is named like its claim, and its docstring says what must be true
for the claim to hold.

What is computed needs no results folder, takes milliseconds and is the same everywhere.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from t3lab.claims.findings import Finding, Missing, Tables
from t3lab.theory.experiments import V_F
from t3lib.theory.mixture import GaussianMixture
from t3lib.theory.price import tempering_price

TS = (1.5, 2.0, 3.0)
EPSILON = np.array([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.2, 0.3, 0.5, 0.9])
VOCABULARIES = (2_048, 49_152, 128_256)  # of profile cpu, of SmolLM2 and of the paper's model
SURE = 2  # standard errors of a difference that count as beyond chance


# ---- Figures 2 and 3: the table `gaussians` ------------------------------------------------------
def in_notebook_01(claim: str) -> Callable[[Tables], Finding]:
    """Return a check that reads what notebook 01 found about one sentence of Appendix E.

    claim: an id in the table `gaussians`. Without its row the claim stays undecided.
    """

    def check(tables: Tables) -> Finding:
        rows = tables["gaussians"].fillna({"under": ""}).set_index("id")
        if claim not in rows.index:
            raise Missing("gaussians")
        row = rows.loc[claim]
        return Finding(bool(row["holds"]), str(row["numbers"]), under=str(row["under"]))

    return check


# ---- without tempering: the table `alternatives` ------------------------------------------------
def _lowest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row with the lowest Forget Error for each n, by n."""
    return rows.loc[rows.groupby("n")["forget_error"].idxmin()].set_index("n")


def _at_every_n(gap: pd.Series, told: str) -> Finding:
    """Decide a claim that must be true at every number of samples n.

    gap: for each n, the difference that the claim needs, in standard errors; it is true above
    `SURE`. told: the evidence in words.
    """
    sure = [str(n) for n, each in gap.items() if each > SURE]
    holds = len(sure) == len(gap)
    return Finding(holds, told, under="" if holds or not sure else f"at n = {', '.join(sure)}")


def tempering_necessary(tables: Tables) -> Finding:
    """For the sharpest p_f no untempered estimator has as low a Forget Error as tempering has, at
    any λ or strength w, at every n.

    Tempering has the λ of least risk and its best T. Lower counts beyond `SURE` standard errors of
    the difference, as if both had data sets of their own. If it is true at some n only, the Finding
    names them.
    """
    rows = tables["alternatives"]
    rows = rows[rows["v_f"] == rows["v_f"].min()]
    cold, warm = _lowest(rows[rows["T"] == 1]), _lowest(rows[rows["least_risk"] & (rows["T"] > 1)])
    error = np.hypot(cold["forget_se"], warm["forget_se"])
    told = "; ".join(
        f"n = {n}: {one['forget_error']:.3g} at T = 1 (w = {one['w']:g}, Retain Error"
        f" {one['retain_error']:.2g}), {other['forget_error']:.3g} at T = {other['T']:g}"
        f" ({other['retain_error']:.2g})"
        for (n, one), (_, other) in zip(cold.iterrows(), warm.iterrows())
    )
    gap = (cold["forget_error"] - warm["forget_error"]) / error
    return _at_every_n(gap, f"Forget Error {told}")


def sharpening_limited(tables: Tables) -> Finding:
    """At T = 1 no strength w makes the Forget Error for the sharpest p_f as low as for the flattest
    of the table at the same w, at no more Retain Error than tempering has at its best T, at any n.
    Higher counts beyond `SURE` standard errors. If it is true at some n only, the Finding names
    them.
    """
    rows = tables["alternatives"][lambda rows: rows["least_risk"]]
    sharp, flat = (rows[rows["v_f"] == v] for v in (rows["v_f"].min(), rows["v_f"].max()))
    # the Retain Error that tempering pays at its best T
    most = sharp["n"].map(_lowest(sharp[sharp["T"] > 1])["retain_error"])
    paid = sharp[(sharp["T"] == 1) & (sharp["retain_error"] <= most)]
    both = paid.merge(flat, on=["n", "T", "w"], suffixes=("", "_flat"))
    error = np.hypot(both["forget_se"], both["forget_se_flat"])
    gap = (both["forget_error"] - both["forget_error_flat"]) / error
    told = "; ".join(
        f"n = {row['n']}, w = {row['w']:g}: {row['forget_error']:.3g} against"
        f" {row['forget_error_flat']:.3g}"
        for row in both.loc[gap.groupby(both["n"]).idxmin()].to_dict("records")
    )
    kinds = f"v_f = {sharp['v_f'].iloc[0]:g} against {flat['v_f'].iloc[0]:g}"
    return _at_every_n(gap.groupby(both["n"]).min(), f"Forget Error for {kinds}: {told}")


# ---- with tempering -----------------------------------------------------------------------------
def thm_3_7_improves(tables: Tables) -> Finding:
    """For the sharpest p_f, the bound of Theorem 3.7, including its bias, is lower at some T > 1
    than the bound of Theorem 3.4, at every γ. For wider p_f it need not be; where it is is told.
    """
    medians = tables["bounds"].groupby(["bound", "v_f", "gamma", "T"])["value"].median()
    cold = medians["Theorem 3.4"].droplevel("T")
    warm = medians["Theorem 3.7"].drop(index=1.0, level="T").groupby(["v_f", "gamma"]).min()
    told = "; ".join(
        f"v_f = {v:g}: "
        + ", ".join(
            f"{before:.3g} → {warm[v, gamma]:.3g} (γ = {gamma:g})" for gamma, before in part
        )
        for v, part in ((v, cold[v].items()) for v in cold.index.unique("v_f"))
    )
    sharpest = cold.index.unique("v_f").min()
    better = warm[sharpest] < cold[sharpest]
    return Finding(bool(better.all()), f"bound at T = 1 → least at T > 1: {told}")


def thm_3_8_entropy(tables: Tables) -> Finding:
    """The Retain Error at δ = 0, which tempering alone adds, falls as the entropy H(p_r) grows.

    p_r = N(1, v_r) becomes wider, from v_r = 1/4 to 4, and p_f stays; at every v_f of Appendix E
    and at T = 1.5, 2 and 3.
    """
    holds, shown = True, []
    for v_f in V_F:
        each = [GaussianMixture(v_r=v_r, v_f=v_f) for v_r in 4.0 ** np.linspace(-1, 1, 5)]
        bias = np.array([np.asarray(m.retain_error(m.phi_star, TS)) for m in each])
        holds &= bool((np.diff(bias, axis=0) < 0).all())
        shown.append(f"v_f = {v_f:g}: {' '.join(f'{value:.3f}' for value in bias[:, 1])}")
    entropy = " ".join(f"{m.entropy_retain():.2f}" for m in each)
    return Finding(holds, f"H = {entropy}, Retain Error at T = {TS[1]:g}: {'; '.join(shown)}")


def thm_3_8_tokens(tables: Tables) -> Finding:
    """The same of a next token: one token has the probability 1 − ε, and V others share ε evenly.
    The price falls as ε grows from 1e-6 to 0.9, and with it the entropy, at every V of
    `VOCABULARIES` and at T = 1.5, 2 and 3. If it falls only from some ε on, the Finding names it.
    """
    falls, shown = np.ones(len(EPSILON) - 1, bool), []
    for V in VOCABULARIES:
        logp = np.repeat(np.log(EPSILON / V)[:, None], V + 1, axis=1)
        logp[:, 0] = np.log1p(-EPSILON)
        price = np.array([tempering_price(logp, T) for T in TS])
        falls &= (np.diff(price, axis=1) < 0).all(axis=0)
        shown.append(f"V = {V:,}: {' '.join(f'{value:.2f}' for value in price[1])}")
    told = f"ε = {' '.join(f'{each:g}' for each in EPSILON)}, Retain Error at T = {TS[1]:g}"
    first = len(falls) - int(np.cumprod(falls[::-1]).sum())  # from there on it falls
    under = f"from ε = {EPSILON[first]:g} on" * (0 < first < len(falls))
    return Finding(bool(falls.all()), f"{told}: {'; '.join(shown)}", under)
