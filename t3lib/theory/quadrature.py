"""Gauss–Legendre quadrature on the line for integrands made of Gaussians, sigmoids of quadratics, and kinks.

Accuracy comes from where the panels end. A Gaussian wants panels of about two standard deviations; σ(quadratic) is
analytic up to the complex z where the quadratic equals ±iπ, so panels must shrink towards the real part of that pole,
geometrically, down to its distance from the axis. Poles of a quadratic are two square roots, so the mesh of a whole
batch of classifiers costs one vectorised formula. Letters: N classifiers, K panel edges, J nodes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

NODE, WEIGHT = np.polynomial.legendre.leggauss(16)  # on [-1, 1]; exact for polynomials of degree 31
RATIO = 5.0  # growth of panels away from a pole: 16 nodes then reach 1e-14


def softplus(x: Array) -> Array:
    """ln(1 + e^x) without overflow, elementwise; faster than numpy.logaddexp by a factor of three."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid_poles(phi: Array) -> tuple[Array, Array]:
    """Where c0 + c1 z + c2 z² = iπ: real parts and distances from the axis of σ's nearest poles.

    phi: (N, 3). Returns centres and distances, both (N, 2); a pole that does not exist (a constant or linear
    exponent) comes back at distance inf.
    """
    c0, c1, c2 = (phi[:, i].astype(complex) for i in range(3))
    c0 = c0 - 1j * np.pi
    root = np.sqrt(c1 * c1 - 4.0 * c2 * c0)
    q = -0.5 * (c1 + np.where((c1.conj() * root).real >= 0, root, -root))  # the sign that does not cancel
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        poles = np.stack([q / c2, c0 / q], axis=1)
    found = np.isfinite(poles)
    return np.where(found, poles.real, 0.0), np.where(found, np.abs(poles.imag), np.inf)


def pole_edges(centre: Array, distance: Array, lo: float, hi: float) -> Array:
    """Panel edges that crowd geometrically around each pole, clipped to [lo, hi]; (N, 2) -> (N, K)."""
    width = hi - lo
    distance = np.clip(distance, 1e-13 * width, width)
    levels = 1 + int(np.ceil(np.log(width / distance.min()) / np.log(RATIO)))
    steps = 2.0 * RATIO ** np.arange(levels)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    edges = centre[:, :, None] + distance[:, :, None] * offsets
    return np.clip(edges.reshape(len(centre), -1), lo, hi)


def nodes(edges: Array) -> tuple[Array, Array]:
    """Gauss–Legendre nodes and weights of every panel, in order: edges (..., K) -> z, w (..., 16 (K − 1))."""
    half = 0.5 * np.diff(edges)
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])
    z = middle[..., None] + half[..., None] * NODE
    w = half[..., None] * WEIGHT
    return z.reshape(*edges.shape[:-1], -1), w.reshape(*edges.shape[:-1], -1)


def refine(edges: Array, integrands: Callable[[Array], Array], tolerance: float = 1e-14, rounds: int = 40) -> Array:
    """Bisect the panels on which any integrand disagrees with its own two halves; edges (K,) -> (K',).

    integrands maps z (J,) to values (m, J). For functions whose poles are unknown; a jump ends in panels too narrow
    to matter.
    """
    settled, open_ = [], np.stack([edges[:-1], edges[1:]], axis=1)
    open_ = open_[open_[:, 1] > open_[:, 0]]
    scale: Array | None = None
    for _ in range(rounds):
        middle = open_.mean(axis=1)
        halves = np.concatenate([np.c_[open_[:, 0], middle], np.c_[middle, open_[:, 1]]])
        coarse, fine = (_panel_integrals(part, integrands) for part in (open_, halves))
        if scale is None:
            scale = np.abs(coarse).sum(axis=1, keepdims=True) + np.finfo(float).tiny
        error = np.abs(coarse - fine[:, : len(open_)] - fine[:, len(open_) :])
        bad = (error > tolerance * scale).any(axis=0)
        settled.append(open_[~bad])
        if not bad.any():
            break
        open_ = halves[np.concatenate([bad, bad])]
    else:
        settled.append(open_)
    return np.unique(np.concatenate(settled))


def _panel_integrals(panels: Array, integrands: Callable[[Array], Array]) -> Array:
    z, w = nodes(panels)  # (P, 16)
    values = integrands(z.ravel()) * w.ravel()
    return values.reshape(values.shape[0], len(panels), -1).sum(axis=2)


def roots_in_brackets(g: Callable[[Array], Array], a: Array, b: Array, steps: int = 8) -> Array:
    """One root of g in each bracket [a, b] with a change of sign, by the Illinois form of regula falsi; (M,) -> (M,).

    A root missed by ε changes an integral of |g| by g' ε² only, so eight steps between two nodes are plenty.
    """
    a, b, ga, gb = a.copy(), b.copy(), g(a), g(b)
    side = np.zeros(len(a), dtype=int)
    for _ in range(steps):
        with np.errstate(divide="ignore", invalid="ignore"):
            c = np.where(gb != ga, (a * gb - b * ga) / (gb - ga), 0.5 * (a + b))
        c = np.clip(np.where(np.isfinite(c), c, 0.5 * (a + b)), np.minimum(a, b), np.maximum(a, b))
        gc = g(c)
        left = np.sign(gc) == np.sign(ga)  # the root is right of c
        gb = np.where(left & (side == 1), 0.5 * gb, gb)
        ga = np.where(~left & (side == -1), 0.5 * ga, ga)
        side = np.where(left, 1, -1)
        a, ga = np.where(left, c, a), np.where(left, gc, ga)
        b, gb = np.where(left, b, c), np.where(left, gb, gc)
    return np.where(np.abs(ga) < np.abs(gb), a, b)


def integral_of_absolute(
    edges: Array,
    z: Array,
    panels: Array,
    above: NDArray[np.bool_],
    near: NDArray[np.bool_],
    log_ratio: Callable[[Rows, Rows, Array], Array],
    integrand: Callable[[Rows, Rows, Array], Array],
) -> Array:
    """∫ |h| = s_end G(∞) + 2 Σ_roots s_before G(root), G(r) = ∫_{−∞}^r h: no quadrature node sees a kink; -> (M, N).

    For M functions h on each of N meshes: edges (N, K) with nodes z (N, J); panels (M, N, K − 1) integrals of h; above
    (M, N, J) where h > 0; near (N, J) where h matters at all, one interval a row. log_ratio(m, i, x) vanishes where h
    does, integrand(m, i, x) is h itself; m and i pick function and mesh for each row of x.
    """
    below = np.concatenate([np.zeros((*panels.shape[:2], 1)), np.cumsum(panels, axis=2)], axis=2)
    last = near.shape[1] - 1 - np.argmax(near[:, ::-1], axis=1)
    total = np.where(above[:, np.arange(len(z)), last], 1.0, -1.0) * below[:, :, -1]
    m, i, j = np.nonzero((above[:, :, 1:] != above[:, :, :-1]) & (near[:, 1:] & near[:, :-1]))
    if len(m) == 0:
        return total
    root = roots_in_brackets(lambda x: log_ratio(m, i, x), z[i, j], z[i, j + 1])
    panel = j // len(NODE)
    panel = panel + (root > edges[i, panel + 1])
    x, w = nodes(np.stack([edges[i, panel], root], axis=1))
    upto = below[m, i, panel] + (w * integrand(m, i, x)).sum(axis=1)
    np.add.at(total, (m, i), np.where(above[m, i, j], 2.0, -2.0) * upto)
    return total
