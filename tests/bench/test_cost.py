"""The arithmetic of cost against torch's own counter of operations, real modules and the paper's Table 2."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from t3lib import classifier
from t3lib.baselines.assistant import make_assistant
from t3lib.bench import cost
from t3lib.bench.head import full_vocabulary_loss, gathered_loss
from t3lib.bench.model import random_model
from t3lib.bench.shapes import SHAPES, Shape
from t3lib.errors import UserError
from t3lib.head import T3Head

TINY, LARGE = SHAPES["tiny"], SHAPES["llama-3.1-8b"]


def counted(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_parameters_are_the_papers():
    counts = cost.parameter_counts("llama-3.1-8b")
    assert counts == {"Full Fine-Tuning": 8_030_261_248, "ULD": 41_943_040, "T3": 2_647_040}
    assert [f"{count:.2e}" for count in counts.values()] == ["8.03e+09", "4.19e+07", "2.65e+06"]  # Table 2


@pytest.mark.parametrize("name", SHAPES)
def test_counts_are_the_modules(name):
    """On the meta device, where tensors have shapes and no memory; the 1B Llama ties its embeddings."""
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


def test_an_unknown_shape_is_refused():
    with pytest.raises(UserError, match="unknown shape 'llama-9': choose one of llama-3.1-70b, "):
        cost.parameter_counts("llama-9")


def test_operations_of_a_pass():
    """Torch counts attention over all pairs of positions; causal attention needs half of them and the diagonal."""
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
    assert cost.forward(TINY, [length, length]).flops == 2 * cost.forward(TINY, [length]).flops


def test_operations_of_head_steps():
    n, d, h, V = 30, 32, 20, 300
    x, y, s = torch.randn(n, d), torch.randint(V, (n,)), torch.ones(n)
    head = T3Head(d, V, h)
    dA, dB = torch.empty(h, d), torch.empty(V, h)
    A, B = head.A.detach(), head.B.detach()
    ours = counted(lambda: classifier.token_gradients(x, y, s, torch.ones(n), A, [B], dA, [dB]))
    assert ours == cost.head_step(n, d, h).flops
    adam = 12 * h * (d + V)
    assert counted(lambda: gathered_loss(x, y, s, head).backward()) + adam == cost.dense_step(n, d, h, V).flops
    full = counted(lambda: full_vocabulary_loss(x, y, s, head).backward())
    assert full + adam == cost.full_vocabulary_step(n, d, h, V).flops
    assert cost.head_step(n, d, h, itemsize=2).bytes * 2 == cost.head_step(n, d, h).bytes == 4 * n * d


def test_the_papers_head_training_is_half_a_teraflop():
    """100 epochs of 16,000 tokens: ../shared's 0.52 TFLOP, and what the whole vocabulary would add."""
    n, steps = 16_000 / 7, 700
    assert cost.head_step(n, 4096, 20).times(steps).flops == pytest.approx(0.52e12, rel=0.01)
    more = cost.full_vocabulary_step(n, 4096, 20, 128256).flops - cost.dense_step(n, 4096, 20, 128256).flops
    assert more * steps == pytest.approx(24.6e12, rel=0.01)


def test_the_lower_bound_is_the_slower_of_the_two():
    work = cost.Work(6e9, 1e9)
    assert cost.lower_bound(work, cost.Ceilings(1e9, 1e9)) == 6
    assert cost.lower_bound(work, cost.Ceilings(1e12, 1e8)) == 10
    assert work.times(2) == cost.Work(12e9, 2e9)


def test_decoding_reads_all_weights_once():
    base = cost.decode_step(LARGE)
    assert base.bytes == pytest.approx(15.0e9, rel=0.01)  # 8.03e9 parameters without the input embeddings, 2 bytes each
    assert cost.decode_step(LARGE, heads=1).bytes - base.bytes == 4 * 2_647_040
    assert cost.decode_step(LARGE, batch=2, context=10).bytes - base.bytes == 2 * 2 * 10 * 65_536


def test_heads_stop_being_free_where_their_bytes_are_the_bases():
    for shape in (LARGE, SHAPES["llama-3.1-70b"]):
        heads = cost.heads_within(shape, 0.05)
        added = [cost.decode_step(shape, heads=n).bytes / cost.decode_step(shape).bytes - 1 for n in (heads, heads + 1)]
        assert added[0] <= 0.05 < added[1]
    assert 60 < cost.heads_within(LARGE, 0.05) < 80 and 1400 < cost.heads_within(LARGE, 1) < 1450


def test_nf4_fits_ten_gigabytes_and_retain_features_two():
    assert cost.nf4_bytes(64 * 256) == 64 * 256 / 2 + 256 + 4
    parts = cost.nf4_memory(LARGE)
    weights = parts["weights, NF4"] + parts["embeddings, output layer, norms, bf16"]
    assert weights == pytest.approx(5.7e9, rel=0.01)
    assert weights < cost.peak_of(parts) < 10e9
    assert cost.peak_of(parts) < cost.peak_of(cost.nf4_memory(LARGE, batch_tokens=65536)) and sum(parts.values()) > 0
    assert cost.feature_bytes(3800 * 50, 4096) < 2e9


def test_a_training_step_is_three_passes():
    once = cost.forward(TINY, [10, 12], logits=8)
    assert cost.training_step(TINY, [10, 12], 8) == cost.Work(3 * once.flops, 7 * once.bytes)
