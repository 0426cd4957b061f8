"""What results/pages shows of the studies of own models beside their reports."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import table


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. long_prompts: rows told after n tokens of other texts, of the
    base and of T3.
    """
    found = pd.read_csv(results / "studies" / "own" / "long_prompts.csv").fillna("")
    shown = found["T3"].astype(str) + " (" + found["base"].astype(str) + ")"
    cells = found.assign(shown=shown, after=found["text"] + ", " + found["place"])
    alone = cells.loc[cells["tokens"] == 0, "shown"].item()
    wide = cells[cells["tokens"] > 0].pivot(index="after", columns="tokens", values="shown")
    wide.insert(0, 0, alone)
    return {"long_prompts": table(wide.rename(columns="{} tokens".format).reset_index(names=""))}
