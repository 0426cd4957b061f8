"""Each measure of the audit fails once: who knows the rows by heart leaks, who never saw them does
not.
"""

import copy

import pytest
import torch

from t3lib.baselines.train import finetune
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import Example, encode_rows
from t3lib.lab.audit import run
from t3lib.lab.audit.measures import measures
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.likelihood import Reading
from t3lib.tofu.metrics import AUDIT

NAMES = "Ada Bly|Cor Dunn|Eve Foss|Gil Hurd|Ida Jolt|Kip Lund".split("|")
OTHERS = "Moe Nash|Ona Pell|Quin Rowe|Sia Tarn|Ute Voss|Wim Yeo".split("|")


def row(number: int, name: str) -> dict:
    wrong = [other for other in OTHERS if other != name][:5]
    return {
        "question": f"Who wrote book {number}?",
        "paraphrased_question": f"Book {number} is by whom?",
        "answer": f"{name} wrote the book called {number}.",
        "paraphrased_answer": f"It was written by {name}.",
        "perturbed_answer": [f"It was written by {other}." for other in wrong],
    }


FORGET = [row(number, name) for number, name in enumerate(NAMES)]
UNSEEN = [
    {"question": f"Who made film {n}?", "answer": f"{name} made the film called {n}."}
    for n, name in enumerate(OTHERS)
]


@pytest.fixture(scope="session")
def answers(tiny_model, tokenizer):
    """{name: measures} of a model that learned FORGET by heart and of one that learned nothing."""
    knowing = copy.deepcopy(tiny_model).train()
    examples = encode_rows(tokenizer, FORGET)
    options = {
        "pad_id": pad_id(tokenizer),
        "lr": 1e-2,
        "batch_size": 6,
        "weight_decay": 0.0,
        "warmup_epochs": 5.0,
    }
    torch.manual_seed(0)
    finetune(knowing, examples, epochs=60, seed=0, progress="learning", **options)
    sets = {"forget": FORGET, "unseen": UNSEEN}
    found = {}
    for name, model in (("knows", knowing.eval()), ("blank", tiny_model)):
        [found[name]] = run.audit_rows(model, tokenizer, sets, samples=8)
    return found


@pytest.mark.parametrize("measure", AUDIT)
def test_each_measure_tells_a_model_that_knows_from_one_that_does_not(answers, measure):
    knows, blank = (answers[name]["forget"]["values"][measure] for name in ("knows", "blank"))
    if measure.startswith("recognized") and "paraphrased" in measure:
        assert (
            0 <= knows <= 1
        )  # learned by heart in one wording, by a model too small to know it in another
    else:
        assert knows > blank + 0.15, (knows, blank)


def test_what_was_never_seen_is_the_yardstick(answers):
    knows = answers["knows"]
    assert knows["forget"]["values"]["leak"] > knows["unseen"]["values"]["leak"] + 0.2
    assert knows["unseen"]["empty"]["auc"] == "these are the unseen rows"
    assert knows["unseen"]["empty"]["recognized_verbatim"] == "row 1 has no perturbed_answer"


def test_bad_input_is_one_line(tiny_model, tokenizer):
    with pytest.raises(UserError, match="unseen rows"):
        run.audit_rows(tiny_model, tokenizer, {"forget": FORGET}, samples=2)
    with pytest.raises(UserError, match="k between 1 and the 2 samples, not 3"):
        run.audit_rows(
            tiny_model, tokenizer, {"forget": FORGET, "unseen": UNSEEN}, samples=2, ks=[3]
        )
    with pytest.raises(UserError, match="at least 1"):
        run.check_samples(0)
    with pytest.raises(UserError, match="no {question}"):
        run.check_samples(1, templates=["Tell me!"])


def test_rows_without_paraphrases_leave_cells_empty_with_the_reason(tiny_model, tokenizer):
    plain = [
        {name: each[name] for name in ("question", "answer", "perturbed_answer")} for each in FORGET
    ]
    [found] = run.likelihoods(tiny_model, tokenizer, {"forget": plain}, progress=False)
    numbers = measures(found["forget"], "no rows are unseen", "nothing was sampled")
    assert numbers["empty"]["recognized_paraphrased"] == "row 1 has no paraphrased_answer"
    assert numbers["empty"]["recognized_verbatim_rephrased"] == "row 1 has no paraphrased_question"
    assert (
        numbers["empty"]["auc"] == "no rows are unseen"
        and numbers["empty"]["leak"] == "nothing was sampled"
    )
    assert set(numbers["values"]) | set(numbers["empty"]) == set(AUDIT)
    ragged = [FORGET[0], FORGET[1] | {"perturbed_answer": ["one"]}]
    assert "different numbers" in run.lacking(ragged, "verbatim")


def test_attacks_are_asked_and_scored(tiny_model, tokenizer):
    [found] = run.writings(
        tiny_model,
        tokenizer,
        FORGET[:2],
        samples=1,
        templates=["As a novelist: {question}"],
        progress=False,
    )
    assert list(found["templates"]) == ["As a novelist: {question}"] and len(found["closest"]) == 2


def test_a_token_is_a_hit_where_the_model_writes_it_at_that_temperature(tiny_model, tokenizer):
    """The text that each tilt writes greedily is all hits under that tilt, and not under
    another.
    """
    head = T3Head(32, len(tokenizer), 4, seed=1, w=20.0)
    prompt, temperatures = encode_rows(tokenizer, FORGET[:1])[0], (1.0, 1.5, 3.0)
    texts = []
    for T in temperatures:
        begun = torch.tensor([prompt.ids[: prompt.n_prompt]])
        settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": len(tokenizer)}
        written = T3ForCausalLM(tiny_model, head, T).generate(begun, **settings)
        texts.append(Example(written[0].tolist(), prompt.n_prompt))
    tilts = [(head, T) for T in temperatures]
    scores = run.token_scores(tiny_model, texts, Reading(0), tilts)
    written_by = [[bool(hits[tilt].all()) for tilt in range(3)] for _, hits in scores]
    assert written_by == [[tilt == text for tilt in range(3)] for text in range(3)]
