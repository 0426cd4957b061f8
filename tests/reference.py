"""The oracles of the samplers' tests: T3 and ULD in float64, no cache, one token at a time,
formulas written out.

Nothing here comes from t3lib: hidden states are averaged before A (the sampler averages after),
sigmoid is written as a fraction, and every step runs the whole sequence through float64 copies of
the models.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from families import DEVICE
from torch import Tensor


class Oracle:
    """Decoding by the definition; a subclass says what log p_hat is."""

    def logp(self, ids: Tensor, mask: Tensor, positions: Tensor | None = None) -> Tensor:
        """log p_hat of the next token after every position, (B, L, V) float64; rows with nothing
        visible yet: NaN.
        """
        raise NotImplementedError

    def next_logp(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """log p_hat after the last position, (B, V)."""
        return self.logp(ids, mask, positions)[:, -1]

    def decode(
        self, ids: Tensor, mask: Tensor, new: int, seed: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Greedy tokens (B, new), or sampled ones given a seed, and the log p_hat (B, new, V) they
        came from.
        """
        if seed is not None:
            torch.manual_seed(seed)
        steps = []
        positions = positions_of(mask)
        for _ in range(new):
            logp = self.next_logp(ids, mask, positions)
            if seed is None:
                token = logp.argmax(-1, keepdim=True)
            else:
                token = torch.multinomial(logp.exp().float().to(DEVICE), 1).cpu()  # its generator
            steps.append(logp)
            ids, mask = torch.cat([ids, token], 1), torch.cat([mask, torch.ones_like(token)], 1)
            positions = torch.cat([positions, positions[:, -1:] + 1], 1)
        return ids[:, -new:], torch.stack(steps, 1)

    def beams(self, ids: Tensor, mask: Tensor, new: int, width: int) -> tuple[Tensor, Tensor]:
        """The `width` best beams of one row after `new` tokens (no end token): (width, new), mean
        log p_hat.
        """
        kept, positions = [(0.0, ids[0].tolist())], positions_of(mask)
        for _ in range(new):
            grown = []
            for score, tokens in kept:
                logp = self.next_logp(torch.tensor([tokens]), mask, positions)[0]
                for token in logp.topk(width).indices.tolist():
                    grown.append((score + logp[token].item(), [*tokens, token]))
            kept = sorted(grown, key=lambda beam: -beam[0])[:width]
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            positions = torch.cat([positions, positions[:, -1:] + 1], 1)
        return torch.tensor([tokens[-new:] for _, tokens in kept]), torch.tensor(
            [score / new for score, _ in kept]
        )


