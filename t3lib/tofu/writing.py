"""Decode many texts at once; texts with the same prefix share the model's forward pass.

A writer is one text being decoded: the greedy answer of one tilt (head, T), or one of many samples.
A state is one prefix, with all writers that have reached it. In each step the model reads the
newest token of every state once, every writer chooses its next token, and writers of one state that
choose the same token stay together. Tilted models mostly repeat the base's own text, and 64 samples
of a memorised answer are mostly the same text, so the model often reads little more than one text.

Greedy text is what Hugging Face's `generate` writes, token for token, without the penalties that a
checkpoint's generation_config may set, because the model itself is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicLayer

from t3lib.classifier.pooling import mean_of, prefix_sums
from t3lib.core.models import cache_of, within_memory
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Example, collate
from t3lib.core.settings import check_temperature
from t3lib.sampler.tilt import tilted
from t3lib.sampler.wrapped import check_finite
from t3lib.tofu.likelihood import UNTILTED, Tilt, chunk_rows, heads_of
from t3lib.tofu.reader import Reader, Reading

# New tokens after which the unfinished writers are put into new batches. The old batches are then
# partly empty, because other writers have finished.
STAGE = 64
# Padded tokens in a batch. More than for scoring, because a step has one row of logits a state.
BATCH_TOKENS = 2**14
# Bytes of keys and values in a batch on a GPU, where a step of a small model takes as long for many
# rows as for few. They hold BATCH_TOKENS tokens of Llama-3.1-8B in bfloat16.
GPU_CACHE = 2**31

State = tuple[tuple[int, ...], tuple[int, ...]]  # tokens of a prompt, and of its answer so far
Choose = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]  # see `write_texts`


class OneCopy(DynamicLayer):
    """A cache layer that chooses rows and takes in the next token in one copy instead of two."""

    chosen: Tensor | None = None  # rows, chosen since the last token

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Remember the rows (n,) that are to be chosen when the next token comes."""
        self.chosen = beam_idx if self.chosen is None else self.chosen[beam_idx]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the chosen rows, those of the new tokens last."""
        rows, self.chosen = self.chosen, None
        if rows is None or not self.get_seq_length():
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys, self.values = (
            _appended(old, rows, new)
            for old, new in ((self.keys, key_states), (self.values, value_states))
        )
        return self.keys, self.values


def _appended(old: Any, rows: Tensor, new: Tensor) -> Tensor:
    """Return the chosen rows of `old`, and `new` after them, along the last dimension but one."""
    n = old.shape[-2]
    whole = old.new_empty(*new.shape[:-2], n + new.shape[-2], new.shape[-1])
    torch.index_select(old, 0, rows.to(old.device), out=whole[..., :n, :])
    whole[..., n:, :] = new
    return whole


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    reading: Reading,
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    max_new_tokens: int | Sequence[int] = 200,
    begun: Sequence[Sequence[Sequence[int]]] | None = None,
) -> list[list[list[int]]]:
    """Decode the greedy answer of p^(1/T) f to every prompt, for every tilt (head, T).

    model: any causal LM with a cache, the base of the tilts.
    prompts: token ids.
    reading: its batch_tokens limits the padded tokens in the cache (one row is always taken).
    tilts: by default the model alone.
    max_new_tokens: of every answer, or one number for each prompt.
    begun: first tokens of the answers where they are known, in the form of the result.

    Returns n_tilts lists of n_prompts answers as token ids, with the end-of-sequence token if it
    was reached. UserError for a T that is not positive and for a model whose logits are not finite.
    """
    for _, T in tilts:
        check_temperature(T, allow_sharpening=True)
    reader = Reader(model, heads_of(tilts))
    most = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens

    def answers(batch_tokens: int) -> list[list[list[int]]]:
        sized = replace(reading, batch_tokens=batch_tokens)
        first = begun or [[()] * len(prompts)] * len(tilts)
        return _greedy_answers(reader, prompts, most, tilts, sized, first)

    return within_memory(answers, reading.batch_tokens or default_cached_tokens(model))


def default_cached_tokens(model: Any) -> int:
    """Return the default number of padded tokens in a batch of texts that are written.

    It is `BATCH_TOKENS`. On a GPU it is the number of tokens whose keys and values take `GPU_CACHE`
    bytes, if that is more. A model whose configuration does not name the sizes of its attention has
    `BATCH_TOKENS` there, too.
    """
    config = model.config.get_text_config()
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    sizes: list[Any] = [getattr(config, name, None) for name in names]
    if model.device.type != "cuda" or not all(isinstance(size, int) for size in sizes):
        return BATCH_TOKENS
    layers, heads, hidden = sizes
    width = getattr(config, "head_dim", None) or hidden // heads
    groups = getattr(config, "num_key_value_heads", None)
    kept = 2 * layers * (groups if isinstance(groups, int) else heads) * width
    return max(BATCH_TOKENS, GPU_CACHE // (kept * model.dtype.itemsize))


def _greedy_answers(
    reader: Reader, prompts: Sequence[Sequence[int]], most: Sequence[int],
    tilts: Sequence[Tilt], reading: Reading, begun: Sequence[Sequence[Sequence[int]]],
) -> list[list[list[int]]]:  # fmt: skip
    """Do the work of `greedy` with a fixed number of batch tokens.

    most: number of new tokens for each prompt.
    """
    answers = [[list(start[:n]) for start, n in zip(of_tilt, most)] for of_tilt in begun]

    def unfinished(t: int, i: int) -> bool:
        return len(answers[t][i]) < most[i] and answers[t][i][-1:] not in ends

    ends = [[token] for token in reading.eos_ids]
    every = [(t, i) for t in range(len(tilts)) for i in range(len(prompts))]
    pending = [each for each in every if unfinished(*each)]
    bar = progress_bar(total=len(pending), desc="generating", leave=False)

    while pending:
        # Writers are grouped by what is already written, since these share their passes.
        at: dict[State, list[tuple[int, int]]] = {}
        for t, i in pending:
            at.setdefault((tuple(prompts[i]), tuple(answers[t][i])), []).append((t, i))
        states = list(at)
        lengths = [len(prompt) + len(begun) + STAGE for prompt, begun in states]

        for batch in reader.batches(lengths, reading.batch_tokens or BATCH_TOKENS):
            here = [states[s] for s in batch]
            writers = [writer for state in here for writer in at[state]]
            place = [place for place, state in enumerate(here) for _ in at[state]]
            choose = _likeliest(reader, [tilts[t] for t, _ in writers])
            room = [min(STAGE, most[i] - len(answers[t][i])) for t, i in writers]
            new = write_texts(reader, here, place, room, choose, reading)
            for (t, i), tokens in zip(writers, new):
                answers[t][i] += tokens

        # A stage ends before long texts do, so that finished ones leave the batch.
        left = [each for each in pending if unfinished(*each)]
        bar.update(len(pending) - len(left))
        pending = left
    bar.close()
    return answers


@torch.no_grad()
def write_texts(
    reader: Reader,
    states: Sequence[State],
    at: Sequence[int],
    room: Sequence[int],
    choose: Choose,
    reading: Reading,
) -> list[list[int]]:
    """Decode the texts of n writers from given states; return their new tokens as lists.

    states: S prompts with what is written of their answers.
    at: the state of each writer at the start.
    room: the number of new tokens that each writer may have; none gives an empty text.
    choose(logits, z, writer, state): returns the next tokens (m,) of the m writers that continue.
    logits are (S, V), z (S, R) the pooled projections of the reader's heads or None, writer (m,)
    and state (m,) indices.

    A text ends with its end-of-sequence token or when its room is used up. If the states no longer
    fit into reading.batch_tokens, the writers of the last states stop early, with at least one new
    token each, and the caller continues them. If the reader reads rows alone, texts are decoded one
    after another.
    """
    if reader.alone and len(at) > 1:
        return _one_by_one(reader, states, at, room, choose, reading)
    device, limit = reader.model.device, reading.batch_tokens
    state, end, most = (torch.tensor(each, device=device) for each in (at, reading.eos_ids, room))
    written = torch.full((len(state), max(room)), -1, device=device)
    state, writer = state[most > 0], (most > 0).nonzero()[:, 0]
    read = _read_states(reader, states, reading, max(room))

    for step in range(max(room)):
        logits = read.output.logits[:, -1]
        token = choose(logits, None if read.sums is None else mean_of(read.sums), writer, state)
        written[writer, step] = token

        # Writers go on until their text ends or their room is used up.
        going = ~torch.isin(token, end) & (step + 1 < most[writer])
        writer = writer[going]

        # Writers of one state that chose the same token share the next state.
        size = logits.shape[-1]
        begun, state = torch.unique((state * size + token)[going], return_inverse=True)

        # States that no longer fit into a batch are left to the caller.
        fit = len(begun) if limit is None else max(1, limit // (read.mask.shape[1] + 1))
        if len(begun) > fit:
            begun, fits = begun[:fit], state < fit
            writer, state = writer[fits], state[fits]

        if not len(writer):
            break
        read = _read_on(reader, read, begun // size, begun % size)
    return [tokens[: tokens.index(-1)] if -1 in tokens else tokens for tokens in written.tolist()]


def _one_by_one(
    reader: Reader, states: Sequence[State], at: Sequence[int], room: Sequence[int],
    choose: Choose, reading: Reading,
) -> list[list[int]]:  # fmt: skip
    """Do the work of `write_texts` with one text at a time."""

    def for_writer(number: int) -> Choose:
        return lambda logits, z, writer, state: choose(logits, z, writer + number, state)

    return [
        write_texts(reader, [states[state]], [0], [room[number]], for_writer(number), reading)[0]
        for number, state in enumerate(at)
    ]


@dataclass(frozen=True)
class _Read:
    """What the model has read of S states.

    output: the model's, for the newest tokens; it holds the cache.
    mask (S, L): visible tokens of the cache.
    position (S, 1): of the newest token.
    sums (S, R + 1): `prefix_sums` of all heads' projections over the visible tokens, or None.
    """

    output: Any
    mask: Tensor
    position: Tensor
    sums: Tensor | None


def _read_states(reader: Reader, states: Sequence[State], reading: Reading, more: int) -> _Read:
    """Read prompts with their partial answers in one batch. `more` tokens may follow."""
    texts = [prompt + begun for prompt, begun in states]
    ids, mask = (tensor.to(reader.model.device) for tensor in _left_padded(states, reading))
    position = (mask.cumsum(-1) - 1).clamp(min=0)  # as `generate`: hidden tokens do not count
    output, mask, sums = reader.prefill(texts, ids, position, mask, more)

    for layer in getattr(cache_of(output), "layers", ()):
        if type(layer) is DynamicLayer:  # other kinds move more than keys and values
            layer.__class__ = OneCopy
    return _Read(output, mask, position[:, -1:], sums)


def _read_on(reader: Reader, read: _Read, parent: Tensor, token: Tensor) -> _Read:
    """Read the next tokens (n,) of states `parent` (n,), and move the cache's rows to them."""
    cache, mask = cache_of(read.output), read.mask
    if len(parent) != len(mask) or not torch.equal(
        parent, torch.arange(len(mask), device=parent.device)
    ):
        # The only method that also moves the state of layers without keys.
        cache.reorder_cache(parent)

    mask = torch.cat([mask[parent], mask.new_ones(len(parent), 1)], dim=1)
    position, sums = read.position[parent] + 1, read.sums
    output, z = reader(token[:, None], position, attention_mask=mask, cache=cache)
    if z is not None and sums is not None:
        sums = sums[parent] + prefix_sums(z)[:, -1]
    return _Read(output, mask, position, sums)


