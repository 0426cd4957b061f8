"""Sampled answers: the one place of the audit that draws. Samples that have begun alike share
passes (`writing`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3lib.core.models import pad_id
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Example, collate
from t3lib.tofu.likelihood import Reader, Reading
from t3lib.tofu.writing import Choose, eos_ids, write_texts

BATCH_TOKENS = (
    2**17
)  # of prompts and samples that are in memory at once; large, for the steps of few states cost most


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
    """`count` answers to each prompt (token ids), drawn at sampler temperature `tau`: (prompts,
    count) texts.

    model: any causal LM with a cache, T3ForCausalLM included (its T is another thing and stays).
    seed: of one random stream for all prompts, or one for each prompt: then a prompt's answers do
    not depend on the other prompts. top_p 1 draws from the whole distribution. max_new_tokens: of
    all answers, or of those to each prompt. Equal arguments give equal answers on one machine; the
    caller's random state is left alone.
    """
    reading, device = Reading(pad_id(tokenizer), eos_ids(model, tokenizer)), model.device
    one = isinstance(seed, int)
    seeds: Sequence[int] = [seed] if isinstance(seed, int) else seed
    streams = [torch.Generator(device).manual_seed(each) for each in seeds]

    def chooser(rows: Sequence[int]) -> Choose:
        """Draw the next tokens of a batch of these prompts."""
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
            examples = [Example(list(prompts[i]), len(prompts[i])) for i in rows]
            batch = collate(examples, reading.pad_id, attention_mask, "left")
            state = [place for place in range(len(rows)) for _ in range(count)]
            room = [most[row] for row in rows for _ in range(count)]
            drawn = write_texts(reader, batch, state, room, chooser(rows), reading)
            for number, tokens in enumerate(drawn):
                text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
                answers[rows[number // count]].append(text)
            bar.update(len(rows) * count)
    return answers


def draw(logits: Tensor, state: Tensor, top_p: float, uniform: Tensor) -> Tensor:
    """One token for each entry of `state` (n,), from softmax(logits[state]): (n,), logits (states,
    V).

    The distribution function is inverted: `uniform` holds a number in [0, 1) for each sample, and
    there is one cumulative sum for each state. top_p: only the fewest most likely tokens that hold
    this much probability.
    """
    states, size = logits.shape
    p = logits.float().softmax(-1)
    if top_p < 1:
        # NumPy sorts a row on a CPU five times as fast as torch, which also keeps track of places.
        sort = torch.sort(p).values if p.is_cuda else torch.from_numpy(np.sort(p.numpy()))
        likely = sort.flip(-1)
        least = likely.masked_fill(likely.cumsum(-1) - likely >= top_p, 2).amin(-1, keepdim=True)
        p = p.where(p >= least, 0)
    # One sum over all states, each from its start to its end, so that one search serves all
    # samples. In float64, so that the sums of the states before cost no digits. A token of
    # probability 0 takes no room and is never met.
    cumulative = p.flatten().cumsum(0, dtype=torch.float64)
    end = cumulative[size - 1 :: size]
    start = torch.cat([end.new_zeros(1), end[:-1]])
    place = torch.searchsorted(
        cumulative, start[state] + uniform * (end - start)[state], right=True
    )
    return (place - state * size).clamp(0, size - 1)
