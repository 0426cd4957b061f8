"""Run files: write them, and check them when they are read.

A run is one JSON file for each (method, split, T, w, seed):
`runs/METHOD--SPLIT--T{T|none}--seed{n}.json`. If T3's classifier is sharpened
(f^w with w other than 1), `--w{w}` comes before the seed. Runs of ablations have the same names in
`runs/ablations/SETTING/`, so that the main tables do not read them. The schema is `RUN_KEYS` with
`metrics.METRICS`. The scores and the text of each row (`records`, most of a run) are in a
compressed file beside it, `NAME.records.json.gz`. Only the seed whose texts are kept has one.
"""

import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from t3lab.audit.labels import AUDIT
from t3lab.names import SPLITS
from t3lib.baselines.losses import METHODS
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root, read_json, write_json
from t3lib.tofu.metrics import METRICS

Run = dict[str, Any]  # one run record, plain JSON: `RUN_KEYS`
RUN_KEYS = "method split T w seed status error hyper trainable epochs seconds".split()
RUN_KEYS += "peak_memory_bytes metrics truth_ratio records code parameters provenance".split()
PACKED = ".records.json.gz"  # replaces .json in a run's file name
# most bytes of unpacked records; those of TOFU with all texts have less than half a million
LARGEST = 2**28
_ABSOLUTE = re.compile(r"(?<![\w.:/])(?:/[^\s/'\",;:)]+)+/")  # the folders of an absolute path
_WITHOUT_FOLDERS = ("error", "hyper", "parameters", "provenance")
TOFU_FORGET = 20  # authors of forget10
AUTHOR_ROWS = 20  # rows of each author of TOFU


def name_of(run: Mapping[str, Any]) -> str:
    """Return the file name of a run record without its ending.

    Examples are `NPO--forget10--Tnone--seed1` and `T3--forget10--T4--w0.8--seed1`. w None or 1 is
    left out.
    """
    T = "Tnone" if run["T"] is None else f"T{float(run['T']):g}"
    w = [] if run["w"] in (None, 1) else [f"w{float(run['w']):g}"]
    return "--".join([run["method"], run["split"], T, *w, f"seed{int(run['seed'])}"])


def write_run(
    folder: str | Path, run: Mapping[str, Any], metrics: Iterable[str] = tuple(METRICS)
) -> Path:
    """Check a run, write it atomically with a SHA-256 of itself, and return its path.

    folder: for the file. metrics: names that `run["metrics"]` must have.

    Numbers are rounded to 9 significant digits, numbers that are not finite become null, and
    absolute paths lose their folders. A failed run (`status: "failed"`) may have no metrics, truth
    ratios and records. Records without generated text are left out. The others are written first,
    to their own file; the run has its name, and the checksum covers them. UserError for a missing
    key or metric and for a value outside the vocabulary.
    """
    _check(run, "run")
    if run["status"] == "ok" and (
        missing := [name for name in metrics if name not in (run["metrics"] or {})]
    ):
        raise UserError(f"run: metrics has no {', '.join(missing)}")

    kept = [key for key in run if key != "sha256"]
    body = {key: plain_json(run[key], folders=key not in _WITHOUT_FOLDERS) for key in kept}
    path = Path(folder) / f"{name_of(run)}.json"
    if not any("generation" in row for rows in body["records"].values() for row in rows):
        body["records"] = {}
        path.with_suffix(PACKED).unlink(missing_ok=True)

    body["sha256"] = _seal(body)
    if body["records"]:
        beside = path.with_suffix(PACKED)
        write_packed(beside, body["records"])
        body["records"] = beside.name

    lines = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in body.items()
    )

    with atomic_write(path) as handle:
        handle.write("{" + ",\n ".join(lines) + "}\n")

    return path


def write_packed(path: Path, content: Any) -> None:
    """Write plain JSON, compressed. Equal content gives equal bytes, because no time is in them."""
    text = json.dumps(content, ensure_ascii=False).encode()
    with atomic_write(path, "wb") as handle:
        handle.write(gzip.compress(text, mtime=0))


def write_audit(folder: str | Path, run: Mapping[str, Any]) -> Path:
    """Write a run record of `study.audit` to `folder`/audit/, without the sampled texts."""
    named = {name for name in AUDIT if name not in run.get("empty", {})}
    kept = {name: value for name, value in run.items() if name != "closest"}
    return write_run(Path(folder) / "audit", kept, named)


def read_audits(folder: str | Path, *, corrupt: list[str] | None = None) -> list[Run]:
    """Read the runs of `folder`/audit/, as `read_runs` does."""
    return read_runs(Path(folder) / "audit", corrupt=corrupt)


