"""One function per claim of the theory, named as the claim is: from notebook 01's tables, or computed on the spot.

Whatever is computed on the spot needs no results folder, costs milliseconds, and is the same everywhere.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import product

import numpy as np
import pandas as pd

from t3lib import theory
from t3lib.claims.findings import Finding, Missing, Tables, listed
from t3lib.metrics import forget_quality_approximation, forget_quality_lattice
from t3lib.theory.logistic import probability
from t3lib.theory.mixture import GaussianMixture
from t3lib.theory.table import LOWER, ROUNDING

EXACT = 1e-12
NEARLY_EQUAL = 0.5  # "effectively equating": within a factor of two
PEAKS = 10.0 ** np.arange(2, 9)
TS = (1.5, 2.0, 3.0)
Check = Callable[[Tables], Finding]


# ---- bounds that the table `bounds` tries ----------------------------------------------------------------------------
def _rows(tables: Tables, name: str, *bounds: str) -> pd.DataFrame:
    rows = tables[name][tables[name]["bound"].str.split(",").str[0].isin(bounds)]
    if rows.empty:
        raise Missing(name)
    return rows


def _bound_holds(*bounds: str) -> Check:
    """Every row of the bounds in the table `bounds`: error ≤ value, or ≥ for a lower bound."""

    def check(tables: Tables) -> Finding:
        rows = _rows(tables, "bounds", *bounds)
        ratio = rows["error"] / rows["value"]
        good = np.where(rows["bound"].isin(LOWER), ratio >= 1 - ROUNDING, ratio <= 1 + ROUNDING)
        told = f"{len(rows)} cases, {int((~good).sum())} violated; error/bound {ratio.min():.2g} to {ratio.max():.2g}"
        return Finding(bool(good.all()), told)

    return check


def _bound_for_some_tau(bound: str) -> Check:
    """A bound "for some τ" holds at the τ of its proof; the numbers tell what becomes of it at τ = 1 and τ = T."""

    def check(tables: Tables) -> Finding:
        finding, rows = _bound_holds(bound)(tables), _rows(tables, "bounds_fixed_tau", bound)
        ends = {"τ = 1": rows[rows["tau"] == 1], "τ = T": rows[rows["tau"] == rows["T"]]}
        told = ", ".join(f"at {end} {int((~part['holds']).sum())} of {len(part)}" for end, part in ends.items())
        return finding._replace(numbers=f"{finding.numbers}; violated if τ were any: {told}")

    return check


thm_3_3 = _bound_holds("Theorem 3.3")
thm_3_4 = _bound_holds("Theorem 3.4")
thm_3_5 = _bound_holds("Theorem 3.5")
thm_3_7 = _bound_for_some_tau("Theorem 3.7")
thm_3_8 = _bound_for_some_tau("Theorem 3.8")
lemmas = _bound_holds("Lemma A.1", "Lemma A.2")
prop_c_1 = _bound_holds("Proposition C.1")


def thm_3_3_equal(tables: Tables) -> Finding:
    """At the smallest γ of `bounds` the median of Retain Error over Theorem 3.3's bound is at least a half."""
    rows = _rows(tables, "bounds", "Theorem 3.3")
    rows = rows[rows["gamma"] == rows["gamma"].min()]
    ratio = rows["error"] / rows["value"]
    sharp = theory.witness(1e-6, 0.02, 1e3).retain_error / theory.bound_retain_untempered(1e-6, 0.02)
    told = f"γ = {rows['gamma'].iloc[0]:g}, {len(rows)} fitted classifiers: error/bound median {ratio.median():.2g}"
    return Finding(bool(ratio.median() >= NEARLY_EQUAL), f"{told}; the witness of Theorem 3.5: {sharp:.4f}")


def guarantee_shows_gain(tables: Tables) -> Finding:
    """γ = .1, the sharpest p_f: at some T > 1 the bound of Theorem 3.7 is below the untempered Forget Error itself."""
    medians = {}
    for bound in ("Theorem 3.4", "Theorem 3.7"):
        rows = _rows(tables, "bounds", bound)
        rows = rows[np.isclose(rows["gamma"], 0.1) & (rows["v_f"] == rows["v_f"].min())]
        medians[bound] = rows.groupby("T")[["value", "error"]].median()
    tempered = medians["Theorem 3.7"].query("T > 1")
    if tempered.empty:
        raise Missing("bounds")
    (bound, error), leak = tempered.loc[tempered["value"].idxmin()], medians["Theorem 3.4"]["error"].iloc[0]
    told = f"v_f = {rows['v_f'].iloc[0]:g}: least tempered bound {bound:.3g}, error there {error:.2g}, untempered error"
    plain = "The guarantee for tempering does not show that tempering helps: at the paper's sharpest setting it allows "
    plain += f"more to leak (a Forget Error of {bound:.0f}) than leaks without tempering ({leak:.1f})."
    return Finding(bool(bound < leak), f"{told} {leak:.2g}", plain="" if bound < leak else plain)


