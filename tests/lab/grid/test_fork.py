"""Forked kernels and trainings: like new processes, alone in their threads, and gone when they must
be.
"""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import noop
import psutil
import pytest
from conftest import ROOT
from fleet import is_kernel, wait

from t3lib.core.files import folder_key
from t3lib.lab.grid import fork, runner
from t3lib.lab.grid.jobs import Job
from t3lib.lab.grid.runner import KERNEL, STUDY, Place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")

FACTS = """import gc, json, os, signal, sys, threading
import matplotlib.pyplot as plt
plt.plot([1, 2]);"""
REPORT = """facts = {
    "argv": sys.argv[:2], "backend": plt.get_backend(), "cwd": os.getcwd(), "main": __name__,
    "threads": len(threading.enumerate()), "file": "__file__" in globals(), "omp": os.environ["OMP_NUM_THREADS"],
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)],
    "session": os.getsid(0) == os.getpid(),
}
_ = open(out, "w").write(json.dumps([facts, os.getpid(), os.getppid(), gc.get_freeze_count()]))"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "T3_THREADS",
        "PYTHONHASHSEED",
    ):
        monkeypatch.setenv(name, "0" if name == "PYTHONHASHSEED" else "1")
    monkeypatch.setattr(
        fork, "changed_since_import", list
    )  # whoever edits t3lib while its tests run
    multiprocessing.set_forkserver_preload(list(KERNEL))
    return Place(
        str(tmp_path / "out"),
        str(tmp_path / "notebooks"),
        str(tmp_path),
        tmp_path,
        str(ROOT),
        fork=KERNEL,
    )


def ran(place: Place, name: str, *cells: str) -> tuple[list, dict]:
    """What a notebook of these cells wrote to its `out`, and the executed notebook."""
    noop.write_notebook(Path(place.notebooks) / f"{name}.ipynb", 'out: str = ""', *cells)
    written = Path(place.cache) / f"{name}.json"
    copy = Path(place.out) / f"{name}.ipynb"
    source = Path(place.notebooks) / f"{name}.ipynb"
    runner.run_notebook(source, copy, {"out": str(written)}, bool(place.fork))
    return json.loads(written.read_text()), json.loads(copy.read_text())


def test_a_forked_kernel_is_like_a_new_one(place):
    cold, drawn = ran(replace(place, fork=()), "cold", FACTS, REPORT)
    forked, alike = ran(place, "forked", FACTS, REPORT)
    server = psutil.Process(forked[2])
    assert cold[2] == os.getpid() == server.ppid()
    assert forked[0] == cold[0] and cold[0]["session"] and "inline" in cold[0]["backend"]
    outputs = [
        [sorted(o.get("data", {})) for c in n["cells"] for o in c.get("outputs", [])]
        for n in (drawn, alike)
    ]
    assert outputs[0] == outputs[1] == [["image/png", "text/plain"]]
    assert forked[3] > 1000 and cold[3] < 1000, (
        "what the server imported is kept from the garbage collector"
    )
    assert not is_kernel(forked[1])  # shut down with its notebook


@pytest.mark.parametrize("modules", [(), (*KERNEL, *STUDY)])
def test_torch_adds_in_the_same_order_on_processors_with_wider_vectors(place, monkeypatch, modules):
    for name in ("ATEN_CPU_CAPABILITY", *runner.MEMORY, "T3_CACHE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(ROOT)
    runner._prepare(replace(place, fork=modules))  # private: what a worker does before each job
    width = (
        "import torch; _ = open(out, 'w').write('\"' + torch.backends.cpu.get_cpu_capability() +"
        " '\"')"
    )
    assert ran(replace(place, fork=modules), "width", width)[0] in ("AVX2", "DEFAULT", "NO AVX")


def test_an_executed_notebook_names_its_data_by_content_and_no_folder_of_this_machine(
    place, tmp_path
):
    folder = tmp_path / "secret" / "tofu"
    folder.mkdir(parents=True)
    (folder / "full.json").write_text("[]")
    source, copy = Path(place.notebooks) / "data.ipynb", Path(place.out) / "data.ipynb"
    noop.write_notebook(source, 'data: str = "builtin"', "import os\nlen(os.listdir(data))")
    runner.run_notebook(source, copy, {"data": os.path.relpath(folder)}, fork=False)
    text = copy.read_text()
    assert str(tmp_path) not in text and "secret" not in text, (
        "papermill notes where it read and wrote"
    )
    assert text.count(f"tofu@{folder_key(folder)}") == 2, "in the cell and in the metadata"
    assert json.loads(text)["cells"][-1]["outputs"][0]["data"]["text/plain"] == ["1"], (
        "and it ran on the folder"
    )


def test_every_kernel_is_a_process_of_its_own(place):
    write = (
        "import json, os, sys\nseen = hasattr(json, 'mark'); json.mark = 1\n_ = open(out,"
        " 'w').write(str(int(seen)))"
    )
    assert [ran(place, f"n{number}", write)[0] for number in range(2)] == [0, 0]


def test_the_fork_server_holds_no_thread_and_no_pyplot():
    """A thread would be missing in its forks (pyarrow's allocator restarts its own); pyplot
    imported early would keep figures out of the notebooks."""
    code = (
        "import os, sys; from importlib import import_module; [import_module(name) for name in"
        f" {KERNEL + STUDY}]\n"
    )
    code += (
        "names = {open(f'/proc/self/task/{task}/comm').read().strip() for task in"
        " os.listdir('/proc/self/task')}\n"
    )
    code += "print(sorted(names), 'matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **one}, capture_output=True, text=True
    )
    threads, pyplot, torch = done.stdout.rsplit(maxsplit=2)
    assert len(set(json.loads(threads.replace("'", '"'))) - {"jemalloc_bg_thd"}) == 1, (
        done.stdout + done.stderr
    )
    assert (pyplot, torch) == ("False", "True")


def test_a_dead_fork_server_is_replaced(place):
    before = ran(place, "first", FACTS, REPORT)[0][2]
    psutil.Process(before).kill()
    (_, _, parent, *_), _ = ran(place, "second", FACTS, REPORT)
    assert parent not in (before, os.getpid())


def test_a_fork_server_that_is_just_dying_is_asked_again(monkeypatch):
    """Under load a killed server still takes a request before it is gone: EOFError, and the job had
    failed.
    """
    answers = [EOFError, ConnectionResetError, None]

    def start(self):
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(fork.Forked, "start", start)
    monkeypatch.setattr(fork.time, "sleep", lambda seconds: None)
    assert isinstance(fork.fork(["python", "-m", "x"], {}), fork.Forked) and not answers
    answers += [EOFError] * fork.TRIES
    with pytest.raises(EOFError):
        fork.fork(["python", "-m", "x"], {})
    assert not answers, "ten times, and no more"


@pytest.mark.parametrize("changed", [False, True])
def test_a_change_of_the_library_is_not_forked(place, monkeypatch, changed):
    """The fork server holds the code of its start, and results are kept under the key of the code
    on disk.
    """
    monkeypatch.setattr(fork, "changed_since_import", lambda: ["metrics.py"] * changed)
    (_, _, parent, *_), _ = ran(place, "n", FACTS, REPORT)
    assert (parent == os.getpid()) == changed


def test_a_base_is_the_same_forked_or_not(place, tmp_path, monkeypatch):
    stage = {"authors": 20, "questions": 4, "hidden": 32, "heads": 2, "epochs": 1, "vocab": 600}
    job = Job("base", "base", "", {"stage": stage, "name": "full", "seed": 0}, (), "key")
    weights = []
    for where in (place, replace(place, fork=())):
        cache = tmp_path / ("forked" if where.fork else "new")
        monkeypatch.setenv("T3_CACHE", str(cache))
        runner.train_base(job, where)
        [path] = cache.glob("bases/*/model.safetensors")
        weights.append(path.read_bytes())
    assert weights[0] == weights[1]


def test_a_fork_ends_with_its_worker_and_with_its_fork_server():
    command = [
        sys.executable,
        "-m",
        "timeit",
        "-n",
        "1",
        "-r",
        "1",
        "__import__('time').sleep(1000)",
    ]
    code = "import os, time; from t3lib.lab.grid.fork import fork\n"
    code += f"print(fork({command}, dict(os.environ)).pid, flush=True); time.sleep(1000)"
    for victim in ("worker", "server"):
        worker = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        child = psutil.Process(int(worker.stdout.readline()))
        wait(lambda child=child: child.num_threads() == 2)  # it watches
        family = [child, child.parent()] if victim == "worker" else [child]
        (worker if victim == "worker" else child.parent()).kill()
        wait(
            lambda family=family: (
                not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            )
        )
        worker.kill()
        worker.wait()


def test_an_interpreter_that_is_not_ours_is_left_to_jupyter(monkeypatch):
    left = []

    async def launch(self, command, **options):
        left.append(command)

    monkeypatch.setattr(fork.LocalProvisioner, "launch_kernel", launch)
    for command in (
        ["/bin/sh", "-m", "ipykernel_launcher"],
        [sys.executable, "-m", "another_kernel"],
    ):
        asyncio.run(fork.ForkProvisioner().launch_kernel(command))
        assert left.pop() == command
