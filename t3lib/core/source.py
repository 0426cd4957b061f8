"""Following names through t3lib's own code: which definitions a function can reach, and a digest of
each.

`identity.code_key` makes cache keys of it. The code is read with `ast` and never imported.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from t3lib.core.files import folder_key, sha256_file, shipped

BASELINES = "t3lib.baselines.losses.BASELINES"  # its keys are the names of the methods
SHIPPED = "results/paper"  # the one folder of data outside t3lib that its code reads by name
MACHINERY = (__name__, f"{__package__}.identity")  # how keys are made is in no key
Use = tuple[str, str]  # module and top-level name in it; "" for all of the module


def digests(library: Path) -> dict[str, str]:
    """Checksum of every file of t3lib that decides what it does, by its path."""
    suffixes = (".py", ".yaml", ".md", ".html", ".css", ".js", ".tex", ".j2")
    return {
        str(path.relative_to(library)): sha256_file(path)
        for path in library.rglob("*")
        if path.suffix in suffixes
    }


@dataclass(frozen=True)
class Module:
    """A module's top-level statements by the names that they bind, and what its imported names
    stand for.

    loose: statements that bind no name and run at import. aliases: local name -> dotted name.
    """

    name: str
    bound: dict[str, list[ast.stmt]] = field(default_factory=dict)
    loose: list[ast.stmt] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)


def read_module(name: str, text: str, is_package: bool) -> Module:
    """Parse a module."""
    module, tree = Module(name), ast.parse(text)
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.split(".")[0]
                module.aliases[each.asname or first] = each.name if each.asname else first
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            home = ".".join([*above, *([node.module] if node.module else [])])
            module.aliases.update(
                {each.asname or each.name: f"{home}.{each.name}" for each in node.names}
            )
    for statement in tree.body:
        if (
            isinstance(statement, ast.Import | ast.ImportFrom)
            or _is_docstring(statement)
            or _for_types_only(statement)
        ):
            continue
        for target in (names := set(_bound_by(statement))):
            module.bound.setdefault(target, []).append(statement)
        if not names:
            module.loose.append(statement)
    return module


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _for_types_only(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING")


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Names that a top-level statement binds or changes: `X = …`, `X["a"] = …`, `X.a = …`, def,
    class.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(
            node.ctx, ast.Store | ast.Del
        ):
            while isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            if isinstance(node, ast.Name):
                yield node.id


class Source:
    """t3lib's modules as they are on disk, read when they are first asked for."""

    def __init__(self, library: Path) -> None:
        self.library, self.modules = library, dict[str, Module | None]()
        self.written: dict[tuple[Use, frozenset[str] | None], tuple[str, frozenset[Use]]] = {}

    @cached_property
    def methods(self) -> set[str]:
        """The rows of all tables by method: those of the literal table `BASELINES`, and T3."""
        try:
            home = self.find(BASELINES)
        except KeyError:
            return set()
        module = self.module(home[0])
        assert module is not None
        tables = (
            node
            for each in module.bound[home[1]]
            for node in ast.walk(each)
            if isinstance(node, ast.Dict)
        )
        return {
            "T3",
            *(str(key.value) for key in next(tables).keys if isinstance(key, ast.Constant)),
        }

    def path(self, name: str) -> Path | None:
        """File of a module of t3lib, None for any other name."""
        first, *rest = name.split(".")
        place = self.library.joinpath(*rest)
        paths = (
            (place.with_suffix(".py"), place / "__init__.py") if rest else (place / "__init__.py",)
        )
        return next((path for path in paths if path.is_file()), None) if first == "t3lib" else None

    def module(self, name: str) -> Module | None:
        """Read a module of t3lib; None for any other name."""
        if name not in self.modules:
            path = self.path(name)
            text = path.read_text(encoding="utf-8") if path else ""
            self.modules[name] = (
                read_module(name, text, path.name == "__init__.py") if path else None
            )
        return self.modules[name]

    def resolve(self, dotted: str) -> tuple[Use, str] | None:
        """The definition that a dotted name leads to, and what of the name is left; None outside
        t3lib.

        Follows names that a package imports from its modules, and t3lib's lazy public names
        (`_HOME`).
        """
        parts = dotted.split(".")
        length = next((n for n in range(len(parts), 0, -1) if self.path(".".join(parts[:n]))), 0)
        module = self.module(".".join(parts[:length])) if length else None
        if module is None:
            return None
        if length == len(parts):
            return (module.name, ""), ""
        name, rest = parts[length], ".".join(parts[length + 1 :])
        if name in module.bound:
            return (module.name, name), rest
        lazy = ast.literal_eval(module.bound["_HOME"][0].value) if "_HOME" in module.bound else {}  # type: ignore[attr-defined]
        home = f"{lazy[name]}.{name}" if name in lazy else module.aliases.get(name)
        return self.resolve(f"{home}.{rest}".rstrip(".")) if home else None

    def find(self, dotted: str) -> Use:
        """The definition that a dotted name names; KeyError when there is none."""
        found = self.resolve(dotted)
        if found is None or found[1]:
            raise KeyError(f"t3lib has no {dotted}")
        return found[0]

    def reached(
        self, wanted: Iterable[Use], methods: frozenset[str], through: bool, without: str = ""
    ) -> dict[Use, str]:
        """Digests of all definitions that some definitions reach."""
        entries = set(wanted)
        waiting, seen, digests = list(entries), set[Use](), dict[Use, str]()
        while waiting:
            use = waiting.pop()
            if use in seen or use[0] in MACHINERY or (without and use[0].startswith(without)):
                continue  # how keys are made is in no key
            seen.add(use)
            module = self.module(use[0])
            if module is None:
                continue
            if not use[1]:
                waiting += [(use[0], name) for name in module.bound]
                folder = self.path(use[0])
                if folder and folder.name == "__init__.py":
                    waiting += [
                        (f"{use[0]}.{path.stem}", "")
                        for path in folder.parent.glob("*.py")
                        if path != folder
                    ]
                continue
            if not through and use not in entries and _is_keyed(module.bound[use[1]]):
                continue
            digests[use], uses = self.digest(use, methods)
            waiting += uses
        return digests

    def digest(self, use: Use, methods: frozenset[str]) -> tuple[str, frozenset[Use]]:
        """Digest of one top-level definition with what its module does at import, and the
        definitions it names.
        """
        for known in ((use, None), (use, methods)):
            if known in self.written:
                return self.written[known]
        module = self.module(use[0])
        assert module is not None
        reader = Reader(self, module, methods)
        for statement in (*module.bound[use[1]], *module.loose):
            reader.write(statement, frozenset())
        text = hashlib.sha256(
            "".join([*reader.parts, *self.files_named(use[0], reader.texts)]).encode()
        )
        # What holds no table by method is the same for all methods.
        key = (use, methods if reader.narrowed else None)
        self.written[key] = text.hexdigest(), frozenset(reader.uses)
        return self.written[key]

    def files_named(self, module: str, texts: set[str]) -> list[str]:
        """Checksums of data that some texts name: files beside the module or in its templates, the
        paper's tables.
        """
        path = self.path(module)
        assert path is not None
        folders = (path.parent, path.parent / "templates")
        names = [text for text in sorted(texts) if re.fullmatch(r"[\w-]+(\.[\w-]+)+", text)]
        found = [folder / name for name in names for folder in folders if (folder / name).is_file()]
        named = [sha256_file(file) for file in found if file.suffix != ".py"]
        return [*named, *([folder_key(shipped(SHIPPED))] if SHIPPED in texts else [])]


