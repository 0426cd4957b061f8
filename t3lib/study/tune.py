"""The paper's search (Appendix F.3.1): a grid a method, seeds 1 and 2, best mean Forget Quality.

At most 8 points a (method, split), the same for every method. Forget Quality is teacher-forced, so texts are generated
only to break ties, by MU-ROUGE. T3's points include T; Table 5 also wants each T's own best, for which the other
settings of the grid are tried at that T.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from t3lib import profiles
from t3lib.baselines.train import Diverged
from t3lib.classifier import fit_heads
from t3lib.errors import UserError
from t3lib.files import atomic_write, cache_dir, code_key, content_key, lock, read_json, write_json
from t3lib.grid import jobs
from t3lib.progress import progress_bar
from t3lib.settings import settings_of
from t3lib.study.methods import Unlearned, t3_features, unlearn_with
from t3lib.study.study import Study, open_study

SEEDS = (1, 2)
UNTUNED = ("Original", "Retrained")


def tune_profile(
    profile: str | Path,
    *,
    splits: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    data: str | None = None,
) -> Path:
    """Search every (method, split) of a profile and write choice and evidence to `tuned/PROFILE.yaml` beside it.

    methods: default all that have a grid. Entries of other methods and splits stay. Trials that were made before come
    from `.t3cache/`. UserError for a method that was asked for and has no grid.
    """
    chosen = profiles.override(profiles.load_profile(profile, tuned=False), data=data, methods=methods)
    wanted = [method for method in chosen["methods"] if method not in UNTUNED]
    if methods is None:
        wanted = [method for method in wanted if any(key.split("/")[0] == method for key in chosen["grids"])]
    for split in splits or chosen["splits"]:
        grids = {method: grid_of(chosen, method, split) for method in wanted}
        options = {name: chosen[name] for name in ("data", "stage", "models", "evaluation")}
        study = open_study(split, load=chosen["notebooks"].get(jobs.UNLEARN, {}).get("load"), **options)
        for method, grid in grids.items():
            hyper = profiles.hyper_of(chosen, method, split)
            points = [hyper | point for point in grid]
            if method == "T3":
                entries = tune_t3(study, points, chosen["temperatures"])
            else:
                entries = {f"{method}/{split}": choose(study, trials(study, method, points))}
            path = write_choice(profiles.tuned_path(profile), entries)
            print(f"{method} {split}: {entries[f'{method}/{split}']['chosen']}", flush=True)
    return path


def grid_of(profile: Mapping[str, Any], method: str, split: str) -> list[dict[str, Any]]:
    """The points that a profile lists for a method on a split; UserError when it lists none."""
    grids = profile["grids"]
    points = grids.get(f"{method}/{split}") or grids.get(method)
    if not points:
        raise UserError(f"profile {profile['name']}: grids has no points for {method}")
    return points


def trials(study: Study, method: str, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each point's Forget Quality and KS statistic, a list over `SEEDS`; None for a seed that diverged."""
    made = []
    for point in progress_bar(points, desc=f"tune {method} {study.split}", leave=False):
        scores = [_trial(study, method, point, seed, generate=False) for seed in SEEDS]
        made.append(_gathered(method, point, scores))
    return made


def tune_t3(study: Study, points: Sequence[Mapping[str, Any]], temperatures: Iterable[float]) -> dict[str, Any]:
    """Entries "T3/SPLIT" (best of the points, T among them) and "T3/SPLIT/T" (best settings at each T, Table 5)."""
    points = [{"temperature": settings_of("T3", point)["temperature"], **point} for point in points]
    every = sorted({float(T) for T in (*temperatures, *(point["temperature"] for point in points))})
    fits = [{name: value for name, value in point.items() if name != "temperature"} for point in points]
    fits = list({content_key(fit): fit for fit in fits}.values())
    table = _t3_scores(study, fits, every)
    at = {T: [_gathered("T3", {**fit, "temperature": T}, table[content_key(fit), T]) for fit in fits] for T in every}
    listed = {content_key({**point, "temperature": float(point["temperature"])}) for point in points}
    grid = [trial for T in every for trial in at[T] if content_key(trial["hyper"]) in listed]
    return {f"T3/{study.split}": choose(study, grid)} | {f"T3/{study.split}/{T:g}": choose(study, at[T]) for T in every}


