"""Where jobs run: processes of this machine, a running Dask scheduler, or SLURM through
dask-jobqueue.

Every job asks for one abstract `slot`, a worker offers one, so that a worker (and its GPU) does one
job at a time. What is started here speaks TLS with credentials of its own: a scheduler runs
whatever reaches it.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, read_yaml

if TYPE_CHECKING:
    from distributed import Client

SLOT = {"slot": 1}
CONNECT_SECONDS = 15
NO_DASHBOARD = (  # None would mean port 8787 on every interface, and a warning where that is taken
    "127.0.0.1:0"
)
CHECK_SECONDS = 5.0  # between two looks whether the local workers are there
# Dask's own watching (a profile every hundredth of a second, monitors) takes a tenth of a core for
# two idle workers.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
WORKER_MEMORY = 2 * 2**30  # bytes: a worker and a kernel with a tiny Llama


def gpu_count() -> int:
    """NVIDIA GPUs that this process may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def worker_count(wanted: int | None, threads: int) -> int:
    """Workers on this machine: those wanted, by default one a GPU, else one a physical core with
    memory for it.

    Threads times workers never exceed the cores; UserError for less than one worker.
    """
    if wanted is not None and wanted < 1:
        raise UserError(f"--workers {wanted}: give a number from 1")
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else psutil.cpu_count() or 1
    )
    physical = min(cores, psutil.cpu_count(logical=False) or cores)
    default = gpu_count() or min(
        physical // threads, psutil.virtual_memory().available // WORKER_MEMORY
    )
    return max(1, min(wanted or default, max(gpu_count(), cores // threads)))


@contextmanager
def client_for(workers: int, scheduler: str | None, slurm: str | Path | None) -> Iterator["Client"]:
    """A connected Dask client; whatever was started for it (workers, SLURM jobs) is stopped at the
    end.

    UserError: no scheduler at the address, no worker with a slot, a bad SLURM file, a refused job.
    """
    for name in ("client", "core", "worker", "scheduler", "nanny"):
        logging.getLogger(f"distributed.{name}").setLevel(
            logging.CRITICAL
        )  # the status lines tell what matters
    import dask
    from distributed import Client

    with dask.config.set(QUIET), ExitStack() as stack:
        if scheduler is not None:
            yield stack.enter_context(_remote(scheduler))
            return
        cluster = (
            _slurm(Path(slurm), stack)
            if slurm is not None
            else stack.enter_context(_local(workers))
        )
        yield stack.enter_context(Client(cluster, set_as_default=False))


@contextmanager
def _local(workers: int) -> Iterator[Any]:
    """A cluster on this machine; workers that Dask itself gives up, as when one dies at its start,
    are replaced.
    """
    from distributed import LocalCluster
    from distributed.security import Security
    from tornado.ioloop import PeriodicCallback

    def replace() -> None:
        for name, worker in list(cluster.workers.items()):
            if worker.status.name in ("closed", "failed"):
                del cluster.workers[name]
        cluster.scale(workers)

    with LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        resources=SLOT,
        security=Security.temporary(),
        memory_limit=0,  # a kernel's memory is not the worker's: Dask must not judge it
        dashboard_address=NO_DASHBOARD,
        local_directory=str(cache_dir("dask")),
        silence_logs=logging.CRITICAL,
    ) as cluster:
        look = PeriodicCallback(replace, CHECK_SECONDS * 1000)
        cluster.loop.add_callback(look.start)
        try:
            yield cluster
        finally:
            cluster.loop.add_callback(look.stop)


@contextmanager
def _remote(address: str) -> Iterator["Client"]:
    """A client of a running scheduler; credentials come from Dask's own configuration
    (`distributed.comm.tls`).
    """
    from distributed import Client

    if not re.fullmatch(r"(tcp|tls|ws|wss|ucx)://\S+:\d+", address):
        raise UserError(f"--scheduler {address}: an address looks like tcp://host:8786")
    client = Client.__new__(
        Client
    )  # in two steps: a client that failed is closed here, not when it is collected
    try:
        Client.__init__(client, address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (
        OSError,
        TimeoutError,
        ValueError,
        TypeError,
    ) as error:  # TypeError: tls:// without credentials
        # the garbage collector may do so while the next client starts, and each waits for the other
        client.close()
        raise UserError(
            f"--scheduler {address}: nothing answers there ({type(error).__name__})"
        ) from None
    with client:
        offered = client.scheduler_info(n_workers=-1)["workers"].values()
        if offered and not any(worker.get("resources", {}).get("slot") for worker in offered):
            raise UserError(
                f"--scheduler {address}: no worker has a slot; start it with --resources slot=1"
            )
        if not offered:
            print(
                f"waiting for workers: dask worker {address} --nthreads 1 --resources slot=1",
                flush=True,
            )
        yield client


def _slurm(path: Path, stack: ExitStack) -> Any:
    """A cluster of SLURM jobs, one process with one slot each. The file lies over Dask's own
    `jobqueue.slurm`.

    `jobs`, how many to submit, is ours and defaults to 1. UserError in dask-jobqueue's or sbatch's
    words when it refuses one.
    """
    import dask
    from dask_jobqueue import SLURMCluster

    options = {key.replace("_", "-"): value for key, value in read_yaml(path).items()}
    jobs = options.pop("jobs", 1)
    known = dask.config.get("jobqueue.slurm")
    if unknown := {*options} - {*known}:
        raise UserError(
            f"{path}: unknown option {min(unknown)!r}: choose among {', '.join(sorted(known))}"
        )
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise UserError(f"{path}: jobs is {jobs!r}, not a number from 1")
    lists = {name for name in options if isinstance(known[name], list)}
    if wrong := [name for name in lists if not isinstance(options[name], list)]:
        raise UserError(f"{path}: {wrong[0]} must be a list")
    place = {"shared-temp-directory": str(cache_dir("dask"))}
    ours = {"cores": 1, "memory": "16GB", "processes": 1} | place
    settings = known | {name: ours[name] for name in ours if known[name] is None} | options
    try:
        settings["worker-extra-args"] = [*settings["worker-extra-args"], "--resources", "slot=1"]
        settings["scheduler-options"] = {"dashboard_address": NO_DASHBOARD}
        stack.enter_context(dask.config.set({"jobqueue.slurm": settings}))
        cluster = SLURMCluster(security=True)
        for _ in range(jobs):  # not adapt, which drops workers between stages (dask-jobqueue#701)
            cluster.worker_spec.update(cluster.new_worker_spec())
        return stack.enter_context(cluster)  # submits, and raises what sbatch says
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        # Dask stumbles over a job that was never accepted while it cleans up
        said = str(error.__context__ or error)
        reason = (said.partition("stderr:")[2] or said).strip().splitlines() or [
            type(error).__name__
        ]
        raise UserError(f"--slurm {path}: {reason[0]}") from None
