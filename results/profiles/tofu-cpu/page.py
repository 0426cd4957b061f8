"""What results/pages shows of the paper's errors on TOFU's text (10% split): profiles tofu-cpu and
smollm.
"""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELS, shown

# End of a block's name -> profile, and the learning rate at which T varies: Forget Quality chose it
# at T = 1 (at tofu-cpu at T = 2, too).
PROFILES = {"tofu": ("tofu-cpu", 4e-2), "smollm": ("smollm", 2e-2)}
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
KINDS |= {"pretrained": "T3 (guided, pretrained)"}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks, for each END of `PROFILES`. errors_END: T3's errors at every T
    that was searched, with the paper's labels. guided_END: the settings that the errors chose, with
    each kind of labels. guided_END_second: these settings beside the other retrained model.
    """
    found = {}
    for end, (profile, rate) in PROFILES.items():
        tables = results / "profiles" / profile / "tables"
        search = pd.read_csv(tables / "guided_search.csv")
        floor = search[search["labels"] == "Retrained"]

        plain = (search["labels"] == "hard") & (search["gate"] == 1) & (search["tail"] == 0)
        cold = (search["labels"] == "hard") & (search["temperature"] == 1)
        by_t = search[(plain | cold) & (search["lr"] == rate)].sort_values("temperature")
        names = [LABELS["Retrained"], *(f"T3, T = {T:g}" for T in by_t["temperature"])]

        chosen = pd.concat([floor, search[search["chosen"]]])
        dials = {
            title: [f"{value:g}" if pd.notna(value) else "" for value in chosen[dial]]
            for title, dial in DIALS.items()
        }
        found |= {
            f"errors_{end}": shown(pd.concat([floor, by_t]), {"": names} | ERRORS),
            f"guided_{end}": shown(chosen, {"": chosen["labels"].map(KINDS)} | dials | ERRORS),
        }
        second = pd.read_csv(tables / "guided_each.csv").dropna(axis=1, how="all")
        measured = {title: name for title, name in SECOND.items() if name in second}
        names = second["model"].replace(LABELS)
        found[f"guided_{end}_second"] = shown(second, {"": names} | measured)
    return found
