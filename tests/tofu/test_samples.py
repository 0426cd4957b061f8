"""The sampler draws from the model's own distribution, whatever its samples share on the way."""

import copy
from collections import Counter
from itertools import combinations

import pytest
import torch

from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import samples
from t3lib.tofu.reader import Reader, Reading
from t3lib.tofu.samples import Sampler, draw, sample_answers, sample_tilts, sample_together
from t3lib.tofu.writing import eos_ids, greedy

MANY = 3000


@pytest.fixture(scope="session")
def peaked(tiny_model):
    """The tiny model with logits so far apart that a few tokens hold the probability."""
    model = copy.deepcopy(tiny_model)
    model.get_output_embeddings().weight.data *= 60
    return model


def test_draws_follow_the_softmax_of_their_own_state():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0], [3.0, -torch.inf, 0.0, -torch.inf]])
    state = torch.tensor([0, 1, 0]).repeat(20_000)
    token = draw(logits, state, 1.0, torch.rand(60_000, dtype=torch.float64))
    for number, p in enumerate(logits.softmax(-1)):
        share = torch.bincount(token[state == number], minlength=4) / (state == number).sum()
        assert share.numpy() == pytest.approx(p.numpy(), abs=0.01)
        assert (share[p == 0] == 0).all(), "a token of probability 0 was drawn"


@pytest.mark.parametrize("sorted_first", [2, 128])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_a_nucleus_is_the_smallest_likeliest_set_of_all(top_p, sorted_first, monkeypatch):
    """Every set of tokens is tried; within the best one the shares are those of the softmax. Each
    state has its own. All tokens are sorted only where the likeliest are not enough.
    """
    monkeypatch.setattr(samples, "NUCLEUS", sorted_first)
    logits = 2 * torch.randn(3, 7, generator=torch.Generator().manual_seed(7))
    state = torch.arange(3).repeat(20_000)
    token = draw(logits, state, top_p, torch.rand(60_000, dtype=torch.float64))
    for number, p in enumerate(logits.softmax(-1).tolist()):
        sets = [
            s
            for size in range(1, 8)
            for s in combinations(range(7), size)
            if sum(p[y] for y in s) >= top_p
        ]
        nucleus = max(sets or [range(7)], key=lambda s: (-len(s), sum(p[y] for y in s)))
        total = sum(p[y] for y in nucleus)
        share = torch.bincount(token[state == number], minlength=7) / 20_000
        expected = [p[y] / total if y in nucleus else 0.0 for y in range(7)]
        assert share.tolist() == pytest.approx(expected, abs=0.012)
        assert all(share[y] == 0 for y in range(7) if y not in nucleus)


def test_a_nucleus_holds_the_likeliest_token_at_least():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    state, uniform = torch.arange(2).repeat(50), torch.rand(100, dtype=torch.float64)
    for top_p in (0.0, 1e-60):
        assert draw(logits, state, top_p, uniform).tolist() == [1, 0] * 50


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_damaged_model_is_one_line(tiny_model, tokenizer, tau):
    model = copy.deepcopy(tiny_model)
    model.get_output_embeddings().weight.data[7] = torch.nan
    options = {"seed": 0, "max_new_tokens": 2, "tau": tau}
    with pytest.raises(UserError, match="logits hold NaN or infinity .*lm_head.weight"):
        sample_answers(model, tokenizer, [tokenizer("Who?")["input_ids"]], 2, **options)


def test_an_answer_without_room_is_empty(tiny_model, tokenizer):
    """As one of `greedy` is."""
    prompts = [tokenizer(text)["input_ids"] for text in ("Who?", "Where?")]
    assert greedy(tiny_model, prompts, Reading(pad_id(tokenizer)), max_new_tokens=0) == [[[], []]]
    options = {"seed": [1, 2], "max_new_tokens": 0}
    assert sample_answers(tiny_model, tokenizer, prompts, 2, **options) == [["", ""]] * 2
    options["max_new_tokens"] = [0, 5]
    [without, long] = sample_answers(tiny_model, tokenizer, prompts, 2, **options)
    assert without == ["", ""] and all(long)
    alone = {"seed": [2], "max_new_tokens": 5}
    assert long == sample_answers(tiny_model, tokenizer, prompts[1:], 2, **alone)[0]


