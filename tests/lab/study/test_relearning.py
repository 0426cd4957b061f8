"""Attacks on models with their weights, on a micro stage: entries are complete, and a model that
leaks by construction is told from one that does not.
"""

import pytest
import torch

from t3lib.baselines.losses import settings_of
from t3lib.lab.grid import jobs
from t3lib.lab.profiles import load_profile, shipped
from t3lib.lab.study import attacks, methods
from t3lib.lab.study.study import Loaded

FAST = settings_of("T3", {"epochs": 1, "warmup_epochs": 0})


@pytest.fixture
def references(opened):
    return attacks.references(opened, opened.evaluation_rows["forget"], (0,))


def test_forget_quality_is_that_of_the_evaluation(opened, references):
    """The truth ratios come from the audit's likelihoods, and are those of TOFU's metrics."""
    assert references[0] == pytest.approx(opened.reference["truth_ratio"]["forget"], rel=1e-5)
    rows, own = opened.evaluation_rows["forget"], Loaded(opened.base, opened.tokenizer)
    found = attacks.judge(opened, own, rows, references, samples=2)
    [report] = methods.evaluated(opened, [methods.subject(opened, "Original", 0, {})])
    assert found["fq"] == pytest.approx(report["forget_quality"])
    assert found["rows"] == len(rows) and 0 <= found["rows_leaking"] <= len(rows)


def test_a_model_that_was_taught_the_rows_again_leaks_them(opened, references):
    rows = opened.evaluation_rows["forget"]

    def leaking(steps):
        taught = attacks.relearned(opened.base, opened.tokenizer, rows, steps, 1e-2)
        own = Loaded(taught, opened.tokenizer)
        return attacks.judge(opened, own, rows, references, 4)["rows_leaking"]

    before = [weight.clone() for weight in opened.base.parameters()]
    assert leaking(150) > 0.8 * len(rows) > leaking(0) == 0
    assert all(map(torch.equal, before, opened.base.parameters())), "a copy is trained"


def test_every_attack_has_an_entry_for_every_model(opened):
    entries = [
        *attacks.relearning(opened, {"T3": FAST}, steps=[0, 1], lr=1e-3, samples=1),
        *attacks.quantisation(opened, {"Retrained": {}, "T3": FAST}, samples=1, bits=(32, 8)),
    ]
    names = [(each["model"], each.get("steps"), each.get("bits")) for each in entries]
    assert names == [
        ("T3, head kept", 0, None),
        ("T3, head kept", 1, None),
        ("T3, head refitted", 1, None),
        *((name, None, bits) for name in ("Retrained", "T3") for bits in (32, 8)),
    ]
    assert entries[3]["fq"] == 1, "the reference against itself"


def test_requests_are_met_by_one_head_or_by_one_an_author(opened):
    found = list(attacks.requests(opened, FAST, authors=[1, 2], seeds=[0], samples=1))
    assert [each["authors"] for each in found] == [1] * 3 + [2] * 3
    assert [each["bytes"] / found[0]["bytes"] for each in found] == [1, 1, 1, 1, 2, 2]
    assert [each["rows"] for each in found] == [4] * 3 + [8] * 3


def test_attacks_run_on_request_alone(tmp_path):
    def notebooks(**asked):
        graph = jobs.build(load_profile("cpu"), tmp_path, folder=shipped("notebooks"), **asked)
        return {job.notebook for job in graph}

    assert "08_attacks" not in notebooks()
    assert "08_attacks" in notebooks(only=["08_attacks"])
