"""The training loop of fine-tuning and of all ten baselines: AdamW, linear schedule, clipping,
exact step accounting.

A step is a list of examples: batch_size × accumulation of them, the last of an epoch whatever is
left. Each part's loss is its share of the step's, so a batch of 8 and 8 accumulated batches of 1
give the same gradient.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from t3lib.baselines.forward import answer_counts, answer_logp, batch_of
from t3lib.baselines.losses import nll
from t3lib.core.errors import UserError
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Example
from t3lib.core.settings import LOOP, check

Item = TypeVar("Item")
# seeds of consecutive runs are this far apart, so that no two epochs of any two seeds share a
# stream
SEEDS = 100_003


class Diverged(UserError):
    """A loss or gradient became NaN or infinite. The model keeps its weights from before that
    step.
    """


def finetune(
    model: nn.Module,
    examples: Sequence[Example],
    *,
    pad_id: int,
    seed: int = 0,
    attention_mask: str = "lengths",
    progress: str = "finetune",
    **settings: Any,
) -> dict[str, Any]:
    """Minimise the mean −ln p of the answers' tokens over `examples`, in place; returns the log of
    `optimise`.

    settings: those of `settings.LOOP` that differ from its defaults (lr, epochs, …). Batches hold
    rows of similar length, redrawn every epoch from `seed`. Raises UserError (no examples, bad
    settings) and Diverged.
    """
    if not examples:
        raise UserError("there are no examples to train on")
    for name, value in settings.items():
        check(name, value, like=LOOP[name])
    chosen = LOOP | settings
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


def bucketed(lengths: Sequence[int], size: int, seed: int, window: int = 16) -> list[list[int]]:
    """Batches of `size` indices of similar lengths in random order: shuffled, sorted within
    windows, redealt.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), size * window):
        part = sorted(order[start : start + size * window], key=lambda i: lengths[i])
        batches += [part[i : i + size] for i in range(0, len(part), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def optimise(
    model: nn.Module,
    plan: Callable[[int], list[list[Item]]],
    loss_of: Callable[[list[Item], list[Item]], Tensor],
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: str = "train",
) -> dict[str, Any]:
    """Minimise over the steps of plan(epoch), in place; loss_of(part, step) is the part's share of
    the step's loss.

    settings: all of `settings.LOOP`. lr is the peak of a rate that rises during `warmup_epochs` and
    then falls to 0; bf16 runs the forward passes under bfloat16 autocast, whatever the weights.
    Returns {"steps", "epochs", "seconds", "loss": mean over steps, per epoch}. Raises Diverged at
    the first loss or gradient that is not finite, before it can reach the weights.
    """
    started = time.perf_counter()
    epochs, warmup_epochs = settings["epochs"], settings["warmup_epochs"]
    if not warmup_epochs <= epochs:
        raise UserError(f"warmup_epochs {warmup_epochs} must lie between 0 and epochs ({epochs})")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(
        settings["optimizer"], parameters, settings["lr"], settings["weight_decay"]
    )
    per_epoch = len(plan(0))
    total, warmup = epochs * per_epoch, round(warmup_epochs * per_epoch)
    losses: list[float] = []
    model.train()
    with progress_bar(total=total, desc=progress, leave=False) as bar, torch.random.fork_rng():
        for epoch in range(epochs):
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
    model.eval()
    return {
        "steps": total,
        "epochs": epochs,
        "seconds": time.perf_counter() - started,
        "loss": losses,
    }


def backward(
    loss_of: Callable[[list[Item], list[Item]], Tensor],
    step: list[Item],
    settings: Mapping[str, Any],
    device: torch.device,
) -> float:
    """Accumulate the gradient of one step's loss over its parts of `batch_size` examples; returns
    the loss.
    """
    loss = torch.zeros((), device=device)
    for start in range(0, len(step), settings["batch_size"]):
        with torch.autocast(device.type, torch.bfloat16, enabled=settings["bf16"]):
            value = loss_of(step[start : start + settings["batch_size"]], step)
        value.backward()
        loss += value.detach()
    return loss.item()


def schedule(step: int, warmup: int, total: int) -> float:
    """Factor of the learning rate, min((s+1)/warmup, (total−s)/(total−warmup)) for s = 0 … total−1;
    never 0.
    """
    return min(1.0, (step + 1) / max(warmup, 1), (total - step) / max(total - warmup, 1))


def make_optimizer(
    name: str, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float
) -> Any:
    """AdamW, or bitsandbytes' paged one with 8-bit moments; betas .9 and .999.

    On a CPU, where nothing can be paged out, bitsandbytes keeps the moments in memory. UserError
    where bitsandbytes is missing.
    """
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    try:
        from bitsandbytes.optim import PagedAdamW8bit
    except ImportError:
        raise UserError(
            "optimizer paged_adamw_8bit needs bitsandbytes (pip install 't3lib[quant]')"
        ) from None
    return PagedAdamW8bit(parameters, lr=lr, weight_decay=weight_decay)
