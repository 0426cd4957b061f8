"""Random Llamas of named shapes."""

import torch

from t3lib.bench.model import config_of_shape, random_model


def test_parameter_count_of_the_paper_on_the_meta_device():
    """Table 2: 8.03e9 parameters of full fine-tuning."""
    model = random_model("llama-3.1-8b", device="meta")
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248
    assert config_of_shape("llama-3.1-8b").vocab_size == 128_256


def test_random_model_is_reproducible_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    a, b = random_model("tiny", seed=3), random_model("tiny", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.lm_head.weight, random_model("tiny", seed=4).lm_head.weight)
