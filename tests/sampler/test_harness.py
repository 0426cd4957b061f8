"""lm-evaluation-harness runs an unlearned model unmodified: multiple choice and generation. Runs
where lm_eval is.
"""

import json
from pathlib import Path

import pytest
import torch

from t3lib.classifier.head import T3Head
from t3lib.core.rows import Example
from t3lib.sampler.tilt import T3ForCausalLM

lm_eval = pytest.importorskip("lm_eval", reason="pip install lm_eval runs these")
CHOICES = [" Ada.", " Bruno.", " Clara."]
TASK = """
dataset_path: json
dataset_kwargs:
  data_files: {{test: "{rows}"}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
# A task of theirs, whose question, choices and scoring we do not write; only its rows are ours.
THEIRS = "arc_easy_here"
KINDS = {
    "own_choice": (
        "output_type: multiple_choice\ndoc_to_choice: choices\ndoc_to_target: 0\n"
        "target_delimiter: ''\nmetric_list:\n  - metric: acc\n"
    ),
    "own_text": (
        "output_type: generate_until\ndoc_to_target: '{{choices[0]}}'\n"
        "generation_kwargs: {until: [], max_gen_toks: 6}\nmetric_list:\n  - metric: exact_match\n"
    ),
}


@pytest.fixture(scope="session")
def unlearned(tiny_model, tokenizer):
    """A head of large random weights, which changes most tokens."""
    head = T3Head(tiny_model.config.hidden_size, tiny_model.config.vocab_size, 4, seed=1)
    with torch.no_grad():
        head.B.mul_(200)
    return T3ForCausalLM(tiny_model, head, 2.0)


def test_its_tasks_see_the_unlearned_model(unlearned, tokenizer, tmp_path, monkeypatch):
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"question": f"Who wrote book {'one ' * i}?", "choices": CHOICES} for i in range(1, 6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, kind in KINDS.items():
        (tmp_path / f"{name}.yaml").write_text(
            f"task: {name}\n{TASK.format(rows=tmp_path / 'rows.jsonl')}{kind}"
        )
    arc = [
        {
            "question": row["question"],
            "choices": {"text": [choice.strip() for choice in CHOICES], "label": [*"ABC"]},
            "answerKey": "A",
        }
        for row in rows
    ]
    (tmp_path / "arc.jsonl").write_text("\n".join(map(json.dumps, arc)))
    (tmp_path / "theirs.yaml").write_text(
        f"include: {Path(lm_eval.__file__).parent / 'tasks/arc/arc_easy.yaml'}\ntask: {THEIRS}\n"
        f"dataset_path: json\ndataset_name: null\ntraining_split: null\nvalidation_split: null\n"
        f'dataset_kwargs:\n  data_files: {{test: "{tmp_path / "arc.jsonl"}"}}\n'
    )
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)

    def run(model):
        harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2)
        done = lm_eval.simple_evaluate(
            harness, tasks=[*KINDS, THEIRS], task_manager=manager, bootstrap_iters=0
        )
        samples = {
            name: sorted(done["samples"][name], key=lambda sample: sample["doc_id"])
            for name in (*KINDS, THEIRS)
        }
        scores, arc_scores = (
            [[float(choice[0]) for choice in sample["filtered_resps"]] for sample in samples[name]]
            for name in ("own_choice", THEIRS)
        )
        assert {"acc,none", "acc_norm,none"} <= {*done["results"][THEIRS]}
        return scores, [sample["filtered_resps"][0] for sample in samples["own_text"]], arc_scores

    scores, texts, arc_scores = run(unlearned)
    for row, scored, text, by_arc in zip(rows, scores, texts, arc_scores):
        asked = f"Question: {row['question']}\nAnswer:"
        wanted = [score(unlearned, tokenizer, asked, choice) for choice in CHOICES]
        assert by_arc == pytest.approx(wanted, abs=1e-4)
        wanted = [score(unlearned, tokenizer, row["question"], choice) for choice in CHOICES]
        assert scored == pytest.approx(wanted, abs=1e-4)
        ids = torch.tensor([tokenizer(row["question"], add_special_tokens=False)["input_ids"]])
        out = unlearned.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6)
        assert text == tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    base_scores, base_texts, _ = run(unlearned.base)
    assert base_texts != texts and all(
        abs(a - b) > 1e-3 for a, b in zip(sum(scores, []), sum(base_scores, []))
    )


def score(model, tokenizer, question, answer):
    """ln p(answer | question), one row at a time."""
    before, ids = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (question, question + answer)
    )
    example = Example(ids, len(before))
    with torch.no_grad():
        logp = model(torch.tensor([example.ids])).logits[0].log_softmax(-1)
    return float(logp[range(len(before) - 1, len(ids) - 1), ids[len(before) :]].sum())
