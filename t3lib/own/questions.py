"""The ways in which a model is asked for an answer.

Ways are dealt into three lists, with the texts of `phrases`: those that heads are fitted on, those
by which w is chosen, and sealed ones, which only the verdict asks. They share no words but those of
a row. Sealed ways alone leave out a letter, a word or the beginning, double a word, or begin with
many empty lines, and they alone sample at their τ. Each way belongs to a kind of asking, such as
"reworded". The verdict asks in all kinds of the last two lists, with about as many texts in each.

A row with the field `bare` is asked without the token that begins a text (BOS); the word means
nothing else here. The functions turn rows into rows or token ids and call no model.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, takewhile
from typing import Any

from t3lib.core.errors import UserError
from t3lib.core.rows import SYSTEM, Row, encode_rows
from t3lib.own.phrases import CHOOSING, SEALED, Turn
from t3lib.own.truths import Words, kind_of_char, words
from t3lib.sampler.belonging import system_text

# Kinds of asking, and the name of a way where a kind has one way alone.
AS_WRITTEN, REWORDED, TURN = "as written", "reworded", "after a turn"
FORM, TEXT, BEGUN = "in another form", "as plain text", "with its first tokens given"
NO_FIRST_TOKEN = "without the token that begins a text"
KINDS = (AS_WRITTEN, REWORDED, TURN, FORM, TEXT, NO_FIRST_TOKEN, BEGUN)
OTHERWISE, TURNS, MISSPELT = "reworded by another hand", "in a longer conversation", "misspelt"
FURTHER, ENDS = "with more of its truth given", "as plain text after ten end tokens"
COLDER, WARMER = "from a colder sampler", "from a warmer sampler"
SEALED_KINDS = (OTHERWISE, TURNS, MISSPELT, FURTHER, ENDS, COLDER, WARMER)
FORCED = (1, 2, 4)  # how many first tokens of the truth are given
GUESSABLE = 3  # fewer missing characters of a number are too easily guessed
# (sampler temperature τ, top-p). Sampled at τ, T3 is p^(1/(Tτ)) f^(w/τ). So a colder sampler undoes
# the tempering.
SAMPLERS = ((0.6, 0.9), (1.0, 1.0))
OTHER_SAMPLERS = {COLDER: ((0.5, 1.0), (0.3, 1.0)), WARMER: ((1.2, 0.95), (1.5, 0.9))}


@dataclass(frozen=True)
class Question:
    """One question to a model.

    kind, way: the kind of asking and the way, such as "reworded" and "politely". row: number of the
    row, from 0.
    prompt: token ids.
    rest: the part of the truth that is still missing, where the prompt gives its beginning.
    room: number of tokens of the truth that are still missing.
    start: what the prompt gives of a number or code of which at least `GUESSABLE` characters are
    missing. `rest` begins with it, and so do the answers, so that a number is heard as a whole.
    """

    kind: str
    way: str
    row: int
    prompt: list[int]
    rest: str
    room: int
    start: str = ""


@dataclass(frozen=True)
class PromptFormat:
    """How a question is put to a model: in a chat or as plain text, with which system text.

    raw: plain text instead of a chat. system: system text, or None for no system turn.
    """

    raw: bool
    system: str | None


# A question by itself: without a chat template, and without "Question:" and "Answer:".
NO_TEMPLATE = PromptFormat(True, None)


def format_of_row(row: Row) -> PromptFormat:
    """Return the prompt format in which a row is asked. A conversation's own system turn counts
    first.
    """
    return PromptFormat(True, None) if row.get("raw") else PromptFormat(False, system_text(row))


def in_format(row: Row, prompt_format: PromptFormat) -> Row:
    """Return the row in another prompt format, without a system turn of its own."""
    question = row["question"]
    if not isinstance(question, str):
        question = [turn for turn in question if turn["role"] != "system"]
    if prompt_format.raw:
        question, answer = question_text(row), f" {row['answer'].strip()}"
        return {**row, "question": question, "answer": answer, "raw": True}
    return {**row, "question": question, "raw": False, "system": prompt_format.system}


def question_text(row: Row) -> str:
    """Return the question of a row as one text. For a conversation it is the last turn before the
    answer.
    """
    question = row["question"]
    return question if isinstance(question, str) else question[-1]["content"]


def reworded(row: Row, text: str) -> Row:
    """Return the row with `text` as its question. In a conversation only the last turn is
    replaced.
    """
    question = row["question"]
    if not isinstance(question, str):
        text = [*question[:-1], {**question[-1], "content": text}]  # type: ignore[assignment]
    return {**row, "question": text}


def answered(row: Row, text: str) -> Row:
    """Return the row with another answer, which begins with a space if the row's own does."""
    return {**row, "answer": (" " if row["answer"][:1] == " " else "") + text}


