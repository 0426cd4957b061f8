"""Fine-tuning and the ten baselines on one loop.

A baseline's step pairs forget rows with redrawn retain rows; `measure` calls the model, `LOSSES` says what to do with
the result. The loss is α_f·mean(forget term) + α_r·mean(retain term), added here, once.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t3lib import models, tofu
from t3lib.baselines.assistant import check_layers, layers_of, make_assistant
from t3lib.baselines.forward import (
    answer_counts,
    answer_logp,
    apply_loss,
    batch_of,
    counts_padding,
    fingerprint,
    needs_teacher,
    parameters_of,
    reference_logp,
)
from t3lib.baselines.losses import LOSSES, VARIANTS, kl_to_reference, nll
from t3lib.baselines.optim import SEEDS, Diverged, Settings, optimise
from t3lib.errors import UserError
from t3lib.files import content_key
from t3lib.tofu import Example

__all__ = ["Diverged", "Settings", "bucketed", "finetune", "optimise", "pairs", "unlearn_baseline"]


def bucketed(lengths: Sequence[int], size: int, seed: int, window: int = 16) -> list[list[int]]:
    """Batches of `size` indices of similar lengths in random order: shuffled, sorted within windows, redealt."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), size * window):
        part = sorted(order[start : start + size * window], key=lambda i: lengths[i])
        batches += [part[i : i + size] for i in range(0, len(part), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def finetune(
    model: nn.Module,
    examples: Sequence[Example],
    *,
    pad_id: int,
    epochs: int,
    lr: float,
    weight_decay: float = 0.01,
    warmup_epochs: float = 1.0,
    batch_size: int = 32,
    accumulation: int = 1,
    max_grad_norm: float = 1.0,
    seed: int = 0,
    attention_mask: str = "lengths",
    progress: str = "finetune",
) -> dict[str, Any]:
    """Minimise the mean −ln p of the answers' tokens over `examples`, in place; returns optimise()'s log.

    Batches hold rows of similar length, redrawn every epoch from `seed`. Raises UserError (no examples, bad settings)
    and Diverged.
    """
    if not examples:
        raise UserError("there are no examples to train on")
    settings = Settings(
        lr=lr,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        weight_decay=weight_decay,
        batch_size=batch_size,
        accumulation=accumulation,
        max_grad_norm=max_grad_norm,
        seed=seed,
    )
    lengths = [len(example.ids) for example in examples]

    def plan(epoch: int) -> list[list[int]]:
        return bucketed(lengths, settings.step_size, seed * SEEDS + epoch)

    def loss_of(part: list[int], step: list[int]) -> Tensor:
        batch = batch_of(model, [examples[i] for i in part], pad_id, attention_mask)
        tokens = answer_counts([examples[i] for i in step])["tokens"]
        return nll(*answer_logp(model, batch), tokens=tokens).sum() / len(step)

    return optimise(model, plan, loss_of, settings, progress=progress)


class Pair(NamedTuple):
    """Indices of one forget row, the retain row drawn for it and, for IdkDPO, its "I don't know"."""

    forget: int
    retain: int
    idk: int


def pairs(n_forget: int, n_retain: int, n_idk: int, size: int, seed: int, epoch: int) -> list[list[Pair]]:
    """One epoch's steps: every forget row once, each with a retain row drawn uniformly with replacement.

    They depend on (seed, epoch) alone, so every method sees the same ones whatever its number of epochs; the idk
    answers come from a stream of their own.
    """
    generator = torch.Generator().manual_seed(seed * SEEDS + epoch)
    forget = torch.randperm(n_forget, generator=generator).tolist()
    retain = torch.randint(n_retain, (n_forget,), generator=generator).tolist()
    idk = torch.randint(max(n_idk, 1), (n_forget,), generator=generator).tolist()
    rows = [Pair(*indices) for indices in zip(forget, retain, idk)]
    return [rows[start : start + size] for start in range(0, n_forget, size)]


# Effective settings of the reference code on TOFU; ULD's are the paper's chosen ones. k counts layers.
DEFAULTS: dict[str, Any] = {"lr": 1e-5, "epochs": 10, "variant": "reference"}
METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    "RMU": {"k": 8},
    "ULD": {"lr": 1e-3, "epochs": 20, "weight_decay": 1e-4, "k": 16, "rank": 32, "T": 1.0},
}
LOOP = {field.name for field in fields(Settings)} - {"seed"}


def settings_of(method: str, hyper: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """All settings of a method: `hyper` over the defaults. A default k is cut to the model's number of layers.

    UserError for an unknown method, name or variant, a value of another type, and a k that the model does not have.
    """
    if method not in LOSSES:
        raise UserError(f"unknown method {method!r}: choose one of {', '.join(LOSSES)}")
    terms = LOSSES[method]
    own = {
        name: parameter.default
        for function in terms[:2]
        if function is not None
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in ("tokens", "inverse_tokens")
    }
    loop = {f.name: f.default for f in fields(Settings) if f.name not in ("lr", "epochs", "seed")}
    weights = {"alpha_f": terms.alpha_f} | ({"alpha_r": terms.alpha_r} if terms.retain else {})
    retain_loss = {"retain_loss": "nll"} if terms.retain is nll else {}
    settings: dict[str, Any] = loop | own | weights | retain_loss | DEFAULTS | METHOD_DEFAULTS.get(method, {})
    if "k" in settings:
        settings["k"] = min(settings["k"], len(layers_of(model)))
    unknown = sorted(set(hyper) - set(settings))
    if unknown:
        raise UserError(f"{method} has no hyperparameter {unknown[0]!r}: choose among {', '.join(sorted(settings))}")
    for name, value in hyper.items():
        kind = type(settings[name]) if isinstance(settings[name], str | bool) else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool) or value != value:
            raise UserError(f"{method}: {name} is {value!r}, not a value like {settings[name]!r}")
    settings |= hyper
    if "k" in settings:
        check_layers(model, settings["k"])
    if settings["variant"] not in VARIANTS:
        raise UserError(f"unknown variant {settings['variant']!r}: choose one of {', '.join(VARIANTS)}")
    if settings.get("retain_loss", "nll") not in ("nll", "kl"):
        raise UserError(f"unknown retain_loss {settings['retain_loss']!r}: choose nll or kl")
    if not (settings["alpha_f"] or settings.get("alpha_r")):
        raise UserError(f"{method}: alpha_f and alpha_r are both 0, so there is nothing to learn")
    return settings


def unlearn_baseline(
    method: str,
    model: Any,
    tokenizer: Any,
    forget: Sequence[tofu.Row],
    retain: Sequence[tofu.Row],
    *,
    hyper: Mapping[str, Any],
    seed: int,
    idk: Sequence[str] | None = None,
    reference: Any = None,
    attention_mask: str = "lengths",
    checkpoint: Path | None = None,
    shard: Callable[[nn.Module], Any] | None = None,
    progress: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Unlearn `forget` with one of `LOSSES`, in place; ULD leaves the model alone and returns its assistant instead.

    hyper: names of the paper and of `Settings` (lr, epochs, warmup_epochs, alpha_r, beta, …), see `settings_of`.
    idk: answers that IdkDPO prefers. reference: the original model, default a copy of `model` where a method needs it.
    checkpoint: file written every epoch, to resume from. shard: applied to each model that trains or teaches (FSDP).
    Returns (model, info): steps, epochs, seconds, loss (per epoch), trainable, hyper (all of them), batches (a digest
    of the rows seen, per epoch). Raises UserError for bad input and Diverged.
    """
    if shard is not None and checkpoint is not None:
        raise UserError("a run on several devices keeps no checkpoints: its weights are spread over them")
    settings = settings_of(method, hyper, model)
    loop = Settings(**{name: settings[name] for name in LOOP}, seed=seed)
    forget_loss, retain_loss = LOSSES[method].forget, LOSSES[method].retain
    if settings.get("retain_loss") == "kl":
        retain_loss = kl_to_reference
    wants = parameters_of(forget_loss) | (parameters_of(retain_loss) if retain_loss else set())
    _check(method, model, len(forget), len(retain), idk if "logp_idk" in wants else [""], reference)
    pad_id, k = models.pad_id(tokenizer), settings.get("k")
    rows = {"forget": tofu.encode_rows(tokenizer, forget), "retain": tofu.encode_rows(tokenizer, retain)}

    def plan(epoch: int) -> list[list[Pair]]:
        return pairs(len(forget), len(retain), len(idk or ()), loop.step_size, seed, epoch)

    # What the original model says is taken before anything changes it: ln p once, else from a frozen copy.
    original = model if reference is None else reference
    logp_ref = reference_logp(original, rows["forget"], pad_id, attention_mask) if "logp_ref" in wants else None
    drawn: dict[tuple[int, int], int] = {}  # (forget row, idk answer) -> place in rows["idk"]
    if "logp_idk" in wants and idk:
        used = sorted({(pair.forget, pair.idk) for e in range(loop.epochs) for step in plan(e) for pair in step})
        drawn = {pair: place for place, pair in enumerate(used)}
        rows["idk"] = [tofu.encode(tokenizer, forget[f]["question"], idk[i]) for f, i in used]
        logp_idk_ref = reference_logp(original, rows["idk"], pad_id, attention_mask)
    teacher = None
    if needs_teacher(wants):
        teacher = copy.deepcopy(model) if reference is None else reference
        teacher.eval().requires_grad_(False)
    work = [method, settings, seed, attention_mask, fingerprint(original), rows] if checkpoint else []

    trained = make_assistant(model, settings["k"], rank=settings["rank"], seed=seed) if method == "ULD" else model
    for network in (trained, teacher):
        if shard is not None and network is not None:
            shard(network)
    network = trained.get_base_model() if method == "ULD" else trained
    device = next(network.parameters()).device
    control = torch.rand(model.config.get_text_config().hidden_size, generator=torch.Generator().manual_seed(seed))

    def mean_loss(function: Callable[..., Tensor], given: dict[str, Any], part: list[Example], step: list[Example]):
        """The part's share of the mean of `function` over the step's examples."""
        width = max(len(example.ids) for example in step) if counts_padding(parameters_of(function)) else 0
        batch = batch_of(network, part, pad_id, attention_mask, width)
        losses = apply_loss(function, settings | answer_counts(step) | given, network, batch, teacher, k)
        return losses.sum() / len(step)

    def loss_of(part: list[Pair], step: list[Pair]) -> Tensor:
        loss = torch.zeros((), device=device)
        if settings["alpha_f"]:
            known: dict[str, Any] = {"control": control.to(device)}
            if logp_ref is not None:
                known["logp_ref"] = logp_ref[[pair.forget for pair in part]].to(device)
            if drawn:
                places = [drawn[pair.forget, pair.idk] for pair in part]
                batch = batch_of(network, [rows["idk"][i] for i in places], pad_id, attention_mask)
                known["logp_idk"], known["answer_idk"] = answer_logp(network, batch)
                known["logp_idk_ref"] = logp_idk_ref[places].to(device)
            chosen, whole = ([rows["forget"][pair.forget] for pair in some] for some in (part, step))
            loss = loss + settings["alpha_f"] * mean_loss(forget_loss, known, chosen, whole)
        if retain_loss is not None and settings["alpha_r"]:
            chosen, whole = ([rows["retain"][pair.retain] for pair in some] for some in (part, step))
            loss = loss + settings["alpha_r"] * mean_loss(retain_loss, {}, chosen, whole)
        return loss

    progress = progress or f"{method} seed {seed}"
    log = optimise(trained, plan, loss_of, loop, checkpoint=checkpoint, key=content_key(work), progress=progress)
    seen = [content_key([[pair[:2] for pair in step] for step in plan(epoch)]) for epoch in range(loop.epochs)]
    trainable = sum(parameter.numel() for parameter in trained.parameters() if parameter.requires_grad)
    return trained, log | {"trainable": trainable, "hyper": settings, "batches": seen}


def _check(method: str, model: Any, n_forget: int, n_retain: int, idk: Sequence[str] | None, reference: Any) -> None:
    if n_forget > n_retain:
        raise UserError(f"the forget set has {n_forget} rows, more than the {n_retain} of the retain set")
    if n_forget == 0:
        raise UserError("the forget set has no rows")
    if not idk:
        raise UserError(f'{method} needs "I don\'t know" answers: the data has no idontknow file')
    if reference is not None and reference.config.vocab_size != model.config.vocab_size:
        sizes = f"{reference.config.vocab_size} tokens, the model's {model.config.vocab_size}"
        raise UserError(f"the reference model's vocabulary has {sizes}: it is not the model before unlearning")
