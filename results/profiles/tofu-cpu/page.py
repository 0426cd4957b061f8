"""What results/pages shows of the paper's errors on TOFU's text: profiles tofu-cpu and smollm."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELLED, LABELS, shown, table
from t3lib.baselines.losses import METHODS
from t3lib.own.questions import AS_WRITTEN

# End of a block's name -> profile, and the learning rates at which T varies: Forget Quality chose
# them at T = 1 (at tofu-cpu at T = 2, too).
PROFILES = {
    "tofu": ("tofu-cpu", {"forget10": 4e-2}),
    "smollm": ("smollm", {"forget05": 1e-2, "forget10": 2e-2}),
}
ERRORS = {
    "Forget Error": "forget_error",
    "leak": "leak",
    "Retain Error": "retain_error",
    "total variation": "total_variation",
}
# beside the other retrained model; of the answers that the base gives word for word, how many stay
SECOND = ERRORS | {
    "D": "ks_statistic",
    "Forget Quality": "forget_quality",
    "score": "score",
    "words": "mu_rouge",
    "Model Utility": "mu",
    "stay word for word": "kept_before",
    "harmless": "harmless",
    "secrets": "secrets",
}
DIALS = {"learning rate": "lr", "T": "temperature", "θ": "gate", "ε": "tail"}
GIVEN = {f"after {n} tokens of the truth": f"{n} given" for n in (1, 2, 4)}
OTHERWISE = ("as a second turn", "in 13 other ways", *GIVEN.values())
KINDS = {"Retrained": LABELS["Retrained"], "hard": "T3 (least)", "guided": "T3 (guided)"}
KINDS |= {"pretrained": "T3 (guided, pretrained)"}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks, for each END of `PROFILES`. errors_END: T3's errors at every T
    that was searched, with the paper's labels. guided_END: the settings that the errors chose, with
    each kind of labels. guided_END_second: these settings beside the other retrained model.
    guided_tofu_again: the same of another base, with a search of its own, and RMU by the rule.
    free_texts_tofu, free_texts_smollm: which rows models give away in free text.
    errors_END_methods: methods as Forget Quality chose them, T3 at every T with its own learning
    rate, beside that model. errors_smollm_again: T3 up to T = 1.5 on another base, the tuned one
    also gated and as a power of f, and weaker heads at T = 1. sharper: powers of f
    without tempering, at the rate that the rule chose.
    """
    found = {}
    for end, (profile, rates) in PROFILES.items():
        tables = results / "profiles" / profile / "tables"
        search, by_t, chosen = pd.read_csv(tables / "guided_search.csv"), [], []
        for split, rate in rates.items():
            part = search[search["split"] == split]
            floor, hard = part[part["labels"] == "Retrained"], part[part["labels"] == "hard"]
            plain = (hard["gate"] == 1) & (hard["tail"] == 0) | (hard["temperature"] == 1)
            own_rate = hard[plain & (hard["lr"] == rate)].sort_values("temperature")
            by_t += [floor, own_rate]
            chosen += [floor, part[part["chosen"]]]

        at_t, picked = pd.concat(by_t), pd.concat(chosen)
        names = [
            LABELS["Retrained"] if pd.isna(T) else f"T3, T = {T:g}" for T in at_t["temperature"]
        ]
        dials = {
            title: [f"{value:g}" if pd.notna(value) else "" for value in picked[dial]]
            for title, dial in DIALS.items()
        }
        found |= {
            f"errors_{end}": lines(at_t, names, ERRORS),
            f"guided_{end}": lines(picked, picked["labels"].map(KINDS), dials | ERRORS),
        }

        second = pd.read_csv(tables / "guided_each.csv")
        second = second.sort_values("split", kind="stable").dropna(axis=1, how="all")
        measured = {title: name for title, name in SECOND.items() if name in second}
        found[f"guided_{end}_second"] = lines(second, second["model"].replace(LABELS), measured)

        each = pd.read_csv(tables / "errors_each.csv")
        if "Retrained" not in set(each["method"]):
            floor = second[(second["model"] == "Retrained") & second["split"].isin(each["split"])]
            each = pd.concat([each, floor.rename(columns={"model": "method"})])
        order = each["method"].map([*METHODS].index)
        each = each.assign(order=order).sort_values(["split", "order", "temperature", "w", "gate"])
        found[f"errors_{end}_methods"] = lines(each, named(each), ERRORS | {"kept": "kept"})

    tables = results / "profiles" / "tofu-cpu" / "tables"
    sharper = pd.read_csv(tables / "sharper.csv")
    rate = sharper.loc[sharper["chosen"], "lr"].item()
    sharper = sharper[(sharper["labels"] == "Retrained") | (sharper["lr"] == rate)]
    powers = [LABELS["Retrained"] if pd.isna(w) else f"f^{w:g}, T = 1" for w in sharper["w"]]
    found["sharper"] = lines(sharper, powers, ERRORS)

    of_again = tables.parent / "another-base" / "tables"
    files = ("guided_each.csv", "baselines_each.csv")
    again = pd.concat([pd.read_csv(of_again / name) for name in files])
    again = again.sort_values("model", key=lambda names: names == "Retrained", kind="stable")
    found["guided_tofu_again"] = lines(again, again["model"].replace(LABELS), SECOND)
    texts = pd.read_csv(of_again / "free_texts.csv")
    asked = again.loc[again["model"].isin(texts["model"]), "model"]
    found["free_texts_tofu"] = told(texts, asked)

    smollm = results / "profiles" / "smollm"
    each = pd.read_csv(smollm / "another-base" / "tables" / "errors_each.csv")
    each = each[(each["temperature"] <= 1.5) | each["temperature"].isna()]
    each = each.sort_values(["temperature", "w", "gate", "lr"], na_position="first")
    rates = {"learning rate": [f"{lr:g}" if lr > 0 else "" for lr in each["lr"]]}
    found["errors_smollm_again"] = lines(each, named(each), rates | ERRORS | {"kept": "kept"})
    texts = pd.read_csv(smollm / "another-base" / "tables" / "free_texts.csv")
    found["free_texts_smollm"] = told(texts, texts["model"].drop_duplicates())

    return found


