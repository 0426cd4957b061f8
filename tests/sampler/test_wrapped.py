"""What T3 and ULD answer as Transformers models, and logits that are not finite."""

import logging
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from families import VOCAB, family
from modes import LENGTH, prompt
from test_sampler_matrix import T, head
from transformers import CompileConfig, DynamicCache, LlamaForCausalLM, pipeline

from t3lib.baselines.uld import ULDForCausalLM
from t3lib.core.errors import UserError
from t3lib.core.models import CACHE
from t3lib.core.rows import Example
from t3lib.sampler.tilt import T3ForCausalLM, tilt
from t3lib.sampler.wrapped import check_finite
from t3lib.tofu.likelihood import answer_losses
from t3lib.tofu.reader import Reading

EXAMPLES = [Example([1, 10, 11, 12, 13], 3), Example([1, 10, 14, 12, 13, 9], 3)]


def t3_model(base: Any = None) -> T3ForCausalLM:
    return T3ForCausalLM(family("llama") if base is None else base, head(), T)


def uld_model(base: Any = None) -> ULDForCausalLM:
    return ULDForCausalLM(family("llama") if base is None else base, family("gpt2", seed=2))


@pytest.mark.parametrize("wrapped", [t3_model, uld_model])
def test_it_supports_what_its_base_supports(wrapped):
    base = family("llama")
    names = (
        "_supports_sdpa",
        "_supports_attention_backend",
        "_supports_flex_attn",
        "_can_compile_fullgraph",
    )
    for name in (*names, "supports_gradient_checkpointing", "_no_split_modules"):
        assert getattr(wrapped(base), name) == getattr(base, name)
    assert wrapped(base).is_backend_compatible() == base.is_backend_compatible()
    base._supports_sdpa = False
    assert not wrapped(base)._supports_sdpa


@pytest.mark.parametrize("wrapped", [t3_model, uld_model])
def test_attention_and_gradient_checkpointing_set_on_it_reach_the_base(wrapped):
    tilted = wrapped()
    tilted.set_attn_implementation("eager")
    assert tilted.base.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="nonsense"):
        tilted.set_attn_implementation("nonsense")
    tilted.gradient_checkpointing_enable()
    assert tilted.base.is_gradient_checkpointing


