"""TOFU's metrics: probability, ROUGE-L, truth ratio, TR+, Model Utility, MU-ROUGE, Forget Quality.

Uses numpy, scipy and rouge_score, never torch. A `loss` is the mean over an answer's tokens (its
end-of-turn token included) of -ln p(token | prefix), so exp(-loss) = p(a | q)^(1/|a|). The
definitions are those of Section 4.1 and Appendix F.2 ("TOFU Metrics") of arXiv:2602.10217, which
have no equation numbers. Where the published code computes something else, the default here is what
the code computes, and the docstring says so.

To add a metric, write its function, compute it in `summarize` and add a line to `METRICS`, from
which run files and Table 1 take label, direction and place.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rouge_score import tokenize

from t3lib.core.errors import UserError

EPSILON = (
    1e-10  # Appendix F.2's epsilon; the published code adds it to the truth ratio's denominator too
)


class Metric(NamedTuple):
    """One number of an evaluation: its names, which direction is better, and where it is stored."""

    label: str  # header of its column
    title: str  # name in sentences and on axes
    larger_is_better: bool | None  # None: best is the value of retrained models
    place: tuple[str, ...]  # its keys in the JSON of `t3 tofu evaluate`, or in a run file
    group: str = ""  # header that it shares with neighbouring columns


# By name of the column in run files and tables.
METRICS = {
    "fq": Metric("FQ", "Forget Quality", True, ("forget_quality",)),
    "ks_statistic": Metric("KS D", "KS statistic D", False, ("ks_statistic",)),
    "mu_rouge": Metric("MU-ROUGE", "MU-ROUGE", True, ("mu_rouge",)),
    "mu": Metric("MU", "Model Utility", True, ("model_utility",)),
    "retain_prob": Metric(
        "Prob.", "Retain probability", True, ("components", "retain_prob"), "Retain"
    ),
    "retain_rouge": Metric("ROUGE", "Retain ROUGE", True, ("components", "retain_rouge"), "Retain"),
    "retain_tr": Metric("TR+", "Retain TR+", True, ("components", "retain_tr"), "Retain"),
    "wf_prob": Metric(
        "Prob.", "World facts probability", True, ("components", "wf_prob"), "World facts"
    ),
    "wf_rouge": Metric(
        "ROUGE", "World facts ROUGE", True, ("components", "wf_rouge"), "World facts"
    ),
    "wf_tr": Metric("TR+", "World facts TR+", True, ("components", "wf_tr"), "World facts"),
    "ra_prob": Metric(
        "Prob.", "Real authors probability", True, ("components", "ra_prob"), "Real authors"
    ),
    "ra_rouge": Metric(
        "ROUGE", "Real authors ROUGE", True, ("components", "ra_rouge"), "Real authors"
    ),
    "ra_tr": Metric("TR+", "Real authors TR+", True, ("components", "ra_tr"), "Real authors"),
    "forget_prob": Metric("Prob.", "Forget probability", False, ("forget", "prob"), "Forget"),
    "forget_rouge": Metric("ROUGE", "Forget ROUGE", False, ("forget", "rouge"), "Forget"),
    "forget_truth_ratio": Metric(
        "Truth ratio", "Forget truth ratio", True, ("forget", "truth_ratio"), "Forget"
    ),
}


class EvaluationSet(NamedTuple):
    """How the rows of an evaluation set are scored."""

    paraphrased: bool  # its rows have a paraphrased answer
    options: bool  # probability is divided by that of right and wrong answers together


SETS = {
    "forget": EvaluationSet(True, False),
    "retain": EvaluationSet(True, False),
    "ra": EvaluationSet(False, True),  # real authors
    "wf": EvaluationSet(False, True),  # world facts
}
UTILITY = tuple(
    name for name, metric in METRICS.items() if metric.place[0] == "components"
)  # the nine numbers whose harmonic mean is MU


def answer_probability(loss: ArrayLike) -> NDArray[np.float64]:
    """p(a | q)^(1/|a|) = exp(-loss)   (Appendix F.2, Probability of forget and retain).

    Any shape.
    """
    return np.exp(-np.asarray(loss, dtype=float))


def probability_with_options(loss: ArrayLike, loss_wrong: ArrayLike) -> NDArray[np.float64]:
    """p / (p + sum_j p_j + 1e-10), each p = exp(-loss)   (Appendix F.2, Probability of RA and WF).

    loss (N,): of the true answers. loss_wrong (N, k): of the k wrong options. Returns (N,).
    """
    p = answer_probability(loss)
    return p / (p + answer_probability(loss_wrong).sum(-1) + EPSILON)


def truth_ratio(
    loss: ArrayLike, loss_wrong: ArrayLike, kind: str = "geometric"
) -> NDArray[np.float64]:
    """R = mean_j p_j^(1/|a_j|) / p^(1/|a|)   (Section 4.1, Truth Ratio; Appendix F.2).

    loss (N,): of the paraphrased answers.
    loss_wrong (N, k): of the k perturbed answers.
    kind: "arithmetic" is the formula above. "geometric" is what the published code computes and the
    published tables hold: the geometric mean over j, with 1e-10 added to the denominator. It is
    never larger than the arithmetic mean.

    Returns R (N,). Above 1 the model prefers the wrong answers. For rows to keep, 0 is best; for
    rows to forget, what a retrained model has.
    """
    right, wrong = np.asarray(loss, dtype=float), np.asarray(loss_wrong, dtype=float)
    if kind == "geometric":
        return np.exp(-wrong.mean(-1)) / (np.exp(-right) + EPSILON)
    if kind == "arithmetic":
        # Exponentials of differences, because exp(-loss) underflows for a loss above 745. exp(700)
        # is close to the largest float64.
        return np.exp(np.minimum(right[..., None] - wrong, 700)).mean(-1)
    raise UserError(f"unknown truth ratio {kind!r}: choose geometric or arithmetic")


def forget_truth_ratio(ratio: ArrayLike) -> float:
    """mean_i min(R_i, 1/(R_i + 1e-10)): 1 when right and wrong answers are equally likely.

    ratio: R (N,). Not in the paper; the published code reports it for the forget set.
    """
    ratio = np.asarray(ratio, dtype=float)
    return float(np.minimum(ratio, 1 / (ratio + EPSILON)).mean())


def tr_plus(ratio: ArrayLike) -> NDArray[np.float64]:
    """TR+ = max(0, 1 - R)   (Section 4.1; Appendix F.2).

    On RA and WF, the published code computes R with the answer itself in place of a paraphrase.
    """
    return np.maximum(0.0, 1 - np.asarray(ratio, dtype=float))


@cache
def _stemmer() -> Any:
    """Return Porter's stemmer, with a cache so that each distinct word is stemmed once."""
    from nltk.stem.porter import PorterStemmer  # takes seconds to import; only ROUGE needs it

    stemmer = PorterStemmer()
    stemmer.stem = cache(stemmer.stem)
    return stemmer


