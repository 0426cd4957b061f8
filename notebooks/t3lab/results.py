"""Run files: write them, check them when they are read, and collect them in one table.

A run is one JSON file for each (method, split, T, w, seed):
`runs/METHOD--SPLIT--T{T|none}--seed{n}.json`. If T3's classifier is sharpened
(f^w with w other than 1), `--w{w}` comes before the seed. Runs of ablations have the same names in
`runs/ablations/SETTING/`, so that the main tables do not read them. The schema is `RUN_KEYS` with
`metrics.METRICS`. The scores and the text of each row (`records`, most of a run) are in a
compressed file beside it, `NAME.records.json.gz`. Only the seed whose texts are kept has one.
"""

import ctypes
import gc
import gzip
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import psutil

from t3lab.identity import data_identity
from t3lab.names import SPLITS
from t3lib.baselines.losses import METHODS
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, model_identity, project_root, read_json, write_json
from t3lib.tofu.metrics import AUDIT, HIDING, METRICS, forget_quality

Run = dict[str, Any]  # one run record, plain JSON: `RUN_KEYS`
PROFILE = ("data", "stage", "models", "evaluation")  # parameters that all runs of one table share
SECONDS = ("load", "features", "train", "evaluate")
RUN_KEYS = (
    *(
        "method",
        "split",
        "T",
        "w",
        "seed",
        "status",
        "error",
        "hyper",
        "trainable",
        "epochs",
        "seconds",
    ),
    *("peak_memory_bytes", "metrics", "truth_ratio", "records", "code", "parameters", "provenance"),
)
PACKED = ".records.json.gz"  # replaces .json in a run's file name
LARGEST = (
    2**28
)  # most bytes of unpacked records; those of TOFU with all texts have less than half a million
HELD_OUT = ("fq_held_out", "ks_held_out", "paired_r", "paired_gap", "n_references")
TINY = np.finfo(float).tiny  # in place of a truth ratio that underflowed to 0, for its logarithm
TOFU_FORGET = 20  # authors of forget10
AUTHOR_ROWS = 20  # rows of each author of TOFU
_ABSOLUTE = re.compile(r"(?<![\w.:/])(?:/[^\s/'\",;:)]+)+/")  # the folders of an absolute path
# Files that runs write are not code: in results/ all but *.py.
_OURS = tuple(
    f":(exclude,glob){place}"
    for place in ("results/**/*.[!p]*", "results/**/*.p[!y]*", "notebooks/profiles/tuned/*")
)
_WITHOUT_FOLDERS = ("error", "hyper", "parameters", "provenance")
_PACKAGES = (
    "t3lib",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "numpy",
    "scipy",
    "pandas",
    "rouge-score",
)


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
    body = {
        key: _plain(run[key], folders=key not in _WITHOUT_FOLDERS) for key in run if key != "sha256"
    }
    path = Path(folder) / f"{name_of(run)}.json"
    if not any("generation" in row for rows in body["records"].values() for row in rows):
        body["records"] = {}
        path.with_suffix(PACKED).unlink(missing_ok=True)
    body["sha256"] = _seal(body)
    if body["records"]:
        beside = path.with_suffix(PACKED)
        with atomic_write(
            beside, "wb"
        ) as handle:  # without a time, so that equal records give equal bytes
            handle.write(
                gzip.compress(json.dumps(body["records"], ensure_ascii=False).encode(), mtime=0)
            )
        body["records"] = beside.name
    lines = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in body.items()
    )
    with atomic_write(path) as handle:
        handle.write("{" + ",\n ".join(lines) + "}\n")
    return path


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


