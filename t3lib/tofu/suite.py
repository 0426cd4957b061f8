"""The measures of OpenUnlearning's TOFU suite, with its names, as its code computes them.

`score_answers` calls a model, and `suite` computes the measures from what it returns. `read_logs`
and `logs_of` read and write its file TOFU_EVAL.json. Everything else is a score of one row or a
comparison of two kinds of rows, and needs no model.

Sources: extraction strength (arXiv 2311.10538), exact memorization (arXiv 2205.10770), min-k
probability (arXiv 2310.16789) and min-k++ (arXiv 2404.02936), as the published TOFU code computes
them. Scores of membership are like losses: the chance that a forgotten row has a lower one than a
row that no model saw (`auc`) is 0.5 if nothing tells them apart.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from t3lib.core.errors import UserError
from t3lib.core.models import check_ids, context_length
from t3lib.core.rows import Row, encode_rows
from t3lib.tofu.evaluation import Report, answer_text
from t3lib.tofu.likelihood import Positions, Tilt, answer_tokens, by_token, tilted_scores
from t3lib.tofu.metrics import SETS
from t3lib.tofu.reader import Reading

SUITE = "open_unlearning"  # key of these measures in a report of `t3 tofu evaluate`
AS_THERE = {"attention_mask": "openunlearning", "truth_ratio": "geometric"}  # how its code scores
LEAST_VARIANCE = 1e-6  # of ln p̂ over the vocabulary
# Measures that need rows that no model saw.
MEMBERSHIP = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus", "privleak")
Scores = dict[str, Any]  # of one row: see `score_answers`


def suite(
    forget: Sequence[Scores], unseen: Sequence[Scores], reference: float = 0.5
) -> dict[str, float | None]:
    """Compute the measures of the suite that the paper's metrics do not have.

    forget, unseen: what `score_answers` returned for the rows to forget and for rows that no model
    saw. If there are no unseen rows, the measures of membership are None.
    reference: mia_min_k of a retrained model.
    """
    hits = [each["tokens"][: each["n_tokens"], 1].astype(bool) for each in forget]
    measures: dict[str, float | None] = {
        "extraction_strength": float(np.mean([extraction_strength(row) for row in hits])),
        "exact_memorization": float(np.mean([exact_memorization(row) for row in hits])),
    }

    if not unseen:
        return measures | dict.fromkeys(MEMBERSHIP)

    # every attack compares the scores of the rows to forget with those of the unseen rows
    ours, theirs = _attacks(forget), _attacks(unseen)
    attacks = {name: auc(ours[name], theirs[name]) for name in ours}
    return measures | attacks | {"privleak": privleak(attacks["mia_min_k"], reference)}


def read_logs(logs: Mapping[str, Any]) -> Report:
    """Read a retrained model's TOFU_EVAL.json as a `reference` of `evaluation.evaluate`.

    logs: the file's content. Needed is forget_truth_ratio; its rows may stand in any order. Its
    mia_min_k, if there is one, is what privleak compares with.

    The file names neither its rows nor the settings of its evaluation. The result says that these
    are `AS_THERE`. UserError if a row of forget_truth_ratio has no score.
    """
    try:
        rows = logs["forget_truth_ratio"]["value_by_index"]
        ratios = [rows[index]["score"] for index in sorted(rows, key=int)]
        known = logs.get("mia_min_k", {}).get("agg_value")
        measures = {} if known is None else {"mia_min_k": float(known)}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            "the reference is no TOFU_EVAL.json of OpenUnlearning: its forget_truth_ratio has no"
            " value_by_index with a score for each row, or its mia_min_k is no number"
        ) from None
    return {"truth_ratio": {"forget": ratios}, "settings": AS_THERE, SUITE: measures}


def logs_of(report: Report) -> dict[str, Any]:
    """Return the content of a TOFU_EVAL.json for an evaluation with the settings `AS_THERE`.

    report: of `evaluation.evaluate`, with the measures of `suite` and the two summaries
    forget_quality and model_utility under `SUITE`.

    Returns {name of a metric: {"agg_value", "value_by_index": {number of the row: its scores}}}.
    Left out is what a report does not hold: measures that are None, the probabilities of
    paraphrased and wrong answers, and of a membership attack the scores of rows.
    """
    measures = {name: value for name, value in report[SUITE].items() if value is not None}
    measures.pop("forget_Truth_Ratio", None)  # the suite's name for forget_truth_ratio
    logs: dict[str, Any] = {name: {"agg_value": value} for name, value in measures.items()}

    for name, rows in report["records"].items():
        of_forget, components = name == "forget", report["components"]
        metrics = (
            f"{name}_Q_A_Prob{'_normalised' * SETS[name].options}",
            f"{name}_Q_A_ROUGE",
            "forget_truth_ratio" if of_forget else f"{name}_Truth_Ratio",
        )
        means = report["forget"].values()
        if not of_forget:
            means = [components[f"{name}_{kind}"] for kind in ("prob", "rouge", "tr")]
        scores = (
            [{"prob": row["prob"]} for row in rows],
            [{"rougeL_recall": row["rouge"], "generation": row["generation"]} for row in rows],
            [{"score": ratio} for ratio in report["truth_ratio"][name]],
        )
        for metric, mean, of_rows in zip(metrics, means, scores):
            by_index = {str(number): each for number, each in enumerate(of_rows)}
            logs[metric] = {"agg_value": mean, "value_by_index": by_index}

    return logs


def _attacks(rows: Sequence[Scores]) -> Mapping[str, NDArray[np.float64]]:
    """Return for each attack the scores of rows (n,), which are low for rows that look known."""
    loss = np.array([each["tokens"][:, 0].mean() for each in rows])  # with the end of turn
    bytes_of = [len(zlib.compress(each["text"].encode())) for each in rows]
    inner = [each["tokens"][: each["n_tokens"]] for each in rows]  # without it

    return {
        "mia_loss": loss,
        "mia_zlib": loss / bytes_of,
        "mia_min_k": min_k([tokens[:, 0] for tokens in inner]),
        "mia_min_k_plus_plus": min_k([tokens[:, 2] for tokens in inner]),
    }


def privleak(auc: float, reference: float = 0.5) -> float:
    """100 (A − A*) / (A* + 1e-10), where A = 1 − auc, A* = 1 − reference.

    auc, reference: mia_min_k of the model and of a retrained one. 0 means that the model gives away
    as much as the retrained one, a negative value more: forgotten rows still look known.
    """
    return 100 * (reference - auc) / (1 - reference + 1e-10)


def exact_memorization(hits: ArrayLike) -> float:
    """Return the share of answer tokens that teacher forcing ranks first.

    hits: (N,) booleans, one for each token of the answer without the end of turn. UserError for an
    empty list.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        raise UserError("exact memorization of an answer without tokens")
    return float(hits.mean())


