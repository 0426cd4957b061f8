"""Processes that start in a moment: forked from one per worker that has imported torch, Transformers and t3lib.

At laptop scale a kernel spends longer on imports than on its work. `python -m t3lib.grid.warm` reads requests, one JSON
a line, from its standard input, imports what they ask for and forks a child, which goes on as `python -m MODULE` does:
a notebook's kernel, or the training of a base. It answers with the child's process id. When its input closes, as the
worker is gone, it ends, and its children with it. For Linux without GPUs: CUDA does not survive a fork.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from t3lib.files import LIBRARY
from t3lib.grid.trainer import die_with, main

LAUNCHER = "ipykernel_launcher"
TRAINER = "t3lib.grid.trainer"  # its `main` trains one base
# What a notebook with a study needs in the end. None of it may import pyplot, whose backend a kernel sets at its start.
STUDY = ("pandas", "rouge_score.rouge_scorer", "t3lib.study.ablations")


def forkable(command: list[str]) -> bool:
    """True when a kernel's command is this interpreter's ipykernel; a kernel spec may name another one."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in (command[0], sys.executable)}  # of the environment
    same = os.path.realpath(command[0]) == os.path.realpath(sys.executable)
    return same and len(folders) == 1 and LAUNCHER in command


class Nursery:
    """The process that others are forked from; it holds what was imported when it was first needed."""

    def __init__(self) -> None:
        # A pipe of its own for the answers: anything may print. A session of its own: Ctrl-C is for the runner.
        read, write = os.pipe()
        command = [sys.executable, "-m", "t3lib.grid.warm", str(write)]
        how: dict[str, Any] = {"stdin": subprocess.PIPE, "pass_fds": (write,), "start_new_session": True}
        self.process = subprocess.Popen(command, text=True, **how)
        os.close(write)
        self._answers = os.fdopen(read)

    def __del__(self) -> None:
        """Close its input, so that it ends: a Popen that is let go of while its process lives would keep it open."""
        for pipe in (self.process.stdin, self._answers):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def fork(self, module: str, arguments: list[str], **how: Any) -> "Child":
        """A child that runs `module` with these arguments; OSError when the nursery is gone. `how`: see `forked`."""
        pipe = self.process.stdin
        assert pipe is not None
        pipe.write(json.dumps({"module": module, "arguments": arguments, **how}) + "\n")
        pipe.flush()
        if not (pid := self._answers.readline()):
            raise OSError("the process that forks has ended")
        return Child(int(pid))


def forked(
    module: str,
    arguments: Callable[[int], list[str]],
    *,
    preload: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    log: str = "",
) -> "Child":
    """`python -m module` (LAUNCHER or TRAINER) as a child of this worker's nursery, a new one if that was killed.

    arguments: from the nursery's process id. preload: modules that the nursery imports first. env, cwd: default this
    process's. log: file for its output, default the worker's own standard error.
    """
    how = {"preload": preload, "env": dict(env or os.environ), "cwd": cwd or os.getcwd(), "log": log}
    try:
        return nursery().fork(module, arguments(nursery().process.pid), **how)
    except OSError:
        forget()
        return nursery().fork(module, arguments(nursery().process.pid), **how)


class Child:
    """What `LocalProvisioner` asks of a subprocess.Popen, for a process that another one started."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already
            self.returncode = 0

    def poll(self) -> int | None:
        """None while it lives, then 0: its exit status is its parent's to know."""
        if self.returncode is None and select.select([self._fd], [], [], 0)[0]:
            os.close(self._fd)
            self.returncode = 0
        return self.returncode

    def wait(self) -> int:
        if self.poll() is None:
            select.select([self._fd], [], [])
        return self.poll() or 0

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, signum)


class WarmProvisioner(LocalProvisioner):
    """Starts a kernel in the nursery when that is possible, else as it always does."""

    preload: tuple[str, ...] = ()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        if not forkable(cmd):
            return await super().launch_kernel(cmd, **kwargs)
        own = cmd[cmd.index(LAUNCHER) + 1 :]
        child = forked(
            LAUNCHER,
            lambda parent: [*own, f"--IPKernelApp.parent_handle={parent}"],
            preload=self.preload,
            env=kwargs.get("env"),
            cwd=kwargs.get("cwd"),
        )
        self.process = child  # type: ignore[assignment]
        self.pid = self.pgid = child.pid
        return self.connection_info


class WarmKernelManager(AsyncKernelManager):
    """The kernel manager for papermill; `preload` names the modules that the nursery imports before it forks."""

    preload: tuple[str, ...] = ()

    async def _async_pre_start_kernel(self, **options: Any) -> Any:
        if self.provisioner is None:
            kernel_id = self.kernel_id or ""
            self.provisioner = WarmProvisioner(kernel_id=kernel_id, kernel_spec=self.kernel_spec, parent=self)
            self.provisioner.preload = self.preload
        return await super()._async_pre_start_kernel(**options)


class StudyKernelManager(WarmKernelManager):
    """For notebooks that open a study."""

    preload = STUDY


def nursery() -> Nursery:
    """This worker's nursery, started when first needed, and anew when a file of t3lib has changed since."""
    files = ((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in LIBRARY.glob("*.py"))
    return _nursery(tuple(sorted(files)))


@lru_cache(maxsize=1)
def _nursery(files: tuple[tuple[str, int, int], ...]) -> Nursery:
    return Nursery()


def forget() -> None:
    """Let go of the nursery: its input closes, and it ends."""
    _nursery.cache_clear()


def serve() -> str:
    """Fork one child for each line of standard input; returns in the child alone, with the module it is to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    answer = os.fdopen(int(sys.argv[1]), "w")
    import_module("ipykernel.kernelapp")
    own = os.getpid()
    while line := sys.stdin.readline():
        request = json.loads(line)
        for module in request["preload"]:
            with suppress(Exception):  # the child will say it, where somebody reads it
                import_module(module)
        if not (pid := os.fork()):
            answer.close()  # or the worker would wait for an answer after the nursery's end
            become(request, own)
            return request["module"]
        print(pid, file=answer, flush=True)
    os._exit(0)


def become(request: dict[str, Any], parent: int) -> None:
    """Make this forked process what a new one would be: session, signals, environment, folder, files, arguments."""
    os.setsid()
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    if request["log"]:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
    sys.argv = [request["module"], *request["arguments"]]


if __name__ == "__main__":
    if serve() == TRAINER:
        sys.exit(main())
    import runpy

    runpy.run_module(LAUNCHER, run_name="__main__", alter_sys=True)
