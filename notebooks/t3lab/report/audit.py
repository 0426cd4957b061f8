"""Build the tables of the audit from its run files (`results.read_audits`).

They show what each method still knows, beside retrained models. For no measure is more or less
better. A measure is good where it is what retrained models have.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from t3lab.audit.labels import AUDIT
from t3lab.names import SPLITS
from t3lab.results import all_rows, of_one_profile
from t3lib.baselines.losses import METHODS

NAMES = ["split", "method", "T", "w"]
SAMPLER = ["tau", "top_p"]
YARDSTICK = "Retrained"


def models(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row for each model.

    Columns: NAMES, seed, every measure of `labels.AUDIT` and its standard error over rows (`_se`).
    n_forget: number of rows to forget. n_written: how many of these were asked for text. n_rows:
    number of all rows.
    """
    numbers = [
        "T",
        "w",
        *AUDIT,
        *(f"{name}_se" for name in AUDIT),
        "n_forget",
        "n_written",
        "n_rows",
    ]
    rows = [
        {name: run[name] for name in (*NAMES, "seed")}
        | dict(run["metrics"])
        | {f"{name}_se": value for name, value in run["errors"].items()}
        | {
            "n_forget": run["asked"].get("forget"),
            "n_written": run["asked"].get("written"),
            "n_rows": all_rows(run),
        }
        for run in of_one_profile(runs)
        if run["status"] == "ok"
    ]
    return pd.DataFrame(rows, columns=["split", "method", "seed", *numbers]).astype(
        dict.fromkeys(numbers, float)
    )


def audit(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the table `audit`: means over seeds, and each measure's distance from the retrained
    models.

    The distance is in units of the retrained models' spread. The spread is their standard deviation
    on the split, and at least the mean standard error over rows of one of them, because the
    standard deviation of two models says little.
    """
    frame = models(runs)
    by = frame.groupby(NAMES, dropna=False)
    table = by[list(AUDIT)].mean().assign(n_seeds=by["seed"].nunique()).reset_index()
    for split in table["split"].unique():
        retrained = frame[(frame["split"] == split) & (frame["method"] == YARDSTICK)]
        here = table["split"] == split
        for name in AUDIT:
            spreads = pd.Series([retrained[name].std(), retrained[f"{name}_se"].mean()])
            spread = spreads.max()  # of one model there is the second alone
            apart = (table.loc[here, name] - retrained[name].mean()) / (
                spread if spread > 0 else float("nan")
            )
            table.loc[here, f"{name}_distance"] = apart
    columns = [
        *NAMES,
        "n_seeds",
        *(f"{name}{part}" for name in AUDIT for part in ("", "_distance")),
    ]
    table = table.reindex(columns=columns)
    table.loc[table["method"] == YARDSTICK, [f"{name}_distance" for name in AUDIT]] = float("nan")
    return _ordered(table).astype({"n_seeds": "Int64"})


def leak(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the table `leak`: leak@k and the number of rows that leak in k answers.

    value: the expected ROUGE-L recall of the best of k answers; se: its standard error over rows.
    rows_leaking: how many of the `rows` with a secret leak it in k answers. tau, top_p: of the
    sampler. All are means over models.
    """
    rows = [
        {name: run[name] for name in NAMES} | {"tau": 1.0, "top_p": run["asked"]["top_p"]} | entry
        for run in runs
        if run["status"] == "ok"
        for entry in run["leak"]
    ]
    by, numbers = [*NAMES, *SAMPLER, "k"], ["value", "se", "rows_leaking", "rows"]
    frame = pd.DataFrame(rows, columns=[*by, *numbers]).astype(dict.fromkeys(numbers, float))
    means = frame.groupby(by, dropna=False)[numbers].mean().round(4)
    return _ordered(means.reset_index())


def reasons(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """List why measures have no value, for which methods: a line for each reason and its methods,
    with all measures that it concerns.
    """
    rows = [
        {"measure": AUDIT[name].title, "reason": reason, "methods": run["method"]}
        for run in runs
        if run["status"] == "ok"
        for name, reason in run["empty"].items()
    ]
    frame = pd.DataFrame(rows, columns=["measure", "reason", "methods"]).drop_duplicates()
    of_measure = frame.groupby(["measure", "reason"], sort=False)["methods"].agg(", ".join)
    alike = of_measure.reset_index().groupby(["reason", "methods"], sort=False)["measure"]
    return alike.agg(", ".join).reset_index()[[*frame.columns]]


def label(method: str, T: float | None, w: float | None) -> str:
    """Name a model by its method and settings, such as "NPO", "T3, T = 2.5" or "T3, T = 2.5, w =
    2".
    """
    parts = [
        method,
        *([] if pd.isna(T) else [f"T = {T:g}"]),
        *([] if pd.isna(w) or w == 1 else [f"w = {w:g}"]),
    ]
    return ", ".join(parts)


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Sort a table in the paper's order of splits and methods."""
    places = {
        "split": {name: n for n, name in enumerate(SPLITS)},
        "method": {name: n for n, name in enumerate(METHODS)},
    }
    last = table.columns.get_loc("k" if "k" in table else "w")
    return table.sort_values(
        list(table.columns[: last + 1]),
        key=lambda column: column.map(places[column.name]) if column.name in places else column,
    ).reset_index(drop=True)
