"""A base that is partly on disk, or spread over two devices, gives the numbers of a whole one."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from conftest import ROOT
from packaging.version import Version
from transformers import AutoModelForCausalLM

from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
from t3lib.tofu import data as tofu
from t3lib.tofu.evaluation import Scoring, score

DISK = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "disk",
    "model.layers.1": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


@pytest.fixture(scope="module")
def saved(model_folder, tmp_path_factory):
    """A folder with a model, and with rows in TOFU's files."""
    folder = tmp_path_factory.mktemp("saved")
    shutil.copytree(model_folder, folder, dirs_exist_ok=True)
    for name in ("forget10", "retain90", "forget10_perturbed"):
        rows = [{"question": f"Who wrote {name} {i}?", "answer": f"Mara of {i}."} for i in range(2)]
        more = {"paraphrased_answer": "It was Mara.", "perturbed_answer": ["Ansel.", "Nobody."]}
        lines = [json.dumps(row | (more if "perturbed" in name else {})) for row in rows]
        (folder / f"{name}.json").write_text("\n".join(lines))
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_base_offloaded_to_disk_gives_the_same_numbers(saved, tmp_path):
    """As by device_map="auto" on a small GPU; without its embeddings it is refused in one line."""
    rows = [tofu.load_rows(saved, name) for name in ("forget10", "retain90")]
    sets, short = {"forget": tofu.load_rows(saved, "forget10_perturbed")}, Scoring(max_new_tokens=3)
    tokenizer, found = load_model(saved)[1], []
    for device_map in (None, DISK, DISK | {"model.embed_tokens": "disk"}):
        where = {"device_map": device_map, "offload_folder": tmp_path}
        base = AutoModelForCausalLM.from_pretrained(saved, dtype="auto", **where).eval()
        if device_map and device_map["model.embed_tokens"] == "disk":
            with pytest.raises(UserError, match="embeddings are offloaded"):
                extract_features(base, tokenizer, *rows)
            break
        features = extract_features(base, tokenizer, *rows)
        head = fit_head(features, vocab_size=len(tokenizer), epochs=1, warmup_epochs=0)
        found.append([features.x, score(base, tokenizer, sets, short, [(head, 2.5)])])
    [one, offloaded] = found
    assert torch.equal(one[0], offloaded[0]) and one[1] == offloaded[1]


@pytest.fixture(scope="module")
def on_two_devices(saved):
    """What T3 says with a base on one and on two devices that a CPU pretends to have."""
    if Version(transformers.__version__) < Version("5.23"):
        pytest.skip("these devices are imitated for Transformers 5.23 and later")
    command = [sys.executable, str(ROOT / "tests" / "far.py"), saved, saved]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "['far:0', 'far:1']\n" in done.stdout, done.stderr[-2000:]
    assert "two devices do not meet" in done.stdout, "or nothing is tested"
    return done.stdout


@pytest.mark.parametrize("what", ["features", "text", "scores"])
def test_a_base_on_two_devices_gives_the_same_numbers(what, on_two_devices):
    assert f"{what} equal\n" in on_two_devices
