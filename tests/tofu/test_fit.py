"""`fit_on_rows()`: rows in, a head out that records its making; the base untouched."""

import copy

import pytest
import torch

import t3lib
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.rows import encode_rows
from t3lib.core.settings import FitSettings
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.fit import fit_on_rows
from t3lib.tofu.likelihood import answer_losses
from t3lib.tofu.reader import Reading

FORGET = [
    {"question": f"Which book is number {i}?", "answer": f"Glass River {i}."} for i in range(4)
]
RETAIN = [{"question": f"Who lives at {i}?", "answer": f"Old Tom {i} does."} for i in range(6)]
FIT = {"epochs": 30, "warmup_epochs": 3, "lr": 2e-2, "rank": 4, "batch_size": 2, "init_b": "zero"}


def run(model, tokenizer, seed=0, **options):
    fit = FitSettings(**FIT, seed=seed)
    return fit_on_rows(model, tokenizer, FORGET, RETAIN, fit, **options)


def answer_logp(model, tokenizer, rows):
    """Mean ln p of the rows' answer tokens, one row at a time."""
    values = []
    for example in t3lib.core.rows.encode_rows(tokenizer, rows):
        with torch.no_grad():
            logits = model(torch.tensor([example.ids], device=model.device)).logits[0].cpu()
        target = torch.tensor(example.answer)
        values.append(
            logits[example.n_prompt - 1 : -1].log_softmax(-1).gather(1, target[:, None]).mean()
        )
    return float(torch.stack(values).mean())


def test_it_tilts_away_from_the_forget_rows_and_leaves_the_base_alone(tiny_model, tokenizer):
    before = {name: tensor.clone() for name, tensor in tiny_model.state_dict().items()}
    head = run(tiny_model, tokenizer).to(tiny_model.device)
    model = T3ForCausalLM(tiny_model, head, 1)
    for name, tensor in tiny_model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    change = {
        name: answer_logp(model, tokenizer, rows) - answer_logp(tiny_model, tokenizer, rows)
        for name, rows in (("forget", FORGET), ("retain", RETAIN))
    }
    assert change["forget"] < -0.2 and change["retain"] > -0.1, change


def test_it_is_features_then_a_head_and_nothing_else(tiny_model, tokenizer):
    features = extract_features(tiny_model, tokenizer, FORGET, RETAIN)
    head = fit_head(features, vocab_size=tiny_model.config.vocab_size, **FIT)
    found = run(tiny_model, tokenizer)
    assert torch.equal(found.A, head.A) and torch.equal(found.B, head.B)


def test_the_head_says_how_it_was_made_and_can_be_kept(tiny_model, tokenizer, tmp_path):
    head = run(tiny_model, tokenizer, seed=7, attention_mask="openunlearning")
    info = head.info
    assert (info["seed"], info["n_forget"], info["n_retain"]) == (7, 4, 6)
    assert info["answer_tokens"] == sum(
        len(e.answer) for e in t3lib.core.rows.encode_rows(tokenizer, FORGET + RETAIN)
    )
    wanted = FIT | {"seed": 7, "attention_mask": "openunlearning", "features": "torch.float32"}
    assert wanted.items() <= info["hyperparameters"].items()
    assert {"base_model", "base_revision", "tokenizer_hash"} <= set(info) and info["tokenizer_hash"]
    head.save_pretrained(tmp_path / "head")
    again = T3Head.from_pretrained(tmp_path / "head")
    assert torch.equal(again.A, head.A) and torch.equal(again.B, head.B)
    assert again.info == info


def test_ids_without_a_token_are_never_sampled(tiny_model, tokenizer, tmp_path):
    """Vocabularies are padded; at T = 3 the padding would get a share of every sample."""
    base, size = copy.deepcopy(tiny_model).to("cpu"), len(tokenizer)
    base.resize_token_embeddings(size + 128, mean_resizing=False)
    head = run(base, tokenizer)
    head.save_pretrained(tmp_path)
    for each in (head, T3Head.from_pretrained(tmp_path)):
        model, [example] = T3ForCausalLM(base, each, 3), encode_rows(tokenizer, FORGET[:1])
        with torch.no_grad():
            logits = model(torch.tensor([example.ids])).logits
        assert logits.isfinite().all() and logits.softmax(-1)[..., size:].max() == 0
        assert logits.softmax(-1)[..., :size].min() > 0
        losses = answer_losses(base, [example], Reading(0), [(each, 3)])
        assert losses[0, 0] == pytest.approx(-answer_logp(model, tokenizer, FORGET[:1]), abs=1e-5)
    whole = belonging.tokens_known(tokenizer, size)
    assert whole is None, "where every id is a token, nothing is recorded"
