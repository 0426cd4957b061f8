"""Repeat the study of profile cpu in other built-in worlds.

    python results/studies/cpu-worlds/make.py --worlds 1 2 3 4 5 6 7

A world is a seed of the built-in world: other authors, other rows, another base and other retrained
models. Another seed of T3 changes only the initial weights of its head and which rows to keep are
drawn, so only worlds show how far a difference between two methods repeats. Every method runs once
in each world and on each split, with the settings of profile cpu. These were chosen in world 0. The
method "T3 (T = 1)" is T3 without tempering, at the learning rate that was chosen for T = 1. "T3
(gated)", "T3 (neutral)" and "T3 (gated, neutral)" are ours, with the settings in
studies/gate/tuned.yaml. D and Forget Quality compare with a world's second retrained model, on
which nothing was chosen.

It writes two tables below --out: `worlds_each` has one row for each run, and `worlds` has means
over worlds with 95% intervals. It also writes a figure, runs/worldN.json.gz with the metrics, the
truth ratios and the greedy answers to rows to forget of each run, and made.json, which says of each
world which command and commit made it. A world takes four minutes of one idle core. A method that
the table already has in a world is left out, and trained models and scores are cached in .t3cache,
so the same command continues a killed run. --methods runs some methods only, such as T3,"T3 (T =
1)".
"""

import gzip
import json
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from t3lab import profiles, results, script
from t3lab.audit.facts import fact_words
from t3lab.files import read_yaml
from t3lab.names import SPLITS
from t3lab.profiles import WORLD
from t3lab.report import render, tables
from t3lab.report.look import COLOURS, panels, styled
from t3lab.report.order import adjusted, interval, judged
from t3lab.report.tables import OURS, OWN_RATE
from t3lab.study.several import Work
from t3lab.study.study import open_study
from t3lib.core.errors import UserError
from t3lib.core.files import project_root, read_json, write_json
from t3lib.core.progress import progress_bar
from t3lib.own.truths import word_set

# The measures of the tables: {column of a run: (title of its panel, whether more is better)}.
# Forget Quality is a p-value, so it has no mean over worlds; worlds_each has every value.
MEASURES = {"ks_held_out": ("D", False), "mu_rouge": ("MU-ROUGE", True), "mu": ("MU", True)}
# Further measures, which the tables have and the figure has not: words and score of rows to keep,
# words of unrelated answers, and greedy answers to rows to forget that hold the whole fact.
MORE = {"retain_rouge": True, "retain": True, "unrelated": True, "facts": False}
NAMES = (*tables.METHODS, OWN_RATE, *OURS)
EACH = (
    "Every method in each of several built-in worlds. T3 (T = 1) does not temper and has the"
    " learning rate that was chosen for T = 1. T3 (gated) and T3 (neutral) are ours."
)
OVER_WORLDS = (
    "Every method in several built-in worlds: its mean over worlds with a 95% interval, in how"
    " many worlds it is the best unlearning method, and T3's value minus the method's value in"
    " the same world (t3_less, with its 95% interval). D (ks_held_out) compares with each world's"
    " second retrained model. Settings were chosen in another world. T3 (T = 1) does not temper,"
    " T3 (gated) and T3 (neutral) are ours; they are in no ranking. seen: the smallest difference"
    " that so many worlds would show in 80% of cases. p is two-sided: of D, T3 minus RMU, 10%"
    " split, which was named beforehand, as it is; of D and all other methods after Holm's"
    " correction."
)


