"""Recognition, membership and leakage on hand-made cases and against brute force."""

from itertools import combinations, product

import numpy as np
import pytest

from t3lab.audit.leakage import expected_best, leak_at_k
from t3lab.audit.membership import auc_error_by_author
from t3lab.audit.recognition import recognized
from t3lib.core.errors import UserError
from t3lib.tofu.suite import auc, exact_memorization, extraction_strength, min_k


def test_recognition_is_a_strictly_lowest_loss():
    assert recognized([1.0, 2.0, 2.0], [[1.1, 3.0], [1.9, 3.0], [2.0, 5.0]]).tolist() == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "hits, expected",
    [
        ([1, 1, 1, 1], 1.0),
        ([0, 1, 1, 1], 0.75),
        ([1, 1, 0, 1], 0.25),
        ([1, 1, 1, 0], 0.25),
        ([0], 1.0),
    ],
)
def test_extraction_strength_is_the_longest_right_suffix_and_never_nothing(hits, expected):
    assert extraction_strength(hits) == expected
    assert exact_memorization(hits) == pytest.approx(np.mean(hits))


def test_auc_is_its_definition():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 23) / 3, rng.integers(2, 11, 17) / 3
    pairs = [(x < y) + 0.5 * (x == y) for x in a for y in b]
    assert auc(a, b) == pytest.approx(np.mean(pairs), abs=1e-15)
    assert auc([1, 2], [3, 4]) == 1.0 and auc([3, 4], [1, 2]) == 0.0 and auc([1, 2], [1, 2]) == 0.5
    with pytest.raises(UserError, match="unseen"):
        auc([1.0], [])


def test_the_error_by_author_is_that_of_all_draws_of_authors():
    """Two and three authors, one of a side with one row: all pairs of draws are enumerated. Rows of
    one author are alike, so an error by rows is far too small.
    """
    forgotten = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 5.0]
    unseen = [3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 0.1, 0.2, 6.0, 6.1, 6.2, 6.3, 1.15]
    sides = [[forgotten[:6], forgotten[6:]], [unseen[:6], unseen[6:12], unseen[12:]]]
    draws = [list(product(side, repeat=len(side))) for side in sides]
    values = [auc(np.concatenate(ours), np.concatenate(theirs)) for ours, theirs in product(*draws)]
    error = auc_error_by_author(forgotten, unseen, 6)
    assert error == pytest.approx(np.std(values), rel=0.05)
    assert np.isnan(auc_error_by_author(forgotten[:6], unseen, 6))
    alike = [[*np.repeat([1.0, 5.0], 50)], [*np.repeat([3.0, 0.1], 50)]]
    assert auc_error_by_author(*alike, 50) > 3 * auc_error_by_author(*alike, 1)


def test_rows_that_leak_are_counted_over_all_subsets():
    leaks = np.random.default_rng(2).random((5, 6)) < 0.2
    entries = leak_at_k(np.zeros((7, 6)), leaks)
    assert [entry["k"] for entry in entries] == [1, 2, 4]
    for entry in entries:
        subsets = list(combinations(range(6), entry["k"]))
        brute = sum(leaks[:, list(pick)].any(1).sum() for pick in subsets) / len(subsets)
        assert entry["rows_leaking"] == pytest.approx(brute, abs=1e-12) and entry["rows"] == 5
    assert "rows" not in leak_at_k(np.zeros((7, 6)), [])[0]


def test_min_k_takes_the_least_likely_tokens():
    assert min_k([[1.0, 5.0, 3.0, 2.0, 4.0], [2.0]]).tolist() == [4.5, 2.0]


def test_leak_at_k_is_the_mean_over_all_subsets():
    scores = np.random.default_rng(1).random((4, 7))
    for k in range(1, 8):
        brute = [
            np.mean([max(row[list(pick)]) for pick in combinations(range(7), k)]) for row in scores
        ]
        assert expected_best(scores, k) == pytest.approx(brute, abs=1e-12)
    scores = np.c_[scores, scores.mean(1)]
    [first, *_, last] = entries = leak_at_k(scores, [])
    assert [entry["k"] for entry in entries] == [1, 2, 4, 8], "up to all of them"
    assert first["value"] == pytest.approx(scores.mean()) and last["value"] == pytest.approx(
        scores.max(1).mean()
    )
    assert first["se"] == pytest.approx(scores.mean(1).std(ddof=1) / 2)
