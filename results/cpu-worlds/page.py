"""What results/pages shows of the study over worlds."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELLED, LABELS, interval, shown, table
from t3lab.report.order import interval as mean_interval
from t3lab.report.tables import OURS, OWN_RATE
from t3lib.baselines.losses import METHODS

MEASURES = {"ks_held_out": "D", "mu_rouge": "MU-ROUGE", "mu": "Model Utility"}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. worlds: means of D and MU-ROUGE with their 95% intervals.
    gate_worlds: gated T3 minus others in the same world, as means over worlds.
    """
    tables = results / "cpu-worlds" / "tables"
    methods, columns = [*METHODS, OWN_RATE, *OURS], {}
    means = (
        pd.read_csv(tables / "worlds.csv").set_index(["measure", "split", "method"]).sort_index()
    )
    for measure, split in ((m, s) for m in [*MEASURES][:2] for s in LABELLED):
        ends = means.loc[measure, split].loc[methods, ["mean", "low", "high"]].to_numpy()
        columns[f"{MEASURES[measure]}, {LABELLED[split]}"] = [interval(*e, ".2f") for e in ends]
    each, rows = pd.read_csv(tables / "worlds_each.csv"), []
    for split, rival in ((split, rival) for split in LABELLED for rival in ("T3", "RMU", "WGA")):
        by = each[each["split"] == split].pivot(index="world", columns="method")
        gaps = {title: by[m][OURS[0]] - by[m][rival] for m, title in MEASURES.items()}
        cells = {title: interval(*mean_interval(gap)) for title, gap in gaps.items()}
        rows.append({"T3 (gated) minus": rival, "split": LABELLED[split]} | cells)
    return {
        "worlds": shown(means, {"": [LABELS.get(name, name) for name in methods]} | columns),
        "gate_worlds": table(pd.DataFrame(rows), texts=2),
    }
