"""Head training on the clock: ours, dense AdamW on gathered rows, the loss over the whole vocabulary; grids; scaling.

Features are random, for cost does not depend on their values; what matters is how many tokens a step has and how many
tokens of the vocabulary are ever a target. Every variant trains the same problem on the same plan of steps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from t3lib import classifier
from t3lib.bench import cost
from t3lib.bench.timing import interleaved, row, timed, value_row
from t3lib.classifier import fit_heads, learning_rates, plan_steps
from t3lib.features import Features, tokens_of
from t3lib.head import T3Head
from t3lib.settings import FitSettings

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head's training: d, |V|, h; rows of each kind; answer tokens a row (on average); epochs; pairs a step.

    The defaults are the paper's: Llama-3.1-8B, the 5% split's fixed epoch of 200 + 200 samples, about 16,000 tokens.
    """

    d: int = 4096
    vocab: int = 128256
    rank: int = 20
    pairs: int = 200
    tokens: int = 40
    epochs: int = 100
    batch_size: int = 32

    @property
    def name(self) -> str:
        """How tables call it."""
        rows = f"{self.pairs} + {self.pairs} rows"
        return f"d {self.d}, |V| {self.vocab}, h {self.rank}, {rows}, {self.epochs} epochs of {self.per_epoch} steps"

    @property
    def per_epoch(self) -> int:
        """Steps an epoch."""
        return -(-self.pairs // self.batch_size)

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword settings of `fit_head`: the paper's, on one fixed epoch ("preprocessed")."""
        warmup = self.epochs / 4
        return {"rank": self.rank, "epochs": self.epochs, "warmup_epochs": warmup, "batch_size": self.batch_size} | {
            "epoch": "fixed"
        }


def problem(shape: HeadShape, *, device: str = "cpu", seed: int = 0) -> Features:
    """Random features of pairs + pairs rows; targets are log-uniform over the vocabulary, as words are (Zipf)."""
    draw = torch.Generator().manual_seed(seed)
    n = 2 * shape.pairs
    counts = torch.randint(shape.tokens // 2, shape.tokens + shape.tokens // 2 + 1, (n,), generator=draw)
    total = int(counts.sum())
    y = (shape.vocab ** torch.rand(total, generator=draw, dtype=torch.float64)).long() - 1
    s = (torch.arange(n) >= shape.pairs).long()
    x = torch.randn(total, shape.d, generator=draw)
    return Features(x, y.clamp(0, shape.vocab - 1), torch.arange(n).repeat_interleave(counts), s, device=device)


def step_works(features: Features, shape: HeadShape) -> tuple[cost.Work, cost.Work, cost.Work]:
    """`cost.head_step`, `dense_step` and `full_vocabulary_step` summed over all steps of the run."""
    sizes = [len(index) for index in _indices(features, shape)]
    d, h, V = shape.d, shape.rank, shape.vocab
    return (
        _total(cost.head_step(n, d, h) for n in sizes).times(shape.epochs),
        _total(cost.dense_step(n, d, h, V) for n in sizes).times(shape.epochs),
        _total(cost.full_vocabulary_step(n, d, h, V) for n in sizes).times(shape.epochs),
    )


def head_rows(
    shape: HeadShape,
    machine: cost.Ceilings,
    *,
    device: str = "cpu",
    repeats: int = 3,
    dense_steps: int = 0,
    full_steps: int = 20,
) -> Rows:
    """Ours for all epochs; gathered rows for `dense_steps` steps (0: as many); full vocabulary for `full_steps`.

    The slower ones are timed step by step and scaled up to the run. Ratios are of median steps; on a CPU those of
    gathered rows and of ours are timed in turn. `repeats` is of the whole fit.
    """
    features = _on(problem(shape, device=device), device)
    ours_work, dense_work, full_work = step_works(features, shape)
    steps = shape.epochs * shape.per_epoch
    ours = timed(_fit(features, shape, [shape.settings]), repeats=repeats, warmup=int(steps < 100))
    count = min(dense_steps or steps, steps)
    pair = {"dense": plain_step(features, shape, gathered_loss), "ours": own_step(features, shape)}
    found = interleaved(pair if device == "cpu" else {"dense": pair["dense"]}, repeats=count)
    dense, step = found["dense"], found.get("ours", ours.scaled(1 / steps)).cost
    told = "" if count == steps else f"extrapolated from {count} steps"
    rows = [
        row("head training, compact (ours)", shape.name, ours, work=ours_work, machine=machine),
        row("head training, gathered rows, dense fused AdamW", shape.name, dense.scaled(steps), work=dense_work,
            machine=machine, note=told),
        value_row("  gathered rows / ours", shape.name, dense.cost / step, note=f"medians of {count} steps in turn"),
    ]  # fmt: skip
    if full_steps:
        full = timed(plain_step(features, shape, full_vocabulary_loss), repeats=full_steps)
        rows += [
            row("head training, full-vocabulary loss, fused AdamW", shape.name, full.scaled(steps), work=full_work,
                machine=machine, note=f"extrapolated from {full_steps} steps"),
            value_row("  full vocabulary / ours", shape.name, full.cost / step),
        ]  # fmt: skip
    return rows


def gathered_loss(x: Tensor, y: Tensor, s: Tensor, head: T3Head) -> Tensor:
    """Eq. 3 with the targets' rows of B alone, by autograd; the optimiser still steps through all of B."""
    return F.binary_cross_entropy_with_logits((F.linear(x, head.A) * F.embedding(y, head.B)).sum(1), s)


def full_vocabulary_loss(x: Tensor, y: Tensor, s: Tensor, head: T3Head) -> Tensor:
    """Eq. 3 as it is written: B A x for the whole vocabulary, then the target's entry."""
    logit = F.linear(F.linear(x, head.A), head.B)
    return F.binary_cross_entropy_with_logits(logit.gather(1, y[:, None])[:, 0], s)


def plain_step(features: Features, shape: HeadShape, loss_of: Callable[..., Tensor]) -> Callable[[], None]:
    """The next step of a plain training loop, batch after batch, with fused AdamW over all of A and B."""
    device = features.x.device
    head = T3Head(shape.d, shape.vocab, shape.rank).to(device)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-6, weight_decay=1e-3, fused=True)
    label = features.s[features.row].float()
    batches = cycle(
        [(features.x[i.to(device)], features.y[i].to(device), label[i].to(device)) for i in _indices(features, shape)]
    )

    def step() -> None:
        x, y, s = next(batches)
        optimiser.zero_grad()
        loss_of(x, y, s, head).backward()
        optimiser.step()

    return step


def textbook(features: Features, shape: HeadShape) -> T3Head:
    """The head that a plain loop over gathered rows with dense fused AdamW gives: what ours must equal."""
    own = FitSettings(**shape.settings)
    head, label = T3Head(shape.d, shape.vocab, shape.rank, seed=own.seed), features.s[features.row].float()
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.0, weight_decay=own.weight_decay, fused=True)
    steps = _indices(features, shape) * own.epochs
    for i, rate in zip(steps, learning_rates(own.lr, round(own.warmup_epochs * shape.per_epoch), len(steps))):
        optimiser.zero_grad()
        logit = (F.linear(features.x[i], head.A) * F.embedding(features.y[i], head.B)).sum(1)
        (F.binary_cross_entropy_with_logits(logit, label[i], reduction="none") * (1 / len(i))).sum().backward()
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
    return head.eval()