def listed(digests: dict[Use, str]) -> list[list[str]]:
    """Name and digest of each definition, without its module."""
    return sorted([name, digest] for (_, name), digest in digests.items())


def _is_keyed(statements: list[ast.stmt]) -> bool:
    decorators = (
        each for statement in statements for each in getattr(statement, "decorator_list", [])
    )
    return any(ast.unparse(each).split(".")[-1] == "keyed" for each in decorators)


@lru_cache(maxsize=4)
def source_of(library: Path, digests: tuple[tuple[str, str], ...]) -> Source:
    """Return the source of a library whose files have these checksums, kept while they stay the
    same.
    """
    return Source(library)


def source_on_disk(library: Path) -> Source:
    """The library's source, read anew when a file changed."""
    return source_of(library, tuple(sorted(digests(library).items())))


class Reader:
    """Write a definition's syntax tree in a form that only its meaning decides, and note what it
    names.

    parts: the tree as text, in which a name that was imported stands as what it names. uses:
    definitions of t3lib.
    texts: all string constants.
    """

    def __init__(self, source: Source, module: Module, methods: frozenset[str]) -> None:
        self.source, self.module, self.methods = source, module, methods
        self.parts: list[str] = []
        self.uses: set[Use] = set()
        self.texts: set[str] = set()
        self.narrowed = False  # whether there was a table by method

    def write(self, node: Any, local: frozenset[str]) -> None:
        """Write a node, or a list of nodes; local: names that belong to the function around it."""
        match node:
            case list():
                self.parts.append("[")
                for each in node:
                    self.write(each, local)
                self.parts.append("]")
            case ast.Import() | ast.ImportFrom():
                pass
            case ast.Name() | ast.Attribute() if (chain := _chain(node)) and chain[0] not in local:
                self.name(chain)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self.function(node, local)
            case ast.ClassDef():
                self.parts.append(f"(class {node.name}")
                self.write(
                    [
                        *node.decorator_list,
                        *node.bases,
                        *node.keywords,
                        *_without_docstring(node.body),
                    ],
                    local,
                )
                self.parts.append(")")
            case ast.Dict() if any(map(self.is_method, node.keys)):
                mine = [
                    (key, value) for key, value in zip(node.keys, node.values) if self.is_mine(key)
                ]
                self.write([part for pair in mine for part in pair], local)
            case ast.Tuple() | ast.List() | ast.Set() if any(map(self.is_method, node.elts)):
                self.write([each for each in node.elts if self.is_mine(each)], local)
            case ast.AST():
                self.fields(node, local)
            case str() if re.fullmatch(r"t3lib(\.\w+)+", node) and (
                found := self.source.resolve(node)
            ):
                # A definition counts as what it is, a module, such as a package of templates, by
                # its last name.
                self.uses |= {found[0]} if found[0][1] else set()
                self.parts.append(f"<{found[0][1] or node.rpartition('.')[2]}>")
            case _:
                if isinstance(node, str):
                    self.texts.add(node)
                self.parts.append(f"{node!r};")

    def fields(self, node: ast.AST, local: frozenset[str]) -> None:
        """Write a node of no special kind."""
        self.parts.append(f"({type(node).__name__}")
        in_function = isinstance(node, ast.AnnAssign) and local
        for name, value in ast.iter_fields(node):
            if name not in ("ctx", "kind", "type_comment") and not (
                in_function and name == "annotation"
            ):
                self.write(value, local)
        self.parts.append(")")

    def function(self, node: Any, local: frozenset[str]) -> None:
        """Write a function: decorators and defaults as seen from outside, its body with its own
        names.
        """
        arguments = node.args
        every = [
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ]
        names = [each.arg for each in every if each]
        self.parts.append(f"(def {getattr(node, 'name', '')} {names}")
        self.write([*getattr(node, "decorator_list", []), *arguments.defaults], local)
        self.write([each for each in arguments.kw_defaults if each], local)
        body = node.body if isinstance(node.body, list) else [node.body]
        self.write(_without_docstring(body), local | {"", *names, *_assigned(body)})
        self.parts.append(")")

    def name(self, chain: tuple[str, ...]) -> None:
        """Write a name and note what it stands for."""
        first, rest = chain[0], ".".join(chain[1:])
        if first in self.module.bound:
            found: tuple[Use, str] | None = (self.module.name, first), rest
            dotted = f"{first}.{rest}"
        else:
            dotted = ".".join([self.module.aliases.get(first, first), *chain[1:]])
            found = self.source.resolve(dotted)
            if found is None and dotted.startswith("t3lib."):  # such as a module's __name__
                dotted = ".".join(chain)
        if found and (self.module.name or found[0][0]):
            self.uses.add(found[0])
            dotted = ".".join(
                filter(None, (found[0][1] or found[0][0].rpartition(".")[2], found[1]))
            )
        self.parts.append(f"<{dotted}>")

    def is_method(self, node: ast.expr | None) -> bool:
        """True for the name of a method."""
        return isinstance(node, ast.Constant) and node.value in self.source.methods

    def is_mine(self, node: ast.expr | None) -> bool:
        """False for the row of a table by method that belongs to none of the wanted methods."""
        self.narrowed = True
        text = node.value if isinstance(node, ast.Constant) else None
        return not self.methods or not isinstance(text, str) or text in self.methods


def _chain(node: ast.AST) -> tuple[str, ...]:
    """("a", "b", "c") of the expression a.b.c, () for any other."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _without_docstring(body: list[Any]) -> list[Any]:
    return body[1:] if body and _is_docstring(body[0]) else body


def _assigned(body: list[Any]) -> set[str]:
    """Names that a function's body binds, its inner functions' and comprehensions' own left out."""
    waiting, names, shared = list(body), set[str](), set[str]()
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case (
                ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp()
            ):
                continue
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
                names.add(node.name)
            case ast.Global():
                shared.update(node.names)
        waiting += ast.iter_child_nodes(node)
    return names - shared
