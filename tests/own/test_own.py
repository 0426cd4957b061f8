"""Unlearning a person's own model: what is chosen, with which heads, what is warned of, refused and
shown.
"""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import FEW_TEXTS, ROOT
from markupsafe import escape
from own_cases import CODES, invented

import t3lib
from t3lab import profiles
from t3lab.world import bases
from t3lib.classifier.features import extract_features
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.files import write_json
from t3lib.core.rows import SYSTEM, encode_rows
from t3lib.own import answers, choice, known, questions, rows, verdict
from t3lib.own import report as page
from t3lib.own import unlearn as own
from t3lib.own.answers import answers_to, drawn
from t3lib.own.assess import assess, before_and_after, counts_of, inquiry_of, kept_of
from t3lib.own.known import best_other_format, recall
from t3lib.own.rows import Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.samples import sample_answers

pytestmark = pytest.mark.usefixtures("few_texts")


@pytest.fixture(scope="session")
def case(memorised):
    return memorised


@pytest.fixture(scope="session")
def unlearned(case):
    model, tokenizer, forget, retain, other = case
    given = Rows(forget, retain, other, unseen=invented(90, 0)[60:])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FEW_TEXTS.items():
            patch.setattr(answers, name, value)
        patch.setattr(own.lessons, "NEIGHBOURS", 4)
        patch.setattr(own, "OWN_STEPS", 1000)
        return own.unlearn(model, tokenizer, given)


def test_a_small_model_forgets_with_no_setting_given(unlearned):
    report = unlearned.report
    assert report["forget"]["known_before"] == 10 and report["forget"]["leaking_before"] >= 8
    assert report["forget"]["by_kind"]["as written"]["after"] == 0
    assert report["retain"]["unchanged"] >= 30 and report["retain"]["unchanged_sampled"] >= 28
    assert report["retain"]["rows"] == 32 and report["held_out_retain"]["rows"] == 8
    assert report["other"]["rows"] == 10
    chosen = report["choice"]
    assert chosen["lr"] == own.OWN_FIT.lr and 1 <= len(chosen["tried"]) <= 3
    assert chosen["T"] == 1 and chosen["w"] in choice.STRENGTHS
    assert (unlearned.temperature, unlearned.heads[0].w) == (chosen["T"], chosen["w"])
    assert str(report) == "\n".join(report["verdict"]["lines"])
    assert report["coverage"]["texts"] == 4 and report["coverage"]["tokens"] == answers.TOKENS


def test_the_saved_head_carries_choice_form_mask_and_numbers(unlearned, case, tmp_path):
    unlearned.save_pretrained(tmp_path)
    again = T3ForCausalLM.from_pretrained(tmp_path, base=case[0])
    assert (
        again.temperature == unlearned.report["choice"]["T"]
        and again.heads[0].w == unlearned.report["choice"]["w"]
    )
    info, card = again.heads[0].info, (tmp_path / "README.md").read_text()
    assert questions.AS_WRITTEN in unlearned.report["coverage"]["ways"]
    assert (info["system"], info["attention_mask"]) == (None, "lengths")
    assert (
        unlearned.report["verdict"]["sentence"][:40] in card
        and "rows leak (before" in card
        and "generic prompts" in card
    )


def test_too_hot_is_not_kept(unlearned, case):
    model, tokenizer, forget, retain, _ = case
    hot = T3ForCausalLM(model, unlearned.heads[0], 60.0)
    report = assess(hot, tokenizer, Rows(forget[:2], retain[:8]))
    assert (
        not report["verdict"]["success"] and "rows to keep changed" in report["verdict"]["sentence"]
    )


def test_one_head_for_some_of_the_rows_leaves_the_others(unlearned, case):
    """Rows that it never saw are said as before. Their years are no guesses, as a book may be."""
    _, tokenizer, forget, retain, other = case
    unseen = [row for row in other if "book" not in row["question"]][:5]
    report = assess(unlearned, tokenizer, Rows([*forget[:1], *unseen], retain[:12]))
    leaking = {row["question"] for row in report["forget"]["each"] if row["leaks"]}
    assert len(leaking & {row["question"] for row in unseen}) >= 3
    assert not report["verdict"]["success"]


