"""What decides a cached result is found in the code: all that is executed is in a key, and no more
than that.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import MICRO

from t3lib.baselines.losses import LOSSES
from t3lib.classifier import features
from t3lib.core import files, identity
from t3lib.core.source import source_on_disk
from t3lib.lab import profiles
from t3lib.lab.audit import run
from t3lib.lab.grid import jobs
from t3lib.lab.study import audit, methods, study, tune, unlearned
from t3lib.lab.world import bases, facts
from t3lib.tofu.evaluation import score

FAST = {"epochs": 1, "warmup_epochs": 0}
LIBRARY = files.LIBRARY
LOAD = methods.load_models
# kind -> the functions whose code is in its keys, as the callers of `code_key` name them
KINDS = {
    "rows": (facts.world,),
    "base": (bases.train_base,),
    "features": (unlearned.extract_features,),
    "head": (unlearned.fitted,),
    "unlearned": (unlearned.unlearned,),
    "scores": (score, LOAD),
    "likelihoods": (run.likelihoods, LOAD),
    "writings": (run.writings, LOAD),
    "draws": (run.draws, LOAD),
}


def dotted(function):
    return f"{function.__module__}.{function.__qualname__}"


def keys(library=LIBRARY, renamed=lambda name: name):
    """{kind (and method): code key} of all that is cached."""

    def key(kind, method=None):
        names = [renamed(dotted(each)) for each in KINDS[kind]]
        return identity.code_key(*names, methods=[method] if method else (), library=library)

    trained = {f"unlearned {method}": key("unlearned", method) for method in LOSSES}
    return {
        kind: key(kind, "T3" if kind == "head" else None) for kind in KINDS if kind != "unlearned"
    } | trained


@pytest.fixture(scope="session")
def before():
    """The keys of the library as it is."""
    return keys()


@pytest.fixture(scope="session")
def jobs_before():
    """The keys of profile cpu's jobs with the library as it is."""
    with pytest.MonkeyPatch.context() as patch:
        return job_keys(LIBRARY, patch)


@pytest.fixture
def library(tmp_path):
    """A copy of t3lib to change."""
    return Path(
        shutil.copytree(LIBRARY, tmp_path / "t3lib", ignore=shutil.ignore_patterns("__pycache__"))
    )


def change(path, old, new):
    text = path.read_text()
    assert old in text, f"{path.name} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


# ---- what is executed is in the key -------------------------------------------------------------


def test_every_function_that_runs_while_a_kind_is_computed_is_in_its_key(
    opened, tmp_path, monkeypatch
):
    """Lists of modules by hand lacked settings, study.methods and artefact; so the calls themselves
    are watched.
    """
    monkeypatch.setenv("T3_CACHE", str(tmp_path))  # nothing is cached: all of it is computed
    bases.rows.cache_clear()
    bases.tokenizer_text.cache_clear()
    roots = {
        each.__wrapped__ if hasattr(each, "__wrapped__") else each: kind
        for kind in KINDS
        for each in KINDS[kind]
    }
    codes = {function.__code__: kind for function, kind in roots.items()}
    apart = (
        identity.code_key,
        identity.environment,
        identity.keep,
        bases.ensure_base,
        bases.world_of,
        study.Study.base.fget,  # `identity` has the base and how it is loaded
    )
    codes |= {function.__code__: None for function in apart}  # in a key by their result
    executed, asked = {kind: set() for kind in KINDS}, set()

    def noted(*entries, methods=(), through=False):
        asked.update(
            [] if through else [entries]
        )  # through all: the `code` of a run, which is no key of a cache
        return identity.code_key(*entries, methods=methods, through=through)

    for module in (bases, features, unlearned, study, audit):
        monkeypatch.setattr(module, "code_key", noted)

    def watch(frame, event, _):
        if event != "call" or not frame.f_code.co_filename.startswith(str(LIBRARY)):
            return
        if not frame.f_code.co_filename.endswith(".py"):  # a compiled template
            return
        name = frame.f_code.co_qualname.split(".")[0]
        module = ".".join(
            ("t3lib", *Path(frame.f_code.co_filename).relative_to(LIBRARY).with_suffix("").parts)
        )
        while frame and frame.f_code not in codes:
            frame = frame.f_back
        kind = codes[frame.f_code] if frame else None
        if kind and not name.startswith("<"):
            executed[kind].add((module.removesuffix(".__init__"), name))

    stage = bases.Stage(**MICRO, seed=5)
    sys.setprofile(watch)
    try:
        fresh = replace(opened)  # without the key that was computed before
        bases.ensure_base(stage, "full")
        for method in (*LOSSES, "T3", "Original", "Retrained"):
            hyper = {} if method in ("Original", "Retrained") else FAST
            list(methods.run_method(fresh, method, seeds=[1], settings=hyper))
        few = audit.Sampling(samples=2, samplers=((0.5, 0.9),), further=2)
        for method in ("T3", "ULD", "Original"):
            hyper = FAST if method in ("T3", "ULD") else {}
            list(
                audit.audit_method(
                    fresh, method, seeds=[1], settings=hyper, sampling=few, progress=False
                )
            )
        tune.tune_t3(fresh, [FAST | {"lr": 1e-3}], [1.0, 2.0], [1])
    finally:
        sys.setprofile(None)

    names = {
        tuple(each if isinstance(each, str) else dotted(each) for each in entries)
        for entries in asked
    }
    assert names == {tuple(map(dotted, functions)) for functions in KINDS.values()}, (
        "KINDS is what the keys are made of"
    )
    source = source_on_disk(LIBRARY)
    # The class of ULD's model is named where the model is made, and so it is in the model's own
    # key.
    models = set(
        source.reached(
            [source.find("t3lib.lab.study.unlearned.unlearned")], frozenset(["ULD"]), False
        )
    )
    missing = {}
    for kind, functions in KINDS.items():
        entries = [source.find(dotted(each)) for each in functions]
        reached = set(source.reached(entries, frozenset(), False))
        assert len(executed[kind]) >= 3, f"{kind} was not computed"
        missing[kind] = executed[kind] - reached - (models if LOAD in functions else set())
    assert not any(missing.values()), missing


