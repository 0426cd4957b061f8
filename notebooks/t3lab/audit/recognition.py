"""The wordings in which recognition is tested: does the model still prefer a forgotten answer?

The rows are those of TOFU's truth ratio (Maini et al., 2024).
"""

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
