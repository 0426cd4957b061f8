"""Start `t3 reproduce` over no-op notebooks as a process of its own, watch kernels, kill things,
compare results.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import noop
import psutil
from conftest import ROOT

PATIENCE = 600  # seconds; only a hang takes that long
RUN = "import json, sys; from pathlib import Path; from t3lib.lab.grid.reproduce import reproduce\n"
RUN += "arguments = json.loads(sys.argv[1])\n"
RUN += "sys.exit(reproduce(**arguments | {'notebooks': Path(arguments['notebooks'])}))"


class Runner:
    """A started runner."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.pid = process, process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def wait(self) -> int:
        """Its exit code, negative when it was killed."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.wait()


class Fleet:
    """One sandbox: notebooks, profile, cache and results folder, and the processes started on
    them.
    """

    def __init__(self, folder: Path, work: str = noop.WORK, **profile: str) -> None:
        self.folder, self.out, self.cache = folder, folder / "out", folder / "cache"
        self.cache.mkdir(parents=True)
        self.notebooks = noop.write_notebooks(folder / "notebooks", work)
        self.profile = noop.write_profile(folder / "fleet.yaml", **{"seeds": "1"} | profile)

    def start(self, how: str = "workers", what: str | int = 1) -> "Runner":
        """A runner as a process; its output goes to the file `log`."""
        arguments = {
            "profile": str(self.profile),
            "out": str(self.out),
            "notebooks": str(self.notebooks),
            how: what,
        }
        environment = os.environ | {"T3_CACHE": str(self.cache), "T3_THREADS": "1"}
        command = [sys.executable, "-c", RUN, json.dumps(arguments)]
        with open(self.folder / "log", "ab") as log:
            return Runner(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            )

    def run(self, how: str = "workers", what: str | int = 1) -> int:
        return self.start(how, what).wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kernels(self) -> list[int]:
        """Process ids of all kernels that ever ran a cell here, in order."""
        pids = self.cache / "pids"
        return (
            [int(line.split()[0]) for line in pids.read_text().splitlines()]
            if pids.exists()
            else []
        )

    def wait_for_kernel(self, number: int, runner: "Runner | None" = None) -> None:
        """Until the `number`-th kernel ran a cell, or the runner ended."""
        wait(lambda: len(self.kernels()) >= number or (runner is not None and not runner.alive()))

    def orphans(self) -> list[int]:
        """Kernels of this sandbox that are still alive although nobody runs them; given time to
        notice.
        """
        deadline = time.monotonic() + 120
        while (
            alive := [pid for pid in self.kernels() if is_kernel(pid)]
        ) and time.monotonic() < deadline:
            time.sleep(0.2)
        return alive

    def results(self) -> dict[str, bytes]:
        return noop.results_of(self.out)


def is_kernel(pid: int) -> bool:
    """True while a notebook's process lives."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "ipykernel" in " ".join(
            process.cmdline()
        )
    except psutil.NoSuchProcess:
        return False


def wait(condition) -> None:
    """Poll until `condition()`; a test that waits too long has failed."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
