"""Every checkable claim of arXiv:2602.10217: does it hold in the paper's own tables, and on the runs of a folder?

`results/paper/claims.csv` says what is claimed and where, in the paper's sentence and in our words; the function of the
same name in `theory`, `gaussians` or `llm` decides it. A verdict is always computed; no file holds one. A claim about
Llama 3.1 8B stays not run until the folder's runs are of that model; the same comparison on other runs
is a row of its own, with `@here` in its id and their model in `scale`.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from t3lib import results
from t3lib.claims import gaussians, llm, theory
from t3lib.claims.findings import Finding, Missing, Tables, printed_tables
from t3lib.files import shipped
from t3lib.names import FAILS, HOLDS, MEANS, NOT_RUN, RESTRICTED

MODEL = "Llama 3.1 8B"  # scale of the paper's own runs; the claims of this scale are those its tables can decide
COLUMNS = ["id", "where", "claim", "printed", "verdict", "evidence", "numbers", "scale", "note", "sentence", "plain"]
CLOSE = "The means are in the claimed order, but over seeds their difference is no lead (Welch's test, 5%)."


def claims_table(folder: str | Path) -> pd.DataFrame:
    """One row per claim, in the paper's order, from `folder`/tables/*.csv (COLUMNS; "" where a cell does not apply).

    printed: "yes", "yes, on the means only" (no lead over seeds), "no", or "" where the paper prints no numbers.
    verdict: one of names.VERDICTS, for what `scale` says. A missing table gives NOT_RUN.
    """
    runs = results.read_runs(Path(folder) / "runs", corrupt=[])
    tables, printed = Tables(Path(folder) / "tables", runs), printed_tables()
    models = {str(run["provenance"].get("model") or "model not recorded") for run in runs}
    here = f"here: {', '.join(sorted(models)) or 'model not recorded'}"
    at_scale = bool(models) and all(re.search(r"llama-3\.1-8b", model, re.IGNORECASE) for model in models)
    rows = []
    for claim in listed_claims().to_dict("records"):
        check, ours = check_of(claim["id"]), Finding(None)
        theirs = _decided(check, printed) if claim["scale"] == MODEL else Finding(None)
        if claim["scale"] != MODEL or at_scale:
            ours = _decided(check, tables)
        rows.append(_row(claim, ours, theirs))
        if claim["scale"] == MODEL and not at_scale and (ours := _decided(check, tables)).holds is not None:
            rows.append(_row(claim | {"id": f"{claim['id']}@here", "scale": here}, ours, Finding(None)))
    return pd.DataFrame(rows, columns=COLUMNS)


def check_of(name: str) -> Callable[[Tables], Finding]:
    """The function that decides a claim: `thm-3.3` is `theory.thm_3_3`."""
    wanted = re.sub(r"\W", "_", name)
    return next(getattr(module, wanted) for module in (theory, gaussians, llm) if hasattr(module, wanted))


def listed_claims() -> pd.DataFrame:
    """id, where, sentence, claim, scale, evidence, note of every claim; note: why it fails where it does."""
    return pd.read_csv(shipped("results/paper") / "claims.csv", dtype=str, keep_default_na=False)


def _decided(check: Callable[[Tables], Finding], tables: Tables) -> Finding:
    try:
        return check(tables)
    except Missing:
        return Finding(None)


def _row(claim: dict[str, str], ours: Finding, theirs: Finding) -> dict[str, str]:
    verdict, printed = NOT_RUN, ""
    if ours.holds is not None:
        verdict = HOLDS if ours.holds else RESTRICTED if ours.under else MEANS if ours.close else FAILS
    if theirs.holds is not None:
        printed = "yes" if theirs.holds else "yes, on the means only" if theirs.close else "no"
    why = ""  # the note of a claim says why it fails where it does
    if verdict in (FAILS, RESTRICTED) or verdict == NOT_RUN and printed == "no":
        why = claim["note"]
    elif ours.close or theirs.close:
        why = CLOSE
    told = " | ".join(filter(None, [f"paper: {theirs.numbers}" if theirs.numbers else "", ours.numbers]))
    plain = ours.plain or theirs.plain
    return claim | {"printed": printed, "verdict": verdict, "note": why, "numbers": told, "plain": plain}