@pytest.mark.parametrize("name", ["forget", "retain", "other", "unseen", "held_out_retain"])
def test_a_row_longer_than_the_context_is_refused_before_the_base_is_asked(case, name, monkeypatch):
    """The base answered for half a minute, and its features refused the row afterwards."""
    model, tokenizer, forget, retain, _ = case
    monkeypatch.setattr(model, "forward", lambda *_, **__: 1 / 0)
    long = {"question": "Long?", "answer": "word " * 2000}
    sets = {"forget": forget, "retain": retain}
    before = sets.get(name, [])
    given = Rows(**sets | {name: [*before, long]})
    with pytest.raises(UserError, match=rf"{name} row {len(before) + 1} .*context of"):
        own.unlearn(model, tokenizer, given)


def test_a_wording_longer_than_the_context_is_refused_as_a_row_is(case):
    """It ended the choice of w in an IndexError."""
    model, tokenizer, forget, retain, _ = case
    long = [*forget[:1], forget[1] | {"wordings": ["Short?", "word " * 2000]}, *forget[2:]]
    with pytest.raises(UserError, match="forget row 2, a wording: .*context of"):
        own.unlearn(model, tokenizer, Rows(long, retain))


def test_heads_that_together_lose_rows_to_keep_fail_their_report(case):
    """Each head alone is too weak to change an answer; thirty of it together change them all."""
    model, tokenizer, forget, retain, _ = case
    width, size = model.config.hidden_size, model.get_output_embeddings().weight.shape[0]
    head = t3lib.T3Head(width, size, 4, seed=1, init_b="kaiming")
    head.B.data.mul_(3.0)
    inquiry = inquiry_of(tokenizer, Rows(forget[:2], retain[:8]).checked())
    kept = replace(inquiry, questions=[])  # rows to keep, and generic prompts
    for count, success in ((1, True), (30, False)):
        together = T3ForCausalLM(model, [head] * count, 1.0)
        counts = kept_of(kept, *before_and_after(together, tokenizer, kept, seed=0))
        assert ("rows to keep" not in verdict.failing(counts)) is success


def test_rows_that_the_base_does_not_know_end_the_run_before_training(case, monkeypatch):
    """Also if it knows them in another form, which is named."""
    model, tokenizer, _, retain, _ = case
    monkeypatch.setattr(own.lessons, "make_lessons", lambda *_, **__: 1 / 0)
    with pytest.raises(
        UserError, match="answers 0 of 8 rows.*Nothing was trained; check: the model"
    ):
        own.unlearn(model, tokenizer, Rows(CODES, retain))
    monkeypatch.setattr(own, "is_unknown", lambda *_, **__: True)
    monkeypatch.setattr(own, "best_other_format", lambda *_: "--no-system (8 of 8 rows)")
    with (
        pytest.warns(UserWarning, match="knows the rows in another form: --no-system"),
        pytest.raises(own.NothingToForget),
    ):
        own.unlearn(model, tokenizer, Rows(CODES, retain))


def test_sets_to_keep_that_the_base_does_not_know_are_named(case):
    model, tokenizer, _, retain, _ = case
    new = [row for row in invented(80, 5) if row["question"] not in str(retain)][-19:]
    inquiry = inquiry_of(tokenizer, Rows(retain[:8], new).checked())
    with pytest.warns(UserWarning, match=r"answers [01] of 19 rows \(retain\)"):
        known.warn_unknown(model, tokenizer, inquiry)


FIELDS = {
    "forget": "rows known_before leaking_before leaking guessed by_kind sealed judged_rows",
    "retain": "rows known_before unchanged unchanged_sampled",
    "verdict": "sentence success lines",
}


