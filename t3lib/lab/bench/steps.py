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
from t3lib.core.files import atomic_write
from t3lib.core.settings import hyper_of
from t3lib.lab.bench import cost, hours
from t3lib.lab.bench.shapes import Shape
from t3lib.lab.profiles import Profile

COLUMNS = (
    "profile step shape dtype rows tokens seconds peak_bytes predicted_bytes"
    " flops predicted_flops device note"
).split()
BITS = {"8bit": 8.0, "4bit": cost.NF4_BITS}
LOGITS = 2**28  # entries of the logits of one batch at most (`likelihood.default_batch_tokens`)
DTYPES = {"8bit": "int8", "4bit": "nf4", "head": "float32"}
# Of `t3 unlearn` on own rows: a search would ask the model hundreds of times as much.
OWN_CHOICES = "--steps 20 --lr 1e-3 --temperature 2.5 --strength 1".split()


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
    """The shape of a profile's base, and one step to do with it, for which all is loaded."""
    from transformers import AutoConfig

    from t3lib.core.models import load_model

    place = profile["models"]["full"]
    shape = Shape.of(AutoConfig.from_pretrained(place))
    weights = cost.t3_memory(shape, bits=BITS.get(step, 16))[0]
    if step == "load":
        return shape, Work(lambda: load_model(place), weights)
    if step.startswith("t3 "):
        do = command(profile, step.removeprefix("t3 "), folder)
        return shape, Work(do, weights + 6 * LOGITS)
    model, tokenizer = load_model(place, load_in=step if step in BITS else None)
    if step.startswith("one step of "):
        return shape, training(profile, shape, model, tokenizer, step.removeprefix("one step of "))
    known = {"features": features, "head": head, "answers": answers, "audit": audit}
    work = known.get(step, scores)(profile, shape, model, tokenizer)
    return shape, work._replace(bytes=weights + work.bytes)


def command(profile: Profile, verb: str, folder: str) -> Callable[[], str]:
    """A verb of `t3`, as it is typed, on the rehearsal's rows; it returns how the verb ended."""
    rows, out = Path(profile["data"]), Path(folder)
    model = ["--model", profile["models"]["full"]]
    own = ["--forget", str(rows / "forget10.json"), "--retain", str(rows / "retain90.json")]
    head, longest = str(out / "head"), str(profile["evaluation"]["max_new_tokens"])
    line = {
        "unlearn": [*model, *own, "--out", head, "--overwrite", *OWN_CHOICES],
        "evaluate": [*model, *own, "--head", head, "--out", str(out / "report")],
        "generate": [*model, "--head", head, "--max-new-tokens", longest, "Who wrote this?"],
    }[verb]

    def do() -> str:
        sys.argv = ["t3", verb, *line]
        try:
            run_module("t3lib", run_name="__main__")
        except SystemExit as end:
            return f"exit code {end.code or 0}"
        return "exit code 0"

    return do


def sets_of(profile: Profile) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
    """Rows to forget, rows to keep and the evaluation sets of a profile's first split."""
    from t3lib.lab.study import study
    from t3lib.tofu import data as tofu

    data, split = profile["data"], profile["splits"][0]
    forget, retain = (tofu.load_rows(data, name) for name in (split, tofu.retain_of(split)))
    return forget, retain, study.evaluation_rows(data, split)


def tokens_of(tokenizer: Any, rows: Sequence[Any], paraphrased: bool = False) -> hours.Tokens:
    """The tokens of some rows, as `hours.TOFU` has those of TOFU's sets."""
    from t3lib.core.rows import encode_answers

    counts = []
    for row in rows:
        texts = [row["answer"], *row.get("perturbed_answer", ())]
        texts += [row["paraphrased_answer"]] if paraphrased else []
        examples = encode_answers(tokenizer, row["question"], texts)
        prompt = examples[0].n_prompt
        answers = [len(each.ids) - prompt for each in examples]
        counts.append((1, prompt, answers[0], sum(answers)))
    return hours.Tokens(*map(sum, zip(*counts)))


