"""Forget Error and Retain Error of a language model beside a retrained one, token by token.

The paper defines both errors against p_r, the distribution without the rows to forget (Eq. 6, 7),
and calls them intractable for language models. A retrained model stands for p_r in each context x:

    Forget Error       mean |p_ret(y|x) − p̂(y|x)|             over tokens y of forgotten answers
    leak               mean max(0, p̂(y|x) − p_ret(y|x))       over the same tokens
    total variation    mean ½ Σ_y |p_ret(y|x) − p̂(y|x)|       over the same positions
    Retain Error       mean KL(p_ret(·|x) ‖ p̂(·|x))            over positions of answers to keep

Contexts are prefixes of the given answers (teacher forcing), with the token that ends the answer.
The four functions are pure. `errors` collects them from models: the base is read once for all of
its tilts and each retrained model once, and their positions are compared chunk by chunk, so that
the log-probabilities of more than one chunk are never in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from t3lib.classifier.head import NEVER
from t3lib.core.errors import UserError
from t3lib.core.models import within_memory
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Example
from t3lib.tofu.likelihood import (
    UNTILTED,
    Positions,
    Tilt,
    answer_positions,
    default_batch_tokens,
    heads_of,
    tilted_scores,
)
from t3lib.tofu.reader import Reading

# What is measured on answers to forget, and on answers to keep. likeliest: the share of tokens that
# are p̂'s most probable ones; where it is 1, greedy decoding writes the answer word for word.
MEASURES = {
    "forget": ("forget_error", "leak", "total_variation", "likeliest"),
    "retain": ("retain_error", "likeliest"),
}
WORD_FOR_WORD = {"forget": "recited", "retain": "kept"}  # share of such answers, in `summary`
RowErrors = dict[str, list[float]]  # {measure or "tokens": a number for each row}


def forget_error(logp: Tensor, logp_retrained: Tensor) -> Tensor:
    """|p_ret(y|x) − p̂(y|x)|   (the integrand of Eq. 7, in one context).

    logp, logp_retrained: log-probabilities of the same tokens under the unlearned and the retrained
    model, of any shape. Returns numbers from 0 to 1 of this shape.
    """
    return (logp_retrained.exp() - logp.exp()).abs()


def leak(logp: Tensor, logp_retrained: Tensor) -> Tensor:
    """max(0, p̂(y|x) − p_ret(y|x)): the part of the Forget Error that gives something away (ours).

    Arguments and result as of `forget_error`.
    """
    return (logp.exp() - logp_retrained.exp()).clamp(min=0)


def total_variation(logp: Tensor, logp_retrained: Tensor) -> Tensor:
    """½ Σ_y |p_ret(y|x) − p̂(y|x)|, the distance of the whole next-token distributions.

    logp, logp_retrained: (..., V) log-probabilities of all tokens. Returns (...), from 0 to 1.
    """
    return (logp_retrained.exp() - logp.exp()).abs().sum(-1) / 2


def retain_error(logp: Tensor, logp_retrained: Tensor) -> Tensor:
    """KL(p_ret(·|x) ‖ p̂(·|x)) = Σ_y p_ret(y|x) ln(p_ret(y|x) / p̂(y|x))   (Eq. 6, in one context).

    logp, logp_retrained: (..., V) log-probabilities of all tokens. Returns nats (...); infinity
    where p̂ is 0 for a token that the retrained model gives some probability.

    Ids without a token, as a padded vocabulary has them, do not count: where a head's `has_token`
    is False, ln p̂ is about `NEVER`, and p_ret is that of the other ids, normalised again.
    """
    no_token = logp.isfinite() & (logp < NEVER / 1e6)  # `errors` divides by its tau
    if no_token.any():
        logp_retrained = logp_retrained.masked_fill(no_token, -torch.inf).log_softmax(-1)
    p = logp_retrained.exp()
    return torch.where(p > 0, p * (logp_retrained - logp), 0).sum(-1)


def errors(
    model: Any,
    retrained: Mapping[str, Any],
    answers: Mapping[str, Sequence[Example]],
    reading: Reading,
    tilts: Sequence[Tilt] = UNTILTED,
    tau: float = 1.0,
) -> list[dict[str, dict[str, RowErrors]]]:
    """Compute the four errors of every tilt of a model beside retrained models, row by row.

    model: the base of the tilts, or any causal LM.
    retrained: {name: retrained model}, on the model's device and with its vocabulary.
    answers: {"forget": examples to forget, "retain": examples to keep}; either may be missing.
    tilts: pairs (head, T); by default the model alone.
    tau: the sampler's temperature of all models: p^(1/τ), normalised, is compared. It is no T.

    Returns for each tilt {name of a retrained model: {"forget": rows, "retain": rows}}, where rows
    is {"tokens" or a name of `MEASURES`: one number a row}: the number of answer tokens, and the
    mean over them. `summary` gives the means over all tokens.

    UserError for an answer without tokens, and for models that cannot be read in the same batches,
    such as models of two families.
    """
    results: list[dict[str, dict[str, RowErrors]]] = [
        {name: {} for name in retrained} for _ in tilts
    ]
    for part, examples in answers.items():
        models = [model, *retrained.values()]
        sums = _summed(models, examples, reading, tilts, MEASURES[part], tau)
        tokens = [len(example.answer) for example in examples]

        for result, of_tilt in zip(results, sums):
            for name, of_judge in zip(retrained, of_tilt):
                rows = (of_judge / np.array(tokens)).tolist()
                result[name][part] = {
                    "tokens": [*map(float, tokens)],
                    **dict(zip(MEASURES[part], rows)),
                }
    return results


def summary(rows: Mapping[str, RowErrors]) -> dict[str, float]:
    """Return {measure: its mean over all tokens} from the numbers of `errors` for one judge.

    In place of "likeliest" it has "recited" and "kept": the shares of answers to forget, and to
    keep, that greedy decoding writes word for word.
    """
    means = {}
    for name, part in rows.items():
        for measure in MEASURES[name]:
            if measure == "likeliest":
                means[WORD_FOR_WORD[name]] = float(np.mean(np.array(part[measure]) == 1))
            else:
                means[measure] = float(np.average(part[measure], weights=part["tokens"]))
    return means


def _summed(
    models: Sequence[Any],
    examples: Sequence[Example],
    reading: Reading,
    tilts: Sequence[Tilt],
    measures: Sequence[str],
    tau: float,
) -> NDArray[np.float64]:
    """Return (tilts, retrained models, measures, examples): sums over the tokens of each answer.

    models: the base of the tilts, and then the retrained ones.
    """
    shape = (len(tilts), len(models) - 1, len(measures), len(examples))
    heads = heads_of(tilts)

    def summed(batch_tokens: int) -> Tensor:
        total = torch.zeros(shape, dtype=torch.float64)
        sized = replace(reading, batch_tokens=batch_tokens)
        with progress_bar(total=len(examples), desc="errors", leave=False) as bar:
            for at, *judges in _together(models, examples, sized, heads):
                judged = [(judge.logits / tau).log_softmax(-1) for judge in judges]
                for t, scores in enumerate(tilted_scores(at, tilts)):
                    logp = (scores / tau).log_softmax(-1)
                    for j, logp_retrained in enumerate(judged):
                        values = _measured(measures, logp, logp_retrained, at.target)
                        total[t, j].index_add_(1, at.example.cpu(), values.cpu().double())
                bar.update(int((at.step == 0).sum()))
        return total

    total = within_memory(summed, reading.batch_tokens or default_batch_tokens(models[0]))
    return total.numpy()


def _measured(
    measures: Sequence[str], logp: Tensor, logp_retrained: Tensor, target: Tensor
) -> Tensor:
    """Return (measures, N) at N positions. logp, logp_retrained: (N, V). target: (N,) token ids."""
    said = [each.gather(-1, target[:, None])[:, 0] for each in (logp, logp_retrained)]
    functions = {
        "forget_error": lambda: forget_error(*said),
        "leak": lambda: leak(*said),
        "total_variation": lambda: total_variation(logp, logp_retrained),
        "retain_error": lambda: retain_error(logp, logp_retrained),
        "likeliest": lambda: (logp.argmax(-1) == target).to(logp.dtype),
    }
    return torch.stack([functions[name]() for name in measures])


def _together(
    models: Sequence[Any], examples: Sequence[Example], reading: Reading, heads: Sequence[Any]
) -> Iterator[tuple[Positions, ...]]:
    """Yield the same answer positions of several models. heads: of the first of them.

    UserError where the models are read in different batches.
    """
    walks = [
        answer_positions(model, examples, reading, heads if number == 0 else ())
        for number, model in enumerate(models)
    ]
    for places in zip_longest(*walks):
        if not all(_alike(places[0], other) for other in places):
            raise UserError(
                "errors: these models are read in different batches, or have vocabularies of"
                " different sizes: compare models of one family"
            )
        yield places


def _alike(one: Positions | None, other: Positions | None) -> bool:
    """Return True if two chunks have the same positions and vocabularies of the same size."""
    if one is None or other is None or one.logits.shape != other.logits.shape:
        return False
    return torch.equal(one.example, other.example) and torch.equal(one.step, other.step)
