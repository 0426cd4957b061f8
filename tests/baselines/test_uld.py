"""ULD as a Transformers model, p / f^strength, in every decoding mode against a float64 no-cache
reference.
"""

import functools
import weakref

import pytest
import torch
from families import VOCAB, family
from modes import LENGTH, LIMIT, MODES, NEW, PADDINGS, expected, prompt
from reference import Quotient
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, PreTrainedModel, StaticCache

from t3lib.baselines import uld as uld_module
from t3lib.baselines.assistant import make_assistant
from t3lib.baselines.uld import ULDForCausalLM, subtract_logits
from t3lib.core.errors import UserError
from t3lib.core.rows import encode
from t3lib.tofu.evaluation import Scoring, evaluate

STRENGTH = 0.8
# Two layers, of which the assistant has the first; gpt2, whose blocks cannot be taken apart, gets a
# whole other model.
FAMILIES = ("llama", "gemma2 (soft-cap)", "gpt2")  # gemma2 also slides


def trained_assistant(base: PreTrainedModel, seed: int = 0):
    """An assistant whose LoRA has been trained, as far as these tests care: its B matrices are not
    0.
    """
    assistant = make_assistant(base, 1, rank=4, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in assistant.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.3
    return assistant.eval()


def pair(name: str):
    """A family's base and an assistant for it."""
    base = family(name)
    return base, family(name, seed=5) if name == "gpt2" else trained_assistant(base)


def model(name: str = "llama", strength: float = STRENGTH) -> ULDForCausalLM:
    return ULDForCausalLM(*pair(name), strength)


@functools.cache
def oracle(name: str = "llama", strength: float = STRENGTH) -> Quotient:
    base, assistant = pair(name)
    return Quotient.of(base, getattr(assistant, "get_base_model", lambda: assistant)(), strength)


# --- exact in every mode
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_exact(name, mode, padding):
    if (mode, padding) == ("continuation", "right"):
        # generate renumbers a right-padded row's tokens when called again, for any base
        padding = "holes"
    assert MODES[mode](model(name), oracle(name), padding) <= LIMIT


def test_subtract_logits_is_the_formula():
    logits, helped = torch.randn(2, 3, 7) * 5, torch.randn(2, 3, 7) * 5
    p = logits.double().softmax(-1) / helped.double().softmax(-1) ** 1.5
    found = subtract_logits(logits, helped, 1.5)
    torch.testing.assert_close(
        found.softmax(-1).double(), p / p.sum(-1, keepdim=True), atol=1e-6, rtol=1e-5
    )
    assert subtract_logits(logits.bfloat16(), helped.bfloat16(), 1.0).dtype == torch.float32


class Held(TorchDispatchMode):
    """most: the most bytes that tensors hold at once which are read or made within this mode.
    shapes: of the tensors that operations read.
    """

    def __init__(self):
        super().__init__()
        self.seen, self.most, self.shapes = [], 0, set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, made)) if isinstance(leaf, torch.Tensor)]
        self.seen = [*(ref for ref in self.seen if ref() is not None), *map(weakref.ref, tensors)]
        alive = (tensor for ref in self.seen if (tensor := ref()) is not None)
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in alive}
        held = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
        self.most = max(self.most, held)
        self.shapes |= {leaf.shape for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        return made


@pytest.mark.parametrize("dtype, each", [(torch.bfloat16, 2 + 2 + 4), (torch.float32, 4 + 4)])
def test_a_batch_of_logits_is_never_copied_whole(dtype, each, monkeypatch):
    """Only the logits of both models and the result are held, and three copies of a part.

    The result takes the place of float32 logits. Whole copies took 16 and 20 bytes an entry:
    4 and 5 GB in the largest batch with Llama 3's vocabulary.
    """
    monkeypatch.setattr(uld_module, "PART", part := 2**12)
    logits, helped = (torch.randn(32, part // 8).to(dtype) for _ in range(2))
    expected = logits.float().log_softmax(-1) - STRENGTH * helped.float().log_softmax(-1)
    with Held() as held:
        found = subtract_logits(logits, helped, STRENGTH)
    assert torch.equal(found, expected), "to the last digit"
    assert 0 <= held.most - each * found.numel() <= 3 * 4 * part


def test_the_output_layer_is_not_copied_for_each_row():
    """torch multiplies a frozen weight by sliced hidden states as a batch of matrices, and copies
    bfloat16 for each row. At Llama-3.2-1B's shape 32 rows took 16 GB.
    """
    base, assistant = pair("llama")
    ids = torch.randint(0, VOCAB, (8, LENGTH))
    with torch.no_grad(), Held() as held:
        last = assistant(input_ids=ids, logits_to_keep=1).logits
    weight = assistant.get_output_embeddings().weight
    assert (len(ids), *weight.T.shape) not in held.shapes
    with torch.no_grad():
        torch.testing.assert_close(last, assistant(input_ids=ids).logits[:, -1:])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_strength_of_0_is_the_base(name):
    base, assistant = pair(name)
    ids, mask = prompt("left")
    with torch.no_grad():
        found = ULDForCausalLM(base, assistant, 0)(ids, attention_mask=mask).logits
        torch.testing.assert_close(found, base(ids, attention_mask=mask).logits.log_softmax(-1))
    options = dict(attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(
        ULDForCausalLM(base, assistant, 0).generate(ids, **options), base.generate(ids, **options)
    )


# --- evaluation
# --------------------------------------------------------------------------------------------------


def rows(count: int, wrong: int = 3):
    return [
        {
            "question": f"Who wrote book {i}?",
            "answer": f"Author {i} did.",
            "paraphrased_answer": f"It was {i}.",
            "perturbed_answer": [f"No {i}{j}." for j in range(wrong)],
        }
        for i in range(count)
    ]


@pytest.mark.parametrize("attention_mask", ["lengths", "openunlearning"])
def test_evaluation_scores_and_texts_are_those_of_the_quotient(
    tiny_model, tokenizer, attention_mask
):
    assistant = trained_assistant(tiny_model)
    uld = ULDForCausalLM(tiny_model, assistant, STRENGTH)
    reference = Quotient.of(tiny_model, assistant.get_base_model(), STRENGTH)
    data, scoring = rows(3), Scoring(attention_mask, max_new_tokens=6)
    report = evaluate(uld, tokenizer, {"forget": data}, scoring)
    for row, record in zip(data, report["records"]["forget"]):
        example = encode(tokenizer, row["question"], row["answer"])
        ids, n = torch.tensor([example.ids]), example.n_prompt
        hidden = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
        mask = (
            (ids != hidden).long() if attention_mask == "openunlearning" else torch.ones_like(ids)
        )
        logp = reference.logp(ids, mask, torch.arange(ids.shape[1])[None])[0, :-1].gather(
            -1, ids[0, 1:, None]
        )
        assert record["prob"] == pytest.approx(logp[n - 1 :].mean().exp().item(), rel=1e-4)
        tokens = reference.decode(ids[:, :n], mask[:, :n], 6)[0][0].tolist()
        tokens = (
            tokens[: tokens.index(tokenizer.eos_token_id)]
            if tokenizer.eos_token_id in tokens
            else tokens
        )
        assert record["generation"] == tokenizer.decode(tokens, skip_special_tokens=True).strip()
    base = evaluate(tiny_model, tokenizer, {"forget": data}, scoring)
    assert base["records"]["forget"] != report["records"]["forget"]


# --- caches
# --------------------------------------------------------------------------------------------------


def test_cropping_and_resetting_a_cache():
    uld = model()
    ids, _ = prompt("none", rows=1)
    want = expected(oracle(), "none", "greedy", 1)[0]
    cache = DynamicCache(config=uld.config)
    uld.generate(ids, past_key_values=cache, max_new_tokens=NEW)
    cache.crop(-(cache.get_seq_length() - LENGTH + 1))
    assert torch.equal(
        uld.generate(ids, past_key_values=cache, max_new_tokens=NEW)[:, LENGTH:], want
    )
    static = StaticCache(config=uld.config, max_cache_len=32)
    for _ in range(2):
        assert torch.equal(
            uld.generate(ids, past_key_values=static, max_new_tokens=NEW)[:, LENGTH:], want
        )
        static.reset()


@pytest.mark.parametrize(
    "made", [lambda c: DynamicCache(config=c), lambda c: StaticCache(config=c, max_cache_len=32)]
)
def test_caches_filled_without_this_assistant_are_refused(made):
    base, assistant = pair("llama")
    uld = ULDForCausalLM(base, assistant, STRENGTH)
    ids, _ = prompt("none", rows=1)
    cache = made(base.config)
    with torch.no_grad():
        base(ids[:, :4], past_key_values=cache)
    with pytest.raises(UserError, match="holds 4 tokens, of which the assistant saw 0"):
        uld.generate(ids, past_key_values=cache, max_new_tokens=2)
    cache = made(base.config)
    uld.generate(ids, past_key_values=cache, max_new_tokens=2)
    with pytest.raises(UserError, match="another assistant"):
        other = ULDForCausalLM(base, trained_assistant(base, seed=1), STRENGTH)
        other.generate(ids, past_key_values=cache, max_new_tokens=2)
    with pytest.raises(UserError, match="Cache, not tuple"):
        uld(ids, past_key_values=((ids, ids),))


# --- what is refused
# ---------------------------------------------------------------------------------------------


def test_drafts_are_refused_where_the_assistant_cannot_take_tokens_back():
    uld = ULDForCausalLM(family("llama"), family("olmo hybrid", seed=2))
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful"):
        uld.generate(prompt("none", rows=1)[0], max_new_tokens=3, prompt_lookup_num_tokens=2)


def test_the_filter_leaves_improbable_tokens_as_they_are_and_none_of_them_wins():
    """Without it, a token that the base almost excludes can become the most probable one."""
    p, f = torch.tensor([[0.9, 0.099, 0.001]]), torch.tensor([[0.98, 0.019999, 1e-6]])
    alone, filtered = (subtract_logits(p.log(), f.log(), 1.0, share) for share in (0.0, 0.01))
    assert alone.argmax() == 2 and filtered.argmax() == 1
    assert filtered.exp().tolist()[0] == pytest.approx([0.9 / 0.98, 0.099 / 0.019999, 0.001])
    with pytest.raises(UserError, match="filter must be"):
        ULDForCausalLM(*pair("llama"), 1.0, 2.0)
