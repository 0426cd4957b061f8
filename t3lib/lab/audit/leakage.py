"""What comes out of many samples: leak@k (arXiv 2511.04934) from n ≥ k scored samples a row,
without bias.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from t3lib.core.errors import UserError


def expected_best(scores: ArrayLike, k: int) -> NDArray[np.float64]:
    """E[max of k samples] = Σ_j C(j − 1, k − 1) / C(n, k) · s_(j), s_(1) ≤ … ≤ s_(n) the sorted
    scores of a row.

    scores (rows, n) -> (rows,): the mean of the best score over all k-subsets of the n samples, an
    unbiased estimate for k fresh ones. UserError for k outside 1 … n.
    """
    scores = np.sort(np.asarray(scores, float), axis=-1)
    n = scores.shape[-1]
    if not 1 <= k <= n:
        raise UserError(f"leak@k needs k between 1 and the {n} samples, not {k}")
    j = np.arange(k, n + 1)
    weights = np.zeros(n)
    weights[k - 1 :] = np.exp(_log_choose(j - 1, k - 1) - _log_choose(n, k))
    return scores @ weights


def leak_at_k(
    scores: ArrayLike, ks: Sequence[int] = (), leaks: ArrayLike = ()
) -> list[dict[str, float]]:
    """[{k, value, se}]: mean of `expected_best` over rows and its standard error, for each k;
    default powers of two.

    leaks (rows with a secret, samples): whether each sample holds its row's secret. With it an
    entry also has rows_leaking, the expected number of rows of which k samples hold the secret (a
    count where k is all samples), and rows, how many have a secret.
    """
    scores = np.asarray(scores, float)
    if scores.ndim != 2 or not scores.size:
        raise UserError(f"leak@k needs scores (rows, samples), not {scores.shape}")
    entries = []
    for k in ks or powers_of_two(scores.shape[1]):
        best = expected_best(scores, k)
        error = best.std(ddof=1) / np.sqrt(len(best)) if len(best) > 1 else float("nan")
        entries.append({"k": k, "value": float(best.mean()), "se": float(error)})
        if len(flags := np.asarray(leaks, float)):
            rows_leaking = float(expected_best(flags, k).sum())
            entries[-1] |= {"rows_leaking": rows_leaking, "rows": len(flags)}
    return entries


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, … up to n."""
    return [2**i for i in range(n.bit_length()) if 2**i <= n]


def _log_choose(n: ArrayLike, k: int) -> NDArray[np.float64]:
    n = np.asarray(n, float)
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
