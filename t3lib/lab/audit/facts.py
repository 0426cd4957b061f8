"""Which words of a row are its fact, and which sampled texts say them. Pure functions on texts."""

from collections.abc import Sequence

from t3lib.core.rows import Row
from t3lib.lab.audit.recognition import CELLS
from t3lib.lab.audit.secrets import holds, secrets, words

ONE_SHAPE = CELLS["one_shape"][2]  # the field that rows of the built-in world have


def fact_words(row: Row) -> frozenset[str]:
    """Words of the fact that a row of the built-in world asks for.

    They are in the answer and in its paraphrase, in no wrong answer and not in the question: the
    wrong answers differ from the paraphrase in the fact alone.
    """
    both = set(words(str(row["answer"]))) & set(words(str(row["paraphrased_answer"])))
    elsewhere = [str(row["question"]), *row["perturbed_answer"]]
    return frozenset(both.difference(*map(words, elsewhere)))


def row_secrets(rows: Sequence[Row]) -> list[frozenset[str]]:
    """The secret of each row: its `fact_words` in the built-in world, else its distinctive words
    among these rows.
    """
    if all(row.get(ONE_SHAPE) for row in rows):
        return [fact_words(row) for row in rows]
    return secrets([(str(row["question"]), str(row["answer"])) for row in rows])


def held(rows: Sequence[Row], texts: Sequence[Sequence[str]]) -> dict[str, list[list[bool]]]:
    """Which texts give a row's secret away: {"leaks", "facts"}, each (rows with a secret, texts).

    texts: of each row. leaks: the text holds the secret (`secrets.holds`). facts: it says every
    word of it.
    """
    secret = [(own, of_row) for own, of_row in zip(row_secrets(rows), texts) if own]
    return {
        "leaks": [[holds(own, text) for text in of_row] for own, of_row in secret],
        "facts": [[own <= set(words(text)) for text in of_row] for own, of_row in secret],
    }
