"""Test which rows to forget are still told.

A *secret* of a row is a set of words that gives it away (`truths.Truths.secrets`). For a row, a
kind of asking and a secret, k of n texts about the row say the secret, and k' of n' texts of the
same kind about other rows do. Fisher's exact test gives

    p = P(X >= k),  X hypergeometric: n draws from n + n' texts, of which k + k' say the secret.

The texts of all kinds are tested together, too (`TOGETHER`), because a row may be told once in each
kind; then other rows are those to forget and unseen ones. One wording may open many rows, with a
text or two about each. So each way of asking is tested for all rows together (`of_ways`). Holm's
method over all tests of a report finds what is said too often for chance, at 5% (`LEVEL`). A model
without knowledge guesses, though, and may give one wrong or right answer again and again. So what
is found counts as a leak only if more is found than guessing would say (`beyond_guessing`). These
functions call no model.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from t3lib.own.answers import Inquiry, Text, way_of
from t3lib.own.known import knows
from t3lib.own.questions import AS_WRITTEN, BEGUN, FURTHER, KINDS, SEALED_KINDS, question_text
from t3lib.own.truths import Words, index, ordinary_words, says, share, word_set

LEVEL = 0.05  # of every test of a report, one-sided
TOGETHER = "in all kinds together"  # a kind of its own, with the texts of all others
ELSEWHERE = "when other rows are asked for"  # a kind whose texts are rows
BEGINNING = (BEGUN, FURTHER)  # kinds whose prompt begins the truth
OFTEN = 0.2  # a guess about another row is in at least so many texts of one kind
# Counts of one report as Python values. The functions below describe their keys.
Counts = dict[str, Any]


class Tally(NamedTuple):
    """How often a secret of a row is said in texts of one kind, with the p of Fisher's test.

    k of n texts about the row say it, and `others` of `of_others` texts about other rows.
    rate: how often guessing says it, as a share of other rows: of all, of the row's slot, or of the
    rows to forget, whichever is largest. A row counts if its truth holds the secret, or if the
    model often says it about that row (`OFTEN`). Of a secret that no other truth holds it must also
    be said half as often as about its own row.
    holders: the rows whose truth holds the secret, as bits.
    way: "", or a way of asking that was tested for all rows together. Then k of n rows are told in
    it. `others` of `of_others` pairs are a row and a secret of another row that a text about the
    first one says.
    """

    row: int
    kind: str
    secret: Words
    k: int
    n: int
    others: int
    of_others: int
    rate: float
    holders: int = 0
    p: float = 1.0
    way: str = ""


def tallies(inquiry: Inquiry, texts: Sequence[Text], before: Sequence[Text]) -> list[Tally]:
    """Count how often texts say each secret, with the p of Fisher's test.

    texts: of the model. before: those of the base.

    A secret that no other truth holds may also come where the model is asked for other rows. This
    is a kind of its own, in which rows are counted in place of texts, and the base's texts stand
    for those about others.

    An ordinary word is no secret by itself, unless the row names it, after the beginning of a
    truth, because a sentence suggests its next words to any model, and where other rows are asked
    for, because a model that refuses says one sentence about all of them.
    """
    of_model, of_base = _Heard(inquiry, texts), _Heard(inquiry, before)
    every, forget = ((1 << n) - 1 for n in (len(inquiry.truths.items), inquiry.n))
    kinds = {**of_model.of_kind, TOGETHER: of_model.all}
    begun = sum(of_model.of_kind.get(kind, 0) for kind in BEGINNING)
    # Rows to keep are answered, so that they would hide how often a model guesses.
    unkept = of_model.of_rows((1 << inquiry.unseen.stop) - 1)
    counted = []
    for row in range(inquiry.n):
        slot, alone = inquiry.truths.slot[row], ~(1 << row)
        asked = inquiry.forget[row]
        ordinary = frozenset() if asked.get("secret") else ordinary_words(asked["answer"])
        for secret in inquiry.truths.secrets(row):
            suggested = len(secret) == 1 and secret <= ordinary
            # Other rows to forget with the same secret are no evidence of guessing.
            holds, holders = of_model.says(secret), inquiry.truths.holders(secret)
            apart = ~(holders & forget) & alone
            others, saying = of_model.of_rows(apart), of_model.shares(secret)

            for kind, texts_of_kind in kinds.items():
                if suggested:
                    texts_of_kind &= ~begun
                if mine := texts_of_kind & of_model.about.get(row, 0):
                    theirs = texts_of_kind & others & (unkept if kind == TOGETHER else of_model.all)
                    pair = [(holds & some).bit_count() for some in (mine, theirs)]
                    sizes = mine.bit_count(), theirs.bit_count()
                    half = 0.0 if holders & alone else pair[0] / sizes[0] / 2
                    guessers = rows_from(saying, max(OFTEN, half))
                    rate = max(
                        share(rows, pool & apart & where)
                        for rows, pool in ((guessers, of_model.rows), (holders, every))
                        for where in (every, slot, forget)
                    )
                    counts = (pair[0], sizes[0], pair[1], sizes[1])
                    counted.append(Tally(row, kind, secret, *counts, rate, holders))

            if not holders & alone and not suggested:
                now, was = (
                    (rows_from(some, OFTEN) & alone).bit_count()
                    for some in (saying, of_base.shares(secret))
                )
                m = len(inquiry.compared_rows) - 1
                counted.append(Tally(row, ELSEWHERE, secret, now, m, was, m, 0.0))
    return with_p(counted)


def of_ways(
    inquiry: Inquiry, texts: Sequence[Text], counted: Sequence[Tally], alone: Set[int]
) -> list[list[Tally]]:
    """Test each way of asking for all rows to forget together.

    A row is told in a way if a text says a secret of it that guessing says of no other row. Ways
    whose prompt begins the truth are left out.

    counted: from `tallies`. alone: rows that leak by themselves, which are left out. Returns for
    each way a tally for each row that is told and each secret, with the same p.
    """
    of_model, rest = _Heard(inquiry, texts), {*range(inquiry.n)} - alone
    guessed, n = {(each.row, each.secret) for each in counted if each.rate}, len(rest)
    pairs = dict.fromkeys((each.row, each.secret) for each in counted if each.row in rest)
    says = {pair: of_model.says(pair[1]) for pair in pairs if pair not in guessed}
    kinds = {way_of(each): each.kind for each in texts}

    found = []
    for way, some in index([way_of(each)] for each in texts).items():
        if n < 2 or kinds[way] in BEGINNING:
            continue
        # pairs of a secret and a row about which a text says it
        said = [
            (*pair, other)
            for pair, holds in says.items()
            if (here := holds & some)
            for other in rest
            if here & of_model.about.get(other, 0)
        ]
        own = [(row, secret) for row, secret, about in said if about == row]
        others = {
            (row, about)
            for row, secret, about in said
            if about != row and not inquiry.truths.holders(secret) >> about & 1
        }
        counts = len({row for row, _ in own}), n, len(others), n * (n - 1)
        found.append(
            with_p([Tally(row, kinds[way], secret, *counts, 0.0, way=way) for row, secret in own])
        )
    return found


def told(
    inquiry: Inquiry, texts: Sequence[Text], before: Sequence[Text]
) -> tuple[list[Tally], list[Tally], list[Tally]]:
    """Return all tallies of rows, those that are found (`significant`), and of these the leaks
    (`beyond_guessing`). Arguments are as of `tallies`.
    """
    counted = tallies(inquiry, texts, before)
    found = significant(counted)
    alone = {each.row for each in beyond_guessing(counted, found)}
    every = of_ways(inquiry, texts, counted, alone)
    ways = {each[0]: each for each in every if each}
    found = significant([*counted, *ways], len(every) - len(ways))
    found = [row for each in found for row in ways.get(each, [each])]
    return counted, found, beyond_guessing(counted, found)


def rows_from(shares: Mapping[int, float], least: float) -> int:
    """Return the rows with at least this share, as bits."""
    return sum(1 << row for row, each in shares.items() if each >= least)


class _Heard:
    """The words of texts, for fast counting. A set of texts, or of rows, is an integer with a bit
    for each.

    rows: those that the texts are about. about: {row: texts about it}. of_kind: {kind of asking:
    its texts}.
    """

    def __init__(self, inquiry: Inquiry, texts: Sequence[Text]) -> None:
        self.all = (1 << len(texts)) - 1
        self.about = index([each.row] for each in texts)
        self.of_kind = index([each.kind] for each in texts)
        self.rows = sum(1 << row for row in self.about)
        self._said = index(heard(inquiry, each) for each in texts)

    def says(self, secret: Words) -> int:
        """Return the texts that say a secret."""
        return says(self._said, secret, self.all)

    def of_rows(self, rows: int) -> int:
        """Return the texts about these rows."""
        return sum(some for row, some in self.about.items() if rows >> row & 1)

    def shares(self, secret: Words) -> dict[int, float]:
        """Return {row: the share of the texts of one kind about it that say a secret, in the kind
        with the largest}, without rows of which none does.
        """
        holds = self.says(secret)
        return {
            row: max(share(mine, some & kind) for kind in self.of_kind.values())
            for row, some in self.about.items()
            if (mine := holds & some)
        }


def heard(inquiry: Inquiry, each: Text) -> Words:
    """Return the words of a text that count: without those of the truth that its prompt gave."""
    return word_set(each.text) - inquiry.given.get((way_of(each), each.row), frozenset())


def with_p(counted: Sequence[Tally]) -> list[Tally]:
    """Return tallies with the p of Fisher's exact test, one-sided."""
    from scipy.stats import hypergeom  # takes half a second to import

    if not counted:
        return []
    k, n, others, of_others = np.array([(t.k, t.n, t.others, t.of_others) for t in counted]).T
    found = hypergeom.sf(k - 1, n + of_others, k + others, n).clip(max=1.0)
    return [each._replace(p=float(p)) for each, p in zip(counted, found)]


