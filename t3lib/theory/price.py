"""What tempering costs: the Retain Error of p^(1/T)·f* when nothing else is wrong.

The paper bounds this price (Theorem 3.8). For a discrete distribution, such as a language model's
next token, it is an identity. With s = 1 − 1/T and the surprise X = −ln p(y) of a token y ~ p_r,

    KL(p_r ‖ p̂_T) = ln E e^(sX) − s E X         for p̂_T ∝ p^(1/T) f*,  f* ∝ p_r / p,

the cumulant function of the surprise less its mean. To second order it is s²/2 · Var X. These
functions are ours, in float64, over the last axis of arrays of log-probabilities.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, xlogy

from t3lib.theory.checks import check_within
from t3lib.theory.quadrature import Array


def tempering_price(logp: ArrayLike, T: float, logp_r: ArrayLike | None = None) -> Array:
    """KL(p_r ‖ p̂_T) = ln Σ_y p_r(y) p(y)^(−s) + s Σ_y p_r(y) ln p(y),   s = 1 − 1/T.

    logp: (..., V) log-probabilities of the base. logp_r: those of p_r, by default the base's own,
    which is the case far from the rows to forget: then it is ln Σ_y p(y)^(1/T) − s H(p).
    Returns nats (...), 0 for T = 1.
    """
    check_within("T", T, 1)
    s, logp = 1 - 1 / T, np.asarray(logp, dtype=float)
    logp_r = logp if logp_r is None else np.asarray(logp_r, dtype=float)
    surprise = np.where(np.isneginf(logp_r), 0.0, -logp)  # 0 · ∞ = 0 where p_r is 0
    mean = (np.exp(logp_r) * surprise).sum(-1)
    return np.asarray(logsumexp(logp_r + s * surprise, axis=-1) - s * mean)


def memorised_price_bound(epsilon: ArrayLike, V: ArrayLike, T: float) -> Array:
    """ln(1 + V^(1 − 1/T) ε^(1/T)), an upper bound of `tempering_price` for a memorised token.

    epsilon: the probability that is left for all other tokens together. V: their number. So the
    price is paid in the tail, and it grows with the vocabulary. It is nearly reached where the rest
    is spread evenly.
    """
    check_within("T", T, 1)
    check_within("epsilon", epsilon, 0, 1)
    epsilon, V = np.asarray(epsilon, dtype=float), np.asarray(V, dtype=float)
    return np.asarray(np.log1p(V ** (1 - 1 / T) * epsilon ** (1 / T)))


def tail_price_bound(tail: ArrayLike, T: float) -> Array:
    """(1 − 1/T) ln(1/ε), an upper bound of the price of tempering that keeps the tail, at any V.

    tail: ε of `sampler.tilt.tempered`, which tempers tokens above ε · max_y p(y) alone. Each
    probability then falls at most by the factor ε^(1 − 1/T), and the bound follows.
    """
    check_within("T", T, 1)
    check_within("tail", tail, 0, 1, open_=False)
    return np.asarray(xlogy(-(1 - 1 / T), tail))  # 0 for T = 1, also where the tail is 0
