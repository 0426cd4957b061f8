"""Files that are never half-written, one lock, and identity: of content, of a model, of rows.

Every writer of the project goes through `atomic_write`, so a killed run leaves either the old file
or the new one. Every cache, run file and head names what it depends on through the keys of this
module.
"""

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import yaml
from filelock import FileLock, Timeout

from t3lib import LIBRARY
from t3lib.core.errors import UserError
from t3lib.core.names import HUB_DATA

# What a model's folder says about the model; anything else in it (logs, model cards, base.json)
# does not count.
MODEL_FILES = (
    *(
        "*.safetensors",
        "*.safetensors.index.json",
        "config.json",
        "generation_config.json",
        "adapter_config.json",
    ),
    *(
        "tokenizer*",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab*",
        "merges.txt",
        "spiece.model",
    ),
    *("chat_template*", "additional_chat_templates/*"),
)
ROW_FIELDS = ("question", "answer", "paraphrased_answer", "perturbed_answer")


def project_root() -> Path:
    """The checkout that holds t3lib, or the current folder when t3lib is installed from a wheel."""
    return LIBRARY.parent if (LIBRARY.parent / "pyproject.toml").is_file() else Path.cwd()


def shipped(name: str) -> Path:
    """Folder of what comes with t3lib: "notebooks" (profiles in it) or "results/paper"; a wheel
    carries copies.
    """
    packaged = LIBRARY / Path(name).name
    return packaged if packaged.is_dir() else project_root() / name


def cache_dir(*parts: str) -> Path:
    """Folder for what can be recomputed: `$T3_CACHE`, else `.t3cache/` in the project's root;
    created when missing.
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
    """Open a new file beside `path`; rename it to `path` only when the block ends without an error.

    Its name is random and it must not exist, so two writers never share one and no planted link is
    followed. Raises UserError naming `path` when the disk is full or the folder is not writable;
    the temporary file is removed.
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
        with suppress(OSError):  # a file where the folder should be: the error above says so
            partial.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity are refused, for JSON has
    neither.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as handle:
        handle.write(text + "\n")


def read_text(path: str | Path) -> str:
    """Read a text file; UserError when it cannot be read or is not UTF-8."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None


def parse_json(text: str, where: object) -> Any:
    """Parse JSON; the UserError for malformed text begins with `where` and names the line."""
    try:
        return json.loads(text)
    # also for a number of thousands of digits and for brackets without end
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: malformed JSON ({error})") from None


def read_json(path: str | Path) -> Any:
    """Read a JSON file; UserError names the file and the line when it is missing or malformed."""
    return parse_json(read_text(path), path)


class PlainLoader(yaml.SafeLoader):
    """`yaml.safe_load` without aliases, of which a few lines stand for gigabytes, and with 5e-4 as
    a number, as people mean it (YAML 1.1 says text).
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read the next value."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"line {self.peek_event().start_mark.line + 1}: aliases are not read")
        return super().compose_node(parent, index)


NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one mapping of what JSON can hold: text, numbers, truth values, lists and mappings."""
    text = read_text(path)
    try:
        value = json.loads(json.dumps(PlainLoader(text).get_single_data() or {}))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        raise UserError(
            f"{path}{place}: not valid YAML ({getattr(error, 'problem', None) or error})"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a mapping of settings")
    return value


def write_sealed(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum of itself."""
    write_json(path, {**value, "sha256": content_key(value)})


def read_sealed(path: str | Path) -> dict[str, Any] | None:
    """What `write_sealed` wrote, or None when it is missing, truncated or altered."""
    try:
        value = read_json(path)
        return value if value.pop("sha256") == content_key(value) else None
    except (UserError, AttributeError, KeyError, TypeError):
        return None


@contextmanager
def lock(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created when missing); the kernel frees it even after kill
    -9.

    With wait=False a lock held elsewhere raises UserError instead of waiting for it.
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
    """16 hex digits of SHA-256 over canonical JSON: equal content, equal key, whatever the order of
    its keys.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def sha256_file(path: str | Path) -> str:
    """SHA-256 of all of a file's bytes, as 64 hex digits; read once in a process while the file
    stays as it is.
    """
    facts = os.stat(path)
    # A second change within one tick of the file system's clock would leave no trace: what is that
    # new is read again.
    young = time.time() - max(facts.st_mtime, facts.st_ctime) < 2
    stamp = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_dev, facts.st_ino)
    return (_sha256.__wrapped__ if young else _sha256)(str(path), stamp)


@lru_cache(maxsize=4096)
def _sha256(path: str, stamp: tuple[int, ...]) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def model_identity(name: str | Path, commit: str | None = None) -> str:
    """What a model is, whatever it is called: a folder's content, or the commit of a Hub id.

    A folder counts with every byte of its weights, config, tokenizer, chat template and generation
    config (16 hex digits), an adapter with those of its base. A Hub id names nothing that lasts:
    UserError without its commit.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        key, adapter = folder_key(folder, MODEL_FILES), folder / "adapter_config.json"
        base = read_json(adapter).get("base_model_name_or_path") if adapter.is_file() else None
        return content_key([key, model_identity(base)]) if base and Path(base).is_dir() else key
    if not commit:
        raise UserError(f"model {name}: a Hub id without its commit does not say which model it is")
    return commit


def data_identity(data: Any) -> str:
    """What a data source is, wherever it lies: "builtin", the Hub's data set and revision, a
    folder's name and the key of its files, or the key of rows."""
    if isinstance(data, Mapping):
        return f"rows@{content_key(data)}"
    if data == "hub":
        return f"{HUB_DATA['path']}@{HUB_DATA['revision']}"
    return (
        f"{Path(data).resolve().name}@{folder_key(data)}"
        if data and Path(data).is_dir()
        else str(data)
    )


def folder_key(folder: str | Path, patterns: Iterable[str] = ("**/*",)) -> str:
    """16 hex digits over the names and all bytes of a folder's files that match a glob pattern,
    hidden ones aside.
    """
    paths = {path for pattern in patterns for path in Path(folder).glob(pattern) if path.is_file()}
    names = {str(path.relative_to(folder)): path for path in paths}
    return content_key(
        {name: sha256_file(path) for name, path in names.items() if not name.startswith(".")}
    )


def rows_key(rows: Iterable[Mapping[str, Any]]) -> str:
    """A key of what is asked and scored: two lists of rows are the same data when their keys are
    equal.
    """
    return content_key([[row.get(field) for field in ROW_FIELDS] for row in rows])
