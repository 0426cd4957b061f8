"""What the matrix does not hold: defaults, front ends, placements, several heads, caches, and what
must be refused.
"""

import copy
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
import transformers.generation.utils as generation
from families import CONFIGS, HIDDEN, VOCAB, family
from hypothesis import given
from hypothesis import strategies as st
from modes import LENGTH, LIMIT, NEW, beams, decode, expected, prompt, worst
from packaging.version import Version
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from reference import Reference
from test_sampler_matrix import T, head, t3
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.sampler.tilt import (
    T3ForCausalLM,
    gated_temperature,
    temperature_at,
    tempered,
    tilt,
    tilt_logits,
)
from t3lib.theory.price import tail_price_bound


def model(name: str = "llama", temperature: float = T, **settings: Any) -> T3ForCausalLM:
    return T3ForCausalLM(family(name), head(), temperature, **settings)


# --- the formula
# -------------------------------------------------------------------------------------------------


def test_tilt_logits_is_the_formula():
    logits, logf = torch.randn(2, 3, 7) * 5, torch.randn(2, 3, 7).sigmoid().log()
    p = logits.double().softmax(-1) ** (1 / 2.5) * logf.double().exp()
    torch.testing.assert_close(
        tilt_logits(logits, logf, 2.5).softmax(-1).double(), p / p.sum(-1, keepdim=True)
    )
    assert tilt_logits(logits.bfloat16(), logf, 2.5).dtype == torch.float32


def test_the_gate_tempers_where_the_classifier_expects_something_to_forget():
    logits, logf = torch.randn(9, 7) * 5, torch.randn(9, 7).sigmoid().log()
    r = (logits.double().softmax(-1) * logf.double().exp()).sum(-1, keepdim=True)
    theta = float(r.median()) + 1e-6
    want = torch.where(r < theta, 2.5, 1.0)
    assert 0 < (want == 1).sum() < 9
    assert torch.equal(gated_temperature(logits, logf, 2.5, theta).double(), want)
    of_table = np.float64(theta)  # such a gate made an error of a comparison
    assert torch.equal(gated_temperature(logits, logf, 2.5, of_table).double(), want)
    assert torch.equal(gated_temperature(logits, logf, 2.5, 0.0), torch.ones(9, 1))
    assert temperature_at(logits, [logf], [head()], 2.5, 1.0) == 2.5
    sure = gated_temperature(logits, torch.zeros(9, 7), 2.5, 1.0)
    assert torch.equal(sure, torch.full((9, 1), 2.5)), "also where r is 1"


def test_theta_of_zero_is_the_untempered_tilt_and_theta_of_one_is_t3():
    ids, mask = prompt("left")
    with torch.no_grad():
        found = {
            dials: model(gate=dials[1], temperature=dials[0])(ids, attention_mask=mask).logits
            for dials in ((T, 1.0), (T, 0.0), (1.0, 1.0), (1.0, 0.5))
        }
    assert torch.equal(found[T, 1.0], model()(ids, attention_mask=mask).logits)
    assert torch.equal(found[T, 0.0], found[1.0, 1.0])
    assert torch.equal(found[1.0, 0.5], found[1.0, 1.0])


@given(st.integers(0, 10**6), st.floats(1.0, 8.0), st.floats(1e-6, 1.0))
def test_keeping_the_tail_tempers_the_spike_alone(seed, temperature, tail):
    """By the definition in float64; no log-ratio inside the tail changes, and the price is bounded
    at any size of the vocabulary.
    """
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 300, generator=draw, dtype=torch.float64) * 4
    p = logits.softmax(-1)
    c = tail * p.amax(-1, keepdim=True)
    want = torch.where(p > c, p ** (1 / temperature) * c ** (1 - 1 / temperature), p)
    want = (want / want.sum(-1, keepdim=True)).log()
    found = tempered(logits, temperature, tail).double().log_softmax(-1)
    torch.testing.assert_close(found, want, atol=2e-4, rtol=1e-4)
    price = (p * (p.log() - found)).sum(-1)
    assert (price <= float(tail_price_bound(tail, temperature)) + 1e-5).all()


