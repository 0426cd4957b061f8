"""`make faults`: kill -9 of the runner at random moments with the real smoke notebooks, then resume.

Takes many minutes, so pytest does not collect it by itself: `pytest tests/faults_smoke.py`. T3_FAULTS_KILLS (10) and
T3_FAULTS_SEED (7) choose how often and when.
"""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from faults import injected

KILLS, SEED = int(os.environ.get("T3_FAULTS_KILLS", 10)), int(os.environ.get("T3_FAULTS_SEED", 7))
PATIENCE = 1800  # seconds; only a hang takes that long
# What may differ between two runs that computed the same: clocks, memory, and the day.
CLOCKS = re.compile(r"seconds|_s$|memory|date|git_commit|dirty")


def start(folder: Path) -> subprocess.Popen:
    """`t3 reproduce --profile smoke` with results and caches of its own."""
    command = [sys.executable, "-m", "t3lib", "reproduce", "--profile", "smoke", "--workers", "2"]
    with open(folder / "log", "ab") as log:
        environment = os.environ | {"T3_CACHE": str(folder / "cache")}
        return subprocess.Popen(
            [*command, "--out", str(folder / "out")], cwd=ROOT, env=environment, stderr=log, stdout=log
        )


def finish(folder: Path) -> None:
    assert start(folder).wait(PATIENCE) == 0, (folder / "log").read_text()


def timeless(value):
    """A run's content without clocks, and without the checksum over them."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not CLOCKS.search(k) and k != "sha256"}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def results(folder: Path) -> dict[str, bytes]:
    """Every table (but those of costs) and every run, as bytes, by name."""
    found = {}
    for path in sorted((folder / "out").glob("runs/**/*.json")):
        found[str(path.relative_to(folder))] = json.dumps(timeless(json.loads(path.read_text()))).encode()
    for path in sorted((folder / "out").glob("runs/**/*.gz")):
        found[str(path.relative_to(folder))] = gzip.decompress(path.read_bytes())
    for path in sorted((folder / "out" / "tables").glob("*")):
        if not re.match(r"runtime|benchmarks|claims", path.name):  # claims quote seconds
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def kernels(folder: Path) -> list[str]:
    """Command lines of processes that still work below this folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"T3_CACHE={folder / 'cache'}".encode() in path.read_bytes():
                lines.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    begin = time.monotonic()
    finish(folder)
    return results(folder), time.monotonic() - begin


def test_the_runner_killed_at_random_moments(uninterrupted, tmp_path):
    """Each runner is killed at a moment drawn from a third of an uninterrupted run; when one gets through, anew."""
    expected, duration = uninterrupted
    assert len(expected) > 4
    moments, times, fleets = random.Random(SEED), 0, 0
    while times < KILLS:
        fleets += 1
        folder = tmp_path / str(fleets)
        folder.mkdir()
        while times < KILLS:
            runner = start(folder)
            try:
                assert runner.wait(moments.uniform(0, duration / 3)) == 0, (folder / "log").read_text()
                break
            except subprocess.TimeoutExpired:
                runner.send_signal(signal.SIGKILL)
                runner.wait()
                times += 1
        finish(folder)
        deadline = time.monotonic() + 30
        while kernels(folder) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not kernels(folder) and not list((folder / "out").rglob("*.partial*"))
        assert results(folder) == expected
    injected("kill -9 of the runner, real smoke notebooks", expected, results(folder), times)
