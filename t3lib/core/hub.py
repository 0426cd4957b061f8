"""Check that the Hub has a data set or a model, with a short timeout and one-line errors. Imports
no torch.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from t3lib.core.errors import UserError

HUB_SECONDS = 5  # to wait for the Hub's first answer before its local cache has to do
MODEL_CONFIGS = ("config.json", "adapter_config.json")  # one of these is in every model's folder


def ask(name: str) -> None:
    """UserError unless the Hub has the data set `name` (owner/name) and the package that reads it
    is here.

    To be called before `datasets` is: that would ask a Hub that is away for half a minute, and
    raise what its HTTP library raised. With HF_HUB_OFFLINE=1 nobody is asked, and datasets serves
    what it downloaded before.
    """
    if find_spec("datasets") is None:
        raise UserError(f"{name}: a Hub data set needs the package datasets (pip install datasets)")
    try:
        HfApi().dataset_info(name, timeout=HUB_SECONDS)
    except OfflineModeIsEnabled:
        pass
    except (HFValidationError, RepositoryNotFoundError):
        raise UserError(f"{name}: not a file here, and the Hub has no such data set") from None
    except Exception:  # whatever its HTTP library raises
        advice = "HF_HUB_OFFLINE=1 takes what was downloaded before"
        raise UserError(
            f"{name}: not a file here, and the Hub cannot be reached ({advice})"
        ) from None


@dataclass(frozen=True)
class Place:
    """Where a model or a head lies: a folder, or a Hub id with its commit. offline: the Hub does
    not answer, and what was downloaded before has to do.
    """

    name: str
    commit: str | None = None
    offline: bool = False


def located(name: str, revision: str | None = None) -> Place:
    """Find a model or a head; UserError when there is none of this name."""
    if Path(name).expanduser().is_dir():
        return Place(str(Path(name).expanduser()))
    if name.startswith(("/", ".", "~")):
        raise UserError(f"folder {name} does not exist")
    try:
        return Place(name, HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS).sha)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError):
        where = "the Hub has no such model or revision"
        raise UserError(f"there is no folder {name}, and {where}") from None
    except Exception:  # whatever its HTTP library raises
        files = [try_to_load_from_cache(name, file, revision=revision) for file in MODEL_CONFIGS]
        if not (found := [file for file in files if isinstance(file, str)]):
            raise UserError(f"there is no folder {name}, and the Hub cannot be reached") from None
        # The Hub's cache keeps a file in a folder named by its commit.
        return Place(name, Path(found[0]).parent.name, offline=True)
