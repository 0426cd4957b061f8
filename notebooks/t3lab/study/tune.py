"""The paper's hyperparameter search (Appendix F.3.1): the best mean Forget Quality of a grid.

A grid has at most 8 points. The mean is over the profile's `search_seeds`. A profile may have a
coarse grid of a method and a finer one of the method on a split. The coarse points are then tried
with the first of these seeds, and only the finer points, which are tried with all, can be chosen.

Forget Quality needs no generated text; text is generated only to break ties, by MU-ROUGE. T is part
of T3's points. Table 5 also needs the best settings at each T, so all other settings of the grid
are tried at each T.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from t3lab.files import read_yaml
from t3lab.profiles import WORLD, hyper_of
from t3lab.study.methods import dialled, reports_of, subject
from t3lab.study.records import run_method
from t3lab.study.study import Loaded, Study, open_study
from t3lab.study.unlearned import drop_weights, head_settings, t3_features, training_of
from t3lib.classifier.fit import fit_heads
from t3lib.core.errors import Diverged, UserError
from t3lib.core.files import atomic_write, cache_dir, content_key, lock
from t3lib.core.progress import progress_bar

Point = dict[str, Any]  # settings of a method
Trial = dict[str, Any]  # the evidence of one point, see `gathered`
Entry = dict[str, Any]  # what the file of tuned values has for a method, see `choose`
UNTUNED = ("Original", "Retrained")
FAILED = {"forget_quality": None, "ks_statistic": None, "seconds": 0.0}  # a training that diverged


def tune_profile(
    profile: Mapping[str, Any],
    path: Path,
    *,
    methods: Sequence[str] | None = None,
) -> None:
    """Search every (method, split) of a profile; write choices and evidence to `path`.

    path: the profile's file of tuned values; its entries for other methods and splits stay.
    methods: by default all that have a grid.

    Earlier trials come from the cache. UserError for a requested method without a grid.
    """
    gridded = {key.split("/")[0] for key in profile["grids"]}
    seeds = profile["search_seeds"]
    wanted = [
        name
        for name in methods or profile["methods"]
        if name not in UNTUNED and (methods or name in gridded)
    ]

    for split in profile["splits"]:
        grids = {method: grids_of(profile, method, split) for method in wanted}
        study = open_study(split, **{name: profile[name] for name in WORLD})
        for method, parts in grids.items():
            settings = hyper_of(profile["hyper"], method, split)
            coarse, points = ([settings | point for point in part] for part in parts)
            if method == "T3":
                entries = tune_t3(study, points, profile["temperatures"], seeds)
            else:
                evidence = trials(study, method, coarse, seeds[:1])
                evidence += trials(study, method, points, seeds)
                entry = choose(study, method, evidence, seeds)

                # only the weights of the chosen settings are worth their room
                for lost in (
                    each["hyper"] for each in entry["trials"] if each["hyper"] != entry["chosen"]
                ):
                    for seed in seeds:
                        drop_weights(study, method, lost, seed)
                entries = {f"{method}/{split}": entry}
            write_choice(path, entries)
            print(f"{method} {split}: {entries[f'{method}/{split}']['chosen']}", flush=True)


def grids_of(
    profile: Mapping[str, Any], method: str, split: str
) -> tuple[list[Point], list[Point]]:
    """Return the coarse and the final grid of a method on a split; the first may be empty.

    A profile with points for METHOD/SPLIT has its coarse grid under METHOD. UserError if it has no
    points.
    """
    every, fine = (profile["grids"].get(key, []) for key in (method, f"{method}/{split}"))
    if not (every or fine):
        raise UserError(f"profile {profile['name']}: grids has no points for {method}")
    fine_points = list(map(content_key, fine))
    return ([p for p in every if content_key(p) not in fine_points], fine) if fine else ([], every)


def trials(study: Study, method: str, points: Sequence[Point], seeds: Sequence[int]) -> list[Trial]:
    """Run every point with every seed; return the evidence of each point (`gathered`).

    A seed whose training diverged has None as its scores.
    """
    shown = progress_bar(points, desc=f"tune {method} {study.split}", leave=False)
    return [
        gathered(point, [trial(study, method, point, seed) for seed in seeds]) for point in shown
    ]


def trial(study: Study, method: str, settings: Point, seed: int) -> Mapping[str, Any]:
    """Train once and evaluate the forget rows without generated text; add the seconds of both."""
    model = subject(study, method, seed, settings)
    [report] = reports_of(study, [model], sets=["forget"], generate=False)
    report = report or FAILED
    seconds = report["seconds"] + training_of(study, method, settings, seed)["seconds"]["train"]
    return report | {"trial_seconds": round(seconds, 1)}


def tune_t3(
    study: Study,
    points: Sequence[Point],
    temperatures: Sequence[float],
    seeds: Sequence[int],
) -> dict[str, Entry]:
    """Search T3's points; return the entries "T3/SPLIT" and "T3/SPLIT/T" for each T (Table 5).

    The first has the best point, T included; the others have the best settings at one T. A point
    without a temperature is tried at every one of `temperatures`: no training depends on T, so
    trying all pairs of other settings and T needs no further training. All heads are fitted
    together, which share their reads of the features, and all tilts are scored in one pass of the
    base. If a head diverges, heads are fitted one by one, and its seed has None as its scores.
    """
    points = [
        {**point, "temperature": T}
        for point in points
        for T in ([point["temperature"]] if "temperature" in point else temperatures)
    ]
    every = sorted({float(T) for T in (*temperatures, *(point["temperature"] for point in points))})
    fits = [
        {name: value for name, value in point.items() if name != "temperature"} for point in points
    ]
    fits = list({content_key(fit): fit for fit in fits}.values())
    work = [(fit, seed, T) for T in every for fit in fits for seed in seeds]

    def ask(numbers: list[int]) -> Loaded:
        wanted = {content_key(work[n][:2]): work[n][:2] for n in numbers}
        settings = [head_settings(*pair) for pair in wanted.values()]
        heads = fit_heads(
            t3_features(study),
            settings,
            vocab_size=study.base.get_output_embeddings().weight.shape[0],
        )
        head = dict(zip(wanted, heads))
        tilts = [(dialled(head[content_key(work[n][:2])], work[n][0]), work[n][2]) for n in numbers]
        return Loaded(study.base, study.tokenizer, tilts)

    models = [subject(study, "T3", seed, fit, T) for fit, seed, T in work]
    # A key of its own: heads fitted together differ in the last digits from heads fitted alone.
    keys = [content_key(["together", model.key]) for model in models]

    try:
        found: Sequence[Any] = study.evaluate(keys, ask, sets=["forget"], generate=False)
    except Diverged:
        found = reports_of(study, models, sets=["forget"], generate=False)

    reports = (report or FAILED for report in found)
    at = {
        T: [gathered({**fit, "temperature": T}, [next(reports) for _ in seeds]) for fit in fits]
        for T in every
    }
    listed = {
        content_key({**point, "temperature": float(point["temperature"])}) for point in points
    }
    grid = [each for T in every for each in at[T] if content_key(each["hyper"]) in listed]

    return {
        f"T3/{study.split}": choose(study, "T3", grid, seeds),
        **{f"T3/{study.split}/{T:g}": choose(study, "T3", at[T], seeds) for T in every},
    }


def gathered(settings: Point, reports: Sequence[Mapping[str, Any]]) -> Trial:
    """Return a trial's evidence: {"hyper", "fq", "ks", "seconds"}; all but hyper over seeds.

    T3 has no "seconds", because its heads are fitted together.
    """
    fields = {"fq": "forget_quality", "ks": "ks_statistic", "seconds": "trial_seconds"}
    known = {
        name: [each[field] for each in reports]
        for name, field in fields.items()
        if field in reports[0]
    }
    return {"hyper": dict(settings)} | known


def choose(study: Study, method: str, evidence: Sequence[Trial], seeds: Sequence[int]) -> Entry:
    """Return {"chosen", "seeds", "trials"}: the settings with the best mean Forget Quality.

    Only points that were tried with all seeds can be chosen. Ties are broken by mean MU-ROUGE. A
    point with a seed that diverged ranks last.
    """
    whole = [each for each in evidence if len(each["fq"]) == len(seeds)]
    best = max(mean(each["fq"]) for each in whole)
    tied = [each for each in whole if mean(each["fq"]) == best]
    if len(tied) > 1 and best >= 0:
        for each in tied:
            runs = run_method(study, method, seeds=seeds, settings=each["hyper"])
            each["mu_rouge"] = [run["metrics"]["mu_rouge"] for run in runs]
        tied.sort(key=lambda each: -mean(each["mu_rouge"]))
    return {"chosen": dict(tied[0]["hyper"]), "seeds": list(seeds), "trials": list(evidence)}


def mean(values: Sequence[float | None]) -> float:
    """Return the mean over seeds; -1, worse than any Forget Quality, if a seed has none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else -1.0


def write_choice(path: Path, entries: Mapping[str, Any]) -> None:
    """Add entries to the file, or replace old ones; several searches may do so at once."""
    with lock(cache_dir("tuned") / f"{content_key(str(path.resolve()))}.lock"):
        known = read_yaml(path) if path.is_file() else {}
        with atomic_write(path) as handle:
            handle.write("# From a search: the chosen settings and every trial behind them.\n")
            # A copy, because YAML writes aliases for repeated objects.
            plain = json.loads(json.dumps({**known, **entries}))
            yaml.safe_dump(plain, handle, sort_keys=True, default_flow_style=None, width=110)
