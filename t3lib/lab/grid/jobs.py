"""The graph of one reproduction: profile -> jobs, each with a content key; the notebooks are
inputs, never imported.

Each notebook says in its own metadata (`Role`) for what it runs, what it reads and what it writes:
a new notebook is a new file. A job's key covers what can change its result: its parameters, the
code cells of its notebook and all of t3lib that they reach, data and model files, package versions,
device type and the number of threads. Results folder and machine are not in it.
"""

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from t3lib.baselines.losses import METHODS
from t3lib.core.errors import UserError
from t3lib.core.files import (
    content_key,
    folder_key,
    model_identity,
    project_root,
    sha256_file,
    shipped,
)
from t3lib.core.identity import code_key, notebook_key, versions
from t3lib.core.names import RETAIN_OF
from t3lib.core.settings import WORLD, seeds_of
from t3lib.lab.profiles import Profile, one_line, tuned_path

TOGETHER = "together"  # in a job's name: in place of a method, for several
DRAWING = "t3lib.lab.report"  # the code of figures, tables and pages


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
    on_request: True for a notebook that runs only where its name is asked for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    each: tuple[Literal["methods", "split"], ...] = ()
    method: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...]
    draws: bool = False
    partial: bool = False
    on_request: bool = False


@dataclass(frozen=True)
class Scope:
    """What a job is for: some methods and a split, None where it is for all of the profile's."""

    methods: tuple[str, ...] | None = None
    split: str | None = None

    def meets(self, other: "Scope") -> bool:
        """True when there is a method and a split that both are for."""
        methods = not self.methods or not other.methods or {*self.methods} & {*other.methods}
        return bool(methods) and (None in (self.split, other.split) or self.split == other.split)


@dataclass(frozen=True)
class Notebook:
    """What the graph needs to know of a notebook; `code` is its code cells without IPython's
    lines.
    """

    name: str
    role: Role
    parameters: frozenset[str]
    code: str


@dataclass(frozen=True)
class Job:
    """One kernel: a notebook with parameters, or one base model. `after` names the jobs whose
    results it reads.
    """

    name: str
    kind: str  # "notebook" | "base"
    notebook: str  # stem of the notebook, "" for a base
    parameters: dict[str, Any]
    after: tuple[str, ...]
    key: str  # of everything that can change the result
    outputs: tuple[str, ...] = ()  # patterns below the results folder
    inputs: tuple[
        str, ...
    ] = ()  # patterns below the results folder whose content is in the key of a run
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
    """Jobs of a profile in an order in which they can run: bases, then each notebook after those it
    reads.

    out: the results folder as the notebooks are to see it; only: notebook names (or their numbers)
    to run, with the bases they need; folder: where the notebooks are; tuned: the file of the
    profile's search, default beside the shipped profiles; device: type of what the jobs run on.
    Folders in the profile are seen from the project's root. UserError names an unknown notebook or
    parameter.
    """
    tuned = tuned or tuned_path(profile["name"])
    content: dict[str, Any] = {"data": _identity(profile["data"], folder_key)}
    content["tuned"] = sha256_file(tuned) if tuned.is_file() else None
    content["models"] = {
        name: _identity(model, model_identity) for name, model in profile["models"].items()
    }
    environment = [versions(), threads(), device]
    base_code = code_key("t3lib.lab.world.bases.ensure_base", through=True)
    bases: dict[str, Job] = {}
    jobs: dict[str, Job] = {}
    scopes: dict[str, Scope] = {}

    def base(name: str, seed: int) -> str:
        stage, job = {**profile["stage"], "data": profile["data"]}, f"base--{name}--seed{seed}"
        key = content_key(
            ["base", name, seed, stage | {"data": content["data"]}, base_code, *environment]
        )
        bases[job] = Job(job, "base", "", {"stage": stage, "name": name, "seed": seed}, (), key)
        return job

    keys = cache(notebook_key)  # of a notebook for one method, whatever the split
    present = _present(profile, folder or shipped("notebooks"))
    for notebook in _chosen(present, only):
        without = "" if notebook.role.draws else DRAWING
        for scope in _scopes(notebook, profile):
            methods = scope.methods or tuple(profile["methods"])
            code = keys(notebook.code, methods=methods, without=without)
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
            key = content_key([notebook.name, handed, code, *environment])
            jobs[name] = Job(
                *(name, "notebook", notebook.name, parameters, tuple(after), key),
                outputs=_patterns(notebook, scope),
                inputs=_inputs(notebook, scope, present),
                partial=notebook.role.partial,
            )
            scopes[name] = scope
    return [*bases.values(), *jobs.values()]


