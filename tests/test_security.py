"""What SECURITY.md promises: no pickle, no remote code, nothing in data or settings is executed,
names stay inside.
"""

import json
import pickle
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from t3lab import profiles, results
from t3lab.bench.cost import shape_of
from t3lab.grid import jobs
from t3lib.core import models
from t3lib.core.errors import UserError
from t3lib.core.rows import encode
from t3lib.tofu import data as tofu

# ruff's rules on pickles, eval and exec, YAML's loaders and shells, and what it has no rule for.
RULES = "S102,S301,S302,S307,S403,S506,S602,S604,S605"
FORBIDDEN = re.compile(
    r"trust_remote_code(?!=False)|use_safetensors=False|allow_pickle|torch\.(jit\.)?load\("
    r"|(unsafe|full)_load|\b(cloudpickle|joblib|marshal)\b"
)


def problems(*places):
    """What sources do that this project never does, a line each."""
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--preview", "--no-cache"]
    ruff += ["--quiet", "--output-format", "concise", "--select", RULES]
    done = subprocess.run([*ruff, *map(str, places)], capture_output=True, text=True)
    sources = [path for place in places for path in place.rglob("*") if path.suffix in
               (".py", ".ipynb")]  # fmt: skip
    assert sources and not done.stderr
    found = [f"{path}: {match[0]}" for path in sources
             for match in FORBIDDEN.finditer(path.read_text(encoding="utf-8"))]  # fmt: skip
    return done.stdout.splitlines() + found


def test_no_source_reads_pickles_or_runs_what_it_reads():
    assert not problems(ROOT / "t3lib", ROOT / "notebooks")


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from pickle import load",
        "import joblib.memory",
        "torch.load(path)",
        "eval(text)",
        "exec(text, {})",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "options = {'trust_remote_code': True}",
        "np.load(path, allow_pickle=True)",
        "import pandas as pd\npd.read_pickle(path)",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "import os\nos.system(line)",
        "AutoModel.from_pretrained(name, use_safetensors=False)",
    ],
)
def test_the_search_finds_what_it_looks_for(bad, tmp_path):
    (tmp_path / "bad.py").write_text(bad)
    assert problems(tmp_path)


# ---- what others give us is data ----------------------------------------------------------------


class Payload:
    """An object whose unpickling writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def model_folder(tiny_model, tokenizer, tmp_path):
    tiny_model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_payload_works(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "written"))).close()
    assert (tmp_path / "written").exists()


def test_a_model_in_pickled_files_is_refused_unread(model_folder, tmp_path):
    (model_folder / "model.safetensors").unlink()
    (model_folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "written")))
    with pytest.raises(UserError, match="cannot load model") as stop:
        models.load_model(model_folder, device="cpu")
    assert "\n" not in str(stop.value) and not (tmp_path / "written").exists()


def test_code_that_comes_with_a_model_is_not_run_whatever_a_person_answers(
    model_folder, tmp_path, monkeypatch
):
    """Transformers asks on a terminal unless it is told no."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    config = json.loads((model_folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (model_folder / "config.json").write_text(json.dumps(config))
    (model_folder / "evil.py").write_text(
        f"open({str(tmp_path / 'written')!r}, 'w')\nConfig = Model = None\n"
    )
    with pytest.raises(UserError, match="cannot load model") as stop:
        models.load_model(model_folder, device="cpu")
    assert "\n" not in str(stop.value) and not (tmp_path / "written").exists()


def test_templates_in_a_users_text_stay_text(tokenizer):
    text = "{{ 7 * 7 }} {% set x = cycler.__init__.__globals__ %} {{ bos_token }}"
    example = encode(tokenizer, text, text)
    said = tokenizer.decode(example.ids)
    assert said.count(text) == 2 and "49" not in said


# ---- names stay inside their folders ------------------------------------------------------------

LEAVING = ["../x", "..", "a/../../x", "/etc/passwd", "x/y", "..\\x", "x\0y"]


@pytest.mark.parametrize("name", LEAVING)
def test_no_name_leads_out_of_its_folder(name, tmp_path):
    run = {"method": "NPO", "split": "forget10", "T": None, "w": None, "seed": 1} | dict.fromkeys(
        results.RUN_KEYS[5:], {}
    )
    for key in ("method", "split"):
        with pytest.raises(UserError, match=f"{key} .* is not one of"):
            results.write_run(tmp_path / "runs", run | {"status": "ok", key: name})
    with pytest.raises(UserError, match="a name is letters"):
        profiles.load_profile(name)
    with pytest.raises(UserError, match="unknown split"):
        tofu.retain_of(name)
    profile = profiles.load_profile("smoke")
    for key, value in {"methods": [name], "splits": [name], "models": {name: "x"}}.items():
        with pytest.raises(UserError, match=f"here: {key}.*should be"):
            profiles.check(profile | {key: value}, "here")
    with pytest.raises(UserError, match="unknown notebook"):
        jobs.build(profile, tmp_path / "out", only=[name])
    with pytest.raises(UserError):
        shape_of(name)
    assert not list(tmp_path.iterdir())


def test_security_md_says_what_is_not_promised():
    text = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert (
        "inference time" in text and "whoever holds the base weights still holds the data" in text
    )
    for subject in (
        "head from a stranger",
        "base from a stranger",
        "cluster",
        "not protect",
        "tcp://",
    ):
        assert subject in text
    assert len(text.split()) <= 650, "somebody who deploys it reads it to the end"
