"""Every bound and lemma of arXiv:2602.10217 as one function; the docstring opens with the formula.

delta: δ, excess risk of the classifier, in nats.
gamma: γ, share of forget data.
peak: ‖p_f‖_∞.
T: temperature, ≥ 1.
entropy: H(p_r), in nats.
mixture: a `GaussianMixture`.

Scalars may be arrays wherever numpy broadcasts. UserError for values out of range.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.optimize.elementwise import find_root

from t3lib.core.errors import UserError
from t3lib.theory import quadrature
from t3lib.theory.checks import check_within
from t3lib.theory.logistic import probability
from t3lib.theory.mixture import Classifier, GaussianMixture
from t3lib.theory.quadrature import Array, Rows


# ---- the untempered estimator -------------------------------------------------------------------
def bound_retain_untempered(delta: ArrayLike, gamma: float) -> Array:
    """Retain Error(p̂_1) ≤ δ / (1 − γ)   (Theorem 3.3)."""
    _check(delta, gamma)
    return np.asarray(delta) / (1 - gamma)


def bound_forget_untempered(delta: ArrayLike, gamma: float, peak: ArrayLike) -> Array:
    """Forget Error(p̂_1) ≤ ‖p_f‖_∞ √(2δ / (1 − γ))   (Theorem 3.4)."""
    _check(delta, gamma)
    check_within("peak", peak, 0)
    return np.asarray(peak) * np.sqrt(2 * np.asarray(delta) / (1 - gamma))


def forget_lower_bound(delta: ArrayLike, gamma: float, peak: ArrayLike) -> Array:
    """Forget Error(p̂_1) ≥ ‖p_f‖_∞ γ(1 − e^(−δ/γ)) / (1 − γ e^(−δ/γ)) for some f̂   (Theorem 3.5).

    f̂ has excess risk at most δ. `witness` constructs it.
    """
    _check(delta, gamma)
    check_within("peak", peak, 0)
    epsilon = -np.expm1(-np.asarray(delta) / gamma)
    return np.asarray(peak) * gamma * epsilon / ((1 - gamma) + gamma * epsilon)


class Witness(NamedTuple):
    """What the witness classifier of Theorem 3.5 attains, exactly; see `witness`."""

    epsilon: Array
    excess_risk: Array
    retain_error: Array
    forget_error: Array


def witness(
    delta: ArrayLike, gamma: float, peak: ArrayLike, T: float = 1.0, sharpen: float = 1.0
) -> Witness:
    """f̂ = 1 on Z_r, ε = 1 − e^(−δ/γ) on Z_f   (Eq. 9), for uniform p_r and p_f.

    p_r is uniform on an interval of length 1, p_f on one of length 1/peak. Densities are constant
    on each support, so the errors of p^(1/T) f̂^w, w = `sharpen`, are plain arithmetic: p̂ is
    (1−γ)^(1/T) / N on Z_r and (γ peak)^(1/T) ε^w / N on Z_f. T = w = 1 gives Eq. 10. The result's
    `excess_risk` is that of f̂ itself.
    """
    _check(delta, gamma, T)
    check_within("sharpen", sharpen, 0, open_=True)
    check_within("peak", peak, 0, open_=True)
    peak = np.asarray(peak, dtype=float)
    epsilon = -np.expm1(-np.asarray(delta, dtype=float) / gamma)
    on_retain = (1 - gamma) ** (1 / T)
    on_forget = (gamma * peak) ** (1 / T) * epsilon**sharpen
    partition = on_retain + on_forget / peak
    risk = -gamma * np.log1p(-epsilon)
    return Witness(epsilon, risk, np.log(partition / on_retain), on_forget / partition)


# ---- lemmas -------------------------------------------------------------------------------------
def bound_classifier_l1(delta: ArrayLike) -> Array:
    """E_p |f* − f̂| ≤ √(δ / 2)   (Lemma A.1)."""
    check_within("delta", delta, 0)
    return np.sqrt(np.asarray(delta) / 2)


def classifier_l1(mixture: GaussianMixture, phi: Array) -> Array:
    """E_p |f* − f̂|, the left side of Lemma A.1; phi (N, 3) -> (N,).

    The integral is split where the two classifiers cross.
    """
    edges = mixture.classifier_edges(phi)
    crossings, _ = quadrature.where_logit_is(0.0, phi - mixture.phi_star)
    crossings = np.clip(crossings, edges[:, :1], edges[:, -1:])
    z, w = quadrature.nodes(np.sort(np.concatenate([edges, crossings], axis=1), axis=1))
    gap = probability(mixture.phi_star, z) - probability(phi[:, None], z)
    return (w * np.exp(mixture.logp(z)) * np.abs(gap)).sum(axis=1)


def bound_partition(delta: ArrayLike, gamma: float, T: ArrayLike, entropy: float) -> Array:
    """∫ p^(1/T) f̂ ≥ (1−γ)^((T+1)/T) exp[(T−1)/T · H(p_r) − (δ − γ ln γ)/(1−γ)]   (Lemma A.2)."""
    _check(delta, gamma, T)
    T, delta = np.asarray(T, dtype=float), np.asarray(delta, dtype=float)
    return (1 - gamma) ** ((T + 1) / T) * np.exp(
        (T - 1) / T * entropy - (delta - gamma * np.log(gamma)) / (1 - gamma)
    )


# ---- the tempered estimator ---------------------------------------------------------------------
def tempering_bias_bound(mixture: GaussianMixture, T: float, tau: float) -> float:
    """(1 − 1/T) ‖p_f‖_{2, q} · Std_q[ln p],  q ∝ p^(1/τ) f*   (Theorem 3.7, first term).

    q is the paper's p_r^(τ). tau: in [1, T].
    """
    _check_tau(tau, T)
    z, w = mixture.mesh(tau)
    logp = mixture.logp(z)
    q = w * np.exp(mixture.logp_r(z) + (1 / tau - 1) * logp)
    q /= q.sum()
    norm = np.sqrt((q * np.exp(2 * mixture.logp_f(z))).sum())
    return float((1 - 1 / T) * norm * np.sqrt((q * (logp - (q * logp).sum()) ** 2).sum()))


def bound_forget_tempered(
    mixture: GaussianMixture, delta: ArrayLike, T: float, k: float, tau: float
) -> Array:
    """Forget Error(p̂_T) ≤ bias + P^(1/T) [(δ/2)^(1/2T) + I_k^((k−1)/k) (δ/2)^(1/2k) / n̂] / n*.

    Theorem 3.7, with bias = tempering_bias_bound(mixture, T, tau), P = ‖p_f‖_∞, I_k = ∫
    p^((k−T)/(T(k−1))), n* and n̂ the bounds of Lemma A.2 at excess risk 0 and δ (Eqs. 16, 17).

    tau: the theorem holds for some value in [1, T], which `tau_star_forget` finds.
    k: on the real line I_k is finite only for k > T (for T = 1: k > 1), although the paper writes
    k ≥ T; UserError otherwise.
    """
    _check(delta, mixture.gamma, T)
    if not k > T:
        raise UserError(
            f"k must exceed T = {T!r}: on the line ∫ p^((k−T)/(T(k−1))) diverges at k = {k!r}"
        )
    delta, gamma, entropy = np.asarray(delta, dtype=float), mixture.gamma, mixture.entropy_retain()
    power = (k - T) / (T * (k - 1))
    z, w = mixture.mesh(1 / power)
    mass = float((w * np.exp(power * mixture.logp(z))).sum())
    peak = mixture.peak_forget() ** (1 / T)
    n_star, n_hat = (
        bound_partition(0.0, gamma, T, entropy),
        bound_partition(delta, gamma, T, entropy),
    )
    first = peak * (delta / 2) ** (1 / (2 * T)) / n_star
    with np.errstate(divide="ignore", over="ignore"):  # the bound may be infinite
        second = peak * mass ** ((k - 1) / k) * (delta / 2) ** (1 / (2 * k)) / (n_star * n_hat)
    return tempering_bias_bound(mixture, T, tau) + first + second


def bound_retain_tempered(
    mixture: GaussianMixture, delta: ArrayLike, T: float, tau: ArrayLike
) -> Array:
    """Retain Error(p̂_T) ≤ δ/(1−γ) + (1 − 1/T) [∫ p^(1/τ) |ln p| / n̂_τ − H(p_r)]   (Theorem 3.8).

    n̂_τ is the bound of Lemma A.2 at temperature τ. tau: the theorem holds for some value in [1, T]
    that depends on the classifier; `tau_star_retain` finds it.
    """
    _check(delta, mixture.gamma, T)
    _check_tau(tau, T)
    entropy = mixture.entropy_retain()
    if T == 1.0:
        return bound_retain_untempered(delta, mixture.gamma)
    with np.errstate(divide="ignore", over="ignore"):  # the bound may be infinite
        spread = absolute_log_functional(mixture, tau) / bound_partition(
            delta, mixture.gamma, tau, entropy
        )
    return bound_retain_untempered(delta, mixture.gamma) + (1 - 1 / T) * (spread - entropy)


def absolute_log_functional(mixture: GaussianMixture, tau: ArrayLike) -> Array:
    """∫ p^(1/τ) |ln p|, the integral of Theorem 3.8 and Appendix E; the shape of tau."""
    check_within("tau", tau, 1)
    taus = np.asarray(tau, dtype=float)
    z, _ = mixture.mesh(float(taus.max()))
    logp = mixture.logp(z)
    j = np.flatnonzero((logp[1:] > 0) != (logp[:-1] > 0))  # |ln p| has a kink where p = 1
    kinks = find_root(mixture.logp, (z[j], z[j + 1])).x
    z, w = mixture.mesh(float(taus.max()), breaks=kinks)
    logp = mixture.logp(z)
    values = [(w * np.exp(logp / t) * np.abs(logp)).sum() for t in taus.ravel()]
    return np.array(values).reshape(taus.shape)


def tau_star_retain(mixture: GaussianMixture, phi: Classifier, T: float) -> Array | float:
    """τ with ψ(1) − ψ(1/T) = (1 − 1/T) ψ'(1/τ),  ψ(α) = ln ∫ p^α f̂   (Eqs. 20, 21).

    The equations are in Theorem 3.8's proof. ψ is convex, so τ is unique; it is 1 for T = 1.
    phi: (3,) gives a float, (N, 3) gives (N,).
    """
    check_within("T", T, 1)
    if callable(phi):
        raise UserError("phi must be an array (3,) or (N, 3) here, got a callable")
    batch = np.atleast_2d(np.asarray(phi, dtype=float))
    stars = np.ones(len(batch))
    if T > 1.0:
        z, w = quadrature.nodes(mixture.classifier_edges(batch, T))
        logp, tilt = mixture.logp(z), w * probability(batch[:, None], z)
        ends = (np.log((tilt * np.exp(alpha * logp)).sum(axis=1)) for alpha in (1.0, 1 / T))
        slope = np.subtract(*ends) / (1 - 1 / T)

        def rate(alpha: Array, i: Rows) -> Array:
            mass = tilt[i] * np.exp(alpha[:, None] * logp[i])
            return (mass * logp[i]).sum(axis=1) / mass.sum(axis=1)

        # It lies between ψ' at both ends, next to T = 1 up to rounding only.
        low, every = np.full(len(batch), 1 / T), np.arange(len(batch))
        slope = np.clip(slope, rate(low, every), rate(stars, every))
        stars = 1 / find_root(lambda a, i: rate(a, i) - slope[i], (low, stars), args=(every,)).x
    return stars if np.ndim(phi) == 2 else float(stars[0])


def tau_star_forget(mixture: GaussianMixture, T: float) -> float:
    """τ with ∫_{1/T}^1 M dα = (1 − 1/T) M(1/τ),  M(α) = ∫ p_f |∂q_α/∂α|   (Theorem 3.7's proof).

    q_α ∝ p_r p^(α−1). The result is 1 for T = 1.
    """
    check_within("T", T, 1)
    if T == 1.0:
        return 1.0
    z, w = mixture.mesh(T)
    logp, logp_r, p_f = mixture.logp(z), mixture.logp_r(z), np.exp(mixture.logp_f(z))

    def rate(alpha: float) -> float:
        q = w * np.exp(logp_r + (alpha - 1) * logp)
        q /= q.sum()
        return float((q * p_f * np.abs(logp - (q * logp).sum())).sum())

    alphas, weights = 0.5 * (1 + 1 / T + (1 - 1 / T) * quadrature.NODE), 0.5 * quadrature.WEIGHT
    mean = float(sum(weight * rate(alpha) for alpha, weight in zip(alphas, weights, strict=True)))
    grid = np.linspace(1 / T, 1, 65)
    above = np.array([rate(alpha) > mean for alpha in grid])
    first = int(np.flatnonzero(above[1:] != above[:-1])[0])
    return 1 / brentq(lambda alpha: rate(alpha) - mean, grid[first], grid[first + 1], xtol=1e-14)


def gaussian_power_log_integral(v: ArrayLike, tau: ArrayLike) -> Array:
    """∫ p_v^(1/τ) |ln p_v| = √τ (2πv)^((τ−1)/2τ) (τ/2 + ½ ln 2πv),  p_v = N(0, v)   (Appendix E).

    v ≥ 1/2π, so that p_v ≤ 1; tau ≥ 1.
    """
    check_within("v", v, 1 / (2 * np.pi))
    check_within("tau", tau, 1)
    v, tau = np.asarray(v, dtype=float), np.asarray(tau, dtype=float)
    return (
        np.sqrt(tau)
        * (2 * np.pi * v) ** ((tau - 1) / (2 * tau))
        * (tau / 2 + 0.5 * np.log(2 * np.pi * v))
    )


# ---- logistic regression ------------------------------------------------------------------------
def logistic_lambda(phi_norm: float, second_moment: float, n: ArrayLike) -> Array:
    """λ = √(2 E‖z‖² / n) / ‖φ*‖, the λ that minimises Proposition C.1."""
    check_within("n", n, 1)
    check_within("phi_norm", phi_norm, 0, open_=True)
    return np.sqrt(2 * second_moment / np.asarray(n, dtype=float)) / phi_norm


def bound_logistic_excess_risk(
    phi_norm: float, second_moment: float, n: ArrayLike, lam: ArrayLike | None = None
) -> Array:
    """E[L(φ̂_λ) − L(φ*)] ≤ λ‖φ*‖² + 2 E‖z‖² / (nλ)   (Proposition C.1).

    lam: λ; None takes the best one, which gives 2‖φ*‖ √(2 E‖z‖² / n)   (Eq. 25).
    phi_norm, second_moment: ‖φ*‖ and E‖z‖², where z are the features. For Appendix E these are the
    norm of mixture.phi_star and mixture.second_moment().
    n: number of samples.
    """
    lam = (
        logistic_lambda(phi_norm, second_moment, n) if lam is None else np.asarray(lam, dtype=float)
    )
    check_within("n", n, 1)
    check_within("lam", lam, 0, open_=True)
    return lam * phi_norm**2 + 2 * second_moment / (np.asarray(n, dtype=float) * lam)


def _check(delta: ArrayLike, gamma: float, T: ArrayLike = 1.0) -> None:
    check_within("delta", delta, 0)
    check_within("gamma", gamma, 0, 1, open_=True)
    check_within("T", T, 1)


def _check_tau(tau: ArrayLike, T: float) -> None:
    """Raise UserError unless 1 ≤ τ ≤ T, up to the rounding of a root."""
    check_within("T", T, 1)
    check_within("tau", tau, 1, T * (1 + 1e-9))
