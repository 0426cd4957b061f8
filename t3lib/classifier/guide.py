"""Labels that say what a model that never saw the rows to forget would say (ours).

Eq. 3 gives all tokens of rows to forget the label 0, so that in their contexts the classifier sees
one class only: it learns which rows to forget, not which of their tokens are secrets. Here the
label of such a token y after its context x is

    t(x, y) = min(1, p̃(y|x) / p(y|x)),

with p the base and p̃ a *guide*: any model that never saw these rows, such as n-grams counted from
the rows to keep. Tokens of rows to keep have the label 1, as before. The guide is read once, before
the fit, and only for tokens of the rows to forget.

What the classifier then estimates. The loss −t ln f − (1 − t) ln(1 − f) is least where f is the
mean label. If (x, y) is drawn with weight m_f from rows to forget and m_r from rows to keep,

    f*(x, y) = (m_r + m_f t(x, y)) / (m_r + m_f).

Where only rows to forget occur this is t, so p f* = min(p, p̃): without tempering, and before
normalisation, no learned token is more probable than under the guide. Harmless words, which the
guide expects too, keep their probability. About tokens that no row has in this context the labels
say nothing; there f is what the head makes of similar contexts. A fitted f is only near f*, so
tempering is still of use (Theorem 3.7).

Why min(1, ·). f is a probability, so it can only make tokens less probable, and a token that the
guide finds more probable than the base gives nothing away. In the paper's model,
p = γ p_f + (1 − γ) p_r, a perfect guide p̃ = p_r has ratios of at most 1/(1 − γ): little is cut off.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from t3lib.core.errors import UserError
from t3lib.core.rows import Example

Probabilities = NDArray[np.float64]
ORDERS = (1, 2, 3, 4, 5)
DISCOUNTS = (0.1, 0.3, 0.5, 0.7, 0.9)


def soft_labels(base: Probabilities, guide: Probabilities) -> Probabilities:
    """Return min(1, p̃/p) for every answer token of the rows to forget.

    base, guide: (n,) p and p̃ of the same tokens. The result (n,) is `labels` of `fit_head`, if the
    tokens are those of the forget rows in the order of `extract_features`. It is 1 where p = 0.

    UserError for arrays of two lengths and for numbers that are no probabilities.
    """
    base, guide = np.asarray(base, dtype=np.float64), np.asarray(guide, dtype=np.float64)
    if base.ndim != 1 or base.shape != guide.shape:
        raise UserError(
            f"labels: {base.size} probabilities of the base and {guide.size} of the guide, not one"
            " of each for every token"
        )
    for name, p in (("base", base), ("guide", guide)):
        if not ((p >= 0) & (p <= 1 + 1e-6)).all():  # rounding may exceed 1
            raise UserError(f"labels: the {name}'s probabilities must lie between 0 and 1")
    return np.divide(guide, base, out=np.ones_like(base), where=guide < base)


@dataclass(frozen=True)
class NGrams:
    """An n-gram model over tokens, smoothed by interpolated absolute discounting.

        P_k(y | c) = (max(0, n(c y) − D) + D m(c) P_{k−1}(y | c')) / n(c)

    c are the k − 1 tokens before y, and c' the same without the first of them. n(c y) counts how
    often y follows c, n(c) = Σ_y n(c y), and m(c) is the number of different tokens that follow c.
    Where n(c) = 0, P_k(y | c) = P_{k−1}(y | c'). P_0 is uniform over the vocabulary, so that no
    token has probability 0.

    order: n, the largest k; at most the one that was counted. discount: D. vocab_size: V.
    counts: {c y: n(c y)}, totals: {c: n(c)} and kinds: {c: m(c)}, for all k.

    UserError for a setting that is out of range.
    """

    order: int
    discount: float
    vocab_size: int
    counts: Mapping[tuple[int, ...], int]
    totals: Mapping[tuple[int, ...], int]
    kinds: Mapping[tuple[int, ...], int]

    def __post_init__(self) -> None:
        if self.order < 1 or self.vocab_size < 1 or not 0 < self.discount <= 1:
            raise UserError(
                "an n-gram model needs an order and a vocabulary of at least 1, and a discount"
                f" above 0 and at most 1, not {self.order}, {self.vocab_size} and {self.discount:g}"
            )

    def probability(self, before: Sequence[int], token: int) -> float:
        """Return P_n(token | the last n − 1 tokens of `before`)."""
        p = 1 / self.vocab_size
        for length in range(min(self.order, len(before) + 1)):
            context = tuple(before[len(before) - length :])
            if context not in self.totals:
                break  # nor is any longer context that ends with it
            beyond = max(0.0, self.counts.get((*context, token), 0) - self.discount)
            p = (beyond + self.discount * self.kinds[context] * p) / self.totals[context]
        return p

    def probabilities(self, examples: Sequence[Example]) -> Probabilities:
        """Return p̃ of every answer token, row after row; its context is the whole row before it."""
        return np.array(
            [
                self.probability(example.ids[max(0, t - self.order + 1) : t], example.ids[t])
                for example in examples
                for t in range(example.n_prompt, len(example.ids))
            ]
        )


def count_ngrams(
    examples: Sequence[Example], vocab_size: int, order: int = 5, discount: float = 0.5
) -> NGrams:
    """Count an n-gram model over whole rows, prompt and answer, as they are tokenised.

    examples: rows to keep. Other arguments and errors as of `NGrams`; UserError also without rows.
    """
    if not examples:
        raise UserError("an n-gram model needs rows to be counted from")
    counts, totals, kinds = Counter[tuple[int, ...]](), Counter(), Counter()  # type: ignore
    for example in examples:
        for end in range(1, len(example.ids) + 1):
            counts.update(tuple(example.ids[end - k : end]) for k in range(1, min(order, end) + 1))
    for gram, count in counts.items():
        totals[gram[:-1]] += count
        kinds[gram[:-1]] += 1
    return NGrams(order, discount, vocab_size, counts, totals, kinds)


def choose_ngrams(
    examples: Sequence[Example],
    held_out: Sequence[Example],
    vocab_size: int,
    orders: Sequence[int] = ORDERS,
    discounts: Sequence[float] = DISCOUNTS,
) -> NGrams:
    """Choose order and discount by held-out log-likelihood, then count all rows.

    examples: rows to keep that each candidate is counted from. held_out: other rows to keep; the
    candidate under which their answers are most probable is chosen. They should be about persons
    or subjects that `examples` never mentions, because the rows to forget are, too.

    The result is counted from both. Errors as of `count_ngrams`; UserError also without held-out
    rows.
    """
    if not held_out:
        raise UserError("an n-gram model needs held-out rows for its order and discount")
    counted = count_ngrams(examples, vocab_size, max(orders))
    candidates = [
        replace(counted, order=n, discount=discount) for n, discount in product(orders, discounts)
    ]
    best = max(candidates, key=lambda each: np.log(each.probabilities(held_out)).sum())
    return count_ngrams([*examples, *held_out], vocab_size, best.order, best.discount)
