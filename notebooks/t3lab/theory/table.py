"""The tables `bounds` and `bounds_fixed_tau`: every bound of the paper beside the error it bounds.

The errors are those of fitted classifiers. Columns: bound, gamma, v_f, T, k, tau, delta, value,
error, holds. An upper bound holds when error ≤ value, a lower bound (Theorem 3.5, Lemma A.2) when
error ≥ value. Cells that do not apply are empty.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from t3lab.theory.experiments import SEARCH_TRIALS, V_F, sample, select_lambda
from t3lib import theory
from t3lib.core.files import project_root
from t3lib.theory.mixture import GaussianMixture
from t3lib.theory.quadrature import Array

LOWER = ("Theorem 3.5", "Lemma A.2")
GAMMAS = (0.02, 0.1, 0.3)
CPU_VOCABULARY = 2048  # tokens of profile cpu
N = 50  # number of samples in a data set
COLUMNS = ["bound", "gamma", "v_f", "T", "k", "tau", "delta", "value", "error", "holds"]
ROUNDING = 1e-9  # relative; where bound and error are equal (the witness), they differ by rounding


def bounds_table(
    gammas: Sequence[float] = GAMMAS,
    v_f: Sequence[float] = V_F,
    T: Sequence[float] = (1.0, 1.5, 2.0, 3.0),
    classifiers: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Return one row for each bound, mixture, temperature and classifier.

    gammas, v_f: of the mixtures. T: temperatures. classifiers: number fitted to each mixture, each
    on `N` samples with a λ tuned as in Appendix E.

    Theorems 3.7 and 3.8 are evaluated at the τ that solves the equation in their proof, and 3.7
    with k = T + 1. The witness of Theorem 3.5 has uniform densities with the mixture's peak, and
    the fitted classifiers' δ. Proposition C.1 bounds a mean, so it has one row for each mixture:
    the mean excess risk of 200 fits with the λ of the proposition.
    """
    frames = []
    for mixture, phi, rng in _fitted(gammas, v_f, classifiers, seed):
        gamma, peak, delta = (
            mixture.gamma,
            mixture.peak_forget(),
            np.asarray(mixture.excess_risk(phi)),
        )

        retain, forget = mixture.errors(phi, 1.0)
        lower, leak = (
            theory.forget_lower_bound(delta, gamma, peak),
            theory.witness(delta, gamma, peak).forget_error,
        )
        rows = [
            _rows(
                "Theorem 3.3", delta, theory.bound_retain_untempered(delta, gamma), retain, T=1.0
            ),
            _rows(
                "Theorem 3.4",
                delta,
                theory.bound_forget_untempered(delta, gamma, peak),
                forget,
                T=1.0,
            ),
            _rows("Theorem 3.5", delta, lower, leak, T=1.0),
            _rows(
                "Lemma A.1",
                delta,
                theory.bound_classifier_l1(delta),
                theory.classifier_l1(mixture, phi),
            ),
        ]
        for t in T:
            floor = theory.bound_partition(delta, gamma, t, mixture.entropy_retain())
            rows.append(_rows("Lemma A.2", delta, floor, mixture.partition(phi, t), T=t))
            stars = theory.tau_star_forget(mixture, t), theory.tau_star_retain(mixture, phi, t)
            rows += _tempered(mixture, phi, delta, t, *stars)
        # Proposition C.1 bounds a mean over data sets
        norm, moment = float(np.linalg.norm(mixture.phi_star)), mixture.second_moment()
        lam = float(theory.logistic_lambda(norm, moment, N))
        mean = np.mean(mixture.excess_risk(theory.fit_logistic(*sample(mixture, N, 200, rng), lam)))
        value = theory.bound_logistic_excess_risk(norm, moment, N)
        rows.append(_rows(f"Proposition C.1, n = {N}", [mean], value, mean))
        frames.append(pd.concat(rows).assign(gamma=gamma, v_f=mixture.v_f))

    return _judged(frames)


