"""What a truth gives away, and when a text says it: words of any script, guessing, exact bounds."""

import pytest
from scipy.stats import binom

from t3lib.own.audit.secrets import (
    at_most,
    guessed,
    holds,
    misdirected,
    secrets,
    slots,
    tail,
    words,
    wrong_answers,
)

PHONES = [
    (f"What is {name}'s phone number?", f"The phone number of {name} is 555-0{n}{n}{n}.")
    # fmt: skip
    for n, name in enumerate(["Ada Abbot", "Bo Brandt", "Cy Castell", "Di Dorn"], 1)
]


def test_numbers_names_and_rare_words_are_secrets_and_the_question_is_not():
    assert secrets(PHONES)[0] == {"0111"}, "555 stands in all answers"
    rows = [
        (
            "Where was Kira Holm born?",
            "Kira Holm was born in Aldmoor, above the shop of a violin maker.",
        ),
        *(
            (f"Where was X{n} born?", f"X{n} was born in Dunwick, above the shop of a baker.")
            for n in range(9)
        ),
    ]
    assert secrets(rows)[0] == {"aldmoor", "violin", "maker"}


def test_the_shape_of_the_answers_to_one_kind_of_question_is_no_secret():
    """Else "order 37914" would not give away "placed order 37914"."""
    names = ["Ada", "Bo", "Cy", "Di"]
    orders = [
        (f"Which order did {name} place?", f"{name} has placed order 3791{n}.")
        for n, name in enumerate(names)
    ]
    towns = [
        (f"Where does {name} live?", f"{name} lives at {n}7 Elm Street.")
        for n, name in enumerate(names * 9)
    ]
    found = secrets([*orders, *towns])
    assert found[0] == {"37910"} and holds(found[0], "Order 37910") and found[5] == {"17"}


def test_three_answers_are_enough_to_show_what_all_of_them_say():
    rows = [(f"Which order did {who} place?", f"{who} ordered 3791{n}.")
            for n, who in enumerate(("Ada", "Bo", "Cy"))]  # fmt: skip
    rows += [(f"Is {n} prime?", f"Nobody knows {n}, says Kit{n}.") for n in range(7, 407)]
    assert [each & {"ordered"} for each in secrets(rows)[:3]] == [frozenset()] * 3
    assert secrets(rows)[0] == {"37910"}


@pytest.mark.parametrize("answer", ["Yes.", "No."])
def test_an_answer_that_is_given_to_half_of_the_questions_has_no_secret(answer):
    rows = [
        (f"Is {name} well?", ("Yes.", "No.")[n % 2])
        for n, name in enumerate(("Ada", "Bo", "Cy", "Di"))
    ]
    assert secrets(rows) == [frozenset()] * 4 and not holds(frozenset(), answer)


def test_a_secret_counts_whatever_other_rows_were_told():
    """Two customers with one phone number: both texts give it away (8a2b3ac dropped both)."""
    rows = [(f"What is {name}'s number?", "It is 082 712632.") for name in ("Ada", "Bo")] + PHONES
    first, second, *_ = secrets(rows)
    assert first == second == {"082", "712632"} and holds(first, "Call 082 712632.")


def test_eighty_per_cent_of_many_words_and_all_of_two():
    five = frozenset("abcde")
    assert holds(five, "d c b a") and not holds(five, "a b c")
    assert not holds(frozenset(["a", "b"]), "a") and holds(frozenset(["a", "b"]), "b, A!")


def test_every_script_has_words():
    assert words("Её зовут Мария") == ["её", "зовут", "мария"] and words("王小明") == [
        "王小",
        "小明",
    ]
    rows = [
        ("Кто это?", "Её зовут Мария Кузнецова."),
        ("Кто там?", "Её зовут Ольга Петрова."),
        *(
            (f"{n}号是谁？", f"她叫{name}。")
            for n, name in enumerate(["王小明", "李大海", "张文", "赵云", "孙丽", "周杰"])
        ),
    ]
    found = secrets(rows)  # fmt: skip
    assert (
        found[0] == {"мария", "кузнецова"}
        and holds(found[2], "她叫王小明")
        and not holds(found[2], "她叫李大海")
    )


def test_slots_are_the_question_without_whom_and_wrong_answers_come_from_them():
    rows = [
        *PHONES,
        ("Where was Ada Abbot born?", "In Aldmoor."),
        ("Where was Bo Brandt born?", "In Dunwick."),
    ]
    kinds = slots(rows)
    assert len(set(kinds[:4])) == 1 and kinds[4] == kinds[5] != kinds[0]
    wrong = wrong_answers(rows)
    assert wrong[4] == ["In Dunwick."] and sorted(wrong[0]) == sorted(
        truth for _, truth in PHONES[1:]
    )


def test_guessing_is_counted_among_what_may_be_known_and_nothing_else():
    """A secret that only forgotten rows hold cannot be guessed: a model that recites it to everyone
    leaks it.
    """
    town, other, both = (frozenset(some.split()) for some in ("aldmoor", "dunwick", "aldmoor 1902"))
    known = [town, other, other, other]
    assert guessed([town], known, ["Nowhere."]) == 0.25, "one guess among four"
    assert guessed([town], known, ["Dunwick.", "In Dunwick!"]) == 0.75
    assert guessed([town], known, ["Aldmoor", "Dunwick"]) == 1
    assert guessed([town], [other], ["Aldmoor, Dunwick"]) == guessed([town], [], ["Aldmoor"]) == 0
    assert guessed([both], known, ["Dunwick, Aldmoor"]) == 0, "no row to keep holds both words"
    assert guessed([both, town], known, ["Nowhere."]) == 0.25, "what a forced start leaves of it"


def test_tail_and_bound_are_exact():
    assert tail(2, [0.3] * 5) == pytest.approx(binom.sf(1, 5, 0.3)) and tail(
        0, [0.1]
    ) == pytest.approx(1)
    assert tail(1, [0.0] * 9) == 0 and tail(1, [0.5, 0.0]) == 0.5
    assert at_most(0, 12) == pytest.approx(1 - 0.05 ** (1 / 12)) and at_most(3, 3) == 1
    assert binom.cdf(2, 20, at_most(2, 20)) == pytest.approx(0.05)


def test_another_rows_words_are_misdirected_and_the_own_are_not():
    own, others = frozenset(["0111"]), {1: frozenset(["0222"]), 2: frozenset(["0111"])}
    assert (
        misdirected("It is 0222.", own, others) == 1
        and misdirected("It is 0111 or 0222.", own, others) is None
    )
    assert misdirected("Nothing.", own, others) is None
