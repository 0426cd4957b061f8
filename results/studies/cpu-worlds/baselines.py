"""Choose baselines by the rule that chose T3 (least): by the paper's own errors, not by D.

    python results/studies/cpu-worlds/baselines.py --worlds 0
    python results/studies/cpu-worlds/baselines.py --worlds 4 5 6 7 1 2 3
    python results/studies/cpu-worlds/baselines.py --profile tofu-cpu --data DIR --worlds 0 1 \
        --out results/profiles/tofu-cpu

Forget Quality chose the settings of RMU and WGA. T3 (least) was chosen by another aim, so beside it
they stand with settings that nobody chose for this aim. Here the rule of guided.py does.

Rule and measures were written down before any number was seen. A first search had the weights 1 and
5 and SimNPO, too. RMU's choice had the weight 5, WGA's the weight 1, and SimNPO's the highest rate.
So weights beyond both ends were added. SimNPO was left out: of its points that leak little, the
least Retain Error was 0.79 nats, ten times that of RMU and WGA.

Search, in world 0, for each of `METHODS`: all learning rates and all weights alpha_r of the rows to
keep in `GRIDS`, with its seeds; other settings are the profile's. At cpu that makes 40 trainings,
where T3 (least) had 16. Each trained model is tried at every share a of the way from the base's
weights to its own, which needs no training, as T3's T, θ and ε need none. That makes 220 points; T3
(least) had 296. Of these the shares 1.03 to 1.1 were added after the first tables, because RMU's
leak passes the limit between 1 and 1.15. Numbers are means over the seeds, beside the retrained
model of seed 0; a point of which a seed diverges is left out. Among the points whose leak is at
most that of another retrained model (seed 1) and two of its standard errors over rows, the one of
least Retain Error is chosen, rounded to 0.001 nats, at a tie that of least total variation; if no
leak is so small, the least leak. Where it is at an end of rates, weights or shares, the script
stops: the grid must grow.

The chosen points (seed 1) are then measured in other worlds, with the measures of guided.py and
beside the same judge, the retrained model of seed 1. What T3, the base and Retrained get by these
measures is in guided_each.csv.

On TOFU's text, whose base models are given (DIR has TOFU's files), 0 is the search and 1 the
measurement on the same rows, beside the other retrained model. The grid has fewer points, rates
about those that Forget Quality chose, and one seed. A first search of RMU chose the last share,
1.3, because at 1.1 RMU leaks just too much. So the shares 1.13 to 1.2 were added. A first search of
WGA chose the smallest weight, 0.2. So 0.04 was added. --methods takes some methods alone.
--held-out is as in guided.py: no method is trained on the rows to keep that are evaluated. Where
the table of the search has all shares of a training, it is not trained and tried again: a grid can
grow. So each profile, set of base models and --held-out needs a folder of its own.

It writes below --out: tables/baselines_search.csv, baselines_each.csv, baselines_texts.csv and
baselines/made.json. The models are cached in .t3cache.
"""

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import guided
import pandas as pd
import torch

from t3lab import profiles, results, script
from t3lab.profiles import hyper_of
from t3lab.report import render
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Study
from t3lib.core.errors import Diverged, UserError
from t3lib.core.progress import progress_bar
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.unlearning_errors import summary


@dataclass(frozen=True)
class Grid:
    """What is searched in a profile: learning rates, weights of the rows to keep, shares of the way
    to the trained weights, and the seeds of the trainings.
    """

    rates: tuple[float, ...]
    weights: tuple[float, ...]
    shares: tuple[float, ...]
    seeds: tuple[int, ...]


