"""Sampling from the unlearned distribution: T3ForCausalLM, and `tilt`, which does the same to a
model in place.

    p_hat(y | x)  =  softmax_y( log p(y | x) / T  +  log f(x, y) )          (Section 2.3; Eq. 5)

p is the frozen base, f the classifier (`head`) of the pooled context (`pooling`), T the paper's
temperature. `WrappedCausalLM.forward` (in `wrapped`) runs the base and hands its logits and hidden
states to `unlearned_logits` here. Hugging Face's `temperature` is another thing, applied afterwards
when sampling.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from t3lib.classifier import pooling
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
from t3lib.core.settings import check, check_temperature
from t3lib.sampler import belonging
from t3lib.sampler.wrapped import (
    WrappedCausalLM,
    last_tokens,
    plain_base,
    visible_tokens,
    vocabulary,
)


def tilt_logits(logits: Tensor, logf: Tensor, temperature: float | Tensor) -> Tensor:
    """log p(y | x) / T + log f(x, y), up to a constant of each position (Eq. 5 in logs, not
    normalised).

    logits (..., V) of the base in any float dtype, logf (..., V) of the head, T a number or (...,
    1) -> (..., V) float32. p itself is not normalised either: that would be more passes over |V| in
    every step.
    """
    return (logits.float() / temperature).add_(
        logf.to(logits.device)
    )  # in place: (B, L, V) is large


class T3ForCausalLM(WrappedCausalLM):
    """p_hat(y | x) proportional to p(y | x)^(1/T) f(x, y) with p frozen (Eq. 5), as a Transformers
    model.

    base: any decoder-only causal LM (quantised, with LoRA, offloaded ...); heads: one T3Head or
    several for the same base, whose log f add up; temperature: the paper's T, by default the
    (first) head's own. Logits are float32 and not normalised; `labels` are scored under p_hat.
    Without position_ids, `forward` numbers tokens as the base does and `generate` as generate does.
    A cache that this model has filled has one layer more than the base's, the pooled context.
    Raises UserError for a head of other sizes, on another device or of another base (allowed with
    other_base=True), and for heads of different T without a temperature.
    """

    heads: Any

    def __init__(
        self,
        base: PreTrainedModel,
        heads: T3Head | Sequence[T3Head],
        temperature: float | None = None,
        *,
        allow_sharpening: bool = False,
        tokenizer: Any = None,
        other_base: bool = False,
    ) -> None:
        heads = [heads] if isinstance(heads, T3Head) else list(heads)
        if not heads or not all(isinstance(head, T3Head) for head in heads):
            raise UserError("heads must be a T3Head or a list of them")
        base = plain_base(base)
        for head in heads:
            check("w", head.w, where="head ")
            belonging.check_sizes(head, base.config.get_text_config().hidden_size, vocabulary(base))
            if not other_base:
                belonging.check_base(head, base)
            if tokenizer is not None:
                belonging.check_tokenizer(head, tokenizer)
            if head.A.device not in _devices(base) or head.B.device != head.A.device:
                raise UserError(
                    f"the head is on {head.A.device}, the base on {base.device}: use"
                    f" head.to({base.device.type!r})"
                )
        belonging.check_same_base(heads)
        super().__init__(base)
        self.heads = nn.ModuleList(heads)
        self.allow_sharpening = allow_sharpening
        if temperature is None and len({head.temperature for head in heads}) > 1:
            values = ", ".join(f"{head.temperature:g}" for head in heads)
            raise UserError(
                f"these heads have different temperatures ({values}): give the one to use"
            )
        self.temperature = heads[0].temperature if temperature is None else temperature

    @property
    def temperature(self) -> float:
        """The paper's T; assign to change it."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        """UserError for a T that `settings.check_temperature` refuses."""
        self._temperature = check_temperature(value, allow_sharpening=self.allow_sharpening)

    def project(self, hidden: Tensor) -> Tensor:
        """z = A H of every head, side by side: what is pooled. hidden (B, L, d) -> (B, L, sum of
        ranks).
        """
        return torch.cat([head.project(hidden) for head in self.heads], dim=-1)

    def logf(self, pooled: Tensor) -> Tensor:
        """log f of the pooled context, summed over heads: (B, L, sum of ranks) -> (B, L, V)."""
        parts = pooled.split([head.rank for head in self.heads], dim=-1)
        return functools.reduce(
            torch.add, [head.logf(part) for head, part in zip(self.heads, parts)]
        )

    def step_inputs(self, attention_mask: Any, tokens: int) -> Tensor | None:
        """Which of the new tokens are visible, and so are pooled."""
        return visible_tokens(attention_mask, tokens)

    def unlearned_logits(
        self, logits: Tensor, hidden: Tensor, cache: Any, prepared: Any, inputs: dict[str, Any]
    ) -> Tensor:
        """`tilt_logits` of the new tokens by log f of their pooled context, which `cache` then
        holds too.
        """
        belonging.check_sizes(self.heads[0], hidden.shape[-1], logits.shape[-1])
        pooled = self._pooled(hidden, prepared, cache)
        logf = self.logf(last_tokens(pooled, inputs["logits_to_keep"]))
        return tilt_logits(logits, logf, self.temperature)

    def _pooled(self, hidden: Tensor, visible: Tensor | None, cache: Any) -> Tensor:
        """mean_t(A H_t) of the context up to each new token, (B, L, sum of ranks), where the heads
        are.
        """
        device = self.heads[0].A.device
        if hidden.device != device and not hasattr(self.base, "hf_device_map"):
            offloaded = hasattr(self.heads[0], "_hf_hook")
            advice = (
                "offload the base alone, cpu_offload(model.base)"
                if offloaded
                else "move the whole model"
            )
            raise UserError(
                f"the head is on {device}, the base's hidden states on {hidden.device}: {advice}"
            )
        z = self.project(hidden.to(device))
        visible = None if visible is None else visible.to(device)
        if cache is None:
            return pooling.prefix_mean(z, visible)
        return pooling.attach(cache, self.heads).append(z, visible)

    def check_cache(self, cache: Any) -> None:
        """UserError unless every token in the cache was pooled, with these heads."""
        super().check_cache(cache)
        pooling.check_cache(cache, self.heads)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *args: Any,
        attention_mask: Any = None,
        inputs_embeds: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The base's own inputs for this step, plus the mask of the tokens that are new in it.

        The mask is taken here, 2-D: a static cache has it turned into a 4-D one next, from which it
        cannot be read. Transformers looks these parameters' names up, that of `kwargs` too, to
        decide what `generate` may be given.
        """
        inputs = {**kwargs, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        prepared = self.of_base("prepare_inputs_for_generation")(input_ids, *args, **inputs)
        new = next(
            prepared[name]
            for name in ("input_ids", "inputs_embeds")
            if prepared.get(name) is not None
        )
        visible = visible_tokens(attention_mask, new.shape[1])
        prepared["prepared"] = (
            visible if visible is not None else new.new_ones(new.shape[:2], dtype=torch.bool)
        )
        cache = prepared.get("past_key_values")
        if cache is not None and cache.is_compileable:
            pooling.attach(cache, self.heads)  # before compiled code sees the cache
        return prepared

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:  # type: ignore[override]
        """Save the head with the T in use (never the base); with several heads save each to a
        folder of its own.
        """
        self._shared_head().save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # type: ignore[override]
        """Push the head with the T in use (never the base) to the Hub; with several heads push
        each.
        """
        return self._shared_head().push_to_hub(repo_id, **kwargs)

    def _shared_head(self) -> T3Head:
        if len(self.heads) != 1:
            raise UserError(
                "several heads: save or push each head by itself (head.save_pretrained)"
            )
        head = copy.copy(self.heads[0])  # the same weights; the T is the copy's alone
        head.temperature = self.temperature
        return head

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        heads: str | Path | Sequence[str | Path],
        *,
        base: PreTrainedModel | str | Path,
        temperature: float | None = None,
        allow_sharpening: bool = False,
        tokenizer: Any = None,
        other_base: bool = False,
        **load: Any,
    ) -> Self:
        """Heads from folders or the Hub on a base, given as a loaded model or as a name for
        `models.load_model`.

        With a name the base's tokenizer is loaded and checked too. `load` goes to `load_model`:
        dtype, device, load_in.
        """
        if not isinstance(base, nn.Module):
            base, loaded_tokenizer = load_model(base, **load)
            tokenizer = loaded_tokenizer if tokenizer is None else tokenizer
        names = [heads] if isinstance(heads, str | Path) else list(heads)
        loaded = [T3Head.from_pretrained(name).to(_devices(base)[0]) for name in names]
        return cls(
            base,
            loaded,
            temperature,
            allow_sharpening=allow_sharpening,
            tokenizer=tokenizer,
            other_base=other_base,
        )


REPLACED = (
    "forward",
    "generate",
    "prepare_inputs_for_generation",
    "_update_model_kwargs_for_generation",
)
ADDED = (
    "generation_config",
    "generate_batch",
    "init_continuous_batching",
    "continuous_batching_context_manager",
)


@contextmanager
def tilt(
    model: PreTrainedModel,
    heads: T3Head | Sequence[T3Head],
    temperature: float | None = None,
    **settings: Any,
) -> Iterator[PreTrainedModel]:
    """`with tilt(model, head, temperature=2.5): model.generate(...)`: T3 on an unmodified model,
    switched on in place.

    Inside the block the model's forward and generate are those of T3ForCausalLM, with its sampling
    defaults, for every thread that uses this model; leaving it puts every attribute back. The
    weights are never touched. `settings` are T3ForCausalLM's. Raises UserError as it does, when
    nested, and for copying, pickling or saving the model inside.
    """
    tilted = T3ForCausalLM(model, heads, temperature, **settings)
    base = tilted.base
    tilted.replaced = {name: getattr(base, name) for name in REPLACED}

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UserError(
            "inside tilt(...) the model cannot be copied, pickled or saved: do it outside the block"
        )

    inside: dict[str, object] = {
        name: getattr(tilted, name) for name in (*REPLACED, *ADDED, "resize_token_embeddings")
    }
    inside |= dict.fromkeys(("__getstate__", "save_pretrained", "push_to_hub"), refuse) | {
        "_tilted_by": tilted
    }
    before = {
        name: base.__dict__[name] for name in (*inside, "_compiled_call") if name in base.__dict__
    }
    base.__dict__.pop("_compiled_call", None)
    base.__dict__.update(inside)
    try:
        yield base
    finally:
        for name in (*inside, "_compiled_call"):
            base.__dict__.pop(name, None)
        base.__dict__.update(before)


def _devices(base: Any) -> list[torch.device]:
    """Where the base's weights are, the output embedding's device first; what is offloaded to disk
    has none.
    """
    output = base.get_output_embeddings()
    first = [] if output is None else list(output.parameters())
    devices = [
        weight.device for weight in (*first, *base.parameters()) if weight.device.type != "meta"
    ]
    return list(dict.fromkeys(devices)) or [torch.device("cpu")]
