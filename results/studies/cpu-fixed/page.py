"""What results/pages shows of T3 with the same rows to keep in every epoch."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELLED, shown


def blocks(results: Path) -> dict[str, str]:
    """Return the generated block: redrawn rows to keep beside those that stay the same."""
    lines = pd.read_csv(results / "studies" / "cpu-fixed" / "tables" / "fixed_epoch.csv")
    columns = {
        "rows to keep": lines["setting"],
        "split": lines["split"].map(LABELLED),
        "T": lines["T"].map("{:g}".format),
        "learning rate": lines["lr"].map("{:g}".format),
        "D": "ks_held_out",
        "words kept": "retain_rouge",
    }
    return {"fixed": shown(lines, columns)}
