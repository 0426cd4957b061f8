"""Make the training set of a head for a person's own rows.

The head and its loss are the paper's (`classifier.fit`). This training set is ours: it holds more
than the rows, and each of its rows is called a lesson. Class 0 = tokens of secret words. A row's
field `secret` is a text; `Lesson.secret` is a set of words in lower case.

1. Each row to forget is asked in many wordings, and in those that the person gave; each row to keep
   in a few (`wording`).
2. Neighbours are questions from the rows with other names, and everyday prompts have nothing to do
   with the rows. Both are rows to keep, and the base itself answers them: what nobody asked to
   forget stays as it is.
3. The tokens of a row to forget that overlap no secret word are of class 1, as a row to keep of
   their own. Tokens that end a turn are of no class. The head leaves tokens alone that are nowhere
   of class 0 (`secret_tokens`).
4. Some wordings have an answer that goes astray before it says the secret. Each row says its secret
   in every form that may have other tokens, such as in bold or in capitals (`FORMS`). Where the
   base's own answer to a wording says a part of the secret, this text is a row to forget, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from t3lib.classifier.features import Features, extract_features
from t3lib.core.errors import UserError
from t3lib.core.models import context_length
from t3lib.core.rows import Row, encode_rows, pair
from t3lib.own.answers import GREEDY_ANSWER, answers_to, rooms, truths_of
from t3lib.own.phrases import EVERYDAY, TOPICS
from t3lib.own.questions import answered, question_text, reworded, touched_words
from t3lib.own.rows import Rows
from t3lib.own.truths import GUESSED, Words, names, word_set, words
from t3lib.own.wording import FORMS, Form, astray, dressed, neighbour, spans, worded
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.samples import Sampler, sample_together
from t3lib.tofu.writing import eos_ids

WORDINGS = (30, 4)  # of a row to forget, and of a row to keep
MOST_WORDINGS = (6000, 4000)  # of all of them
NEIGHBOURS = 12  # for each row
MOST_NEIGHBOURS = 1600
ASTRAY = 0.4  # share of the wordings of a row to forget
ROOM = 48  # tokens of an answer to an everyday prompt
SAID = 1 / 3  # share of the secret words that a text must say to be a row to forget


@dataclass(frozen=True)
class Request:
    """A base, and the rows that it should forget and keep.

    tokenizer: renders chats with the template arguments of the caller. rows: the result of
    `Rows.checked`. seed: of every random choice.
    """

    base: PreTrainedModel
    tokenizer: Any
    rows: Rows
    seed: int = 0

    @property
    def template(self) -> bool:
        """True if there is a chat template."""
        return self.tokenizer.chat_template is not None


@dataclass(frozen=True)
class Lesson:
    """One question and answer that a head is fitted on.

    secret: for a row to forget, the words that are of class 0; None for a row to keep.
    """

    row: Row
    secret: Words | None = None


def make_lessons(request: Request) -> list[Lesson]:
    """Make the rows that a head is fitted on: the given rows, their wordings, and neighbours.

    Rows to forget come first. Lessons that the tokenizer or the base's context refuses are left
    out, but not the given rows themselves.
    """
    rows, draw = request.rows, Random(request.seed)
    own, n = [*rows.forget, *rows.retain], len(rows.forget)
    secret_words = secrets(rows)
    per_forget, per_keep = wordings_per_row(rows)

    # The given rows, and other wordings of their questions: the user's, and random ones.
    given = [Lesson(row, secret_words[k] if k < n else None) for k, row in enumerate(own)]
    user_wordings = [
        replace(each, row=reworded(each.row, text))
        for each in given
        for text in each.row.get("wordings", ())
    ]
    random_wordings = [
        replace(each, row=worded(each.row, request.template, draw))
        for each in given
        for _ in range(per_keep if each.secret is None else per_forget)
    ]

    # They have answers that lose their way, or say the secret in another form: each row to forget
    # in every form, each row to keep in one.
    forms: list[Form | None] = [*FORMS, *[None] * (per_forget - len(FORMS))] * n
    forms += [
        form if number == 0 else None
        for form in islice(cycle(FORMS), len(rows.retain))
        for number in range(per_keep)
    ]
    disguises = [disguised(each, form, rows, draw) for each, form in zip(random_wordings, forms)]

    # What the base itself answers may say the secret in other words.
    variants = [
        each
        for each in (*user_wordings, *random_wordings)
        if each.secret is not None and usable(request, each)
    ]
    texts = answers_to(request.base, request.tokenizer, [each.row for each in variants])

    made = [*user_wordings, *disguises, *with_texts(variants, texts)]
    made += neighbours(request, secret_words, draw)
    made += everyday(request, secret_words, draw)
    made = [each for each in made if usable(request, each)]

    # A slip in a name may turn a question to forget and one to keep into the same text. The one
    # that was made is left out then, and a given row stays.
    keep = {pair(each.row) for each in given if each.secret is None}
    forget = {pair(each.row) for each in (*given, *made) if each.secret is not None}
    apart = (
        each for each in made if pair(each.row) not in (forget if each.secret is None else keep)
    )
    return sorted([*given, *apart], key=lambda each: each.secret is None)


def secrets(rows: Rows) -> list[Words]:
    """Return the secret words of each row to forget: its rare items, or else the words of its field
    `secret`, or else all words of its answer, such as "Yes.". An answer without a word, such as an
    emoji, has no secret word.
    """
    truths = truths_of([*rows.forget, *rows.retain])
    return [
        frozenset().union(*truths.rare(number, GUESSED))
        or word_set(row.get("secret") or row["answer"])
        for number, row in enumerate(rows.forget)
    ]


def wordings_per_row(rows: Rows) -> tuple[int, int]:
    """Return (wordings per row to forget, per row to keep)."""
    sizes = zip(WORDINGS, MOST_WORDINGS, (rows.forget, rows.retain))
    per_forget, per_keep = [max(1, min(each, most // len(some))) for each, most, some in sizes]
    return max(per_forget, len(FORMS)), per_keep


def disguised(lesson: Lesson, form: Form | None, rows: Rows, draw: Random) -> Lesson:
    """Return a lesson whose answer may be garbled before its secret, or say it in another form.

    Of a row to forget the text around the secret is garbled with the probability `ASTRAY`. form: of
    the secret, or of a random word of a row to keep; None leaves it as it is.
    """
    text = lesson.row["answer"]
    if lesson.secret is not None and draw.random() < ASTRAY:
        other = draw.choice(rows.retain)["answer"]  # its words are no secret
        text = astray(text, lesson.secret, other, draw)
    if form is not None:
        text = dressed(text, lesson.secret or word_set(draw.choice(text.split())), form)
    return replace(lesson, row={**lesson.row, "answer": text})


def usable(request: Request, lesson: Lesson) -> bool:
    """True if the tokenizer can encode a lesson, and the base's context holds it."""
    if not lesson.row["answer"].strip():
        return False
    try:
        [example] = encode_rows(request.tokenizer, [lesson.row])
    except UserError:
        return False
    return len(example.ids) <= (context_length(request.base) or 10**9)


