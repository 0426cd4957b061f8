"""Sample many answers from a model and its tilts.

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
from t3lib.tofu.likelihood import UNTILTED, Tilt, chunk_rows, heads_of
from t3lib.tofu.reader import Reader, Reading
from t3lib.tofu.writing import State, eos_ids, write_texts

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
    reading = Reading(pad_id(tokenizer), ends, attention_mask, None)
    decode = partial(tokenizer.decode, skip_special_tokens=True)

    def texts(some: Sequence[Tilt], size: int) -> list[list[list[str]]]:
        ids_of = _tokens(Reader(model, heads_of(some)), prompts, some, wanted, reading, size)
        return [[[decode(ids).strip() for ids in row] for row in of_tilt] for of_tilt in ids_of]

    # With one seed, the numbers that a sample gets depend on how many others are unfinished, so
    # that tilts with equal numbers must not share their passes.
    groups = [[tilt] for tilt in tilts] if isinstance(seed, int) else [tilts]
    answers = [within_memory(partial(texts, group), batch_tokens) for group in groups]

    return [of_tilt for group in answers for of_tilt in group]


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


@dataclass(frozen=True)
class _Sampler:
    """Samples the next tokens of a batch of prompts (see `writing.Choose`).

    Its writers are numbered by tilt, prompt and sample. reader, tilts, wanted: as of `_tokens`.
    streams: random number generators, one for each prompt of the batch or one for all of them.
    rows: number of prompts of the batch.
    """

    reader: Reader
    tilts: Sequence[Tilt]
    wanted: _Wanted
    streams: Sequence[torch.Generator]
    rows: int

    def __call__(self, logits: Tensor, z: Tensor | None, writer: Tensor, state: Tensor) -> Tensor:
        uniform, token = self.uniform(writer), torch.empty_like(writer)
        most_states = chunk_rows(logits) if logits.is_cuda else STATES

        for t, tilt in enumerate(self.tilts):
            of_tilt = (writer // self._writers_per_tilt == t).nonzero()[:, 0]
            states, place = state[of_tilt].unique(return_inverse=True)

            # a block of states at a time, with all writers that are in one of them
            for first in range(0, len(states), most_states):
                block = (place >= first) & (place < first + most_states)
                at = states[first : first + most_states]
                scores = _scores(self.reader, tilt, logits, z, at) / self.wanted.tau
                some = of_tilt[block]
                token[some] = draw(scores, place[block] - first, self.wanted.top_p, uniform[some])

        return token

    def uniform(self, writer: Tensor) -> Tensor:
        """Return a random number in [0, 1) for each of these writers.

        With a generator for each prompt, finished writers get numbers too, so that those of the
        others do not depend on who has finished, and the writers of all tilts get the same.
        """
        shared = isinstance(self.wanted.seed, int)
        n = len(writer) if shared else self.wanted.count
        numbers = torch.cat(
            [
                torch.rand(n, generator=stream, device=stream.device, dtype=torch.float64)
                for stream in self.streams
            ]
        )
        return numbers if shared else numbers[writer % self._writers_per_tilt]

    @property
    def _writers_per_tilt(self) -> int:
        return self.rows * self.wanted.count


def _tokens(
    reader: Reader,
    prompts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt],
    wanted: _Wanted,
    reading: Reading,
    batch_tokens: int,
) -> list[list[list[list[int]]]]:
    """Do the work of `sample_tilts` with a fixed number of batch tokens; return token ids."""
    count, shared = wanted.count, isinstance(wanted.seed, int)
    seeds = [wanted.seed] if isinstance(wanted.seed, int) else wanted.seed
    streams = [torch.Generator(reader.model.device).manual_seed(each) for each in seeds]

    # what a prompt takes in memory: itself and its longest answer, for every sample of every tilt
    wide = count * len(tilts)
    sizes = [(len(prompt) + most) * wide for prompt, most in zip(prompts, wanted.most)]

    answers: list[list[list[list[int]]]] = [[[] for _ in prompts] for _ in tilts]
    total = len(prompts) * wide
    with progress_bar(total=total, desc="sampling", leave=False) as bar:
        for rows in reader.batches(sizes, batch_tokens):
            # all samples of a prompt begin in one state, in the order of `_Sampler`
            begin: list[State] = [(tuple(prompts[row]), ()) for row in rows]
            state = [place for place in range(len(rows)) for _ in range(count)] * len(tilts)
            room = [wanted.most[rows[place]] for place in state]

            own = streams if shared else [streams[row] for row in rows]
            sampler = _Sampler(reader, tilts, wanted, own, len(rows))
            texts = write_texts(reader, begin, state, room, sampler, reading)

            for number, (place, ids) in enumerate(zip(state, texts)):
                answers[number // (len(rows) * count)][rows[place]].append(ids)
            bar.update(len(texts))

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
    return tilted(few, [logf], [head], T, head.gate, head.tail)


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
        # the smallest probability that is still in the nucleus
        least = likely.masked_fill(likely.cumsum(-1) - likely >= top_p, 2).amin(-1, keepdim=True)
        p = p.where(p >= least, 0)

    # One cumulative sum runs over all states, so that one search serves all samples. It is in
    # float64, so that the sums of earlier states cost no digits. A token of probability 0 has no
    # width and is never sampled.
    cumulative = p.flatten().cumsum(0, dtype=torch.float64)
    end = cumulative[size - 1 :: size]
    start = torch.cat([end.new_zeros(1), end[:-1]])

    target = start[state] + uniform * (end - start)[state]
    place = torch.searchsorted(cumulative, target, right=True)
    return (place - state * size).clamp(0, size - 1)
