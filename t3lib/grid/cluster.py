"""Where jobs run: processes of this machine, a running Dask scheduler, or SLURM through dask-jobqueue.

Every job asks for one abstract `slot`, a worker offers one, so that a worker (and its GPU) does one job at a time.
"""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t3lib.errors import UserError
from t3lib.files import cache_dir
from t3lib.profiles import read_yaml

if TYPE_CHECKING:
    from distributed import Client

SLOT = {"slot": 1}
CONNECT_SECONDS = 15
NO_DASHBOARD = "127.0.0.1:0"  # None would mean port 8787 on every interface, and a warning where that is taken
CHECK_SECONDS = 5.0  # between two looks whether the local workers are there
# Options of dask_jobqueue.SLURMCluster that a --slurm file may set, and ours: `jobs`, how many jobs to submit.
SLURM_OPTIONS = frozenset(
    "jobs queue account walltime job_cpu job_mem cores memory interface protocol death_timeout local_directory "
    "log_directory worker_extra_args job_extra_directives job_directives_skip job_script_prologue shebang python "
    "job_name shared_temp_directory scheduler_options".split()
)


def gpu_count() -> int:
    """NVIDIA GPUs that this process may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def default_workers() -> int:
    """One worker a GPU; without GPUs one a core, at most four, because each needs its own memory."""
    return gpu_count() or min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 4)


@contextmanager
def client_for(workers: int | None, scheduler: str | None, slurm: str | Path | None) -> Iterator["Client"]:
    """A connected Dask client; whatever was started for it (workers, SLURM jobs) is stopped at the end.

    UserError: a bad number of workers, no scheduler at the address, no worker with a slot, a bad SLURM file.
    """
    if sum(option is not None for option in (workers, scheduler, slurm)) > 1:
        raise UserError("choose one of --workers, --scheduler and --slurm")
    for name in ("client", "core", "worker", "scheduler", "nanny"):
        logging.getLogger(f"distributed.{name}").setLevel(logging.CRITICAL)  # the status lines tell what matters
    if scheduler is not None:
        with _remote(scheduler) as client:
            yield client
    else:
        cluster = _slurm(Path(slurm)) if slurm is not None else _local(workers)
        from distributed import Client

        try:
            with (
                Client(cluster, set_as_default=False) as client,
                nullcontext() if slurm is not None else _kept(cluster),
            ):
                yield client
        finally:
            cluster.close()


@contextmanager
def _kept(cluster: Any) -> Iterator[None]:
    """Replace workers that Dask itself gives up, as when one dies while it starts: their jobs would wait for ever."""
    wanted, ended = len(cluster.workers), threading.Event()

    def check() -> None:
        for name, worker in list(cluster.workers.items()):
            if worker.status.name in ("closed", "failed"):
                del cluster.workers[name]
        cluster.scale(wanted)

    def keep() -> None:
        while not ended.wait(CHECK_SECONDS):
            cluster.loop.add_callback(check)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _local(workers: int | None) -> Any:
    if workers is not None and not 1 <= workers <= 1024:
        raise UserError(f"--workers {workers}: give a number from 1")
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers or default_workers(),
        threads_per_worker=1,
        processes=True,
        resources=SLOT,
        memory_limit=0,  # a kernel's memory is not the worker's: Dask must not judge it
        dashboard_address=NO_DASHBOARD,
        local_directory=str(cache_dir("dask")),
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def _remote(address: str) -> Iterator["Client"]:
    from distributed import Client

    if not re.fullmatch(r"(tcp|tls|ws|wss|ucx)://\S+:\d+", address):
        raise UserError(f"--scheduler {address}: an address looks like tcp://host:8786")
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"--scheduler {address}: nothing answers there ({type(error).__name__})") from None
    with client:
        offered = client.scheduler_info(n_workers=-1)["workers"].values()
        if offered and not any(worker.get("resources", {}).get("slot") for worker in offered):
            raise UserError(f"--scheduler {address}: no worker has a slot; start it with --resources slot=1")
        if not offered:
            print(f"waiting for workers: dask worker {address} --nthreads 1 --resources slot=1", flush=True)
        yield client


def slurm_options(path: Path) -> dict[str, Any]:
    """Options of a --slurm file, checked; `jobs` defaults to 1, a job to one process with one slot."""
    options = read_yaml(path)
    if unknown := set(options) - SLURM_OPTIONS:
        known = ", ".join(sorted(SLURM_OPTIONS))
        raise UserError(f"{path}: unknown option {sorted(unknown)[0]!r}: choose among {known}")
    jobs = options.get("jobs", 1)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise UserError(f"{path}: jobs is {jobs!r}, not a number from 1")
    for name in ("worker_extra_args", "job_extra_directives", "job_directives_skip", "job_script_prologue"):
        if not isinstance(options.get(name, []), list):
            raise UserError(f"{path}: {name} must be a list")
    return {"jobs": jobs, "cores": 1, "memory": "16GB"} | options


def _slurm(path: Path) -> Any:
    options = slurm_options(path)
    for command in ("sbatch", "scancel"):
        if not shutil.which(command):
            raise UserError(f"--slurm {path}: there is no {command} on this machine")
    jobs = options.pop("jobs")
    options["worker_extra_args"] = [*options.get("worker_extra_args", []), "--resources", "slot=1"]
    options.setdefault("scheduler_options", {"dashboard_address": NO_DASHBOARD})
    refused: list[str] = []
    cluster = _watched_slurm(refused)(processes=1, **options)
    # scale, not adapt: adapt drops workers between stages (dask-jobqueue#701)
    cluster.scale(jobs=jobs)
    while len(cluster.workers) < jobs:  # until sbatch has answered for each
        time.sleep(0.05)
    if len(refused) == jobs:
        cluster.close()
        raise UserError(f"--slurm {path}: sbatch refused the job: {refused[0]}")
    if refused:
        print(f"sbatch refused {len(refused)} of {jobs} jobs: {refused[0]}", flush=True)
    return cluster


def _watched_slurm(refused: list[str]) -> Any:
    """A SLURMCluster that notes in `refused` what sbatch says against a job; Dask alone would wait for it for ever."""
    from dask_jobqueue.slurm import SLURMCluster, SLURMJob
    from distributed.deploy.spec import ProcessInterface

    class Job(SLURMJob):
        async def start(self) -> None:
            try:
                await super().start()
            except (OSError, RuntimeError, ValueError) as error:
                lines = str(error).partition("stderr:")[2].split("\n") + str(error).splitlines()
                refused.append(next(filter(None, map(str.strip, lines)), type(error).__name__))
                await ProcessInterface.start(self)  # a job without an id: nothing to wait for, nothing to cancel

    class Cluster(SLURMCluster):
        job_cls = Job

    return Cluster