def make(worlds: list[int], methods: str, out: Path, tiny: bool) -> None:
    """Run what the table in `out` does not have, then write both tables and the figure.

    methods: separated by commas; "" for all, T3 without tempering and ours.
    tiny: three methods on one split of models that know nothing, to try the script.
    """
    if min(worlds) < 1:
        raise UserError("--worlds: give worlds from 1, because settings come from world 0")
    results.check_clean(out)
    profile = profiles.load_profile("cpu")
    if tiny:
        profile = script.tiny(profile, methods=["Original", "Retrained", "T3"])
    table, made = out / "tables" / "worlds_each.csv", out / "made.json"
    every = [*profile["methods"], OWN_RATE, *OURS[: 1 if tiny else None]]
    wanted = re.split(r",(?![^(]*\))", methods) if methods else every  # commas outside of ( )
    each = pd.read_csv(table) if table.is_file() else None
    for world in progress_bar(worlds, desc="worlds"):
        known = {*each.loc[each["world"] == world, "method"]} if each is not None else set()
        missing = [name for name in wanted if name not in known]
        if not missing:
            continue
        began = time.process_time()
        rows, runs = run_world(profile, world, missing)
        each = pd.concat([each, rows])
        each = each.sort_values("world", kind="stable", ignore_index=True)
        facts = script.made(began)
        write_runs(out / "runs" / f"world{world}.json.gz", runs)
        render.write_table(table.parent, "worlds_each", each, caption=EACH)
        name = f"world {world}" + (f", {', '.join(missing)}" if known or methods else "")
        write_json(made, (read_json(made) if made.is_file() else {}) | {name: facts})
        print(f"world {world}: {facts['cpu_seconds']} CPU-seconds", flush=True)
    render.write_table(table.parent, "worlds", summary(each), caption=OVER_WORLDS)
    render.save_figure(out / "figures" / "worlds.svg", figure(each))


