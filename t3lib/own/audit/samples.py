"""Sample answers from a model. The audit samples nowhere else.

Samples that begin alike share forward passes (`writing`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3lib.core.models import pad_id
from t3lib.core.progress import progress_bar
from t3lib.tofu.likelihood import Reader, Reading
from t3lib.tofu.writing import Choose, State, eos_ids, write_texts

# Tokens of all prompts and samples in memory at once. Large, because most steps have few states and
# cost almost the same for any number of them.
BATCH_TOKENS = 2**17
STATES = 16  # in `draw`


def sample_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    seed: int | Sequence[int],
    max_new_tokens: int | Sequence[int],
    top_p: float = 1.0,
    tau: float = 1.0,
    attention_mask: str = "lengths",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> list[list[str]]:
    """Sample `count` answers to each prompt, and return them as (prompts, count) texts.

    model: any causal LM with a cache, including a T3ForCausalLM.
    prompts: token ids.
    seed: one seed for all prompts together, or one for each prompt. With one for each, the answers
    to a prompt do not depend on the other prompts.
    max_new_tokens: longest answer in tokens, for all prompts or one for each.
    top_p: nucleus of the sampler; 1 samples from the whole distribution.
    tau: the sampler's temperature. It is applied on top of T3's own T.
    batch_tokens: tokens of all prompts and samples in memory at once.

    Equal arguments give equal answers on one machine. The global random state is not touched.
    """
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), attention_mask)
    device = model.device
    one = isinstance(seed, int)
    seeds: Sequence[int] = [seed] if isinstance(seed, int) else seed
    streams = [torch.Generator(device).manual_seed(each) for each in seeds]

    def chooser(rows: Sequence[int]) -> Choose:
        """Return a function that samples the next tokens for a batch of these prompts."""
        mine = streams if one else [streams[row] for row in rows]

        def choose(logits: Tensor, z: Tensor | None, writer: Tensor, state: Tensor) -> Tensor:
            n = len(writer) if one else count
            parts = [torch.rand(n, generator=stream, device=device, dtype=torch.float64)
                     for stream in mine]  # fmt: skip
            uniform = torch.cat(parts)
            return draw(logits.float() / tau, state, top_p, uniform if one else uniform[writer])

        return choose

    answers: list[list[str]] = [[] for _ in prompts]
    reader = Reader(model, [])
    most = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    sizes = [(len(prompt) + room) * count for prompt, room in zip(prompts, most)]
    with progress_bar(
        total=len(prompts) * count, desc="sampling", show=progress, leave=False
    ) as bar:
        for rows in reader.batches(sizes, batch_tokens):
            begin: list[State] = [(tuple(prompts[i]), ()) for i in rows]
            state = [place for place in range(len(rows)) for _ in range(count)]
            room = [most[row] for row in rows for _ in range(count)]
            drawn = write_texts(reader, begin, state, room, chooser(rows), reading)
            for number, tokens in enumerate(drawn):
                text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
                answers[rows[number // count]].append(text)
            bar.update(len(rows) * count)
    return answers


def draw(logits: Tensor, state: Tensor, top_p: float, uniform: Tensor) -> Tensor:
    """Sample one token for each entry of `state` from softmax(logits[state]).

    logits: (states, V). state: (n,) indices of states.
    top_p: keep only the most probable tokens that together reach this probability.
    uniform: (n,) random numbers in [0, 1), one for each sample. The distribution function is
    inverted at these, with one cumulative sum for each state.
    Returns (n,) token ids. `STATES` states at a time are faster than all, and take less memory.
    """
    drawn = torch.empty_like(state)
    for first in range(0, len(logits), STATES):
        mine = ((state >= first) & (state < first + STATES)).nonzero()[:, 0]
        few = logits[first : first + STATES]
        drawn[mine] = _draw(few, state[mine] - first, top_p, uniform[mine])
    return drawn


def _draw(logits: Tensor, state: Tensor, top_p: float, uniform: Tensor) -> Tensor:
    """Do the same as `draw` for all states at once."""
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
