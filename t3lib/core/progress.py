"""The progress bar of every loop: alive where a person looks on; silent in batch, where it would
leave dead text.
"""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm


def progress_bar(
    iterable: Iterable[Any] | None = None, *, show: bool = True, **settings: Any
) -> Any:
    """tqdm over `iterable` (or by hand, with total=…), shown only when `show` is true and a person
    looks on.
    """
    return tqdm(iterable, disable=not (show and watched()), **settings)


def watched() -> bool:
    """True on a terminal and in a notebook that a person runs.

    Cells that papermill, nbval or nbconvert run cannot ask for input; JupyterLab's cells can.
    """
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    if kernel is None:
        return sys.stderr.isatty()
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))
