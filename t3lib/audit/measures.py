"""The numbers of the audit, from what `run` asked of a model: values with standard errors over rows. Pure numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t3lib.audit.leakage import leak_at_k, powers_of_two
from t3lib.audit.membership import auc, auc_error, min_k
from t3lib.audit.recognition import exact_memorization, extraction_strength, recognized
from t3lib.metrics import AUDIT


def measures(
    known: Mapping[str, Any], unseen: Mapping[str, Any] | str, written: Mapping[str, Any] | str, ks: Sequence[int] = ()
) -> dict[str, Any]:
    """{"values", "errors", "empty", "leak", "templates", "closest"}: the audit of the rows to forget, or of any others.

    known: their part of `run.likelihoods`. unseen: that of rows no model saw, or why there are none. written: their
    `run.writings`, or why nothing was written. values {measure of `metrics.AUDIT`: mean over rows}, errors its standard
    error; a measure that cannot be had has no value, and empty says why. leak [{k, value, se}]: of `ks`, by default
    powers of two.
    """
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    empty = {f"recognized_{cell}": why for cell, why in known["empty"].items()}

    def put(name: str, rows: Any) -> None:
        rows = np.asarray(rows, float)
        values[name] = float(rows.mean())
        errors[name] = float(rows.std(ddof=1) / np.sqrt(len(rows))) if len(rows) > 1 else float("nan")

    for cell, losses in known["cells"].items():
        losses = np.array(losses)
        put(f"recognized_{cell}", recognized(losses[:, 0], losses[:, 1:]))
    put("exact_memorization", [exact_memorization(hits) for hits in known["hits"]])
    put("extraction_strength", [extraction_strength(hits) for hits in known["hits"]])
    for name, score in (("auc", _mean_losses), ("auc_min_k", min_k)):
        if isinstance(unseen, str):
            empty[name] = unseen
        else:
            pair = score(known["losses"]), score(unseen["losses"])
            values[name] = auc(*pair)
            errors[name] = auc_error(values[name], *map(len, pair))
    if isinstance(written, str):
        empty |= {name: written for name in AUDIT if name not in values and name not in empty}
        return {"values": values, "errors": errors, "empty": empty, "leak": [], "templates": {}, "closest": []}
    put("greedy", written["greedy"])
    for m, recalls in written["forced"].items():
        if rest := [recall for recall in recalls if recall is not None]:
            put(f"forced_{m}", rest)
        else:
            empty[f"forced_{m}"] = f"no answer is longer than {m} tokens"
    scores = np.array(written["samples"])
    put("leak", scores.max(axis=1))
    put("sampled", scores.mean(axis=1))
    leak = leak_at_k(scores, ks or powers_of_two(scores.shape[1]))
    texts = {"templates": {text: float(np.mean(recalls)) for text, recalls in written["templates"].items()}}
    return {"values": values, "errors": errors, "empty": empty, "leak": leak, "closest": written["closest"]} | texts


def _mean_losses(rows: Any) -> np.ndarray:
    return np.array([np.mean(row) for row in rows])
