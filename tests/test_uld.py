"""ULD as a Transformers model, against a float64 no-cache reference of its own formula."""

import copy

import pytest
import torch

from t3lib.assistant import make_assistant
from t3lib.evaluate import evaluate
from t3lib.greedy import greedy
from t3lib.uld import ULDForCausalLM


def trained_assistant(base, k=1, seed=0):
    """An assistant whose LoRA has been trained, as far as these tests care: its B matrices are not 0."""
    assistant = make_assistant(base, k, rank=4, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in assistant.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.3
    return assistant


def rows(n, wrong=3):
    return [
        {
            "question": f"Who wrote book {i}?",
            "answer": f"Author {i} did.",
            "paraphrased_answer": f"It was {i}.",
            "perturbed_answer": [f"No {i}{j}." for j in range(wrong)],
        }
        for i in range(n)
    ]


def oracle_logp(model, assistant, strength, ids, n_prompt):
    """Sum over the answer of ln p̂, in float64, the whole sequence at once and without a cache."""
    ids = torch.tensor([ids])
    with torch.no_grad():
        p, f = (copy.deepcopy(m).double().eval()(ids, use_cache=False).logits.softmax(-1) for m in (model, assistant))
    weight = p / f**strength
    weight = weight / weight.sum(-1, keepdim=True)
    return weight[0, :-1].gather(-1, ids[0, 1:, None]).log()[n_prompt - 1 :].sum()


def test_evaluation_and_greedy_texts_are_those_of_the_quotient(tiny_model, tokenizer):
    from t3lib.tofu import encode

    assistant = trained_assistant(tiny_model)
    model = ULDForCausalLM(tiny_model, assistant, strength=0.7)
    data = rows(4)
    report = evaluate(model, tokenizer, {"forget": data}, max_new_tokens=6, progress=True)
    for row, record in zip(data, report["records"]["forget"]):
        example = encode(tokenizer, row["question"], row["answer"])
        n = len(example.ids) - example.n_prompt
        logp = oracle_logp(tiny_model, assistant, 0.7, example.ids, example.n_prompt)
        assert record["prob"] == pytest.approx((logp / n).exp().item(), rel=1e-4)
    base = evaluate(tiny_model, tokenizer, {"forget": data}, max_new_tokens=6, progress=True)
    assert base["records"]["forget"] != report["records"]["forget"]
