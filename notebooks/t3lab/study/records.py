"""Run records, from which the tables are made."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t3lab.identity import code_key
from t3lab.results import Run
from t3lab.study.methods import Subject, cost_of, reports_of, subject
from t3lab.study.study import Study
from t3lab.study.unlearning_errors import errors_of, rounded
from t3lib.core.errors import UserError
from t3lib.tofu.metrics import by_column
from t3lib.tofu.unlearning_errors import summary


def run_method(
    study: Study,
    method: str,
    *,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    temperatures: Sequence[float] = (),
    settings_by_t: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Run]:
    """Train and evaluate a method; yield a run record for each seed and each T.

    Schema of a record: `results.RUN_KEYS`.

    seeds: of the training. Original does not depend on them and gives one record. Those of
    Retrained are retain bases, from 1, because 0 is the reference that every method is compared
    with.
    settings: of the method, where they differ from the defaults.
    temperatures: of T3 (Table 5), by default that of the settings. Temperatures with equal settings
    share heads, and all share the passes of the base.
    settings_by_t: settings of T3 tuned for one T, which replace single values; the key is T as text
    ("2.5").

    Models and scores come from `.t3cache/` if the same models, rows, settings and code made them
    before. Generated text is kept only for the first seed.
    """
    if method == "Retrained" and min(seeds, default=1) < 1:
        raise UserError(f"Retrained: seed {min(seeds)} is the reference's: give seeds from 1")
    groups: list[list[tuple[int, Mapping[str, Any], float | None]]]
    if method == "T3":
        by_t = settings_by_t or {}
        at: list[tuple[float | None, Mapping[str, Any]]]
        at = [(T, {**settings, **by_t.get(f"{T:g}", {})}) for T in sorted(temperatures)]
        groups = [[(seed, own, T) for T, own in at or [(None, settings)] for seed in seeds]]
    else:
        groups = [[(seed, settings, None)] for seed in ([0] if method == "Original" else seeds)]
    first = next((seed for group in groups for seed, *_ in group), None)
    for group in groups:
        yield from records(study, [subject(study, method, *each) for each in group], first)


def records(study: Study, models: Sequence[Subject], text_seed: int | None = None) -> list[Run]:
    """Return the run records of models that are evaluated together.

    text_seed: the seed whose generated text is kept. A training that diverged gives a failed run.
    """
    reports = reports_of(study, models)
    finished = [each for each, report in zip(models, reports) if report]
    errors = iter(errors_beside_judge(study, finished))

    return [
        record_of(study, each, report, each.seed == text_seed)
        | {"unlearning_errors": next(errors) if report else {}}
        for each, report in zip(models, reports)
    ]


def errors_beside_judge(study: Study, models: Sequence[Subject]) -> list[dict[str, Any]]:
    """Return the paper's errors of models beside the study's judge, {"judge": its seed, "means":
    of `summary`, "forget" and "retain": the numbers of every row}.

    They are {} for the judge itself, and for all models of a study without a judge.
    """
    itself = ("Retrained", study.judge)
    others = [each for each in models if (each.method, each.seed) != itself and study.judge]
    found = iter(errors_of(study, others, study.judge) if others else ())
    empty: dict[str, Any] = {}

    every = [next(found) if each in others else empty for each in models]
    return [
        {"judge": study.judge, "means": summary(rows), **rounded(rows)} if rows else empty
        for rows in every
    ]


def record_of(
    study: Study, model: Subject, report: Mapping[str, Any] | None, keep_text: bool = True
) -> Run:
    """Return a model's run record; the notebook adds `parameters` and `provenance`.

    report: the model's evaluation, None for a training that diverged. keep_text: keep generated
    text.
    """
    training = cost_of(study, model)
    seconds = {"load": study.load_seconds, "features": None, "train": None} | training["seconds"]
    empty = ("metrics", "truth_ratio", "records", "parameters", "provenance")
    record: Run = {
        "method": model.method,
        "split": study.split,
        "T": model.T,
        "w": model.w,
        "seed": model.seed,
        "status": "ok" if report else "failed",
        **{name: training[name] for name in ("error", "hyper", "trainable", "epochs")},
        "seconds": seconds,
        "peak_memory_bytes": training.get("peak_memory_bytes", 0),
        "code": code_key("study.records", lab=True),
        **{name: {} for name in empty},
    }
    if report:
        fields = ("prob", "rouge", "generation") if keep_text else ("prob", "rouge")
        record |= {
            "seconds": seconds | {"evaluate": report["seconds"]},
            "peak_memory_bytes": max(record["peak_memory_bytes"], report["peak_memory_bytes"]),
            "metrics": by_column(report),
            "truth_ratio": (
                report["truth_ratio"] | {"reference": study.reference["truth_ratio"]["forget"]}
            ),
            "records": {
                name: [{field: row[field] for field in fields if field in row} for row in rows]
                for name, rows in report["records"].items()
            },
        }
    return record
