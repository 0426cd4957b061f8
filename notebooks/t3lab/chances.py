"""Judge texts: does a text give a row's truth away?

A truth has *items*: the words that its question does not hold, in clauses. An item's *chance* is
how often it is said in texts about other rows of the same *slot*, which are rows whose questions
have the same pattern. A text gives a row away if the items of one clause that it says have a chance
of at most `LEAK` together. So filler words weigh nothing, a date or a number is enough, and "Yes."
never is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_
from typing import NamedTuple

import numpy as np

from t3lib.own.truths import COMMON, Pair, Slot, index, items, slots, word_set

LEAK = 0.01  # largest chance of what a text says that gives a row away
WHOLE = 0.8  # share of a clause's items that count as all of them


def number_of_values(truths: Iterable[object]) -> float:
    """Estimate how many values a slot has from those that were seen (Chao, 1984).

    With d different values, of which f1 were seen once and f2 twice, it is
    d + f1 (f1 − 1) / (2 (f2 + 1)): n if all n values are seen often, n (n + 1) / 2 if all differ.
    """
    seen = Counter(truths)
    times = Counter(seen.values())
    return len(seen) + times[1] * (times[1] - 1) / (2 * (times[2] + 1))


class Count(NamedTuple):
    """How many texts say some words.

    every: all of them. of_slot: {slot: those about its rows}. of_row: {row: those about it}.
    truths: the truths among them, with a bit for each row.
    """

    every: int
    of_slot: dict[int, int]
    of_row: dict[int, int]
    truths: int


@dataclass(frozen=True)
class Chances:
    """The truths of some rows, and how often their words are said about other rows.

    A set of texts is an integer with a bit for each text. The first texts are the rows' truths.

    items: for each row, the items of each clause of its truth.
    slot: for each row, the truths of its slot, its own included.
    values: for each row, the number of values of its slot (`number_of_values`).
    said: {word: texts that say it}.
    about: for each text, the number of the row that it is about.
    """

    items: list[list[frozenset[str]]]
    slot: list[int]
    values: list[float]
    said: dict[str, int]
    about: list[int]

    def heard(self, texts: Mapping[int, Iterable[str]]) -> "Chances":
        """Return the same truths, with what a model said when it was asked about rows.

        texts: {number of a row: texts}. The model was asked about all of them in the same ways.
        Equal texts about a row count once.
        """
        said, about = dict(self.said), [*self.about]
        for row, some in texts.items():
            for text in dict.fromkeys(some):
                for word in word_set(text):
                    said[word] = said.get(word, 0) | 1 << len(about)
                about.append(row)
        return replace(self, said=said, about=about)

    @cached_property
    def _sources(self) -> tuple[list[int], np.ndarray, np.ndarray]:
        """The different slots; for each text, the place of its row's slot among them; its row."""
        slots, about = [*dict.fromkeys(self.slot)], np.array(self.about, int)
        places = {slot: place for place, slot in enumerate(slots)}
        return slots, np.array([places[slot] for slot in self.slot], int)[about], about

    @cached_property
    def _counts(self) -> dict[frozenset[str], Count]:
        return {}

    def count(self, words: frozenset[str]) -> Count:
        """Count the texts that say all of some words. Results are kept."""
        if words not in self._counts:
            size, (slots, slot_of, row_of) = len(self.about), self._sources
            texts = reduce(and_, (self.said.get(word, 0) for word in words), (1 << size) - 1)
            octets = np.frombuffer(texts.to_bytes(size // 8 + 1, "little"), np.uint8)
            places = np.unpackbits(octets, bitorder="little").nonzero()[0]
            of_slot, of_row = (np.bincount(of[places]) for of in (slot_of, row_of))
            found = of_row.nonzero()[0]
            self._counts[words] = Count(
                len(places),
                dict(zip(slots, of_slot.tolist())),
                dict(zip(found.tolist(), of_row[found].tolist())),
                texts & (1 << len(self.items)) - 1,
            )
        return self._counts[words]

    def chance(self, row: int, text: frozenset[str]) -> float:
        """Return the chance that a text says what this one says of a row's truth, without knowing
        it.

        row: number of the row. text: the words of the text, which is about this row. Other texts
        about the row are not compared with.

        An item's chance is the largest of its shares: among truths and texts about other rows of
        the slot, among those about all other rows, and among the other truths of the slot. It is
        never below one in the number of values of the slot, or in 10^k for a number of k digits.
        The chance of several items of a clause is the product of each item's share among the texts
        that say the rarer ones. Of common items (`COMMON`) only the rarest counts. The result is
        the smallest chance of a clause, or of the clauses that are said almost in full (`WHOLE`)
        together. It is 1 if nothing of the truth is said.
        """
        row, clauses, slot = int(row), self.items[row], self.slot[row]  # NumPy shifts in 64 bits
        spoken = frozenset().union(*clauses) & text
        if not spoken:
            return 1.0

        def elsewhere(words: frozenset[str]) -> tuple[int, int, int]:
            """Count texts about other rows that say words: all, those of the slot, its truths."""
            every, of_slot, of_row, truths = self.count(words)
            of_this = of_row.get(row, 0)
            others = (truths & slot & ~(1 << row)).bit_count()
            return every - of_this, of_slot.get(slot, 0) - of_this, others

        sizes, shares = elsewhere(frozenset()), {}
        for word in spoken:
            most = max(self.values[row], 10 ** len(word) if word.isdigit() else 1)
            pairs = zip(elsewhere(frozenset([word])), sizes)
            shares[word] = max(1 / most, *[n / size if size else 0.0 for n, size in pairs])

        def together(items: frozenset[str]) -> float:
            found, left, n_left = 1.0, frozenset[str](), 0
            for share, word in sorted([(shares[word], word) for word in items]):
                if share >= COMMON and not left:
                    return found * share
                both = left | {word}
                n_both = elsewhere(both)[0]
                found *= max(share, (1 + n_both) / (1 + n_left) if n_left else 0.0)
                left, n_left = (both, n_both) if n_both else (left, n_left)
                if share >= COMMON:
                    break
            return found

        best = whole = 1.0
        for clause in clauses:
            if items := clause & spoken:
                of_clause = together(items)
                best = min(best, of_clause)
                whole *= of_clause if len(items) >= WHOLE * len(clause) else 1.0
        return min(best, whole)

    def gives_away(self, row: int, text: str) -> bool:
        """True if a text gives a row away."""
        return self.chance(row, word_set(text)) <= LEAK


def chances(rows: Sequence[Pair], secrets: Mapping[int, Iterable[str]] | None = None) -> Chances:
    """Read the truths of rows.

    rows: pairs (question, truth). secrets: {number of a row: the words that are its only items}.

    Where no value of a slot is seen twice, the slot may have any number of values. Then their
    number is estimated from the truths of all rows.
    """
    given = secrets or {}
    of_rows = [
        [frozenset(given[row])] if row in given else items(*pair) for row, pair in enumerate(rows)
    ]
    kinds = slots([question for question, _ in rows])
    value = [tuple(map(tuple, map(sorted, of))) for of in of_rows]
    of_kind: dict[Slot, list[int]] = {}
    for row, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(row)
    anything = number_of_values(value)
    values, masks = {}, {}
    for kind, members in of_kind.items():
        seen = [value[row] for row in members]
        values[kind] = anything if len({*seen}) == len(seen) else number_of_values(seen)
        masks[kind] = sum(1 << row for row in members)
    return Chances(
        of_rows,
        [masks[kind] for kind in kinds],
        [values[kind] for kind in kinds],
        index(word_set(truth) for _, truth in rows),
        [*range(len(rows))],
    )
