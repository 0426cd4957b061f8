"""Prefix-mean features of every answer token, from one forward pass per example, and their cache on disk.

    x_t = (1/|{s <= t, m_s = 1}|) Σ_{s <= t} m_s H_s      the paper's MeanPool over the context (Section 2.3)

H are the base's last hidden states (after its final norm, before the output layer, which never runs) and m the
attention mask. The feature x_{t-1} belongs to the target y_t: it averages everything the base has read when it
predicts y_t, the prompt and the beginning-of-sequence token included, and never y_t itself.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from t3lib.errors import UserError
from t3lib.feature_cache import FeatureFile, fingerprint
from t3lib.files import content_key
from t3lib.models import check_ids, context_length, decoder_of, pad_id
from t3lib.progress import progress_bar
from t3lib.tofu import Example, Row, check_disjoint, collate, encode_rows, length_sorted, shifted_labels

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Features:
    """One classification problem: N answer tokens of n_rows rows.

    x (N, d) float32 or bfloat16, perhaps memory-mapped: treat it as read-only. y (N,) int64 next token. row (N,) int64,
    ascending: the tokens of one row are neighbours. s (n_rows,) 1 = retain, 0 = forget. device: where the base was,
    and so where a head is fitted unless the caller says otherwise.
    """

    x: Tensor
    y: Tensor
    row: Tensor
    s: Tensor
    device: str = "cpu"

    @property
    def starts(self) -> Tensor:
        """(n_rows + 1,) row i owns the tokens starts[i] … starts[i + 1] − 1."""
        return torch.searchsorted(self.row.contiguous(), torch.arange(len(self.s) + 1))

    @property
    def gamma(self) -> float:
        """γ, the forget proportion of the population, counted in rows."""
        return float((self.s == 0).double().mean())


def prefix_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """x_t = Σ_{s<=t} m_s H_s / Σ_{s<=t} m_s   (MeanPool of Section 2.3, for every prefix at once).

    hidden (B, L, d) any float dtype, mask (B, L) 0/1 -> (B, L, d) float32. Masked positions may hold anything, NaN
    included. Positions before the first visible one are 0.
    """
    visible = mask.bool()
    total = hidden.float().masked_fill(~visible.unsqueeze(-1), 0.0).cumsum(1)
    return total / visible.cumsum(1).clamp(min=1).unsqueeze(-1)


def extract_features(
    model: PreTrainedModel,
    tokenizer: Any,
    forget_rows: Sequence[Row],
    retain_rows: Sequence[Row],
    *,
    attention_mask: str = "lengths",
    batch_tokens: int = 8192,
    dtype: str | None = None,
    cache: str | Path | None = None,
    progress: bool = True,
) -> Features:
    """Features of every answer token of all rows (forget first), each example read once by the decoder alone.

    attention_mask: "lengths" or "openunlearning" (see `tofu.collate`). batch_tokens: most padded tokens of a forward
    pass; halved with a message when memory runs out. dtype: float32 or bfloat16 of the stored x, by default float32
    for a float32 base and bfloat16 otherwise. cache: a folder for memory-mapped files named by content; a run that was
    killed resumes there, and rows whose bytes do not match their checksum are extracted again, with a message.
    Without a cache x is in memory.

    UserError names the row for an answer that tokenises to nothing, a row in both lists, a row longer than the base's
    context, an empty list, a full disk or a folder that cannot be written.
    """
    for name, rows in (("forget", forget_rows), ("retain", retain_rows)):
        if not rows:
            raise UserError(f"the {name} set is empty: a classifier needs rows of both kinds")
    if dtype not in (None, *DTYPES):
        raise UserError(f"unknown dtype {dtype!r} for features: choose float32 or bfloat16")
    if batch_tokens < 1:
        raise UserError(f"batch_tokens must be at least 1, not {batch_tokens}")
    check_disjoint(forget_rows, retain_rows)
    examples = _encode(tokenizer, forget_rows, "forget") + _encode(tokenizer, retain_rows, "retain")
    _check_context(model, examples, len(forget_rows))
    pad = pad_id(tokenizer)
    check_ids(model, (example.ids for example in examples), pad)
    stored = DTYPES[dtype] if dtype else torch.float32 if model.dtype == torch.float32 else torch.bfloat16

    counts = torch.tensor([len(example.ids) - example.n_prompt for example in examples])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    shape = (int(starts[-1]), model.config.get_text_config().hidden_size)
    y = torch.tensor([token for example in examples for token in example.ids[example.n_prompt :]])
    row = torch.arange(len(examples)).repeat_interleave(counts)
    s = torch.cat([torch.zeros(len(forget_rows)), torch.ones(len(retain_rows))]).long()

    lengths = [len(example.ids) for example in examples]
    read = _reader(model, examples, pad, attention_mask, stored)
    if cache is None:
        x = torch.empty(shape, dtype=stored)
        _stream(read, lengths, range(len(examples)), batch_tokens, _into(x, starts), progress)
    else:
        parts = {
            "model": fingerprint(model),
            "rows": content_key([list(forget_rows), list(retain_rows)]),
            "template or tokenizer": content_key([(example.ids, example.n_prompt) for example in examples]),
            "attention mask": [attention_mask, pad],
            "dtype": str(stored),
        }
        with FeatureFile(Path(cache), parts, shape[1], stored, starts.tolist()) as file:
            _stream(read, lengths, file.missing, batch_tokens, file.write, progress)
            x = file.map()
    return Features(x, y, row, s, device=str(model.device))


Keep = Callable[[Sequence[int], Sequence[Tensor]], None]


def _into(x: Tensor, starts: Tensor) -> Keep:
    def keep(rows: Sequence[int], values: Sequence[Tensor]) -> None:
        for index, value in zip(rows, values):
            x[starts[index] : starts[index + 1]] = value

    return keep


def _encode(tokenizer: Any, rows: Sequence[Row], name: str) -> list[Example]:
    try:
        return encode_rows(tokenizer, rows)
    except UserError as error:
        raise UserError(f"{name} {error}") from None


def _check_context(model: PreTrainedModel, examples: Sequence[Example], n_forget: int) -> None:
    limit = context_length(model)
    for number, example in enumerate(examples, 1):
        if limit is not None and len(example.ids) > limit:
            name = f"forget row {number}" if number <= n_forget else f"retain row {number - n_forget}"
            raise UserError(f"{name} has {len(example.ids)} tokens, more than the model's context of {limit}")


Reader = Callable[[list[int]], list[Tensor]]


def _reader(
    model: PreTrainedModel, examples: Sequence[Example], pad: int, attention_mask: str, dtype: torch.dtype
) -> Reader:
    """A function from row numbers to their features, one (answer tokens, d) tensor a row, in memory of the CPU."""
    decoder = decoder_of(model)
    device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[assignment]

    @torch.inference_mode()
    def read(rows: list[int]) -> list[Tensor]:
        batch = collate([examples[index] for index in rows], pad, attention_mask)
        ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
        hidden = decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        pooled = prefix_mean(hidden, mask.to(hidden.device))[:, :-1]
        _, answer = shifted_labels(batch["labels"])
        return list(pooled[answer.to(pooled.device)].to("cpu", dtype).split(answer.sum(1).tolist()))

    return read


def _stream(
    read: Reader,
    lengths: Sequence[int],
    todo: Sequence[int],
    batch_tokens: int,
    keep: Keep,
    progress: bool,
) -> None:
    """Read `todo` in length-sorted batches, longest first; out of memory halves the batches that are left."""
    batches = _batches(todo, lengths, batch_tokens)
    bar = progress_bar(total=sum(lengths[i] for i in todo), unit="tok", desc="features", show=progress)
    with bar:
        while batches:
            rows = batches.popleft()
            try:
                values = read(rows)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                values = None
            if values is None:  # outside `except`, so that the failed pass's tensors are free before the next one
                left = [*rows, *(index for batch in batches for index in batch)]
                batch_tokens = _halved(rows, lengths)
                batches = _batches(left, lengths, batch_tokens)
                continue
            keep(rows, values)
            bar.update(sum(lengths[index] for index in rows))


def _batches(rows: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> deque[list[int]]:
    return deque([rows[i] for i in part] for part in length_sorted([lengths[i] for i in rows], batch_tokens))


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "allocate memory" in str(error) or "out of memory" in str(error).lower()


def _halved(rows: Sequence[int], lengths: Sequence[int]) -> int:
    if len(rows) == 1:
        raise UserError(
            f"out of memory on one row of {lengths[rows[0]]} tokens: load the base smaller (--load-in 8bit or 4bit)"
        )
    used = len(rows) * max(lengths[index] for index in rows)
    log.warning("features: out of memory with %d tokens a batch; going on with %d", used, used // 2)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return used // 2
