"""What do gated tempering and neutral tokens buy at profile cpu? (Ours, not the paper's.)

    python results/studies/gate/make.py

T3 (gated) tempers only where r(x) < gate, T3 (neutral) leaves tokens alone that no row taught, and
T3 (gated, neutral) does both. For each, the learning rate, T and gate are searched as T3's rate and
T were: the best mean Forget Quality against the first retrained model. Each choice then runs with
every seed of the profile, beside T3 as tuned and T3 without tempering at its own rate, and is
compared with retrained models that are held out. Seed 1 is audited and sampled.

It writes below --out: tuned.yaml has every trial and what was chosen; the table `gate_cpu` what
each choice hides and keeps; `gate_leak` the rows that leak in sixteen samples; `gate_dial` and a
figure what happens at T3's own rate and T as the gate moves from 0 to 1. runs.json.gz has
the metrics and the truth ratio of every row of each run behind gate_cpu and gate_dial, made.json
which command and commit made them. It takes about half an hour of one core, a third of it to train
base models, which .t3cache keeps.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from t3lab import profiles, results, script
from t3lab.profiles import WORLD, hyper_of, seeds_of
from t3lab.report import plots_gate, render
from t3lab.report.tables import OWN_RATE
from t3lab.results import HELD_OUT
from t3lab.study.audit import Sampling, audit_method
from t3lab.study.records import run_method
from t3lab.study.study import Study, open_study
from t3lab.study.tune import tune_t3, write_choice
from t3lib.baselines.losses import settings_of
from t3lib.core.files import write_json

GATES = (0.5, 0.9, 0.99)
# name: T3's own settings beside the paper's, and whether gates are searched with them
SEARCHED: dict[str, tuple[dict[str, Any], bool]] = {
    "T3 (gated)": ({}, True),
    "T3 (neutral)": ({"untrained": "neutral"}, False),
    "T3 (gated, neutral)": ({"untrained": "neutral"}, True),
}
FEW = Sampling(samples=2, samplers=((0.5, 1.0),), further=2, rows=2)  # of --tiny
DIAL = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
KNOWN = ("recognized_verbatim", "auc", "facts")  # measures of an audit
MEANS = ["fq", *HELD_OUT, "mu", "mu_rouge", "retain_prob", "retain_rouge", "retain_tr"]
MEANS += ["ra_rouge", "wf_rouge"]
KEPT = ("method", "split", "seed", "T", "hyper", "metrics", "truth_ratio")  # of a run
CPU = (
    "T3 with a gate, with neutral tokens and with both, at the learning rate, T and gate with the"
    " best mean Forget Quality against the first retrained model (FQ), beside T3 as tuned and"
    " without tempering. Profile cpu, means over seeds. FQ and KS D, held out, and row r compare"
    " with the other retrained models. recognized_verbatim, auc and facts are audits of seed 1."
)
LEAK = (
    "Rows to forget of which one of 16 sampled answers contains the secret, out of `rows`, at each"
    " temperature tau and top p of the sampler. Profile cpu, seed 1."
)
MOVED = "T3 at its tuned rate and T as the gate moves: 1 is the paper's T3, 0 never tempers."

Settings = Mapping[str, Any]


def make(out: Path, tiny: bool) -> None:
    """Write all of it.

    tiny: one split and seed of models that know nothing, to try the script.
    """
    results.check_clean(out)
    profile = profiles.load_profile("cpu")
    profile = script.tiny(profile, grids={"T3": [{"lr": 1e-3}]}) if tiny else profile
    gates, dial = ((0.5,), (0.5, 1.0)) if tiny else (GATES, DIAL)
    began, lines, leaks, moved, every_run = time.process_time(), [], [], [], {}
    for split in profile["splits"]:
        study = open_study(split, **{name: profile[name] for name in WORLD})
        chosen = dict(choices(study, profile, gates, out / "tuned.yaml"))
        retrained = seeds_of("Retrained", profile["seeds"])
        held_out = [*run_method(study, "Retrained", seeds=retrained, settings={})]
        of_split = every_run[split] = {"Retrained": held_out}
        for name, settings in chosen.items():
            known, colder = audited(study, settings, FEW if tiny else sampling())
            every = settings_of("T3", settings)
            row = {name: every[name] for name in ("lr", "temperature", "gate", "untrained")}
            of_split[name] = [*run_method(study, "T3", seeds=profile["seeds"], settings=settings)]
            row |= means(of_split[name], held_out) | known
            lines.append({"split": split, "model": name} | row)
            leaks += [{"split": split, "model": name} | each for each in colder]
        for gate in dial:
            at, name = chosen["T3"] | {"gate": gate}, f"T3, gate {gate:g}"
            of_split[name] = [*run_method(study, "T3", seeds=profile["seeds"], settings=at)]
            moved.append({"split": split, "gate": gate} | means(of_split[name], held_out))
    tables = {"gate_cpu": (lines, CPU), "gate_leak": (leaks, LEAK), "gate_dial": (moved, MOVED)}
    for name, (rows, caption) in tables.items():
        render.write_table(out / "tables", name, pd.DataFrame(rows), caption=caption)
    render.save_figure(out / "figures" / "gate_dial.svg", plots_gate.dial(pd.DataFrame(moved)))
    kept = {
        split: {
            name: [{key: run[key] for key in KEPT} for run in runs] for name, runs in of.items()
        }
        for split, of in every_run.items()
    }
    results.write_packed(out / "runs.json.gz", kept)
    write_json(out / "made.json", script.made(began))


def choices(
    study: Study, profile: profiles.Profile, gates: Sequence[float], path: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, settings) of each T3 that is compared; the searched ones are written to `path`
    with all their trials.
    """
    tuned = hyper_of(profile["hyper"], "T3", study.split)
    yield "T3", tuned
    yield OWN_RATE, hyper_of(profile["hyper"], "T3", study.split, 1.0) | {"temperature": 1.0}
    base = {name: value for name, value in tuned.items() if name != "temperature"}
    for name, (ours, gated) in SEARCHED.items():
        each = [{"gate": gate} for gate in gates] if gated else [{}]
        points = [base | rate | ours | one for rate in profile["grids"]["T3"] for one in each]
        found = tune_t3(study, points, profile["temperatures"], profile["search_seeds"])
        entry = found[f"T3/{study.split}"]
        write_choice(path, {f"{name}/{study.split}": entry})
        print(f"{name} {study.split}: {entry['chosen']}", flush=True)
        yield name, entry["chosen"]


