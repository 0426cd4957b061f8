"""The clocks: repeats, turns, warm-up; rows; ceilings. Time is the tests' own, so that no load matters."""

from types import SimpleNamespace

import pytest

from t3lib.bench import cost, timing
from t3lib.bench import head as bench_head
from t3lib.report import plots_cost


@pytest.fixture
def clock(monkeypatch):
    """clock.wall and clock.busy: seconds that pass only where a test says so."""
    now = SimpleNamespace(wall=0.0, busy=0.0)
    fake = SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.busy)
    monkeypatch.setattr(timing, "time", fake)
    return now


def test_timed_counts_repeats_and_not_the_warm_up(clock):
    calls = []

    def work():
        calls.append(1)
        clock.wall += 100 if len(calls) == 1 else len(calls)
        clock.busy += 0.5

    found = timing.timed(work, repeats=3)
    assert found.wall == (2, 3, 4) and found.busy == (0.5, 0.5, 0.5)
    assert found.cost == 0.5, "waiting is not computing: other programs' time is not ours"
    assert found.scaled(10).wall == (20, 30, 40)


def test_the_process_clock_counts_on_one_thread_of_a_cpu_alone(clock, monkeypatch):
    def work():
        clock.wall += 2
        clock.busy += 3

    assert timing.clock() == "process" and timing.timed(work).busy == (3, 3, 3)
    monkeypatch.setattr(timing.torch, "get_num_threads", lambda: 2)
    assert timing.clock() == "wall" and timing.timed(work).busy == (2, 2, 2)


def test_interleaved_takes_turns_and_every_other_turn_backwards():
    order = []
    works = {name: (lambda name=name: order.append(name)) for name in "ab"}
    timing.interleaved(works, repeats=2, warmup=1)
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_ratios_are_of_the_same_turns():
    t3, base = timing.Timing((), (2, 3, 6)), timing.Timing((), (1, 2, 3))
    assert t3.over(base) == [1.5, 2, 2]  # ratios 2, 1.5 and 2
    assert timing.Timing((), (3,)).over(timing.Timing((), (2,))) == [1.5] * 3


def test_a_row_relates_the_median_to_the_bound():
    measured = timing.Timing((4.0, 2.0, 3.0), (2.0, 2.5, 1.0))
    entry = timing.row("x", "s", measured, work=cost.Work(10, 1), machine=cost.Ceilings(10, 10))
    assert list(entry) == timing.COLUMNS == list(timing.row("y", "s", 1.0))
    assert (entry["median"], entry["low"], entry["high"], entry["repeats"], entry["busy"]) == (3.0, 2.0, 4.0, 3, 2.0)
    assert (entry["lower_bound"], entry["over_bound"]) == (1.0, 2.0)
    assert timing.row("x", "s", measured)["over_bound"] is None


def test_ceilings_are_the_best_of_several(clock, monkeypatch):
    found = iter([timing.Timing((2, 1), (2, 1)), timing.Timing((4, 5), (4, 5))])
    monkeypatch.setattr(timing, "timed", lambda work, **_: [work(), next(found)][1])
    machine = timing.ceilings(size=8)
    assert machine == (2 * 8**3 / 1, 4 * 8 * 8 * 32 / 4)


def test_every_measurement_of_the_figures_can_be_told_from_the_others():
    """The same thing is measured at several sizes: of the head and of the base."""
    head = [bench_head.HeadShape(pairs=pairs).name for pairs in (200, 400)]
    rows = timing.frame_of([timing.row("fit", size, 1.0, "s") for size in (*head, "tiny", "58m")])
    names = plots_cost.labels(rows)
    assert names == ["fit  [200 + 200 rows]", "fit  [400 + 400 rows]", "fit  [tiny]", "fit  [58m]"]
