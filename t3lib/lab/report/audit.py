"""The tables of the audit, from its runs (`results.read_audits`): what each method still knows
beside retrained models.

Neither more nor less is better: a measure is good where it is what retrained models have.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from t3lib.baselines.losses import METHODS
from t3lib.core.names import SPLITS
from t3lib.lab.results import all_rows, of_one_profile
from t3lib.tofu.metrics import AUDIT

NAMES = ["split", "method", "T", "w"]
SAMPLER = ["tau", "top_p"]
YARDSTICK = "Retrained"


def models(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a model: NAMES, seed, every measure of `metrics.AUDIT`, its standard error over rows
    (`_se`), and how many of n_rows rows were to forget (n_forget) and how many of these were asked
    to write (n_written).
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
    """Table `audit`: means over seeds, and each measure's distance from the retrained models in
    units of their spread.

    Spread: the standard deviation over the retrained models of the split, but no less than the
    standard error over rows that one of them has, for two models alone say little about a spread.
    """
    frame = models(runs)
    by = frame.groupby(NAMES, dropna=False)
    table = by[list(AUDIT)].mean().assign(n_seeds=by["seed"].nunique()).reset_index()
    for split in table["split"].unique():
        retrained = frame[(frame["split"] == split) & (frame["method"] == YARDSTICK)]
        here = table["split"] == split
        for name in AUDIT:
            spread = max(retrained[name].std(), retrained[f"{name}_se"].mean())
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
    """Table `leak`: leak@k, the expected ROUGE-L recall of the best of k answers, and how many of
    the rows with a secret leak it in k answers; mean over models, s.e. over rows.

    tau, top_p: of the sampler.
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


def beside(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The measures of a few models side by side, a column each, mean over seeds: what fits on a
    screen.
    """
    table = audit(runs).set_index(["method", "T", "w"])[list(AUDIT)].T
    table.columns = pd.Index([label(*names) for names in table.columns])
    table.insert(0, "measure", [AUDIT[name].title for name in table.index])
    return table[table.drop(columns="measure").notna().any(axis=1)].reset_index(drop=True)


def of_rows(audits: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> pd.DataFrame:
    """A person's own model: a row a measure, leak@k among them, a column for each {when: {set of
    rows: measures}}.
    """
    columns = {}
    for when, sets in audits.items():
        for name, found in sets.items():
            leaks = {f"leak@{entry['k']}": entry["value"] for entry in found["leak"]}
            columns[f"{name} {when}".strip()] = dict(found["values"]) | leaks
    frame = pd.DataFrame(columns)
    frame = frame.reindex(
        [
            *(name for name in AUDIT if name in frame.index),
            *(n for n in frame.index if n not in AUDIT),
        ]
    )
    frame.insert(
        0, "measure", [AUDIT[name].title if name in AUDIT else name for name in frame.index]
    )
    return frame.reset_index(drop=True)


def reasons(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Why measures have no value: measure, reason and the methods it is true of."""
    rows = [
        {"measure": AUDIT[name].title, "reason": reason, "methods": run["method"]}
        for run in runs
        if run["status"] == "ok"
        for name, reason in run["empty"].items()
    ]
    frame = pd.DataFrame(rows, columns=["measure", "reason", "methods"]).drop_duplicates()
    return frame.groupby(["measure", "reason"], sort=False)["methods"].agg(", ".join).reset_index()


def label(method: str, T: float | None, w: float | None) -> str:
    """ "NPO", "T3, T = 2.5", "T3, T = 2.5, w = 2"."""
    parts = [
        method,
        *([] if pd.isna(T) else [f"T = {T:g}"]),
        *([] if pd.isna(w) or w == 1 else [f"w = {w:g}"]),
    ]
    return ", ".join(parts)


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """In the paper's order of splits and methods."""
    places = {
        "split": {name: n for n, name in enumerate(SPLITS)},
        "method": {name: n for n, name in enumerate(METHODS)},
    }
    last = table.columns.get_loc("k" if "k" in table else "w")
    return table.sort_values(
        list(table.columns[: last + 1]),
        key=lambda column: column.map(places[column.name]) if column.name in places else column,
    ).reset_index(drop=True)
