"""A saved head: its files, what is verified when it is read, and its model card.

A head's folder holds model.safetensors (A, B and which tokens were taught), config.json (sizes,
temperature, prior, provenance, checksum of the weights) and README.md, a model card. Nothing is
pickled, so reading a head of unknown origin runs no code of it. Its texts are shown through
`errors.printable`.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from huggingface_hub import hf_hub_download
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from torch import Tensor

from t3lib.core import smollm2
from t3lib.core.errors import UserError, printable
from t3lib.core.files import (
    HEAD,
    atomic_write,
    check_no_model,
    content_key,
    lock,
    read_json,
    sha256_file,
)
from t3lib.core.hub import located

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 2
OPTIONAL = ("taught", "has_token")  # (V,) bool: which tokens were taught, and which ids have one
SHAPES: dict[str, tuple[str, ...]] = {"A": ("rank", "hidden_size"), "B": ("vocab_size", "rank")}
SHAPES |= dict.fromkeys(OPTIONAL, ("vocab_size",))
DTYPES = ("F32", "BF16", "F16", "F64")  # as safetensors calls them


# ---- on disk ------------------------------------------------------------------------------------


def save(
    folder: Path,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    overwrite: bool = True,
    named: Mapping[str, Any] = {},
) -> None:
    """Write the three files of a head; config.json, with the checksum of the weights, last.

    settings: arguments of `T3Head` as JSON. weights: {"A", "B"} and maybe `OPTIONAL` ones. named:
    see `model_card`.

    If several processes save at once, one after the other writes, and the last one remains.
    UserError for settings that are not plain JSON, for the folder of another model, and with
    overwrite=False for one that is not empty.
    """
    content = safetensors.torch.save(dict(weights), metadata={"format": "pt"})
    checksum = hashlib.sha256(content).hexdigest()
    config = {**settings, "model_type": HEAD, "format": FORMAT, "sha256": checksum}
    try:
        text = json.dumps(config, indent=1, ensure_ascii=False, allow_nan=False)
        written = f"{text}\n".encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"head info must be plain JSON with finite numbers ({error})") from None

    files = {WEIGHTS: content, CARD: model_card(settings, named).encode(), CONFIG: written}
    with _held(folder):
        check_no_model(folder)
        if not overwrite and any(folder.iterdir()):
            raise UserError(
                f"{folder} exists already and is not an empty folder: the head was not saved"
            )
        for name, data in files.items():
            with atomic_write(folder / name, "wb") as handle:
                handle.write(data)


def load(
    name: str | Path, revision: str | None, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read and verify a head from a folder or the Hub; return its settings and its weights.

    revision: branch, tag or commit on the Hub. overrides: settings that replace saved ones. The
    settings are arguments of `T3Head`; the weights {"A", "B"}, and `OPTIONAL` ones that are there,
    have the sizes that the settings name. UserError for anything missing, altered or not a head.
    """
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        return _read(_downloaded(str(name), revision), overrides)
    if revision not in (None, "main"):
        raise UserError(f"{folder} is a folder, which has no revision {printable(revision, 40)}")
    with _held(folder):  # so that no save is between two of its files
        return _read(folder, overrides)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a lock on a head's folder, by a lock file in the system's folder for temporary files.

    Without a lock if another user owns that file. UserError if the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot use {folder} as a head's folder: {error.strerror or error}"
        ) from None
    place = Path(tempfile.gettempdir()) / f"t3-head-{content_key(folder.resolve())}.lock"
    with ExitStack() as held:
        with suppress(
            OSError
        ):  # another user's lock file: the checksum still detects a half-written head
            held.enter_context(lock(place))
            held.callback(_remove_lock, place)
        yield


def _remove_lock(place: Path) -> None:
    """Remove a lock file if this user may do so. A process that waits for it makes a new one."""
    with suppress(OSError):
        place.unlink(missing_ok=True)


