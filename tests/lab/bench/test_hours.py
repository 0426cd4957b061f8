"""Hours and bytes of the large profiles on a GPU, by arithmetic."""

from pathlib import Path

import pytest
from conftest import ROOT

from t3lib.core.settings import hyper_of
from t3lib.lab import profiles, rehearse
from t3lib.lab.bench import cost, hours
from t3lib.lab.bench.cost import SHAPES
from t3lib.lab.grid import jobs

LARGE = SHAPES["llama-3.1-8b"]


@pytest.fixture(scope="module")
def needs():
    profile = profiles.load_profile("llama-8b")
    graph = jobs.build(profile, Path("out/any"))
    return {job.name: hours.need_of(job, profile, LARGE) for job in graph}


def test_full_fine_tuning_of_8b_fits_an_h200_alone(needs):
    need = needs["02_tofu_unlearning--NPO--forget10"]
    forget, batch = hours.TOFU["forget10"], 2 * 8 / 400
    logits = 14 * LARGE.vocab_size * batch * forget.answers
    kept = batch * (forget.prompts + forget.answers) * 32 * hours.activations(LARGE)
    assert need.memory == pytest.approx(14 * cost.parameters(LARGE) + logits + kept)
    assert 112.4e9 < need.memory < 130e9
    t3, uld = (needs[f"02_tofu_unlearning--{method}--forget10"] for method in ("T3", "ULD"))
    for some, gpu, lacking in (
        ([need], "H100", 1),
        ([need, t3], "H100", 1),
        ([need], "H200", 0),
        ([t3, uld], "H100", 0),
    ):
        spent, lacks = hours.hours_of(some, hours.GPUS[gpu])
        assert (spent > 0, lacks) == (len(some) > lacking, lacking)
    assert needs["06_audit--T3--forget10"].memory == t3.memory, "one model at a time"


def test_a_training_is_six_operations_a_weight_and_token():
    """Ten epochs of 400 + 400 rows; attention and the output layer add a tenth."""
    profile, forget = profiles.load_profile("llama-8b"), hours.TOFU["forget10"]
    settings = hyper_of(profile["hyper"], "NPO", "forget10")
    tokens = 10 * 2 * (forget.prompts + forget.answers)
    found = hours.training(LARGE, "NPO", forget, settings).flops
    assert 1 < found / (6 * tokens * cost.linear_weights(LARGE)) < 1.1


def test_a_term_of_weight_0_is_not_computed():
    """GradDiff's forget term at the 5% split: twice the operations of its step were predicted."""
    profile, forget = profiles.load_profile("llama-8b"), hours.TOFU["forget05"]
    settings = hyper_of(profile["hyper"], "GradDiff", "forget05")
    assert settings["alpha_f"] == 0
    both = hours.training(LARGE, "GradDiff", forget, settings | {"alpha_f": 0.5})
    assert hours.training(LARGE, "GradDiff", forget, settings).flops == both.flops / 2


def test_the_evaluation_of_uld_runs_its_assistant_too(needs):
    """Half of the layers, and the output layer once more."""
    uld, plain = (
        needs[f"02_tofu_unlearning--{method}--forget10"].work.flops for method in ("ULD", "NPO")
    )
    profile, forget = profiles.load_profile("llama-8b"), hours.TOFU["forget10"]
    each = [
        5
        * hours.training(
            LARGE, method, forget, hyper_of(profile["hyper"], method, "forget10")
        ).flops
        for method in ("ULD", "NPO")
    ]
    assert 1.5 < (uld - each[0]) / (plain - each[1]) < 1.6


def test_t3_reads_every_row_once_and_shares_the_base_between_temperatures(needs):
    read = [hours.TOFU[name] for name in ("forget10", "retain90")]
    once = hours.features(LARGE, *read).flops
    tokens = sum(each.prompts + each.answers for each in read)
    assert once == pytest.approx(2 * tokens * cost.linear_weights(LARGE), rel=0.01)
    texts = 25 * sum(hours.TOFU[name].answers for name in ("forget10", *hours.ALWAYS))
    written = 2 * texts * cost.linear_weights(LARGE)
    assert needs["02_tofu_unlearning--T3--forget10"].work.flops > once + written


def test_the_slower_of_operations_and_bytes_decides():
    gpu = hours.GPUS["H100"]
    by_flops, by_bytes = hours.Need(1, cost.Work(3.6e18, 0)), hours.Need(1, cost.Work(0, 3.6e16))
    each = 3.6e18 / 989e12 / 0.4 / 3600, 3.6e16 / 3.35e12 / 0.4 / 3600
    assert hours.hours_of([by_flops], gpu)[0] == pytest.approx(each[0])
    assert hours.hours_of([by_flops, by_bytes], gpu)[0] == pytest.approx(sum(each))


def test_the_plan_has_a_line_for_each_job_and_the_totals():
    text = rehearse.estimate(profiles.load_profile("llama-8b"))
    assert "02_tofu_unlearning--NPO--forget10" in text and "does not fit" in text
    assert text.count("total hours") == 2 and "jobs do not fit)" in text
    assert "disk: 48 GB of checkpoints" in text
    assert "fits 8 GB: nothing, 12 GB: T3 in 8 bits" in text, "CUDA itself takes half a gigabyte"
    assert "80 GB: T3 in 16 bits" in text and "141 GB: full fine-tuning" in text
    assert rehearse.estimate(profiles.load_profile("cpu")) == ""


@pytest.mark.parametrize("name", ["llama-1b", "llama-8b"])
def test_the_hours_that_are_shown_are_those_of_the_plan(name):
    shown = (ROOT / "results" / "README.md").read_text(encoding="utf-8").splitlines()
    for group in ("T3 and Original", "all methods"):
        [row] = [line for line in shown if line.startswith(f"| `{name}`, {group} |")]
        [total] = [
            line
            for line in rehearse.estimate(profiles.load_profile(name)).splitlines()
            if line.startswith(f"total hours, {group}:")
        ]
        for cell, said in zip(row.strip("| ").split(" | ")[1:], total.split(": ")[1].split(", ")):
            if "do not fit" in said:
                assert cell == "full fine-tuning does not fit"
            else:
                assert cell == said.split()[1]
