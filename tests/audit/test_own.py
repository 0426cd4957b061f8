"""Unlearning a person's own model: the report, its choices, and what makes its verdict say no."""

import copy
import re

import numpy as np
import pytest
import torch
from conftest import ROOT
from own_cases import invented

from t3lib import profiles
from t3lib.audit import choice, own, rows
from t3lib.audit.answers import closeness, drawn, measure, recall
from t3lib.audit.evidence import assess
from t3lib.audit.samples import sample_answers
from t3lib.errors import UserError
from t3lib.metrics import rouge_l_recall
from t3lib.report import own as page
from t3lib.sampler import T3ForCausalLM
from t3lib.world import bases


@pytest.fixture(scope="session")
def case(memorised):
    return memorised


@pytest.fixture(scope="session")
def unlearned(case):
    model, tokenizer, forget, retain, other = case
    unseen = invented(90, 0)[60:]
    return own.unlearn(model, tokenizer, forget, retain, other=other, unseen=unseen, progress=False)


def test_a_small_model_forgets_with_no_setting_given(unlearned):
    report = unlearned.report
    assert report["verdict"]["success"], report["verdict"]["sentence"]
    assert report["before"]["forget"]["rouge"] > 0.95 and report["after"]["forget"]["rouge"] <= 0.5
    assert report["after"]["retain"]["rouge"] >= 0.95
    assert report["after"]["other"]["rouge"] >= 0.8 * report["before"]["other"]["rouge"]
    assert report["rows"] == {
        **{"forget": 10, "retain": 40, "other": 10, "held_out_forget": 2, "held_out_retain": 8, "unseen": 30},
        "measured": {"forget": 10, "retain": 40, "other": 10},
    }
    assert report["search"]["lr"] in [trial["lr"] for trial in report["search"]["trials"]]
    assert report["head"]["parameters"] == unlearned.heads[0].num_parameters
    assert report["separation"]["fitted"]["auc"] > 0.99 and 0 <= report["separation"]["held_out"]["auc"] <= 1


def test_the_saved_head_carries_the_choice(unlearned, case, tmp_path):
    unlearned.save_pretrained(tmp_path)
    again = T3ForCausalLM.from_pretrained(tmp_path, base=case[0])
    assert again.temperature == unlearned.report["choice"]["T"] and again.heads[0].w == unlearned.report["choice"]["w"]


def test_the_card_of_the_head_has_the_reports_numbers(unlearned, tmp_path):
    unlearned.heads[0].save_pretrained(tmp_path)
    card, report = (tmp_path / "README.md").read_text(), unlearned.report
    before, after = report["before"]["forget"]["rouge"], report["after"]["forget"]["rouge"]
    assert f"| forget ROUGE-L | {before:.3f} before, {after:.3f} after |" in card
    held = report["trial"]["at"]["held_out_retain"]["prob"]
    assert "held out retain probability (trial head)" in card and f"{held:.3f} after" in card
    assert report["verdict"]["sentence"] in card and "best of 16 samples" in card and "AUC of f" in card


def test_the_division_keeps_the_product(unlearned):
    entries = unlearned.report["choice"]["division"]
    assert len({round(entry["T"] * entry["w"], 9) for entry in entries}) == 1
    best = choice.choose_temperature(entries)
    assert best["D"] == min(entry["D"] for entry in entries) and best["T"] == unlearned.report["choice"]["T"]


def test_greedy_text_depends_on_the_product_alone(unlearned, case):
    model, tokenizer, forget, *_ = case
    head = copy.copy(unlearned.heads[0])
    head.w, other = 1.0, copy.copy(head)
    other.w = 0.5
    (first, texts), (second, same) = measure(model, tokenizer, {"forget": forget}, [(head, 2.0), (other, 4.0)])
    assert texts == same and first["forget"]["prob"] != second["forget"]["prob"]


