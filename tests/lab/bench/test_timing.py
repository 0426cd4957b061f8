"""The clock: repeats, turns, warm-up; rows. Time is the tests' own, so that no load matters."""

from types import SimpleNamespace

import pytest
import torch

from t3lib.lab.bench import cost, timing


@pytest.fixture
def clock(monkeypatch):
    """clock.wall and clock.busy: seconds that pass only where a test says so."""
    now = SimpleNamespace(wall=0.0, busy=0.0)
    fake = SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.busy)
    monkeypatch.setattr(timing, "time", fake)
    return now


def test_the_process_clock_counts_on_one_thread_and_the_warm_up_does_not(clock, monkeypatch):
    calls = []

    def work():
        calls.append(1)
        clock.wall += 100 if len(calls) == 1 else len(calls)
        clock.busy += 0.5

    assert timing.interleaved({"": work}, repeats=3)[""] == [0.5] * 3, "others' time is not ours"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    del calls[:]
    assert timing.interleaved({"": work}, repeats=3)[""] == [2, 3, 4]


def test_interleaved_takes_turns_and_every_other_turn_backwards():
    order = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    timing.interleaved(works, repeats=2, warmup=1)
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_row_has_median_and_quartiles_and_what_the_computation_needs():
    entry = timing.row("x", "s", [4.0, 2.0, 3.0, 1.0, 9.0], work=cost.Work(10, 1))
    assert list(entry) == timing.COLUMNS == list(timing.row("y", "s", [1.0]))
    values = ("median", "low", "high", "repeats", "flops", "bytes")
    assert [entry[name] for name in values] == [3.0, 2.0, 4.0, 5, 10, 1]
    one = timing.row("x", "s", [7.0])
    assert (one["median"], one["low"], one["high"], one["flops"]) == (7.0, 7.0, 7.0, None)
