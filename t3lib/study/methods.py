"""Run one method on one split: the model it makes, its evaluation, and the run record that the tables read."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t3lib.baselines.train import Diverged
from t3lib.errors import UserError
from t3lib.files import content_key, model_identity
from t3lib.head import T3Head
from t3lib.metrics import by_column
from t3lib.models import load_model
from t3lib.names import METHODS
from t3lib.settings import settings_of
from t3lib.study.study import Asked, Study
from t3lib.study.unlearned import fitted, training_of, unlearned, unlearned_key
from t3lib.tofu import retain_of
from t3lib.world import bases


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

    Original does not depend on the seeds and gives one record. Retrained's seeds, from 1, are those of retrain bases: 0
    is the reference that every method is compared with. What was trained or scored before with the
    same models, rows, settings and code comes from `.t3cache/`. Generated text is kept for `text_seed` alone, by
    default the first seed.
    """
    retain_of(study.split)  # UserError for a split that the paper does not have
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    keep = next(iter(seeds), None) if text_seed is None else text_seed
    if method == "T3":
        [runs] = run_t3(study, [(hyper, temperatures)], seeds=seeds, generate=generate, text_seed=keep)
        yield from runs
    elif method == "Original":
        yield _untrained(study, method, 0, generate=generate, keep_text=True)
    elif method == "Retrained":
        for seed in seeds:
            yield _untrained(study, method, seed, generate=generate, keep_text=seed == keep)
    else:
        for seed in seeds:
            yield _baseline(study, method, hyper, seed, generate=generate, keep_text=seed == keep)


def _untrained(study: Study, method: str, seed: int, *, generate: bool, keep_text: bool) -> dict[str, Any]:
    """The run of a base as it is: the original, or the retrain base of a seed that is not the reference's."""
    if method == "Original":
        key, trainable = study.identity["full"], 0
        asked = Asked(study.base, study.tokenizer)
    elif study.stage is None:
        raise UserError("Retrained needs a stage that trains its own bases; it cannot be made for given models")
    elif seed < 1:
        raise UserError(f"Retrained: seed {seed} is the reference's: give seeds from 1")
    else:
        folder = bases.ensure_base(study.stage, retain_of(study.split), seed=seed)
        key = content_key([model_identity(folder), study.load_options])
        model, _ = load_model(folder, **study.load_options)
        trainable = sum(weight.numel() for weight in model.parameters())
        asked = Asked(model, study.tokenizer)
    [report] = study.evaluate([key], lambda _: asked, generate=generate)
    training = {"hyper": {}, "trainable": trainable, "epochs": None, "seconds": {}, "error": None}
    return record_of(study, method, seed, training, report, keep_text=keep_text)


def _baseline(
    study: Study, method: str, hyper: Mapping[str, Any], seed: int, *, generate: bool, keep_text: bool
) -> dict[str, Any]:
    """One training and its evaluation; one that diverged is a failed run."""

    def ask(_: list[int]) -> Asked:
        return Asked(unlearned(study, method, hyper, seed), study.tokenizer)

    try:
        [report] = study.evaluate([unlearned_key(study, method, hyper, seed)], ask, generate=generate)
    except Diverged:
        report = None
    return record_of(study, method, seed, training_of(study, method, hyper, seed), report, keep_text=keep_text)


class Tilted(NamedTuple):
    """One head and its dials: `settings` are all of `settings.T3`, temperature and w among them."""

    settings: dict[str, Any]
    seed: int

    @classmethod
    def of(cls, hyper: Mapping[str, Any], seed: int, T: float | None = None) -> "Tilted":
        """All of T3's settings with `hyper` laid over them, at its own temperature unless T is given."""
        settings = settings_of("T3", hyper)
        return cls(settings | {"temperature": float(settings["temperature"] if T is None else T)}, seed)

    def key(self, study: Study) -> str:
        """Content key of the tilted model."""
        head = unlearned_key(study, "T3", self.settings, self.seed)
        return content_key([head, float(self.settings["temperature"]), float(self.settings["w"])])


def run_t3(
    study: Study,
    settings: Sequence[tuple[Mapping[str, Any], Sequence[float | None]]],
    *,
    seeds: Sequence[int],
    generate: bool = True,
    text_seed: int | None = None,
) -> list[list[dict[str, Any]]]:
    """The run records of T3 with several (hyper, temperatures), a list each, as `run_method` yields them for one.

    Whatever has not been scored before shares the features and base passes of the evaluation.
    """
    text_seed = next(iter(seeds), None) if text_seed is None else text_seed
    jobs = [
        [Tilted.of(hyper, seed, T) for seed in seeds for T in temperatures or (None,)]
        for hyper, temperatures in settings
    ]
    flat = [job for part in jobs for job in part]

    def ask(numbers: list[int]) -> Asked:
        heads = fitted(study, [flat[n] for n in numbers])
        dials = [flat[n].settings for n in numbers]
        tilts = [(sharpened(head, own["w"]), own["temperature"]) for head, own in zip(heads, dials)]
        return Asked(study.base, study.tokenizer, tilts)

    reports = iter(study.evaluate([job.key(study) for job in flat], ask, generate=generate))
    return [[_t3_record(study, job, next(reports), job.seed == text_seed) for job in part] for part in jobs]


def _t3_record(study: Study, job: Tilted, report: dict[str, Any], keep_text: bool) -> dict[str, Any]:
    training = training_of(study, "T3", job.settings, job.seed) | {"hyper": job.settings}
    T, w = (float(job.settings[name]) for name in ("temperature", "w"))
    return record_of(study, "T3", job.seed, training, report, T=T, w=w, keep_text=keep_text)


def sharpened(head: T3Head, w: float) -> T3Head:
    """The head with f^w (Remark 3.6): itself at w = 1, else a copy that shares its weights."""
    if w == head.w:
        return head
    other = copy.copy(head)
    other.w = float(w)
    return other


def record_of(
    study: Study,
    method: str,
    seed: int,
    training: Mapping[str, Any],
    report: Mapping[str, Any] | None,
    *,
    T: float | None = None,
    w: float | None = None,
    keep_text: bool = True,
) -> dict[str, Any]:
    """The run record of the contract; parameters and provenance are the notebook's to add.

    training: see `training_of`. report: the evaluation, None for a training that diverged.
    """
    seconds = {"load": study.load_seconds, "features": None, "train": None} | training["seconds"]
    record: dict[str, Any] = {"method": method, "split": study.split, "T": T, "w": w, "seed": seed}
    record |= {"status": "ok" if report else "failed"}
    record |= {name: training[name] for name in ("error", "hyper", "trainable", "epochs")}
    record |= {"seconds": seconds, "peak_memory_bytes": training.get("peak_memory_bytes", 0)}
    record |= {name: {} for name in ("metrics", "truth_ratio", "records", "parameters", "provenance")}
    if report:
        fields = ("prob", "rouge", "generation") if keep_text else ("prob", "rouge")
        record |= {
            "seconds": seconds | {"evaluate": report["seconds"]},
            "peak_memory_bytes": max(record["peak_memory_bytes"], report["peak_memory_bytes"]),
            "metrics": by_column(report),
            "truth_ratio": report["truth_ratio"] | {"reference": study.reference["truth_ratio"]["forget"]},
            "records": {
                name: [{field: row[field] for field in fields if field in row} for row in rows]
                for name, rows in report["records"].items()
            },
        }
    return record
