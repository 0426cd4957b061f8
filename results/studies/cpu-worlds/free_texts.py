"""Does free text give away the rows to forget on TOFU's text?

    python results/studies/cpu-worlds/free_texts.py --data DIR \
        --out results/profiles/tofu-cpu/another-base
    python results/studies/cpu-worlds/free_texts.py --profile smollm --data DIR --every 8 \
        --out results/profiles/smollm/another-base

guided.py writes no free text there, because it would take hours. Here every fourth or eighth row is
asked, five of each author or two or three: the samples and greedy answers of guided.py in all ways
of asking (of smollm 16 samples at three samplers), of the base, T3 as Forget Quality tunes it, T3
(least), T3 (guided) and a retrained model, and of tofu-cpu RMU (least) and WGA (least), with the
settings of OUT/tables (smollm: of its profile's, on another base). What a text gives away is
counted as in the worlds, by words of an answer that guessing does not say. The counts of a trial
with ten rows of tofu-cpu were seen before. Models that the table has are not asked again; WGA
(least) and T3 with trained guides came later.

It writes OUT/tables/free_texts.csv and OUT/free_texts.json; DIR has TOFU's files. The base models
are those of the profile's make_bases.py on this machine. Another processor gives other weights. So
the script stops if the leak of the base is not that of these tables: of tofu-cpu the same, of
smollm, whose bases are taught anew for every study, within 0.02.
"""

import time
from dataclasses import replace
from pathlib import Path

import baselines
import guided
import pandas as pd

from t3lab import results, script
from t3lab.report import render
from t3lib.core.errors import UserError
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.unlearning_errors import summary

WORLDS = Path(__file__).parent
SPLIT = "forget10"
SAMPLERS = {"tofu-cpu": guided.SAMPLERS, "smollm": {1.0: 16, 0.6: 16, 0.3: 16}}
SAME = {"tofu-cpu": 1e-5, "smollm": 0.02}  # how far the leak of the base may be from the table's
COLUMNS = guided.TEXTS[2:]


def make(profile: str, data: str | None, every: int, out: Path, tiny: bool) -> None:
    """Write free text of every model; write the table. every: which rows are asked, such as every
    fourth. tiny: the built-in world, to try it.
    """
    results.check_clean(out)
    began = time.process_time()
    given = script.load("cpu" if tiny else profile, tiny, data=data, splits=[SPLIT])
    tables = WORLDS / "tables" if tiny else out / "tables"
    if not (tables / "guided_search.csv").is_file():
        tables = WORLDS.parents[1] / "profiles" / profile / "tables"
    grid = guided.GRIDS["cpu" if tiny else profile]

    study = guided.opened(given, 1, SPLIT, grid.keep)
    rows = study.evaluation_rows
    if not tiny:
        [of_base] = guided.row_errors(study, guided.retrained(study, 1), study.base)
        each = pd.read_csv(tables / "guided_each.csv").set_index(["model", "split"])
        leak, known = summary(of_base)["leak"], each.loc[("Original", SPLIT), "leak"]
        if abs(leak - known) > SAME[profile]:
            raise UserError(
                f"{tables}/guided_each.csv is of another base (leak {known:.3f}, here {leak:.3f}):"
                " run guided.py first"
            )
    study = replace(study, evaluation_rows=rows | {"forget": rows["forget"][::every]})
    path = out / "tables" / "free_texts.csv"
    old = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=COLUMNS)

    search = pd.read_csv(tables / "guided_search.csv")
    chosen = guided.settings_of(search, SPLIT, "chosen")
    settings = {name: each for name, each in chosen.items() if name not in {*old["model"]}}
    guides = guided.guides_of(given, grid, 1, SPLIT)
    others = "Retrained" not in {*old["model"]}
    found = []
    for names, model, tilts in guided.models(study, given["hyper"], settings, others, guides):
        texts = guided.free_texts(study, model, tilts, SAMPLERS[profile])
        found += [{"model": name} | way for name, ways in zip(names, texts) for way in ways]
    if (searched := tables / "baselines_search.csv").is_file():
        points = pd.read_csv(searched)
        points = points[points["chosen"] & (points["split"] == SPLIT)]
        points = points[~(points["method"] + " (least)").isin(old["model"])]
        for facts, model in baselines.chosen_models(study, given, points):
            [ways] = guided.free_texts(study, model, UNTILTED, SAMPLERS[profile])
            found += [{"model": facts["model"]} | way for way in ways]

    new = pd.DataFrame(found, columns=COLUMNS)
    render.write_table(out / "tables", "free_texts", pd.concat([old, new], ignore_index=True))
    script.note(out / "free_texts.json", ", ".join(new["model"].drop_duplicates()), began)


OPTIONS: script.Options = {
    "--profile": {"default": "tofu-cpu", "choices": [*SAMPLERS]},
    "--every": {"type": int, "default": 4, "help": "ask every so many rows one"},
    "--out": {"type": Path, "default": Path("out/tofu-cpu")},
} | script.DATA_OPTIONS

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
