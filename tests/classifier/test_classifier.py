"""Head training on the active vocabulary against dense AdamW; the other rows in closed form."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from t3lib.classifier.features import Features, tokens_of
from t3lib.classifier.fit import (
    fit_head,
    fit_heads,
    learning_rates,
    plan_steps,
    step_loss,
    steps_per_epoch,
)
from t3lib.classifier.head import T3Head
from t3lib.core.errors import Diverged, UserError
from t3lib.core.settings import FitSettings

V = 304
ROUNDING = 3e-7  # five units in the last place of a float32 between 1/2 and 1
SHORT = {
    "epochs": 12,
    "warmup_epochs": 3,
    "lr": 5e-3,
    "batch_size": 5,
    "rank": 3,
    "weight_decay": 1e-2,
    "seed": 3,
}


def problem(d=32, vocab=V, n_forget=12, n_retain=20, seed=0, dtype=torch.float32):
    """Random features of rows of 3 to 8 tokens; the upper half of the vocabulary is never a
    target.
    """
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(3, 9, (n_forget + n_retain,), generator=draw)
    n = int(counts.sum())
    return Features(
        torch.randn(n, d, generator=draw).to(dtype),
        torch.randint(0, vocab // 2, (n,), generator=draw),
        torch.arange(len(counts)).repeat_interleave(counts),
        torch.cat([torch.zeros(n_forget), torch.ones(n_retain)]).long(),
    )


def plan_of(features, own):
    return plan_steps(
        features.s, epochs=own.epochs, batch_size=own.batch_size, epoch=own.epoch, seed=own.seed
    )


def fit_dense(features, vocab, **values):
    """The textbook: autograd through B[y], torch's optimiser over all of A and B. Returns the head
    and rows seen.
    """
    own = FitSettings(**values)
    head = T3Head(features.x.shape[1], vocab, own.rank, init_b=own.init_b, seed=own.seed)
    if own.decay == "adamw":
        optimiser = torch.optim.AdamW(
            [head.A, head.B], lr=0.0, weight_decay=own.weight_decay, fused=True
        )
    else:
        optimiser = torch.optim.Adam([head.A, head.B], lr=0.0, fused=True)
    plan, seen = plan_of(features, own), torch.zeros(vocab, dtype=torch.bool)
    per_epoch, s = len(plan) // own.epochs, features.s[features.row].float()
    for rows, lr in zip(
        plan, learning_rates(own.lr, round(own.warmup_epochs * per_epoch), len(plan))
    ):
        i = tokens_of(rows, features.starts)
        seen[features.y[i]] = True
        logit = (F.linear(features.x[i].float(), head.A) * F.embedding(features.y[i], head.B)).sum(
            1
        )
        loss = (
            F.binary_cross_entropy_with_logits(logit, s[i], reduction="none") * (1 / len(i))
        ).sum()
        if own.decay == "l2":
            loss = loss + own.weight_decay * (head.A.square().sum() + head.B.square().sum())
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = lr
        optimiser.step()
    return head, seen


@pytest.mark.parametrize("d", [32, 33])
@pytest.mark.parametrize("rank", [1, 3, 20])
@pytest.mark.parametrize("epoch", ["redrawn", "fixed"])
@pytest.mark.parametrize("init_b", ["kaiming", "zero"])
def test_compact_is_dense_adamw(d, rank, epoch, init_b):
    features, values = problem(d), SHORT | {"rank": rank, "epoch": epoch, "init_b": init_b}
    ours = fit_head(features, vocab_size=V, **values)
    dense, seen = fit_dense(features, V, **values)
    assert 0 < seen.sum() < V / 2 and not torch.equal(dense.A, T3Head(d, V, rank, seed=3).A)
    assert (ours.A - dense.A).abs().max() <= ROUNDING
    assert (ours.B[seen] - dense.B[seen]).abs().max() <= ROUNDING
    assert (ours.B[~seen] - dense.B[~seen]).abs().max() <= 36 * 2**-25, "one rounding a step, of 36"
    start = T3Head(d, V, rank, seed=3, init_b=init_b).B
    if init_b == "kaiming":
        assert (dense.B[~seen] - start[~seen]).abs().max() > 1e-4, (
            "decay moved them: the closed form had work to do"
        )


@pytest.mark.parametrize("weight_decay", [1e-2, 1e-4, 0.0])
def test_l2_in_the_loss(weight_decay):
    """Eq. 3's λ‖φ‖² through autograd; ours adds it in the optimiser, so the last bit may differ,
    the path may not.
    """
    features, values = problem(), SHORT | {"decay": "l2", "weight_decay": weight_decay}
    ours = fit_head(features, vocab_size=V, **values)
    dense, seen = fit_dense(features, V, **values)
    for name in ("A", "B"):
        assert (getattr(ours, name) - getattr(dense, name)).abs().max() <= 1e-5
    start = T3Head(32, V, 3, seed=3).B
    moved = (ours.B - start)[~seen].abs().max()
    assert moved > 0.05 if weight_decay else moved == 0, (
        "Adam divides by its own size: even a small λ shrinks B"
    )


def test_full_vocabulary_logits_give_the_same_gradient():
    """Eq. 3 as written: σ(B A x) over all of V, the target's entry, cross-entropy with s."""
    features = problem()
    draw = torch.Generator().manual_seed(0)
    A = torch.randn(4, 32, dtype=torch.float64, generator=draw).requires_grad_()
    B = (0.1 * torch.randn(V, 4, dtype=torch.float64, generator=draw)).requires_grad_()
    x, y, s = features.x.double(), features.y, features.s[features.row].double()
    f = torch.sigmoid(x @ A.T @ B.T).gather(1, y[:, None])[:, 0]
    (-(s * f.log() + (1 - s) * (1 - f).log())).mean().backward()
    wanted = A.grad.clone(), B.grad.clone()
    A.grad = B.grad = None
    step_loss(x, y, s, [A], [B]).backward()
    torch.testing.assert_close(A.grad, wanted[0])
    torch.testing.assert_close(B.grad, wanted[1])


