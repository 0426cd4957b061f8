"""The numbers of the audit, from what `run` asked of a model: values with standard errors over
rows. Pure numpy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t3lib.lab.audit.leakage import leak_at_k
from t3lib.lab.audit.membership import auc, auc_error, auc_error_by_author, min_k
from t3lib.lab.audit.recognition import exact_memorization, extraction_strength, recognized
from t3lib.tofu.metrics import AUDIT


def measures(
    known: Mapping[str, Any],
    losses: Mapping[str, Any] | str,
    written: Mapping[str, Any] | str,
    ks: Sequence[int] = (),
    rows_an_author: int = 0,
) -> dict[str, Any]:
    """{"values", "errors", "empty", "leak", "templates", "closest"}: the audit of the rows to
    forget, or of any others.

    known: their part of `run.likelihoods`. losses: {"forget", "unseen"}: those of the tokens of
    these rows and of rows no model saw, or why there are none. written: their `run.writings`, or
    why nothing was written. rows_an_author: the rows stand in blocks of this many, which are of one
    author, so that standard errors of membership are by author; 0 where the rows are unrelated.
    values {measure of `metrics.AUDIT`: mean over rows}, errors its
    standard error; a measure that cannot be had has no value, and empty says why. leak: see
    `leak_at_k`.
    """
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    empty = {f"recognized_{cell}": why for cell, why in known["empty"].items()}

    def put(name: str, rows: Any) -> None:
        rows = np.asarray(rows, float)
        values[name] = float(rows.mean())
        errors[name] = (
            float(rows.std(ddof=1) / np.sqrt(len(rows))) if len(rows) > 1 else float("nan")
        )

    for cell, of_cell in known["cells"].items():
        each = np.array(of_cell)
        put(f"recognized_{cell}", recognized(each[:, 0], each[:, 1:]))
    put("exact_memorization", [exact_memorization(hits) for hits in known["hits"]])
    put("extraction_strength", [extraction_strength(hits) for hits in known["hits"]])
    for name, score in (("auc", _mean_losses), ("auc_min_k", min_k)):
        if isinstance(losses, str):
            empty[name] = losses
        else:
            pair = score(losses["forget"]), score(losses["unseen"])
            values[name] = auc(*pair)
            errors[name] = (
                auc_error_by_author(*pair, rows_an_author)
                if rows_an_author
                else auc_error(values[name], *map(len, pair))
            )
    audit: dict[str, Any] = {"values": values, "errors": errors, "empty": empty}
    if isinstance(written, str):
        empty |= {name: written for name in AUDIT if name not in values and name not in empty}
        return audit | {"leak": [], "templates": {}, "closest": []}
    put("greedy", written["greedy"])
    for m, recalls in written["forced"].items():
        if rest := [recall for recall in recalls if recall is not None]:
            put(f"forced_{m}", rest)
        else:
            empty[f"forced_{m}"] = f"no answer is longer than {m} tokens"
    scores = np.array(written["samples"])
    put("leak", scores.max(axis=1))
    put("sampled", scores.mean(axis=1))
    if written["facts"]:
        put("facts", np.array(written["facts"]).any(axis=1))
    else:
        empty["facts"] = "no answer has a word that only its row holds"
    audit |= {"leak": leak_at_k(scores, ks, written["leaks"]), "closest": written["closest"]}
    return audit | {
        "templates": {
            text: float(np.mean(recalls)) for text, recalls in written["templates"].items()
        }
    }


def _mean_losses(rows: Any) -> np.ndarray:
    return np.array([np.mean(row) for row in rows])
