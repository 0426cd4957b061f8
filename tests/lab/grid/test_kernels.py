"""What a job's kernel is: a process of its own, in the runner's folder, with its vectors fixed."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import noop
import patience
import pytest
from conftest import ROOT
from jupyter_client.kernelspec import KernelSpecManager

from t3lab.grid import runner
from t3lab.grid.jobs import Job
from t3lab.grid.runner import Place
from t3lib.core.files import folder_key, project_root, write_json

FACTS = """import json, os, sys, torch
facts = [os.getcwd(), os.environ["OMP_NUM_THREADS"], torch.backends.cpu.get_cpu_capability()]
facts += [sys.executable]
_ = open(out, "w").write(json.dumps(facts))"""


@pytest.fixture
def place(tmp_path):
    """What a worker does before each job, in a folder of its own."""
    found = Place(str(tmp_path / "out"), str(tmp_path / "nb"), str(tmp_path), tmp_path, str(ROOT))
    # private: a job would do it, and tests of papermill need no job
    runner.prepare(found)
    return found


def test_threads_vectors_folder_and_python_of_a_kernel(place, tmp_path, monkeypatch):
    """Torch adds in the same order on processors with wider vectors. The kernel is this Python's,
    though JUPYTER_PATH has another environment's, and the output may come a minute late.
    """
    other = {"argv": [str(tmp_path / "python"), "{connection_file}"], "language": "python"}
    write_json(tmp_path / "kernels" / "python3" / "kernel.json", other | {"display_name": "Other"})
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert KernelSpecManager().get_kernel_spec("python3").display_name == "Other"

    async def late(output, seconds):
        if seconds < 60:
            raise TimeoutError
        return await output

    nbclient_asyncio = SimpleNamespace(**vars(asyncio) | {"wait_for": late})
    monkeypatch.setattr("nbclient.client.asyncio", nbclient_asyncio)
    noop.write_notebook(tmp_path / "nb" / "n.ipynb", 'out: str = ""', FACTS)
    options = {"out": str(tmp_path / "facts.json")}
    runner.run_notebook(tmp_path / "nb" / "n.ipynb", tmp_path / "out" / "n.ipynb", options)
    folder, threads, vectors, python = json.loads((tmp_path / "facts.json").read_text())
    assert (Path(folder), threads) == (project_root(), "1")
    assert vectors in ("AVX2", "DEFAULT", "NO AVX") and python == sys.executable


def test_nbval_waits_as_long_for_output():
    """Its own limit of five seconds has no option; the name that is set is its own."""
    from nbval.plugin import IPyNbCell

    cell = SimpleNamespace(output_timeout=5)
    patience.pytest_collection_modifyitems([cell])
    assert cell.output_timeout == runner.OUTPUT_SECONDS
    assert "output_timeout" in IPyNbCell.__init__.__code__.co_names
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(
        r"PYTHONPATH=tests \$\(BIN\)/pytest .*notebooks .*-p patience --nbval", makefile
    )


def test_an_executed_notebook_names_its_data_by_content_and_no_folder_of_this_machine(
    place, tmp_path
):
    folder = tmp_path / "secret" / "tofu"
    folder.mkdir(parents=True)
    (folder / "full.json").write_text("[]")
    source, copy = tmp_path / "nb" / "data.ipynb", tmp_path / "out" / "data.ipynb"
    parameters = 'data: str = "builtin"\nworld: dict = {}'
    cell = "import os\nlen(os.listdir(data) + os.listdir(world['data']))"
    noop.write_notebook(source, parameters, cell)
    data = os.path.relpath(folder)
    base = tmp_path / "secret" / "base"
    base.mkdir()
    models = {"full": str(base)}
    given = {"data": data, "world": {"data": data, "models": models}, "out": str(tmp_path / "out")}
    runner.run_notebook(source, copy, given)
    text = copy.read_text()
    assert str(tmp_path) not in text and "secret" not in text, (
        "papermill notes where it read and wrote"
    )
    assert text.count(f"tofu@{folder_key(folder)}") == 4, "in the cell and in the metadata"
    assert json.loads(text)["cells"][-1]["outputs"][0]["data"]["text/plain"] == ["2"], (
        "and it ran on the folder"
    )


def test_a_notebook_that_raises_is_named_with_its_cell_and_line(place, tmp_path):
    noop.write_notebook(tmp_path / "nb" / "n.ipynb", 'out: str = ""', "x = 1", "broken = x / 0")
    failed = runner.execute(Job("n", "n", {"out": ""}, (), ""), [], place)
    error = "cell 4: broken = x / 0: ZeroDivisionError: division by zero"
    assert (failed.state, failed.error) == ("failed", error)
    assert (tmp_path / "out" / "notebooks" / "n.partial.ipynb").is_file()


@pytest.mark.parametrize("wide", [False, True])
def test_given_checkpoints_may_use_the_whole_vector_unit(wide, tmp_path, monkeypatch):
    """bfloat16 is 17 times slower under the cap that keeps built-in results equal everywhere."""
    monkeypatch.setattr(runner, "narrow_vectors", lambda: {"ATEN_CPU_CAPABILITY": "avx2"})
    monkeypatch.setattr(os, "environ", {"ATEN_CPU_CAPABILITY": "avx2"} if wide else {})
    monkeypatch.setattr(os, "chdir", lambda _: None)
    runner.prepare(Place("", "", "", tmp_path, "", wide=wide))
    assert ("ATEN_CPU_CAPABILITY" in os.environ) is not wide
