"""Measure the steps of a rehearsal, each in its own process.

A row of the table has the seconds, the most memory that the process held, and the operations that
torch counted, beside the bytes and operations that `cost` predicts. Other programs on the machine
can make the seconds longer, but do not change memory and operations.
"""

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from runpy import run_module
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from t3lib.baselines.losses import LOSSES, settings_of
from t3lib.baselines.unlearn import Lesson, unlearn_baseline
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.core.files import atomic_write
from t3lib.core.models import load_model
from t3lib.core.rows import encode_answers
from t3lib.core.settings import hyper_of
from t3lib.lab.audit import run
from t3lib.lab.bench import cost, hours
from t3lib.lab.bench.model import random_head
from t3lib.lab.bench.shapes import Shape
from t3lib.lab.profiles import Profile
from t3lib.lab.results import peak_memory_bytes, provenance
from t3lib.lab.study.study import Study, open_study
from t3lib.tofu.evaluation import score
from t3lib.tofu.metrics import SETS

COLUMNS = (
    "profile step shape dtype rows tokens seconds peak_bytes predicted_bytes"
    " flops predicted_flops device note"
).split()
BITS = {"8bit": 8.0, "4bit": cost.NF4_BITS}
LOGITS = 2**28  # entries of the logits of one batch at most (`likelihood.default_batch_tokens`)
DTYPES = {"8bit": "int8", "4bit": "nf4"}
OWN_ROWS = 2  # to forget and to keep: own rows are judged by 80 sampled answers to each
# What is typed after `t3`; {full} and so on are filled in. With choices of its own `unlearn`
# searches for none, which would ask the model hundreds of times as much.
VERBS = {
    "t3 unlearn": "--model {full} --forget {folder}/forget10.json --retain {folder}/retain90.json"
    " --out {folder}/head --overwrite --steps 20 --lr 1e-3 --temperature 2.5 --strength 1",
    "t3 evaluate": "--model {full} --forget {folder}/forget10.json"
    " --retain {folder}/retain90.json --head {folder}/head --out {folder}/report",
    "t3 generate": "--model {full} --head {folder}/head --max-new-tokens {longest} Who?",
}


class Work(NamedTuple):
    """A step to measure.

    do: runs the step. bytes: predicted, the most held at once; Python and its libraries take half a
    gigabyte more. rows, tokens: number of rows and tokens that the step processes. flops: predicted
    operations, None if there is no prediction.
    """

    do: Callable[[], object]
    bytes: float
    rows: int = 0
    tokens: int = 0
    flops: float | None = None


def steps_of(profile: Profile) -> list[str]:
    """Return the names of all steps that the methods of a profile need, in the order in which they
    run.
    """
    trained = [f"one step of {method}" for method in profile["methods"] if method in LOSSES]
    return ["load", *READING, *trained, *VERBS, *BITS]


