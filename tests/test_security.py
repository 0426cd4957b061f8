"""What SECURITY.md promises: no source reads pickles or runs what it reads."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

from t3lib.core.rows import encode

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


def test_templates_in_a_users_text_stay_text(tokenizer):
    text = "{{ 7 * 7 }} {% set x = cycler.__init__.__globals__ %} {{ bos_token }}"
    example = encode(tokenizer, text, text)
    said = tokenizer.decode(example.ids)
    assert said.count(text) == 2 and "49" not in said
