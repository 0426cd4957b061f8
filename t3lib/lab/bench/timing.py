"""Time computations in turns, and make rows of the cost table."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from t3lib.lab.bench.cost import Work

COLUMNS = "what shape unit median low high repeats flops bytes note".split()
Rows = list[dict[str, Any]]  # of the cost table: dicts with these columns


def interleaved(
    works: Mapping[str, Callable[[], object]], *, repeats: int = 3, warmup: int = 1
) -> dict[str, list[float]]:
    """Time several computations in turns; return the seconds of each repeat.

    Every other turn runs backwards, so whatever slows the machine down affects all of them. The
    first `warmup` turns are not returned. With one CPU thread the process's own clock is used,
    which does not count the time of other programs; otherwise the wall clock.
    """
    gpu = torch.cuda.is_available()
    read = time.perf_counter if gpu or torch.get_num_threads() > 1 else time.process_time
    seen: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warmup + repeats):
        for name, work in list(works.items())[:: -1 if turn % 2 else 1]:
            began = read()
            work()
            if gpu:
                torch.cuda.synchronize()  # what the GPU still has to do counts
            seen[name].append(read() - began)
    return {name: seconds[warmup:] for name, seconds in seen.items()}


def row(
    what: str,
    shape: str,
    values: Sequence[float],
    unit: str = "s",
    *,
    work: Work | tuple[None, None] = (None, None),
    note: str = "",
) -> dict[str, Any]:
    """Return a row of the cost table: median and quartiles of the values of all repeats.

    work: operations and bytes that the computation needs, by arithmetic.
    """
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return dict(zip(COLUMNS, (what, shape, unit, median, low, high, len(values), *work, note)))
