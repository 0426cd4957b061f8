"""What a check of a claim reads (tables by name) and returns (a Finding)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from t3lab import results
from t3lab.report.order import over_seeds, with_printed_D
from t3lib.baselines.losses import BASELINES
from t3lib.core.files import project_root

PRINTED = {"tofu": 1, "parameters": 2, "runtime": 3, "tofu_per_seed": 4, "temperature": 5}
# Tables of a study beside a profile's results -> what its folder has after the profile's name.
BESIDE = dict.fromkeys(("worlds", "worlds_each", "errors_each"), "-worlds")
BESIDE["fixed_epoch"] = "-fixed"
D = "ks_held_out"


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

    runs: run files, whose labels of splits become `splits`. The tables `BESIDE` come from a folder
    beside it, such as `cpu-worlds` beside `cpu`, or else from the committed one of this name,
    because a single run of a profile has no worlds of its own; without either from its own.
    """

    def __init__(self, folder: str | Path, runs: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.folder, self.runs = Path(folder), runs
        self.splits = results.split_labels(results.tidy(runs))

    def __missing__(self, name: str) -> pd.DataFrame:
        results_of = self.folder.parent
        if name in BESIDE:
            beside = Path(f"{results_of}{BESIDE[name]}")
            studies = project_root() / "results" / "studies"
            places = beside, studies / beside.name, results_of
            results_of = next(place for place in places if place.is_dir())
        path = results_of / self.folder.name / f"{name}.csv"
        if not path.is_file() or (table := pd.read_csv(path)).empty:
            raise Missing(name)
        self[name] = table
        return table


def printed_tables() -> Tables:
    """Return the paper's Tables 1 to 5 under the names of our tables.

    Its seeds (Table 4) are in the place of our worlds.
    """
    tables = Tables("")
    tables.update({name: results.paper_table(number) for name, number in PRINTED.items()})
    tables["worlds_each"] = seeds = with_printed_D(tables["tofu_per_seed"])
    tables["worlds"] = pd.concat(
        over_seeds(seeds, name).assign(measure=name) for name in (D, "mu_rouge")
    )
    return tables


def less(tables: Tables, split: str, measure: str = D) -> pd.DataFrame:
    """Return T3's value minus each baseline's, by method: t3_less, t3_low, t3_high and p.

    measure: "ks_held_out" (D) or "mu_rouge".
    Over the worlds in which the study was repeated; of the paper, over its seeds. Without either, D
    over draws of authors and MU-ROUGE over seeds. Of D, p is corrected for the number of
    comparisons (`report.order.adjusted`); of MU-ROUGE there is only the interval.
    """
    try:
        table = tables["worlds"].query("measure == @measure")
    except Missing:
        seeds = tables["order" if measure == D else "tofu_per_seed"]
        table = seeds if measure == D else over_seeds(seeds, measure)
    table = table[(table["split"] == split) & table["method"].isin(BASELINES)]
    return table[table["t3_low"].notna()].set_index("method")


def joined(parts: Sequence[Finding]) -> Finding:
    """Join the findings on both splits to one about both.

    If a part is refuted beyond chance, so is the claim; it is true under a restriction if each such
    part is. Otherwise, a part that has no runs leaves the claim undecided. If all have runs, the
    claim holds if all parts hold, and else has no order.
    """
    refuted = [part for part in parts if part.holds is False]
    told = "; ".join(part.numbers for part in parts)
    if sure := [part.under for part in refuted if not part.no_order]:
        return Finding(False, told, under="; ".join(dict.fromkeys(sure)) if all(sure) else "")
    if any(part.holds is None for part in parts):
        return Finding(None, told)
    return Finding(not refuted, told, no_order=bool(refuted))


def gaps(table: pd.DataFrame) -> str:
    """Write the rows of `less`, such as "RMU -0.05 (-0.11 to +0.02)"."""
    return ", ".join(
        f"{name} {row['t3_less']:+.2f} ({row['t3_low']:+.2f} to {row['t3_high']:+.2f})"
        for name, row in table.iterrows()
    )


def listed(values: Mapping[str, float] | Mapping[float, float], form: str = "{} {:.3f}") -> str:
    """Write numbers by name, such as "NPO 0.793, SimNPO 0.745".

    form: a format string for one name and number.
    """
    return ", ".join(form.format(name, value) for name, value in values.items())
