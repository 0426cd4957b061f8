"""A causal language model around a frozen base: what T3 and ULD share to be like any other Transformers model.

Only the logits differ from the base's, so everything else (loading, quantisation, device placement, input preparation,
masks, caches) is asked of the base. Sampling starts from the exact distribution: no top_k = 50, no temperature 0.6
inherited from the base's generation settings.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from t3lib.errors import UserError
from t3lib.models import context_length

ELSEWHERE = ("penalty_alpha", "dola_layers", "num_beam_groups", "constraints", "force_words_ids")
OWN_DRAFTS = ("assistant_early_exit", "speculation_type", "use_mtp")


class WrappedCausalLM(PreTrainedModel, GenerationMixin):
    """PreTrainedModel + GenerationMixin whose `forward` a subclass writes; `self.base` is the frozen base."""

    base_model_prefix = "base"
    main_input_name = "input_ids"
    base: Any

    def __init__(self, base: nn.Module) -> None:
        base = plain_base(base)
        super().__init__(base.config)
        self.base = base
        self.training = base.training
        # Set by `tilt`, where the base's own attributes are those of this wrapper and would call themselves.
        self.call_base: Callable[..., Any] | None = None
        self.prepare_base: Callable[..., Any] | None = None
        self.generation_config = exact_generation_config(base)
        self.base_arguments = frozenset(inspect.signature(base.forward).parameters)
        for name in ("hf_device_map", "hf_quantizer"):
            if hasattr(base, name):
                setattr(self, name, getattr(base, name))

    # The base has chosen these for itself; checking them against this class would refuse what the base can do.
    def _check_and_adjust_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> Any:
        return attn_implementation

    def _check_and_adjust_experts_implementation(self, experts_implementation: Any) -> Any:
        return experts_implementation

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def get_input_embeddings(self) -> nn.Module:
        return self.base.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.base.get_output_embeddings()

    def get_decoder(self) -> nn.Module:
        return self.base.get_decoder()

    def can_generate(self) -> bool:  # type: ignore[override]
        return True

    def base_forward(self, **inputs: Any) -> Any:
        """The base's own output (ModelOutput) for those of `inputs` its forward takes."""
        open_ended = "kwargs" in self.base_arguments
        taken = {name: value for name, value in inputs.items() if name in self.base_arguments or open_ended}
        if "logits_to_keep" in inputs and "logits_to_keep" not in self.base_arguments:
            taken.pop("logits_to_keep", None)
        outputs = (self.call_base or self.base)(**taken, return_dict=True)
        if "logits_to_keep" not in taken:
            outputs.logits = last_tokens(outputs.logits, inputs.get("logits_to_keep", 0))
        return outputs

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        """`GenerationMixin.generate` in the modes that are exact; UserError, with the reason, in those that are not."""
        check_request(self, inputs, generation_config, kwargs)
        generation_config, kwargs = untruncated(self, generation_config, kwargs)
        return super().generate(inputs, generation_config=generation_config, **kwargs)  # type: ignore[misc]

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: continuous batching packs several sequences into one row, so no per-sequence state can follow."""
        raise UserError(
            "continuous batching (generate_batch, cache_implementation='paged') packs sequences into one row, where "
            "the context of each cannot be followed: use generate with a padded batch"
        )

    init_continuous_batching = continuous_batching_context_manager = generate_batch


def plain_base(base: Any) -> PreTrainedModel:
    """The decoder-only causal LM inside `base` (a LoRA wrapper is opened); UserError for anything else."""
    if hasattr(base, "get_base_model") and hasattr(base, "peft_config"):
        if any(config.is_prompt_learning for config in base.peft_config.values()):
            raise UserError("the base carries prompt-learning tokens (PEFT), which its own forward does not see")
        base = base.get_base_model()  # LoRA layers live inside it and stay active
    if isinstance(base, WrappedCausalLM) or "_tilted_by" in vars(base):
        raise UserError("the base is already unlearned: pass its own base, and all heads in one list")
    if not isinstance(base, PreTrainedModel) or not base.can_generate():
        raise UserError(f"the base must be a Transformers causal language model, not {type(base).__name__}")
    if base.config.is_encoder_decoder or "past_key_values" not in inspect.signature(base.forward).parameters:
        raise UserError(f"{type(base).__name__} is not a decoder-only model with a key-value cache")
    return base


def exact_generation_config(base: PreTrainedModel) -> GenerationConfig:
    """Greedy by default; with do_sample=True the model's own distribution, untruncated. Token ids are the base's."""
    ids = {name: getattr(base.generation_config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return GenerationConfig(do_sample=False, temperature=1.0, top_p=1.0, **ids)


def untruncated(model: Any, config: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(generation_config, options) with top_k=0 where sampling was asked for and nobody set top_k.

    Transformers would fill in 50. It cannot be a default of `exact_generation_config`: greedy decoding warns about it.
    """
    sources = [options, vars(config) if config is not None else {}, vars(model.generation_config)]
    given = {name: [s[name] for s in sources if s.get(name) is not None] for name in ("top_k", "do_sample")}
    if given["top_k"] or not given["do_sample"] or not given["do_sample"][0]:
        return config, options
    if config is None:
        return None, {**options, "top_k": 0}
    config = copy.deepcopy(config)
    config.top_k = 0
    return config, options


