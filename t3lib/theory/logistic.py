"""Regularised logistic regression on [1, z, z²] (Appendix E), for many data sets at once.

    L_n(φ) = (1/n) Σ ℓ(σ(φ·[1, z_i, z_i²]), s_i) + λ ‖φ‖²             (Eq. 3, Appendix E)

The features are not standardised and the intercept is regularised, as the formula says.
Coefficients reach 1e5 when p_f is narrow, so first-order solvers stop far from the minimum;
Newton's method with backtracking needs ten to forty steps. Letters: M data sets, n samples each.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog
from scipy.special import expit, log_expit

from t3lib.core.errors import UserError
from t3lib.theory.checks import check_within
from t3lib.theory.quadrature import Array, Rows

Cost = Callable[[Array, Rows], Array]
MAX_STEPS = 200  # of Newton's method; ten to forty are needed


def logit(phi: Array, z: ArrayLike) -> Array:
    """φ·[1, z, z²]; phi (..., 3) broadcasts against z: (3,) with any z, (M, 1, 3) with z (M, J)."""
    z = np.asarray(z, dtype=float)
    return phi[..., 0] + z * (phi[..., 1] + z * phi[..., 2])


def probability(phi: Array, z: ArrayLike) -> Array:
    """f(z) = σ(φ·[1, z, z²]), the probability of retain   (Appendix E); shapes as in `logit`."""
    return expit(logit(phi, z))


def objective(phi: Array, z: Array, s: Array, lam: ArrayLike) -> Array:
    """(1/n) Σ −ln σ((2 s_i − 1) φ·[1, z_i, z_i²]) + λ ‖φ‖²   (Eq. 3).

    phi: (M, 3). z, s: (M, n), s is 1 for retain and 0 for forget. lam: λ, one number or (M,).
    Returns (M,).
    """
    return -log_expit((2.0 * s - 1.0) * logit(phi[:, None], z)).mean(axis=1) + np.asarray(lam) * (
        phi**2
    ).sum(axis=1)


def fit_logistic(z: ArrayLike, s: ArrayLike, lam: ArrayLike) -> Array:
    """argmin_φ of Eq. 3 for every data set.

    z, s: (M, n) or (n,); s is 1 for retain and 0 for forget.
    lam: λ ≥ 0, a number or (M,).

    Returns φ (M, 3) or (3,). With λ > 0, data sets of one class are fitted like any others.
    UserError if λ = 0 and there is no unique minimum (one class only, separable, or fewer than
    three distinct z), and if Newton's method does not converge.
    """
    z2, s2 = np.atleast_2d(np.asarray(z, dtype=float)), np.atleast_2d(np.asarray(s, dtype=float))
    if z2.shape != s2.shape or z2.shape[1] == 0:
        raise UserError(
            f"z and s must have one shape with n ≥ 1 samples, got {z2.shape} and {s2.shape}"
        )
    check_within("z", z2)
    if not np.isin(s2, (0.0, 1.0)).all():
        raise UserError(
            f"s must hold 0 (forget) and 1 (retain), got {s2[~np.isin(s2, (0.0, 1.0))].flat[0]!r}"
        )
    check_within("lam", lam, 0)
    lams = np.broadcast_to(np.asarray(lam, dtype=float), len(z2)).copy()
    for row in np.flatnonzero(lams == 0):
        _refuse_without_minimiser(z2[row], s2[row], int(row))
    phi = _newton(z2, s2, lams)
    return phi[0] if np.ndim(z) == 1 else phi


def _newton(z: Array, s: Array, lam: Array) -> Array:
    """Run Newton's method with backtracking from φ = 0, until every problem has converged."""
    n = z.shape[1]
    sign = 2.0 * s - 1.0
    powers = np.stack(
        [np.ones_like(z), z, z**2, z**3, z**4], axis=2
    )  # (M, n, 5): the Hessian is a Hankel matrix

    def cost(phi: Array, rows: Rows) -> Array:
        return objective(phi, z[rows], s[rows], lam[rows])

    phi = np.zeros((len(z), 3))
    open_ = np.arange(len(z))
    value = cost(phi, open_)
    for _ in range(MAX_STEPS):
        signs, basis, penalty, current = sign[open_], powers[open_], lam[open_], phi[open_]
        miss = expit(-signs * (basis[:, :, :3] @ current[:, :, None])[:, :, 0])
        gradient = (
            -((signs * miss)[:, None, :] @ basis[:, :, :3])[:, 0] / n
            + 2 * penalty[:, None] * current
        )
        moments = ((miss * (1.0 - miss))[:, None, :] @ basis)[:, 0] / n
        hessian = moments[:, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]] + 2 * penalty[
            :, None, None
        ] * np.eye(3)
        step = _solve(hessian, gradient)
        decrement = (gradient * step).sum(axis=1)
        length = _backtrack(current, step, decrement, value[open_], open_, cost)
        phi[open_] = current - length[:, None] * step
        value[open_] = cost(phi[open_], open_)
        # The decrement is about twice what the objective could still fall before this step. A
        # Newton step squares that gap, so below 1e-13 nothing is left to gain.
        open_ = open_[(decrement > 1e-13 * value[open_]) & (length > 0)]
        if len(open_) == 0:
            return phi
    raise UserError(
        f"Newton did not converge in {MAX_STEPS} steps for {len(open_)} of {len(z)} data sets"
    )


