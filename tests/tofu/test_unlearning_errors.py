"""Forget Error, leak, total variation and Retain Error beside a retrained model."""

import math

import pytest
import torch
from families import DEVICE
from reference import Reference
from scipy.stats import norm
from transformers import LlamaConfig, LlamaForCausalLM

from t3lib.classifier.head import NEVER, T3Head
from t3lib.core.errors import UserError
from t3lib.core.rows import Example
from t3lib.tofu.reader import Reading
from t3lib.tofu.unlearning_errors import (
    errors,
    forget_error,
    leak,
    retain_error,
    summary,
    total_variation,
)

V = 50
READING = Reading(pad_id=0)


def llama(seed: int, vocab_size: int = V) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,  # so that probabilities differ
    )
    return LlamaForCausalLM(config).to(DEVICE).eval()


@pytest.fixture(scope="module")
def models():
    return llama(0), {"1": llama(1), "2": llama(2)}


@pytest.fixture(scope="module")
def answers():
    draw = torch.Generator().manual_seed(0)

    def example(prompt: int, answer: int) -> Example:
        return Example(torch.randint(1, V, (prompt + answer,), generator=draw).tolist(), prompt)

    forget = [example(4, 6), example(7, 1), example(3, 9)]
    return {"forget": forget, "retain": [example(5, 4), example(2, 8)]}


def by_hand(logp: torch.Tensor, logp_ret: torch.Tensor, target: int) -> dict[str, float]:
    """The four numbers in one context, term by term in Python."""
    p, q = logp.exp().tolist(), logp_ret.exp().tolist()
    return {
        "forget_error": abs(q[target] - p[target]),
        "leak": p[target] - q[target] if p[target] > q[target] else 0.0,
        "total_variation": sum(abs(a - b) for a, b in zip(p, q)) / 2,
        "retain_error": sum(b * math.log(b / a) for a, b in zip(p, q)),
        "likeliest": float(max(range(len(p)), key=p.__getitem__) == target),
    }


@pytest.mark.parametrize(("gate", "tau"), [(1.0, 1.0), (0.5, 1.0), (0.5, 0.6)])
def test_every_number_is_that_of_a_pass_without_cache_in_float64(models, answers, gate, tau):
    base, retrained = models
    head = T3Head(16, V, rank=3, gate=gate, seed=1).to(DEVICE)
    tilts = [(None, 1.0), (head, 1.0), (head, 2.5)]
    found = errors(base, retrained, answers, READING, tilts, tau)

    for (its_head, T), of_tilt in zip(tilts, found):
        pairs = [] if its_head is None else [(head.A, head.B)]
        unlearned = Reference.of(base, pairs, T, gate=1.0 if its_head is None else gate)
        for name, model in retrained.items():
            judge = Reference.of(model, [], 1.0)
            for part, rows in answers.items():
                for number, row in enumerate(rows):
                    ids = torch.tensor([row.ids])
                    places = range(row.n_prompt - 1, len(row.ids) - 1)
                    logps = [each.logp(ids, torch.ones_like(ids))[0] for each in (unlearned, judge)]
                    logps = [(logp / tau).log_softmax(-1) for logp in logps]
                    each = [by_hand(*(logp[n] for logp in logps), row.ids[n + 1]) for n in places]
                    for measure, values in of_tilt[name][part].items():
                        if measure == "tokens":
                            assert values[number] == len(each)
                        else:
                            expected = sum(numbers[measure] for numbers in each) / len(each)
                            assert values[number] == pytest.approx(expected, abs=1e-5, rel=1e-4)


def test_the_gate_of_that_test_decides_both_ways(models, answers):
    """Otherwise a gate that is ignored, or that is always open, would pass."""
    base, retrained = models
    values = [
        summary(errors(base, retrained, answers, READING, [(head, 2.5)])[0]["1"])
        for head in (T3Head(16, V, rank=3, gate=gate, seed=1) for gate in (0.0, 0.5, 1.0))
    ]
    assert len({round(each["total_variation"], 6) for each in values}) == 3


def test_a_retrained_model_beside_itself_has_no_error(models, answers):
    _, retrained = models
    [found] = errors(retrained["1"], {"1": retrained["1"]}, answers, READING)
    means = summary(found["1"])
    assert {means.pop("recited"), means.pop("kept")} <= {0.0, 0.5, 1.0, 1 / 3, 2 / 3}
    assert means == pytest.approx(dict.fromkeys(means, 0.0), abs=1e-7) and len(means) == 4


