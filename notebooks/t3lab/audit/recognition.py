"""Test recognition: does the model still prefer a forgotten answer when it is shown?

The rows are those of TOFU's truth ratio (Maini et al., 2024).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    return np.asarray(true, float) < np.asarray(wrong, float).min(axis=1)
