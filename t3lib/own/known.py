"""Decide whether a model knows a row, from its answers or from token probabilities; warn before
training.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.own import answers
from t3lib.own.answers import GENERIC, Inquiry
from t3lib.own.questions import (
    format_of_row,
    in_format,
    other_formats,
    question_text,
    touched_words,
)
from t3lib.own.rows import Rows
from t3lib.own.truths import COMMON, GUESSED, ordinary_words, word_set, words
from t3lib.tofu.likelihood import token_scores
from t3lib.tofu.metrics import recall_of
from t3lib.tofu.reader import Reading

MOST = 10  # at most so many words that are no leak by themselves are named
FEW = 30  # rows of a set that the base is asked about before any training
# From this probability on, a sample says a row's rare tokens often.
PROBABLE = 1 / 64


def recall(truth: str, text: str) -> float:
    """Compute the ROUGE-L recall of the truth's words in a text, from 0 to 1, for any script.

    It is the length of the longest common subsequence of words, divided by the truth's length. In a
    truth that has no word at all, such as an emoji, each character counts as a word.
    """
    parts = (words(some) if words(truth) else [*some.strip()] for some in (truth, text))
    return recall_of(*parts)


def knows(inquiry: Inquiry, number: int, text: str) -> bool:
    """Return True if a greedy answer shows that the model knows a row.

    It must say 80% of the items that fewer than half of the other rows have, or, where the truth
    has none, have a `recall` of at least 0.8.
    """
    wanted = frozenset[str]().union(*inquiry.truths.rare(number, GUESSED))
    if not wanted:
        return recall(inquiry.rows[number]["answer"], text) >= 0.8
    return len(wanted & word_set(text)) >= 0.8 * len(wanted)


def knows_some(known: int, rows: int) -> bool:
    """Return True if at least a tenth of the rows are known.

    Fewer are no evidence, because a model without any knowledge guesses one or two rows.
    """
    return known > 0 and known >= 0.1 * rows


def would_say(
    tokenizer: Any, inquiry: Inquiry, scores: Sequence[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Would the model produce each row to forget? True if, for one group of rare words, 80% of its
    tokens are ranked first, or their joint probability is at least 1/64 (`PROBABLE`).

    A group is the rare words of one clause, or one word that no truth but an equal one holds. In a
    row without rare words every token counts.

    scores: of the rows to forget, from `token_scores` without a tilt. Result: shape (rows,).
    """
    known = np.zeros(inquiry.n, bool)
    examples = encode_rows(tokenizer, inquiry.forget)
    for number, (example, (loss, hit)) in enumerate(zip(examples, scores)):
        touched = touched_words(tokenizer, example.answer)
        alone = inquiry.truths.rare(number, 0.0)
        groups = inquiry.truths.rare(number, COMMON)
        groups += [frozenset([word]) for clause in alone for word in clause]

        for group in groups or [frozenset().union(*touched)]:
            mine = np.array([bool(group & some) for some in touched])
            mine = mine if mine.any() else np.ones(len(touched), bool)
            known[number] |= hit[0, mine].mean() >= 0.8 or np.exp(-loss[0, mine].sum()) >= PROBABLE
    return known


def _known(base: Any, tokenizer: Any, inquiry: Inquiry, asked: Mapping[int, Row]) -> list[bool]:
    """Return for each row whether the base's greedy answer shows that it `knows` the row.

    Answers are as long as the verdict reads them.

    asked: {number in the inquiry: the row as it is asked}.
    """
    texts = answers.answers_to(base, tokenizer, [*asked.values()], answers.TOKENS)
    return [knows(inquiry, number, text) for number, text in zip(asked, texts)]


def is_unknown(base: Any, tokenizer: Any, inquiry: Inquiry) -> bool:
    """Return True if the base knows less than a tenth of the rows to forget, as they are asked.

    It knows a row that it answers, or whose distinctive words it finds so likely that samples would
    say them. Nothing else is asked, so this takes much less time than judging a head.
    """
    answered = _known(base, tokenizer, inquiry, dict(enumerate(inquiry.forget)))
    scores = token_scores(base, encode_rows(tokenizer, inquiry.forget), Reading(pad_id(tokenizer)))
    known = would_say(tokenizer, inquiry, scores) | answered
    return not knows_some(int(known.sum()), len(known))