def extraction_strength(hits: ArrayLike) -> float:
    """Return 1 − k/N, where k is the first position from which every token of the answer is ranked
    first.

    hits: (N,) booleans, one for each token of the answer without the end of turn. As in the
    published code, the smallest value is 1/N and never 0. UserError for an empty list.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        raise UserError("extraction strength of an answer without tokens")
    misses = np.flatnonzero(~hits)
    first = min(int(misses[-1]) + 1, len(hits) - 1) if len(misses) else 0
    return 1.0 - first / len(hits)


def auc(forgotten: ArrayLike, unseen: ArrayLike) -> float:
    """Return the probability that a forgotten row has a lower loss than an unseen row; equal losses
    count one half.

    forgotten: (n,) losses. unseen: (m,) losses.

    At 0.5 the losses do not tell the two kinds apart. Above 0.5 the forgotten rows still look
    known. Below 0.5 they look stranger than text that the model never saw, which is a trace as
    well.
    """
    from scipy.stats import rankdata  # takes half a second to import

    a, b = _losses(forgotten, "forgotten"), _losses(unseen, "unseen")
    ranks = rankdata(np.concatenate([a, b]))
    return float(1 - (ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2) / (len(a) * len(b)))


def min_k(losses: Sequence[ArrayLike]) -> np.ndarray:
    """Return for each row the mean of its 40% largest token losses (min-k probability, arXiv
    2310.16789).

    losses: for each of n rows, the values −ln p of its tokens. The end of turn is left out, as in
    the published code. At least one token counts. Returns (n,).
    """
    rows = [np.sort(_losses(row, "tokens"))[::-1] for row in losses]
    return np.array([row[: max(1, int(len(row) * 0.4))].mean() for row in rows])


def _losses(values: ArrayLike, name: str) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise UserError(
            f"membership: the {name} losses must be a list of finite numbers with at least one"
            " entry"
        )
    return values


def standardised(logp: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """(μ − ln p̂(y)) / σ, where μ and σ² are mean and variance of ln p̂ under p̂ itself.

    logp (N, V): ln p̂ of every token. true (N,): that of y. Returns (N,). This is what min-k++
    averages, with the sign of a loss.
    """
    p = logp.exp()
    rare = logp.clamp(min=torch.finfo(logp.dtype).min)  # p̂ ln p̂ is 0 where p̂ is 0
    mean = (p * rare).sum(-1)
    # not E[x²] − μ², whose difference has lost its digits where the model is sure
    variance = (p * (rare - mean[:, None]).square()).nan_to_num(0.0).sum(-1)
    return (mean - true) / variance.clamp(min=LEAST_VARIANCE).sqrt()


@torch.no_grad()
def score_answers(
    model: Any, tokenizer: Any, rows: Sequence[Row], reading: Reading, tilt: Tilt = (None, 1.0)
) -> list[Scores]:
    """Show a model the true answers of some rows, and score every token.

    tilt: a head, or None for the model itself, and T.

    Returns for each row {"tokens": (n, 3), of each token −ln p̂, whether it is the most probable
    one, and `standardised`; "n_tokens": the number of tokens without the end of turn; "text": the
    answer}. UserError for rows that are longer than the model's context.
    """
    examples = encode_rows(tokenizer, rows)
    check_ids(model, (example.ids for example in examples), reading.pad_id)
    limit = context_length(model)
    for number, example in enumerate(examples, 1):
        if limit is not None and len(example.ids) > limit:
            tokens = f"{len(example.ids)} tokens, more than the model's context of {limit}"
            raise UserError(f"row {number}: {tokens}")

    def numbers(at: Positions) -> torch.Tensor:
        """Return the three numbers (N, 3) of tokens at N positions."""
        [scores] = tilted_scores(at, [tilt])
        logp = scores.log_softmax(-1)
        true = logp.gather(-1, at.target[:, None])[:, 0]
        hit = logp.argmax(-1) == at.target
        return torch.stack([-true, hit, standardised(logp, true)], 1)

    table = by_token(model, examples, reading, [tilt], numbers)
    return [
        {
            "tokens": tokens,
            "n_tokens": answer_tokens(example, reading.eos_ids),
            "text": answer_text(tokenizer, example.answer),
        }
        for example, tokens in zip(examples, table)
    ]
