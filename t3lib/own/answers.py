"""Ask a model about a person's own rows: greedy answers and sampled answers.

`build_inquiry` prepares all questions about some rows, `collect_answers` asks them of one model,
and `ask` asks a single question.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from t3lib.core.models import check_ids, context_length, pad_id
from t3lib.core.rows import Example, Row, encode_rows, question_of
from t3lib.own.questions import (
    AS_WRITTEN,
    SAMPLED,
    PromptFormat,
    Question,
    format_of_row,
    judging_questions,
    sealed_questions,
    small_talk,
)
from t3lib.own.rows import normal
from t3lib.own.truths import (
    Truths,
    names,
    truths,
    words,
)
from t3lib.sampler import belonging
from t3lib.tofu.evaluation import check_room
from t3lib.tofu.likelihood import UNTILTED, Tilt
from t3lib.tofu.reader import Reading
from t3lib.tofu.samples import sample_tilts, seeds_of
from t3lib.tofu.writing import eos_ids, greedy

MOST_FORGET = 200  # at most so many rows to forget are asked; more are drawn at random
MOST_KEPT = 400  # the same for each set of rows to keep
CONTROL_ROWS = (12, 60)  # at least and at most so many other rows are asked in every way
SAMPLES = 16  # sampled answers to each question to forget, at each sampler
# (sampler temperature, top-p) at which one answer to each question to keep is sampled
KEPT_SAMPLERS = ((0.6, 0.9), (1.0, 1.0))
GREEDY = "greedy"
GENERIC = "generic"  # the set of generic prompts, to keep as the base answers them


def drawn(rows: Sequence[Row], most: int, seed: int = 0) -> list[Row]:
    """Draw at most `most` rows without replacement, and return them in their original order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), most))]


@dataclass(frozen=True)
class Inquiry:
    """Rows to judge a model by, and all questions that are asked about them.

    rows: all rows, numbered from 0. The n rows to forget come first.
    kept: {name of a set: numbers of its rows, whose answers must not change}. If there are rows to
    forget, the last set is `GENERIC`.
    compared_rows: numbers of the rows that are asked in every way: the rows to forget, and control
    rows. The answers about the control rows show which words are common.
    truths: the truths of all rows but the generic prompts. names: whom each question of these rows
    asks about.
    wanted: {(way of asking, row): words that count}, where the prompt gives a part of the truth.
    questions: those about the `compared_rows`, in every way of asking.
    sealed: questions about the rows to forget that are only reported.
    """

    rows: list[Row]
    n: int
    kept: dict[str, range]
    compared_rows: list[int]
    truths: Truths
    names: list[frozenset[str]]
    wanted: dict[tuple[str, int], frozenset[str]]
    questions: list[Question]
    sealed: list[Question]

    @property
    def forget(self) -> list[Row]:
        """The rows to forget."""
        return self.rows[: self.n]

    def of(self, name: str) -> list[Row]:
        """Return the rows of one set to keep."""
        return [self.rows[number] for number in self.kept[name]]


@dataclass(frozen=True)
class Answers:
    """The answers of one model to an inquiry.

    texts: {number of a row: {way of asking: answers}}, of the `compared_rows`.
    sealed: {number of a row to forget: {way of asking: answers}}, of the ways that are only
    reported.
    kept: {name of the set: {"greedy" or a sampler's name: one answer for each row}}.
    """

    texts: dict[int, dict[str, list[str]]]
    sealed: dict[int, dict[str, list[str]]]
    kept: dict[str, dict[str, list[str]]]


def sampler_name(tau: float, top_p: float, way: str = AS_WRITTEN) -> str:
    """Return the name of a sampler in reports, such as "sampled at τ = 0.6, top-p 0.9"."""
    name = f"sampled at τ = {tau:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")
    return name if way == AS_WRITTEN else f"{name}, {way}"


