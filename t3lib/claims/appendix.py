"""One function per claim of Remark 3.2 and Appendices B to F that arithmetic decides; nothing is read from a folder."""

from functools import cache, partial

import numpy as np
from scipy.integrate import quad

from t3lib import theory
from t3lib.claims.findings import Finding, Tables
from t3lib.errors import UserError
from t3lib.metrics import forget_quality_approximation, forget_quality_lattice
from t3lib.theory.mixture import GaussianMixture

EXACT = 1e-12


def tempering_is_maximum_entropy(tables: Tables) -> Finding:
    return _maximum_entropy()


@cache
def _maximum_entropy() -> Finding:
    """Of 4,000 distributions, those within KL C of p have no more entropy than p^(1/T(C)); T(C) ≥ 1 grows with C."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(6, 0.5))
    radii, slack, tried, temperatures = (0.05, 0.2, 0.5), np.inf, 0, []
    for radius in radii:
        T = theory.temperature_of_kl(np.log(p), radius)
        temperatures.append(T)
        best = p ** (1 / T) / (p ** (1 / T)).sum()
        spread = 10.0 ** rng.uniform(0, 4, (4_000, 1))
        near = np.where(rng.random((4_000, 1)) < 0.5, p, best)
        other = np.array([rng.dirichlet(a) for a in np.maximum(near * spread, 1e-3)])
        other = np.maximum(other, 1e-300)
        inside = (other * np.log(other / p)).sum(axis=1) <= radius
        entropies = -(other * np.log(other)).sum(axis=1)[inside]
        slack = min(slack, float(-(best * np.log(best)).sum() - entropies.max()))
        tried += int(inside.sum())
    grows = 1 <= temperatures[0] < temperatures[1] < temperatures[2]
    shown = ", ".join(f"T({C:g}) = {T:.2f}" for C, T in zip(radii, temperatures, strict=True))
    return Finding(slack >= -EXACT and grows, f"{shown}; {tried} rivals in the balls, the best {slack:.1g} nats below")


def imbalance_identity(tables: Tables) -> Finding:
    """p_r / p from f*_μ at every quadrature node, for nine pairs (μ, γ)."""
    worst = 0.0
    for mu in (0.1, 0.5, 0.9):
        for gamma in (0.05, 0.1, 0.4):
            m = GaussianMixture(gamma=gamma, v_f=0.1)
            z, _ = m.mesh()
            p_r, p_f = np.exp(m.logp_r(z)), np.exp(m.logp_f(z))
            ratio = theory.density_ratio_under_imbalance((1 - mu) * p_r / ((1 - mu) * p_r + mu * p_f), mu, gamma)
            worst = max(worst, np.abs(ratio * ((1 - gamma) * p_r + gamma * p_f) - p_r).max())
    return Finding(worst < EXACT, f"|p · ratio − p_r| at most {worst:.1g}")


def balanced_correction_does_nothing(tables: Tables) -> Finding:
    f = np.linspace(0.001, 1, 1000)
    ratio = theory.density_ratio_under_imbalance(f, 0.1, 0.1) / f
    return Finding(bool(np.ptp(ratio) < EXACT * ratio.mean()), f"μ = γ: ratio / f_μ varies by {np.ptp(ratio):.1g}")


def estimators_agree_only_at_the_optimum(tables: Tables) -> Finding:
    """Is there f̂ ≠ f*_μ in [0, 1] with f̂ p_μ and p̄_r the same distribution? They are whenever
    (μ − γ) f̂ + γ(1 − μ) is a multiple of p / p_μ, and c = μ(1 − μ)(1 + e) gives one such f̂ for each e."""
    m, mu, off = GaussianMixture(v_f=1e-3), 0.5, -0.05
    z, w = m.mesh()
    p_r, p_f, p = (np.exp(log(z)) for log in (m.logp_r, m.logp_f, m.logp))
    p_mu = (1 - mu) * p_r + mu * p_f
    best = (1 - mu) * p_r / p_mu
    f = (mu * (1 - mu) * (1 + off) * p / p_mu - m.gamma * (1 - mu)) / (mu - m.gamma)
    one, other = f * p_mu, theory.density_ratio_under_imbalance(f, mu, m.gamma) * p
    apart = np.abs(one / (w * one).sum() - other / (w * other).sum()).max()
    counterexample = apart < 1e-10 and f.min() >= 0 and f.max() <= 1 and np.abs(f - best).max() > 1e-3
    range_, far = f"[{f.min():.3f}, {f.max():.3f}]", np.abs(f - best).max()
    told = f"an f̂ in {range_}, up to {far:.3f} from f*, for which the two densities differ by {apart:.1g}"
    return Finding(not counterexample, f"μ = 0.5, γ = 0.1: {told}")


def when_tempering_is_defined(tables: Tables) -> Finding:
    """∫ p^(1/T) for a Laplace density at any T, and for |z|^(−α) tails where α > T alone."""
    told, verdicts = [], []

    def laplace(z: float) -> float:
        return -abs(z)

    verdicts.append(all(abs(theory.tempered_mass(laplace, T) - 2 * T) < 1e-6 for T in (1.0, 3.0, 20.0)))
    for alpha in (2.0, 3.0):
        for T in (0.9 * alpha, alpha, 1.1 * alpha):
            try:
                theory.tempered_mass(partial(_power_tail, alpha), T)
                exists = True
            except UserError:
                exists = False
            verdicts.append(exists == (alpha > T))
            told.append(f"α = {alpha:g}, T = {T:g}: {'finite' if exists else 'diverges'}")
    return Finding(all(verdicts), f"Laplace: finite up to T = 20; {'; '.join(told)}")


def _power_tail(alpha: float, z: float) -> float:
    return float(-0.5 * alpha * np.log1p(z * z))


def gaussian_integral(tables: Tables) -> Finding:
    worst = 0.0
    for v in (0.2, 1.0, 5.0):
        for tau in (1.0, 1.7, 3.0):

            def integrand(z: float, v: float = v, tau: float = tau) -> float:
                logp = -0.5 * (z * z / v + np.log(2 * np.pi * v))
                return np.exp(logp / tau) * abs(logp)

            numeric = 2 * quad(integrand, 0, 45 * np.sqrt(v * tau), limit=400)[0]
            worst = max(worst, abs(float(theory.gaussian_power_log_integral(v, tau)) / numeric - 1))
    return Finding(worst < 1e-7, f"formula against quadrature: relative difference at most {worst:.1g}")


def gaussian_integral_increases(tables: Tables) -> Finding:
    values = theory.gaussian_power_log_integral(np.linspace(0.16, 20, 500), np.array([[1.0], [1.5], [2.0], [3.0]]))
    return Finding(bool((np.diff(values, axis=1) > 0).all()), "v from 0.16 to 20, τ = 1, 1.5, 2, 3")


def mixture_functional_increases(tables: Tables) -> Finding:
    taus, variances = (1.0, 1.5, 2.0, 3.0), (1e-6, 1e-3, 1.0)
    values = np.array([theory.absolute_log_functional(GaussianMixture(v_f=v), taus) for v in variances])
    told = "; ".join(f"τ = {t:g}: " + ", ".join(f"{x:.3g}" for x in values[:, k]) for k, t in enumerate(taus))
    return Finding(bool((np.diff(values, axis=0) > 0).all()), f"v_f = 1e-6, 1e-3, 1: {told}")


def tuned_lambda_minimises(tables: Tables) -> Finding:
    lam = float(theory.logistic_lambda(3.0, 5.0, 50))
    best = float(theory.bound_logistic_excess_risk(3.0, 5.0, 50))
    grid = theory.bound_logistic_excess_risk(3.0, 5.0, 50, lam * np.linspace(0.2, 5, 961))
    same = abs(float(theory.bound_logistic_excess_risk(3.0, 5.0, 50, lam)) - best)
    return Finding(
        bool(best <= grid.min() + EXACT and same < 1e-9), f"bound at λ {best:.4f}, least of a grid {grid.min():.4f}"
    )


def forget_quality_formula(tables: Tables) -> Finding:
    return _formula()


@cache
def _formula() -> Finding:
    """2 exp(−|D_f| D²) against the exact two-sample p-value, for 200 and 400 rows."""
    told, verdicts = [], []
    for n in (200, 400):
        exact = forget_quality_lattice(n)
        apart = np.abs(forget_quality_approximation(n, np.arange(1, n + 1) / n) - exact)
        limit = exact[apart <= 0.01].max()
        verdicts.append(bool(apart.max() <= 0.05))
        told.append(
            f"n = {n}: within 0.01 up to FQ {limit:.2f}, off by {apart[exact > 0.9].min():.2f} or more above 0.9"
        )
    return Finding(all(verdicts), "; ".join(told))
