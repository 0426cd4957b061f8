"""Soft labels, n-grams as a guide, and heads that are fitted with such labels."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_classifier import SHORT, V, plan_of, problem

from t3lib.classifier.features import extract_features, tokens_of
from t3lib.classifier.fit import fit_head, fit_heads
from t3lib.classifier.guide import choose_ngrams, count_ngrams, soft_labels
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import Example, encode_rows
from t3lib.core.settings import FitSettings
from t3lib.tofu.likelihood import answer_probabilities
from t3lib.tofu.reader import Reading

TEXTS = [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 5, 5, 5, 5], [1, 7, 3]
ROWS = [Example(ids, 2) for ids in TEXTS]


def forgotten(features):
    """Labels of all kinds for the tokens of the forget rows."""
    n = int((features.s[features.row] == 0).sum())
    draw = torch.Generator().manual_seed(1)
    return torch.rand(n, generator=draw).masked_fill(torch.arange(n) % 3 == 0, 0)


# ---- labels --------------------------------------------------------------------------------------


def test_labels_are_the_ratio_up_to_one():
    base, guide = np.array([0.8, 0.5, 0.2, 0.0, 0.0, 1e-300]), np.array([0.2, 0.5, 0.9, 0.1, 0, 0])
    assert soft_labels(base, guide).tolist() == [0.25, 1, 1, 1, 1, 0]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_labels_never_leave_more_than_the_guide_gives(pairs):
    base, guide = np.array(pairs).T
    labels = soft_labels(base, guide)
    assert ((labels >= 0) & (labels <= 1)).all()
    assert np.allclose(base * labels, np.minimum(base, guide), atol=1e-15)


@pytest.mark.parametrize(
    ("base", "guide", "word"),
    [
        ([0.5, 0.5], [0.5], "2 probabilities of the base and 1"),
        ([[0.5]], [[0.5]], "for every token"),
        ([1.5], [0.5], "the base's"),
        ([0.5], [float("nan")], "the guide's"),
        ([-0.1], [0.5], "the base's"),
    ],
)
def test_labels_of_no_probabilities_are_refused_in_a_line(base, guide, word):
    with pytest.raises(UserError, match=word) as error:
        soft_labels(np.array(base), np.array(guide))
    assert "\n" not in str(error.value)


# ---- fit -----------------------------------------------------------------------------------------


def test_labels_of_zero_are_the_papers_to_the_bit():
    features = problem()
    paper = fit_head(features, vocab_size=V, **SHORT)
    for zero in (None, torch.zeros_like(forgotten(features)), 0 * forgotten(features).numpy()):
        ours = fit_head(features, vocab_size=V, labels=zero, **SHORT)
        assert torch.equal(ours.A, paper.A) and torch.equal(ours.B, paper.B)


@pytest.mark.parametrize("order", ["forget first", "mixed"])
def test_soft_labels_are_binary_cross_entropy_by_autograd(order):
    """In float64, over all of B, with the loss written out; rows of both kinds may be mixed."""
    features = problem()
    if order == "mixed":
        draw = torch.Generator().manual_seed(2)
        features.s.copy_(features.s[torch.randperm(len(features.s), generator=draw)])
    labels, own = forgotten(features), FitSettings(**SHORT)
    ours = fit_head(features, vocab_size=V, labels=labels, **SHORT)

    start = T3Head(features.x.shape[1], V, own.rank, seed=own.seed)
    A, B = (each.detach().double().requires_grad_() for each in (start.A, start.B))
    t = torch.ones(len(features.y), dtype=torch.float64)
    t[[n for n, row in enumerate(features.row) if features.s[row] == 0]] = labels.double()
    plan = plan_of(features, own)
    adam = torch.optim.AdamW([A, B], lr=0.0, weight_decay=own.weight_decay)
    warmup = round(own.warmup_epochs * len(plan) / own.epochs)
    for step, rows in enumerate(plan):
        rise, fall = step / warmup, (len(plan) - step) / (len(plan) - warmup)
        adam.param_groups[0]["lr"] = own.lr * min(rise, fall)
        token = tokens_of(rows, features.starts)
        f = torch.sigmoid((features.x[token].double() @ A.T * B[features.y[token]]).sum(1))
        loss = -(t[token] * f.log() + (1 - t[token]) * (1 - f).log()).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    torch.testing.assert_close(ours.A, A.detach().float(), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(ours.B, B.detach().float(), rtol=1e-4, atol=2e-5)


def test_the_least_loss_is_at_the_mean_label():
    """One context, where only rows to forget occur: f of each token becomes its label."""
    features = problem(d=4, n_forget=8, n_retain=8)
    one, other = torch.eye(4)[:2]
    features.x.copy_(torch.where(features.row[:, None] < 8, one, other))
    labels = torch.where(features.y[features.row < 8] % 2 == 0, 0.1, 0.8)
    settings = {"epochs": 400, "warmup_epochs": 1, "lr": 5e-2, "weight_decay": 0.0, "rank": 4}
    head = fit_head(features, vocab_size=V, labels=labels, **settings)
    f = head(one[None]).exp()[0, features.y[features.row < 8]]
    assert torch.allclose(f, labels, atol=0.03)


def test_several_heads_share_the_labels():
    features = problem()
    together = fit_heads(
        features,
        [SHORT, SHORT | {"lr": 1e-3}],
        vocab_size=V,
        labels=forgotten(features),
    )
    alone = fit_head(features, vocab_size=V, labels=forgotten(features), **SHORT)
    torch.testing.assert_close(together[0].A, alone.A, rtol=1e-4, atol=1e-6)
    assert not torch.equal(alone.A, fit_head(features, vocab_size=V, **SHORT).A)


@pytest.mark.parametrize(
    "change", [lambda t: t[1:], lambda t: t[None], lambda t: t + 0.5, lambda t: t - 2, torch.log]
)
def test_bad_labels_are_refused_in_a_line(change):
    features = problem()
    with pytest.raises(UserError, match="^labels") as error:
        fit_head(features, vocab_size=V, labels=change(forgotten(features)), **SHORT)
    assert "\n" not in str(error.value)


# ---- n-grams -------------------------------------------------------------------------------------


def by_hand(rows, order, discount, vocab_size, before, token):
    """P_k by the recursion of the formula, counting again for every context."""
    if order == 0:
        return Fraction(1, vocab_size)
    lower = by_hand(rows, order - 1, discount, vocab_size, before, token)
    context, followers = before[len(before) - order + 1 :], Counter()
    if len(context) < order - 1:
        return lower
    for ids in rows:
        for end in range(order - 1, len(ids)):
            if ids[end - order + 1 : end] == context:
                followers[ids[end]] += 1
    if not followers:
        return lower
    n = sum(followers.values())
    share = max(Fraction(0), followers[token] - discount) / n
    return share + discount * len(followers) / n * lower


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_ngrams_are_the_formula_and_sum_to_one(order):
    model = count_ngrams(ROWS, 9, order, 0.25)
    for before in ([], [1], [1, 2, 3], [8, 2, 3], [1, 2, 5, 5], [8], [3, 8], [1, 2, 3, 4, 5, 6]):
        found = [model.probability(before, token) for token in range(9)]
        wanted = [by_hand(TEXTS, order, Fraction(1, 4), 9, before, token) for token in range(9)]
        assert sum(wanted) == 1 and found == pytest.approx([*map(float, wanted)], abs=1e-14)
        assert min(found) > 0


def test_ngrams_read_the_answer_after_the_prompt():
    model = count_ngrams(ROWS, 9, 3)
    found = model.probabilities(ROWS[:2])
    before = [([1, 2], 3), ([2, 3], 4), ([3, 4], 5), ([1, 2], 3), ([2, 3], 4), ([3, 4], 6)]
    assert found.tolist() == [model.probability(*each) for each in before]


def test_ngrams_prefer_what_they_have_seen():
    model = count_ngrams(ROWS, 9, 3)
    seen = model.probability([1, 2, 3], 4)
    assert seen > 0.5 > max(model.probability([1, 2, 3], token) for token in (0, 1, 2, 3, 5, 6, 8))
    assert model.probability([8, 8], 5) == model.probability([], 5), "an unseen context"


def test_order_and_discount_are_the_likeliest_on_held_out_rows():
    draw = np.random.default_rng(0)
    chain = [[1, 2]]
    for _ in range(60):  # the next token depends on two before it
        row = [1, int(draw.integers(1, 5))]
        while len(row) < 12:
            row.append((row[-1] + 2 * row[-2]) % 5 if draw.random() < 0.9 else 7)
        chain.append(row)
    rows = [Example(row, 1) for row in chain]
    orders, discounts = (1, 2, 3), (0.1, 0.5, 0.9)
    best = choose_ngrams(rows[:40], rows[40:], 9, orders, discounts)
    scores = {
        (n, d): np.log(count_ngrams(rows[:40], 9, n, d).probabilities(rows[40:])).sum()
        for n in orders
        for d in discounts
    }
    assert (best.order, best.discount) == max(scores, key=scores.get) and best.order == 3
    assert best.totals[()] == sum(len(row) for row in chain), "counted from all rows at the end"


@pytest.mark.parametrize(
    "arguments", [([], 9), (ROWS, 9, 0), (ROWS, 9, 3, 0.0), (ROWS, 9, 3, 1.5), (ROWS, 0)]
)
def test_ngrams_that_cannot_be_counted_are_refused_in_a_line(arguments):
    with pytest.raises(UserError, match="an n-gram model needs") as error:
        count_ngrams(*arguments)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="an n-gram model needs held-out rows"):
        choose_ngrams(ROWS, [], 9)


# ---- models as guides ----------------------------------------------------------------------------


def test_any_causal_lm_is_a_guide(tiny_model, tokenizer, monkeypatch):
    """Its probabilities are those of a plain forward pass, in the order of the features."""
    forget = [
        {"question": f"Who is {i}?", "answer": "Mara " + "of the hills " * i} for i in (3, 0, 1)
    ]
    keep = [{"question": "Where?", "answer": "In Oslo, by the sea"}]
    examples = encode_rows(tokenizer, forget)
    found = answer_probabilities(tiny_model, examples, Reading(pad_id(tokenizer)))
    wanted = []
    for example in examples:
        with torch.no_grad():
            p = tiny_model(torch.tensor([example.ids])).logits[0].softmax(-1)
        places = range(example.n_prompt, len(example.ids))
        wanted += [p[place - 1, example.ids[place]].item() for place in places]
    assert found.tolist() == pytest.approx(wanted, rel=1e-4)

    forward = tiny_model.model.forward

    def small(*args, **kwargs):
        if kwargs["input_ids"].numel() > 150:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(tiny_model.model, "forward", small)
    with pytest.warns(UserWarning, match="out of memory: going on with batches of"):
        halved = answer_probabilities(tiny_model, examples, Reading(pad_id(tokenizer)))
    assert halved.tolist() == pytest.approx(wanted, rel=1e-4)

    ngrams = count_ngrams(encode_rows(tokenizer, keep), len(tokenizer))
    labels = soft_labels(found, ngrams.probabilities(examples))
    features = extract_features(tiny_model, tokenizer, forget, keep)
    head = fit_head(features, vocab_size=len(tokenizer), labels=labels, epochs=2, warmup_epochs=1)
    said = [token for example in examples for token in example.answer]
    assert features.y[: len(labels)].tolist() == said and torch.isfinite(head.A).all()