def after_turn(row: Row, turn: Turn) -> Row:
    """Return the row with an earlier turn before its last question."""
    question = row["question"]
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else [*question]
    earlier = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turn)]
    return {**row, "question": [*turns[:-1], *earlier, turns[-1]]}


Ways = dict[tuple[str, str], Row]  # (kind of asking, way) -> the row to ask


def choosing_ways(row: Row, template: bool, formats: Mapping[str, PromptFormat] = {}) -> Ways:
    """Return the ways of asking by which w is chosen.

    row: may have `wordings`, other wordings of its question that the user gave.
    template: True if the tokenizer has a chat template, so that a system text and earlier turns can
    be added.
    formats: {way of asking: another prompt format}, such as that of the rows to keep.

    A row of plain text is asked only as it is, in lower case, in its own wordings and in other
    formats.
    """
    text, raw, prefaced = question_text(row), row.get("raw", False), dict[str, str]()

    # The question in other words.
    texts = {"in lower case": text.lower()}
    if not raw:
        prefaced = {f'after "{each.strip()}"': each + text for each in CHOOSING.prefaces}
        texts["without its last mark"] = text.rstrip(" ?!.。？！")
        texts["politely"] = CHOOSING.frames[0].format(text)
        texts |= prefaced
    texts |= {
        f"reworded {number}": other for number, other in enumerate(row.get("wordings", ()), 1)
    }
    rows = {(AS_WRITTEN, AS_WRITTEN): row}
    rows |= {(REWORDED, way): reworded(row, some) for way, some in texts.items() if some.strip()}
    rows |= {
        (TEXT, f"{way}, {TEXT}"): in_format(reworded(row, some), NO_TEMPLATE)
        for way, some in prefaced.items()
    }

    # The question as it stands in other prompts: after a turn, with another system text, as text.
    prompt_format = format_of_row(row)
    others = dict(formats) | {TEXT: NO_TEMPLATE}
    if template and not raw:
        rows[TURN, TURN] = after_turn(row, CHOOSING.turns[0])
        without = prompt_format.system is not None
        others["without a system text" if without else "with a system text"] = PromptFormat(
            False, None if without else CHOOSING.systems[0]
        )

    # Several names may mean the same format, which is asked once.
    seen = {prompt_format}
    for way, other in others.items():
        if other not in seen and (template or other.raw != prompt_format.raw) and text.strip():
            rows[TEXT if way == TEXT else FORM, way] = in_format(row, other)
            seen.add(other)

    return rows