def named(rows: pd.DataFrame) -> list[str]:
    """Name each row of a table errors_each by its method, T, and w and gate unless they are 1."""
    return [
        LABELS.get(method, method)
        + ("" if pd.isna(T) else f", T = {T:g}")
        + f", f^{w:g}" * (w > 1)
        + f", gated (θ = {gate:g})" * (gate < 1)
        for method, T, w, gate in rows[["method", "temperature", "w", "gate"]].to_numpy()
    ]


def told(texts: pd.DataFrame, models: pd.Series) -> str:
    """Write of how many rows each model gives a fact away in free text, and how many it tells whole
    (in brackets), in a column for each way of asking.

    texts: the table `free_texts`. models: their order.
    """
    asked = {
        (n, tau): f"{n:g}{' samples' if tau == 1 else ''}, τ = {tau:g}" if tau else "greedily"
        for n, tau in texts.loc[texts["way"] == AS_WRITTEN, ["samples", "tau"]].to_numpy()
    }
    title = [
        asked[n, tau] if way == AS_WRITTEN else GIVEN.get(way, way)
        for way, n, tau in texts[["way", "samples", "tau"]].to_numpy()
    ]
    cells = texts.assign(
        told=texts["leaks"].astype(str) + " (" + texts["whole"].astype(str) + ")", title=title
    ).pivot(index="model", columns="title", values="told")
    order = sorted(asked.values(), key="greedily".__ne__)
    return table(cells.loc[models, [*order, *OTHERWISE]].rename(LABELS).reset_index(names=""))


def lines(rows: pd.DataFrame, names: object, columns: dict[str, object]) -> str:
    """Write a table with a name for each row; with the split, if there is more than one."""
    splits = rows["split"].map(LABELLED)
    first: dict[str, object] = {"": names} | ({"split": splits} if splits.nunique() > 1 else {})
    return shown(rows, first | columns, texts=len(first))
