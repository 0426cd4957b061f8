"""The jobs of one reproduction, made from a profile, each with a content key of its inputs.

Notebooks are read as data and never imported. The metadata of each notebook (`Role`) says what it
runs once for, what it reads and what it writes, so a new notebook needs no change elsewhere. The
key of a job covers what can change its result: its parameters, the code cells of its notebook and
all modules that they import, the paper's numbers, data and model files, package versions, device
type and number of threads. The results folder and the machine are not in it.
"""

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from t3lab.identity import code_key, notebook_key, versions
from t3lab.profiles import WORLD, Profile, one_line, seeds_of, tuned_path
from t3lib.baselines.losses import METHODS
from t3lib.core.errors import UserError
from t3lib.core.files import content_key, folder_key, model_identity, project_root, sha256_file
from t3lib.core.names import RETAIN_OF

TOGETHER = "together"  # in the name of a job for several methods, in place of the method
DRAWING = "t3lab.report"  # the code of figures, tables and pages


class Role(BaseModel):
    """`metadata.t3` of a notebook; a notebook without it is no part of a reproduction.

    each: what the notebook runs once for. "split" gives one job for each split. "methods" gives one
    job for each group of methods that share a kernel. The profile's `together` lists these groups;
    a method in none of them is a group of its own.
    method: run the notebook only where the profile has this method, with the method's settings.
    reads: what must be finished first: "bases", names of notebooks, or "*" for all others. A job
    waits for those of their jobs that have its split and one of its methods. The files that these
    jobs wrote are in its key.
    writes: patterns of output files below the results folder, with {method} and {split}.
    draws: True for a notebook that draws. It runs again when the code of figures and tables
    (`DRAWING`) changes; other notebooks do not.
    partial: True for a notebook that runs even when a job before it failed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    each: tuple[Literal["methods", "split"], ...] = ()
    method: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...]
    draws: bool = False
    partial: bool = False


@dataclass(frozen=True)
class Scope:
    """The methods and the split of a job; None stands for all of the profile's."""

    methods: tuple[str, ...] | None = None
    split: str | None = None

    def meets(self, other: "Scope") -> bool:
        """Return True if both scopes have a method and a split in common."""
        methods = not self.methods or not other.methods or {*self.methods} & {*other.methods}
        return bool(methods) and (None in (self.split, other.split) or self.split == other.split)


@dataclass(frozen=True)
class Notebook:
    """What the graph reads from a notebook.

    parameters: names in the cell tagged `parameters`. code: its code cells without IPython's lines.
    """

    name: str
    role: Role
    parameters: frozenset[str]
    code: str


@dataclass(frozen=True)
class Job:
    """One kernel to run: a notebook with parameters, or the training of one base model.

    after: names of the jobs whose results it reads.
    """

    name: str
    notebook: str  # stem of the notebook, "" for a base
    parameters: dict[str, Any]
    after: tuple[str, ...]
    key: str  # content key of everything that can change the result
    outputs: tuple[str, ...] = ()  # patterns below the results folder
    inputs: tuple[
        str, ...
    ] = ()  # patterns below the results folder; their content is in `runner.run_key`
    partial: bool = False


def build(
    profile: Profile,
    out: Path,
    *,
    only: Iterable[str] | None = None,
    folder: Path | None = None,
    tuned: Path | None = None,
    device: str = "cpu",
) -> list[Job]:
    """Return the jobs of a profile in an order in which they can run.

    profile: a checked profile; its folders are relative to the project's root.
    out: results folder, as the notebooks should see it.
    only: names (or numbers) of the notebooks to run; base models that they need are added.
    folder: where the notebooks are.
    tuned: file of the tuned values, by default beside the shipped profiles.
    device: type of device that the jobs run on.

    UserError for an unknown notebook or parameter.
    """
    tuned = tuned or tuned_path(profile["name"])
    content: dict[str, Any] = {"data": _identity(profile["data"], folder_key)}
    content["tuned"] = sha256_file(tuned) if tuned.is_file() else None
    content["models"] = {
        name: _identity(model, model_identity) for name, model in profile["models"].items()
    }
    # what every key has
    environment = [versions(), threads(), device]
    paper = folder_key(project_root() / "results/paper")
    studies = [*map(folder_key, sorted((project_root() / "results/studies").glob("*/tables")))]
    base_code = code_key("world")
    bases: dict[str, Job] = {}
    jobs: dict[str, Job] = {}
    scopes: dict[str, Scope] = {}

    def base(name: str, seed: int) -> str:
        stage, job = {**profile["stage"], "data": profile["data"]}, f"base--{name}--seed{seed}"
        key = content_key(
            ["base", name, seed, stage | {"data": content["data"]}, base_code, *environment]
        )
        bases[job] = Job(job, "", {"stage": stage, "name": name, "seed": seed}, (), key)
        return job

    # a job for each notebook and scope, after those whose results it reads
    present = _present(profile, folder or project_root() / "notebooks")

    for notebook in _chosen(present, only):
        code = notebook_key(notebook.code, () if notebook.role.draws else (DRAWING,))
        for scope in _scopes(notebook, profile):
            methods = scope.methods or tuple(profile["methods"])
            words = {"methods": methods[0] if len(methods) == 1 else TOGETHER, "split": scope.split}
            name = "--".join([notebook.name, *(str(words[each]) for each in notebook.role.each)])
            after = (
                [base(*which) for which in _bases(profile, scope)]
                if "bases" in notebook.role.reads
                else []
            )
            after += [
                other
                for other in jobs
                if _reads(notebook, scope, jobs[other].notebook, scopes[other])
            ]
            parameters = _parameters(profile, notebook, scope, out, tuned)
            handed = {
                key: content.get(key, value) for key, value in parameters.items() if key != "out"
            }
            if "world" in handed:
                handed["world"] = handed["world"] | {n: content[n] for n in ("data", "models")}
            read = [paper, *(studies if notebook.role.draws else [])]
            key = content_key([notebook.name, handed, code, *read, *environment])
            jobs[name] = Job(
                *(name, notebook.name, parameters, tuple(after), key),
                outputs=_patterns(notebook, scope),
                inputs=_inputs(notebook, scope, present),
                partial=notebook.role.partial,
            )
            scopes[name] = scope

    return [*bases.values(), *jobs.values()]


