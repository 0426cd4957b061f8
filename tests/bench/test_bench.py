"""The cost table: honest clocks, variants that compute the same, bounds that are below, files that are whole."""

import time

import numpy as np
import pandas as pd
import pytest
import torch

from t3lib import classifier, cli
from t3lib.bench import cost, timing
from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench import table as bench
from t3lib.bench.head import HeadShape
from t3lib.bench.model import random_model
from t3lib.classifier import fit_head
from t3lib.errors import UserError
from t3lib.files import read_json
from t3lib.head import T3Head
from t3lib.report import plots_cost
from t3lib.settings import FitSettings

SMALL = HeadShape(d=64, vocab=4096, rank=20, pairs=8, tokens=12, epochs=4, batch_size=4)
MACHINE = cost.Ceilings(1e15, 1e15)  # nothing is below its bounds


@pytest.fixture(scope="module")
def model():
    return random_model("tiny")


def by_what(rows):
    return {entry["what"].strip(): entry for entry in rows}


def cost_of(entry):
    return min(entry["median"], entry["busy"])


# clocks ---------------------------------------------------------------------------------------------------------------


def test_timed_counts_repeats_and_not_the_warm_up():
    calls = []
    found = timing.timed(lambda: calls.append(time.sleep(0.2 if not calls else 0.02)), repeats=3)
    assert len(calls) == 4 and len(found.wall) == 3
    assert all(0.02 <= wall < 0.19 for wall in found.wall)
    assert found.cost < 0.01, "sleeping is not computing: other programs' time is not ours"
    assert found.scaled(10).wall[0] == pytest.approx(10 * found.wall[0])


def test_interleaved_takes_turns():
    order = []
    timing.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2, warmup=1)
    assert order == ["a", "b"] * 3


def test_a_row_relates_the_median_to_the_bound():
    measured = timing.Timing((4.0, 2.0, 3.0), (2.0, 2.5, 1.0))
    entry = timing.row("x", "s", measured, work=cost.Work(10, 1), machine=cost.Ceilings(10, 10))
    assert list(entry) == timing.COLUMNS == list(timing.value_row("y", "s", 1.0))
    assert (entry["median"], entry["low"], entry["high"], entry["repeats"], entry["busy"]) == (3.0, 2.0, 4.0, 3, 2.0)
    assert (entry["lower_bound"], entry["over_bound"]) == (1.0, 2.0)
    assert timing.row("x", "s", measured)["over_bound"] is None


def test_ceilings_are_of_this_planet():
    found = timing.ceilings(size=128, repeats=2)
    assert 1e8 < found.flops < 1e16 and 1e8 < found.bytes < 1e14


# the head -------------------------------------------------------------------------------------------------------------


def test_the_variants_compute_the_same_gradient():
    features = bench_head.problem(SMALL)
    x, y, s = features.x, features.y, features.s[features.row].float()
    heads = [T3Head(64, 4096, 20, seed=1) for _ in range(2)]
    for head, loss in zip(heads, (bench_head.gathered_loss, bench_head.full_vocabulary_loss)):
        loss(x, y, s, head).backward()
    for name in ("A", "B"):
        torch.testing.assert_close(*(getattr(head, name).grad for head in heads))


def test_the_problem_has_the_papers_size():
    assert HeadShape().per_epoch == 7 and HeadShape(pairs=400).per_epoch == 13
    features = bench_head.problem(HeadShape(d=2, pairs=200))
    assert abs(len(features.y) - 16_000) < 600 and 3_000 < len(features.y.unique()) < 8_000
    assert features.y.max() < 128256 and (features.s == 0).sum() == (features.s == 1).sum() == 200
    assert "100 epochs of 7 steps" in HeadShape().name


def test_head_rows_and_the_worth_of_not_forming_logits():
    rows = by_what(bench_head.head_rows(SMALL, MACHINE, repeats=2, full_steps=3))
    ours = rows["head training, compact (ours)"]
    full = rows["head training, full-vocabulary loss, fused AdamW"]
    assert ours["repeats"] == 2 and full["note"] == "extrapolated from 3 steps"
    assert all(entry["over_bound"] > 1 for entry in rows.values() if entry["unit"] == "s")
    assert rows["full vocabulary / ours"]["median"] > 1.5, "at |V| = 4096 it is 10: a wide margin for a busy machine"
    assert rows["gathered rows / ours"]["note"] == "medians of 8 steps in turn"


