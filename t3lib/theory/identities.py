"""Identities of Remark 3.2 (tails), Remark 3.6 (sharpening), Appendix B and Appendix D."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_softmax

from t3lib.core.errors import UserError
from t3lib.theory.checks import check_within
from t3lib.theory.quadrature import Array


def tilted(logp: ArrayLike, logf: ArrayLike, T: float = 1.0, sharpen: float = 1.0) -> Array:
    """ln p̂ for p̂ ∝ p^(1/T) f^w, w = `sharpen`, over the last axis   (Eq. 5; Remark 3.6).

    p^(1/T) f^w = (p f^(wT))^(1/T): tempering equals sharpening the classifier to the power wT and
    then tempering the result. A power keeps the order of probabilities, so the most likely token,
    and with it greedy text, depends on the product wT alone.
    """
    check_within("T", T, 0, open_=True)
    check_within("sharpen", sharpen, 0, open_=True)
    return log_softmax(
        np.asarray(logp, dtype=float) / T + sharpen * np.asarray(logf, dtype=float), axis=-1
    )


def density_ratio_under_imbalance(f: ArrayLike, mu: float, gamma: float) -> Array:
    """p_r / p = μ f_μ / ((μ − γ) f_μ + γ(1 − μ))   (Appendix D); any shape.

    f: f_μ, the classifier trained on a sample with forget share μ. gamma: forget share of the
    population.
    """
    check_within("mu", mu, 0, 1, open_=True)
    check_within("gamma", gamma, 0, 1, open_=True)
    f = np.asarray(f, dtype=float)
    check_within("f", f, -1e-12, 1 + 1e-12)  # a computed probability may exceed 1 by rounding
    return mu * f / ((mu - gamma) * f + gamma * (1 - mu))


def kl_of_temperature(logp: Array, T: float, weights: ArrayLike = 1.0) -> float:
    """KL(p^(T) ‖ p) for p^(T) ∝ p^(1/T), the radius C of the KL ball that belongs to T   (Eq. 24).

    logp (J,): log probabilities, or log densities at quadrature nodes with these weights.
    """
    check_within("T", T, 1)
    mass = np.asarray(weights) * np.exp((logp - logp.max()) / T)
    q = mass / mass.sum()
    # At a node ln q − ln p = (1/T − 1) ln p − ln Z; the weights cancel.
    log_z = np.log(mass.sum()) + logp.max() / T
    return float((q * ((1 / T - 1) * logp)).sum() - log_z)


def temperature_of_kl(logp: Array, radius: float, weights: ArrayLike = 1.0) -> float:
    """T(C): argmax H(μ) subject to KL(μ ‖ p) ≤ C is p^(1/T(C)), normalised   (Eq. 24, Appendix B).

    logp, weights: see `kl_of_temperature`. radius: C ≥ 0. inf if even the uniform distribution lies
    in the ball.
    """
    check_within("radius", radius, 0)
    if radius == 0.0:
        return 1.0
    if kl_of_temperature(logp, 1e12, weights) <= radius:
        return float("inf")
    return float(
        1
        / brentq(lambda a: kl_of_temperature(logp, 1 / a, weights) - radius, 1e-12, 1.0, xtol=1e-15)
    )


def tempered_mass(logp: Callable[[float], float], T: float) -> float:
    """∫ p^(1/T) over the real line for any log density   (Remark 3.2).

    UserError if it diverges: a power tail |z|^(−α) needs α > T.
    """
    check_within("T", T, 1)
    for side in (-1.0, 1.0):
        tail = (logp(side * 1e9) - logp(side * 1e6)) / np.log(1e3)  # d ln p / d ln |z| far out
        if tail / T >= -1.0 - 1e-6:
            raise UserError(
                f"T = {T!r}: ∫ p^(1/T) diverges, for p falls only like |z|^{tail:.3g}; take T <"
                f" {-tail:.3g}"
            )
    value, _ = quad(
        lambda u: np.exp(logp(np.sinh(u)) / T) * np.cosh(u),
        -300,
        300,
        limit=2000,
        epsabs=0,
        epsrel=1e-10,
    )
    return float(value)
