"""Is T3 nearer to a retrained model than another method? Differences of D with their error.

D is averaged over seeds and over the retrained models that nothing was tuned on. It is not
independent from row to row, because the rows of an author resemble each other. So whole authors are
drawn again (a cluster bootstrap), the same authors for both methods.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from t3lab.names import SPLITS
from t3lab.results import author_rows, others_of, references
from t3lib.baselines.losses import METHODS
from t3lib.tofu.metrics import forget_quality_lattice

PRIMARY = ("forget10", "RMU")  # the one comparison that was named before the worlds were made
FEWEST = 4  # authors from which on an interval over draws of them says something
LEVEL, POWER = 0.95, 0.8
DRAWS = 2000
PRINTED = {"forget05": 200, "forget10": 400}  # rows to forget in the paper
ROUNDED = 5e-4  # a Forget Quality that is printed as 0.000 is at most this
COLUMNS = ["split", "method", "authors", "D", "t3_less", "t3_low", "t3_high", "seen", "p"]


def order(runs: Sequence[Mapping[str, Any]], tuned: Mapping[str, float | None]) -> pd.DataFrame:
    """Build the table of T3's D minus each method's: t3_less with its 95% interval.

    runs: run files; those with a dial other than w = 1 are left out. tuned: {split: T of T3}.

    D is the method's mean. The standard error is the spread of t3_less over draws of authors, times
    sqrt(n / (n - 1)) for n authors; the interval has n - 1 degrees of freedom, and there is none
    with fewer than `FEWEST` authors. seen is the smallest
    difference that a study of this size finds in 80% of cases. p is two-sided (`adjusted`).
    """
    rows, models = [], references(runs)
    for split in SPLITS:
        found = [
            run
            for run in runs
            if run["split"] == split
            and run["status"] == "ok"
            and run["w"] in (None, 1)
            and run["T"] in (None, tuned.get(split))
            and run["method"] not in ("Original", "Retrained")
        ]

        # D of each seed, first of all rows and then of draws of authors
        drawn: dict[str, list[np.ndarray]] = {}
        for run in found:
            others = others_of(run, models)
            held = [others[number] for number in others if number] or [*others.values()]
            ours, author = run["truth_ratio"]["forget"], author_rows(run)
            each = [clustered_D(ours, theirs, author) for theirs in held]
            drawn.setdefault(run["method"], []).append(np.mean(each, axis=0))

        means = {method: np.mean(drawn[method], axis=0) for method in METHODS if method in drawn}

        mine = means.pop("T3", None)
        for method in means if mine is not None else ():
            less = mine - means[method]
            count = -(-len(ours) // author)
            error = less[1:].std() * (count / max(count - 1, 1)) ** 0.5
            freedom = count - 1 if count >= FEWEST else 0
            rows.append((split, method, count, means[method][0], *judged(less[0], error, freedom)))

    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.assign(p=adjusted(table))


def over_seeds(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return T3's mean minus each method's, in columns of `COLUMNS`, with a row for each split and
    method.

    table: split, method and `measure`, a row for each seed. Standard error and degrees of freedom
    are Welch's. They say how far seeds differ, not bases, retrained models or authors.
    """
    stats = table.groupby(["split", "method"], sort=False)[measure].agg(["mean", "sem", "count"])
    rows = []
    for (split, method), (mean, error, count) in stats.iterrows():
        if method != "T3" and (split, "T3") in stats.index:
            mine, own, seeds = stats.loc[split, "T3"]
            both = float(np.hypot(own, error))
            parts = own**4 / (seeds - 1) + error**4 / (count - 1) if min(seeds, count) > 1 else 0.0
            freedom = both**4 / parts if parts > 0 else 0.0
            rows.append((split, method, *judged(mine - mean, both, freedom)))
    found = pd.DataFrame(rows, columns=["split", "method", *COLUMNS[4:]])
    return found.assign(p=adjusted(found))


def with_printed_D(seeds: pd.DataFrame) -> pd.DataFrame:
    """Add D as `ks_held_out` to the paper's Table 4, which prints Forget Quality for every seed.

    With n rows D is one of 1/n, 2/n, …, 1, and each has its own Forget Quality, so three digits
    tell D. Of a Forget Quality printed as 0.000 it is the lowest D that is rounded so.
    """
    parts = []
    for split, part in seeds.groupby("split", sort=False):
        rungs = forget_quality_lattice(PRINTED[split])
        apart = abs(rungs - part["fq"].clip(lower=ROUNDED).to_numpy()[:, None])
        parts.append(part.assign(ks_held_out=(apart.argmin(axis=1) + 1) / PRINTED[split]))
    return pd.concat(parts)


def clustered_D(ours: Sequence[float], theirs: Sequence[float], author: int) -> np.ndarray:
    """Return D of two models' truth ratios (n,), followed by D of `DRAWS` draws of authors.

    author: rows of each author; rows i and i + 1 are of one author unless `author` divides i + 1.
    """
    n = len(ours)
    authors = np.arange(n) // author
    grid, place = np.unique(np.concatenate([ours, theirs]), return_inverse=True)
    steps = np.zeros((authors[-1] + 1, len(grid)))
    np.add.at(steps, (authors, place[:n]), 1)
    np.add.at(steps, (authors, place[n:]), -1)
    draws = np.random.default_rng(0).multinomial(
        len(steps), np.full(len(steps), 1 / len(steps)), DRAWS
    )
    times = np.vstack([np.ones(len(steps)), draws])
    return abs(times @ steps.cumsum(axis=1)).max(axis=1) / (times @ np.bincount(authors))


def judged(difference: float, error: float, freedom: float) -> tuple[float, ...]:
    """Return a difference, the ends of its 95% interval, the smallest difference that would have
    been found in 80% of cases, and p (two-sided). All but the first are nan without an error.

    difference: of two shares, so the interval ends at -1 and 1. error: its standard error, with
    `freedom` degrees of freedom: one less than there are independent authors or worlds.
    """
    if freedom < 1 or not error > 0:
        return difference, *[np.nan] * 4
    ends, power = student.ppf([(1 + LEVEL) / 2, POWER], freedom)
    p = 2 * student.sf(abs(difference) / error, freedom)
    low, high, seen = (times * error for times in (-ends, ends, ends + power))
    return difference, max(difference + low, -1.0), min(difference + high, 1.0), seen, p


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Return the mean of n values and the ends of its 95% interval, mean ± t(n − 1) sd / √n.

    Values that are nan are left out. Student's t has n − 1 degrees of freedom. The ends are nan if
    n < 2.
    """
    values = np.asarray(values, float)
    values = values[~np.isnan(values)]
    n = len(values)
    mean = float(np.mean(values)) if n else np.nan
    if n < 2:
        return mean, np.nan, np.nan
    half = float(student.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / n**0.5)
    return mean, mean - half, mean + half


def adjusted(table: pd.DataFrame) -> pd.Series:
    """Return the p-values of a table with the columns split, method and p, after Holm's correction.

    `PRIMARY` is a hypothesis of its own and stays as it is. All others, on both splits, are one
    family.
    """
    alone = (table["split"] == PRIMARY[0]) & (table["method"] == PRIMARY[1])
    family = table["p"][~alone].dropna().sort_values()
    corrected = (family * np.arange(len(family), 0, -1)).cummax().clip(upper=1)
    return table["p"].where(alone, corrected.reindex(table.index))
