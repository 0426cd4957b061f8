"""The ten baselines' losses as pure functions, and LOSSES: each method's forget and retain term.

Formulas: arXiv:2602.10217, Appendix F.1 (unnumbered). Every function returns one loss for each
example, (B,); the loss of a batch is their mean. Shapes: B batch, S positions that predict a token,
L tokens, V vocabulary, d hidden size.

    logp (B, S)       ln p of the next token at each position
    answer (B, S)     bool: is that token in the answer?
    logp_ref (B,)     ln p* of the whole answer, p* the original model
    tokens            answer tokens an example, on average
    logit (B, S, V)   logits at all positions, prompt and padding too
    targets (B, S)    next tokens, 0 outside answers
    logit_all (B, L, V), answer_all (B, L)  the same at every position, the last one included
    hidden (B, L, d)  states of one layer
    in_answer (B, L)  bool: is this token in the answer?
    inverse_tokens    mean of 1/(answer tokens) over the examples of a step
    control (d,)      RMU's random direction (forget term only)
    logp_idk, logp_idk_ref (B,)  ln p and ln p* of an "I don't know" answer (forget term only)

variant: "reference" (the default) is what locuslab/open-unlearning computes, so that its numbers
are comparable. "paper" is the formula as printed, with ln p(a|q) the sum over the answer's tokens.
`tokens` defaults to the batch's own mean; a training loop that accumulates gradients passes the
mean of the whole step.

`@takes(...)` above each loss names its arguments. The names decide which forward passes a step runs
(`forward.quantities`): over the answers for `logp`, over all positions for `logit`, up to layer k
for `hidden`, and also by the original model for names that end in `_ref`. A loss takes only one of
`logp`, `logit`, `logit_all` and `hidden`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from t3lib.core.errors import UserError, printable
from t3lib.core.settings import LOOP, T3, check

if TYPE_CHECKING:  # names and settings can be read without importing torch
    from torch import Tensor

Variant = Literal["reference", "paper"]
Loss = TypeVar("Loss", bound=Callable[..., Any])

# The settings of each baseline that are not in LOOP, or differ from it. A loss is
# alpha_f · forget term + alpha_r · retain term. k is a layer, counted from 1. ULD's T is its
# strength, and filter its logit filter as a share of the most probable token (0: none). All but ULD
# also have `lora_rank`: 0, the paper's, trains all weights, any other number LoRA of this rank.
BASELINES: dict[str, dict[str, Any]] = {
    "GradAscent": {"alpha_f": 1.0},
    "GradDiff": {"alpha_f": 1.0, "alpha_r": 1.0, "retain_loss": "nll"},
    "WGA": {"alpha_f": 1.0, "alpha_r": 1.0, "retain_loss": "nll", "beta": 1.0},
    "SatImp": {"alpha_f": 0.1, "alpha_r": 1.0, "retain_loss": "nll", "beta1": 5.0, "beta2": 1.0},
    "UnDIAL": {"alpha_f": 1.0, "alpha_r": 0.0, "retain_loss": "nll", "beta": 10.0},
    "RMU": {"alpha_f": 1.0, "alpha_r": 1.0, "c": 2.0, "k": 8},
    "ULD": {
        "alpha_f": 1.0,
        "alpha_r": 5.0,
        "lr": 1e-3,
        "epochs": 20,
        "weight_decay": 1e-4,
        "k": 16,
        "rank": 32,
        "T": 1.0,
        "filter": 0.0,
    },
    "IdkDPO": {"alpha_f": 1.0, "alpha_r": 1.0, "retain_loss": "nll", "beta": 0.1},
    "NPO": {"alpha_f": 1.0, "alpha_r": 1.0, "retain_loss": "nll", "beta": 0.1},
    "SimNPO": {"alpha_f": 0.125, "alpha_r": 1.0, "retain_loss": "nll", "beta": 4.5, "delta": 0.0},
}

# The order of rows in all tables.
METHODS = ("Original", "Retrained", *BASELINES, "T3")
DEFAULTS: dict[str, dict[str, Any]] = {
    name: LOOP | special | ({} if name == "ULD" else {"lora_rank": 0})
    for name, special in BASELINES.items()
} | {"T3": T3}


def settings_of(
    method: str, changes: Mapping[str, Any], where: str | None = None
) -> dict[str, Any]:
    """Return all settings of a method: its defaults, with `changes` in place of some values.

    method: a key of `DEFAULTS`. where: start of the error's message, by default the method.
    UserError for an unknown name and for a value that `settings.check` refuses.
    """
    if method not in DEFAULTS:
        raise UserError(
            f"unknown method {printable(method)!r}: choose one of {', '.join(DEFAULTS)}"
        )
    defaults = DEFAULTS[method]
    chosen = dict(defaults)
    for name, value in changes.items():
        if name not in defaults:
            known = ", ".join(sorted(defaults))
            raise UserError(
                f"{where or method} has no setting {printable(name)!r}: choose among {known}"
            )
        chosen[name] = check(name, value, like=defaults[name], where=f"{where or method}: ")
    return chosen


NEEDS: dict[Callable[..., Tensor], frozenset[str]] = {}  # names of each loss's arguments


def takes(*names: str) -> Callable[[Loss], Loss]:
    """Record in `NEEDS` the names of a loss's arguments: outputs of a model, counts, settings."""

    def note(loss: Loss) -> Loss:
        NEEDS[loss] = frozenset(names)
        return loss

    return note


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Σ_s of the values where the mask is true: (B, S) -> (B,).

    Other values (NaN, −inf) are ignored.
    """
    return values.masked_fill(~mask, 0.0).sum(-1)


def log_likelihood(logp: Tensor, answer: Tensor) -> Tensor:
    """ln p(a|q) = Σ_t ln p(a_t | q, a_<t), the sum over answer positions: (B, S) -> (B,)."""
    return masked_sum(logp, answer)


@takes("logp", "answer", "tokens", "variant")
def nll(
    logp: Tensor, answer: Tensor, *, tokens: float | None = None, variant: Variant = "reference"
) -> Tensor:
    """−ln p(a|q), the retain term of seven baselines and the forget term of ULD.

    The seven are GradDiff, WGA, SatImp, UnDIAL, IdkDPO, NPO and SimNPO. reference: divided by the
    mean number of answer tokens, so that the mean over a batch is a mean over its tokens and long
    answers weigh more. paper: the sum over the sequence.
    """
    return -grad_ascent(logp, answer, tokens=tokens, variant=variant)


@takes("logp", "answer", "tokens", "variant")
def grad_ascent(
    logp: Tensor, answer: Tensor, *, tokens: float | None = None, variant: Variant = "reference"
) -> Tensor:
    """L = ln p(a_f|q_f), the loss of GradAscent and the forget term of GradDiff.

    reference: mean over tokens. paper: sum over the sequence (see `nll`).
    """
    return _weighted(lambda _: 1.0, logp, answer, tokens, variant)


@takes("logp", "answer", "beta", "tokens", "variant")
def wga(
    logp: Tensor,
    answer: Tensor,
    *,
    beta: float = BASELINES["WGA"]["beta"],
    tokens: float | None = None,
    variant: Variant = "reference",
) -> Tensor:
    """L = sg[p(a_f|q_f)^β] ln p(a_f|q_f), sg = stop-gradient.

    reference: each token has its own weight, sg[p_t^β] ln p_t, and the loss is a mean over tokens.
    paper: one weight for each sequence.
    """
    return _weighted(lambda logp: (beta * logp).exp(), logp, answer, tokens, variant)


@takes("logp", "answer", "beta1", "beta2", "tokens", "variant")
def sat_imp(
    logp: Tensor,
    answer: Tensor,
    *,
    beta1: float = BASELINES["SatImp"]["beta1"],
    beta2: float = BASELINES["SatImp"]["beta2"],
    tokens: float | None = None,
    variant: Variant = "reference",
) -> Tensor:
    """L = sg[p(a_f|q_f)^β1 (1 − p(a_f|q_f))^β2] ln p(a_f|q_f), sg = stop-gradient.

    reference: each token has its own weight, and the loss is a mean over tokens. paper: one weight
    for each sequence.
    """
    return _weighted(
        lambda logp: logp.exp() ** beta1 * (1 - logp.exp()) ** beta2, logp, answer, tokens, variant
    )


def _weighted(
    weight_of: Callable[[Tensor], Tensor | float],
    logp: Tensor,
    answer: Tensor,
    tokens: float | None,
    variant: Variant,
) -> Tensor:
    """sg[w(ln p)] ln p, with the weight `weight_of`, which is a function of ln p.

    paper: of the whole sequence. reference: of each token, summed and divided by `tokens`.
    """
    if _is_paper(variant):
        logp = log_likelihood(logp, answer)
        return weight_of(logp.detach()) * logp
    of_step = answer.sum() / len(answer) if tokens is None else tokens
    return masked_sum(weight_of(logp.detach()) * logp, answer) / of_step


@takes("logit", "logit_ref", "targets", "answer", "beta", "variant")
def undial(
    logit: Tensor,
    logit_ref: Tensor,
    targets: Tensor,
    answer: Tensor,
    *,
    beta: float = BASELINES["UnDIAL"]["beta"],
    variant: Variant = "reference",
) -> Tensor:
    """L = CE(p̃, p), ln p̃(y|x) = ln p*(y|x) − β·1[y = y_f] + C, p* the original model.

    reference: mean over every position, prompt and padding too. This copies a mistake of the
    published code: outside answers the label is −100, which the code uses as an index, so that the
    token V − 100 is lowered there. The loss therefore changes with padding. paper: sum over answer
    positions.
    """
    paper, V = _is_paper(variant), logit.shape[-1]
    lowered = targets if paper else targets.where(answer, (V - 100) % V)
    shift = logit_ref.new_zeros(logit_ref.shape).scatter_(-1, lowered[..., None], beta)
    p_adjusted = (logit_ref - shift).softmax(-1)
    cross_entropy = -(p_adjusted * logit.log_softmax(-1)).sum(-1)  # (B, S)
    return masked_sum(cross_entropy, answer) if paper else cross_entropy.mean(-1)


@takes("hidden", "control", "in_answer", "c", "inverse_tokens", "variant")
def rmu_forget(
    hidden: Tensor,
    control: Tensor,
    in_answer: Tensor,
    *,
    c: float = BASELINES["RMU"]["c"],
    inverse_tokens: float | None = None,
    variant: Variant = "reference",
) -> Tensor:
    """L = ‖M^k(q_f) − c u 1ᵀ/‖u‖‖_F², u ~ Unif([0,1]^d) = control (d,).

    reference: states of the answer's tokens, mean over d, summed over tokens, times the batch's
    mean of 1/|a|. This copies the published code, which divides (B,) by (B, 1), so that each
    example is divided by the length of every example. `inverse_tokens` passes that mean for a whole
    step. paper: states of the question, which are those of all tokens before the answer, summed
    over tokens and d.
    """
    goal = c * control / control.norm()
    return rmu_retain(hidden, goal, in_answer, inverse_tokens=inverse_tokens, variant=variant)


@takes("hidden", "hidden_ref", "in_answer", "inverse_tokens", "variant")
def rmu_retain(
    hidden: Tensor,
    hidden_ref: Tensor,
    in_answer: Tensor,
    *,
    inverse_tokens: float | None = None,
    variant: Variant = "reference",
) -> Tensor:
    """L = ‖M^k(q_r) − M*^k(q_r)‖_F², M* the original model's states.

    Variants as in `rmu_forget`.
    """
    squares = (hidden - hidden_ref) ** 2  # (B, L, d)
    if _is_paper(variant):
        return masked_sum(squares.sum(-1), in_answer.cumsum(-1) == 0)
    per_token = (1 / in_answer.sum(-1)).mean() if inverse_tokens is None else inverse_tokens
    return masked_sum(squares.mean(-1), in_answer) * per_token


@takes("logit_all", "answer_all", "variant")
def uniform_kl(logit_all: Tensor, answer_all: Tensor, *, variant: Variant = "reference") -> Tensor:
    """L = KL(Unif(V) ‖ f(q_r, ·)) = −ln V − mean_y ln f(y), the retain term of ULD.

    reference (UCSB-NLP-Chang/ULD): mean over all L positions, also those of the prompt, of padding
    and of the last token. paper: sum over the positions that predict a token of the answer
    (`answer_all`).
    """
    kl = -math.log(logit_all.shape[-1]) - logit_all.log_softmax(-1).mean(-1)  # (B, L)
    return masked_sum(kl, answer_all) if _is_paper(variant) else kl.mean(-1)


@takes("logp", "answer", "logp_ref", "logp_idk", "logp_idk_ref", "beta")
def idk_dpo(
    logp: Tensor,
    answer: Tensor,
    logp_ref: Tensor,
    logp_idk: Tensor,
    logp_idk_ref: Tensor,
    *,
    beta: float = BASELINES["IdkDPO"]["beta"],
) -> Tensor:
    """L = −(2/β) ln σ(β (ln p/p*(ã_f|q_f) − ln p/p*(a_f|q_f))), p* the original model.

    ã_f is an "I don't know" answer; logp_idk and logp_idk_ref (B,) are its ln p and ln p*.
    """
    ratio = log_likelihood(logp, answer) - logp_ref
    return -2 / beta * _log_sigmoid(beta * (logp_idk - logp_idk_ref - ratio))


@takes("logp", "answer", "logp_ref", "beta")
def npo(
    logp: Tensor, answer: Tensor, logp_ref: Tensor, *, beta: float = BASELINES["NPO"]["beta"]
) -> Tensor:
    """L = −(2/β) ln σ(−β ln p/p*(a_f|q_f)), p* the original model."""
    return -2 / beta * _log_sigmoid(-beta * (log_likelihood(logp, answer) - logp_ref))


@takes("logp", "answer", "beta", "delta", "variant")
def sim_npo(
    logp: Tensor,
    answer: Tensor,
    *,
    beta: float = BASELINES["SimNPO"]["beta"],
    delta: float = BASELINES["SimNPO"]["delta"],
    variant: Variant = "reference",
) -> Tensor:
    """L = −(2/β) ln σ(−(β/|a_f|) ln p(a_f|q_f) − Δ).

    paper: Δ = delta. reference: the margin is inside β, σ(β (−ln p/|a| − delta)), so that
    Δ = β·delta.
    """
    margin = delta if _is_paper(variant) else beta * delta
    return -2 / beta * _log_sigmoid(-beta * log_likelihood(logp, answer) / answer.sum(-1) - margin)


@takes("logit_all", "logit_all_ref")
def kl_to_original(logit_all: Tensor, logit_all_ref: Tensor) -> Tensor:
    """KL(p* ‖ p), OpenUnlearning's retain term "kl", p* the original model.

    It is the mean over all L positions, prompt and padding too.
    """
    from torch.nn.functional import kl_div

    kl = kl_div(
        logit_all.log_softmax(-1), logit_all_ref.log_softmax(-1), reduction="none", log_target=True
    )
    return kl.sum(-1).mean(-1)


def _log_sigmoid(values: Tensor) -> Tensor:
    from torch.nn.functional import logsigmoid

    return logsigmoid(values)


def _is_paper(variant: str) -> bool:
    check("variant", variant)
    return variant == "paper"


class Terms(NamedTuple):
    """The two terms of a method's loss, alpha_f · mean(forget) + alpha_r · mean(retain).

    The weights alpha_f and alpha_r are settings. retain is None for a method without a retain term.
    """

    forget: Callable[..., Tensor]
    retain: Callable[..., Tensor] | None


LOSSES: dict[str, Terms] = {
    "GradAscent": Terms(grad_ascent, None),
    "GradDiff": Terms(grad_ascent, nll),
    "WGA": Terms(wga, nll),
    "SatImp": Terms(sat_imp, nll),
    "UnDIAL": Terms(undial, nll),
    "RMU": Terms(rmu_forget, rmu_retain),
    "ULD": Terms(nll, uniform_kl),
    "IdkDPO": Terms(idk_dpo, nll),
    "NPO": Terms(npo, nll),
    "SimNPO": Terms(sim_npo, nll),
}
