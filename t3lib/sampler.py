"""Sampling from the unlearned distribution: T3ForCausalLM, and `tilt`, which does the same to a model in place.

    p_hat(y | x)  =  softmax_y( log p(y | x) / T  +  log f(x, y) )          (Section 2.3; Eq. 5)

T is the paper's temperature. Hugging Face's `temperature` is another thing, applied afterwards when sampling.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from t3lib import artefact
from t3lib import pooling as pool
from t3lib.errors import UserError
from t3lib.head import T3Head
from t3lib.models import decoder_of, load_model
from t3lib.settings import check_temperature
from t3lib.watch import Watch
from t3lib.wrapped import (
    WrappedCausalLM,
    check_input,
    check_request,
    input_length,
    last_tokens,
    plain_base,
    untruncated,
    visible_tokens,
    vocabulary,
)


def tilt_logits(logits: Tensor, logf: Tensor, temperature: float) -> Tensor:
    """log p(y | x) / T + log f(x, y), not normalised (Section 2.3, unnumbered; Eq. 5 in logs).

    logits (..., V) of the base in any float dtype, logf (..., V) of the head -> (..., V) float32.
    """
    logp, logf = logits.float().log_softmax(-1), logf.to(logits.device)
    if torch.is_grad_enabled():
        return logp / temperature + logf
    return logp.div_(temperature).add_(logf)  # while decoding, memory traffic over |V| is most of what T3 costs


class T3ForCausalLM(WrappedCausalLM):
    """p_hat(y | x) proportional to p(y | x)^(1/T) f(x, y) with p frozen (Eq. 5), as a Transformers model.

    base: any decoder-only causal LM (quantised, with LoRA, offloaded ...); heads: one T3Head or several for the same
    base, whose log f add up; temperature: the paper's T, default the (first) head's own. Logits are float32 and not
    normalised; `labels` are scored under p_hat. Without position_ids, `forward` numbers tokens as the base does and
    `generate` as generate does. Raises UserError for a head of other sizes, on another device or of another base.
    """

    heads: Any
    _heads_add_up = True  # False in a subclass whose heads are alternatives

    def __init__(
        self,
        base: PreTrainedModel,
        heads: T3Head | Sequence[T3Head],
        temperature: float | None = None,
        *,
        allow_sharpening: bool = False,
        tokenizer: Any = None,
    ) -> None:
        heads = [heads] if isinstance(heads, T3Head) else list(heads)
        if not heads or not all(isinstance(head, T3Head) for head in heads):
            raise UserError("heads must be a T3Head or a list of them")
        base = plain_base(base)
        identity = artefact.base_identity(base)
        for head in heads:
            artefact.check_sizes(head, base.config.get_text_config().hidden_size, vocabulary(base))
            artefact.check_base(head, identity)
            if tokenizer is not None:
                artefact.check_tokenizer(head, tokenizer)
            if head.A.device not in _devices(base) or head.B.device != head.A.device:
                raise UserError(
                    f"the head is on {head.A.device}, the base on {base.device}: use head.to({base.device.type!r})"
                )
        if self._heads_add_up:
            artefact.check_same_base(heads)
        super().__init__(base)
        self.heads = nn.ModuleList(heads)
        self.allow_sharpening = allow_sharpening
        self.temperature = heads[0].temperature if temperature is None else temperature
        self._owner = hashlib.sha256(
            b"".join(head.A.detach().float().cpu().numpy().tobytes() for head in heads)
        ).hexdigest()
        self._traced = Watch()

    @property
    def temperature(self) -> float:
        """The paper's T; assign to change it."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = check_temperature(value, allow_sharpening=self.allow_sharpening)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        visible: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """The base's output with tilted logits (B, L or logits_to_keep, V) float32 and, given labels, their loss.

        attention_mask is 2-D over cached and new tokens; tokens it hides are neither attended to nor pooled, wherever
        they stand. `visible` (B, L), the mask of the new tokens only, is what `generate` fills in.
        """
        tokens = input_length(input_ids, inputs_embeds)
        if visible is None:
            check_input(self, tokens, attention_mask)
            visible = visible_tokens(attention_mask, tokens)
        if past_key_values is not None:
            pool.check_cache(past_key_values, self._owner)
        inputs = dict(attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values)
        inputs |= dict(input_ids=input_ids, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs)
        given = {name: value for name, value in inputs.items() if value is not None}
        outputs, hidden = self._watched(given | dict(logits_to_keep=logits_to_keep))
        cache = past_key_values if past_key_values is not None else getattr(outputs, "past_key_values", None)
        artefact.check_sizes(self.heads[0], hidden.shape[-1], outputs.logits.shape[-1])
        logf = self._logf(hidden, visible, cache, logits_to_keep)
        outputs.logits = tilt_logits(outputs.logits, logf, self.temperature)
        if labels is not None:
            size = outputs.logits.shape[-1]
            outputs.loss = self.loss_function(logits=outputs.logits, labels=labels, vocab_size=size, **kwargs)
        return outputs if return_dict is not False else outputs.to_tuple()

    def _logf(self, hidden: Tensor, visible: Tensor | None, cache: Any, logits_to_keep: int | Tensor) -> Tensor:
        device = self.heads[0].A.device
        if hidden.device != device and not hasattr(self.base, "hf_device_map"):
            raise UserError(
                f"the head is on {device}, the base's hidden states on {hidden.device}: move the whole model"
            )
        z = self._project(hidden.to(device))
        visible = None if visible is None else visible.to(device)
        if cache is None:
            pooled = pool.prefix_mean(z, visible)
        else:
            pooled = pool.attach(cache, self._owner).append(z, visible)
        if not torch.compiler.is_compiling() and not torch.isfinite(pooled[:, -1]).all():
            raise UserError("the base's hidden states hold NaN or infinity (a damaged base, or float16 overflow)")
        return self._combine(last_tokens(pooled, logits_to_keep))

    def _project(self, hidden: Tensor) -> Tensor:
        """What is pooled: A H of every head, side by side, (B, L, sum of ranks)."""
        return torch.cat([head.project(hidden) for head in self.heads], dim=-1)

    def _combine(self, pooled: Tensor) -> Tensor:
        """log f from the pooled A H: the heads' add up, (B, L, V)."""
        parts = pooled.split([head.rank for head in self.heads], dim=-1)
        return functools.reduce(torch.add, [head.logf(part) for head, part in zip(self.heads, parts)])

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, attention_mask: Any = None, inputs_embeds: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The base's own inputs for this step, plus the mask of the tokens that are new in it.

        The mask is taken here, 2-D: a static cache has it turned into a 4-D one next, from which it cannot be read.
        Transformers looks these parameters' names up, that of `kwargs` too, to decide what `generate` may be given.
        """
        prepare = self.prepare_base or self.base.prepare_inputs_for_generation
        inputs = {**kwargs, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        prepared = prepare(input_ids, *args, **inputs)
        new = next(prepared[name] for name in ("input_ids", "inputs_embeds") if prepared.get(name) is not None)
        visible = visible_tokens(attention_mask, new.shape[1])
        prepared["visible"] = visible if visible is not None else torch.ones(new.shape[:2], device=new.device)
        cache = prepared.get("past_key_values")
        if cache is not None and cache.is_compileable:
            pool.attach(cache, self._owner)  # before compiled code sees the cache
        return prepared

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        """`GenerationMixin.generate`, exact in every mode it accepts; UserError, with the reason, in the others."""
        with self._traced.on(decoder_of(self.base)):
            return super().generate(inputs, generation_config=generation_config, **kwargs)

    def _watched(self, inputs: dict[str, Any]) -> tuple[Any, Tensor]:
        """The base's output and its final hidden states (B, L, d)."""
        if torch.compiler.is_compiling():
            return self.base_forward(**inputs), self._traced.take()
        with Watch.of_this_thread().on(decoder_of(self.base)) as watch:
            return self.base_forward(**inputs), watch.take()

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:  # type: ignore[override]
        """Save the head (never the base); with several heads save each to a folder of its own."""
        if len(self.heads) != 1:
            raise UserError("several heads: save each with head.save_pretrained to a folder of its own")
        self.heads[0].save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # type: ignore[override]
        """Push the head (never the base) to the Hub; with several heads push each."""
        if len(self.heads) != 1:
            raise UserError("several heads: push each with head.push_to_hub to a repository of its own")
        return self.heads[0].push_to_hub(repo_id, **kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        heads: str | Path | Sequence[str | Path],
        *,
        base: PreTrainedModel | str | Path,
        temperature: float | None = None,
        allow_sharpening: bool = False,
        tokenizer: Any = None,
        **load: Any,
    ) -> Self:
        """Heads from folders or the Hub on a base, given as a loaded model or as a name for `models.load_model`.

        With a name the base's tokenizer is loaded and checked too. `load` goes to `load_model`: dtype, device, load_in.
        """
        if not isinstance(base, nn.Module):
            base, own = load_model(base, **load)
            tokenizer = own if tokenizer is None else tokenizer
        names = [heads] if isinstance(heads, str | Path) else list(heads)
        loaded = [T3Head.from_pretrained(name).to(_devices(base)[0]) for name in names]
        return cls(base, loaded, temperature, allow_sharpening=allow_sharpening, tokenizer=tokenizer)


