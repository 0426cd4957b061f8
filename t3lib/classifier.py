"""Fitting the classifier head on cached features: T3's whole training (Section 2.3, Appendix F.3).

    L(A, B) = (1/n) Σ_i ℓ(σ(B[y_i] · A x_i), s_i),   ℓ(f, s) = −s ln f − (1 − s) ln(1 − f)        (Eq. 3)

over the n answer tokens of a step. Only the rows B[y_i] of the true next tokens enter, so the |V| logits are never
formed and tokens that are no target of the run have a zero data gradient: those rows of B follow a known path under
the optimiser (`untouched_rows`) and training holds the active rows alone ("compact"), with the same result. Heads that
see the same tokens are one `Problem`: their A are stacked and share each product with x. Gradients are by hand.
Departure from the published code: parameters and moments are float32 whatever the base's dtype.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from t3lib.errors import UserError
from t3lib.features import Features, tokens_of
from t3lib.head import T3Head
from t3lib.progress import progress_bar
from t3lib.settings import FitSettings, fit_settings

LANES = 16  # float32 numbers of a cache line: fused Adam treats what is left over otherwise, with other rounding
WIDE = 16  # rows from which on x Aᵀ and (A xᵀ)ᵀ are the same bits (measured); below, MKL has kernels of its own


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

    On a CPU, memory-mapped features stay on disk, but for the one epoch of epoch="fixed"; a GPU holds all of them.
    """
    wanted = [fit_settings(values) for values in settings_list]
    _check(features, vocab_size)
    place = torch.device(device or features.device)
    together: dict[tuple[Any, ...], list[int]] = {}
    for index, settings in enumerate(wanted):
        plan = (settings.seed, settings.epochs, settings.batch_size, settings.epoch)
        together.setdefault(plan, []).append(index)
    heads: dict[int, T3Head] = {}
    total = sum(wanted[group[0]].epochs for group in together.values())
    with progress_bar(total=total, unit="epoch", desc="heads", show=progress) as bar:
        for group in together.values():
            problem = lay_out(features, [wanted[i] for i in group], vocab_size, place)
            for number, tokens in enumerate(problem.steps):
                step(problem, tokens, [rates[number] for rates in problem.rates])
                bar.update(1 / problem.per_epoch)
            heads |= zip(group, finished(problem))
    return [heads[index] for index in range(len(wanted))]


def _check(features: Features, vocab_size: int) -> None:
    kinds = set(features.s[features.row].unique().tolist())
    if kinds != {0, 1}:
        raise UserError("a classifier needs answer tokens of both forget and retain rows")
    if (features.row[1:] < features.row[:-1]).any():
        raise UserError("features: row must ascend, so that the tokens of a row are neighbours")
    top = int(features.y.max())
    if top >= vocab_size:
        raise UserError(f"features have the target token {top}, outside a vocabulary of {vocab_size}")


# the plan -------------------------------------------------------------------------------------------------------------


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
    """η_t = η min(t/warmup, (total − t)/(total − warmup)), t = 0 … total − 1: the published code's schedule (HF's)."""
    rise = [lr * t / warmup for t in range(warmup)]
    return rise + [lr * (total - t) / (total - warmup) for t in range(warmup, total)]


# the steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Heads fitted together: their tokens and parameters on one device, and the plan of their steps.

    heads as they start, with their settings. x (N, d), y (N,) numbers of rows of B, s (N,) float 1 retain / 0 forget;
    buffer: room for the x of a step in float32, empty where steps are read in place. A (Σh, d) and B, one (rows, h) a
    head, are changed by `step`; dA, dB are their gradients, which the optimisers (one a head) read. B holds the active
    tokens (those that are a target in any step, ascending), then rows of zeros that no token has, which keep every
    other row out of the optimiser's left-overs. steps: numbers of the tokens of every step, epoch after epoch,
    `per_epoch` of them in each; rates: learning rates, [head][step].
    """

    heads: list[T3Head]
    settings: Sequence[FitSettings]
    x: Tensor
    y: Tensor
    s: Tensor
    buffer: Tensor
    A: Tensor
    B: list[Tensor]
    dA: Tensor
    dB: list[Tensor]
    optimisers: list[torch.optim.Optimizer]
    active: Tensor
    steps: list[Tensor]
    rates: list[list[float]]
    per_epoch: int


def lay_out(features: Features, settings: Sequence[FitSettings], vocab_size: int, device: torch.device) -> Problem:
    """The problem of heads that see the same rows in the same order, before its first step."""
    first = settings[0]
    plan = plan_steps(features.s, epochs=first.epochs, batch_size=first.batch_size, epoch=first.epoch, seed=first.seed)
    per_epoch, fixed = len(plan) // first.epochs, first.epoch == "fixed"
    starts = features.starts
    steps = [tokens_of(rows, starts) for rows in (plan[:per_epoch] if fixed else plan)]
    seen = torch.zeros(len(features.y), dtype=torch.bool)
    for tokens in steps:
        seen[tokens] = True
    active = features.y[seen].unique()
    x, y, s = features.x, torch.searchsorted(active, features.y), features.s[features.row].float()
    if fixed:  # one epoch in float32, in the order in which it is read
        order = torch.cat(steps)
        x, y, s = x[order].float(), y[order], s[order]
        steps = list(torch.arange(len(order)).split([len(tokens) for tokens in steps])) * first.epochs
    # A step that would not begin at a cache line is copied: a matrix product may round otherwise there.
    room = 0 if fixed and x.shape[1] % LANES == 0 else max(len(tokens) for tokens in steps)

    heads = [_start(features, one, vocab_size) for one in settings]
    A = torch.cat([head.A.detach() for head in heads]).to(device)
    B = [pad(b, (0, 0, 0, -len(b) % LANES)) for b in (head.B.detach()[active].to(device) for head in heads)]
    dA, dB = torch.zeros_like(A), [torch.zeros_like(b) for b in B]
    ranks = [one.rank for one in settings]
    optimisers = []
    for a, da, b, db, one in zip(A.split(ranks), dA.split(ranks), B, dB, settings):
        a.grad, b.grad = da, db
        optimisers.append(optimiser([a, b], one.decay, one.weight_decay))
    return Problem(
        heads, settings, x.to(device), y.to(device), s.to(device),
        buffer=torch.empty((room, x.shape[1]), device=device),
        A=A, B=B, dA=dA, dB=dB, optimisers=optimisers, active=active, steps=steps, per_epoch=per_epoch,
        rates=[learning_rates(one.lr, round(one.warmup_epochs * per_epoch), len(steps)) for one in settings],
    )  # fmt: skip


def _start(features: Features, settings: FitSettings, vocab_size: int) -> T3Head:
    gamma = settings.gamma if settings.gamma is not None else features.gamma
    info = {"seed": settings.seed, "hyperparameters": asdict(settings)}
    chosen = {name: getattr(settings, name) for name in ("rank", "init_b", "prior", "w", "seed")}
    return T3Head(features.x.shape[1], vocab_size, **chosen, gamma=gamma, info=info)


def optimiser(parameters: Sequence[Tensor], decay: str, weight: float) -> torch.optim.Optimizer:
    """Fused AdamW with decoupled decay λ, or ("l2") Adam with 2λφ, the gradient of Eq. 3's λ‖φ‖², in the gradient."""
    if decay == "adamw":
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=weight, fused=True)
    return torch.optim.Adam(parameters, lr=0.0, weight_decay=2 * weight, fused=True)