def test_an_untouched_model_is_called_not_forgotten(case):
    model, tokenizer, forget, retain, _ = case
    report = assess(model, tokenizer, forget, retain, samples=2, progress=False)
    assert report["verdict"]["known"] and not report["verdict"]["forgotten"] and not report["verdict"]["success"]
    assert "NOT forgotten" in page.table(report) and "NOT forgotten" in page.page(report)


def test_a_head_that_did_not_learn_is_called_not_forgotten(case):
    model, tokenizer, forget, retain, _ = case
    weak = own.unlearn(model, tokenizer, forget, retain, lr=1e-6, steps=2, temperature=1.0, progress=False)
    assert not weak.report["verdict"]["success"] and weak.report["choice"]["reason"] == "given"


def test_too_hot_is_called_not_kept(unlearned, case):
    model, tokenizer, forget, retain, other = case
    hot = T3ForCausalLM(model, unlearned.heads[0], 60.0)
    report = assess(hot, tokenizer, forget, retain, other=other, samples=2, progress=False)
    assert (
        report["verdict"]["forgotten"] and not report["verdict"]["kept"] and "NOT kept" in report["verdict"]["sentence"]
    )


def test_rows_that_nobody_knows_are_named_before_training(case, monkeypatch):
    model, tokenizer, _, retain, _ = case

    def train(*args, **kwargs):
        raise InterruptedError("here it would have trained")

    monkeypatch.setattr(own, "extract_features", train)
    with pytest.warns(UserWarning, match="Nothing to forget.*--system"), pytest.raises(InterruptedError):
        own.unlearn(model, tokenizer, invented(80, 5)[:8], retain, progress=False)


def test_rows_that_nobody_knows_are_named_in_the_report(case):
    model, tokenizer, _, retain, _ = case
    report = assess(model, tokenizer, invented(80, 5)[:8], retain, samples=2, progress=False)
    assert not report["verdict"]["known"] and "did not know" in report["verdict"]["sentence"]


def test_few_rows_hold_nothing_out(case):
    model, tokenizer, forget, retain, _ = case
    few = own.unlearn(model, tokenizer, forget[:3], retain[:4], steps=20, lr=5e-3, progress=False)
    assert few.report["separation"]["held_out"] is None and "held_out_retain" not in few.report["rows"]
    assert "none held out" in page.page(few.report) and "no row is held out" in page.table(few.report)


def test_each_kind_is_held_out_by_itself():
    """Rows to judge with for one kind, or too few of one, leave a fifth of the other: nothing else shows its loss."""
    rows = [{"question": f"q {number}", "answer": "a"} for number in range(60)]
    forget, retain, judges = rows[:10], rows[10:50], rows[50:]
    fit, held, sets = own.hold_out(forget, retain, (), (), 0)
    assert len(held) == 2 + 8 and not {*fit} & {*held} and [len(some) for some in sets.values()] == [8, 32, 2, 8]
    _, held, sets = own.hold_out(forget, retain, judges, (), 0)
    assert len(held) == 8 and min(held) >= 10 and sets["held_out_forget"] == judges and sets["forget"] == forget
    _, held, sets = own.hold_out(forget[:4], retain, (), (), 0)
    assert len(held) == 8 and min(held) >= 4 and "held_out_forget" not in sets
    assert own.hold_out(forget[:4], retain[:4], (), (), 0)[1] == []


def test_a_question_in_both_sets_is_named(case):
    model, tokenizer, forget, retain, _ = case
    twice = [*retain, {"question": forget[0]["question"], "answer": "Somebody else."}]
    with pytest.raises(UserError, match="forget row 1 asks what retain row 41 answers otherwise"):
        own.unlearn(model, tokenizer, forget, twice, progress=False)


def test_a_row_in_both_sets_is_named(case):
    model, tokenizer, forget, retain, _ = case
    with pytest.raises(UserError, match="forget row 2 is also retain row 41"):
        own.unlearn(model, tokenizer, forget, [*retain, forget[1]], progress=False)


def test_several_heads_are_assessed_together(unlearned, case):
    model, tokenizer, forget, retain, _ = case
    head = unlearned.heads[0]
    report = assess(T3ForCausalLM(model, [head, head], 1.0), tokenizer, forget, retain, samples=2, progress=False)
    assert report["after"]["forget"]["rouge"] <= 0.5 and len(report["curve"]) == len(choice.PRODUCTS)


