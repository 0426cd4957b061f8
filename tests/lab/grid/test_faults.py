"""Kill -9, Ctrl-C, lost schedulers, strangers: real workers, real kernels, no-op notebooks.

After each fault the results must be the same bytes as those of a run that nothing disturbed. `make
attacks` runs the tests with the mark `attacks`, too, and kills runs of the real notebooks.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import dask.system
import psutil
import pytest
import yaml
from fleet import PATIENCE, RUN, Fleet, tree, wait

from t3lab.grid import cluster, reproduce, status
from t3lab.grid.jobs import Job
from t3lab.grid.runner import Outcome, Place
from t3lib.core.errors import UserError

NAPS = "notebooks: {02_tofu_unlearning: {nap: %s}}"
METHODS = "Original, NPO, SimNPO"


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Results of an uninterrupted run on one worker, whose kernels really train (float32)."""
    fleet = Fleet(tmp_path_factory.mktemp("reference"), methods=METHODS)
    assert fleet.run("--workers", "1") == 0, fleet.log
    assert "without encryption" not in fleet.log and "Traceback" not in fleet.log
    assert len(fleet.results()) == 7 and not fleet.orphans()
    lines = (fleet.out / "tables" / "tofu.csv").read_text().splitlines()
    assert all(line.endswith(" OMP 1 BLAS 1") for line in lines), "fixed by the runner"
    bits = {re.search(r",(\w{64}) ", line)[1] for line in lines}
    assert len(bits) == 2, "one of each seed: the numbers are not constants"
    return fleet.results()


@pytest.mark.attacks
def test_kills_lose_nothing(tmp_path, reference, monkeypatch):
    """A worker and a kernel die without harm to the run. What a killed runner had started ends by
    itself, and the same command goes on. Methods and seeds in another order give the same bits.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what the caller's shell says must not matter
    fleet = Fleet(tmp_path, methods="SimNPO, NPO, Original", seeds="2, 1", more=NAPS % 1.0)
    chance, kernel = random.Random(7), "ipykernel"
    for victims in ((RUN,), (kernel, "multiprocessing.spawn")):
        run = fleet.start()
        for victim in victims:
            wait(lambda: tree(run, kernel))  # noqa: B023
            time.sleep(chance.uniform(0, 2))  # of the two seconds and more of a job
            wait(lambda: tree(run, victim))[0].kill()  # noqa: B023
        assert (run.wait(PATIENCE) == 0) == (RUN not in victims), fleet.log
    assert fleet.results() == reference and not fleet.orphans()
    assert not list(fleet.out.rglob("*.partial.ipynb")) and "Traceback" not in fleet.log


@pytest.mark.attacks
def test_ctrl_c_is_one_line_and_loses_nothing(tmp_path, reference):
    """In a terminal it goes to every process of the run, here while workers import their modules,
    and then while kernels run.
    """
    fleet = Fleet(tmp_path, methods=METHODS, more=NAPS % 1.0)
    for ready in (lambda run: len(tree(run)) >= 3, lambda run: fleet.kernels()):
        run = fleet.start()
        wait(partial(ready, run))
        time.sleep(0.3)
        for process in reversed(tree(run)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE) == 130
    said = [line for line in fleet.log.splitlines() if not re.match(r"profile|\[\d/4\] done", line)]
    assert said == ["t3 reproduce: interrupted; run the same command again to continue"] * 2
    assert fleet.run() == 0 and fleet.results() == reference and not fleet.orphans()


# ---- a scheduler of one's own -------------------------------------------------------------------

SCHEDULER = """from distributed import LocalCluster
options = {"resources": {"slot": 1}, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@pytest.mark.attacks
def test_a_scheduler_that_goes_away_is_one_line_and_loses_nothing(tmp_path, reference, monkeypatch):
    """It takes the credentials of Dask's own configuration, as a client does."""
    from distributed.security import Security

    security, pair = Security.temporary(), str(tmp_path / "pair.pem")
    Path(pair).write_text(security.tls_client_key + security.tls_client_cert)
    roles = dict.fromkeys(("client", "scheduler", "worker"), {"cert": pair})
    comm = {"require-encryption": True, "tls": {"ca-file": pair} | roles}
    (tmp_path / "dask.yaml").write_text(yaml.safe_dump({"distributed": {"comm": comm}}))
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path / "dask.yaml"))
    (tmp_path / "scheduler.py").write_text(SCHEDULER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    scheduler = subprocess.Popen([sys.executable, tmp_path / "scheduler.py"], **pipes)
    address = scheduler.stdout.readline().strip()
    fleet = Fleet(tmp_path / "run", methods=METHODS, more=NAPS % 0.5)
    run = fleet.start("--scheduler", address)
    wait(lambda: list(fleet.cache.rglob("done/*/02_tofu_unlearning--*.json")))
    scheduler.kill()
    assert run.wait(PATIENCE) == 1 and address.startswith("tls://")
    assert fleet.log.count(f"{cluster.LOST} (") == 1 and "Traceback" not in fleet.log
    assert fleet.run() == 0, fleet.log
    assert "cached" in fleet.log  # what had finished did not run again
    assert not fleet.orphans() and fleet.results() == reference
    scheduler.communicate()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("here", "missing port number"),
        ("", "missing port number"),
        ("http://127.0.0.1:1", "unknown address scheme"),
        ("tcp://127.0.0.1:1", "Timed out trying to connect"),
        ("tls://127.0.0.1:1", "check your TLS configuration"),
    ],
)
def test_an_address_that_is_none_is_one_line(address, said, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(UserError, match=f"^--scheduler {address}: .*{said}") as caught:
        with cluster.client_for(1, address):
            pass
    assert "\n" not in str(caught.value)


def test_workers_without_a_slot_are_named(capsys):
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as local:
        with cluster.client_for(1, local.scheduler_address):
            said = "waiting for a worker that offers a slot: dask worker inproc://"
            assert capsys.readouterr().out.startswith(said)


def test_workers_never_exceed_the_cores(monkeypatch):
    monkeypatch.setattr(cluster, "gpu_count", lambda: 0)
    monkeypatch.setattr(dask.system, "CPU_COUNT", 16)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    for memory, threads, wanted, workers in [
        (64, 1, None, 8),  # physical cores
        (64, 2, None, 4),
        (6, 1, None, 3),  # memory for three
        (1, 1, None, 1),
        (64, 1, 12, 12),  # hyperthreads, for those who want them
        (64, 4, 1000, 4),
        (64, 32, 2, 1),
    ]:
        available = SimpleNamespace(available=memory * 2**30)
        monkeypatch.setattr(psutil, "virtual_memory", lambda available=available: available)
        assert cluster.worker_count(wanted, threads) == workers
    monkeypatch.setattr(cluster, "gpu_count", lambda: 8)
    assert cluster.worker_count(None, 1) == 8
    with pytest.raises(UserError, match="--workers 0: give a number from 1"):
        cluster.worker_count(0, 1)
    with pytest.raises(UserError, match="choose one"):
        reproduce.reproduce("smoke", workers=1, scheduler="tcp://a:1")


# ---- strangers ----------------------------------------------------------------------------------


async def answer(port, seconds=4):
    """What a stranger without credentials gets from a port of this machine, "" for nothing. A
    scheduler, a worker or a nanny that answers a client can be had to run any code.
    """
    from distributed import Client

    options = {"asynchronous": True, "set_as_default": False, "timeout": seconds}
    client = Client(f"tcp://127.0.0.1:{port}", **options)
    try:
        await asyncio.wait_for(client, seconds)
        return "a scheduler"
    except TypeError:  # answered, but not as a scheduler would
        return "a worker or nanny"
    except OSError:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/health"
            return (await asyncio.to_thread(urllib.request.urlopen, url, timeout=5)).read()
    finally:
        await client.close(0)
    return ""


def test_no_port_of_a_run_obeys_a_stranger(tmp_path):
    fleet = Fleet(tmp_path, methods="Original, NPO", more=NAPS % PATIENCE)
    run = fleet.start()
    wait(lambda: len(fleet.kernels()) == 2)
    connections = [each for process in tree(run) for each in process.net_connections("tcp")]
    ports = [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]

    async def answers():
        return dict(zip(ports, await asyncio.gather(*map(answer, ports)), strict=True))

    async def unguarded():
        from distributed import Scheduler

        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            return await answer(scheduler.port, 60)

    found = asyncio.run(answers())
    assert run.poll() is None and len(ports) >= 8
    for process in reversed(tree(run)):
        process.kill()
    run.wait()
    assert not any(found.values()), found
    assert asyncio.run(unguarded()) == "a scheduler", "a stranger here would be answered"


# ---- what Dask does with jobs -------------------------------------------------------------------

PLACE = Place("out", "nb", "cache", Path("cache"), ".")


def jobs_for(*names):
    return [Job(name, "02", {}, (), "") for name in names]


def test_a_job_that_kills_every_worker_is_given_up_and_the_others_finish():
    def work(job, before, place):  # sent to the workers by value
        if job.name == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)

        return Outcome(job.name, "done")

    with cluster.client_for(2, None) as client:
        outcomes = cluster.run(jobs_for("a", "deadly", "b"), {}, PLACE, client, 2, work)
    assert (outcomes["a"].state, outcomes["b"].state) == ("done", "done")
    assert outcomes["deadly"].state == "failed" and "KilledWorker" in outcomes["deadly"].error


