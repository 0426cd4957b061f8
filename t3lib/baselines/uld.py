"""ULD's unlearned model: the base's distribution divided by that of a small assistant.

    p_hat(y | x)  ∝  p(y | x) / f(y | x)^strength

The assistant f (`t3lib.baselines.assistant`) is trained to do the reverse of unlearning: to know
the forget rows and nothing else. It is a causal LM with its own keys and values. They are kept in
the base's cache as further layers, so that both stay in step in every decoding mode, as T3's pooled
context does.
"""

import math
from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache

from t3lib.classifier.pooling import ExtraLayer
from t3lib.core.errors import UserError
from t3lib.core.models import CACHE
from t3lib.core.settings import check
from t3lib.sampler.wrapped import WrappedCausalLM, plain_base, vocabulary

# Entries of logits that are normalised at once: 16 MB in float32, 32 rows of Llama 3's vocabulary.
PART = 2**22


def subtract_logits(
    logits: Tensor, assistant_logits: Tensor, strength: float, threshold: float = 0.0
) -> Tensor:
    """log p(y | x) - strength * log f(y | x), not normalised: (..., V) and (..., V) -> (..., V).

    threshold: ULD's logit filter, a share of the most probable token's p. Tokens below it keep
    log p, so that none of them can become the most probable one: f is at most 1.

    The result is float32. If `logits` are float32, they are overwritten with it. A batch of scored
    rows has up to 1 GB of logits in float32, so only `PART` of them are copied at a time.
    """
    result, vocab = logits.float().contiguous(), logits.shape[-1]
    p, f = result.view(-1, vocab), assistant_logits.reshape(-1, vocab)
    size = max(1, PART // vocab)
    for start in range(0, len(p), size):
        part = slice(start, start + size)
        p[part] = p[part].log_softmax(-1)
        logf = f[part].float().log_softmax(-1)
        if threshold:
            lowest = p[part].amax(-1, keepdim=True) + math.log(threshold)
            logf = logf.masked_fill(p[part] < lowest, 0.0)
        p[part] -= strength * logf
    return result


class AssistantMark(ExtraLayer):
    """A marker in the cache between the base's layers and the assistant's.

    cache: the cache with the base's layers. owner: id of the assistant that further layers belong
    to.
    """

    def __init__(self, cache: Cache, owner: int) -> None:
        super().__init__(cache)
        self.owner = owner


class ULDForCausalLM(WrappedCausalLM):
    """p_hat(y | x) ∝ p(y | x) / f(y | x)^strength, with p and f frozen, as a Transformers model.

    base, assistant: decoder-only causal LMs with the same vocabulary, p and f.
    strength: at least 0, where 0 is the base alone. threshold: of the logit filter, from 0 (none)
    to 1 (`subtract_logits`).

    Decodes in the same modes as `T3ForCausalLM`. UserError for another vocabulary, another device,
    a bad strength or a bad threshold.
    """

    assistant: Any
    no_embeds = "are the base's own and mean nothing to the assistant"

    def __init__(
        self,
        base: PreTrainedModel,
        assistant: PreTrainedModel,
        strength: float = 1.0,
        threshold: float = 0.0,
    ) -> None:
        check("filter", threshold)
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
        self.assistant = assistant.eval()  # a new assistant still has dropout
        self._is_stateful = self.base._is_stateful or assistant._is_stateful
        self.strength, self.threshold = float(strength), float(threshold)

    def step_inputs(self, attention_mask: Any, tokens: int) -> dict[str, Any]:
        """Return the attention mask as an argument of the assistant."""
        return {} if attention_mask is None else {"attention_mask": attention_mask}

    def unlearned_logits(
        self, logits: Tensor, hidden: Tensor, cache: Any, prepared: Any, inputs: dict[str, Any]
    ) -> Tensor:
        """Run the assistant on the same tokens, update its part of the cache, subtract its logits.

        Arguments as of `WrappedCausalLM.unlearned_logits`.
        """
        assistants_cache = None if cache is None else self._attach(cache)
        outputs = self.assistant(**inputs, **prepared, **{CACHE: assistants_cache})
        return self.quotient(logits, outputs.logits)

    def quotient(self, logits: Tensor, assistant_logits: Tensor) -> Tensor:
        """Return `subtract_logits` with this model's strength and threshold; (..., V) each."""
        return subtract_logits(logits, assistant_logits, self.strength, self.threshold)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Raise UserError: the assistant has its own `save_pretrained`, the base is unchanged."""
        raise UserError("save the assistant with its own save_pretrained; the base is unchanged")

    push_to_hub = save_pretrained  # type: ignore[assignment]

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, attention_mask: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the base's own inputs for this step, and the assistant's attention mask."""
        inputs = {**kwargs, "attention_mask": attention_mask}
        prepared = self.base.prepare_inputs_for_generation(input_ids, *args, **inputs)
        cache = prepared.get(CACHE)
        if (
            cache is not None and cache.is_compileable
        ):  # compiled code must see the cache and the mask with these layers
            inputs[CACHE] = self._attach(cache)
            of_assistant = self.assistant.prepare_inputs_for_generation(input_ids, *args, **inputs)
            attention_mask = of_assistant.get("attention_mask")
        prepared["prepared"] = self.step_inputs(attention_mask, input_ids.shape[1])
        return prepared

    def _attach(self, cache: Cache) -> Cache:
        """Return the assistant's layers of the cache, as a cache; append them if missing."""
        start = _after_mark(cache)
        if start is None:
            config = self.assistant.config.get_text_config(decoder=True)
            if cache.is_compileable:
                longest = max(getattr(layer, "max_cache_len", 0) for layer in cache.layers)
                layers: Cache = StaticCache(config=config, max_cache_len=longest)
            else:
                layers = DynamicCache(config=config)
                if any(getattr(layer, "record_past", False) for layer in cache.layers):
                    # so that drafted tokens can be removed from sliding windows again
                    layers.activate_past_recording()
            start = len(cache.layers) + 1
            mark: Any = AssistantMark(cache, id(self.assistant))
            cache.layers.extend([mark, *layers.layers])
        return Cache(layers=cache.layers[start:])

    def check_cache(self, cache: Any) -> None:
        """Raise UserError unless this assistant saw every token in the cache."""
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
    """Return the index of the assistant's first layer in the cache, None if there is none."""
    marks = [i for i, layer in enumerate(cache.layers) if isinstance(layer, AssistantMark)]
    return marks[0] + 1 if marks else None
