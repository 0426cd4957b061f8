"""What T3 refuses in vLLM: configurations and heads; `vllm_samplers` says which requests.

vLLM calls `register` in each of its processes (entry point vllm.general_plugins). Where this module
cannot be imported, as beside an older vLLM, vLLM says so and goes on without T3.
"""

import warnings
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig

from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.settings import check, check_temperature
from t3lib.sampler import belonging
from t3lib.sampler.vllm_samplers import JudgedSamplers, names_of

WATCH = "t3lib.sampler.vllm_check.Watch"  # of vLLM's worker
NAMES = ("T3LlamaForCausalLM", "T3TransformersForCausalLM")


def register() -> None:
    """Make T3's model classes known to vLLM, and have it check their configuration."""
    for name in NAMES:
        ModelRegistry.register_model(name, f"t3lib.sampler.vllm:{name}")
        MODELS_CONFIG_MAP[name] = Rules


class Rules(VerifyAndUpdateConfig):
    """Called by vLLM before it starts a server with one of T3's model classes."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Check configuration, heads and prompts; switch `JudgedSamplers` on.

        Where a request names no sampler, the sampler is temperature 1, and not what the base's
        generation_config.json says. The configuration `t3_allow_samplers` leaves both off. The
        worker gets the methods by which the server asks itself (`vllm_check`).

        UserError for what `check_config`, `heads_of` and `belonging` refuse; a warning for another
        form of prompt, and for a chat template that writes the date.
        """
        check_config(vllm_config)
        model = vllm_config.model_config
        heads, *_ = heads_of(model)
        vllm_config.parallel_config.worker_extension_cls = WATCH
        JudgedSamplers.names = names = names_of(model.hf_config)
        if len({*names}) < len(names):
            raise UserError(f"t3_choose_heads: two heads have one name ({', '.join(names)})")
        if not model.skip_tokenizer_init:
            tokenizer = AutoTokenizer.from_pretrained(
                model.tokenizer, revision=model.tokenizer_revision
            )
            for head in heads:
                belonging.check_tokenizer(head, tokenizer)
                row = {"question": "Who?", "answer": "-", "system": belonging.system_of(head)}
                belonging.check_prompt(head, belonging.in_template_of(head, tokenizer), [row])
            template = tokenizer.chat_template or ""
            if "strftime_now" in template or "date_string" in template:
                warnings.warn(
                    "the base's chat template writes a date, and heads are trained with 10 April"
                    " 2025: fix it (--default-chat-template-kwargs"
                    """ '{"date_string": "10 Apr 2025"}', or a --chat-template of your own)""",
                    stacklevel=2,
                )

        if not getattr(model.hf_config, "t3_allow_samplers", False):
            JudgedSamplers.on = True
            plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
            model.override_generation_config = {
                **plain,
                "repetition_penalty": 1.0,
                **model.override_generation_config,
            }


def check_config(vllm_config: Any) -> None:
    """Raise UserError for a configuration in which T3 is wrong in vLLM, or was never tried."""
    model, speculation = vllm_config.model_config, vllm_config.speculative_config
    parallel = vllm_config.parallel_config
    llama = model.architecture == NAMES[0]
    refused = {
        "several ranks (tensor, pipeline, context or data parallel)": (
            parallel.world_size > 1 or parallel.data_parallel_size > 1
        ),
        "another extension of the worker": parallel.worker_extension_cls not in ("", WATCH),
        "speculation where requests choose heads": (
            speculation is not None and bool(names_of(model.hf_config))
        ),
        "speculation other than n-gram (drafts read hidden states)": (
            speculation is not None and speculation.method != "ngram"
        ),
        "LoRA requests": vllm_config.lora_config is not None,
        "a hybrid or MLA base": model.is_hybrid or model.has_inner_state or model.use_mla,
        "a base with experts, an encoder or images": (
            model.is_moe or model.is_encoder_decoder or model.is_multimodal_model
        ),
        "a cache of another dtype than the model": vllm_config.cache_config.cache_dtype != "auto",
        "a cache from another server": vllm_config.kv_transfer_config is not None,
        "sleep mode": model.enable_sleep_mode,
        "weights that are not read from safetensors": (
            vllm_config.load_config.load_format not in ("auto", "hf", "safetensors")
        ),
        "another base than Llama in this class (use T3TransformersForCausalLM)": (
            llama and model.hf_config.model_type != "llama"
        ),
    }
    if found := [what for what, wrong in refused.items() if wrong]:
        raise UserError(f"T3 in vLLM does not serve {found[0]}")


def heads_of(model_config: Any) -> tuple[list[T3Head], float, float, float]:
    """Load the heads that `--hf-overrides` names, on the CPU; return them, T, θ and ε.

    model_config: vLLM's. UserError for a missing or damaged head, for one of other sizes, for heads
    of different bases, for heads of different T, gates or tails where none is given, and for a T
    below 1.
    """
    config = model_config.hf_config
    names = getattr(config, "t3_head", None) or []
    names = [names] if isinstance(names, str) else names
    with torch.device("cpu"):  # vLLM builds models inside the context of its own device
        heads = [T3Head.from_pretrained(name) for name in names]
    if not heads:
        raise UserError("""no head: give --hf-overrides '{..., "t3_head": "FOLDER"}'""")

    for head in heads:
        belonging.check_sizes(head, model_config.get_hidden_size(), model_config.get_vocab_size())
    belonging.check_same_base(heads)

    # One T and one gate for all heads: what the configuration gives, or what they share.
    T, gate, tail = (
        belonging.shared_dial(heads, name, getattr(config, f"t3_{name}", None), f"t3_{name}")
        for name in ("temperature", "gate", "tail")
    )
    return heads, check_temperature(T), check("gate", gate), check("tail", tail)
