"""What do a gate and neutral tokens buy on TOFU's text taught to SmolLM2? (Ours, not the paper's.)

    python results/profiles/smollm/make_bases.py --data DIR full
    python results/profiles/smollm/gate_tofu.py --data DIR

At profile smollm (10% split, seed 1), T3 with a gate, with neutral tokens and with both has the
learning rate and T that were chosen for T3. θ is the one of `GATES` with the smallest D to the
retrained model on which settings were chosen. T3 itself and T3 without tempering at its own rate
stand beside them. DIR has TOFU's files.

The base may be another training than that of the tables beside this script, because its weights are
not kept. Retrained models are not trained anew: D compares with the truth ratios in runs/.

The table `gate_tofu` says what each model hides and keeps, `gate_tofu_leak` how many rows leak in
samples; gate_tofu.json says which command and commit made them. Of rows to keep and of world facts
every eighth and every third is asked. It took 20 minutes of two cores in float32, after a training
of 28.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from price import along, questions

from t3lab import profiles, results, script
from t3lab.audit import run as audit
from t3lab.explore.stories import written
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.report.tables import OURS, OWN_RATE
from t3lab.study.methods import Subject, evaluated, load_models, subject
from t3lab.study.study import Study, open_study, scored
from t3lib.core.files import project_root, write_json
from t3lib.tofu.evaluation import metrics_of
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.metrics import by_column

SPLIT, SEED = "forget10", 1
GATES = (0.5, 0.9, 0.99)
ASKED = {"retain": 8, "wf": 3}  # of each set one row in so many is asked
TAUS = (1.0, 0.3)  # temperatures of the sampler
GATED = (
    "TOFU's text taught to SmolLM2, 10% split, seed 1: T3 as tuned, without tempering, and ours. D,"
    " FQ and row r compare with held-out retrained models, D tuned on with the one on which"
    " settings and gate were chosen. retain_sampled: mean ROUGE-L recall of one answer to a row to"
    " keep, sampled at temperature 1. kl, same_token, tempered: along the base's own answers to"
    " questions that have nothing to do with the rows."
)
LEAK = (
    "Rows to forget of which one of `samples` answers contains the secret, by the sampler's"
    " temperature tau. SmolLM2, 10% split, seed 1."
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
    committed = results.read_runs(project_root() / "results" / "profiles" / "smollm" / "runs")
    others = results.references(committed)[SPLIT]
    tuned, untempered = (hyper_of(profile["hyper"], "T3", SPLIT, T) for T in (None, 1.0))
    points = candidates(tuned, untempered)
    models = [subject(study, "T3", SEED, settings) for _, settings in points]
    found = evaluated(study, models, sets=["forget"], generate=False)
    distances = [near(each["truth_ratio"]["forget"], others, [0])["D"] for each in found]
    best: dict[str, int] = {}
    for number, (name, _) in enumerate(points):
        if name not in best or distances[number] < distances[best[name]]:
            best[name] = number
    for (name, settings), distance in zip(points, distances):
        print(f"{name}, gate {settings.get('gate', 1):g}: D tuned on {distance:.3f}", flush=True)
    chosen = [models[number] for number in best.values()]
    original = subject(study, "Original", 0, {})
    few = {name: study.evaluation_rows[name][::step] for name, step in ASKED.items()}
    reports = [*texts(study, [original], few), *texts(study, chosen, few)]
    [base] = evaluated(study, [original], sets=["forget"], generate=False)
    forgot = [base, *(found[number] for number in best.values())]
    tilts = [*UNTILTED, *load_models(study, chosen).tilts]
    asked = questions()
    own = written(study.base, study.tokenizer, asked)[0]
    unrelated = [row | {"answer": text} for row, text in zip(asked, own) if text]
    draws = partial(audit.draws, study.base, study.tokenizer, tilts=tilts)
    sampled = draws(few["retain"], samples=1, tau=1.0)
    lines = []
    for number, name in enumerate(["Original", *best]):
        ratios, (head, T) = forgot[number]["truth_ratio"]["forget"], tilts[number]
        held = near(ratios, others, [seed for seed in others if seed])
        line = {"model": name, "D_tuned_on": near(ratios, others, [0])["D"], **held}
        values = by_column(reports[number])
        line |= {each: values[each] for each in ("retain_prob", "retain_rouge", "wf_rouge")}
        line["retain_sampled"] = float(np.mean(sampled[number]["samples"]))
        if head is not None:
            every = {"temperature": T, "gate": head.gate, "untrained": head.untrained}
            line |= every | along(study.base, study.tokenizer, unrelated, head, T)
        lines.append(line)
    render.write_table(out / "tables", "gate_tofu", pd.DataFrame(lines), caption=GATED)
    forget, leaks = study.evaluation_rows["forget"], []
    for tau in TAUS:
        each = draws(forget[:: len(forget) // rows], samples=samples, tau=tau)
        for name, answers in zip(["Original", *best], each):
            leaking = sum(map(any, answers["leaks"]))
            leaks.append((name, tau, samples, leaking, len(answers["leaks"])))
    columns = ["model", "tau", "samples", "rows_leaking", "rows"]
    table = pd.DataFrame(leaks, columns=columns)
    render.write_table(out / "tables", "gate_tofu_leak", table, caption=LEAK)
    write_json(out / "gate_tofu.json", script.made())


def texts(study: Study, models: Sequence[Subject], rows: Any) -> list[Any]:
    """Score and write answers of models that share their passes; return a report for each."""
    found = scored(
        [each.key for each in models],
        lambda missing: load_models(study, [models[number] for number in missing]),
        *(rows, study.scoring, study.device),
    )
    return [metrics_of(each["scores"], None, study.scoring.truth_ratio) for each in found]


def near(ratios: Any, others: dict[int, Any], seeds: Sequence[int]) -> dict[str, float]:
    """Return the means of Forget Quality, D and row r against some retrained models."""
    gaps = [results.nearness(ratios, others[seed])._asdict() for seed in seeds]
    return pd.DataFrame(gaps)[["D", "fq", "paired_r"]].mean().to_dict()


OPTIONS: script.Options = {
    "--data": {"default": "hub", "help": "folder with TOFU's files, or hub"},
    "--out": {"type": Path, "default": Path("out/smollm")},
    "--rows": {"type": int, "default": 20, "help": "to forget that are sampled (default 20)"},
    "--samples": {"type": int, "default": 4, "help": "of each row (default 4)"},
}

if __name__ == "__main__":
    script.run(lambda args: make(**vars(args)), str(__doc__), OPTIONS, as_jobs=False)
