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
    tree = ast.parse(_path(name).read_text(encoding="utf-8"))
    imports = tuple(imports_of(tree))
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *rest]:
                node.body = rest  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports


def _path(name: str) -> Path:
    folder = LIBRARY.joinpath(*name.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Modules of t3lib that a tree names, as names below t3lib, public names included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("t3lib."):
                    yield alias.name.removeprefix("t3lib.")
        elif isinstance(node, ast.ImportFrom) and (node.module == "t3lib" or (node.module or "").startswith("t3lib.")):
            within = str(node.module).removeprefix("t3lib").lstrip(".")
            if within:
                yield within
            for alias in node.names:
                inner = f"{within}.{alias.name}".lstrip(".")
                if _path(inner).is_file():
                    yield inner
                elif not within:
                    yield from _homes(alias.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("t3lib", "t3"):
            yield from _homes(node.attr)


@cache
def _homes(name: str) -> tuple[str, ...]:
    """Module of t3lib called `name`, else the modules that define it at their top (t3lib's lazy public names)."""
    if _path(name).is_file():
        return (name,)
    pattern = re.compile(rf"^(?:class|def) {re.escape(name)}\b|^{re.escape(name)}\b[^=\n]*=", re.M)
    found = (p for p in sorted(LIBRARY.rglob("*.py")) if pattern.search(p.read_text(encoding="utf-8")))
    return tuple(".".join(p.relative_to(LIBRARY).with_suffix("").parts) for p in found)
