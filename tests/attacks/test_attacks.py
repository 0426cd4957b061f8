"""The catalogue of attacks still fits the code: one in 60 of each kind (`make attacks` tries
all).
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_one_attack_in_60_of_every_kind_is_survived():
    command = [sys.executable, str(HERE / "run.py"), "--every", "60"]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("survived") == done.stdout.count("\n") == 5
