"""The standard error of a membership AUC (`t3lib.tofu.suite.auc`), by authors."""

import numpy as np
from numpy.typing import ArrayLike

from t3lib.tofu.suite import auc


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
        for values in (np.asarray(forgotten, float), np.asarray(unseen, float))
    ]
    if min(map(len, sides)) < 2:
        return float("nan")

    # of every pair of authors, one a side: the AUC of their rows, and the numbers of rows
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
