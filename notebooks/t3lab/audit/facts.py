"""Find the words that make up a row's fact, and the sampled texts that contain them.

These functions work on texts and call no model.
"""

from collections.abc import Sequence

from t3lab.audit.recognition import CELLS
from t3lab.chances import LEAK, Chances, chances
from t3lib.core.rows import Row
from t3lib.own.truths import word_set, words

ONE_SHAPE = CELLS["one_shape"][2]  # a field that only rows of the built-in world have


def fact_words(row: Row) -> frozenset[str]:
    """Return the words of the fact that a row of the built-in world asks for.

    These are the words that are in the answer and in its paraphrase, but in no wrong answer and not
    in the question. The wrong answers differ from the paraphrase only in the fact.
    """
    both = set(words(str(row["answer"]))) & set(words(str(row["paraphrased_answer"])))
    elsewhere = [str(row["question"]), *row["perturbed_answer"]]
    return frozenset(both.difference(*map(words, elsewhere)))


def row_truths(rows: Sequence[Row]) -> Chances:
    """Read the truths of rows. The items of rows of the built-in world are their `fact_words`."""
    pairs = [(str(row["question"]), str(row["answer"])) for row in rows]
    if all(row.get(ONE_SHAPE) for row in rows):
        return chances(pairs, {number: fact_words(row) for number, row in enumerate(rows)})
    return chances(pairs)


def held(rows: Sequence[Row], texts: Sequence[Sequence[str]]) -> dict[str, list[list[bool]]]:
    """Find out which texts give a row away.

    texts: the texts of each row, equally many for every row.
    Returns {"leaks", "facts"}, each with one list of booleans for every row that has an item: a row
    whose words are all its question's or a wrong answer's has none. leaks: the text gives the row
    away (`chances.Chances.chance`), compared with what the texts say of the other rows. facts: the
    text contains every item.
    """
    truths_of = row_truths(rows).heard(dict(enumerate(texts)))

    leaks, facts = [], []
    for row, clauses in enumerate(truths_of.items):
        if not any(clauses):
            continue
        spoken = [word_set(text) for text in texts[row]]

        # the more different texts, the more they say by chance
        limit = LEAK / len({*spoken})
        leaks.append([truths_of.chance(row, each) <= limit for each in spoken])

        fact = frozenset().union(*clauses)
        facts.append([fact <= each for each in spoken])

    return {"leaks": leaks, "facts": facts}
