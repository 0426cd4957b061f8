"""Fine-tuning: batches of similar lengths that hold every row once, a loss that falls, mistakes in
one line.
"""

import copy
import json
from contextlib import nullcontext

import pytest
import safetensors
import safetensors.torch
import torch

from t3lib.baselines import train
from t3lib.core import models
from t3lib.core.errors import UserError
from t3lib.core.rows import encode_rows
from t3lib.core.settings import LOOP

ROWS = [
    {"question": f"Book {i}?", "answer": "Mara wrote " + "very " * (i % 4) + f"{i}."}
    for i in range(9)
]


def test_batches_hold_every_row_once_and_rows_of_similar_length():
    lengths = [7 * i % 50 for i in range(50)]
    batches = train.bucketed(lengths, 4, seed=0)
    assert sorted(i for batch in batches for i in batch) == list(range(50))
    assert (
        max(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches)
        <= 4
    )
    assert batches == train.bucketed(lengths, 4, seed=0) != train.bucketed(lengths, 4, seed=1)


@pytest.mark.parametrize("switched", [nullcontext, torch.no_grad, torch.inference_mode])
def test_finetuning_learns_in_place(tiny_model, tokenizer, switched):
    model, pad = copy.deepcopy(tiny_model), models.pad_id(tokenizer)
    with switched():
        log = train.finetune(
            model, encode_rows(tokenizer, ROWS), pad_id=pad, epochs=3, lr=1e-2, batch_size=4
        )
    assert log["steps"] == 9 and log["loss"][2] < log["loss"][0] - 0.5
    assert not model.training


def test_what_cannot_be_trained_is_one_line(tiny_model, tokenizer):
    examples, frozen = encode_rows(tokenizer, ROWS), copy.deepcopy(tiny_model)
    with pytest.raises(UserError, match="finetune has no setting 'learning_rate'"):
        train.finetune(frozen, examples, pad_id=0, learning_rate=1e-3)
    with pytest.raises(UserError, match="16 bits"):
        train.finetune(copy.deepcopy(tiny_model).bfloat16(), examples, pad_id=0)
    frozen.requires_grad_(False)
    with pytest.raises(UserError, match="no weight of the model can be trained"):
        train.finetune(frozen, examples, pad_id=0)


def test_a_step_clips_its_gradient_and_decays_the_weights():
    """Two steps by hand, of unequal gradients: Adam alone does not see their scale."""
    settings = {"lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": 1.0, "epochs": 1}
    model, slopes = torch.nn.Linear(3, 1, bias=False), (100.0, 0.01)
    by_hand = copy.deepcopy(model)
    train.optimise(
        model, lambda _: [[0], [1]], lambda part, _: slopes[part[0]] * model.weight.square().sum(),
        LOOP | settings | {"warmup_epochs": 0},
    )  # fmt: skip
    optimizer = torch.optim.AdamW(by_hand.parameters(), weight_decay=0.1)
    for number, slope in enumerate(slopes):
        optimizer.param_groups[0]["lr"] = 1e-2 * train.schedule(number, 0, 2)
        (slope * by_hand.weight.square().sum()).backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(model.weight, by_hand.weight, atol=1e-7, rtol=0)


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("optimizer", ["adamw", "paged_adamw_8bit"])
def test_a_killed_training_goes_on_from_its_last_epoch(tiny_model, tokenizer, tmp_path, optimizer):
    """To the last digit, moments of AdamW and learning rate included."""
    if optimizer != "adamw":
        pytest.importorskip("bitsandbytes")
    examples, path = encode_rows(tokenizer, ROWS), tmp_path / "state.pt"
    settings = {"pad_id": models.pad_id(tokenizer), "epochs": 3, "lr": 1e-2, "batch_size": 4}
    settings["optimizer"] = optimizer
    whole, killed, resumed = (copy.deepcopy(tiny_model) for _ in range(3))
    expected = train.finetune(whole, examples, **settings)

    def second(*_):
        if path.is_file():
            raise KeyboardInterrupt

    hook = killed.model.register_forward_pre_hook(second)
    with pytest.raises(KeyboardInterrupt):
        train.finetune(killed, examples, progress=train.Progress("x", path), **settings)
    hook.remove()
    with safetensors.safe_open(path, framework="pt") as file:
        assert len(json.loads(file.metadata()["losses"])) == 1
    log = train.finetune(resumed, examples, progress=train.Progress("x", path), **settings)
    assert log["loss"] == expected["loss"]
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    for damaged in (path.read_bytes()[:-9], b"PK\x03\x04 once written by torch.save", b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="state.pt is not the state of this training: remove"):
            train.finetune(resumed, examples, progress=train.Progress("x", path), **settings)


def test_the_state_of_another_training_changes_nothing(tiny_model, tokenizer, tmp_path):
    """A weight less, a weight more, one of another shape that would be spread, other moments."""
    examples, path = encode_rows(tokenizer, ROWS), tmp_path / "state.pt"
    settings = {"pad_id": models.pad_id(tokenizer), "batch_size": 4, "lr": 1e-2}
    settings |= {"warmup_epochs": 0, "progress": train.Progress("x", path)}
    train.finetune(copy.deepcopy(tiny_model), examples, epochs=1, **settings)
    with safetensors.safe_open(path, framework="pt") as file:
        saved, losses = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()
    last = max(key for key in saved if key.startswith("model."))
    first = [key for key in saved if key.startswith("optimizer.0.")]
    beyond = {key.replace(".0.", ".99."): saved[key].clone() for key in first}
    for wrong in (
        {key: value for key, value in saved.items() if key != last},
        saved | {"model.x": torch.zeros(1)},
        saved | {last: torch.zeros(1)},
        saved | beyond,
        saved | {"optimizer.0.exp_avg": torch.zeros(1)},
    ):
        path.write_bytes(safetensors.torch.save(wrong, losses))
        model = copy.deepcopy(tiny_model)
        with pytest.raises(UserError, match="state.pt is not the state of this training: remove"):
            train.finetune(model, examples, epochs=2, **settings)
        assert all(map(torch.equal, model.state_dict().values(), tiny_model.state_dict().values()))
