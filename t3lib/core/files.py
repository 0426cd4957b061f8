"""Read and write files safely, and compute content keys of files, models and rows.

The project writes its files through `atomic_write`, so a killed run leaves either the old file or
the new one. Caches, run files and heads name their inputs by the content keys of this module.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from t3lib import LIBRARY
from t3lib.core.errors import UserError, printable

# The files of a model's folder that decide what the model is. Others (logs, model cards, base.json)
# do not count.
MODEL_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "spiece.model",
    "chat_template*",
    "additional_chat_templates/*",
)
HEAD = "t3-head"  # model_type of a head's config.json
ROW_FIELDS = ("question", "answer", "paraphrased_answer", "perturbed_answer")


def project_root() -> Path:
    """Return the checkout that holds t3lib, or the current folder where a wheel was installed."""
    return LIBRARY.parent if (LIBRARY.parent / "pyproject.toml").is_file() else Path.cwd()


def cache_dir(*parts: str) -> Path:
    """Return a folder below `$T3_CACHE`, by default `.t3cache/` in the project's root; create it.

    parts: names of the subfolders. All files in the cache can be computed again. UserError when the
    folder cannot be created.
    """
    folder = Path(os.environ.get("T3_CACHE") or project_root() / ".t3cache").joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache folder {folder} cannot be created: {error.strerror}; set T3_CACHE to another"
        ) from None
    return folder


# ---- writing and reading ------------------------------------------------------------------------


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; rename it to `path` if the block ends without an error.

    mode: "w" for UTF-8 text, "wb" for bytes. The temporary file has a random new name, so two
    writers never share one and a planted link is never followed. UserError that names `path` when
    the disk is full or the folder cannot be written; the temporary file is then removed.
    """
    path = Path(path)
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(
            partial, mode.replace("w", "x"), encoding=None if "b" in mode else "utf-8"
        ) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # a file in place of the folder: reported by the error above
            partial.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; ValueError for NaN and infinity."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as handle:
        handle.write(text + "\n")


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file, with or without a byte order mark; UserError when that fails."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None


def parse_json(text: str, where: object) -> Any:
    """Parse JSON text. UserError for malformed text begins with `where` and names the line."""
    try:
        return json.loads(text)
    # The two errors also cover numbers of thousands of digits and endless nesting.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: malformed JSON ({error})") from None


def read_json(path: str | Path) -> Any:
    """Read a JSON file. UserError names the file, and the line where its text is malformed."""
    return parse_json(read_text(path), path)


def check_no_model(folder: Path) -> None:
    """UserError for the folder of a model that is no head, whose files a head would replace."""
    kind = None
    with suppress(UserError, AttributeError):  # a damaged head may be replaced
        kind = read_json(folder / "config.json").get("model_type")
    if (folder / "adapter_config.json").exists():
        kind = "an adapter"
    if kind not in (None, HEAD):
        raise UserError(
            f"{folder} holds another model ({printable(kind, 40)}): give another folder"
        )


@contextmanager
def lock(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, which is created; a killed process releases it.

    With wait=False, UserError when another process holds the lock.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(path).acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise UserError(
            f"{path.parent} is in use by another t3 process (lock {path.name})"
        ) from None
    with held:
        yield


# ---- identity -----------------------------------------------------------------------------------


def content_key(value: Any) -> str:
    """Hash a value's JSON to 16 hex digits of SHA-256; the order of a mapping's keys is ignored."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hex digits.

    The result is kept for this process while size, times and inode of the file stay the same.
    """
    facts = os.stat(path)
    # Modification times are too coarse to show a second change within two seconds, so recent files
    # are always hashed again.
    young = time.time() - max(facts.st_mtime, facts.st_ctime) < 2
    stamp = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_dev, facts.st_ino)
    return (_sha256.__wrapped__ if young else _sha256)(str(path), stamp)


@lru_cache(maxsize=4096)
def _sha256(path: str, stamp: tuple[int, ...]) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def model_identity(name: str | Path, commit: str | None = None) -> str:
    """Return a key that names a model by its content, whatever its folder is called.

    For a folder: 16 hex digits over all bytes of weights, config, tokenizer, chat template and
    generation config. An adapter's key includes its base if the base is a local folder. For a Hub
    id: the commit; UserError without it, because a Hub id alone may change its content.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        key, adapter = folder_key(folder, MODEL_FILES), folder / "adapter_config.json"
        base = read_json(adapter).get("base_model_name_or_path") if adapter.is_file() else None
        return content_key([key, model_identity(base)]) if base and Path(base).is_dir() else key
    if not commit:
        raise UserError(f"model {name}: a Hub id without its commit does not say which model it is")
    return commit


def folder_key(folder: str | Path, patterns: Iterable[str] = ("**/*",)) -> str:
    """Hash names and bytes of a folder's files to 16 hex digits.

    patterns: glob patterns; a file counts if it matches one of them. Hidden names do not count.
    """
    paths = {path for pattern in patterns for path in Path(folder).glob(pattern) if path.is_file()}
    names = {str(path.relative_to(folder)): path for path in paths}
    return content_key(
        {name: sha256_file(path) for name, path in names.items() if not name.startswith(".")}
    )


def rows_key(rows: Iterable[Mapping[str, Any]]) -> str:
    """Hash the questions and answers of some rows (their fields `ROW_FIELDS`) to 16 hex digits.

    Two lists of rows with equal keys are the same data. Other fields do not count.
    """
    return content_key([[row.get(field) for field in ROW_FIELDS] for row in rows])
