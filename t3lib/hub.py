"""Data sets on the Hub: asked for once and shortly, and whatever is in the way is one line."""

from importlib.util import find_spec

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

from t3lib.errors import UserError
from t3lib.models import HUB_SECONDS


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
