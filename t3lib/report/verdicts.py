"""The table of claims in a few words: verdicts counted, then what a reader should know, a sentence each."""

import pandas as pd

from t3lib.names import VERDICTS


def telling(frame: pd.DataFrame) -> list[str]:
    """The most telling verdicts in one plain sentence each, with where the paper says otherwise.

    `frame` is the table `claims`, empty cells as ""; the functions behind it write the sentences (column `plain`). A
    claim about the paper's language model is told as our runs decide it, where they do. A table without the column
    gives none.
    """
    if "plain" not in frame:
        return []
    ours = frame["id"].str.endswith("@here")
    decided = frame["id"].isin(frame["id"][ours].str.removesuffix("@here"))
    told = frame[(ours | ~decided) & (frame["plain"] != "")]
    return [f"{plain} ({where})" for plain, where in zip(told["plain"], told["where"], strict=True)]


def summary(frame: pd.DataFrame) -> str:
    """Markdown for "What we found": verdicts counted, then the most telling ones.

    `frame` is the table `claims`, empty cells as "" (`keep_default_na=False` when read from its file).
    """
    main = frame[~frame["id"].str.endswith("@here")]
    ours = frame[frame["id"].str.endswith("@here")]
    counts = main["verdict"].value_counts()
    lines = [f"{len(main)} claims of the paper, each decided by a function of its own in `t3lib/claims`:", ""]
    lines += ["| verdict | claims |", "| --- | ---: |", *(f"| {v} | {counts.get(v, 0)} |" for v in VERDICTS), ""]
    yes, means, no = (int((main["printed"] == text).sum()) for text in ("yes", "yes, on the means only", "no"))
    lines += [f"In the paper's own printed tables {yes} claims hold, {means} on the means only, {no} do not.", ""]
    if len(ours):
        counted = ", ".join(f"{count} {verdict}" for verdict, count in ours["verdict"].value_counts().items())
        lines += [f"The same comparisons on other models ({ours['scale'].iloc[0]}): {counted}.", ""]
    if sentences := telling(frame):
        lines += ["The most telling:", "", *(f"- {sentence}" for sentence in sentences), ""]
    return "\n".join(lines).strip() + "\n"
