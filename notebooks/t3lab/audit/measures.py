"""Compute the audit's numbers, with standard errors over rows, from what `run` returned."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t3lab.audit.labels import AUDIT
from t3lab.audit.leakage import leak_at_k
from t3lab.audit.membership import auc_error_by_author
from t3lab.audit.recognition import recognized
from t3lib.tofu.suite import auc, exact_memorization, extraction_strength, min_k


def measures(
    likelihoods: Mapping[str, Any],
    losses: Mapping[str, Any] | str,
    writings: Mapping[str, Any] | str,
    rows_an_author: int,
) -> dict[str, Any]:
    """Compute every measure of the audit for one set of rows.

    likelihoods: what `run.likelihoods` returned for these rows.
    losses: {"forget", "unseen"}: per-token losses of these rows and of rows that no model saw, or
    the reason why they are missing.
    writings: what `run.writings` returned for these rows, or the reason why nothing was decoded.
    rows_an_author: the rows come in blocks of this many, one author each. The standard errors of
    membership count authors instead of rows.

    Returns a dict:
    values, errors: {measure of `labels.AUDIT`: its mean over rows}, and its standard error.
    empty: {measure without a value: the reason}.
    leak: see `leak_at_k`. closest: for each row, the sampled text nearest to the truth.
    templates: {template: mean ROUGE-L recall of the greedy answers}.
    """
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    empty = {f"recognized_{cell}": reason for cell, reason in likelihoods["empty"].items()}

    def put(name: str, scores: Any) -> None:
        """Add the measure that is the mean of these scores of rows."""
        scores = np.asarray(scores, float)
        values[name] = float(scores.mean())
        errors[name] = _mean_error(scores)

    # recognition: is the true answer, in the first column, more probable than every wrong one?
    for cell, table in likelihoods["cells"].items():
        each = np.array(table)
        put(f"recognized_{cell}", recognized(each[:, 0], each[:, 1:]))

    put("exact_memorization", [exact_memorization(hits) for hits in likelihoods["hits"]])
    put("extraction_strength", [extraction_strength(hits) for hits in likelihoods["hits"]])

    # membership: these rows against rows that no model saw
    for name, score in (("auc", _mean_losses), ("auc_min_k", min_k)):
        if isinstance(losses, str):
            empty[name] = losses
        else:
            pair = score(losses["forget"]), score(losses["unseen"])
            values[name] = auc(*pair)
            errors[name] = auc_error_by_author(*pair, rows_an_author)

    audit: dict[str, Any] = {"values": values, "errors": errors, "empty": empty}
    if isinstance(writings, str):
        empty |= {name: writings for name in AUDIT if name not in values and name not in empty}
        return audit | {"leak": [], "templates": {}, "closest": []}

    # greedy answers, from nothing and after the first tokens of the truth
    put("greedy", writings["greedy"])
    for m, recalls in writings["forced"].items():
        if rest := [recall for recall in recalls if recall is not None]:
            put(f"forced_{m}", rest)
        else:
            empty[f"forced_{m}"] = f"no answer is longer than {m} tokens"

    # sampled answers, (rows, samples)
    scores = np.array(writings["samples"])
    put("leak", scores.max(axis=1))
    put("sampled", scores.mean(axis=1))
    if writings["facts"]:
        put("facts", np.array(writings["facts"]).any(axis=1))
    else:
        empty["facts"] = "no answer has a word that only its row holds"

    return audit | {
        "leak": leak_at_k(scores, writings["leaks"]),
        "closest": writings["closest"],
        "templates": {
            template: float(np.mean(recalls)) for template, recalls in writings["templates"].items()
        },
    }


def _mean_error(scores: np.ndarray) -> float:
    """Return the standard error of the mean of scores (n,); NaN for a single one."""
    return float(scores.std(ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else float("nan")


def _mean_losses(rows: Any) -> np.ndarray:
    return np.array([np.mean(row) for row in rows])