def targets(features: Features, shape: HeadShape) -> Tensor:
    """The tokens of the vocabulary that are a target in some step of the run."""
    return features.y[torch.cat(_indices(features, shape))].unique()


def own_step(features: Features, shape: HeadShape) -> Callable[[], None]:
    """The next step of ours on a CPU, exactly as `fit_heads` runs it."""
    problem = classifier.lay_out(features, [FitSettings(**shape.settings)], shape.vocab, features.x.device)
    steps = cycle(problem.steps)
    return lambda: classifier.step(problem, next(steps), [1e-6])


def grid_rows(
    shape: HeadShape, machine: cost.Ceilings, *, heads: int = 5, device: str = "cpu", repeats: int = 3
) -> Rows:
    """`heads` learning rates on one plan of steps as one batched problem, against one after the other."""
    features = _on(problem(shape, device=device), device)
    grid = [shape.settings | {"lr": 5e-4 * 2**k} for k in range(heads)]
    both = interleaved(
        {
            "one": _fit(features, shape, grid[:1]),
            "all": _fit(features, shape, grid),
        },
        repeats=repeats,
    )
    work = step_works(features, replace(shape, rank=heads * shape.rank))[0]
    return [
        row(f"{heads} heads as one problem", shape.name, both["all"], work=work, machine=machine),
        value_row(f"  {heads} heads alone / as one problem", shape.name, heads * both["one"].cost / both["all"].cost),
    ]


def scaling(shape: HeadShape, axes: dict[str, Sequence[int]], *, device: str = "cpu", repeats: int = 3) -> pd.DataFrame:
    """Seconds a step and bytes of parameters with one size varied at a time: columns axis, value, step_s, low, high.

    axes: names of `HeadShape` (pairs, vocab, d, rank) -> values. Setting up (B's start, |V| rows) is in it, as a user
    pays it: step_s is the whole fit over its steps, epoch_s over its epochs.
    """
    found = []
    for axis, values in axes.items():
        for value in values:
            own = replace(shape, **{axis: value})
            features = _on(problem(own, device=device), device)
            fit = timed(_fit(features, own, [own.settings]), repeats=repeats)
            # The cost may be the wall clock's, which now and then shows less than any reading of the process clock.
            low, high = min(fit.cost, *fit.busy), max(fit.busy)
            entry = {"axis": axis, "value": value, "seconds": fit.cost, "low": low, "high": high}
            found.append(entry | asdict(own) | {"parameters": own.rank * (own.d + own.vocab)})
    return pd.DataFrame(found)


def _fit(features: Features, shape: HeadShape, settings: Sequence[dict[str, Any]]) -> Callable[[], object]:
    return lambda: fit_heads(features, settings, vocab_size=shape.vocab, progress=False)


def _indices(features: Features, shape: HeadShape) -> list[Tensor]:
    own = FitSettings(**shape.settings)
    steps = plan_steps(features.s, epochs=1, batch_size=own.batch_size, epoch="fixed", seed=own.seed)
    return [tokens_of(rows, features.starts) for rows in steps]


def _on(features: Features, device: str) -> Features:
    return replace(features, x=features.x.to(device))


def _total(works: Iterable[cost.Work]) -> cost.Work:
    flops, moved = zip(*works)
    return cost.Work(sum(flops), sum(moved))
