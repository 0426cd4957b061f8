"""Prefix-mean features against one pass per prefix; their cache under kills, damage, full disks and
other models.
"""

import copy
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
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
from t3lib.core.models import weights_key
from t3lib.core.rows import Example, encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import vocabulary
from t3lib.tofu.likelihood import Reading, answer_losses
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
    ids = torch.tensor([example.ids[: example.n_prompt]], device=tiny_model.device)
    mask = (ids != other.eos_token_id).long()
    assert mask.sum() < ids.shape[1]
    with torch.no_grad():
        hidden = tiny_model.model(ids, attention_mask=mask).last_hidden_state[0]
    mean = hidden[mask[0].bool()].mean(0).cpu()
    torch.testing.assert_close(found.x[0], mean, atol=2e-6, rtol=0)
    assert not torch.allclose(found.x[0], extract(tiny_model, other).x[0], atol=1e-3)


def test_features_of_a_bfloat16_base_are_bfloat16(tiny_model, tokenizer, expected, tmp_path):
    base = copy.deepcopy(tiny_model).bfloat16()
    cached = extract(base, tokenizer, cache=tmp_path).x
    assert cached.dtype == torch.bfloat16 and torch.equal(cached, extract(base, tokenizer).x)
    torch.testing.assert_close(cached.double(), expected[0], atol=0.05, rtol=0)
    [file] = tmp_path.glob("*/x.bin")
    assert file.stat().st_size == 2 * cached.numel(), "two bytes a number"


# ---- cache --------------------------------------------------------------------------------------


def test_a_whole_cache_is_read_in_place_and_needs_no_pass(
    tiny_model, tokenizer, expected, tmp_path, reads
):
    first = extract(tiny_model, tokenizer, cache=tmp_path)
    assert reads
    del reads[:]
    second = extract(tiny_model, tokenizer, cache=tmp_path)
    assert not reads
    [folder] = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} <= {"x.bin", "key.json", "lock"}
    assert str(folder / "x.bin") in Path("/proc/self/maps").read_text(), (
        "mapped into memory, not read into it"
    )
    assert torch.equal(first.x, second.x)
    torch.testing.assert_close(second.x.double(), expected[0], atol=2e-6, rtol=0)


def test_a_killed_run_starts_again_and_its_rest_is_gone(tiny_model, tokenizer, tmp_path, reads):
    """The key is written last; what was being written has another name."""
    whole = extract(tiny_model, tokenizer, cache=tmp_path).x.clone()
    [folder] = tmp_path.iterdir()
    (folder / "x.bin").rename(folder / ".x.bin.1.partial")
    (folder / "key.json").unlink()
    del reads[:]
    assert torch.equal(extract(tiny_model, tokenizer, cache=tmp_path).x, whole)
    assert reads and not list(folder.glob(".*"))


DAMAGE = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "emptied": lambda whole: b"",
    "longer": lambda whole: whole + b"x" * 100,
    "flipped": lambda whole: whole[:50] + bytes([whole[50] ^ 255]) + whole[51:],
}


@pytest.mark.parametrize("name", ["x.bin", "key.json"])
@pytest.mark.parametrize("how", [*DAMAGE, "gone"])
def test_a_damaged_cache_is_extracted_again_never_accepted(
    tiny_model, tokenizer, tmp_path, reads, how, name, caplog
):
    whole = extract(tiny_model, tokenizer, cache=tmp_path).x.clone()
    [file] = tmp_path.glob(f"*/{name}")
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(DAMAGE[how](file.read_bytes()))
    for again in (True, False):
        del reads[:]
        assert torch.equal(extract(tiny_model, tokenizer, cache=tmp_path).x, whole)
        assert bool(reads) == again
    assert "is damaged" in caplog.text or (how, name) == ("gone", "key.json")