def test_steps_one_at_a_time_are_the_fit_and_the_textbook():
    """What is on the clock step by step is what `fit_heads` does, and what dense AdamW gives."""
    features, own = bench_head.problem(SMALL), FitSettings(**SMALL.settings)
    problem = classifier.lay_out(features, [own], SMALL.vocab, torch.device("cpu"))
    for tokens, rate in zip(problem.steps, problem.rates[0]):
        classifier.step(problem, tokens, [rate])
    whole = fit_head(features, vocab_size=SMALL.vocab, progress=False, **SMALL.settings)
    plain = bench_head.textbook(features, SMALL)
    seen = bench_head.targets(features, SMALL)
    assert torch.equal(problem.A, whole.A) and torch.equal(whole.A, plain.A)
    assert torch.equal(problem.B[0][: len(seen)], plain.B[seen])
    assert len(seen) < SMALL.vocab / 2 and (whole.B - plain.B).abs().max() <= 1e-5


def test_bounds_of_the_whole_run_are_the_sum_of_its_steps():
    features = bench_head.problem(SMALL)
    ours, dense, full = bench_head.step_works(features, SMALL)
    assert 0.3 < ours.flops / (4 * 4 * len(features.y) * 64 * 20) <= 1.3, (
        "4 epochs; a retain row may come twice or never"
    )
    assert ours < dense < full
    assert dense.flops - ours.flops == 8 * 12 * 20 * (64 + 4096)  # 8 steps of Adam


def test_grid_rows_compare_with_one_after_the_other():
    rows = by_what(bench_head.grid_rows(SMALL, MACHINE, heads=3, repeats=2))
    assert rows["3 heads alone / as one problem"]["median"] > 0.5


def test_the_spread_of_a_fit_holds_its_cost_whichever_clock_gave_it(monkeypatch):
    """It is drawn as error bars, which refuse a negative length."""
    clocks = iter([timing.Timing((1.0, 1.1, 1.2), (1.3, 1.4, 1.5)), timing.Timing((2.0, 2.1, 2.2), (1.3, 1.4, 1.5))])
    monkeypatch.setattr(bench_head, "timed", lambda *_, **__: next(clocks))
    found = bench_head.scaling(SMALL, {"rank": [2, 4]}, repeats=3)
    assert found.seconds.tolist() == [1.1, 1.4]
    assert (found.low <= found.seconds).all() and (found.seconds <= found.high).all()
    plots_cost.scaling(found)


def test_scaling_varies_one_size_at_a_time():
    found = bench_head.scaling(SMALL, {"rank": [2, 4], "vocab": [512, 1024], "pairs": [4]}, repeats=1)
    assert found["axis"].tolist() == ["rank", "rank", "vocab", "vocab", "pairs"]
    assert found["parameters"].tolist() == [2 * 4160, 4 * 4160, 20 * 576, 20 * 1088, 20 * 4160]
    assert (found["seconds"] > 0).all() and (found["low"] <= found["high"]).all()


# the base -------------------------------------------------------------------------------------------------------------


def test_feature_rows(model):
    rows = by_what(bench_model.feature_rows(model, "tiny", MACHINE, count=8, repeats=2))
    assert rows["features, to an empty cache"]["over_bound"] > 1
    ratio = rows["features / decoder alone, throughput"]["median"]
    assert 0.1 < ratio < 1.5
    assert ratio == pytest.approx(cost_of(rows["decoder alone"]) / cost_of(rows["features"]), rel=1e-6)


def test_evaluation_shares_the_base_pass(model):
    rows = bench_model.evaluation_rows(model, "tiny", MACHINE, count=3, seeds=2, repeats=2, new_tokens=4)
    scoring, generation = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert [entry["what"].strip() for entry in scoring[::2]][:1] == ["scoring, 1 T"]
    assert by_what(scoring)["5 T / 1 T"]["median"] < 3, "apart they would cost 5"
    assert by_what(scoring)["5 T x 2 seeds / 1 T"]["median"] < 6, "apart they would cost 10"
    assert by_what(generation)["generation, 5 T x 2 seeds"]["median"] > 0


