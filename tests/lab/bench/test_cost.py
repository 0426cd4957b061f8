"""The arithmetic of cost against torch's own counter of operations, real modules and Table 2."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from t3lab.bench import cost
from t3lab.bench.cost import SHAPES, Shape
from t3lab.bench.timing import random_model
from t3lib.baselines.assistant import make_assistant
from t3lib.classifier import fit as classifier
from t3lib.classifier.head import T3Head
from t3lib.core.models import quantization

TINY, LARGE = SHAPES["tiny"], SHAPES["llama-3.1-8b"]


def counted(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_parameters_are_the_papers():
    counts = cost.parameter_counts("llama-3.1-8b")
    assert counts == {"Full Fine-Tuning": 8_030_261_248, "ULD": 41_943_040, "T3": 2_647_040}
    assert [f"{count:.2e}" for count in counts.values()] == ["8.03e+09", "4.19e+07", "2.65e+06"]


@pytest.mark.parametrize("name", SHAPES)
def test_counts_are_the_modules(name):
    """On the meta device, where tensors have shapes and no memory; the 1B Llama ties its
    embeddings.
    """
    shape = SHAPES[name]
    model = random_model(name, device="meta")
    assert Shape.of(model.config) == shape
    linear = [m.weight.numel() for m in model.model.modules() if isinstance(m, torch.nn.Linear)]
    assert cost.linear_weights(shape) == sum(linear)
    assistant = make_assistant(model, min(16, shape.num_hidden_layers))
    head = T3Head(shape.hidden_size, shape.vocab_size, 20)
    assert cost.parameter_counts(name) == {
        "Full Fine-Tuning": sum(p.numel() for p in model.parameters()),
        "ULD": sum(p.numel() for p in assistant.parameters() if p.requires_grad),
        "T3": head.num_parameters,
    }


def test_operations_of_a_pass():
    """Torch counts attention over all pairs of positions; causal attention needs half of them."""
    model, length = random_model("tiny"), 24
    model.set_attn_implementation("eager")
    ids = torch.zeros(1, length, dtype=torch.int64)
    expected = cost.forward(TINY, [length], logits=length)
    d, layers = TINY.hidden_size, TINY.num_hidden_layers
    pairs = 4 * layers * d * (length**2 - length * (length + 1) / 2)
    with torch.no_grad():
        found = counted(lambda: model(ids, use_cache=False))
    assert found == expected.flops + pairs
    assert expected.bytes == 4 * (cost.linear_weights(TINY) + d * TINY.vocab_size)
    assert cost.forward(TINY, [length] * 2).flops == 2 * cost.forward(TINY, [length]).flops
    assert cost.training_step(TINY, [length], length) == (3 * expected.flops, 7 * expected.bytes)


def test_operations_of_head_training():
    n, d, h, V = 30, 32, 20, 300
    x, y, s = torch.randn(n, d), torch.randint(V, (n,)), torch.ones(n)
    head = T3Head(d, V, h)
    found = counted(lambda: classifier.step_loss(x, y, s, [head.A], [head.B]).backward())
    assert (found, 4 * n * d) == cost.head_training(n, d, h)


def test_decoding_reads_all_weights_once():
    base = cost.decode_step(LARGE)
    output = LARGE.hidden_size * LARGE.vocab_size
    assert base.bytes == 2 * (cost.linear_weights(LARGE) + output) == base.flops
    assert cost.decode_step(LARGE, heads=1).bytes - base.bytes == 4 * 2_647_040


def test_nf4_replaces_the_layers_maps_and_nothing_else(tmp_path):
    """Which is what the memory of a base in 4 bits is counted by."""
    random_model("tiny").save_pretrained(tmp_path)
    [small, plain] = (
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=how, dtype="float32")
        for how in (quantization("4bit", "float32"), None)
    )
    left = {name for name, module in small.named_modules() if type(module) is torch.nn.Linear}
    assert left == {"lm_head"} and small.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    ids = torch.arange(8)[None]
    with torch.no_grad():
        near, exact = small(ids).logits, plain(ids).logits
    assert 0 < (near - exact).abs().max() < 0.3 * exact.abs().max()


def test_t3_on_a_base_of_4_bits_fits_ten_gigabytes():
    weights, peak = cost.t3_memory(LARGE)
    assert weights == pytest.approx(5.7e9, rel=0.01) and weights < peak < 10e9
    assert cost.t3_memory(LARGE, bits=16)[0] == 2 * cost.parameters(LARGE)
    assert cost.t3_memory(LARGE, batch_tokens=65536)[1] > peak, "a larger pass takes more"
    assert cost.t3_memory(LARGE, batch=64)[1] > peak, "and so do more rows that are decoded"
