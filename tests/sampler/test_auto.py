"""Transformers loads a head by itself, with the base that the head was trained on."""

import copy
import json
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from t3lib import cli
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
from t3lib.core.rows import prompt
from t3lib.sampler import belonging, tilt
from t3lib.sampler.tilt import T3ForCausalLM

ROWS = [{"question": "Who?", "answer": "Ada."}]


@pytest.fixture
def saved(tokenizer, tmp_path, monkeypatch):
    """(base folder, head folder): a head of large random weights, trained on this folder."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    tiny_llama(tokenizer).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    model, _ = load_model(tmp_path / "base")
    head = T3Head(32, len(tokenizer), 4, temperature=2.0, seed=1)
    with torch.no_grad():
        head.B.mul_(200)
    head.info = belonging.origin(model, tokenizer, ROWS, ROWS, 3)
    head.save_pretrained(tmp_path / "head")
    return tmp_path / "base", tmp_path / "head"


def written(model, tokenizer):
    """The ids that a model writes after a question; a random model never ends."""
    ids = tokenizer(prompt(tokenizer, "Who?"), add_special_tokens=False, return_tensors="pt")
    return model.generate(**ids, max_new_tokens=12)[0, ids.input_ids.shape[1] :].tolist()


def test_a_head_goes_where_its_base_was_loaded(saved, monkeypatch):
    """On a machine with a GPU the base is there, and a head's file is read on the CPU."""
    monkeypatch.setattr(tilt, "_devices", lambda base: [torch.device("meta")])
    _, head = saved
    for given in (head, T3Head.from_pretrained(head)):
        assert T3ForCausalLM.from_pretrained(given).head.A.is_meta
    assert AutoModelForCausalLM.from_pretrained(head).head.A.is_meta


def test_the_auto_classes_and_the_pipeline_take_a_heads_folder(saved, tokenizer, capsys):
    base, head = saved
    want = written(T3ForCausalLM.from_pretrained(head, base=str(base)), tokenizer)
    assert written(load_model(base)[0], tokenizer) != want
    model = AutoModelForCausalLM.from_pretrained(head, dtype=torch.float32, device_map={"": "cpu"})
    assert isinstance(model, T3ForCausalLM) and written(model, tokenizer) == want
    assert f"base of the head: {base}" in capsys.readouterr().err
    assert AutoTokenizer.from_pretrained(head).get_vocab() == tokenizer.get_vocab()
    pipe = pipeline("text-generation", model=str(head))
    text = prompt(tokenizer, "Who?")
    [found] = pipe(text, max_new_tokens=12, return_full_text=False, add_special_tokens=False)
    assert found["generated_text"] == tokenizer.decode(want, skip_special_tokens=True)
    empty = {"subfolder": "", "quantization_config": None}  # as lm_eval gives them
    other = AutoModelForCausalLM.from_pretrained(
        head, dtype="bfloat16", temperature=3.0, w=1.5, **empty
    )
    assert (other.dtype, other.temperature, other.head.w) == (torch.bfloat16, 3.0, 1.5)
    for several in ({"model": 0, "lm_head": 1}, {"": "cpu", "lm_head": "cpu"}, "auto"):
        with pytest.raises(UserError, match="give it as base="):
            AutoModelForCausalLM.from_pretrained(head, device_map=several)


def test_what_a_loaded_base_cannot_take_is_refused(saved):
    """These words did nothing: another T, a head's revision, a dtype, and what is misspelt."""
    base, head = load_model(saved[0])[0], saved[1]
    for given in ({"T": 2.5}, {"revision": "v2"}, {"dtype": "bfloat16"}):
        with pytest.raises(UserError, match=f"{min(given)}: the base is loaded already"):
            T3ForCausalLM.from_pretrained(head, base=base, **given)
    with pytest.raises(UserError, match="is a folder, which has no revision v2"):
        T3Head.from_pretrained(head, revision="v2")


