"""Same profile, seeds and machine: the same bits with one worker and with two, in any order, with
threads fixed.
"""

import re

import noop
from fleet import Fleet


def test_one_worker_and_two_give_the_same_bits(tmp_path, monkeypatch):
    """Kernels that really train (float32), alone and two at a time, methods in another order."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what the caller's shell says must not matter
    one = Fleet(tmp_path / "one", noop.TRAIN, methods="NPO, T3", seeds="1, 2")
    two = Fleet(tmp_path / "two", noop.TRAIN, methods="T3, NPO", seeds="2, 1")
    assert one.run("workers", 1) == 0, one.log
    assert two.run("workers", 2) == 0, two.log
    assert len(one.results()) == 5 and one.results() == two.results()
    lines = (one.out / "tables" / "tofu.csv").read_text().splitlines()
    assert all(line.endswith(" OMP 1 BLAS 1") for line in lines)  # fixed by the runner
    bits = [re.search(r",(\w{64}) ", line)[1] for line in lines]
    assert (
        len(lines) == 4 and len(set(bits)) == 2
    )  # one of each seed: the numbers are not constants
    threads = re.search(r'"threads": (\d+)', (one.out / "manifest.json").read_text())
    assert threads and threads[1] == "1"  # and recorded
