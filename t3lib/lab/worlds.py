"""`t3 reproduce --worlds`: repeat the experiment in several built-in worlds.

Another seed of T3 changes only the initial weights of its head and the drawing of retain rows. Rows
and base are the same. A world is a seed of the built-in world: other authors, other rows, another
base and other retrained models. So only worlds show how far a difference between two methods
repeats. Settings are the profile's. They were chosen in world 0, so world 0 is refused here.

Each world is an ordinary run of `02_tofu_unlearning` into its own folder. Two tables and a figure
summarise all worlds (`report.worlds`).
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from t3lib.baselines.losses import settings_of
from t3lib.core.errors import UserError
from t3lib.core.files import project_root
from t3lib.core.settings import hyper_of
from t3lib.lab import profiles
from t3lib.lab.grid.reproduce import reproduce
from t3lib.lab.report import render, worlds

UNLEARN = "02_tofu_unlearning"


def reproduce_worlds(
    profile: str, seeds: Sequence[int], out: str | Path | None = None, **options: Any
) -> int:
    """Run every world that is not finished, then write both tables and the figure.

    seeds: of the built-in world, from 1.
    out: results folder, by default out/PROFILE-worlds, with a folder for each world.
    options: of `grid.reproduce.reproduce`.

    Each method runs with one seed. Returns 0, or the first exit code that is not 0. UserError for
    world 0 and for a profile that does not use the built-in world.
    """
    chosen = profiles.load_profile(profile)
    if min(seeds) < 1 or len(set(seeds)) < len(seeds):
        raise UserError("--worlds: give each world once and from 1, for settings come from world 0")
    if chosen["data"] != "builtin" or chosen["models"]:
        raise UserError(f"--worlds: profile {chosen['name']} does not use the built-in world")
    folder = Path(out or project_root() / "out" / f"{chosen['name']}-worlds")
    folders = {seed: folder / f"world{seed}" for seed in seeds}
    options |= {"only": [UNLEARN], "seeds": [1]}
    of_t3 = {split: hyper_of(chosen["hyper"], "T3", split) for split in chosen["splits"]}
    tuned = {split: settings_of("T3", hyper)["temperature"] for split, hyper in of_t3.items()}
    chosen["temperatures"] = sorted(set(tuned.values()))
    with tempfile.TemporaryDirectory() as place:
        for seed, results in folders.items():
            path = Path(place, f"{chosen['name']}-world{seed}.yaml")
            path.write_text(yaml.safe_dump(_in_world(chosen, seed)), encoding="utf-8")
            if status := reproduce(path, out=results, **options):
                return status
    if not options.get("dry_run"):
        each = worlds.scores(folders, tuned)
        for name, table in (("worlds_each", each), ("worlds", worlds.summary(each))):
            render.write_table(folder / "tables", name, table)
        render.save_figure(folder / "figures" / "worlds.svg", worlds.figure(each))
    return 0


def _in_world(profile: profiles.Profile, seed: int) -> profiles.Profile:
    """Return the profile in another world, as it is written to a file.

    Tuned values are part of its `hyper` already.
    """
    settings = {name: value for name, value in profile.items() if name != "name"}
    return settings | {"stage": profile["stage"] | {"seed": seed}}
