"""What a check of a claim reads (tables by name) and returns (a Finding), and which of two methods
is ahead.

Two rules decide which method is ahead. If the study was repeated in several worlds
(results/cpu-worlds/make.py), the 95% interval of the difference within a world must lie on one side
of zero. Otherwise no run of one method may be behind any run of the other. Forget Quality is then
compared against each retrained model that nothing was tuned on. In all other cases there is no
order. A column without single runs, which the paper's Table 4 does not have, is decided by its
means.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from t3lab import results

PRINTED = {"tofu": 1, "parameters": 2, "runtime": 3, "tofu_per_seed": 4, "temperature": 5}
# Column of Table 1 -> column of `worlds_each`; other columns have the same name in both.
IN_WORLDS = {"fq": "fq_held_out", "ks_statistic": "ks_held_out"}
WORLDS = "-worlds"  # the suffix of a folder of worlds after its profile's name
LEVEL = 0.95  # of intervals over worlds


class Missing(Exception):
    """A table, or rows of it, that a claim needs are missing. The claim stays undecided."""


class Finding(NamedTuple):
    """The result of a check.

    holds: whether the claim holds, or None where a number is missing.
    numbers: the evidence in words.
    under: the restriction under which alone the claim is true, or "".
    no_order: True if the claim names a best method, no method is ahead of it, and it is not ahead
    of all others.
    """

    holds: bool | None
    numbers: str = ""
    under: str = ""
    no_order: bool = False


class Tables(dict[str, pd.DataFrame]):
    """The tables of a results folder by name. They are read when first used; a missing table raises
    Missing.

    runs: run files, whose labels of splits become `splits`. The table `worlds_each` comes from the
    folder of worlds beside it, such as `cpu-worlds` beside `cpu`.
    """

    def __init__(self, folder: str | Path, runs: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.folder, self.splits = Path(folder), results.split_labels(results.tidy(runs))

    def __missing__(self, name: str) -> pd.DataFrame:
        results_of = self.folder.parent
        if name == "worlds_each":
            results_of = Path(f"{results_of}{WORLDS}")
        path = results_of / self.folder.name / f"{name}.csv"
        if not path.is_file() or (table := pd.read_csv(path)).empty:
            raise Missing(name)
        self[name] = table
        return table

    def numbers(self, name: str, split: str, method: str, column: str) -> np.ndarray:
        """Return the numbers of one column for a method on a split, one for each row. A missing
        column gives an empty array.
        """
        table = self[name]
        wanted = (table["split"] == split) & (table["method"] == method)
        return (
            table.loc[wanted, column].dropna().to_numpy(dtype=float)
            if column in table
            else np.array([])
        )


def printed_tables() -> Tables:
    """Return the paper's Tables 1 to 5 under the names of our tables."""
    tables = Tables("")
    tables.update({name: results.paper_table(number) for name, number in PRINTED.items()})
    return tables


class Gap(NamedTuple):
    """How far method a is above method b on average, and the lowest and highest possible value."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """+1 if a is ahead, −1 if b is ahead, 0 without an order. Equal single runs do not prevent
        an order.
        """
        return int(self.low >= 0 < self.high) - int(self.high <= 0 > self.low)

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Return the mean of n values and the ends of its 95% interval, mean ± t(n − 1) sd / √n.

    Student's t has n − 1 degrees of freedom. The ends are nan if n < 2.
    """
    n = len(values)
    mean = float(np.mean(values)) if n else np.nan
    if n < 2:
        return mean, np.nan, np.nan
    half = float(student.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / n**0.5)
    return mean, mean - half, mean + half


def score(tables: Tables, split: str, method: str, column: str, table: str = "tofu") -> float:
    """Return a method's mean from Table 1 or another table, or nan.

    Forget Quality (column "fq") is against held-out retrained models if there are any.
    """
    held = tables.numbers(table, split, method, "fq_held_out") if column == "fq" else ()
    return next(iter((*held, *tables.numbers(table, split, method, column))), float("nan"))


def seeds_by_reference(
    tables: Tables, split: str, method: str, column: str
) -> dict[int, np.ndarray]:
    """Return {retrained model: values over seeds} of a method in one column.

    T3 is at its tuned T. For a column other than "fq", and without held-out retrained models, the
    result is {0: the values of Table 4}.
    """
    held = tables.numbers("tofu", split, method, "fq_held_out")
    if column != "fq" or not len(held):
        return {0: tables.numbers("tofu_per_seed", split, method, column)}
    T = tables.numbers("tofu", split, method, "T")
    rows = tables["forget_quality"].query("split == @split and method == @method and reference > 0")
    rows = rows[rows["w"].fillna(1) == 1]  # without rows such as T3 (T, w) and RMU (a)
    rows = rows[rows["T"].isin(T)] if len(T) else rows
    return {int(number): part["fq"].to_numpy() for number, part in rows.groupby("reference")}


def gap(tables: Tables, split: str, a: str, b: str, column: str) -> Gap:
    """Return how far method a is above method b in a column of Table 1.

    If the study was repeated in several worlds: the mean difference within a world, and its 95%
    interval. Otherwise: the difference of the means, and the smallest and largest difference
    between a run of a and a run of b, over all held-out retrained models.
    """
    try:
        worlds = (
            tables["worlds_each"]
            .query("split == @split")
            .pivot(index="world", columns="method", values=IN_WORLDS.get(column, column))
        )
        return Gap(*interval((worlds[a] - worlds[b]).dropna()))
    except (Missing, KeyError):
        pass
    value = score(tables, split, a, column) - score(tables, split, b, column)
    ours, theirs = (seeds_by_reference(tables, split, method, column) for method in (a, b))
    ends = [
        end
        for number in ours.keys() & theirs.keys()
        if len(ours[number]) and len(theirs[number])
        for end in (
            ours[number].min() - theirs[number].max(),
            ours[number].max() - theirs[number].min(),
        )
    ]
    return Gap(value, min(ends, default=value), max(ends, default=value))


def interval_kind(tables: Tables) -> str:
    """Say what the two values in brackets after a gap are, such as "95% interval over 10
    worlds".
    """
    try:
        return f"95% interval over {tables['worlds_each']['world'].nunique()} worlds"
    except Missing:
        return "least and most over runs and references"


def joined(parts: Sequence[Finding]) -> Finding:
    """Join the findings on both splits. All parts must hold. If one is refuted, so is the claim.
    Otherwise a missing part leaves the claim undecided.
    """
    refuted = [part for part in parts if part.holds is False]
    told = "; ".join(part.numbers for part in parts)
    if refuted:
        decided = all(part.holds is not None for part in parts)
        return Finding(False, told, no_order=decided and all(part.no_order for part in refuted))
    return Finding(True if all(part.holds for part in parts) else None, told)


def listed(values: Mapping[str, float] | Mapping[float, float], form: str = "{} {:.3f}") -> str:
    """Write numbers by name, such as "NPO 0.793, SimNPO 0.745".

    form: a format string for one name and number.
    """
    return ", ".join(form.format(name, value) for name, value in values.items())
