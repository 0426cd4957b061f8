"""What results/pages shows of the study of speed."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import interval, shown


def blocks(results: Path) -> dict[str, str]:
    """Return the generated block: how much slower than its base each method decodes, and the limit
    by arithmetic.
    """
    lines = pd.read_csv(results / "studies" / "speed" / "tables" / "speed.csv")
    columns = {"": lines["method"].unique()}
    for rows, title in ((1, "one row"), (8, "eight rows")):
        part = lines[lines["rows"] == rows].set_index("method").loc[columns[""]]
        ends = part[["median", "low", "high"]].to_numpy()
        columns[title] = [interval(*each, ".2f") for each in ends]
        columns[f"predicted, {title}"] = part["limit"].map("{:.2f}".format)
    return {"speed": shown(lines, columns)}