def test_several_heads_at_once_are_each_alone():
    features = problem()
    grid = [
        {},
        {"lr": 1e-3},
        {"rank": 7, "decay": "l2"},
        {"weight_decay": 0.3, "warmup_epochs": 0},
        {"init_b": "zero"},
        {"seed": 4},
        {"seed": 4, "epoch": "fixed"},
        {"batch_size": 12, "epochs": 3},
    ]
    together = fit_heads(features, [SHORT | own for own in grid], vocab_size=V)
    for head, own in zip(together, grid):
        alone = fit_head(features, vocab_size=V, **SHORT | own)
        assert (head.A - alone.A).abs().max() < 2e-5 and (head.B - alone.B).abs().max() < 2e-5
        assert head.info == alone.info and head.config == alone.config
    firsts = [head.A[0, 0].item() for head in together]
    assert len(set(firsts)) == len(firsts), "no two settings gave one head"


def test_a_head_that_diverges_and_features_that_are_not_finite_are_two_errors():
    features, absurd = problem(), SHORT | {"lr": 1.0, "weight_decay": 1e6}
    with pytest.raises(Diverged, match="^the head diverged at lr 1 with weight_decay 1e.06$"):
        fit_head(features, vocab_size=V, **absurd)
    features.x[3, 1] = float("inf")
    with pytest.raises(UserError, match="x has values that are not finite") as stop:
        fit_head(features, vocab_size=V, **SHORT)
    assert not isinstance(stop.value, Diverged)


def test_bfloat16_features_train_in_float32():
    features = problem(dtype=torch.bfloat16)
    for epoch in ("redrawn", "fixed"):
        ours = fit_head(features, vocab_size=V, **SHORT | {"epoch": epoch})
        widened = Features(features.x.float(), features.y, features.row, features.s)
        assert ours.A.dtype == torch.float32
        assert torch.equal(ours.A, fit_head(widened, vocab_size=V, **SHORT | {"epoch": epoch}).A)


