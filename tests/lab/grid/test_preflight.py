"""A profile that this machine cannot run is refused in one line, before any job starts and any
folder is made.
"""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from t3lab import profiles
from t3lab.grid import preflight
from t3lib import cli
from t3lib.core import files
from t3lib.core.errors import UserError

LLAMA = profiles.load_profile("llama-8b")
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_a_llama_profile_without_a_gpu_is_one_line(tmp_path, monkeypatch):
    """The real command: it ran 53 jobs, which failed one after the other with the same sentence."""
    command = [
        sys.executable,
        "-m",
        "t3lib",
        "reproduce",
        "--profile",
        "llama-8b",
        "--out",
        str(tmp_path / "out"),
    ]
    environment = os.environ | OFFLINE | {"T3_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "t3 reproduce: profile llama-8b needs a GPU with 80 GB: torch finds none here\n"
    )
    assert not (tmp_path / "out").exists()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main([*command[3:], "--dry-run"]) == 0


def test_bases_that_a_script_makes_are_named_with_it(tmp_path):
    for name in ("smollm", "tofu-cpu"):
        assert (ROOT / "results" / "profiles" / name / "make_bases.py").is_file()
        script = tmp_path / "results" / "profiles" / name / "make_bases.py"
        script.parent.mkdir(parents=True)
        script.touch()
        with pytest.raises(
            UserError, match=f"models.full: run results/profiles/{name}/make_bases.py first"
        ):
            preflight.check_machine(profiles.load_profile(name), tmp_path)


@pytest.mark.parametrize(
    ("gpu", "changes", "said"),
    [
        (79.0, {}, "needs a GPU with 80 GB: the largest here has 79 GB"),
        (81.0, {}, r"needs bitsandbytes \(pip install bitsandbytes\)"),
        (
            81.0,
            {"methods": ["T3"]},
            "no folder open-unlearning/tofu_Llama-3.1-8B-Instruct_full, and the Hub cannot",
        ),
        (
            81.0,
            {"methods": ["T3"], "models": {"full": "empty"}},
            "models.full: folder empty holds no model",
        ),
        (
            81.0,
            {"methods": ["T3"], "models": {"full": "good"}},
            "locuslab/TOFU: not a file here, and the Hub cannot",
        ),
    ],
)
def test_what_is_missing_is_named(gpu, changes, said, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "largest_gpu", lambda: gpu)
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    (tmp_path / "empty").mkdir()
    files.write_json(tmp_path / "good" / "config.json", {})
    for call in ("model_info", "dataset_info"):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{call}", lambda *_, **__: 1 / 0)
    with pytest.raises(UserError, match=said):
        preflight.check_machine(LLAMA | changes, tmp_path)