def test_gradients_are_the_same_with_checkpointing():
    ids, _ = prompt("none")
    gradients = []
    for checkpointing in (False, True):
        tilted = t3_model().train()
        if checkpointing:
            tilted.gradient_checkpointing_enable()
        tilted(ids, labels=ids).loss.backward()
        gradients.append(tilted.heads[0].A.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("wrapped", [t3_model, uld_model])
@pytest.mark.filterwarnings("error")
def test_a_cache_is_taken_under_both_names(wrapped, name):
    ids, _ = prompt("none", rows=1)
    tilted, cache = wrapped(), DynamicCache()
    with torch.no_grad():
        tilted(ids[:, :4], **{name: cache})
        last = tilted(ids[:, 4:], **{name: cache}).logits[:, -1]
        torch.testing.assert_close(last, tilted(ids).logits[:, -1])
    assert cache.get_seq_length() == LENGTH
    found = tilted.generate(
        torch.cat([ids, last.argmax(-1, True)], 1), max_new_tokens=2, **{name: cache}
    )
    assert cache.get_seq_length() == LENGTH + 2
    assert torch.equal(found, tilted.generate(ids, max_new_tokens=3))


def passes_on(base: Any) -> Any:
    """Replace the model's class by a subclass whose forward names no argument."""

    class PassesOn(type(base)):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    base.__class__ = PassesOn
    return base


def patched(base: Any) -> Any:
    """Replace the model's forward by one that names no argument."""
    forward = base.forward
    base.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    return base


@pytest.mark.parametrize("change", [passes_on, patched])
def test_a_forward_that_passes_its_arguments_on_is_like_the_one_that_names_them(change):
    ids, mask = prompt("left")
    options = dict(attention_mask=mask, num_beams=2, max_new_tokens=4)
    changed = change(family("llama"))
    want = t3_model().generate(ids, **options)
    assert torch.equal(t3_model(changed).generate(ids, **options), want)
    with tilt(changed, head(), T) as tilted:
        assert torch.equal(tilted.generate(ids, **options), want)
    found, want = (
        answer_losses(base, EXAMPLES, Reading(0), [(head(), T)])
        for base in (changed, family("llama"))
    )
    np.testing.assert_array_equal(found, want)


def test_a_forward_that_takes_no_cache_is_refused():
    class WithoutCache(LlamaForCausalLM):
        def forward(self, input_ids: Any, **kwargs: Any) -> Any:
            return super().forward(input_ids, **kwargs)

    base = family("llama")
    base.__class__ = WithoutCache
    with pytest.raises(UserError, match=rf"WithoutCache .* takes a key-value cache \(as {CACHE}\)"):
        t3_model(base)


def test_a_cache_that_does_not_count_its_tokens_is_refused():
    tilted = t3_model(family("kimi_linear, no attention"))
    with pytest.raises(UserError, match="no keys and values"):
        tilted(prompt("none")[0], cache=DynamicCache(config=tilted.config))


@pytest.mark.parametrize("wrapped", [t3_model, uld_model])
def test_the_vocabulary_is_not_resized_under_a_head(wrapped):
    tilted = wrapped()
    with pytest.raises(UserError, match="cannot be resized"):
        tilted.resize_token_embeddings(VOCAB + 3)
    assert tilted.get_input_embeddings().weight.shape[0] == tilted.config.vocab_size == VOCAB


def test_a_base_that_gives_tuples_is_refused():
    base = family("llama")
    base.config.return_dict = False
    with pytest.raises(UserError, match="return_dict"):
        t3_model(base)


def test_a_head_offloaded_with_its_base_is_refused_and_a_base_offloaded_alone_works():
    ids, _ = prompt("none")
    want = t3_model().generate(ids, max_new_tokens=2)
    tilted = t3_model()
    accelerate.cpu_offload(tilted.base, torch.device("cpu"))
    assert torch.equal(tilted.generate(ids, max_new_tokens=2), want)
    tilted = t3_model()
    accelerate.cpu_offload(tilted, torch.device("cpu"))
    with pytest.raises(UserError, match=r"cpu_offload\(model.base\)"):
        tilted.generate(ids, max_new_tokens=2)


@pytest.mark.parametrize("wrapped", [t3_model, uld_model])
def test_the_pipeline_has_nothing_to_say(wrapped, tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setattr(
        tokenizer, "padding_side", "left"
    )  # as the pipeline leaves it, and it is the session's
    pipeline("text-generation", model=wrapped(), tokenizer=tokenizer)
    assert "not supported" not in caplog.text


# --- logits that are not finite
# ----------------------------------------------------------------------------------


def damaged_output() -> Any:
    base = family("llama")
    base.lm_head.weight.data[3, 1] = float("nan")
    return base


STATIC: dict[str, Any] = {"cache_implementation": "static"}
COMPILED: dict[str, Any] = {
    **STATIC,
    "compile_config": CompileConfig(backend="eager", mode=None, fullgraph=True),
}
COMPILED["compile_config"]._compile_all_devices = True


@pytest.mark.parametrize("wrapped", [t3_model, uld_model])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True}, STATIC], ids=str)
def test_a_damaged_output_layer_is_named(wrapped, options):
    ids, mask = prompt("left")
    tilted = wrapped(damaged_output())
    with pytest.raises(UserError, match=r"NaN or infinity \(so does base.lm_head.weight\)"):
        tilted.generate(ids, attention_mask=mask, max_new_tokens=2, **options)
    with torch.no_grad(), pytest.raises(UserError, match="base.lm_head.weight"):
        tilted(ids, attention_mask=mask)


def test_logits_that_overflow_name_the_dtype_and_w():
    base = family("llama").half()
    base.lm_head.weight.data *= 20_000
    ids, _ = prompt("none")
    with pytest.raises(UserError, match="float16 has overflowed or a head's w is too large"):
        t3_model(base).generate(ids, max_new_tokens=2)
    tilted = t3_model()
    tilted.heads[0].w = 1e39
    with pytest.raises(UserError, match="float16 has overflowed or a head's w is too large"):
        tilted.generate(ids, max_new_tokens=2)
    with pytest.raises(UserError, match="head w must be"):
        T3ForCausalLM(family("llama"), tilted.heads[0], T)
    check_finite(base, torch.full((2, 3), 3e38))  # large, but not infinite


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("front", ["wrapper", "tilt"])
def test_damage_during_compiled_decoding_is_found(front):
    torch._dynamo.reset()
    ids, mask = prompt("left")
    options: dict[str, Any] = dict(attention_mask=mask, max_new_tokens=4, **COMPILED)
    base = family("llama")

    def damage(module: Any, args: Any, output: Any) -> Any:
        return (
            output * float("nan") if output.shape[1] == 1 else output
        )  # the prompt, read in eager mode, is sound

    base.model.layers[1].mlp.register_forward_hook(damage)
    with pytest.raises(UserError, match="NaN or infinity"):
        if front == "wrapper":
            t3_model(base).generate(ids, **options)
        else:
            with tilt(base, head(), T) as tilted:
                tilted.generate(ids, **options)