def means(runs: Sequence[results.Run], retrained: Sequence[results.Run]) -> dict[str, Any]:
    """Return the means over seeds of what T3 with some settings hides and keeps.

    runs: of these settings. retrained: of the held-out models.
    """
    frame = results.tidy([*retrained, *runs]).query("method == 'T3'")
    return {"n_seeds": len(frame)} | frame[MEANS].mean().to_dict()


def sampling() -> Sampling:
    """Return what the audit samples: 16 answers at every sampler of the profile."""
    samplers = profiles.load_profile("cpu")["notebooks"]["06_audit"]["sampling"]["samplers"]
    return Sampling(samples=16, samplers=tuple(map(tuple, samplers)), further=16)


def audited(study: Study, settings: Settings, how: Sampling) -> tuple[dict[str, Any], list[Any]]:
    """Audit seed 1: return measures, and the rows that leak at each sampler's temperature."""
    found = next(
        run
        for run in audit_method(study, "T3", seeds=[1], settings=settings, sampling=how)
        if run["T"] == settings["temperature"] and run["w"] == 1
    )
    whole = {"tau": 1.0, "top_p": 1.0}
    leaks = [
        {name: (whole | each)[name] for name in ("tau", "top_p", "rows_leaking", "rows")}
        for each in found["leak"]
        if each["k"] == how.samples
    ]
    return {name: found["metrics"].get(name) for name in KNOWN}, leaks


OPTIONS: script.Options = {
    "--out": {"type": Path, "default": Path("out/gate")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
