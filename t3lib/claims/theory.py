"""One function per claim of the theory: from the table `bounds`, or computed on the spot from t3lib.theory.

Whatever is computed on the spot needs no results folder, costs milliseconds, and is the same everywhere.
"""

from functools import cache, partial

import numpy as np

from t3lib import theory
from t3lib.claims.findings import MISSING, Finding, Tables
from t3lib.errors import UserError
from t3lib.theory.logistic import probability
from t3lib.theory.mixture import Classifier, GaussianMixture
from t3lib.theory.table import LOWER, ROUNDING

EXACT = 1e-12
NEARLY_EQUAL = 0.5  # "effectively equating": within a factor of two
PEAKS = 10.0 ** np.arange(2, 9)
TS = (1.5, 2.0, 3.0)


def bound_holds(tables: Tables, bound: str) -> Finding:
    """Every row of a bound in the table `bounds`: error ≤ value, or ≥ for a lower bound."""
    table = tables["bounds"]
    if table is None or not (rows := table[table["bound"].str.split(",").str[0] == bound]).shape[0]:
        return MISSING
    ratio = (rows["error"] / rows["value"]).to_numpy()
    good = ratio >= 1 - ROUNDING if bound in LOWER else ratio <= 1 + ROUNDING
    told = f"{len(rows)} cases, {int((~good).sum())} violated; error/bound {ratio.min():.2g} to {ratio.max():.2g}"
    return Finding(bool(good.all()), told)


def retain_bound_is_attained(tables: Tables) -> Finding:
    """On the witness of Theorem 3.5 Retain Error / (δ/(1−γ)) tends to 1 as δ falls."""
    deltas = np.array([1e-2, 1e-4, 1e-6])
    ratio = theory.witness(deltas, 0.02, 1e3).retain_error / theory.bound_retain_untempered(deltas, 0.02)
    shown = ", ".join(f"{r:.4f}" for r in ratio)
    return Finding(bool(abs(ratio[-1] - 1) < 1e-3), f"witness, γ = 0.02, δ = 1e-2, 1e-4, 1e-6: error/bound {shown}")


def retain_error_is_the_excess_risk(tables: Tables) -> Finding:
    """Fitted classifiers at the smallest γ of the table `bounds`: median of Retain Error over its bound ≥ a half."""
    table = tables["bounds"]
    if table is None or not (rows := table[table["bound"] == "Theorem 3.3"]).shape[0]:
        return MISSING
    rows = rows[rows["gamma"] == rows["gamma"].min()]
    ratio = rows["error"] / rows["value"]
    told = f"γ = {rows['gamma'].iloc[0]:g}, {len(rows)} fitted classifiers: error/bound median {ratio.median():.2g}"
    return Finding(bool(ratio.median() >= NEARLY_EQUAL), f"{told}, {ratio.min():.2g} to {ratio.max():.2g}")


def small_retain_error_hides_a_leak(tables: Tables) -> Finding:
    made = theory.witness(1e-3, 0.1, 1e4)
    told = f"witness, δ = 1e-3, γ = 0.1, peak 1e4: Retain Error {made.retain_error:.4f}, Forget {made.forget_error:.1f}"
    return Finding(bool(made.retain_error < 0.01 and made.forget_error > 1), told)


def tilt_recovers_retain(tables: Tables) -> Finding:
    worst = max(abs(float(np.asarray(error))) for m in _mixtures() for error in m.errors(m.phi_star, 1.0))
    return Finding(worst < 1e-9, f"Retain and Forget Error of the Bayes tilt at T = 1: at most {worst:.1g}")


def bayes_is_logistic(tables: Tables) -> Finding:
    """σ(quadratic) equals (1 − γ) p_r / p at every quadrature node."""
    worst = 0.0
    for m in _mixtures():
        z, _ = m.mesh()
        share = np.exp(np.log1p(-m.gamma) + m.logp_r(z) - m.logp(z))
        worst = max(worst, np.abs(share - probability(m.phi_star, z)).max())
    return Finding(worst < 1e-9, f"largest difference {worst:.1g}")


def lower_bound_is_linear_in_peak_and_risk(tables: Tables) -> Finding:
    deltas = np.array([1e-3, 1e-5, 1e-7])
    ratio = theory.forget_lower_bound(deltas, 0.1, PEAKS[:, None]) / (PEAKS[:, None] * deltas)
    told = f"bound / (peak · δ) from {ratio.min():.4f} to {ratio.max():.4f}, limit 1/(1−γ) = {1 / 0.9:.4f}"
    return Finding(bool(np.allclose(ratio[:, -1], 1 / 0.9, rtol=1e-4)), told)


