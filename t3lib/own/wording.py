"""Write other wordings of a row, questions with other names, and answers that lose their way.

A head that is fitted on the rows alone learns their exact wording. After a preface it forgets
nothing, and answers to questions that are in no row change. So `lessons` fits it on many further
rows, which these functions write. They call no model. All random choices come from the argument
`draw`.

Of a row of plain text only the preface, the spelling and the token that begins it change. A
conversation keeps its turns, and the last one is worded anew. In a script without spaces a name
cannot be told from the words around it, so such questions have no neighbours, unless the name is in
another script.
"""

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random
from typing import NamedTuple

from t3lib.core.rows import Row
from t3lib.own.phrases import FITTING
from t3lib.own.questions import (
    NO_TEMPLATE,
    PromptFormat,
    after_turn,
    format_of_row,
    in_format,
    question_text,
    reworded,
)
from t3lib.own.truths import Words, kind_of_char, patterns, word_set

# Letters of the random words in prefaces, script by script.
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "áéíóúñçäöüßåøœæ" + "aeiou" * 3,
    "абвгдежзиклмнопрстуфхцчшыэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "अआइईउकखगचजटडतदनपबमयरलवसह",
    "ابتثجحدرزسشصطعفقكلمنهوي",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "กขคงจชดตทนบปพมยรลวสหอ",
    "的一是不了人我在有他这中大来上国",
    "あいうえおかきくけこさしすせそたちつてと",
    "가나다라마바사아자차카타파하",
)
# Shares of the wordings: with a preface, in a frame, with slips, after a turn, without the token
# that begins a text, and as plain text, without a template or our own frame.
PREFACED, FRAMED, SLIPS, AFTER_TURN, BARE, AS_TEXT = 0.6, 0.3, 0.3, 0.3, 0.3, 0.2
Form = Callable[[str], str]
ALONE: Form = str  # the answer is the secret, so that nothing precedes its first word
# Forms of a secret word that may have other tokens than the word in its answer: in marks, after a
# space, in capitals and in small letters.
MARKS = ("**{}**", "*{}*", '"{}"', "“{}”", "'{}'", "({})", "_{}_", "\n{}", "«{}»", "「{}」", ": {}")
FORMS = (*(mark.format for mark in MARKS), str.upper, str.lower, str.title, ALONE)


def worded(row: Row, template: bool, draw: Random) -> Row:
    """Return a row in a random wording.

    template: True if the tokenizer has a chat template. Then a wording may have another system text
    and an earlier turn. Without a template, or as plain text, it may lack the token that begins a
    text (the field `bare`), as a prompt of another tool may.
    """
    text, raw = question_text(row), bool(row.get("raw"))

    # The text: with slips, in a frame, after a preface.
    if draw.random() < SLIPS:
        text = with_slips(text, draw)
    if not raw and draw.random() < FRAMED:
        text = draw.choice(FITTING.frames).format(text)
    if draw.random() < PREFACED:
        text = (draw.choice(FITTING.prefaces) if draw.random() < 0.4 else babble(draw)) + text
    made = reworded(row, text)

    # The prompt format: plain text, maybe without the token that begins it.
    if not raw and draw.random() < AS_TEXT:
        made, raw = in_format(made, NO_TEMPLATE), True
    if not template or raw:
        return {**made, "bare": True} if draw.random() < BARE else made

    # Or a chat, maybe with another system text and an earlier turn.
    if draw.random() < 0.5:
        system = draw.choice([None, format_of_row(row).system, *FITTING.systems])
        made = in_format(made, PromptFormat(False, system))
    if draw.random() < AFTER_TURN:
        made = after_turn(made, draw.choice(FITTING.turns))
    return made


def babble(draw: Random) -> str:
    """Return a preface of one to five random words in a random script."""
    letters, few = draw.choice(ALPHABETS), range(draw.randint(1, 5))
    made = " ".join("".join(draw.choices(letters, k=draw.randint(1, 8))) for _ in few)
    return made.capitalize() + draw.choice((". ", ", ", ": ", "! ", " – ", "\n", " "))