NPO, LOSS = "unlearned NPO", "baselines/losses.py"
HEADS, ASKED = (
    r"head|unlearned \w+",
    "scores|likelihoods|writings|draws",
)  # settings.DEFAULTS holds T3's, too


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("core/settings.py", '"max_grad_norm": 1.0', '"max_grad_norm": 2.0', rf"base|{HEADS}"),
        ("lab/study/methods.py", "other.w = float(w)", "other.w = float(w) * 3", ASKED),
        ("core/rows.py", "IGNORE = -100", "IGNORE = -101", rf"base|features|{HEADS}|{ASKED}"),
        (LOSS, "-2 / beta * _log_sigmoid(-beta * (", "-3 / beta * _log_sigmoid(-beta * (", NPO),
        (LOSS, '"NPO": Terms(npo, nll)', '"NPO": Terms(npo, None)', NPO),
        (LOSS, '"NPO": {"alpha_f": 1.0', '"NPO": {"alpha_f": 2.0', NPO),
        ("tofu/metrics.py", "return", "return 0 or", ""),
        ("lab/report/look.py", "=", "= 0 or", ""),
        ("lab/world/world.yaml", "first", "second", "rows"),
    ],
)  # fmt: skip
def test_a_changed_statement_changes_the_keys_of_what_it_decides_and_no_other(
    library, before, file, old, new, changed
):
    change(library / file, old, new)
    after = keys(library)
    assert {kind for kind in before if after[kind] != before[kind]} == {
        k for k in before if re.fullmatch(changed, k)
    }


def test_docstrings_comments_layout_and_annotations_do_not_count(library, before):
    for path in library.rglob("*.py"):
        lines = path.read_text().replace("-> None:", "-> object:  # a comment\n")
        path.write_text(re.sub(r'^(\s*)"""\w', r'\1"""Another docstring. W', lines, flags=re.M))
    assert keys(library) == before


# ---- no wider than needed -----------------------------------------------------------------------


def job_keys(library, monkeypatch):
    with monkeypatch.context() as patch:
        for name in ("code_key", "notebook_key"):
            one = getattr(identity, name)
            patch.setattr(jobs, name, lambda *a, one=one, **k: one(*a, library=library, **k))
        return {
            each.name: each.key
            for each in jobs.build(profiles.load_profile("cpu"), Path("out/cpu"))
        }


