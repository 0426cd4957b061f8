"""Show what models write in place of the true answers: counts and typical rows, from run files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from t3lab.chances import Chances, chances
from t3lab.report.audit import label
from t3lab.report.render import TEMPLATES, Html
from t3lab.results import Run
from t3lib.own.truths import word_set

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # "forget" and "retain" -> questions and answers
SIDES = {"forget": "rows to forget, word for word", "retain": "rows to keep, word for word"}
SETS = {
    "forget": "leaks, rows to forget",
    "retain": "kept, rows to keep",
    "ra": "kept, real authors",
    "wf": "kept, world facts",
}
OPEN = 3  # rows of each set that `side_by_side` shows unfolded


def named(runs: Sequence[Run]) -> dict[str, Run]:
    """Return {name: run} of the finished runs that hold texts, such as "T3, T = 3". Of several runs
    of a name the first counts.

    T3 with a strength w other than 1 is left out.
    """
    found: dict[str, Run] = {}
    for run in runs:
        texts = run["status"] == "ok" and "generation" in run["records"].get("forget", [{}])[0]
        if texts and run["w"] in (None, 1):
            found.setdefault(label(run["method"], run["T"], None), run)
    return found


def recited(runs: Mapping[str, Run], rows: Rows) -> pd.DataFrame:
    """Count how many answers of each model are the true answer, word for word, such as "2 of 80".

    runs: from `named`. rows: the evaluation sets, in the order of the runs' records.
    """

    def same(side: str, said: list[str]) -> list[bool]:
        return [text == row["answer"] for text, row in zip(said, rows[side], strict=True)]

    return _counts(runs, SIDES, same).rename(columns={"method": "model"})


def typical(runs: Mapping[str, Run], rows: Rows, n: int = 3) -> pd.DataFrame:
    """Return the answers of each model to typical rows, one line for each answer.

    Typical are the `n` rows of each set whose ROUGE-L under the last model is nearest to its
    median. runs, rows: as in `recited`.
    """
    lines = []
    last = list(runs.values())[-1]
    for side in SIDES:
        for number in _near_median(last["records"][side])[:n]:
            row = rows[side][number]
            said = {name: run["records"][side][number]["generation"] for name, run in runs.items()}
            for who, text in (
                {"question": row["question"], "true answer": row["answer"]} | said
            ).items():
                lines.append({"rows": side if who == "question" else "", "": who, "text": text})
    return pd.DataFrame(lines)


def leaks(runs: Mapping[str, Run], rows: Rows) -> pd.DataFrame:
    """Count how many answers of each model give the true answer away (`chances.Chances`), such as
    "2 of 80".

    runs: from `named`. rows: the evaluation sets, "forget", "retain", "ra" and "wf", in the order
    of the runs' records.
    """
    read = {side: _chances(rows[side]) for side in SETS}

    def told(side: str, said: list[str]) -> list[bool]:
        found = read[side].heard({row: [text] for row, text in enumerate(said)})
        return [found.gives_away(row, text) for row, text in enumerate(said)]

    return _counts(runs, SETS, told)


def _counts(
    runs: Mapping[str, Run], sides: Mapping[str, str], told: Callable[[str, list[str]], list[bool]]
) -> pd.DataFrame:
    """Count answers of each model, such as "2 of 80".

    sides: {set of rows: head of its column}. told(side, answers): True for each that counts.
    """
    lines = []
    for name, run in runs.items():
        said = {side: [each["generation"] for each in run["records"][side]] for side in sides}
        counts = {sides[side]: told(side, texts) for side, texts in said.items()}
        shown = {title: f"{sum(each)} of {len(each)}" for title, each in counts.items()}
        lines.append({"method": name} | shown)
    return pd.DataFrame(lines)


def side_by_side(runs: Mapping[str, Run], rows: Rows, n: int = 10) -> Html:
    """Show the answers of all these models to the same questions, each with a label.

    runs, rows: as in `leaks`. n: typical rows to forget, and as many to keep, chosen as in
    `typical`. All but the first three of each set are folded.

    The label says whether the answer gives the true answer away, and how many of its words it says.
    Then it leaks, or the row to keep is kept. Texts are escaped.
    """
    last = list(runs.values())[-1]
    sets = []
    for title, side in (("Rows to forget", "forget"), ("Rows to keep", "retain")):
        read, cards = _chances(rows[side]), []
        found = {
            name: read.heard(
                {n: [each["generation"]] for n, each in enumerate(run["records"][side])}
            )
            for name, run in runs.items()
        }
        for number in _near_median(last["records"][side])[:n]:
            said = {name: run["records"][side][number]["generation"] for name, run in runs.items()}
            labels = {name: _label(side, found[name], number, text) for name, text in said.items()}
            cards.append({"row": rows[side][number], "said": said, "labels": labels})
        sets.append((title, cards))
    return Html(TEMPLATES.get_template("answers.html").render(sets=sets, open=OPEN))


def _label(side: str, found: Chances, row: int, text: str) -> tuple[str, str, str]:
    """Return a label for an answer, "good" or "bad", and the count of words behind it."""
    items = frozenset().union(*found.items[row])
    if not items:
        return "not judged", "", ""
    told = found.gives_away(row, text)
    label = ("leaks" if told else "forgotten") if side == "forget" else "kept" if told else "lost"
    count = f"{len(items & word_set(text))} of {len(items)} words"
    return label, "good" if told != (side == "forget") else "bad", count


def _chances(rows: Sequence[Mapping[str, Any]]) -> Chances:
    return chances([(row["question"], row["answer"]) for row in rows])


def _near_median(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the numbers of the rows, those with a ROUGE-L nearest to the median first."""
    scores = np.array([record["rouge"] for record in records])
    return np.argsort(abs(scores - np.median(scores)), kind="stable")
