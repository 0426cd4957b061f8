"""Which modules of t3lib some code reaches through imports, and a key of their source: what a cached result needs.

Docstrings and comments do not count. Sources are read, never imported.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from t3lib.files import content_key

LIBRARY = Path(__file__).resolve().parent


def library_key(code: str) -> str:
    """Hash of the t3lib modules that `code` reaches through imports, names and modules of t3lib alike."""
    reached: set[str] = set()
    waiting = list(imports_of(ast.parse(code)))
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += module_facts(module)[1]
    return content_key({module: module_facts(module)[0] for module in sorted(reached)})


@cache
def module_facts(name: str) -> tuple[str, tuple[str, ...]]:
    """Digest of a module's syntax tree without docstrings, and the t3lib modules it imports (anywhere in it)."""
    tree = ast.parse((LIBRARY / f"{name}.py").read_text(encoding="utf-8"))
    imports = tuple(imports_of(tree))
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *rest]:
                node.body = rest  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Modules of t3lib that a tree names: `import t3lib.x`, `from t3lib import x`, `t3lib.x`, public names included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("t3lib."):
                    yield alias.name.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "t3lib":
            for alias in node.names:
                yield from _homes(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("t3lib."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("t3lib", "t3"):
            yield from _homes(node.attr)


@cache
def _homes(name: str) -> tuple[str, ...]:
    """Module of t3lib called `name`, else the modules that define it at their top (t3lib's lazy public names)."""
    if (LIBRARY / f"{name}.py").is_file():
        return (name,)
    pattern = re.compile(rf"^(?:class|def) {re.escape(name)}\b|^{re.escape(name)}\b[^=\n]*=", re.M)
    return tuple(p.stem for p in sorted(LIBRARY.glob("*.py")) if pattern.search(p.read_text(encoding="utf-8")))