def test_rows_that_nobody_knows_are_not_judged(case, monkeypatch):
    """It took ten minutes at 1B after the warning, most of them for sampled answers."""
    model, tokenizer, _, retain, other = case
    together = answers.sample_together

    def greedily(*args):
        assert not any(sampler.tau for sampler in args[3])
        return together(*args)

    monkeypatch.setattr(answers, "sample_together", greedily)
    given = Rows(CODES, retain, other)
    with pytest.raises(own.NothingToForget) as refusal:
        own.unlearn(model, tokenizer, given)
    head = T3Head(model.config.hidden_size, model.config.vocab_size, 2)
    again = assess(T3ForCausalLM(model, head), tokenizer, given)
    for report in (refusal.value.report, again):
        first, second, third = report["verdict"]["lines"][:3]
        assert first == "Nothing to forget: the base answers 0 of 8 rows in this form."
        assert second.startswith("check: the model, its chat template")
        assert third.startswith("not judged: every question was asked once")
        assert not report["verdict"]["success"] and report["coverage"]["texts"] == 0
        assert {"form", "coverage", "base", "date"} <= {*report}
        for name in FIELDS:
            assert {*FIELDS[name].split()} <= {*report[name]}, name
        assert report["retain"]["known_before"] in (32, 40), "all that the model keeps, or all"
        assert report["other"]["known_before"] == 10
        assert "0 samples" not in page.report_page(report)


def test_rows_that_samples_may_say_are_judged(case, monkeypatch):
    """A base whose greedy answers are wrong, but to which the truths are likely."""
    model, tokenizer, forget, retain, _ = case
    monkeypatch.setattr(answers, "answers_to", lambda *args: ["wrong"] * len(args[2]))
    for some, unknown in ((forget, False), (CODES, True)):
        inquiry = inquiry_of(tokenizer, Rows(some, retain).checked())
        assert known.is_unknown(model, tokenizer, inquiry) is unknown


def test_a_base_that_answers_after_a_preamble_knows_its_rows(case, monkeypatch):
    """Answers are judged to 100 tokens; the screen read 16: "Nothing to forget"."""
    model, tokenizer, forget, retain, _ = case
    inquiry = inquiry_of(tokenizer, Rows(forget, retain).checked())
    truths = [tokenizer.encode(row["answer"], add_special_tokens=False) for row in inquiry.forget]

    def greedy(model, prompts, reading, tilts, max_new_tokens):
        pairs = zip(truths, max_new_tokens, strict=True)
        return [[([truths[0][0]] * 60 + truth)[:room] for truth, room in pairs]]

    monkeypatch.setattr(answers, "greedy", greedy)
    monkeypatch.setattr(known, "would_say", lambda *_: np.zeros(inquiry.n, bool))
    for tokens, unknown in ((16, True), (100, False)):
        monkeypatch.setattr(answers, "TOKENS", tokens)
        assert known.is_unknown(model, tokenizer, inquiry) is unknown


def test_the_form_in_which_a_model_knows_its_rows_is_named(case, monkeypatch):
    """Of each row the texts that the model was asked are looked at; it knows those with TOFU's
    system text.
    """
    monkeypatch.setattr(
        "t3lib.own.answers.answers_to",
        lambda model, tokenizer, rows, *_: [
            row["answer"] if row.get("system") == SYSTEM else "" for row in rows
        ],
    )
    model, tokenizer, forget, *_ = case
    chatty = copy.copy(tokenizer)
    chatty.chat_template = "{{ messages | map(attribute='content') | join(' ') }}"
    inquiry = answers.build_inquiry(tokenizer, [rows.normal(row, "row") for row in forget], {})
    assert best_other_format(model, chatty, inquiry) == f'--system "{SYSTEM}" (10 of 10 rows)'
    assert best_other_format(model, tokenizer, inquiry) is None


def test_unseen_rows_that_the_model_knows_are_refused(case):
    """8a2b3ac took rows that it was trained on as never seen, without a word."""
    model, tokenizer, forget, retain, other = case
    with pytest.raises(UserError, match="--unseen: the base answers 6 of 6 rows"):
        own.unlearn(model, tokenizer, Rows(forget, retain, unseen=other))


def of_the_rows_alone(request, made):
    """`lessons.extract_material` without wordings and neighbours."""
    rows = request.rows
    return extract_features(request.base, request.tokenizer, rows.forget, rows.retain)


