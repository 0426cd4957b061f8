"""One training loop for ten methods: a step, that it is the same for all of them, how a run
ends.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from own_cases import byte_pairs, gpt2, invented

from t3lib.baselines import assistant, forward, losses, train
from t3lib.baselines import unlearn as module
from t3lib.baselines.unlearn import Pair, Task, by_length, pairs, unlearn_baseline
from t3lib.core import models
from t3lib.core.errors import UserError
from t3lib.core.rows import encode_rows
from t3lib.core.settings import CHOICES

FORGET = [
    {"question": f"Book {i}?", "answer": "Mara wrote " + "very " * (i % 4) + f"{i}."}
    for i in range(9)
]
RETAIN = [
    {"question": f"Song {i}?", "answer": "Ansel sang" + " it all" * (i % 3) + f" {i}."}
    for i in range(13)
]
IDK = ["I do not know.", "Nobody told me that."]
METHODS = tuple(losses.LOSSES)
TASK = Task(FORGET, RETAIN, IDK)
FAST = {"lr": 1e-3, "epochs": 2, "batch_size": 4, "warmup_epochs": 0}


@pytest.fixture
def unlearn(tiny_model, tokenizer):
    """unlearn(method, seed=…, **settings) on a copy of the tiny model -> (model or assistant,
    info).
    """

    def call(method, *, seed=1, task=TASK, original=None, **settings):
        settings = FAST | ({"rank": 2} if method == "ULD" else {}) | settings
        task = replace(task, original=original)
        torch.seed()  # what the caller drew before must not matter
        model = copy.deepcopy(tiny_model)
        return unlearn_baseline(method, model, tokenizer, task, settings=settings, seed=seed)

    return call


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


# ---- a step -------------------------------------------------------------------------------------


@pytest.fixture
def gradients(unlearn, monkeypatch):
    """gradients(method, …): loss and gradient of every step of the first epoch, at the untrained
    weights.
    """

    def call(method, **options):
        found = []

        def spy(model, plan, loss_of, settings, **_):
            # dropout draws per forward pass: the one thing that depends on how a step is cut
            model.eval()
            for step in plan(0):
                model.zero_grad()
                loss = train.backward(loss_of, step, settings, torch.device("cpu"))
                grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
                found.append((len(step), loss, torch.cat(grads)))
            return {}

        monkeypatch.setattr(module, "optimise", spy)
        unlearn(method, **options)
        return found

    return call


CASES = [(method, variant) for method in METHODS for variant in CHOICES["variant"]]


@pytest.mark.parametrize(("method", "variant"), CASES)
def test_a_batch_of_8_is_8_accumulated_batches_of_1(method, variant, gradients):
    """For all ten: every loss is a mean over the step's examples, its token counts and padding
    being the step's.

    The last step has one row. Only ULD's dropout (off here) draws differently when a step is cut
    differently.
    """
    whole = gradients(method, variant=variant, batch_size=8)
    parts = gradients(method, variant=variant, batch_size=1, accumulation=8)
    assert [size for size, *_ in whole] == [size for size, *_ in parts] == [8, 1]
    for (_, loss, grad), (_, loss_of_parts, grad_of_parts) in zip(whole, parts):
        assert loss == pytest.approx(loss_of_parts, rel=1e-5, abs=5e-6)  # GradDiff's: 5.5 − 5.5
        assert (grad - grad_of_parts).norm() <= 1e-5 * grad.norm() and grad.norm() > 0


def test_the_other_retain_loss_too(gradients, tiny_model):
    """KL to an original of other weights; its mean over positions needs the step's width in every
    part.
    """
    other = copy.deepcopy(tiny_model)
    with torch.no_grad():
        other.lm_head.weight.mul_(3)
    common = {"retain_loss": "kl", "alpha_f": 0, "original": other}
    [(_, loss, grad), _] = gradients("NPO", batch_size=8, **common)
    [(_, loss_of_parts, parts), _] = gradients("NPO", batch_size=1, accumulation=8, **common)
    assert loss == pytest.approx(loss_of_parts, rel=1e-5) and loss > 1e-3
    assert (grad - parts).norm() <= 1e-5 * grad.norm()
    [(_, loss, _), _] = gradients("NPO", retain_loss="kl", batch_size=8)
    assert loss == pytest.approx(
        20 * math.log(2), rel=1e-5
    )  # (2/β) ln 2 + KL 0: the model is still the original


def test_steps_epochs_and_the_schedule_are_counted_exactly(unlearn, monkeypatch):
    rates = []
    real = train.schedule
    monkeypatch.setattr(
        train, "schedule", lambda *args: rates.append((args, real(*args))) or real(*args)
    )
    _, info = unlearn("GradAscent", epochs=3, warmup_epochs=1, batch_size=2, accumulation=2)
    assert info["steps"] == 9 == len(rates) and info["epochs"] == 3 == len(
        info["loss"]
    )  # 9 rows: 4 + 4 + 1
    assert [args for args, _ in rates] == [(step, 3, 9) for step in range(9)]
    factors = [1 / 3, 2 / 3, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert [factor for _, factor in rates] == pytest.approx(factors)


# ---- fairness -----------------------------------------------------------------------------------


@pytest.fixture
def seen(unlearn, tokenizer, monkeypatch):
    """seen(method, …): the rows that really went through the model while training, in order."""
    names = {}
    for kind, rows in (("forget", FORGET), ("retain", RETAIN)):
        names |= {
            tuple(example.ids): (kind, i) for i, example in enumerate(encode_rows(tokenizer, rows))
        }

    def call(method, **options):
        rows = {"forget": [], "retain": [], "other": []}
        options = {"batch_size": 8} | options

        def spy(model, examples, *args):
            for example in examples:
                kind, index = names.get(tuple(example.ids), ("other", None))
                rows[kind].append(index)
            return forward.batch_of(model, examples, *args)

        monkeypatch.setattr(module, "batch_of", spy)
        unlearn(method, **options)
        return rows

    return call


def test_every_method_sees_the_same_rows_for_the_same_seed_epoch_by_epoch(seen):
    epochs = dict(zip(METHODS, (2, 3, 1) * len(METHODS)))
    found = {method: seen(method, epochs=epochs[method]) for method in METHODS}
    longest = found["GradDiff"]
    for method, rows in found.items():
        assert rows["forget"] == longest["forget"][: 9 * epochs[method]], method
        both = losses.BASELINES[method].get("alpha_r")
        assert rows["retain"] == (longest["retain"][: 9 * epochs[method]] if both else []), method
        # IdkDPO's "I don't know" come from a stream of their own
        assert bool(rows["other"]) == (method == "IdkDPO")
    for epoch in range(3):  # every forget row once an epoch, each with one drawn retain row
        assert sorted(longest["forget"][9 * epoch : 9 * epoch + 9]) == list(range(9))
    assert longest["forget"][:9] != longest["forget"][9:18]


def test_another_seed_draws_other_rows_and_another_step_size_the_same(seen):
    rows = seen("GradDiff")
    assert seen("GradDiff", seed=2)["retain"] != rows["retain"]
    cut = seen("GradDiff", batch_size=1, accumulation=8)
    for kind in ("forget", "retain"):
        # steps of 8 and 1 rows; of a step that is cut the shortest rows come first
        for start, end in ((0, 8), (8, 9), (9, 17), (17, 18)):
            assert sorted(cut[kind][start:end]) == sorted(rows[kind][start:end])


def test_a_step_in_parts_holds_rows_of_similar_length():
    step = [Pair(0, 3, 7), Pair(1, 2, 8), Pair(2, 1, 9)]
    lengths = {"forget": [30, 10, 20], "retain": [0, 2, 3, 1]}
    assert by_length(step, lengths) == [Pair(1, 3, 8), Pair(2, 1, 9), Pair(0, 2, 7)]


def test_retain_rows_are_drawn_uniformly():
    drawn = [
        pair.retain for epoch in range(400) for step in pairs(10, 5, 0, 4, epoch) for pair in step
    ]
    counts = torch.bincount(torch.tensor(drawn), minlength=5)
    assert len(drawn) == 4000 and (counts - 800).abs().max() < 4 * math.sqrt(4000 * 0.2 * 0.8)


# ---- diverging ----------------------------------------------------------------------------------


def spoil_at(number, monkeypatch, *, gradient=False):
    """The `number`-th measured loss from now is NaN, or has a gradient that is."""
    calls = []

    def spoiled(*args):
        calls.append(1)
        loss = forward.apply_loss(*args)
        if len(calls) == number:
            return loss + (0 * loss).clamp(min=0).sqrt() if gradient else loss * torch.nan
        return loss

    monkeypatch.setattr(module, "apply_loss", spoiled)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run(gradient, unlearn, monkeypatch):
    spoil_at(5, monkeypatch, gradient=gradient)  # 3 steps an epoch: the second of the second epoch
    with pytest.raises(train.Diverged, match="at step 5 of 9$") as stop:
        unlearn("GradAscent", epochs=3)
    assert "\n" not in str(stop.value) and isinstance(stop.value, UserError)


def test_what_diverges_in_the_first_step_leaves_the_weights_alone(
    tiny_model, tokenizer, monkeypatch
):
    model = copy.deepcopy(tiny_model)
    spoil_at(1, monkeypatch)
    with pytest.raises(train.Diverged, match="loss nan, gradient norm nan at step 1 of 6$"):
        unlearn_baseline("NPO", model, tokenizer, TASK, settings=FAST, seed=0)
    assert torch.equal(weights(model), weights(tiny_model)) and not model.training
    assert all(p.grad is None for p in model.parameters())


# ---- what a batch is made of --------------------------------------------------------------------

OF_POSITIONS = {
    losses.undial,
    losses.uniform_kl,
}  # documented: means over all positions, padding's too


@pytest.mark.parametrize("mask", ["lengths", "openunlearning"])
@pytest.mark.parametrize("method", METHODS)
def test_padding_and_company_change_no_examples_loss(method, mask, tiny_model, tokenizer):
    examples = encode_rows(tokenizer, FORGET[:4])
    teacher = copy.deepcopy(tiny_model)
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    pad = models.pad_id(tokenizer)

    def values(function, some, width=0):
        batch = forward.batch_of(tiny_model, some, pad, mask, width)
        given = {
            "control": torch.ones(32),
            "logp_ref": torch.full((len(some),), -3.0),
        } | forward.answer_counts(examples)
        given |= {"logp_idk": given["logp_ref"] + 1, "logp_idk_ref": given["logp_ref"]}
        with torch.no_grad():
            return forward.apply_loss(function, given, tiny_model, batch, teacher, 1)

    for function in filter(None, losses.LOSSES[method][:2]):
        together = values(function, examples)
        padded = values(function, examples, max(len(example.ids) for example in examples) + 9)
        alone = torch.cat([values(function, [example]) for example in examples])
        for other in (padded, alone):
            assert torch.allclose(together, other, rtol=1e-5) is not (function in OF_POSITIONS), (
                function
            )


def test_the_originals_logp_is_of_every_row_in_its_place(tiny_model, tokenizer, monkeypatch):
    examples, pad = encode_rows(tokenizer, FORGET), models.pad_id(tokenizer)
    monkeypatch.setattr(forward, "BATCH_TOKENS", 100)  # several batches, which sort rows by length
    found = forward.original_logp(tiny_model, examples, pad, "lengths")
    for example, logp in zip(examples, found, strict=True):
        batch = forward.batch_of(tiny_model, [example], pad, "lengths")
        expected = losses.log_likelihood(*forward.answer_logp(tiny_model, batch))
        torch.testing.assert_close(logp[None], expected.detach())


# ---- bad input ----------------------------------------------------------------------------------


def test_moments_of_8_bits_train_on_a_cpu_too():
    """So that a step can be tried where the profile's GPU is not."""
    pytest.importorskip("bitsandbytes")
    weight = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = train.make_optimizer("paged_adamw_8bit", [weight], 0.1, 0.0)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight.detach().allclose(torch.full_like(weight, 0.9), atol=1e-3)
    assert optimizer.state[weight]["state1"].dtype == torch.uint8


