"""ULD's assistant: the base's first k layers, final norm and output layer, with trainable LoRA.

Ji et al. (2024), as arXiv:2602.10217 uses it. `t3lib.baselines.uld` divides the base's distribution
by the assistant's. With all layers it is what the other baselines train with `lora_rank`.
"""

import copy
import warnings
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from t3lib.core.errors import UserError
from t3lib.core.models import decoder_of
from t3lib.core.settings import check

# the paper: "without bias vectors, setting the dropout to 0.05 and alpha equal to the rank r"
DROPOUT = 0.05


def layers_of(model: Any, k: int | None = None) -> nn.ModuleList:
    """Return the decoder's first k blocks, or all for None.

    UserError when the model has fewer, or when its decoder has no list called `layers`, or `h` as
    in GPT-2.
    """
    decoder = decoder_of(model)
    layers = getattr(decoder, "layers", None) or getattr(decoder, "h", None)
    if not isinstance(layers, nn.ModuleList):
        raise UserError(
            f"{type(model).__name__} has no list of decoder layers: RMU, ULD and LoRA need one"
        )
    if k is not None and not (isinstance(k, int) and 1 <= k <= len(layers)):
        raise UserError(f"k = {k}: the model has layers 1 to {len(layers)}")
    return layers[:k]


def make_assistant(base: PreTrainedModel, k: int, *, rank: int = 32, seed: int = 0) -> Any:
    """Build a PEFT model of the base's first k layers with LoRA on every linear layer.

    rank: of LoRA; alpha is the same. seed: of the initial LoRA weights, which change nothing at
    first.

    Only the LoRA weights are trainable, rank × Σ (inputs + outputs) numbers over the linear layers,
    in float32. Frozen weights share the base's memory, and the base's modules are not changed.
    Works on the meta device. UserError for k or rank out of range.
    """
    from peft import LoraConfig, get_peft_model

    layers_of(base, k)
    check("rank", rank)
    if getattr(base, "peft_config", None):
        raise UserError("the base has an adapter: merge it first")
    config = copy.deepcopy(base.config)
    text = config.get_text_config()
    text.num_hidden_layers = k
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:k]
    with torch.device("meta"):
        assistant = AutoModelForCausalLM.from_config(config, dtype=base.dtype)
    weights = base.state_dict()
    assistant.load_state_dict({name: weights[name] for name in assistant.state_dict()}, assign=True)
    buffers = dict(base.named_buffers())
    for name, _ in list(assistant.named_buffers()):  # rotary frequencies are not in a state_dict
        owner, _, leaf = name.rpartition(".")
        assistant.get_submodule(owner).register_buffer(
            leaf, buffers[name].clone(), persistent=False
        )
    lora = LoraConfig(
        r=rank,
        lora_alpha=rank,
        lora_dropout=DROPOUT,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # PEFT uses a flag that Transformers has renamed, and says how it reads GPT-2's layers.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "fan_in_fan_out")
        torch.manual_seed(seed)
        made: Any = get_peft_model(assistant, lora)
    # For the last position alone, torch would copy these frozen weights once for each row of a
    # batch, because a slice of the hidden states is not contiguous.
    made.get_output_embeddings().register_forward_pre_hook(
        lambda _, inputs: (inputs[0].contiguous(),)
    )
    return made
