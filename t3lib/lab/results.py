"""Run files: written once, checked when read, gathered into one tidy frame.

A run is one JSON per (method, split, T, w, seed): `runs/METHOD--SPLIT--T{T|none}--seed{n}.json`;
where T3's classifier is sharpened, f^w with w other than 1, `--w{w}` stands before the seed. An
ablation's run has the same name in `runs/ablations/SETTING/`, so that the main tables never see it.
Schema: see `RUN_KEYS` and `metrics.METRICS`. What is told of every row (`records`, most of a run)
lies beside it, packed: `NAME.records.json.gz`.
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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from t3lib.baselines.losses import METHODS
from t3lib.core.errors import UserError
from t3lib.core.files import (
    atomic_write,
    data_identity,
    model_identity,
    project_root,
    read_json,
    shipped,
    write_json,
)
from t3lib.core.names import SPLITS
from t3lib.tofu.metrics import AUDIT, HIDING, METRICS, forget_quality

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
PACKED = ".records.json.gz"  # in place of a run's .json
LARGEST = (
    2**28
)  # bytes of records, unpacked; those of TOFU's rows with every text have less than half a million
HELD_OUT = ("fq_held_out", "ks_held_out", "n_references")
AUTHOR_ROWS = 20  # of each of TOFU's authors; its forget10 has as many authors
_ABSOLUTE = re.compile(
    r"(?<![\w.:/])(?:/[^\s/'\",;:)]+)+/"
)  # every folder of an absolute path, up to its last name
_OURS = (":!results", ":!notebooks/profiles/tuned")  # what runs write: no change of the code
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


def run_name(method: str, split: str, T: float | None, seed: int, w: float | None = None) -> str:
    """The file name of a run, without its ending: `NPO--forget10--Tnone--seed1`,
    `T3--forget10--T4--w0.8--seed1`.
    """
    dials = "Tnone" if T is None else f"T{float(T):g}"
    return "--".join(
        [method, split, dials, *([] if w in (None, 1) else [f"w{float(w):g}"]), f"seed{int(seed)}"]
    )


def name_of(run: Mapping[str, Any]) -> str:
    """`run_name` of a run record."""
    return run_name(run["method"], run["split"], run["T"], run["seed"], run["w"])


def write_run(
    folder: str | Path, run: Mapping[str, Any], metrics: Iterable[str] = tuple(METRICS)
) -> Path:
    """Check, round (9 significant digits), seal with a SHA-256 and write one run atomically; return
    its path.

    Non-finite numbers become null, absolute paths lose their folders. UserError names a key that is
    missing or a value outside the vocabulary; a failed run (`status: "failed"`) may have empty
    metrics, truth ratios and records. metrics: the names that the others must have. Records go into
    a file of their own, which is written first; the run has its name in their place, and its
    checksum covers them.
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
    body["sha256"] = _seal(body)
    if body["records"]:
        beside = path.with_suffix(PACKED)
        with atomic_write(
            beside, "wb"
        ) as handle:  # the same records give the same bytes: no time is written
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
    """Write a record of `study.audit` as a run in `folder`/audit/, without the texts that a model
    wrote.
    """
    named = {name for name in AUDIT if name not in run.get("empty", {})}
    kept = {name: value for name, value in run.items() if name != "closest"}
    return write_run(Path(folder) / "audit", kept, named)


def read_audits(folder: str | Path, *, corrupt: list[str] | None = None) -> list[dict[str, Any]]:
    """The audit runs of `folder`/audit/, as `read_runs` reads runs."""
    return read_runs(Path(folder) / "audit", corrupt=corrupt)