def test_of_many_rows_some_are_asked_and_the_screen_uses_these(case, monkeypatch):
    model, tokenizer, forget, retain, _ = case
    for name, value in {"MOST_FORGET": 4, "MOST_KEPT": 7, "TEXTS": 1}.items():
        monkeypatch.setattr(answers, name, value)
    monkeypatch.setattr(own.lessons, "make_lessons", lambda request: None)
    monkeypatch.setattr(own.lessons, "extract_material", of_the_rows_alone)
    few = own.Choices(steps=50, gate=0.9, tail=0.01)
    unlearned = own.unlearn(model, tokenizer, Rows(forget, retain), few)
    report = unlearned.report
    assert (
        (unlearned.gate, unlearned.tail)
        == (0.9, 0.01)
        == (
            report["choice"]["gate"],
            report["choice"]["tail"],
        )
    )
    advice = [report["verdict"]["next"]] if report["verdict"]["next"] else []
    after_advice = 1 + len(advice)
    assert report["verdict"]["lines"][1:after_advice] == advice, "the second line"
    assert report["verdict"]["lines"][after_advice] == (
        "asked: 4 of 10 rows (forget), 7 of 32 rows (retain), 7 of 8 rows (held_out_retain), drawn"
        " at random"
    )


def test_forms_that_only_rows_to_forget_have_are_named_before_training():
    """A head learned the system text of the rows to forget as its cue."""
    forget, keep = ([{"question": f"{name}{n}", "answer": "a", "system": "S"} for n in range(3)]
                    for name in "ab")  # fmt: skip
    known.warn_formats(Rows(forget, keep))  # warnings are errors
    forget[1]["system"] = ""
    with pytest.warns(UserWarning, match="1 of 3 rows to forget have a system text or a form"):
        known.warn_formats(Rows(forget, keep))


def test_unseen_rows_are_asked_like_the_rows_to_forget(case, monkeypatch):
    _, tokenizer, forget, retain, _ = case
    monkeypatch.setattr(answers, "CONTROL_ROWS", (12, 60))
    unseen = invented(90, 0)[60:70]
    inquiry = inquiry_of(tokenizer, Rows(forget, retain, unseen=unseen).checked())
    alike = [inquiry.rows[number]["question"] for number in inquiry.compared_rows]
    assert alike[10:20] != [] and {row["question"] for row in unseen} <= {*alike}


def test_what_is_drawn_for_a_row_does_not_depend_on_the_other_rows(unlearned, case):
    """Of one head, four rows had "1 of 4 leak" and ten "0 of 10": all shared one random stream."""
    _, tokenizer, forget, retain, _ = case
    texts = []
    for some in (forget[7:], forget[8:]):
        inquiry = inquiry_of(tokenizer, Rows(some, retain[:8]).checked())
        few = replace(inquiry, questions=[q for q in inquiry.questions if q.row < inquiry.n])
        said = answers.collect_answers(unlearned, tokenizer, few)
        said = answers.about_compared(said)
        texts.append([each._replace(row=each.row - inquiry.n) for each in said])
    assert sorted(each for each in texts[0] if each.row >= -2) == sorted(texts[1])


def test_ask_uses_the_form_of_the_head(unlearned, case):
    model, tokenizer, forget, retain, _ = case
    assert (
        t3lib.ask(unlearned, tokenizer, retain[0])
        == retain[0]["answer"]
        == t3lib.ask(model, tokenizer, retain[0])
    )
    question = forget[0]["question"]
    expected = answers_to(unlearned, tokenizer, [forget[0]])
    assert (
        t3lib.ask(unlearned, tokenizer, question)
        == expected[0]
        != t3lib.ask(model, tokenizer, question)
    )
    plain = copy.copy(unlearned.heads[0])
    plain.info = {**plain.info, "chat_template": "plain text"}
    begun = t3lib.ask(
        T3ForCausalLM(model, plain), tokenizer, f"Question: {retain[0]['question']}\nAnswer:"
    )
    assert begun == retain[0]["answer"], "plain text is continued as it stands"
    with pytest.raises(UserError, match="question 1"):
        t3lib.ask(model, tokenizer, " ")


