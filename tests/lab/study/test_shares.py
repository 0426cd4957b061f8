"""Weights between base and unlearned: exact at both ends, chosen on the seeds that tune."""

import pytest
import torch

from t3lib.core.errors import UserError
from t3lib.lab import results
from t3lib.lab.study import methods, shares

FAST = {"epochs": 2, "warmup_epochs": 0, "lr": 3e-2}


def test_a_share_of_the_way_is_that_share_of_every_weight(opened):
    unlearned = methods.load_models(opened, [methods.subject(opened, "NPO", 1, FAST)]).model
    part = methods.load_models(opened, [methods.subject(opened, "NPO", 1, FAST, w=0.25)]).model
    base = dict(opened.base.named_parameters())
    moved = 0
    for (name, weight), there in zip(part.named_parameters(), unlearned.parameters()):
        torch.testing.assert_close(weight, 0.75 * base[name] + 0.25 * there)
        moved += int((there != base[name]).any())
    assert moved > 3, "the unlearned weights are other ones"


def test_no_share_gives_the_base_and_all_of_it_the_method(opened):
    nothing, whole, method, original = (
        methods.evaluated(opened, [each], ["forget"], generate=False)[0]["truth_ratio"]["forget"]
        for each in (
            methods.subject(opened, "NPO", 1, FAST, w=0.0),
            methods.subject(opened, "NPO", 1, FAST, w=1.0),
            methods.subject(opened, "NPO", 1, FAST),
            methods.subject(opened, "Original", 0, {}),
        )
    )
    assert nothing == pytest.approx(original, rel=1e-6) and whole == pytest.approx(method, rel=1e-6)
    assert nothing != pytest.approx(whole, rel=1e-2)


def test_the_best_share_on_the_tuning_seeds_is_run_with_every_seed(opened, monkeypatch, tmp_path):
    quality = {(0.5, 1): 0.9, (0.5, 2): 0.0, (0.8, 1): 0.4, (0.8, 2): 0.6, (1.0, 1): 1, (1.0, 2): 1}
    asked = []

    def evaluated(study, models, sets=(), generate=True):
        if not generate:
            [model] = models
            asked.append((model.w, model.seed))
            return [{"ks_statistic": 0.1, "forget_quality": quality[model.w, model.seed]}]
        return real(study, models, sets, generate)

    real = methods.evaluated
    monkeypatch.setattr(shares, "evaluated", evaluated)
    search, runs = shares.run_shares(
        opened, "RMU", seeds=[1, 2, 3], shares=[1.0, 0.8, 0.5], settings=FAST | {"k": 1}
    )
    assert sorted(asked) == sorted(quality), "seed 3 has no part in the choice"
    means = {row["a"]: (row["fq"], row["n_seeds"]) for row in search}
    assert means == {0.5: (0.45, 2), 0.8: (0.5, 2), 1.0: (1.0, 2)}
    assert [(run["w"], run["seed"]) for run in runs] == [(0.8, seed) for seed in (1, 2, 3)]
    for run in runs:
        path = results.write_run(tmp_path, run | {"parameters": {}, "provenance": {}})
    assert path.stem == "RMU--forget10--Tnone--w0.8--seed3"
    assert {run["w"] for run in results.read_runs(tmp_path)} == {0.8}


def test_other_methods_have_no_share(opened):
    for method in ("ULD", "T3", "Original"):
        with pytest.raises(UserError, match=f"{method} has no share of weights: only RMU, WGA"):
            methods.subject(opened, method, 1, {}, w=0.5)
