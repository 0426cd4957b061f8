"""Find data sets and models on the Hub, with a short timeout and one-line errors; no torch."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from t3lib.core import smollm2
from t3lib.core.errors import UserError, printable

HUB_SECONDS = 5  # wait for the Hub's first answer; then its local cache is used
MODEL_CONFIGS = ("config.json", "adapter_config.json")  # every model's folder holds one of them


def check_dataset(name: str) -> None:
    """Raise UserError unless the Hub data set `name` (owner/name) can be read here.

    The package `datasets` must be installed and the Hub must answer. Call this before `datasets`,
    which would try an unreachable Hub for half a minute and then raise an error of its HTTP
    library. With HF_HUB_OFFLINE=1 the Hub is not contacted, and `datasets` uses what it downloaded
    before.
    """
    if find_spec("datasets") is None:
        raise UserError(f"{name}: a Hub data set needs the package datasets (pip install datasets)")
    try:
        HfApi().dataset_info(name, timeout=HUB_SECONDS)
    except OfflineModeIsEnabled:
        pass
    except (HFValidationError, RepositoryNotFoundError):
        raise UserError(f"{name}: not a file here, and the Hub has no such data set") from None
    except Exception:  # of any kind, from its HTTP library
        advice = "HF_HUB_OFFLINE=1 takes what was downloaded before"
        raise UserError(
            f"{name}: not a file here, and the Hub cannot be reached ({advice})"
        ) from None


def read_dataset(name: str, part: str | None = None, revision: str | None = None) -> list[Any]:
    """Read all rows of the train split of a Hub data set, downloaded if need be.

    name: owner/name. part: the configuration, if there are several. revision: branch, tag or
    commit. UserError for what `check_dataset` refuses, and when the data set cannot be read.
    """
    check_dataset(name)
    from datasets import load_dataset

    try:
        return list(load_dataset(name, part, revision=revision, split="train"))
    except Exception as error:  # datasets raises whatever its server or its parser raised
        raise UserError(
            f"{name}: not a file here, and not to be had from the Hub ({printable(error)})"
        ) from None


@dataclass(frozen=True)
class Place:
    """Where a model or a head lies.

    name: a folder or a Hub id. commit: of a Hub id. offline: True when the Hub does not answer, so
    that only files downloaded before can be used.
    """

    name: str
    commit: str | None = None
    offline: bool = False


def located(name: str, revision: str | None = None) -> Place:
    """Find a model or a head by folder, Hub id or `smollm2`, which is fetched on first use.

    revision: branch, tag or commit on the Hub. UserError when neither a folder nor a Hub repository
    has this name, or when the Hub cannot be reached and nothing was downloaded before.
    """
    if name == smollm2.NAME and not Path(name).is_dir():
        return Place(str(smollm2.smollm2()))
    if Path(name).expanduser().is_dir():
        return Place(str(Path(name).expanduser()))
    if name.startswith(("/", ".", "~")):
        raise UserError(f"folder {name} does not exist")

    try:
        return Place(name, HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS).sha)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError):
        where = "the Hub has no such model or revision"
        raise UserError(f"there is no folder {name}, and {where}") from None
    except Exception:  # of any kind, from its HTTP library
        files = [try_to_load_from_cache(name, file, revision=revision) for file in MODEL_CONFIGS]
        if not (found := [file for file in files if isinstance(file, str)]):
            raise UserError(f"there is no folder {name}, and the Hub cannot be reached") from None
        # The Hub's cache keeps a file in a folder named by its commit.
        return Place(name, Path(found[0]).parent.name, offline=True)
