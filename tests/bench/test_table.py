"""`t3 bench`: all groups of the table, printed and written; mistakes in one line."""

import pandas as pd
import pytest
import torch

from t3lib import cli
from t3lib.bench import cost, timing
from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench import table as bench
from t3lib.errors import UserError
from t3lib.files import read_json
from t3lib.report import plots_cost

MACHINE = cost.Ceilings(1e15, 1e15)


def test_the_table_is_printed_and_written(tmp_path, monkeypatch, capsys):
    measured = timing.row(
        "features", "tiny", timing.Timing((1.0, 3.0), (0.5, 0.5)), work=cost.Work(1, 1), machine=MACHINE
    )
    parts = [[measured], [timing.value_row("  ratio", "tiny", 2.0, note="of one run")]]
    monkeypatch.setattr(bench, "sections", lambda *args, **kwargs: iter(parts))
    assert cli.main(["bench", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "features" in said and "busy 0.5" in said and "No GPU here" in said
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "bench.json",
        "benchmarks.csv",
        "benchmarks.md",
        "benchmarks.tex",
    }
    table = pd.read_csv(tmp_path / "out" / "benchmarks.csv")
    assert table.columns.tolist() == timing.COLUMNS and table["median"].tolist() == [2.0, 2.0]
    kept = read_json(tmp_path / "out" / "bench.json")
    assert kept["rows"][1]["note"] == "of one run" and kept["provenance"]["versions"]["torch"]


def test_sections_cover_the_table_at_the_tiny_shape(monkeypatch):
    """All groups in their order, none measured for long: the measuring functions have tests of their own."""
    called = []
    names = ("feature_rows", "evaluation_rows", "decode_rows", "step_rows")
    for module, functions in (
        (bench_head, ("head_rows", "grid_rows")),
        (bench_model, names),
        (bench, ("synthetic_rows",)),
    ):
        for name in functions:
            monkeypatch.setattr(module, name, lambda *args, _name=name, **kwargs: called.append((_name, args)) or [])
    monkeypatch.setattr(bench, "ceilings", lambda *args: MACHINE)
    list(bench.sections("tiny"))
    assert [name for name, _ in called] == ["head_rows", "grid_rows", *names, "synthetic_rows"]
    del called[:]
    list(bench.sections("llama-3.1-8b"))
    shapes = [args[0] for name, args in called if name == "head_rows"]
    assert [(shape.d, shape.vocab, shape.pairs) for shape in shapes] == [(4096, 128256, 200), (4096, 128256, 400)]
    [(_, args)] = [entry for entry in called if entry[0] == "feature_rows"]
    assert args[1] == "58m" and args[0].config.hidden_size == 512, "on a CPU the base falls back"
    [(_, args)] = [entry for entry in called if entry[0] == "step_rows"]
    assert args[1] == "tiny" and args[0]().config.hidden_size == 64


def test_synthetic_rows_have_the_ratio_to_scikit_learn(monkeypatch):
    monkeypatch.setattr(bench.synthetic, "V_F", (1.0,))
    monkeypatch.setattr(bench.synthetic, "N", (25,))
    rows = bench.synthetic_rows(4)
    assert [entry["unit"] for entry in rows] == ["s", "s", "s", "×"]
    ours, theirs = (min(entry["median"], entry["busy"]) for entry in rows[1:3])
    assert rows[3]["median"] == pytest.approx(theirs / ours) and ours > 0


def test_scale_is_measured_once_and_by_arithmetic_at_larger_shapes(monkeypatch):
    seconds = {0: (1.0, 1.0), 1: (1.1, 1.1), 64: (2.0, 2.0)}
    found = {n: timing.Timing(value, value) for n, value in seconds.items()}
    monkeypatch.setattr(bench_model, "decode_timings", lambda *args, **kwargs: found)
    table = bench.scale(bench_model.random_model("tiny"), "tiny", 2, heads=(1, 64)).set_index(["shape", "heads", "how"])
    assert table.overhead["tiny", 1, "measured"] == pytest.approx(10)
    assert table.overhead["tiny", 64, "measured"] == pytest.approx(100)
    one = table.overhead["llama-3.1-8b", 1, "bytes of weights"]
    assert one == pytest.approx(100 * 4 * 2_647_040 / 15.0e9, rel=0.01)
    assert table.overhead["llama-3.1-8b", 1000, "bytes of weights"] == pytest.approx(1000 * one)
    assert table.overhead["llama-3.1-70b", 1, "bytes of weights"] < one / 8


def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch):
    assert cli.main(["bench", "--shape", "huge"]) == 2
    with pytest.raises(UserError, match="no CUDA GPU"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        bench.bench("tiny", device="cuda")
    (tmp_path / "bench.json").mkdir()
    monkeypatch.setattr(bench, "sections", lambda *args, **kwargs: iter([]))
    assert cli.main(["bench", "--out", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_every_measurement_of_the_figures_can_be_told_from_the_others():
    """The same thing is measured at several sizes: of the head and of the base."""
    head = [bench_head.HeadShape(pairs=pairs).name for pairs in (200, 400)]
    rows = bench.frame_of([timing.value_row("fit", size, 1.0, "s") for size in (*head, "tiny", "58m")])
    names = plots_cost.labels(rows)
    assert names == ["fit  [200 + 200 rows]", "fit  [400 + 400 rows]", "fit  [tiny]", "fit  [58m]"]
