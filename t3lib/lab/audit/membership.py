"""Can the forgotten rows be told from rows the model never saw, by a loss that is too low, or too
high?
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from t3lib.core.errors import UserError


def auc(forgotten: ArrayLike, unseen: ArrayLike) -> float:
    """P(a forgotten row's loss < an unseen row's) + ½ P(equal): .5 when the two cannot be told
    apart.

    Above .5 the forgotten rows still look known, below .5 they look stranger than text the model
    never saw: both are traces. forgotten (n,), unseen (m,), losses.
    """
    from scipy.stats import rankdata  # takes half a second to import

    a, b = _losses(forgotten, "forgotten"), _losses(unseen, "unseen")
    ranks = rankdata(np.concatenate([a, b]))
    return float(1 - (ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2) / (len(a) * len(b)))


def auc_error(value: float, n: int, m: int) -> float:
    """Standard error of an AUC of n against m rows (Hanley and McNeil, 1982)."""
    q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
    variance = value * (1 - value) + (n - 1) * (q1 - value**2) + (m - 1) * (q2 - value**2)
    return float(np.sqrt(max(variance, 0.0) / (n * m)))


def auc_error_by_author(
    forgotten: ArrayLike, unseen: ArrayLike, rows: int, repeats: int = 2000
) -> float:
    """Standard error of an AUC when the rows of one author belong together: cluster bootstrap.

    forgotten, unseen: losses of rows in blocks of `rows` an author; a last, incomplete block counts
    as an author. Authors of both sides are drawn again with replacement, always by the same random
    numbers. NaN where a side has one author.
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
    # How often each author is drawn, times its rows: its weight among the pairs of rows.
    ours, theirs = (
        rng.multinomial(len(size), np.full(len(size), 1 / len(size)), repeats) * size
        for size in sizes
    )
    means = np.einsum("ra,ab,rb->r", ours, wins, theirs) / (ours.sum(1) * theirs.sum(1))
    return float(means.std(ddof=1))


def min_k(losses: Sequence[ArrayLike], k: float = 0.4) -> np.ndarray:
    """Mean of the largest share k of each row's token losses (min-k probability, arXiv 2310.16789):
    (n,).

    losses: one array of −ln p per row, the end of turn left out as in the published code; at least
    one token counts.
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
