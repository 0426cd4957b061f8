"""The paper's own computation of the errors (Appendix E), by Monte Carlo, with standard errors."""

from typing import NamedTuple

import numpy as np

from t3lib.core.errors import UserError
from t3lib.theory.checks import check_within
from t3lib.theory.mixture import METHODS, Classifier, GaussianMixture, as_batch, log_probabilities


class Estimate(NamedTuple):
    """Monte Carlo estimates of partition function and errors, with their standard errors.

    Those of the Retain and the Forget Error include the noise of the partition function.
    """

    partition: float
    partition_se: float
    retain: float
    retain_se: float
    forget: float
    forget_se: float


def monte_carlo_errors(
    mixture: GaussianMixture,
    phi: Classifier,
    T: float,
    samples: int,
    rng: np.random.Generator,
    method: str = "negligible_overlap",
) -> Estimate:
    """Estimate N_T, the Retain Error and the Forget Error from `samples` draws each   (Appendix E).

    phi: one classifier. rng: source of the draws. method: see `mixture`.

    p^(1/T) of a Gaussian is √T (2πv)^((T−1)/2T) N(μ, T v), so both tempered parts are sampled
    exactly, and N̂_T = c · mean f̂(z). method="exact" reweights the same draws by p^(1/T) /
    (the sum of the two parts).
    """
    check_within("T", T, 1)
    check_within("samples", samples, 2)
    if method not in METHODS:
        raise UserError(f"method must be one of {METHODS}, got {method!r}")
    classifier = as_batch(phi)

    def logf(z: np.ndarray) -> np.ndarray:
        return log_probabilities(classifier, z[None])[0][0]

    parts = [
        (1 - mixture.gamma, mixture.mu_r, mixture.v_r),
        (mixture.gamma, mixture.mu_f, mixture.v_f),
    ]
    mass = np.array(
        [g ** (1 / T) * np.sqrt(T) * (2 * np.pi * v) ** ((T - 1) / (2 * T)) for g, _, v in parts]
    )
    is_forget = rng.random(samples) < mass[1] / mass.sum()
    means, scales = np.array([m for _, m, _ in parts]), np.sqrt([T * v for _, _, v in parts])
    z = means[is_forget.astype(int)] + scales[is_forget.astype(int)] * rng.standard_normal(samples)
    values = mass.sum() * np.exp(logf(z))
    if method == "exact":
        values *= np.exp(mixture.logp(z) / T) / sum(
            np.exp(part / T) for part in mixture.log_parts(z)
        )
    partition, partition_se = values.mean(), values.std(ddof=1) / np.sqrt(samples)
    relative = partition_se / partition

    z = mixture.mu_r + np.sqrt(mixture.v_r) * rng.standard_normal(samples)
    ratios = mixture.logp_r(z) - mixture.logp(z) / T - logf(z) + np.log(partition)
    retain_se = np.hypot(ratios.std(ddof=1) / np.sqrt(samples), relative)

    z = mixture.mu_f + np.sqrt(mixture.v_f) * rng.standard_normal(samples)
    p_hat = np.exp(mixture.logp(z) / T + logf(z)) / partition
    gap = np.exp(mixture.logp_r(z)) - p_hat
    through_partition = (
        abs((np.sign(gap) * p_hat).mean()) * relative
    )  # d|gap| / d ln N = sign(gap) p̂
    forget_se = np.hypot(np.abs(gap).std(ddof=1) / np.sqrt(samples), through_partition)
    numbers = (partition, partition_se, ratios.mean(), retain_se, np.abs(gap).mean(), forget_se)
    return Estimate(*(float(number) for number in numbers))
