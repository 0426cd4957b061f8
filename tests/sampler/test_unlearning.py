"""`fit_without_evidence()`: rows in, the base under its head out; the base untouched, the head
records its making.
"""

import copy

import pytest
import torch

import t3lib
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.sampler.one_call import fit_without_evidence
from t3lib.sampler.tilt import T3ForCausalLM

FORGET = [
    {"question": f"Which book is number {i}?", "answer": f"Glass River {i}."} for i in range(4)
]
RETAIN = [{"question": f"Who lives at {i}?", "answer": f"Old Tom {i} does."} for i in range(6)]
FIT = {"epochs": 30, "warmup_epochs": 3, "lr": 2e-2, "rank": 4, "batch_size": 2, "init_b": "zero"}


def run(model, tokenizer, **options):
    return fit_without_evidence(model, tokenizer, FORGET, RETAIN, progress=False, **FIT | options)


def answer_logp(model, tokenizer, rows):
    """Mean ln p of the rows' answer tokens, one row at a time."""
    values = []
    for example in t3lib.core.rows.encode_rows(tokenizer, rows):
        with torch.no_grad():
            logits = model(torch.tensor([example.ids])).logits[0]
        target = torch.tensor(example.ids[example.n_prompt :])
        values.append(
            logits[example.n_prompt - 1 : -1].log_softmax(-1).gather(1, target[:, None]).mean()
        )
    return float(torch.stack(values).mean())


def test_it_tilts_away_from_the_forget_rows_and_leaves_the_base_alone(tiny_model, tokenizer):
    before = {name: tensor.clone() for name, tensor in tiny_model.state_dict().items()}
    model = run(tiny_model, tokenizer, temperature=1)
    assert (
        isinstance(model, T3ForCausalLM)
        and model.temperature == 1
        and model.heads[0].temperature == 1
    )
    for name, tensor in tiny_model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    change = {
        name: answer_logp(model, tokenizer, rows) - answer_logp(tiny_model, tokenizer, rows)
        for name, rows in (("forget", FORGET), ("retain", RETAIN))
    }
    assert change["forget"] < -0.2 and change["retain"] > -0.1, change


def test_it_is_features_then_a_head_and_nothing_else(tiny_model, tokenizer, tmp_path):
    features = extract_features(tiny_model, tokenizer, FORGET, RETAIN, progress=False)
    head = fit_head(features, vocab_size=tiny_model.config.vocab_size, progress=False, **FIT)
    for options in ({}, {"cache": tmp_path}, {"cache": tmp_path}):
        found = run(tiny_model, tokenizer, **options).heads[0]
        assert torch.equal(found.A, head.A) and torch.equal(found.B, head.B)


def test_the_head_says_how_it_was_made_and_can_be_kept(tiny_model, tokenizer, tmp_path):
    model = run(
        tiny_model,
        tokenizer,
        temperature=2.0,
        seed=7,
        split="forget10",
        attention_mask="openunlearning",
    )
    info = model.heads[0].info
    assert (info["seed"], info["split"], info["n_forget"], info["n_retain"]) == (
        7,
        "forget10",
        4,
        6,
    )
    assert info["answer_tokens"] == sum(
        len(e.ids) - e.n_prompt for e in t3lib.core.rows.encode_rows(tokenizer, FORGET + RETAIN)
    )
    wanted = FIT | {"seed": 7, "attention_mask": "openunlearning", "features": "torch.float32"}
    assert wanted.items() <= info["hyperparameters"].items()
    assert {"base_model", "base_revision", "tokenizer_hash"} <= set(info) and info["tokenizer_hash"]
    model.heads[0].save_pretrained(tmp_path / "head")
    again = T3Head.from_pretrained(tmp_path / "head")
    assert torch.equal(again.A, model.heads[0].A) and torch.equal(again.B, model.heads[0].B)
    assert again.temperature == 2.0 and again.info == info


def test_an_unlearned_model_is_no_base(tiny_model, tokenizer):
    with pytest.raises(UserError, match="already unlearned"):
        run(run(tiny_model, tokenizer), tokenizer)


@pytest.mark.parametrize(
    ("forget", "retain", "options", "said"),
    [
        ([], RETAIN, {}, "forget set is empty"),
        (FORGET, [], {}, "retain set is empty"),
        (FORGET, RETAIN + FORGET[:1], {}, "forget row 1 is also retain row 7"),
        (
            [*FORGET, {"question": "Q?", "answer": " "}],
            RETAIN,
            {},
            "forget row 5: .*tokenises to nothing",
        ),
        (FORGET, RETAIN, {"temperature": 0.5}, "0.5"),
        (FORGET, RETAIN, {"temperature": float("nan")}, "nan"),
        (FORGET, RETAIN, {"rank": 0}, "rank"),
        (FORGET, RETAIN, {"learning_rate": 1.0}, "no setting 'learning_rate'"),
        (FORGET, RETAIN, {"attention_mask": "none"}, "unknown attention mask"),
    ],
)
def test_mistakes(tiny_model, tokenizer, forget, retain, options, said):
    model = copy.copy(tiny_model)
    with pytest.raises(UserError, match=said):
        fit_without_evidence(model, tokenizer, forget, retain, progress=False, **FIT | options)


def test_sharpening_must_be_asked_for(tiny_model, tokenizer):
    assert run(tiny_model, tokenizer, temperature=0.5, allow_sharpening=True).temperature == 0.5
