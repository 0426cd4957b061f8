"""T3 in one call, without evidence: rows to forget and to keep in, the base under its new
head out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.core.rows import Row
from t3lib.core.settings import TEMPERATURE, check_temperature, fit_settings
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import plain_base, vocabulary


def fit_without_evidence(
    model: PreTrainedModel,
    tokenizer: Any,
    forget: Sequence[Row],
    retain: Sequence[Row],
    *,
    temperature: float = TEMPERATURE,
    attention_mask: str = "lengths",
    split: str | None = None,
    allow_sharpening: bool = False,
    cache: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> T3ForCausalLM:
    """Temper-Then-Tilt: fit a classifier head on features of the frozen base and tilt the tempered
    base with it.

    forget, retain: rows with question and answer. temperature: T (Eq. 5). Further settings (rank,
    lr, epochs, weight_decay, decay, init_b, prior, epoch, seed, …) are those of
    `settings.FitSettings`. attention_mask, cache: see `features.extract_features`. split: a name
    recorded in the head. The base's weights are never changed.

    UserError for an empty set, a row in both sets, an answer that tokenises to nothing (with its
    row), a setting out of range. The head's `info` records base, revision, tokenizer, split, seed,
    hyperparameters and the numbers of rows.
    """
    temperature = check_temperature(temperature, allow_sharpening=allow_sharpening)
    fit_settings(settings)  # before the features, which may take long
    base = plain_base(model)
    reading: dict[str, Any] = {
        "attention_mask": attention_mask,
        "cache": cache,
        "progress": progress,
    }
    features = extract_features(base, tokenizer, forget, retain, **reading)
    head = fit_head(features, vocab_size=vocabulary(base), progress=progress, **settings)
    head.temperature = temperature
    head.info |= belonging.origin(base, tokenizer, forget, retain, len(features.y))
    head.info |= {"split": split, "attention_mask": attention_mask}
    head.info["hyperparameters"] |= {
        "attention_mask": attention_mask,
        "features": str(features.x.dtype),
    }
    return T3ForCausalLM(base, head.to(base.device), temperature, allow_sharpening=allow_sharpening)
