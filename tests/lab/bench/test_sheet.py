"""`t3 bench` on a CPU at the tiny shape: its five rows, what is kept of a run, mistakes."""

import functools

import pandas as pd
import pytest
import torch
from transformers import CompileConfig

from t3lib.core.files import read_json
from t3lib.lab import cli, commands
from t3lib.lab.bench import model as bench_model
from t3lib.lab.bench import sheet
from t3lib.lab.bench.model import random_model

ROWS = [
    "head training",
    "decoding overhead, one row",
    "decoding overhead, 32 rows",
    "decoding overhead, compiled",
    "decoding overhead, NF4 base",
]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Little training; and no compiler's back end, which is torch's business and needs a C++
    one.
    """
    eager = functools.partial(CompileConfig, backend="eager", mode=None)
    small = {"pairs": 4, "epochs": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_model, "CompileConfig", eager)
        patch.setattr(sheet, "HeadShape", lambda **sizes: HEAD(**sizes, **small))
        yield


HEAD = sheet.HeadShape


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    assert cli.main(["bench", "--device", "cpu", "--out", str(folder)]) == 0
    return folder


def test_the_sheet_has_its_rows(folder):
    names = {"bench.json", "benchmarks.csv", "benchmarks.md", "benchmarks.tex"}
    assert {path.name for path in folder.iterdir()} == names
    table = pd.read_csv(folder / "benchmarks.csv", keep_default_na=False)
    assert not table.note.str.contains("not measured").any(), table.note.tolist()
    assert table.what.tolist() == ROWS
    assert table["median"].notna().all() and (table.peak_memory_bytes > 1e6).all()
    kept = read_json(folder / "bench.json")
    assert len(kept["rows"]) == 5 and kept["provenance"]["model"] == "random weights, tiny"


def test_a_row_that_fails_says_why_and_a_killed_run_keeps_its_rows(tmp_path, monkeypatch, capsys):
    def short_of_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 3 GB")

    def killed(*_, **__):
        raise KeyboardInterrupt

    rows = iter([short_of_memory, killed])
    monkeypatch.setattr(sheet, "decode_rows", lambda *_, **__: next(rows)())
    with pytest.raises(KeyboardInterrupt):
        commands.bench(cli.parser().parse_args(["bench", "--out", str(tmp_path)]))
    table = pd.read_csv(tmp_path / "benchmarks.csv", keep_default_na=False)
    assert table.what.tolist() == ROWS[:2]
    assert table.note.tolist() == ["", "not measured: CUDA out of memory."]
    assert "out of memory" in capsys.readouterr().out


def test_without_a_compiler_the_row_says_so(tmp_path, monkeypatch):
    """Nothing that was compiled earlier is found on disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bench_model, "CompileConfig", CompileConfig)
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    torch._dynamo.reset()
    rows = {row["what"]: row for row in sheet.sheet("tiny", "cpu")}
    entry = rows["decoding overhead, compiled"]
    assert entry["median"] is None and entry["note"].startswith("not measured: ")


def test_nf4_replaces_the_layers_maps_and_nothing_else():
    small, plain = sheet.in_4_bits("tiny", "float32", "cpu"), random_model("tiny")
    left = {name for name, module in small.named_modules() if type(module) is torch.nn.Linear}
    assert left == {"lm_head"} and small.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    ids = torch.arange(8)[None]
    with torch.no_grad():
        near, exact = small(ids).logits, plain(ids).logits
    assert 0 < (near - exact).abs().max() < 0.3 * exact.abs().max()


def test_a_cpu_runs_a_smaller_base_than_the_one_whose_head_it_trains(monkeypatch):
    heads, bases = [], []
    monkeypatch.setattr(sheet, "head_rows", lambda shape, **_: heads.append(shape) or [{}])
    monkeypatch.setattr(sheet, "random_model", lambda name, **_: bases.append(name))
    monkeypatch.setattr(sheet, "decode_rows", lambda *_, **__: [{}])
    rows = sheet.sheet("llama-3.1-8b", "cpu")
    next(rows), next(rows)
    assert (heads[0].d, heads[0].vocab) == (4096, 128256) and set(bases) == {"58m"}


def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch):
    assert cli.main(["bench", "--shape", "huge"]) == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "--gpu", "--out", str(tmp_path / "gpu")]) == 2
    assert "cuda" in capsys.readouterr().err.lower() and not (tmp_path / "gpu").exists()
