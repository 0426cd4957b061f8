"""The classifier's input for every answer token.

    x_t = MeanPool(H_1 … H_t)      (Section 2.3; `pooling.prefix_mean`)

H are the base's last hidden states (after its final norm; the output layer is not run). The feature
x_{t-1} belongs to the target y_t. It averages everything that the base has read when it predicts
y_t, the prompt and the beginning-of-sequence token included, and never y_t itself. Each row is read
once.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from t3lib.classifier.pooling import mean_of, prefix_sums
from t3lib.core.errors import UserError
from t3lib.core.models import (
    CACHE,
    cache_of,
    check_ids,
    context_length,
    decoder_of,
    evaluating,
    pad_id,
    within_memory,
)
from t3lib.core.progress import progress_bar
from t3lib.core.rows import (
    Example,
    Row,
    check_disjoint,
    collate,
    encode_rows,
    length_sorted,
    shared_start,
    shifted_labels,
)

BATCH_TOKENS = 8192
Keep = Callable[[list[int], Tensor], object]  # (indices of rows, their features row after row)


@dataclass(frozen=True)
class Features:
    """The data of one classification problem: N answer tokens of n_rows rows.

    x: (N, d) features, float32 or bfloat16.
    y: (N,) int64, the token that follows.
    row: (N,) int64, the token's row, ascending.
    s: (n_rows,) the label of each row, 1 = retain, 0 = forget.
    device: of the base, and by default of the fit.
    """

    x: Tensor
    y: Tensor
    row: Tensor
    s: Tensor
    device: str = "cpu"

    @property
    def starts(self) -> Tensor:
        """Offsets (n_rows + 1,): row i has the tokens starts[i] … starts[i + 1] − 1."""
        return torch.searchsorted(self.row.contiguous(), torch.arange(len(self.s) + 1))

    @property
    def gamma(self) -> float:
        """γ, the forget rows' share of all rows."""
        return float((self.s == 0).double().mean())


def tokens_of(rows: Sequence[int] | np.ndarray, starts: Tensor) -> Tensor:
    """Return the indices of all tokens of some rows, in the order of `rows`.

    starts: see `Features.starts`.
    """
    index = torch.as_tensor(rows)
    first, count = starts[index], starts[index + 1] - starts[index]
    shift = first - count.cumsum(0) + count
    return torch.arange(int(count.sum())) + shift.repeat_interleave(count)


def width_of(model: PreTrainedModel) -> int:
    """Return d, how many numbers the last hidden state of a token has.

    It is the config's hidden size, except where a layer projects the last states (OPT-350m).
    """
    config = model.config.get_text_config()
    return getattr(config, "word_embed_proj_dim", None) or config.hidden_size


@torch.inference_mode(False)  # tensors of inference mode could not be trained on
def extract_features(
    model: PreTrainedModel,
    tokenizer: Any,
    forget_rows: Sequence[Row],
    retain_rows: Sequence[Row],
    *,
    attention_mask: str = "lengths",
) -> Features:
    """Compute the features of every answer token of all rows, forget rows first.

    forget_rows, retain_rows: rows with question and answer (see `rows.encode_rows`).
    attention_mask: "lengths" or "openunlearning" (see `rows.collate`).

    x is float32 for a float32 base and bfloat16 otherwise. A forward pass has at most
    `BATCH_TOKENS` padded tokens (or one row), halved with a warning when memory runs out.
    UserError, naming the row where there is one, for an empty list, an answer without tokens, a row
    in both lists, or a row longer than the base's context.
    """
    for name, rows in (("forget", forget_rows), ("retain", retain_rows)):
        if not rows:
            raise UserError(f"the {name} set is empty: a classifier needs rows of both kinds")
    check_disjoint(forget_rows, retain_rows)

    examples = encode_within_context(model, tokenizer, forget_rows, "forget")
    examples += encode_within_context(model, tokenizer, retain_rows, "retain")
    pad = pad_id(tokenizer)
    check_ids(model, (example.ids for example in examples), pad)

    def batch_of(rows: Sequence[int]) -> tuple[int, dict[str, Tensor]]:
        some = [examples[row] for row in rows]
        begun = shared_start([each.prompt for each in some])
        return begun, collate(some, pad, attention_mask)

    # Each batch is written to its place in x, whatever the order of the batches.
    answers = [example.answer for example in examples]
    counts = torch.tensor([len(answer) for answer in answers])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    dtype = torch.float32 if model.dtype == torch.float32 else torch.bfloat16
    x = torch.empty((int(starts[-1]), width_of(model)), dtype=dtype)

    def keep(rows: list[int], values: Tensor) -> None:
        x.index_copy_(0, tokens_of(rows, starts), values.to(dtype))

    _extract(model, [len(example.ids) for example in examples], batch_of, keep)
    return Features(
        x,
        y=torch.tensor([token for answer in answers for token in answer]),
        row=torch.arange(len(examples)).repeat_interleave(counts),
        s=torch.cat([torch.zeros(len(forget_rows)), torch.ones(len(retain_rows))]).long(),
        device=str(model.device),
    )


