"""YAML files of settings, and JSON files that are sealed by a checksum of themselves."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from t3lib.core.errors import UserError
from t3lib.core.files import content_key, read_json, read_text, write_json


class PlainLoader(yaml.SafeLoader):
    """`yaml.safe_load` with two changes.

    Aliases are refused, because a few lines of them can stand for gigabytes. 5e-4 is read as a
    number, as people mean it (YAML 1.1 reads it as text).
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read the next value; ValueError for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"line {self.peek_event().start_mark.line + 1}: aliases are not read")
        return super().compose_node(parent, index)


NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping of values that JSON knows.

    An empty file is an empty mapping. UserError names the file and, where YAML says it, the line.
    """
    text = read_text(path)
    try:
        value = json.loads(_as_json(text))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        raise UserError(
            f"{path}{place}: not valid YAML ({getattr(error, 'problem', None) or error})"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a mapping of settings")
    return value


@lru_cache(maxsize=32)  # a profile's trials are 50 kB, and are read for every job of a study
def _as_json(text: str) -> str:
    """Return a text of YAML as JSON."""
    return json.dumps(PlainLoader(text).get_single_data() or {})


def write_sealed(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object together with a checksum of itself (`read_sealed` verifies it)."""
    write_json(path, {**value, "sha256": content_key(value)})


def read_sealed(path: str | Path) -> dict[str, Any] | None:
    """Return the object that `write_sealed` wrote; None if the file is missing, cut or altered."""
    try:
        value = read_json(path)
        return value if value.pop("sha256") == content_key(value) else None
    except (UserError, AttributeError, KeyError, TypeError):
        return None
