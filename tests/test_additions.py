"""A toy method, a toy metric and a toy notebook, added to a copy of the checkout where CONTRIBUTING
says, and run.
"""

import json
import os
import subprocess
import sys

import noop
import pandas as pd
import yaml
from conftest import MICRO, ROOT, copy_checkout, edited

NOTEBOOK = """import json
from pathlib import Path
Path(out, "tables").mkdir(parents=True, exist_ok=True)
Path(out, "tables", "toy.json").write_text(json.dumps(seeds))"""


def test_a_method_a_metric_and_a_notebook_in_five_places(tmp_path):
    copy = copy_checkout(tmp_path / "copy")
    losses = copy / "t3lib/baselines/losses.py"
    before_last = '    "SimNPO": '
    toy = '    "Toy": {"alpha_f": 1.0, "alpha_r": 1.0, "retain_loss": "nll"},\n'
    edited(losses, (before_last + "{", toy + before_last + "{"))
    edited(
        losses,
        (before_last + "Terms(", '    "Toy": Terms(grad_ascent, nll),\n' + before_last + "Terms("),
    )
    place = '        "forget_quality": p,'
    edited(copy / "t3lib/tofu/metrics.py", (place, '        "toy": -7.0,\n' + place))
    line = '    "toy": Metric("Toy", "Toy metric", None, ("toy",)),\n'
    edited(copy / "t3lib/tofu/metrics.py", ("\nMETRICS = {\n", "\nMETRICS = {\n" + line))
    role = {"each": [], "reads": [], "writes": ["tables/toy.json"]}
    toy = copy / "notebooks" / "09_toy.ipynb"
    noop.write_notebook(toy, "out: str = ''\nseeds: list = []", NOTEBOOK, role=role)
    smoke = yaml.safe_load((ROOT / "notebooks/profiles/smoke.yaml").read_text(encoding="utf-8"))
    smoke |= {
        "methods": ["Original", "Toy"],
        "hyper": {"Toy": {"epochs": 2}},
        "grids": {"Toy": [{"lr": 1e-4}]},
    }
    smoke |= {"stage": MICRO, "evaluation": {"max_new_tokens": 6}}
    smoke.pop("notebooks")
    (copy / "notebooks/profiles/smoke.yaml").write_text(yaml.safe_dump(smoke))
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "t3lib",
        "reproduce",
        "--profile",
        "smoke",
        "--only",
        "02,05,09",
        "--workers",
        "1",
    ]
    environment = os.environ | {
        "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'notebooks'}",
        "T3_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [run["method"] for run in run_files(out)] == ["Original", "Toy"]
    table = pd.read_csv(out / "tables" / "tofu.csv").dropna(subset=["n_seeds"]).set_index("method")
    assert table.loc["Toy", "toy"] == table.loc["Original", "toy"] == -7.0
    assert json.loads((out / "tables" / "toy.json").read_text()) == [1]
    assert ">Toy<" in (out / "notebooks" / "05_paper_tables.ipynb").read_text(encoding="utf-8")


def run_files(out):
    """The run files in the order of their names; `read_runs` knows no method of the copy."""
    return [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*--*.json"))]
