"""What a model writes, greedily or drawn: texts that have begun alike share the model's next pass.

A writer is one text in the making: the greedy answer of one tilt (head, T), or one of many samples.
A state is one beginning of one answer, with all the writers that have come to it. In each step the
model reads the newest token of every state once, every writer chooses its own next token, and
writers of one state that choose alike stay together. Tilted models mostly repeat the base's own
text, and a model that knows an answer by heart writes it 64 times: the model then reads little more
than one text. Greedy text is what Hugging Face's `generate` writes, token for token, with the
penalties off that a checkpoint's generation_config may ask for: it is the model that is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from t3lib.classifier.pooling import mean_of, prefix_sums
from t3lib.core.models import within_memory
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Example, collate
from t3lib.core.settings import check_temperature
from t3lib.sampler.tilt import tilt_logits
from t3lib.sampler.wrapped import check_finite
from t3lib.tofu.likelihood import CHUNK, UNTILTED, Reader, Reading, Tilt, heads_of

# new tokens after which the writers that go on are put into new batches, for the old ones have
# thinned out
STAGE = 64
# padded tokens a batch: a step has one row of logits a state, where scoring has one a token
BATCH_TOKENS = 2**14

State = tuple[tuple[int, ...], tuple[int, ...]]  # a prompt's tokens, and those of its answer so far
Choose = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]  # see `write_texts`


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    reading: Reading,
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    max_new_tokens: int | Sequence[int] = 200,
) -> list[list[list[int]]]:
    """The greedy answer of p^(1/T) f to every prompt, for every tilt (head, T): n_tilts lists of
    n_prompts answers.

    model: any causal LM with a cache, the base of the tilts; by default one list, of the model's
    own answers. An answer holds its end-of-sequence token when it was reached. max_new_tokens: of
    every answer, or of each prompt's. reading.batch_tokens bounds the padded tokens in the cache at
    once (one row is always taken). UserError for a T that is not positive and for a model whose
    scores are not finite.
    """
    for _, T in tilts:
        check_temperature(T, allow_sharpening=True)
    reader = Reader(model, heads_of(tilts))
    most = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens

    def answers(batch_tokens: int) -> list[list[list[int]]]:
        sized = replace(reading, batch_tokens=batch_tokens)
        return _greedy_answers(reader, prompts, most, tilts, sized)

    return within_memory(answers, reading.batch_tokens or BATCH_TOKENS)


def _greedy_answers(
    reader: Reader, prompts: Sequence[Sequence[int]], most: Sequence[int],
    tilts: Sequence[Tilt], reading: Reading,
) -> list[list[list[int]]]:  # fmt: skip
    """`greedy` with a number of batch_tokens; most: new tokens of each prompt's answers."""
    answers: list[list[list[int]]] = [[[] for _ in prompts] for _ in tilts]
    pending = [(t, i) for t in range(len(tilts)) for i in range(len(prompts)) if most[i] > 0]
    bar = progress_bar(total=len(pending), desc="generating", show=reading.progress, leave=False)
    while pending:
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
            new = write_texts(reader, _left_padded(here, reading), place, room, choose, reading)
            for (t, i), tokens in zip(writers, new):
                answers[t][i] += tokens
        left = [
            (t, i)
            for t, i in pending
            if len(answers[t][i]) < most[i] and answers[t][i][-1] not in reading.eos_ids
        ]
        bar.update(len(pending) - len(left))
        pending = left
    bar.close()
    return answers


