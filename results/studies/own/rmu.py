"""Unlearn own rows by RMU, which trains the weights, and judge it like `t3 unlearn`.

    python results/studies/own/rmu.py --out results/studies/own
    python results/studies/own/rmu.py --cases gpt2 --seeds 0 --out results/studies/own

The models are the small ones of make.py. RMU gets what the head of `t3 unlearn` gets: the same
lessons (rows in many wordings, neighbours, everyday prompts; rows to forget with their whole
answers), the same rows left out, and the same questions to choose by. Its learning rates and its c
are in `GRID`, and each trained model is tried at some shares a of the way from the base's weights
to its own: 24 points. All answer greedily, and the three best are sampled, too. There are two
choices:

    RMU             the rule of w's choice (`t3lib.own.choice`), which has 8 points: whatever says
                    least comes first
    RMU (keeping)   the same, among the points that change at most 5% of the greedy answers to keep

The chosen model is asked in all ways, sealed ones included. So it has a verdict, and judge.py asks
it, too. Its lines in OUT/rmu.csv have the measures of own.csv, what was chosen by which counts,
and the trainings' seconds of one core. A case and seed whose lines are of this commit is not run
again.

The grid was set while looking at gpt2 0, whose choosing questions RMU was asked after 18 other
trainings: at a rate of 0.003 it changed most answers to keep; in fewer steps it still said many
secrets. Other weights alpha_r than 5 were hardly tried. One training of WGA still said most. A
first run with the rule of w's choice alone and rates from 0.00025 chose 0.0005, c = 40 and a = 1.15
there, with which half of the answers to keep changed. So the second choice was added, and c = 10.
What T3 gets was tuned on all of these models.
"""

import copy
import sys
import time
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import make
import torch
from cases import builtin, memorised

from t3lab import results, script
from t3lib.baselines.unlearn import Task, unlearn_baseline
from t3lib.core.errors import Diverged, UserError
from t3lib.core.files import project_root
from t3lib.core.progress import progress_bar
from t3lib.own import choice, lessons
from t3lib.own.answers import Inquiry, collect_answers
from t3lib.own.assess import counts_of, inquiry_of
from t3lib.own.rows import Rows
from t3lib.own.unlearn import Choices, checked_request, choice_counts, for_choice
from t3lib.own.verdict import verdict

sys.path.append(str(project_root() / "results" / "studies" / "cpu-worlds"))
from baselines import part_of_the_way  # noqa: E402

RATES, CS, SHARES = (5e-4, 1e-3), (10.0, 20.0, 40.0), (0.7, 0.85, 1.0, 1.15)
GRID = [{"lr": lr, "c": c} for lr, c in product(RATES, CS)]
FIXED = {"alpha_r": 5.0, "epochs": 10, "batch_size": 8}
CHOSEN = ("lr", "c", "a")
MOST_CHANGED = {"RMU": 1.0, "RMU (keeping)": 0.05}  # share of the greedy answers to keep
COUNTED = ("said", "texts", "changed", "known")  # of the choosing questions
FEW = {"epochs": 1, "batch_size": 256}  # of --tiny


def lines_of(case: str, seed: int, tiny: bool) -> list[tuple]:
    """Return a line for each measure of RMU on a model and its rows."""
    base, tokenizer, forget, retain, other = (
        builtin(seed) if case == "builtin" else memorised(case, seed, epochs=2 if tiny else 60)
    )
    if tiny:
        forget, retain, other = forget[:3], retain[:6], other[:2]
    request = checked_request(base, tokenizer, Rows(forget, retain, other), Choices(seed=seed))
    inquiry = inquiry_of(tokenizer, request.rows)

    began = time.process_time()
    points = trained(request, tiny)
    used = round(time.process_time() - began)
    before, found = collect_answers(base, tokenizer, inquiry, seed=seed), dict[str, Any]()
    for name, (best, model) in chosen(request, inquiry, points).items():
        after = collect_answers(model, tokenizer, inquiry, seed=seed)
        report = counts_of(inquiry, before, after)
        report["verdict"] = verdict(report)
        print(f"{case} seed {seed}, {name}: {best}\n{report}\n", flush=True)
        theirs = make.judged(model, tokenizer, None, forget)
        found[name] = make.measured(report) | best | {"seconds": used}
        found[name]["judge"] = sum(each["leaks"] for each in theirs.values())
    return [(case, seed, name, *pair) for name in found for pair in found[name].items()]


