"""A causal language model around a frozen base, as a Transformers model: what T3 and ULD share.

Only the logits differ from the base's. Everything else (loading, quantisation, device placement,
input preparation, masks, caches) is delegated to the base. The defaults for sampling are those of
the exact distribution: no top_k = 50, and no temperature or top_p from the base's generation
settings.
"""

import copy
import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from t3lib.core.errors import UserError
from t3lib.core.models import (
    CACHE,
    cache_of,
    context_length,
    decoder_of,
    evaluating,
    forward_arguments,
)

ELSEWHERE = "starts a decoding mode that Transformers no longer has itself: exactness unknown"
OWN_DRAFTS = "drafts with parts of the base, which would leave the pooled context out of step"
REFUSED_OPTIONS = {
    **dict.fromkeys(
        ("penalty_alpha", "dola_layers", "num_beam_groups", "constraints", "force_words_ids"),
        ELSEWHERE,
    ),
    **dict.fromkeys(("assistant_early_exit", "speculation_type", "use_mtp"), OWN_DRAFTS),
    "assistant_ensemble_weight": "mixes a draft's probabilities into those of the model",
}
ASKED_OF_BASE = (  # attributes that Transformers and accelerate read and only the base has
    *("hf_device_map", "hf_quantizer", "is_backend_compatible", "supports_gradient_checkpointing"),
    *(
        "_can_compile_fullgraph",
        "_no_split_modules",
        "_skip_keys_device_placement",
        "_supports_attention_backend",
    ),
    *("_supports_flash_attn", "_supports_flex_attn", "_supports_sdpa", "get_output_embeddings"),
    *("_is_stateful", "_supported_generation_modes", "_supports_default_dynamic_cache"),
    "set_attn_implementation",
)


class HiddenStates:
    """A forward hook that keeps the decoder's last hidden states (B, L, d) of one call.

    thread: id of the thread whose calls are kept; None for calls of compiled code. In eager mode
    every call of `generate`, or of forward outside it, adds its own hook, for its thread. Compiled
    code cannot add hooks, so `generate` also adds one (thread None) before it decodes.
    eager: keep nothing of compiled code, which cannot ask for its thread.
    """

    def __init__(self, thread: int | None = None, eager: bool = False) -> None:
        self.thread, self.eager = thread, eager
        self.last: Any = None

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.thread is None:
            mine = torch.compiler.is_compiling()
        elif self.eager and torch.compiler.is_compiling():
            mine = False
        else:
            mine = self.thread == threading.get_ident()
        if mine:
            self.last = output[0]

    def take(self) -> Tensor:
        """Return the kept states and drop them; UserError if the hook was not called."""
        last, self.last = self.last, None
        if last is None:
            raise UserError(
                "compile through generate(..., cache_implementation='static'), not the model itself"
            )
        return last


