"""Kill -9, lost schedulers, strangers: real workers, real kernels, no-op notebooks.

After each fault the results must be the same bytes as those of a run that nothing disturbed. `make
attacks` kills runs of the real notebooks.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import noop
import psutil
import pytest
from fleet import Fleet, wait

from t3lib.core import files
from t3lib.core.errors import UserError
from t3lib.lab.grid import cluster, reproduce
from t3lib.lab.grid.jobs import Job
from t3lib.lab.grid.runner import Outcome, Place

NAPS = "notebooks: {02_tofu_unlearning: {nap: %s}}"
METHODS = "Original, NPO, SimNPO"


# ---- a scheduler of one's own -------------------------------------------------------------------


@contextmanager
def dask_on(folder):
    """A function that starts dask processes, and its `.scheduler()` -> address; all are gone at the
    end.
    """
    started = []

    def start(*words):
        with open(folder / "dask.log", "ab") as log:
            command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
            started.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
        return started[-1]

    def scheduler():
        file = folder / "scheduler.json"
        file.unlink(missing_ok=True)
        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        wait(file.is_file)
        return json.loads(file.read_text())["address"]

    start.scheduler, start.started = scheduler, started
    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(30)


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Results of an uninterrupted run on one worker, whose kernels really train (float32)."""
    fleet = Fleet(tmp_path_factory.mktemp("reference"), noop.TRAIN, methods=METHODS, seeds="1, 2")
    assert fleet.run("workers", 1) == 0, fleet.log
    assert "without encryption" not in fleet.log and "Traceback" not in fleet.log
    assert len(fleet.results()) == 7 and not fleet.orphans()
    lines = (fleet.out / "tables" / "tofu.csv").read_text().splitlines()
    assert all(line.endswith(" OMP 1 BLAS 1") for line in lines), "fixed by the runner"
    bits = {re.search(r",(\w{64}) ", line)[1] for line in lines}
    assert len(bits) == 2, "one of each seed: the numbers are not constants"
    assert files.read_json(fleet.out / "manifest.json")["threads"] == 1
    notebook = json.loads((fleet.out / "notebooks" / "05_paper_tables.ipynb").read_text())
    assert all(
        cell.get("execution_count") for cell in notebook["cells"] if cell["cell_type"] == "code"
    )
    return fleet.results()