def test_the_page_shows_foreign_text_as_text(unlearned):
    report = copy.deepcopy(unlearned.report)
    report["examples"][0]["question"] = "<script>alert(1)</script>"
    html = page.page(report)
    assert "<script" not in html and "&lt;script&gt;" in html and "<svg" in html
    assert not re.search(r"<(link|script|img|iframe)|href=.?http|@import|url\(.?http", html), "it loads nothing"
    table = page.table(report).splitlines()
    assert len(table) <= 10
    assert sum("held out (trial)" in line for line in table) == 2, "whose numbers they are"


def test_the_curves_of_two_heads_stand_over_one_axis():
    """With w = .4 the kept head's T = 2.5 and the trial head's (w = 1) T = 1 write the same: both stand at w·T = 1."""
    curve = [{"T": T, "product": T, "retain": {"rouge": 1.0}, "held_out_retain": {"rouge": 0.9}} for T in (1.0, 2.5)]
    report = {"curve": curve, "trial": {"curve": curve}, "choice": {"T": 2.5, "w": 0.4}}
    assert "chosen w·T = 1 -->" in page.figure(report) and "strength w -->" in page.figure(report)
    report["choice"] = {"T": 2.5, "w": 1.0}
    assert "chosen T = 2.5 -->" in page.figure(report) and "strength" not in page.figure(report)


def test_sampled_answers_are_seeded_and_leave_the_callers_random_state(case):
    model, tokenizer, forget, *_ = case
    prompts = [own.encode_rows(tokenizer, [row])[0].ids[:5] for row in forget[:3]]
    before = torch.get_rng_state()
    first = sample_answers(model, tokenizer, prompts, 3, seed=1, max_new_tokens=6)
    assert torch.equal(before, torch.get_rng_state())
    assert first == sample_answers(model, tokenizer, prompts, 3, seed=1, max_new_tokens=6)
    assert first != sample_answers(model, tokenizer, prompts, 3, seed=2, max_new_tokens=6)
    assert [len(texts) for texts in first] == [3, 3, 3]


def test_closeness_prefers_the_own_truth_and_ignores_order():
    rows = [{"answer": "red apple tree"}, {"answer": "blue river boat"}]
    told = {"own": 1.0, "nearest_other": 0.0, "verbatim": 2}
    assert closeness(rows, [["red apple tree"], ["blue river boat"]]) == told
    assert closeness(rows, [["nothing", "blue river"], ["red"]]) == {
        "own": 0.0, "nearest_other": pytest.approx((2 / 3 + 1 / 3) / 2), "verbatim": 0
    }  # fmt: skip
    assert len(drawn(rows * 100, 7)) == 7 and drawn(rows, 7) == rows


def test_words_of_every_script_count():
    """rouge_score's tokenizer passes over all but a to z: a Russian truth would never be recognised, nor forgotten."""
    pairs = {
        "Её зовут Мария Кузнецова": "Её зовут Ольга Кузнецова",
        "कवि का नाम मीरा": "कवि का नाम सीता",
        "彼女は東京で生まれた": "彼女は京都で生まれた",
        "המחברת היא מארה": "המחברת היא שרה",
        "🦊🐻": "🦊",
        "Zoë née Brontë": "Zoë née Smith",
    }
    for truth, other in pairs.items():
        assert recall(truth, truth) == 1 and 0 < recall(truth, other) < 1, truth
        assert recall(truth, "somebody else") == 0 and recall(truth, "") == 0
    assert recall("É\u0301".lower(), "É\u0301") == recall("e\u0301tude", "\xe9tude") == 1
    for truth, text in (("She wrote books.", "She writes a book"), ("A-b_c 12", "a b c 12"), ("!!!", "!")):
        expected = rouge_l_recall(truth, text) if truth != "!!!" else 1 / 3
        assert recall(truth, text) == pytest.approx(expected)


