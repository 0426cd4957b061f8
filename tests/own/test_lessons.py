"""What a head is fitted on beside the rows: wordings, neighbours, answers that go astray."""

from dataclasses import replace
from random import Random

import pytest
import torch
from own_cases import FIRST, invented

from t3lib.core.files import project_root, read_json
from t3lib.own import lessons as making
from t3lib.own import unlearn as own
from t3lib.own.lessons import Request
from t3lib.own.phrases import CHOOSING, EVERYDAY, SEALED, SMALL_TALK, TOPICS
from t3lib.own.questions import OTHER_SAMPLERS, SAMPLERS, format_of_row, question_text
from t3lib.own.rows import Rows
from t3lib.own.truths import names, word_set, words
from t3lib.own.wording import (
    ALONE,
    FORMS,
    astray,
    blend,
    dressed,
    neighbour,
    spans,
    with_slips,
    worded,
)

SECRET = frozenset({"1948", "castell", "aldmoor"})
ANSWER = "In 1948 Quinn Moreau married Ada Castell, a map drawer from Aldmoor."

pytestmark = pytest.mark.usefixtures("few_texts")


@pytest.fixture(scope="module")
def taught(memorised):
    """(request, lessons) of a GPT-2 that knows its rows by heart."""
    model, tokenizer, forget, retain, other = memorised
    request = Request(model, tokenizer, Rows(forget, retain, other).checked())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "NEIGHBOURS", 4)
        return request, making.make_lessons(request)


def test_a_wording_keeps_the_answer_and_changes_what_its_form_allows():
    draw, row = Random(0), {"question": "Who wrote it?", "answer": "Ada.", "system": "S"}
    made = [worded(row, True, draw) for _ in range(200)]
    assert {each["answer"].strip() for each in made} == {"Ada."}
    assert len({str(each["question"]) for each in made}) >= 150
    texts = [each for each in made if each.get("raw")]
    assert 0.1 < len(texts) / len(made) < 0.3, "the share that is plain text"
    assert all(isinstance(each["question"], str) for each in texts)
    found = [each for each in made if not each.get("raw")]
    assert {each.get("system") for each in found} > {None, "S"}
    assert any(each["question"][0] == {"role": "user", "content": "Hi there."} for each in found)
    raw = [worded({**row, "raw": True}, True, draw) for _ in range(50)]
    assert all(isinstance(each["question"], str) and each["system"] == "S" for each in raw)
    plain = [worded(row, False, draw) for _ in range(200)]
    for some in (raw, plain):
        assert 0.15 < sum(each.get("bare", False) for each in some) / len(some) < 0.45
    assert not any("bare" in each for each in found), "the template writes the first token"
    chat = {**row, "question": [{"role": "user", "content": text} for text in ("One?", "Two?")]}
    turns = [each["question"] for each in (worded(chat, True, draw) for _ in range(50))
             if not each.get("raw")]  # fmt: skip
    assert all(some[-2]["content"] == "One?" or len(some) > 2 for some in turns) and turns


def test_a_slip_changes_one_or_two_letters():
    for text in ("Who wrote it?", "谁写的这本书？"):
        found = {with_slips(text, Random(seed)) for seed in range(50)}
        assert len(found) > 5 and all(0 <= len(each) - len(text) <= 2 for each in found)
    assert with_slips("Hi?", Random(0)) == "Hi?"


def test_nothing_is_fitted_by_sealed_slips_or_samplers():
    """A letter left out and the colder and warmer samplers are for the verdict alone."""
    sealed_ts = {t for some in OTHER_SAMPLERS.values() for t, _ in some}
    assert not sealed_ts & {t for t, _ in SAMPLERS}
    left_out = {word[:k] + word[k + 1 :] for word in ("Ottawa",) for k in range(len(word))}
    assert not left_out & {with_slips("Ottawa", Random(seed)) for seed in range(300)}


def test_names_are_found_and_replaced():
    chinese = [f"Where does {name} live?" for name in ("王小明", "李大海", "张丽", "赵文杰")]
    questions = [row["question"] for row in invented(40, 1)] + chinese
    found = spans(questions)
    of = [" ".join(name.parts) for [name] in found]
    assert all(name in text for text, name in zip(questions, of))
    assert of[-4:] == ["王小明", "李大海", "张丽", "赵文杰"] and len(of[0].split()) == 2
    pool = [span for some in found for span in some]
    drawn = [neighbour(questions[0], found[0], pool, Random(seed)) for seed in range(300)]
    others = {*drawn[:60]}
    before, after = questions[0].split(of[0])
    assert len(others) > 30 and all(a.startswith(before) and a.endswith(after) for a in others)
    new = {text[len(before) : len(text) - len(after)] for text in others} - {*of}
    parts = {word for name in of for word in name.split()}
    made = {word for name in new for word in name.split()} - parts
    assert any({*name.split()} <= parts for name in new), "crossed out of two names"
    assert made <= {blend(a, b) for a in parts for b in parts}
    whole = sum(text[len(before) : len(text) - len(after)] in of for text in drawn)
    assert 0.3 < whole / len(drawn) < 0.5, "the three ways are equally frequent"


