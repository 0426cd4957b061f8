"""Teacher-forced scores of every answer token, for several tilts from one pass of the base."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from t3lib.likelihood import CHUNK, UNTILTED, Tilt, answer_positions, heads_of, target_logp
from t3lib.sampler import tilt_logits
from t3lib.tofu import Example


@torch.no_grad()
def token_scores(
    model: Any,
    examples: Sequence[Example],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    pad_id: int,
    attention_mask: str = "lengths",
    batch_tokens: int | None = None,
) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """One (losses, hits) per example, each (n_tilts, tokens of its answer).

    losses: −ln p_hat(token | prefix); hits: whether the token is the most likely one, so that greedy decoding would
    have written it after this prefix. The last token is the end of turn where the template has one.
    """
    heads = heads_of(tilts)
    lengths = [len(example.ids) - example.n_prompt for example in examples]
    scores = [(np.zeros((len(tilts), n)), np.zeros((len(tilts), n), bool)) for n in lengths]
    options: dict[str, Any] = {"pad_id": pad_id, "attention_mask": attention_mask, "batch_tokens": batch_tokens}
    for batch in answer_positions(model, examples, heads=heads, **options):
        rows = max(1, CHUNK // batch.logits.shape[-1])
        for start in range(0, len(batch.target), rows):
            part = slice(start, start + rows)
            logits, target = batch.logits[part].float(), batch.target[part]
            z = None if batch.z is None else batch.z[part]
            losses = -target_logp(logits, z, target, tilts, heads).cpu().double().numpy()
            parts = () if z is None else z.split([head.rank for head in heads], -1)
            logf = {id(head): head.logf(some.contiguous()) for head, some in zip(heads, parts)}
            chosen = [logits if head is None else tilt_logits(logits, logf[id(head)], T or 1.0) for head, T in tilts]
            hits = torch.stack([scored.argmax(-1) == target for scored in chosen]).cpu().numpy()
            for column, (example, step) in enumerate(zip(batch.example[part].tolist(), batch.step[part].tolist())):
                scores[example][0][:, step] = losses[:, column]
                scores[example][1][:, step] = hits[:, column]
    return scores
