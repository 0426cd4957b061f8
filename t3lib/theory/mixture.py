"""The Gaussian mixture of Appendix E, with exact Retain and Forget Errors of p^(1/T)·f.

    p = (1 − γ) p_r + γ p_f,   p_r = N(mu_r, v_r),   p_f = N(mu_f, v_f)                    (Eq. 1)
    p̂_T ∝ p^(1/T) · f̂,   f̂(z) = σ(φ·[1, z, z²])  or any function of z                     (Eq. 8)
    Retain Error  KL(p_r ‖ p̂_T)  (Eq. 6)         Forget Error  E_{p_f} |p_r − p̂_T|  (Eq. 7)

Equation numbers are those of arXiv:2602.10217. Everything is float64. Integrals are computed by
quadrature (quadrature.py explains its accuracy). Arguments that many functions share:

phi: a classifier, as an array (3,), a batch of them (N, 3), or a callable f(z) with values in [0,
1].
T: temperature ≥ 1, a number or an array (K,). Results have the shape of the batch followed by the
shape of T; a single classifier and a single T give a float.
method: "exact" computes the partition function N_T = ∫ p^(1/T) f̂ as it is. "negligible_overlap"
replaces p^(1/T) in it by (1−γ)^(1/T) p_r^(1/T) + γ^(1/T) p_f^(1/T), as the paper does (Appendix E).
The two agree at T = 1. For T > 1 the second is larger, because x ↦ x^(1/T) is subadditive.
sharpen: w, puts f̂^w in the place of f̂ (Remark 3.6).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit

from t3lib.core.errors import UserError
from t3lib.theory import quadrature
from t3lib.theory.checks import check_within
from t3lib.theory.logistic import logit
from t3lib.theory.quadrature import Array, Rows

Classifier = ArrayLike | Callable[[Array], Array]
Batch = Array | Callable[[Array], Array]  # (N, 3), or a callable as a batch of one
METHODS = ("exact", "negligible_overlap")
ROUNDED = 2.0**-54  # a callable's 1.0 may be a rounded 1 − 2^−54; arrays φ have no such limit
CHUNK = 128  # classifiers in one pass, so that its arrays stay within a few megabytes


@dataclass(frozen=True)
class GaussianMixture:
    """p = (1 − gamma) N(mu_r, v_r) + gamma N(mu_f, v_f)   (Eq. 1).

    The defaults are Experiment 2's (Appendix E). v_r and v_f are variances. UserError for a gamma
    outside (0, 1) or a variance that is not positive.
    """

    gamma: float = 0.1
    mu_r: float = 1.0
    v_r: float = 1.0
    mu_f: float = 0.0
    v_f: float = 1e-3

    def __post_init__(self) -> None:
        check_within("gamma", self.gamma, 0, 1, open_=True)
        check_within("mu_r", self.mu_r)
        check_within("mu_f", self.mu_f)
        check_within("v_r", self.v_r, 0, open_=True)
        check_within("v_f", self.v_f, 0, open_=True)

    # ---- densities ------------------------------------------------------------------------------
    def logp_r(self, z: Array) -> Array:
        """ln p_r(z), any shape."""
        return -0.5 * ((z - self.mu_r) ** 2 / self.v_r + np.log(2 * np.pi * self.v_r))

    def logp_f(self, z: Array) -> Array:
        """ln p_f(z), any shape."""
        return -0.5 * ((z - self.mu_f) ** 2 / self.v_f + np.log(2 * np.pi * self.v_f))

    def log_parts(self, z: Array) -> tuple[Array, Array]:
        """ln[(1 − γ) p_r(z)] and ln[γ p_f(z)], the two terms of Eq. 1."""
        return np.log1p(-self.gamma) + self.logp_r(z), np.log(self.gamma) + self.logp_f(z)

    def logp(self, z: Array) -> Array:
        """ln p(z) = ln[(1 − γ) p_r + γ p_f]   (Eq. 1)."""
        return np.logaddexp(*self.log_parts(z))

    def entropy_retain(self) -> float:
        """H(p_r) = ½ ln(2πe v_r), in nats."""
        return float(0.5 * np.log(2 * np.pi * np.e * self.v_r))

    def peak_forget(self) -> float:
        """‖p_f‖_∞ = (2π v_f)^(−1/2)   (Appendix E)."""
        return float((2 * np.pi * self.v_f) ** -0.5)

    @property
    def phi_star(self) -> Array:
        """φ* with σ(φ*·[1, z, z²]) = f*(z) = (1 − γ) p_r / p   (Eq. 2), an array (3,).

        The Bayes classifier therefore belongs to the class of classifiers.
        """
        linear = self.mu_r / self.v_r - self.mu_f / self.v_f
        square = 0.5 / self.v_f - 0.5 / self.v_r
        constant = 0.5 * (
            self.mu_f**2 / self.v_f - self.mu_r**2 / self.v_r + np.log(self.v_f / self.v_r)
        )
        return np.array([np.log1p(-self.gamma) - np.log(self.gamma) + constant, linear, square])

    def second_moment(self) -> float:
        """E_p ‖[1, z, z²]‖² = 1 + E z² + E z⁴, the constant of Proposition C.1."""
        parts = [(1 - self.gamma, self.mu_r, self.v_r), (self.gamma, self.mu_f, self.v_f)]
        return 1.0 + sum(g * (m**2 + v + m**4 + 6 * m**2 * v + 3 * v**2) for g, m, v in parts)

    # ---- quadrature -----------------------------------------------------------------------------
    def edges(self, T: float = 1.0) -> Array:
        """Return panel edges for integrals of p^(1/T), p_r, p_f and f*.

        They reach ten standard deviations of the tempered parts to either side.
        """
        spans = [
            (m, 10 * np.sqrt(T * v), np.sqrt(v))
            for m, v in ((self.mu_r, self.v_r), (self.mu_f, self.v_f))
        ]
        lo, hi = min(m - r for m, r, _ in spans), max(m + r for m, r, _ in spans)
        panels = [
            np.linspace(m - r, m + r, 1 + int(np.ceil(r / s))) for m, r, s in spans
        ]  # panels of two standard deviations
        return np.unique(
            np.concatenate([*panels, quadrature.pole_edges(self.phi_star[None], lo, hi)[0]])
        )

    def mesh(self, T: float = 1.0, breaks: ArrayLike = ()) -> tuple[Array, Array]:
        """Return quadrature nodes (J,) and weights (J,) for smooth functions of z.

        breaks: more panel edges, such as at kinks.
        """
        return quadrature.nodes(np.union1d(self.edges(T), np.asarray(breaks, dtype=float)))

    def classifier_edges(self, phi: Batch, T: float = 1.0, sharpen: float = 1.0) -> Array:
        """Return panel edges (N, K) that also resolve the classifiers.

        They come from the poles of the φ, or from bisection for a callable.
        """
        fixed = self.edges(T)
        if callable(phi):

            def integrands(z: Array) -> Array:
                logf, log1mf = log_probabilities(phi, z)
                weights = np.exp([self.logp_r(z), self.logp_f(z)])
                tilt = np.exp(sharpen * logf) * np.exp([self.logp(z), self.logp(z) / T])
                return np.concatenate([tilt, weights * np.maximum([logf, log1mf], -745.0)])

            return quadrature.refine(fixed, integrands)[None]
        poles = quadrature.pole_edges(phi, fixed[0], fixed[-1])
        return np.sort(
            np.concatenate([np.broadcast_to(fixed, (len(phi), len(fixed))), poles], axis=1), axis=1
        )

    # ---- what the theory is about ---------------------------------------------------------------
    def excess_risk(self, phi: Classifier) -> Array | float:
        """δ = L(f) − L(f*) = (1 − γ) E_{p_r} ln(f*/f) + γ E_{p_f} ln((1 − f*)/(1 − f)) ≥ 0.

        In nats (Section 3.2).
        """

        def risks(part: Batch) -> Array:
            z, w = quadrature.nodes(self.classifier_edges(part))
            (logf, log1mf), (best, best1m) = (
                log_probabilities(part, z),
                log_probabilities(self.phi_star[None], z),
            )
            shares = (1 - self.gamma) * np.exp(self.logp_r(z)), self.gamma * np.exp(self.logp_f(z))
            return (w * (_times(shares[0], best - logf) + _times(shares[1], best1m - log1mf))).sum(
                axis=1
            )[:, None]

        return _shaped(phi, 1.0, _chunked(phi, risks))

    def partition(
        self, phi: Classifier, T: ArrayLike, method: str = "exact", sharpen: float = 1.0
    ) -> Array | float:
        """N_T = ∫ p^(1/T) f̂   (Eq. 8)."""
        temps = _temperatures(T)

        def masses(part: Batch) -> Array:
            z, w = quadrature.nodes(self.classifier_edges(part, temps.max(), sharpen))
            f, tempered = np.exp(sharpen * log_probabilities(part, z)[0]), self._tempered(z, method)
            return np.stack([(w * f * tempered(t)).sum(axis=1) for t in temps], axis=1)

        return _shaped(phi, T, _chunked(phi, masses))

    def _tempered(self, z: Array, method: str) -> Callable[[float], Array]:
        """Return the function T ↦ p(z)^(1/T), or what the paper's method replaces it by."""
        if method not in METHODS:
            raise UserError(f"method must be one of {METHODS}, got {method!r}")
        if method == "exact":
            logp = self.logp(z)
            return lambda t: np.exp(logp / t)
        a, b = self.log_parts(z)
        return lambda t: np.exp(a / t) + np.exp(b / t)

    def retain_error(
        self, phi: Classifier, T: ArrayLike, method: str = "exact", sharpen: float = 1.0
    ) -> Array | float:
        """KL(p_r ‖ p̂_T) = E_{p_r}[ln p_r − ln p / T − ln f̂] + ln N_T, in nats   (Eq. 6)."""
        return self.errors(phi, T, method, sharpen)[0]

    def forget_error(
        self, phi: Classifier, T: ArrayLike, method: str = "exact", sharpen: float = 1.0
    ) -> Array | float:
        """E_{p_f} |p_r − p̂_T|   (Eq. 7), in units of a density.

        The integral is split where p_r − p̂_T changes sign.
        """
        return self.errors(phi, T, method, sharpen)[1]

    def errors(
        self, phi: Classifier, T: ArrayLike, method: str = "exact", sharpen: float = 1.0
    ) -> tuple[Array | float, Array | float]:
        """Return (Retain Error, Forget Error), computed in one pass."""
        return self.errors_by_method(phi, T, (method,), sharpen)[method]

    def errors_by_method(
        self,
        phi: Classifier,
        T: ArrayLike,
        methods: tuple[str, ...] = METHODS,
        sharpen: float = 1.0,
    ) -> dict[str, tuple[Array | float, Array | float]]:
        """Return {method: (Retain Error, Forget Error)}; the second method costs little time."""
        temps = _temperatures(T)
        check_within("sharpen", sharpen, 0, open_=True)
        columns = _chunked(phi, lambda part: self._errors(part, temps, methods, sharpen))
        sides = columns.reshape(-1, 2, len(temps), len(methods))
        return {
            m: (_shaped(phi, T, sides[:, 0, :, k]), _shaped(phi, T, sides[:, 1, :, k]))
            for k, m in enumerate(methods)
        }

    def _errors(self, phi: Batch, temps: Array, methods: tuple[str, ...], sharpen: float) -> Array:
        """Return both errors of one chunk of N classifiers: (N, 2 · K · number of methods).

        For given T, the p̂ of the two methods differ by a constant factor.
        """
        edges = self.classifier_edges(phi, temps.max(), sharpen)
        z, w = quadrature.nodes(edges)
        logp_r, logp_f, logp = self.logp_r(z), self.logp_f(z), self.logp(z)
        logf = sharpen * log_probabilities(phi, z)[0]
        p_r, f, weight = np.exp(logp_r), np.exp(logf), w * np.exp(logp_f)
        base, slope = (_times(w * p_r, part).sum(axis=1) for part in (logp_r - logf, logp))
        near = logp_f > np.log(self.peak_forget()) - 50.0  # elsewhere p_f / its peak is below 2e-22
        tempered = {method: self._tempered(z, method) for method in methods}
        log_n, panels, above = [], [], []
        for t in temps:
            power = np.exp(logp / t) * f
            for method in methods:
                mass = np.einsum(
                    "nj,nj->n", w, power if method == "exact" else tempered[method](t) * f
                )
                gap = p_r - power / mass[:, None]
                log_n.append(np.log(mass))
                panels.append(quadrature.panel_sums(weight * gap))
                above.append(gap > 0)
        steps, log_ns = np.repeat(temps, len(methods)), np.stack(log_n)

        def logp_hat(x: Array, m: Rows, i: Rows) -> Array:
            logf = log_probabilities(phi if callable(phi) else phi[i], x)[0]
            return self.logp(x) / steps[m] + sharpen * logf - log_ns[m, i]

        def log_ratio(x: Array, m: Rows, i: Rows) -> Array:
            return self.logp_r(x) - logp_hat(x, m, i)

        def integrand(x: Array, m: Rows, i: Rows) -> Array:
            return np.exp(self.logp_f(x)) * (np.exp(self.logp_r(x)) - np.exp(logp_hat(x, m, i)))

        sums, signs = np.stack(panels), np.stack(above)
        forget = quadrature.integral_of_absolute(edges, sums, signs, near, log_ratio, integrand)
        retain = base - slope / steps[:, None] + log_ns
        return np.concatenate([retain, forget]).T

    def density(
        self, z: Array, phi: Classifier, T: float, method: str = "exact", sharpen: float = 1.0
    ) -> Array:
        """p̂_T(z) = p(z)^(1/T) f̂(z)^w / N_T   (Eq. 8).

        z: (J,). phi: one classifier. sharpen: w. Returns (J,).
        """
        z, (temp,), n_t = (
            np.asarray(z, dtype=float),
            _temperatures(T),
            self.partition(phi, T, method, sharpen),
        )
        logf = log_probabilities(as_batch(phi), z[None])[0][0]
        return np.exp(self.logp(z) / temp + sharpen * logf) / n_t