def test_one_step_of_each_baseline():
    rows = bench_model.step_rows(lambda: random_model("tiny"), "tiny", MACHINE, batch=2, steps=1)
    assert [entry["what"] for entry in rows] == [f"one step of {name}" for name in bench_model.LOSSES]
    assert all(entry["median"] > 0 for entry in rows)
    bounds = by_what(rows)
    assert bounds["one step of GradAscent"]["lower_bound"] < bounds["one step of GradDiff"]["lower_bound"]
    assert bounds["one step of ULD"]["lower_bound"] is None, "its layers are fewer"


# the command ----------------------------------------------------------------------------------------------------------


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


def test_sections_cover_the_issue_at_the_tiny_shape(monkeypatch):
    """All groups in their order, none measured for long: the measuring functions have tests of their own."""
    called = []
    for module, names in ((bench_head, ("head_rows", "grid_rows")), (bench_model, ("feature_rows", "evaluation_rows"))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *args, _name=name, **kwargs: called.append((_name, args)) or [])
    monkeypatch.setattr(bench_model, "step_rows", lambda *args, **kwargs: called.append(("step_rows", args)) or [])
    monkeypatch.setattr(bench, "decode_rows", lambda *args: called.append(("decode_rows", args)) or [])
    monkeypatch.setattr(bench, "ceilings", lambda *args: MACHINE)
    monkeypatch.setattr(bench, "synthetic_rows", lambda trials: called.append(("synthetic_rows", trials)) or [])
    list(bench.sections("tiny"))
    names = [name for name, _ in called]
    assert names == [
        *("head_rows", "grid_rows", "feature_rows", "evaluation_rows", "decode_rows", "step_rows"),
        "synthetic_rows",
    ]
    del called[:]
    list(bench.sections("llama-3.1-8b"))
    shapes = [args[0] for name, args in called if name == "head_rows"]
    assert [(shape.d, shape.vocab, shape.pairs) for shape in shapes] == [(4096, 128256, 200), (4096, 128256, 400)]
    [(_, args)] = [entry for entry in called if entry[0] == "feature_rows"]
    assert args[1] == "58m" and args[0].config.hidden_size == 512, "on a CPU the base falls back"
    [(_, args)] = [entry for entry in called if entry[0] == "step_rows"]
    assert args[1] == "tiny" and args[0]().config.hidden_size == 64


def test_decode_rows_have_both_and_the_overhead(model):
    rows = bench.decode_rows(model, "tiny", 3, new_tokens=2)
    assert [entry["unit"] for entry in rows] == ["ms/token", "ms/token", "%"] * 2
    assert all(entry["median"] > 0 for entry in rows if entry["unit"] == "ms/token")
    assert rows[2]["note"].startswith("quartiles") and bench.line(rows[2]).startswith("  overhead")


def test_synthetic_rows_have_the_ratio_to_scikit_learn():
    rows = bench.synthetic_rows(2)
    assert [entry["unit"] for entry in rows] == ["s", "s", "s", "×"]
    busy = [entry["busy"] for entry in rows[1:3]]
    assert rows[3]["median"] == pytest.approx(busy[1] / busy[0]) and rows[3]["median"] > 1.5
    assert np.isfinite([entry["median"] for entry in rows]).all()


def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch):
    assert cli.main(["bench", "--shape", "huge"]) == 2
    with pytest.raises(UserError, match="no CUDA GPU"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        bench.bench("tiny", device="cuda")
    (tmp_path / "bench.json").mkdir()
    monkeypatch.setattr(bench, "sections", lambda *args, **kwargs: iter([]))
    with pytest.raises(UserError, match="cannot write"):
        bench.bench("tiny", out=tmp_path)


def test_every_measurement_of_the_figures_can_be_told_from_the_others():
    """The same thing is measured at several sizes: of the head and of the base."""
    head = [bench_head.HeadShape(pairs=pairs).name for pairs in (200, 400)]
    rows = bench.frame_of([timing.value_row("fit", size, 1.0, "s") for size in (*head, "tiny", "58m")])
    names = plots_cost.labels(rows)
    assert names == ["fit  [200 + 200 rows]", "fit  [400 + 400 rows]", "fit  [tiny]", "fit  [58m]"]
