"""Faults of whole runs: `t3 reproduce --profile smoke` with the real notebooks, killed, moved, or
beside a run of other code. `t3 compare` finds the results of an undisturbed run.
"""

import functools
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from conftest import ROOT, copy_checkout, edited
from fleet import tree, wait
from table import KEPT, Case

PATIENCE = 1800  # seconds; only a hang takes that long
ARGUMENTS = "--profile smoke --only 02,05 --methods Original,NPO,T3 --workers 2".split()


def start(folder: Path, *more: str, out: str = "out", checkout: Path = ROOT) -> subprocess.Popen:
    """`t3 reproduce` as a process, with the code of `checkout`, into `folder`/`out`."""
    words = [sys.executable, "-m", "t3lib", "reproduce", *ARGUMENTS, "--out", folder / out, *more]
    paths = f"{checkout}{os.pathsep}{checkout / 'notebooks'}"
    environment = os.environ | {"T3_CACHE": str(folder / "cache"), "PYTHONPATH": paths}
    with open(folder / f"{out}.log", "ab") as log:
        return subprocess.Popen(words, cwd=checkout, env=environment, stdout=log, stderr=log)


@functools.cache
def undisturbed(checkout: Path = ROOT) -> Path:
    """Results of a run from nothing, with the code of a checkout."""
    folder = Path(tempfile.mkdtemp(dir=KEPT.name))
    assert start(folder, checkout=checkout).wait(PATIENCE) == 0
    return folder / "out"


@functools.cache
def other_checkout() -> Path:
    """A copy of the checkout whose losses are half as large again."""
    copy = copy_checkout(Path(tempfile.mkdtemp(dir=KEPT.name)))
    sum_of_losses = "return (total / lengths).numpy()"
    halved = sum_of_losses.replace("total", "1.5 * total")
    edited(copy / "t3lib" / "tofu" / "likelihood.py", (sum_of_losses, halved))
    return copy


def compared(out: Path, checkout: Path = ROOT) -> str:
    """What `t3 compare` with the undisturbed results ends with, without how much was compared."""
    words = [sys.executable, "-m", "t3lib", "compare", out, undisturbed(checkout)]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout
    return printed.splitlines()[-1].partition("; compared")[0]


def killed(victim: str, begun: str, folder: Path) -> str:
    """Kill -9 of the runner, a worker or a kernel, while a job that begins with `begun` runs."""
    run = start(folder)
    wait(lambda: list((folder / "cache").glob(f"done/*/{begun}*.lock")))
    time.sleep(random.uniform(1, 6))  # of the ten seconds and more that such a job takes
    random.choice(wait(lambda: tree(run, victim))).kill()
    if victim == "reproduce":
        run.wait()
        run = start(folder)
    assert run.wait(PATIENCE) == 0
    return compared(folder / "out")


def again(*more: str, out: str = "out", folder: Path) -> str:
    """A finished run, which is then asked for once more."""
    assert start(folder).wait(PATIENCE) == 0
    (folder / "out").rename(folder / out)
    assert start(folder, *more, out=out).wait(PATIENCE) == 0
    return compared(folder / out)


def two_checkouts(folder: Path) -> list[Any]:
    places = {"ours": ROOT, "theirs": other_checkout()}
    both = [start(folder, out=out, checkout=checkout) for out, checkout in places.items()]
    assert [run.wait(PATIENCE) for run in both] == [0, 0]
    found = [compared(folder / out, checkout) for out, checkout in places.items()]
    return [*found, compared(folder / "theirs") == found[0]]


def whole_runs() -> list[Case]:
    """Kill -9, moved folders, two checkouts."""
    same = "the same to the last digit"
    kills = [
        Case(f"kill -9: {victim}, {begun}", partial(killed, victim, begun), same, None)
        for victim in ("reproduce", "multiprocessing.spawn", "ipykernel")
        for begun in ("base", "02")
    ]
    return [
        *kills,
        Case("moved", lambda folder: again(out="moved", folder=folder), same, None),
        Case("--fresh", lambda folder: again("--fresh", folder=folder), same, None),
        Case(
            "two checkouts of different code on one cache", two_checkouts, [same, same, False], None
        ),
    ]