def read_runs(folder: str | Path, *, corrupt: list[str] | None = None) -> list[dict[str, Any]]:
    """All runs of a folder (not of its subfolders), in the order method, split, T, w, seed; a
    missing folder is empty.

    A truncated or altered file raises UserError naming it; given a list `corrupt`, its message is
    appended there and the run is left out instead.
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


def read_ablations(folder: str | Path, *, corrupt: list[str] | None = None) -> list[dict[str, Any]]:
    """The runs of `folder`/ablations/SETTING/ and `folder`/naive/, each with its `setting`.

    The setting is the name of the folder: "naive" holds T3 with the seconds of the published code.
    """
    named = [*Path(folder).glob("ablations/*"), Path(folder) / "naive"]
    settings = sorted(path for path in named if path.is_dir())
    return [
        run | {"setting": path.name}
        for path in settings
        for run in read_runs(path, corrupt=corrupt)
    ]


def tidy(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per run: names, status, cost, every metric, of ablations `HIDING`, and n_forget of
    n_rows rows to forget.

    A failed run keeps its row with empty metrics. `HELD_OUT`: the means of Forget Quality and D
    over the retrained models that nothing was tuned on, and how many there are; empty without any.
    UserError for runs of two profiles or worlds (`of_one_profile`).
    """
    runs = of_one_profile(runs)
    models = references(runs)
    names = ("method", "split", "T", "w", "seed", "status", "setting")
    costs = ("trainable", "epochs", *(f"{part}_s" for part in SECONDS), "peak_memory_bytes")
    numbers = (*costs, *METRICS, *HIDING, *HELD_OUT, "n_forget", "n_rows")
    rows = []
    for run in runs:
        row = dict(run["metrics"]) if run["status"] == "ok" else {}
        row |= {key: run.get(key) for key in (*names, "trainable", "epochs", "peak_memory_bytes")}
        row |= {f"{part}_s": (run["seconds"] or {}).get(part) for part in SECONDS}
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
    """{split: {number: truth ratios (n,) on the forget rows}} of the retrained models among the
    runs.

    Number 0 is the reference of every run, on which hyperparameters are chosen. The others are the
    runs of the method Retrained, by their seed. Nothing was tuned on them.
    """
    found: dict[str, dict[int, Any]] = {}
    for run in runs:
        ratios = run["truth_ratio"] or {}
        if len(ratios.get("reference", ())):
            models = found.setdefault(run["split"], {0: ratios["reference"]})
            if run["method"] == "Retrained":
                models[run["seed"]] = ratios["forget"]
    return found


