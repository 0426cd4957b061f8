"""Fit a head on rows as the paper does: rows to forget and rows to keep in, a head out."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers import PreTrainedModel

from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_heads
from t3lib.classifier.head import T3Head
from t3lib.core.rows import Row
from t3lib.core.settings import PAPER, FitSettings
from t3lib.sampler import belonging
from t3lib.sampler.wrapped import plain_base, vocabulary


def fit_on_rows(
    model: PreTrainedModel,
    tokenizer: Any,
    forget: Sequence[Row],
    retain: Sequence[Row],
    settings: FitSettings = PAPER,
    *,
    attention_mask: str = "lengths",
) -> T3Head:
    """Fit a classifier head on features of the frozen base, for `T3ForCausalLM(model, head, T)`.

    forget, retain: rows with question and answer. settings: of the fit, by default the paper's.
    attention_mask: see `features.extract_features`.

    The head is on the CPU. Its `info` records base, revision, tokenizer, form of the prompts, seed,
    hyperparameters and the numbers of rows. The base's weights are never changed. Errors as of
    `features.extract_features` and `fit.fit_heads`.
    """
    base = plain_base(model)
    features = extract_features(base, tokenizer, forget, retain, attention_mask=attention_mask)
    [head] = fit_heads(features, [asdict(settings)], vocab_size=vocabulary(base))
    head.has_token = belonging.tokens_known(tokenizer, vocabulary(base))
    head.info |= belonging.origin(base, tokenizer, forget, retain, len(features.y))
    head.info["attention_mask"] = attention_mask
    read = {"attention_mask": attention_mask, "features": str(features.x.dtype)}
    head.info["hyperparameters"] |= read
    return head
