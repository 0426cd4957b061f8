"""What results/pages shows of the paper's errors on TOFU's text (profile tofu-cpu, 10% split)."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELS, shown, table

RATE = 4e-2  # T3's learning rate, chosen by Forget Quality both at T = 1 and at T = 2
ERRORS = {
    "Forget Error": "forget_error",
    "leak": "leak",
    "Retain Error": "retain_error",
    "total variation": "total_variation",
}
MEASURES = ERRORS | {"D": "ks_statistic", "words": "mu_rouge", "score": "score"}
MEASURES |= {"Model Utility": "mu", "kept": "kept_before", "harmless": "harmless"}
MODELS = ("Original", "Retrained", "T3", "T3 (least)", "T3 (guided)")


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. errors_tofu: T3's errors at every T that was searched.
    guided_tofu: settings that the errors chose. guided_tofu_texts: rows that say their whole fact.
    """
    tables = results / "tofu-cpu" / "tables"
    search, each, texts = (
        pd.read_csv(tables / f"guided_{name}.csv") for name in ("search", "each", "texts")
    )
    plain = (search["labels"] == "hard") & (search["gate"] == 1) & (search["tail"] == 0)
    by_t = search[plain & (search["lr"] == RATE)].sort_values("temperature")
    rows = pd.concat([search[search["labels"] == "Retrained"], by_t])
    names = [LABELS["Retrained"], *(f"T3, T = {T:g}" for T in by_t["temperature"])]
    columns = {title: rows[measure].map("{:.2f}".format) for title, measure in ERRORS.items()}

    models = each.set_index("model").loc[[*MODELS]]
    settings = models[["lr", "temperature", "gate", "tail"]]
    cells = {"": [LABELS.get(name, name) for name in MODELS]}
    cells |= {
        title: [f"{value:g}" if pd.notna(value) else "" for value in settings[dial]]
        for title, dial in zip(("learning rate", "T", "θ", "ε"), settings)
    }
    cells |= {title: models[measure].map("{:.2f}".format) for title, measure in MEASURES.items()}

    way = texts["way"].where(texts["tau"] == 0, texts["way"] + texts["tau"].map(", τ = {:g}".format))
    wide = texts.assign(way=way).pivot_table("whole", "way", "model", sort=False)[[*MODELS]]
    wide = wide.rename(columns=LABELS).map("{:g}".format).rename_axis(index="", columns=None)
    return {
        "errors_tofu": shown(rows, {"": names} | columns),
        "guided_tofu": shown(models, cells),
        "guided_tofu_texts": table(wide.reset_index()),
    }