@pytest.mark.parametrize("tilted", [False, True])
def test_pairs_of_tokens_are_drawn_as_likely_as_the_model_says(peaked, tokenizer, tilted):
    """The second token follows the first one, though samples share passes and the batch is
    padded.
    """
    model = peaked
    if tilted:
        torch.manual_seed(1)
        model = T3ForCausalLM(
            peaked, T3Head(32, len(tokenizer), 3, temperature=2.0, init_b="kaiming"), 2.0
        )

    def best(ids):
        """The likeliest next token of a prompt, and its probability."""
        with torch.no_grad():
            p, token = model(torch.tensor([ids])).logits[0, -1].softmax(-1).max(-1)
        return int(token), float(p)

    # Of prompts of different lengths two whose likeliest tokens can be read: white space is
    # stripped, and half a character is no text.
    likeliest = {}
    for text in ("Who" + " is" * (n % 7) + chr(97 + n % 26) for n in range(200)):
        prompt = tokenizer(text)["input_ids"]
        first, p = best(prompt)
        second, p_next = best([*prompt, first])
        pair = tokenizer.decode([first]), tokenizer.decode([second])
        if "".join(pair).isalnum() and min(map(len, pair)) == 1 and min(p, p_next) > 0.1:
            likeliest[len(prompt)] = prompt, pair, p, p_next
    prompts, pairs, *shares = zip(*[*likeliest.values()][:2], strict=True)
    assert len(prompts) == 2
    options = {"seed": 0, "max_new_tokens": 2}
    answers = sample_answers(model, tokenizer, prompts, MANY, **options)
    for texts, (token, following), p, p_next in zip(answers, pairs, *shares, strict=True):
        begun = [text for text in texts if text.startswith(token)]
        assert len(begun) / MANY == pytest.approx(p, abs=0.04)
        share = sum(text == token + following for text in begun) / len(begun)
        assert share == pytest.approx(p_next, abs=0.06)


@pytest.mark.parametrize("tau", [0.3, 0.7, 1.2])
def test_a_sampler_draws_from_softmax_of_logits_over_tau(tiny_model, tokenizer, tau):
    """Texts of one token, all of them: tokens that give one text are one outcome."""
    model = copy.deepcopy(tiny_model)
    model.get_output_embeddings().weight.data *= 15
    prompt = tokenizer("Who?")["input_ids"]
    options = {"seed": 0, "max_new_tokens": 1, "tau": tau}
    [texts] = sample_answers(model, tokenizer, [prompt], MANY, **options)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1]
    every = [tokenizer.decode([n], skip_special_tokens=True).strip() for n in range(len(logits))]

    def apart(tau):
        """Total variation between the drawn texts and softmax(logits / tau)."""
        left = Counter({text: count / MANY for text, count in Counter(texts).items()})
        for text, p in zip(every, (logits / tau).softmax(-1).tolist()):
            left[text] -= p
        return sum(map(abs, left.values())) / 2

    others = [apart(factor * tau) for factor in (0.5, 2)]
    assert apart(tau) < 0.1 and min(others) > 1.5 * apart(tau), (apart(tau), others)


def test_equal_seeds_equal_answers_and_the_callers_random_state_is_left_alone(peaked, tokenizer):
    prompts = [tokenizer("Who?")["input_ids"]]
    before = torch.get_rng_state()
    first, again, other = (
        sample_answers(peaked, tokenizer, prompts, 8, seed=seed, max_new_tokens=room)
        for seed, room in ((0, 4), (0, [4]), (1, 4))
    )
    assert first == again != other and len(first[0]) == 8
    assert torch.equal(torch.get_rng_state(), before)
    assert pad_id(tokenizer) is not None