def tidy(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table with one row for each run: names, status, cost, metrics, numbers of rows.

    A failed run has empty metrics. Runs of ablations also have `HIDING`. `HELD_OUT` are the means
    of `Nearness` over those retrained models that nothing was tuned on, and their number; empty if
    there are none. n_forget is the number of forget rows, n_rows that of all rows. timed
    is False if the seconds cannot be trusted, because the machine was busy or no commit has the
    code.
    UserError for runs of two profiles or worlds (`of_one_profile`).
    """
    runs = of_one_profile(runs)
    models = references(runs)
    names = ("method", "split", "T", "w", "seed", "status", "setting", "timed")
    costs = ("trainable", "epochs", *(f"{part}_s" for part in SECONDS), "peak_memory_bytes")
    numbers = (*costs, *METRICS, *HIDING, *HELD_OUT, "n_forget", "n_rows")
    rows = []
    for run in runs:
        row = dict(run["metrics"]) if run["status"] == "ok" else {}
        row |= {key: run.get(key) for key in (*names, "trainable", "epochs", "peak_memory_bytes")}
        row |= {f"{part}_s": (run["seconds"] or {}).get(part) for part in SECONDS}
        row["timed"] = not (run["provenance"].get("dirty") or run["provenance"].get("busy"))
        row["n_forget"], row["n_rows"] = (
            len((run["truth_ratio"] or {}).get("forget", [])) or None,
            all_rows(run),
        )
        if held := _held_out(run, models):
            row |= dict(zip(HELD_OUT, held))
        rows.append(row)
    return pd.DataFrame(rows, columns=[*names, *numbers]).astype(
        dict.fromkeys(("T", "w", *numbers), float)
    )


def references(runs: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return {split: {number: truth ratios (n,) on the forget rows}} of the runs' retrained models.

    Number 0 is a run's reference, on which hyperparameters are chosen. `against` takes that of each
    run itself. The others are runs of the method Retrained, by seed. Nothing was tuned on them.
    """
    found: dict[str, dict[int, Any]] = {}
    for run in runs:
        ratios = run["truth_ratio"] or {}
        if len(ratios.get("reference", ())):
            models = found.setdefault(run["split"], {0: ratios["reference"]})
            if run["method"] == "Retrained":
                models[run["seed"]] = ratios["forget"]
    return found


def others_of(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> dict[int, Any]:
    """Return {number: truth ratios} of the retrained models that a run is compared with.

    models: as of `references`. Number 0 is the run's own reference: a base that was trained on
    another kind of processor can be another model, and so can its reference. A retrained model is
    not compared with itself.
    """
    itself = run["seed"] if run["method"] == "Retrained" else None
    others = {**models.get(run["split"], {})}
    if 0 in others and len((run["truth_ratio"] or {}).get("reference", ())):
        others[0] = run["truth_ratio"]["reference"]
    return {number: others[number] for number in sorted(others) if number != itself}


class Nearness(NamedTuple):
    """How near a model is to a retrained one on the forget rows.

    fq, D: of the Kolmogorov-Smirnov test, which compares the two distributions of truth ratios.
    paired_r: correlation of ln R, the logarithm of the truth ratio, row by row; nan if all rows of
    one model are equal. paired_gap: mean |difference of ln R|, row by row.
    """

    fq: float
    D: float
    paired_r: float
    paired_gap: float


def nearness(ours: Any, theirs: Any) -> Nearness:
    """Compare the truth ratios (n,) of two models on the same forget rows."""
    logs = log_ratios(ours), log_ratios(theirs)
    r = np.corrcoef(*logs)[0, 1] if min(each.std() for each in logs) > 0 else np.nan
    return Nearness(*forget_quality(ours, theirs), float(r), float(abs(logs[0] - logs[1]).mean()))


def log_ratios(ratios: Any) -> np.ndarray:
    """Return the logarithms of truth ratios (n,), finite also where a ratio underflowed to 0."""
    return np.log(np.maximum(np.asarray(ratios, float), TINY))


def against(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> dict[int, Nearness]:
    """Return {number: how near a run is} for each of `others_of`."""
    ours = (run["truth_ratio"] or {}).get("forget", ())
    if not len(ours):
        return {}
    return {number: nearness(ours, theirs) for number, theirs in others_of(run, models).items()}


def _held_out(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> tuple | None:
    """Return the values of `HELD_OUT` for one run; None if no reference is held out.

    Nothing was tuned for a retrained model, so it is compared with number 0 as well. That pair
    counts twice: the mean over all retrained models is then the mean over all their pairs.
    """
    first = 2 if run["method"] == "Retrained" else 0
    near = [(each, 1 if number else first) for number, each in against(run, models).items()]
    near = [(each, weight) for each, weight in near if weight]
    if not near:
        return None
    values, weights = zip(*near)
    return (*np.average(values, axis=0, weights=weights), len(near))


def of_one_profile(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs as a list; UserError if two of them differ in a parameter of `PROFILE`.

    A mean over such runs would describe neither profile. A parameter that a run does not record
    counts as equal, and so does a model: a profile may be given further ones, for another split.
    """
    runs, first = list(runs), dict[tuple[str, str], tuple[Mapping[str, Any], Any]]()
    for run in runs:
        for name in PROFILE:
            value = run["parameters"].get(name)
            if value is None:
                continue
            parts = {"": bool(value), **value} if name == "models" else {"": value}
            for part, given in parts.items():
                other, known = first.setdefault((name, part), (run, given))
                if given != known:
                    names = " and ".join(name_of(each) for each in (other, run))
                    raise UserError(
                        f"runs {names} are of different profiles ({name} differs): give each"
                        " profile a folder of its own"
                    )
    return runs


def code_note(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return a note to print below a table of runs. It names methods whose runs were made by
    different or unknown code, start from different trainings of the base, or were made by code that
    no commit has.

    The note is "" if all runs have the same key of their code and the same base, and come from a
    commit without changes.
    """

    def told(groups: Mapping[str, str]) -> str:
        return "; ".join(f"{key}: {names}" for key, names in groups.items())

    runs, lines = list(runs), list[str]()
    codes = _methods_by(runs, lambda run: run.get("code") or "unknown")
    bases = _methods_by(runs, lambda run: run["provenance"].get("model_revision"))
    changed = _methods_by(runs, lambda run: run["provenance"].get("dirty"))
    if {*codes} == {"unknown"}:
        lines.append("It is not known which code made these runs.")
    elif len(codes) > 1:
        lines.append(f"These runs were made by different code ({told(codes)}).")
    if len(bases) > 1:
        lines.append(f"They start from different trainings of the same base ({told(bases)}).")
    if changed:
        lines.append(
            f"Some or all runs of {changed[True]} were made by code that no commit has, so they"
            " cannot be made again from a checkout."
        )
    return " ".join(lines)


def _methods_by(
    runs: Iterable[Mapping[str, Any]], of: Callable[[Mapping[str, Any]], Any]
) -> dict[Any, str]:
    """Return {of(run): names of the methods of these runs}, without runs where it is empty."""
    groups: dict[Any, dict[str, None]] = {}
    for run in runs:
        groups.setdefault(of(run), {})[run["method"]] = None
    return {key: ", ".join(names) for key, names in groups.items() if key}


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


def split_labels(frame: pd.DataFrame) -> dict[str, str]:
    """Return {"forget05": "5%", …}: the share of forget rows among all rows.

    frame: as of `tidy`, with its columns n_forget and n_rows. For a split without runs the share is
    that in its name.
    """
    shares = (frame["n_forget"] / frame["n_rows"]).groupby(frame["split"]).max().dropna()
    return {split: f"{shares.get(split, int(split[-2:]) / 100):.0%}" for split in SPLITS}


def provenance(
    *, model: Any = "", data: Any = "", parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Record the origin of numbers: git commit, versions, device, threads, date, model and data.

    model: a Hub id, a folder or a loaded model. data: "builtin", "hub", a folder or rows.
    parameters: recorded too, without folders; run files have them elsewhere.

    A folder is recorded as its name and a hash of its files, never as a path of this machine.
    `dirty` is true if code differs from the commit: files outside results/ and profiles/tuned/, and
    the scripts in results/. Outside a checkout, `git_commit` and `dirty` are null. `busy` is true
    if in the last minute more processes than the machine's cores and one wanted to run, so that
    seconds are too long.
    """
    torch = sys.modules.get("torch")
    commit, dirty = _git_state()
    cpu = f"cpu {platform.machine()}, {os.cpu_count()} cores"
    config = getattr(model, "config", None)
    name = Path(model if config is None else config._name_or_path)
    revision = getattr(config, "_commit_hash", None)
    if not revision and name.name and name.is_dir():
        revision = model_identity(name)
    return {
        "git_commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "device": torch.cuda.get_device_name()
        if torch is not None and torch.cuda.is_available()
        else cpu,
        "model": name.name if name.is_absolute() or name.is_dir() else str(name),
        "model_revision": revision,
        "data": data_identity(data),
        "threads": torch.get_num_threads() if torch is not None else 1,
        "busy": hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) + 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"parameters": _plain(parameters, folders=False)} if parameters else {}),
    }


def folder(out: str | Path) -> Path:
    """Return the results folder that a notebook writes to: `out`, or results/scratch for ""."""
    return Path(out or project_root() / "results" / "scratch")


def made_with(model: Any, data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's `parameters` (`given`, and the data by content) and `provenance`."""
    made = provenance(model=model, data=data)
    return {"parameters": {"data": made["data"]} | dict(given), "provenance": made}


def check_clean(folder: str | Path) -> None:
    """Raise UserError if `folder` lies in results/ of a checkout with uncommitted changes.

    Nobody could check out the code behind such results. Changes in notebooks/profiles/tuned/ and of
    all but scripts in results/ do not count, because runs write these files. results/scratch, which
    git ignores, is always allowed.
    """
    committed, place = (project_root() / "results").resolve(), Path(folder).resolve()
    inside = place.is_relative_to(committed) and not place.is_relative_to(committed / "scratch")
    if inside and _git_state()[1]:
        raise UserError(f"{folder}: commit your changes first, or choose a folder outside results/")


def forget_peak_memory() -> None:
    """Reset `peak_memory_bytes`; outside Linux and CUDA it counts from the process's start."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # memory that glibc keeps after it was freed would count
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """Return the most memory used so far, in bytes: allocated on the GPU in use, else resident."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows, which has no module resource
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


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


def _plain(value: Any, *, folders: bool = True) -> Any:
    """Return any value as JSON: 9 significant digits, null for numbers that are not finite.

    folders: False removes the folders from absolute paths.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item, folders=folders) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return _plain(value.tolist(), folders=folders)
    if isinstance(value, list | tuple):
        return [_plain(item, folders=folders) for item in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    value = str(value) if isinstance(value, Path) else value
    return _ABSOLUTE.sub("", value) if isinstance(value, str) and not folders else value


def _git_state() -> tuple[str | None, bool | None]:
    """Return the commit and whether code differs from it; (None, None) outside a checkout."""
    root = project_root()
    if not (root / ".git").exists():
        return None, None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout

    try:
        return git("rev-parse", "HEAD").strip(), bool(
            git("status", "--porcelain", "--", ".", *_OURS).strip()
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or no commit yet
        return None, None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
