"""Loading from a folder, shapes on the meta device, and one-line errors."""

import json

import pytest
import torch

from t3lib import models
from t3lib.errors import UserError


@pytest.fixture(scope="module")
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"load_in": "2bit"}, "unknown load_in '2bit'"),
        ({"device": "cuda:7"}, "no CUDA GPU"),
    ],
)
def test_bad_options_are_one_line(folder, options, said):
    if "device" in options and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match=said) as error:
        models.load_model(folder, **options)
    assert "\n" not in str(error.value)


def test_missing_and_damaged_folders_are_named(folder, tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        models.load_model(tmp_path / "nowhere")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in folder.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(UserError, match="cannot load model"):
        models.load_model(damaged)
    (damaged / "config.json").write_text(json.dumps(config))
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="damaged"):
        models.load_model(damaged)


@pytest.mark.parametrize("device", ["foo", "meta", "cpu:cpu"])
def test_a_device_that_is_none_is_one_line(folder, device):
    with pytest.raises(UserError, match="cannot be used on this machine"):
        models.load_model(folder, device=device)


def test_a_tokenizer_that_grew_while_the_model_did_not(tiny_model):
    rows = tiny_model.get_input_embeddings().num_embeddings
    models.check_ids(tiny_model, [[0, rows - 1], []], 0)
    for ids, pad, said in (([[1], [2, rows]], 0, f"uses token {rows}"), ([[1]], rows, f"pads with token {rows}")):
        with pytest.raises(UserError, match=f"{said}, the model has {rows} embeddings"):
            models.check_ids(tiny_model, ids, pad)


def test_decoder_returns_states_after_the_final_norm(tiny_model):
    ids = torch.tensor([[5, 6, 7]])
    hidden = models.decoder_of(tiny_model)(input_ids=ids).last_hidden_state
    assert torch.allclose(tiny_model.lm_head(hidden), tiny_model(input_ids=ids).logits, atol=1e-6)
