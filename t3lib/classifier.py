"""Fitting the classifier head on cached features: T3's whole training (Section 2.3, appendix "TOFU Experiments").

    L(A, B) = (1/n) Σ_i ℓ(σ(B[y_i] · A x_i), s_i),   ℓ(f, s) = −s ln f − (1 − s) ln(1 − f)        (Eq. 3)

over the n answer tokens of a step. Only the rows B[y_i] of the true next tokens enter, so the |V| logits are never
formed and tokens that are no target of the run have a zero data gradient: those rows of B follow a known path under
the optimiser (`untouched_rows`) and training holds the active rows alone ("compact"), with the same result.
Departure from the authors' code: parameters and moments are float32 whatever the base's dtype.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from t3lib.errors import UserError
from t3lib.features import Features
from t3lib.head import T3Head

__all__ = ["FitSettings", "T3Head", "fit_head", "fit_heads", "plan_steps", "steps_per_epoch", "untouched_rows"]


@dataclass(frozen=True)
class FitSettings:
    """Settings of one head; the defaults are the paper's choice for Llama-3.1-8B on TOFU.

    rank: h. lr: peak learning rate η. epochs: N, passes over the forget rows, the first `warmup_epochs` of them with a
    linearly rising rate. batch_size: forget–retain pairs a step. weight_decay: λ. decay: "adamw" decouples λ from the
    gradient as the authors' code does; "l2" adds λ‖φ‖² to the loss as Eq. 3 does. init_b: "kaiming" or "zero" start of
    B. prior, gamma, w: see `T3Head`; gamma by default from the rows. epoch: "redrawn" draws the retain partners anew
    each epoch from all retain rows; "fixed" draws them once (the paper's "preprocessed"). seed: of the initial
    weights, of the order and of the draws.
    """

    rank: int = 20
    lr: float = 5e-4
    epochs: int = 100
    warmup_epochs: float = 25
    batch_size: int = 32
    weight_decay: float = 1e-3
    decay: str = "adamw"
    init_b: str = "kaiming"
    prior: str = "balanced"
    epoch: str = "redrawn"
    gamma: float | None = None
    w: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("rank", 1), ("epochs", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise UserError(f"{name} must be a whole number of at least {low}, not {value!r}")
        if not 0 < self.lr < math.inf:
            raise UserError(f"lr must be a number above 0, not {self.lr!r}")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"weight_decay must be a number of at least 0, not {self.weight_decay!r}")
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise UserError(f"warmup_epochs {self.warmup_epochs} must lie between 0 and epochs ({self.epochs})")
        for name, allowed in (("decay", ("adamw", "l2")), ("epoch", ("redrawn", "fixed"))):
            if getattr(self, name) not in allowed:
                raise UserError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")


def fit_head(
    features: Features, *, vocab_size: int, device: str | None = None, progress: bool = True, **settings: Any
) -> T3Head:
    """Fit one head (A (h, d), B (V, h)) on features; keyword settings as in `FitSettings`.

    Deterministic for given features, settings, machine and number of threads. UserError for features of one kind only,
    a target outside the vocabulary, features that are not finite, or a setting that is out of range.
    """
    return fit_heads(features, [settings], vocab_size=vocab_size, device=device, progress=progress)[0]


def fit_heads(
    features: Features,
    settings_list: Sequence[Mapping[str, Any]],
    *,
    vocab_size: int,
    device: str | None = None,
    progress: bool = True,
) -> list[T3Head]:
    """Fit several heads; those that see the same rows in the same order (equal seed, epochs, batch_size, epoch) share
    every read of the features, as one problem of rank Σ h. Each comes out as `fit_head` alone gives it, to rounding.
    """
    wanted = [_settings(values) for values in settings_list]
    _check(features, vocab_size)
    place = torch.device(device or features.device)
    together: dict[tuple[Any, ...], list[int]] = {}
    for index, own in enumerate(wanted):
        together.setdefault((own.seed, own.epochs, own.batch_size, own.epoch), []).append(index)
    heads: list[T3Head | None] = [None] * len(wanted)
    total = sum(wanted[group[0]].epochs for group in together.values())
    with tqdm(total=total, unit="epoch", desc="heads", disable=None if progress else True) as bar:
        for group in together.values():
            for index, head in zip(group, _fit_together(features, [wanted[i] for i in group], vocab_size, place, bar)):
                heads[index] = head
    return [head for head in heads if head is not None]


def _settings(values: Mapping[str, Any]) -> FitSettings:
    unknown = set(values) - {field.name for field in fields(FitSettings)}
    if unknown:
        raise UserError(f"fit_head has no setting {sorted(unknown)[0]!r}")
    return FitSettings(**values)


def _check(features: Features, vocab_size: int) -> None:
    kinds = set(features.s[features.row].unique().tolist())
    if kinds != {0, 1}:
        raise UserError("a classifier needs answer tokens of both forget and retain rows")
    if (features.row[1:] < features.row[:-1]).any():
        raise UserError("features: row must ascend, so that the tokens of a row are neighbours")
    top = int(features.y.max())
    if top >= vocab_size:
        raise UserError(f"features have the target token {top}, outside a vocabulary of {vocab_size}")


def steps_per_epoch(n_forget: int, batch_size: int) -> int:
    """⌈n_forget / batch_size⌉: 7 on TOFU's 5% split, 13 on the 10% split, at 32 pairs a step."""
    return -(-n_forget // batch_size)


def plan_steps(s: Tensor, *, epochs: int, batch_size: int, epoch: str, seed: int) -> list[np.ndarray]:
    """The rows of every step: each epoch pairs every forget row, in random order, with a retain row drawn uniformly
    with replacement. A step's array holds its forget rows, then their retain partners.
    """
    forget, retain = (np.flatnonzero(s.numpy() == kind) for kind in (0, 1))
    rng = np.random.default_rng([seed, 1])  # a stream of its own: the head's initial weights use the seed itself
    partners = rng.choice(retain, size=len(forget))
    steps = []
    for _ in range(epochs):
        order = rng.permutation(len(forget))
        if epoch == "redrawn":
            partners = rng.choice(retain, size=len(forget))
        for start in range(0, len(forget), batch_size):
            pick = order[start : start + batch_size]
            steps.append(np.concatenate([forget[pick], partners[pick]]))
    return steps


def learning_rates(lr: float, warmup: int, total: int) -> list[float]:
    """η_t = η min(t/warmup, (total − t)/(total − warmup)), t = 0 … total − 1: the authors' linear schedule (HF's)."""
    rise = [lr * t / warmup for t in range(warmup)]
    return rise + [lr * (total - t) / (total - warmup) for t in range(warmup, total)]


def untouched_rows(start: Tensor, rates: Sequence[float], settings: FitSettings) -> Tensor:
    """Rows of B that are no target of the run, after all steps, from their start (any shape).

    AdamW: B_0 Π_t (1 − η_t λ), in closed form. l2: Adam on the gradient 2λB alone has none, so it is run, in blocks
    that stay in the processor's cache.
    """
    if settings.init_b == "zero" or settings.weight_decay == 0:
        return start.clone()
    if settings.decay == "adamw":
        return start * math.prod(1 - rate * settings.weight_decay for rate in rates)
    out = start.clone()
    for block in out.view(-1).split(1 << 15):
        optimiser = _optimiser([block], settings)
        block.grad = torch.zeros_like(block)
        for rate in rates:
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
    return out


def _optimiser(parameters: Sequence[Tensor], settings: FitSettings) -> torch.optim.Optimizer:
    """Fused AdamW, or Adam with 2λφ (the gradient of λ‖φ‖²) added to the gradient."""
    if settings.decay == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.Adam(parameters, lr=0.0, weight_decay=2 * settings.weight_decay, fused=True)


def token_gradients(
    x: Tensor, y: Tensor, s: Tensor, weight: Tensor, A: Tensor, B: Sequence[Tensor], dA: Tensor, dB: Sequence[Tensor]
) -> None:
    """Gradients of Σ_i w_i ℓ(σ(B[y_i] · A x_i), s_i), Eq. 3's data term, of heads stacked in A; written into dA, dB.

    x (n, d), y (n,) rows of B, s (n,) in {0, 1}, w (n,); A (Σh, d); one B (rows, h) a head. With δ_i = w_i (f_i − s_i):
    dB[y_i] += δ_i A x_i and dA = Σ_i δ_i B[y_i] x_iᵀ.
    """
    z = x @ A.T  # (n, Σh)
    dz = torch.empty_like(z)
    for own_z, own_dz, own, grad in zip(*(t.split([b.shape[1] for b in B], 1) for t in (z, dz)), B, dB):
        rows = own[y]
        delta = (torch.sigmoid((own_z * rows).sum(1)) - s).mul_(weight).unsqueeze(1)
        torch.mul(rows, delta, out=own_dz)
        grad.zero_().index_add_(0, y, own_z * delta)
    torch.mm(dz.T, x, out=dA)


def _fit_together(
    features: Features, settings: Sequence[FitSettings], vocab_size: int, device: torch.device, bar: Any
) -> list[T3Head]:
    first = settings[0]
    steps = plan_steps(features.s, epochs=first.epochs, batch_size=first.batch_size, epoch=first.epoch, seed=first.seed)
    per_epoch = len(steps) // first.epochs
    rates = [learning_rates(own.lr, round(own.warmup_epochs * per_epoch), len(steps)) for own in settings]
    starts = features.starts
    drawn = np.unique(np.concatenate(steps))
    tokens = torch.cat([torch.arange(int(starts[row]), int(starts[row + 1])) for row in drawn])
    active = features.y[tokens].unique()
    local = torch.searchsorted(active, features.y)  # (N,) only those of drawn rows are meaningful

    heads = [_start(features, own, vocab_size) for own in settings]
    A = torch.cat([head.A.detach() for head in heads]).to(device)
    B = [head.B.detach()[active].to(device) for head in heads]
    dA, dB = torch.zeros_like(A), [torch.zeros_like(b) for b in B]
    ranks = [own.rank for own in settings]
    optimisers = []
    for part, part_grad, b, b_grad, own in zip(A.split(ranks), dA.split(ranks), B, dB, settings):
        part.grad, b.grad = part_grad, b_grad
        optimisers.append(_optimiser([part, b], own))

    x, y, s = features.x.to(device), local.to(device), features.s[features.row].float().to(device)
    for number, rows in enumerate(steps):
        index = _tokens(rows, starts).to(device)
        weight = torch.full((len(index),), 1 / len(index), device=device)
        token_gradients(x.index_select(0, index).float(), y[index], s[index], weight, A, B, dA, dB)
        for optimiser, rate in zip(optimisers, rates):
            optimiser.param_groups[0]["lr"] = rate[number]
            optimiser.step()
        if (number + 1) % per_epoch == 0:
            bar.update()

    for head, own, rate, part, b in zip(heads, settings, rates, A.split(ranks), B):
        whole = untouched_rows(head.B.detach(), rate, own)
        whole[active] = b.cpu()
        head.A.data, head.B.data = part.cpu().clone(), whole
        if not (torch.isfinite(part).all() and torch.isfinite(b).all()):
            raise UserError(f"the head diverged at lr {own.lr:g}, or the features are not finite")
    return [head.eval() for head in heads]


def _start(features: Features, own: FitSettings, vocab_size: int) -> T3Head:
    gamma = own.gamma if own.gamma is not None else features.gamma
    info = {"seed": own.seed, "hyperparameters": asdict(own)}
    return T3Head(
        features.x.shape[1], vocab_size, own.rank,
        init_b=own.init_b, prior=own.prior, gamma=gamma, w=own.w, seed=own.seed, info=info,
    )  # fmt: skip


def _tokens(rows: np.ndarray, starts: Tensor) -> Tensor:
    """Numbers of all tokens of some rows, in the order of the rows."""
    first = starts[torch.from_numpy(rows)]
    count = starts[torch.from_numpy(rows) + 1] - first
    shift = first - count.cumsum(0) + count
    return torch.arange(int(count.sum())) + shift.repeat_interleave(count)