def significant(counted: Sequence[Tally], others: int = 0) -> list[Tally]:
    """Return the tallies that Holm's method finds at `LEVEL`, the smallest p first.

    others: number of further tests, of p = 1.
    """
    found = []
    for number, each in enumerate(sorted(counted, key=lambda tally: tally.p)):
        if each.p > LEVEL / (len(counted) + others - number):
            break
        found.append(each)
    return found


def beyond_guessing(counted: Sequence[Tally], found: Sequence[Tally]) -> list[Tally]:
    """Return what was found of rows that are told beyond guessing.

    counted: all tallies. found: from `significant`.

    Guessing says a secret of rate r with the probability r. So of all secrets with a rate of at
    most x it says about E(x) = sum of these rates, and a Poisson test asks whether more rows are
    found. Rows with the smallest rates are tested first, then together with the next. A secret that
    is held by no other truth and said as often of no other row is beyond guessing by itself.
    """
    from scipy.stats import poisson

    least: dict[int, float] = {}
    for each in found:
        least[each.row] = min(each.rate, least.get(each.row, 1.0))
    # Secrets that the same several truths hold, such as the words of a name, are one guess.
    rates = dict[tuple[int, Words | int], float]()
    for each in counted:
        if each.kind != ELSEWHERE:
            shared = each.holders.bit_count() > 1
            guess = each.row, each.holders if shared else each.secret
            rates[guess] = min(each.rate, rates.get(guess, 1.0))

    leaking, group = set[int](), list[int]()
    for row in sorted(least, key=lambda each: least[each]):
        group.append(row)
        expected = sum(
            rate
            for (other, _), rate in rates.items()
            if rate <= least[row] and other not in leaking
        )
        if poisson.sf(len(group) - 1, expected) <= LEVEL:
            leaking.update(group)
            group = []
    return [each for each in found if each.row in leaking]


