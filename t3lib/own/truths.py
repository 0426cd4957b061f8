"""Read the truths of rows: their words, and which of these are secret.

A truth has *items*: the words that its question does not hold, in clauses. An item is *rare* if few
truths of other rows hold it: few of all, and few of the same *slot*, which are rows whose questions
have the same pattern. So filler words weigh nothing.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import groupby
from operator import and_
from typing import TypeVar

# Thai, Lao, Burmese, Khmer, kana, Chinese characters: scripts without spaces between words.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
CLAUSE_ENDS = set(".!?;:,\n…。！？；：，、।॥؟؛،۔")
THOUSANDS = re.compile(r"(?<=\d)[,.'’](?=\d{3}(?!\d))")  # 20,000 and 20.000 are 20000
COMMON = 0.1  # an item in more of the other truths gives no row away by itself
GUESSED = 0.5  # an item in so many of the other truths is no secret
TEMPLATE = 0.2  # a word in more of some texts belongs to their template
FEWEST_IN_SLOT = 4  # a slot has at least so many questions
Pair = tuple[str, str]  # a question and its true answer
Slot = str
Words = frozenset[str]  # of a text, in lower case
Said = TypeVar("Said")  # a word, or what else is counted


def clauses(text: str, *, fold: bool = True) -> list[list[str]]:
    """Split a text into clauses, and each clause into words.

    A word is a run of letters, digits and marks (Unicode L, N and M). A script without spaces is
    cut into all runs of three characters. Accents, harakat, Hebrew points and invisible characters,
    which many writers leave out, are dropped (`folded`). fold: return lower case.
    """
    text = folded(text)
    found: list[list[str]] = [[]]
    for kind, run in groupby(text.casefold() if fold else text, kind_of_char):
        part = "".join(run)
        if kind == "word":
            found[-1].append(part)
        elif kind == "unspaced":
            found[-1] += [part[i : i + 3] for i in range(max(1, len(part) - 2))]
        elif CLAUSE_ENDS & set(part):
            found.append([])
    return [clause for clause in found if clause]


# letters that no mark takes apart
BARE = str.maketrans("łøđıæœŁØĐÆŒ", "lodiaoLODAO") | {ord(letter): "ss" for letter in "ßẞ"}


@lru_cache(2**16)
def folded(text: str) -> str:
    """Return a text in Unicode's form NFKC, without accents, points, invisible characters and
    thousands separators, as in "Zoe Lodz" for "Zoë Łódź".
    """
    text = THOUSANDS.sub("", unicodedata.normalize("NFKC", text))
    if text.isascii():  # it has none of these characters
        return text
    kept = "".join(
        char
        for char in unicodedata.normalize("NFD", text)
        if not "\u0300" <= char <= "\u036f"
        and unicodedata.category(char) != "Cf"
        and not 10 <= unicodedata.combining(char) <= 35
    )
    return unicodedata.normalize("NFC", kept).translate(BARE)


@lru_cache(2**16)
def kind_of_char(char: str) -> str:
    """Return "word" for a letter, digit or mark, "unspaced" in scripts without spaces, or
    "between".
    """
    if unicodedata.category(char)[0] not in "LNM":
        return "between"
    return "unspaced" if UNSPACED.match(char) else "word"


def words(text: str, *, fold: bool = True) -> list[str]:
    """Split a text into words, as `clauses` does. fold: in lower case."""
    return [word for clause in clauses(text, fold=fold) for word in clause]


@lru_cache(2**16)
def word_set(text: str) -> Words:
    """Return the set of a text's words. Results are cached, because texts are judged repeatedly."""
    return frozenset(words(text))