def test_without_a_tail_it_is_the_papers_t3_to_the_bit_and_a_tail_of_one_does_not_temper():
    logits, logf = torch.randn(9, 7) * 5, torch.randn(9, 7).sigmoid().log()
    assert torch.equal(tilt_logits(logits, logf, 2.5, 0.0), (logits / 2.5).add(logf))
    assert torch.equal(tilt_logits(logits, logf, 2.5, 1.0), logits + logf)
    gated = torch.where(torch.arange(9)[:, None] < 4, 2.5, 1.0)  # T(x) of a gate
    found = tilt_logits(logits, logf, gated, 0.01)
    assert torch.equal(found[:4], tilt_logits(logits[:4], logf[:4], 2.5, 0.01))
    torch.testing.assert_close(found[4:], logits[4:] + logf[4:])


def test_a_tail_is_checked_saved_and_one_for_all_heads(tmp_path):
    both = [head(tail=0.5), head(4)]
    for wrong in (-0.1, 1.1, True, "half"):
        with pytest.raises(UserError, match="tail must be a number from 0 to 1"):
            model(tail=wrong)
    with pytest.raises(UserError, match=r"different tails \(0.5, 0\): give the one to use"):
        T3ForCausalLM(family("llama"), both, T)
    made = T3ForCausalLM(family("llama"), both[0], T)
    made.tail = 0.25
    made.save_pretrained(tmp_path / "head")
    again = T3ForCausalLM.from_pretrained(tmp_path / "head", base=family("llama"))
    assert again.tail == 0.25 and both[0].tail == 0.5
    ids, mask = prompt("left")
    with torch.no_grad():
        kept, none = (
            again(ids, attention_mask=mask).logits,
            model()(ids, attention_mask=mask).logits,
        )
    assert not torch.allclose(kept, none)


def test_a_gate_is_checked_saved_and_one_for_all_heads(tmp_path):
    both = [head(gate=0.5), head(4)]
    for wrong in (-0.1, 1.1, True, "half"):
        with pytest.raises(UserError, match="gate must be a number from 0 to 1"):
            model(gate=wrong)
    with pytest.raises(UserError, match=r"different gates \(0.5, 1\): give the one to use"):
        T3ForCausalLM(family("llama"), both, T)
    assert T3ForCausalLM(family("llama"), both, T, gate=0.25).gate == 0.25
    made = T3ForCausalLM(family("llama"), both[0], T)
    assert made.gate == 0.5
    made.gate = 0.75
    made.save_pretrained(tmp_path / "head")
    assert T3ForCausalLM(family("llama"), tmp_path / "head").gate == 0.75 and both[0].gate == 0.5


def test_t_of_one_with_a_neutral_head_is_the_base():
    base = family("llama")
    neutral = T3Head(HIDDEN, VOCAB, 5, init_b="zero")
    ids, mask = prompt("left")
    with torch.no_grad():
        found = T3ForCausalLM(base, neutral, 1.0)(ids, attention_mask=mask).logits.log_softmax(-1)
        torch.testing.assert_close(found, base(ids, attention_mask=mask).logits.log_softmax(-1))


def test_sharpening_is_allowed_only_when_asked_for():
    assert T3ForCausalLM(family("llama"), head(), 0.5, allow_sharpening=True).temperature == 0.5
    tilted = model()
    with pytest.raises(UserError, match="allow_sharpening"):
        tilted.temperature = 0.9
    tilted.temperature = 3
    assert tilted.temperature == 3.0


# --- sampling defaults
# -------------------------------------------------------------------------------------------


def chatty_base() -> Any:
    base = family("llama")
    base.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.6,
        top_p=0.9,
        top_k=50,
        repetition_penalty=1.3,
        eos_token_id=[2, 5],
        pad_token_id=0,
    )
    return base


@pytest.mark.parametrize("front", ["wrapper", "tilt"])
@pytest.mark.parametrize("how", ["keywords", "object"])
def test_sampling_starts_from_the_exact_distribution(front, how, monkeypatch):
    """No top_k = 50, no temperature 0.6, no top_p, no repetition penalty: scores are the logits
    themselves.
    """
    monkeypatch.setattr(generation.logger, "warning_once", pytest.fail)
    base = chatty_base()
    base.generation_config.eos_token_id = None
    options: dict[str, Any] = dict(do_sample=True, max_new_tokens=4)
    options |= dict(return_dict_in_generate=True, output_logits=True, output_scores=True)
    if how == "object":
        options = {"generation_config": GenerationConfig(**options)}
    ids, mask = prompt("none")

    def scores(tilted: Any) -> Any:
        torch.manual_seed(11)
        out = tilted.generate(ids, attention_mask=mask, **options)
        for score, logits in zip(out.scores, out.logits):
            assert torch.equal(score, logits)
        return out

    if front == "tilt":
        with tilt(base, head(), T) as tilted:
            out = scores(tilted)
    else:
        out = scores(T3ForCausalLM(base, head(), T))
    assert torch.equal(
        out.sequences[:, LENGTH:], expected(t3("llama"), "none", "sampled")[0][:, :4]
    )