def trained(request: lessons.Request, tiny: bool) -> list[tuple[dict[str, float], Any]]:
    """Train RMU at every point of `GRID`; return (settings, model) for it at each of `SHARES`."""
    made = lessons.make_lessons(request)
    forget, retain = (
        [each.row for each in made if (each.secret is None) == keep] for keep in (False, True)
    )
    base, points = request.base, list[tuple[dict[str, float], Any]]()
    for settings in progress_bar(GRID[:1] if tiny else GRID, desc="trainings"):
        with suppress(Diverged):
            model, _ = unlearn_baseline(
                "RMU",
                copy.deepcopy(base),
                request.tokenizer,
                Task(forget, retain, original=base),
                settings=settings | FIXED | (FEW if tiny else {}),
                seed=request.seed,
            )
            points += [(settings | {"a": a}, part_of_the_way(base, model, a)) for a in SHARES]
    if not points:
        raise UserError("RMU diverged at every point of the grid")
    return points


def chosen(
    request: lessons.Request, inquiry: Inquiry, points: list[tuple[dict[str, float], Any]]
) -> dict[str, tuple[dict[str, Any], Any]]:
    """Return {name of a choice: its settings with the counts that chose them, and its model}; a
    choice without any point is left out.
    """
    few, seed = for_choice(inquiry), request.seed
    before = collect_answers(request.base, request.tokenizer, replace(few, questions=[]), seed=seed)
    answers = [
        collect_answers(model, request.tokenizer, few, seed=seed, only=lambda each: not each.tau)
        for _, model in progress_bar(points, desc="points")
    ]

    def counts(number: int) -> dict[str, Any]:
        settings, _ = points[number]
        tried = choice_counts(few, before, answers[number])
        return tried | settings | {"number": number, "w": settings["a"]}

    greedily, sampled, found = [counts(number) for number in range(len(points))], set[int](), {}
    for name, most in MOST_CHANGED.items():
        pool = [each for each in greedily if each["changed"] <= most * each["known"]]
        if not pool:
            continue
        best = [each["number"] for each in choice.ranked(pool)[: choice.SAMPLED]]
        for number in {*best} - sampled:
            model, sampled = points[number][1], sampled | {number}
            more = collect_answers(
                model, request.tokenizer, few, seed=seed, only=lambda each: each.tau > 0
            )
            answers[number].extend(more)
        first = choice.ranked([counts(number) for number in best])[0]
        values = {each: first[each] for each in (*CHOSEN, *COUNTED)}
        found[name] = values, points[first["number"]][1]
    return found


def run(given: Namespace) -> None:
    """Run the wanted cases, but those done at this commit, and write rmu.csv."""
    if unknown := {*given.cases} - {*make.CASES}:
        raise UserError(f"--cases: unknown case {min(unknown)!r}: one of {', '.join(make.CASES)}")
    results.check_clean(given.out)
    path, commit = given.out / "rmu.csv", results.provenance()["git_commit"]
    pairs = [("gpt2", 0)] if given.tiny else product(given.cases, given.seeds)
    for case, seed in make.undone(path, pairs, commit):
        make.write(path, make.COLUMNS, (case, seed), lines_of(case, seed, given.tiny), commit)


if __name__ == "__main__":
    torch.set_num_threads(1)
    script.run(run, str(__doc__), make.OPTIONS, as_jobs=False)
