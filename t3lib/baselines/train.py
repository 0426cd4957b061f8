"""The training loop of fine-tuning and of all ten baselines: AdamW, linear schedule, clipping.

A step is a list of batch_size × accumulation examples; the last step of an epoch has what is left.
The loss of each part of a step is the part's share of the step's loss, so that one batch of 8 and 8
accumulated batches of 1 give the same gradient.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from t3lib.baselines.forward import answer_counts, answer_logp, batch_of
from t3lib.baselines.losses import nll
from t3lib.core.errors import Diverged, UserError, printable
from t3lib.core.files import atomic_write
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Example
from t3lib.core.settings import LOOP, check

Item = TypeVar("Item")
# Epoch e of seed s draws from the random stream s · SEEDS + e, so that no two epochs of any two
# seeds share a stream.
SEEDS = 100_003
WINDOW = 16  # batches, see `bucketed`
MOMENTS = ("exp_avg", "exp_avg_sq", "state1", "state2")  # of AdamW, and of bitsandbytes'


@dataclass(frozen=True)
class Progress:
    """How a training is followed.

    name: of the progress bar. checkpoint: a file that holds the state after each epoch. A training
    that finds it goes on from there, with the same result to the last digit. Its path must name the
    whole training (model, rows, settings, seed), and whoever asked for it removes it.
    """

    name: str = "train"
    checkpoint: Path | None = None


def finetune(
    model: nn.Module,
    examples: Sequence[Example],
    *,
    pad_id: int,
    seed: int = 0,
    attention_mask: str = "lengths",
    progress: Progress = Progress("finetune"),
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune a model in place: minimise the mean −ln p of the answers' tokens over `examples`.

    pad_id: padding token. seed: of the order of batches and of dropout. attention_mask: see
    `rows.collate`.
    progress: see `Progress`.
    settings: those of `settings.LOOP` that differ from its defaults (lr, epochs, …).

    Batches hold rows of similar length and are drawn anew in every epoch. Returns the log of
    `optimise`. UserError for no examples or bad settings, other errors as of `optimise`.
    """
    if not examples:
        raise UserError("there are no examples to train on")
    trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    if trained & {torch.float16, torch.bfloat16}:
        raise UserError("weights of 16 bits round most steps away: train model.float()")
    if unknown := sorted(settings.keys() - LOOP.keys()):
        raise UserError(f"finetune has no setting {printable(unknown[0])!r}")
    checked = {name: check(name, value, like=LOOP[name]) for name, value in settings.items()}
    chosen = LOOP | checked
    lengths = [len(example.ids) for example in examples]

    def plan(epoch: int) -> list[list[int]]:
        return bucketed(
            lengths, chosen["batch_size"] * chosen["accumulation"], seed * SEEDS + epoch
        )

    def loss_of(part: list[int], step: list[int]) -> Tensor:
        batch = batch_of(model, [examples[i] for i in part], pad_id, attention_mask)
        tokens = answer_counts([examples[i] for i in step])["tokens"]
        return nll(*answer_logp(model, batch), tokens=tokens).sum() / len(step)

    return optimise(model, plan, loss_of, chosen, seed=seed, progress=progress)


