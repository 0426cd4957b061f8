"""`t3 bench --gpu`, the same code on a CPU at the tiny shape: its tables, what stays of a run that ends early."""

import pandas as pd
import pytest
import torch
from torch import nn

from t3lib import cli
from t3lib.bench import cost, gpu
from t3lib.bench import model as bench_model
from t3lib.bench.shapes import SHAPES
from t3lib.bench.timing import COLUMNS, value_row
from t3lib.errors import UserError
from t3lib.files import read_json

STAGE = {"epochs": 1, "hidden": 16, "heads": 2}
REAL = {"split": "forget10", "stage": STAGE, "hyper": {"epochs": 2, "warmup_epochs": 1}, "seeds": [1, 2]}
SHEET = gpu.Sheet("tiny", "cpu", REAL, repeats=1, rows=16, new_tokens=2)


def table(folder, name):
    return pd.read_csv(folder / f"{name}.csv", keep_default_na=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    gpu.write_sheet(SHEET, folder)
    return folder


def test_every_question_has_its_table_and_its_provenance(folder):
    names = {"head", "base", "decoding", "baselines", "agreement"}
    assert {path.name for path in folder.iterdir()} == {f"{name}.{end}" for name in names for end in ("csv", "json")}
    for name in names:
        found, origin = table(folder, name), read_json(folder / f"{name}.json")
        assert list(found) == [*COLUMNS, "peak_memory_bytes", "device"]
        assert not (found.what == "not measured").any(), found.note.tolist()
        assert set(found.device) == {origin["device"]} and origin["model"] == "random weights, tiny"


def test_the_questions_of_the_issue_are_answered(folder):
    decoding, base = table(folder, "decoding"), table(folder, "base")
    overheads = decoding[decoding.what == "  overhead"]
    assert overheads["shape"].tolist() == ["tiny", "tiny", "tiny, NF4", "tiny, NF4"]
    assert "decoding, batch of 32: T3" in set(decoding.what)
    assert {"  throughput of features", "  5 T / 1 T"} <= set(base.what)
    assert {"head training, compact (ours)", "5 heads as one problem"} <= set(table(folder, "head").what)
    assert len(table(folder, "baselines")) == 10 and set(table(folder, "baselines")["shape"]) == {"tiny, adamw"}


def test_a_small_real_run_has_every_seed(folder):
    found = table(folder, "agreement")
    assert found.what.tolist() == ["Forget Quality, seed 1", "Forget Quality, seed 2"]
    assert found["median"].between(0, 1).all() and found.note.str.startswith("D = ").all()


def test_rows_are_kept_as_they_come_and_a_question_that_fails_says_why(tmp_path, monkeypatch):
    def short_of_memory(sheet):
        yield [value_row("first", "tiny", 1.0)]
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 3 GB")

    def killed(sheet):
        yield [value_row("second", "tiny", 2.0)]
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "QUESTIONS", {"a": short_of_memory, "b": killed})
    with pytest.raises(KeyboardInterrupt):
        gpu.write_sheet(SHEET, tmp_path)
    assert table(tmp_path, "a").what.tolist() == ["first", "not measured"]
    assert table(tmp_path, "a").note.tolist() == ["", "CUDA out of memory."]
    assert table(tmp_path, "b").what.tolist() == ["second"]


def test_nf4_replaces_the_layers_maps_and_nothing_else():
    model, plain = bench_model.random_model("tiny"), bench_model.random_model("tiny")
    bench_model.quantise(model)
    left = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    assert left == {"lm_head"} and model.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    ids = torch.arange(8)[None]
    with torch.no_grad():
        near, exact = model(ids).logits, plain(ids).logits
    assert 0 < (near - exact).abs().max() < 0.3 * exact.abs().max()


def test_layers_that_fit():
    large = SHAPES["llama-3.1-8b"]
    assert cost.layers_within(large, cost.parameters(large)) == 32 == cost.layers_within(large, 1e12)
    assert cost.layers_within(large, cost.parameters(large._replace(num_hidden_layers=17)) + 1) == 17
    assert cost.layers_within(large, 0) == 1


def test_without_a_gpu_it_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "--gpu", "--out", str(tmp_path / "gpu")]) == 2
    assert "cuda" in capsys.readouterr().err.lower() and not (tmp_path / "gpu").exists()
    with pytest.raises(UserError, match="unknown shape"):
        gpu.write_sheet(gpu.Sheet("huge", "cpu", REAL), tmp_path)
