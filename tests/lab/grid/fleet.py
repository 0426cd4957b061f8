"""Start `t3 reproduce` over no-op notebooks as a process of its own, watch kernels, compare
results.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import noop
import psutil
from conftest import ROOT

PATIENCE = 600  # seconds; only a hang takes that long
# A process in the background of a shell would ignore Ctrl-C.
RUN = """import signal, sys
from functools import partial
from pathlib import Path
from t3lib import cli
from t3lab.grid import reproduce as grid
signal.signal(signal.SIGINT, signal.default_int_handler)
grid.reproduce = partial(grid.reproduce, notebooks=Path(sys.argv[1]))
sys.exit(cli.main(["reproduce", *sys.argv[2:]]))"""


class Fleet:
    """One sandbox: notebooks, profile, cache and results folder, and the processes started on
    them.
    """

    def __init__(self, folder: Path, work: str = noop.TRAIN, **profile: str) -> None:
        self.folder, self.out, self.cache = folder, folder / "out", folder / "cache"
        self.cache.mkdir(parents=True)
        self.notebooks = noop.write_notebooks(folder / "notebooks", work)
        self.profile = noop.write_profile(folder / "fleet.yaml", **profile)

    def start(self, *options: str, **environment: str) -> subprocess.Popen:
        """`t3 reproduce` as a process, on two workers unless the options say otherwise. Its output
        goes to the file `log`.
        """
        words = [self.notebooks, "--profile", self.profile, "--out", self.out]
        command = [sys.executable, "-c", RUN, *map(str, words), *(options or ("--workers", "2"))]
        environment |= {"T3_CACHE": str(self.cache), "T3_THREADS": "1"}
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log
            )

    def run(self, *options: str) -> int:
        return self.start(*options).wait(PATIENCE)

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


def tree(process: subprocess.Popen, sign: str = "") -> list[psutil.Process]:
    """A process and all that it started, of these the ones whose command line has `sign`."""
    parent, found = psutil.Process(process.pid), []
    for each in (parent, *parent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if sign in " ".join(each.cmdline()):
                found.append(each)
    return found


def is_kernel(pid: int) -> bool:
    """True while a notebook's process lives."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "ipykernel" in " ".join(
            process.cmdline()
        )
    except psutil.NoSuchProcess:
        return False


def wait(condition):
    """Poll until `condition()`, which is returned; a test that waits too long has failed."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return value
