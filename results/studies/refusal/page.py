"""What results/pages shows of the prompt gate that refuses."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELS, plus_minus, table
from t3lab.report.order import interval

KINDS = ("as listed", "in other words", "choosing", "sealed", "same people", "to keep", "unrelated")


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. refusal: the share of questions that is refused, by set and
    kind; the built-in worlds are one line for each split, with the means over worlds; of ways of
    asking the least is in brackets. behind: the share of rows that leak without and with the gate,
    as means over worlds with half a 95% interval.
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
    return {"refusal": table(pd.DataFrame(lines)), "behind": behind(results)}


def behind(results: Path) -> str:
    """Write which rows leak through the gate and the model behind it."""
    found = pd.read_csv(results / "studies" / "refusal" / "tables" / "behind.csv")
    found = found.assign(share=found["leaks"] / found["rows"])
    lines = []
    for name, part in found.groupby("model", sort=False):
        cells = {
            f"{kind}{', gate before it' * gate}": plus_minus(*interval(each["share"]))
            for (kind, gate), each in part.groupby(["kind", "gate"])
        }
        lines.append({"": LABELS.get(str(name), name)} | cells)
    return table(pd.DataFrame(lines))
