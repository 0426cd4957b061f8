"""Test membership: can losses tell the forgotten rows from rows that the model never saw?

A loss that is too low is a trace, and so is one that is too high.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from t3lib.core.errors import UserError


def auc(forgotten: ArrayLike, unseen: ArrayLike) -> float:
    """Return the probability that a forgotten row has a lower loss than an unseen row; equal losses
    count one half.

    forgotten: (n,) losses. unseen: (m,) losses.

    At 0.5 the losses do not tell the two kinds apart. Above 0.5 the forgotten rows still look
    known. Below 0.5 they look stranger than text that the model never saw, which is a trace as
    well.
    """
    from scipy.stats import rankdata  # takes half a second to import

    a, b = _losses(forgotten, "forgotten"), _losses(unseen, "unseen")
    ranks = rankdata(np.concatenate([a, b]))
    return float(1 - (ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2) / (len(a) * len(b)))


def auc_error(value: float, n: int, m: int) -> float:
    """Return the standard error of an AUC of n against m rows (Hanley and McNeil, 1982)."""
    q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
    variance = value * (1 - value) + (n - 1) * (q1 - value**2) + (m - 1) * (q2 - value**2)
    return float(np.sqrt(max(variance, 0.0) / (n * m)))


def auc_error_by_author(
    forgotten: ArrayLike, unseen: ArrayLike, rows: int, repeats: int = 2000
) -> float:
    """Return the standard error of an AUC when the rows of one author are not independent (cluster
    bootstrap).

    forgotten, unseen: losses of rows, in blocks of `rows`, one author each. A last, incomplete
    block counts as an author.
    repeats: number of bootstrap samples. Each draws the authors of both sides with replacement,
    always with the same random numbers.

    NaN if one side has fewer than two authors.
    """
    sides = [
        [values[start : start + rows] for start in range(0, len(values), rows)]
        for values in (_losses(forgotten, "forgotten"), _losses(unseen, "unseen"))
    ]
    if min(map(len, sides)) < 2:
        return float("nan")
    wins = np.array([[auc(ours, theirs) for theirs in sides[1]] for ours in sides[0]])
    sizes = [np.array([len(author) for author in side]) for side in sides]
    rng = np.random.default_rng(0)
    # An author's weight among the pairs of rows: how often it is drawn, times its number of rows.
    ours, theirs = (
        rng.multinomial(len(size), np.full(len(size), 1 / len(size)), repeats) * size
        for size in sizes
    )
    means = np.einsum("ra,ab,rb->r", ours, wins, theirs) / (ours.sum(1) * theirs.sum(1))
    return float(means.std(ddof=1))


def min_k(losses: Sequence[ArrayLike], k: float = 0.4) -> np.ndarray:
    """Return for each row the mean of its largest token losses (min-k probability, arXiv
    2310.16789).

    losses: for each of n rows, the values −ln p of its tokens. The end of turn is left out, as in
    the published code.
    k: share of the tokens that are averaged, above 0 and at most 1. At least one token counts.
    Returns (n,). UserError for a k outside this range.
    """
    if not 0 < k <= 1:
        raise UserError(f"min-k takes a share above 0 and at most 1, not {k!r}")
    rows = [np.sort(_losses(row, "tokens"))[::-1] for row in losses]
    return np.array([row[: max(1, int(len(row) * k))].mean() for row in rows])


def _losses(values: ArrayLike, name: str) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise UserError(
            f"membership: the {name} losses must be a list of finite numbers with at least one"
            " entry"
        )
    return values
