"""What a check of a claim reads and returns: tables by name, and a Finding. And which of two
methods is ahead.

Forget Quality is compared on every retrained model that nothing was tuned on, where there are any.
One method is ahead of another where it is on each of these, beyond the spread over seeds (Welch's
t-test, one-sided, 5%). Else there is no order. Where no spread is known (a column that Table 4 does
not hold, one seed) the means decide.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from t3lib.lab import results

PRINTED = {"tofu": 1, "parameters": 2, "runtime": 3, "tofu_per_seed": 4, "temperature": 5}
LEVEL = 0.05


class Missing(Exception):
    """A table, or rows of it, that a claim needs are not there: the claim stays undecided."""


class Finding(NamedTuple):
    """`holds` is None where a number is missing; `under` names the restriction under which alone
    the claim is true.

    `no_order`: the claim names a best method, none is ahead of it, and it is not ahead of all
    others.
    """

    holds: bool | None
    numbers: str = ""
    under: str = ""
    no_order: bool = False


class Tables(dict[str, pd.DataFrame]):
    """Tables of a folder by name, read when first asked for, or Missing; `splits`: the labels of
    their runs' splits.
    """

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
        """The numbers of a column for a method on a split, row by row; what is not there gives
        none.
        """
        table = self[name]
        wanted = (table["split"] == split) & (table["method"] == method)
        return (
            table.loc[wanted, column].dropna().to_numpy(dtype=float)
            if column in table
            else np.array([])
        )


def printed_tables() -> Tables:
    """The paper's Tables 1 to 5 under the names of ours."""
    tables = Tables("")
    tables.update({name: results.paper_table(number) for name, number in PRINTED.items()})
    return tables


class Gap(NamedTuple):
    """mean(a) − mean(b), and between which values it lies by the spread over seeds, whatever the
    reference.
    """

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """+1 where a is ahead, −1 where b is, 0 where there is no order."""
        return int(self.low > 0) - int(self.high < 0)

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def score(tables: Tables, split: str, method: str, column: str, table: str = "tofu") -> float:
    """The mean in Table 1 or another, nan where there is none; fq is against held-out references
    where it can be.
    """
    held = tables.numbers(table, split, method, "fq_held_out") if column == "fq" else ()
    return next(iter((*held, *tables.numbers(table, split, method, column))), float("nan"))


def seeds_by_reference(
    tables: Tables, split: str, method: str, column: str
) -> dict[int, np.ndarray]:
    """{reference: a value a seed} of T3 at its tuned T or another method; for all but fq {0: the
    values of Table 4}.
    """
    held = tables.numbers("tofu", split, method, "fq_held_out")
    if column != "fq" or not len(held):
        return {0: tables.numbers("tofu_per_seed", split, method, column)}
    T = tables.numbers("tofu", split, method, "T")
    rows = tables["forget_quality"].query("split == @split and method == @method and reference > 0")
    rows = rows[rows["w"].isin([1]) & rows["T"].isin(T)] if len(T) else rows
    return {int(number): part["fq"].to_numpy() for number, part in rows.groupby("reference")}


def gap(tables: Tables, split: str, a: str, b: str, column: str) -> Gap:
    """How far method a is above method b in a column of Table 1."""
    value = score(tables, split, a, column) - score(tables, split, b, column)
    ours, theirs = (seeds_by_reference(tables, split, method, column) for method in (a, b))
    ends = [
        end
        for number in ours.keys() & theirs.keys()
        for end in _interval(ours[number], theirs[number], value)
    ]
    return Gap(value, min(ends, default=value), max(ends, default=value))


def _interval(a: np.ndarray, b: np.ndarray, value: float) -> tuple[float, float]:
    """Welch's interval of mean(a) − mean(b); around `value` where a mean is not known, one seed has
    no spread.
    """
    parts = [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) for x in (a, b) if len(x) > 1]
    variance = sum(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / df for v, df in parts) if variance else 1.0
    half = float(student.isf(LEVEL, freedom)) * variance**0.5
    middle = float(a.mean() - b.mean()) if len(a) and len(b) else value
    return middle - half, middle + half


def joined(parts: Sequence[Finding]) -> Finding:
    """Every part holds; one refuted part refutes, else one missing part leaves the claim open."""
    refuted = [part for part in parts if part.holds is False]
    told = "; ".join(part.numbers for part in parts)
    if refuted:
        decided = all(part.holds is not None for part in parts)
        return Finding(False, told, no_order=decided and all(part.no_order for part in refuted))
    return Finding(True if all(part.holds for part in parts) else None, told)


def listed(values: Mapping[str, float] | Mapping[float, float], form: str = "{} {:.3f}") -> str:
    """`NPO 0.793, SimNPO 0.745`."""
    return ", ".join(form.format(name, value) for name, value in values.items())
