"""Find forgotten questions by how unsure a model is: T3, gated T3, and retrained models.

    python results/studies/gate/entropy.py

Tempering flattens probabilities. Gated T3 flattens them only where something is to be forgotten, so
an attacker who sees probabilities may find the forgotten questions by their entropy. For each model
of profile cpu (seed 1), every question to forget and as many to keep are answered greedily. The
table `entropy` has the mean entropy of the answers' tokens in nats, and auc: how often a question
to forget has a larger entropy than a question to keep (0.5: the attacker learns nothing). It takes
two minutes after profile cpu, whose models it uses.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu

from t3lab import profiles, script
from t3lab.names import SPLITS
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Loaded, Study, open_study
from t3lib.core.files import project_root
from t3lib.core.rows import Row, encode_rows
from t3lib.sampler.tilt import T3ForCausalLM

# name: (method, its seed, changes of its settings); another T also has its own learning rate
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Original": ("Original", 0, {}),
    "Retrained": ("Retrained", 1, {}),
    "T3": ("T3", 1, {}),
    "T3 (gated)": ("T3", 1, {"gate": 0.9}),
    "T3 (T = 1)": ("T3", 1, {"temperature": 1.0}),
}
CAPTION = (
    "How unsure models are of questions to forget and to keep, profile cpu, seed 1. T3 (gated) is"
    " ours, at gate 0.9."
)


@torch.no_grad()
def entropies(study: Study, loaded: Loaded, rows: Sequence[Row]) -> list[float]:
    """Return the mean entropy over the tokens of the model's greedy answer to each row, in nats."""
    model, tokenizer, tilts = loaded
    if tilts:
        [(head, T)] = tilts
        model = T3ForCausalLM(model, head, T)
    found = []
    for row in encode_rows(tokenizer, rows):
        prompt = torch.tensor([row.prompt])
        most = study.scoring.max_new_tokens
        text = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=most,
                              do_sample=False)  # fmt: skip
        logp = model(text).logits[0, row.n_prompt - 1 : -1].log_softmax(-1)
        found.append(float(-(logp.exp() * logp).sum(-1).mean()))
    return found


def make(_: argparse.Namespace) -> None:
    """Write the table below results/studies/gate."""
    profile, lines = profiles.load_profile("cpu"), []
    for split in SPLITS:
        study = open_study(split, **{name: profile[name] for name in WORLD})
        forget = study.evaluation_rows["forget"]
        keep = study.evaluation_rows["retain"][: len(forget)]
        for name, (method, seed, changes) in MODELS.items():
            T = changes.get("temperature")
            settings = hyper_of(profile["hyper"], method, split, T) | changes
            loaded = load_models(study, [subject(study, method, seed, settings)])
            both = [np.array(entropies(study, loaded, rows)) for rows in (forget, keep)]
            auc = mannwhitneyu(*both).statistic / (len(forget) * len(keep))
            lines.append((split, name, both[0].mean(), both[1].mean(), auc, len(forget), len(keep)))
    columns = ["split", "model", "to_forget", "to_keep", "auc", "forget_rows", "keep_rows"]
    table = pd.DataFrame(lines, columns=columns)
    render.write_table(
        project_root() / "results" / "studies" / "gate" / "tables",
        "entropy",
        table,
        caption=CAPTION,
    )


if __name__ == "__main__":
    script.run(make, __doc__, {}, as_jobs=False)
