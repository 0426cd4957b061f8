"""Head training on the clock: variants that compute the same, bounds that are below, one size varied at a time."""

import torch

from t3lib import classifier
from t3lib.bench import cost, timing
from t3lib.bench import head as bench_head
from t3lib.bench.head import HeadShape
from t3lib.classifier import fit_head
from t3lib.head import T3Head
from t3lib.report import plots_cost
from t3lib.settings import FitSettings

SMALL = HeadShape(d=64, vocab=4096, rank=20, pairs=8, tokens=12, epochs=4, batch_size=4)
MACHINE = cost.Ceilings(1e15, 1e15)  # nothing is below its bounds


def by_what(rows):
    return {entry["what"].strip(): entry for entry in rows}


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


def test_head_rows_have_every_variant_and_its_ratio_to_ours():
    rows = by_what(bench_head.head_rows(SMALL, MACHINE, repeats=2, full_steps=3))
    ours = rows["head training, compact (ours)"]
    full = rows["head training, full-vocabulary loss, fused AdamW"]
    assert ours["repeats"] == 2 and full["note"] == "extrapolated from 3 steps"
    assert all(entry["over_bound"] > 1 for entry in rows.values() if entry["unit"] == "s")
    assert rows["gathered rows / ours"]["note"] == "medians of 8 steps in turn"
    assert rows["full vocabulary / ours"]["median"] > 0


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


def test_grid_rows_compare_with_one_after_the_other(monkeypatch):
    clocks = {"one": timing.Timing((1.0,), (1.0,)), "all": timing.Timing((1.5,), (1.5,))}
    monkeypatch.setattr(bench_head, "interleaved", lambda works, **_: {name: clocks[name] for name in works})
    rows = by_what(bench_head.grid_rows(SMALL, MACHINE, heads=3, repeats=2))
    assert rows["3 heads alone / as one problem"]["median"] == 2.0 and "3 heads as one problem" in rows


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
