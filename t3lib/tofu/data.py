"""TOFU's splits and files.

A data source is one of three: a folder with the Hub's file names (`forget10.json`,
`forget10_perturbed.json`, …; JSON lines or one JSON array; `.json` or `.jsonl`; extra columns are
ignored), the word "hub", or a mapping of those names to rows. The format is that of TOFU
(Maini et al., 2024), Hub data set `locuslab/TOFU`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t3lib.core.errors import UserError
from t3lib.core.files import parse_json, read_text
from t3lib.core.hub import read_dataset
from t3lib.core.names import HUB_DATA, RETAIN_OF
from t3lib.core.rows import Row, check_row, check_text, read_rows

Source = str | Path | Mapping[str, Sequence[Row]]


def retain_of(split: str) -> str:
    """Return the retain split of a forget split: forget05 -> retain95, forget10 -> retain90.

    UserError for an unknown split.
    """
    if split not in RETAIN_OF:
        raise UserError(f"unknown split {split!r}: choose one of {', '.join(RETAIN_OF)}")
    return RETAIN_OF[split]


def load_rows(source: Source, name: str) -> list[Row]:
    """Load and check the rows of a split or file from a data source.

    name: such as "full", "forget10" or "forget10_perturbed". UserError when the source does not
    have it, or cannot be read, or names the row that is not usable.
    """
    if isinstance(source, Mapping):
        if name not in source:
            raise UserError(f"the data has no {name}: it holds {', '.join(sorted(source))}")
        rows, where = source[name], name
    elif str(source) == "hub":
        rows = read_dataset(HUB_DATA["path"], name, HUB_DATA["revision"])
        where = f"{HUB_DATA['path']} {name}"
    else:
        return read_rows(find_file(source, name))
    return [check_row(row, f"{where} row {number}") for number, row in enumerate(rows, 1)]


def find_file(folder: str | Path, name: str) -> Path:
    """Return `folder/name.json` or `folder/name.jsonl`; UserError when neither exists."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"data folder {folder} does not exist")
    for path in (folder / f"{name}.json", folder / f"{name}.jsonl"):
        if path.is_file():
            return path
    raise UserError(f"data folder {folder} has no {name}.json or {name}.jsonl")


def load_idk(source: Source) -> list[str]:
    """Load the "I don't know" answers of a data source, without empty ones.

    A file holds one answer a line, as plain text or as JSON (a text, or an object with idk, answer
    or text), or one JSON array of them. UserError when there are none, or they cannot be read.
    """
    where = "idontknow"
    if isinstance(source, Mapping):
        lines: Iterable[Any] = source.get(where, ())
    elif str(source) == "hub":
        lines = read_dataset("open-unlearning/idk")
    else:
        path = find_file(source, where)
        text, where = read_text(path), str(path)
        whole = text.lstrip().startswith("[")
        lines = parse_json(text, where) if whole else text.split("\n")  # not at U+2028
    answers = [_idk_text(line, f"{where} line {number}") for number, line in enumerate(lines, 1)]
    if not any(answers):
        raise UserError(f"{where} holds no answers")
    return [answer for answer in answers if answer]


def _idk_text(line: Any, where: str) -> str:
    """Return one answer from its line, "" for an empty one; UserError if it is not usable text."""
    if isinstance(line, str) and re.match(r'\s*(\{|"([^"\\]|\\.)*"\s*$)', line):
        line = parse_json(line, where)
    if isinstance(line, Mapping):
        line = next((line[key] for key in ("idk", "answer", "text") if key in line), "")
    if line != "" and not (isinstance(line, str) and not line.strip()):
        check_text(line, where)
    return line.strip()
