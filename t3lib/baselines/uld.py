"""ULD's distribution: a small assistant trained to do the reverse of unlearning, subtracted from
the base.

    p_hat(y | x)  proportional to  p(y | x) / f(y | x)^strength

The assistant (`t3lib.baselines.assistant`, trained by ULD's reversed loss) is a causal LM of its
own, with its own keys and values. They ride in the base's cache as further layers, so every
decoding mode moves both together, as it does T3's pooled context.
"""

import math
from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import DummyLayer

from t3lib.core.errors import UserError
from t3lib.sampler.wrapped import WrappedCausalLM, plain_base, vocabulary


def subtract_logits(logits: Tensor, assistant_logits: Tensor, strength: float) -> Tensor:
    """log p(y | x) - strength * log f(y | x), not normalised: (..., V) and (..., V) -> (..., V)
    float32.
    """
    return logits.float().log_softmax(-1) - strength * assistant_logits.float().log_softmax(-1)


class AssistantMark(DummyLayer):
    """Stands in the cache between the base's layers and the assistant's; `owner` says which
    assistant's.
    """

    def __init__(self, owner: int) -> None:
        super().__init__()
        self.owner = owner


class ULDForCausalLM(WrappedCausalLM):
    """p_hat(y | x) proportional to p(y | x) / f(y | x)^strength, p and f frozen, as a Transformers
    model.

    base and assistant: decoder-only causal LMs with one vocabulary; strength >= 0, 0 being the base
    alone. Decodes in the same modes as T3ForCausalLM. Raises UserError for another vocabulary,
    another device or a bad strength.
    """

    assistant: Any
    no_embeds = "are the base's own and mean nothing to the assistant"

    def __init__(
        self, base: PreTrainedModel, assistant: PreTrainedModel, strength: float = 1.0
    ) -> None:
        if (
            isinstance(strength, bool)
            or not isinstance(strength, int | float)
            or not 0 <= strength < math.inf
        ):
            raise UserError(f"strength must be a finite number of at least 0, not {strength!r}")
        assistant = plain_base(assistant)
        super().__init__(base)
        if vocabulary(assistant) != vocabulary(self.base):
            raise UserError(
                f"the assistant's vocabulary is {vocabulary(assistant)}, the base's"
                f" {vocabulary(self.base)}"
            )
        if assistant.device != self.base.device:
            raise UserError(
                f"the assistant is on {assistant.device}, the base on {self.base.device}"
            )
        self.assistant = assistant.eval()  # a freshly made one still has its dropout on
        self._is_stateful = self.base._is_stateful or assistant._is_stateful
        self.strength = float(strength)

    def step_inputs(self, attention_mask: Any, tokens: int) -> dict[str, Any]:
        """The attention mask as the assistant takes it."""
        return {} if attention_mask is None else {"attention_mask": attention_mask}

    def unlearned_logits(
        self, logits: Tensor, hidden: Tensor, cache: Any, prepared: Any, inputs: dict[str, Any]
    ) -> Tensor:
        """`subtract_logits` of the assistant's logits on the same tokens, whose keys and values
        `cache` then holds.
        """
        assistants_cache = None if cache is None else self._attach(cache)
        outputs = self.assistant(**inputs, **prepared, past_key_values=assistants_cache)
        return subtract_logits(logits, outputs.logits, self.strength)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refused: the base is not ours to save, and the assistant saves itself (PEFT: its LoRA
        alone).
        """
        raise UserError("save the assistant with its own save_pretrained; the base is unchanged")

    push_to_hub = save_pretrained  # type: ignore[assignment]

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, attention_mask: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The base's own inputs for this step, plus the attention mask in the assistant's form."""
        inputs = {**kwargs, "attention_mask": attention_mask}
        prepared = self.base.prepare_inputs_for_generation(input_ids, *args, **inputs)
        cache = prepared.get("past_key_values")
        if (
            cache is not None and cache.is_compileable
        ):  # before compiled code sees the cache, and before it makes masks
            inputs["past_key_values"] = self._attach(cache)
            of_assistant = self.assistant.prepare_inputs_for_generation(input_ids, *args, **inputs)
            attention_mask = of_assistant.get("attention_mask")
        prepared["prepared"] = self.step_inputs(attention_mask, input_ids.shape[1])
        return prepared

    def _attach(self, cache: Cache) -> Cache:
        """The assistant's own cache: a view of the layers after the mark, which are appended now if
        missing.
        """
        start = _after_mark(cache)
        if start is None:
            config = self.assistant.config.get_text_config(decoder=True)
            if cache.is_compileable:
                longest = max(getattr(layer, "max_cache_len", 0) for layer in cache.layers)
                layers: Cache = StaticCache(config=config, max_cache_len=longest)
            else:
                layers = DynamicCache(config=config)
                if any(getattr(layer, "record_past", False) for layer in cache.layers):
                    # sliding windows must be able to give drafted tokens back
                    layers.activate_past_recording()
            start = len(cache.layers) + 1
            cache.layers.extend([AssistantMark(id(self.assistant)), *layers.layers])
        return Cache(layers=cache.layers[start:])

    def check_cache(self, cache: Any) -> None:
        """UserError unless this assistant saw every token in the cache."""
        super().check_cache(cache)
        start = _after_mark(cache)
        mark = None if start is None else cache.layers[start - 1]
        if isinstance(mark, AssistantMark) and mark.owner != id(self.assistant):
            raise UserError("this cache was filled with another assistant: start a new one")
        cached = int(cache.get_seq_length())
        seen = 0 if start is None else int(Cache(layers=cache.layers[start:]).get_seq_length())
        if cached != seen:
            raise UserError(
                f"this cache holds {cached} tokens, of which the assistant saw {seen}: start a"
                " new one"
            )


def _after_mark(cache: Cache) -> int | None:
    marks = [i for i, layer in enumerate(cache.layers) if isinstance(layer, AssistantMark)]
    return marks[0] + 1 if marks else None
