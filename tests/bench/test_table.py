"""Rows of the cost table that compare: with scikit-learn, of many heads with one base, and how figures name them."""

import pytest

from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench import sheet, timing
from t3lib.report import plots_cost


def test_synthetic_rows_have_the_ratio_to_scikit_learn(monkeypatch):
    monkeypatch.setattr(sheet.experiments, "V_F", (1.0,))
    monkeypatch.setattr(sheet.experiments, "N", (25,))
    rows = sheet.synthetic_rows(4)
    assert [entry["unit"] for entry in rows] == ["s", "s", "s", "×"]
    ours, theirs = (min(entry["median"], entry["busy"]) for entry in rows[1:3])
    assert rows[3]["median"] == pytest.approx(theirs / ours) and ours > 0


def test_scale_is_measured_once_and_by_arithmetic_at_larger_shapes(monkeypatch):
    seconds = {0: (1.0, 1.0), 1: (1.1, 1.1), 64: (2.0, 2.0)}
    found = {n: timing.Timing(value, value) for n, value in seconds.items()}
    monkeypatch.setattr(bench_model, "decode_timings", lambda *args, **kwargs: found)
    table = bench_model.scale(bench_model.random_model("tiny"), "tiny", 2, heads=(1, 64)).set_index(
        ["shape", "heads", "how"]
    )
    assert table.overhead["tiny", 1, "measured"] == pytest.approx(10)
    assert table.overhead["tiny", 64, "measured"] == pytest.approx(100)
    one = table.overhead["llama-3.1-8b", 1, "bytes of weights"]
    assert one == pytest.approx(100 * 4 * 2_647_040 / 15.0e9, rel=0.01)
    assert table.overhead["llama-3.1-8b", 1000, "bytes of weights"] == pytest.approx(1000 * one)
    assert table.overhead["llama-3.1-70b", 1, "bytes of weights"] < one / 8


def test_every_measurement_of_the_figures_can_be_told_from_the_others():
    """The same thing is measured at several sizes: of the head and of the base."""
    head = [bench_head.HeadShape(pairs=pairs).name for pairs in (200, 400)]
    rows = timing.frame_of([timing.row("fit", size, 1.0, "s") for size in (*head, "tiny", "58m")])
    names = plots_cost.labels(rows)
    assert names == ["fit  [200 + 200 rows]", "fit  [400 + 400 rows]", "fit  [tiny]", "fit  [58m]"]
