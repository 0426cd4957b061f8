"""Theorems as tests: no violation over 5,200 random classifiers, and a control beside each that
does violate.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from test_theory import random_phi

from t3lib import theory
from t3lib.theory import GaussianMixture

EASY = settings(max_examples=50, derandomize=True)
GAMMAS, VARIANCES, TEMPERATURES = (
    (0.02, 0.1, 0.3, 0.6),
    (1e-6, 1e-4, 1e-3, 0.1, 1.0),
    (1.0, 1.3, 2.0, 3.0),
)
PER_CELL = 260  # 4 · 5 · 260 = 5,200 classifiers, each at every temperature
SLACK = 1e-9  # absolute, for equality cases


@pytest.fixture(scope="session")
def cells():
    """(mixture, phi, delta, {T: (retain, forget)}) for every γ and v_f."""
    rng = np.random.default_rng(3)
    made = []
    for gamma in GAMMAS:
        for v_f in VARIANCES:
            mixture = GaussianMixture(gamma=gamma, v_f=v_f)
            phi = random_phi(rng, mixture, PER_CELL)
            retain, forget = mixture.errors(phi, TEMPERATURES)
            errors = {T: (retain[:, k], forget[:, k]) for k, T in enumerate(TEMPERATURES)}
            made.append((mixture, phi, mixture.excess_risk(phi), errors))
    assert sum(len(phi) for _, phi, _, _ in made) >= 5000
    deltas = np.concatenate([delta for _, _, delta, _ in made])
    assert (
        (deltas < 0.01).sum() > 50 and (deltas > 1).sum() > 50 and (deltas >= 0).all()
    )  # a wide range is covered
    return made


def test_theorem_3_3_retain_untempered(cells):
    for mixture, _, delta, errors in cells:
        assert (
            errors[1.0][0] <= theory.bound_retain_untempered(delta, mixture.gamma) + SLACK
        ).all()
    # control: without the factor 1/(1 − γ) the witness of Theorem 3.5 violates it
    made = theory.witness(1e-3, 0.3, 100.0)
    assert made.retain_error > made.excess_risk * 1.2
    # and with it the witness shows the bound tight as δ -> 0
    assert made.retain_error == pytest.approx(theory.bound_retain_untempered(1e-3, 0.3), rel=0.01)


def test_theorem_3_4_forget_untempered(cells):
    violated_without_peak = 0
    for mixture, _, delta, errors in cells:
        peak = mixture.peak_forget()
        assert (
            errors[1.0][1]
            <= theory.bound_forget_untempered(delta, mixture.gamma, peak) + SLACK * peak
        ).all()
        violated_without_peak += (
            errors[1.0][1] > theory.bound_forget_untempered(delta, mixture.gamma, 1.0)
        ).sum()
    assert violated_without_peak > 100  # control: the factor ‖p_f‖_∞ cannot be dropped


def test_theorem_3_5_witness_equals_formula_and_densities():
    rng = np.random.default_rng(0)
    for gamma, peak in zip(rng.uniform(0.01, 0.99, 200), 10 ** rng.uniform(0, 6, 200), strict=True):
        delta = gamma * 10 ** rng.uniform(-6, 0.5)
        made = theory.witness(delta, gamma, peak)
        # independently: uniform densities 1 on [0, 1] and `peak` on an interval of length 1/peak
        # beside it
        epsilon = 1 - np.exp(-delta / gamma) if delta / gamma > 1e-3 else -np.expm1(-delta / gamma)
        mass = (1 - gamma) + gamma * epsilon
        forget = peak * (1 / peak) * abs(0 - gamma * peak * epsilon / mass)
        assert made.forget_error == pytest.approx(forget, rel=1e-12)
        assert made.forget_error == pytest.approx(
            theory.forget_lower_bound(delta, gamma, peak), rel=1e-12
        )
        assert made.excess_risk == pytest.approx(delta, rel=1e-12)
        assert made.retain_error == pytest.approx(-np.log((1 - gamma) / mass), rel=1e-9, abs=1e-15)
    # control: tempering takes the same classifier below the untempered lower bound
    assert theory.witness(1e-3, 0.1, 1e4, T=2.0).forget_error < 0.5 * theory.forget_lower_bound(
        1e-3, 0.1, 1e4
    )


def test_lower_bound_is_of_order_peak_times_delta_and_below_the_upper_bound():
    delta, peak = 10.0 ** np.arange(-8, 1), 10.0 ** np.arange(0, 7)[:, None]
    lower, upper = (
        theory.forget_lower_bound(delta, 0.1, peak),
        theory.bound_forget_untempered(delta, 0.1, peak),
    )
    assert (lower <= upper).all()
    np.testing.assert_allclose(lower[:, 0], peak[:, 0] * delta[0] / 0.9, rtol=1e-6)
    np.testing.assert_allclose(
        lower / lower[0], np.broadcast_to(peak, lower.shape), rtol=1e-12
    )  # linear in the peak


def test_lemma_a_1_classifier_l1(cells):
    linear = 0
    for mixture, phi, delta, _ in cells:
        l1 = theory.classifier_l1(mixture, phi)
        assert (l1 <= theory.bound_classifier_l1(delta) + SLACK).all()
        linear += (l1 > delta / 2).sum()
    assert linear > 100  # control: √(δ/2) cannot become δ/2


def test_classifier_l1_by_adaptive_quadrature():
    mixture, phi = GaussianMixture(v_f=0.1), np.array([[0.5, 1.0, 2.0]])

    def gap(z):
        f, best = (1 / (1 + np.exp(-np.dot(c, [1, z, z * z]))) for c in (phi[0], mixture.phi_star))
        return np.exp(mixture.logp(np.array(z))) * abs(f - best)

    c = phi[0] - mixture.phi_star
    value, _ = quad(gap, -9, 11, points=sorted(np.roots(c[::-1]).real), limit=500, epsabs=1e-12)
    assert theory.classifier_l1(mixture, phi)[0] == pytest.approx(value, abs=1e-9)


def test_lemma_a_2_partition(cells):
    for mixture, phi, delta, _ in cells:
        for T in TEMPERATURES:
            bound = theory.bound_partition(delta, mixture.gamma, T, mixture.entropy_retain())
            assert (mixture.partition(phi, T) >= bound * (1 - 1e-12)).all()
    # control: at the price of a perfect classifier the bound fails for one that says "forget"
    # everywhere
    mixture = GaussianMixture()
    assert mixture.partition([-7, 0, 0], 1.5) < theory.bound_partition(
        0.0, 0.1, 1.5, mixture.entropy_retain()
    )


def test_theorem_3_7_forget_tempered(cells):
    for mixture, _, delta, errors in cells:
        for T in TEMPERATURES:
            tau = theory.tau_star_forget(mixture, T)
            assert 1 <= tau <= T
            for k in (T + 0.05, T + 1, 4 * T):
                assert (
                    errors[T][1] <= theory.bound_forget_tempered(mixture, delta, T, k, tau) + SLACK
                ).all()
            bias = mixture.forget_error(mixture.phi_star, T)
            assert bias <= theory.tempering_bias_bound(mixture, T, tau) + SLACK
    # control: without its first term the bound is 0 at δ = 0, where tempering alone errs
    mixture = GaussianMixture(v_f=1.0)
    rest = theory.bound_forget_tempered(mixture, 0.0, 2.0, 3.0, 1.5) - theory.tempering_bias_bound(
        mixture, 2.0, 1.5
    )
    assert rest == 0.0 and mixture.forget_error(mixture.phi_star, 2.0) > 0.01


def test_the_tempered_bounds_are_what_their_docstrings_print():
    """By adaptive quadrature; that a bound holds does not say that it is no larger."""
    mixture, delta, T, k, tau = GaussianMixture(v_f=0.5), 0.02, 1.5, 2.5, 1.2
    gamma = mixture.gamma

    def integral(of):
        return quad(lambda z: float(of(np.array(z))), -25, 25, limit=1000, epsabs=1e-12)[0]

    def p(z):
        return np.exp(mixture.logp(z))

    def p_r(z):
        return np.exp(mixture.logp_r(z))

    entropy = -integral(lambda z: p_r(z) * mixture.logp_r(z))

    def partition(delta, T):
        price = (delta - gamma * np.log(gamma)) / (1 - gamma)
        return (1 - gamma) ** ((T + 1) / T) * np.exp((T - 1) / T * entropy - price)

    mass = integral(lambda z: p(z) ** ((k - T) / (T * (k - 1))))
    rest = (delta / 2) ** (1 / (2 * T))
    rest += mass ** ((k - 1) / k) * (delta / 2) ** (1 / (2 * k)) / partition(delta, T)
    forget = mixture.peak_forget() ** (1 / T) * rest / partition(0.0, T)
    forget += theory.tempering_bias_bound(mixture, T, tau)
    found = theory.bound_forget_tempered(mixture, delta, T, k, tau)
    assert found == pytest.approx(forget, rel=1e-8)

    def q(z):  # of the bias, without its normaliser
        return p_r(z) * p(z) ** (1 / tau - 1)

    of_q = integral(q)
    mean = integral(lambda z: q(z) * mixture.logp(z)) / of_q
    spread = integral(lambda z: q(z) * (mixture.logp(z) - mean) ** 2) / of_q
    norm = integral(lambda z: q(z) * np.exp(2 * mixture.logp_f(z))) / of_q
    bias = (1 - 1 / T) * np.sqrt(norm * spread)
    assert theory.tempering_bias_bound(mixture, T, tau) == pytest.approx(bias, rel=1e-8)

    log = integral(lambda z: p(z) ** (1 / tau) * abs(mixture.logp(z)))
    retain = delta / (1 - gamma) + (1 - 1 / T) * (log / partition(delta, tau) - entropy)
    found = theory.bound_retain_tempered(mixture, delta, T, tau)
    assert found == pytest.approx(retain, rel=1e-8)


def test_theorem_3_8_retain_tempered(cells):
    beyond_untempered = 0
    for mixture, phi, delta, errors in cells:
        for T in TEMPERATURES:
            tau = theory.tau_star_retain(mixture, phi, T)
            assert ((tau >= 1) & (tau <= T)).all()
            assert (
                errors[T][0] <= theory.bound_retain_tempered(mixture, delta, T, tau) + SLACK
            ).all()
        beyond_untempered += (
            errors[3.0][0] > theory.bound_retain_untempered(delta, mixture.gamma)
        ).sum()
    assert beyond_untempered > 100  # control: the tempering bias cannot be dropped


def test_tau_star_retain_solves_its_equality():
    """Eq. 21 turns the mean value theorem into an identity for the Retain Error itself."""
    mixture = GaussianMixture(v_f=0.1)
    phi = random_phi(np.random.default_rng(4), mixture, 20)
    T = 2.5
    tau = theory.tau_star_retain(mixture, phi, T)
    z, w = mixture.mesh(T)
    for c, t, retain_1, retain_t in zip(
        phi, tau, *(mixture.retain_error(phi, x) for x in (1.0, T)), strict=True
    ):
        q = w * np.exp(mixture.logp(z) / t - np.logaddexp(0, -(c[0] + z * (c[1] + z * c[2]))))
        gap = (w * np.exp(mixture.logp_r(z)) * mixture.logp(z)).sum() - (
            q * mixture.logp(z)
        ).sum() / q.sum()
        assert retain_t - retain_1 == pytest.approx((1 - 1 / T) * gap, rel=1e-6, abs=1e-8)


def test_tau_star_retain_is_within_its_interval_however_short():
    """Next to T = 1 the slope that it solves for lies between two others up to rounding alone."""
    mixture = GaussianMixture(v_f=0.1)
    phi = np.vstack([mixture.phi_star, random_phi(np.random.default_rng(4), mixture, 20)])
    for T in 1 + 10.0 ** np.arange(-15, -2):
        tau = theory.tau_star_retain(mixture, phi, T)
        assert ((tau >= 1) & (tau <= T)).all(), T


def test_disjoint_supports_have_no_tempering_bias_and_the_slopes_of_the_paper():
    """In the limit v_f -> 0 far away the bias vanishes; on the witness: slope 1/T by tempering, 1
    by sharpening.
    """
    apart = GaussianMixture(mu_f=-30.0, v_f=1e-4)
    assert theory.tempering_bias_bound(apart, 2.0, 1.5) < 1e-12
    peaks = np.array([1e5, 1e9])
    for T in (1.0, 1.5, 2.5):
        low, high = theory.witness(1e-3, 0.1, peaks, T=T).forget_error
        assert np.log(high / low) / np.log(1e4) == pytest.approx(1 / T, abs=0.01)
    for w in (2.0, 4.0):
        low, high = theory.witness(1e-3, 0.1, peaks, sharpen=w).forget_error
        assert np.log(high / low) / np.log(1e4) == pytest.approx(1.0, abs=0.01)


def test_the_bias_of_the_tempered_bound_grows_with_the_peak():
    """Like the peak to the power 1/2τ where supports overlap: ∫ p_r^(τ) p_f² is of the order of the
    peak to 1/τ.
    """
    for T, tau in ((3.0, 1.0), (3.0, 1.25), (2.0, 2.0)):
        low, high = (
            theory.tempering_bias_bound(GaussianMixture(v_f=v), T, tau) for v in (1e-16, 1e-20)
        )
        slope = np.log(high / low) / np.log(1e2)  # the peak grows a hundredfold
        assert slope == pytest.approx(1 / (2 * tau), abs=0.04), (T, tau)


@EASY
@given(st.floats(1 / (2 * np.pi), 50), st.floats(1.0, 4.0))
def test_gaussian_integral_of_the_retain_discussion(v, tau):
    value = theory.gaussian_power_log_integral(v, tau)

    def integrand(z):
        logp = -0.5 * (z * z / v + np.log(2 * np.pi * v))
        return np.exp(logp / tau) * abs(logp)

    numeric, _ = quad(integrand, 0, 45 * np.sqrt(v * tau), limit=500)
    assert value == pytest.approx(2 * numeric, rel=1e-8)
    assert (
        theory.gaussian_power_log_integral(v * 1.01, tau) > value
    )  # increasing in v, as the paper says


def test_proposition_c_1():
    """λ of the paper minimises its bound; fitted on fresh data the mean excess risk stays below."""
    mixture = GaussianMixture(v_f=1.0)
    norm, moment = float(np.linalg.norm(mixture.phi_star)), mixture.second_moment()
    for n in (25, 400):
        lam = float(theory.logistic_lambda(norm, moment, n))
        tuned = theory.bound_logistic_excess_risk(norm, moment, n)
        assert tuned == pytest.approx(2 * norm * np.sqrt(2 * moment / n), rel=1e-12)
        assert tuned == pytest.approx(
            theory.bound_logistic_excess_risk(norm, moment, n, lam), rel=1e-12
        )
        for other in (0.5, 0.9, 1.1, 2.0):
            assert theory.bound_logistic_excess_risk(norm, moment, n, other * lam) > tuned
        rng = np.random.default_rng(n)
        s = (rng.random((200, n)) < 0.9).astype(float)
        z = np.where(s == 1, 1.0, 0.0) + rng.standard_normal((200, n))
        delta = mixture.excess_risk(theory.fit_logistic(z, s, lam))
        assert delta.mean() < tuned
    # control: overfitted classifiers exceed the tuned bound of a large sample
    wild = mixture.excess_risk(np.array([[50.0, -80.0, 5.0]]))
    assert wild[0] > theory.bound_logistic_excess_risk(norm, moment, 400)


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (lambda: theory.bound_retain_untempered(0.1, 1.0), "gamma", "1.0"),
        (lambda: theory.bound_retain_untempered(-0.1, 0.5), "delta", "-0.1"),
        (lambda: theory.bound_forget_untempered(0.1, 0.5, -1.0), "peak", "-1.0"),
        (lambda: theory.bound_partition(0.1, 0.5, 0.5, 1.0), "T", "0.5"),
        (
            lambda: theory.bound_forget_tempered(GaussianMixture(), 0.1, 2.0, 2.0, 1.5),
            "k must exceed T = 2.0",
            "2.0",
        ),
        (
            lambda: theory.bound_forget_tempered(GaussianMixture(), 0.1, 1.0, 1.0, 1.0),
            "k must exceed T = 1.0",
            "1.0",
        ),
        (
            lambda: theory.bound_forget_tempered(GaussianMixture(), 0.1, 2.0, 1.5, 1.5),
            "k must exceed T = 2.0",
            "1.5",
        ),
        (lambda: theory.bound_retain_tempered(GaussianMixture(), 0.1, 2.0, 0.5), "tau", "0.5"),
        (
            lambda: theory.bound_retain_tempered(GaussianMixture(), 0.1, 2.0, 3.0),
            r"tau must lie in \[1, 2\]",
            "3.0",
        ),
        (
            lambda: theory.bound_forget_tempered(GaussianMixture(), 0.1, 2.0, 3.0, 2.5),
            r"tau must lie in \[1, 2\]",
            "2.5",
        ),
        (lambda: theory.absolute_log_functional(GaussianMixture(), 0.5), "tau", "0.5"),
        (lambda: theory.witness(0.1, 0.5, -1.0), "peak", "-1.0"),
        (lambda: theory.witness(0.1, 0.1, 0.0), r"peak must lie in \(0, inf\)", "0.0"),
        (lambda: theory.tau_star_forget(GaussianMixture(), 0.5), "T", "0.5"),
        (lambda: theory.tau_star_retain(GaussianMixture(), lambda z: z, 2.0), "phi", "callable"),
        (lambda: theory.bound_logistic_excess_risk(1.0, 1.0, 0), "n", "0"),
        (lambda: theory.bound_logistic_excess_risk(1.0, 1.0, 10, 0.0), "lam", "0.0"),
        (lambda: theory.gaussian_power_log_integral(0.1, 1.5), "v", "0.1"),
        (lambda: theory.temperature_of_kl(np.log([0.5, 0.5]), -1.0), "radius", "-1.0"),
        (lambda: theory.witness(0.1, 0.5, 1.0, T=0.5), "T", "0.5"),
    ],
)
def test_bad_input_names_the_argument_and_its_value(call, name, value):
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        call()