def _downloaded(name: str, revision: str | None) -> Path:
    """Download a head's files; return their folder.

    If the Hub does not answer, files downloaded before are used. UserError if there are none.
    """
    try:
        place = located(name, revision)
        for file in (CONFIG, WEIGHTS):
            path = hf_hub_download(
                place.name, file, revision=place.commit, local_files_only=place.offline
            )
        return Path(path).parent
    except Exception as error:  # of any kind, from the Hub's library
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"no head at {name}: {reason}") from None


def _read(folder: Path, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a head's folder: config.json first, then the weights that match its checksum."""
    config, weights = folder / CONFIG, folder / WEIGHTS
    settings = read_json(config)
    if not isinstance(settings, dict) or settings.pop("model_type", None) != HEAD:
        raise UserError(f"{config}: not the config of a T3 head (model_type is not {HEAD!r})")
    if settings.pop("format", None) != FORMAT:
        raise UserError(
            f"{config}: written by another version of t3lib (format is not {FORMAT}): train the"
            " head again"
        )

    if not isinstance(settings.get("info"), dict):
        raise UserError(f"{config}: 'info' must be a JSON object")
    try:
        if settings.pop("sha256", None) != sha256_file(weights):
            raise UserError(
                f"{weights}: truncated, altered or of another save (its checksum is not"
                " config.json's)"
            )
        settings |= overrides
        with safetensors.safe_open(weights, framework="pt") as file:
            names = [name for name in SHAPES if name not in OPTIONAL or name in {*file.keys()}]
            return settings, {name: _tensor(file, name, settings, str(folder)) for name in names}
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{weights}: not a readable safetensors file ({error})") from None


def _tensor(file: Any, name: str, settings: Mapping[str, Any], where: str) -> Tensor:
    """Return a tensor from an open file; UserError for a wrong shape, dtype, NaN or infinity."""
    shape = [settings.get(size) for size in SHAPES[name]]
    saved = file.get_slice(name) if name in set(file.keys()) else None
    if saved is None or saved.get_shape() != shape:  # before anything of these sizes is allocated
        raise UserError(
            f"{where}: {name} should be {shape} by its config, found {saved and saved.get_shape()}"
        )
    wanted = ("BOOL",) if name in OPTIONAL else DTYPES
    if saved.get_dtype() not in wanted:
        raise UserError(
            f"{where}: {name} holds {saved.get_dtype()}, not one of {', '.join(wanted)}"
        )
    tensor: Tensor = file.get_tensor(name)
    if not tensor.isfinite().all():
        raise UserError(f"{where}: {name} holds NaN or infinity")
    return tensor


# ---- the model card -----------------------------------------------------------------------------


def model_card(settings: Mapping[str, Any], named: Mapping[str, Any] = {}) -> str:
    """Fill in a head's README.md: its base, how it was made, its metrics, how to load it.

    settings: arguments of `T3Head`. named: what only a person can say: "license", the Hub's name of
    a licence, and "datasets", a list of the Hub ids of the rows. UserError for anything else.
    """
    for name, value in named.items():
        kind = {"license": str, "datasets": list}.get(name, ())
        if not isinstance(value, kind) or not all(isinstance(each, str) for each in value):
            raise UserError(
                f"model card: {printable(name)} = {printable(value)} is neither license, a text,"
                " nor datasets, a list of Hub ids"
            )

    pages = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"cell": _cell, "python": lambda value: Markup(repr(value))}
    name = settings["info"].get("base_model")
    # Any other name is shown in the table only.
    plain = isinstance(name, str) and re.fullmatch(r"[\w./~-]{1,200}", name)
    page = pages.get_template("head_card.md.j2")
    return page.render(
        settings,
        named=named,
        origin=smollm2.ORIGIN if name == smollm2.NAME else "",
        base=name if plain else "",
        on_hub=plain and name[0] not in "/.~",
    )


def _cell(value: Any) -> str:
    """Return a value as a cell of a Markdown table, with its Markdown escaped.

    The template escapes HTML.
    """
    return "not recorded" if value is None else re.sub(r"([\\`|\[\]])", r"\\\1", printable(value))