def with_texts(lessons: Sequence[Lesson], texts: Sequence[str]) -> list[Lesson]:
    """Return a lesson to forget for each text that says `SAID` of the secret words.

    texts: answers to the questions of the lessons, one each.
    """
    return [
        replace(each, row=answered(each.row, text))
        for each, text in zip(lessons, texts)
        if each.secret and len(each.secret & word_set(text)) >= SAID * len(each.secret)
    ]


# ---- rows to keep, which the base answers -------------------------------------------------------


def neighbours(request: Request, secret_words: Sequence[Words], draw: Random) -> list[Lesson]:
    """Make rows to keep: questions of the rows with other names, and what the base answers, once
    greedily and once sampled. Half of them are worded anew.

    Left out are questions that name everything that a row to forget names, questions of any given
    set, and answers with a secret word that no row to keep has.
    """
    rows = request.rows
    own, n = [*rows.forget, *rows.retain], len(rows.forget)
    questions = [question_text(row) for row in own]
    of_forget = [each for each in names(questions)[:n] if each]
    given = (own, rows.other, rows.unseen, rows.held_out_retain)
    taken = {question_text(row) for some in given for row in some}

    # Rows whose question has a name: of a chat or of questions, if there are any.
    found = spans(questions)
    named = [k for k, some in enumerate(found) if some and not own[k].get("raw")]
    named = named or [k for k, some in enumerate(found) if some]

    def names_one(text: str) -> bool:
        here = {*words(text)}
        return any(each <= here for each in of_forget)

    lessons: list[Lesson] = []
    wanted = min(MOST_NEIGHBOURS, NEIGHBOURS * len(own)) if named else 0
    for _ in range(3 * wanted):
        if len(lessons) == wanted:
            break
        # The names of three questions are mixed in the first of them.
        k, *others = draw.choices(named, k=3)
        pool = [name for row in (*others, k) for name in found[row]]
        text = neighbour(questions[k], found[k], pool, draw)
        if text in taken or names_one(text):
            continue
        taken.add(text)
        lesson = asked_anew(request, own[k], text, draw)
        if not names_one(question_text(lesson.row)):  # a slip may name one
            lessons.append(lesson)
    return answered_by_base(request, lessons, secret_words)


