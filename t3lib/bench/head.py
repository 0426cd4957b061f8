"""Head training on the clock: ours, dense AdamW on gathered rows, the loss over the whole vocabulary; grids; scaling.

Features are random, for cost does not depend on their values; what matters is how many tokens a step has and how many
tokens of the vocabulary are ever a target. Every variant trains the same problem on the same plan of steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from t3lib import classifier
from t3lib.bench import cost
from t3lib.bench.timing import Rows, interleaved, row, timed
from t3lib.classifier import fit_heads, learning_rates, plan_steps
from t3lib.features import Features, tokens_of
from t3lib.head import T3Head
from t3lib.settings import FitSettings


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
        sizes = {"rank": self.rank, "epochs": self.epochs, "batch_size": self.batch_size}
        return sizes | {"warmup_epochs": self.epochs / 4, "epoch": "fixed"}


def problem(shape: HeadShape, *, device: str = "cpu", seed: int = 0) -> Features:
    """Random features of pairs + pairs rows; targets are log-uniform over the vocabulary, as words are (Zipf)."""
    draw = torch.Generator().manual_seed(seed)
    n = 2 * shape.pairs
    counts = torch.randint(shape.tokens // 2, shape.tokens + shape.tokens // 2 + 1, (n,), generator=draw)
    total = int(counts.sum())
    y = (shape.vocab ** torch.rand(total, generator=draw, dtype=torch.float64)).long() - 1
    s = (torch.arange(n) >= shape.pairs).long()
    x = torch.randn(total, shape.d, generator=draw).to(device)
    return Features(x, y.clamp(0, shape.vocab - 1), torch.arange(n).repeat_interleave(counts), s, device=device)


def epoch_of(features: Features, shape: HeadShape) -> list[Tensor]:
    """Numbers of the tokens of each step of the one epoch that a run repeats."""
    settings = FitSettings(**shape.settings)
    rows = plan_steps(features.s, epochs=1, batch_size=settings.batch_size, epoch="fixed", seed=settings.seed)
    return [tokens_of(step, features.starts) for step in rows]


def step_works(features: Features, shape: HeadShape) -> tuple[cost.Work, cost.Work, cost.Work]:
    """`cost.head_step`, `dense_step` and `full_vocabulary_step` summed over all steps of the run."""
    counts, d, h, V = [len(tokens) for tokens in epoch_of(features, shape)], shape.d, shape.rank, shape.vocab
    return (
        cost.total(cost.head_step(n, d, h) for n in counts).times(shape.epochs),
        cost.total(cost.dense_step(n, d, h, V) for n in counts).times(shape.epochs),
        cost.total(cost.full_vocabulary_step(n, d, h, V) for n in counts).times(shape.epochs),
    )


def gathered_loss(x: Tensor, y: Tensor, s: Tensor, head: T3Head) -> Tensor:
    """Eq. 3 with the targets' rows of B alone, by autograd; the optimiser still steps through all of B."""
    logit = (F.linear(x, head.A) * F.embedding(y, head.B)).sum(1)
    return (F.binary_cross_entropy_with_logits(logit, s, reduction="none") * (1 / len(s))).sum()


def full_vocabulary_loss(x: Tensor, y: Tensor, s: Tensor, head: T3Head) -> Tensor:
    """Eq. 3 as it is written: B A x for the whole vocabulary, then the target's entry."""
    logit = F.linear(F.linear(x, head.A), head.B)
    return F.binary_cross_entropy_with_logits(logit.gather(1, y[:, None])[:, 0], s)


def dense_training(features: Features, shape: HeadShape, loss_of: Callable[..., Tensor]) -> Iterator[T3Head]:
    """The textbook's loop, fused AdamW over all of A and B: the head after each step, over and over."""
    device, settings = features.x.device, FitSettings(**shape.settings)
    head = T3Head(shape.d, shape.vocab, shape.rank, seed=settings.seed).to(device)
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.0, weight_decay=settings.weight_decay, fused=True)
    label = features.s[features.row].float()
    epoch = [[part[i].to(device) for part in (features.x, features.y, label)] for i in epoch_of(features, shape)]
    steps = shape.epochs * shape.per_epoch
    rates = learning_rates(settings.lr, round(settings.warmup_epochs * shape.per_epoch), steps)
    for (x, y, s), rate in zip(cycle(epoch), cycle(rates)):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        loss_of(x, y, s, head).backward()
        optimiser.step()
        yield head