def test_a_seed_a_prompt_makes_its_answers_independent_of_the_others(peaked, tokenizer):
    prompts = [tokenizer(text)["input_ids"] for text in ("Who?", "Where was she born?", "Why?")]
    how = {"max_new_tokens": 6}
    together = sample_answers(peaked, tokenizer, prompts, 8, seed=[5, 6, 7], **how)
    alone = sample_answers(peaked, tokenizer, prompts[2:], 8, seed=[7], **how)
    assert together[2:] == alone and len(set(alone[0])) > 1
    shared = sample_answers(peaked, tokenizer, prompts, 8, seed=7, **how)
    assert shared[2:] != sample_answers(peaked, tokenizer, prompts[2:], 8, seed=7, **how)


@pytest.mark.parametrize("seed", [[5, 6, 7], 5])
def test_tilts_share_passes_and_draw_what_each_draws_alone(peaked, tokenizer, monkeypatch, seed):
    """Of a base, the base at another T, two heads and a gated one; a head that does nothing says
    what the base says, and costs no pass.
    """
    torch.manual_seed(1)
    one, two, gated = (T3Head(32, len(tokenizer), 3, init_b="kaiming") for _ in range(3))
    gated.gate, nothing = 0.5, T3Head(32, len(tokenizer), 2)
    nothing.B.data.zero_()
    tilts = [(None, 1.0), (one, 2.0), (nothing, 1.0), (None, 1.5), (two, 1.0), (gated, 3.0)]
    prompts = [tokenizer(text)["input_ids"] for text in ("Who?", "Where was she born?", "Why?")]
    how = {"seed": seed, "max_new_tokens": [6, 4, 5], "top_p": 0.95}
    found = sample_tilts(peaked, tokenizer, prompts, 8, tilts, **how)
    for (head, T), texts in zip(tilts, found):
        alone = T3ForCausalLM(peaked, head or nothing, T)
        assert texts == sample_answers(alone, tokenizer, prompts, 8, **how)
    assert found[0] == found[2] != found[1] != found[4]

    def states(*tilts):
        read, call = [], Reader._call

        def counted(reader, ids, *more, **options):
            read.append(len(ids))
            return call(reader, ids, *more, **options)

        with monkeypatch.context() as patched:
            patched.setattr(Reader, "_call", counted)
            sample_tilts(peaked, tokenizer, prompts, 8, tilts, **how)
        return sum(read)

    assert (states(tilts[0], tilts[2]) == states(tilts[0])) == (seed != 5)


def test_samplers_share_passes_and_draw_what_each_draws_alone(peaked, tokenizer, monkeypatch):
    """The greedy answer is one of them."""
    torch.manual_seed(1)
    tilts = [(None, 1.0), (T3Head(32, len(tokenizer), 3, init_b="kaiming"), 2.0)]
    prompts = [tokenizer(text)["input_ids"] for text in ("Who?", "Where was she born?", "Why?")]
    samplers, room = [Sampler(1, 0.0), Sampler(4, 0.6, 0.9), Sampler(3)], [6, 4, 5]
    read, call = [], Reader._call

    def counted(reader, ids, *more, **options):
        read.append(len(ids))
        return call(reader, ids, *more, **options)

    monkeypatch.setattr(Reader, "_call", counted)
    found = sample_together(peaked, tokenizer, prompts, samplers, tilts, 5, room)
    states, start = sum(read), 1
    for count, tau, top_p in samplers[1:]:
        how = {"seed": Sampler(count, tau, top_p).seeds(5, prompts), "max_new_tokens": room}
        alone = sample_tilts(peaked, tokenizer, prompts, count, tilts, **how, tau=tau, top_p=top_p)
        assert [[texts[start : start + count] for texts in of] for of in found] == alone
        start += count
    reading = Reading(pad_id(tokenizer), eos_ids(peaked, tokenizer))
    for ids, texts in zip(greedy(peaked, prompts, reading, tilts, max_new_tokens=room), found):
        decoded = [tokenizer.decode(each, skip_special_tokens=True).strip() for each in ids]
        assert decoded == [each[0] for each in texts]
    assert 2 * states < sum(read), "apart they read more"