class WrappedCausalLM(PreTrainedModel, GenerationMixin):
    """A frozen `base` whose logits a subclass replaces.

    A subclass defines `step_inputs`, `unlearned_logits`, `check_cache` and
    `prepare_inputs_for_generation`. The last one puts what `step_inputs` returns under the key
    `prepared`. no_embeds: the reason why the model cannot take inputs_embeds, "" if it can.
    """

    base_model_prefix = "base"
    main_input_name = "input_ids"
    base: Any
    no_embeds = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class as a causal model; else `pipeline` warns and lists all of them."""
        super().__init_subclass__(**kwargs)
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[cls.__name__] = cls.__name__

    def __init__(self, base: nn.Module) -> None:
        base = plain_base(base)
        super().__init__(base.config)
        self.base = base
        self.training = base.training
        # Inside `tilt` the base's methods are replaced by this wrapper's, which would call
        # themselves; the base's own methods are kept here.
        self.replaced: dict[str, Callable[..., Any]] = {}
        self.compiled_hidden = HiddenStates()
        self.hooked: dict[int, HiddenStates] = {}  # by thread: the hook of its call of `generate`
        self.generation_config = exact_generation_config(base)
        self.base_arguments = forward_arguments(base)
        self.cuts_states = cuts_states(base)
        for name in ASKED_OF_BASE:
            if hasattr(base, name):
                setattr(self, name, getattr(base, name))

    # The base has already checked its implementations of attention and of experts. A check against
    # this class would refuse some that the base supports.
    def _check_and_adjust_attn_implementation(
        self, attn_implementation: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return attn_implementation

    def _check_and_adjust_experts_implementation(self, experts_implementation: Any) -> Any:
        return experts_implementation

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Raise UserError: the classifier and the base must keep the same vocabulary."""
        raise UserError(
            "the base's vocabulary cannot be resized under a head: resize the base, then train"
            " another"
        )

    def of_base(self, name: str) -> Callable[..., Any]:
        """Return the base's own method of this name, also inside `tilt`."""
        return self.replaced.get(name) or getattr(self.base, name)

    def base_forward(self, **inputs: Any) -> tuple[Any, Tensor]:
        """Run the base on the inputs that it accepts; return its output and last hidden states.

        The output is a ModelOutput, the states are (B, L, d).
        """
        known = self.base_arguments
        refused = inputs.keys() - known if "kwargs" not in known else {"logits_to_keep"} - known
        taken = {name: value for name, value in inputs.items() if name not in refused}
        keep = taken.get("logits_to_keep")
        if self.cuts_states and isinstance(keep, int) and keep:
            taken["logits_to_keep"] = torch.arange(-keep, 0, device=self.device)
        call = self.replaced.get("forward", self.base)
        if torch.compiler.is_compiling():
            outputs, hidden = call(**taken, return_dict=True), self.compiled_hidden.take()
        elif hook := self.hooked.get(threading.get_ident()):
            outputs, hidden = call(**taken, return_dict=True), hook.take()
        else:
            hook = HiddenStates(threading.get_ident())
            with decoder_of(self.base).register_forward_hook(hook):
                outputs, hidden = call(**taken, return_dict=True), hook.take()
        if "logits_to_keep" not in taken:
            outputs.logits = last_tokens(outputs.logits, inputs.get("logits_to_keep", 0))
        return outputs, hidden

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
        prepared: Any = None,
        return_dict: bool | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return the base's output with unlearned logits (B, L or logits_to_keep, V) in float32.

        attention_mask: (B, cached and new tokens), 0 for tokens to ignore, at any position; by
        default every token counts.
        labels: (B, L); with them the output has the loss of the unlearned logits.
        logits_to_keep: compute only the last so many positions, 0 for all.
        past_key_values, cache: the key-value cache, under Transformers' name before or since 5.24.
        prepared: what `step_inputs` returns. Only `generate` passes it. `generate` checks prompt,
        cache and logits itself, so they are not checked again here.

        The other arguments are those of any causal LM in Transformers. UserError for several
        sequences packed into one row, an empty prompt, a cache that another model filled and logits
        that are not finite.
        """
        called_by_generate = prepared is not None
        cache = past_key_values if cache is None else cache
        if not called_by_generate:
            prompt = input_ids if input_ids is not None else inputs_embeds
            if prompt is None or prompt.ndim < 2:
                raise UserError("give input_ids (B, L) or inputs_embeds (B, L, d)")
            tokens = prompt.shape[1]
            check_input(self, prompt, attention_mask)
            if cache is not None and not torch.compiler.is_compiling():
                self.check_cache(cache)
            check_positions(position_ids, attention_mask)
            if position_ids is not None and attention_mask is None and cache is None:
                # Without a mask the base would read positions of left padding as packed rows.
                attention_mask = torch.ones(
                    prompt.shape[:2], dtype=torch.long, device=prompt.device
                )
            prepared = self.step_inputs(attention_mask, tokens)
        inputs = present(
            input_ids=input_ids, position_ids=position_ids, inputs_embeds=inputs_embeds
        )
        inputs |= present(use_cache=use_cache, logits_to_keep=logits_to_keep, **kwargs)
        context = present(attention_mask=attention_mask, **{CACHE: cache})
        # With gradients it may be a step of training, in which the mode is the caller's.
        as_it_is = called_by_generate or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if as_it_is:
            outputs, hidden = self.base_forward(**inputs, **context)
        else:
            with evaluating(self):
                outputs, hidden = self.base_forward(**inputs, **context)
        cache = cache_of(outputs) if cache is None else cache
        if hasattr(cache, "self_attention_cache"):  # beside it lies an encoder's, unused
            cache = outputs[CACHE] = cache.self_attention_cache
        outputs.logits = self.unlearned_logits(outputs.logits, hidden, cache, prepared, inputs)
        if not called_by_generate and not torch.compiler.is_compiling():
            check_finite(self, outputs.logits[:, -1])
        if labels is not None:
            size = outputs.logits.shape[-1]
            outputs.loss = self.loss_function(
                logits=outputs.logits, labels=labels, vocab_size=size, **kwargs
            )
        return outputs if return_dict is not False else outputs.to_tuple()

    def step_inputs(self, attention_mask: Any, tokens: int) -> Any:
        """Return what `unlearned_logits` needs to know of a 2-D mask's last `tokens` columns."""
        raise NotImplementedError

    def unlearned_logits(
        self, logits: Tensor, hidden: Tensor, cache: Any, prepared: Any, inputs: dict[str, Any]
    ) -> Tensor:
        """Return the model's logits of the new tokens, in float32, and update the cache.

        logits, hidden: the base's logits and last hidden states of the new tokens. cache: the
        key-value cache or None. prepared: what `step_inputs` returned. inputs: the arguments that
        the base got, without mask and cache.
        """
        raise NotImplementedError

    def check_cache(self, cache: Any) -> None:
        """Raise UserError for a cache that this model cannot continue.

        Here this is anything but a decoder's cache with attention; subclasses check more.
        """
        if not isinstance(cache, Cache) or hasattr(cache, "self_attention_cache"):
            raise UserError(
                f"{CACHE} must be a decoder's transformers.Cache, not {type(cache).__name__}"
            )
        if cache.layers and not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers):
            raise UserError(
                "this cache has no keys and values and does not know how many tokens it has seen:"
                " give the whole text to generate, which makes its own"
            )

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        *,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call `GenerationMixin.generate`; UserError for a decoding mode that would not be exact.

        inputs: token ids (B, L). generation_config, kwargs: as in Transformers. cache,
        past_key_values: as in `forward`. Dropout is off, also for a model in training mode.
        """
        kwargs |= present(**{CACHE: past_key_values if cache is None else cache})
        check_request(self, inputs, generation_config, kwargs)
        asked = functools.partial(requested, self, generation_config, kwargs)
        if asked("do_sample") and asked("top_k") is None:
            # Transformers would use top_k = 50. It is switched off here, because top_k in the
            # default config makes greedy decoding warn, and so does a keyword beside a config.
            if generation_config is None:
                kwargs["top_k"] = 0
            else:
                generation_config = copy.deepcopy(generation_config)
                generation_config.top_k = 0
        generate = self.replaced.get("generate", super().generate)  # type: ignore[misc]
        add, thread = decoder_of(self.base).register_forward_hook, threading.get_ident()
        outer, own = self.hooked.get(thread), HiddenStates(thread, eager=True)
        with add(self.compiled_hidden), add(own), evaluating(self):
            self.hooked[thread] = own
            try:
                return generate(inputs, generation_config=generation_config, **kwargs)
            finally:
                del self.hooked[thread]
                self.hooked |= {thread: outer} if outer else {}  # a call within a call

    def _update_model_kwargs_for_generation(
        self, outputs: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Check the logits of this step, then do what the base does between two steps.

        `generate` calls this after every step outside compiled code, and nowhere else sees all
        logits.
        """
        check_finite(self, outputs.logits[:, -1])
        return self.of_base("_update_model_kwargs_for_generation")(outputs, *args, **kwargs)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Raise UserError: continuous batching packs several sequences into one row.

        Their pooled contexts could not be kept apart.
        """
        raise UserError(
            "continuous batching (generate_batch, cache_implementation='paged') packs sequences"
            " into one row, where the context of each cannot be followed: use generate with a"
            " padded batch"
        )

    init_continuous_batching = continuous_batching_context_manager = generate_batch


def present(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def exact_generation_config(base: PreTrainedModel) -> GenerationConfig:
    """Return generation defaults: greedy, or with do_sample=True the untruncated distribution.

    The ids of special tokens are the base's.
    """
    own: Any = base.generation_config
    return GenerationConfig(
        do_sample=False,
        temperature=1.0,
        top_p=1.0,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
    )


def requested(model: Any, config: Any, options: Mapping[str, Any], name: str) -> Any:
    """Return the value of an option that `generate` will use.

    That is the keyword of the call, else the value of the generation config passed, else the
    model's.
    """
    sources = (options, vars(config) if config else {}, vars(model.generation_config))
    return next((source[name] for source in sources if source.get(name) is not None), None)


def vocabulary(base: PreTrainedModel) -> int:
    """Return |V|, the number of rows of the output embedding."""
    weight = getattr(base.get_output_embeddings(), "weight", None)
    size = getattr(base.get_output_embeddings(), "out_features", None)
    return size or (
        weight.shape[0] if weight is not None else base.config.get_text_config().vocab_size
    )


def last_tokens(values: Tensor, keep: int | Tensor) -> Tensor:
    """Return values (B, L, ...) at some positions.

    keep: number of last positions, 0 for all, or an index tensor.
    """
    if isinstance(keep, int) and keep in (0, values.shape[1]):
        return values
    return values[:, slice(-keep, None) if isinstance(keep, int) else keep]


def visible_tokens(attention_mask: Any, tokens: int) -> Tensor | None:
    """Return which of a 2-D mask's last `tokens` columns are not 0, (B, tokens); None for no mask.

    UserError for a mask of other dimensions or with fewer columns. The result is a tensor of its
    own: a view into a mask that grows with every step would make compiled decoding compile every
    step.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2:
        raise UserError(
            "attention_mask must be 2-D (B, L): which tokens to pool cannot be read from another"
            " mask"
        )
    if attention_mask.shape[1] < tokens:
        raise UserError(
            f"attention_mask covers {attention_mask.shape[1]} tokens, the input has {tokens}"
        )
    return attention_mask[:, -tokens:] != 0


