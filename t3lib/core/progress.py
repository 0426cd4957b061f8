"""Progress bars: shown in a terminal and in interactive notebooks, hidden in batch runs.

T3_PROGRESS=0 in the environment hides them everywhere.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm


def progress_bar(iterable: Iterable[Any] | None = None, **settings: Any) -> Any:
    """Wrap tqdm: hidden where nobody watches (`watched`).

    settings: passed to tqdm, such as desc, or total for a bar that is updated by hand.
    """
    return tqdm(iterable, disable=not watched(), **settings)


def watched() -> bool:
    """Return True in a terminal and in a notebook that a person runs, unless T3_PROGRESS is 0.

    A cell that papermill, nbval or nbconvert runs cannot ask for input, one in JupyterLab can. This
    is how they are told apart.
    """
    if os.environ.get("T3_PROGRESS") == "0":
        return False
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    if kernel is None:
        return sys.stderr.isatty()
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))