def rouge_l_recall(answer: str, generation: str) -> float:
    """|LCS(generation, answer)| / |answer| over stemmed words   (Appendix F.2, ROUGE).

    0 if either text has no words. Equal to rouge_score's RougeScorer(["rougeL"], use_stemmer=True),
    with its tokenisation.
    """
    return recall_of(*(tokenize.tokenize(text, _stemmer()) for text in (answer, generation)))


def recall_of(target: Sequence[str], words: Sequence[str]) -> float:
    """|LCS(words, target)| / |target| of two lists of words, 0 if either is empty.

    The longest common subsequence (LCS) is counted in the bits of one integer (Hyyrö, 2004) and not
    in a table, which makes it fast.
    """
    if not target or not words:
        return 0.0
    places: dict[str, int] = {}
    for i, word in enumerate(target):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(target)) - 1
    row = full  # bit i is 0 when the LCS grows at target word i
    for word in words:
        matched = row & places.get(word, 0)
        row = (row + matched | row - matched) & full
    return (full ^ row).bit_count() / len(target)


def harmonic_mean(values: Sequence[float]) -> float:
    """n / sum_i 1/x_i of n values >= 0; 0 when any of them is 0."""
    return (
        0.0
        if any(value <= 0 for value in values)
        else len(values) / math.fsum(1 / value for value in values)
    )


def model_utility(components: Mapping[str, float]) -> float:
    """MU: harmonic mean of probability, ROUGE and TR+ on retain, RA and WF   (Section 4.1; F.2).

    components: the nine means by name, as in `UTILITY`.
    """
    return harmonic_mean([components[name] for name in UTILITY])


def mu_rouge(components: Mapping[str, float]) -> float:
    """MU-ROUGE: harmonic mean of the mean ROUGE-L recalls on retain, RA and WF   (Section 4.1)."""
    return harmonic_mean([components[f"{name}_rouge"] for name in ("retain", "ra", "wf")])


