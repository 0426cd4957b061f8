"""Loading from a folder, an adapter or the Hub: exactly its own weights, or one line that says what
is wrong.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertDecoderConfig,
)
from transformers.utils import logging

from t3lib.core import models
from t3lib.core.errors import UserError
from t3lib.core.hub import Place
from t3lib.sampler import belonging


def test_folder_round_trip_is_exact(model_folder, tiny_model):
    model, tokenizer = models.load_model(model_folder)
    assert not model.training and tokenizer.chat_template
    for name, value in tiny_model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_dtype_is_the_callers_choice(model_folder):
    assert models.load_model(model_folder, dtype="bfloat16")[0].dtype == torch.bfloat16


@pytest.mark.parametrize("width", [64, 96])
def test_layers_of_any_width_are_loaded_in_4_bits(tokenizer, tmp_path, width):
    """A processor with AVX-512 BF16 repacks weights in tiles, of which 96 is no multiple."""
    pytest.importorskip("bitsandbytes")
    shape = {"hidden_size": width, "intermediate_size": width, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=1, **shape)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = models.load_model(tmp_path, load_in="4bit", dtype="float32")
    with torch.inference_mode():
        assert torch.isfinite(model(torch.arange(5)[None]).logits).all()
    noisy = logging.get_logger("bitsandbytes.backends.cpu.ops")
    assert not noisy.isEnabledFor(logging.WARNING), "its advice has no place in a notebook"


@pytest.mark.parametrize("shown", [True, False])
def test_progress_bars_of_transformers_are_afterwards_as_before(model_folder, shown):
    before = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    models.load_model(model_folder)
    after = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if before else logging.disable_progress_bar)()
    assert after == shown


@pytest.fixture
def adapter(model_folder, tokenizer, tmp_path):
    """A folder with a LoRA adapter of the tiny model."""
    base = LlamaForCausalLM.from_pretrained(model_folder)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(base, lora).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", adapted


@pytest.mark.parametrize("own", [False, True])
def test_an_adapter_is_loaded_on_its_base(adapter, tiny_model, tokenizer, own):
    """With the base's tokenizer, if it has none: PEFT saves none."""
    path, adapted = adapter
    if own:
        tokenizer.save_pretrained(path)
    model, found = models.load_model(path)
    assert found.get_vocab() == tokenizer.get_vocab()
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, adapted(ids).logits)
    assert not torch.allclose(model(ids).logits, tiny_model(ids).logits, atol=1e-3)


HUB = """
import sys
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
for name in sys.argv[1:]:
    try:
        print(name, sum(p.numel() for p in load_model(name)[0].parameters()))
    except UserError as error:
        print(error)
"""


def test_of_a_hub_that_does_not_answer_the_cache_serves(model_folder, tmp_path):
    downloaded = tmp_path / "hub" / "models--somebody--model"
    shutil.copytree(model_folder, downloaded / "snapshots" / ("0" * 40))
    (downloaded / "refs").mkdir()
    (downloaded / "refs" / "main").write_text("0" * 40)
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", HUB, "somebody/else", "somebody/model"]
    environment = os.environ | nobody
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    name = "somebody/else"
    said = f"cannot load model {name}: there is no folder {name}, and the Hub cannot be reached"
    assert first == said and second.startswith("somebody/model 3"), done.stderr


def test_a_device_without_room_is_one_line(model_folder, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines")

    monkeypatch.setattr(LlamaForCausalLM, "to", full)
    said = r"out of memory: load the base smaller \(--load-in 8bit or 4bit\)$"
    with pytest.raises(UserError, match=f"cannot load model .*: {said}"):
        models.load_model(model_folder)


def test_an_adapter_of_a_commit_is_loaded(adapter, monkeypatch):
    """As one of the Hub is: Transformers takes its commit among keywords of its own."""
    monkeypatch.setattr(models, "located", lambda name, revision=None: Place(name, "0" * 40))
    model, _ = models.load_model(adapter[0])
    assert belonging.base_identity(model)["base_revision"] == "0" * 40
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, adapter[1](ids).logits)


def test_generate_ends_where_judging_ends(model_folder, tmp_path):
    """Of a model that names no last token, the tokenizer's ends an answer."""
    shutil.copytree(model_folder, tmp_path / "base")
    for name in ("config.json", "generation_config.json"):
        path = tmp_path / "base" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": None}))
    model, tokenizer = models.load_model(tmp_path / "base")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_tokenizer_that_grew_while_the_model_did_not(tiny_model):
    rows = tiny_model.get_input_embeddings().num_embeddings
    models.check_ids(tiny_model, [[0, rows - 1], []], 0)
    for ids, pad, said in (
        ([[1], [2, rows]], 0, f"uses token {rows}"),
        ([[1]], rows, f"pads with token {rows}"),
    ):
        with pytest.raises(UserError, match=f"{said}, the model has {rows} embeddings"):
            models.check_ids(tiny_model, ids, pad)


def test_decoder_returns_states_after_the_final_norm(tiny_model):
    ids = torch.tensor([[5, 6, 7]])
    hidden = models.decoder_of(tiny_model)(input_ids=ids).last_hidden_state
    assert torch.allclose(tiny_model.lm_head(hidden), tiny_model(input_ids=ids).logits, atol=1e-6)


@pytest.mark.parametrize("config", [Llama4TextConfig, ModernBertDecoderConfig])
def test_families_whose_decoder_is_not_known_are_refused(config):
    sizes = dict(
        vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=1, pad_token_id=0
    )
    model = AutoModelForCausalLM.from_config(config(**sizes, num_attention_heads=2))
    with pytest.raises(
        UserError, match="does not say which part of it gives the last hidden states"
    ):
        models.decoder_of(model)


def test_small_models_and_fits_compute_with_one_thread(tiny_model, monkeypatch):
    """README's example took 97 s with one thread, and 270 s with two."""
    used = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    with models.one_thread(tiny_model), models.one_thread():
        assert used == [1, 1]
    assert used == [1, 1, 4, 4]
    monkeypatch.setattr(models, "SMALL", 1)
    with models.one_thread(tiny_model):
        assert used[4:] == []
