"""`t3 bench` on a CPU at the tiny shape: its three rows, what is kept of a run, mistakes."""

import pandas as pd
import pytest
import torch

from t3lib.core.files import read_json
from t3lib.lab import cli, commands
from t3lib.lab.bench import sheet

ROWS = [
    "head training",
    "decoding overhead, one row",
    "decoding overhead, 32 rows",
]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Little training."""
    small = {"pairs": 4, "epochs": 2}
    with pytest.MonkeyPatch.context() as patch:
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
    assert len(kept["rows"]) == 3 and kept["provenance"]["model"] == "random weights, tiny"


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
