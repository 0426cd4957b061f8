"""Sample many answers from a model and its tilts.

Samples that begin alike share forward passes (`writing`), those of different tilts and samplers
too, and so does the greedy answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from t3lib.core.models import pad_id, within_memory
from t3lib.core.progress import progress_bar
from t3lib.sampler.tilt import tilted
from t3lib.sampler.wrapped import check_finite
from t3lib.tofu.likelihood import UNTILTED, Tilt, chunk_rows, heads_of
from t3lib.tofu.reader import Reader, Reading
from t3lib.tofu.writing import State, eos_ids, write_texts

# Tokens of all prompts and samples in memory at once. Large, because most steps have few states and
# cost almost the same for any number of them.
BATCH_TOKENS = 2**17
# States whose tokens are drawn at once. On a CPU this is faster than all together, and takes less
# memory; on a GPU a block of `chunk_rows` is.
STATES = 16
NUCLEUS = 128  # tokens, see `draw`


class Sampler(NamedTuple):
    """How some of the answers to a prompt are sampled.

    n: number of answers. tau: the sampler's temperature, which is applied on top of T3's own T;
    0 gives the greedy answer. top_p: nucleus; 1 samples from the whole distribution.
    """

    n: int
    tau: float = 1.0
    top_p: float = 1.0

    def seeds(self, seed: int, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Return one seed for each prompt. It depends on `seed`, the sampler and the prompt."""
        return [crc32(f"{seed} {self.tau} {self.top_p} {prompt}".encode()) for prompt in prompts]


def sample_answers(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], count: int, **options: Any
) -> list[list[str]]:
    """Sample `count` answers to each prompt, and return (prompts, count) texts.

    model: any causal LM with a cache, including a T3ForCausalLM. options and errors: as of
    `sample_tilts`.
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
    top_p, tau: as of `Sampler`.
    batch_tokens: tokens of all prompts and samples in memory at once, halved with a warning when
    memory runs out.

    All tilts get the same random numbers, but where rows are read alone. So where they are alike
    they say the same, and with a seed for each prompt in one forward pass. Equal arguments give
    equal answers on one machine. The global random state is not touched. UserError for a model
    whose logits are not finite.
    """
    most = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    wanted = _Wanted([Sampler(count, tau, top_p)], seed if isinstance(seed, int) else [seed], most)

    # With one seed, the numbers that a sample gets depend on how many others are unfinished, so
    # that tilts with equal numbers must not share their passes.
    groups = [[tilt] for tilt in tilts] if isinstance(seed, int) else [tilts]
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), attention_mask, batch_tokens)
    answers = [_texts(model, tokenizer, prompts, group, wanted, reading) for group in groups]
    return [of_tilt for group in answers for of_tilt in group]


def sample_together(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    samplers: Sequence[Sampler],
    tilts: Sequence[Tilt],
    seed: int,
    max_new_tokens: Sequence[int],
) -> list[list[list[str]]]:
    """Sample answers of every tilt to each prompt by several samplers, which share forward passes.

    Returns (tilts, prompts, answers) texts, in the order of the samplers. Arguments are as of
    `sample_tilts`. Each prompt has its own random numbers for each sampler (`Sampler.seeds`).
    """
    seeds = [sampler.seeds(seed, prompts) for sampler in samplers]
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), batch_tokens=BATCH_TOKENS)
    wanted = _Wanted(samplers, seeds, max_new_tokens)
    return _texts(model, tokenizer, prompts, tilts, wanted, reading)


@dataclass(frozen=True)
class _Wanted:
    """What is sampled for each prompt.

    samplers: of the answers to each prompt. seeds: for each sampler one seed for each prompt, or
    one seed for all. most: the largest number of new tokens of an answer to each prompt.
    """

    samplers: Sequence[Sampler]
    seeds: int | Sequence[Sequence[int]]
    most: Sequence[int]

    @property
    def count(self) -> int:
        """Number of answers to a prompt."""
        return sum(sampler.n for sampler in self.samplers)