# ---- without tempering -----------------------------------------------------------------------------------------------
def retain_error_insensitive(tables: Tables) -> Finding:
    """Some p̂ puts more probability on the support of p_f, disjoint from p_r's, than its Retain Error.

    None does: p̂ keeps 1 − m for the support of p_r, so KL(p_r ‖ p̂) ≥ −ln(1 − m) ≥ m. Tried on the witness.
    """
    told, ratios = [], []
    for delta in (1e-1, 1e-2, 1e-3):
        leak = theory.witness(delta, 0.1, 1e4)
        mass = leak.forget_error / 1e4  # the density on an interval of length 1/peak
        ratios.append(float(mass / leak.retain_error))
        told.append(f"Retain Error {leak.retain_error:.4f}, probability {mass:.4f}, density {leak.forget_error:.3g}")
    return Finding(max(ratios) > 1, f"witness, γ = 0.1, peak 1e4: {'; '.join(told)}")


def strong_classification_leaks(tables: Tables) -> Finding:
    """The witness of Theorem 3.5 with a small excess risk has a Forget Error that grows with the peak without end."""
    leak = {peak: float(theory.witness(1e-3, 0.1, peak).forget_error) for peak in PEAKS[::2]}
    return Finding(leak[1e8] > 1e3 * leak[1e2], f"δ = 1e-3, γ = 0.1: {listed(leak, 'peak {:.0e} {:.3g}')}")


def tempering_proved_necessary(tables: Tables) -> Finding:
    """Of two classifiers with one excess risk, untempered, does the one that errs on retain samples alone leak too?"""
    m, delta = GaussianMixture(v_f=1e-6), 1e-2
    low, high = -np.expm1(-delta / (1 - m.gamma)), -np.expm1(-delta / m.gamma)
    best = partial(probability, m.phi_star)
    pair = {"(1 − a) f*": lambda z: (1 - low) * best(z), "f* + b (1 − f*)": lambda z: best(z) + high * (1 - best(z))}
    risk = {name: float(np.asarray(m.excess_risk(f))) for name, f in pair.items()}
    harmless, leaky = leaks = [float(np.asarray(m.forget_error(f, 1.0))) for f in pair.values()]
    told = "; ".join(f"{name} δ = {risk[name]:.3f}, Forget Error {leak:.2g}" for name, leak in zip(pair, leaks))
    return Finding(harmless > 0.1 * leaky, f"peak {m.peak_forget():.0f}, T = 1: {told}")


def sharpening(tables: Tables) -> Finding:
    """On the witness the Forget Error of f̂^w is linear in the peak for every w."""
    slopes = {w: _slope(PEAKS, theory.witness(1e-3, 0.1, PEAKS, sharpen=w).forget_error) for w in (1.0, 2.0, 4.0, 8.0)}
    level = {w: float(theory.witness(1e-3, 0.1, 1e6, sharpen=w).forget_error) for w in (1.0, 2.0, 4.0)}
    told = f"witness, slope in the peak {listed(slopes, 'w = {:g}: {:.3f}')}; level at peak 1e6"
    holds = all(abs(slope - 1) < 0.02 for slope in slopes.values())
    return Finding(holds, f"{told} {listed(level, 'w = {:g}: {:.2g}')}")


