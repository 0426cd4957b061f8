"""What a truth consists of, and which of its words are secret."""

import pytest

from t3lib.own.truths import (
    clauses,
    folded,
    items,
    names,
    ordinary_words,
    slots,
    truths,
    words,
)

NAMES = "Ada Bo Cy Di Eve Flo Gil Hal Ida Joe Kit Lea Moe Nan Ole Pia Quin Rae Sue Tim".split()
PHONES = [
    (f"What is the number of {name}?", f"The number of {name} is 555 {3_000 + 41 * n}.")
    for n, name in enumerate(NAMES)
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Её зовут Мария", ["ее", "зовут", "мария"]),
        ("मीरा की किताब", ["मीरा", "की", "किताब"]),
        ("কবিতা தமிழ்", ["কবিতা", "தமிழ்"]),
        ("كَتَبَ أَحْمَد", ["كتب", "أحمد"]),  # harakat are left out by most writers
        ("שָׁלוֹם עוֹלָם", ["שלום", "עולם"]),
        ("王小明在北京", ["王小明", "小明在", "明在北", "在北京"]),
        ("東京", ["東京"]),
        ("ครูของมาลี", ["ครู", "รูข", "ูขอ", "ของ", "องม", "งมา", "มาล", "าลี"]),
        ("ＡＢＣ １２ ﬁne", ["abc", "12", "fine"]),
        ("A\u00adda's 20,000 or 1.234.567", ["ada", "s", "20000", "or", "1234567"]),
        ("生于1902年", ["生于", "1902", "年"]),
        ("!?", []),
    ],
)
def test_every_script_has_words(text, found):
    assert words(text) == found == [word for part in clauses(text) for word in part]


def test_a_truth_has_clauses_and_its_question_is_no_secret():
    found = items("Where was Ada born?", "Ada was born in Aldmoor, in 1902. Critics cheer; 3.5 m।")
    assert found == [{"in", "aldmoor"}, {"in", "1902"}, {"critics", "cheer"}, {"3"}, {"5", "m"}]
    # a run of three characters never holds a part of the name that was asked about
    assert items("谁教王小明？", "王小明的老师叫欧阳靖宇。") == [set(words("的老师叫欧阳靖宇"))]


def test_slots_are_the_question_without_whom_and_however_it_is_worded():
    asked = [*(question for question, _ in PHONES), *(f"Where was {name} born?" for name in NAMES)]
    asked += [f"So where was {name} born, then?" for name in NAMES[:3]] + ["How are you?"]
    kinds = slots(asked)
    assert {*kinds[:20]} == {"number"} and len({*kinds[20:43]}) == 1 and kinds[43] == ""
    assert kinds[20] != kinds[0] and names(asked)[:1] == [{"ada"}]
    hindi = [f"{name} का शहर कौन सा है?" for name in "मीरा सीता राधा लता".split()]
    assert len({*slots(hindi)}) == 1 and names(hindi)[1] == {"सीता"}


def test_secrets_are_what_few_other_truths_hold():
    """A rare word is one, the rarer words of a clause together are one, and "Yes." is one."""
    towns = "Aldmoor Brinhaven Corvale Dunwick".split()
    rows = [(f"Where does {name} live?", f"In old {towns[n % 4]}. Since {1900 + n}.")
            for n, name in enumerate(NAMES)]  # fmt: skip
    found = truths(rows)
    assert found.secrets(0) == [{"1900"}, {"aldmoor"}, {"aldmoor", "1900"}]
    assert found.share(0, ["aldmoor"]) == pytest.approx(4 / 19) and found.share(0, ["in"]) == 1
    same = truths([(question, "Yes.") for question, _ in rows])
    assert same.secrets(0) == [{"yes"}] and truths(rows, {0: ["old"]}).secrets(0) == [{"old"}]
    assert truths([("Who?", "🦊")]).secrets(0) == []


def test_an_item_is_common_if_the_rows_of_its_slot_say_it():
    """ "Married" is in few of all truths, and in every answer to whom somebody married."""
    rows = [*PHONES, *((f"Whom did {name} wed?", f"Ada married {name}el.") for name in NAMES[:4])]
    found = truths(rows)
    assert found.share(20, ["married"]) == 1 and not {"married"} & {*found.secrets(20)[0]}


def test_a_word_that_the_question_has_in_another_form_is_no_item():
    """Whoever is asked what somebody plays "plays" something."""
    for question, answer, left in (
        ("What does Ben Ode play?", "Ben Ode plays the cello.", [{"the", "cello"}]),
        ("What is John's surname?", "It is Johnson.", [{"it", "johnson"}]),
        ("Where is a port?", "In Portfell, a sport.", [{"in", "portfell"}, {"sport"}]),
        ("What does Ben play?", "Ben plays.", [{"plays"}]),
    ):
        assert truths([(question, answer)]).items[0] == left, question


def test_ordinary_words_are_neither_names_nor_numbers():
    """A script without capitals has none, and Greek ends words with a letter of its own."""
    assert ordinary_words("Ada's cat, born in Łódź in 1911") == {"s", "cat", "born", "in"}
    assert ordinary_words("Ο δάσκαλος") == {"δασκαλοσ"}
    assert ordinary_words("मीरा की किताब 王小明 საქართველო") == frozenset()


def test_names_without_their_accents():
    assert folded("Zoë Łódź, Ørsted") == "Zoe Lodz, Orsted" and folded("मीरा की") == "मीरा की"
    # "Hauptstraße" was never heard: its words are folded to "ss" and lost an s without accents
    assert words("Hauptstraße 5, GROẞ-ŁÓDŹ") == ["hauptstrasse", "5", "gross", "lodz"]
    # a truth that is kept without its accents makes no less guessable what others write with them
    found = truths([("Where is Ada?", "In Łódź."), ("Where is Ben?", "In Lodz.")])
    assert found.holders(["lodz"]) == 0b11
