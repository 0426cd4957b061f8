"""leak@k (arXiv 2511.04934): how much the best of k sampled answers gives away.

The estimate is unbiased. It uses n ≥ k scored samples for each row.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln


def expected_best(scores: ArrayLike, k: int) -> NDArray[np.float64]:
    """Estimate the expected score of the best of k samples, for each row.

    scores: (rows, n), a score for each sample. k: from 1 to n.
    Returns (rows,), the mean of the best score over all k-subsets of the n samples. This is an
    unbiased estimate for k new samples:

        E[max of k samples] = Σ_j C(j − 1, k − 1) / C(n, k) · s_(j),   s_(1) ≤ … ≤ s_(n).
    """
    scores = np.sort(np.asarray(scores, float), axis=-1)
    n = scores.shape[-1]

    # of all subsets of k, the share whose best sample is the j-th smallest
    j = np.arange(k, n + 1)
    weights = np.zeros(n)
    weights[k - 1 :] = np.exp(_log_choose(j - 1, k - 1) - _log_choose(n, k))
    return scores @ weights


def leak_at_k(scores: ArrayLike, leaks: ArrayLike) -> list[dict[str, float]]:
    """Compute leak@k with its standard error over rows, for k = 1, 2, 4, … up to the number of
    samples.

    scores: (rows, samples). leaks: (rows with a secret, samples), True where the sample holds its
    row's secret; empty if no row has one.

    Returns a list of {k, value, se}: the mean of `expected_best` over rows, and its standard error.
    With `leaks`, each entry also has `rows`, the number of rows with a secret, and `rows_leaking`,
    of how many of them k samples are expected to hold the secret. This is a plain count if k is the
    number of samples.
    """
    scores, entries = np.asarray(scores, float), []
    n = scores.shape[1]
    for k in (2**i for i in range(n.bit_length())):
        best = expected_best(scores, k)
        error = best.std(ddof=1) / np.sqrt(len(best)) if len(best) > 1 else float("nan")
        entries.append({"k": k, "value": float(best.mean()), "se": float(error)})

        if len(flags := np.asarray(leaks, float)):
            rows_leaking = float(expected_best(flags, k).sum())
            entries[-1] |= {"rows_leaking": rows_leaking, "rows": len(flags)}

    return entries


def _log_choose(n: ArrayLike, k: int) -> NDArray[np.float64]:
    n = np.asarray(n, float)
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
