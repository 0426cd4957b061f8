"""The mixture: exact errors against brute force, Monte Carlo, symmetries, and the identities of
Appendices B, D, E.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from t3lib import theory
from t3lib.theory import GaussianMixture
from t3lib.theory.logistic import probability

EASY = settings(max_examples=25, derandomize=True)
GAMMAS = st.floats(0.02, 0.6)
VARIANCES = st.sampled_from([1e-6, 1e-4, 1e-3, 0.03, 0.5, 1.0, 2.0])
TEMPERATURES = st.floats(1.0, 4.0)
SHARES = st.floats(0.01, 0.99)


def random_phi(rng: np.random.Generator, mixture: GaussianMixture, count: int) -> np.ndarray:
    """From near φ* to nowhere near it, with steep and flat ones among them."""
    share, noise = rng.uniform(0, 1.3, (count, 1)), 10.0 ** rng.uniform(-1.5, 1, (count, 1))
    spike = 1 / np.sqrt(mixture.v_f)
    return share * mixture.phi_star + noise * rng.standard_normal((count, 3)) * [
        1.0,
        spike**0.5,
        spike,
    ]


def brute_force(
    mixture: GaussianMixture, logf, T: float, method: str
) -> tuple[float, float, float]:
    """A million equidistant points each: in u with z = mu_f + s sinh(u) for the line, in z for the
    spike.
    """
    count = 1_000_001
    top = np.arcsinh(40 / 1e-4)
    u, du = np.linspace(-top, top, count, retstep=True)
    z = mixture.mu_f + 1e-4 * np.sinh(u)
    w = 1e-4 * np.cosh(u) * du
    a, b = np.log(1 - mixture.gamma) + mixture.logp_r(z), np.log(mixture.gamma) + mixture.logp_f(z)
    logp = np.logaddexp(a, b)
    power = np.exp(logp / T) if method == "exact" else np.exp(a / T) + np.exp(b / T)
    partition = (w * power * np.exp(logf(z))).sum()
    retain = (
        w * np.exp(mixture.logp_r(z)) * (mixture.logp_r(z) - logp / T - logf(z))
    ).sum() + np.log(partition)
    reach = 12 * np.sqrt(mixture.v_f)
    z, dz = np.linspace(mixture.mu_f - reach, mixture.mu_f + reach, count, retstep=True)
    gap = np.exp(mixture.logp_r(z)) - np.exp(mixture.logp(z) / T + logf(z)) / partition
    return partition, retain, (np.exp(mixture.logp_f(z)) * np.abs(gap)).sum() * dz


@pytest.mark.parametrize("v_f", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("method", theory.METHODS)
def test_quadrature_equals_brute_force(v_f, method):
    mixture, rng = GaussianMixture(v_f=v_f), np.random.default_rng(1)
    for phi, T in zip(random_phi(rng, mixture, 3), (1.0, 1.7, 3.0), strict=True):
        brute = np.array(
            brute_force(
                mixture,
                lambda z, c=phi: -np.logaddexp(0, -(c[0] + c[1] * z + c[2] * z * z)),
                T,
                method,
            )
        )
        exact = np.array([mixture.partition(phi, T, method), *mixture.errors(phi, T, method)])
        np.testing.assert_allclose(exact, brute, rtol=1e-9, atol=1e-9)


def test_a_kinked_callable_equals_brute_force_and_a_smooth_one_equals_its_array():
    mixture, phi = GaussianMixture(v_f=1e-3), np.array([1.0, 20.0, 300.0])

    def ramp(z):
        return 0.05 + 0.9 * np.clip(np.abs(z - 0.03) / 0.1, 0, 1)

    brute = np.array(brute_force(mixture, lambda z: np.log(ramp(z)), 1.8, "exact"))
    np.testing.assert_allclose(
        [mixture.partition(ramp, 1.8), *mixture.errors(ramp, 1.8)], brute, rtol=1e-8
    )

    def smooth(z):
        return 1 / (1 + np.exp(-(phi[0] + phi[1] * z + phi[2] * z * z)))

    np.testing.assert_allclose(mixture.errors(smooth, 2.2), mixture.errors(phi, 2.2), rtol=1e-10)
    # a callable's 1 − f has an absolute error of 1e-16 and meets weights p_f only
    assert mixture.excess_risk(smooth) == pytest.approx(mixture.excess_risk(phi), rel=1e-9)


@pytest.mark.parametrize("v_f", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("method", theory.METHODS)
def test_monte_carlo_agrees_within_four_standard_errors(v_f, method):
    mixture, rng = GaussianMixture(v_f=v_f), np.random.default_rng(5)
    for phi in random_phi(rng, mixture, 2):
        for T in (1.0, 2.5):
            mc = theory.monte_carlo_errors(mixture, phi, T, 100_000, rng, method)
            retain, forget = mixture.errors(phi, T, method)
            assert abs(mc.partition - mixture.partition(phi, T, method)) < 4 * mc.partition_se
            assert abs(mc.retain - retain) < 4 * mc.retain_se
            assert abs(mc.forget - forget) < 4 * mc.forget_se


@EASY
@given(GAMMAS, VARIANCES, TEMPERATURES, st.integers(0, 99))
def test_the_papers_partition_function_never_underestimates(gamma, v_f, T, seed):
    mixture = GaussianMixture(gamma=gamma, v_f=v_f)
    phi = random_phi(np.random.default_rng(seed), mixture, 4)
    exact, papers = mixture.partition(phi, T), mixture.partition(phi, T, "negligible_overlap")
    assert (papers >= exact * (1 - 1e-12)).all()
    at_one = mixture.partition(phi, 1.0), mixture.partition(phi, 1.0, "negligible_overlap")
    np.testing.assert_allclose(*at_one, rtol=1e-12)


@EASY
@given(GAMMAS, VARIANCES, TEMPERATURES, st.floats(-3, 3), st.floats(0.1, 20), st.integers(0, 99))
def test_units_do_not_matter(gamma, v_f, T, shift, scale, seed):
    """z -> shift + scale z leaves the Retain Error and divides the Forget Error, a density, by the
    scale.
    """
    mixture = GaussianMixture(gamma=gamma, v_f=v_f)
    phi = random_phi(np.random.default_rng(seed), mixture, 2) * 0.1
    moved = GaussianMixture(gamma, shift + scale, scale**2, shift, scale**2 * v_f)
    c0, c1, c2 = phi.T
    phi2 = np.stack(
        [
            c0 - c1 * shift / scale + c2 * (shift / scale) ** 2,
            c1 / scale - 2 * c2 * shift / scale**2,
            c2 / scale**2,
        ]
    )
    (retain, forget), (retain2, forget2) = mixture.errors(phi, T), moved.errors(phi2.T, T)
    np.testing.assert_allclose(retain2, retain, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(forget2 * scale, forget, rtol=1e-6, atol=1e-9)


def test_the_bayes_classifier_recovers_the_retain_distribution():
    for v_f in (1e-6, 1e-3, 1.0):
        mixture = GaussianMixture(v_f=v_f)
        assert mixture.excess_risk(mixture.phi_star) == 0.0
        retain, forget = mixture.errors(mixture.phi_star, 1.0)
        assert abs(retain) < 1e-12 and forget < 1e-12 * mixture.peak_forget()
        z = np.linspace(-2, 2, 101)
        ratio = (1 - mixture.gamma) * np.exp(mixture.logp_r(z) - mixture.logp(z))
        margin = mixture.phi_star @ np.stack([np.ones_like(z), z, z**2])
        np.testing.assert_allclose(np.exp(-np.logaddexp(0, -margin)), ratio, rtol=1e-8, atol=1e-300)


def test_shapes_follow_batch_then_temperatures():
    mixture, phi = GaussianMixture(), np.zeros((5, 3))
    assert isinstance(mixture.retain_error(phi[0], 2.0), float)
    assert mixture.forget_error(phi[0], [1.0, 2.0]).shape == (2,)
    assert mixture.partition(phi, 2.0).shape == (5,)
    assert mixture.errors(phi, np.ones((2, 3)))[0].shape == (5, 2, 3)
    assert mixture.excess_risk(phi).shape == (5,)
    assert mixture.retain_error(lambda z: np.full_like(z, 0.5), [1.0, 1.5]).shape == (2,)


def test_a_constant_classifier_leaves_the_tempered_base():
    mixture = GaussianMixture(gamma=1e-9, v_f=1.0)  # p = p_r: KL(N(0, v) ‖ N(0, T v)) is known
    for T in (1.0, 1.5, 3.0):
        assert mixture.retain_error(lambda z: np.full_like(z, 0.3), T) == pytest.approx(
            0.5 * (1 / T - 1 + np.log(T)), abs=1e-8
        )


def test_sharpening_is_the_power_of_the_classifier():
    mixture, phi = GaussianMixture(), np.array([1.0, 4.0, 30.0])
    by_hand = mixture.errors(lambda z: (1 / (1 + np.exp(-(1 + 4 * z + 30 * z * z)))) ** 3, 1.4)
    np.testing.assert_allclose(mixture.errors(phi, 1.4, sharpen=3.0), by_hand, rtol=1e-10)


def test_second_moment_and_entropy_by_quadrature():
    mixture = GaussianMixture(0.3, 1.2, 0.7, -0.4, 0.01)
    z, w = mixture.mesh()
    assert (w * np.exp(mixture.logp(z)) * (1 + z**2 + z**4)).sum() == pytest.approx(
        mixture.second_moment(), rel=1e-12
    )
    assert -(w * np.exp(mixture.logp_r(z)) * mixture.logp_r(z)).sum() == pytest.approx(
        mixture.entropy_retain(), rel=1e-12
    )
    assert np.exp(mixture.logp_f(np.array(mixture.mu_f))) == pytest.approx(
        mixture.peak_forget(), rel=1e-14
    )


# ---- identities ---------------------------------------------------------------------------------
@EASY
@given(st.floats(0.2, 6), st.floats(0.1, 8), st.integers(0, 99))
def test_tempering_is_sharpening_for_greedy_text(T, w, seed):
    """p^(1/T) f^w = (p f^(wT))^(1/T): one order of tokens for one product wT, and two different
    distributions.
    """
    rng = np.random.default_rng(seed)
    logp, logf = np.log(rng.dirichlet(np.ones(40), 3)), np.log(rng.uniform(1e-3, 1, (3, 40)))
    tempered, sharpened = theory.tilted(logp, logf, T, w), theory.tilted(logp, logf, 1.0, w * T)
    np.testing.assert_allclose(
        theory.tilted(sharpened, np.zeros_like(logf), T), tempered, atol=1e-12
    )
    np.testing.assert_allclose(np.exp(tempered).sum(axis=-1), 1.0, rtol=1e-12)
    assert (np.argsort(tempered) == np.argsort(sharpened)).all()
    assert abs(T - 1) < 0.05 or not np.allclose(tempered, sharpened, atol=1e-3)


@EASY
@given(SHARES, SHARES, st.sampled_from([1e-3, 0.5, 1.0]))
def test_density_ratio_under_imbalance_is_exact(mu, gamma, v_f):
    """Appendix D: from the Bayes classifier at share μ to p_r / p at share γ."""
    mixture, training = GaussianMixture(gamma=gamma, v_f=v_f), GaussianMixture(gamma=mu, v_f=v_f)
    z = np.linspace(-3, 4, 201)
    f_mu = (1 - mu) * np.exp(training.logp_r(z) - training.logp(z))
    ratio = np.exp(mixture.logp_r(z) - mixture.logp(z))
    np.testing.assert_allclose(
        theory.density_ratio_under_imbalance(f_mu, mu, gamma), ratio, rtol=1e-12, atol=1e-12
    )


def test_the_corrected_estimator_is_consistent_and_the_uncorrected_is_not():
    mixture, training = GaussianMixture(gamma=0.05), GaussianMixture(gamma=0.5)
    assert mixture.retain_error(training.phi_star, 1.0) > 1e-3

    def corrected(z):
        return 0.95 * theory.density_ratio_under_imbalance(
            probability(training.phi_star, z), 0.5, 0.05
        )

    assert abs(mixture.retain_error(corrected, 1.0)) < 1e-10


def test_tempering_is_the_maximum_entropy_law_in_a_kl_ball():
    """Appendix B on five outcomes, against a general-purpose constrained optimiser."""
    p = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    radius = 0.1
    T = theory.temperature_of_kl(np.log(p), radius)
    tempered = p ** (1 / T) / (p ** (1 / T)).sum()
    assert (tempered * np.log(tempered / p)).sum() == pytest.approx(radius, abs=1e-12)
    found = minimize(
        lambda q: (q * np.log(q)).sum(),
        p,
        bounds=[(1e-9, 1)] * 5,
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1},
            {"type": "ineq", "fun": lambda q: radius - (q * np.log(q / p)).sum()},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(found.x, tempered, atol=1e-5)
    rng = np.random.default_rng(0)
    others = rng.dirichlet(np.ones(5), 20_000)
    others = others[(others * np.log(others / p)).sum(axis=1) <= radius]
    assert len(others) > 100  # otherwise the next line says nothing
    assert (-(others * np.log(others)).sum(axis=1)).max() <= -(tempered * np.log(tempered)).sum()


def test_temperature_of_kl_grows_with_the_radius_and_knows_gaussians():
    mixture = GaussianMixture(gamma=1e-12)
    z, w = mixture.mesh(40.0)
    for T in (1.2, 2.0, 5.0):
        radius = 0.5 * (T - 1 - np.log(T))  # KL(N(m, T v) ‖ N(m, v))
        assert theory.temperature_of_kl(mixture.logp_r(z), radius, w) == pytest.approx(T, rel=1e-9)
    assert theory.temperature_of_kl(np.log([0.7, 0.3]), 0.0) == 1.0
    assert (
        theory.temperature_of_kl(np.log([0.7, 0.3]), 5.0) == np.inf
    )  # the uniform law fits: nothing left to smooth


def test_remark_on_tails():
    """Remark 3.2: light tails always, a power tail |z|^−α only for T < α."""
    gauss = GaussianMixture()
    assert theory.tempered_mass(lambda z: float(gauss.logp_r(np.array(z))), 3.0) == pytest.approx(
        np.sqrt(3) * (2 * np.pi) ** (1 / 3), rel=1e-9
    )

    def cauchy(z):
        return -np.log(np.pi * (1 + z * z))

    assert theory.tempered_mass(cauchy, 1.0) == pytest.approx(1.0, rel=1e-8)
    assert theory.tempered_mass(cauchy, 1.6) > 1.0
    with pytest.raises(ValueError, match="T = 2.0.*diverges"):
        theory.tempered_mass(cauchy, 2.0)


# ---- bad input ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (lambda: GaussianMixture(gamma=0.0), "gamma", "0.0"),
        (lambda: GaussianMixture(gamma=1.0), "gamma", "1.0"),
        (lambda: GaussianMixture(gamma=float("nan")), "gamma", "nan"),
        (lambda: GaussianMixture(gamma=-0.1), "gamma", "-0.1"),
        (lambda: GaussianMixture(mu_r=float("nan")), "mu_r", "nan"),
        (lambda: GaussianMixture(v_r=0.0), "v_r", "0.0"),
        (lambda: theory.density_ratio_under_imbalance(2.0, 0.5, 0.1), "f must", "2.0"),
        (lambda: theory.tempered_mass(lambda z: -abs(z), 0.5), "T", "0.5"),
        (lambda: theory.tilted([-1.0, -2.0], [-1.0, -2.0], 0.0), "T", "0.0"),
        (lambda: theory.tilted([-1.0, -2.0], [-1.0, -2.0], 1.0, -1.0), "sharpen", "-1.0"),
        (
            lambda: theory.monte_carlo_errors(GaussianMixture(), [1, 2, 3], 0.5, 10, None),
            "T",
            "0.5",
        ),
        (lambda: GaussianMixture(v_f=-1e-3), "v_f", "-0.001"),
        (lambda: GaussianMixture().retain_error([1, 2, 3], 0.9), "T", "0.9"),
        (lambda: GaussianMixture().forget_error([1, 2, 3], [1.0, float("nan")]), "T", "nan"),
        (lambda: GaussianMixture().partition([1, 2, 3], 2.0, "guess"), "method", "guess"),
        (lambda: GaussianMixture().errors([1, 2, 3], 2.0, "guess"), "method", "guess"),
        (lambda: GaussianMixture().excess_risk([1, 2]), "phi", r"\(2,\)"),
        (lambda: GaussianMixture().retain_error(lambda z: z + 5, 2.0), "phi", "3.9|4|5"),
        (lambda: GaussianMixture().retain_error([1, 2, 3], 2.0, sharpen=0.0), "sharpen", "0.0"),
        (lambda: theory.density_ratio_under_imbalance(0.5, 1.5, 0.1), "mu", "1.5"),
        (
            lambda: theory.monte_carlo_errors(GaussianMixture(), [1, 2, 3], 2.0, 1, None),
            "samples",
            "1",
        ),
    ],
)
def test_bad_input_names_the_argument_and_its_value(call, name, value):
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        call()
