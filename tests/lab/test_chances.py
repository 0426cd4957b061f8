"""How likely a text says a truth by chance."""

import random

import numpy as np
import pytest

from t3lab.chances import COMMON, chances, number_of_values
from t3lib.own.truths import word_set

NAMES = "Ada Bo Cy Di Eve Flo Gil Hal Ida Joe Kit Lea Moe Nan Ole Pia Quin Rae Sue Tim".split()
PHONES = [
    (f"What is the number of {name}?", f"The number of {name} is 555 {3_000 + 41 * n}.")
    for n, name in enumerate(NAMES)
]


def bits(mask):
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


@pytest.mark.parametrize(
    ("seen", "number"), [("abc", 6), ("aabb", 2), ("aaaa", 1), ("aabc", 2 + 1 + 0.5), ("", 0)]
)
def test_the_number_of_values_of_a_slot(seen, number):
    assert number_of_values(seen) == pytest.approx(number)


def test_a_number_is_enough_and_what_all_rows_say_is_nothing():
    found = chances(PHONES)
    assert found.gives_away(0, "3000") and found.gives_away(0, "call 3000 or 3041")
    assert found.chance(0, word_set("The number is 555.")) == 1
    assert found.chance(0, word_set("3041")) == 1 == found.chance(0, frozenset())


def test_an_items_chance_is_its_share_among_other_rows():
    towns = "Aldmoor Brinhaven Corvale Dunwick".split()
    rows = [(f"Where does {name} live?", f"In old {towns[n % 4]}.") for n, name in enumerate(NAMES)]
    found = chances(rows)
    assert found.chance(0, word_set("aldmoor")) == pytest.approx(max(4 / 19, 1 / 4))
    said = found.heard({n: ["Aldmoor, I think"] for n in range(1, 20)})  # truths and texts
    assert said.chance(0, word_set("aldmoor")) == pytest.approx((4 + 19) / (19 + 19))
    # of two words that always come together, the second says nothing new
    assert found.chance(0, word_set("old aldmoor")) == found.chance(0, word_set("aldmoor"))


def test_rare_items_of_one_clause_multiply_and_common_ones_do_not():
    rows = [
        (f"Who taught {name}?", f"It was {n} {'x' * (n % 12 + 1)}{n % 12} {'ab'[n % 2]}, {n + 50}.")
        for n, name in enumerate(NAMES * 6)
    ]
    found = chances(rows)
    one, other = (found.chance(0, frozenset([word])) for word in ("x0", "a"))
    assert one < 0.1 < 0.4 < other
    assert found.chance(0, frozenset(["x0", "a"])) == pytest.approx(one)  # always together
    assert found.chance(1, frozenset(["xx1", "1"])) < one / 9
    # items of two clauses do not
    assert found.chance(1, frozenset(["xx1", "51"])) == min(
        found.chance(1, frozenset([word])) for word in ("xx1", "51")
    )


def plain_chance(found, row, said):
    """`Chances.chance` by its definition, with a set of texts instead of counts."""
    slot = bits(found.slot[row])
    others = [text for text, of in enumerate(found.about) if of != row]
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

    best = whole = 1.0
    for clause in found.items[row]:
        if items := clause & said:
            best = min(best, each := together(items))
            whole *= each if len(items) >= 0.8 * len(clause) else 1.0
    return min(best, whole)


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
    found = chances(rows).heard({k: draw.choices(answers, k=6) for k in range(0, 80, 2)})
    spoken = [word_set(text) for text in answers]
    for _ in range(300):
        row = draw.randrange(80)
        said = draw.choice([*draw.sample(spoken, 4), word_set(rows[row][1])])
        wanted = plain_chance(found, row, said)
        assert found.chance(row, said) == wanted
        assert found.chance(np.int64(row), said) == wanted
