"""Measure the steps of a rehearsal, each in a process of its own.

A row has the seconds, the most memory that the process held and the operations that torch counted,
each beside what `cost` says that they must be. The seconds are those of a machine that others may
use; memory and operations are not.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from runpy import run_module
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from t3lib.baselines.losses import LOSSES, settings_of
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write
from t3lib.core.settings import hyper_of
from t3lib.lab.bench import cost
from t3lib.lab.bench.shapes import Shape
from t3lib.lab.profiles import Profile

COLUMNS = (
    "profile step shape dtype rows tokens seconds peak_bytes predicted_bytes"
    " flops predicted_flops device note"
).split()
BITS = {"8bit": 8.0, "4bit": cost.NF4_BITS}
LOGITS = 2**28  # entries of the logits of one batch at most (`likelihood.default_batch_tokens`)
DTYPES = {"8bit": "int8", "4bit": "nf4", "head": "float32"}
OWN_STEPS = 20  # of the head in `t3 unlearn` on own rows


class Work(NamedTuple):
    """A step to measure: what it does, its rows and tokens; by arithmetic its operations and bytes.

    bytes: the most held at once. Python and its libraries take half a gigabyte more.
    """

    do: Callable[[], object]
    bytes: float
    rows: int = 0
    tokens: int = 0
    flops: float | None = None


def steps_of(profile: Profile) -> list[str]:
    """Names of the steps that a profile's methods have, in the order in which they run."""
    trained = [f"one step of {method}" for method in profile["methods"] if method in LOSSES]
    own = ["t3 unlearn", "t3 evaluate", "t3 generate"]
    return [
        "load",
        "features",
        "head",
        "scores",
        "answers",
        "audit",
        *trained,
        *own,
        "8bit",
        "4bit",
    ]


