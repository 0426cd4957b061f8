"""Kernels forked from a warm process: like new ones, alone in their threads, and gone when they must be."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import noop
import pytest
from conftest import ROOT
from fleet import is_kernel

from t3lib.grid import runner, warm
from t3lib.grid.jobs import Job
from t3lib.grid.runner import Place
from t3lib.world import bases

pytestmark = pytest.mark.skipif(not runner._forks(Place("", "", "", "", warm=True)), reason="for Linux without GPUs")

FACTS = """import json, os, signal, sys, threading
import matplotlib.pyplot as plt
plt.plot([1, 2]);"""
REPORT = """facts = {
    "argv": sys.argv[:2], "backend": plt.get_backend(), "cwd": os.getcwd(), "path": sys.path, "main": __name__,
    "threads": sorted(thread.name for thread in threading.enumerate()), "file": "__file__" in globals(),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)],
    "session": os.getsid(0) == os.getpid(), "omp": os.environ["OMP_NUM_THREADS"],
}
_ = open(out, "w").write(json.dumps([facts, os.getpid(), os.getppid(), sorted(sys.modules)]))"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "T3_THREADS", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "0" if name == "PYTHONHASHSEED" else "1")
    warm.forget()
    yield Place(str(tmp_path / "out"), str(tmp_path / "notebooks"), str(tmp_path), str(ROOT), warm=True)
    warm.forget()


def ran(place: Place, name: str, *cells: str) -> tuple[list, dict]:
    """What a notebook of these cells wrote to its `out`, and the executed notebook."""
    noop.write_notebook(Path(place.notebooks) / f"{name}.ipynb", 'out: str = ""', *cells)
    written = Path(place.cache) / f"{name}.json"
    runner._run_notebook(Job(name, "notebook", name, {"out": str(written)}, (), "key"), place)
    executed = json.loads((Path(place.out) / "notebooks" / f"{name}.ipynb").read_text())
    return json.loads(written.read_text()), executed


def test_a_forked_kernel_is_like_a_new_one(place):
    cold, drawn = ran(Place(**{**vars(place), "warm": False}), "cold", FACTS, REPORT)
    forked, alike = ran(place, "forked", FACTS, REPORT)
    assert forked[2] == warm.nursery().process.pid != cold[2] == os.getpid()  # who started it
    assert forked[0] == cold[0] and cold[0]["session"] and "inline" in cold[0]["backend"]
    outputs = [[sorted(o.get("data", {})) for c in n["cells"] for o in c.get("outputs", [])] for n in (drawn, alike)]
    assert outputs[0] == outputs[1] == [["image/png", "text/plain"]]
    assert not is_kernel(forked[1])  # shut down with its notebook


def test_every_kernel_is_a_process_of_its_own(place):
    write = (
        "import json, os, sys\nseen = hasattr(json, 'mark'); json.mark = 1\n_ = open(out, 'w').write(str(int(seen)))"
    )
    assert [ran(place, f"n{number}", write)[0] for number in range(2)] == [0, 0]


def test_the_nursery_holds_no_thread_and_no_pyplot():
    """A thread would be missing in its children (pyarrow's allocator restarts its own); pyplot imported early would
    keep figures out of the notebooks."""
    code = "import sys, os; from importlib import import_module; import t3lib.grid.warm as w\n"
    code += "import_module('ipykernel.kernelapp'); [import_module(name) for name in w.STUDY]\n"
    code += "names = {open(f'/proc/self/task/{task}/comm').read().strip() for task in os.listdir('/proc/self/task')}\n"
    code += "print(sorted(names), 'matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **one}, capture_output=True, text=True)
    threads, pyplot, torch = done.stdout.rsplit(maxsplit=2)
    assert len(set(json.loads(threads.replace("'", '"'))) - {"jemalloc_bg_thd"}) == 1, done.stdout + done.stderr
    assert (pyplot, torch) == ("False", "True")


def test_a_notebook_with_a_study_gets_its_imports_ready(place):
    opens = "from t3lib.study import study"
    noop.write_notebook(Path(place.notebooks) / "s.ipynb", 'out: str = ""', opens)
    noop.write_notebook(Path(place.notebooks) / "n.ipynb", 'out: str = ""', "from t3lib import files")
    [chosen, light] = (
        runner._kernel(Path(place.notebooks) / f"{name}.ipynb", place)["kernel_manager_class"] for name in "sn"
    )
    assert chosen.preload == warm.STUDY and light.preload == ()