def test_sampled_answers_stay_within_the_context(case):
    """Positions beyond it are an error in one model and nonsense in another."""
    model, tokenizer, forget, retain, _ = case
    examples = own.encode_rows(tokenizer, [*forget, *retain])
    reach = max(len(example.ids) for example in examples) + 1
    short = copy.deepcopy(model)
    short.config.max_position_embeddings = reach
    lengths = []
    hook = short.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(int(kwargs["attention_mask"].shape[1])), with_kwargs=True
    )
    assess(short, tokenizer, forget, retain, samples=2, progress=False)
    hook.remove()
    assert reach - 5 < max(lengths) <= reach


@pytest.mark.parametrize(
    ("forget", "retain", "said"),
    [
        ([], [{"question": "q", "answer": "a"}], "no rows to forget"),
        ([{"question": "q", "answer": "a"}], [], "no rows to retain"),
        ([{"q": 1}], [{"question": "q", "answer": "a"}], "forget row 1: found q"),
        ([{"question": "q", "answer": "a"}], [{"question": "r", "answer": None}], "retain row 1: answer is missing"),
        (["text"], [{"question": "q", "answer": "a"}], "forget row 1: expected an object"),
        ([{"text": "same"}], [{"text": "same"}], "forget row 1 is also retain row 1: 'same'"),
    ],
)
def test_rows_from_python_are_checked_as_those_of_files(forget, retain, said, case):
    for work in (own.unlearn, assess):
        with pytest.raises(UserError, match=said):
            work(*case[:2], forget, retain, progress=False)


@pytest.mark.parametrize(
    "settings", [{"steps": "9"}, {"steps": 0.5}, {"steps": True}, {"lr": "x"}, {"seed": -1}, {"temperature": "x"}]
)
def test_settings_of_a_wrong_kind_are_named(settings, case):
    with pytest.raises(UserError, match=f"^{next(iter(settings))} must be"):
        own.unlearn(*case[:4], **settings, progress=False)


def test_two_wordings_of_one_question_are_known_and_one_row_can_be_forgotten():
    """The same answer twice is no other answer; and where no other answer is, half of the own one decides."""
    rows = [{"answer": "red apple tree"}, {"answer": "red apple tree "}]
    said, hidden = closeness(rows, [["red apple tree"]] * 2), closeness(rows, [["a red roof"]] * 2)
    assert said == {"own": 1.0, "nearest_other": None, "verbatim": 2}
    assert choice.knows(said | {"prob": 0.2}) and not choice.forgets(said) and choice.forgets(hidden)
    assert not choice.knows(hidden | {"prob": 0.9})


def test_an_answer_that_is_given_to_every_question_gives_nothing_away():
    rows = [{"answer": answer} for answer in ("Yes", "No", "Yes", "No")]
    assert closeness(rows, [["Yes"], ["Yes"], ["No"], ["No"]])["verbatim"] == 0, "chance"
    assert closeness(rows, [["Yes"], ["No"], ["Yes"], ["Nobody"]])["verbatim"] == 3, "knowledge"


def scored(rouge, nearest=0.4, prob=0.9, verbatim=0):
    return {"rouge": rouge, "own": rouge, "nearest_other": nearest, "prob": prob, "verbatim": verbatim, "n": 10}


def test_one_row_that_still_stands_word_for_word_is_not_forgotten():
    """Three rows of ten untouched and seven gone: .37 on average, under half and no nearer than other answers."""
    before = {"forget": scored(1.0, verbatim=10), "retain": scored(1.0)}
    after = {"forget": scored(0.37, verbatim=3), "retain": scored(1.0), "samples": scored(0.3) | {"k": 16}}
    said = choice.verdict(after, before)
    assert (
        not said["success"] and "NOT forgotten: 3 of 10 answers to forget still stand word for word" in said["sentence"]
    )
    after["forget"]["verbatim"], after["samples"]["verbatim"] = 0, 2
    said = choice.verdict(after, before)
    assert not said["success"] and said["sentence"].endswith("still shows the truth, for 2 of 10 rows word for word.")
    after["samples"]["verbatim"] = 0
    assert choice.verdict(after, before)["success"]


