"""Default settings of T3 and of the baselines' training loop, and each setting's allowed values.

T3's defaults are the paper's choice for Llama-3.1-8B on TOFU (Appendix F). A profile's `hyper`, the
command line and the arguments of `fit_head` replace single values. The default settings of each
baseline are in `baselines.losses`. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any

from t3lib.core.errors import UserError, printable

TEMPERATURE = 2.5  # T

CHOICES: dict[str, tuple[str, ...]] = {
    "prior": ("balanced", "population"),
    "init_b": ("kaiming", "zero"),
    "decay": ("adamw", "l2"),
    "epoch": ("redrawn", "fixed"),
    "untrained": ("as drawn", "neutral"),
    "attention_mask": ("lengths", "openunlearning"),
    "truth_ratio": ("geometric", "arithmetic"),
    "variant": ("reference", "paper"),
    "retain_loss": ("nll", "kl"),
    "optimizer": ("adamw", "paged_adamw_8bit"),
}

# Lowest and highest value. Bounds that are integers belong to integer settings. The highest values
# are far beyond use: they turn a slip or a hostile file into a one-line error instead of an
# overflow or hours of allocation.
BOUNDS: dict[str, tuple[float, float]] = {
    "rank": (1, 4096),
    "lora_rank": (0, 4096),
    "hidden_size": (1, 2**20),
    "vocab_size": (1, 2**24),
    "epochs": (1, 100_000),
    "steps": (1, 10**9),
    "batch_size": (1, 2**20),
    "accumulation": (1, 2**20),
    "seed": (0, 2**63 - 1),
    "k": (1, 10_000),
    "lr": (1e-12, 1.0),
    "warmup_epochs": (0.0, 1e5),
    "weight_decay": (0.0, 1e6),
    "max_grad_norm": (1e-12, 1e12),
    "temperature": (1e-6, 1e6),
    "w": (1e-6, 1e6),
    "gate": (0.0, 1.0),
    "tail": (0.0, 1.0),
    "gamma": (1e-9, 1 - 1e-9),
    "mu": (1e-9, 1 - 1e-9),
    "alpha_f": (0.0, 1e6),
    "alpha_r": (0.0, 1e6),
    "beta": (1e-6, 1e6),
    "T": (0.0, 1e6),
    "filter": (0.0, 1.0),
}


def as_number(value: Any) -> Any:
    """Return a number of any library (NumPy, pandas, torch, fractions) as Python's int or float.

    Any other value is returned as it is.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    kind = next((kind for kind in (Integral, Real) if isinstance(value, kind)), None)
    if kind is None or isinstance(value, bool | int | float):
        return value
    return int(value) if kind is Integral else float(value)


def check(name: str, value: Any, *, like: Any = 0.0, where: str = "") -> Any:
    """Return a setting's value as Python's own number, or as it is if it is no number.

    UserError unless it is allowed for setting `name`, by `CHOICES` or by `BOUNDS`.

    like: the setting's default, which decides the type of a setting listed in neither. where: the
    start of the message. True and False are not numbers; an integer is accepted as a real number.
    """
    value = as_number(value)
    if name in CHOICES:
        fits, wanted = value in CHOICES[name], f"one of {', '.join(CHOICES[name])}"
    elif isinstance(like, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    else:
        low, high = BOUNDS.get(name, (-1e12, 1e12))
        kind: Any = int if isinstance(low, int) else int | float
        fits = isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high
        wanted = (
            f"a whole number from {low} to {high}"
            if kind is int
            else f"a number from {low:g} to {high:g}"
        )
    if not fits:
        raise UserError(f"{where}{name} must be {wanted}, not {printable(repr(value), 80)}")
    return value


@dataclass(frozen=True)
class FitSettings:
    """Settings for fitting one head of T3; UserError for a value that `check` refuses.

    rank: rank h of the head.
    lr: peak learning rate η.
    epochs: N, the number of passes over the forget rows.
    warmup_epochs: number of epochs at the start during which the learning rate rises linearly.
    batch_size: number of forget–retain pairs in a step.
    weight_decay: λ.
    decay: "adamw" decouples λ from the gradient, as the published code does; "l2" adds λ‖φ‖² to the
    loss, as Eq. 3 does.
    init_b: initial B, "kaiming" (random) or "zero".
    prior, gamma, w: see `T3Head`. gamma=None computes it from the numbers of rows.
    epoch: "redrawn" draws new retain partners from all retain rows in each epoch; "fixed" draws
    them once (the paper's "preprocessed").
    seed: of the initial weights, the order of rows and the draws.
    """

    rank: int = 20
    lr: float = 5e-4
    epochs: int = 100
    warmup_epochs: float = 25
    batch_size: int = 32
    weight_decay: float = 1e-3
    decay: str = "adamw"
    init_b: str = "kaiming"
    prior: str = "balanced"
    epoch: str = "redrawn"
    gamma: float | None = None
    w: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (name == "gamma" and value is None):
                object.__setattr__(self, name, check(name, value))
        if self.warmup_epochs > self.epochs:
            raise UserError(
                f"warmup_epochs {self.warmup_epochs} must lie between 0 and epochs ({self.epochs})"
            )


def fit_settings(values: Mapping[str, Any]) -> FitSettings:
    """Make `FitSettings` from a mapping of names to values; UserError for an unknown name."""
    unknown = set(values) - {field.name for field in fields(FitSettings)}
    if unknown:
        raise UserError(f"fit_head has no setting {printable(sorted(unknown)[0])!r}")
    return FitSettings(**values)


PAPER = FitSettings()
# T3's settings that a profile may change. Each run has its own seed; gamma follows from the rows.
T3 = {name: value for name, value in asdict(PAPER).items() if name not in ("seed", "gamma")}
T3 |= {"temperature": TEMPERATURE, "gate": 1.0, "tail": 0.0}
T3 |= {"untrained": "as drawn"}  # like gate and tail, not the paper's

# Settings that all baselines share: of the training loop, and the variant of the loss's formula.
LOOP: dict[str, float | str] = {
    "lr": 1e-5,
    "epochs": 10,
    "warmup_epochs": 1.0,
    "weight_decay": 0.01,
    "batch_size": 32,
    "accumulation": 1,
    "max_grad_norm": 1.0,
    "optimizer": "adamw",
    "bf16": False,
    "variant": "reference",
}

# T3 on a user's own rows. Their number varies, so training is counted in steps. B starts at zero.
# The paper's settings are T3 above.
OWN_FIT = FitSettings(rank=64, lr=2e-2, init_b="zero")
OWN_STEPS = 4000
OWN_WARMUP = 0.1  # share of the steps during which the learning rate rises


def check_temperature(temperature: Any, *, allow_sharpening: bool = False) -> float:
    """Return T as a float; UserError if out of bounds, or below 1 without allow_sharpening."""
    temperature = check("temperature", temperature)
    if temperature < 1 and not allow_sharpening:
        raise UserError(
            f"temperature {temperature} is below 1 and would sharpen the base: allow_sharpening"
            " (in Python) permits it"
        )
    return float(temperature)
