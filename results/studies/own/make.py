"""Judge own models by the verdict of `t3 unlearn` and by an independent judge.

    python results/studies/own/make.py --out results/studies/own
    python results/studies/own/make.py --cases gpt2,short --seeds 0 --out results/studies/own
    python results/studies/own/make.py --cases gpt2 --seeds 0 --choices "new fit,as drawn"
    python results/studies/own/make.py --cases gpt2,short,customers --seeds 3,4,5 \
        --choices "new fit,more decay" --out results/studies/own/untouched
    python results/studies/own/make.py --cases smollm2-customers --seeds 0 --out results/studies/own

A case is a kind of small model with its rows. gpt2: GPT-2 models that learned sentences. short:
Qwen2 models with short answers in three scripts. customers: models with phone and order numbers.
builtin: bases of the built-in world. smollm2-…: SmolLM2 with customers and yes-no facts that it
was taught, or with capitals and authors that it knew (pretrained.py). These need a GPU, or hours,
and run only when they are named.

Choices are ways of unlearning, by default the new fit alone. "new fit" is what `t3 unlearn` does.
"as drawn" is the new fit without neutral tokens, "more decay" has a weight decay of 0.1 in place of
0.001. "without slips" has no misspelt wordings, "without astray" no answers that go astray before
the secret, "without either" neither, and "without forms" secrets in one form alone. "every token"
has more, and "larger w" has more powers to choose from.
"retrained" is a model that never saw the rows; of what SmolLM2 knew by itself there is none. All of
them are also asked by judge.py, a script that shares no code with t3lib:

    python results/studies/own/judge.py BASE HEAD FACTS OUT

BASE is the folder of a Transformers model with its tokenizer, HEAD that of a saved head, or "-".
FACTS is a JSON file {"system": a system text or null, "rows": [{"question", "answer", "facts"}]}
about the rows to forget. `facts` are the texts that the generator of the rows put into the answer.
OUT is the JSON file that the judge writes: {"rows": [{"question", "leaks": true or false, "text":
the text that shows it, or ""}]}, in the same order. It calls every answer that holds a fact a leak,
guesses too, so its count for a retrained model stands beside it (judge_retrained).

The fit was developed on the models of seeds 0 to 2. Those of seeds 3 to 5 (untouched/) were first
made after the fit and "more decay" had been fixed.

It writes OUT/own.csv, one line for each measure, and OUT/judged.csv, one line for each row to
forget on which verdict and judge differ. Every line has the commit that made it, so with
uncommitted changes it refuses to write into results/. A case and seed whose lines are of this
commit is not run again, and its heads are kept in the cache, so the same command continues a
killed run. seconds: of one core, for the fit and the choice of w. All choices are judged together,
because answers that are still identical share the base's passes.

attack.csv is not made here: somebody who knew neither our ways of asking nor the fit attacked the
three models of gpt2, of which two had passed. For each family of attacks it has the askings and
those in which the base, T3 (`told`) and a retrained model told a fact, and (`own_…`) a fact that no
row to keep has.
"""

import csv
import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import judge
import pretrained
import torch
from cases import builtin, memorised

from t3lab import results, script
from t3lab.cli import names, whole_numbers
from t3lib.classifier.features import Features
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, cache_dir, read_json, write_json
from t3lib.own import choice, lessons, wording
from t3lib.own.answers import collect_answers, collect_by_tilt
from t3lib.own.assess import complete, counts_of, inquiry_of
from t3lib.own.rows import Rows
from t3lib.own.unlearn import Choices, checked_request, without_verdict
from t3lib.own.verdict import verdict
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.likelihood import UNTILTED

COLUMNS = ("model", "seed", "choice", "measure", "value", "commit")
DIFFERENT = (
    "model",
    "seed",
    "choice",
    "verdict",
    "judge",
    "retrained",
    "chance",
    "question",
    "truth",
    "worst",
    "text",
    "commit",
)
CASES = ("gpt2", "short", "customers", "builtin")
EVERY = (*CASES, *pretrained.CASES)
COUNTS = ("rows", "known_before", "leaking_before", "leaking", "guessed")
LEFT_ALONE = ("retain", "other", "held_out_retain")
CHOICES: dict[str, dict[str, Any]] = {
    "new fit": {},
    "as drawn": {"untrained": "as drawn"},
    "more decay": {"fit": {"weight_decay": 0.1}},
}
FEW = {"strength": 2.0, "steps": 20, "fit": {"lr": 2e-3}}  # choices of --tiny
EXTRACT = lessons.extract_material


