"""Compare the choice of both dials with the paper's one dial on models that memorised rows: writes
results/own.csv.

`python tests/lab/audit/own_results.py [CASE[:SEED] …]`; without arguments all cases, seeds 0, 1, 2.
"both dials": T, w and the learning rate by the full judgement. "T alone": the same with w fixed at
1. Every line carries the commit that made it; uncommitted changes outside results/ are refused.
After an interruption the same command goes on where it stopped: a case and seed whose lines are of
this commit is done. The minutes of one core that each takes are printed.
"""

import csv
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from own_cases import builtin, memorised

from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write
from t3lib.lab import results
from t3lib.own.answers import Inquiry, Said, hear, inquiry
from t3lib.own.rows import Rows
from t3lib.own.unlearn import Choices, unlearn
from t3lib.own.verdict import forgotten

FILE = Path(__file__).resolve().parents[3] / "results" / "own.csv"
COLUMNS = ("model", "seed", "choice", "measure", "value", "commit")
CASES = ("gpt2", "short", "customers", "control", "builtin")
CHOICES = {"both dials": None, "T alone": 1.0}


def measured(report: dict) -> dict[str, float]:
    """The counts of a report, and what was chosen."""
    forget, recognition = report["forget"], report["recognition"]
    values = {
        name: forget[name]
        for name in ("rows", "known_before", "leaking_before", "leaking", "misdirected")
    }
    values["called leaking"] = int(forget["beyond"])
    values |= {
        "control": forget["control"],
        "recognised": recognition["after"],
        "chance": recognition["chance"],
    }
    for name in ("retain", "other", "held_out_retain"):
        if name in report:
            entry = report[name]
            values |= {f"{name}_{key}": entry[key] for key in ("known_before", "unchanged")}
            cold, warm = entry["unchanged_sampled"].values()
            values |= {f"{name}_sampled_0.6": cold, f"{name}_sampled_1": warm}
    if report.get("held_out_forget") is not None:
        values["held_out_forget"] = report["held_out_forget"]
    values |= {name: report["choice"][name] for name in ("T", "w", "lr") if "choice" in report}
    return values | {"success": int(report["verdict"]["success"])}


def control(case: str, seed: int) -> list[tuple]:
    """In how many of 20 draws of 12 rows the built-in world's original and retrained models are
    called leaking.
    """
    model, tokenizer, forget, retain, _ = builtin(seed)
    rows = Rows(forget, retain).checked()
    asked = inquiry(tokenizer, rows.forget, {"retain": rows.retain})
    empty = replace(asked, kept={})  # what is kept takes no part
    said = {"original": hear(model, tokenizer, empty, seed=seed, progress=False)}
    said["retrained"] = hear(
        builtin(seed, "retain90")[0], tokenizer, empty, seed=seed, progress=False
    )
    found = []
    for name, after in said.items():
        print(
            f"{name}, seed {seed}",
            {k: v for k, v in forgotten(asked, said["original"], after).items() if k != "each"},
        )
        drawn = [random.Random(n).sample(range(len(forget)), 12) for n in range(20)]
        called = [
            forgotten(some(asked, part), *(of(each, part) for each in (said["original"], after)))
            for part in drawn
        ]
        leaking = sum(entry["beyond"] for entry in called)
        found += [(case, seed, name, "draws of 12 rows, of 20, called leaking", leaking)]
        found += [(case, seed, name, "rows", len(forget))]
        found += [
            (case, seed, name, "leaking", forgotten(asked, said["original"], after)["leaking"])
        ]
    return found


def some(asked: Inquiry, part: list[int]) -> Inquiry:
    """The inquiry about some of its rows to forget."""
    lists = {
        name: [getattr(asked, name)[n] for n in part]
        for name in ("forget", "secrets", "known", "wrong")
    }
    questions = [
        replace(each, row=part.index(each.row)) for each in asked.asked if each.row in part
    ]
    return replace(asked, **lists, asked=questions)


def of(said: Said, part: list[int]) -> Said:
    """What was said about some of the rows to forget."""
    return replace(
        said, forget=[said.forget[n] for n in part], recognised=[said.recognised[n] for n in part]
    )


def lines_of(case: str, seed: int) -> list[tuple]:
    """One line a measure of every choice, and of a model that never saw the rows to forget."""
    model, tokenizer, forget, retain, other = (
        builtin(seed) if case == "builtin" else memorised(case, seed)
    )
    rows, found = Rows(forget, retain, other), {}
    for name, w in CHOICES.items():
        found[name] = unlearn(
            model, tokenizer, rows, Choices(strength=w, seed=seed), progress=False
        ).report
        print(f"{case} seed {seed}, {name}\n{found[name]}\n", flush=True)
    values = {name: measured(report) for name, report in found.items()}
    retrained = (
        builtin(seed, "retain90") if case == "builtin" else memorised(case, seed, retrained=True)
    )[0]
    checked = rows.checked()
    asked = inquiry(tokenizer, checked.forget, {"retain": checked.retain, "other": checked.other})
    before, after = (
        hear(each, tokenizer, asked, seed=seed, progress=False) for each in (model, retrained)
    )
    count = forgotten(asked, before, after)
    values["retrained"] = {name: count[name] for name in ("rows", "leaking", "misdirected")}
    values["retrained"] |= {"called leaking": int(count["beyond"]), "control": count["control"]}
    return [(case, seed, name, *pair) for name in values for pair in values[name].items()]


def main(wanted: list[str]) -> None:
    """Write the lines of the wanted cases, but of those done at this commit; others stay."""
    origin = results.provenance(model="", data="")
    commit = origin["git_commit"]
    if origin["dirty"] or commit is None:
        raise UserError("commit your changes first: every line carries the commit that made it")
    pairs = [word.partition(":") for word in wanted] or [(case, ":", "") for case in CASES]
    for case, _, number in pairs:
        for seed in map(str, [int(number)] if number else (0, 1, 2)):
            old = list(csv.reader(FILE.open(encoding="utf-8")))[1:] if FILE.exists() else []
            if any([*line[:2], line[-1]] == [case, seed, commit] for line in old):
                continue
            start = time.process_time()
            new = (control if case == "control" else lines_of)(case, int(seed))
            kept = [line for line in old if line[:2] != [case, seed]]
            with atomic_write(FILE) as handle:
                writer = csv.writer(handle, lineterminator="\n")
                writer.writerow(COLUMNS)
                new = [[*map(str, line), commit] for line in new]
                writer.writerows(sorted([*kept, *new]))
            spent = (time.process_time() - start) / 60
            print(f"{case}:{seed} took {spent:.1f} minutes of one core", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
