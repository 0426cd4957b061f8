"""Could a sharper classifier do without tempering on TOFU's text?

    python results/profiles/tofu-cpu/sharper.py --data DIR --out results/profiles/tofu-cpu

There the rule of T3 (least) chose T = 2.5 (results/studies/cpu-worlds/guided.py). But its search
had no w, the power of f^w (Remark 3.6), and its highest learning rate at T = 1, 0.16, still leaked.
Greedily p^(1/T) f writes what p f^T does. So here T is 1, with higher rates and all w of
`STRENGTHS`. The rule is the same: of the points that leak at most as much as another retrained
model and two standard errors, the one of least Retain Error, a mean of two heads, on the 10% split.
Written down before it was run. A first search, from the rate 0.08 on, chose 0.08, so there are two
lower ones.

It writes OUT/tables/sharper.csv and OUT/sharper.json; DIR has TOFU's files.
"""

import sys
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import pandas as pd

from t3lab import results, script
from t3lab.profiles import hyper_of
from t3lab.report import render
from t3lab.study.methods import dialled
from t3lib.core.errors import Diverged
from t3lib.core.files import project_root, write_json
from t3lib.core.progress import progress_bar

sys.path.append(str(project_root() / "results" / "studies" / "cpu-worlds"))
import guided

SPLIT = "forget10"
RATES = (2e-2, 4e-2, 8e-2, 1.6e-1, 3.2e-1, 6.4e-1)
STRENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 12.0)
SEEDS = (1, 2)
UNTEMPERED = {"temperature": 1.0, "gate": 1.0, "tail": 0.0}
COLUMNS = ["split", "labels", "lr", "w", *guided.ERRORS[:4], "leak_se", "chosen"]


def make(data: str | None, out: Path, tiny: bool) -> None:
    """Search rates and w at T = 1; write the table. tiny: the built-in world, to try it."""
    results.check_clean(out)
    began = time.process_time()
    given = script.load("cpu" if tiny else "tofu-cpu", tiny, data=data, splits=[SPLIT])
    rates, strengths = (RATES[:1], STRENGTHS[:2]) if tiny else (RATES, STRENGTHS)

    study = guided.opened(given, 0, SPLIT)
    judge, tuned = guided.retrained(study, 0), hyper_of(given["hyper"], "T3", SPLIT)
    floor = guided.errors_beside(study, judge, guided.retrained(study, 1))
    rows = []
    for lr, seed in progress_bar([*product(rates, SEEDS)], desc="heads"):
        with suppress(Diverged):
            head = guided.head_of(study, tuned | {"lr": lr}, seed, None)
            sharper = [dialled(head, {"w": w}) for w in strengths]
            found = guided.errors_by_point(study, judge, sharper, [UNTEMPERED])
            same = {"split": SPLIT, "labels": "hard", "lr": lr}
            rows += [same | {"w": w} | each for w, [each] in zip(strengths, found)]
    by = pd.DataFrame(rows).groupby(["split", "labels", "lr", "w"], sort=False)
    search = by.mean()[by.size() == len(SEEDS)].reset_index()
    search = pd.concat([pd.DataFrame([{"split": SPLIT, "labels": "Retrained"} | floor]), search])
    search = search.reset_index(drop=True)
    best = guided.best_of(search, "labels", guided.RULES["chosen"])
    search = search.assign(chosen=search.index.isin(best))[COLUMNS]
    render.write_table(out / "tables", "sharper", search)
    write_json(out / "sharper.json", script.made(began))


OPTIONS: script.Options = {
    "--out": {"type": Path, "default": Path("out/tofu-cpu")},
} | script.DATA_OPTIONS

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