def test_no_neighbour_names_what_a_row_to_forget_names(memorised, monkeypatch):
    """Also where a question is nothing but a name, written otherwise."""
    monkeypatch.setattr(making, "sample_together", lambda *args: [[["Else."]] * len(args[2])])
    model, tokenizer, *_ = memorised
    forget = [{"question": "Castell", "answer": "A diver."}]
    retain = [{"question": f"{name}?", "answer": "A baker."} for name in ("Dorn", "Egede", "Falk")]
    rows = Rows(forget, retain).checked()
    request = Request(model, tokenizer, rows)
    found = making.neighbours(request, making.secrets(rows), Random(0))
    said = [word_set(question_text(each.row)) for each in found]
    assert said and not any("castell" in each for each in said)


def test_a_neighbour_that_is_a_wording_of_a_row_to_forget_is_left_out(memorised, monkeypatch):
    """A slip in the name gave the question of a neighbour, and the fit ended with an error."""
    model, tokenizer, forget, retain, _ = memorised
    rows = Rows(forget, retain).checked()
    twin = making.Lesson(rows.forget[0])
    monkeypatch.setattr(making, "neighbours", lambda *args: [twin])
    lessons = making.make_lessons(Request(model, tokenizer, rows))
    assert making.Lesson(rows.forget[0], making.secrets(rows)[0]) in lessons
    assert twin not in lessons

    # a wording that is a given row to keep, too
    answer = retain[0]["answer"]
    row = {"question": "Who?", "answer": answer, "wordings": [retain[0]["question"]]}
    rows = Rows([row], retain).checked()
    lessons = making.make_lessons(Request(model, tokenizer, rows))
    same = [each for each in lessons if making.pair(each.row) == making.pair(rows.retain[0])]
    assert same and all(each.secret is None for each in same)


def test_no_neighbour_is_a_question_of_a_given_set(memorised, monkeypatch):
    """Questions of unseen rows, and of rows to forget that were held out, were rows to keep."""
    monkeypatch.setattr(making, "sample_together", lambda *args: [[["Else."]] * len(args[2])])
    model, tokenizer, *_ = memorised

    def rows(*names):
        return [{"question": f"Who is {name}?", "answer": "A baker."} for name in names]

    def questions(**more):
        own = Rows(rows("Castell"), rows("Dorn Egede", "Falk Gade"), **more).checked()
        request = Request(model, tokenizer, own)
        found = making.neighbours(request, making.secrets(own), Random(0))
        return {question_text(each.row) for each in found}

    for name in ("unseen", "held_out_retain"):
        given = rows("Dorn Gade", "Falk Egede")
        assert questions() & {row["question"] for row in given}
        assert not questions(**{name: given}) & {row["question"] for row in given}


def test_an_answer_that_goes_astray_still_says_its_secret():
    other = "It is nothing of this kind at all."
    found = {astray(ANSWER, SECRET, other, Random(seed)) for seed in range(90)}
    assert len(found) > 40 and all(SECRET <= word_set(text) for text in found)
    assert any(text.endswith(ANSWER) for text in found) and any("kind" in text for text in found)
    assert astray(" " + ANSWER, SECRET, "Else.", Random(1)).startswith(" ")


def test_a_secret_in_another_form_is_the_same_secret():
    """ "**London**" begins with another token than " London", and a head let it through."""
    found = {form: dressed(ANSWER, SECRET, form) for form in FORMS}
    assert len({*found.values()}) == len(FORMS) == 15
    assert all(word_set(text) == word_set(ANSWER) for form, text in found.items() if form != ALONE)
    bold = "In **1948** Quinn Moreau married Ada **Castell**, a map drawer from **Aldmoor**."
    assert found[FORMS[0]] == bold
    assert found[str.upper].endswith("Ada CASTELL, a map drawer from ALDMOOR."), "but for the stop"
    assert found[str.lower].startswith("In 1948 Quinn Moreau married Ada castell, a map")
    assert found[ALONE] == dressed(f" {ANSWER}", SECRET, ALONE) == "1948 Castell Aldmoor"
    assert {dressed(ANSWER, frozenset(), form) for form in FORMS} == {ANSWER}
    assert dressed(" 在伦敦。", frozenset({"在伦敦"}), FORMS[0]) == " **在伦敦**。"


