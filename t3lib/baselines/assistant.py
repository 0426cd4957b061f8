"""ULD's assistant: the base's first k layers, final norm and output layer, with LoRA on every
linear layer.

Ji et al. (2024), as arXiv:2602.10217 uses it; `t3lib.baselines.uld` divides the base's distribution
by the assistant's.
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
    """The decoder's first k blocks, or all. UserError when there are fewer, or when they are not
    called `layers`.
    """
    layers = getattr(decoder_of(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UserError(
            f"{type(model).__name__} has no list of decoder layers: RMU and ULD cannot pick one"
        )
    if k is not None and not (isinstance(k, int) and 1 <= k <= len(layers)):
        raise UserError(f"k = {k}: the model has layers 1 to {len(layers)}")
    return layers[:k]


def make_assistant(base: PreTrainedModel, k: int, *, rank: int = 32, seed: int = 0) -> Any:
    """A PEFT model of the base's first k layers whose LoRA weights (alpha = rank) are trainable and
    start at no change.

    Frozen weights share the base's memory; the base's modules are not touched. Works on the meta
    device. Trainable: rank × Σ (inputs + outputs) over the linear layers, in float32. UserError for
    k or rank out of range.
    """
    from peft import LoraConfig, get_peft_model

    layers_of(base, k)
    check("rank", rank)
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
    for name, _ in list(
        assistant.named_buffers()
    ):  # rotary frequencies are no part of a state_dict
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
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # PEFT still asks for a flag that Transformers renamed
        torch.manual_seed(seed)
        return get_peft_model(assistant, lora)
