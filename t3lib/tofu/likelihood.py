"""Score given answers (teacher forcing) for all heads and temperatures in one pass of the base.

The prompt of a question is computed once for all its answers, which share its key-value cache. What
all prompts of a batch begin with, such as a system text, is computed once for all of them.
Logits are taken at answer positions only. T3's tilt needs nothing else from the model: the pooled
context is the running mean of z = A h, and the partition function is one product of exp(log p / T)
and f.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3lib.classifier.head import T3Head
from t3lib.classifier.pooling import mean_of, prefix_sums
from t3lib.core.errors import UserError
from t3lib.core.models import (
    cache_of,
    within_memory,
)
from t3lib.core.progress import progress_bar
from t3lib.core.rows import IGNORE, Example, collate, length_sorted
from t3lib.sampler.tilt import temperature_at, tempered, tilted
from t3lib.sampler.wrapped import check_finite
from t3lib.tofu.reader import Reader, Reading

Tilt = tuple[T3Head | None, float]  # (head, T); head None: the base itself, tempered at T
UNTILTED: tuple[Tilt, ...] = ((None, 1.0),)
# Entries of a (rows, V) block of logits that is processed at once, by kind of device. On a CPU it
# stays in the processor's cache. 2^18 entries are two rows of Llama-3's vocabulary, too little work
# for a GPU; its own size is a guess that was not tuned.
CHUNK = {"cpu": 2**18, "cuda": 2**25}
# A float32 partition function below this has lost digits and is computed again in log space.
TINY = 1e-30


@dataclass(frozen=True)
class Positions:
    """Some answer positions, each with its target token and with what predicts it.

    example (N,): index of the example.
    step (N,): index of the answer token.
    target (N,): its id.
    logits (N, V): float32, of the base.
    z (N, sum of ranks): projections of the pooled context by all heads, side by side, float32; None
    without heads.
    """

    example: Tensor
    step: Tensor
    target: Tensor
    logits: Tensor
    z: Tensor | None

    def rows(self, which: Tensor) -> "Positions":
        """Return the positions of a mask (N,)."""
        parts = (self.example, self.step, self.target, self.logits, self.z)
        return Positions(*(None if part is None else part[which] for part in parts))  # type: ignore


def default_batch_tokens(model: Any) -> int:
    """Return the default number of padded tokens in a batch of scored texts.

    4096 for small vocabularies, where it was fastest on a CPU; 2093 for Llama-3's 128,256 tokens.
    """
    return min(max(2**28 // model.config.get_text_config().vocab_size, 512), 4096)


def chunk_rows(logits: Tensor) -> int:
    """Return how many rows of logits (…, V) are processed at once, at least one."""
    return max(1, CHUNK.get(logits.device.type, CHUNK["cpu"]) // logits.shape[-1])


def answer_losses(
    model: Any,
    examples: Sequence[Example],
    reading: Reading,
    tilts: Sequence[Tilt] = UNTILTED,
) -> NDArray[np.float64]:
    """Mean over answer tokens of -ln p_hat(token | prefix), for every tilt and example.

    tilts: pairs (head, T); p_hat ∝ p^(1/T) f (Eq. 5), with f = 1 for head None. Returns
    (n_tilts, n_examples), computed in float32 and averaged in float64. The average is over all
    tokens of the answer, end of turn included (Appendix F.3's |a|). UserError for an example
    without an answer and for a model whose probabilities are not finite.
    """
    return losses_and_agreed(model, examples, reading, tilts, ())[0]


def losses_and_agreed(
    model: Any,
    examples: Sequence[Example],
    reading: Reading,
    tilts: Sequence[Tilt],
    compared: Collection[int],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Do the same as `answer_losses`, and count with how many tokens greedy answers begin alike.

    compared: indices of the examples whose answer is compared with the greedy one.

    Returns (losses, agreed), both (n_tilts, n_examples). agreed: number of first tokens of the
    given answer that greedy decoding is known to write too. It is 0 for examples that are not
    compared, and where `_read_alike` is. Where two tokens are equally likely up to rounding, it may
    take one and `writing` the other.
    """
    lengths = torch.tensor([len(example.answer) for example in examples])
    alike = torch.zeros(len(examples), dtype=torch.int64)
    for index in compared:
        alike[index] = _read_alike(examples[index], reading)

    def summed(batch_tokens: int) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(tilts), len(examples), dtype=torch.float64)
        agreed = alike.repeat(len(tilts), 1)
        sized = replace(reading, batch_tokens=batch_tokens)
        with progress_bar(total=len(examples), desc="scoring", leave=False) as bar:
            for at in answer_positions(model, examples, sized, heads_of(tilts)):
                example, step = at.example.cpu(), at.step.cpu()
                total.index_add_(1, example, -target_logp(at, tilts).cpu().double())

                # The first step at which greedy decoding leaves an answer.
                if (mine := step < alike[example]).any():
                    few = at.rows(mine.to(at.example.device))
                    left = (choices(few, tilts) != few.target).cpu()
                    first = step[mine].where(left, agreed[:, example[mine]])
                    agreed.scatter_reduce_(1, example[mine].expand_as(first), first, reduce="amin")
                bar.update(int((at.step == 0).sum()))
        return total, agreed

    budget = reading.batch_tokens or default_batch_tokens(model)
    total, agreed = within_memory(summed, budget)
    check_finite(model, total)
    return (total / lengths).numpy(), agreed.numpy()


