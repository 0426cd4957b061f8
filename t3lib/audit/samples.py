"""Sampled answers: the one place of the audit that draws.

Samples of one prompt that have begun alike share the model's next pass: a model that knows an answer by heart writes it
64 times at the price of little more than once. What is drawn is what `generate` would draw, sample by sample.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from t3lib.greedy import eos_ids, until_eos
from t3lib.models import pad_id
from t3lib.progress import progress_bar
from t3lib.tofu import Example, collate, length_sorted

BATCH_TOKENS = 2**17  # of prompts and samples that are in memory at once; large, for the steps of few states cost most


@torch.no_grad()
def sample_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    seed: int,
    max_new_tokens: int,
    top_p: float = 1.0,
    attention_mask: str = "lengths",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
) -> list[list[str]]:
    """`count` answers to each prompt (token ids), drawn at sampling temperature 1: (prompts, count) texts.

    model: any causal LM with a cache, T3ForCausalLM included (its T is another thing and stays). top_p 1 draws from
    the whole distribution. Equal arguments give equal answers on one machine; the caller's random state is left alone.
    """
    ends, pad = eos_ids(model, tokenizer), pad_id(tokenizer)
    generator = torch.Generator(model.device).manual_seed(seed)
    answers: list[list[str]] = [[] for _ in prompts]
    sizes = [(len(prompt) + max_new_tokens) * count for prompt in prompts]
    with progress_bar(total=len(prompts) * count, desc="sampling", show=progress, leave=False) as bar:
        for rows in length_sorted(sizes, batch_tokens):
            batch = collate([Example(list(prompts[i]), len(prompts[i])) for i in rows], pad, attention_mask, "left")
            ids, mask = (batch[name].to(model.device) for name in ("input_ids", "attention_mask"))
            drawn = _continuations(model, ids, mask, count, max_new_tokens, ends, top_p, generator)
            for number, tokens in enumerate(drawn):
                text = tokenizer.decode(until_eos(tokens, ends), skip_special_tokens=True).strip()
                answers[rows[number // count]].append(text)
            bar.update(len(rows) * count)
    return answers


def _continuations(
    model: Any, ids: Tensor, mask: Tensor, count: int, steps: int, ends: Sequence[int], top_p: float, generator: Any
) -> list[list[int]]:
    """Tokens of `count` samples of each left-padded prompt, ids and mask (P, L): P · count lists of `steps` tokens.

    A state is one beginning of one prompt; `state` says in which each sample is that still goes on (`live`).
    """
    tokens = torch.full((len(ids) * count, steps), ends[0] if ends else 0, device=ids.device)
    live = torch.arange(len(tokens), device=ids.device)
    state = live // count
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    output = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=True)
    position = position[:, -1:]
    for step in range(steps):
        logits = output.logits[:, -1]
        token = draw(logits, state, top_p, generator)
        tokens[live, step] = token
        going = ~torch.isin(token, torch.tensor(ends, device=ids.device))
        live, state, token = live[going], state[going], token[going]
        if not len(live) or step + 1 == steps:
            break
        begun, state = torch.unique(state * logits.shape[-1] + token, return_inverse=True)
        parent, token = begun // logits.shape[-1], begun % logits.shape[-1]
        cache = output.past_key_values
        cache.batch_select_indices(parent)
        mask = torch.cat([mask[parent], mask.new_ones(len(parent), 1)], dim=1)
        position = position[parent] + 1
        output = model(
            input_ids=token[:, None], attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True
        )
    return tokens.tolist()


def draw(logits: Tensor, state: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    """One token for each entry of `state` (n,), from softmax(logits[state]): (n,), logits (states, V).

    The distribution function is inverted: a uniform number for each sample, one cumulative sum for each state. top_p:
    only the fewest most likely tokens that hold this much probability.
    """
    states, size = logits.shape
    p = logits.float().softmax(-1)
    if top_p < 1:
        likely, order = p.sort(-1, descending=True)
        likely[likely.cumsum(-1) - likely >= top_p] = 0
        p = torch.zeros_like(p).scatter_(-1, order, likely)
    # One sum over all states, each from its start to its end, so that one search serves all samples. In float64, so
    # that the sums of the states before cost no digits. A token of probability 0 takes no room and is never met.
    cumulative = p.flatten().cumsum(0, dtype=torch.float64)
    end = cumulative[size - 1 :: size]
    start = torch.cat([end.new_zeros(1), end[:-1]])
    uniform = torch.rand(len(state), generator=generator, device=p.device, dtype=torch.float64)
    place = torch.searchsorted(cumulative, start[state] + uniform * (end - start)[state], right=True)
    return (place - state * size).clamp(0, size - 1)
