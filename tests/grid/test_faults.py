"""Kill -9, lost schedulers and many jobs: real workers, real kernels, no-op notebooks.

Every fault is injected into a run whose results are known, and after resuming they must be the same bytes.
"""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import faults
import psutil
import pytest
from fleet import Fleet, wait, worker_of

from t3lib import files
from t3lib.errors import UserError
from t3lib.grid import cluster, reproduce, runner
from t3lib.grid.jobs import Job
from t3lib.grid.runner import Outcome, Place

NAPS = "notebooks: {02_tofu_unlearning: {nap: %s}}"
METHODS = "Original, NPO, SimNPO"
WRITE = os.environ.get("T3_WRITE_FAULTS") == "1"
KILLS = 10 if WRITE else 4
JOBS = 1000 if WRITE else 200


# a scheduler of one's own --------------------------------------------------------------------------------------------


@contextmanager
def dask_on(folder):
    """A function that starts dask processes, and its `.scheduler()` -> address; all are gone at the end."""
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
    """Results of an uninterrupted run on one worker."""
    fleet = Fleet(tmp_path_factory.mktemp("reference"), methods=METHODS)
    assert fleet.run("workers", 1) == 0, fleet.log
    assert "without encryption" not in fleet.log and "Traceback" not in fleet.log
    assert len(fleet.results()) == 4 and not fleet.orphans()
    notebook = json.loads((fleet.out / "notebooks" / "05_paper_tables.ipynb").read_text())
    assert all(cell.get("execution_count") for cell in notebook["cells"] if cell["cell_type"] == "code")
    return fleet.results()


def test_a_killed_worker_costs_nothing(tmp_path, reference):
    fleet = Fleet(tmp_path, methods=METHODS, more=NAPS % 1.0)
    started = fleet.start("workers", 2)
    fleet.wait_for_kernel(1)
    worker = worker_of(fleet.kernels()[0])
    assert worker.pid != started.pid  # a worker, not the runner
    worker.kill()
    assert started.wait() == 0, fleet.log
    assert len(fleet.kernels()) > 3  # the job in flight ran again
    assert not fleet.orphans()
    faults.injected("kill -9 of a worker", reference, fleet.results())


def test_a_killed_fork_server_takes_its_kernel_along_and_the_job_runs_again(tmp_path, reference):
    fleet = Fleet(tmp_path, methods=METHODS, more=NAPS % 1.0)
    started = fleet.start("workers", 1)
    fleet.wait_for_kernel(1)
    psutil.Process(fleet.kernels()[0]).parent().kill()
    assert started.wait() == 0, fleet.log
    assert len(fleet.kernels()) > 3
    assert not fleet.orphans()
    faults.injected("kill -9 of the process that forks kernels", reference, fleet.results())


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory):
    """What starts dask processes, and (address, process) of every scheduler so far."""
    with dask_on(tmp_path_factory.mktemp("dask")) as start:
        yield start, []


@pytest.fixture
def remote(schedulers):
    """Address and process of a scheduler with two workers, which outlive the runners; a test may kill it."""
    start, running = schedulers
    if not running or running[-1][1].poll() is not None:
        running.append((start.scheduler(), start.started[-1]))
        for _ in range(2):
            start("worker", running[-1][0], "--nthreads", "1", "--resources", "slot=1")
    return running[-1]


def test_the_runner_killed_again_and_again(tmp_path, reference, remote):
    """With workers of its own, which die with it, and with a scheduler's, which go on with the job they are at."""
    moments = random.Random(7)
    fleet, fleets, times = None, [], 0
    while times < KILLS:
        if fleet is None:
            fleet = Fleet(tmp_path / str(len(fleets)), methods=METHODS, more=NAPS % 0.2)
            fleets.append(fleet)
        where = ("scheduler", remote[0]) if times >= 2 else ("workers", 1 + times)
        before = len(fleet.kernels())
        started = fleet.start(*where)
        fleet.wait_for_kernel(before + 1, started)
        time.sleep(moments.uniform(0, 1.5))
        if started.alive():
            started.kill()
            times += 1
        else:
            fleet = None
    assert fleet.run("scheduler", remote[0]) == 0, fleet.log
    for fleet in fleets:
        assert fleet.results() == reference
        assert not list(fleet.out.rglob("*.partial*"))
        assert not fleet.orphans()
    faults.injected("kill -9 of the runner", reference, fleets[-1].results(), times)


