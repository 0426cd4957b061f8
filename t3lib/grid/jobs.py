"""The graph of one reproduction: profile -> jobs, each with a content key; the notebooks are inputs, never imported.

A job's key covers what can change its result: its parameters, the code cells of its notebook, the code of the kinds of
artefacts that the notebook uses (`files.CODE`), data and model files, package versions and the number of threads.
Results folder and machine are not in it.
"""

import ast
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from t3lib.errors import UserError
from t3lib.files import code_key, content_key, folder_key, model_identity, project_root, shipped
from t3lib.profiles import Profile, hyper_of

SYNTHETIC, UNLEARN, ABLATION = "01_synthetic_theory", "02_tofu_unlearning", "03_temperature_ablation"
EFFICIENCY, TABLES = "04_efficiency", "05_paper_tables"
NOTEBOOKS = (SYNTHETIC, UNLEARN, ABLATION, EFFICIENCY, TABLES)
# What each notebook writes below the results folder, as patterns; a marker counts only with these files unharmed.
OUTPUTS = {
    SYNTHETIC: (
        *("tables/synthetic*", "tables/bounds.*"),
        *("figures/figure[2-5]_*", "figures/bounds.*", "figures/slopes.*"),
    ),
    UNLEARN: ("runs/{method}--{split}--*.json",),
    ABLATION: ("runs/T3--{split}--*.json", "runs/ablations/*/T3--{split}--*.json", "figures/temperature-{split}.*"),
    EFFICIENCY: ("tables/benchmarks*", "figures/cost_*"),
    TABLES: ("tables/*", "figures/*", "*.html"),
}
# Whose code decides what each notebook writes: kinds of `files.CODE`.
TRAINED = ("rows", "base", "features", "head", "unlearned", "scores", "numbers")
KINDS = {
    SYNTHETIC: ("theory", "figures"),
    UNLEARN: TRAINED,
    ABLATION: (*TRAINED, "figures"),
    EFFICIENCY: ("cost", "figures"),
    TABLES: ("tables",),
}
# 02's parameters are a contract: one that is missing there would be a setting nobody reads.
UNLEARN_PARAMETERS = frozenset(
    "method split seeds temperatures data stage models hyper evaluation out".split(),
)
SECOND_SEED = 1  # *Retrained* is the retain base trained from this seed; every other base has seed 0


@dataclass(frozen=True)
class Job:
    """One kernel: a notebook with parameters, or one base model. `after` names the jobs whose results it reads."""

    name: str
    kind: str  # "notebook" | "base"
    notebook: str  # stem of the notebook, "" for a base
    parameters: dict[str, Any]
    after: tuple[str, ...]
    key: str  # of everything that can change the result
    outputs: tuple[str, ...] = ()  # patterns below the results folder
    partial: bool = False  # runs with what there is even when a job before it failed (the tables)


def build(profile: Profile, out: Path, *, only: Iterable[str] | None = None, folder: Path | None = None) -> list[Job]:
    """Jobs of a profile in an order in which they can run: bases, then 01-04, then 05 after all of them.

    out: the results folder as the notebooks are to see it; only: notebook names (or their numbers) to run, with the
    bases they need; folder: where the notebooks are. Folders in the profile are seen from the project's root. UserError
    names an unknown notebook or parameter.
    """
    folder = folder or shipped("notebooks")
    chosen = _chosen(only, folder, set(profile["notebooks"]))
    data = _identity(profile["data"], folder_key)
    models = {name: _identity(model, model_identity) for name, model in profile["models"].items()}
    environment = [versions(), threads()]
    jobs: dict[str, Job] = {}

    def add(name: str, notebook: str, parameters: dict[str, Any], after: Iterable[str]) -> None:
        path = folder / f"{notebook}.ipynb"
        declared, code = notebook_facts(path)
        extra = profile["notebooks"].get(notebook, {})
        if notebook == UNLEARN and (missing := UNLEARN_PARAMETERS - declared):
            raise UserError(f"{path.name}: its parameters cell lacks {', '.join(sorted(missing))}")
        if unknown := set(extra) - declared:
            raise UserError(f"profile {profile['name']}: {notebook} has no parameter {', '.join(sorted(unknown))}")
        parameters = {key: value for key, value in (parameters | extra).items() if key in declared}
        content = {key: value for key, value in parameters.items() if key != "out"}
        content |= {key: value for key, value in {"data": data, "models": models}.items() if key in parameters}
        source = [content_key(code), code_key(*KINDS[notebook]), *environment]
        outputs = tuple(pattern.format(**parameters) for pattern in OUTPUTS[notebook])
        jobs[name] = Job(
            name,
            "notebook",
            notebook,
            parameters,
            tuple(job for job in after if job in jobs),
            content_key([notebook, content, *source]),
            outputs,
            partial=notebook == TABLES,
        )

    def base(name: str, seed: int) -> str:
        job = f"base--{name}--seed{seed}"
        if name not in profile["models"] and job not in jobs:
            stage = {**profile["stage"], "data": profile["data"]}
            key = content_key(["base", name, seed, {**stage, "data": data}, code_key("rows", "base"), *environment])
            jobs[job] = Job(job, "base", "", {"stage": stage, "name": name, "seed": seed}, (), key)
        return job

    shared = {
        "profile": profile["name"],
        "data": profile["data"],
        "stage": profile["stage"],
        "models": profile["models"],
        "evaluation": profile["evaluation"],
        "seeds": list(profile["seeds"]),
        "temperatures": list(profile["temperatures"]),
        "methods": list(profile["methods"]),
        "splits": list(profile["splits"]),
        "out": str(out),
    }
    bases = {split: [base("full", 0), base(_retain(split), 0)] for split in profile["splits"]} if _model(chosen) else {}
    for split in profile["splits"]:
        by_t = {f"{T:g}": hyper_of(profile, "T3", split, T) for T in profile["temperatures"]}
        for method in profile["methods"] if UNLEARN in chosen else ():
            needs = bases[split] + ([base(_retain(split), SECOND_SEED)] if method == "Retrained" else [])
            own = {"method": method, "split": split, "hyper": hyper_of(profile, method, split)}
            if method in ("Original", "Retrained"):
                own["seeds"] = []  # nothing is drawn: one run whatever the profile's seeds
            add(f"{UNLEARN}--{method}--{split}", UNLEARN, shared | own | {"temperatures": _own(own, by_t)}, needs)
        if ABLATION in chosen and "T3" in profile["methods"]:
            own = {"split": split, "hyper": hyper_of(profile, "T3", split), "hyper_by_t": by_t}
            add(f"{ABLATION}--{split}", ABLATION, shared | own, [*bases[split], f"{UNLEARN}--T3--{split}"])
    for notebook in (SYNTHETIC, EFFICIENCY):
        if notebook in chosen:
            add(notebook, notebook, shared, [])
    if TABLES in chosen:
        add(TABLES, TABLES, shared, [job for job in jobs if jobs[job].kind == "notebook"])
    return list(jobs.values())


