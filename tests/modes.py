"""Every decoding mode of Transformers as a check of a model against an oracle of `reference`; T3
and ULD share them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from families import DEVICE, VOCAB, family
from reference import Oracle
from torch import Tensor
from transformers import DynamicCache

NEW, WIDTH, LENGTH = 5, 4, 9
LIMIT = 2e-5
PADDINGS = {
    "none": [],
    "left": [range(4), range(2)],
    "right": [range(6, 9), range(7, 9)],
    "holes": [(3, 4), (6,)],
}


def prompt(padding: str, rows: int = 3) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, LENGTH); the padded rows differ in length, one row is always full."""
    ids = torch.randint(3, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, hidden in enumerate(PADDINGS[padding]):
        mask[row, list(hidden)] = 0
        ids[row, list(hidden)] = 0
    return ids[:rows].to(DEVICE), mask[:rows].to(DEVICE)


@functools.cache
def expected(oracle: Oracle, padding: str, kind: str, rows: int = 3) -> tuple[Tensor, Tensor]:
    ids, mask = (each.cpu() for each in prompt(padding, rows))
    if kind == "returned":
        ids, mask = ids.repeat_interleave(3, 0), mask.repeat_interleave(3, 0)
    if kind == "beams":
        found = oracle.beams(ids[:1], mask[:1], NEW, WIDTH)
    elif kind == "teacher":
        found = ids, oracle.logp(ids, mask)
    else:
        found = oracle.decode(ids, mask, NEW, seed=None if kind == "greedy" else 11)
    return found[0].to(DEVICE), found[1].to(DEVICE)


def worst(found: Tensor, want: Tensor) -> float:
    return (found.log_softmax(-1).double() - want).abs().max().item()


def decode(
    model: Any, oracle: Oracle, padding: str, kind: str = "greedy", rows: int = 3, **options: Any
) -> float:
    """Generate, check the tokens, return max |delta log p| over every step and token of the
    vocabulary.
    """
    ids, mask = prompt(padding, rows)
    tokens, logp = expected(oracle, padding, kind, rows)
    torch.manual_seed(11)
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    assert torch.equal(out.sequences[:, LENGTH:], tokens)
    return worst(torch.stack(out.logits, 1), logp)


def beams(model: Any, oracle: Oracle, padding: str, **options: Any) -> float:
    ids, mask = prompt(padding, 1)
    tokens, scores = expected(oracle, padding, "beams")
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=NEW,
        num_beams=WIDTH,
        num_return_sequences=WIDTH,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    assert torch.equal(out.sequences[:, LENGTH:], tokens)
    return (out.sequences_scores - scores).abs().max().item()


def continuation(model: Any, oracle: Oracle, padding: str) -> float:
    """Three tokens into a cache the user holds, the rest from it in a second call."""
    ids, mask = prompt(padding)
    tokens, logp = expected(oracle, padding, "greedy")
    cache = DynamicCache(config=model.config)
    options: dict[str, Any] = dict(
        return_dict_in_generate=True, output_logits=True, past_key_values=cache
    )
    first = model.generate(ids, attention_mask=mask, max_new_tokens=3, **options)
    mask = torch.cat([mask, torch.ones_like(mask[:, :3])], 1)
    second = model.generate(first.sequences, attention_mask=mask, max_new_tokens=NEW - 3, **options)
    assert torch.equal(second.sequences[:, LENGTH:], tokens)
    return worst(torch.stack([*first.logits, *second.logits], 1), logp)


def teacher(model: Any, oracle: Oracle, padding: str) -> float:
    """One forward with labels: log p_hat after every visible token, and the loss of the visible
    next tokens.
    """
    ids, mask = prompt(padding)
    _, logp = expected(oracle, padding, "teacher")
    labels = ids.masked_fill(mask == 0, -100)
    with torch.no_grad():
        out = model(ids, attention_mask=mask, labels=labels)
    seen = mask.cumsum(1).bool()
    scored = (labels[:, 1:] >= 0) & seen[:, :-1]
    if (
        padding == "left"
    ):  # the label after the last pad is scored with nothing visible: compare the others
        labels[:, 1:] = labels[:, 1:].masked_fill(~scored, -100)
        out.loss = model.loss_function(out.logits, labels, VOCAB)
    want = -logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0][scored].mean()
    assert abs(out.loss.item() - want.item()) <= LIMIT
    return worst(out.logits[seen], logp[seen])


def sample(model: Any, oracle: Oracle, padding: str) -> float:
    return decode(model, oracle, padding, "sampled", do_sample=True)


def returned(model: Any, oracle: Oracle, padding: str) -> float:
    return decode(model, oracle, padding, "returned", do_sample=True, num_return_sequences=3)


def assisted(model: Any, oracle: Oracle, padding: str) -> float:
    return decode(model, oracle, padding, rows=1, assistant_model=family("llama", seed=9))


def lookup(model: Any, oracle: Oracle, padding: str) -> float:
    return decode(
        model, oracle, padding, rows=1, prompt_lookup_num_tokens=3, max_matching_ngram_size=1
    )


# On a GPU Transformers would compile every case, which takes minutes; on a CPU it does not.
STATIC: dict[str, Any] = {"cache_implementation": "static", "disable_compile": True}
MODES: dict[str, Callable[[Any, Oracle, str], float]] = {
    "greedy": decode,
    "sampling, seeded": sample,
    "num_return_sequences=3": returned,
    "4 beams with scores": beams,
    "static cache": functools.partial(decode, **STATIC),
    "static cache, 4 beams": functools.partial(beams, **STATIC),
    "use_cache=False": functools.partial(decode, use_cache=False),
    "chunked prefill": functools.partial(decode, prefill_chunk_size=2),
    "chunked prefill, static": functools.partial(decode, prefill_chunk_size=2, **STATIC),
    "continuation": continuation,
    "assisted (draft model)": assisted,
    "prompt lookup": lookup,
    "teacher-forced labels": teacher,
}
ROLLBACK = (
    "assisted (draft model)",
    "prompt lookup",
)  # which a base with a recurrent state cannot do
