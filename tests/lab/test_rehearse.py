"""A rehearsal: Llama 3's exact configuration with random weights through the ordinary command."""

import os
import subprocess
import sys
from collections import Counter

import pandas as pd
import pytest
import torch
from conftest import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.core.errors import UserError
from t3lib.core.files import model_identity, read_json, read_yaml
from t3lib.core.models import load_model
from t3lib.core.rows import encode_rows, prompt
from t3lib.core.settings import hyper_of
from t3lib.lab import cli, profiles, rehearse
from t3lib.lab.bench import cost
from t3lib.lab.bench.cost import SHAPES
from t3lib.lab.grid import runner
from t3lib.tofu import data as tofu
from t3lib.tofu.evaluation import Scoring, score


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield read_yaml(rehearse.prepare(profiles.load_profile("llama-8b"), shape="tiny")[0])


def test_the_command_runs_a_method_and_marks_what_it_makes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("T3_THREADS", "1")
    monkeypatch.setattr(rehearse, "ROWS", 1)  # every answer token is 128,256 numbers
    monkeypatch.setattr(rehearse, "AUTHORS", 20)  # of two worlds, the rows' and the tokenizer's
    monkeypatch.setattr(rehearse, "QUESTIONS", 1)
    monkeypatch.setattr(rehearse, "TOKENS", 2)
    monkeypatch.setattr(rehearse, "free_memory", lambda: 20e9)  # else torch is imported once more
    profile = read_yaml(profiles.profiles_dir() / "llama-8b.yaml") | {"temperatures": [2.5]}
    rehearse.write_json(tmp_path / "llama-8b.yaml", profile)
    line = "reproduce --rehearse tiny --methods T3 --splits forget10 --only 02 --profile"
    file, out = str(tmp_path / "llama-8b.yaml"), str(tmp_path / "out")
    assert cli.main([*line.split(), file, "--out", out]) == 0
    runs = list((tmp_path / "out" / "runs").glob("*.json"))
    assert [path.name for path in runs] == ["T3--forget10--T2.5--seed1.json"]
    run = read_json(runs[0])
    assert run["status"] == "ok" and run["provenance"]["model"] == "random-weights-full"
    assert run["provenance"]["data"].startswith("random-rows@")
    assert read_json(tmp_path / "out" / "manifest.json")["profile"] == "rehearsal-llama-8b"
    assert "which measures nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    "profile, name", [("llama-8b", "llama-3.1-8b"), ("llama-1b", "llama-3.2-1b")]
)
def test_the_configurations_are_the_released_shapes(profile, name, tmp_path):
    config = rehearse.config_of(profiles.load_profile(profile))
    assert rehearse.sizes(config) == SHAPES[name]
    rehearse.write_json(tmp_path / "config.json", config)
    rope = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert rope["rope_type"] == "llama3" and rope["factor"] == (8 if profile == "llama-8b" else 32)


def test_the_checkpoints_are_as_the_hub_has_them(prepared):
    full, retain = prepared["models"]["full"], prepared["models"]["retain90"]
    model, tokenizer = load_model(full)
    assert (model.config.vocab_size, model.dtype) == (128256, torch.bfloat16)
    assert (
        not model.config.tie_word_embeddings and model.generation_config.eos_token_id[-1] == 128009
    )
    ids = {
        "<|begin_of_text|>": 128000,
        "<|eot_id|>": 128009,
        "<|reserved_special_token_247|>": 128255,
    }
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in ids} == ids
    assert len(tokenizer) == 128256 and tokenizer.pad_token_id == 128009
    assert "Today Date: 10 Apr 2025\n\nYou are a helpful assistant.<|eot_id|>" in prompt(
        tokenizer, "Who?"
    )
    [example] = encode_rows(tokenizer, [{"question": "Who?", "answer": "Me."}])
    assert tokenizer.decode(example.ids[example.n_prompt :]) == "Me.<|eot_id|>"
    other = load_model(retain)[0].state_dict()
    differ = [name for name, weight in model.state_dict().items() if not weight.equal(other[name])]
    assert differ == [rehearse.NORM] and model_identity(full) != model_identity(retain)


DISK = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "disk",
    "model.layers.1": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


@pytest.mark.filterwarnings("ignore")
def test_a_base_offloaded_to_disk_gives_the_same_numbers(prepared, tmp_path):
    """As by device_map="auto" on a small GPU; without its embeddings it is refused in one line."""
    place, data = prepared["models"]["full"], prepared["data"]
    rows = [tofu.load_rows(data, name)[:2] for name in ("forget10", "retain90")]
    sets, short = (
        {"forget": tofu.load_rows(data, "forget10_perturbed")[:2]},
        Scoring(max_new_tokens=3),
    )
    tokenizer, found = load_model(place)[1], []
    for device_map in (None, DISK, {"model": "disk", "lm_head": "disk"}):
        where = {"device_map": device_map, "offload_folder": tmp_path}
        base = AutoModelForCausalLM.from_pretrained(place, dtype="auto", **where).eval()
        if device_map and "model" in device_map:
            with pytest.raises(UserError, match="embeddings are offloaded"):
                extract_features(base, tokenizer, *rows)
            break
        features = extract_features(base, tokenizer, *rows)
        head = fit_head(features, vocab_size=128256, epochs=1, warmup_epochs=0)
        found.append([features.x, score(base, tokenizer, sets, short, [(head, 2.5)])])
    [one, offloaded] = found
    assert torch.equal(one[0], offloaded[0]) and one[1] == offloaded[1]