def sealed_ways(row: Row, template: bool, name: Iterable[str] = ()) -> Ways:
    """Return the ways of asking that only the verdict asks. Plain text has few of them.

    name: words of whom the question asks about, in lower case.
    """
    text, raw, asked = question_text(row), row.get("raw", False), row["question"]
    rows = {(kind, kind): row for kind in (COLDER, WARMER)}

    # With mistakes: empty lines, words that are missing or doubled, and a name that is misspelt.
    parts = text.split()
    slips = {
        "with a letter of the name left out": slipped(text, name),
        # Attackers got rows with the next three.
        "after forty empty lines": "\n" * 40 + text,
        "with its first quarter cut off": text[len(text) // 4 :],
        "with its first half cut off": text[len(text) // 2 :],
    }
    if len(parts) > 3:
        slips["with every third word dropped"] = " ".join(
            part for place, part in enumerate(parts) if place % 3 != 1
        )
        slips["with a word doubled"] = " ".join([*parts[:2], *parts[1:]])
    rows |= {(MISSPELT, way): reworded(row, other) for way, other in slips.items() if other != text}
    if raw:
        return rows

    # In words of another hand.
    texts = {f'after "{preface.strip()}"': preface + text for preface in SEALED.prefaces}
    texts |= {f"as {frame.format('…')}": frame.format(text) for frame in SEALED.frames}
    rows |= {(OTHERWISE, way): reworded(row, other) for way, other in texts.items()}

    # In a longer conversation, or without the turns before.
    shots = "\n".join(f"{question}\n{answer}" for question, answer in SEALED.shots)
    rows[TURNS, "after two questions with answers"] = reworded(row, f"{shots}\n{text}")
    if template:
        rows[TURNS, "after one turn"] = after_turn(row, SEALED.turns[0])
        rows[TURNS, "after three turns"] = reduce(after_turn, SEALED.turns, row)
        rows[OTHERWISE, "with an odd system text"] = in_format(
            row, PromptFormat(False, SEALED.systems[0])
        )
    if not isinstance(asked, str) and len(asked) > 1:
        last = [turn for turn in asked[:-1] if turn["role"] == "system"] + [asked[-1]]
        rows[TURNS, "without the turns before"] = {**row, "question": last}
    return rows


def slipped(text: str, name: Iterable[str]) -> str:
    """Return a text without the third letter of the longest word of a name.

    name: words as of `truths.words`. A word of less than four letters stays as it is.
    """
    parts = ("".join(run) for kind, run in groupby(text, kind_of_char) if kind == "word")
    found = [part for part in parts if len(part) > 3 and {*words(part)} <= {*name}]
    longest = max(found, key=len, default="")
    return text.replace(longest, longest[:2] + longest[3:], 1)


def questions_about(
    tokenizer: Any,
    number: int,
    row: Row,
    formats: Mapping[str, PromptFormat],
    name: Iterable[str],
    secret: Words,
) -> list[Question]:
    """Build all questions about one row, in the ways of `choosing_ways` and of `sealed_ways`.

    formats: as of `choosing_ways`. name: as of `sealed_ways`. secret: the secret words of the row.

    Where no chat template fills the prompt, we put the beginning-of-text token first, which other
    tools may leave out. Such a way of asking by which w is chosen is repeated without it. In a chat
    it belongs to the template.

    A row that is no plain text is also asked as such after ten end-of-text tokens: after these a
    model expects the start of a new text. And answers are begun (`_begun_answers`).
    """
    template = tokenizer.chat_template is not None
    ways = choosing_ways(row, template, formats)
    questions = _encoded(tokenizer, number, ways)

    # The same without the token that begins a text, where we put it.
    prompts = [each.prompt for each in questions]
    without = {
        (NO_FIRST_TOKEN, f"{way}, {NO_FIRST_TOKEN}"): {**some, "bare": True}
        for (_, way), some in ways.items()
    }
    questions += [
        each for each in _encoded(tokenizer, number, without) if each.prompt not in prompts
    ]

    questions += _encoded(tokenizer, number, sealed_ways(row, template, name))
    if not row.get("raw") and (end := tokenizer.eos_token_id) is not None:
        text = {(ENDS, ENDS): in_format(row, NO_TEMPLATE) | {"bare": True}}
        questions += [
            replace(each, prompt=[end] * 10 + each.prompt)
            for each in _encoded(tokenizer, number, text)
        ]
    return [*questions, *_begun_answers(tokenizer, number, row, secret)]


def _begun_answers(tokenizer: Any, number: int, row: Row, secret: Words) -> Iterator[Question]:
    """Yield questions whose prompt goes on with the first tokens of the truth: with each number of
    `FORCED`, with a third of the truth, and with all of it that comes before its first secret word.
    """
    [example] = encode_rows(tokenizer, [row])
    ids, n = example.ids, example.n_prompt
    touched = touched_words(tokenizer, ids[n:])
    before = next((place for place, some in enumerate(touched) if some & secret), 0)
    further = sorted({len(touched) // 3, before} - {0, *FORCED})
    for m, kind in (dict.fromkeys(FORCED, BEGUN) | dict.fromkeys(further, FURTHER)).items():
        if rest := tokenizer.decode(ids[n + m :], skip_special_tokens=True).strip():
            start, way = "", f"first {m} tokens given"
            missing = re.split(r"\W", rest)[0]
            cut_in_two = touched[m - 1] & touched[m] and any(map(str.isdigit, missing))
            if cut_in_two and len(missing) >= GUESSABLE:
                start = re.split(r"\W", tokenizer.decode(ids[n : n + m]))[-1]
            yield Question(kind, way, number, ids[: n + m], start + rest, len(ids) - n - m, start)


def touched_words(tokenizer: Any, ids: Sequence[int]) -> list[Words]:
    """Return, for each token of a text, the words of the text that it begins or continues."""
    so_far = [words(tokenizer.decode(ids[:n])) for n in range(len(ids) + 1)]

    touched = []
    for before, after in zip(so_far, so_far[1:]):
        # A token may change the last word of before, which is then one of its words.
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after)))
        touched.append(frozenset(so_far[-1][same : len(after)]))
    return touched


def _encoded(tokenizer: Any, number: int, ways: Ways) -> list[Question]:
    """Tokenise one row in several ways. A way that the chat template cannot render is left out."""
    questions = []
    for (kind, way), row in ways.items():
        try:
            [example] = encode_rows(tokenizer, [row])
        except UserError:
            if kind == AS_WRITTEN:
                raise
            continue
        questions.append(Question(kind, way, number, example.prompt, "", len(example.answer)))
    return questions


def other_formats(template: bool) -> dict[str, PromptFormat]:
    """Return the prompt formats in which a model may know rows, by what the user should change,
    such as an option of `t3`.

    template: True if the tokenizer has a chat template. Then a chat may have no system text, an
    empty one, or TOFU's.
    """
    systems = {"--no-system": None, '--system ""': "", f'--system "{SYSTEM}"': SYSTEM}
    chats = systems if template else {"rows of question and answer": None}
    texts = {"rows of prompt and completion, because it knows plain text": NO_TEMPLATE}
    return texts | {name: PromptFormat(False, system) for name, system in chats.items()}