def features(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """The features of all rows to forget and to keep."""
    from t3lib.classifier.features import extract_features

    forget, retain, _ = sets_of(profile)
    read = tokens_of(tokenizer, [*forget, *retain])
    mask, tokens = profile["evaluation"]["attention_mask"], read.prompts + read.answers
    passing = cost.t3_memory(shape, batch_tokens=tokens, answer_tokens=0, batch=0)
    return Work(
        lambda: extract_features(model, tokenizer, forget, retain, attention_mask=mask),
        passing[1] - passing[0],
        *(read.rows, tokens, hours.features(shape, read).flops),
    )


def head(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """T3's head, trained as long as the profile says, on random features, which cost the same."""
    from t3lib.classifier.fit import fit_head
    from t3lib.lab.bench.head import HeadShape, problem

    sizes = HeadShape(shape.hidden_size, shape.vocab_size, pairs=len(sets_of(profile)[0]))
    found, tokens = problem(sizes), sizes.pairs * sizes.tokens
    settings = settings_of("T3", hyper_of(profile["hyper"], "T3", profile["splits"][0]))
    del settings["temperature"]
    return Work(
        lambda: fit_head(found, vocab_size=shape.vocab_size, **settings),
        4 * found.x.numel() + 16 * settings["rank"] * (shape.hidden_size + shape.vocab_size),
        *(2 * sizes.pairs, 2 * tokens),
        hours.heads(shape, hours.Tokens(sizes.pairs, 0, tokens), settings).flops,
    )


def tilts(profile: Profile, model: Any) -> list[Any]:
    """An untrained head at every T of the profile."""
    from t3lib.lab.bench.model import random_head

    placed = random_head(model)
    return [(placed, T) for T in profile["temperatures"]]


def scores(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """Losses of every answer in all evaluation sets at every T, which share the base's passes."""
    from t3lib.tofu.evaluation import Scoring, score
    from t3lib.tofu.metrics import SETS

    sets, several = sets_of(profile)[2], tilts(profile, model)
    read = [tokens_of(tokenizer, rows, SETS[name].paraphrased) for name, rows in sets.items()]
    scoring = Scoring(profile["evaluation"]["attention_mask"], generate=False)
    return Work(
        lambda: score(model, tokenizer, sets, scoring, several),
        6 * LOGITS,  # in bfloat16 and in float32
        sum(each.rows for each in read),
        sum(each.prompts + each.scored for each in read),
        hours.scoring(shape, read, len(several)).flops,
    )


def answers(profile: Profile, shape: Shape, model: Any, tokenizer: Any) -> Work:
    """Greedy answers to all questions at every T; equal beginnings are computed once."""
    from t3lib.core.models import pad_id
    from t3lib.core.rows import encode_rows
    from t3lib.tofu.likelihood import Reading
    from t3lib.tofu.writing import eos_ids, greedy

    rows = [row for part in sets_of(profile)[2].values() for row in part]
    prompts = [each.ids[: each.n_prompt] for each in encode_rows(tokenizer, rows)]
    longest, several = profile["evaluation"]["max_new_tokens"], tilts(profile, model)
    mask = profile["evaluation"]["attention_mask"]
    how = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), mask)
    read, written = sum(map(len, prompts)), len(rows) * len(several) * longest
    return Work(
        lambda: greedy(model, prompts, how, several, max_new_tokens=longest),
        6 * LOGITS,
        *(len(rows), read + written),
        hours.writing(shape, read, written, len(rows), longest).flops,
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

    return Work(do, 6 * LOGITS, len(forget))


def training(profile: Profile, shape: Shape, model: Any, tokenizer: Any, method: str) -> Work:
    """One step of a baseline as the profile trains it; the base stays in memory beside it."""
    import copy

    from t3lib.baselines.unlearn import Lesson, unlearn_baseline
    from t3lib.tofu.data import load_idk

    forget, retain, _ = sets_of(profile)
    settings = settings_of(method, hyper_of(profile["hyper"], method, profile["splits"][0]))
    read = tokens_of(tokenizer, forget)
    trained = model if method == "ULD" else copy.deepcopy(model)
    mask = profile["evaluation"]["attention_mask"]
    lesson = Lesson(forget, retain, load_idk(profile["data"]), model, mask)
    return Work(
        lambda: unlearn_baseline(method, trained, tokenizer, lesson, settings=settings, seed=1),
        hours.training_memory(shape, method, read, settings),
        *(2 * read.rows, 2 * (read.prompts + read.answers)),  # as many rows to keep
        hours.training(shape, method, read, settings).flops,
    )
