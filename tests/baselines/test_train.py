"""One training loop for ten methods: a step, that it is the same for all of them, how a run ends and resumes."""

import copy
import math

import pytest
import torch
from faults import injected

from t3lib import files, models, tofu
from t3lib.baselines import assistant, losses, optim, train
from t3lib.baselines import forward as measure
from t3lib.errors import UserError

FORGET = [{"question": f"Book {i}?", "answer": "Mara wrote " + "very " * (i % 4) + f"{i}."} for i in range(9)]
RETAIN = [{"question": f"Song {i}?", "answer": "Ansel sang" + " it all" * (i % 3) + f" {i}."} for i in range(13)]
IDK = ["I do not know.", "Nobody told me that."]
METHODS = tuple(losses.LOSSES)
FAST = {"lr": 1e-3, "epochs": 2, "batch_size": 4, "warmup_epochs": 0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def unlearn(tiny_model, tokenizer):
    """unlearn(method, seed=…, **hyper) on a copy of the tiny model -> (model or assistant, info)."""

    def call(method, *, seed=1, forget=FORGET, retain=RETAIN, idk=IDK, reference=None, checkpoint=None, **hyper):
        options = {"seed": seed, "idk": idk, "reference": reference, "checkpoint": checkpoint}
        hyper = FAST | ({"rank": 2} if method == "ULD" else {}) | hyper
        model = copy.deepcopy(tiny_model)
        torch.seed()  # what the caller drew before must not matter
        return train.unlearn_baseline(method, model, tokenizer, forget, retain, hyper=hyper, **options)

    return call


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


# a step --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gradients(unlearn, monkeypatch):
    """gradients(method, …): loss and gradient of every step of the first epoch, at the untrained weights."""

    def call(method, **options):
        found = []

        def spy(model, plan, loss_of, settings, **_):
            model.eval()  # dropout draws per forward pass: the one thing that depends on how a step is cut
            for step in plan(0):
                model.zero_grad()
                loss = optim.backward(loss_of, step, settings, torch.device("cpu"))
                grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
                found.append((len(step), loss, torch.cat(grads)))
            return {}

        monkeypatch.setattr(train, "optimise", spy)
        unlearn(method, **options)
        return found

    return call


CASES = [(method, variant) for method in METHODS for variant in losses.VARIANTS]


@pytest.mark.parametrize(("method", "variant"), CASES)
def test_a_batch_of_8_is_8_accumulated_batches_of_1(method, variant, gradients):
    """For all ten: every loss is a mean over the step's examples, its token counts and padding being the step's.

    The last step has one row. Only ULD's dropout (off here) draws differently when a step is cut differently.
    """
    whole = gradients(method, variant=variant, batch_size=8)
    parts = gradients(method, variant=variant, batch_size=1, accumulation=8)
    assert [size for size, *_ in whole] == [size for size, *_ in parts] == [8, 1]
    for (_, loss, grad), (_, loss_of_parts, grad_of_parts) in zip(whole, parts):
        assert loss == pytest.approx(loss_of_parts, rel=1e-5, abs=5e-6)  # GradDiff's: 5.5 − 5.5
        assert (grad - grad_of_parts).norm() <= 1e-5 * grad.norm() and grad.norm() > 0


def test_the_other_retain_loss_too(gradients, tiny_model):
    """KL to a reference of other weights; its mean over positions needs the step's width in every part."""
    other = copy.deepcopy(tiny_model)
    with torch.no_grad():
        other.lm_head.weight.mul_(3)
    common = {"retain_loss": "kl", "alpha_f": 0, "reference": other}
    [(_, loss, grad), _] = gradients("NPO", batch_size=8, **common)
    [(_, loss_of_parts, parts), _] = gradients("NPO", batch_size=1, accumulation=8, **common)
    assert loss == pytest.approx(loss_of_parts, rel=1e-5) and loss > 1e-3
    assert (grad - parts).norm() <= 1e-5 * grad.norm()
    [(_, loss, _), _] = gradients("NPO", retain_loss="kl", batch_size=8)
    assert loss == pytest.approx(20 * math.log(2), rel=1e-5)  # (2/β) ln 2 + KL 0: the model is still the original


def test_cutting_a_step_by_each_parts_own_tokens_would_show(gradients, monkeypatch):
    """The control of the test above: means over parts' own tokens are another loss when answers differ in length."""
    [(_, whole, _), _] = gradients("GradDiff", batch_size=8)
    monkeypatch.setattr(train, "answer_counts", lambda examples: {})
    [(_, parts, _), _] = gradients("GradDiff", batch_size=2, accumulation=4)
    assert abs(whole - parts) > 1e-4 * abs(whole)


def test_a_whole_run_hardly_depends_on_how_steps_are_cut(unlearn):
    runs = [unlearn("GradDiff", batch_size=b, accumulation=8 // b, epochs=3)[1] for b in (8, 2)]
    assert runs[0]["steps"] == runs[1]["steps"] == 6 and runs[0]["batches"] == runs[1]["batches"]
    assert runs[0]["loss"] == pytest.approx(runs[1]["loss"], rel=1e-4)


def test_steps_epochs_and_the_schedule_are_counted_exactly(unlearn, monkeypatch):
    rates = []
    real = optim.schedule
    monkeypatch.setattr(optim, "schedule", lambda *args: rates.append((args, real(*args))) or real(*args))
    _, info = unlearn("GradAscent", epochs=3, warmup_epochs=1, batch_size=2, accumulation=2)
    assert info["steps"] == 9 == len(rates) and info["epochs"] == 3 == len(info["loss"])  # 9 rows: 4 + 4 + 1
    assert [args for args, _ in rates] == [(step, 3, 9) for step in range(9)]
    factors = [1 / 3, 2 / 3, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert [factor for _, factor in rates] == pytest.approx(factors)


# fairness ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(unlearn, tokenizer, monkeypatch):
    """seen(method, …): the rows that really went through the model while training, in order, and info."""
    names = {}
    for kind, rows in (("forget", FORGET), ("retain", RETAIN)):
        names |= {tuple(example.ids): (kind, i) for i, example in enumerate(tofu.encode_rows(tokenizer, rows))}

    def call(method, **options):
        rows = {"forget": [], "retain": [], "other": []}

        def spy(model, examples, *args):
            for example in examples:
                kind, index = names.get(tuple(example.ids), ("other", None))
                rows[kind].append(index)
            return measure.batch_of(model, examples, *args)

        monkeypatch.setattr(train, "batch_of", spy)
        return rows, unlearn(method, **options)[1]

    return call


def test_every_method_sees_the_same_rows_for_the_same_seed_epoch_by_epoch(seen):
    epochs = dict(zip(METHODS, (2, 3, 1, 2, 2, 3, 1, 2, 3, 2)))
    found = {method: seen(method, epochs=epochs[method]) for method in METHODS}
    longest, info = found["GradDiff"]
    for method, (rows, told) in found.items():
        assert rows["forget"] == longest["forget"][: 9 * epochs[method]], method
        both = losses.LOSSES[method].retain is not None and losses.LOSSES[method].alpha_r
        assert rows["retain"] == (longest["retain"][: 9 * epochs[method]] if both else []), method
        assert told["batches"] == info["batches"][: epochs[method]], method
        assert bool(rows["other"]) == (method == "IdkDPO")  # its "I don't know" come from a stream of their own
    for epoch in range(3):  # every forget row once an epoch, each with one drawn retain row
        assert sorted(longest["forget"][9 * epoch : 9 * epoch + 9]) == list(range(9))
    assert len(set(info["batches"])) == 3


def test_another_seed_draws_other_rows_and_another_step_size_the_same(seen):
    rows, info = seen("GradDiff")
    assert seen("GradDiff", seed=2)[1]["batches"] != info["batches"]
    cut, _ = seen("GradDiff", batch_size=1, accumulation=8)
    assert (cut["forget"], cut["retain"]) == (rows["forget"], rows["retain"])


def test_retain_rows_are_drawn_uniformly():
    drawn = [pair.retain for epoch in range(400) for step in train.pairs(10, 5, 0, 4, 0, epoch) for pair in step]
    counts = torch.bincount(torch.tensor(drawn), minlength=5)
    assert len(drawn) == 4000 and (counts - 800).abs().max() < 4 * math.sqrt(4000 * 0.2 * 0.8)


# resuming, diverging -------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def killed_at(number, monkeypatch):
    """Let the `number`-th step from now kill the run."""
    calls = []
    real = optim.backward

    def backward(*args):
        calls.append(1)
        if len(calls) == number:
            raise Killed
        return real(*args)

    monkeypatch.setattr(optim, "backward", backward)


@pytest.mark.parametrize("method", ["GradDiff", "RMU", "ULD", "IdkDPO", "UnDIAL"])
def test_a_resumed_run_equals_an_uninterrupted_one(method, unlearn, tmp_path, monkeypatch):
    """To the bit: weights, optimiser, schedule, pairs and dropout, however often it is killed."""
    model, info = unlearn(method, epochs=3)
    path = tmp_path / "checkpoint.pt"
    for step in (5, 4):  # of 3 an epoch: in the second epoch, then, going on from its start, in the third
        with monkeypatch.context() as patch:
            killed_at(step, patch)
            with pytest.raises(Killed):
                unlearn(method, epochs=3, checkpoint=path)
        assert path.is_file()
    with monkeypatch.context() as patch:
        killed_at(4, patch)  # only the third epoch's three steps are left
        resumed, again = unlearn(method, epochs=3, checkpoint=path)
    assert torch.equal(weights(resumed), weights(model))
    assert again["loss"] == info["loss"] and again["steps"] == info["steps"]


def test_a_checkpoint_of_other_work_or_a_damaged_one_is_not_continued(unlearn, tmp_path):
    path = tmp_path / "checkpoint.pt"
    plain, _ = unlearn("NPO")
    unlearn("NPO", lr=2e-3, checkpoint=path)
    other, _ = unlearn("NPO", checkpoint=path)
    assert torch.equal(weights(other), weights(plain))
    whole = path.read_bytes()
    for damage in (whole[:-50], whole[:20], b""):
        path.write_bytes(damage)
        with pytest.warns(UserWarning, match="checkpoint.pt is damaged"):
            again, _ = unlearn("NPO", checkpoint=path)
        injected("checkpoint truncated", *({"": weights(run).numpy().tobytes()} for run in (plain, again)), times=3)


def spoil_at(number, monkeypatch, *, gradient=False):
    """The `number`-th measured loss from now is NaN, or has a gradient that is."""
    calls = []

    def spoiled(*args):
        calls.append(1)
        loss = measure.apply_loss(*args)
        if len(calls) == number:
            return loss + (0 * loss).clamp(min=0).sqrt() if gradient else loss * torch.nan
        return loss

    monkeypatch.setattr(train, "apply_loss", spoiled)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run(gradient, unlearn, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    good, info = unlearn("GradAscent", epochs=3)
    with monkeypatch.context() as patch:
        spoil_at(5, patch, gradient=gradient)  # 3 steps an epoch: the second of the second epoch
        with pytest.raises(train.Diverged) as stop:
            unlearn("GradAscent", epochs=3, checkpoint=path)
    assert "at step 5 of 9" in str(stop.value) and "\n" not in str(stop.value)
    assert str(stop.value).endswith("the last good epoch is in checkpoint.pt")
    assert isinstance(stop.value, UserError)
    saved = torch.load(path, weights_only=True)
    assert saved["loss"] == info["loss"][:1] and all(value.isfinite().all() for value in saved["model"].values())
    resumed, again = unlearn("GradAscent", epochs=3, checkpoint=path)  # from the last good epoch, without the fault
    assert torch.equal(weights(resumed), weights(good)) and again["loss"] == info["loss"]


def test_what_diverges_in_the_first_step_leaves_the_weights_alone(tiny_model, tokenizer, monkeypatch):
    model = copy.deepcopy(tiny_model)
    spoil_at(1, monkeypatch)
    with pytest.raises(train.Diverged, match="loss nan, gradient norm nan at step 1 of 6$"):
        train.unlearn_baseline("NPO", model, tokenizer, FORGET, RETAIN, hyper=FAST, seed=0)
    assert torch.equal(weights(model), weights(tiny_model)) and not model.training
    assert all(p.grad is None for p in model.parameters())


def test_real_divergence_is_noticed(unlearn):
    with pytest.raises(train.Diverged, match="at step"):
        unlearn("GradAscent", lr=1e38, epochs=4)


# what a batch is made of ---------------------------------------------------------------------------------------------

OF_POSITIONS = {losses.undial, losses.uniform_kl}  # documented: means over all positions, padding's too


@pytest.mark.parametrize("mask", ["lengths", "openunlearning"])
@pytest.mark.parametrize("method", METHODS)
def test_padding_and_company_change_no_examples_loss(method, mask, tiny_model, tokenizer):
    examples = tofu.encode_rows(tokenizer, FORGET[:4])
    teacher = copy.deepcopy(tiny_model)
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    pad = models.pad_id(tokenizer)

    def values(function, some, width=0):
        batch = measure.batch_of(tiny_model, some, pad, mask, width)
        given = {"control": torch.ones(32), "logp_ref": torch.full((len(some),), -3.0)} | measure.answer_counts(
            examples
        )
        given |= {"logp_idk": torch.full((len(some), 1), -2.0), "answer_idk": torch.ones(len(some), 1) > 0}
        given["logp_idk_ref"] = given["logp_ref"]
        with torch.no_grad():
            return measure.apply_loss(function, given, tiny_model, batch, teacher, 1)

    for function in filter(None, losses.LOSSES[method][:2]):
        together = values(function, examples)
        padded = values(function, examples, max(len(example.ids) for example in examples) + 9)
        alone = torch.cat([values(function, [example]) for example in examples])
        for other in (padded, alone):
            assert torch.allclose(together, other, rtol=1e-5) is not (function in OF_POSITIONS), function


def test_reference_logp_is_computed_once_and_kept(tiny_model, tokenizer, monkeypatch):
    examples = tofu.encode_rows(tokenizer, FORGET)
    first = measure.reference_logp(tiny_model, examples, 4, "lengths")
    calls = []
    monkeypatch.setattr(measure, "answer_logp", lambda *args: calls.append(1))
    assert torch.equal(measure.reference_logp(tiny_model, examples, 4, "lengths"), first) and not calls
    other = copy.deepcopy(tiny_model)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1e-3
    for change in ((other, examples), (tiny_model, examples[:-1]), (tiny_model, examples[::-1])):
        with pytest.raises(TypeError):  # the spy's None: it was computed anew
            measure.reference_logp(*change, 4, "lengths")
    assert len(calls) == 3 and len(list(files.cache_dir("reference").glob("*.json"))) == 1


def test_the_original_speaks_for_the_reference_unless_one_is_given(unlearn, tiny_model):
    """NPO starts at (2/β) ln 2 only when the reference is the model itself."""
    start = {"alpha_r": 0.0, "lr": 1e-30, "epochs": 1}
    assert unlearn("NPO", **start)[1]["loss"][0] == pytest.approx(20 * math.log(2), rel=1e-5)
    other = copy.deepcopy(tiny_model)
    with torch.no_grad():
        other.lm_head.weight.mul_(3)
    assert unlearn("NPO", **start, reference=other)[1]["loss"][0] != pytest.approx(20 * math.log(2), rel=1e-3)


# bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("Gradient", {}, "unknown method 'Gradient': choose one of GradAscent, GradDiff, WGA"),
        ("T3", {}, "unknown method 'T3'"),
        ("NPO", {"variant": "papper"}, "unknown variant 'papper': choose one of reference, paper"),
        ("NPO", {"betta": 1.0}, "NPO has no hyperparameter 'betta': choose among .*beta"),
        ("GradAscent", {"alpha_r": 1.0}, "GradAscent has no hyperparameter 'alpha_r'"),
        ("NPO", {"beta": "0.1"}, "NPO: beta is '0.1', not a value like 0.1"),
        ("NPO", {"bf16": 1}, "NPO: bf16 is 1, not a value like False"),
        ("NPO", {"lr": float("nan")}, "NPO: lr is nan"),
        ("NPO", {"retain_loss": "mse"}, "unknown retain_loss 'mse': choose nll or kl"),
        ("NPO", {"alpha_f": 0, "alpha_r": 0}, "alpha_f and alpha_r are both 0"),
        ("NPO", {"lr": 0}, "lr must be positive"),
        ("NPO", {"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ("NPO", {"epochs": 1.5}, "epochs must be a whole number of at least 1, not 1.5"),
        ("NPO", {"batch_size": -1}, "batch_size must be"),
        ("NPO", {"accumulation": 0}, "accumulation must be"),
        ("NPO", {"warmup_epochs": 3}, r"warmup_epochs 3 must lie between 0 and epochs \(2\)"),
        ("NPO", {"weight_decay": -0.1}, "weight_decay must not be negative"),
        ("NPO", {"max_grad_norm": 0}, "max_grad_norm must be positive"),
        ("NPO", {"optimizer": "paged_adamw_8bit"}, "needs a CUDA GPU; without one use optimizer: adamw"),
        ("NPO", {"optimizer": "lion"}, "unknown optimizer 'lion': choose adamw or paged_adamw_8bit"),
        ("RMU", {"k": 3}, "k = 3: the model has layers 1 to 2"),
        ("RMU", {"k": 0}, "k = 0: the model has layers 1 to 2"),
        ("ULD", {"k": 33}, "k = 33: the model has layers 1 to 2"),
        ("ULD", {"rank": 0}, "rank = 0: LoRA needs a rank of at least 1"),
        ("IdkDPO", {"idk": None}, "IdkDPO needs .*answers: the data has no idontknow file"),
        ("NPO", {"forget": RETAIN, "retain": FORGET}, "the forget set has 13 rows, more than the 9 of the retain set"),
        ("NPO", {"forget": []}, "the forget set has no rows"),
        ("NPO", {"forget": [{"question": "Who?", "answer": "Me.<|eot_id|>"}]}, "row 1: .*special token"),
    ],
)
def test_mistakes_are_one_line(method, options, said, unlearn):
    with pytest.raises(UserError, match=said) as stop:
        unlearn(method, **options)
    assert "\n" not in str(stop.value) and not isinstance(stop.value, train.Diverged)


def test_a_reference_of_another_vocabulary_is_refused(unlearn, tiny_model):
    config = copy.deepcopy(tiny_model.config)
    config.vocab_size += 1
    with pytest.raises(UserError, match="the reference model's vocabulary has 262 tokens, the model's 261") as stop:
        unlearn("NPO", reference=type(tiny_model)(config))
    assert "\n" not in str(stop.value)


def test_a_default_k_is_cut_to_the_models_layers(tiny_model):
    assert train.settings_of("RMU", {}, tiny_model)["k"] == 2 == train.settings_of("ULD", {}, tiny_model)["k"]


def test_a_sharded_run_refuses_a_checkpoint(tiny_model, tokenizer, tmp_path):
    options = {"hyper": {}, "seed": 0, "shard": lambda model: model, "checkpoint": tmp_path / "c.pt"}
    with pytest.raises(UserError, match="keeps no checkpoints"):
        train.unlearn_baseline("NPO", tiny_model, tokenizer, FORGET, RETAIN, **options)


def test_bf16_keeps_the_weights_own_dtype(unlearn):
    model, info = unlearn("NPO", bf16=True)
    plain = unlearn("NPO")[1]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert info["loss"] != plain["loss"] and info["loss"] == pytest.approx(plain["loss"], rel=0.02)


def test_uld_leaves_the_base_alone_and_trains_the_assistant(unlearn, tiny_model, tokenizer):
    base = copy.deepcopy(tiny_model)
    hyper = FAST | {"rank": 2, "k": 1, "lr": 0.02, "epochs": 4}
    helper, info = train.unlearn_baseline("ULD", base, tokenizer, FORGET, RETAIN, hyper=hyper, seed=0)
    assert torch.equal(weights(base), weights(tiny_model)) and all(p.requires_grad for p in base.parameters())
    assert info["trainable"] == weights(helper).numel() < weights(base).numel()
    assert len(assistant.layers_of(helper.get_base_model())) == 1 and info["loss"][-1] < info["loss"][0] - 0.1