def choose(study: Study, made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"chosen", "seeds", "trials"}: the trial with the best mean Forget Quality, ties by mean MU-ROUGE.

    A point of which a seed diverged comes last.
    """
    best = max(_mean(trial["fq"]) for trial in made)
    tied = [trial for trial in made if _mean(trial["fq"]) == best]
    if len(tied) > 1 and best >= 0:
        for trial in tied:
            scores = [_trial(study, trial["method"], trial["hyper"], seed, generate=True) for seed in SEEDS]
            trial["mu_rouge"] = [score["mu_rouge"] for score in scores]
        tied.sort(key=lambda trial: -_mean(trial["mu_rouge"]))
    evidence = [{name: value for name, value in trial.items() if name != "method"} for trial in made]
    return {"chosen": dict(tied[0]["hyper"]), "seeds": list(SEEDS), "trials": evidence}


def write_choice(path: Path, entries: Mapping[str, Any]) -> Path:
    """Lay entries over those of the file, which several searches may write at once."""
    with lock(cache_dir("trials") / f"{path.stem}.lock"):
        known = profiles.read_yaml(path) if path.is_file() else {}
        with atomic_write(path) as handle:
            handle.write("# Written by `t3 tune`: the chosen settings and every trial behind them.\n")
            yaml.safe_dump({**known, **entries}, handle, sort_keys=True, default_flow_style=None, width=110)
    return path


def _trial(study: Study, method: str, hyper: Mapping[str, Any], seed: int, *, generate: bool) -> dict[str, Any]:
    """Scores of one (point, seed): {"fq", "ks", "mu_rouge"}, from `.t3cache/trials` when they are there."""
    path = cache_dir("trials") / f"{_key(study, method, hyper, seed, generate)}.json"
    if path.is_file():
        return read_json(path)
    try:
        made: Unlearned = unlearn_with(study, method, hyper, seed)
    except Diverged:
        scores: dict[str, Any] = {"fq": None, "ks": None, "mu_rouge": None}
    else:
        tilts = None if made.head is None else [(made.head, hyper["temperature"])]
        scores = _scores(study, made.model, tilts, generate)[0]
    write_json(path, scores)
    return scores


def _t3_scores(study: Study, fits: Sequence[Mapping[str, Any]], temperatures: Sequence[float]) -> dict[Any, list[Any]]:
    """Scores of every (settings, T), a list over `SEEDS`: all heads in one fit, all tilts in one pass of the base."""
    work = [(fit, seed) for fit in fits for seed in SEEDS]
    full = [{name: value for name, value in settings_of("T3", fit).items() if name != "temperature"} for fit, _ in work]
    settings = [own | {"seed": seed} for own, (_, seed) in zip(full, work)]
    heads = fit_heads(t3_features(study), settings, vocab_size=study.base.get_output_embeddings().weight.shape[0])
    scores = _scores(study, study.base, [(head, T) for head in heads for T in temperatures], generate=False)
    table: dict[Any, list[Any]] = {}
    for (fit, _), start in zip(work, range(0, len(scores), len(temperatures))):
        for T, score in zip(temperatures, scores[start:]):
            table.setdefault((content_key(fit), T), []).append(score)
    return table


def _scores(study: Study, model: Any, tilts: Any, generate: bool) -> list[dict[str, Any]]:
    """Forget Quality needs the forget rows alone; MU-ROUGE needs the others too."""
    rows = study.evaluation_rows if generate else {"forget": study.evaluation_rows["forget"]}
    reports = study.evaluate(model, rows=rows, tilts=tilts, generate=generate)
    return [
        {"fq": report["forget_quality"], "ks": report["ks_statistic"], "mu_rouge": report["mu_rouge"]}
        for report in (reports if tilts is not None else [reports])
    ]


def _gathered(method: str, hyper: Mapping[str, Any], scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    both = {name: [score[name] for score in scores] for name in ("fq", "ks")}
    return {"method": method, "hyper": dict(hyper), **both}


def _mean(values: Sequence[float | None]) -> float:
    """Mean over seeds; -1, worse than any Forget Quality, when one is missing."""
    return -1.0 if any(value is None for value in values) else float(sum(values)) / len(values)  # type: ignore[arg-type]


def _key(study: Study, method: str, hyper: Mapping[str, Any], seed: int, generate: bool) -> str:
    code = code_key("base", "features", "head", "unlearned", "scores", "numbers")
    models = {name: Path(folder).name for name, folder in study.models.items()}
    return content_key(
        [method, study.split, dict(hyper), seed, generate, study.evaluation, study.data_key, models, code]
    )
