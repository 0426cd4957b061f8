"""Attack the unlearned models of a profile, and forget authors who ask one after the other.

    python results/studies/attacks/make.py --profile cpu --out results/profiles/cpu
    python results/studies/attacks/make.py --profile tofu-cpu --data DIR --seeds 1 \
        --out results/profiles/tofu-cpu

The attacker has the weights of a model that unlearned one split, or asks it in other ways:

- relearning: the model is trained on 10% of the forget rows and judged by the other 90%.
- quantisation: its weights are rounded to 8 and to 4 bits.
- asking: its greedy answers are searched for the forgotten facts, for several ways of asking.

T3 is also attacked without tempering and with a gate, and with settings that the paper's errors
chose (`VARIANTS`; the last with --methods "T3 (least)").

These make the table `recover`. With the built-in world there is a table `requests` as well: the
last 1, 2, 4 and 8 authors of a world of 80 ask to be forgotten, by one head for all of them or by
one head for each. Notebook 08 shows both tables. The models of seed 1 are attacked.

At profile cpu this takes about 10 CPU-minutes, a third of them for the larger world. At tofu-cpu it
takes about an hour after the bases and the baselines are trained. Each attack is written when it
ends, and what a table in OUT already has is not computed again. So the same command continues a
killed run, and adds further methods. Choose another OUT after you changed a setting. The file
OUT/attacks.json says which commit and command made which part. (Notebook 08 made the committed
tables with the same code; that of tofu-cpu has relearning with 0 and 20 steps only.)
"""

import argparse
import copy
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import pandas as pd

from t3lab import profiles, results, script
from t3lab.audit import run
from t3lab.audit.facts import row_truths
from t3lab.audit.recognition import recognized
from t3lab.chances import LEAK, chances
from t3lab.cli import names, whole_numbers
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.study.methods import Subject, dialled, load_models, retrained, subject
from t3lab.study.study import Loaded, Study, open_study
from t3lab.study.unlearned import head_settings
from t3lib.baselines.losses import settings_of
from t3lib.baselines.train import Progress, finetune
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.models import load_model, pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.own.answers import build_inquiry, greedy_texts
from t3lib.own.phrases import CHOOSING
from t3lib.own.questions import KINDS
from t3lib.own.truths import word_set, words
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.evaluation import metrics_of, score
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.metrics import by_column, forget_quality, truth_ratio

# T3 with other settings than the tuned ones.
VARIANTS: dict[str, dict[str, Any]] = {
    "T3 (T = 1)": {"temperature": 1.0},  # and the learning rate that was chosen for it
    "T3 (gated)": {"gate": 0.9},  # ours, not the paper's
    # what the paper's errors chose at cpu on the 5% split (cpu-worlds/guided.py); only where named
    "T3 (least)": {"lr": 4e-2, "temperature": 1.1},
}
METHODS = ["Original", "Retrained", "RMU", "WGA", "NPO", "SimNPO", "T3", *[*VARIANTS][:2]]
# steps: of relearning. bits: of a weight; 32 stands for the weights as they are. samples: answers
# to each question. authors: how many ask to be forgotten. of_authors: of how many in the world.
FULL = {
    "steps": (0, 5, 10, 20, 40),
    "bits": (32, 8, 4),
    "samples": 16,
    "authors": (1, 2, 4, 8),
    "of_authors": 80,
}
FEW = {"steps": (0, 2), "bits": (32, 8), "samples": 2, "authors": (1, 2), "of_authors": 20}
TINY = {
    "stage": {"authors": 20, "questions": 2, "hidden": 32, "heads": 2, "epochs": 3, "vocab": 1600},
}

Entry = dict[str, Any]  # one row of a table
Models = Mapping[str, Subject]  # by the name in the table


def scored(study: Study, loaded: Loaded, rows: Sequence[Row]) -> tuple[Mapping[str, Any], Any]:
    """Score the true and wrong answers of forget rows.

    Returns the cells of `audit.run.likelihoods` as arrays, and the truth ratios (n,).
    """
    model, tokenizer, tilts = loaded
    how = {"attention_mask": study.scoring.attention_mask}
    [shown] = run.likelihoods(model, tokenizer, {"": rows}, tilts or UNTILTED, **how)
    cells = {name: np.array(cell) for name, cell in shown[""]["cells"].items()}
    true, wrong = cells["paraphrased"][:, 0], cells["paraphrased"][:, 1:]
    return cells, truth_ratio(true, wrong, study.scoring.truth_ratio)


