"""MeanPool, the context that the classifier reads: of every prefix at once, and as a state in the
key-value cache.

    x_t = (1/|{s <= t, m_s = 1}|) Σ_{s <= t} m_s H_s        (MeanPool of Section 2.3)

While decoding, the tilt needs the same mean of z_t = A H_t over the visible tokens so far.
Transformers moves, repeats, reorders and crops whatever stands in `cache.layers`, so a layer that
holds the running sum follows every decoding mode without a line of ours. State kept anywhere else
is not reordered in beam search, and the text is silently wrong.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DummyLayer

from t3lib.core.errors import UserError


def prefix_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """x_t = Σ_{s<=t} m_s H_s / Σ_{s<=t} m_s   (MeanPool of Section 2.3, for every prefix at once).

    values (B, L, n) any float dtype, mask (B, L) as in `prefix_sums` -> (B, L, n) float32. Masked
    positions may hold anything, NaN included. Positions before the first visible one are 0.
    """
    return mean_of(prefix_sums(values, mask))


def prefix_sums(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Running sums of values (B, L, n) over visible tokens, and their count as last column: (B, L,
    n + 1) float32.

    mask (B, L): not 0 where a token is visible, None for all. Hidden tokens are replaced, not
    multiplied, by zero: attention over nothing may have left NaN at padding.
    """
    visible = (
        torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
        if mask is None
        else mask.bool()
    )
    seen = visible[..., None]
    counted = torch.cat([values.float().masked_fill(~seen, 0), seen.float()], dim=-1)
    return counted.cumsum(dim=1)


def mean_of(sums: Tensor) -> Tensor:
    """The mean that `prefix_sums` stands for: (..., n + 1) -> (..., n); 0 where no token is visible
    yet.
    """
    return sums[..., :-1] / sums[..., -1:].clamp(min=1)


class PoolLayer(DummyLayer):
    """Running sums of z_t = A H_t over visible tokens, and their count: (B, tokens so far, h + 1)
    float32.

    A subclass of DummyLayer, because the cache then never asks it for keys, sizes or offloading;
    `len(cache)` counts it, and iterating over a cache yields (None, None, None) for it. A growing
    cache keeps every token's row (h + 1 floats), so that cropping is a slice; a static one keeps
    the last row at a fixed address, as compiled decoding needs. `A` is a copy of the heads'
    projection: under another one these sums mean nothing.
    """

    def __init__(self, A: Tensor, *, static: bool) -> None:
        super().__init__()
        self.A, self.static = A.detach().clone(), static
        self.is_croppable = not static
        self.sums: Any = None
        self.seen: Tensor | None = (
            None  # static only: tokens so far, a tensor because compiled code updates it
        )

    def append(self, z: Tensor, visible: Tensor | None) -> Tensor:
        """Add the new tokens' z (B, L, h); return the mean over visible tokens up to each of them,
        (B, L, h).
        """
        sums = prefix_sums(z, visible)
        if self.sums is not None:
            sums = sums + self.sums[:, -1:]
        if not self.static:
            self.sums = sums if self.sums is None else torch.cat([self.sums, sums], dim=1)
        elif self.sums is None or self.seen is None:
            self.sums = sums[:, -1:].clone()
            self.seen = torch.full((), z.shape[1], dtype=torch.long, device=z.device)
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(self.sums)
                torch._dynamo.mark_static_address(self.seen)
        else:
            self.sums.copy_(sums[:, -1:])
            self.seen.add_(z.shape[1])
        return mean_of(sums)

    def tokens(self) -> int:
        """How many tokens, visible or not, this layer has seen."""
        if self.sums is None:
            return 0
        return int(self.seen) if self.seen is not None else self.sums.shape[1]

    def __deepcopy__(self, memo: Any) -> "PoolLayer":
        copied = copy.copy(
            self
        )  # detached: torch refuses to copy sums that a loss may still be traced back through
        copied.sums = None if self.sums is None else self.sums.detach().clone()
        copied.seen = None if self.seen is None else self.seen.clone()
        return copied

    def reset(self) -> None:
        """Forget every token; a static layer keeps its address."""
        if self.seen is None:
            self.sums = None
        elif self.sums is not None:
            self.sums.zero_()
            self.seen.zero_()

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens back; UserError in a static layer, which no longer has their
        sums.
        """
        if tokens_to_remove != 0 and self.sums is not None:
            if self.static:
                raise UserError(
                    "a static cache keeps only the last pooled context and cannot be cropped"
                )
            self.sums = self.sums[:, : -abs(tokens_to_remove)]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows become those that beam search goes on with."""
        self.sums = self.sums.index_select(0, beam_idx.to(self.sums.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times, one after the other."""
        self.sums = self.sums.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        self.sums = self.sums[indices.to(self.sums.device)]


def pool_of(cache: Cache) -> PoolLayer | None:
    """The cache's pool layer, always its last."""
    last = cache.layers[-1] if cache.layers else None
    return last if isinstance(last, PoolLayer) else None


def projection_of(heads: Iterable[Any]) -> Tensor:
    """The heads' A one above the other, (sum of ranks, d)."""
    return torch.cat([head.A.detach() for head in heads])


def attach(cache: Cache, heads: Iterable[Any]) -> PoolLayer:
    """The cache's pool layer, appended now if it has none; all of the base's own layers must
    already be there.
    """
    layer = pool_of(cache)
    if layer is None:
        layer = PoolLayer(projection_of(heads), static=cache.is_compileable)
        cache.layers.append(layer)
    return layer


def check_cache(cache: Cache, heads: Iterable[Any]) -> None:
    """UserError unless the cache's pooled context is known to be that of its tokens, for these
    heads as they are.
    """
    layer, A = pool_of(cache), projection_of(heads)
    if layer is not None and not (layer.A.shape == A.shape and torch.equal(layer.A, A.to(layer.A))):
        raise UserError(
            "this cache was filled under another head, or before this one's A changed: start a"
            " new one"
        )
    cached, pooled = int(cache.get_seq_length()), 0 if layer is None else layer.tokens()
    if cached != pooled:
        raise UserError(
            f"this cache holds {cached} tokens, of which {pooled} were seen with the tilt on: the"
            " pooled context of the others is unknown, so fill the cache with the tilted model"
            " from its first token"
        )
