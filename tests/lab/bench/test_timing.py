"""The timer that takes turns, the rows that it makes, and what decoding is timed with.

The clock is the tests' own, so that no load on the machine matters.
"""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from t3lab.bench import cost, timing
from t3lab.report import plots_cost
from t3lib.classifier.head import T3Head


@pytest.fixture
def clock(monkeypatch):
    """clock.wall and clock.busy: seconds that pass only where a test says so."""
    now = SimpleNamespace(wall=0.0, busy=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=lambda: now.busy))
    monkeypatch.setattr(timing, "benchmark", SimpleNamespace(timer=lambda: now.wall))
    return now


def test_two_works_take_turns_and_their_seconds_become_rows(clock, monkeypatch):
    """The first turn is the warm-up; every other turn runs backwards."""
    order, spent = [], {"a": [100, 2, 4, 3, 1, 9], "b": [100, 4, 12, 3, 1, 18]}

    def work(name):
        clock.busy += spent[name][order.count(name)]
        clock.wall += 1000
        order.append(name)

    works = {name: lambda name=name: work(name) for name in "ab"}
    needs = {"a": cost.Work(10, 1)}
    rows = timing.compare("x", "large", works, needs, repeats=5)
    assert "".join(order) == "abba" * 3
    assert [row["what"] for row in rows] == ["x, a", "x, b", "x, b / a"]
    names = ("unit", "median", "low", "high", "repeats", "flops", "bytes")
    assert [[row[name] for name in names] for row in rows] == [
        ["s", 3, 2, 4, 5, 10, 1],
        ["s", 4, 3, 12, 5, None, None],
        ["×", 2, 1, 2, 5, None, None],
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    del order[:]
    assert timing.compare("x", "large", works, repeats=1)[0]["median"] == 1000, "the wall clock"


@pytest.mark.parametrize("batch", [1, 3])
def test_a_slower_t3_is_seen(batch, clock, monkeypatch):
    """On a clock that passes 10 ms in a pass of the base and 5 in a head."""
    model = timing.random_model("tiny")

    def passing(seconds, function):
        def slow(*args, **kwargs):
            clock.busy += seconds
            return function(*args, **kwargs)

        return slow

    monkeypatch.setattr(T3Head, "logf", passing(0.005, T3Head.logf))
    decoder = type(model.model)
    monkeypatch.setattr(decoder, "forward", passing(0.010, decoder.forward))
    base, t3, ratio = timing.decode_rows(model, batch=batch, new_tokens=4, repeats=3)
    assert base["median"] == pytest.approx(0.040) and t3["median"] == pytest.approx(0.060)
    assert ratio["median"] == pytest.approx(1.5)
    assert base["shape"] == f"0.14M weights, batch of {batch}"
    step = cost.decode_step(cost.SHAPES["tiny"], batch=batch, itemsize=4, heads=1)
    assert (t3["flops"], t3["bytes"]) == (4 * step.flops, 4 * step.bytes)


def test_too_few_tokens_mean_nothing():
    short = SimpleNamespace(generate=lambda ids, **_: ids, device="cpu")
    with pytest.raises(AssertionError, match="means nothing"):
        timing.decode(short, 1, 3)


def test_random_model_is_reproducible_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    a, b = timing.random_model("tiny", seed=3), timing.random_model("tiny", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.lm_head.weight, timing.random_model("tiny", seed=4).lm_head.weight)


def test_the_features_have_the_papers_size():
    features = timing.random_features(2, 128256, 200)
    assert len(features.y) == 16_000 and 3_000 < len(features.y.unique()) < 8_000
    assert features.y.max() < 128256 and (features.s == 0).sum() == (features.s == 1).sum() == 200


def test_the_figure_draws_what_has_seconds_and_tells_sizes_apart():
    row = {"low": 1.0, "median": 1.5, "high": 2.0, "repeats": 2, "unit": "s"}
    rows = [row | {"what": "fit", "shape": f"d 1, {n} + {n} rows, 3 epochs"} for n in (200, 400)]
    rows += [row | {"what": "step", "shape": "58m"}]
    rows += [row | {"what": "ratio", "shape": "58m", "unit": "×"}]
    axis = plots_cost.seconds(pd.DataFrame(rows)).axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["fit  [200 + 200 rows]", "fit  [400 + 400 rows]", "step  [58m]"]
    assert [text.get_text() for text in axis.texts] == ["1.5"] * 3
    assert axis.yaxis_inverted(), "the first row of the table is at the top"