@pytest.mark.parametrize("method", ["RMU", "ULD"])
def test_a_default_k_is_cut_to_the_models_layers(method, unlearn):
    assert unlearn(method, epochs=1)[1]["hyper"]["k"] == 2


# ---- precision ----------------------------------------------------------------------------------


def test_bf16_keeps_float32_weights(unlearn):
    model, info = unlearn("NPO", bf16=True)
    plain = unlearn("NPO")[1]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert info["loss"] != plain["loss"] and info["loss"] == pytest.approx(plain["loss"], rel=0.02)


@pytest.mark.parametrize("method", ["GradDiff", "NPO", "RMU"])
def test_a_model_loaded_in_bfloat16_moves_as_far_as_in_float32(method, tiny_model, tokenizer):
    """At lr 1e-6 bfloat16 weights would round nearly every step away."""
    loaded = copy.deepcopy(tiny_model).bfloat16()
    start = torch.cat([p.detach().float().flatten() for p in loaded.parameters()])
    settings = FAST | {"lr": 1e-6, "epochs": 4}
    moves = []
    for model in (copy.deepcopy(loaded).float(), loaded):
        trained, info = unlearn_baseline(method, model, tokenizer, TASK, settings=settings, seed=0)
        moves.append(weights(trained) - start)
        assert info["hyper"]["bf16"] is (model is loaded)
    assert moves[1].norm().item() == pytest.approx(moves[0].norm().item(), rel=0.1)
    assert torch.cosine_similarity(*moves, dim=0) > 0.9
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}