@contextmanager
def tilt(
    model: PreTrainedModel,
    heads: T3Head | Sequence[T3Head],
    temperature: float | None = None,
    *,
    allow_sharpening: bool = False,
    tokenizer: Any = None,
) -> Iterator[PreTrainedModel]:
    """`with tilt(model, head, temperature=2.5): model.generate(...)`: T3 on an unmodified model, switched on in place.

    Inside the block the model's forward and generate are those of T3ForCausalLM, with its sampling defaults; leaving it
    puts every attribute back. The weights are never touched. Raises UserError as T3ForCausalLM does, and when nested.
    """
    tilted = T3ForCausalLM(model, heads, temperature, allow_sharpening=allow_sharpening, tokenizer=tokenizer)
    base = tilted.base
    tilted.call_base, tilted.prepare_base = base.forward, base.prepare_inputs_for_generation
    generate = base.generate

    def tilted_generate(inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any) -> Any:
        check_request(tilted, inputs, generation_config, kwargs)
        generation_config, kwargs = untruncated(tilted, generation_config, kwargs)
        with tilted._traced.on(decoder_of(base)):
            return generate(inputs, generation_config=generation_config, **kwargs)

    inside: dict[str, Any] = {"forward": tilted.forward, "generate": tilted_generate, "_tilted_by": tilted.temperature}
    names = ("prepare_inputs_for_generation", "generation_config", "generate_batch", "init_continuous_batching")
    inside |= {name: getattr(tilted, name) for name in (*names, "continuous_batching_context_manager")}
    before = {name: base.__dict__[name] for name in (*inside, "_compiled_call") if name in base.__dict__}
    base.__dict__.pop("_compiled_call", None)
    base.__dict__.update(inside)
    try:
        yield base
    finally:
        for name in (*inside, "_compiled_call"):
            base.__dict__.pop(name, None)
        base.__dict__.update(before)


def _devices(base: Any) -> list[torch.device]:
    """Where the base's weights are, the output embedding's device first; what is offloaded to disk has none."""
    output = base.get_output_embeddings()
    first = [] if output is None else list(output.parameters())
    devices = [weight.device for weight in (*first, *base.parameters()) if weight.device.type != "meta"]
    return list(dict.fromkeys(devices)) or [torch.device("cpu")]
