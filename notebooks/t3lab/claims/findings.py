"""What a check of a claim reads (tables by name) and returns (a Finding)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from t3lab import results
from t3lib.core.files import project_root

PRINTED = {"tofu": 1, "parameters": 2, "runtime": 3, "tofu_per_seed": 4, "temperature": 5}
WORLDS = "-worlds"  # the suffix of a folder of worlds after its profile's name


class Missing(Exception):
    """A table, or rows of it, that a claim needs are missing. The claim stays undecided."""


class Finding(NamedTuple):
    """The result of a check.

    holds: whether the claim holds, or None where a number is missing.
    numbers: the evidence in words.
    under: the restriction under which alone the claim is true, or "".
    no_order: True if the claim names a best method, no method is ahead of it beyond chance, and it
    is not ahead of all others beyond chance.
    """

    holds: bool | None
    numbers: str = ""
    under: str = ""
    no_order: bool = False


class Tables(dict[str, pd.DataFrame]):
    """The tables of a results folder by name. They are read when first used; a missing table raises
    Missing.

    runs: run files, whose labels of splits become `splits`. The table `worlds` comes from the
    folder of worlds beside it, such as `cpu-worlds` beside `cpu`, or else from the committed one of
    this name: a single run of a profile has no worlds of its own.
    """

    def __init__(self, folder: str | Path, runs: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.folder, self.splits = Path(folder), results.split_labels(results.tidy(runs))

    def __missing__(self, name: str) -> pd.DataFrame:
        results_of = self.folder.parent
        if name == "worlds":
            beside = Path(f"{results_of}{WORLDS}")
            results_of = beside if beside.is_dir() else project_root() / "results" / beside.name
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


def score(tables: Tables, split: str, method: str, column: str, table: str = "tofu") -> float:
    """Return a method's mean from Table 1 or another table, or nan.

    Forget Quality (column "fq") is against held-out retrained models if there are any.
    """
    held = tables.numbers(table, split, method, "fq_held_out") if column == "fq" else ()
    return next(iter((*held, *tables.numbers(table, split, method, column))), float("nan"))


def less(tables: Tables, split: str) -> pd.DataFrame:
    """Return T3's D minus each baseline's, by method: t3_less, t3_low, t3_high and p.

    Over the worlds in which the study was repeated, otherwise over draws of authors. p is corrected
    for the number of comparisons (`report.order.adjusted`).
    """
    try:
        table = tables["worlds"].query("measure == 'ks_held_out'")
    except Missing:
        table = tables["order"]
    return table[(table["split"] == split) & table["p"].notna()].set_index("method")


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
