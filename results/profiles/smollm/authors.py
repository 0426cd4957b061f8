"""Profile smollm with other authors to forget, and guided labels there.

    python results/profiles/smollm/make_bases.py --data DIR full
    python results/profiles/smollm/authors.py --data DIR --sets 1 2

TOFU has wrong answers for 20 of the 72 authors that profile smollm keeps. The first eight of them
are set 1, the next eight set 2. Each set takes the place of the eight authors that the profile
forgets, which are set 0; these join the rows to keep. The base is the same. Two retained models of
each set and split are trained here, of the seeds 0 and 1. All settings are those that were chosen
on set 0, and nothing is chosen here, so both retained models are held out. On the 5% split the last
four authors of a set are forgotten; baselines were never searched there and are left out.

Beside D, the paper's two errors are measured, with the retained model of seed 1 as the judge and
that of seed 0 as the floor: of T3 at every T with its own rate, and (method `heads`) of heads at
several rates and T, gated and not, with the paper's label 0 and with labels by a guide: n-grams
counted from the rows to keep (results/studies/cpu-worlds/guided.py), and SmolLM2 before it was
taught any of TOFU's text.

Named before the first run, of the 10% split of sets 1 and 2 (on set 0 D was .06 at T = 1.5 and .11
at T = 1): at T = 1.5 T3 has a D of at most .15, the 5% limit for two times 160 rows, beside each
retained model; it is smaller there than at T = 1; the Forget Error at both is .3 to .4, six times
the floor's or more.

It writes run files below OUT/setN, the errors as OUT/setN/errors--SPLIT--METHOD.json, and from
these the tables authors_each and authors. What is there is not made again, and --sets, --splits and
--methods make a part, so several processes can share the work. --base SEED trains one retained
model of each set and split and stops.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from t3lab import make_bases, profiles, results, script
from t3lab.names import SPLITS
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.results.runs import plain_json
from t3lab.study.methods import load_models, subject
from t3lab.study.several import Work
from t3lab.study.study import Study, open_study, stage_of
from t3lab.world import bases
from t3lib.core.files import atomic_write, cache_dir, project_root, read_json, write_json
from t3lib.core.rows import Row
from t3lib.tofu.data import retain_of

sys.path.append(str(project_root() / "results" / "studies" / "cpu-worlds"))
import guided  # noqa: E402

FLOOR, JUDGE = 0, 1  # seeds of the retained models
SEED = 1  # of every method
UNTRAINED = ("Original", "Retrained")
BASELINES = ("WGA", "RMU", "NPO", "SimNPO")
HEADS = "heads"  # of T3 with other settings: their errors alone
RATES = (5e-4, 2e-3, 1e-2, 2e-2, 4e-2, 8e-2)
TEMPERATURES, GATES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0), (1.0, 0.9)
GUIDES = {"none": "hard", "n-grams": "guided", "pretrained": "pretrained"}  # of `guided.labels_of`
SETTING = ["method", "guide", "lr", "T", "gate"]
WORDS = ["retain_rouge", "retain_prob", "forget_rouge", "forget_prob"]
ERRORS = ["forget_error", "leak", "retain_error", "total_variation", "recited", "kept"]
EACH = (
    "Profile smollm with other sets of authors to forget, settings of set 0. D is the mean over two"
    " retained models, d0 and d1 are its two values; of Retrained, the distance of the two. The"
    " errors compare with the retained model of seed 1. guide: what the labels of forgotten tokens"
    " came from; none is the paper's label 0, and empty a run of the profile's own settings."
)
MEANS = "The table authors_each: means over sets of authors, and their least and largest value."


def make(
    data: str, sets: list[int], splits: list[str], methods: str, base: int | None, out: Path,
    tiny: bool,
) -> None:  # fmt: skip
    """Run what `out` does not have, then write both tables from its files.

    methods: separated by commas. base: train the retained models of this seed only.
    tiny: models that know nothing, on the built-in world.
    """
    results.check_clean(out)
    profile = profiles.load_profile("cpu" if tiny else "smollm")
    if tiny:
        profile, data, splits = script.tiny(profile, seeds=[SEED]), "builtin", ["forget10"]

    for number in sets:
        rows = rows_of(stage_of(data, profile["stage"]), number)
        for split in splits:
            seeds = (FLOOR, JUDGE) if base is None else (base,)
            world = world_of(profile, data, rows, f"set{number}", split, seeds)
            searched = split == "forget10"
            wanted = [name for name in methods.split(",") if searched or name not in BASELINES]
            if base is None and wanted:
                run(profile, world, out / f"set{number}", split, wanted)

    if base is None:
        each = table_of(out)
        render.write_table(out / "tables", "authors_each", each, caption=EACH)
        render.write_table(out / "tables", "authors", means(each), caption=MEANS)
        write_json(out / "authors.json", script.made() | {"bases": checksums(profile, out)})


# ---- rows and models -----------------------------------------------------------------------------


def rows_of(stage: bases.Stage, number: int) -> dict[str, list[Row]]:
    """Return every file of the stage, with set `number` of its authors as those to forget.

    Of rows that are not asked for, nothing changes.
    """
    old = bases.rows(stage)
    size = len(old["forget10"])
    perturbed = {pair(row): row for row in old["retain_perturbed"]}
    scored = [row for row in old["retain90"] if pair(row) in perturbed]
    forget10 = scored[(number - 1) * size : number * size]
    forget = {"forget10": forget10, "forget05": forget10[size // 2 :]}

    rows = dict(old)
    for split, gone in forget.items():
        lost = {pair(row) for row in gone}
        rows[split] = gone
        rows[f"{split}_perturbed"] = [perturbed[pair(row)] for row in gone]
        rows[retain_of(split)] = [row for row in old["full"] if pair(row) not in lost]
    lost = {pair(row) for row in forget10}
    kept = [row for key, row in perturbed.items() if key not in lost]
    rows["retain_perturbed"] = kept + old["forget10_perturbed"]
    return rows


def pair(row: Row) -> tuple[str, str]:
    """Return what a row is known by."""
    return row["question"], row["answer"]


def world_of(
    profile: profiles.Profile,
    data: str,
    rows: Mapping[str, list[Row]],
    name: str,
    split: str,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Write the rows of a set as files, train missing models, and return what opens its study.

    name: of the set. seeds: of the retained models.
    """
    stage = stage_of(data, profile["stage"])
    place = cache_dir("given", f"{profile['name']}-{name}")
    for file, part in rows.items():
        path = place / "data" / f"{file}.jsonl"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as handle:
                handle.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in part)

    full = profile["models"].get("full")
    models = {"full": str(project_root() / full if full else bases.ensure_base(stage, "full"))}
    retain = retain_of(split)
    for seed in seeds:
        known = f"{retain}-seed{seed}" if seed else retain
        folder = make_bases.make_base(place / known, stage, retain, seed, rows[retain])
        models[known] = str(folder)
    opened = {key: profile[key] for key in WORLD if key in profile}
    chosen = {key: value for key, value in profile["stage"].items() if key != "forget_authors"}
    return opened | {"data": str(place / "data"), "models": models, "stage": chosen}