def every_token(request: lessons.Request, made: list[lessons.Lesson]) -> Features:
    """Return the features of lessons, with each token of a row to keep twice. The second time its
    target is a random one of the tokens of class 0. It is of class 1 here: whatever the base says
    in a row to keep may stay.
    """
    features = EXTRACT(request, made)
    forget = features.s[features.row] == 0
    last = int(features.row[forget].max()) + 1  # the tokens of class 1 of the last row to forget
    keep, drawn = (features.row > last).nonzero()[:, 0], features.y[forget]
    generator = torch.Generator().manual_seed(request.seed)
    targets = drawn[torch.randint(len(drawn), (len(keep),), generator=generator)]
    row = torch.cat([features.row, features.row[keep]])
    order = row.argsort(stable=True)
    x = torch.cat([features.x, features.x[keep]])[order]
    y = torch.cat([features.y, targets])[order]
    return Features(x, y, row[order], features.s, device=features.device)


# Fits with a part changed: what replaces which name of which module. "either" is both of the first
# two.
TRICKS: dict[str, list[tuple[Any, str, Any]]] = {
    "without slips": [(wording, "SLIPS", 0.0)],
    "without astray": [(lessons, "ASTRAY", 0.0)],
    "without either": [(wording, "SLIPS", 0.0), (lessons, "ASTRAY", 0.0)],
    "without forms": [(lessons, "FORMS", (None,))],
    "every token": [(lessons, "extract_material", every_token)],
    "larger w": [(choice, "STRENGTHS", (*choice.STRENGTHS, 16.0, 24.0, 32.0, 48.0))],
}


def measured(report: dict) -> dict[str, Any]:
    """Return the counts of a report, and what was chosen, by name."""
    forget = report["forget"]
    values = {name: forget[name] for name in COUNTS} | {"status": report["verdict"]["status"]}
    values |= {
        "sealed": forget["sealed"]["leaking"],
        "sealed_ways": forget["sealed"]["ways"],
        "talk_changed": len(report["generic"]["changed"]) if "generic" in report else 0,
    }
    for name in LEFT_ALONE:
        if name in report:
            entry = report[name]
            values |= {f"{name}_{key}": entry[key] for key in ("known_before", "unchanged")}
            values[f"{name}_sampled_0.6"] = entry["unchanged_sampled"]
    values |= {name: report["choice"][name] for name in ("T", "w", "lr") if "choice" in report}
    return values | {"success": int(report["verdict"]["success"])}


def facts_of(rows: list[dict], system: str | None) -> dict:
    """Return what the generator of the rows knows about them, as the judge reads it."""
    known = [
        {name: row[name] for name in ("question", "answer")} | {"facts": row["facts"]}
        for row in rows
    ]
    return {"system": system, "rows": known}


