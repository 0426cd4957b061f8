"""Compare runs of the same settings on two trainings of the same base.

    git archive ba9921f results/tofu-cpu/runs | tar -x --strip-components 3 --one-top-level=before
    python results/tofu-cpu/two_bases.py --before before --out results/tofu-cpu

Both bases were trained from the same rows and seed, by code that gives equal weights on one
machine, on two kinds of processor. Their sums are rounded differently, and after 17,000 steps the
weights are other ones. Each run is compared with the reference of its own side. The commit ba9921f
is the last one whose runs are all on the first base. The runs on the second base are those beside
this script.

It writes the table `two_bases` below OUT/tables, in seconds. The committed table is what these two
commands make.
"""

import argparse
from pathlib import Path

import pandas as pd

from t3lab import results, script
from t3lab.report import render
from t3lib.cli import Options
from t3lib.core.errors import UserError

NAMES = ["split", "method", "T", "w"]
SCORES = {"fq": "fq", "D": "ks_statistic", "mu_rouge": "mu_rouge", "mu": "mu"}
CAPTION = (
    "The same settings and seeds on two trainings of the same base, before and now, as means over"
    " seeds. fq and D compare with the reference of the same side. The two were trained on"
    " different processors."
)


def table(before: list[dict], now: list[dict]) -> pd.DataFrame:
    """Return a row for each (split, method, T, w) that has runs of equal settings on both bases.

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
    if not rows:
        raise UserError("no run of these settings is on another base: see --before")
    groups = pd.DataFrame(rows).groupby(NAMES, dropna=False)
    return groups.mean().assign(n_seeds=groups.size()).reset_index()


OPTIONS: Options = {
    "--before": {
        "type": Path,
        "default": Path("before"),
        "help": "folder of the run files on the first base",
    },
    "--out": {"type": Path, "default": Path("out/tofu-cpu"), "help": "results folder"},
    "--tiny": {"action": "store_true", "help": "take today's runs for those on the first base"},
}


def make(args: argparse.Namespace) -> None:
    """Write the table."""
    results.check_clean(args.out)
    now = results.read_runs(Path(__file__).parent / "runs")
    before = [run | {"provenance": {"model_revision": "another"}} for run in now]
    made = table(before if args.tiny else results.read_runs(args.before), now)
    render.write_table(args.out / "tables", "two_bases", made, caption=CAPTION)


if __name__ == "__main__":
    script.run(make, "Compare runs on two trainings of the same base.", OPTIONS)