def _scopes(notebook: Notebook, profile: Profile) -> list[Scope]:
    """What each of a notebook's jobs is for."""
    role, methods = notebook.role, profile["methods"]
    groups: Sequence[tuple[str, ...] | None] = [None]
    if role.method:
        groups = [(role.method,)] * (role.method in methods)
    elif "methods" in role.each:
        shared = profile["together"].get(notebook.name, [])
        one = tuple(method for method in METHODS if method in shared and method in methods)
        groups = [one] * bool(one) + [(method,) for method in methods if method not in one]
    splits = profile["splits"] if "split" in role.each else [None]
    return [Scope(group, split) for split in splits for group in groups]


def _patterns(notebook: Notebook, scope: Scope) -> tuple[str, ...]:
    """What a notebook writes for its methods and split; "*" stands for those of a scope of all."""
    named = [(method, scope.split or "*") for method in scope.methods or ("*",)]
    found = [
        pattern.format(method=method, split=split)
        for pattern in notebook.role.writes
        for method, split in named
    ]
    return tuple(dict.fromkeys(found))


def _inputs(notebook: Notebook, scope: Scope, present: Mapping[str, Notebook]) -> tuple[str, ...]:
    """What the notebooks write that a notebook reads, but for what it writes itself."""
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
    """(name, seed) of the bases that are to be trained for a job; none whose model the profile
    names.
    """
    retain = [RETAIN_OF[split] for split in ([scope.split] if scope.split else profile["splits"])]
    retrained = "Retrained" in (scope.methods or ())
    seeds = seeds_of("Retrained", profile["seeds"]) if retrained else []
    wanted = [("full", 0), *((name, seed) for seed in (0, *seeds) for name in retain)]
    return [which for which in wanted if which[0] not in profile["models"]]


def _reads(notebook: Notebook, scope: Scope, other: str, other_scope: Scope) -> bool:
    """True when a job reads what a job of the notebook `other` writes: it says so, and they meet in
    a method and a split.
    """
    named = other in notebook.role.reads or ("*" in notebook.role.reads and other != notebook.name)
    return named and scope.meets(other_scope)


def _parameters(
    profile: Profile, notebook: Notebook, scope: Scope, out: Path, tuned: Path
) -> dict[str, Any]:
    """What the notebook is handed: of the run's settings those that it declares, and the profile's
    for it alone.
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
    # without these a profile's words would be lost
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
    """A notebook's role, the names in its cell tagged `parameters`, and its code; None for one
    without a role.

    Read as JSON, without nbformat, because the check of a finished profile must be quick.
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
    """Threads of torch and BLAS in every job: $T3_THREADS, else one, so that 1 and 2 workers give
    the same bits.
    """
    value = os.environ.get("T3_THREADS", "1")
    if not re.fullmatch(r"[1-9]\d{0,3}", value):
        raise UserError(f"T3_THREADS is {value!r}, not a number of threads")
    return value


def _present(profile: Profile, folder: Path) -> dict[str, Notebook]:
    """The notebooks of a folder that have a role, by name."""
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
    """The notebooks to run, by name, each after those it reads."""
    usual = {name for name, notebook in present.items() if not notebook.role.on_request}
    wanted = usual if only is None else set()
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
    """The key of a folder's content; "builtin", "hub" or a Hub id, whose commit a run finds out,
    stands for itself.
    """
    folder = project_root() / name
    return key(folder) if folder.is_dir() else name