def test_ulds_lora_is_float32_on_a_bfloat16_base_too(tiny_model, tokenizer):
    base = copy.deepcopy(tiny_model).bfloat16()
    settings = FAST | {"rank": 2}
    helper, _ = unlearn_baseline("ULD", base, tokenizer, TASK, settings=settings, seed=0)
    assert {p.dtype for p in helper.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in base.parameters()} == {torch.bfloat16}


def test_uld_leaves_the_base_alone_and_trains_the_assistant(unlearn, tiny_model, tokenizer):
    base = copy.deepcopy(tiny_model)
    settings = FAST | {"rank": 2, "k": 1, "lr": 0.02, "epochs": 4}
    helper, info = unlearn_baseline("ULD", base, tokenizer, TASK, settings=settings, seed=0)
    assert torch.equal(weights(base), weights(tiny_model)) and all(
        p.requires_grad for p in base.parameters()
    )
    assert info["trainable"] == weights(helper).numel() < weights(base).numel()
    assert (
        len(assistant.layers_of(helper.get_base_model())) == 1
        and info["loss"][-1] < info["loss"][0] - 0.1
    )


@pytest.mark.parametrize("method, lora_rank", [("RMU", 0), ("NPO", 2), ("ULD", None)])
def test_gpt2_whose_decoder_calls_its_layers_h_is_trained(method, lora_rank, recwarn):
    tokenizer = byte_pairs()
    rows, base = invented(12, 0), gpt2(len(tokenizer))
    settings = FAST | {"epochs": 6, "lr": 0.01} | ({"k": 1} if method == "ULD" else {})
    settings |= {} if lora_rank is None else {"lora_rank": lora_rank}
    before, task = weights(base), Task(rows[:3], rows[3:])
    trained, log = unlearn_baseline(method, base, tokenizer, task, settings=settings, seed=0)
    assert log["loss"][-1] != log["loss"][0] and math.isfinite(log["loss"][-1])
    assert torch.equal(weights(base), before) == (trained is not base) == (lora_rank != 0)
    assert not recwarn.list, "PEFT says nothing about what it decides by itself"
    with pytest.raises(UserError, match="k = 3: the model has layers 1 to 2"):
        assistant.layers_of(base, 3)