def judged(base: Any, tokenizer: Any, model: Any, rows: list[dict]) -> dict[str, dict]:
    """Ask judge.py about the rows to forget, and return {question: its dict}.

    model: the unlearned model, or None to ask the base alone.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        base.save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
        head = str(folder / "head") if model else "-"
        if model:
            model.save_pretrained(head)
        write_json(folder / "facts.json", facts_of(rows, rows[0].get("system")))
        files = (str(folder / file) for file in ("facts.json", "out.json"))
        judge.main(str(folder / "base"), head, *files)
        found = json.loads((folder / "out.json").read_text(encoding="utf-8"))["rows"]
    return {each["question"]: each for each in found}


def lines_of(
    case: str, seed: int, choices: list[str], tiny: bool = False, judges: bool = True
) -> tuple[list[tuple], list[tuple]]:
    """Return a line for each measure of every choice, and of a model that never saw the rows to
    forget; and a line for each row on which verdict and judge differ.

    tiny: use few rows, teach and choose little, and let the model itself stand for a retrained one.
    judges: ask judge.py, too, and what changes on unrelated prompts; else there are verdicts alone.
    """
    if case in pretrained.CASES:
        model, tokenizer, forget, retain, other, retrained = pretrained.CASES[case](seed)
    else:
        model, tokenizer, forget, retain, other = (
            builtin(seed) if case == "builtin" else memorised(case, seed, epochs=2 if tiny else 60)
        )
        retrained = model  # training another would take half of the time of --tiny
        if not tiny:
            made = builtin(seed, "retain90") if case == "builtin" else memorised(case, seed, True)
            retrained = made[0]
    if tiny:
        forget, retain, other = forget[:3], retain[:6], other[:2]
    rows = Rows(forget, retain, other)
    found: dict[str, dict[str, Any]] = {}
    guessed: dict[str, dict] = {}
    if retrained is not None:
        inquiry = inquiry_of(tokenizer, rows.checked())
        before, after = (
            collect_answers(each, tokenizer, inquiry, seed=seed) for each in (model, retrained)
        )
        report, guessed = (
            counts_of(inquiry, before, after),
            judged(retrained, tokenizer, None, forget) if judges else {},
        )
        found["retrained"] = {name: report["forget"][name] for name in COUNTS}
        found["retrained"]["status"] = verdict(report)["status"]
    guesses, differ = sum(each["leaks"] for each in guessed.values()), list[tuple]()
    commit = results.provenance()["git_commit"]
    kept = None if tiny else cache_dir("own-study", f"{case}-seed{seed}-{commit}")
    for name, (unlearned, seconds) in unlearned_by(model, tokenizer, rows, seed, choices, kept):
        found[name] = measured(unlearned.report) | {"seconds": seconds}
        print(f"{case} seed {seed}, {name}\n{unlearned.report}\n", flush=True)
        if not judges:
            continue
        theirs = judged(model, tokenizer, unlearned, forget)
        found[name]["judge"] = sum(each["leaks"] for each in theirs.values())
        if retrained is not None:
            found[name]["judge_retrained"] = guesses
        if case in pretrained.CASES:
            T = unlearned.report["choice"]["T"]
            found[name] |= pretrained.unrelated(model, tokenizer, unlearned.heads[0], T)
        for row in unlearned.report["forget"]["each"]:
            their = theirs[row["question"]]
            if row["leaks"] != their["leaks"]:
                guess = guessed[row["question"]]["leaks"] if guessed else ""
                calls = (row["leaks"], their["leaks"], guess)
                texts = (row["question"], row["truth"], row["worst"], their["text"])
                differ.append((case, seed, name, *calls, row["p"], *texts))
    return [(case, seed, name, *pair) for name in found for pair in found[name].items()], differ


def unlearned_by(
    base: Any, tokenizer: Any, rows: Rows, seed: int, names: list[str], kept: Path | None
) -> Iterator[tuple[str, tuple[T3ForCausalLM, int]]]:
    """Unlearn the rows by every choice, and yield its name, the model with its report, and the
    seconds of its fit.

    kept: a folder whose heads of an earlier, killed run are taken, and where heads are saved. None
    chooses little, as with --tiny, and saves nothing.
    """
    few = {} if kept else FEW
    hows = {name: Choices(seed=seed, **CHOICES.get(name, {}), **few) for name in names}
    request = checked_request(base, tokenizer, rows, Choices(seed=seed))
    inquiry = inquiry_of(request.tokenizer, request.rows)
    made, seconds = [], []
    for name, how in hows.items():
        began, place = time.process_time(), kept and kept / name
        if place and (place / "choice.json").is_file():
            chosen = read_json(place / "choice.json")
            made.append((T3ForCausalLM.from_pretrained(place, base=base), chosen["chosen"]))
            seconds.append(chosen["seconds"])
            continue
        with ExitStack() as stack:
            for each in TRICKS.get(name, ()):
                stack.enter_context(patch.object(*each))
            made.append(without_verdict(request, inquiry, how))
        seconds.append(round(time.process_time() - began))
        print(f"{name}: fitted in {seconds[-1]} s of one core", flush=True)
        if place:
            made[-1][0].save_pretrained(place)
            write_json(place / "choice.json", {"chosen": made[-1][1], "seconds": seconds[-1]})

    tilts = [*UNTILTED, *((each.heads[0], each.temperature) for each, _ in made)]
    before, *answers = collect_by_tilt(base, request.tokenizer, inquiry, tilts, seed=seed)
    for name, (unlearned, chosen), after, used in zip(names, made, answers, seconds):
        report = counts_of(inquiry, before, after)
        report["choice"] = chosen
        unlearned.report = complete(report, inquiry, unlearned, tokenizer, request.rows)
        yield name, (unlearned, used)


def write(
    path: Path,
    columns: tuple[str, ...],
    pair: tuple[str, int],
    new: list[tuple],
    commit: str | None,
) -> None:
    """Write the lines of a case and seed in place of earlier ones; lines of others stay."""
    kept = [line for line in lines_in(path) if line[:2] != [pair[0], str(pair[1])]]
    with atomic_write(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(sorted([*kept, *([*map(str, line), str(commit)] for line in new)]))


def lines_in(path: Path) -> list[list[str]]:
    """Read the lines of a table; none if it is not there."""
    return list(csv.reader(path.open(encoding="utf-8", newline="")))[1:] if path.exists() else []


def table(lines: list[list[str]]) -> str:
    """Count the models of each choice by verdict (rows) and by whether the judge calls more rows
    leaking than of a retrained model (columns).
    """
    values: dict[tuple[str, ...], dict[str, str]] = {}
    for case, seed, fit, measure, value, _ in lines:
        values.setdefault((fit, case, seed), {})[measure] = value
    counts = Counter(
        (fit, each["status"], int(each["judge"]) > int(each["judge_retrained"]))
        for (fit, *_), each in values.items()
        if "judge_retrained" in each
    )
    text = []
    for fit in dict.fromkeys(name for name, *_ in counts):
        text.append(f"{fit:<15}judge: as retrained   judge: more")
        for status in ("pass", "cannot tell", "no"):
            clean, leaky = (counts[fit, status, some] for some in (False, True))
            text.append(f"{status:<15}{clean:19}{leaky:14}")
    return "\n".join(text)


def undone(
    path: Path, pairs: Iterable[tuple[str, int]], commit: str | None
) -> Iterator[tuple[str, int]]:
    """Yield each case and seed without lines of this commit in a table; say how long each took."""
    for case, seed in pairs:
        if any([*line[:2], line[-1]] == [case, str(seed), commit] for line in lines_in(path)):
            continue
        began = time.process_time()
        yield case, seed
        minutes = (time.process_time() - began) / 60
        print(f"{case}, seed {seed}: {minutes:.1f} minutes of one core", flush=True)


def run(given: Namespace) -> None:
    """Run the wanted cases, but those done at this commit, and write own.csv and judged.csv."""
    if unknown := {*given.cases} - {*EVERY}:
        raise UserError(f"--cases: unknown case {min(unknown)!r}: one of {', '.join(EVERY)}")
    if unknown := {*given.choices} - {*CHOICES, *TRICKS}:
        allowed = ", ".join([*CHOICES, *TRICKS])
        raise UserError(f"--choices: unknown {min(unknown)!r}: one of {allowed}")
    results.check_clean(given.out)
    path, commit = given.out / "own.csv", results.provenance()["git_commit"]
    pairs = [("gpt2", 0)] if given.tiny else product(given.cases, given.seeds)
    for case, seed in undone(path, pairs, commit):
        new, differ = lines_of(case, seed, given.choices, given.tiny, not given.no_judge)
        write(path, COLUMNS, (case, seed), new, commit)
        write(given.out / "judged.csv", DIFFERENT, (case, seed), differ, commit)
    print(table(lines_in(path)))


OPTIONS: script.Options = {
    "--cases": {"type": names, "default": CASES, "help": f"(default {','.join(CASES)})"},
    "--seeds": {"type": whole_numbers, "default": [0, 1, 2], "help": "(default 0,1,2)"},
    "--out": {"type": Path, "default": Path("out/own"), "help": "(default %(default)s)"},
} | script.TINY_OPTION

if __name__ == "__main__":
    torch.set_num_threads(1)
    more: script.Options = {
        "--choices": {"type": names, "default": [*CHOICES][:1], "help": "(default new fit)"},
        "--no-judge": {"action": "store_true", "help": "verdicts alone"},
    }
    script.run(run, str(__doc__), OPTIONS | more, as_jobs=False)
