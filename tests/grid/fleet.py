"""Start `t3 reproduce` over no-op notebooks as a process of its own, watch kernels, kill things, compare results."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import noop
import psutil
from conftest import ROOT

# A process that has imported everything and forks a runner for every line it reads: saves seconds a start. Nothing but
# the imports is shared: workers and kernels of a runner are new processes, and a kill hits the forked runner alone.
NURSERY = """import json, os, signal, sys
from pathlib import Path
import distributed.deploy.local, distributed.nanny
from t3lib.grid.reproduce import reproduce
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDONLY) if target == 0 else log, target)
    os.environ.update(request["environment"])
    code = 3
    try:
        given = {name: Path(value) if name == "notebooks" else value for name, value in request["arguments"].items()}
        code = reproduce(**given)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    Path(request["code"]).write_text(str(code))
    os._exit(code)
"""
PATIENCE = 600  # seconds; only a hang takes that long


_nursery: list[subprocess.Popen] = []


def nursery(request: dict) -> int:
    """Process id of a runner for this request."""
    if not _nursery:
        command = [sys.executable, "-c", NURSERY]
        pipe = subprocess.PIPE
        _nursery.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
        atexit.register(lambda: _nursery[0].communicate())
    _nursery[0].stdin.write(json.dumps(request) + "\n")
    _nursery[0].stdin.flush()
    return int(_nursery[0].stdout.readline())


class Runner:
    """A started runner: its process id, and the exit code it leaves unless it is killed."""

    def __init__(self, pid: int, code: Path) -> None:
        self.pid, self.code = pid, code

    def alive(self) -> bool:
        return psutil.pid_exists(self.pid)

    def wait(self) -> int | None:
        wait(lambda: not self.alive())
        return int(self.code.read_text()) if self.code.exists() else None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()


class Fleet:
    """One sandbox: notebooks, profile, cache and results folder, and the processes started on them."""

    def __init__(self, folder: Path, work: str = noop.WORK, **profile: str) -> None:
        self.folder, self.out, self.cache, self.started = folder, folder / "out", folder / "cache", 0
        self.cache.mkdir(parents=True)
        self.notebooks = noop.write_notebooks(folder / "notebooks", work)
        self.profile = noop.write_profile(folder / "fleet.yaml", **profile)

    def start(self, how: str = "workers", what: str | int = 1) -> "Runner":
        """A runner as a process; its output goes to the file `log`."""
        arguments = {"profile": str(self.profile), "out": str(self.out), "notebooks": str(self.notebooks), how: what}
        environment = {"T3_CACHE": str(self.cache), "T3_THREADS": "1"}
        self.started += 1
        code = self.folder / f"code{self.started}"
        request = {"arguments": arguments, "environment": environment, "log": str(self.folder / "log")}
        return Runner(nursery(request | {"code": str(code)}), code)

    def run(self, how: str = "workers", what: str | int = 1) -> int:
        return self.start(how, what).wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kernels(self) -> list[int]:
        """Process ids of all kernels that ever ran a cell here, in order."""
        pids = self.cache / "pids"
        return [int(line.split()[0]) for line in pids.read_text().splitlines()] if pids.exists() else []

    def wait_for_kernel(self, number: int, runner: "Runner | None" = None) -> None:
        """Until the `number`-th kernel ran a cell, or the runner ended."""
        wait(lambda: len(self.kernels()) >= number or (runner is not None and not runner.alive()))

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
        words = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and ("ipykernel" in words or "t3lib.grid.warm" in words)
    except psutil.NoSuchProcess:
        return False


def worker_of(kernel: int) -> psutil.Process:
    """The worker whose nursery forked this kernel."""
    nursery = psutil.Process(kernel).parent()
    assert "t3lib.grid.warm" in nursery.cmdline()
    return nursery.parent()


def wait(condition) -> None:
    """Poll until `condition()`; a test that waits too long has failed."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
