"""Show what models write in place of the true answers: counts and typical rows, from run files."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # "forget" and "retain" -> questions and answers
Run = Mapping[str, Any]
SIDES = {"forget": "rows to forget, word for word", "retain": "rows to keep, word for word"}


def named(runs: Sequence[Run]) -> dict[str, Run]:
    """Return {name: run} of the finished runs that hold texts, such as "T3, T = 3". Of several runs
    of a name the first counts.

    T3 with a strength w other than 1 is left out.
    """
    found: dict[str, Run] = {}
    for run in runs:
        texts = run["status"] == "ok" and "generation" in run["records"]["forget"][0]
        if texts and run["w"] in (None, 1):
            at = "" if run["T"] is None else f", T = {run['T']:g}"
            found.setdefault(f"{run['method']}{at}", run)
    return found


def recited(runs: Mapping[str, Run], rows: Rows) -> pd.DataFrame:
    """Count how many answers of each model are the true answer, word for word, such as "2 of 80".

    runs: from `named`. rows: the evaluation sets, in the order of the runs' records.
    """
    lines = []
    for name, run in runs.items():
        line = {"model": name}
        for side, title in SIDES.items():
            pairs = zip(run["records"][side], rows[side], strict=True)
            same = [record["generation"] == row["answer"] for record, row in pairs]
            line[title] = f"{sum(same)} of {len(same)}"
        lines.append(line)
    return pd.DataFrame(lines)


def typical(runs: Mapping[str, Run], rows: Rows, n: int = 3) -> pd.DataFrame:
    """Return the answers of each model to typical rows, one line for each answer.

    Typical are the `n` rows of each set whose ROUGE-L under the last model is nearest to its
    median. runs, rows: as in `recited`.
    """
    lines = []
    last = list(runs.values())[-1]
    for side in SIDES:
        scores = np.array([record["rouge"] for record in last["records"][side]])
        for number in np.argsort(abs(scores - np.median(scores)), kind="stable")[:n]:
            row = rows[side][number]
            said = {name: run["records"][side][number]["generation"] for name, run in runs.items()}
            for who, text in (
                {"question": row["question"], "true answer": row["answer"]} | said
            ).items():
                lines.append({"rows": side if who == "question" else "", "": who, "text": text})
    return pd.DataFrame(lines)
