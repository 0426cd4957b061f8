"""Batched Newton against scikit-learn, against its own optimality condition, and on the data
scikit-learn refuses.
"""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from t3lib.theory import fit_logistic, objective


def data(v_f: float, n: int, trials: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    s = (rng.random((trials, n)) < 0.9).astype(float)
    noise = rng.standard_normal((trials, n))
    return np.where(s == 1, 1 + noise, np.sqrt(v_f) * noise), s


def gradient(phi, z, s, lam):
    features = np.stack([np.ones_like(z), z, z**2], axis=2)
    sign = 2 * s - 1
    margin = sign * np.einsum("mnk,mk->mn", features, phi)
    return (
        -np.einsum("mn,mnk->mk", sign / (1 + np.exp(np.minimum(margin, 700))), features)
        / z.shape[1]
        + 2 * lam * phi
    )


@pytest.mark.filterwarnings(
    "ignore:The inner solver of NewtonCholeskySolver"
)  # it then falls back to lbfgs
@pytest.mark.parametrize("v_f", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("lam", [1e-8, 1e-5, 1e-2])
def test_equals_scikit_learn(v_f, lam):
    z, s = data(v_f, 50, 12)
    phi = fit_logistic(z, s, lam)
    compared = 0
    for z_i, s_i, phi_i in zip(z, s, phi, strict=True):
        if s_i.min() == s_i.max():
            continue
        x = np.stack([np.ones_like(z_i), z_i, z_i**2], axis=1)
        model = LogisticRegression(
            C=1 / (2 * 50 * lam),
            fit_intercept=False,
            solver="newton-cholesky",
            tol=1e-13,
            max_iter=1000,
        ).fit(x, s_i)
        np.testing.assert_allclose(
            phi_i, model.coef_[0], rtol=1e-6, atol=1e-6 * np.abs(phi_i).max()
        )
        pair = objective(
            np.stack([phi_i, model.coef_[0]]), np.stack([z_i, z_i]), np.stack([s_i, s_i]), lam
        )
        assert pair[0] <= pair[1] * (1 + 1e-13)  # to machine precision, nobody gets lower
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("v_f", [1e-6, 1e-3, 1.0])
def test_gradient_vanishes_and_no_neighbour_is_lower(v_f):
    for lam in (1e-10, 1e-6, 1e-1):
        z, s = data(v_f, 200, 20, seed=1)
        phi = fit_logistic(z, s, lam)
        value = objective(phi, z, s, lam)
        # along any direction the objective is at least quadratic with curvature 2λ: this bounds
        # what is left to gain
        left = (gradient(phi, z, s, lam) ** 2).sum(axis=1) / (4 * lam)
        assert (left <= 1e-8 * value).all()
        rng = np.random.default_rng(0)
        for size in (1e-6, 1e-3, 1e-1):
            step = size * np.abs(phi).max(axis=1, keepdims=True) * rng.standard_normal(phi.shape)
            assert (objective(phi + step, z, s, lam) >= value * (1 - 1e-14)).all()


def test_one_problem_in_a_batch_is_the_same_alone_and_lambda_may_differ_by_row():
    z, s = data(1e-3, 30, 6)
    lams = 10.0 ** np.arange(-6, 0)
    batch = fit_logistic(z, s, lams)
    for i in range(6):
        np.testing.assert_allclose(batch[i], fit_logistic(z[i], s[i], lams[i]), rtol=1e-9)
    assert batch[0].shape == (3,) and fit_logistic(z[0], s[0], 0.1).shape == (3,)


def test_the_intercept_is_regularised_too():
    z, s = np.zeros((1, 4)), np.ones((1, 4))
    phi = fit_logistic(z, s, 0.5)[0]  # minimise softplus(−b) + b²/2: b = σ(−b)
    assert phi[0] == pytest.approx(1 / (1 + np.exp(phi[0])), rel=1e-10) and phi[
        1:
    ] == pytest.approx([0, 0], abs=1e-15)


def test_single_class_data_have_one_minimiser_when_lambda_is_positive():
    z, _ = data(1e-3, 25, 3)
    for label in (0.0, 1.0):
        phi = fit_logistic(z, np.full_like(z, label), 1e-6)
        assert (
            np.isfinite(phi).all()
            and (np.abs(gradient(phi, z, np.full_like(z, label), 1e-6)) < 1e-12).all()
        )


def test_without_regularisation_when_a_minimiser_exists():
    z, s = data(1.0, 300, 2, seed=7)
    phi = fit_logistic(z, s, 0.0)
    assert np.abs(gradient(phi, z, s, 0.0)).max() < 1e-12


@pytest.mark.parametrize(
    ("z", "s", "lam", "message"),
    [
        ([[1.0, 2.0, 3.0]], [[1, 1, 1]], 0.0, "lam = 0 has no minimiser.*one class"),
        ([[0.0, 1.0, 2.0, 3.0]], [[0, 0, 1, 1]], 0.0, "lam = 0 has no minimiser.*separable"),
        (
            [[0.0, 1.0, 1.0, 1.0, 2.0]],
            [[0, 0, 1, 1, 1]],
            0.0,
            "lam = 0 has no minimiser",
        ),  # quasi-separable
        ([[1.0, 1.0, 2.0, 2.0]], [[0, 1, 0, 1]], 0.0, "lam = 0 needs three distinct"),
        ([[1.0, 2.0]], [[0, 1]], -0.1, "lam.*-0.1"),
        ([[1.0, 2.0]], [[0, 2]], 0.1, "s must hold.*2"),
        ([[1.0, float("nan")]], [[0, 1]], 0.1, "z must lie in.*got nan"),
        ([[1.0, 2.0]], [[0, 1]], float("nan"), "lam.*nan"),
        ([[]], [[]], 0.1, "n ≥ 1"),
        ([[1.0, 2.0]], [[0, 1, 1]], 0.1, "one shape"),
    ],
)
def test_bad_input_is_refused_with_its_reason(z, s, lam, message):
    with pytest.raises(ValueError, match=message):
        fit_logistic(np.array(z), np.array(s, dtype=float), lam)