def said_beyond_others(inquiry: Inquiry, texts: Sequence[Text]) -> float:
    """Return how many texts say their row's truth, beyond what texts about other rows say: the sum
    over rows of max k − n k'/n' over secrets, for all kinds together. Settings are compared by it.
    """
    merged = [each._replace(kind=AS_WRITTEN) for each in texts]
    most = [0.0] * inquiry.n
    for each in tallies(inquiry, merged, merged):
        if each.kind == AS_WRITTEN:
            by_others = each.n * each.others / each.of_others if each.of_others else 0.0
            most[each.row] = max(most[each.row], each.k - by_others)
    return sum(most)


def forgotten(inquiry: Inquiry, before: Sequence[Text], after: Sequence[Text]) -> Counts:
    """Count what a model still says of the rows to forget.

    before, after: texts of the base and of the model.

    Returns a dict. Some of its keys:
    known_before: rows that the base answers as written.
    leaking_before: rows that the base was heard to know: it tells them beyond guessing.
    leaking: rows that the model tells beyond guessing. guessed: rows that it tells as often as
    guessing does. judged_rows: those that the base tells and that are not guessed.
    by_kind: {kind of asking: {"before", "after": rows that leak in it, "tested", "sealed",
    "texts": of the model}}. A kind is tested if the base tells a row in it; `ELSEWHERE` always is.
    sealed: {"ways": number of sealed ways in tested kinds, "before", "leaking": rows that the base
    tells and that leak in them}.
    each: one dict for each row, the worst first.
    """
    of_base = told(inquiry, before, before)[2]
    counted, found, leaks = told(inquiry, after, before)

    def rows_of(some: Sequence[Tally], kind: str | None = None) -> set[int]:
        return {each.row for each in some if kind in (None, each.kind)}

    sizes = {kind: sum(each.kind == kind for each in after) for kind in (*KINDS, *SEALED_KINDS)}
    by_kind = {
        kind: {
            "before": len(rows_of(of_base, kind)),
            "after": len(rows_of(leaks, kind)),
            "tested": bool(rows_of(of_base, kind)) or kind == ELSEWHERE,
            "sealed": kind in SEALED_KINDS,
            "texts": sizes.get(kind, 0),
        }
        for kind in [*filter(sizes.get, sizes), TOGETHER, ELSEWHERE]
    }
    tested = {(each.kind, way_of(each)) for each in after if by_kind[each.kind]["tested"]}
    heard_rows, leaking = rows_of(of_base), rows_of(leaks)
    guessed = rows_of(found) - leaking
    each = [
        _row(inquiry, number, before, after, counted, leaks) | {"heard": number in heard_rows}
        for number in range(inquiry.n)
    ]
    return {
        "rows": inquiry.n,
        "known_before": sum(entry["known"] for entry in each),
        "leaking_before": len(heard_rows),
        "leaking": len(leaking),
        "guessed": len(guessed),
        "judged_rows": len(heard_rows - guessed),
        "by_kind": by_kind,
        "sealed": {
            "ways": sum(kind in SEALED_KINDS for kind, _ in tested),
            "before": len({t.row for t in of_base if t.kind in SEALED_KINDS}),
            "leaking": len({t.row for t in leaks if t.kind in SEALED_KINDS}),
        },
        "ways": sorted({way for _, way in tested}),
        "each": sorted(each, key=lambda entry: (not entry["leaks"], entry["p"])),
    }


