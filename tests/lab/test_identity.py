"""A planted edit changes the keys of what it decides, and no others."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import MICRO

from t3lab import identity, profiles
from t3lab.grid import jobs
from t3lab.study import audit, records, unlearned
from t3lab.world import bases

FAST = {"epochs": 1, "warmup_epochs": 0}
# kind of artefact -> what its key is made of, as the callers of `code_key` name it
KINDS = {
    "base": (["world"], False),
    "features": (["classifier.features"], False),
    "head": (unlearned.HEAD, False),
    "baseline": (unlearned.BASELINE, False),
    "scores": (["tofu.evaluation", "study.methods", "study.unlearned"], False),
    "audit": (["audit", "chances", "study.methods", "study.unlearned"], False),
    "run": (["study.records"], True),
}


def keys():
    return {kind: identity.code_key(*rooms, lab=lab) for kind, (rooms, lab) in KINDS.items()}


def job_keys():
    graph = jobs.build(profiles.load_profile("cpu"), Path("out/cpu"))
    return {each.name: each.key for each in graph}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A copy of both packages to change, from which keys are then made: tmp_path/{t3lib,t3lab}."""
    for package, folder in identity.FOLDERS.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, tmp_path / package, ignore=ignored)
    monkeypatch.setattr(identity, "FOLDERS", {name: tmp_path / name for name in identity.FOLDERS})
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text, f"{path.name} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


SCORED = {"scores", "audit", "run"}


@pytest.fixture(scope="module")
def unedited():
    """The keys of the packages as they are."""
    return keys(), job_keys()


@pytest.mark.parametrize(
    ("file", "changed", "again"),
    [
        ("t3lib/core/errors.py", set(), set()),
        ("t3lib/core/rows.py", {*KINDS}, {"base", *"23468"}),
        ("t3lib/classifier/fit.py", {"head"} | SCORED, {*"2346"}),
        ("t3lib/sampler/tilt.py", SCORED, {*"23468"}),
        ("t3lib/tofu/metrics.py", SCORED, {*"1234568"}),
        ("t3lib/baselines/unlearn.py", {"baseline"} | SCORED, {*"236"}),
        ("t3lib/baselines/losses.py", {"base", "baseline"} | SCORED, {"base", *"1234568"}),
        ("t3lab/world/world.yaml", {"base", "run"}, {"base", *"2346"}),
        ("t3lab/study/methods.py", SCORED, {*"236"}),
        ("t3lab/audit/run.py", {"audit"}, {*"236"}),
        ("t3lab/chances.py", {"audit"}, {*"2356"}),
        ("t3lab/report/render.py", set(), {*"158"}),
        ("t3lab/report/templates/table.tex", set(), {*"158"}),
        ("t3lib/theory/mixture.py", set(), {*"15"}),
        ("t3lib/cli.py", set(), set()),
    ],
)
def test_a_planted_edit_changes_the_keys_of_what_it_decides(
    library, unedited, file, changed, again
):
    """again: the jobs that run again, by the number of their notebook."""
    kinds, graph = unedited
    path = library / file
    path.write_text(path.read_text() + ("\nlater: 1\n" if path.suffix == ".yaml" else "\nX = 1\n"))
    after, later = keys(), job_keys()
    assert {kind for kind in kinds if after[kind] != kinds[kind]} == changed
    ran = {re.split("--|_", name)[0].lstrip("0") for name in graph if later[name] != graph[name]}
    assert ran == again


def test_docstrings_comments_layout_and_imports_do_not_count(library):
    before = keys()
    for path in library.rglob("*.py"):
        lines = path.read_text().replace("  # ", "  # another comment: ").replace(",\n", ",\n\n")
        lines = re.sub(r'^(\s*)"""\w', r'\1"""Another docstring. W', lines, flags=re.M)
        path.write_text(lines.replace("\n\n\n", "\n\n\nimport json\n", 1))
    assert keys() == before


def test_a_moved_module_changes_no_key(library):
    before = keys()
    (library / "t3lib" / "decoding").mkdir()
    for name in ("tilt", "wrapped"):
        (library / "t3lib/sampler" / f"{name}.py").rename(library / "t3lib/decoding" / f"{name}.py")
    for path in library.rglob("*.py"):
        text = re.sub(r"t3lib\.sampler\.(tilt|wrapped)", r"t3lib.decoding.\1", path.read_text())
        text = re.sub(r"t3lib\.sampler import (tilt|wrapped)", r"t3lib.decoding import \1", text)
        path.write_text(text)
    assert keys() == before


@pytest.mark.parametrize(
    "line",
    [
        "from t3lib.tofu.metrics import rouge_l_recall",
        "from t3lib.tofu import metrics",
        "import t3lib.tofu.metrics as m",
        "from t3lib import evaluate",
        "def f():\n    from t3lib.tofu import metrics",
    ],
)
def test_every_way_to_import_a_module_counts(library, line):
    before = identity.notebook_key(line)
    change(library / "t3lib/tofu/metrics.py", "return", "return 0 or")
    assert identity.notebook_key(line) != before


def test_an_unknown_room_is_an_error():
    with pytest.raises(KeyError, match="no module tofu.nothing"):
        identity.code_key("tofu.nothing")


# ---- environment --------------------------------------------------------------------------------


def test_threads_versions_and_device_are_in_the_environment(monkeypatch):
    before = identity.environment()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert identity.environment() != before
    assert identity.environment(threads=torch.get_num_threads()) == identity.environment()
    assert identity.environment("cuda:1") == identity.environment("cuda") != before
    monkeypatch.setattr(identity, "versions", identity.versions.__wrapped__)  # without its cache
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
            list(records.run_method(opened, method, seeds=[1], settings=settings))
            list(audit.audit_method(opened, method, seeds=[1], settings=settings, sampling=few))
        found = (path for path in tmp_path.glob("*/*") if path.suffix not in (".lock", ".partial"))
        return sorted(str(path.relative_to(tmp_path)) for path in found)

    before = entries()
    assert entries() == before
    newer = identity.versions() | {"torch": "9.9.9"}
    monkeypatch.setattr(identity, "versions", lambda: newer)
    after = entries()
    for kind in ("unlearned", "scores", "audit", "features", "bases"):
        counts = [sum(name.startswith(kind) for name in names) for names in (before, after)]
        assert counts[1] == 2 * counts[0] > 0, kind


# ---- code that changes while it runs ------------------------------------------------------------

EDITED = """
import sys, warnings
from pathlib import Path
from t3lab import identity
from t3lib.core import files
from t3lab.world import bases
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
        "PYTHONPATH": str(library),
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
