"""Hours and bytes of the large profiles on a GPU, by arithmetic."""

from pathlib import Path

import pytest

from t3lib.core.settings import hyper_of
from t3lib.lab import profiles, rehearse
from t3lib.lab.bench import cost, hours
from t3lib.lab.bench.shapes import SHAPES
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
    assert need.hours(hours.GPUS["H100"]) is None
    assert need.hours(hours.GPUS["H200"]) > 0
    assert needs["02_tofu_unlearning--ULD--forget10"].hours(hours.GPUS["H100"]) > 0
    t3 = needs["02_tofu_unlearning--T3--forget10"]
    assert t3.hours(hours.GPUS["H100"]) > 0
    assert needs["06_audit--T3--forget10"].memory == t3.memory, "one model at a time"


def test_a_training_is_six_operations_a_weight_and_token():
    """Ten epochs of 400 + 400 rows; attention and the output layer add a tenth."""
    profile, forget = profiles.load_profile("llama-8b"), hours.TOFU["forget10"]
    settings = hyper_of(profile["hyper"], "NPO", "forget10")
    tokens = 10 * 2 * (forget.prompts + forget.answers)
    found = hours.training(LARGE, "NPO", forget, settings).flops
    assert 1 < found / (6 * tokens * cost.linear_weights(LARGE)) < 1.1


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
    assert by_flops.hours(gpu) == pytest.approx(3.6e18 / 989e12 / 0.4 / 3600)
    assert by_bytes.hours(gpu) == pytest.approx(3.6e16 / 3.35e12 / 0.4 / 3600)


def test_the_plan_has_a_line_for_each_job_and_the_totals():
    text = rehearse.estimate(profiles.load_profile("llama-8b"))
    assert "02_tofu_unlearning--NPO--forget10" in text and "does not fit" in text
    assert text.count("total hours") == 2 and "jobs do not fit)" in text
    assert "disk: 48 GB of checkpoints" in text
    assert "fits 8 GB: nothing, 12 GB: T3 in 8 bits" in text, "CUDA itself takes half a gigabyte"
    assert "80 GB: T3 in 16 bits" in text and "141 GB: full fine-tuning" in text
    assert rehearse.estimate(profiles.load_profile("cpu")) == ""
