"""What results/pages shows of the studies on SmolLM2 beside its notebooks."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELS, counted, percent, short, shown

GATED_TOFU = {
    "D": "D",
    "retain: prob.": "retain_prob",
    "words": "retain_rouge",
    "words, sampled": "retain_sampled",
    "world facts": "wf_rouge",
    "nats a token": "kl",
    "same token": "same_token",
}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. price: what unlearning changes in answers that have nothing to
    do with TOFU. gated: T3 with a gate in the two stories of notebook 00. gate_tofu: T3 with a
    gate and neutral tokens on TOFU's text.
    """
    names = ("price", "gate", "gate_tofu", "gate_tofu_leak")
    tables = (
        pd.read_csv(results / "profiles" / "smollm" / "tables" / f"{name}.csv") for name in names
    )
    price, gates, tofu, leaks = tables
    changed = {
        "model": price["model"],
        "first sentence is SmolLM2's": counted(price, "unchanged", "of"),
        "sampled": counted(price, "unchanged_sampled", "of"),
        "nats a token": "kl",
        "same most probable token": price["same_token"].map(percent),
    }
    parts = []
    for story, part in gates.groupby("story", sort=False):
        names = [
            "SmolLM2" if model == "base" else f"θ = {gate:g}, {untrained}"
            for model, gate, untrained in part[["model", "gate", "untrained"]].to_numpy()
        ]
        columns = {
            "T = 2": names,
            "said": counted(part, "said", "asked"),
            "said, all ways": counted(part, "said_in_ways", "asked"),
            "as before": counted(part, "as_before", "kept"),
            "as before, sampled": counted(part, "as_before_sampled", "kept"),
            "nats a token": "kl",
            "tempered there": part["tempered"].map(percent),
        }
        parts += [f"{story[:1].upper()}{story[1:]}:", shown(part, columns)]
    gate = [short(each) if each < 1 else "" for each in tofu["gate"]]
    columns = {"": tofu["model"].replace(LABELS), "θ": gate} | GATED_TOFU
    for tau, part in leaks.groupby("tau", sort=False):
        counts = pd.Series(counted(part, "rows_leaking", "rows"), part["model"])
        columns[f"leak, τ = {tau:g}"] = tofu["model"].map(counts)
    made = {"price": shown(price, changed), "gated": "\n\n".join(parts)}
    return made | {"gate_tofu": shown(tofu, columns, texts=2)}