def rates_of_the_two_bounds(tables: Tables) -> Finding:
    deltas = np.array([1e-8, 1e-6])
    lower = _slope(deltas, theory.forget_lower_bound(deltas, 0.1, 1e3))
    upper = _slope(deltas, theory.bound_forget_untempered(deltas, 0.1, 1e3))
    return Finding(
        abs(lower - 1) < 1e-3 and abs(upper - 0.5) < 1e-9, f"slope in δ: lower {lower:.4f}, upper {upper:.4f}"
    )


def sharpening_keeps_the_slope(tables: Tables) -> Finding:
    slopes = {
        w: _slope(PEAKS[-2:], theory.witness(1e-3, 0.1, PEAKS[-2:], sharpen=w).forget_error) for w in (1, 2, 4, 8)
    }
    level = [float(theory.witness(1e-3, 0.1, 1e6, sharpen=w).forget_error) for w in (1, 2, 4)]
    told = ", ".join(f"{slope:.3f}" for slope in slopes.values())
    lower = ", ".join(f"{value:.2g}" for value in level)
    return Finding(
        all(abs(slope - 1) < 0.02 for slope in slopes.values()),
        f"witness, w = 1, 2, 4, 8: slope in the peak {told}; level at peak 1e6 for w = 1, 2, 4: {lower}",
    )


def tempering_is_necessary(tables: Tables) -> Finding:
    """Of two classifiers with one excess risk, untempered, does the one that errs on retain samples alone leak too?"""
    m, delta = GaussianMixture(v_f=1e-6), 1e-2
    low, high = -np.expm1(-delta / (1 - m.gamma)), -np.expm1(-delta / m.gamma)

    best = partial(probability, m.phi_star)
    harmless = _leak(m, lambda z: (1 - low) * best(z))
    leaky = _leak(m, lambda z: best(z) + high * (1 - best(z)))
    told = (
        f"peak {m.peak_forget():.0f}, T = 1: (1 − a) f* has δ = {harmless[0]:.3f}, Forget Error {abs(harmless[1]):.1g}"
    )
    told += f"; f* + b (1 − f*) has δ = {leaky[0]:.3f}, Forget Error {leaky[1]:.2g}"
    return Finding(harmless[1] > 0.1 * leaky[1], told)


def _leak(mixture: GaussianMixture, f: Classifier) -> tuple[float, float]:
    return float(np.asarray(mixture.excess_risk(f))), float(np.asarray(mixture.forget_error(f, 1.0)))


def tempering_turns_the_slope(tables: Tables) -> Finding:
    slopes = {T: _slope(PEAKS[-2:], theory.witness(1e-3, 0.1, PEAKS[-2:], T=T).forget_error) for T in (1.0, *TS)}
    told = ", ".join(f"T = {T:g}: {slope:.3f}" for T, slope in slopes.items())
    return Finding(all(abs(slope - 1 / T) < 0.02 for T, slope in slopes.items()), f"witness, slope in the peak: {told}")


def integrability_is_mild(tables: Tables) -> Finding:
    mixture, finite, refused = GaussianMixture(), [], False
    for T in TS:
        for k in (T + 0.05, T + 1, 4 * T):
            finite.append(np.isfinite(theory.bound_forget_tempered(mixture, 1e-3, T, k, T)))
        try:
            theory.bound_forget_tempered(mixture, 1e-3, T, T, T)
        except UserError:
            refused = True
    told = f"finite for {sum(finite)} of {len(finite)} pairs with k > T"
    return Finding(bool(all(finite)), told + ("; k = T itself never is on the whole line" if refused else ""))


@cache
def _estimation_terms() -> np.ndarray:
    """Theorem 3.7 less its bias at δ = 1e-2, for T in TS (rows) and v_f = 1e-6 … 1e-12 (columns)."""
    return np.array([[_estimation(v, T, 1e-2) for v in (1e-6, 1e-9, 1e-12)] for T in TS])


def _estimation(v_f: float, T: float, delta: float) -> float:
    m = GaussianMixture(v_f=v_f)
    whole = theory.bound_forget_tempered(m, delta, T, T + 1, T)
    return float(whole - theory.tempering_bias_bound(m, T, T))


def tempered_bound_is_sublinear(tables: Tables) -> Finding:
    terms = _estimation_terms()
    slopes = np.log10(terms[:, -1] / terms[:, -2]) / 1.5  # the peak is (2π v_f)^(−1/2)
    told = ", ".join(f"T = {T:g}: {slope:.3f}" for T, slope in zip(TS, slopes, strict=True))
    return Finding(bool(np.allclose(slopes, 1 / np.array(TS), atol=0.02)), f"k = T + 1, slope in the peak: {told}")


