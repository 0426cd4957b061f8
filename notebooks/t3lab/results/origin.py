"""Where numbers come from: the commit, the machine and the memory of the process that made them."""

import ctypes
import gc
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from t3lab.identity import data_identity
from t3lab.results.runs import plain_json
from t3lib.core.errors import UserError
from t3lib.core.files import model_identity, project_root

# Files that runs write are not code: in results/ all but *.py.
_OURS = tuple(
    f":(exclude,glob){place}"
    for place in ("results/**/*.[!p]*", "results/**/*.p[!y]*", "notebooks/profiles/tuned/*")
)
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
        **({"parameters": plain_json(parameters, folders=False)} if parameters else {}),
    }


def made_with(model: Any, data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's `parameters` (`given`, and the data by content) and `provenance`."""
    made = provenance(model=model, data=data)
    return {"parameters": {"data": made["data"]} | dict(given), "provenance": made}


def folder(out: str | Path) -> Path:
    """Return the results folder that a notebook writes to: `out`, or results/scratch for ""."""
    return Path(out or project_root() / "results" / "scratch")


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