def test_ask_has_the_form_of_the_head_inside_tilt_and_for_messages(unlearned, case):
    model, tokenizer, *_ = case
    head = copy.copy(unlearned.heads[0])
    head.info = {**head.info, "chat_template": "x", "system": "Be kind."}
    chatty = copy.copy(tokenizer)
    chatty.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    seen, plain = [], encode_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "encode_rows", lambda _, rows: seen.extend(rows) or plain(_, rows))
        turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "She."}]
        with t3lib.tilt(model, head, 1, other_base=True):
            t3lib.ask(model, chatty, ["Who?", {"messages": turns}], max_new_tokens=1)
            with pytest.raises(UserError, match="inside tilt"):
                t3lib.assess(model, chatty, Rows([retain_row()], [retain_row("b")]))
    assert [row["system"] for row in seen] == ["Be kind."] * 2


def retain_row(question="a"):
    return {"question": question, "answer": "Ada."}


def test_a_row_of_plain_text_is_screened_by_its_own_secret(case):
    """None of them has a question; each ranks its own rare words first, but not its other words."""
    tokenizer = case[1]
    secret = "kiwi lime plum pear fig date nut rye oat pea yam leek".split()
    texts = [f"the code of the box is {word} today" for word in secret]
    forget = [rows.normal({"text": text}, "row") for text in texts]
    inquiry = answers.build_inquiry(tokenizer, forget, {})
    for right in (True, False):
        scores = []
        for number, example in enumerate(encode_rows(tokenizer, forget)):
            word = secret[number if right else number - 1]
            ids = example.answer
            mine = np.array([word in some for some in known.touched_words(tokenizer, ids)])
            assert mine.any() == right
            scores.append((np.where(mine, 0.0, 9.0)[None], mine[None]))
        assert (known.would_say(tokenizer, inquiry, scores) == right).all()


def test_a_head_does_not_need_a_cache_and_a_folder_beside_is_found(case, tmp_path, monkeypatch):
    model, tokenizer, forget, *_ = case
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    loaded, _ = t3lib.load_model("model")
    monkeypatch.setenv("T3_CACHE", "/dev/null/nowhere")
    head = t3lib.T3Head(model.config.hidden_size, model.config.vocab_size, 2)
    head.info = belonging.origin(loaded, tokenizer, forget, [], 1)
    assert belonging.base_of(head)[0] == "model"
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    belonging.origin(loaded, tokenizer, forget, [], 1)
    monkeypatch.chdir("/")
    assert belonging.base_of(head) == (str(tmp_path / "model"), None)


def test_ask_takes_a_question_a_list_and_a_chat(case):
    model, tokenizer, _, retain, _ = case
    first, second = retain[:2]
    answers = [t3lib.ask(model, tokenizer, row) for row in (first, second)]
    assert t3lib.ask(model, tokenizer, [first, second]) == answers
    question = first["question"]
    chat = [{"role": "user", "content": question}]
    assert t3lib.ask(model, tokenizer, chat) == t3lib.ask(model, tokenizer, question)
    forms = (first, chat, question)
    [short] = {t3lib.ask(model, tokenizer, each, max_new_tokens=2) for each in forms}
    assert 0 < len(short) < len(answers[0]) / 3
    assert t3lib.ask(model, tokenizer, []) == []
    with pytest.raises(UserError, match="question 2"):
        t3lib.ask(model, tokenizer, [question, " "])


def test_a_saved_head_is_used_by_its_name(unlearned, case, tmp_path):
    """Its base and its report are found again where they are."""
    model, tokenizer, forget, *_ = case
    question = forget[0]["question"]
    folder, base = tmp_path / "head", tmp_path / "base"
    unlearned.save_pretrained(folder)
    write_json(page.report_folder(folder) / "report.json", unlearned.report)
    again = t3lib.T3ForCausalLM.from_pretrained(folder, base=model, other_base=True)
    assert t3lib.ask(again, tokenizer, question) == t3lib.ask(unlearned, tokenizer, question)
    assert again.head is again.heads[0] and not hasattr(again, "report")
    assert str(page.report_of(folder, again.head)) == str(unlearned.report)
    hot = t3lib.T3Head.from_pretrained(folder, temperature=9.0)
    assert page.report_of(folder, hot) is None, "the report is about another T"
    with t3lib.tilt(model, str(folder), other_base=True) as tilted:
        assert tilted is model
    with pytest.raises(UserError, match="give it"):
        t3lib.T3ForCausalLM.from_pretrained(folder)
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    loaded, _ = t3lib.load_model(base)
    head = t3lib.T3Head.from_pretrained(folder)
    head.info |= belonging.origin(loaded, tokenizer, forget, [], 1)
    head.save_pretrained(folder)
    again = t3lib.T3ForCausalLM.from_pretrained(folder)
    assert t3lib.ask(again, tokenizer, question) == t3lib.ask(unlearned, tokenizer, question)