def tempered_bound_is_slower_in_risk(tables: Tables) -> Finding:
    deltas, told, verdicts = np.array([1e-14, 1e-12]), [], []
    for T in TS:
        slope = _slope(deltas, np.array([_estimation(1e-3, T, d) for d in deltas]))
        verdicts.append(abs(slope - 1 / (2 * (T + 1))) < 0.02)
        told.append(f"T = {T:g}: {slope:.3f} (1/2k = {1 / (2 * (T + 1)):.3f})")
    return Finding(all(verdicts), f"k = T + 1, slope in δ: {', '.join(told)}; untempered 0.5")


def tempering_improves_the_guarantee(tables: Tables) -> Finding:
    """For δ = 0.05 and some sharp p_f the tempered bound, bias and all, is below the untempered one."""
    told, verdicts = [], []
    for T in TS:
        for v in 10.0 ** np.arange(-1, -13, -1):
            m = GaussianMixture(v_f=v)
            tempered = theory.bound_forget_tempered(m, 0.05, T, T + 1, theory.tau_star_forget(m, T))
            if better := bool(tempered < theory.bound_forget_untempered(0.05, 0.1, m.peak_forget())):
                told.append(f"T = {T:g}: from v_f = {v:.0e}, peak {m.peak_forget():.3g}")
                break
        verdicts.append(better)
    return Finding(all(verdicts), f"δ = 0.05, k = T + 1, smaller than Theorem 3.4: {'; '.join(told)}")


def bias_vanishes_for_disjoint_supports(tables: Tables) -> Finding:
    apart = GaussianMixture(mu_f=-30.0, v_f=1e-4)
    worst = max(theory.tempering_bias_bound(apart, T, tau) for T in TS for tau in (1.0, (1 + T) / 2, T))
    return Finding(worst < EXACT, f"p_f thirty standard deviations away: bias at most {worst:.1g}")


def bias_grows_with_temperature(tables: Tables) -> Finding:
    told, verdicts = [], []
    for v in (1e-3, 1.0):
        m = GaussianMixture(v_f=v)
        bias = np.asarray(m.forget_error(m.phi_star, [1.0, *TS]))
        verdicts.append(bool((np.diff(bias) > 0).all() and bias[0] < 1e-9))
        told.append(f"v_f = {v:g}: " + ", ".join(f"{b:.3f}" for b in bias[1:]))
    return Finding(all(verdicts), f"Bayes classifier, Forget Error at T = 1.5, 2, 3: {'; '.join(told)}")


def biases_vanish_untempered(tables: Tables) -> Finding:
    m = GaussianMixture()
    forget, retain = theory.tempering_bias_bound(m, 1.0, 1.0), float(theory.bound_retain_tempered(m, 0.1, 1.0, 1.0))
    same = retain == float(theory.bound_retain_untempered(0.1, m.gamma))
    return Finding(forget == 0.0 and same, f"T = 1: forget bias {forget:g}, Theorem 3.8 equals Theorem 3.3: {same}")


def retain_bias_worsens_as_entropy_falls(tables: Tables) -> Finding:
    """The same mixture in other units: entropy H(p_r) changes by ln(scale). Bias at δ = 0 and its bound, T = 2."""
    scales = 10.0 ** np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    entropy, bias, bound = [], [], []
    for s in scales:
        m = GaussianMixture(mu_r=s, v_r=s * s, v_f=1e-3 * s * s)
        entropy.append(m.entropy_retain())
        bias.append(float(np.asarray(m.retain_error(m.phi_star, 2.0))))
        bound.append(float(theory.bound_retain_tempered(m, 0.0, 2.0, theory.tau_star_retain(m, m.phi_star, 2.0))))
    error_falls, bound_falls = (bool((np.diff(values) < -1e-9).all()) for values in (bias, bound))
    shown = [" ".join(f"{value:.3g}" for value in values) for values in (entropy, bias, bound)]
    return Finding(error_falls and bound_falls, f"H = {shown[0]}: bias {shown[1]}; its bound {shown[2]}")


def _mixtures() -> list[GaussianMixture]:
    return [GaussianMixture(gamma=gamma, v_f=v) for gamma in (0.02, 0.1, 0.3) for v in (1e-6, 1e-3, 1.0)]


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """d ln y / d ln x between the two ends."""
    return float(np.log(y[-1] / y[0]) / np.log(x[-1] / x[0]))