def build_inquiry(
    tokenizer: Any,
    forget: Sequence[Row],
    kept: Mapping[str, Sequence[Row]],
    others: Sequence[Row] = (),
    head_format: PromptFormat | None = None,
) -> Inquiry:
    """Prepare all questions about some rows.

    forget: rows that the model should have forgotten.
    kept: {name: rows whose answers must not change}.
    others: further rows of the same data, such as unseen rows. They are the first control rows.
    head_format: the prompt format in which `t3 generate` asks, by default that of most rows.

    The items of a row to forget are the words of its field `secret`, or else those of its answer.
    Rows to forget are also asked in the formats of the rows to keep, and in `head_format`. Where
    there are some, generic prompts are asked as rows to keep.
    """
    rows, numbers = [*forget, *others], {}
    for name, some in kept.items():
        numbers[name] = range(len(rows), len(rows) + len(some))
        rows += some
    n = len(forget)
    pairs = [(question_of(row), row["answer"]) for row in rows]
    truths = truths_of(rows)
    subjects = names([question for question, _ in pairs])

    # The prompt formats in which the rows to forget are asked beside their own.
    of_kept = Counter(format_of_row(row) for some in kept.values() for row in some)
    of_all = Counter(map(format_of_row, forget)) + of_kept
    most = next((each for each, _ in of_all.most_common(1)), PromptFormat(False, None))
    usual = head_format or most
    formats = {
        f"in the form of the rows to keep{f' ({k})' if k > 1 else ''}": prompt_format
        for k, (prompt_format, _) in enumerate(of_kept.most_common(3), 1)
    } | {"as t3 generate asks": usual}

    # Questions are numbered by place among these rows; here each gets the number of its row.
    compared_rows = [*range(n), *_control_rows(truths, n, n + len(others))]
    by_place = judging_questions(tokenizer, [rows[number] for number in compared_rows], formats)
    questions = [replace(each, row=compared_rows[each.row]) for each in by_place]

    # A question whose prompt begins the answer counts only where words are left to give it away.
    wanted = {(each.way, each.row): _wanted(truths, pairs, each) for each in questions if each.rest}
    questions = [each for each in questions if not each.rest or wanted[each.way, each.row]]

    if generic := small_talk(usual) if forget else []:
        numbers[GENERIC] = range(len(rows), len(rows) + len(generic))
    return Inquiry(
        rows=[*rows, *generic],
        n=n,
        kept=numbers,
        compared_rows=compared_rows,
        truths=truths,
        names=subjects,
        wanted=wanted,
        questions=questions,
        sealed=sealed_questions(tokenizer, forget, subjects[:n]),
    )


def truths_of(rows: Sequence[Row]) -> Truths:
    """Read the truths of rows. The only items of a row with a field `secret` are that field's
    words.
    """
    secrets = {
        number: words(str(row["secret"])) for number, row in enumerate(rows) if row.get("secret")
    }
    return truths([(question_of(row), row["answer"]) for row in rows], secrets)


def _control_rows(truths: Truths, n: int, first: int) -> list[int]:
    """Choose the control rows: other rows that are asked in the same ways as the n rows to forget.

    Rows n to `first` come first, then rows of the same slots, then any. There are as many as rows
    to forget, within `CONTROL_ROWS`.
    """
    rows = range(n, len(truths.items))
    slots = {truths.slot[row] for row in range(n)}
    order = random.Random(0).sample(rows, len(rows))
    order.sort(key=lambda row: (row >= first, truths.slot[row] not in slots))
    return order[: min(max(CONTROL_ROWS[0], n), CONTROL_ROWS[1])] if n else []


def _wanted(truths: Truths, pairs: Sequence[tuple[str, str]], each: Question) -> frozenset[str]:
    """Return the words that give a row away after the first tokens of its truth.

    These are words of the rest of the truth, minus words that another row of the slot has after the
    same first tokens: a model could guess these.
    """
    truth = pairs[each.row][1].strip()
    start = truth.removesuffix(each.rest)
    left = {*words(each.rest)}
    for row, (_, other) in enumerate(pairs):
        if row != each.row and truths.slot[each.row] >> row & 1 and other.strip().startswith(start):
            left.difference_update(words(other.strip()[len(start) :]))
    return frozenset(left)


