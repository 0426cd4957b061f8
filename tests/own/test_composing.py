"""Heads that lose what each of them keeps are named; heads that keep it are not."""

import warnings

import pytest
import torch

from t3lib.classifier.head import T3Head
from t3lib.own import evidence
from t3lib.own.composing import composed_rouge
from t3lib.own.rows import Rows
from t3lib.sampler.tilt import T3ForCausalLM


def test_heads_that_lose_what_each_keeps_are_named(memorised, monkeypatch):
    """Each head alone is too weak to change an answer; thirty of it together change them all."""
    base, tokenizer, forget, retain, _ = memorised
    width, size = base.config.hidden_size, base.get_output_embeddings().weight.shape[0]

    def composed(scale):
        head = T3Head(width, size, 4, seed=1, init_b="kaiming")
        with torch.no_grad():
            head.B.mul_(scale)
        return T3ForCausalLM(base, [head] * 30, 1.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone, together = composed_rouge(composed(0.0), tokenizer, retain)
    assert alone == together > 0.9, "log f is the same of every token"
    with pytest.warns(UserWarning, match="30 heads together keep ROUGE-L 0"):
        alone, together = composed_rouge(composed(3.0), tokenizer, retain)
    assert alone > 0.9 > together
    monkeypatch.setattr(evidence, "judge", lambda *_, **__: None)
    with pytest.warns(UserWarning, match="30 heads together keep"):
        evidence.assess(composed(3.0), tokenizer, Rows(forget, retain))
