"""The house keeps its shape: few entries, arrows in one direction, no circle, no torch where none
is needed.

Everything but one test is read from the sources with `ast`; nothing is imported. An import counts
wherever it stands: inside a function, and for type checkers alone too. Every message ends with what
to do.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

PACKAGE, LABORATORY = ROOT / "t3lib", ROOT / "notebooks" / "t3lab"
ENTRIES = 10  # of `ls t3lib`

# Room -> the rooms that it may import. `__init__` hands out public names of every room, when they
# are first used.
ARROWS: dict[str, list[str]] = {
    "core": [],
    "theory": ["core"],
    "classifier": ["core"],
    "sampler": ["core", "classifier"],
    "tofu": ["core", "classifier", "sampler"],
    "baselines": ["core", "classifier", "sampler", "tofu"],
    "cli": ["core", "classifier", "sampler"],
    "own": ["core", "classifier", "sampler", "tofu", "cli"],
    "lab": ["cli", "core", "classifier", "sampler", "tofu", "baselines", "theory", "own"],
}
METHOD = ("core", "theory", "classifier", "sampler", "tofu", "baselines")
# The same within the laboratory, whose modules are called lab.… here. A module that lies flat is a
# room by itself. A dotted entry admits that one module.
LAB: dict[str, set[str]] = {
    "names": set(),
    "files": set(),
    "identity": {"files"},
    "results": {"audit.labels", "identity", "names"},
    "profiles": {"files", "names"},
    "theory": set(),
    "world": {"files", "identity"},
    "chances": set(),
    "audit": {"chances"},
    "study": {"audit", "files", "identity", "names", "profiles", "results", "world"},
    "bench": {"study"},
    "explore": {"profiles", "theory", "world", "study", "report.look", "report.render"},
    "report": {"audit.labels", "chances", "names", "results", "theory"},
    "claims": {"names", "report", "results", "theory"},
    "grid": {"files", "identity", "profiles"},
    "script": {"grid", "profiles", "results"},
    "make_bases": {"profiles", "results", "script", "study", "world"},
}
LAB["cli"] = set(LAB)
WITHOUT_TORCH = ("theory", "lab.theory", "lab.report", "lab.claims", "lab.grid")


def name_of(path: Path) -> str:
    """`core.rows` of t3lib/core/rows.py, `lab.cli` of notebooks/t3lab/cli.py, `core` of a folder's
    `__init__`, "" of t3lib's.
    """
    inside = path.is_relative_to(LABORATORY)
    parts = path.relative_to(LABORATORY if inside else PACKAGE).with_suffix("").parts
    return ".".join(["lab"] * inside + [part for part in parts if part != "__init__"])


FILES = [path for root in (PACKAGE, LABORATORY) for path in sorted(root.rglob("*.py"))]
MODULES = {name_of(path): path for path in FILES}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST, *, in_functions: bool = True, for_types: bool = True) -> set[str]:
    """Full names of all that is imported at or below a node, `t3lib.core.files.read_json`
    included.
    """
    if not for_types and is_type_checking(node):
        return set()
    if not in_functions and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert not node.level, (
            f"line {node.lineno} imports from its own folder: write the name in full, from t3lib on"
        )
        return {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    children = ast.iter_child_nodes(node)
    return set().union(
        *(imports(child, in_functions=in_functions, for_types=for_types) for child in children)
    )


def modules_imported(module: str, **which: bool) -> set[str]:
    """The modules of ours that a module imports; `from t3lab.report import tables` is one of
    lab.report.tables.
    """
    found = (re.sub(r"^t3lab\b", "t3lib.lab", name) for name in imports(TREES[module], **which))
    ours = {name for name in found if name.split(".")[0] == "t3lib"}
    known = {name.removeprefix("t3lib").removeprefix(".") for name in ours} & set(MODULES) - {""}
    # a room's folder says nothing where it only leads to a module below
    return {name for name in known if not any(other.startswith(f"{name}.") for other in known)}


USES = {module: modules_imported(module) for module in MODULES if module}


def room(module: str, depth: int = 0) -> str:
    """The room of a module: its first folder (depth 0), or its place in the lab (depth 1)."""
    return [*module.split("."), ""][depth]


def none(found: list[str], remedy: str) -> None:
    assert not found, "\n".join([*sorted(found), "", f"What to do: {remedy}"])


def test_the_first_look_is_short():
    entries = sorted(
        path.name
        for path in PACKAGE.iterdir()
        if path.name != "__pycache__" and path.name[0] != "."
    )
    rooms = {Path(name).stem for name in entries} - {"__init__", "__main__"}
    remedy = (
        "put a module into the room whose word it carries, everything for the paper into"
        " notebooks/t3lab"
    )
    none(entries if len(entries) > ENTRIES else [], remedy)
    none(
        sorted(rooms ^ {*ARROWS} - {"lab"}),
        "put a module into a room; a new room has a row in ARROWS, one that is gone has none",
    )
    places = {room(module, 1) for module in MODULES if module.startswith("lab.")}
    none(
        sorted(places ^ set(LAB)),
        "give every place in lab/ its row in LAB, and take away rows of what is gone",
    )


def test_arrows_point_one_way():
    wrong = [
        f"{module} imports {used}: {room(module)} may import"
        f" {', '.join(ARROWS.get(room(module), ())) or 'nothing'}"
        for module, uses in USES.items()
        if module != "__main__"  # it is the command
        for used in uses
        if room(used) not in {room(module), *ARROWS.get(room(module), ())}
    ]
    none(
        wrong,
        "move the definition that is needed into the importer's room or one before it, or the"
        " importer on",
    )


def test_the_method_knows_neither_own_nor_the_audit():
    """`own` lives as if it were a package of its own, and the audit as what it is, a part of the
    laboratory.
    """
    assert {*METHOD} == {*ARROWS} - {"own", "cli", "lab"}
    assert any(room(used, 1) == "audit" for used in USES["lab.study.audit"])
    wrong = [
        f"{module} imports {used}"
        for module, uses in USES.items()
        for used in uses
        if room(module) in METHOD
        and room(used) == "own"
        or room(module) != "lab"
        and used.startswith("lab.audit")
    ]
    none(
        wrong,
        "move what is needed into tofu or below, as `token_scores` is, or hand it over as an"
        " argument",
    )


def test_arrows_in_the_lab_point_one_way():
    wrong = [
        f"{module} imports {used}"
        for module, uses in USES.items()
        for used in uses
        if module.startswith("lab.") and used.startswith("lab.")
        if not {room(used, 1), used.removeprefix("lab.")}
        & {room(module, 1), *LAB.get(room(module, 1), ())}
    ]
    none(
        wrong,
        "move what is needed to where both may look (LAB says who looks where), or hand it over as"
        " an argument",
    )


def test_no_circle():
    """Remove modules that import nothing left, or that nothing left imports, again and again: a
    circle stays.
    """
    left = USES
    while free := {
        m
        for m, uses in left.items()
        if not uses & set(left) or not any(m in o for o in left.values())
    }:
        left = {module: uses for module, uses in left.items() if module not in free}
    arrows = [
        f"{module} imports {', '.join(sorted(uses & set(left)))}" for module, uses in left.items()
    ]
    none(arrows, "move what both need into a module of its own, also when it is a type alone")


def test_what_people_install_imports_no_package_of_the_laboratory():
    """Those that pyproject.toml lists under `notebooks`, and not for t3lib itself."""
    packages = "dask distributed papermill nbformat matplotlib seaborn pydantic psutil yaml t3lab"
    wrong = [
        f"{module} imports {name}"
        for module, tree in TREES.items()
        if not module.startswith("lab")
        for name in imports(tree)
        if name.split(".")[0] in packages.split()
    ]
    none(wrong, "what needs it goes to notebooks/t3lab")


def without_torch() -> list[str]:
    found = [
        module
        for module in MODULES
        if f"{module}.".startswith(tuple(f"{name}." for name in WITHOUT_TORCH))
    ]
    assert len(found) > len(WITHOUT_TORCH)
    return found


def test_no_torch_by_source():
    """Imports inside functions count too."""
    wanting = [
        module
        for module in without_torch()
        if any(name.split(".")[0] == "torch" for name in imports(TREES[module], for_types=False))
    ]
    none(
        wanting,
        "let the caller compute what needs torch and hand over numbers, as run files and tables do",
    )


def test_no_torch_when_imported():
    names = [
        "t3lib",
        "t3lib.tofu.metrics",
        "t3lib.core.settings",
        *(re.sub(r"^t3lib.lab", "t3lab", f"t3lib.{module}") for module in without_torch()),
    ]
    lines = "\n".join(
        f"import {name}\nassert not {{'torch', 'transformers'}} & set(sys.modules), {name!r}"
        for name in names
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{lines}"], cwd=ROOT, capture_output=True, text=True
    )
    none(
        [done.stderr] if done.returncode else [],
        "`python -X importtime -c 'import MODULE'` shows who loads it",
    )


def public_without_docstring(node: ast.AST, prefix: str) -> list[str]:
    """Public functions, classes and methods below a module or class that say nothing about
    themselves.
    """
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) and not child.name.startswith("_"):
            if not ast.get_docstring(child):
                found.append(f"{prefix}.{child.name}")
            if isinstance(child, ast.ClassDef):
                found += public_without_docstring(child, f"{prefix}.{child.name}")
    return found


def test_every_public_function_has_a_docstring():
    silent = [name for name, tree in TREES.items() if not ast.get_docstring(tree)]
    found = [
        name for module, tree in TREES.items() for name in public_without_docstring(tree, module)
    ]
    none([*silent, *found], "say in one sentence, verb first, what it does, or make it private")


def test_no_docstring_is_torn_after_an_abbreviation():
    """The full stop of "Eq. 3" ends no sentence, so no paragraph ends there."""
    torn = [
        f"{name}: {line.strip()}"
        for name, path in MODULES.items()
        for line in re.findall(r".*\b(?:Eqs?|Figs?|Sec|Thm)\.\n\n", path.read_text("utf-8"))
    ]
    none(torn, "put the number of the equation behind the abbreviation again")


def test_tests_lie_where_the_code_lies():
    folders = [
        path
        for path in (ROOT / "tests").rglob("*")
        if path.is_dir() and not {"_", "."} & {path.name[0]}
    ]
    places = {
        path.relative_to(ROOT / "tests").as_posix()
        for path in folders
        if "__pycache__" not in path.parts
    }
    # attacks are on every room at once, the scripts beside the results use all of them, and serving
    # needs vLLM
    allowed = {
        "attacks",
        "results",
        "serving",
        *ARROWS,
        *(f"lab/{place}" for place in LAB),
    }
    none(sorted(places - allowed), "give a folder of tests the name of the room that it tests")


def test_no_two_test_files_have_one_name():
    """Without packages, pytest imports a test file by its bare name: a second file of that name is
    an error.
    """
    names = [
        path.name for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts
    ]
    none([name for name in set(names) if names.count(name) > 1], "rename one of the two")
