"""A causal language model around a frozen base: what T3 and ULD share to be like any other
Transformers model.

Only the logits differ from the base's, so everything else (loading, quantisation, device placement,
input preparation, masks, caches) is asked of the base. Sampling starts from the exact distribution:
no top_k = 50, no temperature 0.6 inherited from the base's generation settings.
"""

import copy
import functools
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from t3lib.core.errors import UserError
from t3lib.core.models import context_length, decoder_of

ELSEWHERE = "starts a decoding mode that Transformers no longer has itself: exactness unknown"
OWN_DRAFTS = "drafts with parts of the base, which would leave the pooled context out of step"
REFUSED_OPTIONS = {
    **dict.fromkeys(
        ("penalty_alpha", "dola_layers", "num_beam_groups", "constraints", "force_words_ids"),
        ELSEWHERE,
    ),
    **dict.fromkeys(("assistant_early_exit", "speculation_type", "use_mtp"), OWN_DRAFTS),
}
ASKED_OF_BASE = (  # by Transformers and accelerate: what the base alone can answer
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

    thread: id of the thread whose calls are kept; None keeps those of compiled code. In eager mode
    every forward pass adds a hook of its own for its thread. Compiled code cannot add hooks, so
    `generate` adds one hook (thread None) to the model before it decodes with compiled code.
    """

    def __init__(self, thread: int | None = None) -> None:
        self.thread = thread
        self.last: Any = None

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if (
            torch.compiler.is_compiling()
            if self.thread is None
            else threading.get_ident() == self.thread
        ):
            self.last = output[0]

    def take(self) -> Tensor:
        """The states, once."""
        last, self.last = self.last, None
        if last is None:
            raise UserError(
                "compile through generate(..., cache_implementation='static'), not the model itself"
            )
        return last


class WrappedCausalLM(PreTrainedModel, GenerationMixin):
    """PreTrainedModel + GenerationMixin around a frozen `base`.

    A subclass writes `step_inputs`, `unlearned_logits`, `check_cache` and
    `prepare_inputs_for_generation`, which puts its own step inputs under `prepared`. no_embeds: why
    inputs_embeds mean nothing to the model, if they do not.
    """

    base_model_prefix = "base"
    main_input_name = "input_ids"
    base: Any
    no_embeds = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Lists the class among the causal models, else `pipeline` prints every one that
        Transformers has.
        """
        super().__init_subclass__(**kwargs)
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[cls.__name__] = cls.__name__

    def __init__(self, base: nn.Module) -> None:
        base = plain_base(base)
        super().__init__(base.config)
        self.base = base
        self.training = base.training
        # The base's own methods where `tilt` has put this wrapper's in their place, which would
        # call themselves.
        self.replaced: dict[str, Callable[..., Any]] = {}
        self.compiled_hidden = HiddenStates()
        self.generation_config = exact_generation_config(base)
        self.base_arguments = frozenset(inspect.signature(base.forward).parameters)
        for name in ASKED_OF_BASE:
            if hasattr(base, name):
                setattr(self, name, getattr(base, name))

    # The base has chosen these for itself; checking them against this class would refuse what the
    # base can do.
    def _check_and_adjust_attn_implementation(
        self, attn_implementation: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return attn_implementation

    def _check_and_adjust_experts_implementation(self, experts_implementation: Any) -> Any:
        return experts_implementation

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: the classifier and the base share a vocabulary."""
        raise UserError(
            "the base's vocabulary cannot be resized under a head: resize the base, then train"
            " another"
        )

    def of_base(self, name: str) -> Callable[..., Any]:
        """The base's own method of this name, also inside `tilt`."""
        return self.replaced.get(name) or getattr(self.base, name)

    def base_forward(self, **inputs: Any) -> tuple[Any, Tensor]:
        """The base's own output (ModelOutput) for those of `inputs` its forward takes, and its last
        hidden states.
        """
        known = self.base_arguments
        refused = inputs.keys() - known if "kwargs" not in known else {"logits_to_keep"} - known
        taken = {name: value for name, value in inputs.items() if name not in refused}
        call = self.replaced.get("forward", self.base)
        if torch.compiler.is_compiling():
            outputs, hidden = call(**taken, return_dict=True), self.compiled_hidden.take()
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
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """The base's output with unlearned logits (B, L or logits_to_keep, V), float32, and their
        loss given labels.

        attention_mask: (B, cached and new tokens), 0 for tokens to ignore, at any position. Without
        a mask every token counts. prepared: what `step_inputs` returns, given by
        `generate` alone. `generate` checks prompt, cache and logits itself, so they are not checked
        again here. UserError for several sequences that are packed into one row.
        """
        called_by_generate = prepared is not None
        if not called_by_generate:
            prompt = input_ids if input_ids is not None else inputs_embeds
            if prompt is None or prompt.ndim < 2:
                raise UserError("give input_ids (B, L) or inputs_embeds (B, L, d)")
            tokens = prompt.shape[1]
            check_input(self, prompt, attention_mask)
            if past_key_values is not None and not torch.compiler.is_compiling():
                self.check_cache(past_key_values)
            check_positions(position_ids, attention_mask)
            if position_ids is not None and attention_mask is None and past_key_values is None:
                # Without a mask the base would take positions of left padding for packed rows.
                attention_mask = torch.ones(
                    prompt.shape[:2], dtype=torch.long, device=prompt.device
                )
            prepared = self.step_inputs(attention_mask, tokens)
        inputs = present(
            input_ids=input_ids, position_ids=position_ids, inputs_embeds=inputs_embeds
        )
        inputs |= present(use_cache=use_cache, logits_to_keep=logits_to_keep, **kwargs)
        context = present(attention_mask=attention_mask, past_key_values=past_key_values)
        outputs, hidden = self.base_forward(**inputs, **context)
        cache = (
            past_key_values
            if past_key_values is not None
            else getattr(outputs, "past_key_values", None)
        )
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
        """What `unlearned_logits` needs to know of the last `tokens` columns of a 2-D mask."""
        raise NotImplementedError

    def unlearned_logits(
        self, logits: Tensor, hidden: Tensor, cache: Any, prepared: Any, inputs: dict[str, Any]
    ) -> Tensor:
        """The base's logits and last hidden states of new tokens -> the model's logits, float32;
        `cache` moves on too.

        prepared: of `step_inputs`. inputs: the base's own but for its mask and cache.
        """
        raise NotImplementedError

    def check_cache(self, cache: Any) -> None:
        """UserError for a cache that this model cannot go on from; here, for what is no decoder's
        cache.
        """
        if not isinstance(cache, Cache) or hasattr(cache, "self_attention_cache"):
            raise UserError(
                "past_key_values must be a decoder's transformers.Cache, not"
                f" {type(cache).__name__}"
            )

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        """`GenerationMixin.generate`, exact in every mode it accepts; UserError, with the reason,
        in the others.
        """
        check_request(self, inputs, generation_config, kwargs)
        asked = functools.partial(requested, self, generation_config, kwargs)
        if asked("do_sample") and asked("top_k") is None:
            # Transformers would fill in 50. As a default it would make greedy decoding warn, and a
            # keyword beside a config that was given warns too.
            if generation_config is None:
                kwargs["top_k"] = 0
            else:
                generation_config = copy.deepcopy(generation_config)
                generation_config.top_k = 0
        generate = self.replaced.get("generate", super().generate)  # type: ignore[misc]
        with decoder_of(self.base).register_forward_hook(self.compiled_hidden):
            return generate(inputs, generation_config=generation_config, **kwargs)

    def _update_model_kwargs_for_generation(
        self, outputs: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """What `generate` calls after every step, outside compiled code: the one place to look at
        all logits.
        """
        check_finite(self, outputs.logits[:, -1])
        return self.of_base("_update_model_kwargs_for_generation")(outputs, *args, **kwargs)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: continuous batching packs several sequences into one row, so no per-sequence
        state can follow.
        """
        raise UserError(
            "continuous batching (generate_batch, cache_implementation='paged') packs sequences"
            " into one row, where the context of each cannot be followed: use generate with a"
            " padded batch"
        )

    init_continuous_batching = continuous_batching_context_manager = generate_batch


def present(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def exact_generation_config(base: PreTrainedModel) -> GenerationConfig:
    """Greedy by default; with do_sample=True the model's own distribution, untruncated. Token ids
    are the base's.
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
    """What `generate` will use under this name: a keyword of the call, else its generation config,
    else the model's.
    """
    sources = (options, vars(config) if config else {}, vars(model.generation_config))
    return next((source[name] for source in sources if source.get(name) is not None), None)


def vocabulary(base: PreTrainedModel) -> int:
    """|V|: rows of the output embedding."""
    weight = getattr(base.get_output_embeddings(), "weight", None)
    size = getattr(base.get_output_embeddings(), "out_features", None)
    return size or (
        weight.shape[0] if weight is not None else base.config.get_text_config().vocab_size
    )


def last_tokens(values: Tensor, keep: int | Tensor) -> Tensor:
    """values (B, L, ...) at the positions `logits_to_keep` names: the last `keep`, all for 0, or an
    index tensor.
    """
    return values[:, slice(-keep, None) if isinstance(keep, int) else keep]


def visible_tokens(attention_mask: Any, tokens: int) -> Tensor | None:
    """Which of the last `tokens` columns of a 2-D mask are not 0, (B, L); None when every token is
    visible.

    UserError for a mask of other dimensions. The result has strides of its own: as a view into a
    mask that grows with every step, it would make compiled decoding compile every step.
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
    """UserError for positions (B, L) that begin anew within a row: several sequences packed into
    it.

    Positions of left padding stand still or fall back only before they count on, and are accepted.
    With a mask Transformers sees no packed sequences either.
    """
    if attention_mask is None and isinstance(position_ids, Tensor) and position_ids.ndim == 2:
        counts_on = position_ids.diff(dim=1) == 1
        if (~counts_on & (counts_on.cumsum(dim=1) > 0)).any():
            raise UserError(
                "position_ids begin anew within a row (packed sequences), where the context of each"
                " cannot be followed: give each sequence a row of its own"
            )


def plain_base(base: Any) -> PreTrainedModel:
    """The decoder-only causal LM inside `base` (a LoRA wrapper is opened); UserError for anything
    else.
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
    if (
        base.config.is_encoder_decoder
        or "past_key_values" not in inspect.signature(base.forward).parameters
    ):
        raise UserError(f"{type(base).__name__} is not a decoder-only model with a key-value cache")
    if base.config.return_dict is False:
        raise UserError(
            "base.config.return_dict is False, with which Transformers' own models fail: set it to"
            " True"
        )
    decoder_of(base)  # UserError where it is not known
    return base


def check_finite(model: nn.Module, logits: Tensor) -> None:
    """UserError when logits (of the last position: that is enough, and cheap) hold NaN or infinity,
    and why.
    """
    low, high = logits.detach().aminmax()  # both are NaN where one entry is
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
    """UserError for embeddings where they mean nothing to the model, for an empty input, one beyond
    the model's context, or a row that is all padding.
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
    """UserError for a prompt, a cache or a decoding mode that cannot give the model's own
    distribution.
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
    if options.get("past_key_values") is not None:
        model.check_cache(options["past_key_values"])
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
