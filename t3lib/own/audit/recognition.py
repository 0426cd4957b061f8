"""Test recognition: does the model still prefer a forgotten answer when it is shown? Works on
scores and calls no model.

Sources: the truth ratio's rows of TOFU (Maini et al., 2024); extraction strength (arXiv 2311.10538)
and exact memorization (arXiv 2205.10770) as the published TOFU code computes them.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t3lib.core.errors import UserError

# The cells: (wording of the answer, wording of the question) -> the fields of a row that hold the
# true answer, the question and the wrong answers. The wrong answers are worded like the paraphrase.
# Only those of the last cell are worded like the true answer that was learned.
CELLS = {
    "verbatim": ("answer", "question", "perturbed_answer"),
    "paraphrased": ("paraphrased_answer", "question", "perturbed_answer"),
    "verbatim_rephrased": ("answer", "paraphrased_question", "perturbed_answer"),
    "paraphrased_rephrased": ("paraphrased_answer", "paraphrased_question", "perturbed_answer"),
    "one_shape": ("answer", "question", "perturbed_as_learned"),
}


def recognized(true: ArrayLike, wrong: ArrayLike) -> NDArray[np.bool_]:
    """Return for each row whether its true answer has a lower mean loss than all of its wrong
    answers.

    true: (n,) mean negative log-likelihoods. wrong: (n, k), k at least 1. Returns (n,) booleans. A
    tie is not recognition.

    Chance is 1/(k + 1) only if true and wrong answers are worded alike. So compare with a retrained
    model.
    """
    true, wrong = np.asarray(true, float), np.asarray(wrong, float)
    if true.ndim != 1 or wrong.ndim != 2 or len(true) != len(wrong) or not wrong.shape[1]:
        raise UserError(
            f"recognition needs scores (n,) and (n, k), k at least 1, not {true.shape} and"
            f" {wrong.shape}"
        )
    return true < wrong.min(axis=1)


def exact_memorization(hits: ArrayLike) -> float:
    """Return the share of answer tokens that teacher forcing ranks first.

    hits: (N,) booleans, one for each token of the answer without the end of turn. UserError for an
    empty list.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        raise UserError("exact memorization of an answer without tokens")
    return float(hits.mean())


def extraction_strength(hits: ArrayLike) -> float:
    """Return 1 − k/N, where k is the first position from which every token of the answer is ranked
    first.

    hits: (N,) booleans, one for each token of the answer without the end of turn. As in the
    published code, the smallest value is 1/N and never 0. UserError for an empty list.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        raise UserError("extraction strength of an answer without tokens")
    misses = np.flatnonzero(~hits)
    first = min(int(misses[-1]) + 1, len(hits) - 1) if len(misses) else 0
    return 1.0 - first / len(hits)
