"""ln p of answers, computed in as few positions as possible: the same numbers and gradients as of
whole rows.
"""

import copy

import pytest
import torch
from torch.nn import functional as F

from t3lib.baselines import forward
from t3lib.core.models import pad_id
from t3lib.core.rows import encode, shifted_labels

ROWS = [
    ("Who?", "She."),
    ("Where was the author born, and when?", "In Oslo, it seems."),
    ("Why?", "No one knows why."),
]
SAME = [("Who?", answer) for _, answer in ROWS]


def direct(model, batch):
    """ln p (B, L − 1) of every next token from the logits of all positions."""
    targets, answer = shifted_labels(batch["labels"])
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    return -F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") * answer


@pytest.mark.parametrize(
    "rows", [ROWS, SAME, ROWS[:1]], ids=["other questions", "one question", "one row"]
)
@pytest.mark.parametrize("mask", ["lengths", "openunlearning"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_answers_and_gradients_are_those_of_whole_rows(
    tiny_model, tokenizer, rows, mask, checkpointing
):
    examples = [encode(tokenizer, *row) for row in rows]
    found = {}
    for how in ("direct", "answer_logp"):
        model = copy.deepcopy(tiny_model).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        batch = forward.batch_of(model, examples, pad_id(tokenizer), mask)
        if how == "direct":
            logp = direct(model, batch).sum(-1)
        else:
            values, answer = forward.answer_logp(model, batch)
            logp = (values * answer).sum(-1)
        (logp * torch.arange(1, len(rows) + 1)).sum().backward()
        found[how] = logp.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])
    for got, expected in zip(found["answer_logp"], found["direct"]):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_what_all_rows_begin_with_is_computed_once(tiny_model, tokenizer):
    examples = [encode(tokenizer, *row) for row in ROWS]
    batch = forward.batch_of(tiny_model, examples, pad_id(tokenizer), "lengths")
    seen = []
    with tiny_model.model.layers[0].register_forward_hook(
        lambda _, args, __: seen.append(args[0].shape[:2])
    ):
        forward.answer_logp(tiny_model, batch)
    shared = next(
        n for n in range(99) if len({tuple(example.ids[: n + 1]) for example in examples}) > 1
    )
    assert shared > 10, "the system text"
    assert seen == [(1, shared), (3, batch["input_ids"].shape[1] - 1 - shared)]
