"""The steps of a rehearsal run one at a time, in processes of their own that do nothing here.

Every process imports this module, so it imports no torch.
"""

import os
import subprocess
import sys

import pytest

from t3lib.core.errors import UserError
from t3lib.lab import rehearse

KILLED = """import time
from t3lib.lab import rehearse
def measured(*_):
    print("begun", flush=True)
    time.sleep(600)
rehearse.measured = measured
rehearse.preflight.largest_gpu = float
if __name__ == "__main__":
    rehearse.measure({"name": "any", "methods": []}, ["load"], {}, rehearse.Path("none.csv"))
"""


def test_a_step_ends_with_a_rehearsal_that_is_killed(tmp_path):
    """It held 16 GB for as long as it lasted, and nobody waited for it."""
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        assert parent.stdout.readline() == "begun\n"
        parent.kill()
        parent.communicate(timeout=20)  # until no process holds the other end of the pipe


def measured(profile, step):
    """In place of a measurement, in the process of a step."""
    if step == "8bit":
        os._exit(9)  # as if it was killed for its memory
    if step == "4bit":
        raise ValueError("not here")
    device = {"load": "cpu x86_64, 2 cores"}.get(step, "cpu")
    return {"profile": profile["name"], "step": step, "seconds": 1.5, "flops": None,
            "peak_bytes": 10**9, "device": device}  # fmt: skip


def test_steps_are_measured_one_at_a_time_and_once(tmp_path, monkeypatch, capsys):
    """A step that fails has no row, does not end the others, and is tried again."""
    monkeypatch.setattr(rehearse, "measured", measured)
    monkeypatch.setattr(rehearse.preflight, "largest_gpu", lambda: 0.0)
    path, left_out = tmp_path / "tables" / "rehearsal.csv", {"one step of RMU": "which needs 9 GB"}
    profile = {"name": "p", "methods": ["NPO"]}
    path.parent.mkdir()
    earlier = "profile,step,seconds,flops,peak_bytes,device\np,audit,2.0,7,8,cpu\n"
    path.write_text(earlier + "p,evaluation,2.0,,8,NVIDIA H100\n")
    some = ["load", "8bit", "4bit", "audit", "one step of RMU", "evaluation"]
    assert rehearse.measure(profile, some, left_out, path) == 1
    said = capsys.readouterr().out
    assert "audit: measured before" in said and "one step of RMU: which needs 9 GB" in said
    assert "4bit: ValueError: not here" in said and "8bit: BrokenProcessPool" in said
    text = path.read_text()
    assert text.startswith(earlier), "no number is written otherwise"
    assert text.count("\n") == 5 and "p,evaluation,1.5" in text, "a GPU's row is another"
    assert rehearse.measure(profile, ["load", "evaluation"], {}, path) == 0
    assert path.read_text() == text
    monkeypatch.setattr(rehearse.preflight, "largest_gpu", lambda: 80.0)
    assert rehearse.measure(profile, ["evaluation"], {}, path) == 0 and path.read_text() == text
    with pytest.raises(UserError, match="--steps 'none': choose of load, T3's training, "):
        rehearse.measure(profile, ["none"], {}, path)
