"""T3 companion: Temper-Then-Tilt unlearning (arXiv 2602.10217), small enough to read and fit to use.

    p_hat(y|x)  ∝  p(y|x)^(1/T) · f(x, y),      f(x, y) = [σ(B A mean_t H_t(x))]_y,      base frozen

Letters: B batch, L length, V vocabulary, d hidden size, h rank of the head, N answer tokens; T the tempering
temperature; γ the forget proportion of the population, μ of the training sample. In names, logp_ are log-probabilities,
p_ probabilities, logit_ logits and logf_ the log of the classifier's tilt.

Reading order:  names, errors, files, settings (what all use) → tofu (rows, prompts), models (loading)
→ head, pooling, features, classifier (f and how it is fitted) → wrapped, sampler, artefact, belonging (generating;
saving)
→ unlearning (all of it in one call) → likelihood, writing, metrics, evaluation (scores, texts, Forget Quality)
→ results (run files). The rooms beside them (baselines, theory, …) use the method; the method uses no room.

Equations of the paper:
    Eq. 1 population mixture        theory.GaussianMixture
    Eq. 2 the best f                theory.GaussianMixture.phi_star (f itself: head.T3Head.logf)
    Eq. 3 the loss of f             classifier.fit_head, theory.fit_logistic
    Eq. 5 p_hat                     sampler.tilt_logits (sampling), likelihood.target_logp (scoring)
    Eq. 6 Retain Error              theory.GaussianMixture.retain_error
    Eq. 7 Forget Error              theory.GaussianMixture.forget_error
    Eq. 8 p_hat and its partition   theory.GaussianMixture.density, theory.GaussianMixture.partition
    Truth Ratio (Section 4.1)       metrics.truth_ratio
    Forget Quality (Section 4.1)    metrics.forget_quality
    Model Utility (Section 4.1)     metrics.model_utility, metrics.mu_rouge
    other priors (Appendix D)       head.log_tilt, theory.density_ratio_under_imbalance

Importing `t3lib` imports neither torch nor transformers; public names load their module when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from t3lib._version import __version__ as __version__
from t3lib.errors import UserError as UserError

if TYPE_CHECKING:
    from t3lib import theory as theory
    from t3lib.audit.answers import ask as ask
    from t3lib.audit.evidence import assess as assess
    from t3lib.audit.own import Choices as Choices
    from t3lib.audit.own import unlearn as unlearn
    from t3lib.audit.rows import Rows as Rows
    from t3lib.baselines.losses import LOSSES as LOSSES
    from t3lib.classifier import fit_head as fit_head
    from t3lib.evaluation import evaluate as evaluate
    from t3lib.features import Features as Features
    from t3lib.features import extract_features as extract_features
    from t3lib.head import T3Head as T3Head
    from t3lib.models import load_model as load_model
    from t3lib.rows import prompt as prompt
    from t3lib.sampler import T3ForCausalLM as T3ForCausalLM
    from t3lib.sampler import tilt as tilt

_HOME = {  # no name of these may be a module of t3lib: importing the module would replace the function
    "T3Head": "t3lib.head",
    "T3ForCausalLM": "t3lib.sampler",
    "tilt": "t3lib.sampler",
    "Features": "t3lib.features",
    "extract_features": "t3lib.features",
    "fit_head": "t3lib.classifier",
    "ask": "t3lib.audit.answers",
    "assess": "t3lib.audit.evidence",
    "unlearn": "t3lib.audit.own",
    "Choices": "t3lib.audit.own",
    "Rows": "t3lib.audit.rows",
    "LOSSES": "t3lib.baselines.losses",
    "evaluate": "t3lib.evaluation",
    "load_model": "t3lib.models",
    "prompt": "t3lib.rows",
}

__all__ = ["UserError", "__version__", "theory", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "theory":
        return import_module("t3lib.theory")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 't3lib' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names too, whether or not they have been used: completion on Tab shows them."""
    return sorted({*globals(), *__all__})
