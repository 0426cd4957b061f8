"""MeanPool of every prefix, its state in the key-value cache, and packed rows."""

import contextlib
import copy

import pytest
import torch
from families import HIDDEN, VOCAB, family
from modes import LIMIT, prompt, worst
from test_sampler_matrix import T, head, t3
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from t3lib.baselines.uld import ULDForCausalLM
from t3lib.classifier.head import T3Head
from t3lib.classifier.pooling import prefix_mean
from t3lib.core.errors import UserError
from t3lib.sampler.tilt import T3ForCausalLM, tilt


def test_prefix_means_of_every_visible_prefix():
    values = torch.randn(2, 5, 3)
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    values[0, 3] = float("nan")
    found = prefix_mean(values, mask)
    assert torch.equal(found[0, 0], torch.zeros(3))
    torch.testing.assert_close(found[0, 4], values[0, [1, 2, 4]].mean(0))
    torch.testing.assert_close(found[1, 2], values[1, :3].mean(0))
    assert torch.equal(prefix_mean(values[1:]), found[1:])
    assert torch.equal(prefix_mean(values, mask * 2), found), (
        "as for the base, a mask shows what is not 0"
    )
    assert prefix_mean(values.bfloat16(), mask).dtype == torch.float32


# --- packed rows
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("front", ["wrapper", "tilt", "uld"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"past_key_values": DynamicCache()}])
def test_packed_sequences_are_refused(front, options):
    """Positions as Transformers' DataCollatorWithFlattening makes them."""
    ids, _ = prompt("none", rows=1)
    positions = torch.cat([torch.arange(length) for length in (4, 1, 4)])[None]
    base = family("llama")
    with pytest.raises(UserError, match="packed sequences.*a row of its own"):
        if front == "tilt":
            with tilt(base, head(), T) as tilted:
                tilted(ids, position_ids=positions, **options)
        elif front == "uld":
            ULDForCausalLM(base, family("gpt2", seed=2))(ids, position_ids=positions, **options)
        else:
            T3ForCausalLM(base, head(), T)(ids, position_ids=positions, **options)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("use_cache", [None, False, True])
def test_positions_of_left_padding_are_positions(padding, use_cache):
    """Without a mask padding counts as any token, here and in the base, whether it caches or
    not.
    """
    ids, mask = prompt("left")
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, padding)
    tilted, options = T3ForCausalLM(family("llama"), head(), T), {"use_cache": use_cache}
    with torch.no_grad():
        found = tilted(ids, position_ids=positions, **options).logits
        inputs = {"attention_mask": torch.ones_like(mask), "position_ids": positions}
        base = family("llama")(ids, **inputs, output_hidden_states=True)
        logf = tilted.heads[0](prefix_mean(base.hidden_states[-1]))
        assert worst(found, (base.logits / T + logf).log_softmax(-1)) <= LIMIT
        hidden = tilted(ids, attention_mask=mask, position_ids=positions, **options).logits
        assert worst(hidden[:, -1], t3("llama").logp(ids, mask)[:, -1]) <= LIMIT
        plain = tilted(ids, position_ids=torch.arange(ids.shape[1])[None], **options).logits
        assert worst(plain, tilted(ids).logits.log_softmax(-1)) <= LIMIT


# --- the state in the cache
# --------------------------------------------------------------------------------------


def change_in_place(tilted: T3ForCausalLM) -> None:
    with torch.no_grad():
        tilted.heads[0].A.mul_(2)


def change_behind_autograd(tilted: T3ForCausalLM) -> None:
    tilted.heads[0].A.data *= 2


def load_another(tilted: T3ForCausalLM) -> None:
    tilted.load_state_dict(T3ForCausalLM(family("llama"), head(seed=4), T).state_dict())


def put_another(tilted: T3ForCausalLM) -> None:
    tilted.heads[0] = T3Head(HIDDEN, VOCAB, rank=2)


@pytest.mark.parametrize(
    "change", [change_in_place, change_behind_autograd, load_another, put_another]
)
@pytest.mark.parametrize("call", ["forward", "generate"])
def test_a_cache_filled_before_the_head_changed_is_refused(change, call):
    tilted = T3ForCausalLM(family("llama"), head(), T)
    ids, _ = prompt("none", rows=1)
    cache = DynamicCache()
    with torch.no_grad():
        tilted(ids[:, :-1], past_key_values=cache)
        change(tilted)
        with pytest.raises(UserError, match="another head"):
            if call == "forward":
                tilted(ids[:, -1:], past_key_values=cache)
            else:
                tilted.generate(ids, past_key_values=cache, max_new_tokens=1)


def test_another_b_w_or_temperature_may_share_a_cache():
    tilted = T3ForCausalLM(family("llama"), head(), T)
    ids, _ = prompt("none", rows=1)
    cache = DynamicCache()
    with torch.no_grad():
        tilted(ids[:, :-1], past_key_values=cache)
        tilted.heads[0].B.mul_(2)
        tilted.heads[0].w, tilted.temperature = 0.5, 3
        torch.testing.assert_close(
            tilted(ids[:, -1:], past_key_values=cache).logits, tilted(ids).logits[:, -1:]
        )


@pytest.mark.parametrize("front", ["t3", "uld"])
def test_an_offloaded_cache_fetches_the_first_layer_after_the_last(front, monkeypatch):
    """What the cache does on a GPU when the base's last layer was read; our layers come next."""
    base, (ids, _), cache = family("llama"), prompt("none", rows=1), DynamicCache()
    model = (
        T3ForCausalLM(base, head(), T) if front == "t3" else ULDForCausalLM(base, family("gpt2"))
    )
    with torch.no_grad():
        model(ids, past_key_values=cache)
    fetched = []
    monkeypatch.setattr(DynamicLayer, "prefetch", lambda layer: fetched.append(layer))
    for whole in (cache, copy.deepcopy(cache)):
        whole.prefetch_stream = contextlib.nullcontext()
        whole.prefetch(base.config.num_hidden_layers)
        assert fetched.pop() is whole.layers[0] and not fetched


def test_a_cache_can_be_copied_after_a_forward_with_gradients():
    tilted = T3ForCausalLM(family("llama").requires_grad_(False), head(), T)
    ids, _ = prompt("none", rows=1)
    cache = DynamicCache()
    tilted(ids[:, :-1], past_key_values=cache)
    copied = copy.deepcopy(cache)
    with torch.no_grad():
        tilted(ids[:, -1:], past_key_values=cache)
        torch.testing.assert_close(
            tilted(ids[:, -1:], past_key_values=copied).logits, tilted(ids).logits[:, -1:]
        )


def test_a_base_that_returns_other_tokens_than_it_read_is_refused():
    """CpmAnt and Gemma 4 did, and the last token counted once for every token of the context."""
    with pytest.raises(UserError, match="hidden states of 1 tokens where 4 were read"):
        prefix_mean(torch.ones(2, 1, 3), torch.ones(2, 4, dtype=torch.bool))
