"""Prefix-mean features against one pass per prefix."""

import copy
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from families import CONFIGS, MORE, VOCAB, family
from reference import in_float64, without_cache
from transformers import GPT2Config, GPT2LMHeadModel

from t3lib.classifier import features
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.core import rows as core_rows
from t3lib.core.errors import UserError
from t3lib.core.rows import Example, encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import vocabulary
from t3lib.tofu.likelihood import answer_losses
from t3lib.tofu.reader import Reading
from t3lib.tofu.writing import greedy

FORGET = [
    {"question": f"Who is author {i}?", "answer": "Mara " + "of the hills " * i + "."}
    for i in range(3)
]
RETAIN = [
    {"question": f"Where was book {i} set?", "answer": "In Oslo" + ", by the sea" * (4 - i)}
    for i in range(4)
]


def extract(model, tokenizer, batch_tokens=8192, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "BATCH_TOKENS", batch_tokens)
        return extract_features(model, tokenizer, FORGET, RETAIN, **options)


@pytest.fixture(scope="session")
def expected(tiny_model, tokenizer):
    """The definition: one unpadded pass per prefix, the mean of its hidden states, and the token
    that follows.
    """
    x, y, row = [], [], []
    for number, example in enumerate(encode_rows(tokenizer, FORGET + RETAIN)):
        for t in range(example.n_prompt, len(example.ids)):
            with torch.no_grad():
                ids = torch.tensor([example.ids[:t]], device=tiny_model.device)
                hidden = tiny_model.model(ids).last_hidden_state[0]
            x.append(hidden.double().mean(0).cpu())
            y.append(example.ids[t])
            row.append(number)
    return torch.stack(x), torch.tensor(y), torch.tensor(row)


@pytest.fixture
def reads(tiny_model, monkeypatch):
    """Shapes (B, L) of every pass of the decoder."""
    seen = []
    forward = tiny_model.model.forward

    def counted(*args, **kwargs):
        seen.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(tiny_model.model, "forward", counted)
    return seen


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 300, 8192])
def test_one_pass_gives_every_prefix(tiny_model, tokenizer, expected, batch_tokens):
    found = extract(tiny_model, tokenizer, batch_tokens=batch_tokens)
    x, y, row = expected
    assert torch.equal(found.y, y) and torch.equal(found.row, row)
    assert found.s.tolist() == [0, 0, 0, 1, 1, 1, 1] and found.gamma == 3 / 7
    assert found.x.dtype == torch.float32
    torch.testing.assert_close(found.x.double(), x, atol=2e-6, rtol=0)
    assert found.starts.tolist() == [0, *torch.bincount(row).cumsum(0).tolist()]


@pytest.mark.parametrize("name", [*CONFIGS, *MORE])
def test_every_family_has_the_features_of_plain_passes(name, monkeypatch):
    """Whether the beginning of all rows is read once or with each of them."""
    tokens = torch.randint(3, VOCAB, (4, 12), generator=torch.Generator().manual_seed(0))
    tokens[:, :2] = tokens[0, :2]
    examples = [Example(ids[:length], 3) for ids, length in zip(tokens.tolist(), (12, 5, 8, 4))]
    rows = [{"question": f"{number}", "answer": "a"} for number in range(4)]
    monkeypatch.setattr(
        features, "encode_rows", lambda _, some: [examples[int(row["question"])] for row in some]
    )
    model, words = family(name), SimpleNamespace(pad_token_id=0, eos_token_id=0)
    plain, found = in_float64(model), []
    for worth in (1, 10**9):
        monkeypatch.setattr(core_rows, "WORTH", worth)
        found.append(extract_features(model, words, rows[:2], rows[2:]).x.double().cpu())
    prefixes = [torch.tensor([e.ids[:t]]) for e in examples for t in range(3, len(e.ids))]
    with torch.no_grad():
        passes = [without_cache(plain, ids, torch.ones_like(ids), None)[1] for ids in prefixes]
    want = torch.stack([hidden[0].mean(0) for hidden in passes])
    for x in found:
        torch.testing.assert_close(x, want, atol=2e-5, rtol=0)


def test_what_all_rows_begin_with_is_read_once(tiny_model, tokenizer, monkeypatch):
    """The tokens that the model reads are counted, padding included."""
    count, sums = [], features._running_sums

    def counted(decoder, ids, mask, begun):
        count.append((ids.shape[1] - begun) * len(ids) + begun)
        return sums(decoder, ids, mask, begun)

    monkeypatch.setattr(features, "_running_sums", counted)
    known = []
    for worth in (1, 10**9):
        monkeypatch.setattr(core_rows, "WORTH", worth)
        known.append(extract(tiny_model, tokenizer))
    examples = [example.ids for example in encode_rows(tokenizer, [*FORGET, *RETAIN])]
    begun, whole = count[2], len(examples) * max(map(len, examples))
    assert count[-1] == whole and begun < whole - (len(examples) - 1) * 5
    torch.testing.assert_close(known[0].x, known[1].x, atol=2e-6, rtol=0)


