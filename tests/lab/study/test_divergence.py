"""Divergence Decoding in every decoding mode against a float64 reference without a cache, and its
formula by hand.
"""

import copy
import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from families import family
from modes import LIMIT, MODES
from reference import Oracle, in_float64, without_cache

from t3lab.study.divergence import DivergenceForCausalLM, Pair, steer
from t3lib.core.errors import UserError

DIALS = {
    "published": {"alpha": 1.5},
    "tempered": {"alpha": 2.0, "temperature": 1.75},
    "bounded": {"alpha": 2.0, "temperature": 1.5, "bounded": True},
}


@dataclass(frozen=True, eq=False)
class Product(Oracle):
    """p^(1/T) g(q, r)^α, all in float64."""

    models: tuple[Any, Any, Any]
    alpha: float
    temperature: float = 1.0
    bounded: bool = False

    @torch.no_grad()
    def logp(self, ids, mask, positions=None):
        p, q, r = (without_cache(one, ids, mask, positions)[0].softmax(-1) for one in self.models)
        ratio = q / (q + r) if self.bounded else q / r
        weight = p ** (1 / self.temperature) * ratio**self.alpha
        return torch.log(weight / weight.sum(-1, keepdim=True))


def parts():
    """Base, q and r. The small ones are of another family."""
    return family("llama"), family("qwen3", seed=3), family("qwen3", seed=4)


@functools.cache
def oracle(name):
    return Product(tuple(map(in_float64, parts())), **DIALS[name])


def limit(name):
    """The limit of one model: of q and of r each, rounding counts alpha times. One processor's
    float32 was 2.9e-5 away where another's was below 2e-5.
    """
    return LIMIT * (1 + 2 * DIALS[name]["alpha"])


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("mode", MODES)
def test_exact(mode, padding):
    model = DivergenceForCausalLM(*parts(), **DIALS["tempered"])
    assert MODES[mode](model, oracle("tempered"), padding) <= limit("tempered")


@pytest.mark.parametrize("name", ["published", "bounded"])
@pytest.mark.parametrize("mode", ["greedy", "teacher-forced labels"])
def test_exact_at_other_dials(name, mode):
    model = DivergenceForCausalLM(*parts(), **DIALS[name])
    assert MODES[mode](model, oracle(name), "left") <= limit(name)


@pytest.mark.parametrize("name", DIALS)
def test_the_limit_is_far_below_a_slip(name):
    """An alpha that is wrong by a hundredth."""
    slip = DIALS[name] | {"alpha": 1.01 * DIALS[name]["alpha"]}
    model = DivergenceForCausalLM(*parts(), **slip)
    assert MODES["greedy"](model, oracle(name), "left") > 10 * limit(name)


def test_the_tokens_of_the_smallest_ratios_get_the_kth_logit():
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    against = torch.tensor([[9.0, 0.0, 8.0, 1.0]])  # log r - log q: tokens 0 and 2 are r's
    assert steer(logits, against, rank=2).tolist() == [[4.0, 4.0, 4.0, 2.0]]
    assert steer(logits, against, rank=1).tolist() == [[5.0, 4.0, 3.0, 2.0]]
    assert steer(logits, against, alpha=0).tolist() == logits.tolist()


def test_two_shapes_are_refused():
    longer = copy.deepcopy(family("llama"))
    longer.config.num_hidden_layers += 1
    with pytest.raises(UserError, match="the same shape"):
        Pair(family("llama"), longer)
