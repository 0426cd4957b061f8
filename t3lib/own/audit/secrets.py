"""Find what an answer gives away: distinctive words, leaks, guesses, and exact bounds on counts.

These functions work on texts and counts and know neither models nor heads, so every audit can use
them.
"""

import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

# Thai, Lao, Burmese, Khmer, kana, Chinese characters: scripts without spaces between words.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
# No word is a secret if more than this share of its slot's answers contain it, and no number or
# name if more than this share of all answers do.
COMMON = 0.5
RARE = 0.1  # any other word is no secret if more than this share of all answers contain it
SHORT = 3  # in most languages, other words with at most this many letters are function words
HELD = (
    0.8  # share of a secret's words that a text must hold; all of them where there are one or two
)
WRONG = 5  # wrong answers that the truth is compared with
Pair = tuple[str, str]  # a question and its true answer


def words(text: str) -> list[str]:
    """Split a text into words in lower case. In a script without spaces, each pair of neighbouring
    characters is a word.
    """
    return [word for word, _ in _marked(text)]


def _marked(text: str) -> list[tuple[str, bool]]:
    """Return (word, True if it is a number or a name) for each word. A capital letter marks a name
    unless it begins a sentence.
    """
    text = unicodedata.normalize("NFKC", text)
    found = []
    for match in re.finditer(r"\w+", text):
        word, before = match[0], text[: match.start()].rstrip(" \t\"'“”«»„(¿¡-")
        marked = any(map(str.isdigit, word)) or (
            word[0].isupper() and before[-1:] not in ("", *".!?:\n。")
        )
        if UNSPACED.search(word):
            pairs = [word[i : i + 2] for i in range(max(1, len(word) - 1))]
            found += [(pair.casefold(), True) for pair in pairs]
        else:
            found.append((word.casefold(), marked))
    return found


def secrets(rows: Sequence[Pair], others: Sequence[Pair] = ()) -> list[frozenset[str]]:
    """Return the distinctive words of each row's truth: numbers, names and rare words that its
    question does not contain.

    rows: pairs (question, truth). others: further rows of the same data, which show which words are
    common.

    A set may be empty, for a truth such as "Yes.". Such a row is judged by recognition alone.
    """
    everybody = [*rows, *others]
    kinds, sizes = slots(everybody), Counter(slots(everybody))
    held = [set(words(truth)) for _, truth in everybody]
    counts = Counter(word for each in held for word in each)
    of_slot = Counter((kind, word) for kind, each in zip(kinds, held) for word in each)

    def distinctive(kind: tuple[str, ...], word: str, marked: bool) -> bool:
        if sizes[kind] > 2 and of_slot[kind, word] > COMMON * sizes[kind]:
            return False  # a word that answers to such questions always have
        if marked:
            return counts[word] <= max(1, COMMON * len(everybody))
        return len(word) > SHORT and counts[word] <= max(1, RARE * len(everybody))

    return [
        frozenset(word for word, marked in _marked(truth) if distinctive(kind, word, marked))
        - set(words(question))
        for kind, (question, truth) in zip(kinds, rows)
    ]


def holds(secret: frozenset[str], text: str | frozenset[str]) -> bool:
    """Return True if a text contains a secret: at least 80% of its words in any order, or all of
    them if it has one or two.

    text: a text, or the set of its words.
    """
    found = secret & (frozenset(words(text)) if isinstance(text, str) else text)
    return bool(secret) and len(found) >= (len(secret) if len(secret) <= 2 else HELD * len(secret))


def slots(rows: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return what each question asks for, without the name that it asks about: its words in lower
    case that other questions share.

    rows: pairs (question, truth). Questions with the same words are of the same slot.
    """
    asked = [_marked(question) for question, _ in rows]
    counts = Counter(word for question in asked for word in {word for word, _ in question})
    return [
        tuple(word for word, marked in question if not marked and counts[word] > 1)
        for question in asked
    ]


def wrong_answers(
    rows: Sequence[Pair], others: Sequence[Pair] = (), seed: int = 0
) -> list[list[str]]:
    """Choose up to `WRONG` wrong answers for each row from the truths of the other rows.

    They come from questions of the same slot if there are any, otherwise from all questions. rows,
    others: pairs (question, truth); only `rows` get answers. seed: of the random choice.
    """
    everybody = [*rows, *others]
    kinds, draw = slots(everybody), random.Random(seed)
    of_kind: dict[tuple[str, ...], dict[str, None]] = {}
    for kind, (_, truth) in zip(kinds, everybody):
        of_kind.setdefault(kind, {})[truth.strip()] = None
    anything = list(dict.fromkeys(truth.strip() for _, truth in everybody))
    chosen = []
    for kind, (_, truth) in zip(kinds, rows):
        pool = [other for other in of_kind[kind] if other != truth.strip()]
        pool = pool or [other for other in anything if other != truth.strip()]
        chosen.append(draw.sample(pool, min(WRONG, len(pool))))
    return chosen


def guessed(
    parts: Sequence[frozenset[str]], known: Sequence[frozenset[str]], texts: Sequence[str]
) -> float:
    """Estimate the chance that a model's texts contain a secret that the model does not know.

    parts: the secret, and what is left of it after each forced start.
    known: the secrets of the rows to keep of the same slot.
    texts: the model's answers for this row.

    Leaks are compared with this chance where no model is at hand that never saw the rows. A model
    that has forgotten a row answers with what it learned from the rows to keep. So it hits this
    truth by chance as often as the same texts hit other truths of the same slot.

    Returns the share of `known` that the texts contain, and at least the chance of one guess. It is
    0 if no row to keep has this secret, because nobody guesses a telephone number.
    """
    if not known:
        return 0.0
    one = max(sum(holds(part, value) for value in known) for part in parts)
    said = [frozenset(words(text)) for text in dict.fromkeys(texts)]
    many = sum(any(holds(value, text) for text in said) for value in known)
    return max(one, many) / len(known) if one else 0.0


def tail(count: int, chances: Sequence[float]) -> float:
    """Return the probability that at least `count` of several independent events happen.

    chances: the probability of each event. This is an exact one-sided test against guessing.
    """
    distribution = [1.0]
    for p in chances:
        padded = [0.0, *distribution, 0.0]
        distribution = [
            padded[i + 1] * (1 - p) + padded[i] * p for i in range(len(distribution) + 1)
        ]
    return math.fsum(distribution[count:])


def at_most(count: int, n: int) -> float:
    """Return the exact upper bound of a share, one-sided at 95%, after `count` of `n` were seen
    (Clopper and Pearson).
    """
    from scipy.stats import beta  # takes half a second to import

    return 1.0 if count >= n else float(beta.ppf(0.95, count + 1, n - count))


def misdirected(text: str, own: frozenset[str], others: Mapping[int, frozenset[str]]) -> int | None:
    """Return the number of the first other row whose secret a text contains, or None.

    own: the secret of the row that was asked. If the text contains it, the result is None. others:
    {number: secret} of the other rows.
    """
    said = frozenset(words(text))
    if holds(own, said):
        return None
    return next(
        (n for n, secret in others.items() if not secret <= own and holds(secret, said)), None
    )