def test_openunlearning_mask_leaves_end_of_turn_tokens_out(tiny_model, tokenizer):
    """With pad = end of turn the reference hides the real ones too: from attention and from the
    mean.
    """
    other = copy.deepcopy(tokenizer)
    other.pad_token = other.eos_token
    found = extract(tiny_model, other, attention_mask="openunlearning")
    example = encode_rows(other, FORGET)[0]
    ids = torch.tensor([example.prompt], device=tiny_model.device)
    mask = (ids != other.eos_token_id).long()
    assert mask.sum() < ids.shape[1]
    with torch.no_grad():
        hidden = tiny_model.model(ids, attention_mask=mask).last_hidden_state[0]
    mean = hidden[mask[0].bool()].mean(0).cpu()
    torch.testing.assert_close(found.x[0], mean, atol=2e-6, rtol=0)
    assert not torch.allclose(found.x[0], extract(tiny_model, other).x[0], atol=1e-3)


def test_features_of_a_bfloat16_base_are_bfloat16(tiny_model, tokenizer, expected):
    x = extract(copy.deepcopy(tiny_model).bfloat16(), tokenizer).x
    assert x.dtype == torch.bfloat16
    torch.testing.assert_close(x.double(), expected[0], atol=0.05, rtol=0)


# ---- memory and mistakes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")]
)
def test_out_of_memory_halves_the_batch(tiny_model, tokenizer, monkeypatch, error):
    forward, seen = tiny_model.model.forward, []

    def small(*args, **kwargs):
        if kwargs["input_ids"].numel() > 400:
            raise error
        seen.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    whole = extract(tiny_model, tokenizer)
    monkeypatch.setattr(tiny_model.model, "forward", small)
    with pytest.warns(UserWarning, match="out of memory: going on with batches of"):
        found = extract(tiny_model, tokenizer)
    torch.testing.assert_close(found.x, whole.x, atol=2e-6, rtol=0)
    assert max(seen) <= 400
    monkeypatch.setattr(tiny_model.model, "forward", lambda **kwargs: (_ for _ in ()).throw(error))
    with (
        pytest.warns(UserWarning),
        pytest.raises(UserError, match="even with batches of .* tokens: .*--load-in"),
    ):
        extract(tiny_model, tokenizer)


def test_other_errors_of_the_model_are_not_swallowed(tiny_model, tokenizer, monkeypatch):
    def broken(**kwargs):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr(tiny_model.model, "forward", broken)
    with pytest.raises(RuntimeError, match="size mismatch"):
        extract(tiny_model, tokenizer)


# ---- what was switched earlier in a notebook ----------------------------------------------------


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def everything(model, tokenizer):
    """Fit a head, score with it and sample from it; return all numbers."""
    known = extract(model, tokenizer)
    settings = {"epochs": 3, "warmup_epochs": 1, "rank": 3, "lr": 1e-2, "decay": "l2"}
    head = fit_head(known, vocab_size=vocabulary(model), **settings)
    reading, examples = Reading(0), encode_rows(tokenizer, FORGET)
    prompts = [example.prompt for example in examples]
    tilts = [(None, 1.0), (head, 2.5)]
    losses = torch.tensor(answer_losses(model, examples, reading, tilts))
    texts = greedy(model, prompts, reading, tilts, max_new_tokens=4)
    tilted, ids = T3ForCausalLM(model, head), torch.tensor(prompts[:1], device=model.device)
    with torch.no_grad():
        logits = tilted(ids).logits
    made = tilted.generate(ids, max_new_tokens=4, output_scores=True, return_dict_in_generate=True)
    numbers = [known.x, head.A.detach(), head.B.detach(), losses, logits, made.scores[-1]]
    return numbers, [*texts, made.sequences.tolist()]


@pytest.mark.parametrize(
    "switched",
    [
        lambda: torch.set_grad_enabled(False),
        torch.inference_mode,
        lambda: default_dtype(torch.float64),
        lambda: default_dtype(torch.bfloat16),
    ],
    ids=["no gradients", "inference mode", "float64", "bfloat16"],
)
def test_modes_that_are_switched_on_outside_change_nothing(tiny_model, tokenizer, switched):
    want, want_texts = everything(tiny_model, tokenizer)
    with switched():
        found, texts = everything(tiny_model, tokenizer)
    assert texts == want_texts
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


def test_features_of_inference_mode_can_be_trained_on(tiny_model, tokenizer):
    with torch.inference_mode():
        known = extract(tiny_model, tokenizer)
    (known.x @ torch.ones(known.x.shape[1], requires_grad=True)).sum().backward()


def test_a_model_in_training_mode_is_read_without_dropout_and_left_as_it_was(tokenizer):
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
    assert model.config.resid_pdrop > 0
    want, want_texts = everything(model, tokenizer)
    model.train().transformer.h[1].eval()
    modes = [module.training for module in model.modules()]
    found, texts = everything(model, tokenizer)
    assert texts == want_texts
    for one, other in zip(found, want, strict=True):
        assert torch.equal(one, other)
    assert [module.training for module in model.modules()] == modes
