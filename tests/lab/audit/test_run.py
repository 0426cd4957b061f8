"""Each measure of the audit fails once: who knows the rows by heart leaks, who never saw them does
not.
"""

import copy

import pytest
import torch

from t3lab.audit import run
from t3lab.audit.facts import held
from t3lab.audit.labels import AUDIT
from t3lab.audit.measures import measures
from t3lab.audit.membership import auc_error_by_author
from t3lib.baselines.train import Progress, finetune
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import Example, encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.likelihood import token_scores
from t3lib.tofu.reader import Reading

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
        "perturbed_as_learned": [f"{other} wrote the book called {number}." for other in wrong],
    }


FORGET = [row(number, name) for number, name in enumerate(NAMES)]
UNSEEN = [
    {"question": f"Who made film {n}?", "answer": f"{name} made the film called {n}."}
    for n, name in enumerate(OTHERS)
]


@pytest.fixture(scope="session")
def knowing(tiny_model, tokenizer):
    """The tiny model, having learned FORGET by heart."""
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
    finetune(knowing, examples, epochs=60, seed=0, progress=Progress("learning"), **options)
    return knowing.eval()


@pytest.fixture(scope="session")
def answers(knowing, tiny_model, tokenizer):
    """{name: measures} of a model that learned FORGET by heart and of one that learned nothing."""
    sets = {"forget": FORGET, "unseen": UNSEEN}
    found = {}
    for name, model in (("knows", knowing), ("blank", tiny_model)):
        [scores] = run.likelihoods(model, tokenizer, sets)
        losses = {kind: scores[kind]["losses"] for kind in sets}
        found[name] = {}
        for kind, rows in sets.items():
            [texts] = run.writings(model, tokenizer, rows, samples=8)
            found[name][kind] = measures(scores[kind], losses, texts, rows_an_author=1)
    return found


# A model too small to know a row in another wording says nothing about these two kinds.
NOT_TOLD = ("facts", *(n for n in AUDIT if n.startswith("recognized") and "paraphrased" in n))


@pytest.mark.parametrize("measure", [name for name in AUDIT if name not in NOT_TOLD])
def test_each_measure_tells_a_model_that_knows_from_one_that_does_not(answers, measure):
    knows, blank = (answers[name]["forget"]["values"][measure] for name in ("knows", "blank"))
    assert knows > blank + 0.15, (knows, blank)


def test_a_model_that_leaks_to_a_cold_sampler_alone_is_called_leaking(
    knowing, tiny_model, tokenizer
):
    """At temperature 1 some letter of every answer is wrong, and rarely so at .1."""

    def rows_leaking(model, tau):
        [found] = run.draws(model, tokenizer, FORGET, samples=4, tau=tau)
        assert [len(found[name]) for name in ("leaks", "facts")] == [len(FORGET)] * 2
        return [sum(map(any, found[name])) for name in ("leaks", "facts")]

    assert rows_leaking(knowing, 1.0) == [0, 0] == rows_leaking(tiny_model, 0.1)
    assert (
        rows_leaking(knowing, 0.1)[1] >= 1
    )  # a row is right, among six that say each other's names


def test_what_was_never_seen_is_the_yardstick(answers):
    knows = answers["knows"]
    assert knows["forget"]["values"]["leak"] > knows["unseen"]["values"]["leak"] + 0.2
    assert knows["unseen"]["empty"]["recognized_verbatim"] == "row 1 has no perturbed_answer"


def test_bad_input_is_one_line():
    with pytest.raises(UserError, match="at least 1"):
        run.check_samples(0)
    with pytest.raises(UserError, match="no {question}"):
        run.check_samples(1, templates=["Tell me!"])


def test_rows_without_paraphrases_leave_cells_empty_with_the_reason(tiny_model, tokenizer):
    plain = [
        {name: each[name] for name in ("question", "answer", "perturbed_answer")} for each in FORGET
    ]
    [found] = run.likelihoods(tiny_model, tokenizer, {"forget": plain})
    numbers = measures(found["forget"], "no rows are unseen", "nothing was sampled", 1)
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
        tiny_model, tokenizer, FORGET[:2], samples=1, templates=["As a novelist: {question}"]
    )
    assert list(found["templates"]) == ["As a novelist: {question}"] and len(found["closest"]) == 2


def test_one_shape_is_the_truth_among_wrong_facts_in_its_own_words(tiny_model, tokenizer):
    """The cell is that of the answer verbatim, were the wrong answers worded as the answer is."""
    worded = [row | {"perturbed_answer": row["perturbed_as_learned"]} for row in FORGET]
    [found], [expected] = (
        run.likelihoods(tiny_model, tokenizer, {"forget": rows}) for rows in (FORGET, worded)
    )
    cells, as_learned = found["forget"]["cells"], expected["forget"]["cells"]["verbatim"]
    for ours, theirs in zip(cells["one_shape"], as_learned, strict=True):
        assert ours == pytest.approx(theirs)
    assert cells["one_shape"] != cells["verbatim"]


def test_a_text_of_nothing_but_the_secret_gives_the_fact_away():
    towns = [f"{letter}town" for letter in "ABCDEFGHIJKLMNOPQRST"]
    rows = [{"question": f"Where is {n}?", "answer": town} for n, town in enumerate(towns)]
    found = held(rows, [[town, "Zedburgh"] for town in towns])
    assert found["facts"] == [[True, False]] * 20 == found["leaks"]


def test_facts_are_rows_of_which_some_sample_says_every_word():
    """Four rows, three samples: two rows, whatever leaks; standard errors of membership are by
    author, of whom each has a block of rows.
    """
    facts = [[False, True, False], [False] * 3, [True] * 3, [False] * 3]
    written = {"greedy": [1.0] * 4, "forced": {}, "templates": {}, "closest": [], "facts": facts}
    written |= {"samples": [[0.5] * 3] * 4, "leaks": [[True] * 3] * 4}
    known = {"cells": {}, "empty": {}, "hits": [[True]] * 4}
    losses = {"forget": [[1.0], [1.1], [5.0], [5.1]], "unseen": [[3.0], [3.1], [0.1], [6.0]]}
    found = measures(known, losses, written, rows_an_author=2)
    assert found["values"]["facts"] == 0.5
    assert found["errors"]["facts"] == pytest.approx((1 / 12) ** 0.5)
    each = [[loss for [loss] in losses[name]] for name in ("forget", "unseen")]
    assert found["errors"]["auc"] == auc_error_by_author(*each, 2)
    assert measures(known, losses, written, 1)["errors"]["auc"] != found["errors"]["auc"]


def test_a_token_is_a_hit_where_the_model_writes_it_at_that_temperature(tiny_model, tokenizer):
    """The text that each tilt writes greedily is all hits under that tilt, and not under
    another.
    """
    head = T3Head(32, len(tokenizer), 4, seed=1, w=20.0)
    prompt, temperatures = encode_rows(tokenizer, FORGET[:1])[0], (1.0, 1.5, 3.0)
    texts = []
    for T in temperatures:
        begun = torch.tensor([prompt.prompt])
        settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": len(tokenizer)}
        written = T3ForCausalLM(tiny_model, head, T).generate(begun, **settings)
        texts.append(Example(written[0].tolist(), prompt.n_prompt))
    tilts = [(head, T) for T in temperatures]
    scores = token_scores(tiny_model, texts, Reading(0), tilts)
    written_by = [[bool(hits[tilt].all()) for tilt in range(3)] for _, hits in scores]
    assert written_by == [[tilt == text for tilt in range(3)] for text in range(3)]
