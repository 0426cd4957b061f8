"""The wheel holds t3lib with its templates, and nothing of the laboratory."""

import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

pytest.importorskip("build")


def test_the_wheel_holds_t3lib_alone(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for folder in ("t3lib", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [wheel] = (tmp_path / "dist").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for path in (tmp_path / "t3lib").rglob("*") if path.is_file())
    assert held == {path.relative_to(tmp_path).as_posix() for path in files}
    assert any("templates" in name for name in held)
