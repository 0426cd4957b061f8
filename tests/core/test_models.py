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
from safetensors.torch import load_file, save_file
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


@pytest.fixture(scope="session")
def folder(tiny_model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny_model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_folder_round_trip_is_exact(folder, tiny_model):
    model, tokenizer = models.load_model(folder)
    assert not model.training and tokenizer.chat_template
    for name, value in tiny_model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_dtype_is_the_callers_choice(folder):
    assert models.load_model(folder, dtype="bfloat16")[0].dtype == torch.bfloat16


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"load_in": "2bit"}, "unknown load_in '2bit'"),
        ({"device": "cuda:7"}, "cannot be used on this machine"),
        ({"device": "foo"}, "cannot be used on this machine"),
        ({"device": "meta"}, "cannot be used on this machine"),
        ({"device": "cpu:cpu"}, "cannot be used on this machine"),
    ],
)
def test_bad_options_are_one_line(folder, options, said):
    with pytest.raises(UserError, match=said) as error:
        models.load_model(folder, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shown", [True, False])
def test_progress_bars_of_transformers_are_afterwards_as_before(folder, shown):
    before = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    models.load_model(folder)
    after = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if before else logging.disable_progress_bar)()
    assert after == shown


def refused(folder, capfd):
    """The one line in which a folder is refused; nothing else is printed or logged."""
    with pytest.raises(UserError, match="cannot load model") as error:
        models.load_model(folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    output = capfd.readouterr()
    assert not output.out and not output.err
    return str(error.value)


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the model's folder, to be damaged."""
    return shutil.copytree(folder, tmp_path / "copy")


def change_weights(folder, change, name="model.safetensors"):
    weights = load_file(folder / name)
    change(weights)
    save_file(weights, folder / name, metadata={"format": "pt"})


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_and_damaged_folders_are_named(copy, tmp_path, capfd):
    assert "nowhere does not exist" in refused(tmp_path / "nowhere", capfd)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert str(copy) in refused(copy, capfd)


def remove_ten(weights):
    for name in sorted(weights)[:10]:
        del weights[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            remove_ten,
            "10 weights missing: lm_head.weight, model.embed_tokens.weight, model.layers.0",
        ),
        (lambda weights: weights.update(extra=torch.zeros(3)), "1 weights unexpected: extra"),
        (
            lambda weights: weights.update({"lm_head.weight": torch.zeros(7, 32)}),
            "1 weights of another size: lm_head",
        ),
    ],
)
def test_weights_that_are_not_the_models_are_named(copy, change, said, capfd):
    change_weights(copy, change)
    assert said in refused(copy, capfd)


@pytest.mark.parametrize(
    "name", ["weights.bin", "../outside.safetensors", "/etc/x.safetensors", "a/b.safetensors"]
)
def test_an_index_may_name_only_safetensors_of_its_own(copy, name, capfd):
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").rename(copy / "shard-a.safetensors")
    index = {
        "metadata": {"total_size": 1},
        "weight_map": dict.fromkeys(weights, "shard-a.safetensors"),
    }
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    models.load_model(copy)
    torch.save(weights, copy / "weights.bin")
    save_file(weights, copy.parent / "outside.safetensors")
    index["weight_map"]["lm_head.weight"] = name
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"weights are said to be in '{name}'" in refused(copy, capfd)


def test_a_config_may_name_only_safetensors(copy, tiny_model, capfd):
    torch.save(tiny_model.state_dict(), copy / "adapter_model.bin")
    change_json(copy / "config.json", transformers_weights="adapter_model.bin")
    assert "'adapter_model.bin'" in refused(copy, capfd)


@pytest.fixture
def adapter(folder, tokenizer, tmp_path):
    """A folder with a LoRA adapter of the tiny model."""
    base = LlamaForCausalLM.from_pretrained(folder)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(base, lora).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", adapted


def test_an_adapter_is_loaded_on_its_base(adapter, tiny_model):
    path, adapted = adapter
    model, _ = models.load_model(path)
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, adapted(ids).logits)
    assert not torch.allclose(model(ids).logits, tiny_model(ids).logits, atol=1e-3)


def test_adapters_are_checked_as_their_bases_are(adapter, copy, capfd):
    path, _ = adapter
    change_json(path / "adapter_config.json", base_model_name_or_path=str(copy))
    models.load_model(path)
    capfd.readouterr()
    change_weights(
        path, lambda weights: weights.pop(sorted(weights)[0]), "adapter_model.safetensors"
    )
    assert "1 weights missing: model.layers.0.self_attn.q_proj.lora_A.default.weight" in refused(
        path, capfd
    )
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    assert "not in adapter_model.safetensors" in refused(path, capfd)
    (path / "adapter_model.bin").rename(path / "adapter_model.safetensors")
    change_weights(copy, remove_ten)
    assert "10 weights missing" in refused(path, capfd)
    change_json(path / "adapter_config.json", base_model_name_or_path=str(path))
    assert "holds an adapter beside its base" in refused(path, capfd)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", "{", ""),
        ("tokenizer.json", '{"model": {"type": "None"}}', ""),
        ("tokenizer.json", "\xff", ""),
        ("tokenizer_config.json", "[]", ""),
        ("config.json", "{", ""),
        ("config.json", "[]", ""),
        ("config.json", "{}", ""),
        ("config.json", {"hidden_size": "many"}, "hidden_size"),
        ("config.json", {"hidden_size": 31}, ""),
        ("config.json", {"num_hidden_layers": -3}, ""),
        ("config.json", {"model_type": "nonesuch"}, "nonesuch"),
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, ""),
        ("config.json", {"quantization_config": {"quant_method": "awq"}}, ""),
        ("config.json", {"quantization_config": {"quant_method": "hqq"}}, ""),
        ("config.json", {"quantization_config": "yes"}, ""),
        ("config.json", {"rope_parameters": {"rope_type": "nonesuch", "rope_theta": 1.0}}, ""),
        ("generation_config.json", "{", ""),
        ("chat_template.jinja", "{% for %}", "chat template fails"),
        ("chat_template.jinja", "{{ nothing.here.at_all }}", "chat template fails"),
        ("chat_template.jinja", "{{ raise_exception('no') }}", "chat template fails: no"),
        ("chat_template.jinja", "{{ 1 / 0 }}", "chat template fails"),
        ("chat_template.jinja", "{{ range(10**9) }}", "chat template fails: Range too big"),
    ],
)
def test_files_of_strangers_are_refused_in_one_line(copy, file, content, said, capfd):
    if isinstance(content, dict):
        change_json(copy / file, **content)
    else:
        (copy / file).write_text(content, encoding="latin-1")
    assert said in refused(copy, capfd)


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


def test_of_a_hub_that_does_not_answer_the_cache_serves(folder, tmp_path):
    downloaded = tmp_path / "hub" / "models--somebody--model"
    shutil.copytree(folder, downloaded / "snapshots" / ("0" * 40))
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


def test_an_adapter_of_a_commit_is_loaded(adapter, monkeypatch):
    """As one of the Hub is: Transformers takes its commit among keywords of its own."""
    monkeypatch.setattr(models, "located", lambda name, revision=None: Place(name, "0" * 40))
    model, _ = models.load_model(adapter[0])
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, adapter[1](ids).logits)


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
