"""A toy method, a toy metric and a toy notebook, added to a copy of the checkout where CONTRIBUTING
says. The jobs of a reproduction run in one process with this copy's code, instead of in kernels.
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

# Arguments: the results folder and the folder of markers.
RUN = """import shutil, sys
from pathlib import Path

import nbformat
from t3lab import profiles
from t3lab.grid import jobs, runner


def run_here(source, copy, parameters):
    scope = dict(parameters)
    for cell in nbformat.read(source, 4).cells:
        if cell.cell_type == "code":
            exec(cell.source, scope)
            if "parameters" in cell.metadata.get("tags", []):
                scope.update(parameters)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, copy)


runner.run_notebook = run_here
out, marks = map(Path, sys.argv[1:])
root, cache = str(Path.cwd()), str(marks.parent)
place = runner.Place(str(out), "notebooks", cache, marks, root)
outcomes = {}
for job in jobs.build(profiles.load_profile("smoke"), out, only=["02", "05", "09"]):
    outcomes[job.name] = runner.execute(job, [outcomes[name] for name in job.after], place)
sys.exit("; ".join(each.error for each in outcomes.values() if each.error) or None)"""


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
    environment = os.environ | {
        "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'notebooks'}",
        "T3_CACHE": str(tmp_path / "cache"),
        "MPLBACKEND": "Agg",
    }
    command = [sys.executable, "-c", RUN, out, tmp_path / "cache" / "marks"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [run["method"] for run in run_files(out)] == ["Original", "Toy"]
    table = pd.read_csv(out / "tables" / "tofu.csv").dropna(subset=["n_seeds"]).set_index("method")
    assert table.loc["Toy", "toy"] == table.loc["Original", "toy"] == -7.0
    assert json.loads((out / "tables" / "toy.json").read_text()) == [1]
    assert "Toy" in (out / "tables" / "tofu.md").read_text(encoding="utf-8")


def run_files(out):
    """The run files in the order of their names; `read_runs` knows no method of the copy."""
    return [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*--*.json"))]