def vocabulary(base: PreTrainedModel) -> int:
    """|V|: rows of the output embedding."""
    weight = getattr(base.get_output_embeddings(), "weight", None)
    size = getattr(base.get_output_embeddings(), "out_features", None)
    return size or (weight.shape[0] if weight is not None else base.config.get_text_config().vocab_size)


def input_length(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> int:
    """L of input_ids (B, L) or inputs_embeds (B, L, d); UserError when neither is given."""
    given = input_ids if input_ids is not None else inputs_embeds
    if given is None or given.ndim < 2:
        raise UserError("give input_ids (B, L) or inputs_embeds (B, L, d)")
    return given.shape[1]


def last_tokens(values: Tensor, keep: int | Tensor) -> Tensor:
    """values (B, L, ...) at the positions `logits_to_keep` names: the last `keep`, all for 0, or an index tensor."""
    return values[:, slice(-keep, None) if isinstance(keep, int) else keep]


def visible_tokens(attention_mask: Any, tokens: int) -> Tensor | None:
    """The last `tokens` columns of a 2-D mask as (B, L), None when every token is visible; UserError otherwise."""
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2:
        raise UserError("attention_mask must be 2-D (B, L): which tokens to pool cannot be read from another mask")
    if attention_mask.shape[1] < tokens:
        raise UserError(f"attention_mask covers {attention_mask.shape[1]} tokens, the input has {tokens}")
    return attention_mask[:, -tokens:]


def check_input(model: WrappedCausalLM, tokens: int, attention_mask: Any) -> None:
    """UserError for an empty input, one beyond the model's context, or a row that is all padding."""
    context = context_length(model.base)
    if tokens == 0:
        raise UserError("the prompt is empty: there is no context to predict from")
    if context is not None and tokens > context:
        raise UserError(f"the prompt has {tokens} tokens, the base's context is {context}")
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        empty = (~attention_mask.bool().any(dim=1)).nonzero().flatten().tolist()
        if empty:
            raise UserError(f"row {empty[0]} of the batch is all padding")


def check_request(model: WrappedCausalLM, inputs: Any, config: Any, options: dict[str, Any]) -> None:
    """UserError for a prompt or a decoding mode that cannot give the model's own distribution."""
    config = config if config is not None else model.generation_config

    def option(name: str) -> Any:
        return options[name] if options.get(name) is not None else getattr(config, name, None)

    if option("cache_implementation") == "paged":
        model.generate_batch()
    if options.get("custom_generate") is not None:
        raise UserError("custom_generate brings its own decoding loop, which may keep or drop the context unseen")
    for name in ELSEWHERE:
        if option(name) not in (None, False, 0) and not (name == "num_beam_groups" and option(name) == 1):
            raise UserError(f"{name} starts a decoding mode that Transformers no longer has itself: exactness unknown")
    for name in OWN_DRAFTS:
        if option(name) not in (None, False):
            raise UserError(f"{name} drafts with parts of the base, which would leave the pooled context out of step")
    mask = options.get("attention_mask")
    for prompt in (inputs, options.get("input_ids"), options.get("inputs_embeds")):
        if not isinstance(prompt, Tensor) or prompt.ndim < 2:
            continue
        if (
            mask is None
            and prompt.ndim == 2
            and option("pad_token_id") not in (None, *_several(option("eos_token_id")))
        ):
            mask = prompt != option("pad_token_id")  # as generate itself infers it
        check_input(model, prompt.shape[1], mask)


def _several(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else [ids]