def references(study: Study, rows: Sequence[Row], seeds: Sequence[int]) -> list[Any]:
    """Return the truth ratios (n,) of forget rows under the split's retrained models, one array for
    each seed.
    """
    models = (load_model(retrained(study, seed), **study.load_options) for seed in seeds)
    return [scored(study, Loaded(*each), rows)[1] for each in models]


def judge(
    study: Study, loaded: Loaded, rows: Sequence[Row], others: Sequence[Any], samples: int
) -> Entry:
    """Measure what one model knows of some forget rows.

    others: truth ratios of models to compare with, see `references`. samples: answers sampled for
    each row at temperature 1.

    Returns a dict. rows_leaking: number of rows of which some sample holds the secret, out of
    `rows` with a secret. recognized_verbatim, recognized_one_shape: share of rows whose true answer
    is recognised. fq, fq_min, fq_max: mean, lowest and highest Forget Quality.
    """
    model, tokenizer, tilts = loaded
    how = {"attention_mask": study.scoring.attention_mask, "samples": samples}
    [drawn] = run.draws(model, tokenizer, rows, tilts or UNTILTED, **how)
    cells, ours = scored(study, loaded, rows)
    qualities = [forget_quality(ours, theirs)[0] for theirs in others]
    return {
        "rows_leaking": sum(map(any, drawn["leaks"])),
        "rows": len(drawn["leaks"]),
        **{
            f"recognized_{name}": recognized(cells[name][:, 0], cells[name][:, 1:]).mean()
            for name in ("verbatim", "one_shape")
            if name in cells
        },
        "fq": np.mean(qualities),
        "fq_min": min(qualities),
        "fq_max": max(qualities),
    }


def relearning(study: Study, models: Models, size: Entry) -> Iterator[Entry]:
    """Train every model on 10% of the forget rows, and judge it by the other 90%.

    size: as `FULL`, and the seeds of the retrained models that Forget Quality compares with.

    For T3, the base is trained. It is judged under its old head ("T3, head kept") and under a new
    head that is fitted afterwards ("T3, head refitted"); so are the `VARIANTS`. T3 without its head
    is the original model.
    """
    rows = study.evaluation_rows["forget"]
    given, left = rows[::10], [row for number, row in enumerate(rows) if number % 10]
    judged_by = references(study, left, size["seeds"])
    for called, one in models.items():
        loaded = load_models(study, [one])
        for count in size["steps"]:
            model = relearned(loaded.model, study.tokenizer, given, count)
            kinds = {called: loaded.tilts}
            if loaded.tilts:
                [(_, T)], head = loaded.tilts, head_on(study, model, study.forget, one.settings)
                kept, refitted = f"{called}, head kept", f"{called}, head refitted"
                kinds = {kept: loaded.tilts, refitted: [(dialled(head, one.settings), T)]}
            for name, tilts in kinds.items():
                found = judge(
                    study, Loaded(model, study.tokenizer, tilts), left, judged_by, size["samples"]
                )
                yield {"attack": "relearning", "model": name, "steps": count} | found


def relearned(model: Any, tokenizer: Any, rows: Sequence[Row], steps: int) -> Any:
    """Return a copy of a model after `steps` steps of fine-tuning on all these rows at once."""
    model = copy.deepcopy(model).float()
    if steps:
        finetune(
            model,
            encode_rows(tokenizer, list(rows)),
            pad_id=pad_id(tokenizer),
            epochs=steps,
            batch_size=len(rows),
            lr=1e-3,
            warmup_epochs=0.0,
            weight_decay=0.0,
            progress=Progress("relearning"),
        )
    return model.eval()


def quantisation(study: Study, models: Models, size: Entry) -> Iterator[Entry]:
    """Judge every model with its own weights and with rounded weights. size: see `relearning`."""
    rows = study.evaluation_rows["forget"]
    judged_by = references(study, rows, size["seeds"])
    for called, one in models.items():
        loaded = load_models(study, [one])
        for bits in size["bits"]:
            now = loaded if bits == 32 else quantised(loaded, f"{bits}bit")
            found = judge(study, now, rows, judged_by, size["samples"])
            yield {"attack": "quantisation", "model": called, "bits": bits} | found