def _read_alike(example: Example, reading: Reading) -> int:
    """Count the first tokens of an answer before which scoring and decoding read the same.

    Both masks can hide tokens of a prompt, but only scoring counts these in its positions
    (decoding does as `generate`), so the number is 0 there. Tokens after the end of a text are not
    decoded. Those after the first hidden one of an answer are decoded with that in sight.
    """
    prompt, answer = example.prompt, example.answer
    hidden = {reading.pad_id} if reading.attention_mask == "openunlearning" else set()
    if hidden.intersection(prompt):
        return 0
    last = hidden.union(reading.eos_ids)
    return next((n for n, token in enumerate(answer, 1) if token in last), len(answer))


def heads_of(tilts: Sequence[Tilt]) -> list[T3Head]:
    """Return the distinct heads of the tilts, in order of first appearance."""
    return list({id(head): head for head, _ in tilts if head is not None}.values())


@torch.no_grad()
def target_logp(at: Positions, tilts: Sequence[Tilt]) -> Tensor:
    """log p_hat(target) = log p/T + log f - log sum_y p(y)^(1/T) f(y)   (Eq. 5) for every tilt.

    at: N positions. tilts: pairs of a head (None for f = 1) and a temperature T. Returns
    (n_tilts, N). p^(1/T) is computed once for each T (and tail) and f once for each head, so each
    further pair of these costs one product over the vocabulary. A head with a gate
    (`gated_temperature`) costs a second one, at T = 1.
    """
    gated = [
        (row, head, T)
        for row, (head, T) in enumerate(tilts)
        if head is not None and head.gate != 1 and T != 1
    ]
    every = [*tilts, *((head, 1.0) for _, head, _ in gated)]
    logp = at.logits.log_softmax(-1)
    logf = _logf(at.z, tilts)
    f = {head: values.exp() for head, values in logf.items()}

    result = torch.empty(len(every), len(at.target), dtype=logp.dtype, device=logp.device)
    tails = [0.0 if head is None or T == 1 else head.tail for head, T in every]
    dials = [(T, tail) for (_, T), tail in zip(every, tails)]
    for T, tail in dict.fromkeys(dials):
        rows = [(row, every[row][0]) for row, each in enumerate(dials) if each == (T, tail)]
        log_power = logp if T == 1 else tempered(logp, T, tail)
        result[[row for row, _ in rows]] = _at(log_power, at.target)
        if T == 1 and all(head is None for _, head in rows):
            continue  # p is normalised already
        power = log_power.exp()
        for row, head in rows:
            if head is not None:
                normaliser = _log_partition(log_power, power, logf[head], f[head])
                result[row] = result[row] + _at(logf[head], at.target) - normaliser
            elif T != 1:
                result[row] -= power.sum(-1).log()

    # Where a gate leaves a position untempered, its result is that at T = 1.
    for untempered, (row, head, T) in zip(result[len(tilts) :], gated):
        T_here: Any = temperature_at(at.logits, [logf[head]], [head], T, head.gate)
        result[row] = torch.where(T_here[:, 0] == 1, untempered, result[row])
    return result[: len(tilts)]


@torch.no_grad()
def choices(at: Positions, tilts: Sequence[Tilt]) -> Tensor:
    """argmax_y log p(y)/T + log f(y), the next token of greedy decoding: (n_tilts, N)."""
    logf = _logf(at.z, tilts)
    scores = (
        at.logits
        if head is None
        else tilted(at.logits, [logf[head]], [head], T, head.gate, head.tail)
        for head, T in tilts
    )
    return torch.stack([values.argmax(-1) for values in scores])


@torch.no_grad()
def tilted_scores(at: Positions, tilts: Sequence[Tilt]) -> Iterator[Tensor]:
    """Yield log p(y)/T + log f(y) at N positions for every tilt, up to a constant: (N, V)."""
    logf = _logf(at.z, tilts)
    for head, T in tilts:
        yield (
            at.logits / T
            if head is None
            else tilted(at.logits, [logf[head]], [head], T, head.gate, head.tail)
        )