def test_a_raising_notebook_in_a_kernel_is_named_with_its_cell_and_line(tmp_path, reference, remote):
    fleet = Fleet(tmp_path, methods="NPO, SimNPO", more="notebooks: {02_tofu_unlearning: {fail: [NPO/forget10]}}")
    assert fleet.run("scheduler", remote[0]) == 1
    entries = files.read_json(fleet.out / "manifest.json")["jobs"]
    failed = entries["02_tofu_unlearning--NPO--forget10"]
    assert (failed["state"], failed["cell"]) == ("failed", "cell 5: broken = 1 / 0")
    assert failed["error"] == "ZeroDivisionError: division by zero"
    assert entries["05_paper_tables"]["state"] == "done"
    assert (fleet.out / "notebooks" / "02_tofu_unlearning--NPO--forget10.partial.ipynb").is_file()
    mine = {name: content for name, content in reference.items() if name.startswith("runs/SimNPO")}
    faults.injected("notebook raises in its kernel", mine, {k: v for k, v in fleet.results().items() if k in mine})


def test_a_scheduler_that_goes_away(tmp_path, reference, remote, monkeypatch, capsys):
    address, scheduler = remote
    fleet = Fleet(tmp_path, methods=METHODS, more=NAPS % 0.5)
    monkeypatch.setenv("T3_CACHE", str(fleet.cache))
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 3)
    done = fleet.cache / "done"
    first = "02_tofu_unlearning--*.json"
    killer = threading.Thread(target=lambda: (wait(lambda: list(done.rglob(first))), scheduler.kill()))
    killer.start()
    code = reproduce.reproduce(fleet.profile, out=fleet.out, notebooks=fleet.notebooks, scheduler=address)
    killer.join()
    printed = capsys.readouterr().out
    assert code == 1 and "the scheduler went away" in printed and "Traceback" not in printed
    assert "scheduler went away" in (fleet.out / "report.md").read_text()
    with pytest.raises(UserError, match="nothing answers there"):
        reproduce.reproduce(fleet.profile, out=fleet.out, notebooks=fleet.notebooks, scheduler=address)
    assert fleet.run("workers", 1) == 0, fleet.log
    assert "cached" in fleet.log  # what had finished did not run again
    assert not fleet.orphans()
    faults.injected("scheduler goes away", reference, fleet.results())


@pytest.mark.parametrize("address", ["here", "tcp://127.0.0.1", "http://127.0.0.1:1", ""])
def test_an_address_that_is_none(address):
    with pytest.raises(UserError, match="an address looks like"), cluster.client_for(1, address, None):
        pass


def test_a_scheduler_whose_workers_have_no_slot():
    from distributed import LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=cluster.NO_DASHBOARD
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


# who may use a scheduler --------------------------------------------------------------------------------------------


