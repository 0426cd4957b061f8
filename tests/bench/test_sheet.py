"""`t3 bench`, with --gpu too, on a CPU at the tiny shape: its tables, what stays of a run that ends early, mistakes."""

import functools

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import CompileConfig

from t3lib import cli
from t3lib.baselines.losses import LOSSES
from t3lib.bench import cost, sheet, timing
from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench.shapes import SHAPES
from t3lib.bench.timing import COLUMNS, row
from t3lib.errors import UserError
from t3lib.files import read_json

STAGE = {"epochs": 1, "hidden": 16, "heads": 2}
MACHINE = cost.Ceilings(1e15, 1e15)
REAL = {"split": "forget10", "stage": STAGE, "hyper": {"epochs": 2, "warmup_epochs": 1}, "seeds": [1, 2]}
SHEET = sheet.Sheet(
    "tiny", "cpu", "tiny", "tiny", repeats=1, rows=16, batches=(1, 32), new_tokens=2, nf4=True, real=REAL
)


def table(folder, name):
    return pd.read_csv(folder / f"{name}.csv", keep_default_na=False)


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """Tracing as ever, but the compiler's own back end is torch's business, and needs a C++ compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_model, "CompileConfig", functools.partial(CompileConfig, backend="eager", mode=None))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    sheet.write_sheet(SHEET, folder)
    return folder


def test_every_question_has_its_table_and_its_provenance(folder):
    names = {"head", "base", "decoding", "baselines", "agreement", "compiled"}
    assert {path.name for path in folder.iterdir()} == {f"{name}.{end}" for name in names for end in ("csv", "json")}
    for name in names:
        found, origin = table(folder, name), read_json(folder / f"{name}.json")
        assert list(found) == [*COLUMNS, "peak_memory_bytes", "device"]
        assert not found.what.str.startswith("not measured").any(), found.note.tolist()
        assert set(found.device) == {origin["device"]} and origin["model"] == "random weights, tiny"


def test_the_questions_of_the_issue_are_answered(folder):
    decoding, base = table(folder, "decoding"), table(folder, "base")
    overheads = decoding[decoding.what == "  overhead"]
    assert overheads["shape"].tolist() == ["tiny", "tiny", "tiny, NF4", "tiny, NF4"]
    assert "decoding, batch of 32: T3" in set(decoding.what)
    compiled = table(folder, "compiled")
    steps = [f"compiled decoding, batch of 1: {name}" for name in ("base", "T3")]
    assert compiled.what.tolist() == [*steps, "  overhead"]
    assert {"  throughput of features", "  5 T / 1 T"} <= set(base.what)
    assert {"head training, compact (ours)", "5 heads as one problem"} <= set(table(folder, "head").what)
    assert len(table(folder, "baselines")) == 10 and set(table(folder, "baselines")["shape"]) == {"tiny, adamw"}


def test_a_small_real_run_has_every_seed(folder):
    found = table(folder, "agreement")
    assert found.what.tolist() == ["Forget Quality, seed 1", "Forget Quality, seed 2"]
    assert found["median"].between(0, 1).all() and found.note.str.startswith("D = ").all()


def test_rows_are_kept_as_they_come_and_a_question_that_fails_says_why(tmp_path, monkeypatch):
    def short_of_memory(_):
        yield [row("first", "tiny", 1.0)]
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 3 GB")

    def killed(_):
        yield [row("second", "tiny", 2.0)]
        raise KeyboardInterrupt

    monkeypatch.setattr(sheet, "COSTS", (short_of_memory, killed))
    with pytest.raises(KeyboardInterrupt):
        sheet.write_sheet(SHEET, tmp_path)
    assert table(tmp_path, "short_of_memory").what.tolist() == ["first", "not measured: short_of_memory"]
    assert table(tmp_path, "short_of_memory").note.tolist() == ["", "CUDA out of memory."]
    assert table(tmp_path, "killed").what.tolist() == ["second"]


def test_without_a_compiler_the_row_says_so(tmp_path, monkeypatch):
    """And it is the only one. Nothing compiled earlier is found on disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bench_model, "CompileConfig", CompileConfig)
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    torch._dynamo.reset()
    [entry] = sheet.measured(sheet.compiled, SHEET)
    assert entry["what"] == "not measured: compiled" and entry["median"] is None and entry["note"]


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