@pytest.mark.parametrize("method", ["NPO", "UnDIAL", "RMU", "IdkDPO"])
def test_lora_starts_at_the_base_shares_its_weights_and_leaves_them_alone(
    method, unlearn, tiny_model, tokenizer
):
    """What a loss asks of the original model comes from the base itself: no copy of it is made."""
    one_step = {"epochs": 1, "batch_size": 9}
    whole, lora = (unlearn(method, **one_step, lora_rank=rank)[1] for rank in (0, 2))
    assert lora["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert "lora_rank" not in whole["hyper"] and lora["hyper"]["lora_rank"] == 2

    base = copy.deepcopy(tiny_model)
    settings = FAST | {"lora_rank": 2, "lr": 0.02, "alpha_r": 0.5}
    task = replace(TASK, original=copy.deepcopy(tiny_model))
    trained, log = unlearn_baseline(method, base, tokenizer, TASK, settings=settings, seed=0)
    _, beside = unlearn_baseline(method, base, tokenizer, task, settings=settings, seed=0)
    assert log["loss"] == beside["loss"] and log["loss"][1] != log["loss"][0]
    assert torch.equal(weights(base), weights(tiny_model))
    own = {parameter.data_ptr() for parameter in base.parameters()}
    assert {p.data_ptr() for p in trained.parameters() if not p.requires_grad} == own

    # 2 · Σ (inputs + outputs) of q, k, v, o, gate, up and down in each of two layers
    assert log["trainable"] == 2 * 2 * (64 + 48 + 48 + 64 + 96 + 96 + 96)
