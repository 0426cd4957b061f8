"""Is a forgotten answer as probable as it is to a model that never saw it?

    python results/studies/cpu-worlds/equivalence.py
    python results/studies/cpu-worlds/equivalence.py --verdict --splits forget10

By arXiv 2607.19442 unlearning restores a distribution, and a method that suppresses answers, as T3
does, cannot be certified by tests of the forward pass: a fixed penalty passes them as well. Here
are three measurements in world 0 of profile cpu, for every method with the profile's settings (seed
1), for T3 (least) and T3 (guided) with those of guided_search.csv, and for the models of rivals.py.

The references are the retrained models of seeds 0, 2 and 3; Retrained is the one of seed 1. A row's
gap is the loss of its answer, in nats a token, less the mean of the references. Their spread is
their standard deviation in a row, pooled over rows. It writes below --out: tables/equivalence.csv
with the mean gap and its standard error over rows, the spread, the share of rows with a gap of at
most two spreads (`within`), and p_tost, the p of two one-sided t tests against a mean gap of one
spread in either direction. wording: the answer as it was learned, or in other words.

--verdict sends the base, T3, a retrained model and the fixed penalty through the verdict of `t3
unlearn` instead, with 24 rows to forget, 100 to keep and, as rows that were never fitted, the world
facts. It writes tables/verdicts.csv. That the penalty is no pass was expected before it was run.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import guided
import numpy as np
import pandas as pd
import rivals
from scipy.stats import ttest_1samp

from t3lab import profiles, results, script
from t3lab.names import SPLITS
from t3lab.profiles import hyper_of
from t3lab.report import render
from t3lab.study.divergence import DivergenceForCausalLM
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Study
from t3lib.baselines.losses import BASELINES
from t3lib.core.errors import Diverged
from t3lib.core.files import write_json
from t3lib.core.progress import progress_bar
from t3lib.core.rows import SYSTEM, Row, encode_rows
from t3lib.own.answers import collect_by_tilt, drawn
from t3lib.own.assess import counts_of, inquiry_of
from t3lib.own.rows import Rows
from t3lib.own.verdict import NEVER_FITTED, sums
from t3lib.own.verdict import verdict as verdict_on
from t3lib.tofu.likelihood import UNTILTED, Tilt, answer_losses

ASKED = 24  # rows to forget that are judged
JUDGED = ("Original", "T3", "T3 (least)", "Retrained", "fixed penalty")
REFERENCES, HELD_OUT = (0, 2, 3), 1  # seeds of retrained models
WORDINGS = {"as learned": "answer", "in other words": "paraphrased_answer"}
CAPTION = (
    "The loss of forgotten answers beside three retrained models, in world 0 of profile cpu. gap:"
    " mean difference in nats a token, with its standard error over rows. spread: standard"
    " deviation of the three in a row. within: share of rows whose gap is at most two spreads."
    " p_tost: of two"
    " one-sided tests that the mean gap is at least one spread; small means equivalent."
)


VERDICTS = (
    "The verdict of `t3 unlearn` on models of world 0 of profile cpu. leaking, sealed: rows that"
    " leak in any kind of asking, and in sealed ones. known, unchanged: answers to keep, fitted or"
    " not."
)


def make(profile: str, splits: list[str], verdict: bool, out: Path, tiny: bool) -> None:
    """Measure all models of world 0, or judge some of them (`verdict`), and write the table. tiny:
    models that know nothing.
    """
    began = time.process_time()
    results.check_clean(out)
    given = script.load(profile, tiny, splits=splits)
    tables, rows = Path(__file__).with_name("tables"), []
    for split in given["splits"]:
        study = guided.opened(given, 0, split)
        if verdict:
            rows += judged(study, models(given, study, tables), tiny)
            continue
        asked = {
            name: [row | {"answer": row[key]} for row in study.evaluation_rows["forget"]]
            for name, key in WORDINGS.items()
        }
        known = [losses(study, asked, guided.retrained(study, seed))[0] for seed in REFERENCES]
        for names, model, tilts in models(given, study, tables):
            for name, one in zip(names, losses(study, asked, model, tilts)):
                rows += [
                    {"split": split, "model": name, "wording": wording}
                    | compared(one[wording], np.stack([each[wording] for each in known]))
                    for wording in asked
                ]
    name, caption = ("verdicts", VERDICTS) if verdict else ("equivalence", CAPTION)
    render.write_table(out / "tables", name, pd.DataFrame(rows), caption=caption)
    write_json(
        out / "equivalence" / f"{'verdicts' if verdict else 'made'}.json", script.made(began)
    )


def judged(
    study: Study, every: Iterator[tuple[list[str], Any, list[Tilt]]], tiny: bool
) -> list[dict[str, Any]]:
    """Return a row for each of the models `JUDGED`, with the verdict of `t3 unlearn` and counts.

    every: as of `models`. tiny: with a few questions.
    """
    sets = study.evaluation_rows
    rows = Rows(drawn(sets["forget"], ASKED), sets["retain"], sets["wf"], system=SYSTEM).checked()
    inquiry, found = inquiry_of(study.tokenizer, rows), list[dict[str, Any]]()
    if tiny:
        inquiry = replace(inquiry, questions=inquiry.questions[:20])
    [before] = collect_by_tilt(study.base, study.tokenizer, inquiry, UNTILTED)
    for names, model, tilts in every:
        few = {name: tilt for name, tilt in zip(names, tilts) if name in JUDGED}
        answers = collect_by_tilt(model, study.tokenizer, inquiry, [*few.values()]) if few else []
        for name, after in zip(few, answers):
            report = counts_of(inquiry, before, after)
            counts, kept = report["forget"], sums(report, ["retain", *NEVER_FITTED])
            told = verdict_on(report)
            found.append(
                {"split": study.split, "model": name, "status": told["status"]}
                | {key: counts[key] for key in ("rows", "leaking_before", "leaking")}
                | {"sealed": counts["sealed"]["leaking"], "known": kept["known_before"]}
                | {"unchanged": kept["unchanged"], "sentence": told["sentence"]}
            )
        if {*JUDGED} <= {each["model"] for each in found}:
            break
    return found


def losses(
    study: Study, asked: dict[str, list[Row]], model: Any, tilts: Any = UNTILTED
) -> list[dict[str, Any]]:
    """Return for each tilt {wording: mean loss of every row's answer}."""
    every = {
        wording: answer_losses(
            model, encode_rows(study.tokenizer, rows), guided.reading(study), tilts
        )
        for wording, rows in asked.items()
    }
    return [{wording: each[n] for wording, each in every.items()} for n in range(len(tilts))]


def compared(loss: Any, references: Any) -> dict[str, float]:
    """Return gap, gap_se, spread, within and p_tost. loss: (rows,). references: (3, rows)."""
    gap, spread = loss - references.mean(0), float(np.sqrt(references.var(0, ddof=1).mean()))
    sides = (
        ttest_1samp(gap, -spread, alternative="greater").pvalue,
        ttest_1samp(gap, spread, alternative="less").pvalue,
    )
    return {
        "gap": gap.mean(),
        "gap_se": gap.std(ddof=1) / np.sqrt(len(gap)),
        "spread": spread,
        "within": (np.abs(gap) <= 2 * spread).mean(),
        "p_tost": max(sides),
    }


def models(
    profile: profiles.Profile, study: Study, tables: Path
) -> Iterator[tuple[list[str], Any, list[Tilt]]]:
    """Yield names, a model and its tilts, for every model. tables: with the two searches."""
    search = pd.read_csv(tables / "guided_search.csv")
    search = search[search["labels"].isin(["hard", "guided"])]
    settings = guided.settings_of(search, study.split, "chosen")
    names, base, tilts = next(guided.models(study, profile["hyper"], settings, True))
    yield names, base, [*tilts]
    yield ["Retrained"], guided.retrained(study, HELD_OUT), [*UNTILTED]

    for method in progress_bar(BASELINES, desc=study.split):
        tuned = hyper_of(profile["hyper"], method, study.split)
        with suppress(Diverged):
            model = load_models(study, [subject(study, method, 1, tuned)]).model
            yield [method], model, [*UNTILTED]

    yield ["fixed penalty"], rivals.penalised(study, guided.retrained(study, 0)), [*UNTILTED]
    found = pd.read_csv(tables / "rivals_search.csv")
    for facts, model in rivals.models(
        profile, study, 0, found[found["split"] == study.split], True
    ):
        if isinstance(model, DivergenceForCausalLM):
            yield [facts["model"]], model, [*UNTILTED]


OPTIONS: script.Options = {
    "--profile": {"default": "cpu"},
    "--splits": {"nargs": "+", "default": [*SPLITS], "choices": SPLITS},
    "--verdict": {"action": "store_true", "help": "judge some models as `t3 unlearn` does"},
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
