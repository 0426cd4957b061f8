"""T3 at several (T, w), and with other settings changed.

Runs share heads and passes of the base.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from t3lab.audit.labels import HIDING
from t3lab.names import TUNING_SEEDS
from t3lab.profiles import parameter
from t3lab.results import Run
from t3lab.study import audit
from t3lab.study.methods import Subject, reports_of, subject
from t3lab.study.records import records
from t3lab.study.study import Study
from t3lib.baselines.losses import settings_of
from t3lib.core.errors import UserError

# Name of the setting -> what differs from the tuned T3. w None stands for the w that leaves w T as
# tuned: p^(1/T) f^w = (p f^(w T))^(1/T), so greedy text stays the same. Settings with `gate` or
# `untrained` are ours, not the paper's. Settings whose names begin with "paraphrases" train the
# head on the rows of `paraphrased`, over as many rows in all.
ABLATIONS: dict[str, dict[str, Any]] = {
    "tuned": {},
    "decay=l2": {"decay": "l2"},
    "init_b=zero": {"init_b": "zero"},
    "decay=l2,init_b=zero": {"decay": "l2", "init_b": "zero"},
    "prior=population": {"prior": "population"},
    "epoch=fixed": {"epoch": "fixed"},
    "T=1,w=1": {"temperature": 1.0},
    "T=1,w=2": {"temperature": 1.0, "w": 2.0},
    "T=1,w=5": {"temperature": 1.0, "w": 5.0},
    "T=1,w=20": {"temperature": 1.0, "w": 20.0},
    "T=2,w=1": {"temperature": 2.0},
    "same text,T=1": {"temperature": 1.0, "w": None},
    "same text,T=2": {"temperature": 2.0, "w": None},
    "gate=0.99": {"gate": 0.99},
    "gate=0.9": {"gate": 0.9},
    "gate=0.5": {"gate": 0.5},
    "untrained=neutral": {"untrained": "neutral"},
    "untrained=neutral,gate=0.9": {"untrained": "neutral", "gate": 0.9},
    "untrained=neutral,gate=0.5": {"untrained": "neutral", "gate": 0.5},
    "paraphrases": {},
    "paraphrases,T=2,w=1": {"temperature": 2.0},
}


def run_dials(
    study: Study,
    *,
    seeds: Sequence[int],
    temperatures: Sequence[float],
    strengths: Sequence[float],
    settings: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[Run]]:
    """Search T and w of T3, p^{1/T} f^w (Remark 3.6), then run the best pair with w other than 1.

    temperatures, strengths: values of T and of w; all pairs are tried. settings: of the heads.

    Neither T nor w needs a training: one head is fitted for each seed, and all points come from one
    pass of the base over the forget rows. Returns (search, runs). search has a row {"split", "T",
    "w", "lr", "n_seeds", "D", "fq"} for each pair, with means over the seeds for tuning
    (`TUNING_SEEDS`, or all seeds if none of these is requested); pairs with a training that
    diverged are left out. runs has a run record for each seed at the pair with the highest Forget
    Quality (ties: the smaller D), without texts.
    """
    parameter("strengths", strengths, [1.0, 2.0], empty=True)
    tuning = [seed for seed in seeds if seed in TUNING_SEEDS] or list(seeds)
    pairs = sorted({(float(T), float(w)) for T in temperatures for w in strengths})

    def heads(T: float, w: float, seeds: Sequence[int]) -> list[Subject]:
        return [subject(study, "T3", seed, {**settings, "w": w}, T) for seed in seeds]

    models = [model for pair in pairs for model in heads(*pair, tuning)]
    reports = iter(reports_of(study, models, sets=["forget"], generate=False) if models else [])
    search = []

    for T, w in pairs:
        whole = [report for report in (next(reports) for _ in tuning) if report]
        if len(whole) == len(tuning):
            point = {"split": study.split, "T": T, "w": w, "lr": settings_of("T3", settings)["lr"]}
            D, fq = (
                sum(report[name] for report in whole) / len(tuning)
                for name in ("ks_statistic", "forget_quality")
            )
            search.append({**point, "n_seeds": len(tuning), "D": D, "fq": fq})

    sharp = [row for row in search if row["w"] != 1]
    if not sharp:
        return search, []
    best = max(sharp, key=lambda row: (row["fq"], -row["D"]))

    return search, records(study, heads(best["T"], best["w"], seeds))


def run_ablations(
    study: Study,
    *,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    vary: Sequence[str] = ("all",),
) -> list[Run]:
    """Run each of `ABLATIONS` with each seed; a record also names its `setting`.

    vary: names of `ABLATIONS`, or "all". T is the tuned one unless the setting changes it. Beside
    the metrics of every run, a record has the audit's measures `HIDING`, if there are rows to
    compute them on.
    """
    parameter("vary", vary, ["tuned"], empty=True)
    if unknown := {*vary} - {"all", *ABLATIONS}:
        raise UserError(f"vary: unknown {min(unknown)!r}; known: all, {', '.join(ABLATIONS)}")
    wanted = [name for name in ABLATIONS if "all" in vary or name in vary]

    runs = []
    for taught, reworded in ((study, False), (paraphrased(study), True)):
        some = [name for name in wanted if name.startswith("paraphrases") == reworded]
        if not some:
            continue
        names = [(setting, seed) for setting in some for seed in seeds]
        more = len(taught.forget) / len(study.forget)
        every = [
            subject(taught, "T3", seed, ablated(settings, setting, more)) for setting, seed in names
        ]
        made = records(taught, every)
        whole = [model for model, run in zip(every, made) if run["status"] == "ok"]
        known = iter(audit.known(taught, whole) if whole else ())
        for (setting, _), run in zip(names, made):
            values = next(known) if run["status"] == "ok" else {}
            hides = {name: values[name] for name in HIDING if name in values}
            runs.append(run | {"setting": setting, "metrics": run["metrics"] | hides})

    return runs


def ablated(settings: Mapping[str, Any], setting: str, more: float = 1) -> dict[str, Any]:
    """Return all of T3's settings under one of `ABLATIONS`.

    more: how many times the original number of forget rows the head learns. The number of epochs is
    divided by it, so that all heads see about as many rows.
    """
    tuned = settings_of("T3", settings)
    settings = tuned | ABLATIONS[setting]
    if settings["w"] is None:
        settings["w"] = tuned["w"] * tuned["temperature"] / settings["temperature"]
    least = max(math.ceil(settings["warmup_epochs"]), 1)
    return settings | {"epochs": max(round(tuned["epochs"] / more), least)}


def paraphrased(study: Study) -> Study:
    """Return the study with the paraphrased answers of the forget rows added to the rows to forget.

    Forget Quality is computed from these same answers, so a head that learned them has seen its
    test, and its score does not belong into Table 1.
    """
    rows = study.evaluation_rows["forget"]
    again = [{"question": row["question"], "answer": row["paraphrased_answer"]} for row in rows]
    return replace(study, forget=[*study.forget, *again])