@pytest.mark.parametrize("change", ["model", "template", "mask", "rows"])
def test_another_model_template_or_mask_is_another_cache(tiny_model, tokenizer, tmp_path, change):
    extract(tiny_model, tokenizer, cache=tmp_path)
    model, words, options = tiny_model, tokenizer, {}
    if change == "model":
        model = copy.deepcopy(tiny_model)
        model.model.layers[1].mlp.up_proj.weight.data[3, 5] += 1e-4
    elif change == "template":
        words = copy.deepcopy(tokenizer)
        words.chat_template = tokenizer.chat_template.replace("\n\n", "\n")
    elif change == "mask":
        options = {"attention_mask": "openunlearning"}
    retain = RETAIN[:-1] if change == "rows" else RETAIN
    found = extract_features(model, words, FORGET, retain, cache=tmp_path, **options)
    fresh = extract_features(model, words, FORGET, retain, **options)
    assert torch.equal(found.x, fresh.x)
    assert len(list(tmp_path.glob("*/x.bin"))) == 2


def test_the_key_of_weights_sees_every_weight_and_nothing_but_content(tiny_model):
    known = weights_key(tiny_model)
    other = copy.deepcopy(tiny_model)
    assert weights_key(other) == known
    for name, weight in other.named_parameters():
        flat = weight.data.view(-1)
        for place in (0, len(flat) // 2, -1):
            kept = flat[place].clone()
            flat[place] = -kept if kept else 1.0
            assert weights_key(other) != known, name
            flat[place] = kept
    swapped = copy.deepcopy(tiny_model)
    rows = swapped.model.embed_tokens.weight.data
    rows[[7, 8]] = rows[[8, 7]]
    assert weights_key(swapped) != known


def test_a_folder_that_cannot_be_written(tiny_model, tokenizer, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot keep .* of features in .*T3_CACHE"):
        extract(tiny_model, tokenizer, cache=tmp_path / "file")
    with pytest.raises(UserError, match="cannot keep .* of features in .*T3_CACHE"):
        extract(tiny_model, tokenizer, cache=tmp_path / "file" / "below")


def test_a_full_disk_is_found_before_the_first_pass_and_leaves_nothing(
    tiny_model, tokenizer, tmp_path, reads
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
        with pytest.raises(
            UserError, match="cannot keep .* of features .* the disk has 1e-07 GB left.*T3_CACHE"
        ):
            extract(tiny_model, tokenizer, cache=tmp_path)
    assert not reads and not list(tmp_path.glob("*/*.*"))
    assert torch.equal(
        extract(tiny_model, tokenizer, cache=tmp_path).x, extract(tiny_model, tokenizer).x
    )


MANY_ROWS = """
import sys, torch
from conftest import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from t3lib.classifier import features

def anonymous():  # KiB of memory that is no file's: mapped files can be dropped
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

sizes = dict(hidden_size=2048, intermediate_size=8, num_hidden_layers=0, num_attention_heads=8)
model = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).eval()
rows = [{"question": f"{i}?", "answer": "x" * 127} for i in range(64)]
found, forward = [], model.model.forward
model.model.forward = lambda **inputs: (found.append(anonymous()), forward(**inputs))[1]
features.BATCH_TOKENS = 1
x = features.extract_features(
    model, byte_tokenizer(), rows[:32], rows[32:], cache=sys.argv[1], progress=False
).x
assert len(found) == 64 and x.shape == (64 * 128, 2048)
print(max(*found[8:], anonymous()) - found[8])
"""


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """64 MB of features through the cache: after the first batches, not even 8 MB more memory."""
    command = [sys.executable, "-c", MANY_ROWS, tmp_path]
    # glibc keeps what was freed below thresholds that move while a program runs, which is megabytes
    # up and down here. With thresholds that stand still it gives back at once, and what is counted
    # is what the program holds.
    still = {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_TOP_PAD_": "0",
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | still,
    )
    assert int(done.stdout) < 8 * 1024, f"{int(done.stdout) / 1024:.0f} MB"


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
    known = extract(model, tokenizer, progress=False)
    settings = {"epochs": 3, "warmup_epochs": 1, "rank": 3, "lr": 1e-2, "decay": "l2"}
    head = fit_head(known, vocab_size=vocabulary(model), progress=False, **settings)
    reading, examples = Reading(0, progress=False), encode_rows(tokenizer, FORGET)
    prompts = [example.ids[: example.n_prompt] for example in examples]
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
