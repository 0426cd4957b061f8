"""Evaluate a model on TOFU: per-row scores and texts, and from them all metrics.

`score` runs the model: losses for all heads and temperatures from one pass of the base
(`likelihood`), and greedy texts (`writing`), each from where it leaves the true answer.
`metrics_of` computes every metric from that (`metrics`), without a model, so a changed metric needs
no new pass. `evaluate` does both; its result is the JSON of `t3 tofu evaluate` without the
provenance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.files import rows_key
from t3lib.core.models import check_ids, context_length, pad_id
from t3lib.core.rows import Example, Row, encode_answers
from t3lib.core.settings import check, check_temperature
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import metrics
from t3lib.tofu.likelihood import UNTILTED, Tilt, losses_and_agreed
from t3lib.tofu.metrics import SETS
from t3lib.tofu.reader import Reading
from t3lib.tofu.writing import eos_ids, greedy

Reference = Mapping[str, Any] | Sequence[float]
Scores = dict[str, Any]  # losses and texts of every row of one model, plain JSON: see `score`
Report = dict[str, Any]  # every metric of one model, plain JSON: see `evaluate`


@dataclass(frozen=True)
class Scoring:
    """Settings of an evaluation.

    attention_mask: "lengths" or "openunlearning", see `rows.collate`.
    truth_ratio: "geometric" or "arithmetic", see `metrics.truth_ratio`.
    max_new_tokens: the longest text that is decoded.
    generate: False skips texts, ROUGE and the metrics that need ROUGE.
    batch_tokens: see `Reading`.
    allow_sharpening: accept T below 1.
    """

    attention_mask: str = "lengths"
    truth_ratio: str = "geometric"
    max_new_tokens: int = 200
    generate: bool = True
    batch_tokens: int | None = None
    allow_sharpening: bool = False

    def __post_init__(self) -> None:
        for name in ("attention_mask", "truth_ratio"):
            check(name, getattr(self, name))


def evaluate(
    model: Any,
    tokenizer: Any,
    data: Mapping[str, Sequence[Row]],
    scoring: Scoring = Scoring(),
    *,
    tilts: Sequence[tuple[T3Head | None, float | None]] | None = None,
    reference: Reference | None = None,
) -> Any:
    """Compute every metric of the paper's Section 4.1 for a model, or for several tilts of a base.

    data: rows under the keys forget, retain, ra and wf, from TOFU's files `forgetNN_perturbed`,
    `retain_perturbed`, `real_authors_perturbed` and `world_facts_perturbed`. Metrics of a missing
    set are None.
    tilts: pairs (head, T) on `model` as the base. A head of None is the base itself; a T of None is
    the head's own, or 1. The result is then a list with one dict for each pair.
    reference: the retrained model's evaluation on the same rows (such a dict), or its truth ratios
    on the forget rows. Without it Forget Quality is None.

    A dict has forget_quality, ks_statistic, model_utility, mu_rouge, components, forget,
    truth_ratio (for each row), records (for each row: prob, rouge, generation), T, rows
    (a key of each set's rows) and settings. UserError for rows that cannot be scored, for a
    reference of other rows or settings, for a head that does not fit the base and for T below 1
    without allow_sharpening.
    """
    if reference is not None:  # before the evaluation, which may take an hour
        keys = {name: rows_key(rows) for name, rows in data.items()}
        _reference_ratios(reference, keys, vars(scoring), len(data.get("forget", ())))
    scored = score(model, tokenizer, data, scoring, tilts)
    results = [metrics_of(each, reference, scoring.truth_ratio) for each in scored]
    return results[0] if tilts is None else results


def score(
    model: Any,
    tokenizer: Any,
    data: Mapping[str, Sequence[Row]],
    scoring: Scoring = Scoring(),
    tilts: Sequence[tuple[T3Head | None, float | None]] | None = None,
) -> list[Scores]:
    """Compute losses and greedy texts of every row; return one dict for each tilt (or one in all).

    data, tilts, errors: as of `evaluate`. Each dict is plain JSON, from which `metrics_of` computes
    the metrics: {"sets": {set: {"losses", "answers", "texts"}}, "T", "rows", "settings"}.
    losses (rows, answers): the mean −ln p̂ over the tokens of the answer, of the paraphrased answer
    if the set has one, and of each wrong answer.
    answers: the true answers, tokenised and decoded again.
    texts: the model's greedy answers, or None.
    """
    if not data:
        raise UserError(f"there is no set to evaluate: choose among {', '.join(SETS)}")
    sharpening = scoring.allow_sharpening
    chosen = [_checked(model, *tilt, sharpening) for tilt in (UNTILTED if tilts is None else tilts)]
    limit = context_length(model)
    encoded = {name: _encode_set(tokenizer, name, rows, limit) for name, rows in data.items()}
    rows = [row for rows in encoded.values() for row in rows]
    flat = [example for row in rows for example in row]
    check_ids(model, (example.ids for example in flat), pad_id(tokenizer))
    if scoring.generate:
        check_room(limit, max(example.n_prompt for example in flat), scoring.max_new_tokens)
    reading = Reading(
        pad_id(tokenizer), eos_ids(model, tokenizer), scoring.attention_mask, scoring.batch_tokens
    )  # fmt: skip

    # The first example of each row has the true answer.
    first = np.cumsum([0, *(len(row) for row in rows)])[:-1].tolist()
    true = [flat[index] for index in first]
    answers = [answer_text(tokenizer, example.answer) for example in true]
    compared = first if scoring.generate else ()
    losses, agreed = losses_and_agreed(model, flat, reading, chosen, compared)

    # Each text begins with as much of the true answer as greedy decoding writes too.
    texts: list[list[str]] = []
    if scoring.generate:
        prompts = [example.prompt for example in true]
        begun = [
            [example.answer[:n] for example, n in zip(true, of_tilt[first])] for of_tilt in agreed
        ]
        most = scoring.max_new_tokens
        written = greedy(model, prompts, reading, chosen, max_new_tokens=most, begun=begun)
        texts = [[answer_text(tokenizer, ids) for ids in of_tilt] for of_tilt in written]

    settings = {name: getattr(scoring, name) for name in ("attention_mask", "max_new_tokens")}
    common = {"rows": {name: rows_key(rows) for name, rows in data.items()}, "settings": settings}
    return [
        {"sets": _by_set(encoded, losses[t].tolist(), answers, texts[t] if texts else None)}
        | {"T": None if tilts is None else T}
        | common
        for t, (_, T) in enumerate(chosen)
    ]


def _by_set(
    encoded: Mapping[str, Sequence[Sequence[Example]]],
    losses: Sequence[float],
    answers: Sequence[str],
    texts: Sequence[str] | None,
) -> dict[str, Any]:
    """Deal out what `score` computed of one tilt to the sets.

    encoded: examples of every row by set. losses: of all examples. answers, texts: of all rows.
    """
    loss, answer, text = iter(losses), iter(answers), iter(texts or ())
    return {
        name: {
            "losses": [list(islice(loss, len(row))) for row in rows],
            "answers": list(islice(answer, len(rows))),
            "texts": None if texts is None else list(islice(text, len(rows))),
        }
        for name, rows in encoded.items()
    }


def metrics_of(
    scored: Scores, reference: Reference | None = None, truth_ratio: str = "geometric"
) -> Report:
    """Compute every metric from one dict of `score`; the result is that of `evaluate`.

    reference: as of `evaluate`. truth_ratio: "geometric" or "arithmetic". No model or tokenizer is
    needed.
    """
    settings = {**scored["settings"], "truth_ratio": truth_ratio}
    scores = {}
    records: dict[str, list[dict[str, Any]]] = {}
    for name, part in scored["sets"].items():
        scores[name] = metrics.row_scores(name, np.array(part["losses"]), truth_ratio)
        records[name] = [{"prob": float(p)} for p in scores[name]["prob"]]
        if part["texts"] is not None:
            pairs = list(zip(part["answers"], part["texts"]))
            scores[name]["rouge"] = np.array([metrics.rouge_l_recall(*pair) for pair in pairs])
            for record, rouge, (_, text) in zip(records[name], scores[name]["rouge"], pairs):
                record |= {"rouge": float(rouge), "generation": text}
    count = len(records.get("forget", ()))
    ratios = (
        None if reference is None else _reference_ratios(reference, scored["rows"], settings, count)
    )
    return metrics.summarize(scores, ratios) | {
        "T": scored["T"],
        "truth_ratio": {name: each["truth_ratio"].tolist() for name, each in scores.items()},
        "records": records,
        "rows": scored["rows"],
        "settings": settings,
    }


def _checked(model: Any, head: T3Head | None, T: float | None, allow_sharpening: bool) -> Tilt:
    """Check one tilt, move its head to the model's device, and fill in T (the head's, or 1)."""
    if T is None:
        T = 1.0 if head is None else head.temperature
    if head is not None:
        T3ForCausalLM(model, head.to(model.device), T, allow_sharpening=allow_sharpening)
    return head, check_temperature(T, allow_sharpening=allow_sharpening)


def _encode_set(
    tokenizer: Any, name: str, rows: Sequence[Row], limit: int | None
) -> list[list[Example]]:
    """Tokenise each row's answer, paraphrased answer (if the set has one) and perturbed answers.

    limit: size of the model's context; UserError, naming the row, for a longer example, whose
    scores would mean nothing.
    """
    if name not in SETS:
        raise UserError(f"unknown evaluation set {name!r}: choose among {', '.join(SETS)}")
    if not rows:
        raise UserError(f"evaluation set {name} holds no rows")
    fields = ("answer", "paraphrased_answer") if SETS[name].paraphrased else ("answer",)
    encoded = []
    for number, row in enumerate(rows, 1):
        for field in (*fields, "perturbed_answer"):
            if not row.get(field):
                raise UserError(f"{name} row {number}: {field} is missing")
        if len(row["perturbed_answer"]) != len(rows[0]["perturbed_answer"]):
            here, first = len(row["perturbed_answer"]), len(rows[0]["perturbed_answer"])
            raise UserError(
                f"{name} row {number}: perturbed_answer has {here} answers, row 1 has {first}"
            )
        try:
            answers = [*(row[field] for field in fields), *row["perturbed_answer"]]
            encoded.append(encode_answers(tokenizer, row["question"], answers))
            longest = max(len(example.ids) for example in encoded[-1])
            if limit is not None and longest > limit:
                raise UserError(f"{longest} tokens, more than the model's context of {limit}")
        except UserError as error:
            raise UserError(f"{name} row {number}: {error}") from None
    return encoded


def answer_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode an answer's tokens, without special tokens and without space around the text."""
    return tokenizer.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    ).strip()


