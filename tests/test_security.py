"""What SECURITY.md promises: no pickle, no remote code, nothing in data or settings is executed,
names stay inside.
"""

import ast
import json
import pickle
import re
import shutil

import pytest
from conftest import ROOT

from t3lib.classifier import artefact
from t3lib.classifier.head import T3Head
from t3lib.core import files, models
from t3lib.core.errors import UserError
from t3lib.core.rows import encode
from t3lib.lab import profiles, results
from t3lib.lab.bench.shapes import shape_of
from t3lib.lab.grid import jobs
from t3lib.tofu import data as tofu

PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
HARMLESS = {"UnpicklingError"}  # the name of an error, to catch it


def found_in(text, where):
    """What a source does that this project never does, as "where:line what"."""

    def name_of(function):
        parts = []
        while isinstance(function, ast.Attribute):
            parts.append(function.attr)
            function = function.value
        return ".".join([getattr(function, "id", "?"), *parts[::-1]])

    for node in ast.walk(ast.parse(text)):
        bad = ""
        if isinstance(node, ast.Import):
            bad = ", ".join(a.name for a in node.names if a.name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLES:
            bad = ", ".join(a.name for a in node.names if a.name not in HARMLESS)
        elif isinstance(node, ast.Call):
            name = name_of(node.func)
            given = {word.arg: getattr(word.value, "value", "?") for word in node.keywords}
            if name in ("eval", "exec", "compile", "__import__") or name.startswith(
                ("os.system", "os.popen")
            ):
                bad = name
            elif (
                name.endswith(("torch.load", "torch.jit.load"))
                and given.get("weights_only") is not True
            ):
                bad = f"{name} without weights_only=True"
            elif name.startswith("yaml.") and name not in ("yaml.safe_load", "yaml.safe_dump"):
                loader = " ".join(
                    ast.unparse(word.value) for word in node.keywords if word.arg == "Loader"
                )
                named = re.findall(r"\w*Loader\b", loader)
                bad = (
                    ""
                    if name == "yaml.load" and named and set(named) <= {"SafeLoader", "CSafeLoader"}
                    else name
                )
            elif name.endswith("read_pickle") or given.get("allow_pickle") or given.get("shell"):
                bad = f"{name}({given})"
            elif given.get("use_safetensors") is False or given.get("trust_remote_code"):
                bad = f"{name}({given})"
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            bad = "" if getattr(node.value, "value", None) is False else "trust_remote_code"
        if isinstance(node, ast.Constant) and node.value == "trust_remote_code":
            bad = "trust_remote_code"
        if bad:
            yield f"{where}:{getattr(node, 'lineno', '?')} {bad}"


def sources():
    for path in sorted((ROOT / "t3lib").rglob("*.py")):
        yield path.name, path.read_text()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = [
            cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        ]
        yield (
            path.name,
            re.sub(r"(?m)^[%!].*$", "", "\n".join("".join(cell["source"]) for cell in cells)),
        )


def test_no_source_reads_pickles_or_runs_what_it_reads():
    names, problems = [], []
    for name, text in sources():
        names.append(name)
        problems += found_in(text, name)
    assert (
        not problems and {"models.py", "train.py", "profiles.py"} <= set(names) and len(names) > 40
    )


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from pickle import load",
        "import joblib.memory",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "exec(text, {})",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "yaml.load(text, Loader=getattr(yaml, 'CSafeLoader', yaml.FullLoader))",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "options = {'trust_remote_code': True}",
        "options = dict(trust_remote_code=flag)",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
        "AutoModel.from_pretrained(name, use_safetensors=False)",
    ],
)
def test_the_search_finds_what_it_looks_for(bad):
    assert list(found_in(f"def f():\n    {bad}\n", "here"))


def test_the_search_lets_good_sources_pass():
    good = [
        "from pickle import UnpicklingError",
        "torch.load(path, weights_only=True)",
        "yaml.safe_load(text)",
    ]
    good += ["yaml.load(text, Loader=getattr(yaml, 'CSafeLoader', yaml.SafeLoader))"]
    good += [
        "AutoModel.from_pretrained(name, trust_remote_code=False)",
        "model.eval()",
        "re.compile(text)",
        "'never trust_remote_code here'",
    ]
    assert not [line for text in good for line in found_in(text, "here")]


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


def test_a_pickled_head_is_refused_unread(tmp_path):
    T3Head(8, 20, 2).save_pretrained(tmp_path / "head")
    (tmp_path / "head" / artefact.WEIGHTS).write_bytes(pickle.dumps(Payload(tmp_path / "written")))
    with pytest.raises(UserError, match="checksum"):
        T3Head.from_pretrained(tmp_path / "head")
    config = files.read_json(tmp_path / "head" / artefact.CONFIG)
    config["sha256"] = files.sha256_file(tmp_path / "head" / artefact.WEIGHTS)
    files.write_json(tmp_path / "head" / artefact.CONFIG, config)
    with pytest.raises(UserError, match="not a readable safetensors file"):
        T3Head.from_pretrained(tmp_path / "head")
    assert not (tmp_path / "written").exists()


def test_a_heads_config_names_settings_and_nothing_else(tmp_path):
    T3Head(8, 20, 2).save_pretrained(tmp_path / "head")
    config = files.read_json(tmp_path / "head" / artefact.CONFIG)
    for extra in (
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"_target_": "os.system"},
        {"torch_dtype": "float16"},
    ):
        files.write_json(tmp_path / "head" / artefact.CONFIG, config | extra)
        with pytest.raises(UserError, match="not a T3 head's config"):
            T3Head.from_pretrained(tmp_path / "head")


def test_templates_in_a_users_text_stay_text(tokenizer):
    text = "{{ 7 * 7 }} {% set x = cycler.__init__.__globals__ %} {{ bos_token }}"
    example = encode(tokenizer, text, text)
    said = tokenizer.decode(example.ids)
    assert said.count(text) == 2 and "49" not in said


def test_yaml_tags_are_refused_not_run(tmp_path):
    written = tmp_path / "written"
    folder = tmp_path / "profiles"
    shutil.copytree(profiles.profiles_dir(), folder)
    for tag in ("!!python/object/apply:builtins.open", "!!python/name:os.system", "!evil"):
        (folder / "mine.yaml").write_text(f"data: {tag} ['{written}', w]\n")
        with pytest.raises(UserError, match="mine.yaml line 1: not valid YAML") as stop:
            profiles.load_profile("mine", folder)
        assert "\n" not in str(stop.value) and not written.exists()


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
    text = (ROOT / "SECURITY.md").read_text()
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
    assert len(text.strip().splitlines()) <= 30
