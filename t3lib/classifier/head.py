"""The classifier head with its matrices A and B: T3's only trained parameters, a few megabytes.

`T3Head` is the paper's low-rank linear head (Section 2.3). It is saved as safetensors + config.json
+ a model card (`t3lib.classifier.artefact`), never as pickle. Several heads on one base are
combined by adding their log f.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from t3lib.classifier import artefact
from t3lib.core.errors import UserError
from t3lib.core.settings import TEMPERATURE, FitSettings, check

SETTINGS = (
    "hidden_size",
    "vocab_size",
    "rank",
    "init_b",
    "prior",
    "gamma",
    "mu",
    "w",
    "temperature",
    "untrained",
    "gate",
    "tail",
)
NEVER = -1e30  # log f of ids without a token, finite so that sums of several heads are


class T3Head(nn.Module, PyTorchModelHubMixin):
    """f(x, y) = [sigmoid(B A MeanPool(H))]_y   (Section 2.3, unnumbered; the estimator of Eq. 2).

    hidden_size, vocab_size: d and V of the base.
    rank: h. A is (rank, hidden_size), B is (vocab_size, rank).
    init_b: "kaiming" starts B as A always starts, at `nn.Linear`'s default (uniform within
    1/sqrt(fan-in)); "zero" starts B at 0, so that tokens never trained keep f = 1/2.
    prior: "balanced" uses f itself, the posterior under the proportions of the training sample.
    "population" turns it into the density ratio under the population's proportions (Appendix D).
    gamma, mu: share of forget data in the population and in the training sample.
    w: exponent of the classifier, f^w (Remark 3.6).
    temperature: the T that the head was tuned for, used when a sampler is given none.
    gate: θ of gated tempering (ours, see `t3lib.sampler.tilt.gated_temperature`), used when a
    sampler is given none. 1 is the paper's T3, which tempers everywhere.
    tail: ε of `t3lib.sampler.tilt.tempered`, used when a sampler is given none. 0 is the paper's
    T3, which tempers all tokens.
    untrained: f of tokens that were no target in training. "as drawn" is the paper's: their rows of
    B keep the random start, so f is noise there. "neutral" is ours: f = 1 for them, so that the
    base alone decides about tokens of which the head knows nothing.
    seed: of the initial weights.
    info: JSON saved with the head: base_model, base_revision, base_weights, split, seed,
    hyperparameters, metrics and whatever else the caller adds.

    The buffer `taught` (V,) is True for tokens that were a target, or fewer, as `t3lib.own` sets
    it; None before a fit. The buffer `has_token` (V,) is False for
    ids that stand for no token, as in a padded vocabulary: they are never sampled. It is None if
    all ids have one or if it is not known.

    UserError for a size or setting that `settings.check` refuses, and for the prior "population"
    without gamma.
    """

    taught: Tensor | None
    has_token: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        rank: int = FitSettings.rank,
        *,
        init_b: str = FitSettings.init_b,
        prior: str = FitSettings.prior,
        gamma: float | None = None,
        mu: float = 0.5,
        w: float = FitSettings.w,
        temperature: float = TEMPERATURE,
        untrained: str = "as drawn",
        gate: float = 1.0,
        tail: float = 0.0,
        seed: int = 0,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.vocab_size, self.rank = hidden_size, vocab_size, rank
        self.init_b, self.prior, self.gamma, self.mu, self.w = init_b, prior, gamma, mu, w
        self.temperature, self.untrained = temperature, untrained
        self.gate, self.tail = gate, tail
        self.info: dict[str, Any] = dict(info or {})

        for name in SETTINGS:
            if name != "gamma" or gamma is not None or prior == "population":
                setattr(self, name, check(name, getattr(self, name), where="head "))

        # The initial values are those of nn.Linear, from a random stream of their own.
        generator = torch.Generator().manual_seed(check("seed", seed, where="head "))
        self.A = nn.Parameter(_linear_default(self.rank, self.hidden_size, generator))
        B = _linear_default(self.vocab_size, self.rank, generator)
        self.B = nn.Parameter(torch.zeros_like(B) if init_b == "zero" else B)
        self.register_buffer("taught", None)
        self.register_buffer("has_token", None)

    @property
    def config(self) -> dict[str, Any]:
        """All arguments that `__init__` needs to build this head again except the seed, as JSON."""
        return {name: getattr(self, name) for name in (*SETTINGS, "info")}

    @property
    def num_parameters(self) -> int:
        """h (d + |V|), the number of trainable parameters (Table 2 of the paper)."""
        return self.A.numel() + self.B.numel()

    def project(self, hidden: Tensor) -> Tensor:
        """z = A H: hidden (..., d) in any float dtype -> z (..., h) in float32.

        The mean commutes with A, mean(A H) = A mean(H), so samplers store h numbers for each token
        instead of d.
        """
        return _float32_linear(hidden, self.A)

    def logit(self, z: Tensor) -> Tensor:
        """u = B z: pooled projection z (..., h) -> (..., V) in float32, so that f = sigmoid(u)."""
        return _float32_linear(z, self.B)

    def logf(self, z: Tensor) -> Tensor:
        """w log f(x, .), f = sigmoid(B z) (Section 2.3): pooled z (..., h) -> (..., V) in float32.

        With prior="population", f is replaced by Appendix D's ratio (unnumbered), which shifts the
        logit u: mu f / ((mu - gamma) f + gamma (1 - mu)) = sigmoid(u - c) / (1 - gamma),
        c = logit(gamma) - logit(mu). With untrained="neutral", the result is 0 for tokens that are
        not `taught`; UserError if these are not known.
        """
        logf = log_tilt(
            self.logit(z),
            gamma=self.gamma if self.prior == "population" else None,
            mu=self.mu,
            w=self.w,
        )
        if self.untrained != "as drawn":
            if self.taught is None:
                raise UserError(
                    "this head does not say which tokens it was trained on: fit it again"
                )
            logf = logf.masked_fill(~self.taught, 0.0)
        return logf if self.has_token is None else logf.masked_fill(~self.has_token, NEVER)

    def forward(self, pooled: Tensor) -> Tensor:
        """w log f for mean-pooled hidden states (..., d) -> (..., V) in float32; see `logf`."""
        return self.logf(self.project(pooled))

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        model_card_kwargs: Mapping[str, Any] | None = None,
        overwrite: bool = True,
    ) -> None:
        """Write model.safetensors, README.md and last config.json with a checksum; never the base.

        save_directory: a folder, created if missing.
        config: entries that replace those of `info` in this save.
        model_card_kwargs: {"license", "datasets"} of the model card (`artefact.model_card`), as
        `push_to_hub` passes them.
        overwrite: with False, UserError if the folder is not empty.

        Each file is renamed into place when it is complete, and the checksum ties weights to
        config: a save that was killed half-way is refused by `from_pretrained` and never misread.
        """
        settings = {**self.config, "info": {**self.info, **(config or {})}}
        tensors = {name: getattr(self, name) for name in artefact.SHAPES}
        weights = {
            name: value.detach().cpu().contiguous()
            for name, value in tensors.items()
            if value is not None
        }
        named = model_card_kwargs or {}
        folder = Path(os.path.expanduser(save_directory))
        artefact.save(folder, settings, weights, overwrite=overwrite, named=named)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | Path, *, revision: str | None = None, **overrides: Any
    ) -> Self:
        """Load a head from a folder or from the Hub, in evaluation mode.

        revision: branch, tag or commit on the Hub. overrides: constructor arguments that replace
        saved ones. The environment variables HF_TOKEN, HF_HOME and HF_HUB_OFFLINE apply. UserError
        for a missing, truncated or altered file, and for a config that does not fit the weights.
        """
        settings, weights = artefact.load(name, revision, overrides)
        try:
            head = cls(**settings)
        except (KeyError, TypeError) as error:
            raise UserError(f"{name}: not a T3 head's config ({error})") from None
        head.A.data, head.B.data = weights["A"], weights["B"]
        head.taught, head.has_token = weights.get("taught"), weights.get("has_token")
        return head.eval()


def log_tilt(
    logit: Tensor, *, gamma: float | None = None, mu: float = 0.5, w: float = 1.0
) -> Tensor:
    """w log f, f = sigmoid(logit); with gamma, w log[mu f / ((mu - gamma) f + gamma (1 - mu))].

    The ratio with gamma is Appendix D's. logit: any shape, also that of the result. Stable for
    |logit| of 1e4 and beyond, where sigmoid itself is 0 or 1 in float32.
    """
    if gamma is None:
        log_ratio = F.logsigmoid(logit)
    else:
        shift = math.log(gamma) - math.log1p(-gamma) - math.log(mu) + math.log1p(-mu)
        log_ratio = F.logsigmoid(logit - shift) - math.log1p(-gamma)
    return log_ratio if w == 1 else w * log_ratio


def _float32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T in float32, also inside autocast."""
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), weight.float())
    return F.linear(x.float(), weight.float())


def _linear_default(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draw a (rows, columns) weight as `nn.Linear` does by default."""
    weight = torch.empty(rows, columns, dtype=torch.float32)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    return weight