def check_positions(position_ids: Any, attention_mask: Any) -> None:
    """Raise UserError for position_ids (B, L) that start again within a row: packed sequences.

    Positions of left padding, which stand still or fall back only before they start to count, are
    accepted. With an attention mask, Transformers does not treat rows as packed, and nothing is
    checked.
    """
    if attention_mask is None and isinstance(position_ids, Tensor) and position_ids.ndim == 2:
        counts_on = position_ids.diff(dim=1) == 1
        if (~counts_on & (counts_on.cumsum(dim=1) > 0)).any():
            raise UserError(
                "position_ids begin anew within a row (packed sequences), where the context of each"
                " cannot be followed: give each sequence a row of its own"
            )


def cuts_states(model: PreTrainedModel) -> bool:
    """Return True if a model that is to compute the last k logits also leaves out hidden states.

    Gemma 4 with shared keys does. Given the positions of the logits, and not k, it does not.
    """
    return "logits_to_keep" in forward_arguments(decoder_of(model))


def plain_base(base: Any) -> PreTrainedModel:
    """Return the decoder-only causal LM inside `base`.

    PEFT's wrapper is removed; LoRA layers lie inside the model and stay active. UserError for any
    other kind of model, for one that is already unlearned, and for prompt-learning adapters.
    """
    if hasattr(base, "get_base_model") and hasattr(base, "peft_config"):
        if any(config.is_prompt_learning for config in base.peft_config.values()):
            raise UserError(
                "the base carries prompt-learning tokens (PEFT), which its own forward does not see"
            )
        base = base.get_base_model()  # LoRA layers live inside it and stay active
    if isinstance(base, WrappedCausalLM) or "_tilted_by" in vars(base):
        raise UserError(
            "the base is already unlearned: pass its own base, and all heads in one list"
        )
    if not isinstance(base, PreTrainedModel) or not base.can_generate():
        raise UserError(
            f"the base must be a Transformers causal language model, not {type(base).__name__}"
        )
    if base.config.is_encoder_decoder or CACHE not in forward_arguments(base):
        raise UserError(
            f"{type(base).__name__} is not a decoder-only model whose forward takes a key-value"
            f" cache (as {CACHE})"
        )
    if base.config.return_dict is False:
        raise UserError(
            "base.config.return_dict is False, with which Transformers' own models fail: set it to"
            " True"
        )
    decoder_of(base)  # raises UserError if the decoder is not known
    return base