def measured(profile: Profile, some: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Measure steps of a rehearsal one after the other, and yield a row with `COLUMNS` for each.

    profile: of the rehearsal. some: names of steps, by default `steps_of`. If a step fails, its row
    has the reason as its note.
    """
    with TemporaryDirectory() as folder:
        for step in some or steps_of(profile):
            with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as process:
                try:
                    row = process.submit(measure, profile, step, folder).result()
                except Exception as error:  # whatever a library raises, or a killed process
                    row = {"note": f"{type(error).__name__}: {error}".splitlines()[0]}
            yield not_measured(profile, step, "") | row


def not_measured(profile: Profile, step: str, note: str) -> dict[str, Any]:
    """Return the row of a step without measurements. note: the reason."""
    return dict.fromkeys(COLUMNS) | {"profile": profile["name"], "step": step, "note": note}


def end_with_parent() -> None:
    """End this process when the process that spawned it ends, even in the middle of a step."""

    def watch() -> None:
        connection.wait([parent_process().sentinel])  # type: ignore[union-attr]
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def add(row: Mapping[str, Any], path: Path) -> None:
    """Add a row to a CSV table. It replaces an earlier row of the same profile and step."""
    tables = [pd.read_csv(path)] if path.is_file() else []
    tables.append(pd.DataFrame([row], columns=list(COLUMNS)))
    whole = pd.concat(tables).drop_duplicates(["profile", "step"], keep="last")
    with atomic_write(path) as handle:
        handle.write(whole.to_csv(index=False))


def measure(profile: Profile, step: str, folder: str) -> dict[str, Any]:
    """Load the base, run one step and return its row. Call this in its own process.

    folder: where `t3 unlearn` writes its head, which the later commands read.
    """
    torch.set_num_threads(int(os.environ.get("T3_THREADS", torch.get_num_threads())))
    shape, work = work_of(profile, step, folder)
    with FlopCounterMode(display=False) as counter:
        began = time.perf_counter()
        said = work.do()
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
        "note": said if isinstance(said, str) else None,
    }


def work_of(profile: Profile, step: str, folder: str) -> tuple[Shape, Work]:
    """Return the shape of a profile's base, and a step that is ready to run.

    folder: as in `measure`.
    """
    place, split = profile["models"]["full"], profile["splits"][0]
    shape = Shape.of(AutoConfig.from_pretrained(place))
    weights = cost.t3_memory(shape, bits=BITS.get(step, 16))[0]
    if step == "load":
        return shape, Work(lambda: load_model(place), weights)
    if step in VERBS:
        return shape, Work(lambda: typed(profile, step, folder), weights + 6 * LOGITS)
    world = {name: profile[name] for name in ("data", "models", "evaluation")}
    study = open_study(split, **world, load={"load_in": step} if step in BITS else {})
    method = step.removeprefix("one step of ")
    if method in LOSSES:
        work = training(study, profile, shape, method)
    else:
        work = READING.get(step, evaluation)(study, profile, shape)
    return shape, work._replace(bytes=weights + work.bytes)


def typed(profile: Profile, verb: str, folder: str) -> str:
    """Run a command of `t3` as if it were typed, on a few rows of the rehearsal. Return how it
    ended, such as "exit code 0".

    verb: a key of `VERBS`.
    """
    for name in ("forget10.json", "retain90.json"):
        few = Path(profile["data"], name).read_text().splitlines()[:OWN_ROWS]
        Path(folder, name).write_text("\n".join(few))
    longest = profile["evaluation"]["max_new_tokens"]
    words = VERBS[verb].format(full=profile["models"]["full"], folder=folder, longest=longest)
    sys.argv = [*verb.split(), *words.split()]
    try:
        run_module("t3lib", run_name="__main__")
    except SystemExit as end:
        return f"exit code {end.code or 0}"
    return "exit code 0"


def tokens_of(tokenizer: Any, rows: Sequence[Any], paraphrased: bool = False) -> hours.Tokens:
    """Count the tokens of some rows, as in `hours.TOFU`.

    paraphrased: True if the paraphrased answers are scored as well.
    """

    def one(row: Any) -> tuple[int, int, int, int]:
        texts = [row["answer"], *row.get("perturbed_answer", ())]
        texts += [row["paraphrased_answer"]] if paraphrased else []
        examples = encode_answers(tokenizer, row["question"], texts)
        answers = [len(each.ids) - each.n_prompt for each in examples]
        return 1, examples[0].n_prompt, answers[0], sum(answers)

    return hours.Tokens(*map(sum, zip(*map(one, rows))))


def settings_for(method: str, profile: Profile) -> dict[str, Any]:
    """Return all settings of a method for the first split of a profile."""
    return settings_of(method, hyper_of(profile["hyper"], method, profile["splits"][0]))


def training_of_t3(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare the step that computes the features of all rows and trains a head with the profile's
    settings.
    """
    read = tokens_of(study.tokenizer, [*study.forget, *study.retain])
    tokens, mask = read.prompts + read.answers, study.scoring.attention_mask
    settings = settings_for("T3", profile)
    del settings["temperature"]

    def do() -> None:
        rows = study.forget, study.retain
        found = extract_features(study.base, study.tokenizer, *rows, attention_mask=mask)
        fit_head(found, vocab_size=shape.vocab_size, **settings)

    weights, most = cost.t3_memory(
        shape, bits=16, batch_tokens=tokens, answer_tokens=read.answers, batch=0
    )
    half = hours.Tokens(*(count // 2 for count in read))
    counted = hours.features(shape, read), hours.heads(shape, half, settings)
    return Work(do, most - weights, read.rows, tokens, hours.total(counted).flops)


def evaluation(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare T3's evaluation: losses of all answers, and greedy texts at every T."""
    sets, head = study.evaluation_rows, random_head(study.base)
    tilts = [(head, T) for T in profile["temperatures"]]
    read = [tokens_of(study.tokenizer, sets[name], SETS[name].paraphrased) for name in sets]
    rows, prompts, _, scored = map(sum, zip(*read))
    longest = study.scoring.max_new_tokens
    written = rows * len(tilts) * longest
    counted = (
        hours.scoring(shape, read, len(tilts)),
        hours.writing(shape, prompts, written, rows, longest),
    )
    return Work(
        lambda: score(study.base, study.tokenizer, sets, study.scoring, tilts),
        6 * LOGITS,  # in bfloat16 and in float32
        *(rows, 2 * prompts + scored + written, hours.total(counted).flops),
    )


def audit(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare the audit of the base: likelihoods, samples, forced and prefaced answers.

    All of them use as many rows as the rehearsal samples answers for.
    """
    asked = profile["notebooks"]["06_audit"]["sampling"]
    rows = study.evaluation_rows["forget"][: asked["rows"]]
    read, mask = tokens_of(study.tokenizer, rows, True), study.scoring.attention_mask
    drawn = {"samples": asked["samples"], "templates": asked["templates"], "attention_mask": mask}

    def do() -> None:
        model, tokenizer = study.base, study.tokenizer
        run.likelihoods(model, tokenizer, {"forget": rows}, attention_mask=mask)
        run.writings(model, tokenizer, rows, **drawn)

    flops = hours.auditing(shape, asked, read, "Original", 1).flops
    return Work(do, 6 * LOGITS, read.rows, read.prompts + read.scored, flops)


def training(study: Study, profile: Profile, shape: Shape, method: str) -> Work:
    """Prepare the training of a baseline for one epoch, which is one step on the rehearsal's few
    rows. The base stays in memory.
    """
    settings, read = settings_for(method, profile), tokens_of(study.tokenizer, study.forget)
    model, tokenizer = study.base, study.tokenizer
    lesson = Lesson(study.forget, study.retain, study.idk, model, study.scoring.attention_mask)
    trained = model if method == "ULD" else copy.deepcopy(model)
    held = hours.training_memory(shape, method, read, settings)
    return Work(
        lambda: unlearn_baseline(method, trained, tokenizer, lesson, settings=settings, seed=1),
        held - cost.t3_memory(shape, bits=16)[0],
        *(2 * read.rows, 2 * (read.prompts + read.answers)),  # as many rows to keep
        hours.training(shape, method, read, settings).flops,
    )


READING = {"T3's training": training_of_t3, "evaluation": evaluation, "audit": audit}
