"""Each loss against three lines of numpy, against the reference implementation's figures, and its
invariances.
"""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import log_softmax, logsumexp, softmax
from torch import tensor

from t3lib.baselines import losses as L
from t3lib.core.errors import UserError

RNG = np.random.default_rng(0)
B, S, V, D = 3, 7, 120, 4  # V > 100: the reference indexes the vocabulary with the label -100
ANSWER = np.array([[0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0]], bool)
N = ANSWER.sum(1)
LOGP = -RNG.gamma(1.0, 1.0, (B, S))
LOGIT, LOGIT_REF = RNG.normal(size=(2, B, S, V))
TARGETS = np.where(ANSWER, RNG.integers(0, V, (B, S)), 0)
HIDDEN, HIDDEN_REF = RNG.normal(size=(2, B, S, D))
CONTROL = RNG.random(D)
QUESTION = np.cumsum(ANSWER, 1) == 0
REF, IDK, IDK_REF = -RNG.gamma(5.0, 1.0, (3, B))
SEQUENCE = (LOGP * ANSWER).sum(1)
TOKENS = N.sum() / B


def softplus(x):
    return np.logaddexp(0, x)


def undial_numpy(paper):
    index = TARGETS if paper else np.where(ANSWER, TARGETS, V - 100)
    p = softmax(LOGIT_REF - 3.0 * np.eye(V)[index], axis=-1)
    ce = -(p * log_softmax(LOGIT, axis=-1)).sum(-1)
    return (ce * ANSWER).sum(1) if paper else ce.mean(1)


def satimp_numpy(paper):
    logp = SEQUENCE if paper else LOGP
    weighted = np.exp(2 * logp) * (1 - np.exp(logp)) ** 0.5 * logp
    return weighted if paper else (weighted * ANSWER).sum(1) / TOKENS


def rmu_numpy(goal, paper):
    squares = (HIDDEN - goal) ** 2
    return (
        (squares.sum(-1) * QUESTION).sum(1)
        if paper
        else (squares.mean(-1) * ANSWER).sum(1) * (1 / N).mean()
    )


def uniform_numpy(paper):
    kl = (1 / V * (np.log(1 / V) - log_softmax(LOGIT, axis=-1))).sum(-1)
    return (kl * ANSWER).sum(1) if paper else kl.mean(1)


T = {"logp": tensor(LOGP), "answer": tensor(ANSWER)}
H = {"hidden": tensor(HIDDEN), "in_answer": tensor(ANSWER)}
U = CONTROL / np.linalg.norm(CONTROL)
# (function, its tensors, its hyperparameters, numpy for "reference", numpy for "paper")
NUMPY = [
    (L.nll, T, {}, -SEQUENCE / TOKENS, -SEQUENCE),
    (L.grad_ascent, T, {}, SEQUENCE / TOKENS, SEQUENCE),
    (
        L.wga,
        T,
        {"beta": 0.7},
        (np.exp(0.7 * LOGP) * LOGP * ANSWER).sum(1) / TOKENS,
        np.exp(0.7 * SEQUENCE) * SEQUENCE,
    ),
    (L.sat_imp, T, {"beta1": 2.0, "beta2": 0.5}, satimp_numpy(False), satimp_numpy(True)),
    (
        L.undial,
        {
            k: tensor(v)
            for k, v in dict(
                logit=LOGIT, logit_ref=LOGIT_REF, targets=TARGETS, answer=ANSWER
            ).items()
        },
        {"beta": 3.0},
        undial_numpy(False),
        undial_numpy(True),
    ),
    (
        L.rmu_forget,
        H | {"control": tensor(CONTROL)},
        {"c": 5.0},
        rmu_numpy(5 * U, False),
        rmu_numpy(5 * U, True),
    ),
    (
        L.rmu_retain,
        H | {"hidden_ref": tensor(HIDDEN_REF)},
        {},
        rmu_numpy(HIDDEN_REF, False),
        rmu_numpy(HIDDEN_REF, True),
    ),
    (
        L.uniform_kl,
        {"logit_all": tensor(LOGIT), "answer_all": tensor(ANSWER)},
        {},
        uniform_numpy(0),
        uniform_numpy(1),
    ),
    (
        L.sim_npo,
        T,
        {"beta": 2.0, "delta": 0.3},
        softplus(-2.0 * (-SEQUENCE / N - 0.3)),
        softplus(-(2.0 * -SEQUENCE / N - 0.3)),
    ),
]


