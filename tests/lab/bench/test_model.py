"""The clock on decoding: random Llamas, the overhead of T3."""

from types import SimpleNamespace

import pytest
import torch

from t3lib.classifier.head import T3Head
from t3lib.lab.bench import cost, timing
from t3lib.lab.bench import model as bench_model
from t3lib.lab.bench.model import random_model
from t3lib.lab.bench.shapes import SHAPES


@pytest.fixture(scope="session")
def model():
    return random_model("tiny")


def test_random_model_is_reproducible_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    a, b = random_model("tiny", seed=3), random_model("tiny", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.lm_head.weight, random_model("tiny", seed=4).lm_head.weight)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_slower_t3_is_seen(batch, model, monkeypatch):
    """On a clock that passes 10 ms in a pass of the base and 5 in a head, whatever the machine
    does.
    """
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0])
    monkeypatch.setattr(timing, "time", clock)

    def passing(seconds, function):
        def slow(*args, **kwargs):
            now[0] += seconds
            return function(*args, **kwargs)

        return slow

    monkeypatch.setattr(T3Head, "logf", passing(0.005, T3Head.logf))
    decoder = type(model.model)
    monkeypatch.setattr(decoder, "forward", passing(0.010, decoder.forward))
    base, t3, overhead = bench_model.decode_rows(model, batch=batch, new_tokens=4, repeats=3)
    assert base["median"] == pytest.approx(0.010) and t3["median"] == pytest.approx(0.015)
    assert overhead["median"] == pytest.approx(50) and overhead["unit"] == "%"
    assert base["shape"] == f"0.14M weights, batch of {batch}"
    work = cost.decode_step(SHAPES["tiny"], batch=batch, itemsize=4, heads=1)
    assert (t3["flops"], t3["bytes"]) == work


def test_too_few_tokens_mean_nothing():
    short = SimpleNamespace(generate=lambda ids, **_: ids)
    with pytest.raises(AssertionError, match="means nothing"):
        bench_model.decode(short, torch.zeros(1, 2), 3)
