"""Compare two results folders, such as a person's own run and the committed one: run by run, and
row by row of every table.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from decimal import ROUND_UP, Context
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from t3lab.results import name_of, read_ablations, read_audits, read_runs
from t3lib.core.errors import UserError, printable

TOLERANCE = 1e-6  # numbers that differ by at most this are the same
# Columns of numbers that say which row it is. Columns of text do so too, except those in TEXTS.
SETTINGS = "T w gate lr rate a seed reference world d k experiment v_f n lam least_risk".split()
SETTINGS += "gamma tau top_p steps bits authors rows temperature tail judge alpha rank".split()
SETTINGS += ["alpha_r", "fitted"]
TEXTS = "where claim printed verdict evidence numbers scale note sentence holds under".split()
TEXTS += "chosen edge commit base_rates fq_mark mu_rouge_mark mu_mark".split()
SECONDS = ("benchmarks", "runtime", "speed")  # tables of seconds and memory
VARY = ("cpu_seconds", "minutes", "commit", "scale")  # columns of seconds, of code and of bases
MADE_OF_RUNS = "ablations audit claims errors forget_quality leak temperature order search".split()
MADE_OF_RUNS += "temperature_vs_paper tofu tofu_per_seed tofu_vs_paper".split()
FEW = 40  # about so many cells that differ are printed

Row = dict[str, str | float]  # {column: value}
Rows = dict[str, Row]


def compare(a: str | Path, b: str | Path) -> tuple[bool, list[str]]:
    """Compare what two results folders both have: runs, and rows of tables.

    Rows are compared only if all their settings are equal. If each folder has rows of a table
    that the other lacks, the table differs. If only one has, they are left out. Tables that are
    made of runs are compared only if both folders have the same runs.

    Returns whether anything differs, and lines of text: what was not compared, some of the cells
    that differ, and one sentence, which also says how much was compared.

    UserError for a folder that is not there, for a damaged run, if both folders have runs but none
    in common, and if nothing can be compared.
    """
    for folder in (a, b):
        if not Path(folder).is_dir():
            raise UserError(f"{folder}: no such folder")
    ours, theirs = _read(Path(a)), _read(Path(b))
    same_runs = ours["runs"].keys() == theirs["runs"].keys()
    cells = list[tuple[Any, ...]]()  # that differ
    gaps: dict[tuple[str, str], float] = {}  # the largest difference in each row
    left_out: dict[tuple[str, str], set[str]] = defaultdict(set)

    for table in sorted(ours | theirs):
        rows, others = ours.get(table, {}), theirs.get(table, {})

        whole = _reason_for_all(table, rows, others, same_runs)
        for row in rows | others:
            one, two = rows.get(row, {}), others.get(row, {})
            for column in {**one, **two}:
                if reason := whole or _reason(column, one, two):
                    left_out[table, reason].add(row)
                    continue
                gap = _gap(one[column], two[column])
                gaps[table, row] = max(gap, gaps.get((table, row), 0.0))
                if gap > TOLERANCE:
                    cells.append((table, row, column, one[column], two[column]))

        # rows that each folder has for itself are a difference
        alone = [len(left_out.get((table, f"only in {side}"), ())) for side in "ab"]
        if all(alone) and table != "runs":
            cells.append((table, "rows that the other lacks", "", *alone))

    runs = {row: gap for (table, row), gap in gaps.items() if table == "runs"}
    if not (runs if ours["runs"] and theirs["runs"] else gaps or cells):
        raise UserError(f"{a} and {b} have no run in common: are they results of one profile?")

    tables = {table for table, _ in gaps} - {"runs"}
    every = len((ours | theirs).keys() - {"runs"})
    much = f"compared: {_count(len(runs), 'run')}, {_count(len(tables), 'table')} of {every}"
    lines = [
        f"a: {a}, b: {b}",
        *(
            printable(f"not compared: {table} ({_count(len(names), 'row')}): {why}")
            for (table, why), names in left_out.items()
        ),
    ]
    if not cells:
        return False, [*lines, f"{_same(max(gaps.values()), runs)}; {much}"]
    frame = pd.DataFrame(cells, columns=["table", "row", "column", "a", "b"])
    differing = [printable(table) for table in frame["table"].unique()]
    few = frame if len(frame) <= FEW else frame.groupby("table").head(max(1, FEW // len(differing)))
    lines.append(few.map(lambda value: printable(value, 60)).to_string(index=False))
    differ = f"{_count(len(cells), 'cell')} differ{'s' * (len(cells) == 1)}"
    where = f"in {_count(len(differing), 'table')}: {', '.join(differing)}"

    return True, [*lines, f"{differ} {where}; {much}"]


def _reason_for_all(table: str, rows: Rows, others: Rows, same_runs: bool) -> str:
    """Return why no row of a table is compared, "" if some may be."""
    if table in MADE_OF_RUNS and not same_runs:
        return "made of runs that only one folder has"
    if table in SECONDS:
        return "seconds or memory"
    columns = {row.get("settings") for row in (*rows.values(), *others.values())}
    return "other columns of settings" if len(columns) > 1 else ""


def _reason(column: str, one: Row, two: Row) -> str:
    """Return why a cell is not compared, "" if it is.

    one, two: its row in both folders, empty where it is missing.
    """
    if column not in one or column not in two:
        side = "a" if column in one else "b"
        return f"some columns only in {side}" if one and two else f"only in {side}"
    if "tables/runtime" in str(one.get("evidence")):
        return "seconds or memory"
    if one.get("n_seeds") != two.get("n_seeds"):
        return "means over other numbers of seeds"
    return f"column {column}, which varies from run to run" if column in VARY else ""


def _same(gap: float, runs: Mapping[str, float]) -> str:
    """Return the sentence for results that are the same.

    gap: the largest difference. runs: that of each run.
    """
    rounded_up = Context(prec=1, rounding=ROUND_UP).create_decimal(gap)
    same = f"the same within {rounded_up:e}" if gap else "the same to the last digit"
    inexact = [run.split("--")[0] for run in runs if runs[run]]
    names = ", ".join(sorted({*inexact}))
    more = f" ({len(inexact)} of {len(runs)} runs not bit for bit: {names})"
    return same + more if inexact else same


def _read(folder: Path) -> dict[str, Rows]:
    """Return the runs and the tables of a results folder as {table: {row: {column: value}}}.

    The runs are the table "runs". UserError for a damaged run.
    """
    runs = {name_of(run): run for run in read_runs(folder / "runs")}
    runs |= {f"audit/{name_of(run)}": run for run in read_audits(folder / "runs")}
    runs |= {f"{run['setting']}/{name_of(run)}": run for run in read_ablations(folder / "runs")}
    names = "status hyper trainable metrics truth_ratio leak unlearning_errors".split()
    measured = {row: _flat({key: run.get(key) for key in names}) for row, run in runs.items()}
    tables = {path.stem: read_table(path) for path in folder.glob("tables/*.csv")}
    return {"runs": measured, **tables}


def read_table(path: Path) -> Rows:
    """Return a table as {row: {column: value}}; empty cells are "".

    A row is named by its settings, with "(again)" if an earlier row has the same. Its value
    "settings" names their columns. A row whose results are all empty stands for something that did
    not run, and is left out.
    """
    try:
        frame = pd.read_csv(path)
    except ValueError as error:  # pandas' own errors are of this kind
        raise UserError(f"{path}: not a table ({printable(str(error).splitlines()[0])})") from None
    names = {c for c in frame if c in SETTINGS or not is_numeric_dtype(frame[c])} - {*TEXTS}
    settings = ", ".join(c for c in frame if c in SETTINGS)
    rows: Rows = {}
    for line in frame.astype(object).where(frame.notna(), "").to_dict("records"):
        results = {c: value for c, value in line.items() if c not in names} or line
        if {*results.values()} != {""}:
            row = ", ".join(
                value if isinstance(value, str) else f"{c} {value:.9g}"
                for c, value in line.items()
                if c in names and value != ""
            )
            while row in rows:
                row += " (again)"
            rows[row] = {"settings": settings, **results}
    return rows


def _flat(value: Any, name: str = "") -> Row:
    """Return nested dicts and lists as one dict with names such as "truth_ratio.forget.0".

    A list has its length as well, and null becomes "".
    """
    if isinstance(value, list):
        value = {"length": len(value), **dict(enumerate(value))}
    if not isinstance(value, dict):
        return {name: "" if value is None else value}
    parts = [_flat(part, f"{name}.{key}".lstrip(".")) for key, part in value.items()]
    return {path: leaf for part in parts for path, leaf in part.items()}


def _gap(one: str | float, two: str | float) -> float:
    """Return the difference of two numbers, and infinity for a text and another value."""
    if one == two or isinstance(one, str) or isinstance(two, str):
        return 0.0 if one == two else math.inf
    return abs(one - two)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
