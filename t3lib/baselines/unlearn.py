"""Train a baseline: draw pairs of rows, score them with the original model, add both loss terms.

A step pairs forget rows with retain rows that are drawn anew. `forward` runs the model, and
`LOSSES` names the loss functions. The loss is α_f·mean(forget term) + α_r·mean(retain term).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from t3lib.baselines.assistant import layers_of, make_assistant
from t3lib.baselines.forward import (
    answer_counts,
    answer_logp,
    apply_loss,
    batch_of,
    needs_teacher,
    original_logp,
)
from t3lib.baselines.losses import LOSSES, NEEDS, kl_to_original, log_likelihood, settings_of
from t3lib.baselines.train import SEEDS, Progress, optimise
from t3lib.core.errors import UserError, printable
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode, encode_rows


class Pair(NamedTuple):
    """Indices of a forget row, of the retain row drawn for it and of its "I don't know" answer."""

    forget: int
    retain: int
    idk: int


def pairs(n_forget: int, n_retain: int, n_idk: int, size: int, seed: int) -> list[list[Pair]]:
    """Draw one epoch's steps of `size` pairs; every forget row occurs once.

    Retain rows and "I don't know" answers are drawn uniformly with replacement. n_idk may be 0.
    seed: of the epoch, computed from the run's seed and the number of the epoch only, so that every
    method sees the same rows whatever its number of epochs.
    """
    generator = torch.Generator().manual_seed(seed)
    forget = torch.randperm(n_forget, generator=generator).tolist()
    retain = torch.randint(n_retain, (n_forget,), generator=generator).tolist()
    idk = torch.randint(max(n_idk, 1), (n_forget,), generator=generator).tolist()
    rows = [Pair(*indices) for indices in zip(forget, retain, idk)]
    return [rows[start : start + size] for start in range(0, n_forget, size)]


def by_length(step: Sequence[Pair], lengths: Mapping[str, Sequence[int]]) -> list[Pair]:
    """Regroup a step's rows by length, to reduce padding; the step's loss does not change.

    lengths: {"forget", "retain"} -> tokens of each row. A forget row keeps its "I don't know"
    answer, but not its retain row.
    """
    forget = sorted(step, key=lambda pair: lengths["forget"][pair.forget])
    retain = sorted((pair.retain for pair in step), key=lambda row: lengths["retain"][row])
    return [Pair(pair.forget, row, pair.idk) for pair, row in zip(forget, retain)]


@dataclass(frozen=True)
class Task:
    """What a baseline is trained for: rows to forget, rows to keep.

    forget, retain: rows with question and answer.
    idk: "I don't know" answers, for IdkDPO.
    original: the model before unlearning. By default it is the model that is trained, copied where
    a method needs it.
    attention_mask: see `rows.collate`.
    """

    forget: Sequence[Row]
    retain: Sequence[Row]
    idk: Sequence[str] = ()
    original: Any = None
    attention_mask: str = "lengths"


def unlearn_baseline(
    method: str,
    model: Any,
    tokenizer: Any,
    task: Task,
    *,
    settings: Mapping[str, Any],
    seed: int,
) -> tuple[Any, dict[str, Any]]:
    """Train one of the baselines `LOSSES` in place; return the trained model and its log.

    task: the rows. settings: those that differ from `losses.BASELINES`. seed: of all random
    draws.

    For ULD, and with `lora_rank`, the model is not changed: what is trained and returned is a PEFT
    model that shares its weights (`adapter_of`). Otherwise a model in half precision is trained,
    and returned, with float32 weights under bfloat16 autocast, because steps of 1e-6 would be lost
    in the eight bits of bfloat16.
    The log has steps, epochs, seconds, loss (of each epoch), trainable and hyper (all settings, but
    no `lora_rank` of 0).
    UserError for bad input, Diverged if the training diverges.
    """
    if method not in LOSSES:
        raise UserError(f"unknown method {printable(method)!r}: choose one of {', '.join(LOSSES)}")
    chosen = settings_of(method, settings)
    if "k" in chosen and "k" not in settings:
        chosen["k"] = min(chosen["k"], len(layers_of(model)))
    forget_loss, retain_loss = LOSSES[method]
    if chosen.get("retain_loss") == "kl":
        retain_loss = kl_to_original
    needs = frozenset[str]().union(*(NEEDS[loss] for loss in (forget_loss, retain_loss) if loss))
    _check(method, chosen, model, task, "logp_idk" in needs)
    pad, mask = pad_id(tokenizer), task.attention_mask
    sets = {"forget": task.forget, "retain": task.retain}
    rows = {kind: encode_rows(tokenizer, part) for kind, part in sets.items()}
    lengths = {kind: [len(example.ids) for example in examples] for kind, examples in rows.items()}

    counts = len(task.forget), len(task.retain), len(task.idk)
    size = chosen["batch_size"] * chosen["accumulation"]

    def plan(epoch: int) -> list[list[Pair]]:
        steps = pairs(*counts, size, seed * SEEDS + epoch)
        return [by_length(step, lengths) if chosen["accumulation"] > 1 else step for step in steps]

    # The original model is needed before training changes it: its ln p of whole answers is computed
    # once here. A loss that needs more of it gets a frozen copy, unless training changes nothing.
    frozen = model if task.original is None else task.original
    frozen.eval()
    if "logp_ref" in needs:
        logp_ref = original_logp(frozen, rows["forget"], pad, mask)
    if "logp_idk" in needs:
        steps = (step for epoch in range(chosen["epochs"]) for step in plan(epoch))
        used = sorted({(pair.forget, pair.idk) for step in steps for pair in step})
        place = {pair: n for n, pair in enumerate(used)}
        rows["idk"] = [encode(tokenizer, task.forget[f]["question"], task.idk[i]) for f, i in used]
        logp_idk_ref = original_logp(frozen, rows["idk"], pad, mask)
    adapter = adapter_of(method, model, chosen, seed)
    changed = frozen is model and adapter is None
    teacher = copy.deepcopy(frozen) if changed and needs_teacher(needs) else frozen

    if adapter is not None:
        trained, network = adapter, adapter.get_base_model()
    else:
        chosen["bf16"] = chosen["bf16"] or model.dtype != torch.float32
        trained = network = model.float()
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    width = model.config.get_text_config().hidden_size
    control = torch.rand(width, generator=generator, dtype=torch.float32)

    def mean_loss(kind: str, term: Callable[..., Tensor], part: list[Pair], step: list[Pair],
                  known: dict[str, Any]) -> Tensor:  # fmt: skip
        """Return the part's share of the mean of `term` over the step's rows of one kind."""
        here, whole = ([rows[kind][getattr(pair, kind)] for pair in some] for some in (part, step))
        # A mean over all positions includes padding, so every part is padded as wide as its step.
        counts_padding = {"logit", "logit_all"} & NEEDS[term]
        width = max(len(example.ids) for example in whole) if counts_padding else 0
        batch = batch_of(network, here, pad, mask, width)
        known = chosen | answer_counts(whole) | known
        return apply_loss(term, known, network, batch, teacher, chosen.get("k")).sum() / len(step)

    def loss_of(part: list[Pair], step: list[Pair]) -> Tensor:
        loss = torch.zeros((), device=device)
        if chosen["alpha_f"]:
            known = {"control": control.to(device)}
            if "logp_ref" in needs:
                known["logp_ref"] = logp_ref[[pair.forget for pair in part]].to(device)
            if "logp_idk" in needs:
                places = [place[pair.forget, pair.idk] for pair in part]
                batch = batch_of(network, [rows["idk"][n] for n in places], pad, mask)
                known["logp_idk"] = log_likelihood(*answer_logp(network, batch))
                known["logp_idk_ref"] = logp_idk_ref[places].to(device)
            loss = loss + chosen["alpha_f"] * mean_loss("forget", forget_loss, part, step, known)
        if retain_loss is not None and chosen["alpha_r"]:
            loss = loss + chosen["alpha_r"] * mean_loss("retain", retain_loss, part, step, {})
        return loss

    log = optimise(
        trained, plan, loss_of, chosen, seed=seed, progress=Progress(f"{method} seed {seed}")
    )
    trainable = sum(weight.numel() for weight in trained.parameters() if weight.requires_grad)
    hyper = {name: value for name, value in chosen.items() if name != "lora_rank" or value}
    return trained, log | {"trainable": trainable, "hyper": hyper}


def adapter_of(method: str, model: Any, settings: Mapping[str, Any], seed: int) -> Any | None:
    """Return the PEFT model that a method trains, None if it trains all weights.

    settings: all of the method. seed: of the initial LoRA.

    For ULD it is the assistant, of the model's first k layers. For the others it is the whole
    model, with LoRA of rank `lora_rank` on every linear layer but the output layer. The frozen
    weights share the model's memory.
    """
    if method == "ULD":
        return make_assistant(model, settings["k"], rank=settings["rank"], seed=seed)
    if rank := settings.get("lora_rank"):
        return make_assistant(model, len(layers_of(model)), rank=rank, seed=seed)
    return None


def _check(
    method: str, settings: Mapping[str, Any], model: Any, task: Task, needs_idk: bool
) -> None:
    """Raise UserError for rows or settings that the method cannot be trained with."""
    forget, retain = len(task.forget), len(task.retain)
    before = (task.original or model).config.vocab_size
    mistakes = {
        f"{method}: alpha_f and alpha_r are both 0, so there is nothing to learn": (
            not settings["alpha_f"] and not settings.get("alpha_r")
        ),
        f"{method} needs weights that can be trained or shared, and the base is quantised: omit"
        " load_in": getattr(model, "is_quantized", False),
        f"the original model's vocabulary has {before} tokens, the model's"
        f" {model.config.vocab_size}: it is not the model before unlearning": (
            before != model.config.vocab_size
        ),
        "the forget set has no rows": not forget,
        f"the forget set has {forget} rows, more than the {retain} of the retain set": (
            forget > retain
        ),
        f'{method} needs "I don\'t know" answers: the data has no idontknow file': (
            needs_idk and not task.idk
        ),
    }
    for said, wrong in mistakes.items():
        if wrong:
            raise UserError(said)
