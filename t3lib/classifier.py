"""Fitting the classifier head on cached features: T3's whole training (Section 2.3, Appendix F.3).

    L(A, B) = (1/n) Σ_i ℓ(σ(B[y_i] · A x_i), s_i),   ℓ(f, s) = −s ln f − (1 − s) ln(1 − f)        (Eq. 3)

over the n answer tokens of a step. Only the rows B[y_i] of the true next tokens enter, so the |V| logits are never
formed and tokens that are no target of the run have a zero data gradient: those rows of B follow a known path under
the optimiser (`fit_steps.untouched_rows`) and training holds the active rows alone ("compact"), with the same result.
Departure from the authors' code: parameters and moments are float32 whatever the base's dtype.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3lib.errors import UserError
from t3lib.features import Features
from t3lib.fit_steps import Problem, run_graph, run_steps, untouched_rows
from t3lib.head import T3Head
from t3lib.progress import progress_bar
from t3lib.settings import FitSettings

__all__ = [
    "FitSettings",
    "T3Head",
    "fit_head",
    "fit_heads",
    "plan_steps",
    "prepare",
    "steps_per_epoch",
]


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
    with progress_bar(total=total, unit="epoch", desc="heads", show=progress) as bar:
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
    with replacement. A step's array holds its forget rows, then their retain partners. "fixed" repeats the first epoch.
    """
    forget, retain = (np.flatnonzero(s.numpy() == kind) for kind in (0, 1))
    rng = np.random.default_rng([seed, 1])  # a stream of its own: the head's initial weights use the seed itself
    steps: list[np.ndarray] = []
    for number in range(epochs):
        if number and epoch == "fixed":
            return steps * epochs
        order, partners = rng.permutation(len(forget)), rng.choice(retain, size=len(forget))
        for start in range(0, len(forget), batch_size):
            pick = order[start : start + batch_size]
            steps.append(np.concatenate([forget[pick], partners[pick]]))
    return steps


def learning_rates(lr: float, warmup: int, total: int) -> list[float]:
    """η_t = η min(t/warmup, (total − t)/(total − warmup)), t = 0 … total − 1: the authors' linear schedule (HF's)."""
    rise = [lr * t / warmup for t in range(warmup)]
    return rise + [lr * (total - t) / (total - warmup) for t in range(warmup, total)]


@dataclass(frozen=True)
class Prepared:
    """Heads about to be fitted together: where they start, their problem on the active rows of B, and its steps.

    indices: the tokens of every step, epoch after epoch; rates: learning rates, [head][step]; active (rows,): the
    tokens of the vocabulary that are a target in any step, in the order of the problem's rows of B.
    """

    heads: list[T3Head]
    problem: Problem
    indices: list[Tensor]
    rates: list[list[float]]
    active: Tensor
    per_epoch: int


def prepare(features: Features, settings: Sequence[FitSettings], vocab_size: int, device: torch.device) -> Prepared:
    """What `fit_heads` lays out before the first step, for heads that see the same rows in the same order."""
    first = settings[0]
    steps = plan_steps(features.s, epochs=first.epochs, batch_size=first.batch_size, epoch=first.epoch, seed=first.seed)
    per_epoch = len(steps) // first.epochs
    rates = [learning_rates(own.lr, round(own.warmup_epochs * per_epoch), len(steps)) for own in settings]
    starts = features.starts
    indices = [tokens_of(rows, starts) for rows in (steps[:per_epoch] if first.epoch == "fixed" else steps)]
    seen = torch.zeros(len(features.y), dtype=torch.bool)
    for index in indices:
        seen[index] = True
    active = features.y[seen].unique()
    local = torch.searchsorted(active, features.y)  # meaningful for the tokens seen

    heads = [_start(features, own, vocab_size) for own in settings]
    x, y, s = features.x, local, features.s[features.row].float()
    if first.epoch == "fixed":  # lay the epoch out in the order it is read
        order = torch.cat(indices)
        x, y, s = x[order].float(), y[order], s[order]
        bounds = [0, *np.cumsum([len(index) for index in indices]).tolist()]
        indices = [torch.arange(a, b) for a, b in zip(bounds, bounds[1:])] * first.epochs
    problem = Problem.of(
        x.to(device), y.to(device), s.to(device),
        [head.A.detach().to(device) for head in heads], [head.B.detach()[active].to(device) for head in heads],
        [(own.decay, own.weight_decay) for own in settings],
    )  # fmt: skip
    return Prepared(heads, problem, indices, rates, active, per_epoch)


def _fit_together(
    features: Features, settings: Sequence[FitSettings], vocab_size: int, device: torch.device, bar: Any
) -> list[T3Head]:
    made = prepare(features, settings, vocab_size, device)
    run = run_graph if device.type == "cuda" else run_steps
    run(made.problem, made.indices, made.rates, lambda: bar.update(1 / made.per_epoch))

    for head, own, rate, a, b in zip(
        made.heads, settings, made.rates, made.problem.A.split([own.rank for own in settings]), made.problem.B
    ):
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise UserError(f"the head diverged at lr {own.lr:g}, or the features are not finite")
        whole = untouched_rows(head.B.detach(), rate, own.decay, own.weight_decay)
        whole[made.active] = b[: len(made.active)].cpu()
        head.A.data, head.B.data = a.cpu().clone(), whole
    return [head.eval() for head in made.heads]


def _start(features: Features, own: FitSettings, vocab_size: int) -> T3Head:
    gamma = own.gamma if own.gamma is not None else features.gamma
    info = {"seed": own.seed, "hyperparameters": asdict(own)}
    return T3Head(
        features.x.shape[1], vocab_size, own.rank,
        init_b=own.init_b, prior=own.prior, gamma=gamma, w=own.w, seed=own.seed, info=info,
    )  # fmt: skip


def tokens_of(rows: np.ndarray, starts: Tensor) -> Tensor:
    """Numbers of all tokens of some rows, in the order of the rows."""
    first = starts[torch.from_numpy(rows)]
    count = starts[torch.from_numpy(rows) + 1] - first
    shift = first - count.cumsum(0) + count
    return torch.arange(int(count.sum())) + shift.repeat_interleave(count)
