"""Clocks: repeated, synchronised, warmed up; rows of the cost table; ceilings of the machine, measured.

Two clocks: the wall, and the process's own ("busy"), which other programs lengthen little. They are used for ratios
where both mean the same on an idle machine: one thread on a CPU. Elsewhere busy is the wall's time too.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from t3lib.bench.cost import Ceilings, Work, lower_bound

COLUMNS = [
    *("what", "shape", "unit", "median", "low", "high", "repeats", "busy", "lower_bound", "over_bound", "note"),
]


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat by the wall clock and by the process's own (see above)."""

    wall: tuple[float, ...]
    busy: tuple[float, ...]

    @property
    def cost(self) -> float:
        """Median seconds to compare by."""
        return min(statistics.median(self.wall), statistics.median(self.busy))

    def scaled(self, factor: float) -> "Timing":
        """The timing of `factor` as many equal computations (or of one of many: factor < 1)."""
        return Timing(tuple(factor * t for t in self.wall), tuple(factor * t for t in self.busy))


def timed(work: Callable[[], object], *, repeats: int = 3, warmup: int = 1) -> Timing:
    """`work` called `warmup` times unseen, then `repeats` times on the clocks."""
    return interleaved({"": work}, repeats=repeats, warmup=warmup)[""]


def interleaved(works: Mapping[str, Callable[[], object]], *, repeats: int = 3, warmup: int = 1) -> dict[str, Timing]:
    """Several computations in turn, so that a machine that slows down slows all of them."""
    cuda = torch.cuda.is_available()
    own = not cuda and torch.get_num_threads() == 1
    for _ in range(warmup):
        for work in works.values():
            work()
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            if cuda:
                torch.cuda.synchronize()
            wall, busy = time.perf_counter(), time.process_time()
            work()
            if cuda:
                torch.cuda.synchronize()
            wall, busy = time.perf_counter() - wall, time.process_time() - busy
            seen[name].append((wall, busy if own else wall))
    return {name: Timing(*map(tuple, zip(*pairs))) for name, pairs in seen.items()}


def row(
    what: str,
    shape: str,
    measured: Timing,
    *,
    work: Work | None = None,
    machine: Ceilings | None = None,
    note: str = "",
) -> dict[str, Any]:
    """A row of the cost table: seconds (median, extremes, busy) and, with `work`, their ratio to the lower bound."""
    bound = lower_bound(work, machine) if work and machine else None
    return {
        "what": what,
        "shape": shape,
        "unit": "s",
        "median": statistics.median(measured.wall),
        "low": min(measured.wall),
        "high": max(measured.wall),
        "repeats": len(measured.wall),
        "busy": statistics.median(measured.busy),
        "lower_bound": bound,
        "over_bound": measured.cost / bound if bound else None,
        "note": note,
    }


def value_row(what: str, shape: str, value: float, unit: str = "×", note: str = "") -> dict[str, Any]:
    """A row that holds a ratio, a size or a rate derived from measurements."""
    return dict.fromkeys(COLUMNS) | {"what": what, "shape": shape, "unit": unit, "median": value, "note": note}


def ceilings(device: str = "cpu", dtype: torch.dtype = torch.float32, *, size: int = 0, repeats: int = 7) -> Ceilings:
    """Best of several: operations a second of a square matrix product, bytes a second of a sum over a large tensor."""
    size = size or (8192 if device != "cpu" else 1024)
    a = torch.randn(size, size, device=device).to(dtype)
    big = torch.ones(size * size * 32, device=device)
    product = timed(lambda: a @ a, repeats=repeats, warmup=2)
    read = timed(lambda: big.sum(), repeats=repeats, warmup=1)
    return Ceilings(2 * size**3 / min(product.busy), 4 * big.numel() / min(read.busy))
