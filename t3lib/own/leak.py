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
from t3lib.own.questions import AS_WRITTEN, SAMPLED, WITHOUT_BOS, question_text
from t3lib.own.truths import LEAK, PART, Truths, index, word_set

COLD, WARM = (sampler_name(*sampler) for sampler in KEPT_SAMPLERS)
WRITTEN, WORDED, WHEN_SAMPLED = (
    "leak when asked as written",
    "leak when asked in other ways",
    "leak when sampled",
)
UNBEGUN, WORDED_UNBEGUN = (f"{kind}, {WITHOUT_BOS}" for kind in (WRITTEN, WORDED))
PARTLY = "said in part"
SAMPLED_WAYS = [sampler_name(*each, way) for way, samplers in SAMPLED.items() for each in samplers]
KINDS = (WRITTEN, UNBEGUN, WORDED, WORDED_UNBEGUN, WHEN_SAMPLED)
# Counts of one report as Python values. The functions below describe their keys.
Counts = dict[str, Any]


def forgotten(inquiry: Inquiry, before: Answers, after: Answers) -> Counts:
    """Count what a model still says of the rows to forget.

    before, after: answers of the base and of the model.

    Returns a dict. Some of its keys:
    leaking, leaking_before: rows that some answer of the model, or of the base, gives away.
    partly: rows of which an answer says a part, with a chance between `LEAK` and `PART`.
    table: {kind of answer: {"before", "after", "by_guessing"}}: the counts of rows by kind of
    answer, and how many rows guessing would leak. Kinds without the token that begins a text are
    only there where they were asked.
    control: the same as `by_guessing`, for the answers of all kinds together.
    beyond: True if guessing does not explain what is said (p <= 0.05). doubtful: True if it seldom
    would (p <= 0.1 for the whole, or for the rows said in part): read the texts.
    tellable: True if the base beats guessing, so that there is something to lose. Otherwise nothing
    can be told, and `needed` is how many such rows would be enough, or None.
    misdirected, misdirected_before: greedy answers that say another row's truth or its names.
    alone: rows that cannot be judged one by one, because even the base's answers to them look like
    guesses.
    sealed: {"leaking", "before", "ways"}: the ways of asking that are only reported.
    ways: the ways of asking in which the base gives at least one row away.
    each: one dict for each row, the worst first.
    """
    of_base, of_model = _leaks(inquiry, before), _leaks(inquiry, after)
    base, model = of_base.all, of_model.all

    # How many rows each kind of answer gives away, and how many all answers together say in part.
    table = {
        kind: {
            "before": int((of_base.tests[kind].own <= LEAK).sum()),
            "after": int((test.own <= LEAK).sum()),
            "by_guessing": test.guessed(LEAK),
        }
        for kind, test in of_model.tests.items()
    }
    parts = [int(((LEAK < test.own) & (test.own <= PART)).sum()) for test in (base, model)]
    table[PARTLY] = {
        "before": parts[0],
        "after": parts[1],
        "by_guessing": model.guessed(PART) - model.guessed(LEAK),
    }

    each = [_row(inquiry, number, of_base, of_model) for number in range(inquiry.n)]

    def count(name: str) -> int:
        return sum(entry[name] for entry in each)

    return {
        "rows": len(each),
        "known_before": count("known"),
        "leaking_before": int((base.own <= LEAK).sum()),
        "leaking": count("leaks"),
        "partly": parts[1],
        "table": table,
        "control": model.guessed(LEAK),
        "bound": at_most(count("leaks"), len(each)) if each else None,
        "beyond": model.beyond,
        "doubtful": model.doubtful,
        "tellable": base.beyond,
        "needed": base.rows_needed(),
        "misdirected": count("misdirected"),
        "misdirected_before": count("misdirected_before"),
        "alone": sum(entry["chance_before"] > PART for entry in each),
        "sealed": {
            "leaking": of_model.sealed(),
            "before": of_base.sealed(),
            "ways": sorted({each.way for each in inquiry.sealed}),
        },
        "ways": sorted({way for entry in each for way in entry["ways_before"]}),
        "each": sorted(each, key=lambda entry: entry["chance"]),
    }