def greedy(tables: Tables) -> Finding:
    """p^(1/T) f = (p f^T)^(1/T): is there a p, f and T whose likeliest token differs between (T, w = 1) and (1, w = T)?

    Tried on random distributions; on our runs the MU-ROUGE of both is compared wherever both were run.
    """
    rng = np.random.default_rng(0)
    logp, logf = np.log(rng.dirichlet(np.full(50, 0.3), 2_000) + 1e-300), np.log(rng.uniform(1e-6, 1, (2_000, 50)))
    apart, other = [], 0
    for T in TS:
        tempered, sharpened = theory.tilted(logp, logf, T), theory.tilted(logp, logf, 1.0, T)
        apart.append(np.abs(theory.tilted(sharpened, np.zeros_like(logf), T) - tempered).max())
        other += int((tempered.argmax(axis=1) != sharpened.argmax(axis=1)).sum())
    told = f"{len(TS) * len(logp)} random tilts: {other} with another likeliest token, ln p̂ apart by {max(apart):.1g}"
    with suppress(Missing):
        w = tables["ablations"]["setting"].str.extract(r"^T=1,w=([\d.]+)$", expand=False).astype(float)
        rows = tables["ablations"].assign(T=w).dropna(subset=["T", "mu_rouge"])
        both = tables["temperature"].merge(rows, on=["split", "T"]).query("T > 1")
        gap = (both["mu_rouge_x"] - both["mu_rouge_y"]).abs()
        if len(gap):
            told += f"; our runs: MU-ROUGE at T and at w = T apart by {gap.max():.1g} ({len(gap)} pairs)"
    plain = "Greedy text is the same whether one tempers with T or sharpens the classifier f to f^T, for "
    plain += "p^(1/T) f = (p f^T)^(1/T): MU-ROUGE, which reads greedy text, says nothing about tempering itself."
    return Finding(other > 0, told, plain="" if other else plain)


# ---- with tempering --------------------------------------------------------------------------------------------------
def thm_3_7_peak(tables: Tables) -> Finding:
    """The whole bound of Theorem 3.7, bias and all, grows like the peak to the power 1/T at most (δ = 1e-2, k = T + 1).

    Where the supports overlap, ‖p_f‖_{2, p_r^(τ)} in the bias grows like the peak to the power 1/2τ.
    """
    mixtures = [GaussianMixture(v_f=v) for v in (1e-10, 1e-12)]
    slopes, told = {}, []
    for T in TS:
        stars = [(m, T, theory.tau_star_forget(m, T)) for m in mixtures]
        bias = [theory.tempering_bias_bound(*star) for star in stars]
        whole = [float(theory.bound_forget_tempered(m, 1e-2, T, T + 1, tau)) for m, T, tau in stars]
        peaks = [m.peak_forget() for m in mixtures]
        slopes[T] = _slope(peaks, whole)
        told.append(f"T = {T:g}: bound {slopes[T]:.3f}, its bias {_slope(peaks, bias):.3f}, 1/T = {1 / T:.3f}")
    return Finding(all(slopes[T] <= 1 / T + 0.01 for T in TS), f"slope in the peak, v_f near 1e-11: {'; '.join(told)}")


def thm_3_7_improves(tables: Tables) -> Finding:
    """For δ = 0.05 and some sharp p_f the tempered bound, bias and all, is below the untempered one."""
    first = {}
    for T, m in product(TS, [GaussianMixture(v_f=v) for v in 10.0 ** np.arange(-12.0, 0.0)]):  # from sharp to flat
        tempered = theory.bound_forget_tempered(m, 0.05, T, T + 1, theory.tau_star_forget(m, T))
        if tempered < theory.bound_forget_untempered(0.05, 0.1, m.peak_forget()):
            first[T] = m.peak_forget()
    told = f"δ = 0.05, k = T + 1, smaller than Theorem 3.4 from {listed(first, 'peak {1:.3g} at T = {0:g}')}"
    return Finding(set(first) == set(TS), told)


def witness_tempered(tables: Tables) -> Finding:
    """On the witness the Forget Error at T grows like the peak to the power 1/T."""
    slopes = {T: _slope(PEAKS[-2:], theory.witness(1e-3, 0.1, PEAKS[-2:], T=T).forget_error) for T in (1.0, *TS)}
    holds = all(abs(slope - 1 / T) < 0.02 for T, slope in slopes.items())
    return Finding(holds, f"witness, slope in the peak: {listed(slopes, 'T = {:g}: {:.3f}')}")


def bias_grows(tables: Tables) -> Finding:
    """The Bayes classifier's Forget Error is 0 at T = 1 and grows with T."""
    bias = {v: np.asarray((m := GaussianMixture(v_f=v)).forget_error(m.phi_star, [1.0, *TS])) for v in (1e-3, 1.0)}
    told = "; ".join(f"v_f = {v:g}: " + ", ".join(f"{b:.3f}" for b in values[1:]) for v, values in bias.items())
    holds = all(bool((np.diff(values) > 0).all() and values[0] < 1e-9) for values in bias.values())
    return Finding(holds, f"Bayes classifier, Forget Error at T = 1.5, 2, 3: {told}")