def check_finite(model: nn.Module, logits: Tensor) -> None:
    """Raise UserError, with the likely cause, if logits hold NaN or infinity.

    logits: any shape; while decoding, those of the last position are enough, and cheap. model:
    searched for damaged weights.
    """
    low, high = logits.detach().aminmax()  # both are NaN if any entry is
    if math.isfinite(high - low):
        return
    loaded = (
        (name, weight) for name, weight in model.named_parameters() if weight.device.type != "meta"
    )
    damaged = next((name for name, weight in loaded if not torch.isfinite(weight).all()), None)
    cause = (
        f"so does {damaged}"
        if damaged
        else "no weight does, so float16 has overflowed or a head's w is too large"
    )
    raise UserError(f"the logits hold NaN or infinity ({cause}): no token can be chosen")


def check_input(model: WrappedCausalLM, prompt: Tensor, attention_mask: Any) -> None:
    """Raise UserError for a prompt that the model cannot read.

    prompt: (B, L) ids or (B, L, d) embeddings. Refused are embeddings if the model takes none, an
    empty prompt, one longer than the model's context, and a row that is all padding.
    """
    context, tokens = context_length(model.base), prompt.shape[1]
    if prompt.ndim == 3 and model.no_embeds:
        raise UserError(f"inputs_embeds {model.no_embeds}: give input_ids")
    if tokens == 0:
        raise UserError("the prompt is empty: there is no context to predict from")
    if context is not None and tokens > context:
        raise UserError(f"the prompt has {tokens} tokens, the base's context is {context}")
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        if empty := (~attention_mask.bool().any(dim=1)).nonzero().flatten().tolist():
            raise UserError(f"row {empty[0]} of the batch is all padding")