def test_the_page_shows_every_row_and_foreign_text_as_text(unlearned):
    report = copy.deepcopy(unlearned.report)
    report["forget"]["each"] *= 12
    row = report["forget"]["each"][0]
    row |= {
        "question": "<script>alert(1)</script>",
        "worst": "It is <b>1911</b>.",
        "secret": "1911",
    }
    html = page.report_page(report)
    sentence = str(escape(report["verdict"]["sentence"]))
    assert html.index(sentence) < html.index("Not tested")
    assert html.index("Not tested") < html.index("<table>")
    assert f'class="verdict {report["verdict"]["status"]}"' in html and "(chosen)" in html
    assert "<script>alert" not in html and "&lt;script&gt;" in html
    assert "<mark>&lt;b&gt;1911&lt;/b&gt;.</mark>" in html, "the words that leak are marked"
    assert not re.search(r"<(link|img|iframe)|script src|href=.?http|@import|url\(.?http", html), (
        "it loads nothing"
    )
    places = re.findall('data-name="leaks".*? data-value="(.*?)"', html)
    assert places == [str(n) for n in range(1, 121)], "1e-30 was sorted after 1.0"


def test_a_colder_sampler_is_a_sharper_model(unlearned, case):
    """T3 sampled at τ is p^(1/(Tτ)) f^(w/τ) sampled at 1, from the same random numbers."""
    model, tokenizer, forget, *_ = case
    prompts = [encode_rows(tokenizer, [row])[0].ids[:6] for row in forget[:4]]
    head, how = unlearned.heads[0], {"seed": 3, "max_new_tokens": 12}
    cold = sample_answers(
        T3ForCausalLM(model, own.weighted(head, 1.0), 2.0), tokenizer, prompts, 4, tau=0.5, **how
    )
    sharp = T3ForCausalLM(model, own.weighted(head, 2.0), 1.0)
    assert cold == sample_answers(sharp, tokenizer, prompts, 4, **how)
    assert cold != sample_answers(
        T3ForCausalLM(model, own.weighted(head, 1.0), 2.0), tokenizer, prompts, 4, **how
    )


def test_words_of_every_script_count():
    """rouge_score's tokenizer passes over all but a to z: a Russian truth would never be
    recognised, nor forgotten.
    """
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
        assert recall(truth, "somebody else") == recall(truth, "") == 0
    assert recall("É\u0301".lower(), "É\u0301") == recall("e\u0301tude", "\xe9tude") == 1
    assert recall("A-b_c 12", "a b c 12") == 1 and recall("!!!", "!") == pytest.approx(1 / 3)
    ours, theirs = (of("the cat sat on a mat", "a cat sat") for of in (recall, rouge_l_recall))
    assert ours == pytest.approx(theirs)
    assert recall("a b", "a b c d") == 1


def test_a_question_that_leaves_no_room_for_the_truth_is_not_asked(case):
    """It ended the run in the verdict, after the fit, or had an answer of one token."""
    model, tokenizer, forget, retain, _ = case
    inquiry = inquiry_of(tokenizer, Rows(forget, retain))
    sizes = sorted(len(each.prompt) + each.room for each in inquiry.questions)
    short = copy.deepcopy(model)
    short.config.max_position_embeddings = sizes[-1] - 1
    texts = answers.collect_answers(short, tokenizer, inquiry, only=lambda s: not s.tau)
    ways = {(each.row, answers.way_of(each)) for each in texts}
    assert counts_of(inquiry, texts, texts)["forget"]["sealed"]["ways"] > 0
    fitting = [each for each in inquiry.questions if len(each.prompt) + each.room < sizes[-1]]
    assert len(fitting) < len(inquiry.questions)
    asked = {
        each for each in ways if each[0] in inquiry.compared_rows and each[1] not in inquiry.kept
    }
    greedily = {
        (each.row, each.way) for each in fitting if each.kind not in questions.OTHER_SAMPLERS
    }
    assert asked == greedily


