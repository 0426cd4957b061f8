"""Start `t3 reproduce` over no-op notebooks as a process of its own, watch its kernels, kill things, compare results."""

import os
import subprocess
import sys
import time
from pathlib import Path

import noop
import psutil
from conftest import ROOT

CALL = """import sys
from pathlib import Path
from t3lib.reproduce import reproduce
profile, out, notebooks, how, what = sys.argv[1:]
sys.exit(reproduce(profile, out=out, notebooks=Path(notebooks), **{how: int(what) if how == "workers" else what}))"""
PATIENCE = 180  # seconds; only a hang takes that long


class Fleet:
    """One sandbox: notebooks, profile, cache and results folder, and the processes started on them."""

    def __init__(self, folder: Path, **profile: str) -> None:
        self.folder, self.out, self.cache = folder, folder / "out", folder / "cache"
        self.cache.mkdir(parents=True)
        self.notebooks = noop.write_notebooks(folder / "notebooks")
        self.profile = noop.write_profile(folder / "fleet.yaml", **profile)

    def start(self, how: str = "workers", what: str | int = 1, **environment: str) -> subprocess.Popen:
        """The runner as a process; its output goes to the file `log`."""
        env = os.environ | {"T3_CACHE": str(self.cache), "T3_THREADS": "1"} | environment
        arguments = [str(self.profile), str(self.out), str(self.notebooks), how, str(what)]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen([sys.executable, "-c", CALL, *arguments], cwd=ROOT, env=env, stdout=log, stderr=log)

    def run(self, how: str = "workers", what: str | int = 1) -> int:
        return self.start(how, what).wait(PATIENCE)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kernels(self) -> list[int]:
        """Process ids of all kernels that ever ran a cell here, in order."""
        pids = self.cache / "pids"
        return [int(line.split()[0]) for line in pids.read_text().splitlines()] if pids.exists() else []

    def wait_for_kernel(self, number: int, runner: subprocess.Popen | None = None) -> None:
        """Until the `number`-th kernel ran a cell, or the runner ended."""
        wait(lambda: len(self.kernels()) >= number or (runner is not None and runner.poll() is not None))

    def orphans(self) -> list[int]:
        """Kernels of this sandbox that are still alive although nobody runs them; given a little time to notice."""
        deadline = time.monotonic() + 20
        while (alive := [pid for pid in self.kernels() if is_kernel(pid)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        return alive

    def results(self) -> dict[str, bytes]:
        return noop.results_of(self.out)


def is_kernel(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any("ipykernel" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def wait(condition) -> None:
    """Poll until `condition()`; a test that waits too long has failed."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
