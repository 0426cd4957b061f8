"""What results/pages shows of the prompt gate that refuses."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import table

KINDS = ("as listed", "in other words", "choosing", "sealed", "same people", "to keep", "unrelated")


def blocks(results: Path) -> dict[str, str]:
    """Return the generated block: the share of questions that is refused, by set and kind.

    The built-in worlds are one line for each split, with the means over worlds; of ways of asking
    the least is in brackets.
    """
    found = pd.read_csv(results / "studies" / "refusal" / "tables" / "refusal.csv")
    found["set"] = found["set"].str.replace(", world .*", " (mean of worlds)", regex=True)
    lines = []
    for name, part in found.groupby("set", sort=False):
        cells = {"rows": name}
        for kind in KINDS:
            one = part[part["kind"] == kind]
            worst = f" ({one['worst'].min():.0%})" if one["worst"].notna().any() else ""
            cells[kind] = f"{one['refused'].mean():.0%}{worst}" if len(one) else ""
        lines.append(cells)
    return {"refusal": table(pd.DataFrame(lines))}
