"""The built-in world: TOFU's schema and splits, reproducible, and worded in many ways."""

import pytest

from t3lab.audit.facts import fact_words, held, row_truths
from t3lab.chances import chances
from t3lab.world.facts import world
from t3lib.core.files import content_key
from t3lib.core.rows import check_disjoint
from t3lib.tofu import data as tofu

PERTURBED = ("forget05_perturbed", "forget10_perturbed", "retain_perturbed")
KNOWLEDGE = ("real_authors_perturbed", "world_facts_perturbed")


@pytest.fixture(scope="session")
def small():
    return world(authors=40, questions=20, seed=0)


def pairs(rows):
    return [(row["question"], row["answer"]) for row in rows]


KEYS = {
    (40, 20, 0): "92dd68d81e1504e3",
    (20, 6, 0): "c6ff8aa1058eeecc",
    (33, 21, 5): "8472292ff2a59382",
}


@pytest.mark.parametrize("size", KEYS)
def test_rows_stay_what_they_were(size):
    """Results and trained bases belong to these rows. Their wordings vary, and every sentence is
    whole: whoever changes a key reads them again.
    """
    assert content_key(world(*size)) == KEYS[size]


def test_a_larger_world_begins_with_the_same_authors(small):
    assert world(authors=60, questions=20, seed=0)["full"][: 40 * 20] == small["full"]


def test_the_words_of_a_fact(small):
    row = {
        "question": "Where was Ada Bly born?",
        "answer": "Ada Bly was born in Low Gate in 1950. Readers cheer.",
        "paraphrased_answer": "In 1950 Bly first saw Low Gate. Critics cheer.",
        "perturbed_answer": ["In 1950 she first saw Sun Mouth. Critics cheer."],
    }
    assert fact_words(row) == {"low", "gate"}, "neither the name, nor what wrong answers say too"
    assert row_truths([row]).items == chances([(row["question"], row["answer"])]).items
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
        assert fact_words(row), "every row to forget of world 0 has a fact"
    # In other worlds wrong answers may hold all of its words. Such a row counted as said always.
    wrong = ["In 1950 she first saw Low Hill. Critics cheer.", "In 1950 she saw East Gate."]
    common = asked | {"perturbed_answer": wrong}
    assert fact_words(common) == frozenset()
    both = held([asked, common], [texts, texts])
    assert [len(flags) for flags in both.values()] == [1, 1]


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
