"""The mean over the context that the classifier reads: of all prefixes at once, or while decoding.

    x_t = (1/|{s <= t, m_s = 1}|) Σ_{s <= t} m_s H_s        (MeanPool of Section 2.3)

H_s is the hidden state of token s; m_s is 1 where the attention mask shows the token. While
decoding, the tilt needs the same mean of z_t = A H_t over the visible tokens so far. The running
sum is kept as one more layer of the key-value cache. Transformers moves, repeats, reorders and
crops all layers of a cache together, so the sum stays correct in every decoding mode. A state kept
elsewhere would not be reordered in beam search, and the text would be silently wrong.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from t3lib.core.errors import UserError


def prefix_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """x_t = Σ_{s<=t} m_s H_s / Σ_{s<=t} m_s   (MeanPool of Section 2.3, for every prefix at once).

    values: H (B, L, n) in any float dtype. mask: m (B, L), see `prefix_sums`. Returns (B, L, n) in
    float32. Values at masked positions are ignored, NaN included. Positions before the first
    visible one are 0.
    """
    return mean_of(prefix_sums(values, mask))


def prefix_sums(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Running sums of `values` over visible tokens, with the number of these tokens as last column.

    values: (B, L, n). mask: (B, L), not 0 where a token is visible; None for all. Returns
    (B, L, n + 1) in float32. Hidden tokens are replaced by zero and not multiplied by it, because a
    base may leave NaN at padding.
    """
    if mask is not None and mask.shape != values.shape[:2]:
        raise UserError(
            f"the base gives hidden states of {values.shape[1]} tokens where {mask.shape[1]} were"
            " read: the context cannot be pooled"
        )
    counted = pad(values.float(), (0, 1), value=1.0)
    if mask is not None:
        counted = counted.masked_fill(~mask.bool()[..., None], 0)
    return counted.cumsum(dim=1) if counted.shape[1] != 1 else counted


def mean_of(sums: Tensor) -> Tensor:
    """Means from `prefix_sums`: (..., n + 1) -> (..., n); 0 where no token is visible yet."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=1)


class ExtraLayer:
    """A layer of a key-value cache that holds no keys and values.

    cache: the cache that it is appended to, which has all of the base's own layers.

    It has what Transformers uses of each layer, but is no `CacheLayerMixin`, so that a cache never
    takes the number of its tokens or the size of its masks from it. `len(cache)` counts it, and
    iterating over a cache yields (None, None, None) for it. Transformers' own DummyLayer is like
    this, but exists only since version 5.23.
    """

    is_compileable = is_croppable = is_initialized = True
    supports_early_init = False
    keys = values = None

    def __init__(self, cache: Cache) -> None:
        attention = (layer for layer in cache.layers if isinstance(layer, CacheLayerMixin))
        self.first = next(attention, None)
        # Transformers takes the first layer that is neither sliding nor linear for one with full
        # attention. Where the base has none, it must not take this one.
        linear = getattr(cache, "is_linear", [False] * len(cache.layers))
        known = zip(cache.layers, cache.is_sliding, linear)
        self.is_sliding = not any(
            isinstance(layer, CacheLayerMixin) and not (slides or runs)
            for layer, slides, runs in known
        )

    def get_max_length(self) -> int:
        """Return -1: this layer limits no number of tokens."""
        return -1

    def prefetch(self) -> None:
        """Fetch the base's first layer: an offloaded cache calls this after the base's last one."""
        if self.first is not None:
            self.first.prefetch()

    def _nothing(self, *_: Any) -> None:
        """Do nothing: there are no keys and values."""

    offload = reset = crop = reorder_cache = batch_repeat_interleave = _nothing
    batch_select_indices = _nothing


class PoolLayer(ExtraLayer):
    """A cache layer with the running sums of z_t = A H_t over visible tokens, and their number.

    cache: the cache that it is appended to.
    A: the heads' projection (see `projection_of`), copied, because the sums hold for this A only.

    A growing cache keeps the sums of every token, (B, tokens so far, h + 1) in float32, so that
    cropping is a slice. A static one keeps only the last row, at a fixed address, as compiled
    decoding needs.
    """

    def __init__(self, cache: Cache, A: Tensor) -> None:
        super().__init__(cache)
        self.A, self.static = A.detach().clone(), cache.is_compileable
        self.is_croppable = not self.static
        self.sums: Any = None
        self.seen: Tensor | None = (
            None  # static only: number of tokens, a tensor because compiled code updates it
        )

    def append(self, z: Tensor, visible: Tensor | None) -> Tensor:
        """Add the new tokens; return the mean over visible tokens up to each of them, (B, L, h).

        z: A H of the new tokens, (B, L, h). visible: which of them count, (B, L); None for all.
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
        """Return how many tokens, visible or not, this layer has seen."""
        if self.sums is None:
            return 0
        return int(self.seen) if self.seen is not None else self.sums.shape[1]

    def __deepcopy__(self, memo: Any) -> "PoolLayer":
        copied = copy.copy(self)  # detached: torch does not deep-copy tensors that carry gradients
        copied.first = copy.deepcopy(self.first, memo)  # the layer of the copied cache
        copied.sums = None if self.sums is None else self.sums.detach().clone()
        copied.seen = None if self.seen is None else self.seen.clone()
        return copied

    def reset(self) -> None:
        """Drop all tokens; a static layer keeps its memory address."""
        if self.seen is None:
            self.sums = None
        elif self.sums is not None:
            self.sums.zero_()
            self.seen.zero_()

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens; UserError for a static layer, which does not keep earlier sums."""
        if tokens_to_remove != 0 and self.sums is not None:
            if self.static:
                raise UserError(
                    "a static cache keeps only the last pooled context and cannot be cropped"
                )
            self.sums = self.sums[:, : -abs(tokens_to_remove)]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search. beam_idx (B,): the old row of each new one."""
        self.sums = self.sums.index_select(0, beam_idx.to(self.sums.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row `repeats` times in place, as [a, a, b, b]."""
        self.sums = self.sums.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with these indices."""
        self.sums = self.sums[indices.to(self.sums.device)]


def pool_of(cache: Cache) -> PoolLayer | None:
    """Return the cache's pool layer, which is always its last one; None if it has none."""
    last = cache.layers[-1] if cache.layers else None
    return last if isinstance(last, PoolLayer) else None


def projection_of(heads: Iterable[Any]) -> Tensor:
    """Stack the matrices A of all heads: (sum of ranks, d)."""
    return torch.cat([head.A.detach() for head in heads])


def attach(cache: Cache, heads: Iterable[Any]) -> PoolLayer:
    """Return the cache's pool layer; append a new one if there is none.

    Call it when all of the base's own layers are in the cache.
    """
    layer = pool_of(cache)
    if layer is None:
        layer = PoolLayer(cache, projection_of(heads))
        cache.layers.append(layer)  # type: ignore[arg-type]
    return layer


def check_cache(cache: Cache, heads: Iterable[Any]) -> None:
    """Raise UserError unless the cache's sums cover all its tokens and belong to these heads."""
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
