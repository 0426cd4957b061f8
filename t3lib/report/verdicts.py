"""The table of claims in a few words: verdicts counted, then the claims that a reader should know do not hold."""

import pandas as pd

from t3lib.names import FAILS, MEANS, RESTRICTED, VERDICTS

# The order in which failures are listed; of each group at most SHOWN.
FIRST = (
    *("better-in-both", "fq-best-10", "generation-kept", "uld-costs-more", "seed-means", "e1-flat-sensitive"),
    *("e2-n400", "e1-retain-rises", "e1-sharp-bias", "thm-3.8-entropy", "imbalance-iff", "tempering-proved-necessary"),
)
SHOWN = 5


def summary(frame: pd.DataFrame) -> str:
    """Markdown for "What we found": verdicts counted, then a handful of claims that fail or hold on the means only.

    `frame` is the table `claims`, empty cells as "" (`keep_default_na=False` when read from its file).
    """
    main = frame[~frame["id"].str.endswith("@here")]
    ours = frame[frame["id"].str.endswith("@here")]
    counts = main["verdict"].value_counts()
    lines = [f"{len(main)} claims of the paper, each decided by a function (`t3lib/claims/checks.py`):", ""]
    lines += ["| verdict | claims |", "| --- | ---: |", *(f"| {v} | {counts.get(v, 0)} |" for v in VERDICTS), ""]
    yes, means, no = (int((main["printed"] == text).sum()) for text in ("yes", "yes, on the means only", "no"))
    lines += [f"In the paper's own printed tables {yes} claims hold, {means} on the means only, {no} do not.", ""]
    if len(ours):
        counted = ", ".join(f"{count} {verdict}" for verdict, count in ours["verdict"].value_counts().items())
        lines += [f"The same comparisons on other models ({ours['scale'].iloc[0]}): {counted}.", ""]
    groups = {
        "In the paper's printed tables": main[main["printed"].isin(["no", "yes, on the means only"])],
        "In theory and on the Gaussian experiments": main[main["verdict"].isin([FAILS, RESTRICTED])],
        "On our runs": ours[ours["verdict"].isin([FAILS, MEANS])],
    }
    for title, rows in groups.items():
        if len(rows):
            answer = "printed" if "printed" in title else "verdict"
            lines += [f"**{title}**", "", *(_bullet(row, row[answer]) for row in _most_telling(rows)), ""]
    return "\n".join(lines).strip() + "\n"


def _most_telling(rows: pd.DataFrame) -> list[dict[str, str]]:
    order = {name: place for place, name in enumerate(FIRST)}
    ranked = sorted(rows.to_dict("records"), key=lambda row: order.get(row["id"].removesuffix("@here"), len(order)))
    return ranked[:SHOWN]


def _bullet(row: dict[str, str], answer: str) -> str:
    return f"- {row['claim']} ({row['where']}) — **{answer}**. {row['note']} `{row['numbers']}`".replace("  ", " ")