def check_room(limit: int | None, prompt: int, max_new_tokens: int) -> None:
    """Raise UserError if prompt and new tokens exceed the model's context of `limit` tokens.

    limit: None is unlimited. prompt: number of tokens of the longest prompt.
    """
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    if limit is not None and prompt + max_new_tokens > limit:
        size = f"a prompt of {prompt} tokens and {max_new_tokens} new ones"
        raise UserError(f"{size} exceed the model's context of {limit}: lower --max-new-tokens")


def _reference_ratios(
    reference: Reference, keys: Mapping[str, str], settings: Mapping[str, Any], count: int
) -> list[float]:
    """Return a reference's truth ratios, after checking that it belongs to the same forget rows.

    keys: of this evaluation's rows, by set. settings: of this evaluation. count: number of its
    forget rows. UserError for other rows, another mask or kind of truth ratio, and values that are
    not finite.
    """
    values: Any = reference
    if isinstance(reference, Mapping):
        parts = {name: reference.get(name) or {} for name in ("truth_ratio", "rows", "settings")}
        if (
            not all(isinstance(part, Mapping) for part in parts.values())
            or "forget" not in parts["truth_ratio"]
        ):
            raise UserError(
                "the reference holds no truth_ratio of forget rows, as t3 tofu evaluate writes it,"
                " nor forget_truth_ratio, as OpenUnlearning does (TOFU_EVAL.json)"
            )
        if (theirs := parts["rows"].get("forget")) is not None and theirs != keys.get("forget"):
            raise UserError(
                "the reference was evaluated on other forget rows: evaluate it on this split and"
                " data"
            )
        for name in ("attention_mask", "truth_ratio"):
            if (theirs := parts["settings"].get(name, settings[name])) != settings[name]:
                raise UserError(
                    f"the reference was evaluated with {name} {theirs!r}, this run uses"
                    f" {settings[name]!r}"
                )
        values = parts["truth_ratio"]["forget"]
    try:
        ratios = [float(ratio) for ratio in values if not isinstance(ratio, str | bool)]
    except (TypeError, ValueError):
        ratios = []
    if not ratios or len(ratios) != len(values) or not np.isfinite(ratios).all():
        raise UserError("the reference's truth ratios are not a list of finite numbers")
    if len(ratios) != count:
        raise UserError(
            f"the reference has {len(ratios)} truth ratios, the forget set {count} rows"
        )
    return ratios