def step(problem: Problem, tokens: Tensor, rates: Sequence[float]) -> None:
    """One step over the tokens (n,) with these learning rates, one a head."""
    n, first = len(tokens), int(tokens[0])
    tokens, x = tokens.to(problem.x.device), problem.buffer[:n]
    if not len(x):
        x = problem.x[first : first + n]
    elif x.dtype == problem.x.dtype:
        torch.index_select(problem.x, 0, tokens, out=x)
    else:
        x.copy_(problem.x[tokens])
    weight = torch.full((n,), 1 / n, device=x.device)
    token_gradients(x, problem.y[tokens], problem.s[tokens], weight, problem.A, problem.B, problem.dA, problem.dB)
    for one, rate in zip(problem.optimisers, rates):
        one.param_groups[0]["lr"] = rate
        one.step()


def token_gradients(
    x: Tensor, y: Tensor, s: Tensor, weight: Tensor, A: Tensor, B: Sequence[Tensor], dA: Tensor, dB: Sequence[Tensor]
) -> None:
    """Gradients of Σ_i w_i ℓ(σ(B[y_i] · A x_i), s_i), Eq. 3's data term, of heads stacked in A; written into dA, dB.

    x (n, d), y (n,) rows of B, s (n,) in {0, 1}, w (n,); A (Σh, d); one B (rows, h) a head. With δ_i = w_i (f_i − s_i):
    dB[y_i] += δ_i A x_i and dA = Σ_i δ_i B[y_i] x_iᵀ.
    """
    if x.device.type == "cpu" and min(len(x), len(A)) >= WIDE:  # the same sums, a fifth faster in MKL
        z = (A @ x.T).T.contiguous()
    else:
        z = x @ A.T  # (n, Σh)
    dz = torch.empty_like(z)
    for z_head, dz_head, b, db in zip(*(t.split([b.shape[1] for b in B], 1) for t in (z, dz)), B, dB):
        rows = b[y]
        delta = (torch.sigmoid((z_head * rows).sum(1)) - s).mul_(weight).unsqueeze(1)
        torch.mul(rows, delta, out=dz_head)
        db.zero_().index_add_(0, y, z_head * delta)
    torch.mm(dz.T, x, out=dA)


def finished(problem: Problem) -> list[T3Head]:
    """The problem's heads after its last step, on the CPU; UserError for one that is not finite."""
    ranks = [settings.rank for settings in problem.settings]
    for head, settings, rates, a, b in zip(
        problem.heads, problem.settings, problem.rates, problem.A.split(ranks), problem.B
    ):
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise UserError(f"the head diverged at lr {settings.lr:g}, or the features are not finite")
        whole = untouched_rows(head.B.detach(), rates, settings.decay, settings.weight_decay)
        whole[problem.active] = b[: len(problem.active)].cpu()
        head.A.data, head.B.data = a.cpu().clone(), whole
    return [head.eval() for head in problem.heads]


def untouched_rows(start: Tensor, rates: Sequence[float], decay: str, weight: float) -> Tensor:
    """Rows of B that are no target of the run, after all steps, from their start (any shape).

    AdamW: B_0 Π_t (1 − η_t λ), in closed form. l2: Adam on the gradient 2λB alone has none, so it is run, in blocks
    that stay in the processor's cache.
    """
    if weight == 0 or not start.any():
        return start.clone()
    if decay == "adamw":
        return start * math.prod(1 - rate * weight for rate in rates)
    out = start.clone()
    for block in out.view(-1).split(1 << 15):
        adam = optimiser([block], decay, weight)
        block.grad = torch.zeros_like(block)
        for rate in rates:
            adam.param_groups[0]["lr"] = rate
            adam.step()
    return out
