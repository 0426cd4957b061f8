"""Prefix-mean features against one pass per prefix; their cache under kills, damage, full disks and other models."""

import copy
import os
import resource
import signal

import pytest
import torch
from faults import injected
from safetensors import safe_open

from t3lib import feature_cache, features, tofu
from t3lib.errors import UserError
from t3lib.features import extract_features, prefix_mean

FORGET = [{"question": f"Who is author {i}?", "answer": "Mara " + "of the hills " * i + "."} for i in range(3)]
RETAIN = [{"question": f"Where was book {i} set?", "answer": "In Oslo" + ", by the sea" * (4 - i)} for i in range(4)]


def extract(model, tokenizer, **options):
    return extract_features(model, tokenizer, FORGET, RETAIN, progress=False, **options)


@pytest.fixture(scope="module")
def expected(tiny_model, tokenizer):
    """The definition: one unpadded pass per prefix, the mean of its hidden states, and the token that follows."""
    x, y, row = [], [], []
    for number, example in enumerate(tofu.encode_rows(tokenizer, FORGET + RETAIN)):
        for t in range(example.n_prompt, len(example.ids)):
            with torch.no_grad():
                hidden = tiny_model.model(torch.tensor([example.ids[:t]])).last_hidden_state[0]
            x.append(hidden.double().mean(0))
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


# values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 300, 8192])
def test_one_pass_gives_every_prefix(tiny_model, tokenizer, expected, batch_tokens):
    found = extract(tiny_model, tokenizer, batch_tokens=batch_tokens)
    x, y, row = expected
    assert torch.equal(found.y, y) and torch.equal(found.row, row)
    assert found.s.tolist() == [0, 0, 0, 1, 1, 1, 1] and found.gamma == 3 / 7
    assert found.x.dtype == torch.float32
    torch.testing.assert_close(found.x.double(), x, atol=2e-6, rtol=0)
    assert found.starts.tolist() == [0, *torch.bincount(row).cumsum(0).tolist()]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(tiny_model, tokenizer, expected, side):
    batch = tofu.collate(tofu.encode_rows(tokenizer, FORGET + RETAIN), tokenizer.pad_token_id, side=side)
    mask = batch["attention_mask"]
    position = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        hidden = tiny_model.model(batch["input_ids"], attention_mask=mask, position_ids=position).last_hidden_state
    hidden = hidden.masked_fill(mask[..., None] == 0, float("nan"))  # what lies under padding must not matter
    _, answer = tofu.shifted_labels(batch["labels"])
    torch.testing.assert_close(prefix_mean(hidden, mask)[:, :-1][answer].double(), expected[0], atol=2e-6, rtol=0)


def test_prefix_mean_counts_visible_positions_only():
    hidden = torch.tensor([[[9.0], [1.0], [float("inf")], [4.0]]])
    mask = torch.tensor([[0, 1, 0, 1]])
    assert prefix_mean(hidden, mask).flatten().tolist() == [0.0, 1.0, 1.0, 2.5]


def test_openunlearning_mask_leaves_end_of_turn_tokens_out(tiny_model, tokenizer):
    """With pad = end of turn the reference hides the real ones too: from attention and from the mean."""
    other = copy.deepcopy(tokenizer)
    other.pad_token = other.eos_token
    found = extract(tiny_model, other, attention_mask="openunlearning")
    example = tofu.encode_rows(other, FORGET)[0]
    ids = torch.tensor([example.ids[: example.n_prompt]])
    mask = (ids != other.eos_token_id).long()
    assert mask.sum() < ids.shape[1]
    with torch.no_grad():
        hidden = tiny_model.model(ids, attention_mask=mask).last_hidden_state[0]
    torch.testing.assert_close(found.x[0], hidden[mask[0].bool()].mean(0), atol=2e-6, rtol=0)
    assert not torch.allclose(found.x[0], extract(tiny_model, other).x[0], atol=1e-3)


def test_bfloat16_is_the_rounded_float32(tiny_model, tokenizer, tmp_path):
    exact, rounded = (extract(tiny_model, tokenizer, dtype=dtype).x for dtype in ("float32", "bfloat16"))
    assert rounded.dtype == torch.bfloat16 and torch.equal(rounded, exact.bfloat16())
    cached = extract(tiny_model, tokenizer, dtype="bfloat16", cache=tmp_path).x
    assert torch.equal(cached, rounded)
    [file] = tmp_path.glob("*/features.safetensors")
    assert file.stat().st_size - 2 * cached.numel() < 512, "two bytes a number and a header"


# cache ----------------------------------------------------------------------------------------------------------------