def forget_quality(ratio: ArrayLike, reference: ArrayLike) -> tuple[float, float]:
    """(p, D) of the two-sided Kolmogorov–Smirnov test, D = sup_t |F(t) - F*(t)|   (Appendix F.2).

    ratio, reference (N,): truth ratios of the unlearned and of the retrained model on the forget
    rows.

    p is exact, as in the published code and the paper's tables; the paper's text approximates it by
    2 exp(-N D²). Where the exact count underflows (p far below 1e-100), scipy's asymptotic value is
    returned. Ties make p too large, never too small. UserError for different lengths and for NaN.
    """
    ratio, reference = np.asarray(ratio, dtype=float), np.asarray(reference, dtype=float)
    if ratio.shape != reference.shape or ratio.ndim != 1:
        raise UserError(
            f"the reference has {reference.size} truth ratios and the model {ratio.size}: other"
            " rows"
        )
    if np.isnan([ratio, reference]).any():
        raise UserError("a truth ratio is not a number: the model's probabilities are not finite")
    from scipy.stats import ks_2samp  # imported here, because it takes half a second

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning
        )
        test = ks_2samp(ratio, reference)
    return float(test.pvalue), float(test.statistic)


def forget_quality_lattice(n: int) -> NDArray[np.float64]:
    """All values that Forget Quality can take with n rows: the exact p at D = k/n, k = 1, …, n."""
    ladder = np.arange(n, dtype=float)
    return np.array([forget_quality(ladder, ladder + k - 0.5)[0] for k in range(1, n + 1)])


def row_scores(
    name: str, losses: NDArray[np.float64], kind: str = "geometric"
) -> dict[str, NDArray[np.float64]]:
    """Return `prob` (N,) and `truth_ratio` (N,) of a set's rows, from the losses of their answers.

    name: the set, a key of `SETS`.
    losses (N, answers): of the answer, of the paraphrased answer if the set has one, and of each
    wrong answer.
    kind: see `truth_ratio`.

    Without a paraphrased answer the truth ratio uses the answer itself, as the published code does
    on RA and WF.
    """
    answer, wrong = losses[:, 0], losses[:, 1 + SETS[name].paraphrased :]
    return {
        "prob": (
            probability_with_options(answer, wrong)
            if SETS[name].options
            else answer_probability(answer)
        ),
        "truth_ratio": truth_ratio(losses[:, 1] if SETS[name].paraphrased else answer, wrong, kind),
    }


def summarize(
    scores: Mapping[str, Mapping[str, Any]], reference: ArrayLike | None = None
) -> dict[str, Any]:
    """Average per-row scores to metrics, as `t3 tofu evaluate` writes them; without data None.

    scores: for each evaluated set (forget, retain, ra, wf): `prob` (N,), `truth_ratio` (N,) and, if
    texts were generated, `rouge` (N,).
    reference: the retrained model's truth ratios on the forget rows.
    """
    components: dict[str, float | None] = {}
    for name in ("retain", "wf", "ra"):
        rows = scores.get(name, {})
        components[f"{name}_prob"] = _mean(rows.get("prob"))
        components[f"{name}_rouge"] = _mean(rows.get("rouge"))
        components[f"{name}_tr"] = float(tr_plus(rows["truth_ratio"]).mean()) if rows else None
    known = {name: value for name, value in components.items() if value is not None}
    forget = scores.get("forget", {})
    ratio = forget.get("truth_ratio")
    p, d = (None, None) if ratio is None or reference is None else forget_quality(ratio, reference)
    has_rouge = all(f"{name}_rouge" in known for name in ("retain", "ra", "wf"))
    return {
        "forget_quality": p,
        "ks_statistic": d,
        "model_utility": model_utility(known) if len(known) == len(UTILITY) else None,
        "mu_rouge": mu_rouge(known) if has_rouge else None,
        "components": components,
        "forget": {
            "prob": _mean(forget.get("prob")),
            "rouge": _mean(forget.get("rouge")),
            "truth_ratio": None if ratio is None else forget_truth_ratio(ratio),
        },
    }


def by_column(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every metric of `METRICS`, by the name of its column, from a result of `summarize`."""
    return {name: reduce(getitem, metric.place, summary) for name, metric in METRICS.items()}  # type: ignore[misc]


def _mean(values: ArrayLike | None) -> float | None:
    return None if values is None else float(np.asarray(values, dtype=float).mean())