def _solve(hessian: Array, gradient: Array) -> Array:
    """H⁻¹ g, scaled to a unit diagonal: for narrow p_f the entries of H differ by many orders."""
    scale = 1.0 / np.sqrt(hessian[:, [0, 1, 2], [0, 1, 2]])
    scaled = hessian * scale[:, :, None] * scale[:, None, :]
    return scale * np.linalg.solve(scaled, (scale * gradient)[:, :, None])[:, :, 0]


def _backtrack(
    phi: Array, step: Array, decrement: Array, value: Array, rows: Rows, cost: Cost
) -> Array:
    """Return step lengths 1, ½, ¼, … that lower each objective by 1% of Newton's prediction.

    cost(phi, rows): objectives (m,) of coefficients (m, 3) on the problems with these indices.
    rows: indices of the problems that have not converged.

    A length is 0 if 40 halvings do not help, which is when rounding is all that is left.
    """
    length = np.ones(len(phi))
    todo = np.arange(len(phi))
    for _ in range(40):
        trial = phi[todo] - length[todo, None] * step[todo]
        promised = 0.01 * length[todo] * decrement[todo]
        worse = ~(cost(trial, rows[todo]) <= value[todo] * (1 + 1e-14) - promised)
        todo = todo[worse]
        if len(todo) == 0:
            return length
        length[todo] *= 0.5
    length[todo] = 0.0
    return length


def _refuse_without_minimiser(z: Array, s: Array, row: int) -> None:
    """Raise UserError for λ = 0 on a data set without a unique minimum.

    Along a φ ≠ 0 that puts no sample on the wrong side the loss falls without end.
    """
    features = np.stack([np.ones_like(z), z, z**2], axis=1)
    sides = (2.0 * s - 1.0)[:, None] * features
    if np.linalg.matrix_rank(features) < 3:
        raise UserError(
            f"lam = 0 needs three distinct values of z in data set {row}; the minimiser is not"
            " unique"
        )
    best = linprog(
        -sides.sum(axis=0), A_ub=-sides, b_ub=np.zeros(len(z)), bounds=[(-1, 1)] * 3, method="highs"
    )
    if best.status == 0 and -best.fun > 1e-9:
        what = "has one class only" if len(np.unique(s)) == 1 else "is separable"
        raise UserError(
            f"lam = 0 has no minimiser: data set {row} {what}, so the loss falls for ever; take"
            " lam > 0"
        )
