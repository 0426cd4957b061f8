"""Decide every checkable claim of arXiv:2602.10217, once from the paper's own tables and once from
the runs of a folder.

`results/paper/claims.csv` lists what is claimed and where, in the paper's sentence and in ours.
`CHECKS` names the function that decides each claim. Notebook 01 decides those about its Gaussians.
Verdicts are always computed and never stored.
Theorems are not listed, because tests check their bounds.

A claim about Llama 3.1 8B stays "not run" until the folder holds runs of that model. The same
comparison on other runs is an entry of its own, with `@here` in its id and the other model in
`scale`.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from t3lab import results
from t3lab.claims import llm, theory
from t3lab.claims.findings import Finding, Missing, Tables, printed_tables
from t3lab.names import FAILS, HOLDS, NO_ORDER, NOT_RUN, RESTRICTED
from t3lib.core.files import project_root

# `scale` of the paper's own runs. The paper's tables can decide exactly the claims of this scale.
MODEL = "Llama 3.1 8B"
COLUMNS = [
    "id",
    "where",
    "claim",
    "printed",
    "verdict",
    "evidence",
    "numbers",
    "scale",
    "note",
    "sentence",
]
OPEN = "Chance may explain what was found."
CHECKS = {
    "guidance-can-fail": theory.in_notebook_01("guidance-can-fail"),
    "tempering-necessary": theory.tempering_necessary,
    "five-seconds": llm.five_seconds,
    "fraction-of-cost": llm.fraction_of_cost,
    "fraction-preprocessed": llm.fraction_preprocessed,
    "sharpening-limited": theory.sharpening_limited,
    "thm-3.7-improves": theory.thm_3_7_improves,
    "thm-3.8-entropy": theory.thm_3_8_entropy,
    "thm-3.8-tokens": theory.thm_3_8_tokens,
    "forget-error-tempered": llm.forget_error_tempered,
    "fq-best": llm.fq_best,
    "mu-rouge-best": llm.mu_rouge_best,
    "mu-unreliable": llm.mu_unreliable,
    "generation-kept": llm.generation_kept,
    "e1-sharp-monotone": theory.in_notebook_01("e1-sharp-monotone"),
    "e1-middle-tradeoff": theory.in_notebook_01("e1-middle-tradeoff"),
    "e1-flat-untempered": theory.in_notebook_01("e1-flat-untempered"),
    "e1-flat-sensitive": theory.in_notebook_01("e1-flat-sensitive"),
    "e1-hotter": theory.in_notebook_01("e1-hotter"),
    "retain-rises": theory.in_notebook_01("retain-rises"),
    "e2-best-t": theory.in_notebook_01("e2-best-t"),
    "e2-untempered": theory.in_notebook_01("e2-untempered"),
    "more-stable": llm.more_stable,
    "t5-untempered": llm.t5_untempered,
    "t5-interior": llm.t5_interior,
}


def claims_table(folder: str | Path) -> pd.DataFrame:
    """Return one row for each claim, in the paper's order, with the columns `COLUMNS`. Empty cells
    are "".

    folder: results folder with tables/*.csv.
    printed: what the paper's own numbers say: "yes", "no", names.NO_ORDER, or "" if the paper
    prints none.
    verdict: one of names.VERDICTS, for the models named in `scale`. Without its table a claim is
    NOT_RUN.
    """
    runs = results.read_runs(Path(folder) / "runs", corrupt=[])
    tables, printed = Tables(Path(folder) / "tables", runs), printed_tables()
    models = {str(run["provenance"].get("model") or "model not recorded") for run in runs}
    here = f"here: {', '.join(sorted(models)) or 'model not recorded'}"
    at_scale = bool(models) and all(
        re.search(r"llama-3\.1-8b", model, re.IGNORECASE) for model in models
    )
    rows = []
    for claim in listed_claims().to_dict("records"):
        papers, check, none = claim["scale"] == MODEL, CHECKS[claim["id"]], Finding(None)
        ours, elsewhere = _decided(check, tables), papers and not at_scale
        theirs = _decided(check, printed) if papers else none
        rows.append(_row(claim, none if elsewhere else ours, theirs))
        if elsewhere and ours.holds is not None:
            rows.append(_row(claim | {"id": f"{claim['id']}@here", "scale": here}, ours, none))
    return pd.DataFrame(rows, columns=COLUMNS)


def listed_claims() -> pd.DataFrame:
    """Return id, where, sentence, claim, scale, evidence and note of every claim. The note says why
    the claim fails, if it does.
    """
    path = project_root() / "results" / "paper" / "claims.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def _decided(check: Callable[[Tables], Finding], tables: Tables) -> Finding:
    try:
        return check(tables)
    except Missing:
        return Finding(None)


def _row(claim: dict[str, str], ours: Finding, theirs: Finding) -> dict[str, str]:
    failed = RESTRICTED if ours.under else NO_ORDER if ours.no_order else FAILS
    verdict = NOT_RUN if ours.holds is None else HOLDS if ours.holds else failed
    refuted = NO_ORDER if theirs.no_order else "no"
    printed = "" if theirs.holds is None else "yes" if theirs.holds else refuted
    fails = verdict in (FAILS, RESTRICTED) or verdict == NOT_RUN and printed == "no"
    only = f"Only {ours.under}. " if verdict == RESTRICTED else ""
    why = only + claim["note"] if fails else OPEN if ours.no_order or theirs.no_order else ""
    parts = [f"paper: {theirs.numbers}" if theirs.numbers else "", ours.numbers]
    told = " | ".join(filter(None, parts))
    return claim | {"printed": printed, "verdict": verdict, "note": why, "numbers": told}
