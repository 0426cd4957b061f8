"""Cache keys that name code and machine, so that a change of either invalidates cached results.

`code_key` follows a function through t3lib and hashes every definition that it can reach. Nobody
has to list by hand what decides a cached result. `environment` names what else decides the last
digits of a result. `changed_since_import` detects that the files on disk are no longer those that
this process runs.
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
)  # results can differ in the last digits between their versions
Function = TypeVar("Function", bound=Callable[..., Any])


def keyed(function: Function) -> Function:
    """Mark a function whose results are cached under a key of their own; return it unchanged.

    `code_key` does not follow marked functions. A caller puts the content key of the result into
    its own key instead.
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

    A definition counts as a whole, by name and content: the other definitions that it names (in
    strings only by dotted name), constants, defaults, decorators, base classes, statements that run
    when the module is imported, and files beside the module that it names. Docstrings, comments,
    layout, annotations inside functions, import lines and paths do not count, so moving a
    definition to another module changes no key. KeyError for a name that t3lib does not have.
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
    """Compute the content key of a notebook's code and of all code that it reaches in t3lib.

    text: the source of all code cells. methods: as of `code_key`. without: a package of t3lib, such
    as "t3lib.lab.report", whose code does not count.
    """
    source = source_on_disk(library)
    writer = Writer(source, read_module("", text, Path()), frozenset(methods))
    written = writer.text(ast.parse(text).body, frozenset())
    reached = source.reached(writer.uses, frozenset(methods), True, without)
    return content_key([written, names_and_digests(reached)])


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


def versions() -> dict[str, str]:
    """Return the installed versions of `PACKAGES`, by name."""
    return {name: metadata.version(name) for name in PACKAGES}


def changed_since_import(library: Path = LIBRARY) -> list[str]:
    """List t3lib's files that have changed on disk since this process imported t3lib."""
    now = digests(library)
    return sorted(
        name for name in now.keys() | _IMPORTED.keys() if now.get(name) != _IMPORTED.get(name)
    )


def keep(path: Path, value: Mapping[str, object]) -> None:
    """Write one sealed cache entry, unless t3lib changed on disk since this process imported it.

    The key of an entry comes from the files on disk and its value from the code in memory. If the
    two differ, the entry would be wrong: nothing is written and a warning says so.
    """
    if still_the_code(path.name):
        write_sealed(path, value)


def still_the_code(what: str) -> bool:
    """Return whether t3lib is on disk as imported; else warn that `what`, a name, is not kept."""
    if changed := changed_since_import():
        warnings.warn(
            f"t3lib changed while this ran ({changed[0]}); not kept: {what}", stacklevel=3
        )
    return not changed


_IMPORTED = digests(LIBRARY)
