"""What do a gate and neutral tokens buy on TOFU's text taught to SmolLM2? (Ours, not the paper's.)

    python results/smollm/make_bases.py --data DIR full
    python results/smollm/gate_tofu.py --data DIR

At profile smollm (10% split, seed 1), T3 with a gate, with neutral tokens and with both has the
learning rate and T that were chosen for T3. θ is the one of `GATES` with the smallest D to the
retrained model on which settings were chosen. T3 itself and T3 without tempering at its own rate
stand beside them. DIR has TOFU's files.

The base may be another training than that of the tables beside this script, because its weights are
not kept. Retrained models are not trained anew: D compares with the truth ratios in runs/.

The table `gate_tofu` says what each model hides and keeps, `gate_tofu_leak` how many rows leak in
samples. It takes about half an hour of two cores after the training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from price import along, questions

from t3lab import profiles, results, script
from t3lab.explore.stories import written
from t3lab.report import render
from t3lab.report.tables import OURS, OWN_RATE
from t3lab.study.methods import evaluated, load_models, records, run_method, subject
from t3lab.study.study import Study, open_study
from t3lib.baselines.losses import settings_of
from t3lib.cli import Options
from t3lib.core.files import project_root
from t3lib.core.settings import WORLD, hyper_of
from t3lib.own.audit import run as audit
from t3lib.tofu.likelihood import UNTILTED

SPLIT, SEED = "forget10", 1
GATES = (0.5, 0.9, 0.99)
SAMPLERS = ((1.0, 1.0), (0.6, 0.9), (0.3, 1.0))  # tau, top p
METRICS = ("forget_rouge", "retain_prob", "retain_rouge", "wf_rouge")
GATED = (
    "TOFU's text taught to SmolLM2, 10% split, seed 1: T3 as tuned, without tempering, and ours. D,"
    " FQ and row r compare with held-out retrained models, D tuned on with the one on which"
    " settings and gate were chosen. retain_sampled: mean ROUGE-L recall of one answer to a row to"
    " keep, sampled at temperature 1. kl, same_token, tempered: along the base's own answers to"
    " questions that have nothing to do with the rows."
)
LEAK = (
    "Rows to forget of which one of `samples` answers contains the secret, by the sampler's"
    " temperature tau and top p. SmolLM2, 10% split, seed 1."
)


def candidates(tuned: dict[str, Any], untempered: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return (name, settings) of all that are scored; a name may have several gates."""
    gated = [{"gate": gate} for gate in GATES]
    neutral: dict[str, Any] = {"untrained": "neutral"}
    ours = (gated, [neutral], [neutral | each for each in gated])
    named = [(name, tuned | each) for name, some in zip(OURS, ours) for each in some]
    return [("T3", tuned), (OWN_RATE, untempered | {"temperature": 1.0}), *named]