def read_runs(folder: str | Path, *, corrupt: list[str] | None = None) -> list[Run]:
    """Read all runs of a folder (not of its subfolders), sorted by method, split, T, w and seed.

    UserError, naming the file, for a truncated or altered one. If `corrupt` is a list, the message
    is appended to it instead, and the run is left out. A missing folder has no runs.
    """
    runs = []
    for path in sorted(Path(folder).glob("*--*.json")):
        try:
            runs.append(_read_run(path))
        except UserError as error:
            if corrupt is None:
                raise
            corrupt.append(str(error))
    return sorted(
        runs,
        key=lambda run: (
            METHODS.index(run["method"]),
            run["split"],
            run["T"] or 0.0,
            run["w"] or 1.0,
            run["seed"],
        ),
    )


def read_ablations(folder: str | Path, *, corrupt: list[str] | None = None) -> list[Run]:
    """Read the runs of `folder`/ablations/SETTING/ and `folder`/naive/, each with its `setting`.

    The setting is the name of the folder. "naive" has T3 with the seconds of the published code.
    """
    named = [*Path(folder).glob("ablations/*"), Path(folder) / "naive"]
    settings = sorted(path for path in named if path.is_dir())
    return [
        run | {"setting": path.name}
        for path in settings
        for run in read_runs(path, corrupt=corrupt)
    ]


def write_data(folder: str | Path, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> Path:
    """Write the questions and answers that `records` refer to as `folder`/data.json.

    rows: {name: rows in the order of the records}, with the names "forget05" and "forget10"
    (the forget sets), "retain", "ra" and "wf".
    """
    texts = {
        name: [{key: row[key] for key in ("question", "answer")} for row in part]
        for name, part in rows.items()
    }
    path = Path(folder) / "data.json"
    write_json(path, texts)
    return path


def paper_table(number: int) -> pd.DataFrame:
    """Return Table `number` (1 to 5) as printed in the paper, with the columns of our own table.

    Cells that the paper does not print are empty.
    """
    path = project_root() / "results/paper" / f"table{number}.csv"
    if not path.is_file():
        raise UserError(f"cannot read {path}: no such file")
    return pd.read_csv(path)


def author_rows(run: Mapping[str, Any]) -> int:
    """Return how many rows each author has in a run's data, in which they follow each other."""
    stage = run["parameters"].get("stage") or {}
    builtin = run["parameters"].get("data") == "builtin"
    return int(stage.get("questions", AUTHOR_ROWS)) if builtin else AUTHOR_ROWS


def all_rows(run: Mapping[str, Any]) -> int | None:
    """Return how many rows of its data a run's original model learned; None if not known.

    It is known if a stage selected the rows.
    """
    stage = run["parameters"].get("stage") or {}
    if not {"authors", "questions"} <= set(stage):
        return None
    if run["parameters"]["data"] == "builtin":
        return stage["authors"] * stage["questions"]
    forget = stage.get("forget_authors") or TOFU_FORGET
    return (stage["authors"] + forget) * AUTHOR_ROWS


def _read_run(path: Path) -> Run:
    """Read one run with its records; UserError if it is damaged or has another run's name."""
    run = read_json(path)
    if not isinstance(run, dict):
        raise UserError(f"{path}: a run is a JSON object, this is a {type(run).__name__}")
    if run.get("records") == (beside := path.with_suffix(PACKED)).name:
        run["records"] = _unpacked(beside)
    _check({"code": None} | run, str(path))  # older runs have no key of their code
    if run.get("sha256") != _seal(run):
        raise UserError(
            f"{path}: altered or damaged (its checksum does not match its content); delete it to "
            f"rerun"
        )
    if path.stem != (name := name_of(run)):
        raise UserError(f"{path}: holds the run {name}, not the one its name says")
    return run


def _unpacked(path: Path) -> Any:
    """Read compressed records; UserError if they are damaged or larger than `LARGEST`."""
    try:
        with gzip.open(path) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes")
        return json.loads(text)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path}: cannot be read ({why}); delete the run it belongs to, to rerun"
        ) from None


def _check(run: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a missing key or a value outside the vocabulary."""
    if missing := [key for key in RUN_KEYS if key not in run]:
        raise UserError(f"{where}: no {', '.join(missing)}")
    for key, allowed in (("method", METHODS), ("split", SPLITS), ("status", ("ok", "failed"))):
        if run[key] not in allowed:
            raise UserError(f"{where}: {key} {run[key]!r} is not one of {', '.join(allowed)}")
    dials = all(isinstance(run[name], int | float | None) for name in ("T", "w"))
    if not isinstance(run["seed"], int) or not dials:
        raise UserError(f"{where}: seed must be a whole number, T and w numbers or null")


def _seal(run: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run without its checksum."""
    rest = {key: value for key, value in run.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def plain_json(value: Any, *, folders: bool = True) -> Any:
    """Return any value as JSON: 9 significant digits, null for numbers that are not finite.

    folders: False removes the folders from absolute paths.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_json(item, folders=folders) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return plain_json(value.tolist(), folders=folders)
    if isinstance(value, list | tuple):
        return [plain_json(item, folders=folders) for item in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    value = str(value) if isinstance(value, Path) else value
    return _ABSOLUTE.sub("", value) if isinstance(value, str) and not folders else value