def run_world(
    profile: profiles.Profile, world: int, methods: list[str]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Run methods of a profile in one world. Return a row for each run of them, and the runs by
    name, such as "T3 (gated), forget10".
    """
    opened = {name: profile[name] for name in WORLD}
    opened["stage"] = profile["stage"] | {"seed": world}
    untempered = [1.0] if OWN_RATE in methods else []
    asked = {"Retrained", *methods, *(["T3"] if untempered else [])}
    searched = read_yaml(project_root() / "results" / "studies" / "gate" / "tuned.yaml")
    ours = [name for name in OURS if name in methods]
    with TemporaryDirectory() as name:
        folder, facts = Path(name), dict[str, list[frozenset[str]]]()
        for split in profile["splits"]:
            study = open_study(split, **opened)
            facts[split] = [fact_words(row) for row in study.evaluation_rows["forget"]]
            work = Work(study, opened, profile["hyper"], [1], untempered, folder)
            work.run([name for name in tables.METHODS if name in asked])
            for name in ours:
                hyper = {"T3": searched[f"{name}/{split}"]["chosen"]}
                Work(study, opened, hyper, [1], [], folder / name).run(["T3"])
        found = {name: results.read_runs(folder / name / "runs") for name in ("", *ours)}

    retrained = [run for run in found[""] if run["method"] == "Retrained"]
    frames, packed = [], {}
    for name, runs in found.items():
        every = [*retrained, *runs] if name else runs  # D needs them
        shares = [given_away(run, facts[run["split"]]) for run in every]
        frame = tables.main_runs(results.tidy(every).assign(facts=shares))
        untempered_run = (frame["method"] == "T3") & (frame["T"] == 1)
        frame = (
            frame[frame["method"] == "T3"].assign(method=name)
            if name
            else frame.assign(method=frame["method"].mask(untempered_run, OWN_RATE))
        )
        frames.append(frame)
        for run in runs:
            shown = OWN_RATE if (run["method"], run["T"]) == ("T3", 1) else run["method"]
            packed[f"{name or shown}, {run['split']}"] = kept(run)
    columns = ["world", "split", "method", "T", "fq_held_out", *MEASURES, *MORE]
    rows = tables.with_means(pd.concat(frames)).assign(world=world)
    names = {f"{name}, {split}" for name in methods for split in profile["splits"]}
    return (
        rows.loc[rows["method"].isin(methods), columns],
        {name: run for name, run in packed.items() if name in names},
    )


def given_away(run: results.Run, facts: list[frozenset[str]]) -> float:
    """Return the share of greedy answers to rows to forget that hold every word of the row's fact.

    facts: the words of each row's fact. Rows without any are left out.
    """
    texts = [row["generation"] for row in run["records"]["forget"]]
    return float(np.mean([fact <= word_set(text) for fact, text in zip(facts, texts) if fact]))


def kept(run: results.Run) -> dict[str, Any]:
    """Return what is kept of a run: all that the tables were made from."""
    names = ("T", "hyper", "metrics", "truth_ratio", "provenance")
    texts = [row["generation"] for row in run["records"]["forget"]]
    return {name: run[name] for name in names} | {"answers": texts}


def write_runs(path: Path, runs: dict[str, Any]) -> None:
    """Add runs to a world's file, or replace old ones."""
    known = json.loads(gzip.decompress(path.read_bytes())) if path.is_file() else {}
    results.write_packed(path, known | runs)


def summary(each: pd.DataFrame) -> pd.DataFrame:
    """Build the table `worlds`: the mean of each measure over the worlds, with its 95% interval.

    first: in how many worlds the method has the best value of all unlearning methods; empty for T3
    without tempering and for ours, which are no methods of the paper.
    t3_less: T3's value minus the method's, within each world; its interval is t3_low to t3_high.
    seen, p: of t3_less, see `order.judged`; p only of D, corrected by `order.adjusted`.
    """
    rows, more = [], {name: high for name, (_, high) in MEASURES.items()} | MORE
    splits = [split for split in SPLITS if split in set(each["split"])]
    names = [name for name in NAMES if name in set(each["method"])]
    for split, measure in ((split, measure) for split in splits for measure in (*MEASURES, *MORE)):
        values = each[each["split"] == split].pivot(index="world", columns="method", values=measure)
        rivals = values[[name for name in names if name in tables.UNLEARNING]]
        best = rivals.max(axis=1) if more[measure] else rivals.min(axis=1)
        for name in names:
            its = values[name].dropna()
            if its.empty:
                continue  # a run from before this measure was kept
            first = int((its == best[its.index]).sum()) if name in rivals else pd.NA
            less = (values["T3"] - its).dropna()
            gap = judged(less.mean(), less.std() / len(less) ** 0.5, len(less) - 1)
            rows.append((split, name, measure, len(its), *interval(its), first, *gap))
    columns = ["split", "method", "measure", "worlds", "mean", "low", "high", "first"]
    table = pd.DataFrame(rows, columns=[*columns, "t3_less", "t3_low", "t3_high", "seen", "p"])
    table.loc[table["method"] == "T3", "t3_less"] = np.nan
    tested = (table["measure"] == "ks_held_out") & table["method"].isin(tables.UNLEARNING)
    return table.assign(p=adjusted(table[tested])).astype({"first": "Int64"})


@styled()
def figure(each: pd.DataFrame) -> Figure:
    """Draw each method in each world, and its mean with a 95% interval (grey), one panel for each
    split and measure.
    """
    splits = [split for split in SPLITS if split in set(each["split"])]
    names = [name for name in NAMES if name in set(each["method"])]
    size = (6.8, 0.5 + len(splits) * (0.4 + 0.15 * len(names)))
    drawn, axes = panels(len(splits), len(MEASURES), size, sharex="col", sharey=True)
    colours = COLOURS | dict.fromkeys((OWN_RATE, *OURS), COLOURS["T3"])
    worlds = {"hue": "method", "hue_order": names, "palette": colours, "legend": False}
    mean = {"errorbar": lambda x: interval(x)[1:], "color": "0.3", "linewidth": 0.8, "ls": ""}
    for row, split in zip(axes, splits):
        for axis, (measure, (title, _)) in zip(row, MEASURES.items()):
            part = each[each["split"] == split]
            shared = {"data": part, "x": measure, "y": "method", "order": names, "ax": axis}
            sns.stripplot(**shared, **worlds, size=2.5, jitter=False)
            sns.pointplot(**shared, **mean, markersize=2.5)
            axis.set(xlabel="", ylabel="", title=title, xlim=(-0.04, 1.04))
        row[0].set_ylabel(f"{render.SPLIT_LABELS[split]} split")
    drawn.set_label(
        f"Every method in {each['world'].nunique()} built-in worlds, with settings that were chosen"
        " in another. Coloured: one world. Grey: the mean with its 95% interval (Student's t)."
        " D compares with each world's second retrained model. For D 0 is best, for the other"
        " measures 1."
    )
    return drawn


OPTIONS: script.Options = {
    "--worlds": {"type": int, "nargs": "+", "default": [1, 2, 3, 4, 5, 6, 7]},
    "--methods": {"default": "", "help": "separated by commas (default: all)"},
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