def test_greedy_and_special_tokens_are_the_defaults_and_users_settings_win():
    tilted = T3ForCausalLM(chatty_base(), head(), T)
    config = tilted.generation_config
    assert (config.do_sample, config.temperature, config.top_p) == (False, 1.0, 1.0)
    assert (config.eos_token_id, config.pad_token_id, config.repetition_penalty) == (
        [2, 5],
        0,
        None,
    )
    ids, mask = prompt("none")
    options: dict[str, Any] = dict(attention_mask=mask, max_new_tokens=1, do_sample=True, top_k=7)
    out = tilted.generate(ids, return_dict_in_generate=True, output_scores=True, **options)
    assert torch.isfinite(out.scores[0]).sum(-1).tolist() == [7, 7, 7]


def test_sampled_tokens_follow_p_hat():
    """20,000 draws of one token: every frequency within 5 standard errors of the float64
    probability.
    """
    tilted = model()
    ids, mask = prompt("none", rows=1)
    torch.manual_seed(0)
    options: dict[str, Any] = dict(do_sample=True, max_new_tokens=1, num_return_sequences=20_000)
    draws = tilted.generate(ids, attention_mask=mask, **options)[:, -1]
    p = Reference.of(family("llama"), [(head().A, head().B)], T).decode(ids, mask, 1)[1][0, 0].exp()
    found = torch.bincount(draws, minlength=VOCAB) / len(draws)
    assert ((found - p).abs() <= 5 * (p * (1 - p) / len(draws)).sqrt() + 1e-4).all()


def test_rows_end_at_their_own_end_token():
    tokens = expected(t3("llama"), "left", "greedy")[0]
    end = tokens[0, 2].item()
    ids, mask = prompt("left")
    options: dict[str, Any] = dict(max_new_tokens=NEW, eos_token_id=end, pad_token_id=0)
    out = model().generate(ids, attention_mask=mask, **options)[:, LENGTH:]
    for found, want in zip(out.tolist(), tokens.tolist()):
        stop = want.index(end) + 1 if end in want else NEW
        assert found == want[:stop] + [0] * (out.shape[1] - stop)


# --- forward
# --------------------------------------------------------------------------------------------------


def test_logits_to_keep_embeddings_and_tuples():
    tilted = model()
    ids, mask = prompt("left")
    with torch.no_grad():
        full = tilted(ids, attention_mask=mask).logits
        assert torch.equal(tilted(ids, attention_mask=mask, logits_to_keep=2).logits, full[:, -2:])
        index = torch.tensor([3, 5])
        torch.testing.assert_close(
            tilted(ids, attention_mask=mask, logits_to_keep=index).logits, full[:, index]
        )
        embeds = tilted.get_input_embeddings()(ids)
        torch.testing.assert_close(tilted(inputs_embeds=embeds, attention_mask=mask).logits, full)
        torch.testing.assert_close(tilted(ids, attention_mask=mask, return_dict=False)[0], full)
    out = tilted.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=NEW)
    assert torch.equal(out, expected(t3("llama"), "left", "greedy")[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_bases_give_float32_scores(dtype):
    """The tilt adds no rounding of its own: float32 logits equal the float64 tilt of the
    half-precision base.
    """
    base = family("llama").to(dtype)
    ids, mask = prompt("left")
    with torch.no_grad():
        found = T3ForCausalLM(base, head(), T)(ids, attention_mask=mask).logits
        logits = base(ids, attention_mask=mask).logits.double()
        hidden = base.get_decoder()(ids, attention_mask=mask)[0].double()
    assert found.dtype == torch.float32
    seen = mask.double()[..., None]
    pooled = (hidden * seen).cumsum(1) / seen.cumsum(1).clamp(min=1)
    want = (
        logits.log_softmax(-1) / T
        + torch.sigmoid(pooled @ head().A.double().T @ head().B.double().T).log()
    )
    # Both normalised: the model's logits are p_hat's up to a constant of each position.
    assert (found.double().log_softmax(-1) - want.log_softmax(-1)).abs()[mask.bool()].max() <= LIMIT


def test_gradients_reach_the_head_and_the_frozen_base_stays_frozen():
    tilted = model()
    tilted.base.requires_grad_(False)
    ids, mask = prompt("none")
    tilted(ids, attention_mask=mask, labels=ids).loss.backward()
    assert tilted.heads[0].A.grad.abs().sum() > 0 and tilted.heads[0].B.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in tilted.base.parameters())


# --- several heads
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [1.0, 0.25])
def test_several_heads_add_their_log_f(gate):
    heads = [head(3), T3Head(HIDDEN, VOCAB, rank=2, seed=8)]
    heads[1].B.data *= 9
    oracle = Reference.of(family("gpt2"), [(h.A, h.B) for h in heads], T, gate=gate)
    want, logp = oracle.decode(*prompt("left"), NEW)
    ids, mask = prompt("left")
    both = T3ForCausalLM(family("gpt2"), heads, T, gate=gate)
    options: dict[str, Any] = dict(
        max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True
    )
    out = both.generate(ids, attention_mask=mask, **options)
    assert torch.equal(out.sequences[:, LENGTH:], want)
    assert worst(torch.stack(out.logits, 1), logp) <= LIMIT
    one = T3ForCausalLM(family("gpt2"), heads[:1], T)  # the second request to forget, forgotten
    assert decode(one, t3("gpt2"), "left") <= LIMIT


