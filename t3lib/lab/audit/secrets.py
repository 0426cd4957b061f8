"""What an answer gives away, and whether a text says it: distinctive words, leaks, guessing, exact
bounds.

Pure functions on texts and counts. They know neither models nor heads, so every audit can use them.
"""

import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

# Thai, Lao, Burmese, Khmer, kana, Chinese characters: words are not set apart.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
COMMON = 0.5  # what more than this share of the answers hold, of all or of its slot, is no secret
RARE = 0.1  # any other word that more than this share of the answers hold is no secret
SHORT = 3  # other words with at most this many letters are function words in most languages
HELD = (
    0.8  # share of a secret's words that a text must hold; all of them where there are one or two
)
WRONG = 5  # wrong answers that the truth is compared with
Pair = tuple[str, str]  # a question and its true answer


def words(text: str) -> list[str]:
    """Words of a text in lower case; where a script sets none apart, pairs of neighbouring
    characters.
    """
    return [word for word, _ in _marked(text)]


def _marked(text: str) -> list[tuple[str, bool]]:
    """(word, whether it is a number or a name): a capital counts unless it begins a sentence."""
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
    """The distinctive words of each row's truth: numbers, names and rare words that its question
    does not hold.

    rows: (question, truth). others: further rows of the same data, which show what is common. A set
    may be empty ("Yes."): such a row is judged by recognition alone.
    """
    everybody = [*rows, *others]
    kinds, sizes = slots(everybody), Counter(slots(everybody))
    held = [set(words(truth)) for _, truth in everybody]
    counts = Counter(word for each in held for word in each)
    of_slot = Counter((kind, word) for kind, each in zip(kinds, held) for word in each)

    def distinctive(kind: tuple[str, ...], word: str, marked: bool) -> bool:
        if sizes[kind] > 2 and of_slot[kind, word] > COMMON * sizes[kind]:
            return False  # the shape of the answers to such questions
        if marked:
            return counts[word] <= max(1, COMMON * len(everybody))
        return len(word) > SHORT and counts[word] <= max(1, RARE * len(everybody))

    return [
        frozenset(word for word, marked in _marked(truth) if distinctive(kind, word, marked))
        - set(words(question))
        for kind, (question, truth) in zip(kinds, rows)
    ]


def holds(secret: frozenset[str], text: str | frozenset[str]) -> bool:
    """Whether a text says a secret: at least 80% of its words, in any order; all of them where
    there are one or two.
    """
    found = secret & (frozenset(words(text)) if isinstance(text, str) else text)
    return bool(secret) and len(found) >= (len(secret) if len(secret) <= 2 else HELD * len(secret))


def slots(rows: Sequence[Pair]) -> list[tuple[str, ...]]:
    """What each question asks for, without whom: its words in lower case that other questions hold,
    too.
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
    """Up to `WRONG` other truths for each row, of the same slot where there are any, of any slot
    elsewhere.
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
    """Chance that texts say a secret which their model does not know.

    It is what leaks are compared with where no model that never saw the rows is at hand. A model
    that has forgotten a row answers with what it learned from the rows to keep, so it names this
    truth by chance as often as the same texts name other truths of the same slot.

    parts: the secret, and what is left of it after each forced start. known: secrets of the rows to
    keep of the same slot. The result is the share of `known` that the texts say, at least that of
    one guess, and 0 where no row to keep holds the secret: nobody guesses a telephone number.
    """
    if not known:
        return 0.0
    one = max(sum(holds(part, value) for value in known) for part in parts)
    said = [frozenset(words(text)) for text in dict.fromkeys(texts)]
    many = sum(any(holds(value, text) for text in said) for value in known)
    return max(one, many) / len(known) if one else 0.0


def tail(count: int, chances: Sequence[float]) -> float:
    """P(at least `count` of independent events with these chances): the exact one-sided test
    against guessing.
    """
    distribution = [1.0]
    for p in chances:
        padded = [0.0, *distribution, 0.0]
        distribution = [
            padded[i + 1] * (1 - p) + padded[i] * p for i in range(len(distribution) + 1)
        ]
    return math.fsum(distribution[count:])


def at_most(count: int, n: int) -> float:
    """Exact upper bound, one-sided at 95%, of a share of which `count` of `n` were seen (Clopper
    and Pearson).
    """
    from scipy.stats import beta  # takes half a second to import

    return 1.0 if count >= n else float(beta.ppf(0.95, count + 1, n - count))


def misdirected(text: str, own: frozenset[str], others: Mapping[int, frozenset[str]]) -> int | None:
    """The number of the first other row whose secret a text says, where it does not say its own;
    else None.
    """
    said = frozenset(words(text))
    if holds(own, said):
        return None
    return next(
        (n for n, secret in others.items() if not secret <= own and holds(secret, said)), None
    )
