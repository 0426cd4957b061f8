"""Fit the classifier head on features: all of T3's training (Section 2.3, Appendix F.3).

    L(A, B) = (1/n) Σ_i ℓ(σ(B[y_i] · A x_i), s_i),   ℓ(f, s) = −s ln f − (1 − s) ln(1 − f)   (Eq. 3)

The sum is over the n answer tokens of a step: y_i is such a token, x_i the mean hidden state of all
tokens before it, and s_i is 1 for a retain row and 0 for a forget row. In place of 0, tokens of
forget rows can have soft labels between 0 and 1 (ours, see `t3lib.classifier.guide`). Weight decay
is the optimiser's, in place of Eq. 3's λ‖φ‖² with φ = (A, B). Only the rows B[y_i] of the true next
tokens enter, so the |V| logits are never computed. Rows of B whose token is no target in any step
have no gradient from the data: only weight decay moves them, and `untouched_rows` computes that
directly.
The training loop therefore holds only the other rows, with the same result. Unlike the published
code, parameters and moments are float32 whatever the base's dtype.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from t3lib.classifier.features import Features, tokens_of
from t3lib.classifier.head import T3Head
from t3lib.core.errors import Diverged, UserError
from t3lib.core.progress import progress_bar
from t3lib.core.settings import FitSettings, fit_settings

Labels = Tensor | NDArray[np.floating]
PART = 2**14  # rows of the features that are searched for NaN at once


def fit_head(
    features: Features,
    *,
    vocab_size: int,
    device: str | None = None,
    labels: Labels | None = None,
    **settings: Any,
) -> T3Head:
    """Fit one head (A (h, d), B (V, h)) on features; return it on the CPU.

    vocab_size: V of the base. device: where to fit, by default the features' `device`.
    labels: (n,) soft labels from 0 to 1 of the n answer tokens of the forget rows, in their order
    in `features` (see `t3lib.classifier.guide.soft_labels`). None is the paper's label, 0 for all.
    settings: as in `FitSettings`.

    Deterministic for given features, settings, machine and number of threads. UserError for
    features of forget rows or retain rows alone, a target outside the vocabulary, labels of another
    shape or range, or a setting that is out of range. Diverged if the head has weights that are not
    finite at the end; UserError instead if features that are not finite explain it.
    """
    [head] = fit_heads(features, [settings], vocab_size=vocab_size, device=device, labels=labels)
    return head


def fit_heads(
    features: Features,
    settings_list: Sequence[Mapping[str, Any]],
    *,
    vocab_size: int,
    device: str | None = None,
    labels: Labels | None = None,
) -> list[T3Head]:
    """Fit several heads at once; each equals the head that `fit_head` gives, up to rounding.

    settings_list: one mapping of settings for each head, see `FitSettings`.

    Heads with equal seed, epochs, batch_size and epoch see the same rows in the same order and
    share every read of the features. All features are on the device of the fit. Other arguments
    and errors as of `fit_head`: one head that diverges ends all.
    """
    wanted = [fit_settings(values) for values in settings_list]
    _check(features, vocab_size)
    targets = _targets(features, labels)
    place = torch.device(device or features.device)

    # Heads that draw the same rows are fitted together.
    together: dict[tuple[Any, ...], list[int]] = {}
    for index, one in enumerate(wanted):
        together.setdefault((one.seed, one.epochs, one.batch_size, one.epoch), []).append(index)

    heads: dict[int, T3Head] = {}
    total = sum(wanted[group[0]].epochs for group in together.values())
    with progress_bar(total=total, unit="epoch", desc="heads") as bar:
        for group in together.values():
            settings = [wanted[index] for index in group]
            fitted = _fit_together(features, targets, settings, vocab_size, place, bar.update)
            heads |= zip(group, fitted)
    return [heads[index] for index in range(len(wanted))]


def _check(features: Features, vocab_size: int) -> None:
    """Raise UserError for features that no head can be fitted on."""
    kinds = set(features.s[features.row].unique().tolist())
    if kinds != {0, 1}:
        raise UserError("a classifier needs answer tokens of both forget and retain rows")
    if (features.row[1:] < features.row[:-1]).any():
        raise UserError("features: row must ascend, so that the tokens of a row are neighbours")
    top = int(features.y.max())
    if top >= vocab_size:
        raise UserError(
            f"features have the target token {top}, outside a vocabulary of {vocab_size}"
        )


def _targets(features: Features, labels: Labels | None) -> Tensor:
    """Return the label of every answer token (N,), float32; arguments and errors of `fit_head`."""
    s = features.s[features.row].float()
    if labels is None:
        return s
    soft, forget = torch.as_tensor(labels, dtype=torch.float32, device="cpu"), s == 0
    if soft.shape != (int(forget.sum()),):
        raise UserError(
            f"labels: expected one for each of the {int(forget.sum())} answer tokens of the forget"
            f" rows, found an array of shape {tuple(soft.shape)}"
        )
    if not ((soft >= 0) & (soft <= 1)).all():  # not true of NaN either
        raise UserError("labels must be numbers from 0 to 1")
    return s.masked_scatter(forget, soft)


# ---- the plan -----------------------------------------------------------------------------------


def steps_per_epoch(n_forget: int, batch_size: int) -> int:
    """⌈n_forget / batch_size⌉: for 32 pairs a step, 7 on TOFU's 5% split, 13 on the 10% split."""
    return -(-n_forget // batch_size)


def plan_steps(
    s: Tensor, *, epochs: int, batch_size: int, epoch: str, seed: int
) -> list[np.ndarray]:
    """Draw the rows of every step; return an array of row indices for each.

    s: (n_rows,) 1 = retain, 0 = forget. batch_size: number of forget–retain pairs in a step. Each
    epoch pairs every forget row, in random order, with a retain row drawn uniformly with
    replacement. A step's array holds its forget rows, then their retain partners. epoch: "redrawn"
    draws anew for each epoch, "fixed" repeats the first one.
    """
    forget, retain = (np.flatnonzero(s.numpy() == kind) for kind in (0, 1))
    # Not the random stream of the head's initial weights, which uses the seed itself.
    rng = np.random.default_rng([seed, 1])
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
    """η_t = η min(t/warmup, (total − t)/(total − warmup)) for the steps t = 0 … total − 1.

    This linear rise over `warmup` steps and linear fall to 0 is the published code's schedule, from
    Transformers.
    """
    rise = [lr * t / warmup for t in range(warmup)]
    return rise + [lr * (total - t) / (total - warmup) for t in range(warmup, total)]


# ---- the steps ----------------------------------------------------------------------------------


@torch.inference_mode(False)  # gradients are also needed where the caller switched them off
@torch.enable_grad()
def _fit_together(
    features: Features,
    targets: Tensor,
    settings: Sequence[FitSettings],
    vocab_size: int,
    device: torch.device,
    advance: Callable[[float], object],
) -> list[T3Head]:
    """Fit heads that see the same rows in the same order; return them on the CPU.

    targets: (N,) float32, the label of every answer token.
    advance: called after every step with the step's share of an epoch. Errors as of `fit_head`.
    """
    first, epochs, starts = settings[0], settings[0].epochs, features.starts
    plan = plan_steps(
        features.s,
        epochs=epochs,
        batch_size=first.batch_size,
        epoch=first.epoch,
        seed=first.seed,
    )

    per_epoch = len(plan) // epochs

    # Only rows of B whose token is a target have a gradient.
    active = features.y[tokens_of(np.unique(np.concatenate(plan)), starts)].unique()
    # y: index of the target among `active`. For tokens that no step draws it means nothing.
    x, y = features.x.to(device), torch.searchsorted(active, features.y).to(device)
    s = targets.to(device)

    most = max(int(starts.diff()[torch.as_tensor(rows)].sum()) for rows in plan)
    kept = x.new_empty((most, x.shape[1]))  # fresh memory in each step took half of its time

    def batch(rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        tokens = tokens_of(rows, starts).to(device)
        inputs = torch.index_select(x, 0, tokens, out=kept[: len(tokens)])
        return inputs.float(), y[tokens], s[tokens]

    heads = [_start(features, one, vocab_size) for one in settings]
    A = [head.A.detach().clone().to(device).requires_grad_() for head in heads]
    B = [head.B.detach()[active].to(device).requires_grad_() for head in heads]
    adam = optimiser(list(zip(A, B)), settings)
    warmups = [round(one.warmup_epochs * per_epoch) for one in settings]
    rates = [learning_rates(one.lr, rise, len(plan)) for one, rise in zip(settings, warmups)]

    # One pass of Adam over the parameters of all heads for each step of the plan.
    for inputs, now in zip(map(batch, plan), zip(*rates)):
        for group, rate in zip(adam.param_groups, now):
            group["lr"] = rate
        adam.zero_grad()
        step_loss(*inputs, A, B).backward()
        adam.step()
        advance(1 / per_epoch)

    # Back on the CPU, rows of B that no step touched get their decay.
    for head, one, path, a, b in zip(heads, settings, rates, A, B):
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            if not all(torch.isfinite(part).all() for part in features.x.split(PART)):
                raise UserError("features: x has values that are not finite (NaN or infinity)")
            raise Diverged(
                f"the head diverged at lr {one.lr:g} with weight_decay {one.weight_decay:g}"
            )
        head.A.data, head.B.data = a.detach().cpu(), untouched_rows(head.B.detach(), path, one)
        head.B.data[active] = b.detach().cpu()
        head.taught = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, active, True)
    return [head.eval() for head in heads]


def _start(features: Features, settings: FitSettings, vocab_size: int) -> T3Head:
    """Return the head before its first step."""
    gamma = settings.gamma if settings.gamma is not None else features.gamma
    return T3Head(
        features.x.shape[1],
        vocab_size,
        settings.rank,
        init_b=settings.init_b,
        prior=settings.prior,
        gamma=gamma,
        w=settings.w,
        seed=settings.seed,
        info={"seed": settings.seed, "hyperparameters": asdict(settings)},
    )


def optimiser(
    parameters: Sequence[Sequence[Tensor]],
    settings: Sequence[FitSettings],
) -> torch.optim.Optimizer:
    """Build Adam over the parameters of several heads, one parameter group for each head.

    decay="adamw" decouples λ from the gradient; "l2" adds 2λφ to it, the gradient of Eq. 3's λ‖φ‖².
    """
    groups = []
    for own, one in zip(parameters, settings):
        decoupled = one.decay == "adamw"
        decay = one.weight_decay if decoupled else 2 * one.weight_decay
        groups.append({"params": own, "weight_decay": decay, "decoupled_weight_decay": decoupled})
    return torch.optim.Adam(groups, lr=0.0, fused=True)


def step_loss(x: Tensor, y: Tensor, s: Tensor, A: Sequence[Tensor], B: Sequence[Tensor]) -> Tensor:
    """Eq. 3's data term, the mean over the n tokens of one step, summed over independent heads.

    x: (n, d) features. y: (n,) indices into the rows of B, of the targets. s: (n,) float, 1 =
    retain, 0 = forget or a soft label. A: one (h, d) for each head. B: one (rows, h) for each head.
    """
    z = (x @ torch.cat(list(A)).T).split([len(a) for a in A], dim=1)
    logits = [(part * F.embedding(y, b)).sum(1) for part, b in zip(z, B)]
    losses = [F.binary_cross_entropy_with_logits(logit, s) for logit in logits]
    return torch.stack(losses).sum()


def untouched_rows(start: Tensor, rates: Sequence[float], settings: FitSettings) -> Tensor:
    """Rows of B whose token is no target of the run, as they are after all steps.

    start: their initial values, any shape. rates: learning rate of every step. With AdamW the
    result is B_0 Π_t (1 − η_t λ). With "l2", Adam on the gradient 2λB alone has no closed form, so
    it is run.
    """
    if settings.weight_decay == 0 or not start.any():
        return start.clone()
    if settings.decay == "adamw":
        return start * math.prod(1 - rate * settings.weight_decay for rate in rates)
    out = start.clone()
    out.grad = torch.zeros_like(out)
    adam = optimiser([[out]], [settings])
    for rate in rates:
        adam.param_groups[0]["lr"] = rate
        adam.step()
    return out
