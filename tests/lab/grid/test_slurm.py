"""`t3 reproduce --slurm FILE.yaml`: the script that sbatch is given, and what is wrong with a file
in one line.
"""

import os
import re
from pathlib import Path

import pytest
import yaml

from t3lib.core.errors import UserError
from t3lib.lab.grid import cluster

# Like a site that gives whole nodes away: --mem is rejected.
SBATCH = """#!/bin/sh
if grep -q '^#SBATCH --mem' "$1"; then
  echo "sbatch: error: --mem is not allowed here: nodes are given whole" >&2
  exit 1
fi
cp "$1" "{folder}/script"
echo "Submitted batch job 1"
"""
OPTIONS = {
    "jobs": 1,
    "queue": "gh",
    "account": "PROJECT-1",
    "walltime": "00:10:00",
    "interface": "lo",
    "job_directives_skip": ["--mem", "-n 1"],
    "job_extra_directives": ["-N 1", "--gres=gpu:1"],
    "job_script_prologue": ["export FROM_PROLOGUE=1"],
    "worker_extra_args": ["--lifetime", "9m"],
}


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """submit(options of the file) -> the script that sbatch was given when a cluster of these
    options started.
    """
    for name, text in (("sbatch", SBATCH), ("scancel", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))

    def call(**options):
        (tmp_path / "slurm.yaml").write_text(yaml.safe_dump(options))
        with cluster.client_for(1, None, tmp_path / "slurm.yaml"):
            return (tmp_path / "script").read_text()

    return call


def directives(script):
    return set(re.findall(r"^#SBATCH (.*)$", script, re.M))


def test_a_job_asks_for_what_the_file_says_and_starts_one_worker_with_one_slot(submit):
    script = submit(**OPTIONS)
    asked = directives(script)
    assert {
        "-p gh",
        "-A PROJECT-1",
        "-t 00:10:00",
        "-N 1",
        "--gres=gpu:1",
        "--cpus-per-task=1",
    } <= asked
    assert not [line for line in asked if line.startswith(("--mem", "-n "))], (
        "removed for this site"
    )
    assert (
        "export FROM_PROLOGUE=1" in script
        and "--lifetime 9m" in script
        and "--resources slot=1" in script
    )
    # The scheduler asks for credentials, which lie in files that only this user can read and that
    # go with the runner.
    assert "tls://" in script and "tcp://" not in script
    for option in ("ca-file", "cert", "key"):
        path = Path(re.search(rf"--tls-{option} (\S+)", script)[1])
        assert not path.exists() or path.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interface": "lo"}, "slurm.yaml: .*--mem is not allowed here"),
        ({"cuda": 1}, "unknown option 'cuda': choose among account"),
        ({"jobs": 0}, "jobs is 0, not a number from 1"),
        ({"jobs": "two"}, "jobs is 'two', not a number from 1"),
        ({"job_directives_skip": "--mem"}, "job-directives-skip must be a list"),
    ],
)
def test_what_is_wrong_is_one_line(options, said, submit):
    with pytest.raises(UserError, match=said) as caught:
        submit(**options)
    assert "\n" not in str(caught.value)


def test_without_slurm_or_a_file_there_is_one_line(tmp_path, monkeypatch):
    with (
        pytest.raises(UserError, match="cannot read .*none.yaml"),
        cluster.client_for(1, None, tmp_path / "none.yaml"),
    ):
        pass
    (tmp_path / "slurm.yaml").write_text("jobs: 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(UserError, match="slurm.yaml: .*sbatch"),
        cluster.client_for(1, None, tmp_path / "slurm.yaml"),
    ):
        pass