def test_no_worker_has_a_second_job_while_another_has_none(monkeypatch):
    """Dask hands every job out at once, and a worker that is done early has none of the others'."""
    held = []

    def work(job, before, place):
        time.sleep(0.3)  # the others are still held when the first ends
        return Outcome(job.name, "done")

    def say(*_):
        held.append(sum(map(len, client.processing().values())))

    monkeypatch.setattr(status, "say", say)
    with cluster.client_for(2, None) as client:
        cluster.run(jobs_for(*"abcdef"), {}, PLACE, client, 2, work)
    assert len(held) == 6 and max(held) <= 1


def test_what_waited_for_most_others_starts_first(monkeypatch):
    """A long audit that is first in the list when all is ready must not be left for the end."""
    ended = []

    def work(job, before, place):
        return Outcome(job.name, "done")

    monkeypatch.setattr(status, "say", lambda outcome, *_: ended.append(outcome.name))
    todo = [*jobs_for("a", "b"), Job("audit", "06", {}, ("a",), "")]
    with cluster.client_for(1, None) as client:
        cluster.run(todo, {}, PLACE, client, 1, work)
    assert ended == ["a", "audit", "b"]


@pytest.mark.attacks
def test_a_run_ends_when_every_worker_has_ended_for_good(monkeypatch, capsys):
    """Dask gives up a worker that dies while it starts, and would wait for another for ever."""
    [patience] = [name for name in cluster.SETTINGS if name.endswith("no-workers-timeout")]
    monkeypatch.setitem(cluster.SETTINGS, patience, "1s")
    with cluster.client_for(1, None) as client:
        [nanny] = client.cluster.workers.values()
        nanny.process.worker_kwargs["nonsense"] = 1  # its next start fails
        os.kill(nanny.pid, signal.SIGKILL)
        outcomes = cluster.run(jobs_for("a", "b"), {}, PLACE, client, 1)
    assert [each.error for each in outcomes.values()] == [cluster.LOST] * 2
    assert capsys.readouterr().out == f"{cluster.LOST} (2 jobs unfinished)\n"
