"""Check that the Hub has a data set or a model, with a short timeout and one-line errors. Imports no torch."""

from importlib.util import find_spec

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

from t3lib.errors import UserError

HUB_SECONDS = 5  # to wait for the Hub's first answer before its local cache has to do
MODEL_CONFIGS = ("config.json", "adapter_config.json")  # one of these is in every model's folder


def ask(name: str) -> None:
    """UserError unless the Hub has the data set `name` (owner/name) and the package that reads it is here.

    To be called before `datasets` is: that would ask a Hub that is away for half a minute, and raise what its HTTP
    library raised. With HF_HUB_OFFLINE=1 nobody is asked, and datasets serves what it downloaded before.
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
        raise UserError(f"{name}: not a file here, and the Hub cannot be reached ({advice})") from None


def ask_for_model(name: str) -> None:
    """UserError unless the Hub has the model `name` (owner/name) or it was downloaded before."""
    try:
        if any(isinstance(try_to_load_from_cache(name, file), str) for file in MODEL_CONFIGS):
            return
        HfApi().model_info(name, timeout=HUB_SECONDS)
    except (HFValidationError, RepositoryNotFoundError):
        raise UserError(f"there is no folder {name}, and the Hub has no such model") from None
    except Exception:  # whatever its HTTP library raises
        raise UserError(f"there is no folder {name}, and the Hub cannot be reached") from None
