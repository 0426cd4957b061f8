"""Gauss–Legendre quadrature on the line for integrands made of Gaussians, sigmoids of quadratics,
and kinks.

Accuracy comes from where the panels end. A Gaussian wants panels of about two standard deviations;
σ(quadratic) is analytic up to the complex z where the quadratic equals ±iπ, so panels must shrink
towards the real part of that pole, geometrically, down to its distance from the axis. Poles of a
quadratic are two square roots, so the mesh of a whole batch of classifiers costs one vectorised
formula. Letters: N classifiers, K panel edges, J nodes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize.elementwise import find_root

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

NODE, WEIGHT = np.polynomial.legendre.leggauss(16)  # on [-1, 1]; exact for polynomials of degree 31
RATIO = 5.0  # growth of panels away from a pole: 16 nodes then reach 1e-14


def where_logit_is(value: complex, phi: Array) -> tuple[Array, Array]:
    """Solutions z of φ·[1, z, z²] = value: real parts and distances from the axis; phi (N, 3) ->
    two arrays (N, 2).

    A solution that does not exist (a constant or linear logit) comes back at distance inf.
    """
    c0, c1, c2 = (phi[:, i].astype(complex) for i in range(3))
    c0 = c0 - value
    root = np.sqrt(c1 * c1 - 4.0 * c2 * c0)
    q = -0.5 * (
        c1 + np.where((c1.conj() * root).real >= 0, root, -root)
    )  # the sign that does not cancel
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.stack([q / c2, c0 / q], axis=1)
    exists = np.isfinite(z)
    return np.where(exists, z.real, 0.0), np.where(exists, np.abs(z.imag), np.inf)


def pole_edges(phi: Array, lo: float, hi: float) -> Array:
    """Panel edges in [lo, hi] that crowd geometrically around each pole of σ(φ·[1, z, z²]); (N, 3)
    -> (N, K).
    """
    (centre, distance), width = where_logit_is(1j * np.pi, phi), hi - lo
    distance = np.clip(distance, 1e-13 * width, width)
    levels = 1 + int(np.ceil(np.log(width / distance.min()) / np.log(RATIO)))
    steps = 2.0 * RATIO ** np.arange(levels)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    edges = centre[:, :, None] + distance[:, :, None] * offsets
    return np.clip(edges.reshape(len(phi), -1), lo, hi)


def nodes(edges: Array) -> tuple[Array, Array]:
    """Gauss–Legendre nodes and weights of every panel, in order: edges (..., K) -> z, w (..., 16 (K
    − 1)).
    """
    half = 0.5 * np.diff(edges)
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])
    z = middle[..., None] + half[..., None] * NODE
    w = half[..., None] * WEIGHT
    return z.reshape(*edges.shape[:-1], -1), w.reshape(*edges.shape[:-1], -1)


def panel_sums(values: Array) -> Array:
    """Sums over the 16 nodes of every panel: (..., J) -> (..., J / 16)."""
    return values.reshape(*values.shape[:-1], -1, len(NODE)).sum(axis=-1)


def refine(edges: Array, integrands: Callable[[Array], Array]) -> Array:
    """Bisect the panels on which any integrand disagrees with its own two halves; edges (K,) ->
    (K',).

    integrands maps z (J,) to values (m, J). For functions whose poles are unknown: panels agree to
    1e-14 of the whole, or have been halved 40 times, so a jump ends in panels too narrow to matter.
    """

    def integrals(panels: Array) -> Array:
        z, w = nodes(panels)
        return panel_sums(integrands(z.ravel()) * w.ravel())

    done, open_ = [], np.stack([edges[:-1], edges[1:]], axis=1)
    open_ = open_[open_[:, 1] > open_[:, 0]]
    scale = np.abs(integrals(open_)).sum(axis=1, keepdims=True) + np.finfo(float).tiny
    for _ in range(40):
        middle = open_.mean(axis=1)
        left, right = np.c_[open_[:, 0], middle], np.c_[middle, open_[:, 1]]
        error = np.abs(integrals(open_) - integrals(left) - integrals(right))
        bad = (error > 1e-14 * scale).any(axis=0)
        done.append(open_[~bad])
        open_ = np.concatenate([left[bad], right[bad]])
        if not bad.any():
            break
    return np.unique(np.concatenate([*done, open_]))


def integral_of_absolute(
    edges: Array,
    panels: Array,
    above: NDArray[np.bool_],
    near: NDArray[np.bool_],
    log_ratio: Callable[[Array, Rows, Rows], Array],
    integrand: Callable[[Array, Rows, Rows], Array],
) -> Array:
    """∫ |h| = s_end G(∞) + 2 Σ_roots s_before G(root), G(r) = ∫_{−∞}^r h: no quadrature node sees a
    kink; -> (M, N).

    For M functions h on each of N meshes: edges (N, K), of which `nodes` makes nodes (N, J); panels
    (M, N, K − 1) integrals of h; above (M, N, J) where h > 0; near (N, J) where h matters at all,
    one interval a row. log_ratio(x, m, i) vanishes where h does, integrand(x, m, i) is h itself; m
    and i pick function and mesh for each row of x.
    """
    z, _ = nodes(edges)
    below = np.concatenate([np.zeros((*panels.shape[:2], 1)), np.cumsum(panels, axis=2)], axis=2)
    last = near.shape[1] - 1 - np.argmax(near[:, ::-1], axis=1)
    total = np.where(above[:, np.arange(len(z)), last], 1.0, -1.0) * below[:, :, -1]
    m, i, j = np.nonzero((above[:, :, 1:] != above[:, :, :-1]) & (near[:, 1:] & near[:, :-1]))
    if len(m) == 0:
        return total
    # A root missed by ε changes the integral by h' ε² only. Where h is rounding alone, log_ratio
    # may have no root.
    root = find_root(log_ratio, (z[i, j], z[i, j + 1]), args=(m, i), tolerances={"xrtol": 1e-10}).x
    root = np.where(np.isnan(root), z[i, j], root)
    panel = j // len(NODE)
    panel = panel + (root > edges[i, panel + 1])
    x, w = nodes(np.stack([edges[i, panel], root], axis=1))
    upto = below[m, i, panel] + (w * integrand(x, m[:, None], i[:, None])).sum(axis=1)
    np.add.at(total, (m, i), np.where(above[m, i, j], 2.0, -2.0) * upto)
    return total
