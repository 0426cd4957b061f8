"""D against the words of rows to keep, for baselines and T3 on SmolLM2, and choices under a floor.

    python results/profiles/smollm/make_bases.py --data DIR full
    python results/profiles/smollm/frontier.py --data DIR

The profile chooses every method by Forget Quality alone, and a baseline's highest rate then costs
the most words. Here each baseline has its chosen settings at every learning rate of `RATES`, with
two seeds, and T3 has every rate of its own at every T. For each point there are D beside the
retained model on which settings are chosen (tuned_on) and beside the held-out ones, and ROUGE-L of
every fourth row to keep. Of the points whose ROUGE-L is at least 95% of the base's, `floor` marks
the one with the smallest D tuned on, `free` the one with the smallest D of all. 10% split.

Retained models are not trained anew: D compares with the truth ratios in runs/. The base must be
the one of those runs (bases.json). Every point is written to OUT/points as it ends, and what is
there is not made again; --methods and --seeds make some only, so several processes can share the
work. On an H200 that up to twelve processes shared, a baseline's training took 20 seconds (runs/).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from gate_tofu import near, texts

from t3lab import profiles, results, script
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.results.runs import plain_json
from t3lab.study.methods import Subject, reports_of, subject
from t3lab.study.study import Study, open_study
from t3lib.core.files import project_root, read_json, write_json
from t3lib.tofu.metrics import by_column

SPLIT = "forget10"
BASELINES = ("GradDiff", "WGA", "RMU", "NPO", "SimNPO")
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
T3_RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 4e-2)
SEEDS = (1, 2)
EVERY = 4  # of the rows to keep one in so many is written
FLOOR = 0.95
POINT = ["method", "lr", "T"]
CAPTION = (
    "SmolLM2, 10% split: methods at every learning rate, means over two seeds. D_tuned_on compares"
    " with the retrained model on which settings are chosen, D with the held-out ones, whose FQ is"
    " a p-value of the mean D. words: ROUGE-L recall of 100 rows to keep; 0.95 of the base's is the"
    " floor. free: smallest D_tuned_on; floor: smallest above the floor."
)


def make(
    data: str, methods: str, seeds: list[int], out: Path, tables_only: bool, tiny: bool
) -> None:
    """Write the points that `out` does not have, then the table.

    methods: separated by commas. tiny: models that know nothing, on the built-in world.
    """
    results.check_clean(out)
    if not tables_only:
        profile = profiles.load_profile("cpu" if tiny else "smollm")
        profile = script.tiny(profile) if tiny else profile
        world = {name: profile[name] for name in WORLD if name in profile}
        if not tiny:
            full = profile["models"]["full"]
            # In the place of a retained model, with which nothing is compared here.
            world |= {"data": data, "models": {"full": full, "retain90": full}}
        study = open_study(SPLIT, **world)
        for method in methods.split(","):
            for group in points(profile, study, method, seeds):
                missing = [each for each in group if not place(out, each).is_file()]
                if missing:
                    measure(study, missing, out, references(study, tiny))

    lines = [read_json(path) for path in sorted((out / "points").glob("*.json"))]
    if lines:
        render.write_table(out / "tables", "frontier", table(pd.DataFrame(lines)), caption=CAPTION)
        write_json(out / "frontier.json", script.made())


def references(study: Study, tiny: bool) -> dict[int, Any]:
    """Return the truth ratios of the retained models in runs/; 0 is the one that is tuned on."""
    if tiny:
        return dict.fromkeys((0, 1), study.reference["truth_ratio"]["forget"])
    committed = results.read_runs(project_root() / "results" / "profiles" / "smollm" / "runs")
    return results.references(committed)[SPLIT]


def points(
    profile: profiles.Profile, study: Study, method: str, seeds: Sequence[int]
) -> list[list[Subject]]:
    """Return the models of a method, in groups that are read together."""
    if method == "Original":
        return [[subject(study, method, 0, {})]]
    settings = hyper_of(profile["hyper"], method, SPLIT)
    if method != "T3":
        return [
            [subject(study, method, seed, {**settings, "lr": lr})] for seed in seeds for lr in RATES
        ]
    return [
        [
            subject(study, "T3", seed, {**settings, "lr": lr}, T)
            for lr in T3_RATES
            for T in profile["temperatures"]
        ]
        for seed in seeds
    ]


def place(out: Path, model: Subject) -> Path:
    """Return the file of a point."""
    lr, T = (model.settings or {}).get("lr", 0), model.T or 0
    return out / "points" / f"{model.method}--lr{lr:g}--T{T:g}--seed{model.seed}.json"


def measure(study: Study, models: list[Subject], out: Path, others: dict[int, Any]) -> None:
    """Measure models that share their passes, and write a file for each.

    others: truth ratios of the retained models, by number.
    """
    held = [seed for seed in others if seed]
    forgot = reports_of(study, models, sets=["forget"], generate=False)
    alive = [model for model, report in zip(models, forgot) if report]
    kept = {"retain": study.evaluation_rows["retain"][::EVERY]}
    words = iter([*map(by_column, texts(study, alive, kept))])

    made = results.provenance(model=study.models["full"])
    for model, report in zip(models, forgot):
        line: dict[str, Any] = {"method": model.method, "lr": (model.settings or {}).get("lr")}
        line |= {"T": model.T, "seed": model.seed, "status": "ok" if report else "failed"}
        if report:
            ratios, columns = report["truth_ratio"]["forget"], next(words)
            line |= {"D_tuned_on": near(ratios, others, [0])["D"], **near(ratios, others, held)}
            line |= {"words": columns["retain_rouge"], "retain_prob": columns["retain_prob"]}
            line["truth_ratio"] = ratios
        line |= {"hyper": model.settings or {}, "provenance": made}
        write_json(place(out, model), plain_json(line, folders=False))


def table(each: pd.DataFrame) -> pd.DataFrame:
    """Build the table: means over seeds, with both choices of each method.

    each: a row for each point and seed. A point of which a seed diverged is not chosen.
    """
    values = ["D_tuned_on", "D", "fq", "words", "retain_prob"]
    each["T"] = each["T"].astype(float)
    grouped = each.groupby(POINT, dropna=False)
    means = (
        grouped[values]
        .mean()
        .assign(
            seeds=grouped.size(), failed=grouped["status"].agg(lambda state: (state != "ok").sum())
        )
    )
    means = means.reset_index()
    floor = FLOOR * means.loc[means["method"] == "Original", "words"].mean()
    for name, least in (("free", 0.0), ("floor", floor)):
        able = means[(means["failed"] == 0) & (means["words"] >= least)]
        best = able.loc[able.groupby("method")["D_tuned_on"].idxmin()].index
        means[name] = means.index.isin(best)
    return means


OPTIONS: script.Options = {
    "--data": {"default": "hub", "help": "folder with TOFU's files, or hub"},
    "--methods": {"default": ",".join(("Original", "T3", *BASELINES)), "help": "by commas"},
    "--seeds": {"type": int, "nargs": "+", "default": [*SEEDS]},
    "--tables-only": {"action": "store_true", "help": "write the table from the files in OUT"},
    "--out": {"type": Path, "default": Path("out/smollm-frontier")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda args: make(**vars(args)), str(__doc__), OPTIONS, as_jobs=False)
