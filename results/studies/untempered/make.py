"""Does T3 without tempering forget, at a learning rate that was searched for T = 1?

    python results/studies/untempered/make.py

At profile cpu, on both splits and with every seed of the profile, it asks the original model, T3 at
T = 1 and T3 at its tuned T, each with the settings that the search chose for this T. The table
`untempered` counts answers that are the truth word for word: greedy answers to rows to forget and
to rows to keep, and answers to rows to keep that are sampled at the temperature 0.6 with top-p 0.9.
It takes 20 seconds of one core after `make`, which leaves bases and heads in the cache. made.json
says which command and commit made the table.
"""

from pathlib import Path

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
    rows = []
    for split in profile["splits"]:
        study = open_study(split, **{name: profile[name] for name in WORLD})
        rows.append({"split": split, **counts(study, study.base)})
        tuned = hyper_of(profile["hyper"], "T3", split)["temperature"]
        for T, seed in ((T, seed) for T in (1.0, tuned) for seed in profile["seeds"]):
            settings = hyper_of(profile["hyper"], "T3", split, T)
            loaded = load_models(study, [subject(study, "T3", seed, settings, T)])
            [(head, _)] = loaded.tilts
            names = {"split": split, "T": T, "lr": settings["lr"], "seed": seed}
            rows.append({**names, **counts(study, T3ForCausalLM(study.base, head, temperature=T))})
    columns = ["split", "T", "lr", "seed", *(name for name in rows[0] if name != "split")]
    table = pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})
    render.write_table(out / "tables", "untempered", table, caption=CAPTION)
    write_json(out / "made.json", script.made())


def counts(study: Study, model: PreTrainedModel) -> dict[str, int]:
    """Count answers that are the truth word for word."""
    found = {}
    greedy = {"top_p": 1e-9}  # a nucleus that holds the most probable token alone
    sampled = {"tau": TAU, "top_p": TOP_P}
    options = {"seed": 0, "max_new_tokens": study.scoring.max_new_tokens}
    for side, name, how in (
        ("forget", "forget_recited", greedy),
        ("retain", "retain_kept", greedy),
        ("retain", "retain_kept_sampled", sampled),
    ):
        rows = study.evaluation_rows[side]
        prompts = [each.ids[: each.n_prompt] for each in encode_rows(study.tokenizer, rows)]
        answers = sample_answers(model, study.tokenizer, prompts, 1, **options, **how)
        found[name] = sum(said == row["answer"] for [said], row in zip(answers, rows))
        found[f"{side}_rows"] = len(rows)
    return found


OPTIONS: script.Options = {"--out": {"type": Path, "default": Path("out/untempered")}}

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
