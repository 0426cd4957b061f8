"""T, w and the learning rate: a cheap screen of many settings, and the best of those judged in
full. Pure functions.

p^(1/T) f^w = (p f^(w·T))^(1/T): greedy text depends on the product w·T alone. T = 1 with w =
product keeps what is sampled; T = product with w = 1 is the paper's. Sampled at τ the second says
what the first says at τ·T.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from t3lib.lab.own.verdict import COLD, EXACT, WARM, failing

PRODUCTS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True, eq=False)
class Screened:
    """What teacher forcing shows of a setting, without any text being written.

    said: share of the rows to forget whose distinctive tokens the model still puts first, or
    samples often. kept: {set: share of the rows that the base would write whole which are still
    written whole}. gap: mean share of tokens put first, rows to keep minus rows to forget.
    """

    T: float
    w: float
    said: float
    kept: Mapping[str, float]
    gap: float

    def keeps(self, sets: Collection[str] = tuple(EXACT)) -> bool:
        """Whether each of these sets keeps its share of whole rows."""
        return all(share >= EXACT[name] for name, share in self.kept.items() if name in sets)


def settings(T: float | None = None, w: float | None = None) -> list[tuple[float, float]]:
    """The (T, w) to screen. What is given is not searched: with T alone w is 1, with w alone T is
    at least 1.
    """
    if T is not None:
        return [(T, 1.0 if w is None else w)]
    if w is not None:
        return sorted({(max(1.0, product / w), w) for product in PRODUCTS})
    return sorted({pair for product in PRODUCTS for pair in ((1.0, product), (product, 1.0))})


def worse(first: Screened, second: Screened) -> Screened:
    """The worse of two heads at one setting: more said, and set by set less kept."""
    shared = {
        name: min(first.kept[name], share)
        for name, share in second.kept.items()
        if name in first.kept
    }
    return replace(
        first, said=max(first.said, second.said), kept={**first.kept, **second.kept, **shared}
    )


def candidates(screened: Sequence[Screened]) -> list[Screened]:
    """The settings to judge in full, at most three: least said of those that keep the rows to keep,
    if any does.

    Of these again those that keep rows no head saw, if any does. The smallest product w·T with the
    lowest T, one of at least twice that product, and the smaller of the two products with the
    highest T.
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
    return list(dict.fromkeys([pool[0], *larger, *hot]))


def choose_rate(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The learning rate whose largest `gap` over all settings is largest, the smallest one among
    equals.
    """
    return max(trials, key=lambda trial: (trial["gap"], -trial["lr"]))


def tried(setting: Screened, report: Mapping[str, Any]) -> dict[str, Any]:
    """One judged setting in numbers: rows that leak, rows to keep that stay, greedy and sampled,
    rows recognised.
    """
    kept = {name: report[name] for name in EXACT if name in report}
    sums = {"unchanged": sum(entry["unchanged"] for entry in kept.values())}
    sums |= {name: sum(entry["unchanged_sampled"][how] for entry in kept.values())
             for name, how in (("cold", COLD), ("warm", WARM))}  # fmt: skip
    return {
        "T": setting.T,
        "w": setting.w,
        "leaking": report["forget"]["leaking"] if report["forget"]["beyond"] else 0,
        "changed": sum(failing(name, entry) is not None for name, entry in kept.items()),
        **sums,
        "known": sum(entry["known_before"] for entry in kept.values()),
        "recognised": report["recognition"]["after"],
    }


def best(judged: Sequence[Mapping[str, Any]]) -> int:
    """Which setting: fewest leaks, then greedy answers kept, then sampled answers kept, then fewest
    recognised.
    """

    def rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        sampled = entry["warm"] + entry["cold"]
        return (entry["leaking"], entry["changed"], -sampled, entry["recognised"], entry["T"])

    return min(range(len(judged)), key=lambda number: rank(judged[number]))


def reason(judged: Sequence[Mapping[str, Any]], number: int) -> str:
    """What the choice buys and what it costs, with the numbers of every setting that was judged."""
    each = "; ".join(
        f"T = {entry['T']:g}, w = {entry['w']:.3g}: {entry['leaking']} leak, of {entry['known']} to"
        f" keep {entry['unchanged']} unchanged, {entry['cold']} and {entry['warm']} sampled at τ ="
        f" 0.6 and 1, {entry['recognised']} recognised"
        for entry in judged
    )
    if len(judged) == 1:
        return f"the only setting judged in full ({each})"
    order = "no leak, then rows kept when sampled, then recognition"
    return f"setting {number + 1} of {len(judged)} judged in full ({order}): {each}"