GRIDS = {
    "cpu": Grid(
        (3e-4, 7e-4, 1.5e-3, 3e-3, 6e-3),
        (0.2, 1.0, 5.0, 25.0),
        (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.03, 1.06, 1.1, 1.15, 1.3),
        (1, 2),
    ),
    "tofu-cpu": Grid(
        (1.5e-3, 3e-3, 6e-3),
        (0.04, 0.2, 1.0, 5.0, 25.0),
        (0.5, 0.7, 0.85, 1.0, 1.1, 1.13, 1.16, 1.2, 1.3),
        (1,),
    ),
}
METHODS = ("RMU", "WGA")
DIALS = ["lr", "alpha_r", "a"]
SPLIT = "forget10"
POINT = ["split", "method", *DIALS]  # of a search
SEARCH = [*POINT, *guided.ERRORS[:4], "leak_se", "chosen"]
EACH = ["world", "split", "model", *DIALS, *guided.MEASURES, "leak_se", "forget_quality"]
EACH_CAPTION = (
    "Baselines with settings that the paper's errors chose in world 0 (least Retain Error of those"
    " that leak as little as a retrained model), in other worlds. a: share of the way from the"
    " base's weights to the trained ones; other columns as in the table guided_each."
)


def make(
    profile: str, data: str | None, worlds: list[int], methods: list[str], held_out: bool,
    out: Path, tiny: bool,
) -> None:  # fmt: skip
    """Search in world 0, and measure the chosen points in other worlds; write all tables.

    profile: one of `GRIDS`. data: in place of the profile's. methods: all of `METHODS`, or some.
    held_out: as of `guided.opened`. tiny: one method of models that know nothing, to try it.
    """
    results.check_clean(out)
    given = script.load(profile, tiny, data=data, splits=[SPLIT])
    grid, tables = GRIDS[profile], out / "tables"
    if tiny:
        methods = methods[:1]
        grid = Grid(grid.rates[:1], grid.weights[:1], grid.shares[-2:], grid.seeds)

    for world in progress_bar(worlds, desc="worlds"):
        began = time.process_time()
        if world == 0:
            path = tables / "baselines_search.csv"
            old = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=SEARCH)
            if held_out:  # other trainings with the same settings
                old = old[~old["method"].isin(methods)]
            new = searched(given, methods, grid, held_out, old)
            found = chosen(pd.concat([old, new] if len(old) else [new]))
            render.write_table(tables, "baselines_search", found)
            if not tiny:
                check_edges(found, GRIDS[profile])
        else:
            search = pd.read_csv(tables / "baselines_search.csv")
            points = search[search["chosen"] & search["method"].isin(methods)]
            rows, texts = measured_world(given, world, points, held_out)
            each = guided.merged(tables / "baselines_each.csv", rows)
            render.write_table(tables, "baselines_each", each, caption=EACH_CAPTION)
            if len(texts):
                ways = guided.merged(tables / "baselines_texts.csv", texts)
                render.write_table(tables, "baselines_texts", ways)
        some = "" if [*methods] == [*METHODS] else f", {', '.join(methods)}"
        script.note(out / "baselines" / "made.json", f"world {world}{some}", began)


def trained(
    study: Study, profile: profiles.Profile, method: str, dials: Mapping[str, float], seed: int
) -> Any:
    """Return a trained baseline. dials: its lr and alpha_r; other settings are the profile's."""
    settings = hyper_of(profile["hyper"], method, study.split)
    settings |= {name: float(dials[name]) for name in DIALS[:2]}
    return load_models(study, [subject(study, method, seed, settings)]).model


