"""Gauss–Legendre quadrature for products of Gaussians and sigmoids of quadratics, and for kinks.

Accuracy depends on where the panels end. A Gaussian needs panels of about two standard deviations.
σ(quadratic) is analytic except where the quadratic equals ±iπ (up to multiples), so panels must
shrink geometrically towards the real part of that complex pole, down to its distance from the real
axis. The poles of a quadratic are two square roots, so one vectorised formula gives the panels for
a whole batch of classifiers. Letters: N classifiers, K panel edges, J nodes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize.elementwise import find_root

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

NODE, WEIGHT = np.polynomial.legendre.leggauss(16)  # on [-1, 1]; exact for polynomials of degree 31
RATIO = 5.0  # growth of panels away from a pole; with 16 nodes this is accurate to 1e-14


def where_logit_is(value: complex, phi: Array) -> tuple[Array, Array]:
    """Solve φ·[1, z, z²] = value; return real parts and distances from the real axis.

    phi: (N, 3). Both results are (N, 2). A solution that does not exist (for a constant or linear
    logit) has distance inf.
    """
    c0, c1, c2 = (phi[:, i].astype(complex) for i in range(3))
    c0 = c0 - value
    root = np.sqrt(c1 * c1 - 4.0 * c2 * c0)
    q = -0.5 * (
        c1 + np.where((c1.conj() * root).real >= 0, root, -root)
    )  # the sign that avoids cancellation
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.stack([q / c2, c0 / q], axis=1)
    exists = np.isfinite(z)
    return np.where(exists, z.real, 0.0), np.where(exists, np.abs(z.imag), np.inf)


def pole_edges(phi: Array, lo: float, hi: float) -> Array:
    """Return panel edges in [lo, hi], geometrically denser towards each pole of σ(φ·[1, z, z²]).

    phi: (N, 3). Returns (N, K).
    """
    (centre, distance), width = where_logit_is(1j * np.pi, phi), hi - lo
    distance = np.clip(distance, 1e-13 * width, width)
    levels = 1 + int(np.ceil(np.log(width / distance.min()) / np.log(RATIO)))
    steps = 2.0 * RATIO ** np.arange(levels)
    offsets = np.concatenate([-steps[::-1], [0.0], steps])
    edges = centre[:, :, None] + distance[:, :, None] * offsets
    return np.clip(edges.reshape(len(phi), -1), lo, hi)


def nodes(edges: Array) -> tuple[Array, Array]:
    """Return Gauss–Legendre nodes and weights of all panels: (..., K) -> (..., 16 (K − 1))."""
    half = 0.5 * np.diff(edges)
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])
    z = middle[..., None] + half[..., None] * NODE
    w = half[..., None] * WEIGHT
    return z.reshape(*edges.shape[:-1], -1), w.reshape(*edges.shape[:-1], -1)


def panel_sums(values: Array) -> Array:
    """Sum over the 16 nodes of every panel: (..., J) -> (..., J / 16)."""
    return values.reshape(*values.shape[:-1], -1, len(NODE)).sum(axis=-1)


def refine(edges: Array, integrands: Callable[[Array], Array]) -> Array:
    """Bisect panels until each integral over a panel equals the sum of its halves.

    edges (K,): of the panels. integrands: maps z (J,) to values (m, J). Returns the new edges. This
    is for functions whose poles are unknown. Panels agree to 1e-14 of the whole integral, or have
    been halved 40 times, so that a jump lies in a panel too narrow to matter.
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
    """∫ |h| = s_end G(∞) + 2 Σ_roots s_before G(root), G(r) = ∫_{−∞}^r h, s the sign of h: (M, N).

    For M functions h on each of N meshes. Splitting at the roots keeps kinks out of the quadrature.

    edges (N, K): `nodes` makes nodes (N, J) of them.
    panels (M, N, K − 1): integrals of h over the panels.
    above (M, N, J): where h > 0.
    near (N, J): where h is large enough to matter, one interval in each row.
    log_ratio(x, m, i): a function of the same sign as h, for finding roots. integrand(x, m, i): h
    itself. m and i select function and mesh for each row of x.
    """
    z, _ = nodes(edges)
    below = np.concatenate([np.zeros((*panels.shape[:2], 1)), np.cumsum(panels, axis=2)], axis=2)
    last = near.shape[1] - 1 - np.argmax(near[:, ::-1], axis=1)
    total = np.where(above[:, np.arange(len(z)), last], 1.0, -1.0) * below[:, :, -1]
    m, i, j = np.nonzero((above[:, :, 1:] != above[:, :, :-1]) & (near[:, 1:] & near[:, :-1]))
    if len(m) == 0:
        return total
    # An error ε in a root changes the integral by only h' ε². Where h is only rounding error,
    # log_ratio may have no root.
    root = find_root(log_ratio, (z[i, j], z[i, j + 1]), args=(m, i), tolerances={"xrtol": 1e-10}).x
    root = np.where(np.isnan(root), z[i, j], root)
    panel = j // len(NODE)
    panel = panel + (root > edges[i, panel + 1])
    x, w = nodes(np.stack([edges[i, panel], root], axis=1))
    upto = below[m, i, panel] + (w * integrand(x, m[:, None], i[:, None])).sum(axis=1)
    np.add.at(total, (m, i), np.where(above[m, i, j], 2.0, -2.0) * upto)
    return total
