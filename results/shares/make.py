"""Go only a share of the way from the base to a baseline's unlearned weights.

    python results/shares/make.py --profile tofu-cpu --data DIR --out results/tofu-cpu

The share a of the weights (1 − a) · base + a · unlearned is a dial that needs no training, as T is
for T3. Above 1 it goes beyond the unlearned weights. The script tries thirteen shares of each
method on each split. The one with the best mean Forget Quality on seeds 1 and 2 (ties by D) is run
with every seed.

It writes OUT/tables/shares--METHOD--SPLIT.* with every share, and a run file in OUT/runs for each
seed at the best share, whose field w is the share. Notebook 05 shows these runs as rows such as
"RMU (a)", so run it after this. When notebook 02 trains a method again, it removes the method's run
files, these included. At tofu-cpu one method on one split takes about ten minutes after its
training. Trained models and scores are cached in .t3cache, so the same command continues a killed
run. The committed tables and runs in results/tofu-cpu were made by notebook 02, which had this code
at that time, at commits e3ca2d1 (RMU and WGA) and 608f1d6 (NPO and SimNPO).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from t3lab import profiles, results, script
from t3lab.report import render
from t3lab.study.methods import Subject, load_models, record_of, subject
from t3lab.study.several import Work
from t3lab.study.study import Loaded, Study, open_study
from t3lib.cli import Options, names, whole_numbers
from t3lib.core.errors import UserError
from t3lib.core.files import content_key
from t3lib.core.names import TUNING_SEEDS
from t3lib.core.settings import WORLD, hyper_of
from t3lib.tofu.evaluation import Report

METHODS = ["RMU", "WGA", "NPO", "SimNPO"]
OTHERS = ("Original", "Retrained", "ULD", "T3")  # they do not change the base's weights
SHARES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.2]
TINY = {
    "stage": {"authors": 20, "questions": 4, "hidden": 32, "heads": 2, "epochs": 3, "vocab": 600},
    "evaluation": {"max_new_tokens": 6},
    "hyper": {"NPO": {"epochs": 1, "warmup_epochs": 0, "lr": 1e-2}},
    "splits": ["forget10"],
}


def moved(model: nn.Module, base: nn.Module, a: float) -> nn.Module:
    """Change the weights of a model to (1 − a) · base + a · model, and return it."""
    with torch.no_grad():
        for weight, before in zip(model.parameters(), base.parameters()):
            weight.lerp_(before.to(weight), 1 - a)
    return model


def scored(study: Study, one: Subject, a: float, **how: Any) -> Report:
    """Evaluate the share a of an unlearned model, see `Study.evaluate`."""

    def load(_: list[int]) -> Loaded:
        unlearned = load_models(study, [one]).model
        return Loaded(moved(unlearned, study.base, a), study.tokenizer)

    [report] = study.evaluate([content_key([one.key, "share", a])], load, **how)
    return report


def search(study: Study, models: Sequence[Subject], shares: Sequence[float]) -> pd.DataFrame:
    """Try every share on the seeds for tuning (on all, if none of these is there).

    models: of one method, one for each seed. Returns a row for each share, with means over seeds.
    """
    rows = []
    tuning = [one for one in models if one.seed in TUNING_SEEDS] or models
    for a in shares:
        reports = [scored(study, one, a, sets=["forget"], generate=False) for one in tuning]
        D, fq = (
            sum(report[name] for report in reports) / len(tuning)
            for name in ("ks_statistic", "forget_quality")
        )
        rows.append((study.split, models[0].method, a, len(tuning), D, fq))
    return pd.DataFrame(rows, columns=["split", "method", "a", "n_seeds", "D", "fq"])


def run(work: Work, method: str, shares: Sequence[float]) -> None:
    """Search the share of one method; write its table, and the run files of the best share."""
    study, folder = work.study, work.folder
    settings = hyper_of(work.settings, method, study.split)
    models = [subject(study, method, seed, settings) for seed in work.seeds]
    table = search(study, models, shares)
    best = table.sort_values(["fq", "D"], ascending=[False, True], kind="stable")["a"].iloc[0]
    for one in models:
        record = record_of(study, one._replace(w=best), scored(study, one, best), keep_text=False)
        results.write_run(folder / "runs", record | work.made(work.seeds, {}))
    render.write_table(folder / "tables", f"shares--{method}--{study.split}", table)


OPTIONS: Options = {
    "--profile": {"default": "cpu", "help": "name or YAML file (default %(default)s)"},
    "--data": {"help": "builtin, hub or a folder (default: the profile's)"},
    "--splits": {"type": names, "help": "(default: the profile's)"},
    "--methods": {
        "type": names,
        "default": METHODS,
        "help": f"(default {','.join(METHODS)})",
    },
    "--seeds": {"type": whole_numbers, "help": "(default: the profile's)"},
    "--out": {"type": Path, "help": "results folder (default out/PROFILE)"},
    "--tiny": {"action": "store_true", "help": "try it on a tiny world"},
}


def make(args: argparse.Namespace) -> None:
    """Search and run the shares."""
    profile = profiles.override(
        profiles.load_profile(args.profile),
        data=args.data,
        splits=args.splits,
        seeds=args.seeds,
    )
    if args.tiny:
        profile |= TINY | {name: profile[name] | TINY[name] for name in ("stage", "hyper")}
    if wrong := {*args.methods} & {*OTHERS}:
        raise UserError(f"--methods: {min(wrong)} does not change the base's weights")
    out = args.out or Path("out", profile["name"])
    results.check_clean(out)
    world = {name: profile[name] for name in WORLD}
    for split in profile["splits"]:
        study = open_study(split, **world)
        work = Work(study, world, profile["hyper"], profile["seeds"], [], out)
        for method in args.methods:
            run(work, method, SHARES[-2:] if args.tiny else SHARES)


if __name__ == "__main__":
    about = "Go only a share of the way to a baseline's unlearned weights."
    script.run(make, about, OPTIONS)