@dataclass(frozen=True)
class _Draw:
    """Samples the next tokens of a batch of prompts (see `writing.Choose`).

    Its writers are numbered by tilt, prompt and answer. reader, tilts, wanted: as of `_tokens`.
    streams: random number generators, for each sampler one for each prompt of the batch; or one
    alone. rows: number of prompts of the batch.
    """

    reader: Reader
    tilts: Sequence[Tilt]
    wanted: _Wanted
    streams: Sequence[Sequence[torch.Generator]]
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
                scores = _scores(self.reader, tilt, logits, z, at)
                check_finite(self.reader.model, scores.amax(-1))
                some = of_tilt[block]
                token[some] = self._of_block(
                    scores, place[block] - first, writer[some], uniform[some]
                )

        return token

    def _of_block(self, scores: Tensor, place: Tensor, writer: Tensor, uniform: Tensor) -> Tensor:
        """Return the next tokens (m,) of m writers.

        scores (states, V): of a tilt. place (m,): the state of each writer.
        """
        token, answer, start = torch.empty_like(place), writer % self.wanted.count, 0
        for sampler in self.wanted.samplers:
            mine = (answer >= start) & (answer < start + sampler.n)
            start += sampler.n
            states, of = place[mine].unique(return_inverse=True)
            if not len(states):
                continue
            few = scores if len(states) == len(scores) else scores[states]
            token[mine] = (
                draw(few / sampler.tau, of, sampler.top_p, uniform[mine])
                if sampler.tau
                else few.argmax(-1)[of]
            )
        return token

    def uniform(self, writer: Tensor) -> Tensor:
        """Return a random number in [0, 1) for each of these writers.

        With a generator for each prompt, finished writers get numbers too, so that those of the
        others do not depend on who has finished, and the writers of all tilts get the same.
        """

        def numbers(n: int, stream: torch.Generator) -> Tensor:
            return torch.rand(n, generator=stream, device=stream.device, dtype=torch.float64)

        if isinstance(self.wanted.seeds, int):
            return numbers(len(writer), self.streams[0][0])
        of_samplers = [
            torch.stack([numbers(sampler.n, stream) for stream in of_sampler])
            for sampler, of_sampler in zip(self.wanted.samplers, self.streams)
        ]
        return torch.cat(of_samplers, dim=1).flatten()[writer % self._writers_per_tilt]

    @property
    def _writers_per_tilt(self) -> int:
        return self.rows * self.wanted.count


def _texts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt],
    wanted: _Wanted,
    reading: Reading,
) -> list[list[list[str]]]:
    """Return (tilts, prompts, answers) texts. reading: its batch_tokens are the most in memory."""
    decode = partial(tokenizer.decode, skip_special_tokens=True)

    def texts(size: int) -> list[list[list[str]]]:
        sized = Reading(reading.pad_id, reading.eos_ids, reading.attention_mask, None)
        ids_of = _tokens(Reader(model, heads_of(tilts)), prompts, tilts, wanted, sized, size)
        return [[[decode(ids).strip() for ids in row] for row in of_tilt] for of_tilt in ids_of]

    return within_memory(texts, reading.batch_tokens or BATCH_TOKENS)


def _tokens(
    reader: Reader,
    prompts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt],
    wanted: _Wanted,
    reading: Reading,
    batch_tokens: int,
) -> list[list[list[list[int]]]]:
    """Do the work of `_texts` with a fixed number of batch tokens; return token ids."""
    count, device = wanted.count, reader.model.device
    seeds = [[wanted.seeds]] if isinstance(wanted.seeds, int) else wanted.seeds
    streams = [[torch.Generator(device).manual_seed(each) for each in some] for some in seeds]

    # what a prompt takes in memory: itself and its longest answer, for every sample of every tilt
    wide = count * len(tilts)
    sizes = [(len(prompt) + most) * wide for prompt, most in zip(prompts, wanted.most)]

    answers: list[list[list[list[int]]]] = [[[] for _ in prompts] for _ in tilts]
    total = len(prompts) * wide
    with progress_bar(total=total, desc="sampling", leave=False) as bar:
        for rows in reader.batches(sizes, batch_tokens, [*map(len, prompts)]):
            # all samples of a prompt begin in one state, in the order of `_Draw`
            begin: list[State] = [(tuple(prompts[row]), ()) for row in rows]
            state = [place for place in range(len(rows)) for _ in range(count)] * len(tilts)
            room = [wanted.most[rows[place]] for place in state]

            own = streams
            if not isinstance(wanted.seeds, int):
                own = [[some[row] for row in rows] for some in streams]
            choose = _Draw(reader, tilts, wanted, own, len(rows))
            texts = write_texts(reader, begin, state, room, choose, reading)

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
    top_p: keep only the most probable tokens that together reach this probability, one at least.
    uniform: (n,) random numbers in [0, 1), one for each sample. The distribution function is
    inverted at these, with one cumulative sum for each state.
    Returns (n,) token ids.
    """
    size = logits.shape[1]
    p = logits.float().softmax(-1)

    if top_p < 1:
        # Mostly a few tokens are the nucleus, and the others need not be sorted. On a CPU, NumPy
        # sorts a row five times as fast as torch, which also returns the order.
        likely = p.topk(min(NUCLEUS, size)).values
        if (likely.sum(-1) <= top_p).any():
            sort = torch.sort(p).values if p.is_cuda else torch.from_numpy(np.sort(p.numpy()))
            likely = sort.flip(-1)
        # the smallest probability that is still in the nucleus, at most the largest of all
        least = likely.masked_fill(likely.cumsum(-1) - likely >= top_p, 2).amin(-1, keepdim=True)
        p = p.where(p >= least.minimum(likely[:, :1]), 0)

    # One cumulative sum runs over all states, so that one search serves all samples. It is in
    # float64, so that the sums of earlier states cost no digits. A token of probability 0 has no
    # width and is never sampled.
    cumulative = p.flatten().cumsum(0, dtype=torch.float64)
    end = cumulative[size - 1 :: size]
    start = torch.cat([end.new_zeros(1), end[:-1]])

    target = start[state] + uniform * (end - start)[state]
    place = torch.searchsorted(cumulative, target, right=True)
    return (place - state * size).clamp(0, size - 1)
