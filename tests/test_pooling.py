"""MeanPool of every prefix, its state in the key-value cache, and packed rows."""

import copy

import pytest
import torch
from families import CONFIGS, HIDDEN, VOCAB, family
from modes import LIMIT, prompt, worst
from test_sampler_matrix import T, head, t3
from transformers import DynamicCache

from t3lib.baselines.uld import ULDForCausalLM
from t3lib.errors import UserError
from t3lib.head import T3Head
from t3lib.pooling import prefix_mean, prefix_sums
from t3lib.sampler import T3ForCausalLM, tilt


def test_prefix_means_of_every_visible_prefix():
    values = torch.randn(2, 5, 3)
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    values[0, 3] = float("nan")
    found = prefix_mean(values, mask)
    assert torch.equal(found[0, 0], torch.zeros(3))
    torch.testing.assert_close(found[0, 4], values[0, [1, 2, 4]].mean(0))
    torch.testing.assert_close(found[1, 2], values[1, :3].mean(0))
    assert torch.equal(prefix_mean(values[1:]), found[1:])
    assert torch.equal(prefix_mean(values, mask * 2), found), "as for the base, a mask shows what is not 0"
    assert prefix_mean(values.bfloat16(), mask).dtype == torch.float32


def test_prefix_sums_begin_anew_where_a_sequence_starts():
    values = torch.randn(2, 6, 3)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[0, [2, 3]] = True
    found = prefix_sums(values, starts=starts)
    parts = [prefix_sums(part[None])[0] for part in (values[0, :2], values[0, 2:3], values[0, 3:])]
    assert torch.equal(found[0], torch.cat(parts)) and torch.equal(found[1:], prefix_sums(values[1:]))


# --- packed rows -------------------------------------------------------------------------------------------------


def packed(lengths: tuple[int, ...] = (4, 1, 4)) -> tuple[torch.Tensor, torch.Tensor]:
    """One row of several sequences and its positions, as Transformers' DataCollatorWithFlattening makes them."""
    ids, _ = prompt("none", rows=1)
    return ids, torch.cat([torch.arange(length) for length in lengths])[None]


@pytest.mark.parametrize("name", [name for name in CONFIGS if not family(name)._is_stateful])
@pytest.mark.parametrize("front", ["wrapper", "tilt"])
def test_packed_sequences_are_as_each_alone(name, front):
    ids, positions = packed()
    base = family(name)
    with torch.no_grad():
        if front == "tilt":
            with tilt(base, head(), T) as tilted:
                out = tilted(ids, position_ids=positions)
        else:
            out = T3ForCausalLM(base, head(), T)(ids, position_ids=positions)
    assert out.past_key_values is None
    for sequence, logits in zip(ids.split([4, 1, 4], 1), out.logits.split([4, 1, 4], 1)):
        assert worst(logits, t3(name).logp(sequence, torch.ones_like(sequence))) <= LIMIT


def test_packed_sequences_and_a_cache_are_refused():
    ids, positions = packed()
    tilted = T3ForCausalLM(family("llama"), head(), T)
    for options in ({"use_cache": True}, {"past_key_values": DynamicCache()}):
        with pytest.raises(UserError, match="packed sequences.*use_cache=False"):
            tilted(ids, position_ids=positions, **options)
    with torch.no_grad():
        plain = tilted(ids, position_ids=torch.arange(9)[None])
        assert torch.equal(plain.logits, tilted(ids).logits) and plain.past_key_values is not None


def test_packed_sequences_in_uld():
    ids, positions = packed((4, 5))
    uld = ULDForCausalLM(family("llama"), family("gpt2", seed=2))
    with torch.no_grad():
        torch.testing.assert_close(uld(ids, position_ids=positions).logits[:, 4:], uld(ids[:, 4:]).logits)


# --- the state in the cache --------------------------------------------------------------------------------------


def change_in_place(tilted: T3ForCausalLM) -> None:
    with torch.no_grad():
        tilted.heads[0].A.mul_(2)


def change_behind_autograd(tilted: T3ForCausalLM) -> None:
    tilted.heads[0].A.data *= 2


def load_another(tilted: T3ForCausalLM) -> None:
    tilted.load_state_dict(T3ForCausalLM(family("llama"), head(seed=4), T).state_dict())


def put_another(tilted: T3ForCausalLM) -> None:
    tilted.heads[0] = T3Head(HIDDEN, VOCAB, rank=2)


@pytest.mark.parametrize("change", [change_in_place, change_behind_autograd, load_another, put_another])
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
        torch.testing.assert_close(tilted(ids[:, -1:], past_key_values=cache).logits, tilted(ids).logits[:, -1:])


def test_a_cache_can_be_copied_after_a_forward_with_gradients():
    tilted = T3ForCausalLM(family("llama").requires_grad_(False), head(), T)
    ids, _ = prompt("none", rows=1)
    cache = DynamicCache()
    tilted(ids[:, :-1], past_key_values=cache)
    copied = copy.deepcopy(cache)
    with torch.no_grad():
        tilted(ids[:, -1:], past_key_values=cache)
        torch.testing.assert_close(tilted(ids[:, -1:], past_key_values=copied).logits, tilted(ids).logits[:, -1:])
