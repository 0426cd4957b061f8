"""The exact price of tempering, and its bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from t3lib.core.errors import UserError
from t3lib.theory.price import memorised_price_bound, tail_price_bound, tempering_price

temperatures = st.floats(1.0, 6.0)
seeds = st.integers(0, 10_000)


def drawn(seed: int, size: int = 40, scale: float = 4.0) -> np.ndarray:
    return log_softmax(scale * np.random.default_rng(seed).normal(size=size))


@given(seeds, temperatures)
def test_it_is_the_retain_error_of_the_tempered_oracle(seed, T):
    """KL(p_r ‖ p^(1/T) f*), summed term by term, with f* ∝ p_r / p."""
    logp, logp_r = drawn(seed), drawn(seed + 1)
    made = np.exp(logp / T) * np.exp(logp_r - logp)
    made /= made.sum()
    expected = sum(p_r * np.log(p_r / p_hat) for p_r, p_hat in zip(np.exp(logp_r), made))
    assert tempering_price(logp, T, logp_r) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@given(seeds, temperatures)
def test_far_from_the_rows_it_is_the_partition_less_the_entropy(seed, T):
    logp = drawn(seed)
    p = np.exp(logp)
    expected = np.log((p ** (1 / T)).sum()) + (1 - 1 / T) * (p * logp).sum()
    assert tempering_price(logp, T) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(seeds, temperatures, st.floats(1e-6, 0.5))
def test_no_distribution_with_a_memorised_token_exceeds_its_bound(seed, T, epsilon):
    rest = np.exp(drawn(seed, 200))
    p = np.concatenate([[1 - epsilon], epsilon * rest])
    assert tempering_price(np.log(p), T) <= memorised_price_bound(epsilon, 200, T) + 1e-12


def test_the_bound_is_nearly_reached_by_an_even_rest():
    p = np.concatenate([[1 - 1e-3], np.full(2047, 1e-3 / 2047)])
    price, bound = tempering_price(np.log(p), 3.0), memorised_price_bound(1e-3, 2047, 3.0)
    assert price == pytest.approx(bound, rel=0.01)
    assert price == pytest.approx(2.8, abs=0.05)


def test_for_small_s_it_is_half_the_variance_of_surprise():
    logp, T = drawn(3), 1.001
    s, p = 1 - 1 / T, np.exp(logp)
    variance = (p * logp**2).sum() - (p * logp).sum() ** 2
    assert tempering_price(logp, T) == pytest.approx(s**2 / 2 * variance, rel=0.01)


def test_without_tempering_it_is_free():
    assert tempering_price(drawn(0), 1.0) == pytest.approx(0, abs=1e-12)
    assert tail_price_bound(1.0, 3.0) == 0 and np.isinf(tail_price_bound(0.0, 3.0))
    assert tail_price_bound([0.0, 0.5], 1.0).tolist() == [0, 0]
    assert tail_price_bound(0.01, 3.0) == pytest.approx(2 / 3 * np.log(100), rel=1e-15)


def test_sharpening_is_refused():
    with pytest.raises(UserError, match="T must lie"):
        tempering_price(drawn(0), 0.5)
