"""The sliders of notebook 00_explore on Gaussians: classifiers and errors of Appendix E, stored."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from t3lab.explore import widget
from t3lab.report.render import Html
from t3lab.theory.experiments import sample
from t3lib.theory.logistic import fit_logistic
from t3lib.theory.mixture import GaussianMixture

T = tuple(round(1 + step / 10, 1) for step in range(21))  # 1, 1.1, … 3
V_F = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)  # variance of the spike
N = (25, 50, 100, 200, 400)  # samples
SEEDS = (0, 1, 2, 3)
START = (0, 1, 1, 0)  # the sliders' first places in these four
GAMMA, LAM = 0.1, 1e-6  # the spike's share of the mixture, and the weight decay λ
STORED = ("phi", "z", "retain", "forget")


def gaussians() -> Html:
    """Fit a classifier for each v_f, n and seed, and build sliders over these and over T.

    Of each are stored φ of f̂ (Eq. 3), and for every T: ln Z_T (Eq. 8) as `z`, and the Retain and
    the Forget Error (Eqs. 6 and 7). The n samples of a seed are the first n of its 400.
    """
    unit = GaussianMixture(gamma=GAMMA, v_f=1.0)
    drawn = [sample(unit, max(N), 1, np.random.default_rng(seed)) for seed in SEEDS]
    labels = np.concatenate([s for _, s in drawn])
    noise = np.concatenate([z for z, _ in drawn]) - labels  # p_r has the mean 1, p_f has 0
    fits: list[list[Any]] = [[] for _ in V_F]

    for (place, v_f), n in product(enumerate(V_F), N):
        mixture, s = GaussianMixture(gamma=GAMMA, v_f=v_f), labels[:, :n]
        phi = fit_logistic(s + noise[:, :n] * np.where(s == 1, 1, np.sqrt(v_f)), s, LAM)
        errors = map(np.asarray, mixture.errors(phi, T))
        found = phi, np.log(mixture.partition(phi, T)), *errors
        fits[place].append([dict(zip(STORED, map(_short, each))) for each in zip(*found)])

    first = fits[START[1]][START[2]][START[3]]
    static = pd.DataFrame(
        {"T": T, "Retain Error": first["retain"], "Forget Error": first["forget"]}
    )
    data = {"T": T, "v_f": V_F, "n": N, "seed": SEEDS, "start": START, "gamma": GAMMA, "fits": fits}
    data |= {"labels": labels.astype(int).tolist(), "noise": [_short(row, 4) for row in noise]}

    return widget.page("gaussians", static, **data)


def _short(values: np.ndarray, digits: int = 9) -> list[float]:
    """Round to so many significant digits, which JSON writes shortly."""
    return [float(f"{value:.{digits}g}") for value in values]
