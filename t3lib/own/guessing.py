"""Test whether a model gives away more rows than guessing does.

The test permutes the truths among the rows of each slot: a model that does not know which truth
belongs to which row says permuted truths as often as the true ones. These functions work on words
and call no model.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from t3lib.own.truths import PART, Truths, Words, bits, index

LEVEL = 0.05  # of the one-sided test that calls a model leaking
DOUBT = 0.1  # of the one-sided test from which on a person should read the texts
DRAWS = 999  # random permutations
MOST_EXCHANGED = 60  # at most so many rows of a slot exchange their truths with a row to forget


@dataclass(frozen=True)
class Heard:
    """The words of one text about a row.

    words: all of them. own: those that count for the row itself, fewer where the prompt gave some.
    """

    words: Words
    own: Words


@dataclass(frozen=True)
class Comparison:
    """How strongly texts say the truths of rows, and those of other rows of the slot.

    A chance is that of the text that says most, times the number of different texts.

    own: (n,) for each row, the chance of what its texts say of its truth.
    slots: for each slot, the numbers of its rows and their chances (rows, truths of the slot),
    with the row's own truth among them.
    """

    own: np.ndarray
    slots: list[tuple[list[int], np.ndarray]]

    def guessed(self, level: float) -> float:
        """Return how many rows guessing would say with a chance of at most `level`: the mean over
        all permutations.
        """
        return float(sum((chances <= level).mean(axis=1).sum() for _, chances in self.slots))

    def permuted(self, score: Callable[[np.ndarray], np.ndarray]) -> float:
        """Return the share of random permutations of the truths in every slot under which the sum
        of a score over the rows is at least as large as it is.

        score: of an array of chances.
        """
        rng, sums = np.random.default_rng(0), np.zeros(DRAWS)
        for _, chances in self.slots:
            n, size = chances.shape
            order = rng.permuted(np.tile(np.arange(size), (DRAWS, 1)), axis=1)[:, :n]
            sums += score(chances)[np.arange(n), order].sum(axis=1)
        return float((1 + (sums >= score(self.own).sum() - 1e-9).sum()) / (1 + DRAWS))

    def p_value(self) -> float:
        """Return the probability that guessing says as much as was said, for all rows together.

        The score of a row is −log chance. If it is smaller, the bound for the worst row counts: its
        chance times the number of rows.
        """
        if not len(self.own):
            return 1.0
        worst = len(self.own) * self.own.min()
        return float(min(worst, self.permuted(lambda chances: -np.log(chances))))

    @property
    def doubtful(self) -> bool:
        """True if p <= 0.1 (`DOUBT`) for all that was said, or for the number of rows that are said
        in part (`PART`): read the texts.
        """
        parts = self.permuted(lambda chances: chances <= PART) if len(self.own) else 1.0
        return min(self.p_value(), parts) <= DOUBT

    @property
    def beyond(self) -> bool:
        """True if p <= 0.05 (`LEVEL`): guessing does not explain what was said."""
        return self.p_value() <= LEVEL

    def rows_needed(self) -> int | None:
        """Return about how many such rows would be enough to tell knowing from guessing, or None if
        no number is, because everything that is said is said of all rows.
        """
        each = -np.log(self.own).mean() if len(self.own) else 0.0
        return 1 + math.ceil(math.log(1 / LEVEL) / each) if each > 0.01 else None


def least(tests: Sequence[Comparison]) -> Comparison:
    """Combine the tests of several groups of texts about the same rows: the smallest chances."""
    slots = [
        (each[0][0], np.minimum.reduce([chances for _, chances in each]))
        for each in zip(*(test.slots for test in tests))
    ]
    return Comparison(np.minimum.reduce([test.own for test in tests]), slots)


def compare(
    truths: Truths, rows: Sequence[int], texts: Mapping[int, Sequence[Heard]]
) -> Comparison:
    """Compare what texts say of their rows with what they say of other rows of the slot.

    truths: after `heard`. rows: numbers of the rows to judge. texts: {row: its texts}.
    """
    own = np.ones(len(rows))
    members: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        members.setdefault(truths.slot[row], []).append(place)
    slots = []
    for mask, places in members.items():
        mine = [rows[place] for place in places]
        others = [row for row in bits(mask) if row not in {*mine}]
        others = (
            others
            if len(others) <= MOST_EXCHANGED
            else random.Random(0).sample(others, MOST_EXCHANGED)
        )
        chances = np.ones((len(places), len(mine) + len(others)))
        for i, row in enumerate(mine):
            said = {each.words for each in texts[row]}
            spoken, counted = index(said), index({each.own for each in texts[row]})
            for j, other in enumerate([*mine, *others]):
                found = truths.chance_among(other, counted if other == row else spoken, row)
                chances[i, j] = min(1.0, found * max(1, len(said)))
            own[places[i]] = chances[i, i]
        slots.append((places, chances))
    return Comparison(own, slots)


def at_most(count: int, n: int) -> float:
    """Return the exact upper bound of a share, one-sided at 95%, after `count` of `n` were seen
    (Clopper and Pearson).
    """
    from scipy.stats import beta  # takes half a second to import

    return 1.0 if count >= n else float(beta.ppf(0.95, count + 1, n - count))
