"""What does T3 keep if every epoch has the same rows to keep, at a rate and T searched for it?

    python results/studies/cpu-fixed/make.py

The paper's five seconds (Table 3) are of a training on saved features of "a full epoch of data",
which we read as the same rows to keep in every epoch ("fixed"). Other tables of profile cpu draw
other rows to keep in every epoch ("redrawn"). Here the search of profile cpu is repeated for the
fixed epoch: each rate of T3's grid at each T, chosen by Forget Quality against the first retrained
model. A second choice favours the paper: the highest MU-ROUGE of all settings with at least half of
the best Forget Quality. Each setting then runs with every seed of the profile and is compared with
retrained models that are held out.

It writes two tables below --out: `fixed_search` has every rate and T that was tried, and
`fixed_epoch` T3 with redrawn rows, with fixed rows at the same rate and T, and with fixed rows at
both choices. made.json says which command and commit made them. It takes about ten minutes of one
core, most of them to train base models, which .t3cache keeps.
"""

import time
from pathlib import Path

import numpy as np
import pandas as pd

from t3lab import profiles, results, script
from t3lab.profiles import WORLD, hyper_of, seeds_of
from t3lab.report import render
from t3lab.results import HELD_OUT
from t3lab.study.records import run_method
from t3lab.study.study import open_study
from t3lab.study.tune import tune_t3
from t3lib.core.files import write_json

REDRAWN, FIXED, RETUNED, KEPT = "redrawn", "fixed", "fixed, retuned", "fixed, most kept"
COMPETITIVE = 0.5  # of the best Forget Quality, as in the claim on MU-ROUGE
MEANS = ["fq", "mu_rouge", "retain_rouge", "retain_prob", "mu", *HELD_OUT]
CAPTION = (
    "T3 with other rows to keep in every epoch (redrawn), with the same rows in every epoch at the"
    " learning rate and T of redrawn rows (fixed), and at two choices of a search: the best Forget"
    " Quality (fixed, retuned), and the best MU-ROUGE of all settings with at least half of this"
    " Forget Quality (fixed, most kept). Means over seeds. FQ compares with the retrained model on"
    " which settings were chosen, FQ and KS D, held out, with the others."
)
SEARCHED = (
    "T3 with the same rows to keep in every epoch: every learning rate at every T, as means over"
    " the seeds of the search, against the retrained model on which settings are chosen. MU-ROUGE"
    " was measured of settings with at least half of the best Forget Quality."
)


def make(out: Path, tiny: bool) -> None:
    """Write both tables and made.json.

    tiny: one split and seed of models that know nothing, to try the script.
    """
    results.check_clean(out)
    profile = profiles.load_profile("cpu")
    few = {"T3": profile["grids"]["T3"][:1]}
    profile = script.tiny(profile, grids=few) if tiny else profile
    began = time.process_time()
    searched, means = [], []
    for split in profile["splits"]:
        tried, rows = retuned(profile, split)
        searched.append(tried)
        means.append(rows)
    folder = out / "tables"
    render.write_table(folder, "fixed_search", pd.concat(searched), caption=SEARCHED)
    render.write_table(folder, "fixed_epoch", pd.concat(means), caption=CAPTION)
    write_json(out / "made.json", script.made(began))


def retuned(profile: profiles.Profile, split: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the search of the fixed epoch on a split, and the means of each setting."""
    study = open_study(split, **{name: profile[name] for name in WORLD})
    tuned = hyper_of(profile["hyper"], "T3", split)
    rates = [tuned | point | {"epoch": "fixed"} for point in profile["grids"]["T3"]]
    points = [{k: v for k, v in each.items() if k != "temperature"} for each in rates]
    seeds, temperatures = profile["seeds"], profile["temperatures"]
    found = tune_t3(study, points, temperatures, profile["search_seeds"])[f"T3/{split}"]
    best = max(np.mean(each["fq"]) for each in found["trials"])
    tried, kept = [], {}
    for each in found["trials"]:
        hyper, fq = each["hyper"], np.mean(each["fq"])
        row = {"split": split, "T": hyper["temperature"], "lr": hyper["lr"]}
        row |= {"fq": fq, "D": np.mean(each["ks"])}
        if fq >= COMPETITIVE * best:
            trial = run_method(study, "T3", seeds=profile["search_seeds"], settings=hyper)
            row["mu_rouge"] = np.mean([run["metrics"]["mu_rouge"] for run in trial])
            kept[row["mu_rouge"]] = hyper
        tried.append(row)
    held_out = {"seeds": seeds_of("Retrained", seeds), "settings": {}}
    runs = [run | {"setting": ""} for run in run_method(study, "Retrained", **held_out)]
    settings = {REDRAWN: tuned, FIXED: tuned | {"epoch": "fixed"}, RETUNED: found["chosen"]}
    settings[KEPT] = kept[max(kept)]
    for name, chosen in settings.items():
        made = run_method(study, "T3", seeds=seeds, settings=chosen)
        runs += [run | {"setting": name} for run in made]
    frame = results.tidy(runs).set_index("setting")
    rows = [
        {"split": split, "setting": name, "T": chosen["temperature"], "lr": chosen["lr"]}
        | {"n_seeds": len(frame.loc[[name]]), **frame.loc[[name], MEANS].mean()}
        for name, chosen in settings.items()
    ]
    return pd.DataFrame(tried), pd.DataFrame(rows)


OPTIONS: script.Options = {
    "--out": {"type": Path, "default": Path("out/cpu-fixed")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
