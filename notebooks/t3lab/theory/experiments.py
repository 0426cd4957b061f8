"""Experiments 1 and 2 of the paper (Appendix E) as tables.

For every (n, v_f), λ is chosen on 10 data sets by mean population risk. Then classifiers are fitted
to 200 new data sets, and their Retain and Forget Errors at every temperature are computed by
quadrature, with the true partition function ("exact") and with the paper's approximation
("negligible_overlap"). Experiment 1 varies v_f at a fixed n, which the paper does not give.
Experiment 2 varies n at v_f = 1e-3. Every v_f uses the same labels and standard normal draws, so
curves differ by v_f alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import sem

from t3lib.theory.checks import check_within
from t3lib.theory.logistic import fit_logistic
from t3lib.theory.mixture import METHODS, GaussianMixture
from t3lib.theory.quadrature import Array

# from 1e-10, because 1e-6 would be chosen as the smallest for small v_f and large n
LAMBDAS = 10.0 ** np.arange(-10, 0.25, 0.5)
V_F = (1e-6, 1e-3, 1.0)
N = (25, 50, 100, 200, 400)
SEARCH_TRIALS = 10  # number of data sets for choosing λ
TEMPERATURES = np.linspace(1.0, 3.0, 9)  # the paper's range in steps of 0.25
COLUMNS = ["experiment", "v_f", "n", "T", "method"] + [
    f"{side}_{what}" for side in ("retain", "forget") for what in ("error", "se", "median")
]


@dataclass(frozen=True)
class Fits:
    """All trials at one (n, v_f).

    lam: the λ chosen. z, s (trials, n): the data sets. phi (trials, 3): their classifiers. delta
    (trials,): excess risks, in nats.
    """

    mixture: GaussianMixture
    lam: float
    z: Array
    s: Array
    phi: Array
    delta: Array


def sample(
    mixture: GaussianMixture, n: int, trials: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw data sets of n pairs: s ~ Bernoulli(1 − γ), z ~ p_r or p_f   (Appendix E).

    Returns z and s, both (trials, n); s is 1 for retain.
    """
    check_within("n", n, 1)
    check_within("trials", trials, 1)
    s = (rng.random((trials, n)) < 1 - mixture.gamma).astype(float)
    noise = rng.standard_normal((trials, n))
    retain, forget = (
        mixture.mu_r + np.sqrt(mixture.v_r) * noise,
        mixture.mu_f + np.sqrt(mixture.v_f) * noise,
    )
    return np.where(s == 1, retain, forget), s


def select_lambda(
    mixture: GaussianMixture, z: Array, s: Array, lambdas: ArrayLike = LAMBDAS
) -> float:
    """Return the λ with the least mean population risk over the data sets z, s (trials, n)."""
    grid = np.asarray(lambdas, dtype=float)
    phi = fit_logistic(
        np.tile(z, (len(grid), 1)), np.tile(s, (len(grid), 1)), np.repeat(grid, len(z))
    )
    # L(φ) minus a constant
    risk = np.asarray(mixture.excess_risk(phi)).reshape(len(grid), len(z)).mean(axis=1)
    return float(grid[np.argmin(risk)])


def fit_trials(mixture: GaussianMixture, n: int, trials: int = 200, seed: int = 0) -> Fits:
    """Choose λ on `SEARCH_TRIALS` data sets, then fit `trials` new ones.

    The random draws depend on seed and n only, so they are the same for every v_f.
    """
    rng = np.random.default_rng((seed, n))
    lam = select_lambda(mixture, *sample(mixture, n, SEARCH_TRIALS, rng))
    z, s = sample(mixture, n, trials, rng)
    phi = fit_logistic(z, s, lam)
    return Fits(mixture, lam, z, s, phi, np.asarray(mixture.excess_risk(phi)))


def summarise(errors: dict[str, tuple[Array, Array]], T: ArrayLike) -> pd.DataFrame:
    """Return mean, standard error and median over trials, one row for each (method, T).

    errors: {method: (retain, forget)}, each (trials, K). T: the K temperatures.
    """
    parts = {}
    for method, sides in errors.items():
        stats = [
            pd.DataFrame(side, columns=np.asarray(T)).agg(["mean", "sem", "median"]).T
            for side in sides
        ]
        parts[method] = pd.concat(stats, axis=1).set_axis(COLUMNS[5:], axis=1)
    return pd.concat(parts, names=["method", "T"]).reset_index()