@torch.no_grad()
def write_texts(
    reader: Reader,
    batch: Mapping[str, Tensor],
    at: Sequence[int],
    room: Sequence[int],
    choose: Choose,
    reading: Reading,
) -> list[list[int]]:
    """New tokens of n writers, as lists: each up to its end-of-sequence token, and at most as many
    as it has room for.

    batch: ids and mask (S, L) of the states at the start, left-padded. at: for each writer the
    number of its state. choose is given logits (S, V), pooled projections z (S, R) of the reader's
    heads or None, the numbers (m,) of the writers that go on and their states (m,), and returns
    their next tokens (m,). When the states no longer fit into reading.batch_tokens, the writers of
    the last ones stop short, for the caller to take up again; each has a new token then.
    """
    device, limit = reader.model.device, reading.batch_tokens
    ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
    state, end = (torch.tensor(numbers, device=device) for numbers in (at, reading.eos_ids))
    written = torch.full((len(state), max(room)), -1, device=device)
    writer, last = torch.arange(len(state), device=device), torch.tensor(room, device=device) - 1
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    output, z = reader(ids, position, attention_mask=mask, **reader.last_logits)
    sums = None if z is None else prefix_sums(z, mask)[:, -1]
    position = position[:, -1:]
    for step in range(max(room)):
        logits = output.logits[:, -1]
        token = choose(logits, None if sums is None else mean_of(sums), writer, state)
        written[writer, step] = token
        going = ~torch.isin(token, end) & (step < last[writer])
        begun, state = torch.unique((state * logits.shape[-1] + token)[going], return_inverse=True)
        writer = writer[going]
        if limit is not None and len(begun) * (mask.shape[1] + 1) > limit:
            begun = begun[: max(1, limit // (mask.shape[1] + 1))]
            writer, state = writer[state < len(begun)], state[state < len(begun)]
        if not len(writer):
            break
        parent, token = begun // logits.shape[-1], begun % logits.shape[-1]
        cache = output.past_key_values
        if len(parent) != len(mask) or not torch.equal(
            parent, torch.arange(len(mask), device=parent.device)
        ):
            # And no other way: of layers without keys this alone moves the state.
            cache.reorder_cache(parent)
        mask = torch.cat([mask[parent], mask.new_ones(len(parent), 1)], dim=1)
        position = position[parent] + 1
        output, z = reader(token[:, None], position, attention_mask=mask, past_key_values=cache)
        if z is not None and sums is not None:
            sums = sums[parent] + prefix_sums(z)[:, -1]
    return [
        tokens[: tokens.index(-1)] if tokens[-1] == -1 else tokens for tokens in written.tolist()
    ]


def _likeliest(reader: Reader, tilts: Sequence[Tilt]) -> Choose:
    """argmax_y log p(y)/T + log f(y), where writer number k has the tilt number k of these, of the
    reader's heads.
    """
    heads, device = reader.heads, reader.model.device
    numbers = {id(head): number for number, head in enumerate(heads)}
    whose = torch.tensor(
        [-1 if head is None else numbers[id(head)] for head, _ in tilts], device=device
    )
    temperature = torch.tensor([T for _, T in tilts], device=device)
    whole = nn.ModuleDict({"base": reader.model, "heads": nn.ModuleList(heads)})

    def choose(logits: Tensor, z: Tensor | None, writer: Tensor, state: Tensor) -> Tensor:
        score, token = (
            of_states[state] for of_states in logits.float().max(-1)
        )  # at any T, without a head
        if z is not None:
            # Few rows at once stay in a processor's cache; a GPU wants many.
            rows = 512 if logits.is_cuda else max(16, CHUNK // logits.shape[-1])
            T = temperature[writer, None]
            order = state.argsort()  # so that a head's temperatures at one state are in one turn
            for number, (head, pooled) in enumerate(
                zip(heads, z.split([head.rank for head in heads], -1))
            ):
                for part in order[whose[writer[order]] == number].split(rows):
                    at, of = state[part].unique(return_inverse=True)
                    scores = tilt_logits(logits[state[part]], head.logf(pooled[at])[of], T[part])
                    score[part], token[part] = scores.max(-1)
        check_finite(whole, score)
        return token

    return choose


def _left_padded(states: Sequence[State], reading: Reading) -> dict[str, Tensor]:
    """ids and mask (S, L) of prompts with begun answers; every answer token is shown, as `generate`
    does.
    """
    examples = [Example([*prompt, *begun], len(prompt)) for prompt, begun in states]
    batch = collate(examples, reading.pad_id, reading.attention_mask, side="left")
    for row, (_, begun) in zip(batch["attention_mask"], states):
        row[len(row) - len(begun) :] = 1
    return batch


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a generation: the checkpoint's generation config, else the tokenizer's
    own.
    """
    known = model.generation_config.eos_token_id
    if known is None:
        known = tokenizer.eos_token_id
    return [] if known is None else [known] if isinstance(known, int) else list(known)
