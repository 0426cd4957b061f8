"""Time the training of a head: `fit_head` and a textbook loop that trains the same head.

Features are random, because the cost does not depend on their values. It depends on how many tokens
a step has and how many tokens of the vocabulary are ever a target.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t3lib.classifier.features import Features, tokens_of
from t3lib.classifier.fit import fit_head, learning_rates, plan_steps
from t3lib.classifier.head import T3Head
from t3lib.classifier.pooling import prefix_mean
from t3lib.core.models import decoder_of, pad_id
from t3lib.core.rows import Example, collate, encode_rows
from t3lib.core.settings import FitSettings
from t3lib.lab.bench import cost
from t3lib.lab.bench.timing import Rows, interleaved, row
from t3lib.lab.study.study import Study

TIMED_STEPS = 20  # of a naive training: its steps cost alike, so these are scaled up to all


@dataclass(frozen=True)
class HeadShape:
    """Sizes of one training of a head; by default the paper's for Llama-3.1-8B and the 5% split.

    d: hidden size. vocab: |V|. pairs: forget rows, and as many retain rows. tokens: answer tokens
    of each row.
    """

    d: int = 4096
    vocab: int = 128256
    pairs: int = 200
    tokens: int = 40
    epochs: int = 100

    @property
    def settings(self) -> FitSettings:
        """The paper's settings, on one fixed epoch of retain rows."""
        return FitSettings(epochs=self.epochs, warmup_epochs=self.epochs / 4, epoch="fixed")


def problem(shape: HeadShape, *, device: str = "cpu", seed: int = 0) -> Features:
    """Draw random features; targets are log-uniform over the vocabulary (Zipf's law)."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.arange(2 * shape.pairs)
    n = len(rows) * shape.tokens
    y = (shape.vocab ** torch.rand(n, generator=draw, dtype=torch.float64)).long() - 1
    x = torch.randn(n, shape.d, generator=draw).to(device)
    row_of, s = rows.repeat_interleave(shape.tokens), (rows >= shape.pairs).long()
    return Features(x, y.clamp(0, shape.vocab - 1), row_of, s, device=device)


def textbook(features: Features, shape: HeadShape) -> T3Head:
    """Train a head by Eq. 3 in the usual way: autograd, and AdamW over all of A and B.

    Only the rows of B that belong to targets are gathered for a step. Up to rounding it is the head
    that `fit_head` trains.
    """
    own, device = shape.settings, features.x.device
    head = T3Head(shape.d, shape.vocab, own.rank, seed=own.seed).to(device)
    optimiser = torch.optim.AdamW(head.parameters(), weight_decay=own.weight_decay, fused=True)
    plan = plan_steps(features.s, epochs=1, batch_size=own.batch_size, epoch="fixed", seed=own.seed)
    tensors = (features.x, features.y, features.s[features.row].float())
    steps = (tokens_of(rows, features.starts) for rows in plan)
    batches = [[each[tokens].to(device) for each in tensors] for tokens in steps]
    rates = learning_rates(own.lr, round(own.warmup_epochs * len(plan)), own.epochs * len(plan))
    for (x, y, s), rate in zip(cycle(batches), rates):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        logit = (F.linear(x, head.A) * F.embedding(y, head.B)).sum(1)
        F.binary_cross_entropy_with_logits(logit, s).backward()
        optimiser.step()
    return head.eval()


def head_rows(shape: HeadShape, *, device: str = "cpu", repeats: int = 2) -> Rows:
    """Time whole trainings in turns: `fit_head` and the textbook loop.

    Returns a row for each, and one for their ratio.
    """
    features, options = problem(shape, device=device), asdict(shape.settings)
    works = {
        "t3lib": lambda: fit_head(features, vocab_size=shape.vocab, progress=False, **options),
        "textbook loop": lambda: textbook(features, shape),
    }
    seconds = interleaved(works, repeats=repeats, warmup=0)
    rows = f"{shape.pairs} + {shape.pairs} rows, {shape.epochs} epochs"
    where = f"d {shape.d}, |V| {shape.vocab}, h {options['rank']}, {rows}"
    work = cost.head_training(shape.epochs * len(features.y), shape.d, options["rank"])
    ratios = [theirs / ours for ours, theirs in zip(*seconds.values())]
    return [
        row("head training, t3lib", where, seconds["t3lib"], work=work),
        row("head training, textbook loop", where, seconds["textbook loop"]),
        row("head training, textbook loop / t3lib", where, ratios, "×"),
    ]


@torch.inference_mode()
def naive(study: Study, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of T3 with the seconds of the published code, which runs the base at every step.

    run: a run of T3 on the study's split. The head would be the same, so only the seconds differ,
    and the records are left out. The base's passes in the first TIMED_STEPS steps are timed by the
    wall clock and scaled up to all steps; `timed_steps` is [timed, all].
    """
    examples = encode_rows(study.tokenizer, [*study.forget, *study.retain])
    kinds = (torch.arange(len(examples)) >= len(study.forget)).long()
    plan = {name: run["hyper"][name] for name in ("epochs", "batch_size", "epoch")}
    steps = plan_steps(kinds, **plan, seed=run["seed"])
    timed = steps[:TIMED_STEPS]
    began = time.perf_counter()
    for rows in timed:
        pooled(study, [examples[row] for row in rows])[0, 0, 0].item()  # so that a GPU has finished
    passes = (time.perf_counter() - began) / len(timed) * len(steps)
    seconds = run["seconds"] | {"features": None, "train": run["seconds"]["train"] + passes}
    return {
        **run,
        "setting": "naive",
        "timed_steps": [len(timed), len(steps)],
        "records": {},
        "seconds": seconds,
    }


def pooled(study: Study, examples: Sequence[Example]) -> Tensor:
    """Return the features of every prefix of some rows: (rows, L, d)."""
    batch = collate(examples, pad_id(study.tokenizer), study.scoring.attention_mask)
    ids, mask = (batch[name].to(study.base.device) for name in ("input_ids", "attention_mask"))
    hidden = decoder_of(study.base)(input_ids=ids, attention_mask=mask, use_cache=False)
    return prefix_mean(hidden.last_hidden_state, mask)
