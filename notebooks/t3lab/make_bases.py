"""Make the base models that a profile only names, because training them takes hours.

Such a profile names folders under `models`; what is there is known by its content, so an edit of
the training code trains nothing again. results/profiles/PROFILE/make_bases.py is the command for
each.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from t3lab import results, script
from t3lab.profiles import load_profile
from t3lab.study.study import stage_of
from t3lab.world import bases
from t3lib.core.errors import UserError
from t3lib.core.files import lock, project_root, read_json, write_json
from t3lib.core.rows import Row


def make_bases(profile: str, only: Sequence[str] = (), data: str | None = None) -> list[Path]:
    """Train those base models of a profile that are not there yet; return the folders of all.

    only: names as in the profile's `models`, such as "full" or "retain90-seed1"; all by default.
    data: in place of the profile's. A training that is killed goes on from its last whole epoch
    when it is called again. base.json in each folder has commit, command and seconds beside what
    `bases.train_base` writes. UserError for a name that the profile does not have.
    """
    chosen = load_profile(profile)
    if unknown := set(only) - set(chosen["models"]):
        names = ", ".join(chosen["models"])
        raise UserError(f"profile {profile} is not given {sorted(unknown)[0]!r}: choose of {names}")

    stage = stage_of(data or chosen["data"], chosen["stage"])
    folders = []

    for model in only or chosen["models"]:
        name, _, seed = model.partition("-seed")
        learned = bases.training_rows(stage, name)
        folder = project_root() / chosen["models"][model]
        folders.append(make_base(folder, stage, name, int(seed or 0), learned))

    return folders


def make_base(
    folder: Path, stage: bases.Stage, name: str, seed: int, learned: Sequence[Row]
) -> Path:
    """Train a base on the rows `learned` unless its folder is there, and return the folder.

    name: "full", "retain90" or "retain95". seed: of the training.
    """
    partial = folder.with_suffix(".partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            began = time.perf_counter()
            shutil.rmtree(partial, ignore_errors=True)
            bases.train_base(stage, name, seed, [*learned], partial)
            made = {
                "provenance": results.provenance(data=stage.data),
                "command": " ".join(["python", *sys.argv]),
                "seconds": round(time.perf_counter() - began),
            }
            manifest = read_json(partial / bases.MANIFEST)
            write_json(partial / bases.MANIFEST, made | manifest)
            partial.rename(folder)
    return folder


def main(profile: str, description: str) -> None:
    """Make the bases that the command line of a profile's make_bases.py names."""
    script.run(
        lambda args: print(*make_bases(profile, args.only, args.data), sep="\n"),
        description,
        {
            "only": {"nargs": "*", "metavar": "BASE", "help": "such as retain90-seed1"},
            "--data": {"help": "folder with TOFU's files, or hub"},
        },
        as_jobs=False,
    )