def quantised(loaded: Loaded, load_in: str) -> Loaded:
    """Return a model with weights in 8 or 4 bits (bitsandbytes). For T3 the base is quantised and
    the head stays as it is.

    load_in: "8bit" or "4bit".
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # or it warns about each cast
    with TemporaryDirectory() as folder:
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        return Loaded(*load_model(folder, load_in=load_in), loaded.tilts)


def asking(study: Study, models: Models, size: Entry) -> Iterator[Entry]:
    """Ask every model in every way of `own.questions`, decode greedily, and count the leaks.

    Yields one entry for each model and way. rows: number of rows that the original model answers in
    this way; only these are counted. rows_leaking: how many of them the model gives away. If a row
    has a paraphrased question, it is one of the ways.
    """
    rows = study.evaluation_rows["forget"]
    items = [" ".join(frozenset().union(*own)) for own in row_truths(rows).items]
    secret = [row | {"secret": own} for row, own in zip(rows, items)]
    for row in secret:
        if text := row.get("paraphrased_question"):
            row["wordings"] = [text]
    put = build_inquiry(study.tokenizer, secret, {"retain": study.retain})
    questions = [each for each in put.questions if each.kind in KINDS]
    prompts, truths = [each.prompt for each in questions], [each.room for each in questions]
    pairs = [(row["question"], row["answer"]) for row in put.rows[: len(put.truths.items)]]
    read = chances(pairs, dict(enumerate(map(words, items))))

    def leaking(loaded: Loaded) -> set[tuple[str, int]]:
        """Return (way of asking, number of the row) for each answer that gives the row away.

        After a forced start, only words of the rest of the answer count.
        """
        model, tokenizer, tilts = loaded
        [texts] = greedy_texts(model, tokenizer, prompts, truths, tilts or UNTILTED)
        said: dict[int, list[str]] = {}
        for each, text in zip(questions, texts):
            said.setdefault(each.row, []).append(text)
        found = read.heard(said)
        return {
            (each.way, each.row)
            for each, text in zip(questions, texts)
            if each.row < put.n
            and found.chance(
                each.row,
                word_set(each.start + text) - put.given.get((each.way, each.row), frozenset()),
            ) <= LEAK
        }  # fmt: skip

    known = leaking(Loaded(study.base, study.tokenizer))
    counts = Counter(way for way, _ in known)
    for called, one in models.items():
        found = Counter(way for way, _ in leaking(load_models(study, [one])) & known)
        for way in dict.fromkeys(each.way for each in questions):
            # figures lack the characters, so the table has their translation
            name = way.replace(f'"{CHOOSING.prefaces[-1]}"', '"Please answer:" in Chinese')
            entry = {"attack": "asking", "model": called, "way": name}
            yield entry | {"rows_leaking": found[way], "rows": counts[way]}


def requests(study: Study, settings: Mapping[str, Any], size: Entry) -> Iterator[Entry]:
    """Forget the last 1, 2, … authors of a split of the built-in world.

    settings: of T3, all of them. size: see `relearning`. The retrained models of these seeds never
    saw any author of the split. The model of the last seed is also judged ("retrained"), against
    the others.

    One head is fitted to all of these authors, or one to each. Heads of single authors start from a
    random B or from B = 0, and their log f are added, at the settings' T and, from B = 0, also at T
    = 1. cpu_seconds, bytes: time to fit the heads of an entry, and the size of their weights.
    """
    questions, tuned = study.stage.questions, float(settings["temperature"])
    kept = {name: rows for name, rows in study.evaluation_rows.items() if name != "forget"}

    def fitted(start: int, end: int, init_b: str) -> tuple[T3Head, float]:
        """Fit a head to authors `start` to `end`, counted from the last, and return it with the
        CPU-seconds that this took.
        """
        began, n = process_time(), len(study.forget)
        rows = study.forget[n - end * questions : n - start * questions]
        head = head_on(study, study.base, rows, {**settings, "init_b": init_b})
        return head, process_time() - began

    random, zero = (
        [fitted(number, number + 1, init_b) for number in range(max(size["authors"]))]
        for init_b in ("kaiming", "zero")
    )
    control, _ = load_model(retrained(study, size["seeds"][-1]), **study.load_options)
    for count in size["authors"]:
        rows = study.evaluation_rows["forget"][-count * questions :]
        judged_by = references(study, rows, size["seeds"])
        ways = {
            "one head": ([fitted(0, count, settings["init_b"])], tuned),
            "a head an author, random B": (random[:count], tuned),
            "a head an author, zero B": (zero[:count], tuned),
            "a head an author, zero B, T = 1": (zero[:count], 1.0),
            "retrained": ([], 1.0),
        }
        for name, (timed, T) in ways.items():
            heads = [head for head, _ in timed]
            model = T3ForCausalLM(study.base, heads, T) if heads else control
            [scores] = score(model, study.tokenizer, kept, study.scoring)
            values = by_column(metrics_of(scores, truth_ratio=study.scoring.truth_ratio))
            theirs = judged_by if heads else judged_by[:-1]
            found = judge(study, Loaded(model, study.tokenizer), rows, theirs, size["samples"])
            yield {"authors": count, "heads": name} | found | {
                **{name: values[name] for name in ("mu_rouge", "mu", "retain_rouge")},
                "cpu_seconds": sum(seconds for _, seconds in timed),
                "bytes": sum(weight.nbytes for head in heads for weight in head.parameters()),
            }  # fmt: skip


def head_on(study: Study, base: Any, forget: Sequence[Row], settings: Any) -> T3Head:
    """Fit a head of seed 1 on a base to rows to forget. The rows to keep are the study's."""
    mask, vocabulary = study.scoring.attention_mask, base.get_output_embeddings().weight.shape[0]
    features = extract_features(
        base, study.tokenizer, list(forget), study.retain, attention_mask=mask
    )
    own = head_settings(settings or {}, seed=1)
    return fit_head(features, vocab_size=vocabulary, **own)


