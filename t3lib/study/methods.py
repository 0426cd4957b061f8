"""Run one method on one split: the model it makes, its evaluation, and the run record that the tables read."""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from t3lib import results
from t3lib.baselines.train import Diverged
from t3lib.baselines.uld import ULDForCausalLM
from t3lib.baselines.unlearn import unlearn_baseline
from t3lib.classifier import fit_heads
from t3lib.errors import UserError
from t3lib.features import Features, extract_features
from t3lib.files import cache_dir, content_key
from t3lib.head import T3Head
from t3lib.models import load_model
from t3lib.names import METHODS
from t3lib.settings import settings_of
from t3lib.study.runs import Key, cache_folder, finished, missing, record_of
from t3lib.study.study import Study
from t3lib.tofu import retain_of
from t3lib.world import bases

RETRAIN_SEED = 1  # the second retain model; seed 0 is the reference every method is compared with
TOGETHER = 25  # (head, T) that share one base pass; what a killed run has to do again


def check_method(method: str, split: str) -> None:
    """UserError for a method or a split that the paper does not have."""
    retain_of(split)
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")


def run_method(
    study: Study,
    method: str,
    *,
    seeds: Sequence[int],
    hyper: Mapping[str, Any],
    temperatures: Sequence[float] = (),
    generate: bool = True,
    text_seed: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one run record (schema: `results.RUN_KEYS`) for each seed and, for T3, each T (default its tuned one).

    Original and Retrained do not depend on the seeds and give one record. A seed that finished before, with the same
    rows, settings and code, comes from `.t3cache/` unchanged. Generated text is kept for `text_seed` alone, by
    default the first seed.
    """
    check_method(method, study.split)
    if method == "T3":
        options: dict[str, Any] = {"seeds": seeds, "generate": generate, "text_seed": text_seed}
        [runs] = run_t3(study, [(hyper, temperatures)], **options)
        yield from runs
        return
    keep = next(iter(seeds), None) if text_seed is None else text_seed
    if method == "Original":
        jobs: list[Key] = [(0, None)]
        work = _original
    elif method == "Retrained":
        jobs, work = [(RETRAIN_SEED, None)], _retrained
    else:
        jobs, work = [(seed, None) for seed in seeds], _baseline
    folder = cache_folder(study, method, hyper, generate)
    for seed, T, made in work(study, method, missing(folder, jobs), dict(hyper), generate):
        shared = method in ("Original", "Retrained")
        results.write_run(folder, record_of(study, method, seed, T, made, keep_text=shared or seed == keep))
    done = finished(folder)
    for job in jobs:
        yield done[job]


def run_t3(
    study: Study,
    settings: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    *,
    seeds: Sequence[int],
    generate: bool = True,
    text_seed: int | None = None,
) -> list[list[dict[str, Any]]]:
    """The run records of T3 with several (hyper, temperatures), a list each, as `run_method` yields them for one.

    Whatever has not finished before shares the features and, `TOGETHER` at a time, one base pass of the evaluation.
    """
    keep = next(iter(seeds), None) if text_seed is None else text_seed
    plans: list[tuple[Path, list[Key]]] = []
    work: list[tuple[Path, T3Job]] = []
    for hyper, temperatures in settings:
        own = settings_of("T3", hyper)
        fitting = {name: value for name, value in own.items() if name != "temperature"}  # T is in the record's name
        folder = cache_folder(study, "T3", fitting, generate)
        wanted = list(temperatures) or [own["temperature"]]
        plans.append((folder, [(seed, float(T)) for seed in seeds for T in wanted]))
        work += [(folder, T3Job(own | {"temperature": T}, seed)) for seed, T in missing(*plans[-1])]
    for start in range(0, len(work), TOGETHER):
        part = work[start : start + TOGETHER]
        for (folder, job), run in zip(part, _t3(study, [job for _, job in part], generate)):
            T, seed = job.hyper["temperature"], job.seed
            results.write_run(folder, record_of(study, "T3", seed, T, run, keep_text=seed == keep))
    return [[done[key] for key in keys] for folder, keys in plans for done in [finished(folder)]]


Result = tuple[int, float | None, dict[str, Any]]


def _original(study: Study, method: str, jobs: Any, hyper: dict[str, Any], generate: bool) -> Iterator[Result]:
    for seed, T in jobs:
        yield seed, T, _timed_evaluation(study, study.base, generate) | {"trainable": 0, "epochs": None}


def _retrained(study: Study, method: str, jobs: Any, hyper: dict[str, Any], generate: bool) -> Iterator[Result]:
    for seed, T in jobs:
        if study.stage is None:
            raise UserError("Retrained needs a stage that trains its own bases; it cannot be made for given models")
        folder = bases.ensure_base(study.stage, retain_of(study.split), seed=seed)
        model, _ = load_model(folder, **study.load_options)
        trainable = sum(p.numel() for p in model.parameters())
        yield seed, T, _timed_evaluation(study, model, generate) | {"trainable": trainable, "epochs": None}


class Unlearned(NamedTuple):
    """What a method made: the model to evaluate and, for T3, the head to tilt it with; `info` as `unlearn_baseline`."""

    model: PreTrainedModel
    head: T3Head | None
    info: dict[str, Any]


def unlearn_with(study: Study, method: str, hyper: Mapping[str, Any], seed: int) -> Unlearned:
    """Train one method with one seed; the study's base is never changed. Raises Diverged and UserError."""
    if method == "T3":
        fitting = T3Job(settings_of("T3", hyper), seed).fitting
        vocab = study.base.get_output_embeddings().weight.shape[0]
        head = fit_heads(t3_features(study), [fitting], vocab_size=vocab)[0]
        return Unlearned(study.base, head, {"trainable": head.num_parameters, "epochs": fitting["epochs"]})
    model, info = unlearn_baseline(
        method,
        study.base if method == "ULD" else copy.deepcopy(study.base),
        study.tokenizer,
        study.forget,
        study.retain,
        hyper=hyper,
        seed=seed,
        idk=study.idk,
        original=study.base,
        attention_mask=study.evaluation["attention_mask"],
    )
    if method == "ULD":  # what was trained is the assistant; the method's model is p / f^T
        model = ULDForCausalLM(study.base, model, strength=info["hyper"]["T"])
    return Unlearned(model, None, info)


def _baseline(study: Study, method: str, jobs: Any, hyper: dict[str, Any], generate: bool) -> Iterator[Result]:
    for seed, T in jobs:
        start = time.perf_counter()
        try:
            model, _, info = unlearn_with(study, method, hyper, seed)
        except Diverged as error:
            yield seed, T, {"error": str(error), "hyper": hyper, "seconds": {"train": time.perf_counter() - start}}
            continue
        train = time.perf_counter() - start
        run = _timed_evaluation(study, model, generate)
        run["seconds"]["train"] = train
        yield seed, T, run | {"trainable": info["trainable"], "epochs": info["epochs"], "hyper": info["hyper"]}


def t3_features(study: Study) -> Features:
    """Prefix-mean features of all forget and retain rows of a study, cached on disk."""
    return extract_features(
        study.base,
        study.tokenizer,
        study.forget,
        study.retain,
        attention_mask=study.evaluation["attention_mask"],
        cache=cache_dir("features"),
    )


class T3Job(NamedTuple):
    """One head and its temperature: `hyper` holds all of `settings.T3`."""

    hyper: dict[str, Any]
    seed: int

    @property
    def fitting(self) -> dict[str, Any]:
        """What the head's training depends on, as `fit_heads` takes it."""
        return {name: value for name, value in self.hyper.items() if name != "temperature"} | {"seed": self.seed}


def _t3(study: Study, jobs: Sequence[T3Job], generate: bool) -> list[dict[str, Any]]:
    """One fit a head, each timed alone like a baseline's; all (head, T) share one base pass of the evaluation."""
    clock = [time.perf_counter()]
    features = t3_features(study)
    clock.append(time.perf_counter())
    vocab = study.base.get_output_embeddings().weight.shape[0]
    heads, train = {}, {}
    for job in jobs:
        key = content_key(job.fitting)
        if key not in heads:
            start = time.perf_counter()
            [heads[key]] = fit_heads(features, [job.fitting], vocab_size=vocab)
            train[key] = time.perf_counter() - start
    clock.append(time.perf_counter())
    tilts = [(heads[content_key(job.fitting)], job.hyper["temperature"]) for job in jobs]
    evaluations = study.evaluate(study.base, tilts=tilts, generate=generate)
    clock.append(time.perf_counter())
    extract, _, evaluation = (b - a for a, b in zip(clock, clock[1:]))
    made = []
    for job, (head, _), metrics in zip(jobs, tilts, evaluations):
        # Heads and temperatures are evaluated together: each run is charged its share.
        seconds = {"features": extract, "train": train[content_key(job.fitting)], "evaluate": evaluation / len(jobs)}
        run = {"evaluation": metrics, "seconds": seconds, "trainable": head.num_parameters}
        made.append(run | {"epochs": job.hyper["epochs"], "hyper": job.hyper})
    return made


def _timed_evaluation(study: Study, model: Any, generate: bool) -> dict[str, Any]:
    start = time.perf_counter()
    metrics = study.evaluate(model, generate=generate)
    return {"evaluation": metrics, "seconds": {"evaluate": time.perf_counter() - start}, "hyper": {}}