def checksums(profile: profiles.Profile, out: Path) -> dict[str, str]:
    """Return {set/model: checksum of its weights} of the retained models of the sets in `out`."""
    found = {}
    for folder in sorted(out.glob("set*")):
        place = cache_dir("given", f"{profile['name']}-{folder.name}")
        for path in sorted(place.glob(f"retain*/{bases.MANIFEST}")):
            weights = read_json(path)["sha256"]["model.safetensors"]
            found[f"{folder.name}/{path.parent.name}"] = weights
    return found


# ---- one set and split ---------------------------------------------------------------------------


def run(
    profile: profiles.Profile,
    world: Mapping[str, Any],
    folder: Path,
    split: str,
    methods: list[str],
) -> None:
    """Write the run files and the errors of some methods on a split, if they are not there."""
    study = open_study(split, **world)
    there = {path.name.split("--")[0] for path in folder.glob(f"runs/*--{split}--*.json")}
    if missing := [name for name in methods if name not in {*there, HEADS}]:
        temperatures = profile["temperatures"]
        Work(study, world, profile["hyper"], [SEED], temperatures, folder).run(missing)
    for name in methods:
        path = folder / f"errors--{split}--{name}.json"
        if not path.is_file():
            write_json(path, plain_json(errors_of(study, profile, name)))


