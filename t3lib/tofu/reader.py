"""Read texts with a key-value cache, in the way that is found by trials for each model.

`Reading` says how texts are put into batches. `Reader` runs a model on them and keeps its cache.
Not every model reads a text from its cache as it reads it without: some take no padded rows, some
no more than one token after a cache, some cannot reorder their rows. `_way_to_read` tries the ways
on a few tokens, the fastest first, and takes the first that changes nothing.
"""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from t3lib.classifier.head import T3Head
from t3lib.classifier.pooling import prefix_sums
from t3lib.core.errors import UserError
from t3lib.core.models import CACHE, cache_of, decoder_of, evaluating, forward_arguments
from t3lib.core.rows import length_sorted, shared_start
from t3lib.sampler.wrapped import HiddenStates, cuts_states, plain_base


@dataclass(frozen=True)
class Reading:
    """How texts are put into batches, the same in every pass of a model.

    pad_id: token that fills short rows.
    eos_ids: tokens that end a decoded answer.
    attention_mask: "lengths" or "openunlearning", see `rows.collate`.
    batch_tokens: padded tokens in a batch, halved with a warning when memory runs out; None chooses
    a number that suits the work.
    """

    pad_id: int
    eos_ids: Sequence[int] = ()
    attention_mask: str = "lengths"
    batch_tokens: int | None = None


class Reader:
    """Run a model, with a key-value cache and with heads that read its final hidden states.

    padded: True if rows of several lengths can share a batch, because the model takes position ids.
    at_once: True if several tokens can follow a cache in one call.
    alone: True if a batch has only one row, because the rows of the model's cache cannot be
    reordered.
    begins: True if texts may share the cache of what they begin with, with padding after it.

    All four are found by trials, once for each model. The heads are moved to the model's device.

    UserError for heads on a model that is already unlearned, and for a model whose results differ
    with and without its cache.
    """

    def __init__(self, model: Any, heads: Sequence[T3Head]) -> None:
        if heads:
            plain_base(model)
        opened = (
            model.get_base_model() if hasattr(model, "get_base_model") else model
        )  # PEFT's forward has no named arguments
        options = forward_arguments(opened)
        self.positions = "position_ids" in options
        last: Any = torch.tensor([-1], device=model.device) if heads and cuts_states(opened) else 1
        self.last_logits = {"logits_to_keep": last} if "logits_to_keep" in options else {}
        self.model, self.heads, self.alone = model, [], False
        self.padded = self.at_once = self.begins = True
        self.window = window_of(model)
        if model not in _WAYS:
            _WAYS[model] = _way_to_read(self)
        self.padded, self.at_once, self.alone, self.begins = _WAYS[model]
        self.heads = [head.to(model.device) for head in heads]

    def __call__(
        self,
        ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, Tensor | None]:
        """Run ids (B, L); return the model's output, and z (B, L, R) of all heads or None.

        attention_mask: (B, cached and new tokens). cache: as in the output of an earlier call. R is
        the sum of the heads' ranks.
        """
        kwargs[CACHE] = cache
        if cache is None or self.at_once:
            return self._call(ids, position_ids, attention_mask, **kwargs)
        read = attention_mask.shape[1] - ids.shape[1]
        columns = zip(ids.split(1, 1), position_ids.split(1, 1))
        steps = [
            self._call(*column, attention_mask[:, : read + step], **kwargs)
            for step, column in enumerate(columns, 1)
        ]
        output = steps[-1][0]
        output.logits = torch.cat([step.logits for step, _ in steps], dim=1)
        pooled = [z for _, z in steps if z is not None]
        return output, torch.cat(pooled, dim=1) if pooled else None

    def _call(
        self, ids: Tensor, position_ids: Tensor, attention_mask: Tensor, **kwargs: Any
    ) -> tuple[Any, Tensor | None]:
        kwargs |= {"input_ids": ids, "attention_mask": attention_mask, "use_cache": True}
        if self.positions and self.padded:
            kwargs["position_ids"] = position_ids
        if not self.heads:
            with evaluating(self.model):
                return self.model(**kwargs), None
        states = HiddenStates(threading.get_ident())
        with decoder_of(self.model).register_forward_hook(states), evaluating(self.model):
            output = self.model(**kwargs)
        hidden = states.take().to(self.model.device)  # the last layers may lie on another one
        return output, torch.cat([head.project(hidden) for head in self.heads], dim=-1)

    def prefill(
        self,
        texts: Sequence[Sequence[int]],
        ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        more: int,
    ) -> tuple[Any, Tensor, Tensor | None]:
        """Read S texts, and the tokens with which all of them begin only once.

        texts: token ids. ids, position_ids, attention_mask (S, L): of the texts, left-padded.
        more: how many tokens may follow.

        Returns the model's output for the last token, the attention mask (S, L) of its cache, and
        `prefix_sums` of all heads' projections over each text, (S, R + 1), or None. In the cache,
        the padding of shorter texts comes after the shared beginning.
        """
        width = ids.shape[1]
        # Padding after the beginning would push that out of the window of local attention.
        fits = self.window is None or width + more <= self.window
        rows = zip(texts, attention_mask.tolist())
        # A text may hide a token of its prompt that another one has written.
        tokens = [[*zip(text, visible[-len(text) :])] for text, visible in rows]
        n = shared_start(tokens) if self.begins and fits else 0
        lengths = torch.tensor([len(text) for text in texts], device=ids.device)
        return self.begun(n, ids, position_ids, attention_mask, lengths)

    def begun(
        self, n: int, ids: Tensor, position_ids: Tensor, attention_mask: Tensor, lengths: Tensor
    ) -> tuple[Any, Tensor, Tensor | None]:
        """Do the same as `prefill` for texts whose first n tokens are equal and to be read once.

        lengths (S,): number of tokens of each text, hidden ones included.
        """
        if not n:
            output, z = self(ids, position_ids, attention_mask, **self.last_logits)
            # The last of the running sums. The last digits of values.sum() would depend on the
            # number of heads.
            sums = None if z is None else prefix_sums(z, attention_mask)[:, -1]
            return output, attention_mask, sums
        longest, start = [int(lengths.argmax())], ids.shape[1] - lengths
        column = torch.arange(ids.shape[1], device=ids.device)
        rest = attention_mask.masked_fill(column < start[:, None] + n, 0)
        mask = torch.where(column < n, attention_mask[longest], rest)
        first, z = self(
            ids[longest, :n], position_ids[longest, :n], mask[:1, :n], **self.last_logits
        )
        sums = None if z is None else prefix_sums(z, mask[:1, :n])[:, -1]
        cache = self.select(cache_of(first), torch.zeros_like(lengths))
        output, z = self(ids[:, n:], position_ids[:, n:], mask, cache, **self.last_logits)
        if z is not None and sums is not None:
            sums = sums + prefix_sums(z, mask[:, n:])[:, -1]
        return output, mask, sums

    def batches(
        self, sizes: Sequence[int], max_tokens: int, lengths: Sequence[int] | None = None
    ) -> list[list[int]]:
        """Group rows as `rows.length_sorted`, if rows can be padded and need not be read alone.
        Otherwise a batch has rows of one length, or one row.

        sizes: what rows take in memory, in tokens. lengths: of the rows, if these are others.
        """
        batches = length_sorted(sizes, 1 if self.alone else max_tokens)
        if self.padded:
            return batches
        length = (lengths or sizes).__getitem__
        return [
            list(alike)
            for batch in batches
            for _, alike in groupby(sorted(batch, key=length), length)
        ]

    def select(self, cache: Any, row: Tensor) -> Any:
        """Return a copy of a cache with these rows (n,); the old cache keeps its own.

        Layers replace their tensors before they write, so shallow copies are enough, unless rows
        are read alone.
        """
        if self.alone:
            return copy.deepcopy(cache)
        chosen = copy.copy(cache)
        chosen.layers = [copy.copy(layer) for layer in cache.layers]
        for layer in chosen.layers:  # linear attention keeps its states in dicts
            vars(layer).update(
                {
                    name: copy.copy(value)
                    for name, value in vars(layer).items()
                    if isinstance(value, dict)
                }
            )
        # The only method that also moves the state of layers without keys.
        chosen.reorder_cache(row)
        return chosen


