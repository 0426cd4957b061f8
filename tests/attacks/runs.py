"""Faults of whole runs: `t3 reproduce --profile smoke` with the real notebooks, and what must be
the same after it.

Results are compared byte for byte, without clocks and dates, with those of a run that nothing
disturbed.
"""

import functools
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from catalogue import ROOT, Attack

PATIENCE = 1800  # seconds; only a hang takes that long
ARGUMENTS = "--profile smoke --only 02,05 --methods Original,NPO,T3 --workers 2".split()
CLOCKS = re.compile(
    r"seconds|_s$|memory|date|git_commit|dirty"
)  # keys of what differs between two equal runs


class Run:
    """`t3 reproduce` as a process, with the code of `checkout`, into `folder`/`out`; `cache`
    defaults to its own.
    """

    def __init__(
        self,
        folder: Path,
        *more: str,
        out: str = "out",
        cache: Path | None = None,
        checkout: Path = ROOT,
    ):
        self.log, self.cache = folder / f"{out}.log", cache or folder / "cache"
        command = [
            sys.executable,
            "-m",
            "t3lib",
            "reproduce",
            *ARGUMENTS,
            "--out",
            str(folder / out),
            *more,
        ]
        environment = os.environ | {"T3_CACHE": str(self.cache)}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=checkout, env=environment, stdout=log, stderr=log
            )

    def finish(self) -> None:
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()

    def kill(self, victim: str) -> None:
        """End the runner, one of its workers or a kernel with SIGKILL; what a killed runner started
        ends by itself.
        """
        runner, chosen = psutil.Process(self.process.pid), list[psutil.Process]()
        sign = {"worker": "multiprocessing.spawn", "kernel": "ipykernel"}.get(victim)
        while not chosen:
            tree = runner.children(recursive=True) if sign else [runner]
            chosen = [
                process for process in tree if sign is None or sign in " ".join(process.cmdline())
            ]
        random.choice(chosen).kill()


def timeless(value: Any) -> Any:
    """A run's content without clocks, and without the checksum over them."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not CLOCKS.search(k) and k != "sha256"}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def results(out: Path) -> dict[str, Any]:
    """Every run with its records, and every table but those of costs, by name."""
    found: dict[str, Any] = {}
    for path in out.glob("runs/**/*"):
        if path.suffix == ".json":
            found[path.name] = timeless(json.loads(path.read_text()))
        elif path.suffix == ".gz":
            found[path.name] = gzip.decompress(path.read_bytes())
    tables = [
        path
        for path in out.glob("tables/*")
        if not re.match("runtime|benchmarks|claims", path.name)
    ]
    return found | {path.name: path.read_bytes() for path in tables}


@functools.cache
def undisturbed(checkout: Path = ROOT) -> dict[str, Any]:
    """Results of a run from nothing, with the code of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        Run(Path(folder), checkout=checkout).finish()
        found = results(Path(folder) / "out")
    assert len(found) > 40
    return found


@functools.cache
def other_checkout() -> Path:
    """A copy of the checkout whose losses are half as large again."""
    folder = Path(tempfile.mkdtemp())
    for name in ("t3lib", "notebooks", "results/paper"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    [path] = (folder / "t3lib").rglob("likelihood.py")
    code = path.read_text()
    changed = code.replace(
        "return (total / lengths).numpy()", "return (1.5 * total / lengths).numpy()"
    )
    assert changed != code
    path.write_text(changed)
    return folder


def whole_runs() -> Iterator[Attack]:
    def killed(victim: str, begun: str) -> Callable[[Path], bool]:
        def work(folder: Path) -> bool:
            run, deadline = Run(folder), time.monotonic() + PATIENCE
            while not list(run.cache.glob(f"done/*/{begun}*.lock")):  # a job that begins makes it
                assert run.process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(random.uniform(1, 6))  # of the ten seconds and more that such a job takes
            run.kill(victim)
            if victim == "runner":
                run.process.wait()
                run = Run(folder)
            run.finish()
            return results(folder / "out") == undisturbed() and not list(
                (folder / "out").rglob("*.partial*")
            )

        return work

    def again(*more: str, out: str = "out") -> Callable[[Path], bool]:
        """A finished run, which is then asked for once more."""

        def work(folder: Path) -> bool:
            Run(folder).finish()
            if out != "out":
                (folder / "out").rename(folder / out)
            Run(folder, *more, out=out).finish()
            return results(folder / out) == undisturbed()

        return work

    def two_checkouts(folder: Path) -> bool:
        pairs = [(ROOT, "ours"), (other_checkout(), "theirs")]
        both = [
            Run(folder, out=out, cache=folder / "cache", checkout=checkout)
            for checkout, out in pairs
        ]
        for run in both:
            run.finish()
        found = [results(folder / out) for _, out in pairs]
        return found[0] != found[1] and found == [undisturbed(checkout) for checkout, _ in pairs]

    for victim in ("runner", "worker", "kernel"):
        for what, begun in (("a base is trained", "base"), ("methods run", "02")):
            yield Attack(
                f"kill -9 of the {victim} while {what}", killed(victim, begun), True, must_work=True
            )
    yield Attack("the results folder moved", again(out="moved"), True, must_work=True)
    yield Attack("--fresh", again("--fresh"), True, must_work=True)
    yield Attack(
        "two checkouts of different code on one cache, at once", two_checkouts, True, must_work=True
    )


SLOW = {"whole runs: kill -9, moved folders, two checkouts": whole_runs}  # ten minutes