def notebook_facts(path: Path) -> tuple[frozenset[str], str]:
    """Names assigned in the one cell tagged `parameters`, and the text of all code cells with IPython lines removed.

    Read as JSON, without nbformat, because the check of a finished profile must be quick.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in code]
        tagged = [text for cell, text in zip(code, texts) if "parameters" in cell["metadata"].get("tags", [])]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is not a Jupyter notebook") from None
    if len(tagged) != 1:
        raise UserError(f"{path.name}: {len(tagged)} cells are tagged 'parameters', one must be")
    plain = [re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.M) for text in texts]
    try:
        declared = {
            target.id
            for node in ast.parse(tagged[0]).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        ast.parse("\n".join(plain))
    except SyntaxError as error:
        raise UserError(f"{path.name}: a code cell is not Python ({error.msg}: {(error.text or '').strip()})") from None
    return frozenset(declared), "\n".join(plain)


def threads() -> str:
    """Threads of torch and BLAS in every job: $T3_THREADS, else one, so that 1 and 2 workers give the same bits."""
    value = os.environ.get("T3_THREADS", "1")
    if not re.fullmatch(r"[1-9]\d{0,3}", value):
        raise UserError(f"T3_THREADS is {value!r}, not a number of threads")
    return value


def versions() -> dict[str, str]:
    """Versions of the packages that decide bits."""
    return {name: metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy", "scipy")}


def _own(job: dict[str, Any], by_t: dict[str, dict[str, Any]]) -> list[float]:
    """T of a job of 02: none but for T3, whose tuned T joins those that have no hyperparameters of their own (03's)."""
    if job["method"] != "T3":
        return []
    tuned = job["hyper"].get("temperature")
    return sorted(
        {float(T) for T, hyper in by_t.items() if hyper == job["hyper"]} | ({float(tuned)} if tuned else set())
    )


def _retain(split: str) -> str:
    return {"forget05": "retain95", "forget10": "retain90"}[split]  # tofu.RETAIN_OF, whose module imports torch


def _model(chosen: set[str]) -> bool:
    return bool(chosen & {UNLEARN, ABLATION})


def _chosen(only: Iterable[str] | None, folder: Path, configured: set[str]) -> set[str]:
    present = {name for name in NOTEBOOKS if (folder / f"{name}.ipynb").is_file()}
    if not present:
        raise UserError(f"no notebooks in {folder}: run t3 from the checkout")
    if unknown := configured - set(NOTEBOOKS):
        raise UserError(f"profile: unknown notebook {', '.join(sorted(unknown))}: one of {', '.join(NOTEBOOKS)}")
    if only is None:
        return present
    chosen = set()
    for name in only:
        matches = [known for known in NOTEBOOKS if name in (known, known[:2], f"{known}.ipynb")]
        if not matches or matches[0] not in present:
            raise UserError(f"--only: unknown notebook {name!r}: choose one of {', '.join(sorted(present))}")
        chosen.add(matches[0])
    return chosen


def _identity(name: str, key: Callable[[Path], str]) -> str:
    """The key of a folder's content; "builtin", "hub" or a Hub id, whose commit a run finds out, stands for itself."""
    folder = project_root() / name
    return key(folder) if folder.is_dir() else name
