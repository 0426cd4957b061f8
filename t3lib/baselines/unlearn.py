"""The ten baselines on one loop: the rows of every step, the original's say, and the two terms of
the loss, added once.

A step pairs forget rows with redrawn retain rows. `forward` calls the model, `LOSSES` says what to
do with the result; the loss is α_f·mean(forget term) + α_r·mean(retain term).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from t3lib.baselines.assistant import layers_of, make_assistant
from t3lib.baselines.forward import (
    answer_counts,
    answer_logp,
    apply_loss,
    batch_of,
    counts_padding,
    needs_teacher,
    original_logp,
    parameters_of,
)
from t3lib.baselines.losses import LOSSES, kl_to_original, settings_of
from t3lib.baselines.train import SEEDS, optimise
from t3lib.core.errors import UserError, printable
from t3lib.core.files import content_key
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode, encode_rows


class Pair(NamedTuple):
    """Indices of one forget row, the retain row drawn for it and, for IdkDPO, its "I don't
    know".
    """

    forget: int
    retain: int
    idk: int


def pairs(
    n_forget: int, n_retain: int, n_idk: int, size: int, seed: int, epoch: int
) -> list[list[Pair]]:
    """One epoch's steps: every forget row once, each with a retain row drawn uniformly with
    replacement.

    They depend on (seed, epoch) alone, so every method sees the same ones whatever its number of
    epochs; the idk answers come from a stream of their own.
    """
    generator = torch.Generator().manual_seed(seed * SEEDS + epoch)
    forget = torch.randperm(n_forget, generator=generator).tolist()
    retain = torch.randint(n_retain, (n_forget,), generator=generator).tolist()
    idk = torch.randint(max(n_idk, 1), (n_forget,), generator=generator).tolist()
    rows = [Pair(*indices) for indices in zip(forget, retain, idk)]
    return [rows[start : start + size] for start in range(0, n_forget, size)]


def by_length(step: Sequence[Pair], lengths: Mapping[str, Sequence[int]]) -> list[Pair]:
    """The step's rows dealt again, shortest with shortest, so that its parts hold little padding;
    its loss is the same.

    lengths: "forget" and "retain" -> tokens of each row. A forget row keeps its idk answer.
    """
    forget = sorted(step, key=lambda pair: lengths["forget"][pair.forget])
    retain = sorted((pair.retain for pair in step), key=lambda row: lengths["retain"][row])
    return [Pair(pair.forget, row, pair.idk) for pair, row in zip(forget, retain)]


def unlearn_baseline(
    method: str,
    model: Any,
    tokenizer: Any,
    forget: Sequence[Row],
    retain: Sequence[Row],
    *,
    hyper: Mapping[str, Any],
    seed: int,
    idk: Sequence[str] | None = None,
    original: Any = None,
    attention_mask: str = "lengths",
    progress: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Unlearn `forget` with one of `LOSSES`, in place; ULD leaves the model alone and returns its
    assistant instead.

    hyper: settings that differ from `losses.BASELINES`. idk: answers that IdkDPO prefers. original:
    the model before unlearning, default a copy of `model` where a method needs it. A model in half
    precision is trained, and comes back, in float32 weights under bfloat16 autocast: steps of 1e-6
    would be lost in bfloat16's eight bits.
    Returns (model, info): steps, epochs, seconds, loss (per epoch), trainable, hyper (all of them),
    batches (a digest of the rows seen, per epoch). Raises UserError for bad input and Diverged.
    """
    if method not in LOSSES:
        raise UserError(f"unknown method {printable(method)!r}: choose one of {', '.join(LOSSES)}")
    settings = settings_of(method, hyper)
    if "k" in settings and "k" not in hyper:
        settings["k"] = min(settings["k"], len(layers_of(model)))
    forget_loss, retain_loss = LOSSES[method]
    if settings.get("retain_loss") == "kl":
        retain_loss = kl_to_original
    needs = parameters_of(forget_loss) | parameters_of(retain_loss)
    _check(method, settings, model, original)
    if not forget:
        raise UserError("the forget set has no rows")
    if len(forget) > len(retain):
        raise UserError(
            f"the forget set has {len(forget)} rows, more than the {len(retain)} of the retain set"
        )
    if "logp_idk" in needs and not idk:
        raise UserError(f'{method} needs "I don\'t know" answers: the data has no idontknow file')
    k, pad = settings.get("k"), pad_id(tokenizer)
    rows = {"forget": encode_rows(tokenizer, forget), "retain": encode_rows(tokenizer, retain)}

    lengths = {kind: [len(example.ids) for example in examples] for kind, examples in rows.items()}

    def drawn_pairs(epoch: int) -> list[list[Pair]]:
        size = settings["batch_size"] * settings["accumulation"]
        return pairs(len(forget), len(retain), len(idk or ()), size, seed, epoch)

    def plan(epoch: int) -> list[list[Pair]]:
        cut = settings["accumulation"] > 1
        return [by_length(step, lengths) if cut else step for step in drawn_pairs(epoch)]

    # What the original says is taken before anything changes it: ln p of whole answers once, else
    # from a frozen copy.
    frozen = model if original is None else original
    frozen.eval()
    logp_ref = (
        original_logp(frozen, rows["forget"], pad, attention_mask) if "logp_ref" in needs else None
    )
    drawn: dict[tuple[int, int], int] = {}  # (forget row, idk answer) -> place in rows["idk"]
    if "logp_idk" in needs and idk:
        used = {
            (pair.forget, pair.idk)
            for e in range(settings["epochs"])
            for step in plan(e)
            for pair in step
        }
        drawn = {pair: place for place, pair in enumerate(sorted(used))}
        rows["idk"] = [encode(tokenizer, forget[f]["question"], idk[i]) for f, i in drawn]
        logp_idk_ref = original_logp(frozen, rows["idk"], pad, attention_mask)
    teacher = copy.deepcopy(frozen) if frozen is model and needs_teacher(needs) else frozen

    if method == "ULD":
        trained = make_assistant(model, settings["k"], rank=settings["rank"], seed=seed)
        network = trained.get_base_model()
    else:
        settings["bf16"] = settings["bf16"] or model.dtype != torch.float32
        trained = network = model.float()
    device = next(network.parameters()).device
    control = torch.rand(
        model.config.get_text_config().hidden_size, generator=torch.Generator().manual_seed(seed)
    )

    def mean_loss(
        kind: str, term: Callable[..., Tensor], part: list[Pair], step: list[Pair], **facts: Any
    ) -> Tensor:
        """The part's share of the mean of `term` over the step's forget rows, or over its retain
        rows.
        """
        chosen, whole = (
            [rows[kind][getattr(pair, kind)] for pair in some] for some in (part, step)
        )
        width = (
            max(len(example.ids) for example in whole) if counts_padding(parameters_of(term)) else 0
        )
        batch = batch_of(network, chosen, pad, attention_mask, width)
        known = settings | answer_counts(whole) | facts
        return apply_loss(term, known, network, batch, teacher, k).sum() / len(step)

    def loss_of(part: list[Pair], step: list[Pair]) -> Tensor:
        loss = torch.zeros((), device=device)
        if settings["alpha_f"]:
            known: dict[str, Any] = {"control": control.to(device)}
            if logp_ref is not None:
                known["logp_ref"] = logp_ref[[pair.forget for pair in part]].to(device)
            if drawn:
                places = [drawn[pair.forget, pair.idk] for pair in part]
                batch = batch_of(network, [rows["idk"][i] for i in places], pad, attention_mask)
                known["logp_idk"], known["answer_idk"] = answer_logp(network, batch)
                known["logp_idk_ref"] = logp_idk_ref[places].to(device)
            loss = loss + settings["alpha_f"] * mean_loss(
                "forget", forget_loss, part, step, **known
            )
        if retain_loss is not None and settings["alpha_r"]:
            loss = loss + settings["alpha_r"] * mean_loss("retain", retain_loss, part, step)
        return loss

    log = optimise(
        trained, plan, loss_of, settings, seed=seed, progress=progress or f"{method} seed {seed}"
    )
    epochs = range(settings["epochs"])
    seen = [
        content_key([[pair[:2] for pair in step] for step in drawn_pairs(epoch)])
        for epoch in epochs
    ]
    trainable = sum(
        parameter.numel() for parameter in trained.parameters() if parameter.requires_grad
    )
    return trained, log | {"trainable": trainable, "hyper": settings, "batches": seen}


def _check(method: str, settings: Mapping[str, Any], model: Any, original: Any) -> None:
    if not (settings["alpha_f"] or settings.get("alpha_r")):
        raise UserError(f"{method}: alpha_f and alpha_r are both 0, so there is nothing to learn")
    if getattr(model, "is_quantized", False):
        raise UserError(
            f"{method} needs weights that can be trained or shared, and the base is quantised: omit"
            " load_in"
        )
    if original is not None and original.config.vocab_size != model.config.vocab_size:
        sizes = f"{original.config.vocab_size} tokens, the model's {model.config.vocab_size}"
        raise UserError(
            f"the original model's vocabulary has {sizes}: it is not the model before unlearning"
        )
