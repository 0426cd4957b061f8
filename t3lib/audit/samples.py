"""Sampled answers: the one place of the audit that draws."""

from collections.abc import Sequence
from typing import Any

import torch

from t3lib.greedy import eos_ids, until_eos
from t3lib.models import pad_id
from t3lib.progress import progress_bar
from t3lib.tofu import Example, collate, length_sorted


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
    batch_tokens: int = 16384,
    progress: bool = True,
) -> list[list[str]]:
    """`count` answers to each prompt (token ids), drawn at sampling temperature 1: (prompts, count) texts.

    model: any causal LM, T3ForCausalLM included (its T is another thing and stays). top_p 1 draws from the whole
    distribution. Equal arguments give equal answers on one machine; the caller's random state is left alone.
    """
    ends, pad = eos_ids(model, tokenizer), pad_id(tokenizer)
    device = model.device
    answers: list[list[str]] = [[] for _ in prompts]
    lengths = [len(prompt) + max_new_tokens for prompt in prompts]
    devices = [device] if device.type == "cuda" else []
    bar = progress_bar(total=len(prompts) * count, desc="sampling", show=progress, leave=False)
    with bar, torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for rows in length_sorted([length * count for length in lengths], batch_tokens):
            repeats = min(count, max(1, batch_tokens // max(lengths[i] for i in rows)))
            batch = collate([Example(list(prompts[i]), len(prompts[i])) for i in rows], pad, attention_mask, "left")
            ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
            for start in range(0, count, repeats):
                number = min(repeats, count - start)
                output = model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=True, top_p=top_p,
                    top_k=0, temperature=1.0, num_return_sequences=number, eos_token_id=ends, pad_token_id=pad,
                )  # fmt: skip
                texts = [until_eos(tokens, ends) for tokens in output[:, ids.shape[1] :].tolist()]
                for place, i in enumerate(rows):
                    part = texts[place * number : (place + 1) * number]
                    answers[i] += [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in part]
                bar.update(number * len(rows))
    return answers