def patterns(questions: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the pattern of each question, which says what it asks for, but not about whom.

    It is the question's words in lower case that other questions share, without names and numbers.

    A capital letter marks a name, unless it begins the question. In a script without capitals, a
    word must be in more than a twentieth of the questions, because names may be in several.
    """
    asked = [words(text, fold=False) for text in questions]
    counts = Counter(word.casefold() for question in asked for word in {*question})
    least = max(1, len(asked) / 20)

    def is_shared(place: int, word: str) -> bool:
        named = place > 0 and word[0].isupper() or any(map(str.isdigit, word))
        return not named and counts[word.casefold()] > (1 if word.upper() != word else least)

    return [
        tuple(word.casefold() for place, word in enumerate(question) if is_shared(place, word))
        for question in asked
    ]


def shared_words(texts: Sequence[str]) -> list[str]:
    """Return the words without a capital letter or a digit that many of some texts hold."""
    counts = Counter(word for text in texts for word in {*words(text, fold=False)})
    return [
        word
        for word, count in counts.items()
        if count > TEMPLATE * len(texts)
        and word == word.casefold()
        and not any(map(str.isdigit, word))
    ]


def ordinary_words(text: str) -> Words:
    """Return the words of a text that are written in small letters, in a script with capitals: no
    names and no numbers.
    """
    return frozenset(
        word.casefold()
        for word in words(text, fold=False)
        if word.islower() and word != word.title() and not any(map(str.isdigit, word))
    )


def slots(questions: Sequence[str]) -> list[Slot]:
    """Return the slot of each question: the rarest word of its pattern (`patterns`) that at least
    `FEWEST_IN_SLOT` questions hold, or "" if there is none.

    So questions for one thing are of one slot also if they are worded differently.
    """
    found = patterns(questions)
    counts = Counter(word for pattern in found for word in {*pattern})
    return [
        min(
            (word for word in pattern if counts[word] >= FEWEST_IN_SLOT),
            key=lambda word: (counts[word], -len(word), word),
            default="",
        )
        for pattern in found
    ]


def names(questions: Sequence[str]) -> list[frozenset[str]]:
    """Return whom or what each question asks about: its words that are not of its pattern."""
    return [
        frozenset(words(text)) - {*pattern} for text, pattern in zip(questions, patterns(questions))
    ]


def items(question: str, truth: str) -> list[frozenset[str]]:
    """Return the words of each clause of a truth that its question does not hold.

    In a script without spaces, what truth and question share is cut out before the truth is split,
    so that no run of three characters holds a part of a name from the question.
    """
    question, truth = folded(question).casefold(), folded(truth).casefold()
    shared = {
        place + k
        for place in range(len(truth) - 1)
        for k in (0, 1)
        if all(map(UNSPACED.match, truth[place : place + 2]))
        and truth[place : place + 2] in question
    }
    left = "".join(" " if place in shared else char for place, char in enumerate(truth))
    found = (frozenset(clause).difference(words(question)) for clause in clauses(left))
    return [clause for clause in found if clause]


def inflected(word: str, other: str) -> bool:
    """True if one of two words continues the other by at most three letters, as "plays" does
    "play". The shorter one has at least four.
    """
    stem, longer = sorted((word, other), key=len)
    return len(stem) >= 4 and len(longer) - len(stem) <= 3 and longer.startswith(stem)


def says(said: Mapping[str, int], words: Iterable[str], texts: int) -> int:
    """Return which of these texts say all of some words, as bits. said: from `index`."""
    return reduce(and_, (said.get(word, 0) for word in words), texts)


def index(texts: Iterable[Iterable[Said]]) -> dict[Said, int]:
    """Return {word: texts that say it}, as an integer with a bit for each text."""
    said: dict[Said, int] = {}
    for place, text in enumerate(texts):
        for word in text:
            said[word] = said.get(word, 0) | 1 << place
    return said


def share(some: int, pool: int) -> float:
    """Return the share of a pool that is also in `some`, 0 of an empty pool. Both are bits."""
    return (some & pool).bit_count() / (pool.bit_count() or 1)


@dataclass(frozen=True)
class Truths:
    """The truths of some rows. A set of rows is an integer with a bit for each row.

    items: for each row, the items of each clause of its truth.
    slot: for each row, the rows of its slot, itself included.
    same: for each row, the rows whose truth has the same words, itself included.
    said: {word: rows whose truth holds it}.
    """

    items: list[list[Words]]
    slot: list[int]
    same: list[int]
    said: dict[str, int]

    def holders(self, words: Iterable[str]) -> int:
        """Return the rows whose truth holds all of some words."""
        return says(self.said, words, (1 << len(self.items)) - 1)

    def share(self, row: int, words: Iterable[str]) -> float:
        """Return the share of other truths that hold some words: of all, or of the row's slot,
        whichever is larger. An equal truth, such as that of a question in other words, is no other.
        """
        every, holders = (1 << len(self.items)) - 1, self.holders(words)
        return max(share(holders, pool & ~self.same[row]) for pool in (every, self.slot[row]))

    def rare(self, row: int, most: float) -> list[Words]:
        """Return of each clause of a truth the items that at most this share of others holds."""
        clauses = (
            frozenset(word for word in clause if self.share(row, [word]) <= most)
            for clause in self.items[row]
        )
        return [clause for clause in clauses if clause]

    def secrets(self, row: int) -> list[Words]:
        """Return the sets of words that give a row away: each rare word, the rarer words of each
        clause together, and those of all clauses. Where all words are common, as in "Yes.", they
        are one secret.
        """
        alone = [frozenset([word]) for some in self.rare(row, COMMON) for word in sorted(some)]
        clauses = self.rare(row, GUESSED)
        whole = frozenset[str]().union(*(clauses or self.items[row]))
        return [each for each in dict.fromkeys([*alone, *clauses, whole]) if each]


def truths(rows: Sequence[Pair], secrets: Mapping[int, Iterable[str]] | None = None) -> Truths:
    """Read the truths of rows.

    rows: pairs (question, truth). secrets: {number of a row: the words that are its only items}.

    An ordinary word that the question has in another form is no item: whoever is asked what
    somebody plays says "plays".
    """
    given = secrets or {}

    def own_items(number: int, question: str, truth: str) -> list[Words]:
        if number in given:
            return [frozenset(given[number])]
        echoed = {
            word
            for word in ordinary_words(truth)
            if any(inflected(word, each) for each in words(question))
        }
        found = items(question, truth)
        return [left for clause in found if (left := clause - echoed)] or found

    kinds = slots([question for question, _ in rows])
    said = [word_set(truth) for _, truth in rows]
    members, equal = index([kind] for kind in kinds), index([each] for each in said)
    return Truths(
        [own_items(number, *pair) for number, pair in enumerate(rows)],
        [members[kind] for kind in kinds],
        [equal[each] for each in said],
        index(said),
    )
