"""The clock on head training: both ways train the same head, and naive training reads the base."""

from dataclasses import asdict

import pandas as pd
import torch

from t3lib.classifier.fit import fit_heads
from t3lib.lab.bench import cost
from t3lib.lab.bench import head as bench_head
from t3lib.lab.bench.head import HeadShape
from t3lib.lab.report import plots_cost

SMALL = HeadShape(d=64, vocab=4096, pairs=48, tokens=2, epochs=4)  # two steps an epoch


def test_the_problem_has_the_papers_size():
    features = bench_head.problem(HeadShape(d=2))
    assert len(features.y) == 16_000 and 3_000 < len(features.y.unique()) < 8_000
    assert features.y.max() < 128256 and (features.s == 0).sum() == (features.s == 1).sum() == 200


def test_the_textbook_loop_trains_the_same_head():
    features = bench_head.problem(SMALL)
    [ours] = fit_heads(features, [asdict(SMALL.settings)], vocab_size=SMALL.vocab, progress=False)
    plain = bench_head.textbook(features, SMALL)
    untrained = bench_head.T3Head(64, 4096, 20, seed=SMALL.settings.seed)
    assert (ours.A - untrained.A).abs().max() > 1e-4, "it trains"
    for name in ("A", "B"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name), rtol=0, atol=1e-5)


def test_head_rows_are_both_ways_and_their_ratio(monkeypatch):
    clocks = {"t3lib": [1.0, 2.0], "textbook loop": [2.0, 6.0]}
    monkeypatch.setattr(bench_head, "interleaved", lambda works, **_: clocks)
    ours, textbook, ratio = bench_head.head_rows(SMALL)
    assert (ours["median"], textbook["median"], ratio["median"]) == (1.5, 4.0, 2.5)
    work = cost.head_training(4 * 96 * 2, 64, 20)
    assert (ours["flops"], ours["bytes"]) == work and ours["repeats"] == 2


def test_the_figure_draws_what_has_seconds_and_tells_sizes_apart():
    rows = [bench_head.row("fit", f"d 1, {n} + {n} rows, 3 epochs", [1.0, 2.0]) for n in (200, 400)]
    rows += [bench_head.row("step", "58m", [0.1]), bench_head.row("ratio", "58m", [2.0], "×")]
    axis = plots_cost.seconds(pd.DataFrame(rows)).axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["fit  [200 + 200 rows]", "fit  [400 + 400 rows]", "step  [58m]"]
    assert [text.get_text() for text in axis.texts] == ["1.5", "1.5", "0.1"]
    assert axis.yaxis_inverted(), "the first row of the table is at the top"
