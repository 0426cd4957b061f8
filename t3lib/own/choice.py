"""Choose the strength w.

All strengths answer greedily, the best of them are sampled too, and the best of these is taken.
These functions work on numbers alone.

T is not chosen: it is 1 unless the caller gives another. Because p^(1/T) f^w = (p f^(w·T))^(1/T),
greedy text depends only on the product w·T, and with T = 1 sampled answers to rows to keep stay as
they were. The gate θ and the tail ε limit tempering, and with T = 1 they change nothing. Larger w
do not help: of two small models whose rows leak at w = 12, as many leak at 32 and 48, so f must be
near 1 where they do.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

STRENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
SAMPLED = 3  # so many strengths are sampled, because most of the time goes into samples


def ranked(tried: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort strengths by their counts, the best first.

    tried: {"w", "said": texts that say their row's truth beyond what texts about other rows say,
    "failing": groups of answers to keep that fail, "changed": answers to keep that changed}.

    Strengths that say more than the least by a standard deviation come last. Of the others the best
    has the fewest failing groups, then the fewest changed answers, then the largest w.
    """
    least = min(entry["said"] for entry in tried)

    def rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        more = max(0.0, entry["said"] - least - sqrt(least))
        return (more, entry["failing"], entry["changed"], -entry["w"])

    return sorted(tried, key=rank)
