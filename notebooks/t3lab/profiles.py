"""Read profiles: YAML files of differences from `notebooks/profiles/defaults.yaml`.

A profile is checked as a whole before anything runs. A key that the defaults do not have is a
mistake. Names that become file names (profile, method, split) come from fixed vocabularies, so that
no file can lie outside its folder. Tuned values from `tuned/NAME.yaml` beside the profile replace
those of `hyper`. Imports no torch.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from t3lab.files import read_yaml
from t3lab.names import RETRAINED, SOURCES, SPLITS
from t3lib.baselines.losses import DEFAULTS, METHODS, settings_of
from t3lib.core.errors import UserError, printable
from t3lib.core.files import project_root
from t3lib.core.settings import BOUNDS, CHOICES, as_number

# the profile's name is also the name of a folder in results/
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
SCOPE = re.compile(rf"({'|'.join(DEFAULTS)})(/({'|'.join(SPLITS)})(/[1-9]\d*(\.\d*[1-9])?)?)?")

WORLD = ("data", "stage", "models", "evaluation", "load", "judge")  # what `study.open_study` reads

Profile = dict[str, Any]  # the keys of defaults.yaml and `name`


def _allowed(check: Callable[[Any], object], wanted: str) -> AfterValidator:
    """Return a validator that raises ValueError unless check(value). wanted: what it says."""

    def validate(value: Any) -> Any:
        if not check(value):
            raise ValueError(f"should {wanted}")
        return value

    return AfterValidator(validate)


Once = _allowed(
    lambda values: 0 < len(values) == len(set(values)), "hold at least one and each once"
)
Data = _allowed(
    lambda name: name in SOURCES or os.path.isdir(name),
    f"be {', '.join(SOURCES)} or a folder that is there",
)
Scope = Annotated[str, _allowed(SCOPE.fullmatch, "be METHOD, METHOD/SPLIT or METHOD/SPLIT/T")]
# of a given model; one with a seed is held out
ModelName = _allowed(
    re.compile(r"full|retain9[05](-seed[1-9]\d*)?").fullmatch,
    "be full, retain90, retain95 or such as retain90-seed1",
)
Settings = dict[str, Any]
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Once]


class Strict(BaseModel):
    """A model that refuses unknown keys, text in place of a number, and true in place of 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Evaluation(Strict):
    """Settings of the evaluation, see `tofu.evaluation.Scoring`."""

    attention_mask: Literal[CHOICES["attention_mask"]]  # type: ignore[valid-type, name-defined]
    truth_ratio: Literal[CHOICES["truth_ratio"]]  # type: ignore[valid-type, name-defined]
    max_new_tokens: int = Field(ge=1, le=2**20)


class Load(Strict):
    """How base models are loaded, see `core.models.load_model`."""

    dtype: str | None = None
    device: str | None = None
    load_in: str | None = None


class Schema(Strict):
    """The keys of a profile and the types of their values, except those of `stage`.

    The settings in `stage` have the names and types of the defaults.
    """

    name: str
    data: Annotated[str, Data]
    methods: Annotated[list[Literal[METHODS]], Once]  # type: ignore[valid-type]
    splits: Annotated[list[Literal[SPLITS]], Once]  # type: ignore[valid-type]
    gpu: Annotated[int, Field(ge=0)] = 0
    seeds: Seeds
    search_seeds: Seeds
    temperatures: Annotated[list[Annotated[float, Field(ge=1, le=BOUNDS["temperature"][1])]], Once]
    stage: Settings
    models: dict[Annotated[str, ModelName], Annotated[str, Field(min_length=1)]]
    evaluation: Evaluation
    judge: Annotated[int, Field(ge=0, lt=2**31)] = 0
    load: Load = Load()
    hyper: dict[Scope, Settings]
    grids: dict[Scope, Annotated[list[Settings], Field(max_length=8)]]
    notebooks: dict[str, Settings]
    together: dict[str, Annotated[list[Literal[METHODS]], Once]] = {}  # type: ignore[valid-type]


def profiles_dir() -> Path:
    """Return the folder of the profiles that come with t3lib, `notebooks/profiles`."""
    return project_root() / "notebooks" / "profiles"


def load_profile(name: str | Path, folder: Path | None = None, *, tuned: bool = True) -> Profile:
    """Read a profile over the defaults, and check it.

    name: of a profile in `folder`, or a YAML file anywhere. folder: by default
    `notebooks/profiles`. tuned: also read the profile's tuned values.

    The result has the keys of defaults.yaml, and `name`. `hyper` maps METHOD, METHOD/SPLIT or
    METHOD/SPLIT/T to settings. UserError, in one line with file, key and value, for an unknown
    profile, key, method or split, and for a wrong type.
    """
    folder = folder or profiles_dir()
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if (
        not NAME.fullmatch(path.stem if path == Path(name) else str(name))
        or path == folder / "defaults.yaml"
    ):
        raise UserError(
            f"profile {str(name)!r}: a name is letters, digits and _ . - (or give a .yaml file)"
        )

    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml") if p.stem != "defaults")
        raise UserError(
            f"unknown profile {str(name)!r}: choose one of {', '.join(known)} or give a .yaml file"
        )

    defaults = read_yaml(folder / "defaults.yaml")
    merged = _over(defaults, read_yaml(path))
    if tuned and tuned_path(path).is_file():
        for key, entry in read_yaml(tuned_path(path)).items():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("chosen"), Mapping):
                raise UserError(f"{tuned_path(path)}: {key} needs a mapping 'chosen'")
            merged = _over(merged, {"hyper": {key: entry["chosen"]}})

    return check(merged | {"name": path.stem}, str(path), _typed(defaults["stage"]))


