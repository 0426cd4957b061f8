"""environment.yml, requirements.lock and pyproject.toml say the same; nothing asks for a GPU build
or names a host.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from jupyterlab.commands import get_app_dir
from jupyterlab_server.settings_utils import get_settings

CARD = "jupyterlab papermill torch transformers bitsandbytes seaborn pandas scipy nbval".split()


def lock():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(
        re.fullmatch(r"([\w.-]+(?:\[[\w,]+\])?)==([\w.]+)(?: ;.*)?", line).groups()
        for line in lines
    )


def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


@pytest.mark.xdist_group("together")
def test_tests_that_share_a_fixture_run_in_one_worker(request):
    """With pytest 9.2, which pytest-xdist 3.8 does not know, they ran in both, without a word."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@together")


def test_environment_is_the_lock_plus_the_checkout():
    *conda, pip = environment()
    assert conda == ["python=3.11", "pip"]
    assert pip["pip"][-3:] == ["-r requirements.lock", "-e .", "-e notebooks"]
    assert dict(line.split("==") for line in pip["pip"][:-3]) == {
        name: lock()[name] for name in CARD
    }


def test_lock_holds_every_direct_dependency_and_no_gpu_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras.pop("vllm") == ["vllm>=0.31,<0.34"], "it pins an older Transformers: a venv"
    wanted = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    normal = {re.sub(r"[-_.]+", "-", name.split("[")[0]).lower() for name in lock()}
    for line in wanted:
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower()
        assert name in normal, name
    assert not [name for name in lock() if re.match(r"nvidia|cuda|triton|flash|deepspeed", name)]
    assert lock()["torch"] == "2.13.0", "the pin that takes a CPU build where one is offered"


def test_the_lowest_versions_are_read_as_pyproject_means_them():
    """make test-floor finds one bound a line; torch's is in the workflow, which has every build."""
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"].items()
    extras = (line for name, lines in extras for line in lines if name != "vllm")  # own venv
    needs = "\n".join([*project["dependencies"], *extras])
    found = re.findall(r'^ +"([\w-]+)>=([\d.]+)', text, re.MULTILINE)
    assert found == re.findall(r"^([\w-]+)>=([\d.]+)", needs, re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert f"make test-floor FLOOR_TORCH={dict(found)['torch']}\n" in workflow + "\n"


def test_nothing_tracked_names_a_registry_or_a_private_path():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("an unpacked archive has no history to ask")
    root, home = str(ROOT.parent) + "/", str(ROOT.home()) + "/"
    bad = re.compile(
        "|".join(["pypi" + r"\.org", "files.python" + "hosted", re.escape(root), re.escape(home)])
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".png", ".safetensors"} or not path.is_file():
            continue
        found = bad.search(path.read_text(encoding="utf-8", errors="ignore"))
        assert not found or len(root) < 3, f"{name}: {found[0]}"


def test_make_refuses_an_unknown_profile_before_it_builds_the_environment():
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    options = {"cwd": ROOT, "capture_output": True, "text": True, "env": alone}
    made = subprocess.run(["make", "PROFILE=smok"], **options)
    assert made.returncode == 2 and "smok" in made.stderr and "smoke" in made.stderr
    assert made.stdout == ""
    test = ["make", "--dry-run", "test", "PROFILE=smok"]
    assert subprocess.run(test, **options).returncode == 0, "not its business"


def dry(*words):
    """What make would run, line by line."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    options = {"cwd": ROOT, "capture_output": True, "text": True, "env": alone, "check": True}
    return subprocess.run(["make", "--dry-run", *words], **options).stdout.splitlines()


def test_a_container_names_debian_alone_and_opens_a_copy_of_the_first_notebook():
    """No image is built here: its commands are known to make, and its files are there."""
    docker = (ROOT / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", docker, re.MULTILINE)
    assert stages == [("debian:bookworm", "system"), ("system", "")]
    code = re.sub(r"^#.*$", "", docker, flags=re.MULTILINE)
    assert not re.search(r"://|\b[\w-]+\.(?:com|org|io|net|dev)\b", code)
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    build = container["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert build["target"] == "system"

    [command] = re.findall(r"^CMD (.+)$", docker, re.MULTILINE)
    every = [json.loads(command), *(container[f"post{when}Command"].split() for when in
             ("Create", "Attach"))]  # fmt: skip
    every += [line.split() for line in re.findall(r"^RUN (make .+)$", docker, re.MULTILINE)]
    assert len(every) == 4 and {words[0] for words in every} == {"make"}
    for words in every:
        *_, last = dry(*words[1:])
        assert "explore" not in words or last.endswith("out/00_explore.ipynb")
    assert "--ip=0.0.0.0" in dry(*every[0][1:])[-1] and "--ip" not in dry("explore")[-1]

    # what is built or computed here stays out of the image, and the copy out of git
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv*", ".t3cache", "out"} <= {*ignored}
    assert "/out/" in (ROOT / ".gitignore").read_text().split()


def test_jupyterlab_asks_nobody_about_news_and_saves_nothing_by_itself(tmp_path):
    """`make` copies overrides.json to where JupyterLab looks, and JupyterLab takes its values.

    An autosaved notebook would be a changed file of the checkout.
    """
    text = (ROOT / "Makefile").read_text()
    assert "cp notebooks/overrides.json $(LAB)\n" in text
    [settings] = re.findall(r"^LAB = \.venv/(.+)$", text, re.MULTILINE)
    lab = Path(get_app_dir())
    assert lab / "settings" == Path(sys.prefix) / settings
    shutil.copy(ROOT / "notebooks" / "overrides.json", tmp_path)

    def setting(plugin, name):
        plugin = f"@jupyterlab/{plugin}"
        read, _ = get_settings(str(tmp_path), str(lab / "schemas"), str(tmp_path), plugin)
        return read["schema"]["properties"][name]

    news = setting("apputils-extension:notification", "fetchNews")
    assert news["default"] in [choice["const"] for choice in news["oneOf"]]
    assert news["default"] == "false"
    autosave = setting("docmanager-extension:plugin", "autosave")
    assert autosave["type"] == "boolean" and autosave["default"] is False