def make(data: str, out: Path, rows: int, samples: int) -> None:
    """Write both tables below `out`.

    rows, samples: how many rows to forget are sampled, and how often.
    """
    results.check_clean(out)
    profile = profiles.load_profile("smollm")
    full = profile["models"]["full"]
    # In the place of a retrained model, with which nothing is compared here.
    world = {name: profile[name] for name in WORLD} | {"data": data}
    study = open_study(SPLIT, **world | {"models": {"full": full, "retain90": full}})
    committed = results.read_runs(project_root() / "results" / "smollm" / "runs")
    others = results.references(committed)[SPLIT]
    tuned, untempered = (hyper_of(profile["hyper"], "T3", SPLIT, T) for T in (None, 1.0))
    points = candidates(tuned, untempered)
    models = [subject(study, "T3", SEED, settings) for _, settings in points]
    found = evaluated(study, models, sets=["forget"], generate=False)
    distances = [near(each["truth_ratio"]["forget"], others, [0])["ks"] for each in found]
    best: dict[str, int] = {}
    for number, (name, _) in enumerate(points):
        if name not in best or distances[number] < distances[best[name]]:
            best[name] = number
    for (name, settings), distance in zip(points, distances):
        print(f"{name}, gate {settings.get('gate', 1):g}: D tuned on {distance:.3f}", flush=True)
    chosen = [models[number] for number in best.values()]
    runs = [*run_method(study, "Original", seeds=[], settings={}), *records(study, chosen)]
    tilts = [*UNTILTED, *load_models(study, chosen).tilts]
    lines = [
        {"model": name, **told(run, others)} | kept(study, tilt)
        for name, run, tilt in zip(["Original", *best], runs, tilts)
    ]
    sampled = drawn(study, study.evaluation_rows["retain"][::4], tilts, 1, 1.0, 1.0)
    for line, each in zip(lines, sampled):
        line["retain_sampled"] = float(np.mean(each["samples"]))
    render.write_table(out / "tables", "gate_tofu", pd.DataFrame(lines), caption=GATED)
    forget, leaks = study.evaluation_rows["forget"], []
    asked = forget[:: len(forget) // rows]
    for tau, top_p in SAMPLERS:
        for name, each in zip(["Original", *best], drawn(study, asked, tilts, samples, tau, top_p)):
            leaking = sum(map(any, each["leaks"]))
            leaks.append((name, tau, top_p, samples, leaking, len(each["leaks"])))
    columns = ["model", "tau", "top_p", "samples", "rows_leaking", "rows"]
    table = pd.DataFrame(leaks, columns=columns)
    render.write_table(out / "tables", "gate_tofu_leak", table, caption=LEAK)


def near(ratios: Any, others: dict[int, Any], seeds: Sequence[int]) -> dict[str, float]:
    """Return the means of D, Forget Quality and row r against some retrained models."""
    gaps = [results.nearness(ratios, others[seed])._asdict() for seed in seeds]
    frame = pd.DataFrame(gaps).mean()
    return {"ks": frame["D"], "fq": frame["fq"], "paired_r": frame["paired_r"]}


def told(run: dict[str, Any], others: dict[int, Any]) -> dict[str, Any]:
    """Return a run's settings, its distances and its metrics."""
    ratios = run["truth_ratio"]["forget"]
    held = near(ratios, others, [seed for seed in others if seed])
    settings = settings_of("T3", run["hyper"]) if run["method"] == "T3" else {}
    names = ("lr", "temperature", "gate", "untrained")
    return {
        **{name: settings.get(name) for name in names},
        "ks_tuned_on": near(ratios, others, [0])["ks"],
        **{"ks_held_out": held["ks"], "fq_held_out": held["fq"], "paired_r": held["paired_r"]},
        **{name: run["metrics"][name] for name in METRICS},
    }


def kept(study: Study, tilt: Any) -> dict[str, float]:
    """Compare a tilt with its base along the base's answers to unrelated questions."""
    if tilt in UNTILTED:
        return {}
    rows, (head, T) = questions(), tilt
    own = written(study.base, study.tokenizer, rows)[0]
    unrelated = [row | {"answer": text} for row, text in zip(rows, own) if text]
    return along(study.base, study.tokenizer, unrelated, head, T)


def drawn(
    study: Study, rows: Any, tilts: Any, samples: int, tau: float, top_p: float
) -> list[dict[str, Any]]:
    """Sample answers of every tilt to some rows; see `audit.draws`."""
    how: dict[str, Any] = {"samples": samples, "tau": tau, "top_p": top_p}
    return audit.draws(study.base, study.tokenizer, rows, tilts, **how)


OPTIONS: Options = {
    "--data": {"default": "hub", "help": "folder with TOFU's files, or hub"},
    "--out": {"type": Path, "default": Path("out/smollm")},
    "--rows": {"type": int, "default": 40, "help": "to forget that are sampled (default 40)"},
    "--samples": {"type": int, "default": 16, "help": "of each row (default 16)"},
}

if __name__ == "__main__":
    script.run(lambda args: make(**vars(args)), str(__doc__), OPTIONS, as_jobs=False)