@pytest.mark.parametrize("victim", ["runner", "worker", "kernel"])
def test_a_killed_process_costs_nothing(tmp_path, reference, victim, monkeypatch):
    """What a killed runner started ends by itself; the same command goes on. Two workers, methods
    and seeds in another order give the bits of one worker.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what the caller's shell says must not matter
    fleet = Fleet(
        tmp_path, noop.TRAIN, methods="SimNPO, NPO, Original", seeds="2, 1", more=NAPS % 1.0
    )
    started = fleet.start("workers", 2)
    fleet.wait_for_kernel(1)
    kernel = fleet.kernels()[0]
    pid = {"runner": started.pid, "worker": psutil.Process(kernel).ppid(), "kernel": kernel}[victim]
    assert victim == "runner" or pid != started.pid
    psutil.Process(pid).kill()
    assert (started.wait() == 0) == (victim != "runner"), fleet.log
    assert victim != "runner" or fleet.run("workers", 2) == 0, fleet.log
    assert len(fleet.kernels()) > 3, "the job in flight ran again"
    assert not fleet.orphans() and fleet.results() == reference
    assert not list(fleet.out.rglob("*.partial*"))


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory):
    """What starts dask processes, and (address, process) of every scheduler so far."""
    with dask_on(tmp_path_factory.mktemp("dask")) as start:
        yield start, []


@pytest.fixture
def remote(schedulers):
    """Address and process of a scheduler with two workers, which outlive the runners; a test may
    kill it.
    """
    start, running = schedulers
    if not running or running[-1][1].poll() is not None:
        running.append((start.scheduler(), start.started[-1]))
        for _ in range(2):
            start("worker", running[-1][0], "--nthreads", "1", "--resources", "slot=1")
    return running[-1]


def test_a_notebook_that_raises_is_named_with_its_cell_and_line_and_the_others_finish(
    tmp_path, reference
):
    more = "notebooks: {02_tofu_unlearning: {fail: [NPO/forget10]}}"
    fleet = Fleet(tmp_path, noop.TRAIN, methods="NPO, SimNPO", seeds="1, 2", more=more)
    assert fleet.run() == 1
    entries = files.read_json(fleet.out / "manifest.json")["jobs"]
    failed = entries["02_tofu_unlearning--NPO--forget10"]
    assert (failed["state"], failed["cell"]) == ("failed", "cell 5: broken = 1 / 0")
    assert failed["error"] == "ZeroDivisionError: division by zero"
    assert entries["05_paper_tables"]["state"] == "done"
    assert "cell 5: broken = 1 / 0: ZeroDivisionError" in fleet.log
    assert (fleet.out / "notebooks/02_tofu_unlearning--NPO--forget10.partial.ipynb").is_file()
    mine = {name for name in reference if name.startswith("runs/SimNPO")}
    assert mine and all(fleet.results()[name] == reference[name] for name in mine)


def test_a_scheduler_that_goes_away(tmp_path, reference, remote, monkeypatch, capsys):
    address, scheduler = remote
    fleet = Fleet(tmp_path, noop.TRAIN, methods=METHODS, seeds="1, 2", more=NAPS % 0.5)
    monkeypatch.setenv("T3_CACHE", str(fleet.cache))
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 3)
    done = fleet.cache / "done"
    first = "02_tofu_unlearning--*.json"
    killer = threading.Thread(
        target=lambda: (wait(lambda: list(done.rglob(first))), scheduler.kill())
    )
    killer.start()
    code = reproduce.reproduce(
        fleet.profile, out=fleet.out, notebooks=fleet.notebooks, scheduler=address
    )
    killer.join()
    printed = capsys.readouterr().out
    assert code == 1 and "the scheduler went away" in printed and "Traceback" not in printed
    with pytest.raises(UserError, match="nothing answers there"):
        reproduce.reproduce(
            fleet.profile, out=fleet.out, notebooks=fleet.notebooks, scheduler=address
        )
    assert fleet.run("workers", 1) == 0, fleet.log
    assert "cached" in fleet.log  # what had finished did not run again
    assert not fleet.orphans() and fleet.results() == reference


@pytest.mark.parametrize("address", ["here", "tcp://127.0.0.1", "http://127.0.0.1:1", ""])
def test_an_address_that_is_none(address):
    with (
        pytest.raises(UserError, match="an address looks like"),
        cluster.client_for(1, address, None),
    ):
        pass


def test_a_scheduler_whose_workers_have_no_slot():
    from distributed import LocalCluster

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=cluster.NO_DASHBOARD,
        ) as local,
        pytest.raises(UserError, match="no worker has a slot"),
        cluster.client_for(1, local.scheduler_address, None),
    ):
        pass


def test_workers_never_exceed_the_cores(monkeypatch):
    monkeypatch.setattr(cluster, "gpu_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    for memory, threads, wanted, workers in [
        (64, 1, None, 8),  # physical cores
        (64, 2, None, 4),
        (6, 1, None, 3),  # memory for three
        (1, 1, None, 1),
        (64, 1, 12, 12),  # hyperthreads, for those who want them
        (64, 1, 1000, 16),
        (64, 4, 1000, 4),
        (64, 32, 2, 1),
    ]:
        available = SimpleNamespace(available=memory * 2**30)
        monkeypatch.setattr(psutil, "virtual_memory", lambda available=available: available)
        assert cluster.worker_count(wanted, threads) == workers
    monkeypatch.setattr(cluster, "gpu_count", lambda: 8)
    assert cluster.worker_count(None, 1) == 8
    for bad in (0, -1):
        with pytest.raises(UserError, match="--workers"):
            cluster.worker_count(bad, 1)
    with pytest.raises(UserError, match="choose one"):
        reproduce.reproduce("smoke", workers=1, scheduler="tcp://a:1")


# ---- who may use a scheduler --------------------------------------------------------------------


STRANGER = """
import asyncio, os, sys
from distributed import Client
from distributed.security import Security

keys = (None, Security.temporary())
if os.getuid() == 0:  # becomes another user once all is imported, which only root may read
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

async def enter(scheme, security):
    options = {"security": security, "timeout": sys.argv[2], "asynchronous": True}
    options["set_as_default"] = False
    try:
        async with Client(scheme + sys.argv[1], **options) as client:
            return await client.submit(os.getpid)
    except Exception:
        return None

async def main():
    tries = [enter(scheme, security) for scheme in ("tls://", "tcp://") for security in keys]
    for attempt in asyncio.as_completed(tries):
        if obeyed := await attempt:
            break
    print(os.getuid(), obeyed)