def measured(profile: Profile, some: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Measure steps of a rehearsal's profile one after the other; a row of `COLUMNS` for each.

    A step that cannot be done has the reason as its note.
    """
    with TemporaryDirectory() as folder:
        for step in some or steps_of(profile):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                try:
                    row = process.submit(measure, profile, step, folder).result()
                except Exception as error:  # whatever a library raises, or a killed process
                    row = {"note": f"{type(error).__name__}: {error}".splitlines()[0]}
            yield dict.fromkeys(COLUMNS) | {"profile": profile["name"], "step": step} | row


def add(row: Mapping[str, Any], path: Path) -> None:
    """Put a row into a table on disk; an earlier one of the same profile and step goes."""
    import pandas as pd

    new = pd.DataFrame([row], columns=list(COLUMNS))
    if path.is_file():
        old = pd.read_csv(path)
        same = (old["profile"] == row["profile"]) & (old["step"] == row["step"])
        new = pd.concat([old[~same], new]) if (~same).any() else new
    with atomic_write(path) as handle:
        handle.write(new.to_csv(index=False))


def measure(profile: Profile, step: str, folder: str) -> dict[str, Any]:
    """Load the base and do one step; what it took. To be called in a process of its own.

    folder: where `t3 unlearn` puts its head, which the verbs after it read.
    """
    import time

    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from t3lib.lab.results import peak_memory_bytes, provenance

    torch.set_num_threads(int(os.environ.get("T3_THREADS", torch.get_num_threads())))
    shape, work = work_of(profile, step, folder)
    with FlopCounterMode(display=False) as counter:
        began = time.perf_counter()
        work.do()
        seconds = time.perf_counter() - began
    return {
        "shape": f"{cost.parameters(shape) / 1e9:.3g}e9 parameters",
        "dtype": DTYPES.get(step, "bfloat16"),
        "rows": work.rows,
        "tokens": work.tokens,
        "seconds": round(seconds, 2),
        "peak_bytes": peak_memory_bytes(),
        "predicted_bytes": round(work.bytes),
        "flops": counter.get_total_flops() or None,
        "predicted_flops": work.flops,
        "device": provenance()["device"],
    }


def work_of(profile: Profile, step: str, folder: str) -> tuple[Shape, Work]:
    """The shape of a profile's base, and one step to do with it, for which all is loaded."""
    from transformers import AutoConfig

    from t3lib.core.models import load_model

    shape = Shape.of(AutoConfig.from_pretrained(profile["models"]["full"]))
    place = profile["models"]["full"]
    if step == "load":
        return shape, Work(lambda: load_model(place), 2 * cost.parameters(shape))
    if step == "head":
        return shape, head(profile, shape)
    if step in BITS:
        held = cost.t3_memory(shape, bits=BITS[step])[0] + 6 * LOGITS
        return shape, Work(
            lambda: scores(profile, shape, *load_model(place, load_in=step)).do(), held
        )
    if step.startswith("t3 "):
        return shape, command(profile, shape, step.removeprefix("t3 "), folder)
    model, tokenizer = load_model(place)
    if step.startswith("one step of "):
        return shape, training(profile, shape, model, tokenizer, step.removeprefix("one step of "))
    known = {
        "features": features,
        "scores": scores,
        "answers": answers,
        "audit": audit,
    }
    return shape, known[step](profile, shape, model, tokenizer)


def command(profile: Profile, shape: Shape, verb: str, folder: str) -> Work:
    """A verb of `t3`, as it is typed, on the rehearsal's rows to forget and to keep."""
    rows, out = Path(profile["data"]), Path(folder)
    model = ["--model", profile["models"]["full"]]
    own = ["--forget", str(rows / "forget10.json"), "--retain", str(rows / "retain90.json")]
    head, answer = (
        str(out / "head"),
        ["--max-new-tokens", str(profile["evaluation"]["max_new_tokens"])],
    )
    line = {
        "unlearn": [*model, *own, "--out", head, "--steps", str(OWN_STEPS), "--overwrite"],
        "evaluate": [*model, *own, "--head", head, "--out", str(out / "report")],
        "generate": [*model, "--head", head, *answer, "Who wrote this?"],
    }[verb]

    def do() -> None:
        sys.argv = ["t3", verb, *line]
        try:
            run_module("t3lib", run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0, 3):
                raise UserError(f"t3 {verb} ended with exit code {end.code}") from None

    return Work(do, 2 * cost.parameters(shape) + 6 * LOGITS)


def sets_of(profile: Profile) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
    """Rows to forget, rows to keep and the evaluation sets of a profile's first split."""
    from t3lib.lab.study import study
    from t3lib.tofu import data as tofu

    data, split = profile["data"], profile["splits"][0]
    forget, retain = (tofu.load_rows(data, name) for name in (split, tofu.retain_of(split)))
    return forget, retain, study.evaluation_rows(data, split)


def lengths_of(tokenizer: Any, rows: Sequence[Any]) -> tuple[list[int], int]:
    """Tokens of each row, and answer tokens of all of them."""
    from t3lib.core.rows import encode_rows

    examples = encode_rows(tokenizer, rows)
    return [len(each.ids) for each in examples], sum(
        len(each.ids) - each.n_prompt for each in examples
    )


def features(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """The features of all rows to forget and to keep."""
    from t3lib.classifier.features import extract_features

    forget, retain, _ = sets_of(profile)
    lengths, _ = lengths_of(tokenizer, [*forget, *retain])
    mask = profile["evaluation"]["attention_mask"]
    return Work(
        lambda: extract_features(model, tokenizer, forget, retain, attention_mask=mask),
        cost.t3_memory(shape, bits=16, batch_tokens=sum(lengths), answer_tokens=0, batch=0)[1],
        *(len(lengths), sum(lengths), cost.forward(shape, lengths).flops),
    )


def head(profile: Profile, shape: Shape) -> Work:
    """T3's head, trained as long as the profile says, on random features, which cost the same."""
    from t3lib.classifier.fit import fit_head
    from t3lib.lab.bench.head import HeadShape, problem

    pairs = len(sets_of(profile)[0])
    found = problem(HeadShape(shape.hidden_size, shape.vocab_size, pairs=pairs))
    settings = settings_of("T3", hyper_of(profile["hyper"], "T3", profile["splits"][0]))
    del settings["temperature"]
    work = cost.head_training(
        settings["epochs"] * len(found.y), shape.hidden_size, settings["rank"]
    )
    return Work(
        lambda: fit_head(found, vocab_size=shape.vocab_size, **settings),
        4 * len(found.y) * shape.hidden_size
        + 16 * settings["rank"] * (shape.hidden_size + shape.vocab_size),
        *(2 * pairs, len(found.y), work.flops),
    )


def tilts(profile: Profile, model: Any) -> list[Any]:
    """An untrained head at every T of the profile."""
    from t3lib.lab.bench.model import random_head

    placed = random_head(model)
    return [(placed, T) for T in profile["temperatures"]]


def scores(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """Losses of every answer in all evaluation sets at every T, which share the base's passes."""
    from t3lib.core.rows import encode_answers
    from t3lib.tofu.evaluation import Scoring, score
    from t3lib.tofu.metrics import SETS

    sets = sets_of(profile)[2]
    lengths, logits = [], 0
    for name, rows in sets.items():
        for row in rows:
            texts = [row["answer"], *row["perturbed_answer"]]
            texts += [row["paraphrased_answer"]] if SETS[name].paraphrased else []
            examples = encode_answers(tokenizer, row["question"], texts)
            prompt = examples[0].n_prompt  # computed once for all answers
            logits += sum(len(each.ids) - prompt for each in examples)
            lengths.append(prompt + sum(len(each.ids) - prompt for each in examples))
    scoring = Scoring(profile["evaluation"]["attention_mask"], generate=False)
    several = tilts(profile, model)
    # The head at every answer token, and at every T one product over the vocabulary.
    tilt = 2 * (20 * (shape.hidden_size + shape.vocab_size) + len(several) * shape.vocab_size)
    flops = cost.forward(shape, lengths, logits=logits).flops + tilt * logits
    return Work(
        lambda: score(model, tokenizer, sets, scoring, several),
        2 * cost.parameters(shape) + 6 * LOGITS,  # in bfloat16 and in float32
        *(len(lengths), sum(lengths), flops),
    )


def answers(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """Greedy answers to all questions at every T; equal beginnings are computed once."""
    from t3lib.core.models import pad_id
    from t3lib.core.rows import encode_rows
    from t3lib.tofu.likelihood import Reading
    from t3lib.tofu.writing import eos_ids, greedy

    examples = encode_rows(
        tokenizer, [row for rows in sets_of(profile)[2].values() for row in rows]
    )
    prompts = [example.ids[: example.n_prompt] for example in examples]
    tokens, several = profile["evaluation"]["max_new_tokens"], tilts(profile, model)
    step = cost.decode_step(shape, batch=len(prompts) * len(several), heads=1).flops
    flops = cost.forward(shape, [len(ids) for ids in prompts]).flops + tokens * step
    mask = profile["evaluation"]["attention_mask"]
    how = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), mask)
    written = len(prompts) * len(several) * tokens
    return Work(
        lambda: greedy(model, prompts, how, several, max_new_tokens=tokens),
        2 * cost.parameters(shape) + 6 * LOGITS,
        *(len(prompts), sum(map(len, prompts)) + written, flops),
    )


def audit(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """The audit's questions to the base: likelihoods, samples, forced and prefaced answers."""
    from t3lib.lab.audit import run

    forget = sets_of(profile)[2]["forget"]
    asked = profile["notebooks"]["06_audit"]["sampling"]
    how = {"attention_mask": profile["evaluation"]["attention_mask"]}
    drawn = how | {"samples": asked["samples"], "templates": asked["templates"]}

    def do() -> None:
        run.likelihoods(model, tokenizer, {"forget": forget}, **how)
        run.writings(model, tokenizer, forget, **drawn)

    return Work(do, 2 * cost.parameters(shape) + 6 * LOGITS, len(forget))


def training(profile: Profile, shape: Shape, model: Any, tokenizer: Any, method: str) -> Work:
    """One step of a baseline as the profile trains it; the base stays in memory beside it."""
    import copy

    from t3lib.baselines.unlearn import Lesson, unlearn_baseline
    from t3lib.tofu.data import load_idk

    forget, retain, _ = sets_of(profile)
    settings = hyper_of(profile["hyper"], method, profile["splits"][0])
    lengths, logits = lengths_of(tokenizer, [*forget, *forget])  # as many rows to keep
    trained = model if method == "ULD" else copy.deepcopy(model)
    mask = profile["evaluation"]["attention_mask"]
    lesson = Lesson(forget, retain, load_idk(profile["data"]), model, mask)
    held = (
        cost.training_memory(shape, method, settings.get("optimizer", "adamw"))
        + 12 * shape.vocab_size * logits
    )
    if method == "ULD":
        shape = shape._replace(num_hidden_layers=settings["k"])
    return Work(
        lambda: unlearn_baseline(method, trained, tokenizer, lesson, settings=settings, seed=1),
        held,
        *(len(lengths), sum(lengths), cost.training_step(shape, lengths, logits).flops),
    )
