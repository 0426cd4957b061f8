"""What the scripts beside the results share (results/*/*/*.py): how they load a profile, note in
made.json what made a table, and read their command line.
"""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from t3lab import profiles, results
from t3lab.grid.runner import narrow_vectors
from t3lib.cli import Parser
from t3lib.core.errors import UserError
from t3lib.core.files import read_json, write_json

Options = dict[str, Mapping[str, Any]]  # {flags: arguments of `add_argument`}
TINY = {  # one split and seed of models that know nothing
    "stage": {"questions": 1, "vocab": 1600, "hidden": 16, "heads": 2, "epochs": 1},
    "evaluation": {"max_new_tokens": 4},
    "hyper": {"T3": {"epochs": 2, "warmup_epochs": 1, "temperature": 2.0}},
    "splits": ["forget10"],
    "seeds": [1],
    "temperatures": [1.0, 2.0],
}
TINY_OPTION: Options = {"--tiny": {"action": "store_true", "help": "try the script in seconds"}}
DATA_OPTIONS = TINY_OPTION | {
    "--data": {"help": "folder with TOFU's files, or hub; in place of the profile's"}
}


def tiny(profile: profiles.Profile, **more: Any) -> profiles.Profile:
    """Return a profile in the size `TINY`, in which a script can be tried in seconds.

    more: further values, which replace those of `TINY`. A mapping is merged into the profile's.
    """
    few = TINY | more
    merged = {k: profile[k] | v if isinstance(v, dict) else v for k, v in few.items()}
    return profile | merged


def load(name: str, few: bool = False, **changes: Any) -> profiles.Profile:
    """Load a profile with `changes` of its values, in the size `TINY` if `few`.

    torch gets as many threads as the profile's base models were trained with. If these models are
    given, it may use AVX-512, as in the jobs of such a profile.
    """
    given = profiles.override(profiles.load_profile(name), **changes)
    if given["models"]:
        os.environ.pop("ATEN_CPU_CAPABILITY", None)
    torch.set_num_threads(given["stage"].get("threads", 1))
    return tiny(given) if few else given


def made(began: float | None = None) -> dict[str, Any]:
    """Return what made.json says of a script's tables: the commit and the command, and the
    CPU-seconds since `began` (of `time.process_time`), if it is given. The folder of --data is one
    of this machine, and is called DIR.
    """
    seconds = {} if began is None else {"cpu_seconds": round(time.process_time() - began)}
    command = re.sub(r"(--data[ =])\S+", r"\1DIR", shlex.join(["python", *sys.argv]))
    return {"commit": results.provenance()["git_commit"], **seconds, "command": command}


def note(path: Path, part: str, began: float) -> None:
    """Add what `made` says of a part of the tables to a file made.json."""
    write_json(path, (read_json(path) if path.is_file() else {}) | {part: made(began)})


def run(
    make: Callable[[argparse.Namespace], object],
    description: str,
    options: Options,
    *,
    as_jobs: bool = True,
) -> None:
    """Call make with the arguments of the command line; a UserError is one line and exit code 2.

    as_jobs: False lets torch use all threads and vectors. By default it computes as in the jobs of
    `t3 reproduce`, so that the numbers are the same.
    """
    plain = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=description, formatter_class=plain)
    for flags, settings in options.items():
        parser.add_argument(*flags.split(), **settings)
    arguments = parser.parse_args()
    if as_jobs:
        os.environ.update(narrow_vectors())
        torch.set_num_threads(1)
    try:
        make(arguments)
    except UserError as error:
        parser.error(str(error))