def test_deterministic_and_dependent_on_the_seed():
    features = problem()
    first, second = (fit_head(features, vocab_size=V, **SHORT) for _ in range(2))
    assert torch.equal(first.A, second.A) and torch.equal(first.B, second.B)
    assert not torch.equal(first.A, fit_head(features, vocab_size=V, **SHORT | {"seed": 5}).A)


def test_it_learns_and_leaves_a_zero_b_neutral_elsewhere():
    """Separable features: f goes to 1 on retain tokens and to 0 on forget tokens; unseen tokens
    keep f = 1/2.
    """
    features = problem()
    s = features.s[features.row].float()
    features.x[:, 0] = 4 * (2 * s - 1)
    head = fit_head(
        features,
        vocab_size=V,
        epochs=60,
        warmup_epochs=5,
        lr=2e-2,
        rank=4,
        batch_size=4,
        init_b="zero",
    )
    f = head.logf(head.project(features.x)).exp().gather(1, features.y[:, None])[:, 0]
    assert f[s == 1].mean() > 0.8 and f[s == 0].mean() < 0.2
    assert not head.B[V // 2 :].any(), "B = 0: σ(0) = 1/2 for every token that is never a target"
    assert not head.training


# ---- the plan -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.integers(1, 30), st.integers(1, 50), st.integers(1, 40), st.integers(1, 4), st.integers(0, 5)
)
def test_every_epoch_pairs_every_forget_row_once(n_forget, n_retain, batch_size, epochs, seed):
    s = torch.tensor([0] * n_forget + [1] * n_retain)
    steps = plan_steps(s, epochs=epochs, batch_size=batch_size, epoch="redrawn", seed=seed)
    per_epoch = steps_per_epoch(n_forget, batch_size)
    assert len(steps) == epochs * per_epoch
    for start in range(0, len(steps), per_epoch):
        forget = [rows[: len(rows) // 2] for rows in steps[start : start + per_epoch]]
        retain = [rows[len(rows) // 2 :] for rows in steps[start : start + per_epoch]]
        assert sorted(np.concatenate(forget)) == list(range(n_forget))
        partners = np.concatenate(retain)
        assert (partners >= n_forget).all() and len(partners) == n_forget
        assert max(map(len, forget)) <= batch_size
    fixed = plan_steps(s, epochs=epochs, batch_size=batch_size, epoch="fixed", seed=seed)
    assert len(fixed) == len(steps)
    for a, b in zip(fixed, fixed[per_epoch:]):
        assert np.array_equal(a, b)


def test_redrawn_partners_are_redrawn_and_steps_are_the_papers():
    s = torch.tensor([0] * 200 + [1] * 3800)
    steps = plan_steps(s, epochs=2, batch_size=32, epoch="redrawn", seed=0)
    first, second = (set(np.concatenate(steps[i : i + 7])[200:]) for i in (0, 7))
    assert (
        first != second and min(len(first), len(second)) > 180
    )  # of 200 draws from 3800 about 195 differ
    assert (steps_per_epoch(200, 32), steps_per_epoch(400, 32)) == (7, 13)


def test_learning_rates_are_the_linear_schedule():
    rates = learning_rates(2.0, 4, 10)
    assert rates == [0.0, 0.5, 1.0, 1.5, 2.0, *(2 * (10 - t) / 6 for t in range(5, 10))]
    assert learning_rates(1.0, 0, 2) == [1.0, 0.5] and learning_rates(1.0, 2, 2) == [0.0, 0.5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_gives_the_heads_of_a_cpu():
    features = problem()
    ours = [fit_head(features, vocab_size=V, device=name, **SHORT) for name in ("cpu", "cuda")]
    torch.testing.assert_close(ours[0].A, ours[1].A, atol=2e-4, rtol=0)


# ---- mistakes -----------------------------------------------------------------------------------


def test_population_prior_takes_gamma_from_the_rows():
    head = fit_head(problem(), vocab_size=V, **SHORT | {"prior": "population"})
    assert head.gamma == 12 / 32