@dataclass(frozen=True, eq=False)
class Reference(Oracle):
    """T3's p_hat for a base (any causal LM) and pairs (A, B), all in float64.

    neutral: tokens at which f is 1. gate: T is 1 where sum_y p f is not below it, for gate < 1.
    tail: tokens of at most this share of the largest probability are not tempered.
    """

    base: Any
    heads: list[tuple[Tensor, Tensor]]
    temperature: float
    neutral: Sequence[int] = ()
    gate: float = 1.0
    tail: float = 0.0

    @classmethod
    def of(
        cls,
        base: Any,
        heads: Sequence[tuple[Tensor, Tensor]],
        temperature: float,
        neutral: Sequence[int] = (),
        gate: float = 1.0,
        tail: float = 0.0,
    ) -> "Reference":
        doubled = [(A.detach().cpu().double(), B.detach().cpu().double()) for A, B in heads]
        return cls(in_float64(base), doubled, temperature, neutral, gate, tail)

    def f(self, A: Tensor, B: Tensor, context: Tensor) -> Tensor:
        values = 1 / (1 + torch.exp(-(B @ (A @ context))))
        for token in self.neutral:
            values[token] = 1.0
        return values

    def tempered(self, p: Tensor) -> Tensor:
        cut = self.tail * p.max()
        return torch.tensor(
            [
                y ** (1 / self.temperature) * (cut ** (1 - 1 / self.temperature) if cut else 1)
                if y > cut
                else y
                for y in p.tolist()
            ],
            dtype=p.dtype,
        )

    @torch.no_grad()
    def logp(self, ids: Tensor, mask: Tensor, positions: Tensor | None = None) -> Tensor:
        logits, hidden = without_cache(self.base, ids, mask, positions)
        rows = []
        for row in range(ids.shape[0]):
            steps = []
            for end in range(1, ids.shape[1] + 1):
                seen = [hidden[row, t] for t in range(end) if mask[row, t] == 1]
                if not seen:
                    steps.append(torch.full_like(logits[row, 0], float("nan")))
                    continue
                context = sum(seen) / len(seen)
                p = torch.exp(logits[row, end - 1]) / torch.exp(logits[row, end - 1]).sum()
                f = torch.ones_like(p)
                for A, B in self.heads:
                    f = f * self.f(A, B, context)
                keep = self.gate < 1 and sum(p.tolist()[y] * f.tolist()[y] for y in range(len(p)))
                untempered = self.gate < 1 and keep >= self.gate
                weight = f * (p if untempered else self.tempered(p))
                steps.append(torch.log(weight / weight.sum()))
            rows.append(torch.stack(steps))
        return torch.stack(rows)

    @torch.no_grad()
    def next_logp(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        logits, hidden = without_cache(self.base, ids, mask, positions)
        out = []
        for row in range(ids.shape[0]):
            context = hidden[row][mask[row] == 1].mean(0)
            logp, f = torch.log_softmax(logits[row, -1], -1), torch.ones_like(logits[row, -1])
            for A, B in self.heads:
                f = f * self.f(A, B, context)
            if self.gate == 1 or (logp.exp() * f).sum() < self.gate:
                logp = torch.log(self.tempered(logp.exp()))
            out.append(torch.log_softmax(logp + torch.log(f), -1))
        return torch.stack(out)


@dataclass(frozen=True, eq=False)
class Quotient(Oracle):
    """ULD's p_hat, proportional to p / f^strength, for a base p and an assistant f, all in
    float64.
    """

    base: Any
    assistant: Any
    strength: float

    @classmethod
    def of(cls, base: Any, assistant: Any, strength: float) -> "Quotient":
        return cls(in_float64(base), in_float64(assistant), strength)

    @torch.no_grad()
    def logp(self, ids: Tensor, mask: Tensor, positions: Tensor | None = None) -> Tensor:
        p, f = (
            without_cache(model, ids, mask, positions)[0].softmax(-1)
            for model in (self.base, self.assistant)
        )
        weight = p / f**self.strength
        return torch.log(weight / weight.sum(-1, keepdim=True))


def in_float64(model: Any) -> Any:
    """A copy of a model in double precision, on the CPU."""
    return copy.deepcopy(model).cpu().double().eval()


def without_cache(
    model: Any, ids: Tensor, mask: Tensor, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Logits (B, L, V) and final hidden states (B, L, d) of the whole sequence, computed without a
    cache.
    """
    inputs: dict[str, Any] = dict(input_ids=ids, attention_mask=mask, use_cache=False)
    if positions is not None:
        inputs["position_ids"] = positions
    # Some families take their softmax in float32, where a float64 mask overflows to NaN.
    with mock.patch(
        "torch.nn.functional.softmax", lambda x, dim, dtype=None: torch.softmax(x, dim)
    ):
        return model(**inputs).logits.double(), model.get_decoder()(**inputs)[0].double()


def positions_of(mask: Tensor) -> Tensor:
    """Positions as `generate` counts a prompt's: visible tokens so far minus one, 0 for hidden
    ones.

    Each new token then has its predecessor's plus one; after right padding that starts at 1 again,
    which is the base's own reading of such a batch (Transformers warns about it), so the unlearned
    model must share it.
    """
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)