def against(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> dict[int, tuple]:
    """{number: (Forget Quality, D)} of a run against each retrained model of `references` but
    itself.
    """
    ours = (run["truth_ratio"] or {}).get("forget", ())
    if not len(ours):
        return {}
    itself = run["seed"] if run["method"] == "Retrained" else None
    others = models.get(run["split"], {})
    return {
        number: forget_quality(ours, others[number])
        for number in sorted(others)
        if number != itself
    }


def _held_out(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> tuple | None:
    """The values of `HELD_OUT` for one run; None where no reference is held out.

    Nothing was tuned for a retrained model, so it is compared with number 0 as well. That pair
    counts twice: the mean over all retrained models is then the mean over all their pairs.
    """
    first = 2 if run["method"] == "Retrained" else 0
    tests = [(test, 1 if number else first) for number, test in against(run, models).items()]
    tests = [(test, weight) for test, weight in tests if weight]
    if not tests:
        return None
    values, weights = zip(*tests)
    return (*np.average(values, axis=0, weights=weights), len(tests))


def of_one_profile(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs as a list; UserError where two of them differ in a parameter of `PROFILE`.

    Their mean would belong to neither. A parameter that a run does not record differs from none.
    """
    runs, first = list(runs), dict[str, Mapping[str, Any]]()
    for run in runs:
        for name in PROFILE:
            value = run["parameters"].get(name)
            other = first.setdefault(name, run) if value is not None else run
            if value is not None and value != other["parameters"][name]:
                names = " and ".join(name_of(each) for each in (other, run))
                raise UserError(
                    f"runs {names} are of different profiles ({name} differs): give each profile "
                    f"a folder of its own"
                )
    return runs


def code_note(runs: Iterable[Mapping[str, Any]]) -> str:
    """One line for below a table: whose runs were made by different or unknown code; "" where all
    share one key.
    """
    methods: dict[str, dict[str, None]] = {}
    for run in runs:
        methods.setdefault(run.get("code") or "unknown", {})[run["method"]] = None
    if not methods.keys() - {"unknown"}:
        return "It is not known which code made these runs." if methods else ""
    told = "; ".join(f"{code}: {', '.join(names)}" for code, names in methods.items())
    return f"These runs were made by different code ({told})." if len(methods) > 1 else ""


def all_rows(run: Mapping[str, Any]) -> int | None:
    """How many rows the original model of a run learned of its data; None where no stage chose
    them.
    """
    stage = run["parameters"].get("stage") or {}
    if not {"authors", "questions"} <= set(stage):
        return None
    builtin = run["parameters"]["data"] == "builtin"
    return (
        stage["authors"] * stage["questions"]
        if builtin
        else (stage["authors"] + AUTHOR_ROWS) * AUTHOR_ROWS
    )


def split_labels(frame: pd.DataFrame) -> dict[str, str]:
    """{"forget05": "5%", …}: rows to forget among all rows (n_forget, n_rows of `tidy`).

    A split without such a run has the share in its name, which is TOFU's own."""
    shares = (frame["n_forget"] / frame["n_rows"]).groupby(frame["split"]).max().dropna()
    return {split: f"{shares.get(split, int(split[-2:]) / 100):.0%}" for split in SPLITS}


def provenance(
    *, model: Any = "", data: Any = "", parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Where numbers come from: git commit, versions, device, threads, date, model and data by name
    and content.

    `model` is a Hub id, a folder or a loaded model; `data` is "builtin", "hub", a folder or rows. A
    folder is recorded as its name and a hash of its files, never as a path of this machine;
    `parameters` (for results outside run files, which hold them anyway) lose their folders too.
    `dirty` is true when files outside results/ and profiles/tuned/ differ from the commit; both are
    null outside a checkout.
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
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"parameters": _plain(parameters, folders=False)} if parameters else {}),
    }


def folder(out: str | Path) -> Path:
    """Return the results folder that a notebook writes to: `out`, or results/scratch for ""."""
    return Path(out or project_root() / "results" / "scratch")


def made_with(model: Any, data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's `parameters` (`given` and the data by content) and `provenance`."""
    made = provenance(model=model, data=data)
    return {"parameters": {"data": made["data"]} | dict(given), "provenance": made}


def check_clean(folder: str | Path) -> None:
    """UserError where `folder` lies in results/ of a checkout with uncommitted changes.

    Changes in results/ and notebooks/profiles/tuned/, which a run writes, do not count, nor does
    results/scratch, which git ignores. Nobody could check out the code behind such results.
    """
    committed, place = (project_root() / "results").resolve(), Path(folder).resolve()
    inside = place.is_relative_to(committed) and not place.is_relative_to(committed / "scratch")
    if inside and _git_state()[1]:
        raise UserError(f"{folder}: commit your changes first, or choose a folder outside results/")


def forget_peak_memory() -> None:
    """Let `peak_memory_bytes` begin anew; outside Linux and CUDA it counts from the start."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of freed memory counts as held
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """Most memory held so far: the GPU's allocations where one is used, else the process's resident
    set.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows, where there is no module resource
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def write_data(folder: str | Path, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> Path:
    """Store the questions and answers that `records` refer to, once, as `folder`/data.json for the
    page's browser.

    `rows` maps a name to its rows in the order of the records: "forget05", "forget10" (the forget
    sets), "retain", "ra", "wf".
    """
    texts = {
        name: [{key: row[key] for key in ("question", "answer")} for row in part]
        for name, part in rows.items()
    }
    path = Path(folder) / "data.json"
    write_json(path, texts)
    return path


def paper_table(number: int) -> pd.DataFrame:
    """Table `number` (1 to 5) as the paper prints it, in the columns of our own table; not printed
    = empty.
    """
    path = shipped("results/paper") / f"table{number}.csv"
    if not path.is_file():
        raise UserError(f"cannot read {path}: no such file")
    return pd.read_csv(path)


def _read_run(path: Path) -> dict[str, Any]:
    run = read_json(path)
    if not isinstance(run, dict):
        raise UserError(f"{path}: a run is a JSON object, this is a {type(run).__name__}")
    if run.get("records") == (beside := path.with_suffix(PACKED)).name:
        run["records"] = _unpacked(beside)
    _check({"code": None} | run, str(path))  # runs of before do not know their code
    if run.get("sha256") != _seal(run):
        raise UserError(
            f"{path}: altered or damaged (its checksum does not match its content); delete it to "
            f"rerun"
        )
    if path.stem != (name := name_of(run)):
        raise UserError(f"{path}: holds the run {name}, not the one its name says")
    return run


def _unpacked(path: Path) -> Any:
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
    if missing := [key for key in RUN_KEYS if key not in run]:
        raise UserError(f"{where}: no {', '.join(missing)}")
    for key, allowed in (("method", METHODS), ("split", SPLITS), ("status", ("ok", "failed"))):
        if run[key] not in allowed:
            raise UserError(f"{where}: {key} {run[key]!r} is not one of {', '.join(allowed)}")
    dials = all(isinstance(run[name], int | float | None) for name in ("T", "w"))
    if not isinstance(run["seed"], int) or not dials:
        raise UserError(f"{where}: seed must be a whole number, T and w numbers or null")


def _seal(run: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in run.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _plain(value: Any, *, folders: bool = True) -> Any:
    """JSON of any value: 9 significant digits, null for what is not finite; folders=False cuts
    absolute paths short.
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
