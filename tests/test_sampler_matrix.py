"""Every decoding mode x model family x padding against the float64 no-cache reference: equal tokens, equal log p.

T3_WRITE_MATRIX=1 writes what was measured to results/sampler_matrix.md, the table the README shows.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CONFIGS, HIDDEN, VOCAB, family
from reference import Reference
from torch import Tensor
from transformers import DynamicCache

from t3lib.files import atomic_write
from t3lib.head import T3Head
from t3lib.sampler import T3ForCausalLM, tilt

T, NEW, WIDTH, LENGTH = 2.0, 5, 4, 9
LIMIT = 2e-5
PADDINGS = {"none": [], "left": [range(4), range(2)], "right": [range(6, 9), range(7, 9)], "holes": [(3, 4), (6,)]}
measured: dict[tuple[str, str], dict[str, float]] = {}


def head(seed: int = 3) -> T3Head:
    made = T3Head(HIDDEN, VOCAB, rank=5, seed=seed)
    made.A.data *= 3
    made.B.data *= 5
    return made


def prompt(padding: str, rows: int = 3) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, LENGTH); the padded rows differ in length, one row is always full."""
    ids = torch.randint(3, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, hidden in enumerate(PADDINGS[padding]):
        mask[row, list(hidden)] = 0
        ids[row, list(hidden)] = 0
    return ids[:rows], mask[:rows]


@functools.cache
def reference(name: str) -> Reference:
    return Reference.of(family(name), [(head().A, head().B)], T)


@functools.cache
def expected(name: str, padding: str, kind: str, rows: int = 3) -> tuple[Tensor, Tensor]:
    ids, mask = prompt(padding, rows)
    ref = reference(name)
    if kind == "beams":
        return ref.beams(ids[:1], mask[:1], NEW, WIDTH)
    if kind == "teacher":
        return ids, ref.logp(ids, mask)
    if kind == "returned":
        ids, mask = ids.repeat_interleave(3, 0), mask.repeat_interleave(3, 0)
    return ref.decode(ids, mask, NEW, seed=None if kind == "greedy" else 11)


def worst(found: Tensor, want: Tensor) -> float:
    return (found.log_softmax(-1).double() - want).abs().max().item()


def decode(model: Any, name: str, padding: str, kind: str = "greedy", rows: int = 3, **options: Any) -> float:
    """Generate, check the tokens, return max |delta log p| over every step and token of the vocabulary."""
    ids, mask = prompt(padding, rows)
    tokens, logp = expected(name, padding, kind, rows)
    torch.manual_seed(11)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True, **options
    )
    assert torch.equal(out.sequences[:, LENGTH:], tokens)
    return worst(torch.stack(out.logits, 1), logp)


def beams(model: Any, name: str, padding: str, **options: Any) -> float:
    ids, mask = prompt(padding, 1)
    tokens, scores = expected(name, padding, "beams")
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


def continuation(model: Any, name: str, padding: str) -> float:
    """Three tokens into a cache the user holds, the rest from it in a second call."""
    ids, mask = prompt(padding)
    tokens, logp = expected(name, padding, "greedy")
    cache = DynamicCache(config=model.config)
    options: dict[str, Any] = dict(return_dict_in_generate=True, output_logits=True, past_key_values=cache)
    first = model.generate(ids, attention_mask=mask, max_new_tokens=3, **options)
    mask = torch.cat([mask, torch.ones_like(mask[:, :3])], 1)
    second = model.generate(first.sequences, attention_mask=mask, max_new_tokens=NEW - 3, **options)
    assert torch.equal(second.sequences[:, LENGTH:], tokens)
    return worst(torch.stack([*first.logits, *second.logits], 1), logp)


def teacher(model: Any, name: str, padding: str) -> float:
    """One forward with labels: log p_hat after every visible token, and the loss of the visible next tokens."""
    ids, mask = prompt(padding)
    _, logp = expected(name, padding, "teacher")
    labels = ids.masked_fill(mask == 0, -100)
    with torch.no_grad():
        out = model(ids, attention_mask=mask, labels=labels)
    seen = mask.cumsum(1).bool()
    scored = (labels[:, 1:] >= 0) & seen[:, :-1]
    if padding == "left":  # the label after the last pad is scored with nothing visible: compare the others
        labels[:, 1:] = labels[:, 1:].masked_fill(~scored, -100)
        out.loss = model.loss_function(out.logits, labels, VOCAB)
    want = -logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0][scored].mean()
    assert abs(out.loss.item() - want.item()) <= LIMIT
    return worst(out.logits[seen], logp[seen])