def textbook(features: Features, shape: HeadShape) -> T3Head:
    """The head that the textbook's loop over gathered rows gives after the whole run: what ours must equal."""
    *_, head = islice(dense_training(features, shape, gathered_loss), shape.epochs * shape.per_epoch)
    return head.eval()


def targets(features: Features, shape: HeadShape) -> Tensor:
    """The tokens of the vocabulary that are a target in some step of the run."""
    return features.y[torch.cat(epoch_of(features, shape))].unique()


def our_steps(features: Features, shape: HeadShape) -> Callable[[], None]:
    """A function that takes the next of our steps, exactly as `fit_heads` does."""
    laid_out = classifier.lay_out(features, [FitSettings(**shape.settings)], shape.vocab, features.x.device)
    steps = cycle(laid_out.steps)
    return lambda: classifier.step(laid_out, next(steps), [1e-6])


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

    The slower ones are timed step by step and scaled up to the run. Ratios are of median steps, those of gathered rows
    and of ours timed in turn. `repeats` is of the whole fit.
    """
    features = problem(shape, device=device)
    our_work, dense_work, full_work = step_works(features, shape)
    steps = shape.epochs * shape.per_epoch
    ours = timed(fit(features, [shape.settings], shape), repeats=repeats, warmup=int(steps < 100))
    count = min(dense_steps or steps, steps)
    dense = dense_training(features, shape, gathered_loss)
    both = interleaved({"dense": lambda: next(dense), "ours": our_steps(features, shape)}, repeats=count)
    timing = both["dense"]
    rows = [
        row("head training, compact (ours)", shape.name, ours, work=our_work, machine=machine),
        row("head training, gathered rows, dense fused AdamW", shape.name, timing.scaled(steps), work=dense_work,
            machine=machine, note="" if count == steps else f"extrapolated from {count} steps"),
        row("  gathered rows / ours", shape.name, timing.cost / both["ours"].cost,
                  note=f"medians of {count} steps in turn"),
    ]  # fmt: skip
    if full_steps:
        whole = dense_training(features, shape, full_vocabulary_loss)
        full = timed(lambda: next(whole), repeats=full_steps)
        rows += [
            row("head training, full-vocabulary loss, fused AdamW", shape.name, full.scaled(steps), work=full_work,
                machine=machine, note=f"extrapolated from {full_steps} steps"),
            row("  full vocabulary / ours", shape.name, full.cost / both["ours"].cost),
        ]  # fmt: skip
    return rows


def grid_rows(
    shape: HeadShape, machine: cost.Ceilings, *, heads: int = 5, device: str = "cpu", repeats: int = 3
) -> Rows:
    """`heads` learning rates on one plan of steps as one batched problem, against one after the other."""
    features = problem(shape, device=device)
    grid = [shape.settings | {"lr": 5e-4 * 2**k} for k in range(heads)]
    both = interleaved({"one": fit(features, grid[:1], shape), "all": fit(features, grid, shape)}, repeats=repeats)
    work = step_works(features, replace(shape, rank=heads * shape.rank))[0]
    return [
        row(f"{heads} heads as one problem", shape.name, both["all"], work=work, machine=machine),
        row(f"  {heads} heads alone / as one problem", shape.name, heads * both["one"].cost / both["all"].cost),
    ]


def scaling(shape: HeadShape, axes: dict[str, Sequence[int]], *, device: str = "cpu", repeats: int = 3) -> pd.DataFrame:
    """Seconds of a whole fit with one size varied at a time: axis, value, seconds, low, high, the sizes, parameters.

    axes: names of `HeadShape` (pairs, vocab, d, rank) -> values. Setting up (B's start, |V| rows) is in it, as a user
    pays it.
    """
    rows = []
    for axis, values in axes.items():
        for value in values:
            varied = replace(shape, **{axis: value})
            timing = timed(fit(problem(varied, device=device), [varied.settings], varied), repeats=repeats)
            # The cost may be the wall clock's, which now and then shows less than any reading of the process clock.
            low, high = min(timing.cost, *timing.busy), max(timing.busy)
            entry = {"axis": axis, "value": value, "seconds": timing.cost, "low": low, "high": high}
            rows.append(entry | asdict(varied) | {"parameters": varied.rank * (varied.d + varied.vocab)})
    return pd.DataFrame(rows)


def fit(features: Features, settings: Sequence[dict[str, Any]], shape: HeadShape) -> Callable[[], object]:
    """The whole training of heads, to be timed."""
    return lambda: fit_heads(features, settings, vocab_size=shape.vocab, progress=False)