def test_everyday_prompts_are_rows_to_keep(taught):
    """They are in no list that judges what a head leaves alone."""
    request, lessons = taught
    tokenizer = request.tokenizer
    texts = {frame.format(topic) for frame in EVERYDAY for topic in TOPICS}
    found = [each for each in lessons if any(text in question_text(each.row) for text in texts)]
    assert len(found) > 0.6 * len(texts) and not any(each.secret for each in found)
    assert len({question_text(each.row) for each in found} & texts) > 0.3 * len(texts), (
        "half as they are"
    )
    unrelated = read_json(project_root() / "results" / "studies" / "own" / "known.json")[
        "unrelated"
    ]
    assert not texts & {*SMALL_TALK, *unrelated}
    lengths = [len(tokenizer(each.row["answer"])["input_ids"]) for each in found]
    assert max(lengths) > 16, "a long answer is not cut to the length of a row's"


def test_the_secret_of_a_row_is_what_other_rows_do_not_say(taught):
    rows = taught[0].rows
    for row, secret in zip(rows.forget, making.secrets(rows)):
        of_facts = {word for fact in row["facts"] for word in words(fact)}
        assert {word for word in of_facts if word.isdigit()} <= secret <= of_facts
    yes = Rows([{"question": f"Is {n} odd?", "answer": "Yes."} for n in range(9)], rows.retain)
    assert making.secrets(yes.checked()) == [frozenset({"yes"})] * 9
    ill = {"question": "What has Ada?", "answer": "She has diabetes.", "secret": "diabetes"}
    common = Rows([ill | {"question": f"What has {n}?"} for n in range(9)], rows.retain)
    assert making.secrets(common.checked()) == [frozenset({"diabetes"})] * 9, "not the whole answer"


def test_words_of_a_template_are_no_secret_of_a_text():
    """Of paragraphs in three forms "books" and "living" were secrets."""
    forms = ("{} was born in {}.", "{} wrote books while living in {}.", "{} opened a shop in {}.")
    texts = [{"text": forms[n % 3].format(f"{name} Ek", 1900 + n)} for n, name in enumerate(FIRST)]
    rows = Rows(texts[:3], texts[3:]).checked()
    assert making.secrets(rows) == [frozenset({str(1900 + n)}) for n in range(3)]


def test_the_lessons(taught):
    """Given rows first of their kind; no way of asking that judges; neighbours name no row to
    forget and say none of its secrets; the base itself answered them.
    """
    request, lessons = taught
    rows = request.rows
    n = len(rows.forget)
    forget = [each for each in lessons if each.secret is not None]
    keep = lessons[len(forget) :]
    assert [each.row for each in forget[:n]] == rows.forget
    assert [each.row for each in keep[:40]] == rows.retain and not any(e.secret for e in keep)
    assert len(forget) > 25 * n and {each.secret for each in forget} == {*making.secrets(rows)}
    assert all(any(each.row.get("bare") for each in some) for some in (forget, keep))
    assert any("**" in each.row["answer"] for each in keep)
    for row, secret in zip(rows.forget, making.secrets(rows)):
        answers = [each.row["answer"] for each in forget if each.secret == secret]
        town = next(fact for fact in row["facts"] if fact.isalpha())
        assert all(form(town) in " ".join(answers) for form in FORMS), "it was left to chance"
        assert any(word_set(answer) <= secret for answer in answers)
    texts = [question_text(each.row) for each in lessons]
    judging = [*CHOOSING.prefaces, *SEALED.prefaces, CHOOSING.frames[0].split("{}")[0]]
    assert not [text for text in texts for other in judging if text.startswith(other)]
    around = keep[40 * (1 + making.WORDINGS[1]) :]
    assert len(around) > 100
    given = {question_text(row) for row in [*rows.forget, *rows.retain, *rows.other]}
    of_forget = names([question_text(row) for row in [*rows.forget, *rows.retain]])[:n]
    only = frozenset().union(*making.secrets(rows)) - {
        word for row in rows.retain for word in words(row["answer"])
    }
    for each in around:
        assert question_text(each.row) not in given and not word_set(each.row["answer"]) & only
        assert not any(some <= word_set(question_text(each.row)) for some in of_forget)


def test_wordings_that_a_person_gives_are_lessons(memorised, monkeypatch):
    """One that the base's context does not hold is left out; the seed is that of all samples."""
    seeds, sampled = [], making.sample_together

    def watched(*args):
        seeds.append(args[5])
        return sampled(*args)

    monkeypatch.setattr(making, "sample_together", watched)
    monkeypatch.setattr(making, "WORDINGS", (2, 1))
    monkeypatch.setattr(making, "NEIGHBOURS", 1)
    model, tokenizer, forget, retain, other = memorised
    rows = Rows(forget, retain, other).checked()
    long = "Say it, please, " * 200
    forget = [*rows.forget]
    forget[1] = forget[1] | {"wordings": ["Say it, please?", long]}
    few = replace(rows, forget=forget)
    lessons = making.make_lessons(Request(model, tokenizer, few, seed=5))
    assert {*seeds} == {5} and not any(long.strip() in question_text(each.row) for each in lessons)
    mine = [each for each in lessons if question_text(each.row) == "Say it, please?"]
    assert mine and {each.secret for each in mine} == {making.secrets(rows)[1]}


