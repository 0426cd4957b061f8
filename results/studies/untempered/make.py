"""Does T3 without tempering forget, at a learning rate that was searched for T = 1?

    python results/studies/untempered/make.py

At profile cpu, on both splits and with every seed of the profile, it asks the original model, T3 at
T = 1 and T3 at its tuned T, each with the settings that the search chose for this T. The table
`untempered` counts answers that are the truth word for word: greedy answers to rows to forget and
to rows to keep, and answers to rows to keep that are sampled at the temperature 0.6 with top-p 0.9.
It takes 20 seconds of one core after `make`, which leaves bases and heads in the cache. made.json
says which command and commit made the table; answers.json.gz has the answers that it counts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from t3lab import profiles, results, script
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Study, open_study
from t3lib.core.files import write_json
from t3lib.core.rows import encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.samples import sample_answers

TAU, TOP_P = 0.6, 0.9
# count -> the rows whose answers are counted
COUNTED = {"forget_recited": "forget", "retain_kept": "retain", "retain_kept_sampled": "retain"}
CAPTION = (
    "T3 with and without tempering, each at the learning rate that is best for its T (empty: the"
    " model before unlearning). The counts are answers that are the truth word for word:"
    " forget_recited and retain_kept are greedy, retain_kept_sampled are sampled at the temperature"
    f" {TAU} with top-p {TOP_P}, one answer a row."
)


def make(out: Path) -> None:
    """Write the table below `out`."""
    results.check_clean(out)
    profile = profiles.load_profile("cpu")
    rows, texts = [], []
    for split in profile["splits"]:
        study = open_study(split, **{name: profile[name] for name in WORLD})
        names: dict[str, Any] = {"split": split}
        told = [(names, answers(study, study.base))]
        tuned = hyper_of(profile["hyper"], "T3", split)["temperature"]
        for T, seed in ((T, seed) for T in (1.0, tuned) for seed in profile["seeds"]):
            settings = hyper_of(profile["hyper"], "T3", split, T)
            loaded = load_models(study, [subject(study, "T3", seed, settings, T)])
            [(head, _)] = loaded.tilts
            names = {"split": split, "T": T, "lr": settings["lr"], "seed": seed}
            told.append((names, answers(study, T3ForCausalLM(study.base, head, temperature=T))))
        rows += [names | counts(study, said) for names, said in told]
        texts += [names | said for names, said in told]
    columns = ["split", "T", "lr", "seed", *(name for name in rows[0] if name != "split")]
    table = pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})
    render.write_table(out / "tables", "untempered", table, caption=CAPTION)
    results.write_packed(out / "answers.json.gz", texts)
    write_json(out / "made.json", script.made())


def answers(study: Study, model: PreTrainedModel) -> dict[str, list[str]]:
    """Return a model's answers to the rows of each count."""
    found = {}
    greedy = {"top_p": 1e-9}  # a nucleus that holds the most probable token alone
    sampled = {"tau": TAU, "top_p": TOP_P}
    options = {"seed": 0, "max_new_tokens": study.scoring.max_new_tokens}
    for name, side in COUNTED.items():
        how = sampled if name.endswith("sampled") else greedy
        rows = encode_rows(study.tokenizer, study.evaluation_rows[side])
        prompts = [each.prompt for each in rows]
        drawn = sample_answers(model, study.tokenizer, prompts, 1, **options, **how)
        found[name] = [text for [text] in drawn]
    return found


def counts(study: Study, said: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Count answers that are the truth word for word. said: the result of `answers`."""
    found = {}
    for name, side in COUNTED.items():
        rows = study.evaluation_rows[side]
        found[name] = sum(text == row["answer"] for text, row in zip(said[name], rows))
        found[f"{side}_rows"] = len(rows)
    return found


OPTIONS: script.Options = {"--out": {"type": Path, "default": Path("out/untempered")}}

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