STRANGER = """
import asyncio, os, sys
from distributed import Client
from distributed.security import Security

keys = (None, Security.temporary())
if os.getuid() == 0:  # becomes another user, once all is imported: this Python may lie where only root can read
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

async def enter(scheme, security):
    options = {"security": security, "timeout": sys.argv[2], "asynchronous": True, "set_as_default": False}
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
    """(uid, process id of the worker that obeyed or "None") of a user who tries a scheduler in four ways, each for
    `patience`; where the tests run as root it is another user."""
    command = [sys.executable, "-c", STRANGER, address.partition("://")[2], patience]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    uid, obeyed = done.stdout.split()
    return int(uid), obeyed


def test_a_local_scheduler_obeys_nobody_else():
    """Another user of this machine reaches the port and gets no further; without TLS the same program is obeyed."""
    from distributed import LocalCluster

    with cluster.client_for(1, None, None) as client:
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        uid, obeyed = stranger_at(client.scheduler.address, "5s")
        assert obeyed == "None" and uid != 0
        addresses = [worker["nanny"] for worker in client.scheduler_info()["workers"].values()]
        assert all(name.startswith("tls://") for name in [*client.scheduler_info()["workers"], *addresses])
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": cluster.NO_DASHBOARD}
    with LocalCluster(n_workers=1, protocol="tcp", **options) as local:
        assert stranger_at(local.scheduler_address, "100s") == (uid, str(os.getpid()))


def test_a_remote_scheduler_takes_the_credentials_of_dasks_configuration(tmp_path):
    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    def clients():
        return [each for each in gc.get_objects() if type(each) is Client]

    security, others = Security.temporary(), clients()
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": cluster.NO_DASHBOARD}
    with LocalCluster(n_workers=1, protocol="tls", security=security, resources=cluster.SLOT, **options) as local:
        with (
            pytest.raises(UserError, match="nothing answers there"),
            cluster.client_for(1, local.scheduler_address, None),
        ):
            pass
        # Closed by us: left to the garbage collector, it may be closed while the next one starts, and both wait.
        assert all(client.status == "closed" for client in clients() if client not in others)
        paths = {}
        for name, text in security.get_tls_config_for_role("client").items():
            if name != "ciphers":
                paths[name] = tmp_path / name
                paths[name].write_text(text)
        tls = {"ca-file": paths["ca_file"], "client.cert": paths["cert"], "client.key": paths["key"]}
        settings = {f"distributed.comm.tls.{name}": str(path) for name, path in tls.items()}
        with (
            dask.config.set(settings | {"distributed.comm.require-encryption": True}),
            cluster.client_for(1, local.scheduler_address, None) as client,
        ):
            assert client.submit(max, 1, 2, resources=cluster.SLOT).result(timeout=60) == 2


def watcher(seen):
    """What a run tells, without printing: outcomes are gathered in `seen`."""
    return SimpleNamespace(started=lambda name: None, ended=seen.append, chains=dict)


# jobs that die ------------------------------------------------------------------------------------------------------


def test_a_job_that_kills_every_worker_is_given_up_and_the_others_finish():
    def work(job, before, place):  # sent to the workers by value
        if job.parameters["deadly"]:
            os.kill(os.getpid(), signal.SIGKILL)
        from t3lib.grid.runner import Outcome

        return Outcome(job.name, "done")

    jobs = [Job(f"job{n}", "notebook", "02", {"deadly": n == 1}, (), "") for n in range(3)]
    jobs.append(Job("child", "notebook", "03", {"deadly": False}, ("job1",), ""))
    jobs.append(Job("tables", "notebook", "05", {"deadly": False}, tuple(j.name for j in jobs), "", partial=True))
    with cluster.client_for(2, None, None) as client:
        outcomes = reproduce.run(jobs, {}, Place("out", "nb", "cache", Path("cache"), "."), client, watcher([]), work)
    assert [outcomes[name].state for name in ("job0", "job2", "tables")] == ["done"] * 3
    assert outcomes["job1"].state == "failed" and "KilledWorker" in outcomes["job1"].error
    assert (outcomes["child"].state, outcomes["child"].error) == ("skipped", "job1")


def test_a_result_that_dies_with_its_worker_is_waited_for_again(monkeypatch, capsys):
    """Dask computes it once more. "lost" was taken for a scheduler that went away, and the run ended with a job failed:
    a worker that held a result was killed by the next job, on two busy cores, before the result was read."""
    states = ["lost", "pending", "finished"]

    class Future:
        key = None
        status = property(lambda self: states[0])
        result = staticmethod(lambda timeout: Outcome("job", "done"))

    class Completed(list):
        def __iter__(self):
            while self:
                yield self.pop(0)

        def add(self, future):
            states.pop(0)
            self.append(future)

    def submit(work, job, before, place, *, key, **_):
        future = Future()
        future.key = key
        return future

    monkeypatch.setattr("distributed.as_completed", lambda futures, loop: Completed(futures))
    client = SimpleNamespace(submit=submit, subscribe_topic=lambda *_: None, loop=None)
    seen = []
    job = Job("job", "notebook", "02", {}, (), "")
    place = Place("out", "nb", "cache", Path("cache"), ".")
    assert reproduce.run([job], {}, place, client, watcher(seen)) == {"job": Outcome("job", "done")}
    assert states == ["finished"] and seen == [Outcome("job", "done")] and not capsys.readouterr().out


def test_a_local_worker_that_dask_gives_up_is_replaced(monkeypatch):
    """Dask closes the nanny of a worker that dies while it starts, and would wait for workers for ever."""
    monkeypatch.setattr(cluster, "CHECK_SECONDS", 0.2)
    with cluster.client_for(1, None, None) as client:
        [nanny] = client.cluster.workers.values()
        nanny.process.worker_kwargs["nonsense"] = 1  # its next start fails
        os.kill(nanny.pid, signal.SIGKILL)
        assert client.submit(os.getpid, resources=cluster.SLOT).result(timeout=60) != os.getpid()


@pytest.mark.parametrize("fork", [(), runner.KERNEL] if sys.platform == "linux" else [()])
def test_a_base_that_cannot_be_trained_is_one_line(tmp_path, monkeypatch, fork):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    parameters = {"stage": {"data": "builtin", "authors": 0}, "name": "full", "seed": 0}
    job = Job("base--full--seed0", "base", "", parameters, (), "key")
    place = Place("out", "nb", str(tmp_path), tmp_path, str(files.project_root()), fork=fork)
    outcome = runner.execute(job, [], place)
    assert outcome.state == "failed"
    assert outcome.error == "UserError: stage: authors must be at least 1, not 0"


def test_the_job_that_more_waits_for_goes_first_and_dask_does_not_watch_every_moment(monkeypatch):
    def work(job, before, place):
        import time

        from dask import config

        time.sleep(job.parameters["seconds"])
        return Outcome(job.name, "done", error=str(config.get("distributed.worker.profile.enabled")))

    seconds = {"running": 2, "quick": 0, "slow": 0}  # the last two are there before the first ends
    graph = [Job(name, "notebook", "02", {"seconds": takes}, (), name) for name, takes in seconds.items()]
    seen: list[Outcome] = []
    show = SimpleNamespace(started=print, ended=seen.append, chains=lambda: {"running": 9.0, "quick": 1.0, "slow": 5.0})
    with cluster.client_for(1, None, None) as client:
        monkeypatch.setattr(client, "submit", Mock(wraps=client.submit))
        reproduce.run(graph, {}, Place("out", "nb", "cache", Path("cache"), "."), client, show, work)
        submitted = [call.args[1].name for call in client.submit.call_args_list]
    assert submitted == ["running", "slow", "quick"], "several workers get their jobs in this order"
    assert [outcome.name for outcome in seen] == submitted, "and one worker does them in it"
    assert {outcome.error for outcome in seen} == {"False"}


# scale --------------------------------------------------------------------------------------------------------------


def test_many_jobs_through_the_scheduler():
    """The grid of a big machine with jobs that do nothing: what the engine itself costs in time and memory."""

    def work(job, before, place):
        from t3lib.grid.runner import Outcome

        return Outcome(job.name, "done", "key", 0.0, {f"runs/{job.name}-{n}.json": "0" * 64 for n in range(5)})

    parameters = {"method": "T3", "hyper": {f"setting{n}": n for n in range(10)}, "seeds": list(range(5))}
    jobs = [Job(f"job{n}", "notebook", "02", parameters | {"n": n}, (), f"{n}") for n in range(JOBS * 9 // 10)]
    jobs += [Job(f"late{n}", "notebook", "03", parameters, (f"job{n}",), f"late{n}") for n in range(JOBS // 10 - 1)]
    jobs.append(Job("tables", "notebook", "05", {}, tuple(j.name for j in jobs), "tables", partial=True))
    seen: list[Outcome] = []
    process = psutil.Process()
    with cluster.client_for(2, None, None) as client:
        before, start = process.memory_info().rss, time.monotonic()
        outcomes = reproduce.run(jobs, {}, Place("out", "nb", "cache", Path("cache"), "."), client, watcher(seen), work)
        seconds, grown = time.monotonic() - start, process.memory_info().rss - before
    assert len(outcomes) == len(seen) == JOBS and {outcome.state for outcome in outcomes.values()} == {"done"}
    assert grown < JOBS / 5 * 2**20, f"the runner grew by {grown / 2**20:.0f} MB"
    print(f"{seconds / len(jobs) * 1000:.1f} ms a job, {grown / 2**20:.0f} MB")
    if WRITE:
        measured = {
            "jobs": JOBS,
            "milliseconds_per_job": round(seconds / JOBS * 1000, 2),
            "memory_growth_mb": round(grown / 2**20, 1),
        }
        files.write_json(files.project_root() / "results" / "scale.json", measured)
