"""The classifier head (A, B): T3's only trained parameters, and a few megabytes to share.

`T3Head` is the paper's low-rank linear head (Section 2.3). It is saved as safetensors + config.json
+ a model card (`t3lib.classifier.artefact`), never as pickle, and several heads on one base compose
by adding their log f.
"""

import math
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
    *("hidden_size", "vocab_size", "rank", "init_b", "prior", "gamma", "mu", "w", "temperature"),
)


class T3Head(nn.Module, PyTorchModelHubMixin):
    """f(x, y) = [sigmoid(B A MeanPool(H))]_y   (Section 2.3, unnumbered; the estimator of Eq. 2).

    A is (rank, hidden_size), B is (vocab_size, rank); both start as `nn.Linear`'s default (uniform
    within 1/sqrt(fan-in)) from a generator seeded with `seed`. init_b="zero" starts B at 0, so that
    tokens never trained stay exactly neutral.

    prior="balanced" uses f itself, the posterior under the training sample's proportions.
    prior="population" turns it into the density ratio under the population's forget proportion
    `gamma`, with `mu` that of the training sample (Appendix D). `w` sharpens the classifier, f^w
    (Remark 3.6). `temperature` is the T the head was tuned for, used when none is given; `info` is
    free JSON that travels with the head: base_model, base_revision, base_identity, split, seed,
    hyperparameters, metrics.

    UserError for a size or setting that `settings.check` refuses, and for the prior "population"
    without gamma.
    """

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
        seed: int = 0,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.vocab_size, self.rank = hidden_size, vocab_size, rank
        self.init_b, self.prior, self.gamma, self.mu, self.w = init_b, prior, gamma, mu, w
        self.temperature = temperature
        self.info: dict[str, Any] = dict(info or {})
        check("seed", seed, where="head ")
        for name in SETTINGS:
            if name != "gamma" or gamma is not None or prior == "population":
                check(name, getattr(self, name), where="head ")
        generator = torch.Generator().manual_seed(seed)
        self.A = nn.Parameter(_linear_default(rank, hidden_size, generator))
        B = _linear_default(vocab_size, rank, generator)
        self.B = nn.Parameter(torch.zeros_like(B) if init_b == "zero" else B)

    @property
    def config(self) -> dict[str, Any]:
        """Everything `__init__` needs to build this head again, as JSON."""
        return {name: getattr(self, name) for name in (*SETTINGS, "info")}

    @property
    def num_parameters(self) -> int:
        """h (d + |V|), the paper's count of trainable parameters (Table 2)."""
        return self.A.numel() + self.B.numel()

    def project(self, hidden: Tensor) -> Tensor:
        """z = A H: hidden (..., d) in any float dtype -> z (..., h) in float32.

        A commutes with the mean, A mean(H) = mean(A H), so samplers keep h floats of state instead
        of d.
        """
        return _float32_linear(hidden, self.A)

    def logit(self, z: Tensor) -> Tensor:
        """u = B z: pooled projection (..., h) -> (..., V) float32, so that f = sigmoid(u)."""
        return _float32_linear(z, self.B)

    def logf(self, z: Tensor) -> Tensor:
        """log f(x, .) = log sigmoid(B z), times w (Section 2.3): pooled z (..., h) -> (..., V)
        float32.

        With prior="population" f is replaced by Appendix D's ratio (unnumbered), which in the logit
        u is a shift: mu f / ((mu - gamma) f + gamma (1 - mu)) = sigmoid(u - c) / (1 - gamma),  c =
        logit(gamma) - logit(mu).
        """
        return log_tilt(
            self.logit(z),
            gamma=self.gamma if self.prior == "population" else None,
            mu=self.mu,
            w=self.w,
        )

    def forward(self, pooled: Tensor) -> Tensor:
        """log f of mean-pooled hidden states (..., d) -> (..., V)."""
        return self.logf(self.project(pooled))

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        model_card_kwargs: object = None,
        overwrite: bool = True,
    ) -> None:
        """Write model.safetensors, README.md and, last, config.json with their checksum; never the
        base.

        `config` updates `info` for this one save. model_card_kwargs: not used; `push_to_hub` gives
        it. overwrite=False: UserError if the folder holds anything by then.

        Every file is renamed into place whole, and the checksum ties the three
        together: a save that was killed half-way is refused by `from_pretrained`, never misread.
        """
        settings = {**self.config, "info": {**self.info, **(config or {})}}
        weights = {name: getattr(self, name).detach().cpu().contiguous() for name in ("A", "B")}
        artefact.save(Path(save_directory), settings, weights, overwrite=overwrite)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | Path, *, revision: str | None = None, **overrides: Any
    ) -> Self:
        """Load a head from a folder or from the Hub, in evaluation mode; `overrides` replace
        constructor arguments.

        Raises UserError for a missing, truncated or altered file, and for a config that does not
        fit the weights. HF_TOKEN, HF_HOME and HF_HUB_OFFLINE hold for the Hub, as everywhere.
        """
        settings, weights = artefact.load(name, revision, overrides)
        try:
            head = cls(**settings)
        except (KeyError, TypeError) as error:
            raise UserError(f"{name}: not a T3 head's config ({error})") from None
        head.A.data, head.B.data = weights["A"], weights["B"]
        return head.eval()

    def extra_repr(self) -> str:
        """What `repr` says of this head."""
        return (
            f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}, rank={self.rank},"
            f" prior={self.prior!r}"
        )


def log_tilt(
    logit: Tensor, *, gamma: float | None = None, mu: float = 0.5, w: float = 1.0
) -> Tensor:
    """w log f with f = sigmoid(logit); with gamma, w log[mu f / ((mu - gamma) f + gamma (1 - mu))]
    (Appendix D).

    Any shape; stable for |logit| of 1e4 and beyond, where sigmoid itself is 0 or 1 in float32.
    """
    if gamma is None:
        log_ratio = F.logsigmoid(logit)
    else:
        shift = math.log(gamma) - math.log1p(-gamma) - math.log(mu) + math.log1p(-mu)
        log_ratio = F.logsigmoid(logit - shift) - math.log1p(-gamma)
    return log_ratio if w == 1 else w * log_ratio


def _float32_linear(x: Tensor, weight: Tensor) -> Tensor:
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), weight.float())
    return F.linear(x.float(), weight.float())


def _linear_default(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    weight = torch.empty(rows, columns)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    return weight