def chosen_models(
    study: Study, profile: profiles.Profile, points: pd.DataFrame
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield {model, lr, alpha_r, a} and the model for each row of `baselines_search`."""
    for _, row in points.iterrows():
        whole = trained(study, profile, row["method"], row, guided.SEED)
        facts = {"model": f"{row['method']} (least)"} | {dial: row[dial] for dial in DIALS}
        yield facts, part_of_the_way(study.base, whole, row["a"])


@torch.no_grad()
def part_of_the_way(base: Any, model: Any, share: float) -> Any:
    """Return a model whose weights are base + share · (model - base)."""
    found = copy.deepcopy(model)
    for own, start in zip(found.parameters(), base.parameters(), strict=True):
        own.copy_(torch.lerp(start, own, share))
    return found.eval()


# ---- the search ----------------------------------------------------------------------------------


def trainings(
    methods: Sequence[str], grid: Grid, old: pd.DataFrame
) -> list[tuple[str, float, float]]:
    """Return what a search trains, each as (method, learning rate, alpha_r): all of the grid but
    what the table `old` has at every share.
    """
    done = {key: {*part["a"]} for key, part in old.groupby(["method", *DIALS[:2]])}
    every = product(methods, grid.rates, grid.weights)
    return [each for each in every if not {*grid.shares} <= done.get(each, {*()})]


def check_same_bases(old: pd.DataFrame, floor: Mapping[str, float]) -> None:
    """Raise UserError if a table of a search is of other base models. floor: Retrained's errors."""
    for leak in old.loc[old["method"] == "Retrained", "leak"]:
        if not math.isclose(leak, floor["leak"], rel_tol=1e-9):
            raise UserError("the search in --out is of other base models: choose another folder")


def searched(
    profile: profiles.Profile, methods: Sequence[str], grid: Grid, held_out: bool, old: pd.DataFrame
) -> pd.DataFrame:
    """Return the errors of the points in world 0 that the table `old` lacks, as means over seeds,
    and of Retrained.
    """
    study = guided.opened(profile, 0, SPLIT, held_out=held_out)
    judge = guided.retrained(study, 0)
    floor = guided.errors_beside(study, judge, guided.retrained(study, 1))

    check_same_bases(old, floor)
    rows: list[dict[str, Any]] = []
    seeded = [*product(trainings(methods, grid, old), grid.seeds)]
    for (method, lr, weight), seed in progress_bar(seeded, desc="trainings"):
        same = {"split": SPLIT, "method": method, "lr": lr, "alpha_r": weight}
        with suppress(Diverged):
            model = trained(study, profile, method, same, seed)
            for share in grid.shares:
                [each] = guided.row_errors(study, judge, part_of_the_way(study.base, model, share))
                rows.append(same | {"a": share} | summary(each))

    by = pd.DataFrame(rows, columns=SEARCH[:-2]).groupby(POINT, sort=False)
    found = by.mean()[by.size() == len(grid.seeds)].reset_index()
    return pd.concat([pd.DataFrame([{"split": SPLIT, "method": "Retrained"} | floor]), found])


def chosen(search: pd.DataFrame) -> pd.DataFrame:
    """Add the column `chosen`, true for the points that the rule of guided.py chooses. Of a point
    that is there twice the last row stays.
    """
    search = search.drop_duplicates(POINT, keep="last", ignore_index=True)
    best = guided.best_of(search, "method", 2)
    return search.assign(chosen=search.index.isin(best))[SEARCH]


def check_edges(search: pd.DataFrame, grid: Grid = GRIDS["cpu"]) -> None:
    """Raise UserError if the rule chose a point at an end of the grid."""
    for _, row in search[search["chosen"]].iterrows():
        for dial, values in zip(DIALS, (grid.rates, grid.weights, grid.shares)):
            if row[dial] in (values[0], values[-1]):
                raise UserError(f"{row['method']}: {dial} {row[dial]:g}: grow the grid")


# ---- another world -------------------------------------------------------------------------------


def measured_world(
    profile: profiles.Profile, world: int, points: pd.DataFrame, held_out: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row for each baseline of a world, and one for each baseline and way of asking; with
    given base models, or with `held_out`, no free text is written.

    points: the chosen rows of the table `baselines_search`.
    """
    study = guided.opened(profile, world, SPLIT, held_out=held_out)
    every = (([facts], model, UNTILTED) for facts, model in chosen_models(study, profile, points))
    read = not (profile["models"] or held_out)
    rows, texts = guided.rows_of(study, {"world": world, "split": SPLIT}, every, read)
    return pd.DataFrame(rows, columns=EACH), pd.DataFrame(texts, columns=guided.TEXTS)


OPTIONS: script.Options = {
    "--profile": {"default": "cpu", "choices": [*GRIDS]},
    "--methods": {"nargs": "+", "default": [*METHODS], "choices": METHODS},
    "--worlds": {"type": int, "nargs": "+", "default": [0, 4, 5, 6, 7, 1, 2, 3]},
    "--held-out": {"action": "store_true", "help": "train without the evaluated rows to keep"},
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.DATA_OPTIONS

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