def sample(model: Any, name: str, padding: str) -> float:
    return decode(model, name, padding, "sampled", do_sample=True)


def returned(model: Any, name: str, padding: str) -> float:
    return decode(model, name, padding, "returned", do_sample=True, num_return_sequences=3)


def assisted(model: Any, name: str, padding: str) -> float:
    return decode(model, name, padding, rows=1, assistant_model=family(name, seed=9))


def lookup(model: Any, name: str, padding: str) -> float:
    return decode(model, name, padding, rows=1, prompt_lookup_num_tokens=3, max_matching_ngram_size=1)


MODES: dict[str, Callable[[Any, str, str], float]] = {
    "greedy": decode,
    "sampling, seeded": sample,
    "num_return_sequences=3": returned,
    "4 beams with scores": beams,
    "static cache": functools.partial(decode, cache_implementation="static"),
    "static cache, 4 beams": functools.partial(beams, cache_implementation="static"),
    "use_cache=False": functools.partial(decode, use_cache=False),
    "chunked prefill": functools.partial(decode, prefill_chunk_size=2),
    "chunked prefill, static": functools.partial(decode, prefill_chunk_size=2, cache_implementation="static"),
    "continuation": continuation,
    "assisted (draft model)": assisted,
    "prompt lookup": lookup,
    "teacher-forced labels": teacher,
}


def record(row: str, name: str, delta: float) -> None:
    cell = measured.setdefault((row, name), {})
    cell["cases"] = cell.get("cases", 0) + 1
    cell["delta"] = max(cell.get("delta", 0.0), delta)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONFIGS)
def test_exact(name: str, mode: str, padding: str) -> None:
    if (mode, padding) == ("continuation", "right"):
        padding = "holes"  # generate renumbers a right-padded row's tokens when called again, for any base
    delta = MODES[mode](T3ForCausalLM(family(name), head(), T), name, padding)
    assert delta <= LIMIT
    record(mode, name, delta)


@pytest.mark.parametrize(
    "mode", ["greedy", "4 beams with scores", "static cache", "assisted (draft model)", "continuation"]
)
@pytest.mark.parametrize("name", CONFIGS)
def test_exact_in_place(name: str, mode: str) -> None:
    base = family(name)
    with tilt(base, head(), T) as model:
        assert model is base
        delta = MODES[mode](model, name, "left")
    assert delta <= LIMIT
    record("`with tilt(...)`, 5 modes", name, delta)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_can_tell(name: str) -> None:
    """Forgetting the padding mask, another T or another head would all be seen: each is off by far more than LIMIT."""
    for wrong in (T3ForCausalLM(family(name), head(), T + 0.01), T3ForCausalLM(family(name), head(seed=4), T)):
        assert teacher_delta(wrong, name, masked=True) > 100 * LIMIT
    assert teacher_delta(T3ForCausalLM(family(name), head(), T), name, masked=False) > 100 * LIMIT


def teacher_delta(model: Any, name: str, masked: bool) -> float:
    ids, mask = prompt("left")
    with torch.no_grad():
        pooled = mask if masked else torch.ones_like(mask)
        logits = model(ids, attention_mask=mask, visible=pooled).logits
    seen = mask.bool()
    return worst(logits[seen], expected(name, "left", "teacher")[1][seen])


@pytest.fixture(scope="module", autouse=True)
def matrix() -> Any:
    yield
    if os.environ.get("T3_WRITE_MATRIX") == "1":
        write_matrix(Path(__file__).resolve().parent.parent / "results" / "sampler_matrix.md")


def write_matrix(path: Path) -> None:
    """Rows modes, columns families, cells the largest |delta log p| over the four paddings."""
    rows = list(dict.fromkeys(row for row, _ in measured))
    lines = ["| mode | " + " | ".join(CONFIGS) + " |", "|---" * (len(CONFIGS) + 1) + "|"]
    for row in rows:
        cells = [measured.get((row, name)) for name in CONFIGS]
        lines.append(f"| {row} | " + " | ".join("-" if c is None else f"{c['delta']:.0e}" for c in cells) + " |")
    cases = int(sum(cell["cases"] for cell in measured.values()))
    lines += [
        "",
        f"{cases} cases passed: every row of a batch equals the float64 reference token for token; cells give the",
        f"largest absolute difference of log p (limit {LIMIT:.0e}) over paddings {', '.join(PADDINGS)}.",
    ]
    with atomic_write(path) as handle:
        handle.write("\n".join(lines) + "\n")
