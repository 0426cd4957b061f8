"""A wheel carries all that the package needs besides its code: templates, notebooks, profiles, the
paper's numbers.
"""

import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

pytest.importorskip("build")
# Folder -> its place in the wheel.
CARRIED = {"t3lib": "t3lib", "notebooks": "t3lib/notebooks", "results/paper": "t3lib/paper"}


def test_a_wheel_carries_all_that_is_no_code(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in CARRIED:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored, dirs_exist_ok=True)
    wanted = {
        f"{place}/{path.relative_to(tmp_path / folder).as_posix()}"
        for folder, place in CARRIED.items()
        for path in (tmp_path / folder).rglob("*")
        if path.is_file()
    }
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
    ]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()
    assert any("templates" in name for name in wanted) and any(
        name.endswith("table1.csv") for name in wanted
    )
