"""What a check of a claim reads and returns: tables by name, and a Finding. And when one method leads another.

A lead counts when Welch's one-sided t-test over seeds rejects, at the level 5%, that there is none. Where the spread
over seeds is not known (a column that Table 4 does not hold, one seed) the means are compared as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from t3lib import results

PRINTED = {"tofu": 1, "parameters": 2, "runtime": 3, "tofu_per_seed": 4, "temperature": 5}
LEVEL = 0.05


class Missing(Exception):
    """A table, or rows of it, that a claim needs are not there: the claim stays undecided."""


class Finding(NamedTuple):
    """`holds` is None where a number is missing; `under` names the restriction under which alone the claim is true.

    `close`: the means are in the claimed order but their difference is no lead. `plain`: the finding in one sentence
    for the README, where it is among the most telling.
    """

    holds: bool | None
    numbers: str = ""
    under: str = ""
    close: bool = False
    plain: str = ""


class Tables(dict[str, pd.DataFrame]):
    """Tables of a folder by name, read when first asked for, or Missing; `splits`: the labels of their runs' splits."""

    def __init__(self, folder: str | Path, runs: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.folder, self.splits = Path(folder), results.split_labels(results.tidy(runs))

    def __missing__(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.csv"
        if not path.is_file() or (table := pd.read_csv(path)).empty:
            raise Missing(name)
        self[name] = table
        return table

    def numbers(self, name: str, split: str, method: str, column: str) -> np.ndarray:
        """The numbers of a column for a method on a split, row by row; what is not there gives none."""
        table = self[name]
        wanted = (table["split"] == split) & (table["method"] == method)
        return table.loc[wanted, column].dropna().to_numpy(dtype=float) if column in table else np.array([])


def printed_tables() -> Tables:
    """The paper's Tables 1 to 5 under the names of ours."""
    tables = Tables("")
    tables.update({name: results.paper_table(number) for name, number in PRINTED.items()})
    return tables


class Gap(NamedTuple):
    """mean(a) − mean(b), its standard error over seeds (None where not known), and how many of these make a lead."""

    value: float
    se: float | None = None
    needed: float = 0.0

    @property
    def sign(self) -> int:
        """+1 or −1 where a lead counts, else 0."""
        return int(np.sign(self.value)) if abs(self.value) > self.needed * (self.se or 0.0) else 0

    def __str__(self) -> str:
        if self.se is None:
            return f"{self.value:+.3f} (spread not known)"
        return f"{self.value:+.3f} (s.e. {self.se:.3f}, a lead from {self.needed * self.se:.3f})"


def score(tables: Tables, split: str, method: str, column: str, table: str = "tofu") -> float:
    """The mean in Table 1 or another, nan where there is none."""
    return next(iter(tables.numbers(table, split, method, column)), float("nan"))


def gap(tables: Tables, split: str, a: str, b: str, column: str) -> Gap:
    """How far method a is above method b in a column of Table 1, by Welch's test on the seeds of Table 4."""
    value = score(tables, split, a, column) - score(tables, split, b, column)
    seeds = [tables.numbers("tofu_per_seed", split, method, column) for method in (a, b)]
    parts = [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) for x in seeds if len(x) > 1]
    if not parts:
        return Gap(value)
    variance = sum(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / df for v, df in parts) if variance else 1.0
    return Gap(value, float(np.sqrt(variance)), float(student.isf(LEVEL, freedom)))


def joined(parts: Sequence[Finding]) -> Finding:
    """Every part holds; one refuted part refutes, else one missing part leaves the claim open."""
    refuted = [part for part in parts if part.holds is False]
    told = "; ".join(part.numbers for part in (refuted or parts))
    if not refuted:
        return Finding(True if all(part.holds for part in parts) else None, told)
    close = all(part.holds is not None for part in parts) and all(part.close for part in refuted)
    sentences = dict.fromkeys(part.plain for part in refuted if part.plain)
    return Finding(False, told, close=close, plain=" ".join(sentences))


def listed(values: Mapping[str, float] | Mapping[float, float], form: str = "{} {:.3f}") -> str:
    """`NPO 0.793, SimNPO 0.745`."""
    return ", ".join(form.format(name, value) for name, value in values.items())
