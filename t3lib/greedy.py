"""Greedy answers by Hugging Face's `generate`: sorted left-padded batches, finished rows dropped, shared drafts.

A tilted model mostly repeats the base's own greedy answer. So that answer is a draft: one teacher-forced pass of the
base gives every (head, T)'s greedy choice at every step of it, each keeps the draft up to its first other choice, and
only then does `generate` take over, with the rows of all (head, T) in common batches. The result is what `generate`
alone would have written, token for token.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from t3lib.likelihood import Tilt, answer_positions, choices, default_batch_tokens, heads_of
from t3lib.progress import progress_bar
from t3lib.sampler import T3ForCausalLM
from t3lib.tofu import Example, collate, length_sorted

STAGE = 64  # new tokens after which finished rows leave the batch
BATCH_TOKENS = 2**14  # padded tokens a batch: a step has one row of logits a sequence, where scoring has one a token


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    pad_id: int,
    eos_ids: Sequence[int],
    max_new_tokens: int = 200,
    attention_mask: str = "lengths",
    begun: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = True,
    before_batch: Callable[[list[int]], None] | None = None,
) -> list[list[int]]:
    """The greedy answer of any causal LM to every prompt, its end-of-sequence token included when it was reached.

    begun: answers to continue, their tokens counted among max_new_tokens (default: all empty). before_batch is called
    with the numbers of the prompts in the next batch, in order.
    """
    answers = [list(answer) for answer in begun or [[]] * len(prompts)]

    def unfinished(i: int) -> bool:
        return len(answers[i]) < max_new_tokens and not (answers[i] and answers[i][-1] in eos_ids)

    pending = [i for i in range(len(prompts)) if unfinished(i)]
    bar = progress_bar(total=len(pending), desc="generating", show=progress, leave=False)
    while pending:
        lengths = [len(prompts[i]) + len(answers[i]) for i in pending]
        for batch in length_sorted([length + STAGE for length in lengths], batch_tokens):
            rows = [pending[i] for i in batch]
            if before_batch is not None:
                before_batch(rows)
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
    pad_id: int,
    drafts: Sequence[Sequence[int]] | None = None,
    attention_mask: str = "lengths",
    batch_tokens: int = BATCH_TOKENS,
    **options: Any,
) -> list[list[list[int]]]:
    """`greedy` of p^(1/T) f for every tilt (head, T) of the base `model`: n_tilts lists, each as `greedy` returns.

    options are those of `greedy`; drafts are by default the base's answers. Exact whatever the drafts are; good ones
    make it fast.
    """
    common: dict[str, Any] = {"pad_id": pad_id, "attention_mask": attention_mask}
    options |= common | {"batch_tokens": batch_tokens}
    drafts = greedy(model, prompts, **options) if drafts is None else drafts
    if not heads_of(tilts):  # a tempered base has the base's own greedy answer
        return [[list(draft) for draft in drafts] for _ in tilts]
    scored = min(batch_tokens, default_batch_tokens(model))
    kept = verified(model, prompts, drafts, tilts, batch_tokens=scored, **common)
    results = [[list(draft) for draft in drafts] if head is None else begun for (head, _), begun in zip(tilts, kept)]
    for rank in sorted({head.rank for head in heads_of(tilts)}):  # heads of equal rank can be in one batch
        alike = [t for t, (head, _) in enumerate(tilts) if head is not None and head.rank == rank]
        work = [(t, i) for t in alike for i in range(len(prompts))]
        sampler = _RowTilts(model, heads_of([tilts[t] for t in alike]), 1.0, allow_sharpening=True)
        options["before_batch"] = partial(sampler.take, [tilts[t] for t, _ in work])
        begun = [results[t][i] for t, i in work]
        answers = greedy(sampler, [prompts[i] for _, i in work], begun=begun, **options)
        for (t, i), answer in zip(work, answers):
            results[t][i] = answer
    return results


class _RowTilts(T3ForCausalLM):
    """p^(1/T) f where every row of a batch has a (head, T) to itself; all heads have the same rank."""

    def take(self, tilts: Sequence[Tilt], rows: Sequence[int]) -> None:
        """The next batch has the tilts at `rows`, one a row."""
        self.temperature = [tilts[row][1] for row in rows]
        places = [[place for place, row in enumerate(rows) if tilts[row][0] is head] for head in self.heads]
        self._members = [(head, torch.tensor(p, device=head.A.device)) for head, p in zip(self.heads, places) if p]

    def project(self, hidden: Tensor) -> Tensor:
        """z = A H with each row's head: (B, L, d) -> (B, L, rank)."""
        z = hidden.new_empty(*hidden.shape[:2], self.heads[0].rank, dtype=torch.float32)
        for head, rows in self._members:
            z[rows] = head.project(hidden[rows])
        return z

    def logf(self, pooled: Tensor) -> Tensor:
        """log f with each row's head: (B, L, rank) -> (B, L, V)."""
        logf = pooled.new_empty(*pooled.shape[:2], self.heads[0].B.shape[0])
        for head, rows in self._members:
            logf[rows] = head.logf(pooled[rows])
        return logf


@torch.no_grad()
def verified(
    model: Any, prompts: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]], tilts: Sequence[Tilt], **options: Any
) -> list[list[list[int]]]:
    """Each draft up to each tilt's first other choice, that choice included; the whole draft when there is none.

    options: those of `likelihood.answer_positions`.
    """
    examples = [Example([*prompt, *draft], len(prompt)) for prompt, draft in zip(prompts, drafts)]
    chosen = torch.zeros(len(tilts), len(drafts), max(map(len, drafts)), dtype=torch.int32)
    for at in answer_positions(model, examples, heads=heads_of(tilts), as_decoded=True, **options):
        chosen[:, at.example.cpu(), at.step.cpu()] = choices(at, tilts).to("cpu", torch.int32)

    def kept(draft: Sequence[int], tokens: list[int]) -> list[int]:
        k = next((k for k, token in enumerate(draft) if tokens[k] != token), None)
        return list(draft) if k is None else [*draft[:k], tokens[k]]

    return [[kept(*pair) for pair in zip(drafts, of_tilt)] for of_tilt in chosen.tolist()]


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
