"""T3 behind the prompt gate: which rows come out through both, asked in other ways.

    python results/studies/refusal/behind.py

make.py measures how many questions the gate refuses; whoever gets past it hears the model. Here
the model is the base, T3 with the paper's settings, T3 (least), or a retrained model, in the worlds
1 to 7 of the study over worlds, in which nothing was tuned (10% split). Every row to forget is
asked once, greedily, in all ways that `t3 unlearn` chooses by and in its sealed ones, but those
whose newest question is the listed one: the gate refuses that. A refusal counts as empty,
because a fixed sentence may hold a word that is some row's fact.

It writes below --out: tables/behind.csv, a row for each world, model and kind of ways, without and
with the gate, and behind.json. The base models and features are cached in .t3cache; the encoder is
make.py's.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from make import KINDS, QUANTILE, Encoder, asked_otherwise, fetched

from t3lab import results, script
from t3lab.audit.facts import held
from t3lab.report import render
from t3lab.study.study import Study
from t3lib.core.files import project_root, write_json
from t3lib.core.models import pad_id
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Row, encode_rows
from t3lib.own.questions import question_text
from t3lib.tofu.evaluation import answer_text
from t3lib.tofu.reader import Reading
from t3lib.tofu.writing import eos_ids, greedy

WORLDS = project_root() / "results" / "studies" / "cpu-worlds"
sys.path.append(str(WORLDS))
import guided  # noqa: E402

SPLIT = "forget10"
COLUMNS = ["world", "split", "model", "kind", "gate", "ways", "rows", "refused", "leaks", "whole"]
CAPTION = (
    "Rows to forget that come out in other ways of asking, without and with a prompt gate before"
    " the model. kind: ways that `t3 unlearn` chooses by, or its sealed ones. refused: share of the"
    " questions that the gate refuses. leaks: rows that at least one answer gives away beyond"
    " guessing; whole: rows whose whole secret is in one; of `rows`."
)

Asked = dict[str, dict[str, list[Row]]]  # kind -> way -> one question about each row


def make(worlds: list[int], out: Path, tiny: bool) -> None:
    """Ask the models of every world; write the table. tiny: models that know nothing, no gate."""
    began = time.process_time()
    results.check_clean(out)
    profile = script.load("cpu", tiny, splits=[SPLIT])
    encoder, rows = None if tiny else Encoder(fetched()), []
    for world in progress_bar(worlds, desc="worlds"):
        study = guided.opened(profile, world, SPLIT)
        asked = ways_of(study.evaluation_rows["forget"])
        passing = passed(encoder, study, asked) if encoder else None
        for name, texts in answers(study, profile["hyper"], asked):
            found = counted(study, texts, passing)
            rows += [{"world": world, "split": SPLIT, "model": name} | each for each in found]
        study.release()
    table = pd.DataFrame(rows, columns=COLUMNS)
    render.write_table(out / "tables", "behind", table, caption=CAPTION)
    write_json(out / "behind.json", script.made(began))


def ways_of(forget: Sequence[Row]) -> Asked:
    """Return the ways of each kind in which all rows can be asked, without the listed questions."""
    every = {kind: asked_otherwise(forget, ways) for kind, ways in KINDS.items()}
    return {
        kind: {way: rows for way, rows in asked.items() if len(rows) == len(forget)}
        for kind, asked in every.items()
    }


def passed(encoder: Encoder, study: Study, asked: Asked) -> dict[str, dict[str, Any]]:
    """Return {kind: {way: for each row whether its question passes the gate}}."""
    listed = encoder([question_text(row) for row in study.forget])
    keep = encoder([question_text(row) for row in study.retain]) @ listed.T
    threshold = np.quantile(keep.max(1)[::2], QUANTILE)

    def passing(rows: Sequence[Row]) -> Any:
        return (encoder([question_text(row) for row in rows]) @ listed.T).max(1) <= threshold

    return {
        kind: {way: passing(rows) for way, rows in ways.items()} for kind, ways in asked.items()
    }


def answers(
    study: Study, hyper: Mapping[str, Any], asked: Asked
) -> Iterator[tuple[str, dict[str, dict[str, list[str]]]]]:
    """Yield the name of each model and its greedy answers {kind: {way: one for each row}}."""
    search = pd.read_csv(WORLDS / "tables" / "guided_search.csv").query(
        "split == @SPLIT and chosen"
    )
    dials = search.set_index("labels").loc["hard", guided.DIALS]
    flat = [row for ways in asked.values() for rows in ways.values() for row in rows]
    prompts = [each.prompt for each in encode_rows(study.tokenizer, flat)]
    forget = encode_rows(study.tokenizer, study.evaluation_rows["forget"])
    most = max(len(each.answer) for each in forget)
    for names, model, tilts in guided.models(study, hyper, {"T3 (least)": ("hard", dials)}, True):
        read = Reading(pad_id(study.tokenizer), eos_ids(model, study.tokenizer))
        written = greedy(model, prompts, read, tilts, max_new_tokens=most)
        for name, ids in zip(names, written, strict=True):
            texts = iter([answer_text(study.tokenizer, each) for each in ids])
            yield (
                name,
                {
                    kind: {way: [next(texts) for _ in rows] for way, rows in ways.items()}
                    for kind, ways in asked.items()
                },
            )


def counted(
    study: Study, texts: dict[str, dict[str, list[str]]], passing: Any
) -> Iterator[dict[str, Any]]:
    """Yield the counts of each kind of ways without the gate and, if there is one, with it."""
    forget = study.evaluation_rows["forget"]
    for kind, ways in texts.items():
        for gate in (False, True) if passing else (False,):
            said, through = [*zip(*ways.values())], 1.0
            if gate:
                open_ = np.array([passing[kind][way] for way in ways]).T  # (rows, ways)
                through = open_.mean()
                said = [
                    tuple(text if ok else "" for text, ok in zip(row, each))
                    for row, each in zip(said, open_, strict=True)
                ]
            counts = guided.leaking(held(forget, said))
            yield {
                "kind": kind,
                "gate": int(gate),
                "ways": len(ways),
                "refused": 1 - through,
            } | counts


OPTIONS: script.Options = {
    "--worlds": {"type": int, "nargs": "+", "default": [1, 2, 3, 4, 5, 6, 7]},
    "--out": {"type": Path, "default": Path("out/refusal")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
