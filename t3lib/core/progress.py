"""Progress bars: shown in a terminal and in interactive notebooks, hidden in batch runs."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm


def progress_bar(
    iterable: Iterable[Any] | None = None, *, show: bool = True, **settings: Any
) -> Any:
    """Wrap tqdm: hidden if `show` is false or the run is not interactive (`watched`).

    settings: passed to tqdm, such as desc, or total for a bar that is updated by hand.
    """
    return tqdm(iterable, disable=not (show and watched()), **settings)


def watched() -> bool:
    """Return True in a terminal and in a notebook that a person runs.

    A cell that papermill, nbval or nbconvert runs cannot ask for input, one in JupyterLab can. This
    is how they are told apart.
    """
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    if kernel is None:
        return sys.stderr.isatty()
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))
