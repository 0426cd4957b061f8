"""Run jobs on Dask: on worker processes of this machine, or on a scheduler that runs already.

Every job requests one `slot` and a worker offers one, so that a worker (and its GPU) does one job
at a time. A Dask scheduler runs any code that reaches it. So the cluster that is started here uses
TLS with credentials that exist only in the memory of its processes. The credentials for another
scheduler come from Dask's own configuration (`distributed.comm.tls`).
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil

from t3lab.grid import runner, status
from t3lab.grid.jobs import Job
from t3lab.grid.runner import Outcome, Place
from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir
from t3lib.core.progress import progress_bar

if TYPE_CHECKING:
    from distributed import Client

SLOT = {"slot": 1}
CONNECT_SECONDS = 15
LOST = "the scheduler or every worker went away; run the same command again to continue"
SETTINGS = {
    # The pages of a scheduler and its workers need no credentials, so there are none.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Dask would wait for ever if every worker had ended for good.
    "distributed.scheduler.no-workers-timeout": "2 minutes",
    # Dask's own profiling and monitoring would take a tenth of a core for two idle workers.
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
    from dask.system import CPU_COUNT

    if wanted is not None and wanted < 1:
        raise UserError(f"--workers {wanted}: give a number from 1")
    physical = min(CPU_COUNT, psutil.cpu_count(logical=False) or CPU_COUNT)
    memory = psutil.virtual_memory().available // WORKER_MEMORY
    default = gpu_count() or min(physical // threads, memory)
    return max(1, min(wanted or default, max(gpu_count(), CPU_COUNT // threads)))


@contextmanager
def client_for(workers: int, scheduler: str | None) -> Iterator["Client"]:
    """Yield a connected Dask client; at the end, stop the workers that were started for it.

    workers: number of workers on this machine. scheduler: address of a running scheduler, which is
    used instead. UserError if no scheduler answers at the address.
    """
    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    if scheduler is not None:
        with _connected(scheduler) as client:
            yield client
        return
    with dask.config.set(SETTINGS):
        with no_interrupt():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                resources=SLOT,
                security=Security.temporary(),
                memory_limit=0,  # Dask must not limit a worker by the memory of its kernel
                dashboard_address="127.0.0.1:0",  # the default is port 8787 on every interface
                local_directory=str(cache_dir("dask")),
                silence_logs=logging.CRITICAL,
            )
        with cluster, Client(cluster, set_as_default=False) as client:
            yield client


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back within the block, and for ever in the processes that are started in it.

    A worker that Ctrl-C meets while it imports its modules would print a page of traceback.
    """
    resource_tracker.ensure_running()  # its start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connected(address: str) -> "Client":
    """Return a client of a running scheduler; UserError if none answers at the address."""
    from distributed import Client

    for part in ("client", "batched"):  # our own line is enough
        logging.getLogger(f"distributed.{part}").setLevel(logging.CRITICAL)
    client = Client.__new__(Client)  # in two steps, so that a client that fails can be closed here
    try:
        Client.__init__(client, address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without credentials
        client.close()  # otherwise it prints a traceback when this process ends
        raise UserError(f"--scheduler {address}: {error}") from None
    offered = client.scheduler_info(n_workers=-1)["workers"].values()
    if not any(worker["resources"].get("slot") for worker in offered):
        start = f"dask worker {address} --nthreads 1 --resources slot=1"
        print(f"waiting for a worker that offers a slot: {start}", flush=True)
    return client


def run(
    todo: Sequence[Job],
    known: Mapping[str, Outcome],
    place: Place,
    client: "Client",
    at_once: int,
    work: Callable[[Job, Sequence[Outcome], Place], Outcome] = runner.execute,
) -> dict[str, Outcome]:
    """Run jobs on the workers of a client, each when the jobs before it have ended.

    Print a line for each job that ends, and return their outcomes by name.

    todo: jobs in an order in which they can run. known: outcomes of finished jobs.
    at_once: how many jobs Dask may hold. It gives each to a worker immediately, so that with more
    jobs than workers one worker may have two while another has none.
    work: runs one job; tests replace it.
    """
    from distributed import as_completed
    from distributed.client import CancelledError, ClosedClientError
    from distributed.scheduler import NoValidWorkerError, NoWorkerError

    no_worker = (NoWorkerError, NoValidWorkerError)
    run_id = uuid4().hex[:8]  # so that two runs on one scheduler have different keys
    outcomes, waiting, names = dict(known), list(todo), dict[str, str]()
    running = as_completed(loop=client.loop)

    def start() -> None:
        # First those that waited for most others: long audits would else be left for the end.
        ready = [job for job in waiting if outcomes.keys() >= {*job.after}]
        ready.sort(key=lambda job: -len(job.after))
        for job in ready[: at_once - running.count()]:
            waiting.remove(job)
            key = f"{job.name}-{run_id}"
            names[key] = job.name
            before = [outcomes[name] for name in job.after]
            # Dask runs a job again when its worker is lost, up to three times. Errors of the job
            # itself come back as an Outcome.
            running.add(
                client.submit(work, job, before, place, key=key, resources=SLOT, pure=False)
            )

    with suppress(OSError, CancelledError, ClosedClientError, *no_worker):
        start()
        for future in progress_bar(running, total=len(todo), unit="job", leave=False):
            error = future.exception() if future.status == "error" else None
            if error and not isinstance(error, no_worker):
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                outcome = Outcome(names[future.key], "failed", error=text)
            else:
                outcome = future.result()  # raises an error that ends the loop if all is gone
            outcomes[outcome.name] = outcome
            status.say(outcome, len(outcomes), len(known) + len(todo))
            start()

    # jobs that no worker is left for
    if lost := [job.name for job in todo if job.name not in outcomes]:
        print(f"{LOST} ({len(lost)} jobs unfinished)", flush=True)
    outcomes |= {name: Outcome(name, "failed", error=LOST) for name in lost}

    return {job.name: outcomes[job.name] for job in todo}