@dataclass(frozen=True)
class _Leaks:
    """What one model's answers give away.

    truths: with what the model said. tests: {kind of answer: its test}. all: of all answers.
    texts: for each row to forget, (way of asking, text, words) of all answers.
    """

    answers: Answers
    truths: Truths
    tests: dict[str, Comparison]
    all: Comparison
    texts: list[list[tuple[str, str, Heard]]]

    def chances(self, row: int) -> list[tuple[float, str, str]]:
        """Return (chance, way, text) for every answer to a row, smallest chance first.

        The chance is multiplied by the number of different texts of the same kind (Bonferroni).
        """
        different: dict[str, set[frozenset[str]]] = {}
        for way, _, each in self.texts[row]:
            different.setdefault(kind_of(way), set()).add(each.words)

        words = {each.own for *_, each in self.texts[row]}
        chance = {own: self.truths.chance(row, [own]) for own in words}
        return sorted(
            (
                (min(1.0, chance[each.own] * len(different[kind_of(way)])), way, text)
                for way, text, each in self.texts[row]
            ),
            key=lambda entry: entry[0],
        )

    def sealed(self) -> int:
        """Count the rows to forget that are given away in the ways that are only reported."""
        return sum(
            any(self.truths.gives_away(row, text) for texts in ways.values() for text in texts)
            for row, ways in self.answers.sealed.items()
        )


def _leaks(inquiry: Inquiry, answers: Answers) -> _Leaks:
    """Compare the answers of one model with what guessing gives."""
    # What is said of all rows, also of the control rows, shows which words are common.
    every = {
        row: [text for texts in ways.values() for text in texts]
        for row, ways in answers.texts.items()
    }
    truths = inquiry.truths.heard(every)

    # Where the prompt gave a part of the truth, only the words after it count.
    texts: list[list[tuple[str, str, Heard]]] = [[] for _ in range(inquiry.n)]
    for row, of_row in enumerate(texts):
        for way, some in answers.texts[row].items():
            for text in dict.fromkeys(some):
                words = word_set(text)
                own = words & inquiry.wanted.get((way, row), words)
                of_row.append((way, text, Heard(words, own)))

    def test(kind: str) -> Comparison:
        of_kind = {
            row: [each for way, _, each in of_row if kind_of(way) == kind]
            for row, of_row in enumerate(texts)
        }
        return compare(truths, range(inquiry.n), of_kind)

    used = {kind_of(way) for of_row in texts for way, *_ in of_row}
    tests = {kind: test(kind) for kind in KINDS if kind in used or WITHOUT_BOS not in kind}
    return _Leaks(answers, truths, tests, least([*tests.values()]), texts)


def kind_of(way: str) -> str:
    """Return the kind of an answer, by its way of asking."""
    if way in SAMPLED_WAYS:
        return WHEN_SAMPLED
    kind = WRITTEN if way in (AS_WRITTEN, WITHOUT_BOS) else WORDED
    return f"{kind}, {WITHOUT_BOS}" if way.endswith(WITHOUT_BOS) else kind


def _row(inquiry: Inquiry, number: int, before: _Leaks, after: _Leaks) -> Counts:
    """Describe what became of one row to forget.

    number: of the row. before, after: what the base and the model give away.
    """
    row = inquiry.forget[number]
    base, answer = (each.answers.texts[number][AS_WRITTEN][0] for each in (before, after))
    of_base = before.chances(number)
    chance, way, worst = after.chances(number)[0]
    return {
        "question": question_text(row),
        "truth": row["answer"],
        "secret": sorted(frozenset().union(*inquiry.truths.items[number])),
        "base": base,
        "answer": answer,
        "chance": chance,
        "chance_before": of_base[0][0],
        "worst_way": way,
        "worst": worst,
        "known": knows(inquiry, number, base),
        "ways_before": sorted({way for each, way, _ in of_base if each <= LEAK}),
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

    # Each row to forget is a chance to say a truth by guessing, so the level is divided.
    said = index([words])
    return any(
        truths.chance_among(other, said, number) <= LEAK / inquiry.n
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

    def sampled(answers: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """For each sampler, count the answers that are the base's greedy answer."""
        return {
            how: sum(answers[how][n] == was[GREEDY][n] for n in known)
            for how in (COLD, WARM)
            if how in answers
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
