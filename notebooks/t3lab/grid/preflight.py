"""Check, before the first job starts, that this machine has what a profile needs. No torch."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from t3lab.profiles import Profile
from t3lib.core import hub
from t3lib.core.errors import UserError
from t3lib.core.names import HUB_DATA

# Run in a process of its own, because torch keeps hundreds of megabytes of a GPU it has queried.
LARGEST_GPU = """import torch
count = torch.cuda.device_count()
print(max([torch.cuda.get_device_properties(n).total_memory for n in range(count)], default=0))"""


def check_machine(profile: Profile, root: Path) -> None:
    """Raise UserError unless the device, the models and the data of a profile are available.

    Otherwise every job of a large profile would fail with the same message. profile: a checked
    profile (`profiles.load_profile`). root: the folder that relative model folders refer to.
    """
    name = profile["name"]
    if wanted := profile["gpu"]:
        found = largest_gpu()
        if found < wanted:
            here = f"the largest here has {found:.0f} GB" if found else "torch finds none here"
            raise UserError(f"profile {name} needs a GPU with {wanted} GB: {here}")

    optimizers = {
        settings.get("optimizer")
        for scope, settings in profile["hyper"].items()
        if scope.split("/")[0] in profile["methods"]
    }
    if "paged_adamw_8bit" in optimizers and not find_spec("bitsandbytes"):
        raise UserError(f"profile {name} needs bitsandbytes (pip install bitsandbytes)")

    for which, model in profile["models"].items():
        folder = root / model
        script = Path("results", "profiles", name, "make_bases.py")
        if not folder.is_dir() and (root / script).is_file():
            raise UserError(f"profile {name}: models.{which}: run {script} first")
        if not folder.is_dir():
            hub.located(model)
        elif not any((folder / file).is_file() for file in hub.MODEL_CONFIGS):
            raise UserError(f"profile {name}: models.{which}: folder {model} holds no model")

    if profile["data"] == "hub":
        hub.check_dataset(HUB_DATA["path"])


def largest_gpu() -> float:
    """Return the memory of the largest GPU that torch can use, in GB (10^9 bytes), or 0."""
    done = subprocess.run([sys.executable, "-c", LARGEST_GPU], capture_output=True, text=True)
    return int(done.stdout or 0) / 1e9