def attack(study: Study, models: Models, size: Entry, out: Path) -> None:
    """Attack the models that the table `recover` in a folder does not have, and add them to it."""
    path, table = out / "tables" / "recover.csv", pd.DataFrame(columns=["attack", "model", "split"])
    if path.is_file():
        table = pd.read_csv(path)
    for part in (relearning, quantisation, asking):
        began, mine = process_time(), table[table["split"] == study.split]
        done = {name.split(",")[0] for name in mine["model"][mine["attack"] == part.__name__]}
        done |= {"Original"} if part is relearning else set()  # it is T3 without its head
        if left := {called: one for called, one in models.items() if called not in done}:
            new = pd.DataFrame(part(study, left, size)).assign(split=study.split)
            table = pd.concat([table, new], ignore_index=True) if len(table) else new
            table["split"] = table.pop("split")  # the last column
            render.write_table(path.parent, "recover", table)
            name = f"{part.__name__}, {study.split}: {', '.join(left)}"
            script.note(out / "attacks.json", name, began)


OPTIONS: script.Options = {
    "--profile": {"default": "cpu", "help": "name or YAML file (default %(default)s)"},
    "--data": {"help": "builtin, hub or a folder (default: the profile's)"},
    "--split": {"default": "forget05", "help": "(default %(default)s)"},
    "--methods": {"type": names, "help": f"(default {','.join(METHODS)})"},
    "--seeds": {
        "type": whole_numbers,
        "default": [1, 2, 3],
        "help": "of the retrained models to compare with (default 1,2,3)",
    },
    "--out": {"type": Path, "help": "results folder (default out/PROFILE)"},
} | script.TINY_OPTION


def make(args: argparse.Namespace) -> None:
    """Make the tables."""
    profile = profiles.override(profiles.load_profile(args.profile), data=args.data)
    profile = script.tiny(profile, **TINY) if args.tiny else profile
    size, out = FEW if args.tiny else FULL, args.out or Path("out", profile["name"])
    results.check_clean(out)
    world, hyper = {name: profile[name] for name in WORLD}, profile["hyper"]
    study = open_study(args.split, **world)
    models = {}
    for name in args.methods or METHODS:
        method, changes = ("T3", VARIANTS[name]) if name in VARIANTS else (name, {})
        if args.methods or method in profile["methods"]:
            chosen = hyper_of(hyper, method, args.split, changes.get("temperature")) | changes
            models[name] = subject(study, method, int(name not in METHODS[:2]), chosen)
    attack(study, models, size | {"seeds": args.seeds}, out)
    if profile["data"] == "builtin" and not (out / "tables" / "requests.csv").is_file():
        began, stage = process_time(), world["stage"] | {"authors": size["of_authors"]}
        study = open_study("forget10", **world | {"stage": stage})
        settings = settings_of("T3", hyper_of(hyper, "T3", "forget10"))
        found = requests(study, settings, size | {"seeds": [0, *args.seeds[:1]]})
        table = pd.DataFrame(found).assign(of_authors=stage["authors"])
        render.write_table(out / "tables", "requests", table)
        script.note(out / "attacks.json", "requests", began)


if __name__ == "__main__":
    about = "Attack unlearned models, and forget one author after the other."
    script.run(make, about, OPTIONS)