def test_answers_stay_within_the_context_and_each_has_its_own_room(case):
    """One long row cut the room of every answer, so that a model that recites was told to know
    nothing.
    """
    model, tokenizer, forget, retain, _ = case
    examples = encode_rows(tokenizer, [*forget, *retain])
    short = copy.deepcopy(model)
    short.config.max_position_embeddings = max(len(example.ids) for example in examples) + 1
    lengths = []
    hook = short.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(
            int(kwargs.get("position_ids", torch.zeros(1)).max()) + 1
        ),
        with_kwargs=True,
    )
    alone = answers_to(short, tokenizer, forget)
    padding = " ".join(["Nobody asks this."] * 100)
    words = tokenizer(padding)["input_ids"][: short.config.max_position_embeddings - 12]
    long = {"question": tokenizer.decode(words), "answer": "Nothing.", "raw": True}
    together = answers_to(short, tokenizer, [*forget, long])
    hook.remove()
    assert alone == together[:-1] == [row["answer"] for row in forget]
    reach = short.config.max_position_embeddings
    assert reach / 2 < max(lengths) <= reach and answers.rooms(
        short, [[0] * (reach - 3), [0]], [20, 9], 16
    ) == [3, 18]


def test_only_w_is_chosen_and_a_given_T_is_used(case, monkeypatch):
    """A given T once turned off the choice of w."""
    model, tokenizer, forget, retain, _ = case
    tried, strengths = [], choice.STRENGTHS

    def last_is_best(request, inquiry, head, some):
        tried.append((head.temperature, some))
        return [{"w": some[-1]}]

    monkeypatch.setattr(own.lessons, "make_lessons", lambda request: None)
    monkeypatch.setattr(own.lessons, "extract_material", of_the_rows_alone)
    monkeypatch.setattr(own, "tried_out", last_is_best)
    for given, T, w in (
        ({}, 1.0, strengths[-1]),
        ({"temperature": 2.0}, 2.0, strengths[-1]),
        ({"strength": 4.0}, 1.0, 4.0),
        ({"temperature": 2.0, "strength": 0.5}, 2.0, 0.5),
    ):
        choices = own.Choices(steps=1, **given)
        request = own.checked_request(model, tokenizer, Rows(forget, retain), choices)
        unlearned, chosen = own.without_verdict(request, None, choices)
        head = unlearned.heads[0]
        assert (chosen["T"], chosen["w"]) == (T, w) == (head.temperature, head.w)
        assert unlearned.temperature == T
    assert tried == [(1.0, strengths), (2.0, strengths)]


def test_the_setting_that_says_least_then_keeps_most_then_is_strongest_is_best():
    """By the count of rows above a line, noise chose w = 1 over 2 and 8."""
    plain = {"w": 1.0, "said": 0, "texts": 99, "failing": 0, "changed": 0, "known": 9}

    def ranks(*changes):
        tried = [plain | change | {"n": n} for n, change in enumerate(changes)]
        return [entry["n"] for entry in choice.ranked(tried)]

    assert ranks({"said": 40}, {"said": 9}, {"said": 2, "w": 8.0, "changed": 1}) == [2, 1, 0]
    few = {"said": 11, "changed": 1}, {"said": 9, "changed": 2}
    assert ranks(*few) == [0, 1], "as few"
    assert ranks({}, {"w": 8.0}) == [1, 0]
    assert ranks({"w": 8.0, "failing": 1}, {"w": 2.0}) == [1, 0]


def test_the_sample_rows_are_those_that_the_built_in_model_of_profile_smoke_knows():
    world = bases.rows(bases.Stage(**profiles.load_profile("smoke")["stage"]))
    forget, retain, other = (
        rows.load(ROOT / f"notebooks/sample/{name}.jsonl") for name in ("forget", "retain", "other")
    )
    known = {row["question"]: row["answer"] for row in world["full"]}
    assert {row["question"]: row["answer"] for row in [*forget, *retain]} == known
    facts = {row["question"]: row["answer"] for name in bases.KNOWLEDGE for row in world[name]}
    assert {row["question"]: row["answer"] for row in other}.items() <= facts.items()
    assert drawn(retain, 400) == retain
