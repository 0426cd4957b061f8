"""A dial after training for four baselines: go only a share of the way to the unlearned weights."""

from collections.abc import Sequence
from typing import Any

from t3lib.core.names import TUNING_SEEDS
from t3lib.lab.study.methods import Run, evaluated, records, subject
from t3lib.lab.study.study import Study


def run_shares(
    study: Study,
    method: str,
    *,
    seeds: Sequence[int],
    shares: Sequence[float],
    settings: dict[str, Any],
) -> tuple[list[dict[str, Any]], list[Run]]:
    """Search the share a of the weights (1 − a) · base + a · unlearned, then run the best one.

    method: one of `methods.INTERPOLATED`. shares: values of a; above 1 it goes beyond the unlearned
    weights. settings: of the method.

    As with T3's dials, no value needs a training, and the choice is made by mean Forget Quality,
    ties by D, on the seeds for tuning (`TUNING_SEEDS`, or all seeds if none of these is requested).
    Returns (search, runs). search has a row {"split", "method", "a", "n_seeds", "D", "fq"} for each
    share. runs has a run record without texts for each seed at the best share other than 1, which
    the record calls w. UserError for a method that has no such dial.
    """
    tuning = [seed for seed in seeds if seed in TUNING_SEEDS] or list(seeds)
    search: list[dict[str, Any]] = []
    for a in sorted(set(map(float, shares))):
        models = [subject(study, method, seed, settings, w=a) for seed in tuning]
        reports = [evaluated(study, [each], ["forget"], generate=False)[0] for each in models]
        D, fq = (
            sum(report[name] for report in reports) / len(tuning)
            for name in ("ks_statistic", "forget_quality")
        )
        row = {"split": study.split, "method": method, "a": a, "n_seeds": len(tuning)}
        search.append(row | {"D": D, "fq": fq})
    others = [row for row in search if row["a"] != 1]
    if not others:
        return search, []
    best = max(others, key=lambda row: (row["fq"], -row["D"]))["a"]
    chosen = [subject(study, method, seed, settings, w=best) for seed in seeds]
    return search, [run for each in chosen for run in records(study, [each])]