def window_of(model: Any) -> int | None:
    """Return the smallest number of tokens that local attention of a model reads, or None.

    Configurations name it in many ways (sliding_window, attention_chunk_size, window_size). Layers
    that have a window (max_window_layers) and whether any has (use_sliding_window) are no sizes.
    """
    names = vars(model.config.get_text_config()).items()
    sizes = [
        size
        for name, size in names
        if ("window" in name or "chunk" in name) and "layers" not in name
    ]
    return min((size for size in sizes if type(size) is int and size > 0), default=None)


# (padded, at_once, alone, begins) by model
_WAYS: WeakKeyDictionary[Any, tuple[bool, bool, bool, bool]] = WeakKeyDictionary()


@torch.no_grad()
def _way_to_read(reader: Reader) -> tuple[bool, bool, bool, bool]:
    """Find (padded, at_once, alone, begins) for a model: the first way in which its cache changes
    nothing.

    In float32 the right (padded, at_once) differs from a plain pass by rounding only. With weights
    in other types it differs by far less than a wrong one (8 bits: by .02), and in bfloat16 padding
    alone changes the rounding (SmolLM2: by .06). Rows share a batch if their cache can be
    reordered. UserError if every way is wrong.
    """
    ways = [(True, True), (True, False), (False, True), (False, False)]
    errors: list[float] = []
    failures: list[Exception] = []
    size = reader.model.config.get_text_config().vocab_size
    row = torch.arange(8, device=reader.model.device)[None] * 7 % (size - 3) + 3  # no special ids

    def error_of(trial: Callable[[Reader, Tensor], float]) -> float:
        try:
            return trial(reader, row)
        except (UserError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as failure:  # of any kind, because the model's code is not ours
            failures.append(failure)
            return math.inf

    exact = reader.model.dtype == torch.float32 and not getattr(reader.model, "is_quantized", False)
    rounding = 1e-3 if exact else max(1e-3, min(0.1, 2 * error_of(_padding_error)))
    for reader.padded, reader.at_once in ways:
        errors.append(error_of(_cache_error))
        if not errors[-1] > rounding:  # NaN too: it has its own error elsewhere
            break
    if min(errors) > (0.01 if exact else 0.3):
        raise _unreadable(reader.model, failures)

    # The first way that is about as good as the best one.
    chosen = next(n for n, e in enumerate(errors) if not e > max(rounding, 3 * min(errors)))
    reader.padded, reader.at_once = ways[chosen]

    # Rows are read alone only where they cannot be reordered.
    rounding = max(rounding, errors[chosen])
    for reader.alone in (False, True):
        if not error_of(_order_error) > rounding:
            begins = not error_of(_begin_error) > rounding
            return reader.padded, reader.at_once, reader.alone, begins
    raise _unreadable(reader.model, failures)


def _unreadable(model: Any, failures: Sequence[Exception]) -> UserError:
    """Return the error for a model that cannot be read; it names the last failure, if any."""
    why = f" ({type(failures[-1]).__name__}: {failures[-1]})" if failures else ""
    return UserError(
        f"{type(model).__name__} reads a text from its cache otherwise than without: it cannot be"
        f" scored{why}"
    )


def _padding_error(reader: Reader, row: Tensor) -> float:
    """Read a row (1, 8) with padding after it, which no token sees; return the difference of its
    logits from a plain pass, in the unit of `_cache_error`.
    """
    ids = torch.cat([row, row[:, :7]], dim=1)
    mask = (torch.arange(15, device=row.device) < 8).long()[None]
    with evaluating(reader.model):
        plain = reader.model(input_ids=row, attention_mask=mask[:, :8]).logits[:, 4:].float()
        found = reader.model(input_ids=ids, attention_mask=mask).logits[:, 4:8].float()
    return float((found - plain).std() / plain.std())


def _cache_error(reader: Reader, row: Tensor) -> float:
    """Read a row (1, 8), the last 3 tokens from a cache; return the difference from a plain pass.

    It is the standard deviation of the logits' difference, in units of that of the logits.
    """
    with evaluating(reader.model):
        whole = reader.model(input_ids=row, attention_mask=torch.ones_like(row))
    hidden = 7 if reader.padded else 0
    ids = torch.cat([row[:, :hidden], row], dim=1)
    mask, position = (
        torch.ones_like(ids),
        (torch.arange(ids.shape[1], device=ids.device) - hidden).clamp(0)[None],
    )
    mask[:, :hidden] = 0
    first, _ = reader(ids[:, :-3], position[:, :-3], mask[:, :-3])
    if cache_of(first) is None:
        name = type(reader.model).__name__
        raise UserError(f"{name} has no key-value cache to score answers with")
    then, _ = reader(ids[:, -3:], position[:, -3:], mask, cache_of(first))
    plain = whole.logits[:, 4:7].float()
    logits = torch.cat([first.logits[:, -1:], then.logits[:, :2]], dim=1).float()
    return float((logits - plain).std() / plain.std())


def _order_error(reader: Reader, row: Tensor) -> float:
    """Read two rows from a copy of their cache in the other order, then from the cache itself.

    row: (1, 8) tokens, of which 5 are one row and 4 are the other. If rows are read alone, the
    first row is read from the copy and from the cache. Returns the difference of the logits, in the
    unit of `_cache_error`.
    """
    rows = row[:, :5] if reader.alone else torch.cat([row[:, :5], row[:, 3:]])
    order = torch.arange(len(rows), device=row.device).flip(0)
    mask, position = torch.ones_like(rows), torch.arange(5, device=row.device).expand_as(rows)
    mask[1:, -1] = 0
    first, _ = reader(rows[:, :3], position[:, :3], mask[:, :3])
    cache, last, place = cache_of(first), rows[:, 3:], position[:, 3:]
    copied = reader.select(cache, order)
    other, _ = reader(last[order], place, mask[order], copied)
    same, _ = reader(last, place, mask, cache)
    found, expected = (output.logits[:, 0].float() for output in (other, same))
    return float((found[order] - expected).std() / expected.std())


def _begin_error(reader: Reader, row: Tensor) -> float:
    """Read two texts that begin alike, of 8 and of 5 tokens, with a shared beginning and alone.

    row: (1, 8) tokens. Returns the difference of the logits, in the unit of `_cache_error`.
    """
    if reader.alone or not (reader.padded and reader.at_once):
        return math.inf
    texts = [row[0], torch.cat([row[0, :3], row[0, 5:7]])]
    lengths = torch.tensor([len(text) for text in texts], device=row.device)
    column = torch.arange(8, device=row.device).expand(2, -1)
    mask = (column >= 8 - lengths[:, None]).long()
    ids = torch.stack([texts[0], torch.cat([row[0, :3], texts[1]])])
    position = (column + lengths[:, None] - 8).clamp(0)
    found = reader.begun(3, ids, position, mask, lengths)[0].logits[:, -1].float()
    whole, _ = reader(ids, position, mask)
    plain = whole.logits[:, -1].float()
    return float((found - plain).std() / plain.std())
