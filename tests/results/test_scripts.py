"""The scripts beside the results run in their tiny form and write what they say."""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    "script, arguments, files",
    [
        (
            "rehearsal/make.py",
            ["--tiny"],
            ["tests.json", "features.json", "head.json", "decoding.json", "evaluation.json"],
        ),
    ],
)
def test_a_script_writes_its_files(script, arguments, files, tmp_path):
    command = [sys.executable, ROOT / "results" / script, *arguments, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in files if not (tmp_path / name).is_file()] == []
