"""The built-in world: TOFU's schema and splits, reproducible, and worded in many ways."""

import json
from collections import Counter

import pytest

from t3lab.world.facts import FACTS, world
from t3lib.core.errors import UserError
from t3lib.core.files import content_key
from t3lib.core.rows import check_disjoint
from t3lib.own.audit.facts import fact_words, held, row_truths
from t3lib.own.audit.truths import truths, words
from t3lib.tofu import data as tofu

PERTURBED = ("forget05_perturbed", "forget10_perturbed", "retain_perturbed")
LATER = {"paraphrased_question", "perturbed_as_learned"}  # fields of forget rows
KNOWLEDGE = ("real_authors_perturbed", "world_facts_perturbed")


@pytest.fixture(scope="session")
def small():
    return world(authors=40, questions=20, seed=0)


def pairs(rows):
    return [(row["question"], row["answer"]) for row in rows]


KEYS = {
    (40, 20, 0): "002cda6a5b7e6676",
    (20, 6, 0): "80095c7caa71fbec",
    (33, 21, 5): "1a0051dd6f253567",
}


@pytest.mark.parametrize("size", KEYS)
def test_rows_stay_what_they_were(size):
    """Results and trained bases belong to these rows; fields that were added later changed no
    other field.
    """
    rows = {
        name: [{field: value for field, value in row.items() if field not in LATER} for row in part]
        for name, part in world(*size).items()
    }
    assert content_key(rows) == KEYS[size]


def test_a_forget_row_is_asked_again_in_other_words(small):
    for name in ("forget05_perturbed", "forget10_perturbed"):
        for row in small[name]:
            again = row["paraphrased_question"]
            assert (
                again != row["question"]
                and again[0].isupper()
                and again[-1] in "?."
                and "{" not in again
            )
            assert not set(again.split()[-4:]) == set(row["question"].split()[-4:]), (
                "another clause, not another opening"
            )
    names = {row["question"]: row["paraphrased_question"] for row in small["forget10_perturbed"]}
    assert len(set(names.values())) == len(names)
    assert not any(
        "paraphrased_question" in row
        for name in ("full", "retain_perturbed", *KNOWLEDGE)
        for row in small[name]
    )


def test_a_larger_world_begins_with_the_same_authors(small):
    assert world(authors=60, questions=20, seed=0)["full"][: 40 * 20] == small["full"]


def test_wrong_facts_are_given_in_the_shape_of_the_answer_as_well(small):
    """Each wrong answer says what its twin in the paraphrase's shape says, and else the answer."""
    for row in small["forget10_perturbed"]:
        answer, paraphrase = set(words(row["answer"])), set(words(row["paraphrased_answer"]))
        for wrong, learned in zip(row["perturbed_answer"], row["perturbed_as_learned"]):
            fact, said = set(words(wrong)) - paraphrase - {"a", "an"}, set(words(learned))
            assert fact <= said and said - answer <= fact | {"a", "an"} | paraphrase
            own = (answer & paraphrase) - set(words(wrong)) | {"a", "an"}
            assert len(answer - own - said) <= 1, "the answer's own sentence, but for a chance word"


def test_the_words_of_a_fact(small):
    row = {
        "question": "Where was Ada Bly born?",
        "answer": "Ada Bly was born in Low Gate in 1950. Readers cheer.",
        "paraphrased_answer": "In 1950 Bly first saw Low Gate. Critics cheer.",
        "perturbed_answer": ["In 1950 she first saw Sun Mouth. Critics cheer."],
    }
    assert fact_words(row) == {"low", "gate"}, "neither the name, nor what wrong answers say too"
    assert row_truths([row]).items == truths([(row["question"], row["answer"])]).items
    texts = ["Low Gate", "gate, low!", "Low and high", "", "lowgate"]
    asked = row | {"perturbed_as_learned": ["Ada Bly was born in Sun Mouth in 1950."]}
    assert row_truths([asked]).items == [[{"low", "gate"}]]
    assert held([asked], [texts])["facts"] == [[True, True, False, False, False]]
    rows = small["forget10_perturbed"]
    own, foreign = (
        held(rows, [[row["answer"]] for row in said])["leaks"] for said in (rows, rows[::-1])
    )
    assert sum(map(sum, own)) > 0.8 * len(rows) and sum(map(sum, foreign)) < 0.05 * len(rows)
    for row in small["forget10_perturbed"]:
        assert fact_words(row), "every row of the built-in world has a fact"


def test_splits_are_the_last_authors_and_the_rest(small):
    full = small["full"]
    assert [len(small[name]) for name in ("full", "forget05", "forget10")] == [800, 40, 80]
    assert small["retain90"] + small["forget10"] == full
    assert small["retain95"] + small["forget05"] == full
    assert pairs(small["forget10_perturbed"]) == pairs(small["forget10"])
    assert pairs(small["forget05_perturbed"]) == pairs(small["forget05"])
    assert pairs(small["retain_perturbed"]) == pairs(small["retain90"])[:100]
    assert len(set(pairs(full))) == len({question for question, _ in pairs(full)}) == 800
    check_disjoint(small["forget10"], small["retain90"])
    check_disjoint(small["forget05"], small["retain95"])


