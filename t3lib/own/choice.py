"""Choose the temperature T and the strength w.

A cheap screen scores many pairs (T, w) by teacher forcing. At most three of them are then asked,
and the best is taken. These functions work on numbers alone.

Because p^(1/T) f^w = (p f^(w·T))^(1/T), greedy text depends only on the product w·T. With T = 1 and
w equal to the product, sampled answers to rows to keep stay as they were.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from t3lib.own.leak import too_few

STRENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


@dataclass(frozen=True, eq=False)
class Screened:
    """The result of teacher forcing at one pair (T, w), without decoding any text.

    said: share of the rows to forget of which the model still ranks the distinctive tokens first,
    or still samples them often.
    kept: {set: (number of rows that are still reproduced whole, of how many that the base
    reproduces whole)}.
    """

    T: float
    w: float
    said: float
    kept: Mapping[str, tuple[int, int]]

    def keeps(self, sets: Collection[str] | None = None) -> bool:
        """True unless a test shows that one of these sets, by default all, loses its rows."""
        return not any(
            too_few(*counts) for name, counts in self.kept.items() if sets is None or name in sets
        )


def grid_of(T: float | None = None, w: float | None = None) -> list[tuple[float, float]]:
    """Return the pairs (T, w) to screen.

    A given value is used as it is. With only T given, w is 1. Without T it is 1, because a head
    that was fitted on wordings and neighbours is precise enough without tempering, and w covers
    `STRENGTHS`.
    """
    if T is not None:
        return [(T, 1.0 if w is None else w)]
    return [(1.0, each) for each in (STRENGTHS if w is None else (w,))]


def candidates(screened: Sequence[Screened]) -> list[Screened]:
    """Return the pairs (T, w) to ask, at most three.

    First, pairs that keep the rows to keep are preferred, then those with the smallest `said`,
    then those that also keep rows which the head never saw. A preference is skipped where no pair
    meets it. Three of the rest are taken, if they exist: the smallest product w·T, and of these the
    lowest T; the smallest product that is at least twice as large; and the largest product.
    """
    pool = [entry for entry in screened if entry.keeps(["retain"])] or list(screened)
    least = min(entry.said for entry in pool)
    pool = [entry for entry in pool if entry.said == least]
    pool = [entry for entry in pool if entry.keeps()] or pool
    pool.sort(key=lambda entry: (entry.T * entry.w, entry.T))
    smallest = pool[0].T * pool[0].w
    larger = [entry for entry in pool if entry.T * entry.w >= 2 * smallest][:1]
    return list(dict.fromkeys([pool[0], *larger, pool[-1]]))


def best(tried: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the best pair (T, w).

    tried: {"T", "w", "said": texts that say their row's truth beyond what texts about other rows
    say, "failing": groups of answers to keep that fail, "changed": answers to keep that changed}.

    Pairs that say more than the least by a standard deviation are out. Of the others the best has
    the fewest failing groups, then the fewest changed answers, then the largest w.
    """
    least = min(entry["said"] for entry in tried)

    def rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        more = entry["said"] > least + sqrt(least)
        return (more, entry["failing"], entry["changed"], entry["T"], -entry["w"])

    return min(range(len(tried)), key=lambda number: rank(tried[number]))


REASON = (
    "of the settings that were asked, the best says the fewest truths, then changes the fewest"
    " answers to keep"
)


def table(tried: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str:
    """Write the pairs (T, w) that were asked as a table of text, one line each.

    chosen: has the chosen T and w, whose line is marked.
    """
    lines = ["     T      w  texts that tell  answers to keep that changed"]
    for each in tried:
        mark = "*" if (each["T"], each["w"]) == (chosen["T"], chosen["w"]) else " "
        lines.append(
            f"{mark}{each['T']:5.3g} {each['w']:6.3g} {each['said']:8.1f} of {each['texts']:<6}"
            f"{each['changed']:5} of {each['known']}"
        )
    return "\n".join(lines)
