"""What results/pages shows of the paper's errors on TOFU's text (profile tofu-cpu, 10% split)."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELS, shown

RATE = 4e-2  # T3's learning rate, chosen by Forget Quality both at T = 1 and at T = 2
ERRORS = {
    "Forget Error": "forget_error",
    "leak": "leak",
    "Retain Error": "retain_error",
    "total variation": "total_variation",
}
# beside the other retrained model; kept: answers that the base gives word for word
SECOND = ERRORS | {
    "D": "ks_statistic",
    "Forget Quality": "forget_quality",
    "score": "score",
    "words": "mu_rouge",
    "Model Utility": "mu",
    "kept": "kept_before",
    "harmless": "harmless",
    "secrets": "secrets",
}
DIALS = {"learning rate": "lr", "T": "temperature", "θ": "gate", "ε": "tail"}
KINDS = {"Retrained": LABELS["Retrained"], "hard": "T3 (least)", "guided": "T3 (guided)"}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. errors_tofu: T3's errors at every T that was searched, with the
    paper's labels. guided_tofu: the settings that the errors chose, with both kinds of labels.
    guided_tofu_second: these settings beside the other retrained model.
    """
    second = pd.read_csv(results / "profiles" / "tofu-cpu" / "tables" / "guided_each.csv")
    search = pd.read_csv(results / "profiles" / "tofu-cpu" / "tables" / "guided_search.csv")
    floor = search[search["labels"] == "Retrained"]

    plain = (search["labels"] == "hard") & (search["gate"] == 1) & (search["tail"] == 0)
    cold = (search["labels"] == "hard") & (search["temperature"] == 1)
    by_t = search[(plain | cold) & (search["lr"] == RATE)].sort_values("temperature")
    names = [LABELS["Retrained"], *(f"T3, T = {T:g}" for T in by_t["temperature"])]

    chosen = pd.concat([floor, search[search["chosen"]]])
    dials = {
        title: [f"{value:g}" if pd.notna(value) else "" for value in chosen[dial]]
        for title, dial in DIALS.items()
    }
    return {
        "errors_tofu": shown(pd.concat([floor, by_t]), {"": names} | ERRORS),
        "guided_tofu": shown(chosen, {"": chosen["labels"].map(KINDS)} | dials | ERRORS),
        "guided_tofu_second": shown(second, {"": second["model"].replace(LABELS)} | SECOND),
    }