def test_the_means_count_every_token_once(models, answers):
    [found] = errors(models[0], {"1": models[1]["1"]}, answers, READING)
    part = found["1"]["forget"]
    total = sum(n * value for n, value in zip(part["tokens"], part["leak"]))
    assert summary(found["1"])["leak"] == pytest.approx(total / sum(part["tokens"]))
    assert "retain_error" not in summary({"forget": part})


def test_an_answer_that_greedy_decoding_writes_is_recited(models):
    """The answer is what the model finds most probable, token by token."""
    base, retrained = models
    ids = [3, 7, 11]
    for _ in range(5):
        ids.append(int(base(torch.tensor([ids], device=DEVICE)).logits[0, -1].argmax()))
    rows = {"forget": [Example(ids, 3), Example([*ids[:-1], (ids[-1] + 1) % V], 3)]}
    [found] = errors(base, retrained, rows, READING)
    assert found["1"]["forget"]["likeliest"] == [1.0, 0.8]
    assert summary(found["1"])["recited"] == 0.5


def test_small_batches_change_nothing(models, answers):
    whole = errors(*models, answers, READING)
    apart = errors(*models, answers, Reading(0, batch_tokens=12))
    for name in models[1]:
        assert summary(apart[0][name]) == pytest.approx(summary(whole[0][name]), abs=1e-6)


def test_models_of_different_vocabularies_are_refused(models, answers):
    with pytest.raises(UserError, match="vocabularies"):
        errors(models[0], {"1": llama(1, V + 1)}, answers, READING)


def test_normal_distributions_have_their_known_values():
    """A fine grid of N(m, 1) against N(0, 1): KL is m²/2, total variation 2 Φ(|m| / 2) − 1."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)

    def logp(mean: float) -> torch.Tensor:
        return (-((z - mean) ** 2) / 2).log_softmax(-1)

    for mean in (0.0, 0.3, -2.0):
        assert retain_error(logp(mean), logp(0)) == pytest.approx(mean**2 / 2, abs=1e-9)
        distance = 2 * norm.cdf(abs(mean) / 2) - 1
        assert total_variation(logp(mean), logp(0)) == pytest.approx(distance, abs=1e-6)


def test_ids_without_a_token_are_not_missed_in_the_retain_error():
    """A padded vocabulary has ids that no text uses. The retrained model gives them a little."""
    logp = torch.randn(3, V, dtype=torch.float64).log_softmax(-1)
    logp_retrained = torch.randn(3, V, dtype=torch.float64).log_softmax(-1)
    some = torch.arange(V) < 40
    said = logp.where(some, NEVER).log_softmax(-1)
    expected = retain_error(said[:, :40], logp_retrained[:, :40].log_softmax(-1))
    for tau in (1.0, 0.6, 3.0):
        assert torch.allclose(retain_error(said.where(some, NEVER / tau), logp_retrained), expected)
    p = logp_retrained.exp()
    assert torch.equal(retain_error(logp, logp_retrained), (p * (logp_retrained - logp)).sum(-1)), (
        "the same to the last digit without such ids"
    )


def test_a_head_for_a_padded_vocabulary_has_a_finite_retain_error(models, answers):
    base, retrained = models
    head = T3Head(16, V, rank=3, seed=1).to(DEVICE)
    [plain] = errors(base, retrained, answers, READING, [(head, 2.5)])
    head.has_token = torch.arange(V, device=DEVICE) != 0  # no answer has the id 0
    [found] = errors(base, retrained, answers, READING, [(head, 2.5)])
    for name in retrained:
        before, after = summary(plain[name])["retain_error"], summary(found[name])["retain_error"]
        assert after == pytest.approx(before, rel=0.2) and after != before


def test_a_token_that_cannot_be_said():
    never = torch.tensor([0.0, -math.inf])
    even = torch.tensor([0.5, 0.5]).log()
    assert retain_error(even, never) == pytest.approx(math.log(2))  # 0 ln 0 counts nothing
    assert retain_error(never, even) == math.inf
    assert leak(never, even).tolist() == [0.5, 0.0]
    assert forget_error(never, even).tolist() == [0.5, 0.5]
