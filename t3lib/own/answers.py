"""Ask a model about a person's own rows: greedy answers and sampled answers.

`build_inquiry` prepares all questions about some rows, `collect_answers` asks them of one model,
and `ask` asks a single question.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from t3lib.core.models import check_ids, context_length, pad_id
from t3lib.core.rows import Row, encode_rows, question_of
from t3lib.own.phrases import SMALL_TALK
from t3lib.own.questions import (
    OTHER_SAMPLERS,
    SAMPLERS,
    SEALED_KINDS,
    PromptFormat,
    Question,
    format_of_row,
    questions_about,
)
from t3lib.own.rows import normal
from t3lib.own.truths import GUESSED, Truths, Words, names, shared_words, truths, word_set, words
from t3lib.sampler import belonging
from t3lib.tofu.evaluation import check_room
from t3lib.tofu.likelihood import UNTILTED, Tilt
from t3lib.tofu.reader import Reading
from t3lib.tofu.samples import Sampler, sample_together
from t3lib.tofu.writing import eos_ids, greedy

MOST_FORGET = 200  # at most so many rows to forget are asked; more are drawn at random
MOST_KEPT = 400  # the same for each set of rows to keep
CONTROL_ROWS = (12, 60)  # at least and at most so many other rows are asked in every way
TEXTS = 16  # at least so many answers about a row in each kind of asking
TOKENS = 100  # answers are read this far, printed by `t3 generate` and served
KEPT = "to keep"  # the kind of the questions about rows to keep
GREEDY_ANSWER = Sampler(1, 0.0)
GENERIC = "generic"  # the set of generic prompts, to keep as the base answers them


def drawn(rows: Sequence[Row], most: int) -> list[Row]:
    """Draw at most `most` rows without replacement, and return them in their original order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(0).sample(range(len(rows)), most))]


@dataclass(frozen=True)
class Inquiry:
    """Rows to judge a model by, and all questions that are asked about them.

    rows: all rows, numbered from 0. The n rows to forget come first.
    kept: {name of a set: numbers of its rows, whose answers must not change}. If there are rows to
    forget, and heads are asked in a chat, the last set is `GENERIC`.
    compared_rows: numbers of the rows that are asked in every way: the rows to forget, and control
    rows. The answers about other rows show what is said without knowing a row.
    truths: the truths of all rows but the generic prompts.
    given: {(way of asking, row): words of the truth that the prompt gives, whole or in part}.
    questions: those about the `compared_rows`, in every way of asking.
    least: an answer is read to this number of tokens, or to twice its truth's, if that is more.
    """

    rows: list[Row]
    n: int
    kept: dict[str, range]
    compared_rows: list[int]
    truths: Truths
    given: dict[tuple[str, int], Words]
    questions: list[Question]
    least: int

    @property
    def forget(self) -> list[Row]:
        """The rows to forget."""
        return self.rows[: self.n]

    @property
    def unseen(self) -> range:
        """Numbers of the rows that the model never saw, which follow those to forget."""
        kept = [some.start for some in self.kept.values() if some]
        return range(self.n, min(kept, default=len(self.rows)))


class Text(NamedTuple):
    """One answer about a row: its kind of asking and its way, with the sampler's name where it was
    sampled. The way of a row to keep is the name of its set.
    """

    row: int
    kind: str
    way: str
    text: str


Answers = list[Text]  # of one model to an inquiry


def about_compared(answers: Sequence[Text]) -> Answers:
    """Return the answers about the `compared_rows`, without those of the kind `KEPT`."""
    return [each for each in answers if each.kind != KEPT]


