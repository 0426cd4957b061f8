"""Finished runs of a study: the record of one (schema: `results.RUN_KEYS`), and where it is kept to be read back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t3lib import results
from t3lib.files import cache_dir, code_key, content_key
from t3lib.metrics import by_column
from t3lib.study.study import Study

Key = tuple[int, float | None]  # seed and, for T3, T


def finished(folder: Path) -> dict[Key, dict[str, Any]]:
    """The whole records of a folder by seed and T."""
    return {(run["seed"], run["T"]): run for run in results.read_runs(folder, corrupt=[])}


def missing(folder: Path, wanted: Sequence[Key]) -> list[Key]:
    """Those of `wanted` that have no whole record in the folder."""
    whole = finished(folder)
    return [key for key in wanted if key not in whole]


def cache_folder(study: Study, method: str, hyper: Mapping[str, Any], generate: bool) -> Path:
    """Where finished seeds of exactly this work are kept: same rows, models, settings and code."""
    code = code_key("base", "features", "head", "unlearned", "scores", "numbers")
    models = {name: Path(folder).name for name, folder in study.models.items()}
    given = [method, study.split, dict(hyper), generate, study.evaluation, study.load_options, study.data_key]
    return cache_dir("runs", content_key([*given, models, code]))


def record_of(
    study: Study, method: str, seed: int, T: float | None, made: dict[str, Any], *, keep_text: bool
) -> dict[str, Any]:
    """The run record of the contract from what a method made; parameters and provenance are the notebook's to add."""
    report = made.get("evaluation")
    record: dict[str, Any] = {
        "method": method,
        "split": study.split,
        "T": T,
        "seed": seed,
        "status": "ok" if report else "failed",
        "error": made.get("error"),
        "hyper": made["hyper"],
        "trainable": made.get("trainable", 0),
        "epochs": made.get("epochs"),
        "seconds": {"load": study.load_seconds, "features": None, "train": None} | made["seconds"],
        "peak_memory_bytes": results.peak_memory_bytes(),
        "metrics": {},
        "truth_ratio": {},
        "records": {},
        "parameters": {},
        "provenance": {},
    }
    if report:
        record["metrics"] = by_column(report)
        record["truth_ratio"] = report["truth_ratio"] | {"reference": study.reference["truth_ratio"]["forget"]}
        kept = ("prob", "rouge", "generation") if keep_text else ("prob", "rouge")
        record["records"] = {
            name: [{key: row[key] for key in kept if key in row} for row in rows]
            for name, rows in report["records"].items()
        }
    return record
