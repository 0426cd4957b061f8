"""The house keeps its shape: which room may import which, no cycles, no torch where none is needed, sizes, docstrings.

Everything but one test is read from the sources with `ast`; nothing is imported. An import counts wherever it stands,
also inside a function, except under `if TYPE_CHECKING`, which never runs.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "t3lib"
ROOMS = ("theory", "baselines", "world", "study", "bench", "explore", "audit", "report", "claims", "grid")
VOCABULARY = ("names", "errors", "files", "identity", "_version")
COMMAND_LINE = ("cli", "commands", "profiles", "__main__")

# Room -> what it may import besides itself. A flat module is of the vocabulary, of the command line, or of the method.
# A dotted entry admits that one module. `__init__` (the public names, loaded when first used) stands outside.
LIGHT = {"vocabulary", "results", "metrics", "baselines.losses"}
LEFT = {"vocabulary", "method"}
ARROWS: dict[str, set[str]] = {
    "vocabulary": {"baselines.losses"},  # identity: the names of the methods
    "method": {"vocabulary", "baselines.losses"},  # results: the names of the methods
    "theory": {"vocabulary"},
    "baselines": LEFT,
    "world": LEFT | {"baselines"},
    "study": LEFT | {"baselines", "world", "audit"},
    "bench": LEFT | {"baselines", "world", "study", "theory"},
    "explore": LEFT | {"baselines", "world", "study", "theory", "audit"},
    "audit": LEFT,
    "report": LIGHT | {"theory"},
    "claims": LIGHT | {"theory", "report", "bench.shapes", "bench.cost"},
    "grid": {"vocabulary", "profiles", "hub"},
    "command line": {"vocabulary", "method", *ROOMS},
}
WITHOUT_TORCH = ("theory", "report", "claims", "grid")
LINES = 400  # of one module
SIZES = {"method": 3500, "command line": 600, "claims": 1000, "report": 900, "all": 10300}  # lines of a whole room

# A module that only one module or notebook imports must be an idea with a name; here is the name.
IDEAS = {
    "cli": "the command line",
    "commands": "what each verb does",
    "pooling": "MeanPool, and its state in the KV cache",
    "unlearning": "rows in, unlearned model out",
    "theory.bounds": "the theorems",
    "theory.identities": "the lemmas' identities",
    "theory.montecarlo": "Monte Carlo errors, the check of the quadrature",
    "baselines.forward": "one pass of a batch: log-probabilities and hidden states",
    "baselines.assistant": "the small model that ULD trains",
    "baselines.uld": "ULD: an assistant's logits, subtracted",
    "world.facts": "what is true in the built-in world",
    "study.audit": "the audit of one method on one split",
    "study.tune": "the paper's tuning protocol",
    "study.ablations": "T3's other choices, one at a time",
    "bench.head": "cost of training a head",
    "bench.model": "cost of decoding",
    "bench.sheet": "the eight rows of t3 bench",
    "explore.gaussians": "sliders over two Gaussians",
    "explore.own": "the slider over T on a person's own model",
    "explore.language": "sliders over next-token distributions",
    "claims.theory": "the claims that the theory decides",
    "audit.choice": "T, w and the learning rate from evidence",
    "audit.leakage": "leak@k",
    "audit.membership": "whether forgotten rows can be told from unseen ones",
    "audit.own": "unlearning a person's own model, with a report",
    "audit.recognition": "whether a forgotten answer is recognised",
    "audit.samples": "sampled answers",
    "report.own": "the report on a person's own model",
    "report.compare": "two results folders, cell by cell",
    "report.page": "the page of results",
    "report.readme": "the README's generated blocks",
    "claims.gaussians": "claims about the Gaussian experiments",
    "claims.llm": "claims about language models",
    "claims.table": "the table of claims",
    "report.architecture": "Figure 1",
    "report.plots_cost": "figures of cost",
    "report.plots_theory": "figures of the theory",
    "grid.cluster": "where jobs run",
    "grid.fork": "kernels that start in a moment",
    "grid.preflight": "what a profile needs of this machine",
    "grid.reproduce": "t3 reproduce",
    "grid.status": "what a person sees while the grid runs",
}

# What is still open, by the beginnings of the lines that a test would print; it only shrinks.
OPEN: dict[str, set[str]] = {
    "sizes": {"all", "command line", "method", "report"},
}


def name_of(path: Path) -> str:
    """`baselines.losses` of t3lib/baselines/losses.py; `report` of its folder's `__init__`, "" of t3lib's."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def room(module: str) -> str:
    """The room a module lies in: a folder's name, else "vocabulary", "command line" or "method"."""
    first, _, rest = module.partition(".")
    if rest or first in ROOMS:
        return first
    return "vocabulary" if first in VOCABULARY else "command line" if first in COMMAND_LINE else "method"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST, *, inside_functions: bool = True) -> set[str]:
    """Full names of all that is imported at or below a node, `t3lib.files.read_json` included."""
    if is_type_checking(node) or not inside_functions and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        return {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    below = (imports(child, inside_functions=inside_functions) for child in ast.iter_child_nodes(node))
    return set().union(*below)


def modules_imported(module: str, *, inside_functions: bool = True) -> set[str]:
    """The modules of t3lib that a module imports; `from t3lib.report import page` is an import of report.page."""
    names = {
        name.removeprefix("t3lib").removeprefix(".")
        for name in imports(TREES[module], inside_functions=inside_functions)
        if name.split(".")[0] == "t3lib"
    }
    known = names & set(MODULES) - {""}  # a room's folder says nothing where it only leads to a module below
    return {name for name in known if not any(other.startswith(f"{name}.") for other in known)}


def code_of(notebook: Path) -> ast.Module:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    return ast.parse("\n".join("".join(cell["source"]) for cell in cells))


USES = {module: modules_imported(module) for module in MODULES}


def none_but_open(test: str, found: set[str]) -> None:
    new = sorted(place for place in found if not place.startswith(tuple(OPEN.get(test, ()))))
    assert not new, "\n".join([f"{test}:", *new])


def test_arrows_point_one_way():
    wrong = set()
    for module in MODULES:
        if not module:
            continue
        allowed = ARROWS[room(module)] | {room(module)}
        for used in USES[module]:
            if room(used) not in allowed and used not in allowed:
                wrong.add(f"{module} imports {used}")
    none_but_open("arrows", wrong)


def test_no_cycle():
    """Remove modules that import nothing left, or that nothing left imports, again and again: a cycle stays."""
    left = {module: uses for module, uses in USES.items() if module}
    while free := {m for m, uses in left.items() if not uses & set(left) or not any(m in o for o in left.values())}:
        left = {module: uses for module, uses in left.items() if module not in free}
    none_but_open("cycle", set(left))


def torch_is_reached(module: str) -> list[str]:
    """The chain of modules over which `module` reaches torch, or an empty list.

    The module's imports count wherever they stand; of the modules beyond, those that run when they are imported.
    """
    chains = [[module]]
    seen = {module}
    for chain in chains:
        last, first = chain[-1], len(chain) == 1
        if any(name.split(".")[0] == "torch" for name in imports(TREES[last], inside_functions=first)):
            return chain
        for used in modules_imported(last, inside_functions=first) - seen:
            seen.add(used)
            chains.append([*chain, used])
    return []


def test_no_torch_by_source():
    chains = {module: torch_is_reached(module) for module in MODULES if room(module) in WITHOUT_TORCH}
    none_but_open("torch", {" -> ".join(chain) for chain in chains.values() if chain})


def test_no_torch_when_imported():
    names = [f"t3lib.{module}" for module in MODULES if room(module) in WITHOUT_TORCH]
    names = ["t3lib", "t3lib.metrics", "t3lib.settings", *names]
    lines = "\n".join(
        f"import {name}\nassert not {{'torch', 'transformers'}} & set(sys.modules), {name!r}" for name in names
    )
    done = subprocess.run([sys.executable, "-c", f"import sys\n{lines}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sizes():
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    none_but_open("lines", {f"{module}: {count}" for module, count in lines.items() if count > LINES})
    sums = {name: sum(n for m, n in lines.items() if room(m) == name or name == "all") for name in SIZES}
    none_but_open("sizes", {name for name, limit in SIZES.items() if sums[name] > limit})


def test_a_module_with_one_importer_is_a_named_idea():
    """A notebook counts as an importer; so does `t3lib`, for the public names."""
    notebooks = {path.stem: imports(code_of(path)) for path in (ROOT / "notebooks").glob("*.ipynb")}
    users = USES | {stem: {name.removeprefix("t3lib.") for name in names} for stem, names in notebooks.items()}
    importers = {module: {user for user, uses in users.items() if module in uses} for module in MODULES}
    rooms = {module for module in MODULES if MODULES[module].name == "__init__.py"}
    alone = {module for module, others in importers.items() if len(others) == 1} - set(IDEAS) - rooms
    none_but_open("ideas", alone)


def public_without_docstring(node: ast.AST, prefix: str) -> set[str]:
    """Public functions, classes and methods below a module or class that say nothing about themselves."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            if not ast.get_docstring(child):
                found.add(f"{prefix}.{child.name}")
            if isinstance(child, ast.ClassDef):
                found |= public_without_docstring(child, f"{prefix}.{child.name}")
    return found


def test_every_public_function_has_a_docstring():
    none_but_open("docstrings", set().union(*(public_without_docstring(tree, name) for name, tree in TREES.items())))
    assert all(ast.get_docstring(tree) for name, tree in TREES.items() if not name.endswith(("_version", "__main__")))


def test_tests_lie_where_the_code_lies():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders - {"attacks"} <= {*ROOMS}  # attacks are on every room at once


def test_no_two_test_files_have_one_name():
    """Without packages, pytest imports a test file by its bare name: a second file of that name is an error."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.stem)
def test_a_private_name_in_a_test_says_why(path):
    """`module._name` of something imported from t3lib needs a comment on its line or on the line above."""
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    ours = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (node.module if isinstance(node, ast.ImportFrom) else alias.name or "").split(".")[0] == "t3lib"
    }
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
            names = [node.attr]
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "t3lib":
            names = [alias.name for alias in node.names]
        private = [name for name in names if name.startswith("_") and not name.endswith("__")]
        if private and not any("#" in line for line in lines[max(0, node.lineno - 2) : node.lineno]):
            found.add(f"{path.stem}: {private[0]}")
    none_but_open("private", found)
