"""What a profile needs of this machine, checked before the first job starts. Imports no torch."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from t3lib.core import hub
from t3lib.core.errors import UserError
from t3lib.core.names import HUB_DATA
from t3lib.lab.profiles import Profile

# In a process of its own: torch keeps hundreds of megabytes of a GPU that it was asked about.
LARGEST_GPU = """import torch
count = torch.cuda.device_count()
print(max([torch.cuda.get_device_properties(n).total_memory for n in range(count)], default=0))"""


def check_machine(profile: Profile, root: Path) -> None:
    """Check that the device, the models and the data of a profile can be had.

    Without this, every job of a large profile would fail with the same sentence.

    Args:
        profile: a checked profile (`profiles.load_profile`).
        root: the folder that relative model folders are seen from.

    Raises:
        UserError: one line about the first thing that is missing.
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
        raise UserError(f"profile {name} needs bitsandbytes (pip install 't3lib[quant]')")
    for which, model in profile["models"].items():
        folder = root / model
        if not folder.is_dir():
            hub.located(model)
        elif not any((folder / file).is_file() for file in hub.MODEL_CONFIGS):
            raise UserError(f"profile {name}: models.{which}: folder {model} holds no model")
    if profile["data"] == "hub":
        hub.ask(HUB_DATA["path"])


def largest_gpu() -> float:
    """Memory of the largest GPU that torch can use, in GB (10^9 bytes); 0 without one."""
    done = subprocess.run([sys.executable, "-c", LARGEST_GPU], capture_output=True, text=True)
    return int(done.stdout or 0) / 1e9
