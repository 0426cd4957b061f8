"""Files that are never half-written: temporary name then rename, checksums, content keys, one lock.

Every writer of the project goes through `atomic_write`, so a killed run leaves either the old file or the new one.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from t3lib.errors import UserError


def project_root() -> Path:
    """The checkout that holds t3lib, or the current folder when t3lib is installed from a wheel."""
    checkout = Path(__file__).resolve().parent.parent
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def shipped(name: str) -> Path:
    """Folder of what comes with t3lib: "notebooks" (profiles in it) or "results/paper"; a wheel carries copies."""
    packaged = Path(__file__).resolve().parent / Path(name).name
    return packaged if packaged.is_dir() else project_root() / name


def cache_dir(*parts: str) -> Path:
    """Folder for what can be recomputed: `$T3_CACHE`, else `.t3cache/` in the project's root; created when missing."""
    folder = Path(os.environ.get("T3_CACHE") or project_root() / ".t3cache").joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cache folder {folder} cannot be created: {error.strerror}; set T3_CACHE to another") from None
    return folder


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; rename it to `path` only when the block ends without an error.

    Raises UserError naming `path` when the disk is full or the folder is not writable; the temporary file is removed.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # a file where the folder should be: the error above says so
            partial.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused, for JSON has neither."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as handle:
        handle.write(text + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; UserError names the file and the line when it is missing or malformed."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {error.lineno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without end
        raise UserError(f"{path}: not valid JSON ({error})") from None


def content_key(value: Any) -> str:
    """16 hex digits of SHA-256 over canonical JSON: equal content, equal key, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def lock(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created when missing); the kernel frees it even after kill -9.

    With wait=False a lock held elsewhere raises UserError instead of waiting for it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path.parent} is in use by another t3 process (lock {path.name})") from None
        yield