def test_sampling_that_spoils_the_answers_to_keep_is_said():
    """Greedy answers do not show it: at T = 3 a model that keeps 1.00 of them greedily sampled .15 of them."""
    before = {"forget": scored(1.0, verbatim=10), "retain": scored(1.0, prob=1.0)}
    after = {"forget": scored(0.3), "retain": scored(1.0, prob=0.21), "samples": scored(0.3) | {"k": 16}}
    said = choice.verdict(after, before)
    assert said["success"] and "sampling spoils the answers to keep" in said["advice"][0]
    after["retain"]["prob"] = 0.95
    assert choice.verdict(after, before)["advice"] == []


def test_a_head_that_never_saw_some_of_the_rows_has_not_forgotten_them(unlearned, case):
    model, tokenizer, forget, retain, other = case
    head = unlearned.heads[0]
    warm = T3ForCausalLM(model, head, 2.5 / head.w, allow_sharpening=True)
    report = assess(warm, tokenizer, [*forget, *other[:3]], retain, samples=2, progress=False)
    scores = report["after"]["forget"]
    assert scores["rouge"] < choice.HALF and scores["rouge"] < scores["nearest_other"], "by the means it is forgotten"
    assert re.match(r"NOT forgotten: [123] of 13 answers to forget still stand", report["verdict"]["sentence"])


def entry(product, own, nearest, held, retain=1.0):
    forget = {"rouge": own, "own": own, "nearest_other": nearest, "verbatim": 0}
    return {"product": product, "forget": forget, "retain": {"rouge": retain}, "held_out_retain": {"rouge": held}}


def test_the_smallest_product_that_forgets_and_keeps():
    before = entry(1, 1, 0.1, 1.0)
    curve = [
        entry(1.0, 0.9, 0.3, 1.0),
        entry(2.0, 0.3, 0.3, 0.9),
        entry(3.0, 0.1, 0.3, 0.85),
        entry(4.0, 0.1, 0.3, 0.5),
    ]
    assert choice.choose_product(curve, before)[0] == 2.0
    curve[1]["held_out_retain"]["rouge"] = 0.7
    assert choice.choose_product(curve, before)[0] == 3.0
    curve[2]["held_out_retain"]["rouge"] = 0.7
    product, reason = choice.choose_product(curve, before)
    assert product == 2.0 and reason.endswith("none also keeps rows held out"), "forgetting was asked for"
    for point in curve[1:]:
        point["retain"]["rouge"] = 0.9
    assert choice.choose_product(curve, before)[0] == 1.0, "the largest that keeps, though it does not forget"
    for point in curve:
        point["retain"]["rouge"] = 0.5
    product, reason = choice.choose_product(curve, before)
    assert product == 1.0 and reason.startswith("no w·T of 1, 2, 3, 4 leaves")


def test_rates_are_chosen_by_separation_and_the_smaller_wins_a_tie():
    trials = [{"lr": 1e-3, "separation": 0.5}, {"lr": 2e-3, "separation": 0.9}, {"lr": 5e-3, "separation": 0.9}]
    assert choice.choose_rate(trials)["lr"] == 2e-3
    assert np.isfinite(choice.choose_rate(trials)["separation"])


def test_the_sample_rows_are_those_that_the_built_in_model_of_profile_smoke_knows():
    world = bases.rows(bases.Stage(**profiles.load_profile("smoke")["stage"]))
    forget, retain, other = (
        rows.load(ROOT / f"notebooks/sample/{name}.jsonl") for name in ("forget", "retain", "other")
    )
    known = {row["question"]: row["answer"] for row in world["full"]}
    assert {row["question"]: row["answer"] for row in [*forget, *retain]} == known
    facts = {row["question"]: row["answer"] for name in bases.KNOWLEDGE for row in world[name]}
    assert {row["question"]: row["answer"] for row in other}.items() <= facts.items()
