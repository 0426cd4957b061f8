"""No-op notebooks for the tests of `t3 reproduce`: same names and parameters as the real ones, no
torch, no model.
"""

from pathlib import Path

import nbformat

from t3lib.core.files import project_root, read_json, write_json

SHIPPED = project_root() / "notebooks"
PARAMETERS = """methods: list = ["T3"]
split: str = "forget10"
seeds: list = [1]
temperatures: list = [1.0]
hyper: dict = {}
world: dict = {}
nap: float = 0.0
fail: list = []
out: str = ""
"""
# A run is a pure function of the parameters, so outputs must be the same bytes whoever runs them,
# whenever.
UNLEARN = """import hashlib, json, os, time
from pathlib import Path
from t3lib.core.files import write_json
runs = Path(out) / "runs"
Path(os.environ["T3_CACHE"]).mkdir(parents=True, exist_ok=True)
with open(Path(os.environ["T3_CACHE"]) / "pids", "a") as log:
    log.write(f"{os.getpid()} {methods} {split}\\n")"""
WORK = """for method, seed in [(method, seed) for method in methods for seed in seeds]:
    time.sleep(nap)
    settings = {key: value for key, value in hyper.items() if key.split("/")[0] == method}
    text = json.dumps([method, split, seed, temperatures, settings, os.environ["OMP_NUM_THREADS"]])
    score = hashlib.sha256(text.encode()).hexdigest()
    run = {"score": score, "text": text}
    write_json(runs / f"{method}--{split}--Tnone--seed{seed}.json", run)"""
# A little real training: float32 sums, whose bits would show another number of threads or another
# order.
TRAIN = """import numpy as np
[method] = methods
time.sleep(nap)
for seed in seeds:
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(2000, d)).astype("float32") for d in (300, 60))
    weight = np.zeros((300, 60), "float32")
    for _ in range(20):
        weight -= 1e-3 * x.T @ (np.tanh(x @ weight) - y)
    bits = hashlib.sha256(weight.tobytes()).hexdigest()
    threads = f"OMP {os.environ['OMP_NUM_THREADS']} BLAS {os.environ['OPENBLAS_NUM_THREADS']}"
    score = f"{bits} {weight.sum()!r} {threads}"
    write_json(runs / f"{method}--{split}--Tnone--seed{seed}.json", {"score": score})"""
FAIL = """if {f"{method}/{split}" for method in methods} & {*fail}:
    broken = 1 / 0"""
TABLES = """import json
from pathlib import Path
from t3lib.core.files import atomic_write
runs = sorted(Path(out).glob("runs/*.json"))
lines = [f"{path.name},{json.loads(path.read_text())['score']}" for path in runs]
with atomic_write(Path(out) / "tables" / "tofu.csv") as handle:
    handle.write("\\n".join(lines) + "\\n")"""


ROLES = {
    path.stem: read_json(path)["metadata"]["t3"] for path in sorted(SHIPPED.glob("0[1-5]*.ipynb"))
}


def write_notebook(path: Path, parameters: str, *cells: str, role: dict | None = None) -> None:
    """A notebook with a parameters cell and code cells; its role is by default that of the shipped
    one of its name.
    """
    notebook = nbformat.v4.new_notebook()
    notebook.metadata.t3 = role or ROLES.get(path.stem, {"writes": []})
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# no-op"),
        first,
        *map(nbformat.v4.new_code_cell, cells),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def write_notebooks(folder: Path, work: str = WORK) -> Path:
    """02 and 05 as no-ops in `folder`; a profile must give models, so that no base is trained."""
    write_notebook(folder / "02_tofu_unlearning.ipynb", PARAMETERS, UNLEARN, work, FAIL)
    write_notebook(folder / "05_paper_tables.ipynb", 'out: str = ""\n', TABLES)
    return folder


def write_profile(
    path: Path,
    methods: str = "Original, NPO",
    splits: str = "forget10",
    seeds: str = "1, 2",
    more: str = "",
) -> Path:
    """A profile over given models, folders that hold an empty config.json, with `more` YAML
    lines.
    """
    models = {name: str(path.parent / "models" / name) for name in ("full", "retain90", "retain95")}
    for folder in models.values():
        write_json(Path(folder) / "config.json", {})
    text = f"methods: [{methods}]\nsplits: [{splits}]\nseeds: [{seeds}]\nmodels: {models}\n{more}\n"
    path.write_text(text, encoding="utf-8")
    return path


def results_of(out: Path) -> dict[str, bytes]:
    """Bytes of every run and table of a results folder, by name."""
    files = [*out.glob("runs/**/*.json"), *out.glob("tables/*")]
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(files)}
