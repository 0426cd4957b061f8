"""Progress bars: a person sees them, an executed notebook and a log file do not keep them."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

from t3lib.core import progress
from t3lib.core.progress import begin_stage, progress_bar, stages, watched

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


@pytest.mark.parametrize("hidden", [False, True])
def test_a_long_run_says_its_stage_the_minutes_left_and_a_line_a_minute(hidden, monkeypatch):
    """Twenty minutes of `t3 unlearn` in a log file passed without a word."""
    now = [0.0]
    monkeypatch.setattr(progress, "_kernel", lambda: None)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("T3_PROGRESS", "01"[not hidden])
    said = []
    monkeypatch.setattr(progress, "print", lambda line, **_: said.append(line), raising=False)
    with stages({"lessons": 1, "features": 1, "verdict": 2}):
        begin_stage("lessons")
        now[0] = 300
        begin_stage("features")
        begin_stage("a part that is no stage")
        with progress_bar(total=4, desc="sampling") as bar:
            for seconds in (59, 2, 57, 3):
                now[0] += seconds
                bar.update(1)
        begin_stage("verdict")
    with progress_bar(total=1) as bar:
        now[0] += 100
        bar.update(1)
    lines = [
        "stage 1 of 3: lessons", "stage 2 of 3: features; about 15 min left",
        "stage 2 of 3: features: sampling 50%", "stage 2 of 3: features: sampling 100%",
        "stage 3 of 3: verdict; about 7 min left",
    ]  # fmt: skip
    assert said == ([] if hidden else lines)
