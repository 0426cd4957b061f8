"""One memory-mapped safetensors file of features that survives kills, full disks and damage.

The file is laid out in full before the first row is computed (so a disk that is too small is found at once), rows are
written in place, and a journal beside it notes the checksum of each row after its bytes. Only rows whose bytes match
the journal are ever used: a killed run resumes, a truncated or damaged file is repaired row by row.
"""

import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from t3lib.errors import UserError
from t3lib.files import content_key, lock, read_json, write_json

log = logging.getLogger(__name__)

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
FORMAT = 1  # raised when the meaning of a file changes
COLUMNS = 509  # prime, so that exchanged rows of a weight matrix fall into other columns


def fingerprint(model: PreTrainedModel) -> str:
    """Key of a model's configuration and weights, in one pass over their memory, on whatever device they are.

    Every tensor is viewed as 64-bit words in rows of 509, whose column sums modulo 2^64 are hashed: no single changed
    weight escapes. Weights that are not in memory (offloaded) count by the model's name and revision.
    """
    config = model.config.to_dict()
    source = [config.pop("_name_or_path", None), getattr(model.config, "_commit_hash", None)]
    for name in ("transformers_version", "_attn_implementation_autoset"):
        config.pop(name, None)
    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    sums = {name: _column_sums(tensor) for name, tensor in state.items() if not tensor.is_meta}
    return content_key([config, sums, source if len(sums) < len(state) else None])


def _column_sums(tensor: Tensor) -> list[Any]:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() // (8 * COLUMNS) * 8 * COLUMNS
    words = raw[:whole].view(torch.int64).reshape(-1, COLUMNS).sum(0)
    return [list(tensor.shape), str(tensor.dtype), words.tolist(), raw[whole:].tolist()]


class FeatureFile:
    """Features x (N, d) of one (model, rows, tokens, mask, dtype) in `folder/<key>/`.

    `parts` says what the key is made of; row i owns the tokens starts[i] … starts[i + 1] − 1. Use as a context
    manager, which holds a lock: `missing` lists the rows to compute, `write` stores some, `map` returns x.
    """

    def __init__(
        self, folder: Path, parts: Mapping[str, Any], width: int, dtype: torch.dtype, starts: Sequence[int]
    ) -> None:
        self.parts = {**parts, "format": FORMAT}
        self.folder = folder / content_key(self.parts)
        self.path, self.journal = self.folder / "features.safetensors", self.folder / "journal.jsonl"
        self.starts, self.n_rows = starts, len(starts) - 1
        self.token_bytes = width * dtype.itemsize
        self.header = _header(self.folder.name, (starts[-1], width), dtype)
        self.size = len(self.header) + starts[-1] * self.token_bytes
        self.missing: list[int] = []

    def __enter__(self) -> "FeatureFile":
        with self._user_errors():
            if not self.folder.is_dir():
                self._explain_miss()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.folder / "lock")
            self._lock.__enter__()
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
                self._notes = os.open(self.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                good = self._good_rows()
                self._lay_out(empty=not good)
            except BaseException:
                self._lock.__exit__(None, None, None)
                raise
        self.missing = [row for row in range(self.n_rows) if row not in good]
        if good and self.missing:
            log.warning(
                "features: %d of %d rows are left to extract in %s", len(self.missing), self.n_rows, self.folder
            )
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._file)
        os.close(self._notes)
        self._lock.__exit__(None, None, None)

    def write(self, rows: Sequence[int], values: Sequence[Tensor]) -> None:
        """Store the features (tokens of the row, d) of each row, then note their checksums."""
        with self._user_errors():
            notes = []
            for row, value in zip(rows, values):
                data = value.contiguous().view(torch.uint8).numpy().data.cast("B")
                notes.append([row, zlib.crc32(data)])
                _write_all(self._file, data, self._offset(row))
            os.write(self._notes, f"\n{json.dumps(notes)}\n".encode())

    def map(self) -> Tensor:
        """x (N, d), memory-mapped: pages are read when touched."""
        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor("x")

    def _offset(self, row: int) -> int:
        return len(self.header) + self.starts[row] * self.token_bytes

    def _good_rows(self) -> set[int]:
        """Rows whose bytes in the file match the journal."""
        found = os.fstat(self._file).st_size
        if found == 0:
            return set()
        if os.pread(self._file, len(self.header), 0) != self.header:
            log.warning("features: %s was not written for this model and data; extracting again", self.path)
            return set()
        if found != self.size:
            log.warning("features: %s has %d bytes instead of %d; extracting what is lost", self.path, found, self.size)
        noted = _read_notes(self.journal)
        bad = {row for row in noted if not 0 <= row < self.n_rows or zlib.crc32(self._read(row)) != noted[row]}
        if bad:
            log.warning("features: %d rows in %s are damaged; extracting them again", len(bad), self.path)
        return set(noted) - bad

    def _read(self, row: int) -> bytes:
        return os.pread(self._file, (self.starts[row + 1] - self.starts[row]) * self.token_bytes, self._offset(row))

    def _lay_out(self, empty: bool) -> None:
        try:
            os.ftruncate(self._file, 0 if empty else min(self.size, os.fstat(self._file).st_size))
            os.posix_fallocate(self._file, 0, self.size)  # writing a hole of a full disk would kill us later
            _write_all(self._file, memoryview(self.header), 0)
        except OSError:
            if empty:
                self.path.unlink()
            raise

    def _explain_miss(self) -> None:
        """Say which part of the key is new when the same rows have features here already."""
        for file in sorted(self.folder.parent.glob("*/key.json")):
            other = read_json(file)
            changed = [name for name in self.parts if other.get(name) != self.parts[name]]
            if "rows" not in changed:
                log.warning("features: those in %s are of another %s; extracting", file.parent, ", ".join(changed))
                break
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "key.json", self.parts)

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            need = f"{self.size / 1e9:.3g} GB"
            reason = error.strerror or error
            raise UserError(f"cannot keep {need} of features in {self.folder}: {reason}; set T3_CACHE") from error


def _header(key: str, shape: tuple[int, int], dtype: torch.dtype) -> bytes:
    """The start of a safetensors file that holds the one tensor x, padded so that x is aligned to 64 bytes."""
    tensor = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [0, shape[0] * shape[1] * dtype.itemsize]}
    text = json.dumps({"__metadata__": {"key": key}, "x": tensor}).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return struct.pack("<Q", len(text)) + text


def _write_all(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _read_notes(path: Path) -> dict[int, int]:
    """Checksums by row; the last note of a row counts, a line torn by a kill does not."""
    notes: dict[int, int] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            notes |= {int(row): int(checksum) for row, checksum in json.loads(line)}
        except (ValueError, TypeError):
            continue
    return notes
