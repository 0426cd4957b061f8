"""The one place with clocks: repeated, in turns, synchronised; rows of the cost table; the machine's ceilings.

Two clocks: the wall, and the process's own ("busy"), which other programs lengthen little. They are used for ratios
where both mean the same on an idle machine: one thread on a CPU. Elsewhere busy is the wall's time, too.
"""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd
import torch

from t3lib.bench.cost import Ceilings, Work, lower_bound

COLUMNS = "what shape unit median low high repeats busy lower_bound over_bound note".split()
Name = TypeVar("Name", bound=Hashable)
Rows = list[dict[str, Any]]  # of the cost table: dicts with these columns


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

    def over(self, other: "Timing") -> list[float]:
        """Quartiles of the ratios to another timing of the same turns: a machine that slows down slows both."""
        ratios = [mine / its for mine, its in zip(self.busy, other.busy, strict=True)]
        return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


def clock() -> str:
    """Which clock `busy` is here: "process" or "wall"."""
    return "wall" if torch.cuda.is_available() or torch.get_num_threads() > 1 else "process"


def timed(work: Callable[[], object], *, repeats: int = 3, warmup: int = 1) -> Timing:
    """`work` called `warmup` times unseen, then `repeats` times on the clocks."""
    return interleaved({"": work}, repeats=repeats, warmup=warmup)[""]


def interleaved(works: Mapping[Name, Callable[[], object]], *, repeats: int = 3, warmup: int = 1) -> dict[Name, Timing]:
    """Several computations in turns, every other turn backwards: what slows the machine down slows all of them."""
    seen: dict[Name, list[tuple[float, float]]] = {name: [] for name in works}
    for turn in range(warmup + repeats):
        for name, work in list(works.items())[:: -1 if turn % 2 else 1]:
            both = _seconds(work)
            if turn >= warmup:
                seen[name].append(both)
    return {name: Timing(*map(tuple, zip(*pairs))) for name, pairs in seen.items()}


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call by the wall and by the clock of `busy`."""
    _finish()
    wall, busy = time.perf_counter(), time.process_time()
    work()
    _finish()
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    return wall, busy if clock() == "process" else wall


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def row(
    what: str, shape: str, value: Timing | float | None, unit: str | None = None, note: str = "", *,
    work: Work | None = None, machine: Ceilings | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A row of the cost table: a timing (median, extremes, busy), or a number of another unit, by default a ratio.

    work, machine: of a timing, for its lower bound and the ratio to it.
    """
    columns = dict.fromkeys(COLUMNS) | {"what": what, "shape": shape, "note": note}
    if not isinstance(value, Timing):
        return columns | {"unit": "×" if unit is None else unit, "median": value}
    bound = lower_bound(work, machine) if work and machine else None
    return columns | {
        "unit": "s",
        "median": statistics.median(value.wall),
        "low": min(value.wall),
        "high": max(value.wall),
        "repeats": len(value.wall),
        "busy": statistics.median(value.busy),
        "lower_bound": bound,
        "over_bound": value.cost / bound if bound else None,
    }


def frame_of(rows: Rows) -> pd.DataFrame:
    """The rows as the table `benchmarks`."""
    return pd.DataFrame(rows, columns=COLUMNS)


def line(entry: Mapping[str, Any]) -> str:
    """A row as one line of text."""
    value = "" if entry["median"] is None else f"{entry['median']:.4g}"
    parts = f"{entry['what']:<52} {value:>10} {entry['unit']:<8}"
    if entry["busy"] is not None:
        parts += f" {entry['low']:.4g}…{entry['high']:.4g} ({entry['repeats']}), busy {entry['busy']:.4g}"
    if entry["over_bound"]:
        parts += f", {entry['over_bound']:.1f} x the bound"
    return f"{parts}  {entry['note']}".rstrip()


def ceilings(device: str = "cpu", dtype: torch.dtype = torch.float32, *, size: int = 0, repeats: int = 7) -> Ceilings:
    """Best of several: operations a second of a square matrix product, bytes a second of a sum over a large tensor."""
    size = size or (8192 if device != "cpu" else 1024)
    a = torch.randn(size, size, device=device).to(dtype)
    big = torch.ones(size * size * 32, device=device)
    product = timed(lambda: a @ a, repeats=repeats, warmup=2)
    read = timed(lambda: big.sum(), repeats=repeats, warmup=1)
    return Ceilings(2 * size**3 / min(product.busy), 4 * big.numel() / min(read.busy))
