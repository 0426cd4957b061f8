"""`t3 reproduce --slurm FILE.yaml` end to end against a fake `sbatch` and `scancel`, which start jobs as processes."""

import functools
import os
import re
import time
from pathlib import Path

import noop
import psutil
import pytest
import yaml
from faults import injected

from t3lib import cli, files
from t3lib.grid import reproduce

# Like a site that gives whole nodes away: --mem is rejected. The job's script is gone after sbatch, so it is copied.
SBATCH = """#!/bin/sh
if grep -q '^#SBATCH --mem' "$1"; then
  echo "sbatch: error: --mem is not allowed here: nodes are given whole" >&2
  exit 1
fi
n=1
until mkdir "{folder}/$n" 2> /dev/null; do n=$((n + 1)); done  # Dask calls sbatch for several jobs at once
cp "$1" "{folder}/$n.sh"
SLURM_JOB_ID=$n setsid sh "{folder}/$n.sh" > "{folder}/$n.out" 2>&1 < /dev/null &
echo $! > "{folder}/$n.pid"
echo "Submitted batch job $n"
"""
SCANCEL = """#!/bin/sh
for n in "$@"; do
  echo "$n" >> "{folder}/cancelled"
  kill -TERM -- "-$(cat "{folder}/$n.pid")"
done
"""


class Site:
    """A folder of submitted jobs, and the two commands on PATH."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder / "queue"
        self.folder.mkdir(parents=True)
        for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.format(folder=self.folder))
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def scripts(self):
        return [path.read_text() for path in sorted(self.folder.glob("*.sh"))]

    def alive(self):
        """Job processes that still run; given a little time to go."""
        pids = [int(path.read_text()) for path in self.folder.glob("*.pid")]
        deadline = time.monotonic() + 20
        while (left := [pid for pid in pids if running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


@pytest.fixture
def t3(tmp_path, monkeypatch):
    """t3(options of the file) -> exit code of `t3 reproduce --slurm FILE` over two no-op methods."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(files.project_root())
    notebooks = noop.write_notebooks(tmp_path / "notebooks")
    monkeypatch.setattr(reproduce, "reproduce", functools.partial(reproduce.reproduce, notebooks=notebooks))
    profile = noop.write_profile(tmp_path / "mine.yaml", methods="Original, NPO")

    def call(*more, **options):
        (tmp_path / "slurm.yaml").write_text(yaml.safe_dump(options))
        argv = ["reproduce", "--profile", profile, "--out", tmp_path / "out", "--slurm", tmp_path / "slurm.yaml", *more]
        return cli.main([str(part) for part in argv])

    return call


OPTIONS = {
    "jobs": 2,
    "queue": "gh",
    "account": "PROJECT-1",
    "walltime": "00:10:00",
    "interface": "lo",
    "job_directives_skip": ["--mem", "-n 1"],
    "job_extra_directives": ["-N 1", "--gres=gpu:1"],
    "job_script_prologue": ["export FROM_PROLOGUE=1"],
    "worker_extra_args": ["--lifetime", "9m"],
}


def test_a_profile_through_slurm(site, t3, tmp_path, capsys):
    assert t3(**OPTIONS) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "3 done" in printed and "Traceback" not in printed
    first, second = site.scripts()
    directives = re.findall(r"^#SBATCH (.*)$", first, re.M)
    assert {"-p gh", "-A PROJECT-1", "-t 00:10:00", "-N 1", "--gres=gpu:1", "--cpus-per-task=1"} <= set(directives)
    assert not [line for line in directives if line.startswith(("--mem", "-n "))]  # removed for this site
    assert "export FROM_PROLOGUE=1" in first and "--lifetime 9m" in first and "--resources slot=1" in first
    # Its scheduler asks for credentials, which lie in files that only this user can read and that go with the runner.
    assert "tls://" in first and "tcp://" not in first
    for option in ("ca-file", "cert", "key"):
        path = Path(re.search(rf"--tls-{option} (\S+)", first)[1])
        assert not path.exists() or path.stat().st_mode & 0o77 == 0
    cancelled = sorted((site.folder / "cancelled").read_text().split())
    assert cancelled == ["1", "2"] and not site.alive()  # nothing stays in the queue
    results = noop.results_of(tmp_path / "out")
    assert sorted(results) == [
        "runs/NPO--forget10--Tnone--seed1.json",
        "runs/NPO--forget10--Tnone--seed2.json",
        "runs/Original--forget10--Tnone--seed0.json",
        "tables/tofu.csv",
    ]
    assert t3(**OPTIONS) == 0 and "3 cached" in capsys.readouterr().out
    assert len(site.scripts()) == 2  # a finished profile submits nothing
    assert not list(tmp_path.glob("dask*")) and not list(files.project_root().glob("slurm-*"))
    injected("SLURM jobs instead of local workers", results, noop.results_of(tmp_path / "out"))


def test_what_the_site_rejects_is_said_in_one_line(site, t3, tmp_path, capsys):
    rejected = {name: value for name, value in OPTIONS.items() if name != "job_directives_skip"}
    assert t3(**rejected) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "--mem is not allowed here" in said[0] and "slurm.yaml" in said[0], said
    assert not site.scripts() and not list(tmp_path.glob("out/runs/*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cuda": 1}, "unknown option 'cuda': choose among account"),
        ({"jobs": 0}, "jobs is 0, not a number from 1"),
        ({"jobs": "two"}, "jobs is 'two', not a number from 1"),
        ({"job_directives_skip": "--mem"}, "job-directives-skip must be a list"),
    ],
)
def test_a_bad_file_is_one_line(options, said, site, t3, capsys):
    assert t3(**options) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not site.scripts()


def test_without_slurm_there_is_one_line(t3, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert t3(**OPTIONS) == 2
    assert "there is no sbatch on this machine" in capsys.readouterr().err


def test_dasks_own_configuration_lies_below_the_file(site, t3, capsys):
    import dask
    import dask_jobqueue  # noqa: F401 (its defaults)

    theirs = {"queue": "of the site", "job-cpu": 3}
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in theirs.items()}):
        options = {"queue": "of the file", "interface": "lo", "job_directives_skip": ["--mem"]}
        assert t3("--only", "05", **options) == 0, capsys.readouterr()
    [script] = site.scripts()
    assert {"-p of the file", "--cpus-per-task=3"} <= set(re.findall(r"^#SBATCH (.*)$", script, re.M))


def test_a_missing_file(t3, tmp_path, capsys):
    assert t3("--slurm", "none.yaml") == 2
    assert "cannot read none.yaml" in capsys.readouterr().err
