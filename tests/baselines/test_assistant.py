"""ULD's assistant: how many parameters it trains, that it starts as the base's first layers and
never touches them.
"""

import copy

import pytest
import torch
from families import family
from peft import LoraConfig

from t3lib.baselines import assistant
from t3lib.core.errors import UserError


def trainable(model):
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_a_base_with_an_adapter_is_refused(tiny_model):
    base = copy.deepcopy(tiny_model)
    base.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(UserError, match="merge it first"):
        assistant.make_assistant(base, 1, rank=2)


@pytest.mark.parametrize("k", [1, 2])
def test_it_starts_as_the_bases_first_layers(k, tiny_model):
    helper = assistant.make_assistant(tiny_model, k, rank=2).eval()
    cut = copy.deepcopy(tiny_model)
    del cut.model.layers[k:]
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(helper(ids).logits, cut(ids, use_cache=False).logits)
    lora = helper.peft_config["default"]
    assert (lora.r, lora.lora_alpha, lora.lora_dropout, lora.bias) == (2, 2, 0.05, "none")


def test_frozen_weights_are_the_bases_own_memory_and_its_modules_stay_as_they_were(tiny_model):
    base = copy.deepcopy(tiny_model)
    names = [name for name, _ in base.named_modules()]
    helper = assistant.make_assistant(base, 1, rank=2)
    frozen = [parameter for parameter in helper.parameters() if not parameter.requires_grad]
    own = {parameter.data_ptr() for parameter in base.parameters()}
    assert frozen and all(parameter.data_ptr() in own for parameter in frozen)
    assert [name for name, _ in base.named_modules()] == names and all(
        p.requires_grad for p in base.parameters()
    )
    for buffer in helper.buffers():
        assert not buffer.is_meta


def test_the_seed_decides_the_start_and_nothing_else_does(tiny_model):
    def start(seed):
        helper = assistant.make_assistant(tiny_model, 1, rank=2, seed=seed)
        return torch.cat([p.detach().flatten() for p in helper.parameters() if p.requires_grad])

    state = torch.get_rng_state()
    first = start(1)
    torch.rand(3)
    assert torch.equal(start(1), first) and not torch.equal(start(2), first)
    torch.set_rng_state(state)
    start(1)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's stream is not used up


@pytest.mark.parametrize("name", ["qwen3", "mistral (sliding)", "gemma2 (soft-cap)", "phi3"])
def test_other_families(name):
    base = family(name)
    helper = assistant.make_assistant(base, 1, rank=2).eval()
    with torch.no_grad():
        logit = helper(torch.arange(10)[None]).logits
    assert logit.shape == base(torch.arange(10)[None]).logits.shape and logit.isfinite().all()
