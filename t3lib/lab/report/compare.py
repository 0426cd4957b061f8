"""Compare two results folders, such as a person's own run and the committed one, by method and by
cell.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from t3lib.core.errors import UserError
from t3lib.lab.report.tables import SUMMARY, at_tuned_temperature
from t3lib.lab.results import read_ablations, read_audits, read_runs, tidy

KEYS = (
    "split",
    "method",
    "T",
    "w",
    "seed",
    "seeds",
    "n_seeds",
    "setting",
    "id",
    "bound",
    "experiment",
    "what",
    "axis",
    "value",
)
MEANS = ("ablations", "leak", "claims")  # tables that do not record the seeds of their means
# columns that differ from run to run
CLOCKS = ("load_s", "features_s", "train_s", "evaluate_s", "peak_memory_bytes")
RUN = ("split", "method", "T", "w", "seed")
COLUMNS = ["table", "row", "column", "a", "b", "difference"]


class Comparison(NamedTuple):
    """The differences of two folders.

    cells: the cells that differ, one row each (COLUMNS). alone: what only one folder has, one
    phrase each.
    """

    cells: pd.DataFrame
    alone: list[str]


def compare(
    a: str | Path, b: str | Path, *, tolerance: float = 1e-9, clocks: bool = False
) -> Comparison:
    """Compare the tables of two results folders, in the rows and columns that both have.

    tolerance: numbers differ if they are further apart than this.
    clocks: also compare seconds, memory and benchmarks.

    A mean over other seeds counts as another row. Tables in MEANS do not record their seeds, so
    they are compared only where both folders have the same runs. UserError for a folder without
    tables.
    """
    folders, runs = (
        [_tables(Path(folder)) for folder in (a, b)],
        [_numbers(folder) for folder in (a, b)],
    )
    rows: list[tuple] = []
    alone: list[str] = []
    for side, mine, other in (("a", 0, 1), ("b", 1, 0)):
        if lost := runs[mine].keys() - runs[other].keys():
            seeds = sorted({key[-1] for key in lost})
            alone.append(f"{len(lost)} runs of {side} (seeds {', '.join(map(str, seeds))})")
    skipped = MEANS if alone else ()
    for name in sorted({*folders[0], *folders[1]}):
        if name.startswith("benchmarks") and not clocks or name in skipped:
            continue
        if name not in folders[0] or name not in folders[1]:
            alone.append(f"table {name} of {'a' if name in folders[0] else 'b'}")
            continue
        one, two = (pd.read_csv(folder[name], dtype=object) for folder in folders)
        cells, missing = _cells(name, one, two, tolerance, clocks)
        rows, alone = rows + cells, alone + missing
    return Comparison(pd.DataFrame(rows, columns=COLUMNS), alone)


def means(a: str | Path, b: str | Path) -> pd.DataFrame:
    """Return the three means of Table 1 from both folders, over the seeds that both have run.

    There is one row for each split and method. T3 is at each folder's own tuned T. Columns: split,
    method, seeds (their number), and for each of fq, mu_rouge and mu `NAME a`, `NAME b` and `NAME
    sd`, the standard deviation over these seeds in b.
    """
    runs = [
        at_tuned_temperature(tidy(read_runs(Path(folder) / "runs", corrupt=[])))
        for folder in (a, b)
    ]
    both = (
        runs[0]
        .merge(runs[1], on=["split", "method", "seed"], suffixes=(" a", " b"))
        .dropna(subset=["fq a", "fq b"])
    )
    grouped = both.groupby(["split", "method"], sort=False)
    table = grouped["seed"].count().to_frame("seeds")
    for name in SUMMARY:
        table[[f"{name} a", f"{name} b"]] = grouped[[f"{name} a", f"{name} b"]].mean()
        table[f"{name} sd"] = grouped[f"{name} b"].std()
    return table.reset_index().sort_values("split", kind="stable", ignore_index=True)


def equal_runs(a: str | Path, b: str | Path) -> tuple[int, int]:
    """Return (runs whose numbers are all equal to the last digit, runs that both folders have).

    Runs of ablations and of the audit count as well.
    """
    ours, theirs = _numbers(a), _numbers(b)
    both = ours.keys() & theirs.keys()
    return sum(ours[key] == theirs[key] for key in both), len(both)


def _numbers(folder: str | Path) -> dict[tuple, list[Any]]:
    """Return what was measured, by kind of run ("main", an ablation's setting, "audit") and
    `RUN`.
    """
    place = Path(folder) / "runs"
    kinds = {"main": read_runs(place, corrupt=[]), "audit": read_audits(place, corrupt=[])}
    for run in read_ablations(place, corrupt=[]):
        kinds.setdefault(run["setting"], []).append(run)
    return {
        (kind, *(run[key] for key in RUN)): [
            run["status"],
            run["metrics"],
            run["truth_ratio"],
            run.get("leak"),
        ]
        for kind, runs in kinds.items()
        for run in runs
    }


def _tables(folder: Path) -> dict[str, Path]:
    found = {path.stem: path for path in sorted((folder / "tables").glob("*.csv"))}
    if not found:
        raise UserError(f"{folder} has no tables/*.csv: is it a results folder?")
    return found


def _cells(
    name: str, ours: pd.DataFrame, theirs: pd.DataFrame, tolerance: float, clocks: bool
) -> tuple[list[tuple], list[str]]:
    """Return (cells that differ, what one table lacks). Rows are matched by their keys, and rows
    with equal keys by their order.
    """
    keys = [key for key in KEYS if key in ours and key in theirs]
    frames = []
    for frame in (ours, theirs):
        texts = [", ".join(map(str, row)) for row in frame[keys].fillna("").itertuples(index=False)]
        named = pd.Series(texts, index=frame.index, dtype=str)
        frames.append(
            frame.assign(row=named, place=named.groupby(named).cumcount()).set_index(
                ["row", "place"]
            )
        )
    ignored = {*keys, *(() if clocks else CLOCKS)}
    alone = [
        f"{len(lost)} {what} of {side}'s table {name}"
        for side, mine, other in (("a", *frames), ("b", *frames[::-1]))
        for what, lost in (
            ("rows", _filled(mine, ignored).difference(other.index)),
            ("columns", [*mine.columns.difference(other.columns)]),
        )
        if len(lost)
    ]
    columns = [column for column in ours if column in theirs and column not in ignored]
    index = frames[0].index.intersection(frames[1].index, sort=False)
    left, right = (frame.reindex(index=index, columns=columns).fillna("") for frame in frames)
    rows = []
    for column in columns:
        for place in index[(left[column] != right[column]).to_numpy()]:
            one, two = str(left.at[place, column]), str(right.at[place, column])
            gap = pd.to_numeric(pd.Series([one, two]), errors="coerce").diff().iloc[-1]
            if not abs(gap) <= tolerance:  # the difference of texts is NaN
                rows.append((name, place[0], column, one, two, gap))
    return rows, alone


def _filled(frame: pd.DataFrame, ignored: set[str]) -> pd.MultiIndex:
    """Return the index of the rows that hold a value. A row of empty cells stands for something
    that did not run.
    """
    return frame.index[frame.drop(columns=[*ignored & set(frame)]).notna().any(axis=1)]