def thm_3_8_entropy(tables: Tables) -> Finding:
    """The same mixture in other units: entropy H(p_r) changes by ln(scale). Bias at δ = 0 and its bound, T = 2."""
    entropy, bias, bound = [], [], []
    for s in 10.0 ** np.arange(-2, 3):
        m = GaussianMixture(mu_r=s, v_r=s * s, v_f=1e-3 * s * s)
        entropy.append(m.entropy_retain())
        bias.append(float(np.asarray(m.retain_error(m.phi_star, 2.0))))
        bound.append(float(theory.bound_retain_tempered(m, 0.0, 2.0, theory.tau_star_retain(m, m.phi_star, 2.0))))
    falls = all(bool((np.diff(values) < -1e-9).all()) for values in (bias, bound))
    shown = [" ".join(f"{value:.3g}" for value in values) for values in (entropy, bias, bound)]
    return Finding(falls, f"H = {shown[0]}: bias {shown[1]}; its bound {shown[2]}")


# ---- Appendices D to F ----------------------------------------------------------------------------------------------
def imbalance_iff(tables: Tables) -> Finding:
    """Is there f̂ ≠ f*_μ in [0, 1] with f̂ p_μ and p̄_r the same distribution? They are whenever
    (μ − γ) f̂ + γ(1 − μ) is a multiple of p / p_μ, and c = μ(1 − μ)(1 + e) gives one such f̂ for each e."""
    m, mu, off = GaussianMixture(v_f=1e-3), 0.5, -0.05
    z, w = m.mesh()
    p_r, p_f, p = (np.exp(log(z)) for log in (m.logp_r, m.logp_f, m.logp))
    p_mu = (1 - mu) * p_r + mu * p_f
    f = (mu * (1 - mu) * (1 + off) * p / p_mu - m.gamma * (1 - mu)) / (mu - m.gamma)
    one, other = f * p_mu, theory.density_ratio_under_imbalance(f, mu, m.gamma) * p
    apart = np.abs(one / (w * one).sum() - other / (w * other).sum()).max()
    far = np.abs(f - (1 - mu) * p_r / p_mu).max()
    counterexample = apart < 1e-10 and f.min() >= 0 and f.max() <= 1 and far > 1e-3
    told = f"an f̂ in [{f.min():.3f}, {f.max():.3f}], up to {far:.3f} from f*, for which the two densities differ by"
    return Finding(not counterexample, f"μ = 0.5, γ = 0.1: {told} {apart:.1g}")


def functional_increasing(tables: Tables) -> Finding:
    """∫ p^(1/τ) |ln p| grows with v_f, as the closed form for one Gaussian does."""
    taus, variances = np.array([1.0, 1.5, 2.0, 3.0]), (1e-6, 1e-3, 1.0)
    values = np.array([theory.absolute_log_functional(GaussianMixture(v_f=v), taus) for v in variances])
    told = "; ".join(f"τ = {t:g}: " + ", ".join(f"{x:.3g}" for x in column) for t, column in zip(taus, values.T))
    single = np.diff(theory.gaussian_power_log_integral(np.linspace(0.16, 20, 500), taus[:, None]), axis=1)
    one = f"for one Gaussian it {'increases' if (single > 0).all() else 'does not increase'} with v"
    return Finding(bool((np.diff(values, axis=0) > 0).all()), f"v_f = 1e-6, 1e-3, 1: {told}; {one}")


_lattice = cache(forget_quality_lattice)  # some 600 exact tests


def fq_formula(tables: Tables) -> Finding:
    """2 exp(−|D_f| D²) against the exact two-sample p-value, for 200 and 400 rows."""
    told, verdicts = [], []
    for n in (200, 400):
        exact = _lattice(n)
        apart = np.abs(forget_quality_approximation(n, np.arange(1, n + 1) / n) - exact)
        verdicts.append(bool(apart.max() <= 0.05))
        limit, high = exact[apart <= 0.01].max(), apart[exact > 0.9].min()
        told.append(f"n = {n}: within 0.01 up to FQ {limit:.2f}, off by {high:.2f} or more above 0.9")
    return Finding(all(verdicts), "; ".join(told))


def _slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """d ln y / d ln x between the two ends."""
    return float(np.log(y[-1] / y[0]) / np.log(x[-1] / x[0]))
