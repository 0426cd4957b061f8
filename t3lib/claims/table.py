"""Every checkable claim of arXiv:2602.10217: does it hold in the paper's own tables, and on the runs of a folder?

`results/paper/claims.csv` says what is claimed and where, claims_checks which function decides it. A verdict is always
computed; no file holds one. A claim about Llama 3.1 8B stays "not run at this scale" until the folder's runs are of
that model; the same comparison on other runs is a row of its own, with `@here` in its id and their model in `scale`.
"""

import json
import re
from pathlib import Path

import pandas as pd

from t3lib.claims.checks import CHECKS, PAPER_MODEL, Check
from t3lib.claims.findings import MISSING, Finding, Tables, printed_tables
from t3lib.errors import UserError
from t3lib.files import shipped
from t3lib.names import FAILS, HOLDS, MEANS, NOT_RUN, RESTRICTED

COLUMNS = ["id", "where", "claim", "printed", "verdict", "evidence", "numbers", "scale", "note"]
CLOSE = (
    "The means are in the claimed order, but no further apart than the standard error of their difference over seeds."
)


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
