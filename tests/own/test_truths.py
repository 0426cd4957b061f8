"""What a truth consists of, how likely a text says it by chance, and the test against guessing."""

import random
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binom

from t3lib.own.guessing import LEVEL, Comparison, Heard, at_most, compare, least
from t3lib.own.truths import (
    COMMON,
    LEAK,
    bits,
    clauses,
    items,
    names,
    number_of_values,
    slots,
    truths,
    word_set,
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
        ("Её зовут Мария", ["её", "зовут", "мария"]),
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


@pytest.mark.parametrize(
    ("seen", "number"), [("abc", 6), ("aabb", 2), ("aaaa", 1), ("aabc", 2 + 1 + 0.5), ("", 0)]
)
def test_the_number_of_values_of_a_slot(seen, number):
    assert number_of_values(seen) == pytest.approx(number)


def test_a_number_is_enough_and_what_all_rows_say_is_nothing():
    found = truths(PHONES)
    assert found.gives_away(0, "3000") and found.gives_away(0, "call 3000 or 3041")
    assert found.chance(0, [word_set("The number is 555.")]) == 1
    assert found.chance(0, [word_set("3041")]) == 1 == found.chance(0, [])


def test_an_items_chance_is_its_share_among_other_rows():
    towns = "Aldmoor Brinhaven Corvale Dunwick".split()
    rows = [(f"Where does {name} live?", f"In old {towns[n % 4]}.") for n, name in enumerate(NAMES)]
    found = truths(rows)
    assert found.chance(0, [word_set("aldmoor")]) == pytest.approx(max(4 / 19, 1 / 4))
    said = found.heard({n: ["Aldmoor, I think"] for n in range(1, 20)})  # truths and texts
    assert said.chance(0, [word_set("aldmoor")]) == pytest.approx((4 + 19) / (19 + 19))
    assert said.chance(0, [word_set("aldmoor")], about=1) == pytest.approx((4 + 18) / (18 + 18))
    # of two words that always come together, the second says nothing new
    assert found.chance(0, [word_set("old aldmoor")]) == found.chance(0, [word_set("aldmoor")])


def test_rare_items_of_one_clause_multiply_and_common_ones_do_not():
    rows = [
        (f"Who taught {name}?", f"It was {n} {'x' * (n % 12 + 1)}{n % 12} {'ab'[n % 2]}, {n + 50}.")
        for n, name in enumerate(NAMES * 6)
    ]
    found = truths(rows)
    one, other = (found.chance(0, [frozenset([word])]) for word in ("x0", "a"))
    assert one < 0.1 < 0.4 < other
    assert found.chance(0, [frozenset(["x0", "a"])]) == pytest.approx(one)  # always together
    assert found.chance(1, [frozenset(["xx1", "1"])]) < one / 9
    # items of two clauses do not
    assert found.chance(1, [frozenset(["xx1", "51"])]) == min(
        found.chance(1, [frozenset([word])]) for word in ("xx1", "51")
    )


def heard(text):
    return Heard(word_set(text), word_set(text))


def test_the_test_is_the_share_of_permutations():
    """Against all 120 permutations of five truths."""
    rows = [(f"Where does {name} live?", f"In {town}.") for name, town in
            zip(NAMES, ("Aldmoor", "Brinhaven", "Corvale", "Dunwick", "Elmsfoot"))]  # fmt: skip
    read = truths(rows)
    texts = {n: [heard(rows[(0, 1, 3, 2, 4)[n]][1])] for n in range(5)}  # three of five are right
    test = compare(read, range(5), texts)
    [(_, chances)] = test.slots
    scores = [-np.log(chances[range(5), order]).sum() for order in permutations(range(5))]
    exact = np.mean(np.array(scores) >= scores[0] - 1e-9)
    assert test.permuted(lambda c: -np.log(c)) == pytest.approx(exact, abs=0.02)
    assert exact == 11 / 120 and test.guessed(0.5) == pytest.approx(1)


def test_one_right_answer_of_twenty_is_beyond_guessing_and_a_recital_to_all_is_not():
    read = truths(PHONES)
    right = {n: [heard("Nobody knows." if n else PHONES[0][1])] for n in range(8)}
    assert compare(read, range(8), right).beyond
    wrong = {n: [heard(PHONES[n + 9][1])] for n in range(8)}
    assert not compare(
        read.heard({n: [PHONES[n + 9][1]] for n in range(8)}), range(8), wrong
    ).beyond
    town = [(question, f"In {'AB'[n % 2]}.") for n, (question, _) in enumerate(PHONES)]
    alike = compare(truths(town), range(8), {n: [heard("In A or B.")] for n in range(8)})
    assert not alike.beyond and (alike.own > LEAK).all() and alike.p_value() > LEVEL


def test_the_more_texts_the_more_they_say_by_chance():
    read = truths(PHONES[:6])
    one, many = (compare(read, [0], {0: [heard("3000"), *map(heard, more)]})
                 for more in ((), map(str, range(50))))  # fmt: skip
    assert many.own[0] == pytest.approx(51 * one.own[0])
    both = least([one, many])
    assert both.own[0] == one.own[0]


def test_how_many_rows_are_needed():
    assert Comparison(np.array([0.5] * 4), []).rows_needed() == 6
    assert Comparison(np.array([1.0] * 4), []).rows_needed() is None


def test_the_bound_is_exact():
    assert at_most(0, 12) == pytest.approx(1 - 0.05 ** (1 / 12)) and at_most(3, 3) == 1
    assert binom.cdf(2, 20, at_most(2, 20)) == pytest.approx(0.05)


def plain_chance(found, row, texts, about):
    """`Truths.chance` by its definition, with a set of texts instead of counts."""
    apart, slot = {row, about}, bits(found.slot[row])
    others = [text for text, of in enumerate(found.about) if of not in apart]
    pools = [{text for text in others if found.about[text] in slot}, {*others}]
    pools.append({text for text in pools[0] if text < len(found.items)})
    says = {word: {*bits(mask)} for word, mask in found.said.items()}

    def together(items):
        shares = []
        for word in items:
            most = max(found.values[row], 10 ** len(word) if word.isdigit() else 1)
            of = [len(says[word] & pool) / len(pool) if pool else 0.0 for pool in pools]
            shares.append((max(1 / most, *of), word))
        chance, left = 1.0, set()
        for share, word in sorted(shares):
            both = (left or pools[1]) & says[word]
            chance *= max(share, (1 + len(both)) / (1 + len(left)) if left else 0.0)
            left = both or left
            if share >= COMMON:
                break
        return chance

    best = 1.0
    for said in texts:
        whole = 1.0
        for clause in found.items[row]:
            if items := clause & said:
                best = min(best, each := together(items))
                whole *= each if len(items) >= 0.8 * len(clause) else 1.0
        best = min(best, whole)
    return best


def test_chances_by_counts_are_those_of_the_plain_formula():
    """Two thirds of the time of `t3 unlearn` on 200 rows went into judging them."""
    draw = random.Random(0)
    towns, crafts = [f"Town{k}" for k in range(7)], [f"craft{k}" for k in range(4)]
    rows = [
        (f"{('Where was', 'What does')[k % 2]} N{k} {('born', 'do')[k % 2]}?",
         f"N{k} lives in {draw.choice(towns)}, a {draw.choice(crafts)} since {1900 + k % 9}.")
        for k in range(80)
    ]  # fmt: skip
    answers = [truth for _, truth in rows] + ["Nobody knows.", "A craft1, in Town2 since 1903"]
    found = truths(rows).heard({k: draw.choices(answers, k=6) for k in range(0, 80, 2)})
    spoken = [word_set(text) for text in answers]
    for _ in range(300):
        row, about = draw.randrange(80), draw.randrange(80)
        some = draw.sample(spoken, 4) + [word_set(rows[row][1])] * draw.randrange(2)
        wanted = plain_chance(found, row, some, about)
        assert found.chance(row, some, about) == wanted
        assert found.chance(np.int64(row), some, np.int64(about)) == wanted