def _typed(stage: Settings) -> type[Schema]:
    """Return the schema of a profile. Its stage may have these settings, each of the same type."""
    sizes: Any = {setting: (type(value), value) for setting, value in stage.items()}
    model = create_model("Stage", __base__=Strict, **sizes)
    return create_model("Profile", __base__=Schema, stage=(model, ...))


def tuned_path(profile: str | Path) -> Path:
    """Return the file of a profile's tuned values, `tuned/NAME.yaml` beside the profile.

    profile: a name or a YAML file.
    """
    path = (
        Path(profile)
        if str(profile).endswith((".yaml", ".yml"))
        else profiles_dir() / f"{profile}.yaml"
    )
    return path.parent / "tuned" / f"{path.stem}.yaml"


def override(profile: Profile, **changes: Any) -> Profile:
    """Replace values of a profile by those of the command line, except None; check the result."""
    return check(
        profile | {key: value for key, value in changes.items() if value is not None},
        "command line",
    )


def check(profile: Mapping[str, Any], where: str, schema: type[BaseModel] = Schema) -> Profile:
    """Return the profile if all keys and values are allowed; UserError with place, key and value.

    where: the start of the message.
    """
    try:
        checked = schema.model_validate(profile).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise UserError(f"{where}: {one_line(error)}") from None
    for table in ("hyper", "grids"):
        for key, points in checked[table].items():
            for point in points if table == "grids" else [points]:
                settings_of(key.split("/")[0], point, f"{where}: {table}.{key}")
    return checked


def one_line(error: ValidationError) -> str:
    """Describe the first error that pydantic found: the key, what was expected, what it is."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        return f"unknown key {printable(key)}"
    wanted = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{printable(key)}: {wanted}, not {printable(repr(first['input']), 80)}"


def parameter(name: str, value: Any, like: Any, *, empty: bool = False) -> None:
    """Raise UserError unless a notebook's parameter is a mapping, or a list of text or numbers, as
    the example `like` is. empty: the list may have no values.
    """
    kind, fits = "mapping", isinstance(value, Mapping)
    if not isinstance(like, Mapping):
        entries: Any = str if isinstance(like[0], str) else int | float
        kind, fits = "list", isinstance(value, Sequence) and not isinstance(value, str)
        fits = fits and all(isinstance(as_number(each), entries) for each in value)
        fits = fits and (empty or len(value) > 0)
    if not fits:
        said = f"{json.dumps(like)}, not {printable(repr(value), 80)}"
        raise UserError(f"{name} must be a {kind} such as {said}")


def or_smoke(
    world: Mapping[str, Any], hyper: Mapping[str, Settings]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a notebook's study is opened with, and the settings of its methods.

    world: data, stage, models, evaluation, load and judge, as arguments of `study.open_study`.
    hyper: settings by method.

    If world has neither a stage nor models, both results come from profile smoke, and given values
    replace single ones there. UserError for other keys and types, as of `load_profile`.
    """
    parameter("world", world, {"evaluation": {"max_new_tokens": 50}})
    parameter("hyper", hyper, {"T3": {"lr": 0.001}})
    if unknown := [key for key in world if key not in WORLD]:
        raise UserError(f"world: unknown key {printable(unknown[0])}; known: {', '.join(WORLD)}")
    defaults, smoke = read_yaml(profiles_dir() / "defaults.yaml"), load_profile("smoke")
    alone = world.get("stage") or world.get("models")
    profile = _over(smoke | (defaults | {"stage": {}, "hyper": {}} if alone else {}), dict(world))
    profile = _over(profile, {"hyper": dict(hyper)})
    check(profile, "this notebook's parameters", _typed(defaults["stage"]))
    return {name: profile[name] for name in WORLD}, profile["hyper"]


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with values replaced by those of `above`; mappings are merged."""
    both = {
        key: _over(below[key], value)
        for key, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return below | above | both


def hyper_of(
    hyper: Mapping[str, Mapping[str, Any]], method: str, split: str, T: float | None = None
) -> dict[str, Any]:
    """Return the settings of a method on a split (and at temperature T) as {name: value}.

    hyper: maps the keys METHOD, METHOD/SPLIT and METHOD/SPLIT/T to settings. Values of a later key
    replace those of an earlier one.
    """
    keys = [method, f"{method}/{split}"] + ([f"{method}/{split}/{T:g}"] if T is not None else [])
    return {name: value for key in keys for name, value in hyper.get(key, {}).items()}


def seeds_of(method: str, seeds: Sequence[int]) -> list[int]:
    """Return the seeds that a method runs with when `seeds` are requested.

    Original has none, because nothing in it is random. Retrained has one base model for each
    requested seed, numbered 1, 2, … up to `RETRAINED`.
    """
    of_bases = list(range(1, 1 + min(len(seeds), RETRAINED)))
    return {"Original": [], "Retrained": of_bases}.get(method, list(seeds))
