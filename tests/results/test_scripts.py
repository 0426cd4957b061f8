"""The scripts beside the results run, in their tiny form."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    "script, arguments, files",
    [
        ("own/make.py", "--tiny", ["own.csv"]),
        (
            "shares/make.py",
            "--tiny --methods NPO --seeds 1",
            ["tables/shares--NPO--forget10.csv", "runs/NPO--forget10--Tnone--w1.1--seed1.json"],
        ),
        ("tofu-cpu/two_bases.py", "--tiny", ["tables/two_bases.csv"]),
    ],
)
def test_a_script_writes_its_files(script, arguments, files, tmp_path):
    command = [sys.executable, ROOT / "results" / script, *arguments.split(), "--out", tmp_path]
    environment = os.environ | {"T3_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in files:
        assert (tmp_path / name).stat().st_size > 50, name
