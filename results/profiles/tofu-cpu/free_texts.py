"""Does free text give away the rows to forget on TOFU's text?

    python results/profiles/tofu-cpu/free_texts.py --data DIR \
        --out results/profiles/tofu-cpu/another-base

guided.py writes no free text there, because 400 rows would take hours. Here every fourth of them is
asked, five of each author: the samples and greedy answers of guided.py in all ways of asking, of
the base, T3 as Forget Quality tunes it, T3 (least), T3 (guided), RMU (least) and a retrained model,
with the settings of OUT/tables. What a text gives away is counted as in the worlds, by words of an
answer that guessing does not say. The counts of a trial with ten rows were seen before. Models that
the table has are not asked again; WGA (least) and T3 with trained guides came later.

It writes OUT/tables/free_texts.csv and OUT/free_texts.json; DIR has TOFU's files. The base models
are those of make_bases.py on this machine. Another processor gives other weights, so the script
stops if the base does not leak as that of OUT/tables.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from t3lab import results, script
from t3lab.report import render
from t3lib.core.errors import UserError
from t3lib.core.files import project_root
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.unlearning_errors import summary

WORLDS = project_root() / "results" / "studies" / "cpu-worlds"
sys.path.append(str(WORLDS))
import baselines  # noqa: E402
import guided  # noqa: E402

SPLIT = "forget10"
EVERY = 4
COLUMNS = guided.TEXTS[2:]


def make(data: str | None, out: Path, tiny: bool) -> None:
    """Write free text of every model; write the table. tiny: the built-in world, to try it."""
    results.check_clean(out)
    began = time.process_time()
    given = script.load("cpu" if tiny else "tofu-cpu", tiny, data=data, splits=[SPLIT])
    tables = WORLDS / "tables" if tiny else out / "tables"

    study = guided.opened(given, 1, SPLIT)
    rows = study.evaluation_rows
    if not tiny:
        [of_base] = guided.row_errors(study, guided.retrained(study, 1), study.base)
        each = pd.read_csv(tables / "guided_each.csv").set_index(["model", "split"])
        if not np.isclose(summary(of_base)["leak"], each.loc[("Original", SPLIT), "leak"]):
            raise UserError(f"{tables}/guided_each.csv is of another base: run guided.py first")
    study = replace(study, evaluation_rows=rows | {"forget": rows["forget"][::EVERY]})
    path = out / "tables" / "free_texts.csv"
    old = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=COLUMNS)
    grid = guided.GRIDS["cpu" if tiny else "tofu-cpu"]
    search = pd.read_csv(tables / "guided_search.csv")
    every = guided.settings_of(search, SPLIT, "chosen")
    settings = {name: each for name, each in every.items() if name not in {*old["model"]}}
    guides = guided.guides_of(given, grid, 1, SPLIT)
    others = "Retrained" not in {*old["model"]}
    found = []
    for names, model, tilts in guided.models(study, given["hyper"], settings, others, guides):
        for name, ways in zip(names, guided.free_texts(study, model, tilts)):
            found += [{"model": name} | way for way in ways]
    points = pd.read_csv(tables / "baselines_search.csv")
    points = points[points["chosen"] & (points["split"] == SPLIT)]
    points = points[~(points["method"] + " (least)").isin(old["model"])]
    for facts, model in baselines.chosen_models(study, given, points):
        [ways] = guided.free_texts(study, model, UNTILTED)
        found += [{"model": facts["model"]} | way for way in ways]
    new = pd.DataFrame(found, columns=COLUMNS)
    render.write_table(out / "tables", "free_texts", pd.concat([old, new], ignore_index=True))
    script.note(out / "free_texts.json", ", ".join(new["model"].drop_duplicates()), began)


OPTIONS: script.Options = {
    "--out": {"type": Path, "default": Path("out/tofu-cpu")},
} | script.DATA_OPTIONS

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
