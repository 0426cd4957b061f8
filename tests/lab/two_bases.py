"""Compare runs of the same settings on two trainings of the same base, as a table.

    python tests/lab/two_bases.py RUNS_BEFORE RUNS_NOW TABLES

RUNS_BEFORE, RUNS_NOW: folders of run files; TABLES: the folder for two_bases.csv, .md and .tex.
Both bases were trained from the same rows and seed, by code that gives equal weights on one
machine, on two kinds of processor. Their sums round differently, and in 17,000 steps the weights
become other ones. Each run is compared with the reference of its own side.
"""

import sys

import pandas as pd

from t3lib.lab import results
from t3lib.lab.report import render

NAMES = ["split", "method", "T", "w"]
SCORES = {"fq": "fq", "D": "ks_statistic", "mu_rouge": "mu_rouge", "mu": "mu"}
CAPTION = (
    "The same settings and seeds on two trainings of the same base, before and now, as means over"
    " seeds. fq and D compare with the reference of the same side. The two were trained on"
    " different processors."
)


def table(before: list[dict], now: list[dict]) -> pd.DataFrame:
    """Return a row for each (split, method, T, w) that has runs of equal settings on both sides.

    Columns: the number of seeds in common, and each of `SCORES` before and now.
    """
    earlier = {results.name_of(run): run for run in before}
    rows = []
    for run in now:
        other = earlier.get(results.name_of(run))
        if other is None or other["hyper"] != run["hyper"]:
            continue
        if other["provenance"]["model_revision"] == run["provenance"]["model_revision"]:
            continue  # the same base
        row = {name: run[name] for name in NAMES}
        for name, metric in SCORES.items():
            row |= {
                f"{name}_before": other["metrics"][metric],
                f"{name}_now": run["metrics"][metric],
            }
        rows.append(row)
    groups = pd.DataFrame(rows).groupby(NAMES, dropna=False)
    return groups.mean().assign(n_seeds=groups.size()).reset_index()


if __name__ == "__main__":
    made = table(*map(results.read_runs, sys.argv[1:3]))
    render.write_table(sys.argv[3], "two_bases", made, caption=CAPTION)
