"""Is a forgotten answer still recognised when it is shown? Pure functions on per-row and per-token
scores.

Sources: the truth ratio's rows of TOFU (Maini et al., 2024); extraction strength (arXiv 2311.10538)
and exact memorization (arXiv 2205.10770) as the published TOFU code computes them.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t3lib.core.errors import UserError

# The cells: (wording of the answer, wording of the question) -> the fields of a row that hold the
# true answer, the question and the wrong answers. In the last cell the wrong answers have the
# sentence shape of the true one, as they have in those of the paraphrase.
CELLS = {
    "verbatim": ("answer", "question", "perturbed_answer"),
    "paraphrased": ("paraphrased_answer", "question", "perturbed_answer"),
    "verbatim_rephrased": ("answer", "paraphrased_question", "perturbed_answer"),
    "paraphrased_rephrased": ("paraphrased_answer", "paraphrased_question", "perturbed_answer"),
    "one_shape": ("answer", "question", "perturbed_as_learned"),
}


def recognized(true: ArrayLike, wrong: ArrayLike) -> NDArray[np.bool_]:
    """Whether each row's true answer has a lower mean negative log-likelihood than all its wrong
    ones.

    true (n,), wrong (n, k) -> (n,) bool. Chance is 1/(k + 1) only where true and wrong answers are
    worded alike, so compare with a retrained model. A tie is not recognition.
    """
    true, wrong = np.asarray(true, float), np.asarray(wrong, float)
    if true.ndim != 1 or wrong.ndim != 2 or len(true) != len(wrong) or not wrong.shape[1]:
        raise UserError(
            f"recognition needs scores (n,) and (n, k), k at least 1, not {true.shape} and"
            f" {wrong.shape}"
        )
    return true < wrong.min(axis=1)


def exact_memorization(hits: ArrayLike) -> float:
    """Share of answer tokens that teacher forcing's argmax reproduces, the end of turn left out;
    hits (N,) bool.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        raise UserError("exact memorization of an answer without tokens")
    return float(hits.mean())


def extraction_strength(hits: ArrayLike) -> float:
    """1 − k/N, k the first position from which every argmax is the answer's own token.

    hits (N,) bool, the end of turn left out. As in the published code the least value is 1/N, never
    0.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        raise UserError("extraction strength of an answer without tokens")
    misses = np.flatnonzero(~hits)
    first = min(int(misses[-1]) + 1, len(hits) - 1) if len(misses) else 0
    return 1.0 - first / len(hits)
