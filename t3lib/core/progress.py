"""Progress: bars in a terminal and in interactive notebooks, lines for a long run elsewhere.

T3_PROGRESS=0 in the environment hides both everywhere.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

SECONDS = 60  # between the lines of a long run that nobody watches


def progress_bar(iterable: Iterable[Any] | None = None, **settings: Any) -> Any:
    """Wrap tqdm: hidden where nobody watches (`watched`), but within `stages` a line a minute.

    settings: passed to tqdm, such as desc, or total for a bar that is updated by hand.
    """
    if _run.stage and not watched():
        lines = {"file": _run, "bar_format": "{desc} {percentage:.0f}%", "mininterval": 0}
        return tqdm(iterable, **settings | lines)
    return tqdm(iterable, disable=not watched(), **settings)


def watched() -> bool:
    """Return True in a terminal and in a notebook that a person runs, unless T3_PROGRESS is 0.

    A cell that papermill, nbval or nbconvert runs cannot ask for input, one in JupyterLab can. This
    is how they are told apart.
    """
    if os.environ.get("T3_PROGRESS") == "0":
        return False
    kernel = _kernel()
    if kernel is None:
        return sys.stderr.isatty()
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


def _kernel() -> Any:
    """Return the kernel of the notebook in which this process runs, or None."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None)


class _Run:
    """The long run that goes on, if there is one. It is the file into which hidden bars write.

    shares: {stage: its share of the time}. begun: when its first stage began. said: when the last
    line was printed. stage: "stage 2 of 5: features", or "" for no run.
    """

    shares: Mapping[str, float] = {}
    begun = said = 0.0
    stage = ""

    def say(self, line: str) -> None:
        """Print a line on standard error."""
        self.said = time.monotonic()
        print(line, file=sys.stderr, flush=True)

    def write(self, text: str) -> None:
        """Take what tqdm writes, and print it if a minute has passed."""
        if text.strip() and time.monotonic() - self.said >= SECONDS:
            self.say(f"{self.stage}: {text.strip()}")

    def flush(self) -> None:
        """Do nothing: lines are printed at once."""


_run = _Run()


@contextmanager
def stages(shares: Mapping[str, float]) -> Iterator[None]:
    """Say in lines on standard error how far a long run is, inside a block (`begin_stage`).

    shares: {name of a stage: its usual share of the time}, in their order. Nothing is printed in a
    notebook that nobody watches, and with T3_PROGRESS=0.
    """
    if watched() or (_kernel() is None and os.environ.get("T3_PROGRESS") != "0"):
        _run.shares = shares
    try:
        yield
    finally:
        _run.shares, _run.stage = {}, ""


def begin_stage(name: str) -> None:
    """Print which stage of the run begins, and the minutes that are left, from the second stage on.

    They are estimated from the time so far and the usual shares. Without a run nothing is printed.
    """
    if name not in _run.shares:
        return
    number = [*_run.shares].index(name)
    _run.stage, left = f"stage {number + 1} of {len(_run.shares)}: {name}", ""
    if number == 0:
        _run.begun = time.monotonic()
    else:
        done = sum([*_run.shares.values()][:number])
        seconds = (time.monotonic() - _run.begun) * (sum(_run.shares.values()) / done - 1)
        left = f"; about {max(1, round(seconds / 60))} min left"
    _run.say(_run.stage + left)
