"""The measured steps of a rehearsal at the tiny shape, and the table that they go to."""

import sys

import pytest
import torch

from t3lib.lab import profiles, rehearse
from t3lib.lab.bench import cost, hours, steps
from t3lib.own import answers


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("T3_THREADS", "1")
        patch.setattr(rehearse, "ROWS", 2)
        path, _ = rehearse.prepare(profiles.load_profile("llama-8b"), shape="tiny")
        yield profiles.load_profile(path)


STEPS = ["T3's training", "evaluation", "evaluation of ULD", "one step of GradAscent"]
STEPS += ["one step of NPO", "one step of ULD", "one step of IdkDPO", "one step of GradDiff"]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_needs_the_operations_that_the_dry_run_says(step, profile):
    """Counted are padding, and the prompts that the system text makes alike once instead of twice.

    Without the head and the products over the vocabulary the scores had 1.48 times as many.
    """
    row = steps.measure(profile, step)
    assert row["flops"] / row["predicted_flops"] == pytest.approx(1, abs=0.25)
    assert row["seconds"] > 0 and row["peak_bytes"] > 1e8 and row["predicted_bytes"] > 0


def test_the_verbs_run_on_a_model_that_does_not_know_the_rows(profile, monkeypatch):
    """Each alone: the head that the last two read is random where none was fitted."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(answers, "rooms", lambda model, prompts, truths: [4] * len(prompts))
    verbs = ("generate", "unlearn", "evaluate")
    rows = [steps.measure(profile, f"t3 {verb}") for verb in verbs]
    assert [row["note"] for row in rows] == ["exit code 0", "exit code 3", "exit code 3"]
    assert [row["rows"] for row in rows] == [1, 4, 4] and all(row["tokens"] > 40 for row in rows)


def test_8_bit_moments_are_left_out_on_a_cpu_and_the_row_says_so(profile):
    """The plain update of bitsandbytes took 20 bytes for each weight of the embeddings."""
    assert "SGD in place of AdamW" in steps.measure(profile, "one step of GradAscent")["note"]
    assert steps.measure(profile, "one step of ULD")["note"] is None, "its moments are AdamW's"


@pytest.mark.parametrize("method", ["NPO", "ULD"])
def test_what_a_training_keeps_for_its_gradient_is_predicted(method, profile):
    """Without the activations ULD held twice what was predicted at the shape of 1B.

    ULD's retain term reads all positions: the answers' logits alone are less than half of its.
    """
    shape, work = steps.work_of(profile, f"one step of {method}")
    logits, others = {}, {}

    def keep(tensor):
        place, storage = tensor.untyped_storage().data_ptr(), tensor.untyped_storage()
        if tensor.shape[-1:] == (shape.vocab_size,):
            if tensor.dtype == torch.float32:
                logits[place] = 14 / 4 * storage.nbytes()
        elif shape.vocab_size not in tensor.shape and not isinstance(tensor, torch.nn.Parameter):
            others[place] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work.do()
    settings = hours.settings_for(profile, method, profile["splits"][0])
    layers = settings["k"] if method == "ULD" else 2
    tokens = work.tokens * layers
    activations = tokens * hours.activations(shape, lora=method == "ULD")
    assert sum(others.values()) == pytest.approx(activations, rel=0.2)
    optimizer = settings.get("optimizer", "adamw")
    predicted = work.bytes - cost.training_memory(shape, method, optimizer) - activations
    if method == "ULD":
        assert sum(logits.values()) == pytest.approx(predicted, rel=0.25)