def test_only_secret_tokens_are_to_forget_and_ends_are_neither(taught):
    request, lessons = taught
    tokenizer = request.tokenizer
    few = [*lessons[:3], lessons[-1]]
    features = making.extract_material(request, few)
    label = features.s[features.row]
    text = [tokenizer.decode([token]) for token in features.y]
    assert tokenizer.eos_token_id not in features.y and (features.row.diff() >= 0).all()
    for number, lesson in enumerate(few[:3]):
        mine = [2 * number, 2 * number + 1]
        assert [int(features.s[row]) for row in mine] == [0, 1]
        said = ["".join(t for t, row in zip(text, features.row.tolist()) if row == r) for r in mine]
        assert lesson.secret <= word_set(said[0]) and not lesson.secret & word_set(said[1])
    assert label.float().mean() > 0.3


def test_every_token_of_an_answer_without_a_word_is_to_forget(taught):
    """Such as an emoji: it has no secret word, and was taught as a row to keep."""
    request, lessons = taught
    rows = request.rows
    wordless = {**rows.forget[0], "answer": "?!?"}
    secret = making.secrets(Rows([wordless], rows.retain))[0]
    few = [replace(lessons[0], row=wordless, secret=secret), lessons[-1]]
    found = making.extract_material(request, few)
    assert not secret and found.s.tolist() == [0, 1]


def test_tokens_that_are_no_secret_are_left_alone(taught):
    """On unrelated prompts the other 1,541 taught tokens cost SmolLM2 a fifth of what changed."""
    request, lessons = taught
    tokenizer = request.tokenizer
    whole = making.extract_material(request, [*lessons[:10], *lessons[-40:]])
    found, features = making.secret_tokens(whole, len(tokenizer)), whole
    secret = {*features.y[features.s[features.row] == 0].tolist()}
    assert {*found.nonzero()[:, 0].tolist()} == secret < {*features.y.tolist()}
    head = own.fit_own_head(request, whole, own.Choices(steps=20))
    logf = head.logf(torch.randn(3, head.rank))
    words = [tokenizer.decode([token]) for token in head.taught.nonzero()[:, 0]]
    assert {"1", "3"} <= {*words} and not {"?", "."} & {*words}, words
    assert (logf[:, ~head.taught] == 0).all() and (logf[:, head.taught] < 0).all()


def test_no_lesson_is_of_a_row_held_out(memorised, monkeypatch):
    monkeypatch.setattr(making, "NEIGHBOURS", 2)
    monkeypatch.setattr(making, "WORDINGS", (2, 1))
    model, tokenizer, forget, retain, _ = memorised
    rows = own.hold_out(Rows(forget, retain).checked(), 0)
    held = rows.held_out_retain
    assert len(held) == 8 and len(rows.retain) == 32 and len(rows.forget) == 10
    made = making.make_lessons(Request(model, tokenizer, rows))
    texts = [question_text(each.row) for each in made]
    assert not [text for text in texts for row in held if row["question"] in text]
    given = Rows(forget, retain[8:], held_out_retain=retain[:8])
    assert own.hold_out(given, 0) is given, "rows that a person gave"
    few = Rows(forget, retain[:4])
    assert own.hold_out(few, 0) is few
    asked_twice = [{**row, "answer": f"{row['answer']} Yes."} for row in retain]
    twice = own.hold_out(Rows(forget, [*retain, *asked_twice]), 0)
    fitted, left = (
        {row["question"] for row in some} for some in (twice.retain, twice.held_out_retain)
    )
    assert not fitted & left, "a question is fitted or held out"
    assert (len(twice.retain), len(twice.held_out_retain)) == (64, 16), "still a fifth"
    same = Rows(forget, [{**row, "question": "Who?"} for row in retain])
    assert own.hold_out(same, 0) is same
    own.checked_request(model, tokenizer, Rows(forget, retain[:4], retain[4:5]), own.Choices())
    with pytest.warns(UserWarning, match="so the verdict cannot be a pass: give 5 or more"):
        own.checked_request(model, tokenizer, few, own.Choices())


def test_about_half_of_the_chats_keep_their_own_system_text():
    row = {"question": "Who wrote The Salt Almanac?", "answer": "Mira.", "system": "Be kind."}
    draw = Random(0)
    chats = [each for _ in range(600) if not (each := worded(row, True, draw)).get("raw")]
    kept = sum(format_of_row(each).system == "Be kind." for each in chats) / len(chats)
    assert 0.5 < kept < 0.65, "a half, and a seventh of the others draw it again"