def _likeliest(reader: Reader, tilts: Sequence[Tilt]) -> Choose:
    """Return the `choose` of greedy decoding: argmax_y log p(y)/T + log f(y).

    tilts: one for each writer, with heads of the reader.
    """
    heads, device = reader.heads, reader.model.device
    numbers = {id(head): number for number, head in enumerate(heads)}
    whose = torch.tensor(
        [-1 if head is None else numbers[id(head)] for head, _ in tilts], device=device
    )
    temperature = torch.tensor([T for _, T in tilts], dtype=torch.float32, device=device)
    whole = nn.ModuleDict({"base": reader.model, "heads": nn.ModuleList(heads)})
    ranks = [head.rank for head in heads]

    def choose(logits: Tensor, z: Tensor | None, writer: Tensor, state: Tensor) -> Tensor:
        # The result without a head, at any T.
        score, token = (of_states[state] for of_states in logits.float().max(-1))

        if z is not None:
            rows, T = max(16, chunk_rows(logits)), temperature[writer, None]
            order = state.argsort()  # writers of one state together, so that log f is computed once
            for number, (head, pooled) in enumerate(zip(heads, z.split(ranks, -1))):
                for part in order[whose[writer[order]] == number].split(rows):
                    at, of = state[part].unique(return_inverse=True)
                    here, logf = logits[state[part]], head.logf(pooled[at])[of]
                    scores = tilted(here, [logf], [head], T[part], head.gate, head.tail)
                    score[part], token[part] = scores.max(-1)

        check_finite(whole, score)
        return token

    return choose


def _left_padded(states: Sequence[State], reading: Reading) -> tuple[Tensor, Tensor]:
    """Pad prompts with their partial answers; return input_ids and attention_mask (S, L).

    All answer tokens are visible, as in `generate`.
    """
    examples = [Example([*prompt, *begun], len(prompt)) for prompt, begun in states]
    batch = collate(examples, reading.pad_id, reading.attention_mask, side="left")
    for row, (_, begun) in zip(batch["attention_mask"], states):
        row[len(row) - len(begun) :] = 1
    return batch["input_ids"], batch["attention_mask"]


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return all tokens that end a generation: the generation config's, else the tokenizer's."""
    known = model.generation_config.eos_token_id
    if known is None:
        known = tokenizer.eos_token_id
    return [] if known is None else [known] if isinstance(known, int) else list(known)