def _scopes(notebook: Notebook, profile: Profile) -> list[Scope]:
    """Return the scope of each job of a notebook."""
    role, methods = notebook.role, profile["methods"]
    groups: Sequence[tuple[str, ...] | None] = [None]
    if role.method:
        groups = [(role.method,)] * (role.method in methods)
    elif "methods" in role.each:
        shared = profile["together"].get(notebook.name, [])
        one = tuple(method for method in METHODS if method in shared and method in methods)
        groups = [one] * bool(one) + [(method,) for method in methods if method not in one]
    # the largest split first: at the end no long job should be left alone
    splits = sorted(profile["splits"], reverse=True) if "split" in role.each else [None]
    return [Scope(group, split) for split in splits for group in groups]


def _patterns(notebook: Notebook, scope: Scope) -> tuple[str, ...]:
    """Return patterns of the files that a notebook writes for a scope, with "*" for all methods."""
    named = [(method, scope.split or "*") for method in scope.methods or ("*",)]
    found = [
        pattern.format(method=method, split=split)
        for pattern in notebook.role.writes
        for method, split in named
    ]
    return tuple(dict.fromkeys(found))


def _inputs(notebook: Notebook, scope: Scope, present: Mapping[str, Notebook]) -> tuple[str, ...]:
    """Return patterns of the files that a job reads: all that the notebooks it reads may write.

    Files that the job itself writes are left out.
    """
    theirs = {
        other: Scope((other.role.method,) if other.role.method else None)
        for other in present.values()
    }
    read = [other for other in theirs if _reads(notebook, scope, other.name, theirs[other])]
    own = _patterns(notebook, scope)
    return tuple(
        sorted({pattern for other in read for pattern in _patterns(other, scope)} - {*own})
    )


def _bases(profile: Profile, scope: Scope) -> list[tuple[str, int]]:
    """Return (name, seed) of the base models that must be trained for a job.

    Models that the profile names are not trained.
    """
    retain = [RETAIN_OF[split] for split in ([scope.split] if scope.split else profile["splits"])]
    retrained = "Retrained" in (scope.methods or ())
    seeds = seeds_of("Retrained", profile["seeds"]) if retrained else []
    every = dict.fromkeys((0, *seeds, profile["judge"]))
    wanted = [("full", 0), *((name, seed) for seed in every for name in retain)]
    return [which for which in wanted if which[0] not in profile["models"]]


def _reads(notebook: Notebook, scope: Scope, other: str, other_scope: Scope) -> bool:
    """Return True if a job must wait for a job of the notebook `other`.

    This is so if its notebook names the other one in `reads` and their scopes meet.
    """
    named = other in notebook.role.reads or ("*" in notebook.role.reads and other != notebook.name)
    return named and scope.meets(other_scope)