def test_the_cache_is_a_safetensors_file_read_in_place(tiny_model, tokenizer, expected, tmp_path, reads):
    first = extract(tiny_model, tokenizer, cache=tmp_path)
    assert reads
    del reads[:]
    second = extract(tiny_model, tokenizer, cache=tmp_path)
    assert not reads, "a whole cache needs no pass"
    [file] = tmp_path.glob("*/features.safetensors")
    with safe_open(file, framework="pt") as handle:
        assert list(handle.keys()) == ["x"] and torch.equal(handle.get_tensor("x"), second.x)
    assert torch.equal(first.x, second.x)
    torch.testing.assert_close(second.x.double(), expected[0], atol=2e-6, rtol=0)


def killed_after(passes, work):
    """Run `work` in a forked process that kills itself (SIGKILL) on its decoder pass number passes + 1."""
    child = os.fork()
    if child == 0:
        try:
            counted = features._reader

            def reader(*args):
                read, done = counted(*args), []

                def once(rows):
                    if len(done) == passes:
                        os.kill(os.getpid(), signal.SIGKILL)
                    done.append(rows)
                    return read(rows)

                return once

            features._reader = reader
            work()
        finally:
            os._exit(1)  # never reached when the kill worked
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_killed_run_resumes_where_it_was(tiny_model, tokenizer, tmp_path, reads, caplog):
    killed_after(3, lambda: extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path))
    found = extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path)
    assert len(reads) == len(FORGET + RETAIN) - 3
    assert "4 of 7 rows are left" in caplog.text
    assert torch.equal(found.x, extract(tiny_model, tokenizer, batch_tokens=1).x)


def spoil(path, how):
    size = path.stat().st_size
    if how == "truncated":
        os.truncate(path, size // 2)
    elif how == "emptied":
        os.truncate(path, 0)
    elif how == "longer":
        with open(path, "ab") as file:
            file.write(b"x" * 100)
    else:  # a byte of the first row, or of the header
        with open(path, "r+b") as file:
            file.seek(size // 3 if how == "flipped" else 20)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 255]))


@pytest.mark.parametrize("how", ["truncated", "emptied", "longer", "flipped", "header"])
def test_a_damaged_cache_is_repaired_never_accepted(tiny_model, tokenizer, tmp_path, reads, how, caplog):
    whole = extract(tiny_model, tokenizer, batch_tokens=1)
    extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path)
    [file] = tmp_path.glob("*/features.safetensors")
    spoil(file, how)
    del reads[:]
    found = extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path)
    injected(f"feature cache {how}", {"": whole.x.numpy().tobytes()}, {"": found.x.numpy().tobytes()})
    lost = {"truncated": range(1, 7), "emptied": [7], "longer": [0], "flipped": [1], "header": [7]}[how]
    assert len(reads) in lost, "only what was lost is read again"
    assert how == "emptied" or file.name in caplog.text or file.parent.name in caplog.text


def test_a_torn_or_foreign_journal_loses_rows_not_correctness(tiny_model, tokenizer, tmp_path, reads):
    whole = extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path).x.clone()
    [journal] = tmp_path.glob("*/journal.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:-1]) + '\n[[99, 1]]\n["x"]\n' + lines[-1][:5])
    del reads[:]
    assert torch.equal(extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path).x, whole)
    assert len(reads) == 1


@pytest.mark.parametrize("change", ["model", "template", "dtype", "mask", "rows"])
def test_another_model_template_or_dtype_is_another_cache(tiny_model, tokenizer, tmp_path, reads, change, caplog):
    extract(tiny_model, tokenizer, cache=tmp_path)
    del reads[:]
    model, words, options = tiny_model, tokenizer, {}
    if change == "model":
        model = copy.deepcopy(tiny_model)
        model.model.layers[1].mlp.up_proj.weight.data[3, 5] += 1e-4
    elif change == "template":
        words = copy.deepcopy(tokenizer)
        words.chat_template = tokenizer.chat_template.replace("\n\n", "\n")
    elif change == "dtype":
        options = {"dtype": "bfloat16"}
    elif change == "mask":
        options = {"attention_mask": "openunlearning"}
    retain = RETAIN[:-1] if change == "rows" else RETAIN
    found = extract_features(model, words, FORGET, retain, cache=tmp_path, progress=False, **options)
    fresh = extract_features(model, words, FORGET, retain, progress=False, **options)
    assert torch.equal(found.x, fresh.x)
    assert len(list(tmp_path.glob("*/features.safetensors"))) == 2
    named = {"mask": "attention mask", "template": "template or tokenizer"}.get(change, change)
    assert (f"of another {named}" in caplog.text) == (change != "rows"), "the user is told why they are computed again"