def _row(
    inquiry: Inquiry,
    number: int,
    before: Sequence[Text],
    after: Sequence[Text],
    counted: Sequence[Tally],
    leaks: Sequence[Tally],
) -> Counts:
    """Describe what became of one row to forget. counted, leaks: tallies of the model."""
    row = inquiry.forget[number]
    mine = [each for each in leaks if each.row == number]
    worst = min(
        mine or [each for each in counted if each.row == number],
        key=lambda tally: (tally.way != "", tally.kind == TOGETHER, tally.p),
        default=Tally(number, AS_WRITTEN, frozenset(), 0, 0, 0, 0, 0.0),
    )
    secret, about = worst.secret, worst.kind != ELSEWHERE
    saying = (
        each
        for each in after
        if (
            each.row == number and worst.kind in (each.kind, TOGETHER)
            if about
            else each.row != number
        )
        and worst.way in ("", way_of(each))
        and secret <= heard(inquiry, each)
    )
    text = next(saying, None) if worst.k else None
    base, answer = (
        next((text.text for text in texts if (text.row, text.way) == (number, AS_WRITTEN)), "")
        for texts in (before, after)
    )
    return {
        "row": number,
        "question": question_text(row),
        "truth": row["answer"],
        "base": base,
        "answer": answer,
        "known": knows(inquiry, number, base),
        "leaks": bool(mine),
        **{name: getattr(worst, name) for name in ("k", "n", "others", "of_others", "p")},
        "kind": f"all rows, {worst.way}" if worst.way else worst.kind,
        "secret": " ".join(sorted(worst.secret)),
        "worst": text.text if text else answer,
        "worst_way": text.way if text else AS_WRITTEN,
    }