@pytest.fixture(scope="module")
def on_two_devices(prepared):
    """What T3 says with a base on one and on two devices that a CPU pretends to have."""
    place, data = prepared["models"]["full"], prepared["data"]
    command = [sys.executable, str(ROOT / "tests" / "far.py"), place, data]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "['far:0', 'far:1']\n" in done.stdout, done.stderr[-2000:]
    assert "two devices do not meet" in done.stdout, "or nothing is tested"
    return done.stdout


@pytest.mark.parametrize("what", ["features", "text", "scores"])
def test_a_base_on_two_devices_gives_the_same_numbers(what, on_two_devices):
    assert f"{what} equal\n" in on_two_devices


def test_a_few_rows_a_set_in_tofus_files(prepared):
    names = ["forget05", "forget10", "retain90", "retain95", "forget10_perturbed"]
    names += ["retain_perturbed", "real_authors_perturbed", "world_facts_perturbed"]
    assert Counter(len(tofu.load_rows(prepared["data"], name)) for name in names) == {8: len(names)}
    assert len(tofu.load_idk(prepared["data"])) == 8


def test_what_does_not_fit_the_memory_is_left_out_and_said(monkeypatch):
    """112 GB for full fine-tuning of 8B; 1B needs 25 GB, or 17 with moments in 8 bits."""
    monkeypatch.setattr(rehearse, "free_memory", lambda: 20e9)
    large, lines = rehearse.derived(profiles.load_profile("llama-8b"), SHAPES["llama-3.1-8b"])
    assert large["methods"] == ["Original", "ULD", "T3"] and large["gpu"] == 0
    assert "  without NPO which needs 112 GB: 20 GB are free here" in lines
    small, lines = rehearse.derived(profiles.load_profile("llama-1b"), SHAPES["llama-3.2-1b"])
    settings = hyper_of(small["hyper"], "NPO", "forget10")
    assert (settings["epochs"], settings["optimizer"]) == (1, "paged_adamw_8bit")
    assert "  NPO: AdamW's moments in 8 bits, because it needs 25 GB otherwise" in lines
    assert (
        cost.training_memory(SHAPES["llama-3.1-8b"], "NPO", "paged_adamw_8bit")
        == 14 * 8_030_261_248
    )


def test_a_profile_of_built_in_models_has_nothing_to_rehearse(capsys):
    with pytest.raises(UserError, match="profile cpu: a rehearsal needs models of Llama-3.1-8B"):
        rehearse.prepare(profiles.load_profile("cpu"))


@pytest.mark.parametrize("wide", [False, True])
def test_given_checkpoints_may_use_the_whole_vector_unit(wide, tmp_path, monkeypatch):
    """bfloat16 is 17 times slower under the cap that keeps built-in results equal everywhere."""
    monkeypatch.setattr(runner, "narrow_vectors", lambda: {"ATEN_CPU_CAPABILITY": "avx2"})
    monkeypatch.setattr(os, "environ", {"ATEN_CPU_CAPABILITY": "avx2"} if wide else {})
    monkeypatch.setattr(os, "chdir", lambda _: None)
    runner.prepare(runner.Place("", "", "", tmp_path, "", wide=wide))
    assert ("ATEN_CPU_CAPABILITY" in os.environ) is not wide


def test_the_named_steps_are_measured_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rehearse, "ROWS", 1)
    monkeypatch.setattr(rehearse, "free_memory", lambda: 20e9)
    monkeypatch.setattr(rehearse, "reproduce", lambda *_, **__: 1 / 0)
    line = "reproduce --rehearse tiny --profile llama-1b --out"
    assert cli.main([*line.split(), str(tmp_path / "out"), "--steps", "t3 generate"]) == 0
    table = pd.read_csv(tmp_path / "out" / "tables" / "rehearsal.csv")
    assert table.step.tolist() == ["t3 generate"] and (table.peak_bytes > 1e8).all()
    assert list(table.columns) == list(pd.read_csv(ROOT / "results" / "rehearsal.csv").columns)
    assert cli.main(["reproduce", "--profile", "llama-1b", "--steps", "load"]) == 2
    assert "--steps needs --rehearse" in capsys.readouterr().err


def test_every_step_has_a_measurement():
    from t3lib.lab.bench import steps

    named = rehearse.steps_of(profiles.load_profile("llama-8b"))
    assert {*named} >= {*steps.READING, *steps.VERBS, *steps.BITS} and len({*named}) == len(named)
    rest = {*named} - {*steps.READING, *steps.VERBS, *steps.BITS, "load"}
    assert rest == {f"one step of {method}" for method in steps.LOSSES}