def fixed_tau_table(
    gammas: Sequence[float] = GAMMAS,
    v_f: Sequence[float] = V_F,
    T: Sequence[float] = (1.5, 2.0, 3.0),
    classifiers: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Return rows like those of `bounds`, for Theorems 3.7 and 3.8 at τ = 1 and at τ = T.

    The theorems promise their bounds for some τ in [1, T] only, so here a bound may fail to hold.
    """
    frames = []
    for mixture, phi, _ in _fitted(gammas, v_f, classifiers, seed):
        delta = np.asarray(mixture.excess_risk(phi))
        rows = [
            row
            for t in T
            for tau in (1.0, t)
            for row in _tempered(mixture, phi, delta, t, tau, tau)
        ]
        frames.append(pd.concat(rows).assign(gamma=mixture.gamma, v_f=mixture.v_f))
    return _judged(frames)


def _fitted(
    gammas: Sequence[float], v_f: Sequence[float], classifiers: int, seed: int
) -> Iterator[tuple[GaussianMixture, Array, np.random.Generator]]:
    """Yield each mixture with classifiers fitted to it, and the generator that drew their data."""
    for gamma, v in product(gammas, v_f):
        mixture, rng = GaussianMixture(gamma=gamma, v_f=v), np.random.default_rng((seed, N))
        lam = select_lambda(mixture, *sample(mixture, N, SEARCH_TRIALS, rng))
        yield mixture, theory.fit_logistic(*sample(mixture, N, classifiers, rng), lam), rng


def _tempered(
    mixture: GaussianMixture,
    phi: Array,
    delta: Array,
    T: float,
    tau_forget: float,
    tau_retain: ArrayLike,
) -> list[pd.DataFrame]:
    retain, forget = mixture.errors(phi, T)
    value = theory.bound_forget_tempered(mixture, delta, T, T + 1, tau_forget)
    first = _rows("Theorem 3.7", delta, value, forget, T=T, k=T + 1, tau=tau_forget)
    value = theory.bound_retain_tempered(mixture, delta, T, tau_retain)
    return [first, _rows("Theorem 3.8", delta, value, retain, T=T, tau=tau_retain)]


def _rows(
    bound: str, delta: ArrayLike, value: ArrayLike, error: ArrayLike, **settings: ArrayLike
) -> pd.DataFrame:
    """Return one row for each element of delta; missing settings stay empty."""
    columns = (
        dict.fromkeys(("T", "k", "tau"), np.nan)
        | {"delta": delta, "value": value, "error": error}
        | settings
    )
    return pd.DataFrame(columns).assign(bound=bound)


def _judged(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Join tables and fill in the column `holds`."""
    table = pd.concat(frames, ignore_index=True)
    upper_holds, lower_holds = table["error"] <= table["value"], table["error"] >= table["value"]
    equal = np.isclose(table["error"], table["value"], rtol=ROUNDING, atol=0)
    return table.assign(
        holds=np.where(table["bound"].isin(LOWER), lower_holds, upper_holds) | equal
    )[COLUMNS]


def measured_price() -> pd.DataFrame:
    """Return what tempering adds to the Retain Error of T3 at profile `cpu`, 10% split: T, the
    Retain Error less that at T = 1 of the same head, as means over worlds, and the vocabulary V.

    From studies/cpu-worlds/tables/errors.csv; the head is the one that was chosen for T = 3.
    """
    means = pd.read_csv(
        project_root() / "results" / "studies" / "cpu-worlds" / "tables" / "errors.csv"
    )
    means = means.query("split == 'forget10' and lr == 0.005 and w == 1 and gate == 1")
    price = means.set_index("temperature")["retain_error"].sort_index()
    price = (price - price[1.0])[[1.25, 1.5, 2.0, 3.0]]
    return price.rename_axis("T").reset_index().assign(V=CPU_VOCABULARY)
