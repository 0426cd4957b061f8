"""Find which definitions of t3lib a function can reach, and hash each of them.

`identity.code_key` makes cache keys of this. The code is parsed with `ast` and never imported.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from t3lib.core.files import folder_key, sha256_file, shipped

BASELINES = "t3lib.baselines.losses.BASELINES"  # its keys are the names of the methods
SHIPPED = "results/paper"  # the one folder of data outside t3lib that its code reads by name
MACHINERY = (__name__, f"{__package__}.identity")  # the code that makes keys is in no key
Use = tuple[str, str]  # module and top-level name in it; "" for all of the module


def digests(library: Path) -> dict[str, str]:
    """Return the SHA-256 of every code and template file of t3lib, by its path in the library."""
    suffixes = (".py", ".yaml", ".md", ".html", ".css", ".js", ".tex", ".j2")
    files = (path for path in library.rglob("*") if path.suffix in suffixes)
    return {str(path.relative_to(library)): sha256_file(path) for path in files}


@dataclass(frozen=True)
class Module:
    """A parsed module.

    bound: top-level statements by the names that they define. loose: statements that define no name
    and run at import. aliases: imported names with the dotted names they stand for, including
    imports for type checkers.
    """

    name: str
    path: Path
    bound: dict[str, list[ast.stmt]] = field(default_factory=dict)
    loose: list[ast.stmt] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)


def read_module(name: str, text: str, path: Path) -> Module:
    """Parse the source `text` of the module `name`; its imports must be absolute."""
    module, tree = Module(name, path), ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module.aliases.update(
                {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            )
        elif isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.split(".")[0]
                module.aliases[each.asname or first] = each.name if each.asname else first
    for statement in tree.body:
        types_only = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)
        if types_only or _says_nothing(statement):
            continue
        names = _bound_by(statement)
        for target in names:
            module.bound.setdefault(target, []).append(statement)
        if not names:
            module.loose.append(statement)
    return module


def _says_nothing(node: Any) -> bool:
    """Return True for a statement that no key counts: an import, a docstring, a bare constant."""
    bare = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return bare or isinstance(node, ast.Import | ast.ImportFrom)


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return names that a top-level statement defines or changes.

    These are `X = …`, `X["a"] = …`, `X.a = …`, def and class.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    changed = (ast.Store, ast.Del)
    targets = (n for n in ast.walk(statement) if isinstance(getattr(n, "ctx", None), changed))
    return {name for each in targets for name in re.findall(r"^\w+", ast.unparse(each))}


class Source:
    """All modules of t3lib as they are on disk, with digests of their definitions."""

    def __init__(self, library: Path) -> None:
        self.modules: dict[str, Module] = {}
        self.written: dict[tuple[Use, frozenset[str] | None], tuple[str, set[Use]]] = {}
        for path in library.rglob("*.py"):
            parts = path.relative_to(library).with_suffix("").parts
            name = ".".join(("t3lib", *parts)).removesuffix(".__init__")
            self.modules[name] = read_module(name, path.read_text(encoding="utf-8"), path)

    @cached_property
    def methods(self) -> set[str]:
        """Names of all unlearning methods: the keys of the literal table `BASELINES`, and T3."""
        found = self.resolve(BASELINES)
        definitions = self.modules[found[0][0]].bound[found[0][1]] if found else []
        nodes = (node for each in definitions for node in ast.walk(each))
        keys = next((node.keys for node in nodes if isinstance(node, ast.Dict)), [])
        return {"T3", *(str(key.value) for key in keys if isinstance(key, ast.Constant))}

    def resolve(self, dotted: str) -> tuple[Use, str] | None:
        """Find the definition that a dotted name leads to; None outside t3lib.

        Returns (module, name) and the rest of the dotted name, such as a method's. Names that a
        package imports from its modules are followed, t3lib's lazy public names included.
        """
        parts = dotted.split(".")
        lengths = range(len(parts), 0, -1)
        length = next((n for n in lengths if ".".join(parts[:n]) in self.modules), 0)
        if not length or length == len(parts):
            return ((dotted, ""), "") if length else None
        module, name = self.modules[".".join(parts[:length])], parts[length]
        if name in module.bound:
            return (module.name, name), ".".join(parts[length + 1 :])
        home = module.aliases.get(name)
        return self.resolve(".".join([home, *parts[length + 1 :]])) if home else None

    def find(self, dotted: str) -> Use:
        """Find the definition with exactly this dotted name; KeyError when there is none."""
        found = self.resolve(dotted)
        if found is None or found[1]:
            raise KeyError(f"t3lib has no {dotted}")
        return found[0]

    def reached(
        self, wanted: Iterable[Use], methods: frozenset[str], through: bool, without: str = ""
    ) -> dict[Use, str]:
        """Return digests of all definitions that the `wanted` ones can reach, those included.

        methods, through and without: as in `identity.code_key` and `identity.notebook_key`.
        """
        entries = set(wanted)
        waiting, seen, digests = list(entries), set[Use](), dict[Use, str]()
        while waiting:
            use = waiting.pop()
            if use in seen or use[0] in MACHINERY or (without and use[0].startswith(without)):
                continue
            seen.add(use)
            module = self.modules[use[0]]
            if not use[1]:
                waiting += [(module.name, name) for name in module.bound]
                beside = module.path.parent if module.path.name == "__init__.py" else None
                waiting += [(m.name, "") for m in self.modules.values() if m.path.parent == beside]
            elif through or use in entries or not _is_keyed(module.bound[use[1]]):
                digests[use], uses = self.digest(use, methods)
                waiting += uses
        return digests

    def digest(self, use: Use, methods: frozenset[str]) -> tuple[str, set[Use]]:
        """Hash one top-level definition and its module's import-time statements.

        Returns the digest and the definitions that these name. methods: as in `identity.code_key`.
        """
        for known in ((use, None), (use, methods)):
            if known in self.written:
                return self.written[known]
        module = self.modules[use[0]]
        writer = Writer(self, module, methods)
        text = writer.text([*module.bound[use[1]], *module.loose], frozenset())
        text += "".join(files_named(module.path.parent, writer.texts))
        # Without a table by method the text is the same for all methods.
        key = (use, methods if writer.narrowed else None)
        self.written[key] = hashlib.sha256(text.encode()).hexdigest(), writer.uses
        return self.written[key]


def files_named(folder: Path, texts: set[str]) -> list[str]:
    """Return checksums of data files that some string constants name.

    These are files in `folder` or in its templates, and the tables of the paper.
    """
    names = [text for text in sorted(texts) if re.fullmatch(r"[\w-]+(\.[\w-]+)+", text)]
    files = [place / name for name in names for place in (folder, folder / "templates")]
    named = [sha256_file(path) for path in files if path.suffix != ".py" and path.is_file()]
    return [*named, *([folder_key(shipped(SHIPPED))] if SHIPPED in texts else [])]


def names_and_digests(digests: dict[Use, str]) -> list[list[str]]:
    """List [name, digest] of each definition, sorted; no module names, so moves do not count."""
    return sorted([name, digest] for (_, name), digest in digests.items())


def _is_keyed(statements: list[ast.stmt]) -> bool:
    """Return whether one of the statements is a definition with the decorator `keyed`."""
    marks = (mark for each in statements for mark in getattr(each, "decorator_list", []))
    return any(ast.unparse(mark).split(".")[-1] == "keyed" for mark in marks)


@lru_cache(maxsize=4)
def source_of(library: Path, digests: tuple[tuple[str, str], ...]) -> Source:
    """Return the parsed library for these checksums of its files; the last four are cached."""
    return Source(library)


def source_on_disk(library: Path) -> Source:
    """Return the parsed library, parsed again when a file has changed."""
    return source_of(library, tuple(sorted(digests(library).items())))


class Writer:
    """Turn definitions into canonical text that changes only when their meaning does.

    Collects on the way: uses, the definitions of t3lib that were named; texts, all string
    constants; narrowed, whether a table by method was met, of which only the rows of `methods` are
    in the text.
    """

    def __init__(self, source: Source, module: Module, methods: frozenset[str]) -> None:
        self.source, self.module, self.methods = source, module, methods
        self.uses: set[Use] = set()
        self.texts: set[str] = set()
        self.narrowed = False

    def text(self, node: Any, local: frozenset[str]) -> str:
        """Return the canonical text of a syntax tree node or of a list of nodes.

        An imported name is replaced by what it stands for. local: names that belong to the
        enclosing function and so are not looked up.
        """
        match node:
            case list():
                written = (self.text(each, local) for each in node if not _says_nothing(each))
                return f"[{' '.join(written)}]"
            case ast.Name() | ast.Attribute() if (chain := _chain(node)) and chain[0] not in local:
                return self.name(chain)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return self.function(node, local)
            case ast.Dict():
                rows = [row for row in zip(node.keys, node.values) if self.is_mine(row[0])]
                return f"(Dict {self.text([part for row in rows for part in row], local)})"
            case ast.Tuple() | ast.List() | ast.Set():
                mine = [each for each in node.elts if self.is_mine(each)]
                return f"({type(node).__name__} {self.text(mine, local)})"
            case ast.AST():
                # Annotations inside a function are never evaluated.
                without = ("ctx", "annotation") if local else ("ctx",)
                fields = (value for name, value in ast.iter_fields(node) if name not in without)
                return f"({type(node).__name__} {' '.join(self.text(v, local) for v in fields)})"
            case str() if re.fullmatch(r"t3lib(\.\w+)+", node) and (
                found := self.source.resolve(node)
            ):
                # A module, such as a package of templates, counts by its last name alone.
                self.uses |= {found[0]} if found[0][1] else set()
                return f"<{found[0][1] or node.rpartition('.')[2]}>"
        self.texts |= {node} if isinstance(node, str) else set()
        return repr(node)

    def function(self, node: Any, local: frozenset[str]) -> str:
        """Return a function's canonical text.

        Decorators and defaults are read in the enclosing scope, the body with the function's own
        names. A name that an inner function or comprehension also assigns is not taken as the
        function's own.
        """
        arguments = node.args
        names = [n.arg for n in ast.iter_child_nodes(arguments) if isinstance(n, ast.arg)]
        outside = [getattr(node, "decorator_list", []), arguments.defaults, arguments.kw_defaults]
        inner = [n for n in ast.walk(node) if isinstance(n, SCOPES) and n is not node]
        shared = [n.names for n in ast.walk(node) if isinstance(n, ast.Global)]
        own = local.union({""}, names, _stored(node).difference(*map(_stored, inner), *shared))
        head = f"def {getattr(node, 'name', '')} {names} {self.text(outside, local)}"
        return f"({head} {self.text(node.body, own)})"

    def name(self, chain: tuple[str, ...]) -> str:
        """Return the canonical text of a dotted name, and record the definition it stands for."""
        own = f"{self.module.name}.{chain[0]}" if chain[0] in self.module.bound else ""
        home = own or self.module.aliases.get(chain[0], chain[0])
        whole = ".".join([home, *chain[1:]])
        if found := self.source.resolve(whole):
            self.uses.add(found[0])
            whole = ".".join(
                filter(None, (found[0][1] or found[0][0].rpartition(".")[2], found[1]))
            )
        elif whole.startswith("t3lib."):  # such as a module's __name__
            whole = ".".join(chain)
        return f"<{whole}>"

    def is_mine(self, node: ast.expr | None) -> bool:
        """Return False for a table's row whose key is a method other than the wanted ones."""
        name = node.value if isinstance(node, ast.Constant) else None
        of_method = name in self.source.methods
        self.narrowed |= of_method
        return not of_method or not self.methods or name in self.methods


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *COMPREHENSIONS)


def _chain(node: ast.AST) -> tuple[str, ...]:
    """Return ("a", "b", "c") for the expression a.b.c, () for any other expression."""
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return (*before, node.attr)
    return (node.id,) if isinstance(node, ast.Name) else ()


def _stored(node: ast.AST) -> set[str]:
    """Return all names that are assigned to in a syntax tree."""
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