# the cost table -------------------------------------------------------------------------------------------------------


def test_the_table_is_printed_and_written(tmp_path, monkeypatch, capsys):
    measured = timing.row(
        "features", "tiny", timing.Timing((1.0, 3.0), (0.5, 0.5)), work=cost.Work(1, 1), machine=MACHINE
    )
    ratio = timing.row("  ratio", "tiny", 2.0, note="of one run")
    monkeypatch.setattr(sheet, "COSTS", (lambda _: iter([[measured], [ratio]]),))
    monkeypatch.setattr(sheet, "synthetic", lambda _: iter([]))
    assert cli.main(["bench", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "features" in said and "busy 0.5" in said and "No GPU here" in said
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "bench.json",
        "benchmarks.csv",
        "benchmarks.md",
        "benchmarks.tex",
    }
    written = table(tmp_path / "out", "benchmarks")
    assert written.columns.tolist() == timing.COLUMNS and written["median"].tolist()[:2] == [2.0, 2.0]
    kept = read_json(tmp_path / "out" / "bench.json")
    assert kept["rows"][1]["note"] == "of one run" and kept["provenance"]["versions"]["torch"]


def test_synthetic_rows_have_the_ratio_to_scikit_learn(monkeypatch):
    monkeypatch.setattr(sheet.experiments, "V_F", (1.0,))
    monkeypatch.setattr(sheet.experiments, "N", (25,))
    rows = sheet.synthetic_rows(4)
    assert [entry["unit"] for entry in rows] == ["s", "s", "s", "×"]
    ours, theirs = (min(entry["median"], entry["busy"]) for entry in rows[1:3])
    assert rows[3]["median"] == pytest.approx(theirs / ours) and ours > 0


def test_what_the_table_asks_and_the_shapes_it_falls_back_to(monkeypatch):
    """All groups in their order, none measured for long: the measuring functions have tests of their own."""
    called = []
    names = ("feature_rows", "evaluation_rows", "decode_rows", "step_rows")
    for module, functions in (
        (bench_head, ("head_rows", "grid_rows")),
        (bench_model, names),
        (sheet, ("synthetic_rows",)),
    ):
        for name in functions:
            monkeypatch.setattr(module, name, lambda *args, _name=name, **kwargs: called.append((_name, args)) or [])
    monkeypatch.setattr(sheet, "ceilings", lambda *args: MACHINE)
    sheet.bench(sheet.sheet_of("tiny", "cpu"))
    steps = ["step_rows"] * len(LOSSES)
    after = [*steps, "decode_rows", "synthetic_rows"]
    assert [name for name, _ in called] == ["head_rows", "grid_rows", *names[:3], *after]
    del called[:]
    sheet.bench(sheet.sheet_of("llama-3.1-8b", "cpu"))
    shapes = [args[0] for name, args in called if name == "head_rows"]
    assert [(shape.d, shape.vocab, shape.pairs) for shape in shapes] == [(4096, 128256, 200), (4096, 128256, 400)]
    [(_, args)] = [entry for entry in called if entry[0] == "feature_rows"]
    assert args[1] == "58m" and args[0].config.hidden_size == 512, "on a CPU the base falls back"
    _, args = next(entry for entry in called if entry[0] == "step_rows")
    assert args[1] == "tiny, adamw" and args[0]().config.hidden_size == 64


def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch):
    assert cli.main(["bench", "--shape", "huge"]) == 2
    with pytest.raises(UserError, match="no CUDA GPU"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        sheet.sheet_of("tiny", "cuda")
    (tmp_path / "bench.json").mkdir()
    monkeypatch.setattr(sheet, "COSTS", ())
    monkeypatch.setattr(sheet, "synthetic", lambda _: iter([]))
    assert cli.main(["bench", "--out", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err