def _parameters(
    profile: Profile, notebook: Notebook, scope: Scope, out: Path, tuned: Path
) -> dict[str, Any]:
    """Return a job's parameters: settings of the run and of the profile that the notebook has.

    UserError if the notebook lacks a necessary parameter, and if the profile sets one that the
    notebook lacks or that belongs to the run.
    """
    names = ("data", "stage", "models", "evaluation", "seeds", "temperatures", "methods", "splits")
    settings = {name: profile[name] for name in names} | {
        "world": {name: profile[name] for name in WORLD},
        "profile": profile["name"],
        "hyper": profile["hyper"],
        "out": str(out),
    }
    settings["tuned"] = os.path.relpath(tuned, project_root()) if tuned.is_file() else ""
    if scope.split:
        settings["split"] = scope.split
    if scope.methods:
        settings["methods"] = list(scope.methods)
        settings["hyper"] = {
            key: value
            for key, value in profile["hyper"].items()
            if Scope((key.split("/")[0],), (key.split("/") + [None])[1]).meets(scope)
        }

    # A notebook without these parameters would ignore the profile.
    needed = {*notebook.role.each, "out", *({"hyper"} if scope.methods else set())}
    if missing := needed - notebook.parameters:
        raise UserError(
            f"{notebook.name}.ipynb: its parameters cell lacks {', '.join(sorted(missing))}"
        )

    extra = profile["notebooks"].get(notebook.name, {})

    for name in extra:
        if name in {*settings, "split", "hyper"}:
            raise UserError(
                f"profile {profile['name']}: notebooks.{notebook.name} cannot set {name}, which is"
                " the run's"
            )
        if name not in notebook.parameters:
            raise UserError(f"profile {profile['name']}: {notebook.name} has no parameter {name}")

    return {
        name: value for name, value in (settings | extra).items() if name in notebook.parameters
    }


def read_notebook(path: Path) -> Notebook | None:
    """Read a notebook's role, the names of its parameters and its code; None if it has no role.

    The file is read as JSON, because nbformat takes long to import and a finished profile should be
    checked quickly. UserError for a file that is not such a notebook.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (role := content["metadata"].get("t3")) is None:
            return None
        code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        texts = {"".join(cell["source"]): cell["metadata"].get("tags", []) for cell in code}
        [parameters] = [text for text, tags in texts.items() if "parameters" in tags]
        plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", "\n".join(texts), flags=re.M)
        ast.parse(plain)
        names = [node for node in ast.walk(ast.parse(parameters)) if isinstance(node, ast.Name)]
        declared = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        return Notebook(path.stem, Role.model_validate(role), frozenset(declared), plain)
    except ValidationError as error:
        raise UserError(f"{path.name}: metadata.t3: {one_line(error)}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise UserError(
            f"{path.name} is no notebook with one cell tagged 'parameters' ({error})"
        ) from None


def threads() -> str:
    """Return the number of threads of torch and BLAS in every job, as text.

    It is $T3_THREADS, or else 1, so that the number of workers does not change any result.
    UserError if it is no number.
    """
    value = os.environ.get("T3_THREADS", "1")
    if not re.fullmatch(r"[1-9]\d{0,3}", value):
        raise UserError(f"T3_THREADS is {value!r}, not a number of threads")
    return value


def _present(profile: Profile, folder: Path) -> dict[str, Notebook]:
    """Read all notebooks of a folder that have a role, by name.

    UserError if there are none, or if the profile names another one.
    """
    present = {
        path.stem: notebook
        for path in sorted(folder.glob("*.ipynb"))
        if (notebook := read_notebook(path))
    }
    if not present:
        raise UserError(f"no notebooks in {folder}: run t3 from the checkout")
    if unknown := {*profile["notebooks"], *profile["together"]} - set(present):
        raise UserError(f"profile: unknown notebook {min(unknown)}: one of {', '.join(present)}")
    return present


def _chosen(present: Mapping[str, Notebook], only: Iterable[str] | None) -> list[Notebook]:
    """Return the notebooks to run, each after those that it reads; UserError for unknown names."""
    wanted = set(present) if only is None else set()
    for name in only or ():
        matches = [
            notebook
            for notebook in present
            if name in (notebook, notebook.split("_")[0], f"{notebook}.ipynb")
        ]
        if not matches:
            raise UserError(
                f"--only: unknown notebook {name!r}: choose one of {', '.join(present)}"
            )
        wanted.update(matches)
    reads = {name: {*present[name].role.reads} for name in present}
    named = [name for name in present if "*" not in reads[name]]
    after = {
        name: [other for other in named if other != name and {other, "*"} & reads[name]]
        for name in present
    }
    try:
        return [present[name] for name in TopologicalSorter(after).static_order() if name in wanted]
    except CycleError as error:
        raise UserError(
            f"notebooks read each other in a circle: {' <- '.join(error.args[1])}"
        ) from None


def _identity(name: str, key: Callable[[Path], str]) -> str:
    """Return the key of a folder's content, or the name itself if it is no folder.

    Such names are "builtin", "hub" and Hub ids, whose commit is determined when the job runs.
    """
    folder = project_root() / name
    return key(folder) if folder.is_dir() else name