@pytest.mark.parametrize(
    ("function", "tensors", "hyper", "reference", "paper"),
    NUMPY,
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_numpy(function, tensors, hyper, reference, paper):
    for variant, expected in (("reference", reference), ("paper", paper)):
        loss = function(**tensors, **hyper, variant=variant)
        assert loss.shape == (B,)
        assert_allclose(loss.numpy(), expected, rtol=1e-6)


def test_numpy_of_the_two_without_variants():
    loss = L.npo(tensor(LOGP), tensor(ANSWER), tensor(REF), beta=0.5)
    assert_allclose(loss, 2 / 0.5 * softplus(0.5 * (SEQUENCE - REF)))
    loss = L.idk_dpo(
        tensor(LOGP), tensor(ANSWER), tensor(REF), tensor(IDK), tensor(IDK_REF), beta=0.5
    )
    assert_allclose(loss, 2 / 0.5 * softplus(-0.5 * ((IDK - IDK_REF) - (SEQUENCE - REF))))


def test_kl_to_original():
    p_ref = softmax(LOGIT_REF, axis=-1)
    kl = (
        p_ref
        * (log_softmax(LOGIT_REF, axis=-1) - (LOGIT - logsumexp(LOGIT, axis=-1, keepdims=True)))
    ).sum(-1)
    assert_allclose(L.kl_to_original(tensor(LOGIT), tensor(LOGIT_REF)), kl.mean(1), rtol=1e-6)


def test_literal_tensors():
    """By hand: two rows, answers of 2 and 1 tokens with p = (1/2, 1/4) and 1/2."""
    logp = tensor([[-9.0, 0.5, 0.25], [0.5, -9.0, -9.0]], dtype=torch.float64)
    logp[0, 1:], logp[1, 0] = logp[0, 1:].log(), logp[1, 0].log()
    answer = tensor([[False, True, True], [True, False, False]])
    ln2 = np.log(2)
    assert_allclose(
        L.nll(logp, answer), [2 * ln2, 2 / 3 * ln2]
    )  # 3 ln 2 and ln 2, over 1.5 tokens a row
    assert_allclose(
        L.nll(logp, answer).mean(), 4 / 3 * ln2
    )  # = the mean over the batch's three tokens
    assert_allclose(L.wga(logp, answer), [-(1 / 2 + 2 / 4) * ln2 / 1.5, -(1 / 2) * ln2 / 1.5])
    assert_allclose(L.wga(logp, answer, variant="paper"), [-3 / 8 * ln2, -1 / 2 * ln2])
    assert_allclose(
        L.npo(logp, answer, L.log_likelihood(logp, answer)), [20 * ln2] * 2
    )  # at the start: (2/β) ln 2


def test_what_decides_the_forward_passes_are_all_parameters_of_a_loss():
    """Without one of its settings a loss would run with its own default instead of the method's."""
    assert {*L.NEEDS} >= {loss for terms in L.LOSSES.values() for loss in terms if loss}
    for loss, names in L.NEEDS.items():
        assert names == set(inspect.signature(loss).parameters), loss


def test_what_hides_outside_the_answer_does_not_matter():
    logp = tensor(np.where(ANSWER, LOGP, -np.inf), requires_grad=True)
    for function in (L.nll, L.wga, L.sat_imp, L.sim_npo):
        logp.grad = None
        loss = function(logp, tensor(ANSWER)).sum()
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(logp.grad[tensor(ANSWER)]).all()


def test_weights_carry_no_gradient():
    """sg[·]: the gradient of WGA's token term is its weight, not weight + derivative of the
    weight.
    """
    logp = tensor(LOGP, requires_grad=True)
    L.wga(logp, tensor(ANSWER), beta=2.0).sum().backward()
    assert_allclose(logp.grad, np.exp(2 * LOGP) * ANSWER / TOKENS)


def test_unknown_variant():
    for function, tensors, *_ in NUMPY:
        with pytest.raises(
            UserError, match="variant must be one of reference, paper, not 'papper'"
        ):
            function(**tensors, variant="papper")


def test_rows_are_the_papers():
    names = [
        "GradAscent",
        "GradDiff",
        "WGA",
        "SatImp",
        "UnDIAL",
        "RMU",
        "ULD",
        "IdkDPO",
        "NPO",
        "SimNPO",
    ]
    assert list(L.LOSSES)[: len(names)] == names


# The reference implementation's figures at default settings (locuslab/open-unlearning @ d3d7cf9),
# and ln p of the four golden rows' answer tokens under its tiny model (float32, from
# ../shared/goldens; every row's tokens in one list).
GOLDEN = json.loads((Path(__file__).parent / "golden_logp.json").read_text())
GOLDEN_LOSSES = {
    "GradAscent": -2.08741355,
    "GradDiff": 1.08213425,
    "WGA": 2.97360277,
    "SatImp": 3.16916132,
    "IdkDPO": 17.0324917,
    "NPO": 17.0324917,
    "SimNPO": 3.16960454,
}


def golden_rows(name):
    rows = [tensor(row, dtype=torch.float64) for row in GOLDEN[name]]
    answer = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True
    )
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0), answer


