"""Kernels that start in a moment: forked by Python's fork server, which has imported what they
need.

At laptop scale a kernel spends longer on its imports than on its work. Each worker has a fork
server of its own, so that everything ends with the worker. For Linux without GPUs: CUDA does not
survive a fork.
"""

import gc
import multiprocessing.context
import os
import runpy
import sys
import threading
import time
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from t3lib.core.identity import changed_since_import

TRIES = 10  # of a fork, a fifth of a second apart


class Forked(multiprocessing.context.ForkServerProcess):
    """A forked process with what Jupyter asks of a subprocess.Popen."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """None while it lives, then its exit code."""
        return self.exitcode

    def wait(self) -> int | None:
        """Its exit code, once it has ended."""
        self.join()
        return self.exitcode


def fork(command: list[str], env: dict[str, str]) -> Forked:
    """Start `python -m MODULE …` as a fork.

    A fork server that was just killed still takes the request and answers nothing: it is asked
    again until it is gone, for then Python starts another.
    """
    for tries_left in reversed(range(TRIES)):
        process = Forked(target=become, args=(command, env, os.getcwd()), daemon=True)
        try:
            process.start()
            break
        except (EOFError, ConnectionError):
            if not tries_left:
                raise
            time.sleep(0.2)
    return process


def become(command: list[str], env: dict[str, str], cwd: str) -> None:
    """Make this forked process what the command would start: its session, environment, folder and
    arguments.
    """
    gc.freeze()  # what the fork server imported is hardly ever garbage: looking there takes time
    os.setsid()
    server = os.getppid()  # asked here, for the thread may first run when the server is gone
    threading.Thread(
        target=end_with_worker, args=(server,), name="end with worker", daemon=True
    ).start()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = command[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def end_with_worker(server: int) -> None:
    """Wait for the end of the worker, or of its fork server (a process id), and end this process
    within a second.
    """
    worker = multiprocessing.parent_process()
    while worker and worker.is_alive() and os.getppid() == server:
        time.sleep(0.5)
    os._exit(1)


class ForkProvisioner(LocalProvisioner):
    """Forks a kernel of this interpreter and code; any other starts as Jupyter starts it."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        """Start the kernel; returns how to connect to it."""
        if cmd[:3] != [sys.executable, "-m", "ipykernel_launcher"] or changed_since_import():
            return await super().launch_kernel(cmd, **options)
        self.process: Any = fork(cmd, dict(options.get("env") or os.environ))
        self.pid = self.pgid = self.process.pid
        return self.connection_info


class ForkKernelManager(AsyncKernelManager):
    """With this manager papermill forks its kernels."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.provisioner = ForkProvisioner(kernel_spec=self.kernel_spec, parent=self)
