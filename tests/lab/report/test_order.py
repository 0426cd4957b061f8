"""Differences of D with their error: whole authors are drawn, and p is corrected."""

import numpy as np
import pandas as pd
import pytest
from fabricate import fabricate
from scipy.stats import ks_2samp, ttest_ind, ttest_rel

from t3lab.names import SPLITS
from t3lab.report.order import (
    adjusted,
    clustered_D,
    interval,
    judged,
    order,
    over_seeds,
    with_printed_D,
)
from t3lab.results import author_rows, paper_table


def test_the_first_d_is_the_test_s_and_the_others_draw_whole_authors():
    rng = np.random.default_rng(0)
    ours, theirs = np.round(rng.normal(0, 1, 60), 1), np.round(rng.normal(0.5, 1, 60), 1)
    drawn = clustered_D(ours, theirs, 20)
    assert drawn[0] == pytest.approx(ks_2samp(ours, theirs).statistic), "with ties"
    picked = [
        np.r_[tuple(np.arange(20 * a, 20 * a + 20) for a in p)] for p in ((0, 0, 1), (2, 2, 2))
    ]
    for rows in picked:
        d = ks_2samp(ours[rows], theirs[rows]).statistic
        assert np.isclose(drawn[1:], d).any(), "a draw with repeated authors"
    assert np.unique(drawn[1:].round(9)).size <= 10, "three authors have ten draws"


def test_t3_is_compared_with_each_baseline_on_held_out_models():
    runs = [fabricate("Retrained", "forget10", None, seed) for seed in (1, 2)]
    runs += [fabricate("T3", "forget10", T, seed) for T in (1.0, 2.5) for seed in (1, 2)]
    runs += [fabricate("NPO", "forget10", None, seed) for seed in (1, 2)]
    [row] = order(runs, {"forget10": 2.5, "forget05": None}).to_dict("records")
    held = [run["truth_ratio"]["forget"] for run in runs[:2]]
    d = {
        (method, T): np.mean(
            [
                ks_2samp(run["truth_ratio"]["forget"], other).statistic
                for run in runs
                if (run["method"], run["T"]) == (method, T)
                for other in held
            ]
        )
        for method, T in (("T3", 2.5), ("NPO", None))
    }
    assert row["D"] == pytest.approx(d["NPO", None])
    assert row["t3_less"] == pytest.approx(d["T3", 2.5] - d["NPO", None])
    assert row["t3_low"] < row["t3_less"] < row["t3_high"] and row["authors"] == 4
    assert author_rows(runs[0]) == 20


def test_the_papers_D_is_read_off_its_forget_quality():
    """Every printed value but 0.000 is one of a ladder, to three digits."""
    seeds = with_printed_D(paper_table(4)).reset_index(drop=True)
    of_t3 = seeds[seeds["method"] == "T3"].set_index(["split", "seed"])["ks_held_out"]
    assert of_t3["forget05"].tolist() == [0.055, 0.055, 0.05, 0.065, 0.05]
    assert of_t3["forget10"].tolist() == [0.0475, 0.0475, 0.0475, 0.0675, 0.0475]
    for split, n in (("forget05", 200), ("forget10", 400)):
        ladder = np.arange(n, dtype=float)
        part = seeds[seeds["split"] == split]
        for fq, d in zip(part["fq"], part["ks_held_out"]):
            p = ks_2samp(ladder, ladder + round(d * n) - 0.5).pvalue
            assert p == pytest.approx(max(fq, 5e-4), abs=5.1e-4), (split, fq, d)


def test_a_difference_over_seeds_is_welchs():
    t3, npo = np.array([0.1, 0.12, 0.11, 0.1, 0.13]), np.array([0.2, 0.1, 0.25, 0.3, 0.2])
    table = pd.DataFrame({"split": "forget05", "method": ["T3"] * 5 + ["NPO"] * 5})
    [row] = over_seeds(table.assign(D=[*t3, *npo]), "D").to_dict("records")
    welch = ttest_ind(t3, npo, equal_var=False)
    assert row["t3_less"] == pytest.approx(t3.mean() - npo.mean())
    assert row["t3_less"] / welch.statistic == pytest.approx(
        np.hypot(t3.std(ddof=1), npo.std(ddof=1)) / 5**0.5
    )
    assert row["p"] == pytest.approx(welch.pvalue)


def test_a_difference_within_worlds_has_students_interval():
    differences = np.array([0.2, 0.3, 0.25])
    expected = ttest_rel(differences, [0, 0, 0])
    error = differences.std(ddof=1) / 3**0.5
    value, low, high, seen, p = judged(differences.mean(), error, 2)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert p == pytest.approx(expected.pvalue) and seen > high - value
    assert interval(differences) == pytest.approx((value, low, high))
    assert np.isnan(judged(0.2, np.nan, 0)[1:]).all() and np.isnan(interval([0.2])[1:]).all()
    assert judged(0.2, 0.9, 1)[1:3] == (-1.0, 1.0), "no difference of D is larger"
    assert interval([0.2, np.nan, 0.3, 0.25]) == interval(differences), "as many as there are"


def test_the_comparison_named_beforehand_is_not_corrected():
    rows = [("forget10", "RMU", 0.04), ("forget05", "RMU", 0.02), ("forget10", "NPO", 0.03)]
    table = pd.DataFrame(rows, columns=["split", "method", "p"])
    assert adjusted(table).tolist() == pytest.approx([0.04, 0.04, 0.04])
    assert adjusted(table.assign(p=[0.04, 0.01, 0.6])).tolist() == pytest.approx([0.04, 0.02, 0.6])


def test_a_few_authors_have_no_interval():
    """Draws of two authors gave intervals from -1 to 1."""
    runs = [fabricate(name, split, None, 1) for name in ("RMU", "Retrained") for split in SPLITS]
    runs += [fabricate("T3", split, 2.5, 1) for split in SPLITS]
    for run in runs:
        run["parameters"]["stage"] = {"questions": 20}  # two authors on the 5% split, four on 10%
    table = order(runs, dict.fromkeys(SPLITS, 2.5)).set_index("split")
    assert table.loc["forget05", ["t3_low", "t3_high", "p"]].isna().all(axis=None)
    assert table.loc["forget10", ["t3_low", "t3_high"]].notna().all(axis=None)