asyncio.run(main())
"""


def stranger_at(address, patience):
    """(uid, process id of the worker that obeyed or "None") of a user who tries a scheduler in four
    ways, each for `patience`; where the tests run as root it is another user."""
    command = [sys.executable, "-c", STRANGER, address.partition("://")[2], patience]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    uid, obeyed = done.stdout.split()
    return int(uid), obeyed


def test_a_local_scheduler_obeys_nobody_else():
    """Another user of this machine reaches the port and gets no further; without TLS the same
    program is obeyed.
    """
    from distributed import LocalCluster

    with cluster.client_for(1, None, None) as client:
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        uid, obeyed = stranger_at(client.scheduler.address, "5s")
        assert obeyed == "None" and uid != 0
        addresses = [worker["nanny"] for worker in client.scheduler_info()["workers"].values()]
        assert all(
            name.startswith("tls://") for name in [*client.scheduler_info()["workers"], *addresses]
        )
    options = {
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": cluster.NO_DASHBOARD,
    }
    with LocalCluster(n_workers=1, protocol="tcp", **options) as local:
        assert stranger_at(local.scheduler_address, "100s") == (uid, str(os.getpid()))


def watcher(seen):
    """What a run tells, without printing: outcomes are gathered in `seen`."""
    return SimpleNamespace(chain={}, started=lambda name: None, ended=seen.append)


# ---- jobs that die ------------------------------------------------------------------------------


def test_a_job_that_kills_every_worker_is_given_up_and_the_others_finish():
    def work(job, before, place):  # sent to the workers by value
        if job.parameters["deadly"]:
            os.kill(os.getpid(), signal.SIGKILL)

        return Outcome(job.name, "done")

    jobs = [Job(f"job{n}", "notebook", "02", {"deadly": n == 1}, (), "") for n in range(3)]
    jobs.append(Job("child", "notebook", "03", {"deadly": False}, ("job1",), ""))
    jobs.append(
        Job(
            "tables",
            "notebook",
            "05",
            {"deadly": False},
            tuple(j.name for j in jobs),
            "",
            partial=True,
        )
    )
    with cluster.client_for(2, None, None) as client:
        outcomes = reproduce.run(
            jobs, {}, Place("out", "nb", "cache", Path("cache"), "."), client, watcher([]), 2, work
        )
    assert [outcomes[n].state for n in ("job0", "job2", "tables")] == ["done"] * 3, outcomes
    assert outcomes["job1"].state == "failed" and "KilledWorker" in outcomes["job1"].error
    assert (outcomes["child"].state, outcomes["child"].error) == ("skipped", "job1")


def test_no_worker_has_a_second_job_while_jobs_of_its_kind_wait():
    """Dask hands every job out at once, and a worker that is done early has none of the others'."""
    held = []

    def work(job, before, place):
        time.sleep(0.3)  # the others are still held when the first ends
        return Outcome(job.name, "done")

    def ended(outcome):
        held.append(sum(map(len, client.processing().values())))

    jobs = [Job(f"job{n}", "notebook", "02", {}, (), "") for n in range(6)]
    with cluster.client_for(2, None, None) as client:
        place, show = Place("out", "nb", "cache", Path("cache"), "."), watcher([])
        show.ended = ended
        outcomes = reproduce.run(jobs, {}, place, client, show, 2, work)
    assert [outcomes[job.name].state for job in jobs] == ["done"] * 6
    assert len(held) == 6 and max(held) <= 1


STARTING = """import signal
from t3lib.lab.grid import cluster
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's shell ignores it
try:
    print("starting", flush=True)
    with cluster.client_for(2, None, None):
        print("started", flush=True)
        input()
except KeyboardInterrupt:
    print("interrupted", flush=True)"""


@pytest.mark.parametrize("up", [False, True], ids=["while workers start", "when they have started"])
def test_ctrl_c_prints_no_traceback_of_a_worker(up):
    """Ctrl-C goes to every process of a terminal: here to a process with all of its children."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", STARTING], text=True, **pipes)
    assert child.stdout.readline() == "starting\n"
    if up:
        assert child.stdout.readline() == "started\n"
    mine = psutil.Process(child.pid)
    deadline = time.monotonic() + 30
    while len(mine.children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # in the middle of their imports
    for process in [*mine.children(recursive=True), mine]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert out.endswith("interrupted\n") and err == ""


def test_a_local_worker_that_dask_gives_up_is_replaced(monkeypatch):
    """Dask closes the nanny of a worker that dies while it starts, and would wait for workers for
    ever.
    """
    monkeypatch.setattr(cluster, "CHECK_SECONDS", 0.2)
    with cluster.client_for(1, None, None) as client:
        [nanny] = client.cluster.workers.values()
        nanny.process.worker_kwargs["nonsense"] = 1  # its next start fails
        os.kill(nanny.pid, signal.SIGKILL)
        assert client.submit(os.getpid, resources=cluster.SLOT).result(timeout=60) != os.getpid()
