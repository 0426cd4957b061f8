"""T3 companion: Temper-Then-Tilt unlearning (arXiv 2602.10217), small enough to read and fit to use.

    p_hat(y|x)  ∝  p(y|x)^(1/T) · f(x, y),      f(x, y) = [σ(B A mean_t H_t(x))]_y,      base frozen

Shape letters used throughout: B batch, L length, V vocabulary, d hidden size, h rank of the head, N answer tokens.
Names tell the scale: logp_ log-probabilities, p_ probabilities, logit_ logits, logf_ log of the classifier's tilt.

Importing `t3lib` imports neither torch nor transformers; public names load their module when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from t3lib._version import __version__
from t3lib.errors import UserError

if TYPE_CHECKING:
    from t3lib.baselines.losses import LOSSES
    from t3lib.classifier import fit_head
    from t3lib.evaluation import evaluate
    from t3lib.features import Features, extract_features
    from t3lib.head import T3Head
    from t3lib.models import load_model
    from t3lib.sampler import T3ForCausalLM, tilt
    from t3lib.unlearning import unlearn

_HOME = {
    "T3Head": "t3lib.head",
    "T3ForCausalLM": "t3lib.sampler",
    "tilt": "t3lib.sampler",
    "Features": "t3lib.features",
    "extract_features": "t3lib.features",
    "fit_head": "t3lib.classifier",
    "unlearn": "t3lib.unlearn",
    "LOSSES": "t3lib.baselines.losses",
    "evaluate": "t3lib.evaluate",
    "load_model": "t3lib.models",
}

__all__ = [
    "LOSSES",
    "Features",
    "T3ForCausalLM",
    "T3Head",
    "UserError",
    "__version__",
    "evaluate",
    "extract_features",
    "fit_head",
    "load_model",
    "tilt",
    "unlearn",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 't3lib' has no attribute {name!r}")
