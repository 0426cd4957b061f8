"""OpenUnlearning's measures, by hand and against a plain pass."""

import copy
import json
import zlib

import numpy as np
import pytest
import torch

from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import suite
from t3lib.tofu.reader import Reading
from t3lib.tofu.writing import eos_ids


def row(losses, hits, standard, n_tokens, text):
    tokens = np.column_stack([losses, hits, standard]).astype(float)
    return {"tokens": tokens, "n_tokens": n_tokens, "text": text}


def test_every_measure_is_that_of_the_hand():
    """Three tokens, of which the last ends the turn: only the losses have it."""
    forget = [
        row([1, 3, 2], [1, 0, 1], [0, 4, 9], 2, "ab"),  # loss 2, min-k 3, min-k++ 4
        row([0, 0, 6], [0, 1, 0], [1, 0, 9], 2, "aaaa" * 40),  # loss 2, min-k 0, min-k++ 1
    ]
    unseen = [row([5, 1, 3], [0, 0, 0], [2, 2, 9], 2, "ab")]  # loss 3, min-k 5, min-k++ 2
    sizes = [len(zlib.compress(each["text"].encode())) for each in (*forget, *unseen)]
    assert sizes[1] > sizes[0] == sizes[2] and 2 / sizes[1] < 2 / sizes[0] < 3 / sizes[2]
    found = suite.suite(forget, unseen)
    assert found == {
        "extraction_strength": pytest.approx((0.5 + 0.5) / 2),
        "exact_memorization": pytest.approx((0.5 + 0.5) / 2),
        "mia_loss": 1.0,
        "mia_zlib": 1.0,
        "mia_min_k": 1.0,
        "mia_min_k_plus_plus": 0.5,
        "privleak": pytest.approx(-100.0),
    }
    long = [{**unseen[0], "text": "".join(map(chr, range(32, 127)))}]  # 3 nats in 100 bytes
    assert suite.suite(forget, long)["mia_zlib"] == 0.0
    assert suite.suite(forget, unseen, 0.75)["privleak"] == pytest.approx(-100.0)
    empty = suite.suite(forget, [])
    assert [name for name, value in empty.items() if value is None] == [*suite.MEMBERSHIP]


@pytest.mark.parametrize(
    ("auc", "reference", "expected"),
    [
        (0.5, 0.5, 0.0),
        (1.0, 0.5, -100.0),
        (0.0, 0.5, 100.0),
        (0.6, 0.2, -50.0),
        (0.5, 1.0, 5e11),
    ],
)
def test_privleak_compares_with_a_retrained_model(auc, reference, expected):
    assert suite.privleak(auc, reference) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_token_is_standardised_by_the_models_own_spread():
    """p = 1/2, 1/4, 1/4: μ = −1.5 ln 2, σ = ln 2 / 2. A sure model has none: σ² is 1e-6."""
    logp = torch.tensor([[0.5, 0.25, 0.25]]).log().repeat(2, 1)
    found = suite.standardised(logp, logp[[0, 1], [0, 1]])
    assert found.tolist() == pytest.approx([-1.0, 1.0])
    sure = torch.tensor([[0.0, -torch.inf, -8.0]])
    assert suite.standardised(sure, torch.tensor([-8.0])).item() == pytest.approx(54.59, abs=0.01)
    assert suite.standardised(sure[:, :2], torch.tensor([0.0])).item() == 0


