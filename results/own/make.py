"""Compare the choice of both dials with the paper's one dial on models that memorised rows.

    python results/own/make.py --out results/own
    python results/own/make.py --cases gpt2,short --seeds 0 --out results/own

A case is a kind of small model with its rows. gpt2: GPT-2 models that learned sentences. short:
Qwen2 models with short answers in three scripts. customers: models with phone and order numbers.
builtin: bases of the built-in world. control: in how many draws of 12 rows the original and the
retrained model of a built-in world are called leaking.

Each model unlearns twice. "both dials": T, w and the learning rate are chosen by the full
judgement. "T alone": the same with w fixed at 1. "retrained" is a model that never saw the rows.

It writes OUT/own.csv, one line for each measure. Every line has the commit that made it, so with
uncommitted changes it refuses to write into results/. All cases take about 12 minutes of one core:
for each seed gpt2 0.6, short 0.5, customers 1.0, builtin 1.5 and control 0.2. A case and seed whose
lines are of this commit is not run again, so the same command continues a killed run. The committed
lines were made by commit 0fd83fb with `python tests/lab/audit/own_results.py`, the place of this
script at that time.
"""

import csv
import random
import time
from dataclasses import replace
from pathlib import Path

import torch
from cases import builtin, memorised

from t3lab import results
from t3lib.cli import Parser, names, whole_numbers
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write
from t3lib.own.answers import Inquiry, Said, hear, inquiry
from t3lib.own.rows import Rows
from t3lib.own.unlearn import Choices, unlearn
from t3lib.own.verdict import forgotten

COLUMNS = ("model", "seed", "choice", "measure", "value", "commit")
CASES = ("gpt2", "short", "customers", "control", "builtin")
CHOICES = {"both dials": None, "T alone": 1.0}
FEW = {"temperature": 2.0, "lr": 2e-3, "steps": 20}  # choices of --tiny


def measured(report: dict) -> dict[str, float]:
    """Return the counts of a report, and what was chosen, by name."""
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
    """Count in how many of 20 draws of 12 rows the built-in world's original and retrained models
    are called leaking. Returns lines as `lines_of` does.
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
    """Return the inquiry about some of its rows to forget."""
    lists = {
        name: [getattr(asked, name)[n] for n in part]
        for name in ("forget", "secrets", "known", "wrong")
    }
    questions = [
        replace(each, row=part.index(each.row)) for each in asked.asked if each.row in part
    ]
    return replace(asked, **lists, asked=questions)


def of(said: Said, part: list[int]) -> Said:
    """Return what was said about some of the rows to forget."""
    return replace(
        said, forget=[said.forget[n] for n in part], recognised=[said.recognised[n] for n in part]
    )


def lines_of(case: str, seed: int, tiny: bool = False) -> list[tuple]:
    """Return a line for each measure of every choice, and of a model that never saw the rows to
    forget.

    tiny: use few rows, choose little, and let the model itself stand for a retrained one.
    """
    model, tokenizer, forget, retain, other = (
        builtin(seed) if case == "builtin" else memorised(case, seed)
    )
    if tiny:
        forget, retain, other = forget[:3], retain[:6], other[:2]
    rows, found, few = Rows(forget, retain, other), {}, FEW if tiny else {}
    for name, w in CHOICES.items():
        choices = Choices(strength=w, seed=seed, **few)
        found[name] = unlearn(model, tokenizer, rows, choices, progress=False).report
        print(f"{case} seed {seed}, {name}\n{found[name]}\n", flush=True)
    values = {name: measured(report) for name, report in found.items()}
    retrained = model  # training another would take half of the time of --tiny
    if not tiny:
        made = builtin(seed, "retain90") if case == "builtin" else memorised(case, seed, True)
        retrained = made[0]
    checked = rows.checked()
    asked = inquiry(tokenizer, checked.forget, {"retain": checked.retain, "other": checked.other})
    before, after = (
        hear(each, tokenizer, asked, seed=seed, progress=False) for each in (model, retrained)
    )
    count = forgotten(asked, before, after)
    values["retrained"] = {name: count[name] for name in ("rows", "leaking", "misdirected")}
    values["retrained"] |= {"called leaking": int(count["beyond"]), "control": count["control"]}
    return [(case, seed, name, *pair) for name in values for pair in values[name].items()]


def write(path: Path, case: str, seed: int, new: list[tuple], commit: str | None) -> None:
    """Write the lines of a case and seed in place of earlier ones; lines of others stay."""
    kept = [line for line in lines_in(path) if line[:2] != [case, str(seed)]]
    with atomic_write(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted([*kept, *([*map(str, line), commit] for line in new)]))


def lines_in(path: Path) -> list[list[str]]:
    """Read the lines of a table; none if it is not there."""
    return list(csv.reader(path.open(encoding="utf-8")))[1:] if path.exists() else []


def main() -> None:
    """Read the command line and run the wanted cases, but those done at this commit."""
    parser = Parser(description="Compare the choice of both dials with the paper's one dial.")
    parser.add_argument("--cases", type=names, default=CASES, help=f"(default {','.join(CASES)})")
    parser.add_argument("--seeds", type=whole_numbers, default=[0, 1, 2], help="(default 0,1,2)")
    parser.add_argument("--out", type=Path, default=Path("out/own"), help="(default %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="try one case with few rows")
    args = parser.parse_args()
    try:
        if unknown := {*args.cases} - {*CASES}:
            raise UserError(f"--cases: unknown case {min(unknown)!r}: one of {', '.join(CASES)}")
        results.check_clean(args.out)
        path, commit = args.out / "own.csv", results.provenance()["git_commit"]
        pairs = [(case, seed) for case in args.cases for seed in args.seeds]
        for case, seed in [("gpt2", 0)] if args.tiny else pairs:
            if any([*line[:2], line[-1]] == [case, str(seed), commit] for line in lines_in(path)):
                continue
            began = time.process_time()
            new = control(case, seed) if case == "control" else lines_of(case, seed, args.tiny)
            write(path, case, seed, new, commit)
            minutes = (time.process_time() - began) / 60
            print(f"{case}, seed {seed}: {minutes:.1f} minutes of one core", flush=True)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