def bucketed(lengths: Sequence[int], size: int, seed: int) -> list[list[int]]:
    """Group indices into batches of rows with similar lengths, in random order.

    lengths: tokens of each row. size: rows in a batch. The rows are shuffled, and each `WINDOW`
    batches of them are sorted by length and cut into batches, whose order is shuffled too.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), size * WINDOW):
        part = sorted(order[start : start + size * WINDOW], key=lambda i: lengths[i])
        batches += [part[i : i + size] for i in range(0, len(part), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


@torch.inference_mode(False)  # gradients are also needed where the caller switched them off
@torch.enable_grad()
def optimise(
    model: nn.Module,
    plan: Callable[[int], list[list[Item]]],
    loss_of: Callable[[list[Item], list[Item]], Tensor],
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: Progress = Progress(),
) -> dict[str, Any]:
    """Train a model in place over the steps of plan(epoch); return a log.

    plan(epoch): the epoch's steps, each a list of items.
    loss_of(part, step): the part's share of the step's loss.
    settings: all of `settings.LOOP`. lr is the peak of a rate that rises during `warmup_epochs` and
    then falls to 0. bf16 runs the forward passes under bfloat16 autocast, whatever the weights'
    dtype.
    seed: of dropout. progress: see `Progress`.

    The log is {"steps", "epochs", "seconds", "loss": mean over steps for each epoch}. Diverged at
    the first loss or gradient that is not finite; the weights are then those before that step.
    UserError for a model without weights that can be trained.
    """
    started = time.perf_counter()
    epochs, warmup_epochs = settings["epochs"], settings["warmup_epochs"]
    if not warmup_epochs <= epochs:
        raise UserError(f"warmup_epochs {warmup_epochs} must lie between 0 and epochs ({epochs})")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise UserError("no weight of the model can be trained: none has requires_grad")
    optimizer = make_optimizer(
        settings["optimizer"], parameters, settings["lr"], settings["weight_decay"]
    )
    per_epoch = len(plan(0))
    total, warmup = epochs * per_epoch, round(warmup_epochs * per_epoch)
    losses: list[float] = []
    if progress.checkpoint and progress.checkpoint.is_file():
        losses += resume(progress.checkpoint, model, optimizer)
    model.train()
    with progress_bar(total=total, desc=progress.name, leave=False) as bar, torch.random.fork_rng():
        bar.update(len(losses) * per_epoch)
        for epoch in range(len(losses), epochs):
            torch.manual_seed(seed * SEEDS + epoch)  # dropout
            step_losses: list[float] = []
            for step in plan(epoch):
                number = epoch * per_epoch + len(step_losses)
                for group in optimizer.param_groups:
                    group["lr"] = settings["lr"] * schedule(number, warmup, total)
                loss = backward(loss_of, step, settings, parameters[0].device)
                norm = nn.utils.clip_grad_norm_(parameters, settings["max_grad_norm"])
                finite = bool(torch.isfinite(norm)) and abs(loss) < float("inf")
                if finite:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if not finite:
                    model.eval()
                    raise Diverged(
                        f"loss {loss}, gradient norm {norm:.3g} at step {number + 1} of {total}"
                    )
                step_losses.append(loss)
                bar.update()
            losses.append(sum(step_losses) / per_epoch)
            bar.set_postfix(loss=f"{losses[-1]:.4f}")
            if progress.checkpoint:
                save_state(progress.checkpoint, model, optimizer, losses)
    model.eval()
    return {
        "steps": total,
        "epochs": epochs,
        "seconds": time.perf_counter() - started,
        "loss": losses,
    }


def save_state(path: Path, model: nn.Module, optimizer: Any, losses: list[float]) -> None:
    """Write weights, the optimiser's state and the mean loss of each epoch, as safetensors."""
    tensors = {f"model.{name}": weight.detach() for name, weight in model.named_parameters()}
    for index, weight in enumerate(optimizer.param_groups[0]["params"]):
        # bitsandbytes counts steps in an int, and its weights share their tables of codes.
        tensors |= {
            f"optimizer.{index}.{name}": value.clone() if "qmap" in name else torch.as_tensor(value)
            for name, value in optimizer.state.get(weight, {}).items()
        }
    with atomic_write(path, "wb") as handle:
        handle.write(safetensors.torch.save(tensors, {"losses": json.dumps(losses)}))


def resume(path: Path, model: nn.Module, optimizer: Any) -> list[float]:
    """Load in place what `save_state` wrote; return the mean loss of each epoch that is done.

    UserError if the file is damaged or belongs to another training; the model is then unchanged.
    """
    state: dict[int, dict[str, Any]] = {}
    weights = {f"model.{name}": weight for name, weight in model.named_parameters()}
    moments = {
        f"optimizer.{index}.{name}": weight
        for index, weight in enumerate(optimizer.param_groups[0]["params"])
        for name in MOMENTS
    }
    try:
        with safetensors.safe_open(path, framework="pt") as file, torch.no_grad():
            shapes = {
                key: file.get_slice(key).get_shape()
                for key in file.keys()
                if key.startswith("model.") or key.endswith(MOMENTS)
            }
            wanted = {key: [*weight.shape] for key, weight in (weights | moments).items()}
            if weights.keys() - shapes.keys() or not shapes.items() <= wanted.items():
                raise ValueError("other names or shapes")
            for key in file.keys() - weights.keys():
                _, index, name = key.split(".", 2)
                value = file.get_tensor(key)
                state.setdefault(int(index), {})[name] = (
                    value.item() if value.dtype == torch.int64 else value
                )
            losses: list[float] = json.loads(file.metadata()["losses"])
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
            for key, weight in weights.items():
                weight.copy_(file.get_tensor(key))
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not the state of this training: remove it") from error
    return losses


def backward(
    loss_of: Callable[[list[Item], list[Item]], Tensor],
    step: list[Item],
    settings: Mapping[str, Any],
    device: torch.device,
) -> float:
    """Accumulate the gradient of one step over its parts of `batch_size` items; return the loss."""
    loss = torch.zeros((), device=device)
    for start in range(0, len(step), settings["batch_size"]):
        with torch.autocast(device.type, torch.bfloat16, enabled=settings["bf16"]):
            value = loss_of(step[start : start + settings["batch_size"]], step)
        value.backward()
        loss += value.detach()
    return loss.item()


def schedule(step: int, warmup: int, total: int) -> float:
    """min((s+1)/warmup, (total−s)/(total−warmup)), the learning rate's factor at step s; never 0.

    step: s = 0 … total − 1. warmup: number of steps in which the factor rises.
    """
    return min(1.0, (step + 1) / max(warmup, 1), (total - step) / max(total - warmup, 1))


def make_optimizer(
    name: str, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float
) -> Any:
    """Build AdamW ("adamw") or bitsandbytes' paged AdamW with 8-bit moments; betas .9 and .999.

    On a CPU, where paging is not possible, bitsandbytes keeps the moments in memory. UserError when
    bitsandbytes is not installed.
    """
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    try:
        from bitsandbytes.optim import PagedAdamW8bit
    except ImportError:
        raise UserError(
            "optimizer paged_adamw_8bit needs bitsandbytes (pip install bitsandbytes)"
        ) from None
    return PagedAdamW8bit(parameters, lr=lr, weight_decay=weight_decay)
