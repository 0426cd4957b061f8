"""T3 companion: Temper-Then-Tilt unlearning (arXiv 2602.10217), small enough to read, fit to use.

    p_hat(y|x)  ∝  p(y|x)^(1/T) · f(x, y),      f(x, y) = [σ(B A mean_t H_t(x))]_y,      base frozen

p(y|x) is the base model's probability of the next token y after the tokens x. T ≥ 1 is the
tempering temperature. f is a small classifier on the base model's hidden states: its estimate of
the probability that x followed by y comes from the retain rows and not from the forget rows.

Letters: B batch size, L sequence length, V vocabulary size, d hidden size, h rank of the classifier
(the head), N answer tokens. γ is the share of forget data in the population, μ its share in the
training sample. Prefixes of names: logp_ log-probability, p_ probability, logit_ logit, logf_
logarithm of the classifier's factor f.

Reading order. Each package imports only packages named before it:
    core         errors, names, settings, files, rows, models: what all other packages use
    classifier   head, pooling, features, fit: f and how it is fitted; artefact: a head on disk
    sampler      wrapped, tilt: generation; belonging: which model a head fits
    tofu         data, fit, reader, likelihood, writing, metrics, evaluation: the benchmark
    baselines    the unlearning methods that T3 is compared with
    theory       the Gaussian experiments and the bounds; without torch
    cli          the command `t3`, which finds the verbs of own and of the laboratory
    own          own models: unlearn, lessons, answers, leak, kept, verdict, report, serve
The laboratory, notebooks/t3lab, regenerates the paper's tables and figures with all of these.

Equations of the paper:
    Eq. 1 population mixture        theory.GaussianMixture
    Eq. 2 the best f                theory.GaussianMixture.phi_star; f: classifier.head.T3Head.logf
    Eq. 3 the loss of f             classifier.fit.fit_head, theory.fit_logistic
    Eq. 5 p_hat, in sampling        sampler.tilt.tilted
          p_hat, in scoring         tofu.likelihood.target_logp
    Eq. 6 Retain Error              theory.GaussianMixture.retain_error
    Eq. 7 Forget Error              theory.GaussianMixture.forget_error
          both, of a language model tofu.unlearning_errors.retain_error, forget_error
    Eq. 8 p_hat and its partition   theory.GaussianMixture.density, theory.GaussianMixture.partition
    Truth Ratio (Section 4.1)       tofu.metrics.truth_ratio
    Forget Quality (Section 4.1)    tofu.metrics.forget_quality
    Model Utility (Section 4.1)     tofu.metrics.model_utility, tofu.metrics.mu_rouge
    other priors (Appendix D)       classifier.head.log_tilt, theory.density_ratio_under_imbalance

H_t(x) is the base's last hidden state at token t, after its final norm. The mean is over all tokens
of x that the base attends to (classifier.pooling). `make` trains the bases and runs each notebook
once for each split, and some for each method too. `t3 reproduce --dry-run` lists these jobs.

Importing `t3lib` imports neither torch nor transformers. A public name loads its module when it is
first used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t3lib.core.errors import UserError as UserError

__version__ = "0.1.0"
LIBRARY = Path(__file__).resolve().parent

if TYPE_CHECKING:
    from t3lib import theory as theory
    from t3lib.baselines.losses import LOSSES as LOSSES
    from t3lib.classifier.features import Features as Features
    from t3lib.classifier.features import extract_features as extract_features
    from t3lib.classifier.fit import fit_head as fit_head
    from t3lib.classifier.head import T3Head as T3Head
    from t3lib.core.models import load_model as load_model
    from t3lib.core.rows import prompt as prompt
    from t3lib.own.answers import ask as ask
    from t3lib.own.assess import assess as assess
    from t3lib.own.rows import Rows as Rows
    from t3lib.own.unlearn import Choices as Choices
    from t3lib.own.unlearn import unlearn as unlearn
    from t3lib.sampler.tilt import T3ForCausalLM as T3ForCausalLM
    from t3lib.sampler.tilt import tilt as tilt
    from t3lib.tofu.evaluation import evaluate as evaluate

# None of these names may also be a module of t3lib: importing the module would replace it.
_HOME = {
    "T3Head": "t3lib.classifier.head",
    "T3ForCausalLM": "t3lib.sampler.tilt",
    "tilt": "t3lib.sampler.tilt",
    "Features": "t3lib.classifier.features",
    "extract_features": "t3lib.classifier.features",
    "fit_head": "t3lib.classifier.fit",
    "ask": "t3lib.own.answers",
    "assess": "t3lib.own.assess",
    "unlearn": "t3lib.own.unlearn",
    "Choices": "t3lib.own.unlearn",
    "Rows": "t3lib.own.rows",
    "LOSSES": "t3lib.baselines.losses",
    "evaluate": "t3lib.tofu.evaluation",
    "load_model": "t3lib.sampler.tilt",  # which also tells Transformers how to load a head
    "prompt": "t3lib.core.rows",
}

__all__ = ["UserError", "__version__", "theory", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "theory":
        return import_module("t3lib.theory")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 't3lib' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those not used yet, so that Tab completes them and no others."""
    return sorted(__all__)