def test_scores_of_answers_are_those_of_the_unlearned_model(tiny_model, tokenizer):
    """Against one plain pass of the tilted model for each row, in float64."""
    head = T3Head(tiny_model.config.hidden_size, tiny_model.config.vocab_size, 4, seed=1)
    with torch.no_grad():
        head.B.mul_(100)
    rows = [{"question": "Who?", "answer": "Ada."}, {"question": "What is it?", "answer": "A pie."}]
    reading = Reading(pad_id(tokenizer), eos_ids(tiny_model, tokenizer))
    gated = copy.copy(head)
    gated.gate = 0.5
    for tilt, model in (
        ((None, 1.0), tiny_model),
        ((head, 2.0), T3ForCausalLM(tiny_model, head, 2.0)),
        ((gated, 2.0), T3ForCausalLM(tiny_model, gated, 2.0)),
    ):
        found = suite.score_answers(tiny_model, tokenizer, rows, reading, tilt)
        for each, example, given in zip(found, encode_rows(tokenizer, rows), rows):
            with torch.no_grad():
                logits = model(torch.tensor([example.ids])).logits[0]
            logp = logits[example.n_prompt - 1 : -1].double().log_softmax(-1)
            answer = torch.tensor(example.answer)
            true = logp[range(len(answer)), answer]
            p = logp.exp()
            mean = (p * logp).sum(-1)
            spread = ((p * logp**2).sum(-1) - mean**2).sqrt()
            wanted = torch.stack([-true, logp.argmax(-1) == answer, (mean - true) / spread], 1)
            assert np.abs(each["tokens"] - wanted.numpy()).max() < 1e-4
            assert each["text"] == given["answer"] and each["n_tokens"] == len(answer) - 1
    with pytest.raises(UserError, match="row 2: .* more than the model's context"):
        long = {"question": "x" * 9**5, "answer": "y"}
        suite.score_answers(tiny_model, tokenizer, [rows[0], long], reading)


ROW = {"prob": 0.25, "rouge": 0.5, "generation": "Ada."}
REPORT = {
    "records": {name: [ROW | {"prob": n / 20} for n in range(12)] for name in ("forget", "wf")},
    "truth_ratio": {name: [n / 10 for n in range(12)] for name in ("forget", "wf")},
    "forget": {"prob": 0.1, "rouge": 0.2, "truth_ratio": 0.3},
    "components": {"wf_prob": 0.4, "wf_rouge": 0.5, "wf_tr": 0.6, "retain_tr": None},
    suite.SUITE: {"forget_Truth_Ratio": 0.3, "mia_min_k": 0.25, "privleak": None},
}


def test_a_report_is_written_and_read_in_openunlearnings_layout():
    logs = suite.logs_of(REPORT)
    assert {name: each["agg_value"] for name, each in logs.items()} == {
        "forget_Q_A_Prob": 0.1,
        "forget_Q_A_ROUGE": 0.2,
        "forget_truth_ratio": 0.3,
        "wf_Q_A_Prob_normalised": 0.4,
        "wf_Q_A_ROUGE": 0.5,
        "wf_Truth_Ratio": 0.6,
        "mia_min_k": 0.25,
    }
    rouge = {"rougeL_recall": 0.5, "generation": "Ada."}
    assert logs["wf_Q_A_ROUGE"]["value_by_index"]["11"] == rouge
    assert logs["forget_Q_A_Prob"]["value_by_index"]["2"] == {"prob": 0.1}

    # its keys are sorted as text, so that row 10 stands before row 2
    found = suite.read_logs(json.loads(json.dumps(logs, sort_keys=True)))
    assert found["truth_ratio"]["forget"] == REPORT["truth_ratio"]["forget"]
    assert found[suite.SUITE] == {"mia_min_k": 0.25}
    assert found["settings"]["attention_mask"] == "openunlearning"
    assert suite.read_logs({"forget_truth_ratio": logs["forget_truth_ratio"]})[suite.SUITE] == {}


@pytest.mark.parametrize(
    "logs",
    [
        {"forget_truth_ratio": None},
        {"forget_truth_ratio": {"agg_value": 0.5}},
        {"forget_truth_ratio": {"value_by_index": [0.5]}},
        {"forget_truth_ratio": {"value_by_index": {"a": {"score": 0.5}}}},
        {"forget_truth_ratio": {"value_by_index": {"0": {"prob": 0.5}}}},
        {"forget_truth_ratio": {"value_by_index": {}}, "mia_min_k": 0.5},
        {"forget_truth_ratio": {"value_by_index": {}}, "mia_min_k": {"agg_value": "much"}},
    ],
)
def test_what_is_no_file_of_openunlearning_is_refused(logs):
    with pytest.raises(UserError, match="no TOFU_EVAL.json of OpenUnlearning"):
        suite.read_logs(logs)