def way_of(each: Text) -> str:
    """Return the way of asking of a text, without the sampler."""
    return each.way.partition(", sampled")[0]


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
    there are some, and that format is a chat, generic prompts are asked as rows to keep.
    """
    rows, numbers = [*forget, *others], {}
    for name, some in kept.items():
        numbers[name] = range(len(rows), len(rows) + len(some))
        rows += some
    n, found = len(forget), truths_of(rows)

    # The prompt formats in which the rows to forget are asked beside their own.
    of_kept = Counter(format_of_row(row) for some in kept.values() for row in some)
    of_all = Counter(map(format_of_row, forget)) + of_kept
    usual = head_format or of_all.most_common(1)[0][0]
    formats = {
        f"in the form of the rows to keep{f' ({k})' if k > 1 else ''}": prompt_format
        for k, (prompt_format, _) in enumerate(of_kept.most_common(3), 1)
    } | {"as t3 generate asks": usual}

    # All questions, the sealed ones last.
    compared_rows = [*range(n), *_control_rows(found, n, n + len(others))]
    subjects, questions = names([question_of(row) for row in rows]), list[Question]()
    for row in compared_rows:
        secret = frozenset[str]().union(*found.rare(row, GUESSED))
        questions += questions_about(tokenizer, row, rows[row], formats, subjects[row], secret)
    questions.sort(key=lambda each: each.kind in SEALED_KINDS)

    # A question whose prompt begins the truth counts only where a secret word is left.
    given = {
        (each.way, each.row): frozenset[str]().union(*found.items[each.row]) - {*words(each.rest)}
        for each in questions
        if each.rest
    }
    questions = [
        each
        for each in questions
        if not each.rest
        or any(secret.isdisjoint(given[each.way, each.row]) for secret in found.secrets(each.row))
    ]

    talk = SMALL_TALK if forget and not usual.raw else ()
    if generic := [{"question": text, "answer": "-", "system": usual.system} for text in talk]:
        numbers[GENERIC] = range(len(rows), len(rows) + len(generic))
    return Inquiry(
        rows=[*rows, *generic],
        n=n,
        kept=numbers,
        compared_rows=compared_rows,
        truths=found,
        given=given,
        questions=questions,
        least=TOKENS,
    )


def truths_of(rows: Sequence[Row]) -> Truths:
    """Read the truths of rows. The only items of a row with a field `secret` are that field's
    words in its answer. Words that many texts share count as asked, because they are a template's.
    """
    secrets = {
        number: word_set(str(row["secret"])) & word_set(row["answer"])
        for number, row in enumerate(rows)
        if row.get("secret")
    }
    template = shared_words([question_of(row) + row["answer"] for row in rows if row.get("text")])
    asked = [[question_of(row), *(template if row.get("text") else ())] for row in rows]
    return truths(
        [(" ".join(question), row["answer"]) for question, row in zip(asked, rows)], secrets
    )


def _control_rows(truths: Truths, n: int, first: int) -> list[int]:
    """Choose the control rows: other rows that are asked in the same ways as the n rows to forget.

    Rows n to `first` come first, then rows of the same slots, then any. There are as many as rows
    to forget, within `CONTROL_ROWS`.
    """
    rows = range(n, len(truths.items))
    slots = {truths.slot[row] for row in range(n)}
    order = sorted(
        random.Random(0).sample(rows, len(rows)),
        key=lambda row: (row >= first, truths.slot[row] not in slots),
    )
    return order[: min(max(CONTROL_ROWS[0], n), CONTROL_ROWS[1])] if n else []


def rooms(
    model: Any, prompts: Sequence[Sequence[int]], truths: Sequence[int], least: int
) -> list[int]:
    """Return how many tokens each answer may have: twice the truth's length and at least `least`,
    within the model's context.

    prompts: token ids. truths: number of tokens of each true answer.
    """
    limit = context_length(model) or 10**9
    return [
        max(1, min(max(least, 2 * truth), limit - len(prompt)))
        for prompt, truth in zip(prompts, truths)
    ]


def greedy_texts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    truths: Sequence[int],
    tilts: Sequence[Tilt] = UNTILTED,
    least: int = 16,
) -> list[list[str]]:
    """Decode greedy answers to prompts.

    prompts: token ids. truths, least: decide the length of the answers, as of `rooms`.
    tilts: pairs (head, T). The result has one list of texts for each of them.
    """
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer))
    longest = rooms(model, prompts, truths, least)
    written = greedy(model, prompts, reading, tilts=tilts, max_new_tokens=longest)
    return [
        [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in texts]
        for texts in written
    ]


def answers_to(model: Any, tokenizer: Any, rows: Sequence[Row], least: int = 16) -> list[str]:
    """Decode greedy answers to rows, asked as they are. least: as of `rooms`."""
    examples = encode_rows(tokenizer, rows)
    prompts = [example.prompt for example in examples]
    truths = [len(example.answer) for example in examples]
    return greedy_texts(model, tokenizer, prompts, truths, least=least)[0]


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
    only: Callable[[Sampler], bool] = lambda sampler: True,
) -> list[Answers]:
    """Ask every tilt of a model all questions of an inquiry, and return their answers.

    Answers that are still identical share the passes of the model.

    tilts: pairs (head, T).
    seed: the random numbers for a row depend on this seed and on the row's question, but not on
    other rows.
    only: True for a sampler that is used. Most of the time goes into sampled answers.

    Left out are questions about rows to forget and control rows after which the model's context has
    no room for the truth.
    """
    collected = [Answers() for _ in tilts]
    limit = context_length(model) or 10**9
    fitting = [each for each in inquiry.questions if len(each.prompt) + each.room <= limit]
    questions = [*fitting, *_kept_questions(tokenizer, inquiry)]
    for every, some in plan(questions).items():
        samplers = [*filter(only, every)]
        if not samplers:
            continue
        prompts = [each.prompt for each in some]
        room = rooms(model, prompts, [each.room for each in some], inquiry.least)
        texts = sample_together(model, tokenizer, prompts, samplers, tilts, seed, room)
        names = [name_of(sampler) for sampler in samplers for _ in range(sampler.n)]
        for answers, of_tilt in zip(collected, texts):
            answers.extend(
                Text(each.row, each.kind, each.way + name, each.start + text)
                for each, of_question in zip(some, of_tilt)
                for name, text in zip(names, of_question)
            )
    return collected


def _kept_questions(tokenizer: Any, inquiry: Inquiry) -> list[Question]:
    """Return a question about each row to keep. Its way is the name of the set."""
    kept = [(name, number) for name, numbers in inquiry.kept.items() for number in numbers]
    examples = encode_rows(tokenizer, [inquiry.rows[number] for _, number in kept])
    return [
        Question(KEPT, name, number, each.prompt, "", len(each.answer))
        for (name, number), each in zip(kept, examples)
    ]


def plan(questions: Sequence[Question]) -> dict[tuple[Sampler, ...], list[Question]]:
    """Return {samplers: questions that are asked with them}, so that every kind of asking has at
    least `TEXTS` answers about a row, and every way more than the greedy one.

    Rows to keep have the greedy answer and one sample.
    """
    ways = Counter((each.row, each.kind) for each in questions)
    found: dict[tuple[Sampler, ...], list[Question]] = {}
    for each in questions:
        greedily = [GREEDY_ANSWER] * (each.kind not in OTHER_SAMPLERS)
        kinds = OTHER_SAMPLERS.get(each.kind, SAMPLERS)
        texts = 2 if each.kind == KEPT else -(-TEXTS // ways[each.row, each.kind])
        count = max(1 + len(greedily), texts) - len(greedily)
        sizes = [len(range(place, count, len(kinds))) for place in range(len(kinds))]
        sampled = [Sampler(size, *kind) for size, kind in zip(sizes, kinds) if size]
        found.setdefault((*greedily, *sampled), []).append(each)
    return found


def name_of(sampler: Sampler) -> str:
    """Return what reports add to a way of asking, such as ", sampled at τ = 0.6, top-p 0.9", and ""
    for the greedy answer.
    """
    nucleus = f", top-p {sampler.top_p:g}" if sampler.top_p < 1 else ""
    return f", sampled at τ = {sampler.tau:g}{nucleus}" if sampler.tau else ""


def format_of_head(head: Any) -> PromptFormat:
    """Return the prompt format in which `ask` and `t3 generate` ask a model with this head."""
    raw = head.info.get("chat_template") == belonging.PLAIN
    return PromptFormat(raw, None if raw else belonging.system_of(head))


def ask(
    model: Any, tokenizer: Any, question: Row | str | Sequence[Any], *, max_new_tokens: int = TOKENS
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
        format_fields |= asdict(format_of_head(head))
        tokenizer = belonging.in_template_of(head, tokenizer)

    rows = [
        normal(
            {**format_fields, **(each if isinstance(each, Mapping) else {"question": each})},
            f"question {number}",
            format_fields["system"],
        )
        for number, each in enumerate(question, 1)
    ]
    prompts = [example.prompt for example in encode_rows(tokenizer, rows)]
    check_ids(model, prompts, pad_id(tokenizer))
    check_room(context_length(model), max(map(len, prompts), default=0), max_new_tokens)

    return greedy_texts(model, tokenizer, prompts, [0] * len(prompts), least=max_new_tokens)[0]
