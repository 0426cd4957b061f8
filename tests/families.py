"""Tiny random models of the families the sampler is tested on; no network, a few milliseconds
each.

With T3_TEST_DEVICE=cuda the models, heads and prompts of tests/sampler/test_sampler_matrix.py,
tests/tofu/test_fit.py and tests/classifier/test_features.py are on the GPU; the float64
references stay on the CPU. Other tests are not adapted to a GPU, and with this setting some of them
fail there. Of compiled decoding nothing runs on the GPU.
"""

import os
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BloomConfig,
    Cohere2Config,
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    JambaConfig,
    KimiLinearConfig,
    LlamaConfig,
    MiniMaxConfig,
    MistralConfig,
    OlmoHybridConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen3Config,
    RemBertConfig,
    RobertaConfig,
    xLSTMConfig,
)

DEVICE = os.environ.get("T3_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.backends.cudnn.allow_tf32 = False  # else convolutions round float32 to 10 bits
VOCAB, HIDDEN = 61, 16
WINDOW = 6  # shorter than the prompts: the sliding layers really slide

_common: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
_grouped = dict(num_key_value_heads=1)
_experts: dict[str, Any] = dict(
    num_local_experts=2,
    num_experts_per_tok=1,
    experts_implementation="eager",  # the others know no float64
)
_latent: dict[str, Any] = dict(
    **_experts,
    moe_intermediate_size=8,
    kv_lora_rank=8,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
    linear_head_dim=8,
    linear_num_heads=2,
)

CONFIGS = {
    "llama": lambda: LlamaConfig(**_common, **_grouped),
    "qwen3": lambda: Qwen3Config(**_common, **_grouped, head_dim=8),
    "mistral (sliding)": lambda: MistralConfig(**_common, **_grouped, sliding_window=WINDOW),
    "gemma2 (soft-cap)": lambda: Gemma2Config(
        **_common,
        **_grouped,
        head_dim=8,
        sliding_window=WINDOW,
        final_logit_softcapping=3.0,
        attn_logit_softcapping=2.0,
    ),
    "phi3": lambda: Phi3Config(**_common, **_grouped),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=HIDDEN,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=None,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**_common),
    "olmo hybrid": lambda: OlmoHybridConfig(
        **_common,
        **_grouped,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}

_small: dict[str, Any] = dict(
    vocab_size=VOCAB, n_embd=HIDDEN, n_layer=2, n_head=2, n_positions=64, eos_token_id=None
)
_windows: dict[str, Any] = dict(
    sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
)
_image: dict[str, Any] = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    image_size=8,
    patch_size=4,
)

# Families of other shapes, on which fewer cases are run than on those of CONFIGS.
MORE = {
    "cohere2 (parallel, logit scale)": lambda: Cohere2Config(
        **_common, **_grouped, **_windows, logit_scale=0.5
    ),
    "granite (multipliers)": lambda: GraniteConfig(
        **_common,
        **_grouped,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=0.3,
        logits_scaling=4.0,
    ),
    "gemma3 (with vision)": lambda: Gemma3Config(
        text_config=dict(**_common, **_grouped, **_windows, head_dim=8),
        vision_config=_image,
        mm_tokens_per_image=4,
        image_token_index=60,
        boi_token_index=59,
        eoi_token_index=58,
    ),
    "gemma3n (shared keys, inputs of each layer)": lambda: Gemma3nTextConfig(
        **_common | {"num_hidden_layers": 4},
        **_grouped,
        **_windows | {"layer_types": 2 * _windows["layer_types"]},
        head_dim=8,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=VOCAB,
        laurel_rank=4,
    ),
    "gemma4 (states of the kept logits only)": lambda: Gemma4TextConfig(
        **_common | {"num_hidden_layers": 3},
        **_grouped,
        **_windows | {"layer_types": [*_windows["layer_types"], "full_attention"]},
        head_dim=4,
        global_head_dim=4,
        num_kv_shared_layers=1,
        hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=VOCAB,
    ),
    "gemma3 (no full attention)": lambda: Gemma3TextConfig(
        **_common,
        **_grouped,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=2 * ["sliding_attention"],
    ),
    "gpt_bigcode (multi-query)": lambda: GPTBigCodeConfig(**_small),
    "gptj (head with bias)": lambda: GPTJConfig(**_small, rotary_dim=4),
    "opt (projected states, as 350m)": lambda: OPTConfig(
        vocab_size=VOCAB,
        hidden_size=2 * HIDDEN,
        word_embed_proj_dim=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=24,
        max_position_embeddings=64,
        do_layer_norm_before=False,
    ),
    "bloom (alibi)": lambda: BloomConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, n_layer=2, n_head=2, eos_token_id=None
    ),
    "deepseek_v3 (latent, groups of experts)": lambda: DeepseekV3Config(
        **_common,
        **_latent | {"num_local_experts": 4, "num_experts_per_tok": 2},
        num_key_value_heads=2,
        q_lora_rank=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    ),
    "gpt_oss (sinks, experts)": lambda: GptOssConfig(
        **_common, **_grouped, **_windows, **_experts, head_dim=8
    ),
    "falcon_h1 (mamba beside attention)": lambda: FalconH1Config(
        **_common,
        **_grouped,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=4,
        lm_head_multiplier=0.5,
    ),
}
if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 18):
    # Transformers 5.17 lets it read the tokens that come after.
    MORE["rembert (a cache for encoder and decoder)"] = lambda: RemBertConfig(
        **_common, is_decoder=True, input_embedding_size=8, output_embedding_size=12
    )

# Families that read a padded row, several tokens after a cache, or the rows of a batch otherwise
# than a row alone.
AWKWARD = {
    "bart": lambda: BartConfig(
        vocab_size=VOCAB,
        d_model=HIDDEN,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=24,
        max_position_embeddings=64,
        forced_eos_token_id=None,
    ),
    "roberta": lambda: RobertaConfig(**_common, is_decoder=True),
    "jamba": lambda: JambaConfig(
        **_common,
        **_grouped,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
    ),
    # The rows of its cache cannot be reordered.
    "minimax": lambda: MiniMaxConfig(**_common, **_grouped, **_experts, block_size=4),
    # With fewer heads of keys than of queries it fails wherever a token is masked.
    "kimi_linear": lambda: KimiLinearConfig(
        **_common, **_grouped, **_latent, layer_types=["linear_attention", "full_attention"]
    ),
}

# Families that fail as soon as they keep a cache, in these sizes.
FAILING = {
    "xlstm": lambda: xLSTMConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=2, num_heads=2
    ),
    "kimi_linear, no attention": lambda: KimiLinearConfig(**_common, **_latent),
}


def family(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model with weights large enough that its distributions are far from flat."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config((CONFIGS | MORE | AWKWARD | FAILING)[name]())
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.4)
    model.generation_config.pad_token_id = 0
    return model.to(DEVICE).eval()
