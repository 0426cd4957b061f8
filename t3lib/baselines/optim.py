"""One optimisation loop: AdamW, exact step accounting, linear schedule, clipping, checkpoints, one or many processes.

A step is a list of examples: batch_size × accumulation of them, the last of an epoch whatever is left. Each part's loss
is its share of the step's, so a batch of 8, 8 accumulated batches of 1 and 2 processes of 4 give the same gradient.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from t3lib.errors import UserError
from t3lib.files import atomic_write
from t3lib.progress import progress_bar

Item = TypeVar("Item")
SEEDS = 100_003  # seeds of consecutive runs are this far apart, so that no two epochs of any two seeds share a stream


class Diverged(UserError):
    """A loss or gradient became NaN or infinite. The model keeps its weights from before that step."""


@dataclass(frozen=True)
class Settings:
    """How to optimise; defaults as in the paper's Appendix F.3.1 where it says.

    lr: peak learning rate, reached after `warmup_epochs`, then decayed linearly. batch_size: examples of one forward
    pass; batch_size × accumulation make a step, however many processes share it. optimizer: adamw | paged_adamw_8bit
    (bitsandbytes, CUDA only). bf16: forward passes under bfloat16 autocast; weights keep their own dtype.
    """

    lr: float
    epochs: int
    warmup_epochs: float = 1.0
    weight_decay: float = 0.01
    batch_size: int = 32
    accumulation: int = 1
    max_grad_norm: float = 1.0
    optimizer: str = "adamw"
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulation"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 1):
                raise UserError(f"{name} must be a whole number of at least 1, not {getattr(self, name)!r}")
        if not self.lr > 0:
            raise UserError(f"lr must be positive, not {self.lr}")
        if not self.weight_decay >= 0:
            raise UserError(f"weight_decay must not be negative: {self.weight_decay}")
        if not self.max_grad_norm > 0:
            raise UserError(f"max_grad_norm must be positive, not {self.max_grad_norm}")
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise UserError(f"warmup_epochs {self.warmup_epochs} must lie between 0 and epochs ({self.epochs})")

    @property
    def step_size(self) -> int:
        """Examples of one optimisation step."""
        return self.batch_size * self.accumulation


def make_optimizer(name: str, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float) -> Any:
    """AdamW (fused) or bitsandbytes' paged 8-bit AdamW; betas .9 and .999. UserError when it cannot run here."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    if name != "paged_adamw_8bit":
        raise UserError(f"unknown optimizer {name!r}: choose adamw or paged_adamw_8bit")
    if parameters[0].device.type != "cuda":
        raise UserError("optimizer paged_adamw_8bit needs a CUDA GPU; without one use optimizer: adamw")
    from bitsandbytes.optim import PagedAdamW8bit

    return PagedAdamW8bit(parameters, lr=lr, weight_decay=weight_decay)


def schedule(step: int, warmup: int, total: int) -> float:
    """Factor of the learning rate, min((s+1)/warmup, (total−s)/(total−warmup)) for s = 0 … total−1; never 0."""
    return min(1.0, (step + 1) / max(warmup, 1), (total - step) / max(total - warmup, 1))


def optimise(
    model: nn.Module,
    plan: Callable[[int], list[list[Item]]],
    loss_of: Callable[[list[Item], list[Item]], Tensor],
    settings: Settings,
    *,
    checkpoint: Path | None = None,
    key: str = "",
    progress: str = "train",
) -> dict[str, Any]:
    """Minimise over the steps of plan(epoch), in place; loss_of(part, step) is the part's share of the step's loss.

    checkpoint: a file written after every epoch; a run with the same `key` goes on from it. Every process of a torchrun
    takes its share of each step. Returns {"steps", "epochs", "seconds", "loss": mean over steps, per epoch}. Raises
    Diverged at the first loss or gradient that is not finite, before it can reach the weights.
    """
    started = time.perf_counter()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = make_optimizer(settings.optimizer, list(parameters.values()), settings.lr, settings.weight_decay)
    per_epoch = len(plan(0))
    total, warmup = settings.epochs * per_epoch, round(settings.warmup_epochs * per_epoch)
    losses = _resume(checkpoint, key, parameters, optimizer)
    model.train()
    bar = progress_bar(total=total, initial=len(losses) * per_epoch, desc=progress, leave=False)
    for epoch in range(len(losses), settings.epochs):
        step_losses: list[float] = []
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed * SEEDS + epoch)  # dropout: the same after a resume
            for step in plan(epoch):
                number = epoch * per_epoch + len(step_losses)
                for group in optimizer.param_groups:
                    group["lr"] = settings.lr * schedule(number, warmup, total)
                loss = backward(loss_of, step, settings, next(iter(parameters.values())).device)
                norm = nn.utils.clip_grad_norm_(parameters.values(), settings.max_grad_norm)
                if not (torch.isfinite(full(norm)) and abs(loss) < float("inf")):
                    model.eval()
                    optimizer.zero_grad(set_to_none=True)
                    kept = f"; the last good epoch is in {checkpoint.name}" if checkpoint and epoch else ""
                    raise Diverged(f"loss {loss}, gradient norm {full(norm):.3g} at step {number + 1} of {total}{kept}")
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step_losses.append(loss)
                bar.update()
        losses.append(sum(step_losses) / per_epoch)
        bar.set_postfix(loss=f"{losses[-1]:.4f}")
        if checkpoint is not None:
            state = {name: parameter.detach() for name, parameter in parameters.items()}
            with atomic_write(checkpoint, "wb") as handle:
                torch.save({"key": key, "loss": losses, "model": state, "optimizer": optimizer.state_dict()}, handle)
    bar.close()
    model.eval()
    return {"steps": total, "epochs": settings.epochs, "seconds": time.perf_counter() - started, "loss": losses}


def backward(
    loss_of: Callable[[list[Item], list[Item]], Tensor], step: list[Item], settings: Settings, device: torch.device
) -> float:
    """Accumulate the gradient of one step's loss over its parts, and over the processes; returns the loss.

    Every process runs equally many parts, for their collective operations must meet: one without rows left repeats the
    step's first row with weight 0.
    """
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    share = step[rank::world]
    loss = torch.zeros((), device=device)
    for start in range(0, -(-len(step) // world), settings.batch_size):
        part = share[start : start + settings.batch_size]
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.bf16):
            value = loss_of(part or step[:1], step) * (1 if part else 0)
        (value * world).backward()  # FSDP averages gradients over processes; the loss is a sum over their shares
        loss += value.detach()
    if world > 1:
        distributed.all_reduce(loss)
    return loss.item()


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor that FSDP may have sharded."""
    return tensor.full_tensor() if isinstance(tensor, distributed.tensor.DTensor) else tensor


def _resume(path: Path | None, key: str, parameters: dict[str, nn.Parameter], optimizer: Any) -> list[float]:
    """Load a checkpoint with the same key into parameters and optimiser; returns the finished epochs' losses.

    A damaged file counts as none: training starts again.
    """
    if path is None or not path.is_file():
        return []
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["key"] != key:
            return []
    except (RuntimeError, EOFError, UnpicklingError, KeyError, TypeError):
        warnings.warn(f"checkpoint {path} is damaged: training starts again", stacklevel=3)
        return []
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved["model"][name])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["loss"]
