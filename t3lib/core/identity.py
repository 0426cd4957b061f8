"""Identity of code and of the machine: the part of a cache key that no author of a key can forget.

`code_key` follows a function through t3lib and digests every definition that it can reach, so what
decides a cached result is found in the code and not listed by hand. `environment` names what else
decides the last digits of a result. `changed_since_import` says when the files on disk are no
longer those that this process runs.
"""

import ast
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from t3lib.core.files import LIBRARY, content_key, write_sealed
from t3lib.core.source import Writer, digests, names_and_digests, read_module, source_on_disk

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
)  # their versions decide the last digits
Function = TypeVar("Function", bound=Callable[..., Any])


def keyed(function: Function) -> Function:
    """Mark a function whose results are cached under a key of their own.

    `code_key` stops there: who calls it has the content key of its result in the own key, and not
    its code.
    """
    return function


def code_key(
    *entries: str | Callable[..., Any],
    methods: Iterable[str] = (),
    through: bool = False,
    library: Path = LIBRARY,
) -> str:
    """Compute the content key of all code in t3lib that some functions can reach.

    entries: functions, or dotted names such as "t3lib.tofu.evaluation.score". The name of a module,
    such as "t3lib.theory", stands for all of its code.
    methods: names of unlearning methods, or () for all. A table such as `LOSSES` has one row for
    each method. Only the rows of these methods enter the key, so that a new method changes no key
    of the others.
    through: also follow functions that are marked `keyed`.
    library: the folder of t3lib.

    Counted are whole top-level definitions, by name and content: other definitions that they name
    (in strings only by their dotted name), constants, defaults, decorators, base classes,
    statements that run when the module is imported, and files beside the module that they name. Not
    counted are docstrings, comments, layout, annotations of functions, import lines and paths, so
    moving a definition to another module changes no key. KeyError for a name that t3lib does not
    have.
    """
    source = source_on_disk(library)
    names = [
        each if isinstance(each, str) else f"{each.__module__}.{each.__qualname__}"
        for each in entries
    ]
    return content_key(
        names_and_digests(source.reached(map(source.find, names), frozenset(methods), through))
    )


def notebook_key(
    text: str, *, methods: Iterable[str] = (), without: str = "", library: Path = LIBRARY
) -> str:
    """Content key of a notebook's code and of all that it reaches in t3lib.

    text: its code cells. without: a package of t3lib, such as "t3lib.lab.report", whose code does
    not count.
    """
    source = source_on_disk(library)
    writer = Writer(source, read_module("", text, Path()), frozenset(methods))
    written = writer.text(ast.parse(text).body, frozenset())
    reached = source.reached(writer.uses, frozenset(methods), True, without)
    return content_key([written, names_and_digests(reached)])


def environment(device: Any = "cpu", threads: int | None = None) -> list[Any]:
    """List what decides the last digits of a result beside code and inputs, for a cache key.

    The list holds package versions, the type of the device and, on a CPU, the number of threads and
    the width of its vector instructions. device: a torch device or its name; its number does not
    count. threads: of torch, default as many as it uses now. Imports torch.
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


def versions() -> dict[str, str]:
    """Installed versions of `PACKAGES`."""
    return {name: metadata.version(name) for name in PACKAGES}


def changed_since_import(library: Path = LIBRARY) -> list[str]:
    """Names of t3lib's modules that differ on disk from what they were when this process imported
    t3lib.
    """
    now = digests(library)
    return sorted(
        name for name in now.keys() | _IMPORTED.keys() if now.get(name) != _IMPORTED.get(name)
    )


def keep(path: Path, value: Mapping[str, object]) -> None:
    """Write one sealed entry of a cache, unless t3lib has changed on disk since this process
    imported it.

    The entry's key comes from the files on disk and its value from the code in memory. Where the
    two differ the entry would be wrong, so nothing is written and a warning says so.
    """
    if still_the_code(path.name):
        write_sealed(path, value)


def still_the_code(what: str) -> bool:
    """True when t3lib is on disk as this process imported it; else warn that `what` is not kept."""
    if changed := changed_since_import():
        warnings.warn(
            f"t3lib changed while this ran ({changed[0]}); not kept: {what}", stacklevel=3
        )
    return not changed


_IMPORTED = digests(LIBRARY)
