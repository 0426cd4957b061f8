"""What results/pages shows of T3 without tempering."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELLED, LABELS, counted, shown


def blocks(results: Path) -> dict[str, str]:
    """Return the generated block: rows recited and kept word for word, tempered and not."""
    lines = pd.read_csv(results / "studies" / "untempered" / "tables" / "untempered.csv").fillna(
        {"T": 0}
    )
    sums = lines.groupby(["split", "T"]).sum().reset_index()
    columns = {
        "": [f"T3, T = {T:g}" if T else LABELS["Original"] for T in sums["T"]],
        "split": sums["split"].map(LABELLED),
        "to forget, recited": counted(sums, "forget_recited", "forget_rows"),
        "kept": counted(sums, "retain_kept", "retain_rows"),
        "sampled": counted(sums, "retain_kept_sampled", "retain_rows"),
    }
    return {"untempered": shown(sums, columns, texts=2)}