def rooms(model: Any, prompts: Sequence[Sequence[int]], truths: Sequence[int]) -> list[int]:
    """Return how many tokens each answer may have: twice the truth's length and at least 16, within
    the model's context.

    prompts: token ids. truths: number of tokens of each true answer.
    """
    limit = context_length(model) or 10**9
    return [
        max(1, min(max(16, 2 * truth), limit - len(prompt)))
        for prompt, truth in zip(prompts, truths)
    ]


def greedy_texts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    truths: Sequence[int],
    tilts: Sequence[Tilt] = UNTILTED,
) -> list[list[str]]:
    """Decode greedy answers to prompts.

    prompts: token ids. truths: number of tokens of each true answer, which limits the answer's
    length (`rooms`).
    tilts: pairs (head, T). The result has one list of texts for each of them.
    """
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer))
    longest = rooms(model, prompts, truths)
    written = greedy(model, prompts, reading, tilts, max_new_tokens=longest)
    return [
        [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in texts]
        for texts in written
    ]


def answers_to(
    model: Any, tokenizer: Any, rows: Sequence[Row], tilts: Sequence[Tilt] = UNTILTED
) -> list[list[str]]:
    """Decode greedy answers to rows, asked as they are; otherwise like `greedy_texts`."""
    return greedy_texts(model, tokenizer, *_encoded(encode_rows(tokenizer, rows)), tilts)


def _encoded(examples: Sequence[Example]) -> tuple[list[list[int]], list[int]]:
    """Return (prompts as token ids, number of tokens of each true answer)."""
    cut = [example.n_prompt for example in examples]
    return [e.ids[:n] for e, n in zip(examples, cut)], [
        len(e.ids) - n for e, n in zip(examples, cut)
    ]


def collect_answers(model: Any, tokenizer: Any, inquiry: Inquiry, **options: Any) -> Answers:
    """Ask a model all questions of an inquiry, and return its answers.

    model: any causal LM, including a T3ForCausalLM. options: as of `collect_by_tilt`.
    """
    return collect_by_tilt(model, tokenizer, inquiry, UNTILTED, **options)[0]


def collect_by_tilt(
    model: Any,
    tokenizer: Any,
    inquiry: Inquiry,
    tilts: Sequence[Tilt],
    *,
    seed: int = 0,
    sampled: bool = True,
) -> list[Answers]:
    """Ask every tilt of a model all questions of an inquiry, and return their answers.

    Tilts whose text is still identical are computed once, in greedy answers and in samples.

    tilts: pairs (head, T).
    seed: the random numbers for a row depend on this seed and on the row's question, but not on
    other rows.
    sampled: whether to sample answers too. Most of the time goes into them.
    """
    rows = [inquiry.rows[number] for numbers in inquiry.kept.values() for number in numbers]
    kept = _encoded(encode_rows(tokenizer, rows))
    prompts, truths = _prompts([*inquiry.questions, *inquiry.sealed])
    greedily = greedy_texts(model, tokenizer, prompts + kept[0], truths + kept[1], tilts)
    collected = [_sorted(inquiry, iter(texts)) for texts in greedily]

    def sample(
        prompts: list[list[int]], truths: list[int], count: int, tau: float, top_p: float
    ) -> list[list[list[str]]]:
        """Sample `count` answers of every tilt to every prompt."""
        if not prompts:
            return [[] for _ in tilts]
        return sample_tilts(
            model,
            tokenizer,
            prompts,
            count,
            tilts,
            seed=seeds_of(seed, prompts, tau, top_p),
            max_new_tokens=rooms(model, prompts, truths),
            top_p=top_p,
            tau=tau,
        )

    # Rows to forget and control rows: many samples, from several samplers.
    for way, samplers in SAMPLED.items() if sampled else ():
        questions = [each for each in inquiry.questions if each.way == way]
        for sampler in samplers:
            drawn_texts = sample(*_prompts(questions), SAMPLES, *sampler)
            for answers, of_rows in zip(collected, drawn_texts):
                for each, texts in zip(questions, of_rows):
                    answers.texts[each.row][sampler_name(*sampler, way)] = texts

    # Rows to keep: one sample from each sampler.
    for sampler in KEPT_SAMPLERS if sampled else ():
        for answers, of_rows in zip(collected, sample(*kept, 1, *sampler)):
            left = iter(text for [text] in of_rows)
            for name, numbers in inquiry.kept.items():
                answers.kept[name][sampler_name(*sampler)] = list(islice(left, len(numbers)))

    return collected


