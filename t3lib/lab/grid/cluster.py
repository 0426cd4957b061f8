"""Where jobs run: processes on this machine, a running Dask scheduler, or SLURM (dask-jobqueue).

Every job requests one `slot` and a worker offers one, so that a worker (and its GPU) does one job
at a time. Clusters started here use TLS with their own credentials, because a Dask scheduler runs
any code that reaches it.
"""

import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, read_yaml

if TYPE_CHECKING:
    from distributed import Client

SLOT = {"slot": 1}
CONNECT_SECONDS = 15
NO_DASHBOARD = (  # None would open port 8787 on every interface, and warn if it is in use
    "127.0.0.1:0"
)
CHECK_SECONDS = 5.0  # between two checks of the local workers
# Dask's own profiling and monitoring would take a tenth of a core for two idle workers.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
WORKER_MEMORY = 2 * 2**30  # bytes of a worker and its kernel with a tiny Llama


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs that this process may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def worker_count(wanted: int | None, threads: int) -> int:
    """Return the number of workers on this machine.

    wanted: by default one for each GPU, else one for each physical core with enough memory.
    threads: of each worker. Without GPUs there are at most cores / threads workers, but at least
    one.

    UserError for less than one worker.
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
    """Yield a connected Dask client; at the end, stop the workers or SLURM jobs started for it.

    workers: number of local workers. scheduler: address of a running scheduler. slurm: file with
    options of dask-jobqueue. At most one of the last two is given. UserError if no scheduler or no
    worker with a slot is there, for a bad SLURM file and a refused job.
    """
    for name in ("client", "core", "worker", "scheduler", "nanny"):
        logging.getLogger(f"distributed.{name}").setLevel(
            logging.CRITICAL
        )  # our own status lines are enough
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
def no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back within the block, and for ever in the processes that are started in it.

    A worker that Ctrl-C meets while it imports its modules would print a page of traceback. On
    Windows, which has no signal masks, this does nothing.
    """
    if masks := getattr(signal, "pthread_sigmask", None):
        resource_tracker.ensure_running()  # its start would let Ctrl-C through again
        before = masks(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masks:
            masks(signal.SIG_SETMASK, before)


@contextmanager
def _local(workers: int) -> Iterator[Any]:
    """Start a cluster on this machine; workers that Dask gives up are replaced."""
    from distributed import LocalCluster
    from distributed.security import Security
    from tornado.ioloop import PeriodicCallback

    def replace() -> None:
        for name, worker in list(cluster.workers.items()):
            if worker.status.name in ("closed", "failed"):
                del cluster.workers[name]
        cluster.scale(workers)

    with no_interrupt():
        started = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            resources=SLOT,
            security=Security.temporary(),
            memory_limit=0,  # Dask must not limit a worker by the memory of its kernel
            dashboard_address=NO_DASHBOARD,
            local_directory=str(cache_dir("dask")),
            silence_logs=logging.CRITICAL,
        )
    with started as cluster:
        look = PeriodicCallback(replace, CHECK_SECONDS * 1000)
        cluster.loop.add_callback(look.start)
        try:
            yield cluster
        finally:
            cluster.loop.add_callback(look.stop)


@contextmanager
def _remote(address: str) -> Iterator["Client"]:
    """Connect to a running scheduler, with the credentials of Dask's `distributed.comm.tls`.

    UserError if nothing answers at the address, and if no worker offers a slot.
    """
    from distributed import Client

    if not re.fullmatch(r"(tcp|tls|ws|wss|ucx)://\S+:\d+", address):
        raise UserError(f"--scheduler {address}: an address looks like tcp://host:8786")
    client = Client.__new__(Client)  # in two steps, so that a client that fails can be closed here
    try:
        Client.__init__(client, address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (
        OSError,
        TimeoutError,
        ValueError,
        TypeError,
    ) as error:  # TypeError: tls:// without credentials
        # If the garbage collector closed it later, it could deadlock with the next client's start.
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
    """Start a cluster of SLURM jobs, each with one process and one slot.

    path: a YAML file, whose options replace those of Dask's own `jobqueue.slurm`. The option
    `jobs`, the number of jobs to submit, is added by t3lib; its default is 1. UserError with the
    message of dask-jobqueue or sbatch if one of them refuses.
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
        for _ in range(jobs):  # adapt() would drop workers between stages (dask-jobqueue#701)
            cluster.worker_spec.update(cluster.new_worker_spec())
        return stack.enter_context(cluster)  # submits the jobs; raises sbatch's error
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        # After a refused job, Dask raises a second error when it cleans up; the first one is shown.
        said = str(error.__context__ or error)
        reason = (said.partition("stderr:")[2] or said).strip().splitlines() or [
            type(error).__name__
        ]
        raise UserError(f"--slurm {path}: {reason[0]}") from None