def with_slips(text: str, draw: Random) -> str:
    """Return a text with one or two slips: a letter doubled, or changed with the next.

    No letter is left out: this is a sealed way of asking (`questions.sealed_ways`).
    """
    for _ in range(draw.randint(1, 2)):
        if len(text) > 3:
            place = draw.randrange(1, len(text) - 1)
            pair = text[place : place + 2]
            slip = draw.choice((pair[0] + pair, pair[::-1]))
            text = text[:place] + slip + text[place + 2 :]
    return text


class Span(NamedTuple):
    """A name in a question: its place, and its parts, the words."""

    start: int
    end: int
    parts: tuple[str, ...]


def spans(questions: Sequence[str]) -> list[list[Span]]:
    """Find the names in each question: runs of words outside its pattern (`truths.patterns`)."""
    return [
        _spans(text, frozenset(pattern)) for text, pattern in zip(questions, patterns(questions))
    ]


def _spans(text: str, pattern: Words) -> list[Span]:
    """Find the names in one question. pattern: the words of its pattern."""
    place, runs = 0, list[Span]()
    for kind, run in groupby(text, kind_of_char):
        part, start = "".join(run), place
        place += len(part)
        words = word_set(part)
        if kind == "between" or not words or words & pattern:
            continue

        # Words with nothing but spaces between them are one name.
        if runs and text[runs[-1].end : start].isspace():
            runs[-1] = Span(runs[-1].start, place, (*runs[-1].parts, part))
        else:
            runs.append(Span(start, place, (part,)))
    return runs


def neighbour(text: str, names: Sequence[Span], pool: Sequence[Span], draw: Random) -> str:
    """Return a question with other names.

    A name becomes one of the pool; or the first words of one and the last words of another; or one
    with a made-up word, out of the halves of two. pool: also has the question's own names.
    """
    out, place = "", 0
    for name in names:
        # Names of as many words, so that the question stays one.
        alike = [each.parts for each in pool if len(each.parts) == len(name.parts)]
        parts, others = list(draw.choice(alike)), draw.choice(alike)
        way = draw.randrange(3)
        if way == 1:
            cut = draw.randint(1, max(1, len(parts) - 1))
            parts[cut:] = others[cut:]
        elif way == 2:
            at = draw.randrange(len(parts))
            parts[at] = blend(parts[at], others[at])

        out += text[place : name.start] + " ".join(parts)
        place = name.end
    return out + text[place:]


def blend(first: str, second: str) -> str:
    """Return the first half of one word with the second half of another."""
    return first[: (len(first) + 1) // 2] + second[len(second) // 2 :]


def dressed(answer: str, secret: Words, form: Form) -> str:
    """Return an answer with its secret words in another form, such as "**London**".

    secret: words of the answer. form: of each of them, or `ALONE`: the secret words by themselves.
    The answer stays as it is if none of its words is secret.
    """
    cores = []
    parts = re.split(r"(\s+)", answer)
    for place, part in enumerate(parts):
        if word_set(part) & secret:
            # Without the marks around it, such as a full stop.
            core = part.strip("".join(char for char in part if kind_of_char(char) == "between"))
            cores.append(core)
            parts[place] = part.replace(core, core if form is ALONE else form(core), 1)
    return " ".join(cores) if form is ALONE and cores else "".join(parts)


def astray(answer: str, secret: Words, other: str, draw: Random) -> str:
    """Return an answer that loses its way to its secret words, which it still says.

    Its other words are dropped, or replaced by words of another answer, or a piece of that answer
    precedes it. secret: words of the answer. other: another answer.
    """
    lead = answer[: len(answer) - len(answer.lstrip())]
    parts, foreign = answer.split(), other.split()
    way = draw.randrange(3)
    if way == 2 or not secret:
        start = draw.randrange(len(foreign))
        return lead + " ".join([*foreign[start : start + draw.randint(1, 6)], *parts])

    # Every other word stays half of the time.
    kept = []
    for part in parts:
        if word_set(part) & secret or draw.random() < 0.5:
            kept.append(part)
        elif way == 1:
            kept.append(draw.choice(foreign))
    return lead + " ".join(kept or parts)