def test_heads_of_different_bases_do_not_compose():
    def made(**info: Any) -> T3Head:
        return T3Head(HIDDEN, VOCAB, 3, info=info)

    with pytest.raises(UserError, match="different bases.*base_model"):
        T3ForCausalLM(family("llama"), [made(base_model="a"), made(base_model="b")], T)
    with pytest.raises(UserError, match="different bases.*base_revision"):
        T3ForCausalLM(family("llama"), [made(base_revision="1"), made(base_revision="2")], T)
    same = dict(base_revision="1")
    T3ForCausalLM(
        family("llama"), [made(base_model="here", **same), made(base_model="moved", **same)], T
    )


# --- caches
# --------------------------------------------------------------------------------------------------


def test_a_shared_prompt_cache_serves_many_questions():
    """The recipe of the Transformers docs: prefill once, deep-copy, repeat over the batch,
    continue.
    """
    tilted = model("qwen3")
    ids, mask = prompt("none", rows=1)
    cache = DynamicCache(config=tilted.config)
    with torch.no_grad():
        tilted(ids[:, :-1], past_key_values=cache)
    for repeats in (1, 2):
        own = copy.deepcopy(cache)
        own.batch_repeat_interleave(repeats)
        out = tilted.generate(ids.repeat(repeats, 1), past_key_values=own, max_new_tokens=NEW)
        assert torch.equal(
            out[:, LENGTH:], expected(t3("qwen3"), "none", "greedy", 1)[0].repeat(repeats, 1)
        )
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.get_seq_length() == LENGTH - 1


def test_cropping_and_resetting_a_cache():
    tilted = model()
    ids, mask = prompt("none", rows=1)
    want = expected(t3("llama"), "none", "greedy", 1)[0]
    cache = DynamicCache()  # no config: its layers appear one by one
    tilted.generate(ids, past_key_values=cache, max_new_tokens=NEW)
    cache.crop(-(cache.get_seq_length() - LENGTH + 1))
    assert torch.equal(
        tilted.generate(ids, past_key_values=cache, max_new_tokens=NEW)[:, LENGTH:], want
    )
    static = StaticCache(config=tilted.config, max_cache_len=32)
    for _ in range(2):
        assert torch.equal(
            tilted.generate(ids, past_key_values=static, max_new_tokens=NEW)[:, LENGTH:], want
        )
        static.reset()
    with pytest.raises(UserError, match="cannot be cropped"):
        tilted.generate(ids, past_key_values=static, max_new_tokens=1)
        static.layers[-1].crop(-1)


@pytest.mark.parametrize(
    "made", [lambda c: DynamicCache(config=c), lambda c: StaticCache(config=c, max_cache_len=32)]
)
def test_a_cache_the_base_filled_is_refused(made):
    base = family("llama")
    tilted = T3ForCausalLM(base, head(), T)
    ids, _ = prompt("none", rows=1)
    cache = made(base.config)
    with torch.no_grad():
        base(ids[:, :4], past_key_values=cache)
    with pytest.raises(UserError, match="holds 4 tokens, of which 0 were seen"):
        tilted.generate(ids, past_key_values=cache, max_new_tokens=2)
    cache = made(base.config)
    with torch.no_grad():
        tilted.generate(ids[:, :3], past_key_values=cache, max_new_tokens=1)
        base(
            ids[:, 3:5], past_key_values=cache
        )  # the base alone goes on: two tokens were never pooled
    with pytest.raises(UserError, match="holds 5 tokens, of which 3 were seen"):
        tilted.generate(ids, past_key_values=cache, max_new_tokens=2)