def check_request(
    model: WrappedCausalLM, inputs: Any, config: Any, options: Mapping[str, Any]
) -> None:
    """Raise UserError for a prompt, cache or decoding mode that `generate` could not treat exactly.

    inputs, config, options: the arguments of `generate`.
    """
    option = functools.partial(requested, model, config, options)
    if option("cache_implementation") == "paged":
        model.generate_batch()
    if options.get("custom_generate") is not None:
        raise UserError(
            "custom_generate brings its own decoding loop, which may keep or drop the context"
            " unseen"
        )
    for name, reason in REFUSED_OPTIONS.items():
        if option(name) not in (None, False, 0) and (name, option(name)) != ("num_beam_groups", 1):
            raise UserError(f"{name} {reason}")
    if options.get(CACHE) is not None:
        model.check_cache(options[CACHE])
    mask, pad, ends = options.get("attention_mask"), option("pad_token_id"), option("eos_token_id")
    for prompt in (inputs, options.get("input_ids"), options.get("inputs_embeds")):
        if isinstance(prompt, Tensor) and prompt.ndim >= 2:
            if (
                mask is None
                and prompt.ndim == 2
                and pad not in (None, *(ends if isinstance(ends, list) else [ends]))
            ):
                mask = prompt != pad  # as generate itself infers it
            check_input(model, prompt, mask)