@pytest.mark.parametrize("name", GOLDEN_LOSSES)
def test_golden_figures_run_anywhere(name):
    logp, answer = golden_rows("forget")
    given = {"logp": logp, "answer": answer, "logp_ref": L.log_likelihood(logp, answer)}
    given["logp_idk"] = given["logp_idk_ref"] = L.log_likelihood(*golden_rows("idk"))
    terms, weight = L.LOSSES[name], L.BASELINES[name]
    given = {key: given[key] for key in L.NEEDS[terms.forget] if key in given}
    loss = weight["alpha_f"] * terms.forget(**given).mean()
    loss += weight["alpha_r"] * terms.retain(*golden_rows("retain")).mean() if terms.retain else 0.0
    assert loss.item() == pytest.approx(GOLDEN_LOSSES[name], rel=1e-5)


# --- the golden figures, computed by the reference implementation on a tiny model ---

GOLDEN_NAMES = {"UnDIAL": "UNDIAL", "IdkDPO": "DPO"}


@pytest.fixture(scope="session")
def goldens(shared):
    return json.loads((shared / "goldens" / "losses_default.json").read_text())


@pytest.fixture(scope="session")
def golden_model(shared):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(shared / "goldens" / "model").eval()


def tensors(batch):
    return {name: tensor(values) for name, values in batch.items()}


@pytest.mark.parametrize("name", [name for name in L.LOSSES if name != "ULD"])
def test_goldens(name, goldens, golden_model):
    """Loss and gradient norms at default settings, policy = reference, through the functions that
    training uses.
    """
    from t3lib.baselines.forward import answer_logp, apply_loss

    gold = goldens["losses"][GOLDEN_NAMES.get(name, name)]["default"]["same"]
    terms = L.LOSSES[name]
    batch = goldens["batch"]["idk" if name == "IdkDPO" else "plain"]
    forget = tensors(batch["forget"]["original"] if name == "IdkDPO" else batch["forget"])
    given = {"control": tensor(gold["control_vec"])} if name == "RMU" else {}
    given["logp_ref"] = L.log_likelihood(*answer_logp(golden_model, forget)).detach()
    if name == "IdkDPO":
        alternate = answer_logp(golden_model, tensors(batch["forget"]["alternate"]))
        given["logp_idk"] = L.log_likelihood(*alternate)
        given["logp_idk_ref"] = given["logp_idk"].detach()
    weight = L.BASELINES[name]
    loss = (
        weight["alpha_f"]
        * apply_loss(terms.forget, given, golden_model, forget, golden_model, 2).mean()
    )
    if weight.get("alpha_r"):
        retain = apply_loss(
            terms.retain, {}, golden_model, tensors(batch["retain"]), golden_model, 2
        )
        loss = loss + weight["alpha_r"] * retain.mean()
    golden_model.zero_grad()
    loss.backward()
    grads = {
        n: p.grad.norm().item() for n, p in golden_model.named_parameters() if p.grad is not None
    }
    assert loss.item() == pytest.approx(gold["loss"], rel=1e-5)
    assert np.linalg.norm(list(grads.values())) == pytest.approx(gold["grad_norm"], rel=1e-5)
    for parameter, norm in gold["grad_norm_by_param"].items():
        assert grads[parameter] == pytest.approx(norm, rel=1e-5)


def test_golden_uld(goldens, shared):
    from transformers import AutoModelForCausalLM

    from t3lib.baselines.forward import apply_loss

    model = AutoModelForCausalLM.from_pretrained(shared / "goldens" / "retain").eval()
    [gold] = goldens["losses"]["ULD"].values()
    batch = tensors(goldens["uld_batch"])
    kept = batch.pop("retainlabels").bool()
    halves = [{name: value[rows] for name, value in batch.items()} for rows in (~kept, kept)]
    forget, retain = (
        apply_loss(term, {}, model, half, None, None).mean().item()
        for term, half in zip(L.LOSSES["ULD"], halves)
    )
    assert forget == pytest.approx(gold["same"]["forget_loss"], rel=1e-5)
    assert retain == pytest.approx(gold["same"]["retain_loss"], rel=1e-5)
    assert forget + L.BASELINES["ULD"]["alpha_r"] * retain == pytest.approx(
        gold["same"]["loss"], rel=1e-5
    )