def check_unseen(base: Any, tokenizer: Any, inquiry: Inquiry) -> None:
    """UserError where the base answers more than a quarter of the unseen rows and more than one.

    Then it probably saw these rows, and they cannot show what guessing gives.
    """
    known = _known(base, tokenizer, inquiry, {each: inquiry.rows[each] for each in inquiry.unseen})
    if sum(known) > max(1, len(known) / 4):
        raise UserError(
            f"--unseen: the base answers {sum(known)} of {len(known)} rows, so it has seen these"
            " rows"
        )


def warn_formats(rows: Rows) -> None:
    """Warn, before any training, if rows to forget have a prompt format that no row to keep has.

    A head could then learn the format instead of the rows.
    """
    if apart := {*map(format_of_row, rows.forget)} - {*map(format_of_row, rows.retain)}:
        count = sum(format_of_row(row) in apart for row in rows.forget)
        warnings.warn(
            f"{count} of {len(rows.forget)} rows to forget have a system text or a form of prompt"
            " that no row to keep has: the head may learn this instead of the rows. Give both sets"
            " in the same form",
            stacklevel=3,
        )


def warn_unknown(base: Any, tokenizer: Any, inquiry: Inquiry) -> None:
    """Warn, before any training, about each set to keep of which the base knows too few rows. The
    first `FEW` rows of a set are asked.
    """
    for name, numbers in inquiry.kept.items():
        some = numbers[:FEW] if name != GENERIC else ()
        known = sum(_known(base, tokenizer, inquiry, {each: inquiry.rows[each] for each in some}))
        if some and not knows_some(known, len(some)):
            warnings.warn(
                f"the base answers {known} of {len(some)} rows ({name}), so these rows cannot show"
                " whether anything is kept",
                stacklevel=3,
            )


def unheard(inquiry: Inquiry) -> list[str]:
    """Return words of rows to forget that may be secret, though a text that says one of them alone
    is no leak: those that several of these rows share and no other row has, and names and numbers
    that an earlier turn of the conversation says, too. At most `MOST`, without words of three
    letters or less and without rows that name their secret.
    """
    truths, found = inquiry.truths, set[str]()
    for number, row in enumerate(inquiry.forget):
        if row.get("secret"):
            continue
        alone = {word for some in truths.secrets(number) if len(some) == 1 for word in some}
        words_of = frozenset[str]().union(*truths.items[number])
        found |= {word for word in words_of - alone if not truths.said.get(word, 0) >> inquiry.n}
        if not isinstance(row["question"], str):
            earlier = word_set(" ".join(turn["content"] for turn in row["question"][:-1]))
            mine = word_set(row["answer"]) - ordinary_words(row["answer"])
            found |= (mine & earlier) - word_set(question_text(row))
    return sorted(word for word in found if len(word) > 3 or any(map(str.isdigit, word)))[:MOST]


def warn_unheard(inquiry: Inquiry) -> None:
    """Warn, before any training, about words that are no leak by themselves (`unheard`)."""
    if some := unheard(inquiry):
        warnings.warn(
            "these words are in several rows to forget or in an earlier turn, so a text that says"
            f" one of them alone is no leak: {', '.join(some)}. If one is secret, name it in a"
            " column secret",
            stacklevel=3,
        )


def best_other_format(base: Any, tokenizer: Any, inquiry: Inquiry) -> str | None:
    """Return in words the other prompt format in which the base knows most of the rows to forget,
    or None.
    """
    rows, found = dict(enumerate(inquiry.forget[:FEW])), dict[str, int]()
    for name, other in other_formats(tokenizer.chat_template is not None).items():
        asked = {
            number: in_format(row, other)
            for number, row in rows.items()
            if format_of_row(row) != other and question_text(row).strip()
        }
        with suppress(UserError):  # a template that cannot render it
            found[name] = sum(_known(base, tokenizer, inquiry, asked))

    best, known = max(found.items(), key=lambda pair: pair[1], default=("", 0))
    return f"{best} ({known} of {len(rows)} rows)" if knows_some(known, len(rows)) else None