def test_the_draft_may_be_unlearned_too():
    draft = T3ForCausalLM(family("llama", seed=9), head(seed=4), 1.5)
    assert decode(model(), t3("llama"), "left", rows=1, assistant_model=draft) <= LIMIT


# --- placements and front ends
# -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def saved_base(tmp_path_factory):
    """A Llama wide enough for bitsandbytes' blocks, as a folder."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
    )
    config = LlamaConfig(
        vocab_size=VOCAB, **sizes, bos_token_id=1, eos_token_id=None, pad_token_id=0
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def wide_head() -> T3Head:
    made = T3Head(64, VOCAB, rank=5, seed=3)
    made.B.data *= 5
    return made


def check_against_own_base(tilted: Any, base: Any) -> None:
    """The tilted model's cached decoding equals the tilt recomputed, without a cache, on that very
    base.
    """
    ids, mask = prompt("left")
    made = wide_head()
    options: dict[str, Any] = dict(
        max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True
    )
    out = tilted.generate(ids, attention_mask=mask, **options)
    for step, logits in enumerate(out.logits):
        so_far = out.sequences[:, : LENGTH + step]
        seen = torch.cat([mask, torch.ones(3, step, dtype=mask.dtype)], 1)
        inputs = dict(
            attention_mask=seen,
            position_ids=(seen.cumsum(1) - 1).masked_fill(seen == 0, 0),
            use_cache=False,
        )
        with torch.no_grad():
            hidden = base.get_decoder()(so_far, **inputs)[0].double()
            logp = base(so_far, **inputs).logits[:, -1].double().log_softmax(-1) / T
        pooled = (hidden * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        logp = logp + torch.sigmoid(pooled @ made.A.double().T @ made.B.double().T).log()
        assert worst(logits, logp.log_softmax(-1)) <= LIMIT
        assert torch.equal(logp.argmax(-1), out.sequences[:, LENGTH + step])


@pytest.mark.parametrize("quantised", ["8bit", "nf4"])
@pytest.mark.filterwarnings("ignore")
def test_quantised_bases_on_cpu(saved_base, quantised):
    pytest.importorskip("bitsandbytes")
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # else one line per linear layer and call
    if quantised == "8bit":
        settings = BitsAndBytesConfig(load_in_8bit=True)
    else:
        settings = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
        )
    base = AutoModelForCausalLM.from_pretrained(
        saved_base, quantization_config=settings, device_map={"": "cpu"}
    )
    check_against_own_base(T3ForCausalLM(base, wide_head(), T), base)


DISK = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "disk",
    "model.layers.1": "cpu",
    "model.norm": "cpu",
}
OTHERS = {"model.rotary_emb": "cpu", "lm_head": "disk"}
WHOLE_ON_DISK = pytest.mark.skipif(
    Version(accelerate.__version__) < Version("1.15"), reason="accelerate refuses it"
)


@pytest.mark.parametrize(
    "device_map",
    [
        {"": "cpu"},
        {**DISK, **OTHERS},
        {**dict.fromkeys(DISK, "disk"), "model.norm": "cpu", **OTHERS},
        pytest.param({"model": "disk", "lm_head": "disk"}, marks=WHOLE_ON_DISK),
    ],
    ids=["cpu", "cpu and disk", "nearly all on disk", "disk"],
)
def test_device_maps_and_disk_offload(saved_base, tmp_path, device_map):
    base = AutoModelForCausalLM.from_pretrained(
        saved_base, device_map=device_map, offload_folder=tmp_path
    )
    check_against_own_base(T3ForCausalLM(base, wide_head(), T), base)
    with tilt(base, wide_head(), T) as tilted:
        ids, mask = prompt("left")
        found = tilted.generate(ids, attention_mask=mask, max_new_tokens=NEW)
    assert torch.equal(
        found,
        T3ForCausalLM(base, wide_head(), T).generate(ids, attention_mask=mask, max_new_tokens=NEW),
    )


@pytest.mark.filterwarnings("ignore")
def test_a_base_with_a_lora_adapter(saved_base):
    base = LlamaForCausalLM.from_pretrained(saved_base)
    ids, mask = prompt("left")
    plain = T3ForCausalLM(base, wide_head(), T).generate(
        ids, attention_mask=mask, max_new_tokens=NEW
    )
    adapted = get_peft_model(
        base, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "up_proj"])
    ).eval()
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    tilted = T3ForCausalLM(adapted, wide_head(), T)
    check_against_own_base(tilted, adapted.get_base_model())
    with adapted.disable_adapter():
        assert torch.equal(tilted.generate(ids, attention_mask=mask, max_new_tokens=NEW), plain)
    assert not torch.equal(tilted.generate(ids, attention_mask=mask, max_new_tokens=NEW), plain)
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(UserError, match="prompt-learning"):
        T3ForCausalLM(
            get_peft_model(LlamaForCausalLM.from_pretrained(saved_base), prompts), wide_head(), T
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("front", ["wrapper", "tilt"])
def test_compiled_decoding_with_a_static_cache(front):
    """One graph without breaks, T guarded, the base as before; the compiler's own back end is
    torch's business.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = CompileConfig(backend="eager", mode=None, fullgraph=True)
    settings._compile_all_devices = True
    options: dict[str, Any] = dict(cache_implementation="static", compile_config=settings)
    base = family("llama")
    ids, mask = prompt("left")
    plain: dict[str, Any] = dict(attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    before = base.generate(ids, **plain, **options)
    if front == "tilt":
        with tilt(base, head(), T) as tilted:
            assert decode(tilted, t3("llama"), "left", **options) <= LIMIT
    else:
        tilted = T3ForCausalLM(base, head(), T)
        assert decode(tilted, t3("llama"), "left", **options) <= LIMIT
        tilted.temperature = T + 1
        assert torch.equal(tilted.generate(ids, **plain, **options), tilted.generate(ids, **plain))
        tilted.temperature = T
        assert decode(tilted, t3("llama"), "left", **options) <= LIMIT
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch.equal(base.generate(ids, **plain, **options), before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("rows", [1, 3])
def test_compiled_decoding_is_compiled_once(padding, rows):
    """Padding too: the mask of the new token must not be a view into the mask that grows."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = CompileConfig(backend="eager", mode=None, fullgraph=True, dynamic=False)
    settings._compile_all_devices = True
    ids, mask = prompt(padding, rows)
    model().generate(
        ids,
        attention_mask=mask,
        max_new_tokens=8,
        cache_implementation="static",
        compile_config=settings,
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore")
def test_compiling_the_model_itself_is_right_too():
    torch._dynamo.reset()
    tilted = model()
    ids, mask = prompt("left")
    with torch.no_grad():
        want = tilted(ids, attention_mask=mask).logits
        assert torch.equal(
            torch.compile(tilted, backend="eager")(ids, attention_mask=mask).logits, want
        )


@pytest.mark.parametrize("front", ["wrapper", "tilt"])
@pytest.mark.parametrize("chat", [False, True])
def test_the_text_generation_pipeline(tiny_model, tokenizer, front, chat, monkeypatch):
    made = T3Head(tiny_model.config.hidden_size, len(tokenizer), 4)
    texts: list[Any] = ["Who?", "What is this"]
    if chat:
        texts = [[{"role": "user", "content": text}] for text in texts]
    monkeypatch.setattr(tokenizer, "padding_side", "left")  # the session's tokenizer

    def run(tilted: Any) -> list[str]:
        tool = pipeline("text-generation", model=tilted, tokenizer=tokenizer)
        out = tool(texts, max_new_tokens=6, batch_size=2, return_full_text=False)
        return [row[0]["generated_text"] for row in out]

    tilted = T3ForCausalLM(tiny_model, made, T)
    if front == "wrapper":
        found = run(tilted)
    else:
        with tilt(tiny_model, made, T) as in_place:
            found = run(in_place)
    for text, answer in zip(texts, found):
        ids = (
            tokenizer.apply_chat_template(text, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
            if chat
            else tokenizer(text)["input_ids"]
        )
        want = tilted.generate(torch.tensor([ids]), max_new_tokens=6)[0, len(ids) :]
        assert answer == tokenizer.decode(want, skip_special_tokens=True)


def test_threads_do_not_see_each_others_hidden_states():
    tilted = model()
    ids, mask = prompt("none")

    def work(row: int) -> Tensor:
        return tilted.generate(ids[row : row + 1], max_new_tokens=NEW)[:, LENGTH:]

    with ThreadPoolExecutor(3) as pool:
        found = torch.cat([*pool.map(work, [0, 1, 2] * 3)])
    assert torch.equal(found, expected(t3("llama"), "none", "greedy")[0].repeat(3, 1))


def test_saving_and_loading_a_model_is_saving_and_loading_its_head(tmp_path, saved_base):
    base = LlamaForCausalLM.from_pretrained(saved_base)
    tilted = T3ForCausalLM(base, wide_head(), T)
    tilted.save_pretrained(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    again = T3ForCausalLM.from_pretrained(tmp_path / "a", base=base)
    assert again.temperature == T != wide_head().temperature and again.base is base, (
        "the T in use is saved"
    )
    assert tilted.heads[0].temperature == wide_head().temperature
    check_against_own_base(again, base)
    both = T3ForCausalLM.from_pretrained([tmp_path / "a", tmp_path / "a"], base=base, temperature=T)
    with pytest.raises(UserError, match="several heads"):
        both.save_pretrained(tmp_path / "b")
    with pytest.raises(UserError, match="several heads"):
        both.push_to_hub("me/both")


def test_a_base_named_by_its_folder_brings_its_tokenizer(tmp_path, model_folder, tokenizer):
    T3Head(32, len(tokenizer), 3, info={"tokenizer_hash": "0" * 16}).save_pretrained(
        tmp_path / "head"
    )
    with pytest.raises(UserError, match="another tokenizer"):
        T3ForCausalLM.from_pretrained(tmp_path / "head", base=model_folder)
    T3Head(32, len(tokenizer), 3).save_pretrained(tmp_path / "head")
    named = T3ForCausalLM.from_pretrained(str(tmp_path / "head"), base=str(model_folder))
    assert named.device.type == "cpu"


# --- tilt in place
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_tilt_puts_everything_back(name):
    base = family(name)
    ids, mask = prompt("left")
    options: dict[str, Any] = dict(attention_mask=mask, max_new_tokens=NEW)
    before, attributes = base.generate(ids, **options), dict(base.__dict__)
    with torch.no_grad():
        logits = base(ids, attention_mask=mask).logits
    with pytest.raises(ZeroDivisionError), tilt(base, head(), T) as tilted:
        assert torch.equal(
            tilted.generate(ids, **options)[:, LENGTH:], expected(t3(name), "left", "greedy")[0]
        )
        assert beams(tilted, t3(name), "none") <= LIMIT
        raise ZeroDivisionError
    assert base.__dict__ == attributes
    assert torch.equal(base.generate(ids, **options), before)
    with torch.no_grad():
        assert torch.equal(base(ids, attention_mask=mask).logits, logits)
    assert not any(module._forward_hooks for module in base.modules())


def test_what_is_refused_inside_tilt(tmp_path):
    """A copy would stay tilted after the block, and `generate` from the original's weights."""
    base = family("llama")
    copied = "copied, pickled or saved"
    with tilt(base, head(), T) as tilted:
        for call, said in (
            (lambda: T3ForCausalLM(base, head(4), T), "already unlearned"),
            (lambda: tilt(base, head(4), T).__enter__(), "already unlearned"),
            (lambda: tilted.generate_batch([[1, 2]]), "continuous batching"),
            (lambda: tilted.generate(IDS[:, :0], max_new_tokens=1), "empty"),
            (lambda: tilted.resize_token_embeddings(VOCAB + 3), "cannot be resized"),
            (lambda: copy.copy(tilted), copied),
            (lambda: copy.deepcopy(tilted), copied),
            (lambda: pickle.dumps(tilted), copied),
            (lambda: torch.save(tilted, tmp_path / "model.pt"), copied),
            (lambda: tilted.save_pretrained(tmp_path / "base"), copied),
            (lambda: tilted.push_to_hub("me/base"), copied),
        ):
            with pytest.raises(UserError, match=said):
                call()
    with pytest.raises(UserError, match="temperature"), tilt(base, head(), "2"):
        pass


def test_copies_outside_tilt_are_whole():
    base = family("llama")
    with tilt(base, head(), T):
        pass
    copied = pickle.loads(pickle.dumps(copy.deepcopy(base)))
    want = base.generate(IDS, max_new_tokens=NEW)
    assert torch.equal(copied.generate(IDS, max_new_tokens=NEW), want)
    tilted = copy.deepcopy(T3ForCausalLM(base, head(), T))
    with torch.no_grad():
        for weight in base.parameters():
            weight.zero_()
    found = tilted.generate(IDS, max_new_tokens=NEW)[:, LENGTH:]
    assert torch.equal(found, expected(t3("llama"), "none", "greedy")[0])


# --- what must be refused
# ----------------------------------------------------------------------------------------


IDS, MASK = prompt("none")
EMPTY_ROW = MASK * torch.tensor([[1], [0], [1]])
PACKED = "continuous batching"
ELSEWHERE = "elsewhere|itself|own decoding loop|parts of the base|mixes a draft"
MODES = [
    dict(penalty_alpha=0.6, top_k=4),
    dict(dola_layers="high"),
    dict(num_beams=4, num_beam_groups=2),
    dict(force_words_ids=[[1]], num_beams=2),
    dict(custom_generate="someone/recipe"),
    dict(assistant_early_exit=1),
    dict(use_mtp=True),
    dict(assistant_ensemble_weight=0.1),  # took the draft's forgotten text
    dict(generation_config=GenerationConfig(penalty_alpha=0.6, top_k=4)),
]
T5 = T5Config(vocab_size=VOCAB, d_model=HIDDEN, d_kv=8, d_ff=16, num_layers=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *((lambda m, o=o: m.generate(IDS[:1], max_new_tokens=2, **o), ELSEWHERE) for o in MODES),
        (lambda m: m.generate_batch([[1, 2, 3]]), PACKED),
        (lambda m: m.generate(IDS[:1], cache_implementation="paged"), PACKED),
        (lambda m: m.init_continuous_batching(), PACKED),
        (lambda m: m.continuous_batching_context_manager(), PACKED),
        (lambda m: m(IDS[:, :0]), "prompt is empty"),
        (lambda m: m.generate(IDS[:, :0]), "prompt is empty"),
        (lambda m: m(IDS, attention_mask=EMPTY_ROW), "row 1 of the batch is all padding"),
        (lambda m: m.generate(IDS, attention_mask=EMPTY_ROW), "row 1 of the batch is all padding"),
        (lambda m: m.generate(IDS * EMPTY_ROW), "row 1 of the batch is all padding"),
        (lambda m: m(torch.ones(1, 65).long()), "65 tokens, the base's context is 64"),
        (lambda m: m.generate(torch.ones(1, 65).long()), "65 tokens, the base's context is 64"),
        (lambda m: m(IDS, attention_mask=torch.ones(3, 1, LENGTH, LENGTH)), "2-D"),
        (lambda m: m(IDS, attention_mask=MASK[:, :4]), "covers 4 tokens"),
        (lambda m: m(), "input_ids"),
        (lambda m: m(IDS, past_key_values=((IDS, IDS),)), "Cache, not tuple"),
        (lambda m: T3ForCausalLM(m.base, T3Head(8, VOCAB, 3)), "size 8, the base model has 16"),
        (lambda m: T3ForCausalLM(m.base, T3Head(HIDDEN, 60, 3)), "60, the base model has 61"),
        (lambda m: T3ForCausalLM(m.base, head().to("meta")), "head is on meta, the base on cpu"),
        (lambda m: T3ForCausalLM(m.base, []), "T3Head"),
        (lambda m: T3ForCausalLM(m.base, "nowhere"), "no head at nowhere"),
        (lambda m: T3ForCausalLM(m.base, [m.base]), "T3Head"),
        (lambda m: T3ForCausalLM(T5ForConditionalGeneration(T5), head()), "decoder-only"),
        (lambda m: T3ForCausalLM(m.base.model, head()), "causal"),
        (lambda m: T3ForCausalLM(m, head()), "already unlearned"),
        (
            lambda m: (m.base.resize_token_embeddings(VOCAB + 3), m.generate(IDS)),
            "resized after the head was trained",
        ),
        (
            lambda m: T3ForCausalLM((m.base.resize_token_embeddings(99), m.base)[1], head()),
            "resized after the head was trained",
        ),
        (lambda m: (m.heads.to("meta"), m.generate(IDS)), "on meta, the base's hidden states on c"),
    ],
)
def test_what_cannot_be_exact_is_refused(call, said):
    with torch.no_grad(), pytest.raises(UserError, match=said):
        call(model())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_hidden_states_of_padding_need_not_be_finite(value):
    """NaN where nothing is visible, as attention over nothing leaves it: no harm, no error."""
    tilted, (_, mask) = model(), prompt("left")

    def poison(module: Any, args: Any, output: Any) -> Any:
        if output[0].shape[1] == LENGTH:
            output[0][mask == 0] = value
        return output

    tilted.base.model.register_forward_hook(poison)
    assert decode(tilted, t3("llama"), "left") <= LIMIT
