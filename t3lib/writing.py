"""What a model writes, greedily or drawn: texts that have begun alike share the model's next pass.

A state is one beginning of one answer, and every writer stands at a state: the greedy text of a tilt (head, T), or one
of many samples. A step reads the newest token of each state once; every writer chooses its own next token there, and
those that choose the same one go on together. Tilted models mostly repeat the base's own text, and a model that knows
an answer by heart writes it 64 times: both cost little more than one text. Greedy text is what Hugging Face's
`generate` would have written, token for token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from t3lib.head import T3Head
from t3lib.likelihood import CHUNK, UNTILTED, Reader, Tilt, heads_of
from t3lib.pooling import mean_of, prefix_sums
from t3lib.progress import progress_bar
from t3lib.tofu import Example, collate, length_sorted

STAGE = 64  # new tokens after which writers that go on are put into batches of their own
BATCH_TOKENS = 2**14  # padded tokens a batch: a step has one row of logits a state, where scoring has one a token

State = tuple[tuple[int, ...], tuple[int, ...]]  # a prompt's tokens, and those of its answer so far
Choose = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]  # see `write`


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    pad_id: int,
    eos_ids: Sequence[int],
    max_new_tokens: int = 200,
    attention_mask: str = "lengths",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> list[list[list[int]]]:
    """The greedy answer of p^(1/T) f to every prompt, for every tilt (head, T): n_tilts lists of n_prompts answers.

    model: any causal LM with a cache, the base of the tilts; without tilts the one list is the model's own. An answer
    holds its end-of-sequence token when it was reached. batch_tokens bounds the padded tokens in the cache at once.
    """
    reader = Reader(model, heads_of(tilts))
    answers: list[list[list[int]]] = [[[] for _ in prompts] for _ in tilts]
    pending = [(t, i) for t in range(len(tilts)) for i in range(len(prompts))]
    bar = progress_bar(total=len(pending), desc="generating", show=progress, leave=False)
    while pending:
        at: dict[State, list[tuple[int, int]]] = {}
        for t, i in pending:
            at.setdefault((tuple(prompts[i]), tuple(answers[t][i])), []).append((t, i))
        states = list(at)
        for batch in length_sorted([len(prompt) + len(begun) + STAGE for prompt, begun in states], batch_tokens):
            here = [states[s] for s in batch]
            writers = [writer for state in here for writer in at[state]]
            place = torch.tensor([place for place, state in enumerate(here) for _ in at[state]], device=model.device)
            ids, mask = (tensor.to(model.device) for tensor in _left_padded(here, pad_id, attention_mask))
            choose = _likeliest(reader.heads, [tilts[t] for t, _ in writers])
            steps = min(STAGE, max_new_tokens)
            new = write(reader, ids, mask, place, choose, steps=steps, ends=eos_ids, batch_tokens=batch_tokens)
            for (t, i), tokens in zip(writers, new):
                answers[t][i] = (answers[t][i] + tokens)[:max_new_tokens]
        left = [(t, i) for t, i in pending if len(answers[t][i]) < max_new_tokens and answers[t][i][-1] not in eos_ids]
        bar.update(len(pending) - len(left))
        pending = left
    bar.close()
    return answers


@torch.no_grad()
def write(
    reader: Reader, ids: Tensor, mask: Tensor, state: Tensor, choose: Choose, *, steps: int, ends: Sequence[int],
    batch_tokens: int | None = None,
) -> list[list[int]]:  # fmt: skip
    """At most `steps` new tokens of every writer, up to its end-of-sequence token, as lists.

    ids, mask (S, L): what the states hold so far, left-padded. state (n,): the state of each writer, in order. choose
    is given logits (S, V), pooled projections z (S, R) of the reader's heads or None, the numbers (m,) of the writers
    that still write and their states (m,), and returns their next tokens (m,). When the states no longer fit into
    batch_tokens the last of them end here, at least one token longer than they came.
    """
    written = torch.full((len(state), steps), -1, device=ids.device)
    writer, end = torch.arange(len(state), device=ids.device), torch.tensor(ends, device=ids.device)
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    output, z = reader(ids, position, attention_mask=mask, **reader.last_logits)
    sums = None if z is None else prefix_sums(z, mask)[:, -1]
    position = position[:, -1:]
    for step in range(steps):
        logits = output.logits[:, -1]
        token = choose(logits, None if sums is None else mean_of(sums), writer, state)
        written[writer, step] = token
        going = ~torch.isin(token, end)
        begun, state = torch.unique((state * logits.shape[-1] + token)[going], return_inverse=True)
        writer = writer[going]
        if batch_tokens is not None and len(begun) * (mask.shape[1] + 1) > batch_tokens:
            begun = begun[: max(1, batch_tokens // (mask.shape[1] + 1))]
            writer, state = writer[state < len(begun)], state[state < len(begun)]
        if not len(writer) or step + 1 == steps:
            break
        parent, token = begun // logits.shape[-1], begun % logits.shape[-1]
        cache = output.past_key_values
        if len(parent) != len(mask) or not torch.equal(parent, torch.arange(len(mask), device=parent.device)):
            cache.batch_select_indices(parent)
        mask = torch.cat([mask[parent], mask.new_ones(len(parent), 1)], dim=1)
        position = position[parent] + 1
        output, z = reader(token[:, None], position, attention_mask=mask, past_key_values=cache)
        if z is not None and sums is not None:
            sums = sums[parent] + prefix_sums(z)[:, -1]
    return [tokens[: tokens.index(-1)] if tokens[-1] == -1 else tokens for tokens in written.tolist()]


def _likeliest(heads: Sequence[T3Head], tilts: Sequence[Tilt]) -> Choose:
    """argmax_y log p(y)/T + log f(y), where writer number k has the tilt number k of these; heads: the reader's."""
    numbers = {id(head): number for number, head in enumerate(heads)}
    whose = torch.tensor([-1 if head is None else numbers[id(head)] for head, _ in tilts])
    temperature = torch.tensor([T for _, T in tilts])

    def choose(logits: Tensor, z: Tensor | None, writer: Tensor, state: Tensor) -> Tensor:
        token = logits.argmax(-1)[state]  # a tempered base has the base's own greedy text
        if z is None:
            return token
        head_of, T = whose.to(writer.device)[writer], temperature.to(writer.device)[writer]
        logp = logits.float().log_softmax(-1)
        for number, (head, pooled) in enumerate(zip(heads, z.split([head.rank for head in heads], -1))):
            mine = (head_of == number).nonzero()[:, 0]
            for part in mine.split(max(1, CHUNK // logits.shape[-1])):
                where, of = state[part].unique(return_inverse=True)
                logf = head.logf(pooled[where])
                token[part] = logp[state[part]].div_(T[part, None]).add_(logf[of]).argmax(-1)  # Eq. 5 in logs
        return token

    return choose


def _left_padded(states: Sequence[State], pad_id: int, attention_mask: str) -> tuple[Tensor, Tensor]:
    """ids and mask (S, L) of prompts with begun answers; every answer token is shown, as `generate` does."""
    examples = [Example([*prompt, *begun], len(prompt)) for prompt, begun in states]
    batch = collate(examples, pad_id, attention_mask, side="left")
    for row, (_, begun) in zip(batch["attention_mask"], states):
        row[len(row) - len(begun) :] = 1
    return batch["input_ids"], batch["attention_mask"]


def until_eos(tokens: Sequence[int], eos_ids: Sequence[int]) -> list[int]:
    """Tokens up to and including the first end-of-sequence token."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return list(tokens[:end])


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a generation: the checkpoint's generation config, else the tokenizer's own."""
    known = model.generation_config.eos_token_id
    if known is None:
        known = tokenizer.eos_token_id
    return [] if known is None else [known] if isinstance(known, int) else list(known)