# ---- shapes: batches of classifiers, chunks, scalars --------------------------------------------
def as_batch(phi: Classifier) -> Batch:
    """Return (3,) or (N, 3) as (N, 3), a callable unchanged; UserError for anything else."""
    if callable(phi):
        return phi
    array = np.asarray(phi, dtype=float)
    if array.shape[-1:] != (3,) or array.ndim > 2 or not np.isfinite(array).all():
        raise UserError(
            "phi must be a finite array of shape (3,) or (N, 3), or a callable; got shape"
            f" {array.shape}"
        )
    return np.atleast_2d(array)


def log_probabilities(phi: Batch, z: Array) -> tuple[Array, Array]:
    """ln f(z) and ln(1 − f(z)), accurate at logits of ±1e4 too; phi (N, 3), z (N, ...)."""
    if callable(phi):
        f = np.asarray(phi(z), dtype=float)
        check_within("phi(z)", f, 0, 1)
        with np.errstate(divide="ignore"):
            return np.log(f), np.log(np.maximum(1.0 - f, ROUNDED))
    margin = logit(phi.reshape(len(phi), *[1] * (z.ndim - 1), 3), z)
    return log_expit(margin), log_expit(-margin)


def _chunked(phi: Classifier, work: Callable[[Batch], Array]) -> Array:
    batch = as_batch(phi)
    if callable(batch):
        return work(batch)
    return np.concatenate([work(batch[i : i + CHUNK]) for i in range(0, len(batch), CHUNK)])


def _shaped(phi: Classifier, T: ArrayLike, values: Array) -> Array | float:
    """Reshape (N, K) to the shape of the batch, then that of T; a float if both are single."""
    lead = (len(values),) if not callable(phi) and np.ndim(phi) == 2 else ()  # type: ignore[arg-type]
    shaped = values.reshape(lead + np.shape(T))
    return shaped if shaped.ndim else float(shaped)


def _temperatures(T: ArrayLike) -> Array:
    check_within("T", T, 1)
    return np.atleast_1d(np.asarray(T, dtype=float)).ravel()


def _times(density: Array, value: Array) -> Array:
    """density · value with 0 · ∞ = 0: where the density is 0, nothing is added to an integral."""
    with np.errstate(invalid="ignore"):
        return np.where(density > 0, density * value, 0.0)