def test_the_fingerprint_sees_every_weight_and_nothing_but_content(tiny_model):
    known = feature_cache.fingerprint(tiny_model)
    other = copy.deepcopy(tiny_model)
    assert feature_cache.fingerprint(other) == known
    for name, weight in other.named_parameters():
        flat = weight.data.view(-1)
        for place in (0, len(flat) // 2, -1):
            kept = flat[place].clone()
            flat[place] = -kept if kept else 1.0
            assert feature_cache.fingerprint(other) != known, name
            flat[place] = kept
    odd = torch.empty(weight.numel() + 1)[1:].view(weight.shape)  # begins at 4 bytes, not at 8
    weight.data = odd.copy_(weight.data)
    assert feature_cache.fingerprint(other) == known
    swapped = copy.deepcopy(tiny_model)
    rows = swapped.model.embed_tokens.weight.data
    rows[[7, 8]] = rows[[8, 7]]
    assert feature_cache.fingerprint(swapped) != known


def test_a_folder_that_cannot_be_written(tiny_model, tokenizer, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot keep .* of features in .*T3_CACHE"):
        extract(tiny_model, tokenizer, cache=tmp_path / "file")
    with pytest.raises(UserError, match="cannot keep .* of features in .*T3_CACHE"):
        extract(tiny_model, tokenizer, cache=tmp_path / "file" / "below")


def test_a_full_disk_is_found_before_the_first_pass_and_leaves_nothing(tiny_model, tokenizer, tmp_path, reads):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the system then refuses longer files, as a disk would
    try:
        with pytest.raises(UserError, match="cannot keep .* of features"):
            extract(tiny_model, tokenizer, cache=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not reads and not list(tmp_path.glob("*/features.safetensors"))
    assert torch.equal(extract(tiny_model, tokenizer, cache=tmp_path).x, extract(tiny_model, tokenizer).x)


def test_a_disk_that_fills_while_writing_is_resumed(tiny_model, tokenizer, tmp_path, monkeypatch, reads):
    write, calls = os.pwrite, []

    def full(*args):
        calls.append(args)
        if len(calls) > 3:  # the header and two rows
            raise OSError(28, "No space left on device")
        return write(*args)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left on device"):
        patch.setattr(os, "pwrite", full)
        extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path)
    del reads[:]
    found = extract(tiny_model, tokenizer, batch_tokens=1, cache=tmp_path)
    assert len(reads) == 5 and torch.equal(found.x, extract(tiny_model, tokenizer, batch_tokens=1).x)


def test_memory_does_not_grow_with_the_file(tmp_path):
    """64 MB through a cache: neither writing nor opening it holds more than one batch."""
    rows, width = 64, 2048
    starts = [128 * i for i in range(rows + 1)]
    with feature_cache.FeatureFile(tmp_path, {"test": 1}, width, torch.float32, starts) as file:
        file.write([0], [torch.ones(128, width)])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for row in range(1, rows):
            file.write([row], [torch.full((128, width), float(row))])
        x = file.map()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 * 1024, f"grew by {grown / 1024:.0f} MB"
    assert x.shape == (rows * 128, width) and x[-1, 0] == rows - 1 and x[128, 5] == 1


# memory and mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_out_of_memory_halves_the_batch(tiny_model, tokenizer, monkeypatch, caplog, error):
    forward, seen = tiny_model.model.forward, []

    def small(*args, **kwargs):
        if kwargs["input_ids"].numel() > 400:
            raise error
        seen.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    whole = extract(tiny_model, tokenizer)
    monkeypatch.setattr(tiny_model.model, "forward", small)
    found = extract(tiny_model, tokenizer)
    torch.testing.assert_close(found.x, whole.x, atol=2e-6, rtol=0)
    assert "out of memory with" in caplog.text and max(seen) <= 400
    monkeypatch.setattr(tiny_model.model, "forward", lambda **kwargs: (_ for _ in ()).throw(error))
    with pytest.raises(UserError, match="one row of 139 tokens.*--load-in"):
        extract(tiny_model, tokenizer)


def test_other_errors_of_the_model_are_not_swallowed(tiny_model, tokenizer, monkeypatch):
    def broken(**kwargs):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr(tiny_model.model, "forward", broken)
    with pytest.raises(RuntimeError, match="size mismatch"):
        extract(tiny_model, tokenizer)


@pytest.mark.parametrize(
    ("forget", "retain", "options", "said"),
    [
        ([], RETAIN, {}, "the forget set is empty"),
        (FORGET, [], {}, "the retain set is empty"),
        (FORGET, RETAIN + FORGET[1:2], {}, "forget row 2 is also retain row 5"),
        (FORGET, RETAIN, {"dtype": "float16"}, "float16"),
        (FORGET, RETAIN, {"batch_tokens": 0}, "batch_tokens must be at least 1"),
        (FORGET, RETAIN, {"attention_mask": "all"}, "unknown attention mask"),
        (FORGET, [{"question": "Long?", "answer": "a" * 600}], {}, "retain row 1 has .* context of 512"),
        ([{"question": "Q?", "answer": "<|eot_id|>"}], RETAIN, {}, "forget row 1: .*special token"),
    ],
)
def test_mistakes_name_the_row(tiny_model, tokenizer, forget, retain, options, said):
    with pytest.raises(UserError, match=said):
        extract_features(tiny_model, tokenizer, forget, retain, progress=False, **options)
