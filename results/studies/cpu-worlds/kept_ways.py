"""Ask for rows to keep in the ways of asking in which rows to forget leak.

    python results/studies/cpu-worlds/kept_ways.py

A model that breaks at every unusual question tells nothing in other ways of asking, and has
forgotten nothing. So the 100 rows to keep that are evaluated are asked in the ways of guided.py,
greedily, on the 10% split of the worlds 1 to 7: the base, T3, T3 (least), a retrained model, RMU,
and RMU and WGA with the settings of baselines.py. A text tells a row's fact if it has all of its
`fact_words` (a row without one is left out). Counted are rows whose fact is told as written, in at
least one other way, and the mean over these ways.

It writes tables/kept_ways.csv and kept_ways.json. The models are cached in .t3cache.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import baselines
import guided
import numpy as np
import pandas as pd

from t3lab import profiles, results, script
from t3lab.audit.facts import fact_words
from t3lab.profiles import hyper_of
from t3lab.report import render
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Study
from t3lib.core.files import project_root
from t3lib.core.models import pad_id
from t3lib.core.progress import progress_bar
from t3lib.core.rows import encode_rows
from t3lib.own.questions import AS_WRITTEN
from t3lib.own.truths import word_set
from t3lib.tofu.evaluation import answer_text
from t3lib.tofu.likelihood import UNTILTED, Tilt
from t3lib.tofu.reader import Reading
from t3lib.tofu.writing import eos_ids, greedy

TABLES = project_root() / "results" / "studies" / "cpu-worlds" / "tables"
SPLIT = baselines.SPLIT
COLUMNS = ["world", "split", "model", "rows", "ways", "as_written", "said", "mean_way"]
CAPTION = (
    "Rows to keep that are asked in the ways in which rows to forget leak: share of the rows whose"
    " fact a greedy answer tells, as written, in at least one of `ways` other ways (said), and as a"
    " mean over these."
)


def make(worlds: list[int], out: Path, tiny: bool) -> None:
    """Ask the models of every world; write the table. tiny: models that know nothing, T3 alone."""
    write("kept_ways", measured, worlds, out, tiny, COLUMNS, CAPTION)


def write(
    name: str,
    measure: Callable[[Study, profiles.Profile, bool], Iterable[Mapping[str, Any]]],
    worlds: Sequence[int],
    out: Path,
    tiny: bool,
    columns: Sequence[str],
    caption: str,
) -> None:
    """Measure every world and write below a folder tables/NAME.csv and NAME.json.

    measure: called with a world's study, the profile and `tiny`; returns rows without their world
    and split. Rows of worlds and models that the table has are replaced.
    """
    results.check_clean(out)
    profile = script.load("cpu", tiny, splits=[SPLIT])
    path = out / "tables" / f"{name}.csv"
    for world in progress_bar(worlds, desc="worlds"):
        began, study = time.process_time(), guided.opened(profile, world, SPLIT)
        same = {"world": world, "split": SPLIT}
        rows = pd.DataFrame([same | dict(each) for each in measure(study, profile, tiny)])
        table = guided.merged(path, rows[[*columns]])
        render.write_table(out / "tables", name, table, caption=caption)
        script.note(out / f"{name}.json", f"world {world}", began)


def measured(study: Study, profile: profiles.Profile, few: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each model. few: of `models`."""
    for names, model, tilts in models(profile, study, few):
        for name, shares in zip(names, said(study, model, tilts), strict=True):
            yield {"model": name} | shares


def models(
    profile: profiles.Profile, study: Study, few: bool
) -> Iterator[tuple[list[str], Any, list[Tilt]]]:
    """Yield names, a model and its tilts. few: T3, the base and Retrained alone."""
    search = pd.read_csv(TABLES / "guided_search.csv")
    least = {"T3 (least)": guided.settings_of(search, SPLIT, "chosen")["T3 (least)"]}
    for names, model, tilts in guided.models(study, profile["hyper"], least, True):
        yield names, model, [*tilts]
    if few:
        return
    tuned = hyper_of(profile["hyper"], "RMU", SPLIT)
    yield ["RMU"], load_models(study, [subject(study, "RMU", 1, tuned)]).model, [*UNTILTED]
    search = pd.read_csv(TABLES / "baselines_search.csv")
    for facts, model in baselines.chosen_models(study, profile, search[search["chosen"]]):
        yield [facts["model"]], model, [*UNTILTED]


def said(study: Study, model: Any, tilts: list[Tilt]) -> Iterator[dict[str, float]]:
    """Yield for each tilt {rows, ways, as_written, said, mean_way}."""
    keep, tokenizer = study.evaluation_rows["retain"], study.tokenizer
    keep = [row for row in keep if fact_words(row)]
    asked = guided.asked_in_ways(keep)
    del asked[guided.SECOND]  # is counted apart where rows to forget leak
    flat = encode_rows(tokenizer, [row for rows in asked.values() for row in rows])
    most = max(len(each.answer) for each in flat)
    read = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), study.scoring.attention_mask)
    prompts = [each.prompt for each in flat]
    for ids in greedy(model, prompts, read, tilts, max_new_tokens=most):
        texts = iter([answer_text(tokenizer, each) for each in ids])
        told = {way: [fact_words(row) <= word_set(next(texts)) for row in keep] for way in asked}
        written, others = told.pop(AS_WRITTEN), np.array([*told.values()])
        yield {
            "rows": len(keep),
            "ways": len(others),
            "as_written": np.mean(written),
            "said": others.any(0).mean(),
            "mean_way": others.mean(),
        }


OPTIONS: script.Options = {
    "--worlds": {"type": int, "nargs": "+", "default": [*range(1, 8)]},
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