def append_a_loss(library):
    """What a new method takes: its loss with a row of LOSSES, its defaults, and its name."""
    path = library / "baselines" / "losses.py"
    change(
        path,
        "LOSSES: dict[str, Terms] = {",
        'LOSSES: dict[str, Terms] = {\n    "Toy": Terms(toy, nll),',
    )
    path.write_text(
        path.read_text() + "\n\ndef toy(logp, answer):\n    return log_likelihood(logp, answer)\n"
    )
    change(path, '    "GradAscent": {', '    "Toy": {"alpha_f": 1.0},\n    "GradAscent": {')


def test_an_appended_loss_changes_no_key(library, before, jobs_before, monkeypatch):
    """One function appended to losses.py once made every job run again, bases included."""
    append_a_loss(library)
    assert keys(library) == before
    assert job_keys(library, monkeypatch) == jobs_before


@pytest.mark.parametrize(
    ("file", "again"),
    [
        ("tofu/metrics.py", {"01", "02", "03", "05", "06"}),  # 01 draws
        ("lab/audit/run.py", {"03", "06"}),
        ("lab/world/facts.py", {"base", "02", "03", "06"}),
        ("theory/mixture.py", {"01", "05"}),
        ("lab/claims/llm.py", {"05"}),
        ("lab/report/look.py", {"01", "05"}),
        ("lab/cli.py", set()),
    ],
)
def test_a_changed_module_runs_the_jobs_that_use_it_and_no_others(
    library, jobs_before, monkeypatch, file, again
):
    path = library / file
    path.write_text(path.read_text() + "\n_ = print\nprint()\n")  # a statement that runs at import
    after = job_keys(library, monkeypatch)
    changed = {re.split("_|--", name)[0] for name in after if after[name] != jobs_before[name]}
    assert changed - {"04"} == again - {"04"}


# ---- a move changes nothing ---------------------------------------------------------------------


def test_a_moved_module_with_its_imports_mended_changes_no_key(library, before):
    moved = {
        "tofu.likelihood": "scoring.scores",
        "core.rows": "data.rows",
        "classifier.fit": "data.fitting",
    }
    for old, new in moved.items():
        place = library.joinpath(*new.split(".")).with_suffix(".py")
        place.parent.mkdir(exist_ok=True)
        (place.parent / "__init__.py").touch()
        shutil.move(library.joinpath(*old.split(".")).with_suffix(".py"), place)

    def mended(line):
        """`from t3lib.core import files, rows` becomes a line for each name."""
        package, names = line[1], line[2].split(", ")
        homes = [
            moved.get(f"{package}.{name.split()[0]}", f"{package}.{name.split()[0]}")
            for name in names
        ]
        parts = (home.rpartition(".") for home in homes)
        aliases = (name.split()[-1] for name in names)
        return "\n".join(
            f"from t3lib.{at} import {name} as {alias}"
            for (at, _, name), alias in zip(parts, aliases)
        )

    for path in library.rglob("*.py"):
        text = re.sub(r"^from t3lib\.(\w+) import ([\w, ]+)$", mended, path.read_text(), flags=re.M)
        for old, new in moved.items():
            text = re.sub(rf"\bt3lib\.{old}\b", f"t3lib.{new}", text)
        path.write_text(text)

    def renamed(name):
        module, _, function = name.rpartition(".")
        short = module.removeprefix("t3lib.")
        return f"t3lib.{moved.get(short, short)}.{function}"

    assert keys(library, renamed) == before


# ---- names --------------------------------------------------------------------------------------


def write_library(folder, **modules):
    for name, text in {"__init__": "", "names": "METHODS = ()"}.items() | modules.items():
        path = folder / "t3lib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "t3lib"


@pytest.mark.parametrize(
    "use",
    [
        "from t3lib.b import g\ndef f():\n    return g()",
        "from t3lib.b import g as h\ndef f():\n    return h()",
        "from t3lib import b\ndef f():\n    return b.g()",
        "import t3lib.b\ndef f():\n    return t3lib.b.g()",
        "from t3lib import b\ndef f(name):\n    return getattr(b, name)()",
        "def f():\n    from t3lib.b import g\n    return g()",
        "from t3lib.b import g\ndef f(x=g):\n    return x()",
        "from t3lib.b import g\n@g\ndef f():\n    return 1",
        "from t3lib.b import g\nclass f(g):\n    pass",
        "from t3lib.b import g\nTABLE = {'a': g}\ndef f(a):\n    return TABLE[a]()",
        "from t3lib.b import g\nX = [1]\nX[0] = g()\ndef f():\n    return X",
        "from t3lib.b import g\ndef f(x):\n    return [g for g in x] + [g()]",
    ],
)
def test_every_way_to_name_a_function_counts(tmp_path, use):
    digests = set()
    for value in (1, 2):
        library = write_library(
            tmp_path / str(value),
            a=use,
            b=f"def g():\n    return h()\ndef h():\n    return {value}",
        )
        digests.add(identity.code_key("t3lib.a.f", library=library))
    assert len(digests) == 2