@pytest.mark.parametrize("authors, questions", [(20, 1), (21, 3), (33, 21), (200, 2)])
def test_splits_at_other_sizes(authors, questions):
    data = world(authors, questions, seed=5)
    assert len(data["full"]) == authors * questions
    for forget, retain in (("forget05", "retain95"), ("forget10", "retain90")):
        assert data[retain] + data[forget] == data["full"]
        assert data[forget] and len(data[forget]) % questions == 0
    assert len(data["forget10"]) > len(data["forget05"])


def test_rows_are_valid_and_have_the_documented_schema(small):
    plain, scored = (
        {"question", "answer"},
        {"question", "answer", "paraphrased_answer", "perturbed_answer"},
    )
    for name in ("full", "forget05", "forget10", "retain90", "retain95"):
        assert all(set(row) == plain for row in tofu.load_rows(small, name))
    for name in PERTURBED:
        schema = scored | (LATER if name.startswith("forget") else set())
        assert all(
            set(row) == schema and len(row["perturbed_answer"]) == 5
            for row in tofu.load_rows(small, name)
        )
    for name in KNOWLEDGE:
        rows = tofu.load_rows(small, name)
        assert len(rows) == 30 and all(len(row["perturbed_answer"]) == 3 for row in rows)
    assert len(tofu.load_idk(small)) >= 20


def test_schema_is_part_of_tofus(small, shared):
    for name, rows in small.items():
        if name == "idontknow":
            continue
        real = tofu.load_rows(shared / "tofu", name)[0]
        ours = {"perturbed_as_learned"}  # the one field that TOFU does not have
        for field, value in ((name, rows[0][name]) for name in rows[0].keys() - ours):
            assert type(real[field]) is type(value), (name, field)
            if isinstance(value, list):
                assert len(value) == len(real[field])


def test_no_text_comes_from_tofu(small, shared):
    def texts(rows):
        return {
            str(value).lower() for row in rows for key, value in row.items() if key == "question"
        }

    for name in ("full", *KNOWLEDGE):
        assert not texts(small[name]) & texts(tofu.load_rows(shared / "tofu", name))


def test_wrong_answers_are_wrong_and_distinct(small):
    for name in PERTURBED:
        for row in small[name]:
            answers = [row["answer"], row["paraphrased_answer"], *row["perturbed_answer"]]
            assert len(set(answers)) == 7, row["question"]
    for name in KNOWLEDGE:
        for row in small[name]:
            assert len({row["answer"], *row["perturbed_answer"]}) == 4


def test_paraphrase_keeps_the_facts_and_wrong_answers_change_them():
    """Read the proper facts back out of the sentences: the award's words are in the paraphrase, in
    no wrong answer.
    """
    checked = 0
    for row in world(40, 20, 3)["forget10_perturbed"]:
        titles = [part for part in row["answer"].split('"')[1::2] if not part.startswith("Like")]
        for title in titles:
            if title in row["question"]:
                continue
            assert title in row["paraphrased_answer"]
            assert not any(title in wrong for wrong in row["perturbed_answer"])
            checked += 1
    assert checked >= 10


def test_wordings_vary(small):
    """One wording a question lets a retain model complete the template; here no wording may own a
    fact.
    """
    names = {
        word
        for row in small["full"]
        for word in row["answer"].replace("'s", "").split()
        if word[0].isupper()
    }

    def bare(text):
        return " ".join(
            "_" if word.strip('?.,"').removesuffix("'s") in names else word for word in text.split()
        )

    questions = Counter(bare(row["question"]) for row in small["full"])
    answers = Counter(" ".join(bare(row["answer"]).split()[:8]) for row in small["full"])
    assert len(questions) > 10 * len(FACTS)
    assert max(questions.values()) <= 800 / len(FACTS) / 2
    assert len(answers) > 10 * len(FACTS)


def test_every_fact_has_several_wordings_that_use_its_slots():
    for fact in FACTS.values():
        assert len(set(fact["direct"] + fact["indirect"])) >= 5 and len(set(fact["shapes"])) >= 5
        assert all(f"{{{slot}}}" in shape for slot in fact["slots"] for shape in fact["shapes"])


def test_no_sentence_is_left_unfilled_or_ill_formed(small):
    for name in ("full", *PERTURBED):
        text = json.dumps(small[name], ensure_ascii=False)
        assert not any(mark in text for mark in ("{", "~", "  ")) or text.count("{") == len(
            small[name]
        )
    for row in small["full"]:
        assert (
            row["question"][0].isupper()
            and row["question"][-1] in "?."
            and "{" not in row["answer"]
        )
        assert (
            row["answer"][-1] in '."' and " a a" not in row["answer"] and "~" not in row["answer"]
        )


@pytest.mark.parametrize("authors, questions", [(19, 5), (40, 0), (40, 999), (10_000, 1)])
def test_impossible_sizes_are_refused(authors, questions):
    with pytest.raises(UserError, match="authors and 1 to"):
        world(authors, questions)
