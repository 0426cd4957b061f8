"""Metrics against hand-computed examples, the defining numpy and scipy one-liners, and the
reference's golden rows.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import hmean, ks_2samp

from t3lib.core.errors import UserError
from t3lib.tofu import metrics

GOLDEN = json.loads((Path(__file__).parent / "golden_rows.json").read_text(encoding="utf-8"))
SCORER = RougeScorer(["rougeL"], use_stemmer=True)
ROWS = pytest.mark.parametrize("row", GOLDEN["rows"], ids=lambda row: f"{row['set']}{row['row']}")


@ROWS
def test_golden_truth_ratios(row):
    right = row.get("paraphrased", row["loss"])
    assert metrics.truth_ratio([right], [row["perturbed"]])[0] == pytest.approx(
        row["truth_ratio"], rel=1e-6
    )
    arithmetic = metrics.truth_ratio([right], [row["perturbed"]], "arithmetic")[0]
    assert arithmetic == pytest.approx(row["arithmetic"], rel=1e-6)
    assert arithmetic > row["truth_ratio"]  # AM >= GM, strictly for unequal answers


@ROWS
def test_golden_rouge(row):
    recall = metrics.rouge_l_recall(row["answer"], row["generation"])
    assert recall == pytest.approx(row["rouge"], abs=1e-9)
    assert recall == SCORER.score(row["answer"], row["generation"])["rougeL"].recall


@pytest.mark.parametrize(
    "row", [row for row in GOLDEN["rows"] if "prob" in row], ids=lambda row: row["answer"]
)
def test_golden_normalised_probabilities(row):
    assert metrics.probability_with_options([row["loss"]], [row["perturbed"]])[0] == pytest.approx(
        row["prob"], rel=1e-6
    )


def test_golden_utilities_from_the_nine_components():
    assert metrics.model_utility(GOLDEN["components"]) == pytest.approx(
        GOLDEN["model_utility"], abs=1e-9
    )
    assert metrics.mu_rouge(GOLDEN["components"]) == pytest.approx(GOLDEN["mu_rouge"], abs=1e-9)


@pytest.mark.parametrize("n", ["40", "200", "400"])
def test_golden_forget_quality_lattice(n):
    lattice = metrics.forget_quality_lattice(int(n))
    assert len(lattice) == int(n)
    for k, p in GOLDEN["ks_lattice"][n].items():
        assert lattice[int(k) - 1] == pytest.approx(p, rel=1e-8)


def test_probability_by_hand():
    # two tokens of probability 1/2 and 1/8: (1/16)^(1/2) = 1/4
    loss = -(np.log(1 / 2) + np.log(1 / 8)) / 2
    assert metrics.answer_probability(loss) == pytest.approx(1 / 4)
    # against wrong options of 1/8 and 1/8 the true answer has half of the mass
    assert metrics.probability_with_options([loss], [[np.log(8), np.log(8)]]) == pytest.approx(
        [1 / 2]
    )


def test_truth_ratio_by_hand():
    # p(right) = 1/2; wrong answers 1/4 and 1/16: arithmetic mean 5/32, geometric mean 1/8
    right, wrong = [np.log(2)], [[np.log(4), np.log(16)]]
    assert metrics.truth_ratio(right, wrong, "arithmetic") == pytest.approx([5 / 16])
    assert metrics.truth_ratio(right, wrong) == pytest.approx([1 / 4])
    with pytest.raises(UserError, match="harmonic"):
        metrics.truth_ratio(right, wrong, "harmonic")


def test_truth_ratio_of_an_impossible_answer_is_bounded_by_the_reference_epsilon():
    assert metrics.truth_ratio([1000.0], [[0.0]]) == pytest.approx([1e10])


def test_truth_ratio_aggregates_by_hand():
    assert metrics.tr_plus([0.25, 1.0, 3.0]).tolist() == [0.75, 0.0, 0.0]
    assert metrics.forget_truth_ratio([0.5, 2.0, 1.0]) == pytest.approx((0.5 + 0.5 + 1.0) / 3)


@pytest.mark.parametrize(
    ("answer", "generation", "recall"),
    [
        ("Paris", "The capital is Paris.", 1.0),
        ("the cat sat on the mat", "the cat on a mat", 4 / 6),  # the, cat, on, mat
        ("running quickly", "He runs quickly", 1.0),  # stems: run, quickli
        ("one two", "two one", 1 / 2),  # order counts
        ("Paris", "", 0.0),
        ("…", "Paris", 0.0),  # no words to recall
    ],
)
def test_rouge_by_hand(answer, generation, recall):
    assert metrics.rouge_l_recall(answer, generation) == pytest.approx(recall)


@given(st.text("abcd AB-é7", max_size=80), st.text("abcd AB-é7", max_size=200))
def test_rouge_equals_rouge_score(answer, generation):
    expected = SCORER.score(answer, generation)["rougeL"].recall
    assert metrics.rouge_l_recall(answer, generation) == expected


@given(st.lists(st.floats(1e-3, 1), min_size=9, max_size=9))
def test_utility_is_the_harmonic_mean(values):
    components = dict(zip(metrics.UTILITY, values))
    assert metrics.model_utility(components) == pytest.approx(hmean(values))
    assert metrics.model_utility(components | {"wf_tr": 0.0}) == 0.0
    rouges = [components[name] for name in ("retain_rouge", "ra_rouge", "wf_rouge")]
    assert metrics.mu_rouge(components) == pytest.approx(hmean(rouges))


def test_every_component_counts_in_the_utility():
    components = dict.fromkeys(metrics.UTILITY, 0.5)
    assert len(components) == 9
    for name in components:
        assert metrics.model_utility(components | {name: 0.9}) > 0.5
        changed = metrics.mu_rouge(components | {name: 0.9}) != pytest.approx(0.5)
        assert changed == name.endswith("_rouge")


def test_forget_quality_is_the_exact_two_sided_test():
    rng = np.random.default_rng(0)
    ours, theirs = rng.lognormal(size=40), rng.lognormal(0.5, size=40)
    expected = ks_2samp(ours, theirs, alternative="two-sided", method="exact")
    assert metrics.forget_quality(ours, theirs) == (expected.pvalue, expected.statistic)
    assert metrics.forget_quality(1 / ours, 1 / theirs)[0] == pytest.approx(
        expected.pvalue
    )  # R -> 1/R is no matter
    assert metrics.forget_quality(ours, ours) == (1.0, 0.0)


def test_forget_quality_of_disjoint_samples_is_tiny_and_silent(recwarn):
    p, d = metrics.forget_quality(
        np.arange(2000.0), np.arange(2000.0) + 9000
    )  # 2 / C(4000, 2000) underflows
    assert 0 <= p < 1e-300 and d == 1.0
    assert not recwarn.list


def test_forget_quality_refuses_other_rows():
    with pytest.raises(UserError, match="39 truth ratios and the model 40"):
        metrics.forget_quality(np.ones(40), np.ones(39))


def test_forget_quality_refuses_what_is_no_number():
    for pair in (([1.0, math.nan], [1.0, 2.0]), ([1.0, 2.0], [math.nan, 1.0])):
        with pytest.raises(UserError, match="not a number"):
            metrics.forget_quality(*pair)


def test_forget_quality_of_equal_ratios_is_never_too_small():
    """D by hand, and p at least the share of all exchanges of the rows that lie as far apart."""
    rng = np.random.default_rng(0)
    ours, theirs = np.round(rng.lognormal(size=60)), np.round(rng.lognormal(0.3, size=60))

    def distance(a, b):
        return max(abs((a <= value).mean() - (b <= value).mean()) for value in {*a, *b})

    p, d = metrics.forget_quality(ours, theirs)
    drawn = [rng.permutation(np.concatenate([ours, theirs])) for _ in range(400)]
    exchanged = np.mean([distance(each[:60], each[60:]) >= d - 1e-9 for each in drawn])
    assert d == pytest.approx(distance(ours, theirs)) and 0.01 < exchanged + 0.05 < p
    assert metrics.forget_quality(np.ones(40), np.ones(40)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("right", "wrong", "ratio"),
    [(800, 800, 1), (800, 799, math.e), (1, 800, 0), (9e3, 1, math.exp(700))],
)
def test_the_arithmetic_truth_ratio_of_answers_without_any_probability(right, wrong, ratio):
    """exp(-800) is 0 in float64: their ratio was 0/0."""
    assert metrics.truth_ratio([right], [[wrong] * 5], "arithmetic") == pytest.approx(ratio)


def test_paper_values_lie_on_the_lattice():
    lattice = metrics.forget_quality_lattice(200)
    assert lattice[10] == pytest.approx(
        0.924, abs=5e-4
    )  # D = 11/200, a value that the paper prints


def test_summary_leaves_out_what_was_not_evaluated():
    summary = metrics.summarize(
        {"forget": {"prob": np.array([0.5]), "truth_ratio": np.array([2.0])}}
    )
    assert summary["forget"] == {"prob": 0.5, "rouge": None, "truth_ratio": pytest.approx(0.5)}
    assert summary["model_utility"] is summary["mu_rouge"] is summary["forget_quality"] is None
    assert set(summary["components"].values()) == {None}


def test_every_number_of_a_summary_is_in_the_table_of_metrics_and_the_other_way_round():
    rows = {
        "prob": np.array([0.2, 0.6]),
        "rouge": np.array([0.0, 1.0]),
        "truth_ratio": np.array([0.5, 4.0]),
    }
    summary = metrics.summarize(
        dict.fromkeys(("forget", "retain", "ra", "wf"), rows), reference=[0.5, 4.0]
    )
    assert summary["components"]["retain_prob"] == pytest.approx(0.4)
    assert summary["components"]["wf_rouge"] == pytest.approx(0.5)
    assert summary["components"]["ra_tr"] == pytest.approx(0.25)
    assert summary["model_utility"] == pytest.approx(hmean([0.4, 0.5, 0.25] * 3))
    assert summary["forget_quality"] == 1.0 and summary["ks_statistic"] == 0.0
    nested = [key for key, part in summary.items() if isinstance(part, dict)]
    leaves = [(key,) for key in summary if key not in nested] + [
        (key, name) for key in nested for name in summary[key]
    ]
    assert sorted(leaves) == sorted(metric.place for metric in metrics.METRICS.values())
    values = metrics.by_column(summary)
    assert (
        values["mu"] == summary["model_utility"]
        and values["wf_tr"] == summary["components"]["wf_tr"]
    )
    assert values["forget_rouge"] == summary["forget"]["rouge"] == 0.5
