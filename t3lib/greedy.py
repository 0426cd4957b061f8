"""Greedy answers by Hugging Face's `generate`: sorted left-padded batches, finished rows dropped, shared drafts.

A tilted model mostly repeats the base's own greedy answer. So that answer is a draft: one teacher-forced pass of the
base gives every (head, T)'s greedy choice at every step of it, each keeps the draft up to its first other choice, and
only then does `generate` take over. The result is what `generate` alone would have written, token for token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from t3lib.sampler import T3ForCausalLM, tilt_logits
from t3lib.score import CHUNK, Tilt, answer_positions, heads_of
from t3lib.tofu import Example, collate, length_sorted

STAGE = 64  # new tokens after which finished rows leave the batch


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    pad_id: int,
    eos_ids: Sequence[int],
    max_new_tokens: int = 200,
    attention_mask: str = "lengths",
    begun: Sequence[Sequence[int]] | None = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> list[list[int]]:
    """The greedy answer of any causal LM to every prompt, its end-of-sequence token included when it was reached.

    begun: answers to continue, their tokens counted among max_new_tokens (default: all empty).
    """
    answers = [list(answer) for answer in begun] if begun is not None else [[] for _ in prompts]

    def unfinished(i: int) -> bool:
        return len(answers[i]) < max_new_tokens and not (answers[i] and answers[i][-1] in eos_ids)

    pending = [i for i in range(len(prompts)) if unfinished(i)]
    bar = tqdm(total=len(pending), desc="generating", disable=progress, leave=False)
    while pending:
        lengths = [len(prompts[i]) + len(answers[i]) for i in pending]
        for batch in length_sorted([length + STAGE for length in lengths], batch_tokens or 16384):
            rows = [pending[i] for i in batch]
            ids, mask = _left_padded([prompts[i] for i in rows], [answers[i] for i in rows], pad_id, attention_mask)
            output = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=min(STAGE, max(max_new_tokens - len(answers[i]) for i in rows)),
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                eos_token_id=list(eos_ids),
                pad_token_id=pad_id,
            )
            for i, new in zip(rows, output[:, ids.shape[1] :].tolist()):
                answers[i] = until_eos(answers[i] + new, eos_ids)[:max_new_tokens]
        left = [i for i in pending if unfinished(i)]
        bar.update(len(pending) - len(left))
        pending = left
    bar.close()
    return answers


def tilted_greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt],
    *,
    drafts: Sequence[Sequence[int]] | None = None,
    **options: Any,
) -> list[list[list[int]]]:
    """`greedy` of p^(1/T) f for every tilt (head, T) of the base `model`: n_tilts lists, each as `greedy` returns.

    options are those of `greedy`; drafts are the base's own answers, made here when not given. Exact whatever the
    drafts are; good ones make it fast.
    """
    drafts = greedy(model, prompts, **options) if drafts is None else drafts
    if not heads_of(tilts):  # a tempered base has the base's own greedy answer
        return [[list(draft) for draft in drafts] for _ in tilts]
    kept = verified(model, prompts, drafts, tilts, **{k: v for k, v in options.items() if k not in _GENERATION})
    samplers = {id(head): T3ForCausalLM(model, head, allow_sharpening=True) for head in heads_of(tilts)}
    results = []
    for (head, T), begun in zip(tilts, kept):
        if head is None:
            results.append([list(draft) for draft in drafts])
            continue
        sampler = samplers[id(head)]
        sampler.temperature = 1.0 if T is None else T
        results.append(greedy(sampler, prompts, begun=begun, **options))
    return results


_GENERATION = ("eos_ids", "max_new_tokens", "progress")


@torch.no_grad()
def verified(
    model: Any,
    prompts: Sequence[Sequence[int]],
    drafts: Sequence[Sequence[int]],
    tilts: Sequence[Tilt],
    *,
    pad_id: int,
    attention_mask: str = "lengths",
    batch_tokens: int | None = None,
) -> list[list[list[int]]]:
    """Each draft up to each tilt's first other choice, that choice included; the whole draft when there is none."""
    heads = heads_of(tilts)
    examples = [Example([*prompt, *draft], len(prompt)) for prompt, draft in zip(prompts, drafts)]
    choice = torch.zeros(len(tilts), len(drafts), max(map(len, drafts)), dtype=torch.int32)
    for batch in answer_positions(
        model,
        examples,
        pad_id=pad_id,
        heads=heads,
        attention_mask=attention_mask,
        as_decoded=True,
        batch_tokens=batch_tokens,
    ):
        rows = max(1, CHUNK // batch.logits.shape[-1])
        for start in range(0, len(batch.target), rows):
            part = slice(start, start + rows)
            z = None if batch.z is None else batch.z[part]
            best = _choices(batch.logits[part], z, tilts, heads).to("cpu", torch.int32)
            choice[:, batch.example[part].cpu(), batch.step[part].cpu()] = best
    kept = []
    for chosen in choice.tolist():
        answers = []
        for draft, tokens in zip(drafts, chosen):
            k = next((k for k, token in enumerate(draft) if tokens[k] != token), None)
            answers.append(list(draft) if k is None else [*draft[:k], tokens[k]])
        kept.append(answers)
    return kept


def _choices(logits: Tensor, z: Tensor | None, tilts: Sequence[Tilt], heads: Sequence[Any]) -> Tensor:
    """argmax_y log p(y)/T + log f(y) for every tilt: (n_tilts, N)."""
    parts = () if z is None else z.split([head.rank for head in heads], -1)
    logf = {id(head): head.logf(part) for head, part in zip(heads, parts)}
    return torch.stack(
        [
            logits.argmax(-1) if head is None else tilt_logits(logits, logf[id(head)], T or 1.0).argmax(-1)
            for head, T in tilts
        ]
    )


def _left_padded(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], pad_id: int, attention_mask: str
) -> tuple[Tensor, Tensor]:
    """ids and mask (B, L) of prompts with begun answers; every answer token is shown, as `generate` does."""
    batch = collate([Example([*p, *a], len(p)) for p, a in zip(prompts, answers)], pad_id, attention_mask, side="left")
    mask = batch["attention_mask"]
    for row, answer in zip(mask, answers):
        row[len(row) - len(answer) :] = 1
    return batch["input_ids"], mask


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
