"""Teacher-forced scores of every answer token, for several tilts from one pass of the base."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from t3lib.likelihood import UNTILTED, Tilt, answer_positions, choices, heads_of, target_logp
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
    lengths = [len(example.ids) - example.n_prompt for example in examples]
    scores = [(np.zeros((len(tilts), n)), np.zeros((len(tilts), n), bool)) for n in lengths]
    options: dict[str, Any] = {"pad_id": pad_id, "attention_mask": attention_mask, "batch_tokens": batch_tokens}
    for at in answer_positions(model, examples, heads=heads_of(tilts), **options):
        losses = -target_logp(at, tilts).cpu().double().numpy()
        hits = (choices(at, tilts) == at.target).cpu().numpy()
        for column, (example, step) in enumerate(zip(at.example.tolist(), at.step.tolist())):
            scores[example][0][:, step] = losses[:, column]
            scores[example][1][:, step] = hits[:, column]
    return scores
