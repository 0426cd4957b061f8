"""Progress bars: a person sees them, an executed notebook and a log file do not keep them."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

from t3lib.core.progress import watched

CELL = "from t3lib.core.progress import progress_bar\nfor _ in progress_bar(range(3)): pass"


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(extra_arguments=["--IPKernelApp.log_level=50"])
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("person", [True, False])
def test_a_notebook_shows_a_bar_to_a_person_alone(kernel, person):
    """Papermill, nbval and nbconvert run cells that cannot ask (`allow_stdin`); JupyterLab's cells
    can.
    """
    seen = []
    reply = kernel.execute_interactive(CELL, allow_stdin=person, output_hook=seen.append)
    assert reply["content"]["status"] == "ok"
    shown = [m for m in seen if m["msg_type"] in ("display_data", "stream")]
    assert bool(shown) == person, shown


def test_no_bar_goes_into_a_pipe():
    done = subprocess.run([sys.executable, "-c", CELL], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_environment_hides_bars_of_a_terminal_too(monkeypatch):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("T3_PROGRESS", raising=False)
    assert watched()
    monkeypatch.setenv("T3_PROGRESS", "0")
    assert not watched()
