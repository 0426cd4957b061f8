"""Sample answers from a model and its tilts. The audit samples nowhere else.

Samples that begin alike share forward passes (`writing`), those of different tilts too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from t3lib.core.models import pad_id, within_memory
from t3lib.core.progress import progress_bar
from t3lib.sampler.tilt import tilted
from t3lib.tofu.likelihood import UNTILTED, Reader, Reading, Tilt, chunk_rows, heads_of
from t3lib.tofu.writing import Choose, State, eos_ids, write_texts

# Tokens of all prompts and samples in memory at once. Large, because most steps have few states and
# cost almost the same for any number of them.
BATCH_TOKENS = 2**17
# States whose tokens are drawn at once. On a CPU this is faster than all together, and takes less
# memory; on a GPU a block of `chunk_rows` is.
STATES = 16


def sample_answers(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], count: int, **options: Any
) -> list[list[str]]:
    """Sample `count` answers to each prompt, and return (prompts, count) texts.

    model: any causal LM with a cache, including a T3ForCausalLM. options: as of `sample_tilts`.
    """
    return sample_tilts(model, tokenizer, prompts, count, UNTILTED, **options)[0]


def sample_tilts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    count: int,
    tilts: Sequence[Tilt],
    *,
    seed: int | Sequence[int],
    max_new_tokens: int | Sequence[int],
    top_p: float = 1.0,
    tau: float = 1.0,
    attention_mask: str = "lengths",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> list[list[list[str]]]:
    """Sample `count` answers of every tilt to each prompt; return (tilts, prompts, count) texts.

    model: any causal LM with a cache.
    prompts: token ids.
    tilts: pairs (head, T) on the model.
    seed: one seed for all prompts together, or one for each prompt. With one for each, the answers
    to a prompt do not depend on the other prompts.
    max_new_tokens: longest answer in tokens, for all prompts or one for each.
    top_p: nucleus of the sampler; 1 samples from the whole distribution.
    tau: the sampler's temperature. It is applied on top of T3's own T.
    batch_tokens: tokens of all prompts and samples in memory at once, halved with a warning when
    memory runs out.

    All tilts get the same random numbers. So where they are alike they say the same, and with a
    seed for each prompt in one forward pass. Equal arguments give equal answers on one machine. The
    global random state is not touched.
    """
    most = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    wanted, ends = _Wanted(count, seed, most, tau, top_p), eos_ids(model, tokenizer)
    reading = Reading(pad_id(tokenizer), ends, attention_mask, None, progress)
    decode = partial(tokenizer.decode, skip_special_tokens=True)

    def texts(some: Sequence[Tilt], size: int) -> list[list[list[str]]]:
        drawn = _tokens(Reader(model, heads_of(some)), prompts, some, wanted, reading, size)
        return [[[decode(ids).strip() for ids in row] for row in of_tilt] for of_tilt in drawn]

    # With one seed, the numbers that a sample gets depend on how many others are unfinished.
    parts = [[tilt] for tilt in tilts] if isinstance(seed, int) else [tilts]
    found = [within_memory(partial(texts, some), batch_tokens) for some in parts]
    return [of_tilt for part in found for of_tilt in part]


def seeds_of(
    seed: int, prompts: Sequence[Sequence[int]], tau: float, top_p: float = 1.0
) -> list[int]:
    """Return one seed a prompt; it depends on the seed, the sampler and the prompt alone."""
    return [crc32(f"{seed} {tau} {top_p} {prompt}".encode()) for prompt in prompts]


@dataclass(frozen=True)
class _Wanted:
    """The arguments of `sample_tilts` that its batches need.

    most: the largest number of new tokens of an answer to each prompt.
    """

    count: int
    seed: int | Sequence[int]
    most: Sequence[int]
    tau: float
    top_p: float


def _tokens(
    reader: Reader,
    prompts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt],
    wanted: _Wanted,
    reading: Reading,
    batch_tokens: int,
) -> list[list[list[list[int]]]]:
    """Do the work of `sample_tilts` with a fixed number of batch tokens; return token ids."""
    seed, count, most = wanted.seed, wanted.count, wanted.most
    one, device = isinstance(seed, int), reader.model.device
    seeds: Sequence[int] = [seed] if isinstance(seed, int) else seed
    streams = [torch.Generator(device).manual_seed(each) for each in seeds]

    def chooser(rows: Sequence[int]) -> Choose:
        """Return a function that samples the next tokens for a batch of these prompts.

        Its writers are numbered by tilt, prompt and sample.
        """
        mine, every = streams if one else [streams[row] for row in rows], len(rows) * count

        def choose(logits: Tensor, z: Tensor | None, writer: Tensor, state: Tensor) -> Tensor:
            n = len(writer) if one else count
            parts = [torch.rand(n, generator=stream, device=device, dtype=torch.float64)
                     for stream in mine]  # fmt: skip
            uniform = torch.cat(parts) if one else torch.cat(parts)[writer % every]
            token = torch.empty_like(writer)
            most_states = chunk_rows(logits) if logits.is_cuda else STATES
            for t, tilt in enumerate(tilts):
                of_tilt = (writer // every == t).nonzero()[:, 0]
                at, place = state[of_tilt].unique(return_inverse=True)
                for first in range(0, len(at), most_states):
                    here = (place >= first) & (place < first + most_states)
                    scores = _scores(reader, tilt, logits, z, at[first : first + most_states])
                    some, of = of_tilt[here], place[here] - first
                    token[some] = draw(scores / wanted.tau, of, wanted.top_p, uniform[some])
            return token

        return choose

    answers: list[list[list[list[int]]]] = [[[] for _ in prompts] for _ in tilts]
    wide = count * len(tilts)
    sizes = [(len(prompt) + room) * wide for prompt, room in zip(prompts, most)]
    total = len(prompts) * wide
    with progress_bar(total=total, desc="sampling", show=reading.progress, leave=False) as bar:
        for rows in reader.batches(sizes, batch_tokens):
            begin: list[State] = [(tuple(prompts[i]), ()) for i in rows]
            state = [place for place in range(len(rows)) for _ in range(count)] * len(tilts)
            room = [most[rows[place]] for place in state]
            drawn = write_texts(reader, begin, state, room, chooser(rows), reading)
            for number, (place, tokens) in enumerate(zip(state, drawn)):
                answers[number // (len(rows) * count)][rows[place]].append(tokens)
            bar.update(len(drawn))
    return answers


def _scores(reader: Reader, tilt: Tilt, logits: Tensor, z: Tensor | None, at: Tensor) -> Tensor:
    """Return log p / T + log f of a tilt in n states, up to a constant: (n, V).

    reader: has the tilt's head. logits (S, V), z (S, R): of all states. at (n,): numbers of states.
    """
    (head, T), few = tilt, logits[at].float()
    if head is None or z is None:
        return few / T
    parts = zip(reader.heads, z[at].split([each.rank for each in reader.heads], -1))
    logf = next(each.logf(part) for each, part in parts if each is head)
    return tilted(few, [logf], [head], T, head.gate)


def draw(logits: Tensor, state: Tensor, top_p: float, uniform: Tensor) -> Tensor:
    """Sample one token for each entry of `state` from softmax(logits[state]).

    logits: (states, V). state: (n,) indices of states.
    top_p: keep only the most probable tokens that together reach this probability.
    uniform: (n,) random numbers in [0, 1), one for each sample. The distribution function is
    inverted at these, with one cumulative sum for each state.
    Returns (n,) token ids.
    """
    size = logits.shape[1]
    p = logits.float().softmax(-1)
    if top_p < 1:
        # On a CPU, NumPy sorts a row five times as fast as torch, which also returns the order.
        sort = torch.sort(p).values if p.is_cuda else torch.from_numpy(np.sort(p.numpy()))
        likely = sort.flip(-1)
        least = likely.masked_fill(likely.cumsum(-1) - likely >= top_p, 2).amin(-1, keepdim=True)
        p = p.where(p >= least, 0)
    # One cumulative sum runs over all states, so that one search serves all samples. It is in
    # float64, so that the sums of earlier states cost no digits. A token of probability 0 has no
    # width and is never sampled.
    cumulative = p.flatten().cumsum(0, dtype=torch.float64)
    end = cumulative[size - 1 :: size]
    start = torch.cat([end.new_zeros(1), end[:-1]])
    place = torch.searchsorted(
        cumulative, start[state] + uniform * (end - start)[state], right=True
    )
    return (place - state * size).clamp(0, size - 1)
