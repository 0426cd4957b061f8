"""Cache keys that name code and machine, so that a change of either invalidates cached results.

`code_key` names the modules that compute something, and hashes them together with the modules that
they import. `environment` names what else decides the last digits of a result.
`changed_since_import` detects that the files on disk are no longer those that this process runs.
"""

import ast
import warnings
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from t3lab.files import write_sealed
from t3lib import LIBRARY
from t3lib.core.files import content_key, folder_key, sha256_file
from t3lib.core.names import HUB_DATA

# Results can differ in the last digits between versions of these.
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy")
LAB = "t3lab"
FOLDERS = {"t3lib": LIBRARY, LAB: Path(__file__).resolve().parent}  # of our packages
# Modules that compute nothing. An edit there, such as another error message, changes no key.
PLUMBING = {f"t3lib.core.{name}" for name in ("errors", "files", "hub", "progress", "smollm2")}
PLUMBING |= {"t3lab.files", "t3lab.identity"}


class Module(NamedTuple):
    """What a key needs of one module: a hash of its code, and the names that it imports."""

    digest: str
    imports: frozenset[str]


def code_key(*rooms: str, lab: bool = False) -> str:
    """Compute the content key of some modules and of all modules that they import.

    rooms: modules or whole packages by their place in t3lib or in its laboratory, such as
    "tofu.evaluation" or "world".
    lab: also follow imports of modules of the laboratory. By default these count only if they are
    named, because what they compute depends on settings and inputs that are in the key anyway.

    Names of modules, import lines, docstrings, comments and layout do not count, so that a moved
    module changes no key. What `digests` names beside a module does. KeyError for an unknown room.
    """
    found = [name for room in rooms for name in modules_of(room)]
    return content_key(digests(found, () if lab else (LAB,)))


def notebook_key(code: str, without: Iterable[str] = ()) -> str:
    """Compute the content key of a notebook's code and of all modules of ours that it imports.

    code: the source of all code cells. without: packages that do not count, such as
    "t3lab.report".
    """
    module, apart = parsed(code), tuple(without)
    used = [name for name in module.imports if not name.startswith(apart)]
    return content_key([module.digest, digests(used, apart)])


def digests(names: Iterable[str], without: tuple[str, ...]) -> list[str]:
    """Return the sorted hashes of some modules and of all modules of ours that they import.

    YAML files beside a module count, and templates beside one of the laboratory. t3lib's template
    is the card of a head, which decides no number.

    names: dotted names; others than modules of ours are left out. without: packages whose modules
    count only if they are among `names`.
    """
    waiting, found = list(names), dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in found or name in PLUMBING or (path := source_of(name)) is None:
            continue
        module = read_module(path, sha256_file(path))
        files = [*path.parent.glob("*.yaml")]
        files += path.parent.glob("templates/**/*.*") if name.startswith(LAB) else []
        beside = [sha256_file(file) for file in sorted(files)]
        found[name] = content_key([module.digest, beside])
        waiting += [each for each in module.imports if not each.startswith(without)]
    return sorted(set(found.values()))


def modules_of(room: str) -> list[str]:
    """Return the dotted names of the modules of a room; KeyError if there is none."""
    for package in FOLDERS:
        name = f"{package}.{room}"
        if path := source_of(name):
            if path.name != "__init__.py":
                return [name]
            inner = (file.relative_to(path.parent) for file in path.parent.rglob("*.py"))
            return [".".join([name, *file.with_suffix("").parts]) for file in inner]
    raise KeyError(f"there is no module {room}")


def source_of(name: str) -> Path | None:
    """Return the file of a module of ours, None for any other dotted name."""
    for package, folder in FOLDERS.items():
        if name == package or name.startswith(f"{package}."):
            place = folder.joinpath(*name.removeprefix(package).split(".")[1:])
            paths = (place / "__init__.py", place.with_name(f"{place.name}.py"))
            return next((path for path in paths if path.is_file()), None)
    return None


@lru_cache(maxsize=1024)
def read_module(path: Path, checksum: str) -> Module:
    """Parse a module, once for each content of its file."""
    return parsed(path.read_text(encoding="utf-8"))


def parsed(code: str) -> Module:
    """Hash Python code without imports, docstrings and bare constants, and list what it imports.

    `from a import b` imports a.b if that is a module of ours, otherwise a.
    """
    tree, imports = ast.parse(code), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{each.name}" for each in node.names)
            imports |= {name if source_of(name) else str(node.module) for name in names}
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list):
                kept = [
                    each
                    for each in block
                    if not isinstance(each, ast.Import | ast.ImportFrom)
                    and not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
                ]
                setattr(node, name, kept)
    return Module(content_key(ast.dump(tree)), frozenset(imports))


def data_identity(data: Any) -> str:
    """Return a key that names a data source by its content, wherever it lies.

    data: "builtin"; "hub", which gives the Hub data set and its revision; a folder, which gives its
    name and the key of its files; or a mapping of rows, which gives the key of the rows.
    """
    if isinstance(data, Mapping):
        return f"rows@{content_key(data)}"
    if data == "hub":
        return f"{HUB_DATA['path']}@{HUB_DATA['revision']}"
    return (
        f"{Path(data).resolve().name}@{folder_key(data)}"
        if data and Path(data).is_dir()
        else str(data)
    )


def environment(device: Any = "cpu", threads: int | None = None) -> list[Any]:
    """List what decides the last digits of a result beside code and inputs, for a cache key.

    device: a torch device or its name; only its type counts.
    threads: number of torch's CPU threads, by default the number in use.

    The list holds package versions, the device type and, on a CPU, the number of threads and the
    width of its vector instructions. Imports torch.
    """
    import torch

    if (kind := str(device).split(":")[0]) != "cpu":
        return [versions(), kind]
    return [
        versions(),
        kind,
        threads or torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
    ]


@cache
def versions() -> dict[str, str]:
    """Return the versions of `PACKAGES`, by name, at the first call. Not to be changed."""
    return {name: metadata.version(name) for name in PACKAGES}


def files_on_disk() -> dict[str, str]:
    """Return the SHA-256 of every code and settings file of ours, by its path in its package."""
    return {
        str(path.relative_to(folder)): sha256_file(path)
        for folder in FOLDERS.values()
        for path in folder.rglob("*")
        if path.suffix in (".py", ".yaml")
    }


def changed_since_import() -> list[str]:
    """List our files that have changed on disk since this process imported t3lib."""
    now = files_on_disk()
    return sorted(
        name for name in now.keys() | _IMPORTED.keys() if now.get(name) != _IMPORTED.get(name)
    )


def keep(path: Path, value: Mapping[str, object]) -> None:
    """Write one sealed cache entry, unless our code changed on disk since this process imported it.

    The key of an entry comes from the files on disk and its value from the code in memory. If the
    two differ, the entry would be wrong: nothing is written and a warning says so.
    """
    if still_the_code(path.name):
        write_sealed(path, value)


def still_the_code(what: str) -> bool:
    """Return whether our code is on disk as imported; else warn that `what` is not kept."""
    if changed := changed_since_import():
        warnings.warn(
            f"t3lib changed while this ran ({changed[0]}); not kept: {what}", stacklevel=3
        )
    return not changed


_IMPORTED = files_on_disk()