def test_a_head_does_not_replace_a_model(saved):
    """It wrote its 10 MB over the weights of the base."""
    base, head = saved
    before = {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="holds another model"):
        T3Head.from_pretrained(head).save_pretrained(base)
    with pytest.raises(UserError, match="holds another model"):
        cli.check_out(base)
    assert before == {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()}
    cli.check_out(head)


def test_the_tokenizer_of_a_head_has_its_template_arguments(saved, tokenizer):
    """A pipeline and vLLM's own server asked without them, so with thoughts."""
    base, folder = saved
    other = copy.deepcopy(tokenizer)
    other.chat_template = "{{ greeting }}{% for turn in messages %} {{ turn.content }}{% endfor %}"
    other.save_pretrained(base)
    head = T3Head.from_pretrained(folder)
    head.info["template"] = {"greeting": "Salut."}
    head.save_pretrained(folder)
    turn = {"role": "user", "content": "Who?"}
    found = AutoTokenizer.from_pretrained(folder)
    assert found.apply_chat_template([turn], tokenize=False) == "Salut. Who?"


def test_every_dial_of_a_call_counts(saved):
    """Transformers takes those that a head has saved out of the call's keywords."""
    base, head = saved
    dials = {"temperature": 3.0, "gate": 0.5, "tail": 0.1}
    model = AutoModelForCausalLM.from_pretrained(head, base=load_model(base)[0], w=1.5, **dials)
    assert {name: getattr(model, name) for name in dials} == dials and model.head.w == 1.5
    model = AutoModelForCausalLM.from_pretrained(head, gate=None)
    assert (model.temperature, model.gate, model.tail, model.head.w) == (2.0, 1.0, 0.0, 1.0)
    with pytest.raises(UserError, match="gate must be a number from 0 to 1, not 2"):
        AutoModelForCausalLM.from_pretrained(head, gate=2)


USES = ("t3lib.load_model", "t3lib.tilt", "t3lib.sampler.tilt")
FORKED = """
import os
from transformers import AutoConfig, GenerationMixin, PreTrainedModel
for used in {uses}:
    if not os.fork():  # each use meets a process that has Transformers, and nothing of t3lib
        __import__("t3lib.sampler.tilt" if "sampler" in used else "t3lib")
        eval(used, {{"t3lib": __import__("t3lib")}})
        print(used, type(AutoConfig.for_model("t3-head")).__name__, flush=True)
        os._exit(0)
    os.wait()
"""


def test_using_a_part_with_transformers_is_enough():
    code = FORKED.format(uses=USES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "".join(f"{used} T3Config\n" for used in USES), done.stderr


def test_a_head_names_no_folder_of_the_machine_and_finds_it_again(saved, tokenizer):
    base, head = saved
    for name in ("config.json", "README.md"):
        assert str(base.parent) not in (head / name).read_text()
    info = json.loads((head / "config.json").read_text())["info"]
    assert info["base_model"] == "base" and len(info["base_weights"]) == 2
    assert "base_model" not in (head / "README.md").read_text().split("---")[1], "no Hub id"
    assert AutoModelForCausalLM.from_pretrained(head).name_or_path == str(base)
    moved = base.rename(base.parent / "elsewhere")
    for each in (AutoModelForCausalLM, AutoTokenizer, T3ForCausalLM):
        with pytest.raises(UserError, match=r"base, base, is not here: give it \(--model, base=\)"):
            each.from_pretrained(head)
    again = AutoModelForCausalLM.from_pretrained(head, base=str(moved))
    assert written(again, tokenizer) == written(load(head, moved), tokenizer)


def load(head, base):
    return T3ForCausalLM.from_pretrained(head, base=str(base))


def test_a_head_whose_base_is_not_here_is_one_line(saved):
    base, head = saved
    shutil.rmtree(base.parent / "cache" / "places")
    config = json.loads((head / "config.json").read_text())
    config["info"]["base_model"] = "/nowhere/else"
    (head / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="base, /nowhere/else, is not here"):
        AutoModelForCausalLM.from_pretrained(head)