def experiments(
    n_first: Sequence[int] = (50,),
    n_second: Sequence[int] = N,
    v_f: Sequence[float] = V_F,
    T: ArrayLike = TEMPERATURES,
    trials: int = 200,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run Experiment 1 at every n of n_first and Experiment 2 at every n of n_second.

    Returns the tables `synthetic` (errors) and `synthetic_cells`. The latter has one row for each
    (v_f, n): lam, delta_mean, delta_median, single_class (share of data sets with one class only).
    What both experiments need is computed once.
    """
    wanted = [(1, v, n) for n in n_first for v in v_f] + [
        (2, GaussianMixture.v_f, n) for n in n_second
    ]
    done: dict[tuple[float, int], pd.DataFrame] = {}
    cells, tables = [], []

    for experiment, v, n in wanted:
        if (v, n) not in done:
            here = fit_trials(GaussianMixture(v_f=v), n, trials, seed)
            errors = here.mixture.errors_by_method(here.phi, T, METHODS)
            arrays = {
                way: (np.asarray(retain), np.asarray(forget))
                for way, (retain, forget) in errors.items()
            }
            done[v, n] = summarise(arrays, T)
            one_class = float((here.s.min(axis=1) == here.s.max(axis=1)).mean())
            cells.append((v, n, here.lam, here.delta.mean(), np.median(here.delta), one_class))
        tables.append(done[v, n].assign(experiment=experiment, v_f=v, n=n))

    names = ["v_f", "n", "lam", "delta_mean", "delta_median", "single_class"]

    return pd.concat(tables, ignore_index=True)[COLUMNS], pd.DataFrame(cells, columns=names)


def alternatives(
    n: Sequence[int] = (50, 100, 400),
    v_f: Sequence[float] = (1e-6, 1e-3),
    T: Sequence[float] = (1.0, 1.5, 2.0, 2.5, 3.0),
    w: Sequence[float] = (1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0),
    trials: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    """The table `alternatives`: other ways than tempering to lower the Forget Error.

    One row for each (v_f, n, lam, T, w). It holds the classifiers of every whole decade of λ and of
    the λ of least risk (column least_risk), at every T with w = 1. The latter are also sharpened to
    f^w at T = 1 (Remark 3.6). delta is their mean excess risk; retain_error, forget_error and
    forget_se are over trials, all on the same data sets.
    """
    rows = []
    for v, size in product(v_f, n):
        here = fit_trials(GaussianMixture(v_f=v), size, trials, seed)
        for lam in sorted({*LAMBDAS[::2], here.lam}):
            phi = here.phi if lam == here.lam else fit_logistic(here.z, here.s, lam)
            delta, least = float(np.mean(here.mixture.excess_risk(phi))), lam == here.lam
            tries = [(T, 1.0), *(([1.0], power) for power in w if least)]
            for temperatures, power in tries:
                retain, forget = here.mixture.errors(phi, temperatures, sharpen=power)
                means = np.mean(retain, axis=0), np.mean(forget, axis=0), sem(forget)
                stats = zip(temperatures, *means, strict=True)
                rows += [(v, size, lam, least, t, power, delta, *numbers) for t, *numbers in stats]

    columns = [
        "v_f",
        "n",
        "lam",
        "least_risk",
        "T",
        "w",
        "delta",
        "retain_error",
        "forget_error",
        "forget_se",
    ]
    return pd.DataFrame(rows, columns=columns)


def best_temperature(table: pd.DataFrame) -> pd.DataFrame:
    """Return the T with the least mean Forget Error in each (experiment, method, v_f, n).

    table: `synthetic` of `experiments`. The result has both mean errors at that T.
    """
    keys = ["experiment", "method", "v_f", "n"]
    rows = table.loc[table.groupby(keys)["forget_error"].idxmin()]
    return rows[[*keys, "T", "forget_error", "retain_error"]].reset_index(drop=True)


def example(trials: int = 200, seed: int = 0) -> tuple[Fits, int]:
    """Return the fits of Figures 4 and 5 (n = 25, v_f = 1e-3), and the index of the trial to show.

    That trial has data of both classes and the excess risk nearest to the median.
    """
    here = fit_trials(GaussianMixture(), 25, trials, seed)
    distance = np.where(
        here.s.min(axis=1) < here.s.max(axis=1), np.abs(here.delta - np.median(here.delta)), np.inf
    )
    return here, int(np.argmin(distance))
