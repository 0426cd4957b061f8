"""Every checkable claim of arXiv:2602.10217: does it hold in the paper's own tables, and on the runs of a folder?

`results/paper/claims.csv` says what is claimed and where, claims_checks which function decides it. A verdict is always
computed; no file holds one. A claim about Llama 3.1 8B stays "not run at this scale" until the folder's runs are of
that model; the same comparison on other runs is a row of its own, with `@here` in its id and their model in `scale`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from t3lib.claims.checks import CHECKS, PAPER_MODEL, Check
from t3lib.claims.findings import MISSING, Finding, Tables, printed_tables
from t3lib.errors import UserError
from t3lib.files import shipped

HOLDS = "holds"
RESTRICTED = "holds only under the paper's approximation or grid"
FAILS = "does not hold"
NOT_RUN = "not run at this scale"
MEANS = "holds on the means only"
VERDICTS = (HOLDS, MEANS, RESTRICTED, FAILS, NOT_RUN)
COLUMNS = ["id", "where", "claim", "printed", "verdict", "evidence", "numbers", "scale", "note"]
CLOSE = (
    "The means are in the claimed order, but no further apart than the standard error of their difference over seeds."
)
TOLD = (  # the order in which the summary tells failures; it tells at most SHOWN of each kind
    *("better-in-both", "fq-best-10", "generation-kept", "uld-costs-more", "seed-means", "e1-flat-sensitive"),
    *("e2-n400", "e1-retain-rises", "e1-sharp-bias", "thm-3.8-entropy", "imbalance-iff", "tempering-proved-necessary"),
)
SHOWN = 5


def claims_table(folder: str | Path) -> pd.DataFrame:
    """One row per claim, in the paper's order, from `folder`/tables/*.csv (COLUMNS; "" where a cell does not apply).

    printed: "yes", "yes, on the means only" (closer than the seeds' spread), "no", or "" where the paper prints no
    numbers. verdict: one of VERDICTS, for what `scale` says. A missing table gives "not run at this scale".
    """
    tables, printed = Tables(Path(folder) / "tables"), printed_tables()
    models = _models(Path(folder) / "runs")
    at_scale = bool(models) and all(re.search(r"llama-3\.1-8b", model, re.IGNORECASE) for model in models)
    here = f"here: {', '.join(sorted(models)) or 'model not recorded'}"
    rows: list[dict[str, str]] = []
    for entry in listed_claims().to_dict("records"):
        check = CHECKS[entry["id"]]
        theirs = check.printed(printed) if check.printed else MISSING
        told = _printed(theirs)
        if check.scale != PAPER_MODEL or at_scale:
            rows.append(_row(entry, check, check.compute(tables), told, check.scale, theirs))
            continue
        rows.append(_row(entry, check, MISSING, told, PAPER_MODEL, theirs))
        if check.also_here and (ours := check.compute(tables)).holds is not None:
            rows.append(_row(entry | {"id": f"{entry['id']}@here"}, check, ours, "", here, MISSING))
    return pd.DataFrame(rows, columns=COLUMNS)


def listed_claims(path: str | Path | None = None) -> pd.DataFrame:
    """id, where, claim of every claim, from results/paper/claims.csv; UserError when the file is not there."""
    places = [shipped("results/paper") / "claims.csv"]
    for place in [Path(path)] if path else places:
        if place.is_file():
            return pd.read_csv(place, dtype=str)
    raise UserError(f"cannot read {path or places[0]}: no such file")


def summary(frame: pd.DataFrame) -> str:
    """Markdown for "What we found": verdicts counted, then a handful of claims that fail or hold on the means only."""
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
            lines += [f"**{title}**", "", *(_bullet(row, title) for row in _told(rows)), ""]
    return "\n".join(lines).strip() + "\n"


def _row(
    entry: dict[str, str], check: Check, ours: Finding, printed: str, scale: str, theirs: Finding
) -> dict[str, str]:
    verdict = _verdict(ours)
    failed = verdict in (MEANS, FAILS, RESTRICTED)
    note = (
        CLOSE if verdict == MEANS or (theirs.close and not failed) else check.note if failed or printed == "no" else ""
    )
    both = [("paper: " if check.printed else "") + theirs.numbers, ours.numbers]
    numbers = " | ".join(part for part, finding in zip(both, (theirs, ours), strict=True) if finding.numbers)
    return entry | {
        "printed": printed,
        "verdict": verdict,
        "evidence": check.evidence,
        "numbers": numbers,
        "scale": scale,
        "note": note,
    }


def _verdict(finding: Finding) -> str:
    if finding.holds is None:
        return NOT_RUN
    return HOLDS if finding.holds else RESTRICTED if finding.under else MEANS if finding.close else FAILS


def _printed(finding: Finding) -> str:
    if finding.holds is None:
        return ""
    return "yes" if finding.holds else "yes, on the means only" if finding.close else "no"


def _models(folder: Path) -> set[str]:
    """The models that the runs' provenance names; an unreadable run names none."""
    found = set()
    for path in folder.glob("*--*.json"):
        try:
            found.add(
                str(json.loads(path.read_text(encoding="utf-8"))["provenance"].get("model") or "model not recorded")
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _told(rows: pd.DataFrame) -> Iterable[dict[str, str]]:
    order = {name: place for place, name in enumerate(TOLD)}
    ranked = sorted(rows.to_dict("records"), key=lambda row: order.get(row["id"].removesuffix("@here"), len(order)))
    return ranked[:SHOWN]


def _bullet(row: dict[str, str], title: str) -> str:
    answer = row["printed"] if "printed" in title else row["verdict"]
    return f"- {row['claim']} ({row['where']}) — **{answer}**. {row['note']} `{row['numbers']}`".replace("  ", " ")