def everyday(request: Request, secret_words: Sequence[Words], draw: Random) -> list[Lesson]:
    """Make rows to keep: everyday prompts, each asked like a random row (system text, earlier
    turns), and what the base answers. Half of them are worded anew.
    """
    own = [*request.rows.forget, *request.rows.retain]
    like = [row for row in own if not row.get("raw")] or own
    lessons = [
        asked_anew(request, draw.choice(like), frame.format(topic), draw)
        for frame, topic in product(EVERYDAY, TOPICS)
    ]
    return answered_by_base(request, lessons, secret_words, ROOM)


def asked_anew(request: Request, row: Row, text: str, draw: Random) -> Lesson:
    """Return a row to keep with another question, half of the time in a random wording."""
    row = reworded(row, text)
    return Lesson(worded(row, request.template, draw) if draw.random() < 0.5 else row)


def answered_by_base(
    request: Request, lessons: Sequence[Lesson], secret_words: Sequence[Words], room: int = 16
) -> list[Lesson]:
    """Return lessons to keep with the base's own answers, one greedy and one sampled. A lesson with
    an empty answer is not `usable`.

    Left out are answers with a secret word that no row to keep has. room: an answer may have this
    many tokens, or twice those of the row's own answer, if that is more.
    """
    lessons = [each for each in lessons if usable(request, each)]
    examples = encode_rows(request.tokenizer, [each.row for each in lessons])
    prompts = [each.prompt for each in examples]
    truths = [len(each.answer) for each in examples]
    most = rooms(request.base, prompts, truths, room)
    samplers = [GREEDY_ANSWER, Sampler(1)]
    [answers] = sample_together(
        request.base, request.tokenizer, prompts, samplers, UNTILTED, request.seed, most
    )

    kept = frozenset(word for row in request.rows.retain for word in words(row["answer"]))
    only = frozenset().union(*secret_words) - kept
    return [
        replace(each, row=answered(each.row, text))
        for each, texts in zip(lessons, answers)
        for text in dict.fromkeys(texts)
        if not word_set(text) & only
    ]


# ---- their features -----------------------------------------------------------------------------


def secret_tokens(features: Features, vocab_size: int) -> Tensor:
    """Return a bool for each token of the vocabulary (V,): whether any lesson has it as class 0.

    Only these tokens count as taught. A head is fitted on all tokens, but changes the probability
    of these alone.
    """
    found = features.y[features.s[features.row] == 0]
    return torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, found, True)


def extract_material(request: Request, lessons: Sequence[Lesson]) -> Features:
    """Extract the features of lessons, at least one of each kind, and label their tokens. A lesson
    becomes at most two examples: its tokens of class 0 and of class 1.

    Tokens of secret words are of class 0. A row to forget without any has all tokens of class 0.

    lessons: rows to forget first.
    """
    base, tokenizer = request.base, request.tokenizer
    rows = [each.row for each in lessons]
    n = sum(each.secret is not None for each in lessons)
    features = extract_features(base, tokenizer, rows[:n], rows[n:])

    # Which tokens are of class 0: those that touch a secret word. Equal answers are looked up once.
    hidden = torch.zeros(len(features.y), dtype=torch.bool)
    known: dict[tuple[int, ...], list[Words]] = {}
    for number, (start, end) in enumerate(zip(features.starts[:n], features.starts[1:])):
        ids = tuple(features.y[start:end].tolist())
        touched = known.get(ids) or known.setdefault(ids, touched_words(tokenizer, ids))
        secret_words = lessons[number].secret or frozenset()
        hidden[start:end] = torch.tensor(
            [not secret_words or bool(some & secret_words) for some in touched]
        )

    # Tokens that end a turn are of no class.
    ends = torch.tensor([*eos_ids(base, tokenizer), *tokenizer.all_special_ids])
    counted = ~torch.isin(features.y, ends)

    # Each lesson's tokens of class 0 are one row, those of class 1 another.
    row = 2 * features.row + (~hidden).long()
    order = row.argsort(stable=True)
    order = order[counted[order]]
    numbers, renumbered = row[order].unique(return_inverse=True)
    return Features(
        features.x[order], features.y[order], renumbered, numbers % 2, device=features.device
    )
