"""Two folders of results: what a person's own run gives beside the committed one, method by method and cell by cell."""

from pathlib import Path

import pandas as pd

from t3lib.errors import UserError
from t3lib.report.tables import SUMMARY, at_tuned_temperature
from t3lib.results import read_runs, tidy

KEYS = ("split", "method", "T", "w", "seed", "seeds", "setting", "id", "bound", "experiment", "what", "axis", "value")
CLOCKS = ("load_s", "features_s", "train_s", "evaluate_s", "peak_memory_bytes")  # differ from run to run
RUN = ("split", "method", "T", "w", "seed")
COLUMNS = ["table", "row", "column", "a", "b", "difference"]


def compare(a: str | Path, b: str | Path, *, tolerance: float = 1e-9, clocks: bool = False) -> pd.DataFrame:
    """The cells in which the tables of two results folders differ by more than `tolerance`: COLUMNS, one row a cell.

    `a` and `b` are folders with tables/*.csv. A table that only one has is one row, its `column` empty. Seconds and
    memory are left out unless `clocks` is true, and so are the benchmarks. UserError for a folder without tables.
    """
    folders = [_tables(Path(folder)) for folder in (a, b)]
    rows: list[tuple] = []
    for name in sorted({*folders[0], *folders[1]}):
        if name.startswith("benchmarks") and not clocks:
            continue
        if name not in folders[0] or name not in folders[1]:
            there = ["there" if name in folder else "" for folder in folders]
            rows.append((name, "", "", *there, float("nan")))
            continue
        one, two = (pd.read_csv(folder[name], dtype=object) for folder in folders)
        rows += _cells(name, one, two, tolerance, clocks)
    return pd.DataFrame(rows, columns=COLUMNS)


def means(a: str | Path, b: str | Path) -> pd.DataFrame:
    """Table 1's three means of both folders, over the seeds that both have run: one row a split and method.

    T3 is at each folder's own tuned T. Columns: split, method, seeds (how many), then for each of fq, mu_rouge and mu
    `NAME a`, `NAME b` and `NAME sd`, the standard deviation over these seeds in b.
    """
    runs = [at_tuned_temperature(tidy(read_runs(Path(folder) / "runs", corrupt=[]))) for folder in (a, b)]
    both = runs[0].merge(runs[1], on=["split", "method", "seed"], suffixes=(" a", " b")).dropna(subset=["fq a", "fq b"])
    grouped = both.groupby(["split", "method"], sort=False)
    table = grouped["seed"].count().to_frame("seeds")
    for name in SUMMARY:
        table[[f"{name} a", f"{name} b"]] = grouped[[f"{name} a", f"{name} b"]].mean()
        table[f"{name} sd"] = grouped[f"{name} b"].std()
    return table.reset_index().sort_values("split", kind="stable", ignore_index=True)


def equal_runs(a: str | Path, b: str | Path) -> tuple[int, int]:
    """(runs with equal numbers, runs that both folders have): metrics and truth ratios are equal to the last digit."""
    kept = []
    for folder in (a, b):
        runs = read_runs(Path(folder) / "runs", corrupt=[])
        kept.append({tuple(run[key] for key in RUN): [run["metrics"], run["truth_ratio"]] for run in runs})
    both = [key for key in kept[0] if key in kept[1]]
    return sum(kept[0][key] == kept[1][key] for key in both), len(both)


def _tables(folder: Path) -> dict[str, Path]:
    found = {path.stem: path for path in sorted((folder / "tables").glob("*.csv"))}
    if not found:
        raise UserError(f"{folder} has no tables/*.csv: is it a results folder?")
    return found


def _cells(name: str, ours: pd.DataFrame, theirs: pd.DataFrame, tolerance: float, clocks: bool) -> list[tuple]:
    """Rows are matched by their keys, and those with equal keys by their order."""
    keys = [key for key in KEYS if key in ours and key in theirs]
    frames = []
    for frame in (ours, theirs):
        texts = [", ".join(map(str, row)) for row in frame[keys].fillna("").itertuples(index=False)]
        named = pd.Series(texts, index=frame.index, dtype=str)
        frames.append(frame.assign(row=named, place=named.groupby(named).cumcount()).set_index(["row", "place"]))
    ignored = {*keys, *(() if clocks else CLOCKS)}
    columns = [column for column in dict.fromkeys([*ours, *theirs]) if column not in ignored]
    index = frames[0].index.union(frames[1].index, sort=False)
    left, right = (frame.reindex(index=index, columns=columns).fillna("") for frame in frames)
    rows = []
    for column in columns:
        for place in index[(left[column] != right[column]).to_numpy()]:
            one, two = str(left.at[place, column]), str(right.at[place, column])
            gap = pd.to_numeric(pd.Series([one, two]), errors="coerce").diff().iloc[-1]
            if not abs(gap) <= tolerance:  # text has no difference: NaN is not within it
                rows.append((name, place[0], column, one, two, gap))
    return rows
