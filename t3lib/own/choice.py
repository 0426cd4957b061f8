"""Choose the temperature T and the strength w.

A cheap screen scores many pairs (T, w) by teacher forcing. At most three of them are then judged in
full, and the best is taken. These functions work on numbers alone.

Because p^(1/T) f^w = (p f^(w·T))^(1/T), greedy text depends only on the product w·T. With T = 1 and
w equal to the product, sampled answers to rows to keep stay as they were.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from t3lib.own.leak import COLD, WARM
from t3lib.own.verdict import EXACT, failing

STRENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


@dataclass(frozen=True, eq=False)
class Screened:
    """The result of teacher forcing at one pair (T, w), without decoding any text.

    said: share of the rows to forget of which the model still ranks the distinctive tokens first,
    or still samples them often.
    kept: {set: share of rows that are still reproduced whole, among those that the base reproduces
    whole}.
    """

    T: float
    w: float
    said: float
    kept: Mapping[str, float]

    def keeps(self, sets: Collection[str] = tuple(EXACT)) -> bool:
        """True if each of these sets keeps at least the share of whole rows that `EXACT` asks
        for.
        """
        return all(share >= EXACT[name] for name, share in self.kept.items() if name in sets)


def grid_of(T: float | None = None, w: float | None = None) -> list[tuple[float, float]]:
    """Return the pairs (T, w) to screen.

    A given value is used as it is. With only T given, w is 1. Without T it is 1, because a head
    that was fitted on wordings and neighbours is precise enough without tempering, and w covers
    `STRENGTHS`.
    """
    if T is not None:
        return [(T, 1.0 if w is None else w)]
    return [(1.0, each) for each in (STRENGTHS if w is None else (w,))]


def worse(first: Screened, second: Screened) -> Screened:
    """Combine two heads at one pair (T, w) into their worse values: the larger `said`, and for each
    set the smaller `kept`.
    """
    shared = {
        name: min(first.kept[name], share)
        for name, share in second.kept.items()
        if name in first.kept
    }
    return replace(
        first, said=max(first.said, second.said), kept={**first.kept, **second.kept, **shared}
    )


def candidates(screened: Sequence[Screened]) -> list[Screened]:
    """Return the pairs (T, w) to judge in full, at most three.

    First, pairs that keep the rows to keep are preferred, then those with the smallest `said`,
    then those that also keep rows which no head saw. A preference is skipped where no pair meets
    it. Three of the rest are taken, if they exist:
    1. the smallest product w·T, and of these the lowest T;
    2. the smallest product that is at least twice as large;
    3. the smallest product of the pairs with a lower w than one of these two, or if there is
       none, the largest product.
    """
    pool = [entry for entry in screened if entry.keeps(["retain"])] or list(screened)
    least = min(entry.said for entry in pool)
    pool = [entry for entry in pool if entry.said == least]
    pool = [entry for entry in pool if entry.keeps()] or pool
    pool.sort(key=lambda entry: (entry.T * entry.w, entry.T))
    smallest = pool[0].T * pool[0].w
    larger = [entry for entry in pool if entry.T * entry.w >= 2 * smallest][:1]
    hot = [
        entry
        for entry in pool
        if entry.w < pool[0].w or larger and entry.w < larger[0].w and entry.T > 1
    ][:1]
    return list(dict.fromkeys([pool[0], *larger, *(hot or pool[-1:])]))


def tried(pair: Screened, report: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise one fully judged pair (T, w) in numbers.

    leaking: rows that leak.
    changed: number of sets to keep that fail. unchanged, cold, warm: rows to keep with the base's
    answer, greedy and sampled at τ = 0.6 and τ = 1.
    known: rows to keep that the base answers.
    """
    kept = {name: report[name] for name in EXACT if name in report}
    sums = {"unchanged": sum(entry["unchanged"] for entry in kept.values())}
    sums |= {name: sum(entry["unchanged_sampled"][how] for entry in kept.values())
             for name, how in (("cold", COLD), ("warm", WARM))}  # fmt: skip
    return {
        "T": pair.T,
        "w": pair.w,
        "leaking": report["forget"]["leaking"],
        "changed": sum(failing(name, entry) is not None for name, entry in kept.items()),
        **sums,
        "known": sum(entry["known_before"] for entry in kept.values()),
    }


def best(judged: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the best pair (T, w).

    The order is: fewest leaks, fewest sets to keep that fail, most sampled answers kept, lowest T.
    """

    def rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        sampled = entry["warm"] + entry["cold"]
        return (entry["leaking"], entry["changed"], -sampled, entry["T"])

    return min(range(len(judged)), key=lambda number: rank(judged[number]))


def reason(judged: Sequence[Mapping[str, Any]]) -> str:
    """Explain in one line how the pair (T, w) was chosen. judged: the pairs judged in full."""
    if len(judged) == 1:
        return "the only setting that was judged in full"
    return (
        f"the best of {len(judged)} settings judged in full: fewest leaks, then most sets and"
        " sampled answers kept, then the lowest T"
    )


def table(judged: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str:
    """Write the pairs (T, w) that were judged in full as a table of text, one line each.

    chosen: has the chosen T and w, whose line is marked.
    """
    lines = ["     T      w  leak  kept greedily  at τ = 0.6  at τ = 1"]
    for each in judged:
        mark = "*" if (each["T"], each["w"]) == (chosen["T"], chosen["w"]) else " "
        lines.append(
            f"{mark}{each['T']:5.3g} {each['w']:6.3g} {each['leaking']:5}"
            f" {each['unchanged']:6} of {each['known']:<5} {each['cold']:10} {each['warm']:9}"
        )
    return "\n".join(lines)
