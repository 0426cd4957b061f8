"""Find the words that make up a row's fact, and the sampled texts that contain them.

These functions work on texts and call no model.
"""

from collections.abc import Sequence

from t3lib.core.rows import Row
from t3lib.own.audit.recognition import CELLS
from t3lib.own.audit.secrets import holds, secrets, words

ONE_SHAPE = CELLS["one_shape"][2]  # a field that only rows of the built-in world have


def fact_words(row: Row) -> frozenset[str]:
    """Return the words of the fact that a row of the built-in world asks for.

    These are the words that are in the answer and in its paraphrase, but in no wrong answer and not
    in the question. The wrong answers differ from the paraphrase only in the fact.
    """
    both = set(words(str(row["answer"]))) & set(words(str(row["paraphrased_answer"])))
    elsewhere = [str(row["question"]), *row["perturbed_answer"]]
    return frozenset(both.difference(*map(words, elsewhere)))


def row_secrets(rows: Sequence[Row]) -> list[frozenset[str]]:
    """Return the secret of each row: the words that give it away.

    For rows of the built-in world these are their `fact_words`, for other rows their distinctive
    words among these rows (`secrets.secrets`).
    """
    if all(row.get(ONE_SHAPE) for row in rows):
        return [fact_words(row) for row in rows]
    return secrets([(str(row["question"]), str(row["answer"])) for row in rows])


def held(rows: Sequence[Row], texts: Sequence[Sequence[str]]) -> dict[str, list[list[bool]]]:
    """Find out which texts give a row's secret away.

    texts: the texts of each row, equally many for every row.
    Returns {"leaks", "facts"}, each with one list of booleans for every row that has a secret.
    leaks: the text holds the secret (`secrets.holds`). facts: the text contains every word of it.
    """
    secret = [(own, of_row) for own, of_row in zip(row_secrets(rows), texts) if own]
    return {
        "leaks": [[holds(own, text) for text in of_row] for own, of_row in secret],
        "facts": [[own <= set(words(text)) for text in of_row] for own, of_row in secret],
    }
