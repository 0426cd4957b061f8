"""Count what the answers before and after unlearning give away of the rows to forget, and how many
answers to rows to keep stay as they were.

These functions call no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t3lib.own.answers import GENERIC, GREEDY, KEPT_SAMPLERS, Answers, Inquiry, sampler_name
from t3lib.own.guessing import Comparison, Heard, at_most, compare, least
from t3lib.own.known import knows
from t3lib.own.questions import AS_WRITTEN, BARE, SAMPLED, question_text
from t3lib.own.truths import LEAK, PART, Truths, index, word_set

COLD, WARM = (sampler_name(*sampler) for sampler in KEPT_SAMPLERS)
WRITTEN, WORDED, DRAWN = (
    "leak when asked as written",
    "leak when asked in other ways",
    "leak when sampled",
)
UNBEGUN, WORDED_UNBEGUN = (f"{kind}, {BARE}" for kind in (WRITTEN, WORDED))
PARTLY = "said in part"
DRAWN_WAYS = [sampler_name(*each, way) for way, samplers in SAMPLED.items() for each in samplers]
KINDS = (WRITTEN, UNBEGUN, WORDED, WORDED_UNBEGUN, DRAWN)
# Counts of one report as Python values. The functions below describe their keys.
Counts = dict[str, Any]


def forgotten(inquiry: Inquiry, before: Answers, after: Answers) -> Counts:
    """Count what a model still says of the rows to forget.

    before, after: answers of the base and of the model.

    Returns a dict. Some of its keys:
    leaking, leaking_before: rows that some answer of the model, or of the base, gives away.
    partly: rows of which an answer says a part, with a chance between `LEAK` and `PART`.
    table: {kind of answer: {"before", "after", "guessing"}}: the counts of rows by kind of answer,
    and how many guessing would give. Kinds without the token that begins a text are only there
    where they were asked.
    beyond: True if guessing does not explain what is said. doubtful: True if it seldom would.
    tellable: True if the base itself says more than guessing does. Otherwise nothing can be told,
    and `needed` is how many such rows would be enough, or None.
    misdirected, misdirected_before: greedy answers that say another row's truth or its names.
    alone: rows that cannot be judged one by one, because the base's answers look like guesses.
    sealed: {"leaking", "before", "ways"}: the ways of asking that are only reported.
    ways: the ways of asking in which the base gives at least one row away.
    each: one dict for each row, the worst first.
    """
    was, now = (_judged(inquiry, said) for said in (before, after))
    base, left = was.all, now.all
    table = {
        kind: {
            "before": int((was.tests[kind].own <= LEAK).sum()),
            "after": int((test.own <= LEAK).sum()),
            "guessing": test.guessed(LEAK),
        }
        for kind, test in now.tests.items()
    }
    parts = [int(((LEAK < test.own) & (test.own <= PART)).sum()) for test in (base, left)]
    table[PARTLY] = {
        "before": parts[0],
        "after": parts[1],
        "guessing": left.guessed(PART) - left.guessed(LEAK),
    }
    each = [_row(inquiry, number, (before, was), (after, now)) for number in range(inquiry.n)]

    def count(name: str) -> int:
        return sum(entry[name] for entry in each)

    sealed = [_sealed(said, judged.truths) for said, judged in ((after, now), (before, was))]
    return {
        "rows": len(each),
        "known_before": count("known"),
        "leaking_before": int((base.own <= LEAK).sum()),
        "leaking": count("leaks"),
        "partly": parts[1],
        "table": table,
        "control": left.guessed(LEAK),
        "bound": at_most(count("leaks"), len(each)) if each else None,
        "beyond": left.beyond,
        "doubtful": left.doubtful,
        "tellable": base.beyond,
        "needed": base.rows_needed(),
        "misdirected": count("misdirected"),
        "misdirected_before": count("misdirected_before"),
        "alone": sum(entry["chance_before"] > PART for entry in each),
        "sealed": {
            "leaking": sealed[0],
            "before": sealed[1],
            "ways": sorted({each.way for each in inquiry.sealed}),
        },
        "ways": sorted({way for entry in each for way in entry["ways_before"]}),
        "each": sorted(each, key=lambda entry: entry["chance"]),
    }


@dataclass(frozen=True)
class _Judged:
    """What one model's texts give away.

    truths: with what the model said. tests: {kind of answer: its test}. all: of all answers.
    heard: for each row to forget, (way of asking, text, words) of all answers.
    """

    truths: Truths
    tests: dict[str, Comparison]
    all: Comparison
    heard: list[list[tuple[str, str, Heard]]]

    def chances(self, row: int) -> list[tuple[float, str, str]]:
        """Return for each text about a row (its chance times the number of different texts of its
        kind, way of asking, text), the smallest chance first.
        """
        texts: dict[str, set[frozenset[str]]] = {}
        for way, _, each in self.heard[row]:
            texts.setdefault(kind_of(way), set()).add(each.words)
        found = {
            own: self.truths.chance(row, [own])
            for own in {each.own for *_, each in self.heard[row]}
        }
        return sorted(
            (
                (min(1.0, found[each.own] * len(texts[kind_of(way)])), way, text)
                for way, text, each in self.heard[row]
            ),
            key=lambda entry: entry[0],
        )


def _judged(inquiry: Inquiry, said: Answers) -> _Judged:
    """Compare the answers of one model with what guessing gives."""
    texts = {
        row: [text for some in ways.values() for text in some] for row, ways in said.texts.items()
    }
    found = inquiry.truths.heard(texts)
    heard: list[list[tuple[str, str, Heard]]] = []
    for row in range(inquiry.n):
        heard.append([])
        for way, some in said.texts[row].items():
            for text in dict.fromkeys(some):
                spoken = word_set(text)
                own = spoken & inquiry.wanted.get((way, row), spoken)
                heard[-1].append((way, text, Heard(spoken, own)))

    def of(kind: str) -> Comparison:
        parts = {
            row: [each for way, _, each in some if kind_of(way) == kind]
            for row, some in enumerate(heard)
        }
        return compare(found, range(inquiry.n), parts)

    used = {kind_of(way) for some in heard for way, *_ in some}
    tests = {kind: of(kind) for kind in KINDS if kind in used or BARE not in kind}
    return _Judged(found, tests, least([*tests.values()]), heard)


def kind_of(way: str) -> str:
    """Return the kind of an answer, by its way of asking."""
    if way in DRAWN_WAYS:
        return DRAWN
    kind = WRITTEN if way in (AS_WRITTEN, BARE) else WORDED
    return f"{kind}, {BARE}" if way.endswith(BARE) else kind


def _sealed(said: Answers, found: Truths) -> int:
    """Count the rows to forget that are given away in the ways that are only reported."""
    return sum(
        any(found.gives_away(row, text) for some in ways.values() for text in some)
        for row, ways in said.sealed.items()
    )


def _row(
    inquiry: Inquiry, number: int, before: tuple[Answers, _Judged], after: tuple[Answers, _Judged]
) -> Counts:
    """Describe what became of one row to forget.

    number: of the row. before, after: what the base and the model said, and how it was judged.
    """
    row = inquiry.forget[number]
    base, answer = (said.texts[number][AS_WRITTEN][0] for said, _ in (before, after))
    was, now = (judged.chances(number) for _, judged in (before, after))
    chance, way, worst = now[0]
    return {
        "question": question_text(row),
        "truth": row["answer"],
        "secret": sorted(frozenset().union(*inquiry.truths.items[number])),
        "base": base,
        "answer": answer,
        "chance": chance,
        "chance_before": was[0][0],
        "worst_way": way,
        "worst": worst,
        "known": knows(inquiry, number, base),
        "ways_before": sorted({way for each, way, _ in was if each <= LEAK}),
        "leaks": chance <= LEAK,
        "misdirected": _is_misdirected(inquiry, number, answer),
        "misdirected_before": _is_misdirected(inquiry, number, base),
    }


def _is_misdirected(inquiry: Inquiry, number: int, text: str) -> bool:
    """True if an answer does not give its row away, but says the truth of another row to forget, or
    all words of whom another row asks about.
    """
    words, truths = word_set(text), inquiry.truths
    if truths.gives_away(number, text):
        return False
    others = words - inquiry.names[number]
    if any(names and names <= others for names in inquiry.names):
        return True
    spoken = index([words])
    return any(
        truths.chance_among(other, spoken, number) <= LEAK / inquiry.n
        for other in range(inquiry.n)
        if other != number
    )


def stayed(inquiry: Inquiry, name: str, before: Answers, after: Answers) -> Counts:
    """Count what a model keeps of the rows in one set.

    name: key of the set in `inquiry.kept`. All counts below are among the rows that the base
    knows.

    Returns a dict. Some of its keys:
    known_before: rows that the base knows, out of `rows`. It knows every generic prompt.
    unchanged: rows with the same greedy answer as the base.
    unchanged_sampled: {sampler: rows whose one sampled answer is the greedy answer of the base},
    empty if nothing was sampled.
    sampled_before: the same for the base itself.
    changed: question, truth and both answers of every row that changed.
    """
    rows, was, now = inquiry.of(name), before.kept[name], after.kept[name]
    numbers = inquiry.kept[name]
    known = [
        n
        for n, number in enumerate(numbers)
        if name == GENERIC or knows(inquiry, number, was[GREEDY][n])
    ]
    exact = [n for n in known if now[GREEDY][n] == was[GREEDY][n]]

    def sampled(said: Mapping[str, Sequence[str]]) -> dict[str, int]:
        return {
            how: sum(said[how][n] == was[GREEDY][n] for n in known)
            for how in (COLD, WARM)
            if how in said
        }

    return {
        "rows": len(rows),
        "known_before": len(known),
        "unchanged": len(exact),
        "unchanged_sampled": sampled(now),
        "sampled_before": sampled(was),
        "changed": [
            {
                "question": question_text(rows[n]),
                "truth": rows[n]["answer"],
                "base": was[GREEDY][n],
                "answer": now[GREEDY][n],
            }
            for n in known
            if n not in set(exact)
        ],
    }
