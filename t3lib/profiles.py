"""Profiles: one YAML of differences from `notebooks/profiles/defaults.yaml`, which is also the schema.

A key that the defaults do not have is a mistake, a value has the type of its default, and names that become file
names (profile, method, split) come from fixed vocabularies, so that none can leave its folder. Tuned values of
`tuned/NAME.yaml` (beside the profile) lie over `hyper`. Nothing here imports torch.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from t3lib.errors import UserError
from t3lib.files import shipped
from t3lib.names import METHODS, SPLITS
from t3lib.settings import DEFAULTS, settings_of
from t3lib.settings import check as check_setting

BASES = ("full", "retain90", "retain95")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # a profile's name is a folder's name under results/


Profile = dict[str, Any]  # the keys of defaults.yaml and `name`


def profiles_dir() -> Path:
    """Where the profiles that come with t3lib are: `notebooks/profiles`."""
    return shipped("notebooks") / "profiles"


def load_profile(name: str | Path, folder: Path | None = None, *, tuned: bool = True) -> Profile:
    """Read profile NAME of `folder` (default `notebooks/profiles`) or a YAML FILE of anywhere over the defaults.

    The result has the keys of defaults.yaml and `name`; `hyper` maps METHOD, METHOD/SPLIT or METHOD/SPLIT/T to
    settings. Raises UserError (one line: file and key) for an unknown profile, key, method or split, or a wrong type.
    """
    folder = folder or profiles_dir()
    given_file = str(name).endswith((".yaml", ".yml"))
    path = Path(name) if given_file else folder / f"{name}.yaml"
    if not NAME.fullmatch(path.stem if given_file else str(name)) or path == folder / "defaults.yaml":
        raise UserError(f"profile {str(name)!r}: a name is letters, digits and _ . - (or give a .yaml file)")
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml") if p.stem != "defaults")
        raise UserError(f"unknown profile {str(name)!r}: choose one of {', '.join(known)} or give a .yaml file")
    defaults = read_yaml(folder / "defaults.yaml")
    merged = _merge(defaults, read_yaml(path), str(path))
    tuned_file = tuned_path(path)
    entries = read_yaml(tuned_file) if tuned and tuned_file.is_file() else {}
    for key, entry in entries.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("chosen"), Mapping):
            raise UserError(f"{tuned_file}: {key} needs a mapping 'chosen'")
        merged["hyper"] = {**merged["hyper"], key: {**merged["hyper"].get(key, {}), **entry["chosen"]}}
    _check_hyper(merged, str(path))
    return check({"name": path.stem} | merged, str(path))


def tuned_path(profile: str | Path) -> Path:
    """Where the tuned values of a profile (a name, or a file of its own) are: `tuned/NAME.yaml` beside it."""
    path = Path(profile) if str(profile).endswith((".yaml", ".yml")) else profiles_dir() / f"{profile}.yaml"
    return path.parent / "tuned" / f"{path.stem}.yaml"


def override(
    profile: Profile,
    *,
    data: str | None = None,
    methods: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> Profile:
    """The profile with the command line's data, methods, splits and seeds, checked like the file's own."""
    given = {"data": data, "methods": methods, "splits": splits, "seeds": seeds}
    changes = {key: value for key, value in given.items() if value is not None}
    return check(profile | changes, "command line")


def hyper_of(profile: Profile, method: str, split: str, T: float | None = None) -> dict[str, Any]:
    """Settings of a method on a split (and at a temperature): METHOD, then METHOD/SPLIT, then METHOD/SPLIT/T."""
    keys = [method, f"{method}/{split}"] + ([f"{method}/{split}/{T:g}"] if T is not None else [])
    return {name: value for key in keys for name, value in profile["hyper"].get(key, {}).items()}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one mapping with `yaml.safe_load`; 5e-4 is a number here, as people mean it (YAML 1.1 says text)."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}{place}: not valid YAML ({problem})") from None
    if not isinstance(value or {}, Mapping):
        raise UserError(f"{path}: must hold a mapping of settings")
    return _numbers(value or {})


def check(profile: Profile, where: str) -> Profile:
    """Return the profile when every value is known and sensible; UserError names the place and the value."""
    _known("method", profile["methods"], METHODS, where)
    _known("split", profile["splits"], SPLITS, where)
    _known("model", list(profile["models"]), BASES, where)
    for name, model in profile["models"].items():
        if not isinstance(model, str) or not model:
            raise UserError(f"{where}: models.{name} is a hub id or a folder, not {model!r}")
    for seed in profile["seeds"]:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
            raise UserError(f"{where}: seed {seed!r} is not a whole number from 0")
    for T in profile["temperatures"]:
        if isinstance(T, bool) or not isinstance(T, int | float) or not 1 <= T < math.inf:
            raise UserError(f"{where}: temperature {T!r} is not a number from 1")
    for name in ("methods", "splits", "seeds", "temperatures"):
        values = profile[name]
        if not values or len(set(values)) < len(values):
            raise UserError(f"{where}: {name} is {'repeated' if values else 'empty'}")
    for name in ("attention_mask", "truth_ratio"):
        check_setting(name, profile["evaluation"][name], where=f"{where}: ")
    if not isinstance(profile["data"], str) or not profile["data"]:
        raise UserError(f"{where}: data is 'builtin', 'hub' or a folder, not {profile['data']!r}")
    if profile["data"] not in ("builtin", "hub") and not Path(profile["data"]).is_dir():
        raise UserError(f"{where}: data folder {profile['data']} is not there (or say builtin or hub)")
    return profile


def _known(what: str, values: Sequence[Any], allowed: Sequence[str], where: str) -> None:
    for value in values:
        if value not in allowed:
            raise UserError(f"{where}: unknown {what} {value!r}: choose one of {', '.join(allowed)}")


def _check_hyper(merged: dict[str, Any], where: str) -> None:
    """Keys are METHOD, METHOD/SPLIT or METHOD/SPLIT/T; settings are those of their method in `settings.DEFAULTS`."""
    for table in ("hyper", "grids"):
        for key, entries in merged[table].items():
            method, *rest = str(key).split("/")
            _known(f"method in {table}", (method,), tuple(DEFAULTS), where)
            _known(f"split in {table}", rest[:1], SPLITS, where)
            if len(rest) > 2 or (len(rest) == 2 and not re.fullmatch(r"\d+(\.\d+)?", rest[1])):
                raise UserError(f"{where}: {table} key {key!r} is not METHOD, METHOD/SPLIT or METHOD/SPLIT/T")
            points = entries if table == "grids" else [entries]
            if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
                kind = "a list of mappings" if table == "grids" else "a mapping"
                raise UserError(f"{where}: {table}.{key} must be {kind}")
            if table == "grids" and len(points) > 8:
                raise UserError(f"{where}: grids.{key} has {len(points)} points, at most 8 are tried")
            for point in points:
                settings_of(method, point, f"{where}: {table}.{key}")


def _merge(defaults: dict[str, Any], changes: dict[str, Any], where: str) -> dict[str, Any]:
    """Lay `changes` over `defaults`: lists replace, mappings merge; the defaults' keys and types are the schema."""
    merged = dict(defaults)
    for key, value in changes.items():
        if key not in defaults:
            raise UserError(f"{where}: unknown key {key!r}: choose one of {', '.join(defaults)}")
        _typed(defaults[key], value, f"{where}: {key}")
        if isinstance(defaults[key], Mapping):
            value = value or {}
            if key in ("stage", "evaluation"):  # their keys are fixed; the other mappings are keyed by names
                for name, setting in value.items():
                    if name not in defaults[key]:
                        known = ", ".join(defaults[key])
                        raise UserError(f"{where}: unknown key {key}.{name}: choose one of {known}")
                    _typed(defaults[key][name], setting, f"{where}: {key}.{name}")
            nested = key in ("hyper", "notebooks")
            merged[key] = dict(defaults[key])
            for name, entry in value.items():
                if nested and not isinstance(entry, Mapping):
                    raise UserError(f"{where}: {key}.{name} must be a mapping")
                merged[key][name] = {**merged[key].get(name, {}), **entry} if nested else entry
        else:
            merged[key] = value
    return merged


def _typed(default: Any, value: Any, where: str) -> None:
    """A value has its default's type; null allows anything, a whole number may stand for a real one."""
    if default is None or value is None and isinstance(default, Mapping):
        return
    kind: Any = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, kind) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise UserError(f"{where} is {value!r}, not a {type(default).__name__} like {default!r}")


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key) if not isinstance(key, str) else key: _numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value
