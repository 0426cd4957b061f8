"""What a check of a claim reads and returns: tables by name, and a Finding; no verdict is formed here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from t3lib import results

PRINTED = {"tofu": 1, "parameters": 2, "runtime": 3, "tofu_per_seed": 4, "temperature": 5}


class Finding(NamedTuple):
    """`holds` is None where a number is missing; `under` names the restriction under which alone the claim is true.

    `close`: the means are in the claimed order but no further apart than the standard error of their difference.
    """

    holds: bool | None
    numbers: str = ""
    under: str = ""
    close: bool = False


MISSING = Finding(None)


@dataclass(frozen=True)
class Tables:
    """Tables of one results folder by name, None where a table is missing or empty; read once."""

    folder: Path
    _read: dict[str, pd.DataFrame | None] = field(default_factory=dict)
    _values: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> pd.DataFrame | None:
        if name not in self._read:
            path = self.folder / f"{name}.csv"
            self._read[name] = pd.read_csv(path) if path.is_file() else None
        table = self._read[name]
        return None if table is None or table.empty else table

    def values(self, name: str, column: str) -> dict[tuple[str, str], list[float]]:
        """(split, method) -> the numbers of a column, row by row; a missing table or column gives none."""
        if (name, column) not in self._values:
            found: dict[tuple[str, str], list[float]] = {}
            table = self[name]
            if table is not None and column in table:
                for split, method, value in zip(table["split"], table["method"], table[column], strict=True):
                    found.setdefault((split, method), []).extend([] if pd.isna(value) else [float(value)])
            self._values[name, column] = found
        return self._values[name, column]


def printed_tables(folder: str | Path | None = None) -> Tables:
    """The paper's Tables 1 to 5 under the names of ours."""
    return Tables(Path("paper"), {name: results.paper_table(number, folder) for name, number in PRINTED.items()})


class Gap(NamedTuple):
    """mean(a) − mean(b) with the standard error of that difference over seeds; se None where neither has two seeds."""

    value: float
    se: float | None

    @property
    def sign(self) -> int:
        """+1 or −1 where the difference exceeds its standard error (with one seed: where it is not 0), else 0."""
        return int(np.sign(self.value)) if abs(self.value) > (self.se or 0.0) else 0

    def __str__(self) -> str:
        spread = "spread not known" if self.se is None else f"s.e. {self.se:.3f} over seeds"
        return f"{self.value:+.3f} ({spread})"


def score(tables: Tables, split: str, method: str, column: str) -> float:
    """The mean in Table 1, nan where there is none."""
    return next(iter(tables.values("tofu", column).get((split, method), [])), float("nan"))


def gap(tables: Tables, split: str, a: str, b: str, column: str) -> Gap:
    """How far method a is above method b in a column of Table 1, against the seeds' spread in Table 4."""
    pieces = [_squared_error(tables, split, method, column) for method in (a, b)]
    known = [piece for piece in pieces if piece is not None]
    value = score(tables, split, a, column) - score(tables, split, b, column)
    return Gap(value, float(np.sqrt(sum(known))) if known else None)


def seed_sd(tables: Tables, split: str, method: str, column: str) -> float:
    """Standard deviation over seeds in Table 4 (n − 1); nan with fewer than two."""
    seeds = tables.values("tofu_per_seed", column).get((split, method), [])
    return float(np.std(seeds, ddof=1)) if len(seeds) > 1 else float("nan")


def _squared_error(tables: Tables, split: str, method: str, column: str) -> float | None:
    """Squared standard error of a mean; None with one seed, or for a column Table 4 does not hold."""
    seeds = tables.values("tofu_per_seed", column).get((split, method), [])
    return float(np.var(seeds, ddof=1) / len(seeds)) if len(seeds) > 1 else None


def listed(values: Mapping[str, float], digits: int = 3) -> str:
    """`NPO 0.793, SimNPO 0.745`."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