def test_a_dead_nursery_is_replaced(place):
    ran(place, "first", FACTS, REPORT)
    before = warm.nursery().process
    before.kill()
    before.wait()
    (_, _, parent, _), _ = ran(place, "second", FACTS, REPORT)
    assert parent == warm.nursery().process.pid != before.pid


@pytest.mark.parametrize("module", ["this", "no_such_module"])
def test_an_import_may_print_or_fail(place, module):
    """`import this` prints the Zen of Python, which is no answer; what cannot be imported is the child's to report."""
    assert warm.forked(warm.LAUNCHER, lambda parent: ["--version"], preload=[module]).pid > 1
    assert warm.nursery().process.poll() is None


def test_a_base_is_trained_in_a_forked_process_too(place, tmp_path, monkeypatch):
    stage = {"authors": 20, "questions": 4, "hidden": 32, "heads": 2, "epochs": 1, "vocab": 600}
    folders = []
    for name in ("forked", "here"):
        monkeypatch.setenv("T3_CACHE", str(tmp_path / name))
        if name == "forked":
            runner._train(Job("b", "base", "", {"stage": stage, "name": "full", "seed": 0}, (), "key"), place)
            paths = [Path(line) for line in (place.marks / "b.files").read_text().splitlines()]
            folders.append(next(path for path in paths if path.name == "model.safetensors").parent)
        else:
            folders.append(Path(bases.ensure_base(bases.Stage(**stage), "full")))
    assert folders[0].name == folders[1].name and folders[0] != folders[1]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1
    with pytest.raises(RuntimeError, match="^UserError: stage: authors must be at least 1, not 0$"):
        wrong = {"stage": stage | {"authors": 0}, "name": "full", "seed": 0}
        runner._train(Job("b", "base", "", wrong, (), "key"), place)


def test_a_change_of_the_library_needs_a_new_nursery(place, monkeypatch, tmp_path):
    """The old one would run old code whose results are kept under the new code's key."""
    monkeypatch.setattr(warm, "LIBRARY", tmp_path / "library")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "module.py").write_text("x = 1")
    before = warm.nursery().process
    assert warm.nursery().process is before
    (tmp_path / "library" / "module.py").write_text("x = 22")
    assert warm.nursery().process is not before
    assert before.wait(30) == 0  # and the old one ends


def test_a_killed_training_runs_once_more(place, monkeypatch):
    killed, started = [], []

    class Training:
        def wait(self):
            started.append(1)
            if not killed:
                killed.append(warm.nursery().process)
                killed[0].kill()
                killed[0].wait()
                warm.forget()

    monkeypatch.setattr(warm, "forked", lambda *a, **k: Training())
    with pytest.raises(RuntimeError, match="^the training process was killed$"):
        runner._train(Job("b", "base", "", {}, (), "key"), place)
    assert len(killed) == 1 and len(started) == 2


def test_kernels_end_with_the_nursery_and_the_nursery_with_its_worker():
    """The worker is a process that starts one kernel-less child and is killed: nothing of it stays."""
    code = "from t3lib.grid import warm; import os, time\n"
    code += "child = warm.forked(warm.LAUNCHER, lambda parent: ['--version'])\n"
    code += "print(warm.nursery().process.pid, flush=True); time.sleep(100)"
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    nursery = int(worker.stdout.readline())
    assert is_kernel(nursery)  # by its command line: it is alive
    worker.kill()
    worker.wait()
    deadline = time.monotonic() + 30
    while is_kernel(nursery) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_kernel(nursery)


def test_an_interpreter_that_is_not_ours_is_left_to_jupyter():
    arguments = ["-m", "ipykernel_launcher", "-f", "connection.json"]
    assert warm.forkable([sys.executable, *arguments])
    assert not warm.forkable(["/bin/sh", *arguments])
    assert not warm.forkable([sys.executable, "-m", "another_kernel"])


def test_a_running_worker_of_somebody_elses_scheduler_forks_nothing(place):
    """Its code may change between two runs, and an old nursery would not know."""
    path = Path(place.notebooks) / "n.ipynb"
    noop.write_notebook(path, 'out: str = ""')
    assert runner._kernel(path, place) and not runner._kernel(path, Place(**{**vars(place), "warm": False}))