def _prompts(questions: Sequence[Question]) -> tuple[list[list[int]], list[int]]:
    """Return (prompts as token ids, number of tokens of each true answer that are missing)."""
    return [each.prompt for each in questions], [each.room for each in questions]


def _sorted(inquiry: Inquiry, texts: Iterator[str]) -> Answers:
    """Sort the greedy answers of one model, in the order in which they were asked for."""

    def by_row(questions: Sequence[Question]) -> dict[int, dict[str, list[str]]]:
        answers: dict[int, dict[str, list[str]]] = {}
        for each in questions:
            answers.setdefault(each.row, {})[each.way] = [next(texts)]
        return answers

    of_questions, of_sealed = by_row(inquiry.questions), by_row(inquiry.sealed)
    kept = {name: {GREEDY: [*islice(texts, len(some))]} for name, some in inquiry.kept.items()}
    return Answers(of_questions, of_sealed, kept)


def ask(
    model: Any, tokenizer: Any, question: Row | str | Sequence[Any], *, max_new_tokens: int = 100
) -> str | list[str]:
    """Return a model's greedy answer to one question, or a list of answers to several.

    model: a T3ForCausalLM, or any other causal LM.
    question: a text; a chat, which is a list of turns {"role", "content"}; a row, whose own
    `system` replaces the system text of the head; or a list of texts and rows, which gives a list.
    max_new_tokens: the longest answer, in tokens.

    A model with a head, also inside `tilt`, is asked in the prompt format in which the head was
    trained: with the same system text and template arguments, which are in `head.info`, or, for a
    head of plain text, by continuing the text. A model without a head is asked without a system
    text. UserError for an empty text, and for prompts and answers that do not fit the model's
    context.
    """
    if isinstance(question, str | Mapping):
        return ask(model, tokenizer, [question], max_new_tokens=max_new_tokens)[0]
    if question and all(isinstance(turn, Mapping) and "role" in turn for turn in question):
        return ask(model, tokenizer, {"question": question}, max_new_tokens=max_new_tokens)

    # The format in which the head was trained, also inside a block of `tilt`.
    format_fields: Row = {"system": None, "answer": "-"}
    inside = vars(model).get("_tilted_by", model)
    if head := next(iter(getattr(inside, "heads", ())), None):
        raw = head.info.get("chat_template") == belonging.PLAIN
        format_fields |= {"system": belonging.system_of(head), "raw": raw}
        tokenizer = belonging.in_template_of(head, tokenizer)

    rows: list[Any] = [
        each if isinstance(each, Mapping) else {"question": each} for each in question
    ]
    rows = [
        normal(format_fields | row, f"question {number}", format_fields["system"])
        for number, row in enumerate(rows, 1)
    ]
    prompts = [example.ids[: example.n_prompt] for example in encode_rows(tokenizer, rows)]
    check_ids(model, prompts, pad_id(tokenizer))
    check_room(context_length(model), max(map(len, prompts), default=0), max_new_tokens)

    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer))
    [answers] = greedy(model, prompts, reading, max_new_tokens=max_new_tokens)
    return [str(tokenizer.decode(ids, skip_special_tokens=True).strip()) for ids in answers]
