"""ULD's distribution: a small assistant trained to do the reverse of unlearning, subtracted from the base.

    p_hat(y | x)  proportional to  p(y | x) / f(y | x)^strength

The assistant (`t3lib.baselines.assistant`, trained by ULD's reversed loss) is a causal LM of its own, with its own
keys and values. They ride in the base's cache as further layers, so every decoding mode moves both together, as it does
T3's pooled context.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import DummyLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from t3lib.errors import UserError
from t3lib.wrapped import (
    WrappedCausalLM,
    check_call,
    check_finite,
    input_length,
    plain_base,
    vocabulary,
)

NO_EMBEDS = "inputs_embeds are the base's own and mean nothing to the assistant: give input_ids"


def subtract_logits(logits: Tensor, assistant_logits: Tensor, strength: float) -> Tensor:
    """log p(y | x) - strength * log f(y | x), not normalised: (..., V) and (..., V) -> (..., V) float32."""
    return logits.float().log_softmax(-1) - strength * assistant_logits.float().log_softmax(-1)


class AssistantMark(DummyLayer):
    """Stands in the cache between the base's layers and the assistant's; `owner` says which assistant's."""

    def __init__(self, owner: int) -> None:
        super().__init__()
        self.owner = owner


class ULDForCausalLM(WrappedCausalLM):
    """p_hat(y | x) proportional to p(y | x) / f(y | x)^strength, p and f frozen, as a Transformers model.

    base and assistant: decoder-only causal LMs with one vocabulary; strength >= 0, 0 being the base alone. Decodes in
    the same modes as T3ForCausalLM. Raises UserError for another vocabulary, another device or a bad strength.
    """

    assistant: Any

    def __init__(self, base: PreTrainedModel, assistant: PreTrainedModel, strength: float = 1.0) -> None:
        if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength < math.inf:
            raise UserError(f"strength must be a finite number of at least 0, not {strength!r}")
        assistant = plain_base(assistant)
        super().__init__(base)
        if vocabulary(assistant) != vocabulary(self.base):
            raise UserError(
                f"the assistant's vocabulary is {vocabulary(assistant)}, the base's {vocabulary(self.base)}"
            )
        if assistant.device != self.base.device:
            raise UserError(f"the assistant is on {assistant.device}, the base on {self.base.device}")
        self.assistant = assistant.eval()  # a freshly made one still has its dropout on
        self.strength = float(strength)

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
        assistant_inputs: dict[str, Any] | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """The base's output with logits (B, L or logits_to_keep, V) float32 of p_hat and, given labels, their loss.

        `assistant_inputs`, the attention mask in the assistant's form, is what `generate` fills in.
        """
        if inputs_embeds is not None:
            raise UserError(NO_EMBEDS)
        masked = {} if attention_mask is None else {"attention_mask": attention_mask}
        checked = assistant_inputs is not None  # `generate` has checked its prompt and cache, and will its logits
        if assistant_inputs is None:
            tokens = input_length(input_ids, None)
            if check_call(self, tokens, attention_mask, position_ids, past_key_values, use_cache) is not None:
                use_cache = False  # packed sequences, which the base and the assistant keep apart without a cache
            assistant_inputs = masked
        inputs = dict(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, **kwargs)
        given = {name: value for name, value in inputs.items() if value is not None}
        given["logits_to_keep"] = logits_to_keep
        outputs, _ = self.base_forward(**given, **masked, past_key_values=past_key_values)
        cache = past_key_values if past_key_values is not None else getattr(outputs, "past_key_values", None)
        own = None if cache is None else self._attach(cache)
        helped = self.assistant(**given, **assistant_inputs, past_key_values=own)
        outputs.logits = subtract_logits(outputs.logits, helped.logits, self.strength)
        if not checked and not torch.compiler.is_compiling():
            check_finite(self, outputs.logits[:, -1])
        if labels is not None:
            size = outputs.logits.shape[-1]
            outputs.loss = self.loss_function(logits=outputs.logits, labels=labels, vocab_size=size, **kwargs)
        return outputs if return_dict is not False else outputs.to_tuple()

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        """`GenerationMixin.generate`, exact in every mode it accepts; UserError, with the reason, in the others."""
        if kwargs.get("inputs_embeds") is not None:
            raise UserError(NO_EMBEDS)
        return super().generate(inputs, generation_config=generation_config, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refused: the base is not ours to save, and the assistant saves itself (PEFT: its LoRA alone)."""
        raise UserError("save the assistant with its own save_pretrained; the base is unchanged")

    push_to_hub = save_pretrained  # type: ignore[assignment]

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, attention_mask: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The base's own inputs for this step, plus the attention mask in the assistant's form."""
        inputs = {**kwargs, "attention_mask": attention_mask}
        prepared = self.base.prepare_inputs_for_generation(input_ids, *args, **inputs)
        cache = prepared.get("past_key_values")
        if cache is not None and cache.is_compileable:  # before compiled code sees the cache, and before it makes masks
            inputs["past_key_values"] = self._attach(cache)
            helped = self.assistant.prepare_inputs_for_generation(input_ids, *args, **inputs)
            attention_mask = helped.get("attention_mask")
        prepared["assistant_inputs"] = {} if attention_mask is None else {"attention_mask": attention_mask}
        return prepared

    def _attach(self, cache: Cache) -> Cache:
        """The assistant's own cache: a view of the layers after the mark, which are appended now if missing."""
        start = _after_mark(cache)
        if start is None:
            config = self.assistant.config.get_text_config(decoder=True)
            if cache.is_compileable:
                longest = max(getattr(layer, "max_cache_len", 0) for layer in cache.layers)
                own: Cache = StaticCache(config=config, max_cache_len=longest)
            else:
                own = DynamicCache(config=config)
                if any(getattr(layer, "record_past", False) for layer in cache.layers):
                    own.activate_past_recording()  # sliding windows must be able to give drafted tokens back
            start = len(cache.layers) + 1
            cache.layers.extend([AssistantMark(id(self.assistant)), *own.layers])
        return Cache(layers=cache.layers[start:])

    def check_cache(self, cache: Any) -> None:
        """UserError unless this assistant saw every token in the cache."""
        if not isinstance(cache, Cache) or hasattr(cache, "self_attention_cache"):
            raise UserError(f"past_key_values must be a decoder's transformers.Cache, not {type(cache).__name__}")
        start = _after_mark(cache)
        mark = None if start is None else cache.layers[start - 1]
        if isinstance(mark, AssistantMark) and mark.owner != id(self.assistant):
            raise UserError("this cache was filled with another assistant: start a new one")
        cached = int(cache.get_seq_length())
        seen = 0 if start is None else int(Cache(layers=cache.layers[start:]).get_seq_length())
        if cached != seen:
            raise UserError(f"this cache holds {cached} tokens, of which the assistant saw {seen}: start a new one")


def _after_mark(cache: Cache) -> int | None:
    marks = [i for i, layer in enumerate(cache.layers) if isinstance(layer, AssistantMark)]
    return marks[0] + 1 if marks else None