def errors_of(study: Study, profile: profiles.Profile, method: str) -> list[dict[str, Any]]:
    """Return a row for each model of a method: its setting, and the errors beside the judge."""
    name = "T3" if method == HEADS else method
    settings = {} if name in UNTRAINED else hyper_of(profile["hyper"], name, study.split)
    judge = guided.retrained(study, JUDGE)
    if method == "T3":
        tuned = [hyper_of(profile["hyper"], "T3", study.split, T) for T in profile["temperatures"]]
        points = [point(T, 1.0) for T in profile["temperatures"]]
        heads = [guided.head_of(study, each, SEED, None) for each in tuned]
        by_head = guided.errors_by_point(study, judge, heads, points)
        return [
            {"method": "T3", "guide": "", "lr": each["lr"]} | points[n] | by_head[n][n]
            for n, each in enumerate(tuned)
        ]
    if method != HEADS:
        seed = FLOOR if method == "Retrained" else SEED
        model = load_models(study, [subject(study, method, seed, settings)]).model
        found = guided.errors_beside(study, judge, model)
        return [{"method": method, "lr": settings.get("lr"), **found}]

    lines = []
    points = [point(T, gate) for T in TEMPERATURES for gate in GATES if T > 1 or gate == 1]
    start = profile["stage"].get("start")
    for guide, kind in GUIDES.items():
        if kind == "pretrained" and not start:
            continue
        labels = guided.labels_of(study, kind, start)
        heads = [guided.head_of(study, {**settings, "lr": lr}, SEED, labels) for lr in RATES]
        for lr, each in zip(RATES, guided.errors_by_point(study, judge, heads, points)):
            same = {"method": "T3", "guide": guide, "lr": lr}
            lines += [same | one | values for one, values in zip(points, each)]
    return lines


def point(T: float, gate: float) -> dict[str, float]:
    """Return a setting of a head for `guided.errors_by_point`."""
    return {"temperature": T, "gate": gate, "tail": 0.0}


# ---- the tables ----------------------------------------------------------------------------------


def table_of(out: Path) -> pd.DataFrame:
    """Build the table authors_each from the files of all sets."""
    parts = []
    for folder in sorted(out.glob("set*")):
        runs = results.read_runs(folder / "runs")
        others = results.references(runs)
        for each in runs:
            values = {name: each["metrics"].get(name) for name in WORDS}
            line = {
                "method": each["method"],
                "guide": "",
                "lr": each["hyper"].get("lr"),
                "T": each["T"],
            }
            line |= {"set": folder.name, "split": each["split"], "gate": 1.0, **values}
            parts.append(pd.DataFrame([line | distances(each, others)]))
        for path in sorted(folder.glob("errors--*.json")):
            lines = pd.DataFrame(read_json(path)).rename(columns={"temperature": "T"})
            lines = lines.assign(set=folder.name, split=path.stem.split("--")[1])
            parts.append(lines)
    each = pd.concat(parts, ignore_index=True)
    each = each.fillna({"guide": "", "gate": 1.0})
    keys = ["set", "split", *SETTING]
    values = [*WORDS, "D", "d0", "d1", *ERRORS, "leak_se"]
    # A model has a line of its run, and one of its errors.
    each = each.reindex(columns=[*keys, *values])
    grouped = each.groupby(keys, dropna=False, sort=False)[values].first().reset_index()
    return grouped.sort_values(keys, kind="stable", ignore_index=True)


def distances(run: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, float]:
    """Return D beside each retained model of a set, and its mean; of one, beside the other."""
    found = {f"d{seed}": near.D for seed, near in results.against(run, models).items()}
    return found | {"D": sum(found.values()) / len(found)}


def means(each: pd.DataFrame) -> pd.DataFrame:
    """Build the table authors: the mean of each measure over sets, its least and largest value."""
    rows = []
    for names, part in each.groupby(["split", *SETTING], dropna=False, sort=False):
        cells = [
            f(part[name]) for name in ["D", *WORDS, *ERRORS] for f in (pd.Series.mean, min, max)
        ]
        rows.append((*names, part["set"].nunique(), *cells))
    spread = [name + end for name in ["D", *WORDS, *ERRORS] for end in ("", "_least", "_most")]
    return pd.DataFrame(rows, columns=["split", *SETTING, "sets", *spread])


OPTIONS: script.Options = {
    "--data": {"default": "hub", "help": "folder with TOFU's files, or hub"},
    "--sets": {"type": int, "nargs": "+", "default": [1, 2], "choices": [1, 2]},
    "--splits": {"nargs": "+", "default": [*SPLITS], "choices": [*SPLITS]},
    "--methods": {"default": ",".join((*UNTRAINED, "T3", HEADS, *BASELINES)), "help": "by commas"},
    "--base": {"type": int, "choices": [FLOOR, JUDGE], "help": "train these bases, and stop"},
    "--out": {"type": Path, "default": Path("out/smollm-authors")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS, as_jobs=False)