def encode_within_context(
    model: PreTrainedModel, tokenizer: Any, rows: Sequence[Row], name: str
) -> list[Example]:
    """Tokenise rows; UserError for a row longer than the model's context.

    name: "forget" or "retain", the start of the message.
    """
    try:
        examples = encode_rows(tokenizer, rows)
    except UserError as error:
        raise UserError(f"{name} {error}") from None
    limit = context_length(model)
    for number, length in enumerate((len(example.ids) for example in examples), 1):
        if limit is not None and length > limit:
            raise UserError(
                f"{name} row {number} has {length} tokens, more than the model's context of {limit}"
            )
    return examples


def _extract(
    model: PreTrainedModel,
    lengths: Sequence[int],
    batch_of: Callable[[Sequence[int]], tuple[int, dict[str, Tensor]]],
    keep: Keep,
) -> None:
    """Run the decoder on all rows, longest first; pass each batch's features to `keep`.

    lengths: number of tokens of each row. batch_of(rows): how many first tokens of these rows are
    read once (`shared_start`), and the rows, padded by `rows.collate`.
    keep(rows, features): the features lie on the CPU, row after row, one line for each answer
    token.
    """
    decoder = decoder_of(model)
    device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[assignment]
    able = functools.cache(functools.partial(_reads_on, model, device))  # a trial, made once

    @torch.inference_mode()
    def read(batch_tokens: int) -> None:
        with progress_bar(total=sum(lengths), unit="tok", desc="features") as bar:
            for rows in length_sorted(lengths, batch_tokens):
                begun, batch = batch_of(rows)
                begun = begun if begun and able() else 0
                ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
                pooled = mean_of(_running_sums(decoder, ids, mask, begun))[:, :-1]
                _, answer = shifted_labels(batch["labels"][:, begun:])
                keep(rows, pooled[answer.to(pooled.device)].cpu())
                bar.update(sum(lengths[row] for row in rows))

    # The longest rows come first, so that memory, if it is too small, runs out at once.
    within_memory(read, BATCH_TOKENS, least=max(lengths))


def _running_sums(decoder: nn.Module, ids: Tensor, mask: Tensor, begun: int) -> Tensor:
    """Return `prefix_sums` (B, L - begun, d + 1) of the last hidden states of rows (B, L).

    begun: how many first tokens of all rows are equal and are read once. Their sums are left out.
    """
    with evaluating(decoder):
        if not begun:
            hidden = decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            return prefix_sums(hidden, mask.to(hidden.device))
        first = decoder(input_ids=ids[:1, :begun], attention_mask=mask[:1, :begun], use_cache=True)
        cache = cache_of(first)
        cache.reorder_cache(torch.zeros(len(ids), dtype=torch.int64, device=ids.device))
        rest = decoder(
            input_ids=ids[:, begun:], attention_mask=mask, **{CACHE: cache}, use_cache=True
        ).last_hidden_state
    sums = prefix_sums(first.last_hidden_state, mask[:1, :begun].to(rest.device))[:, -1:]
    return sums + prefix_sums(rest, mask[:, begun:].to(rest.device))


@torch.inference_mode()
def _reads_on(model: PreTrainedModel, device: torch.device) -> bool:
    """Return True if a model reads rows on from the cache of their beginning as it reads them
    whole.

    It is tried on two rows of 9 and 7 tokens. Some families have no cache that can be used so.
    """
    decoder, vocab_size = decoder_of(model), model.config.get_text_config().vocab_size
    ids = (torch.arange(9, device=device)[None] * 7 % (vocab_size - 3) + 3).repeat(2, 1)
    ids[1, 5:], mask = ids[0, 4], torch.ones_like(ids)
    mask[1, 7:] = 0
    try:
        whole = _running_sums(decoder, ids, mask, 0)[:, 4:]
        found = _running_sums(decoder, ids, mask, 4)
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # of any kind, because the model's code is not ours
        return False
    read = mask[:, 4:].bool().to(whole.device)
    found, wanted = mean_of(found)[read], mean_of(whole)[read]
    rounding = 1e-4 if model.dtype == torch.float32 else 0.05
    return bool((found - wanted).abs().max() <= rounding * wanted.abs().max())