def test_what_is_not_named_does_not_count(tmp_path):
    digests = set()
    for value in (1, 2):
        text = f"from t3lib.b import h\ndef f(h):\n    return h\ndef other():\n    return {value}"
        library = write_library(tmp_path / str(value), a=text, b=f"def h():\n    return {value}")
        digests.add(identity.code_key("t3lib.a.f", library=library))
    assert len(digests) == 1


def test_an_unknown_name_is_an_error():
    with pytest.raises(KeyError, match=r"t3lib has no t3lib\.tofu\.metrics\.nothing"):
        identity.code_key("t3lib.tofu.metrics.nothing")


# ---- environment --------------------------------------------------------------------------------


def test_threads_versions_and_device_are_in_the_environment(monkeypatch):
    before = identity.environment()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert identity.environment() != before
    assert identity.environment(threads=torch.get_num_threads()) == identity.environment()
    assert identity.environment("cuda:1") == identity.environment("cuda") != before
    monkeypatch.setattr(identity.metadata, "version", lambda name: "9.9.9")
    assert identity.environment("cuda")[0] == dict.fromkeys(identity.PACKAGES, "9.9.9")


def test_another_version_of_torch_computes_anew(opened, tmp_path, monkeypatch):
    """After an upgrade the old numbers and seconds were once signed with the new version."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path))

    def entries():
        bases.ensure_base(bases.Stage(**MICRO), "full")
        few = audit.Sampling(samples=2)
        for method, settings in (
            ("T3", FAST),
            ("Original", {}),
        ):  # no training is in the key of the original's scores
            list(methods.run_method(opened, method, seeds=[1], settings=settings))
            list(
                audit.audit_method(
                    opened, method, seeds=[1], settings=settings, sampling=few, progress=False
                )
            )
        found = (path for path in tmp_path.glob("*/*") if path.suffix not in (".lock", ".partial"))
        return sorted(str(path.relative_to(tmp_path)) for path in found)

    before = entries()
    assert entries() == before
    real = identity.metadata.version
    monkeypatch.setattr(
        identity.metadata, "version", lambda name: "9.9.9" if name == "torch" else real(name)
    )
    after = entries()
    for kind in ("unlearned", "scores", "audit", "features", "bases"):
        counts = [sum(name.startswith(kind) for name in names) for names in (before, after)]
        assert counts[1] == 2 * counts[0] > 0, kind


# ---- code that changes while it runs ------------------------------------------------------------

EDITED = """
import sys, warnings
from pathlib import Path
from t3lib.core import files, identity
from t3lib.lab.world import bases
place = Path(files.LIBRARY) / "tofu" / "metrics.py"
identity.keep(files.cache_dir("rows") / "before.json", {"a": 1})
place.write_text(place.read_text() + "\\nLATER = 1\\n")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    identity.keep(files.cache_dir("rows") / "after.json", {"a": 1})
    stage = bases.Stage(authors=20, questions=1, vocab=300, hidden=8, epochs=1)
    folder = bases.ensure_base(stage, "full")
print(sorted({str(each.message).split(";")[0] for each in said}), folder.suffix)
"""


def test_nothing_is_kept_by_code_that_changed_while_it_ran(library, tmp_path):
    environment = {
        "PATH": "",
        "T3_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(library.parent),
        "HOME": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", EDITED],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert ran.stdout == "['t3lib changed while this ran (tofu/metrics.py)'] .partial\n", (
        ran.stdout + ran.stderr
    )
    assert [path.name for path in (tmp_path / "cache" / "rows").glob("*.json")] == ["before.json"]
    assert not [path for path in (tmp_path / "cache" / "bases").iterdir() if path.suffix == ""]