@torch.no_grad()
def token_scores(
    model: Any,
    examples: Sequence[Example],
    reading: Reading,
    tilts: Sequence[Tilt] = UNTILTED,
) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Score every token of each example's answer under every tilt.

    Returns a pair (losses, hits) for each example. Both have the shape (tilts, tokens of its
    answer). losses: −ln p̂ of the token. hits: True where the token is the most probable one, so
    that greedy decoding would continue with it. The last token is the end of turn if the template
    has one.
    """
    n = len(tilts)
    tables = by_token(
        model,
        examples,
        reading,
        tilts,
        lambda at: torch.cat([-target_logp(at, tilts), choices(at, tilts) == at.target]).T,
    )
    return [(np.ascontiguousarray(table[:, :n].T), table[:, n:].T.astype(bool)) for table in tables]


@torch.no_grad()
def by_token(
    model: Any,
    examples: Sequence[Example],
    reading: Reading,
    tilts: Sequence[Tilt],
    numbers: Callable[[Positions], Tensor],
) -> list[NDArray[np.float64]]:
    """Compute some numbers for every token of each example's answer.

    tilts: their heads are read with the model.
    numbers(at): what is computed at N positions, (N, columns).

    Returns (tokens of its answer, columns) for each example.
    """

    def tables(batch_tokens: int) -> list[NDArray[np.float64]]:
        rows: list[list[Any]] = [[None] * (len(each.answer)) for each in examples]
        sized = replace(reading, batch_tokens=batch_tokens)

        # positions come batch by batch, tables are by example and token
        for at in answer_positions(model, examples, sized, heads_of(tilts)):
            found = numbers(at).cpu().double().numpy()
            for example, step, row in zip(at.example.tolist(), at.step.tolist(), found):
                rows[example][step] = row

        return [np.array(each) for each in rows]

    return within_memory(tables, reading.batch_tokens or default_batch_tokens(model))


def answer_probabilities(
    model: Any, examples: Sequence[Example], reading: Reading, tilt: Tilt = UNTILTED[0]
) -> NDArray[np.float64]:
    """Return p(token | prefix) of every answer token, one row after the other, in one array.

    tilt: of the model, by default none. In the order of `Features`, so that the result for rows to
    forget is an argument of `t3lib.classifier.guide.soft_labels`.
    """
    scores = token_scores(model, examples, reading, [tilt])
    return np.exp(-np.concatenate([losses[0] for losses, _ in scores]))


def answer_tokens(example: Example, ends: Sequence[int]) -> int:
    """Return the number of answer tokens without the end of turn. An answer that is only an end of
    turn keeps it.
    """
    length = len(example.answer)
    return length - (length > 1 and example.ids[-1] in ends)


def _at(values: Tensor, target: Tensor) -> Tensor:
    """Return the value of each row (N, V) at its target (N,)."""
    return values.gather(-1, target[:, None])[:, 0]


def _log_partition(log_power: Tensor, power: Tensor, logf: Tensor, f: Tensor) -> Tensor:
    """log sum_y p(y)^(1/T) f(y)   (Eq. 5's normaliser): (N,).

    log_power: log p / T, or `tempered`. power: its exponential. logf, f: of one head. All of them
    are (N, V).
    """
    partition = torch.linalg.vecdot(power, f)
    result = partition.log()
    if (lost := partition < TINY).any():
        result[lost] = torch.logsumexp(log_power[lost] + logf[lost], -1)
    return result


def _logf(z: Tensor | None, tilts: Sequence[Tilt]) -> dict[T3Head, Tensor]:
    """Return log f (N, V) of every head of the tilts."""
    heads = heads_of(tilts)
    parts = () if z is None else z.split([head.rank for head in heads], -1)
    # Contiguous, because the last digits of a head's result would otherwise depend on the number
    # of other heads.
    return {head: head.logf(part.contiguous()) for head, part in zip(heads, parts)}


@torch.no_grad()
def answer_positions(
    model: Any,
    examples: Sequence[Example],
    reading: Reading,
    heads: Sequence[T3Head] = (),
) -> Iterator[Positions]:
    """Yield every answer position of every example, in chunks, in no particular order.

    model: any Hugging Face causal LM with a cache; with heads, one whose `decoder_of` gives the
    final hidden states.
    heads: moved to the model's device.

    Each prompt passes through the model once, left-padded. Then its answers pass, right-padded, on
    copies of its cache. Position ids count every real token, as teacher forcing does in the
    reference implementation. UserError for an example without answer tokens.
    """
    budget = reading.batch_tokens or default_batch_tokens(model)
    members: dict[tuple[int, ...], list[int]] = {}
    for index, example in enumerate(examples):
        if not example.answer:
            raise UserError(f"example {index + 1} has no answer tokens")
        members.setdefault(tuple(example.prompt), []).append(index)
    prompts = list(members)
    reader = Reader(model, heads)

    for chosen in reader.batches([len(prompt) for prompt in prompts], budget):
        rows, indices = zip(
            *((place, index) for place, i in enumerate(chosen) for index in members[prompts[i]])
        )
        answers = [examples[index].answer for index in indices]
        prefix = _prefill(reader, [prompts[i] for i in chosen], reading, max(map(len, answers)))
        row, numbers = (
            torch.tensor(values, device=prefix.mask.device) for values in (rows, indices)
        )
        target = torch.tensor([answer[0] for answer in answers], device=row.device)
        z = None if prefix.sums is None else mean_of(prefix.sums)[row]
        first = torch.zeros_like(numbers)
        yield from _in_chunks(numbers, first, target, prefix.logits, row, z)

        # The other positions need the answers' own tokens, read on from the prompts' cache.
        longer = [i for i, answer in enumerate(answers) if len(answer) > 1]
        sizes = [prefix.mask.shape[1] + len(answers[i]) for i in longer]
        for batch in length_sorted(sizes, 1 if reader.alone else budget):
            group = [longer[i] for i in batch]
            part = collate(
                [Example(answers[i], 0) for i in group], reading.pad_id, reading.attention_mask
            )
            yield from _later_positions(reader, prefix, row[group], numbers[group], part)


@dataclass(frozen=True)
class _Prefix:
    """P prompts that are in the cache, left-padded to L tokens."""

    cache: Any
    mask: Tensor  # (P, L)
    position: Tensor  # (P,) of the first answer token
    logits: Tensor  # (P, V) that predict the first answer token
    sums: Tensor | None  # (P, R + 1) `prefix_sums` of all heads' projections over the whole prompt


def _prefill(
    reader: Reader, prompts: Sequence[Sequence[int]], reading: Reading, more: int
) -> _Prefix:
    """Read prompts, left-padded into one batch, and keep the cache. `more` tokens may follow."""
    examples = [Example(list(prompt), len(prompt)) for prompt in prompts]
    batch = collate(examples, reading.pad_id, reading.attention_mask, side="left")
    ids, mask = (batch[name].to(reader.model.device) for name in ("input_ids", "attention_mask"))
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=ids.device)
    start = (ids.shape[1] - lengths)[:, None]
    position_ids = (torch.arange(ids.shape[1], device=ids.device) - start).clamp(0)
    output, mask, sums = reader.prefill(prompts, ids, position_ids, mask, more)
    return _Prefix(cache_of(output), mask, lengths, output.logits[:, -1], sums)


def _later_positions(
    reader: Reader, prefix: _Prefix, row: Tensor, example: Tensor, batch: dict[str, Tensor]
) -> Iterator[Positions]:
    """Yield positions 1, 2, … of answers of at least two tokens; the last token is never read.

    row, example (n,): for each row of `batch`, its prompt in `prefix` and its example.
    """
    ids, target, real, visible = (
        tensor.to(row.device)
        for tensor in (
            batch["input_ids"][:, :-1],
            batch["input_ids"][:, 1:],
            batch["labels"][:, 1:] != IGNORE,  # positions whose target is a token
            batch["attention_mask"][:, :-1],
        )
    )
    mask = real * visible
    step = torch.arange(ids.shape[1], device=row.device)
    output, z = reader(
        ids,
        prefix.position[row, None] + step,
        attention_mask=torch.cat([prefix.mask[row], mask], dim=1),
        cache=reader.select(prefix.cache, row),
    )
    if z is not None and prefix.sums is not None:
        z = mean_of(prefix.sums[row, None] + prefix_sums(z, mask))[real]
    steps = (step + 1).expand_as(ids)[real]
    examples, where = example[:, None].expand_as(ids)[real], real.flatten().nonzero()[:, 0]
    return _in_chunks(examples, steps, target[real], output.logits.flatten(0, 1), where, z)


def _in_chunks(
    example: Tensor, step: Tensor, target: Tensor, logits: Tensor, row: Tensor, z: Tensor | None
) -> Iterator[Positions]:
    """Yield positions in chunks of `chunk_rows`.

    example, step, target, row, z: N positions. Their logits are the rows `row` of `logits`.
    """
    size = chunk_rows(logits)
    for start in range(0, len(target), size):
        part = slice(start, start + size)
        own = None if z is None else z[part]
        yield Positions(example[part], step[part], target[part], logits[row[part]].float(), own)
