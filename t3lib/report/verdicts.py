"""The table of claims in a few words: what a reader should know, a sentence each."""

import pandas as pd


def telling(frame: pd.DataFrame) -> list[str]:
    """The findings that matter in one plain sentence each, with where the paper speaks of them.

    `frame` is the table `claims`, empty cells as ""; the functions behind it write the sentences
    (column `plain`). A table without the column gives none.
    """
    if "plain" not in frame:
        return []
    told = frame[frame["plain"] != ""]
    return [f"{plain} ({where})" for plain, where in zip(told["plain"], told["where"], strict=True)]


def summary(frame: pd.DataFrame) -> str:
    """Markdown for "Every claim": the findings that matter, each a line."""
    return "".join(f"- {sentence}\n" for sentence in telling(frame)) or "No claim could be decided.\n"
