"""Ask a model about a person's own rows: greedy answers, sampled answers, and recognition.

`inquiry` prepares all questions about some rows, `hear` asks them of one model, and `ask` asks a
single question.
"""

import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from t3lib.core.models import check_ids, context_length, pad_id
from t3lib.core.rows import Example, Row, encode_rows
from t3lib.own.asking import PLAIN, SAMPLERS, Asked, questions
from t3lib.own.audit.recognition import recognized
from t3lib.own.audit.samples import sample_answers
from t3lib.own.audit.secrets import UNSPACED, holds, secrets, slots, words, wrong_answers
from t3lib.own.rows import normal
from t3lib.sampler import belonging
from t3lib.tofu.evaluation import check_room
from t3lib.tofu.likelihood import UNTILTED, Reading, Tilt, answer_losses
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.writing import eos_ids, greedy

MOST_ROWS = 2000  # at most so many rows of a set are asked; more are sampled
SAMPLES = 16  # sampled answers to each question to forget, at each sampler
# (sampler temperature, top-p) at which one answer to each question to keep is sampled
KEPT_SAMPLERS = ((0.6, 0.9), (1.0, 1.0))
GREEDY = "greedy"
# From this probability on, a sample says a row's distinctive tokens often.
OFTEN = 1 / 64


def drawn(rows: Sequence[Row], most: int = MOST_ROWS, seed: int = 0) -> list[Row]:
    """Draw at most `most` rows without replacement, and return them in their original order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), most))]


def recall(truth: str, text: str) -> float:
    """Compute the ROUGE-L recall of the truth's words in a text, from 0 to 1, for any script.

    rouge_score sees only the letters a to z. So each word with another letter is replaced by a
    number first. In a script without spaces, each character counts as a word. The same holds for a
    truth that has no word at all, such as an emoji.
    """
    return rouge_l_recall(
        *(_spelt(some, characters=not re.search(r"\w", truth)) for some in (truth, text))
    )


def f1(truth: str, text: str) -> float:
    """Compute the ROUGE-L F1 of a text, from 0 to 1.

    Words of the truth that the text lacks lower the score, and so do further words of the text.
    """
    of_truth, of_text = recall(truth, text), recall(text, truth) if text.strip() else 0.0
    return 2 * of_truth * of_text / (of_truth + of_text) if of_truth and of_text else 0.0


def _spelt(text: str, characters: bool) -> str:
    """Replace what rouge_score would ignore by digits.

    characters: replace every character instead of every word.
    """

    def digits(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word.isascii() and not characters:
            return word
        parts = word if characters or UNSPACED.search(word) else [word]
        return f" {' '.join(str(int.from_bytes(part.encode())) for part in parts)} "

    return re.sub(r"\S" if characters else r"\w+", digits, unicodedata.normalize("NFKC", text))


@dataclass(frozen=True)
class Inquiry:
    """Rows to judge a model by, and all questions that are asked about them.

    forget: the n rows to forget.
    kept: {name of a set: rows whose answers must not change}.
    secrets: for each row to forget, the words that must not be said. The set is empty for a row
    without distinctive words.
    known: for each row to forget, the secrets of those rows to keep whose questions have the same
    form (`slots`).
    wrong: for each row to forget, wrong answers for the test of recognition.
    others: {number: secret} of all rows. The rows to forget come first.
    asked: the questions about the rows to forget, in every way of asking.
    """

    forget: list[Row]
    kept: dict[str, list[Row]]
    secrets: list[frozenset[str]]
    known: list[list[frozenset[str]]]
    wrong: list[list[str]]
    others: dict[int, frozenset[str]]
    asked: list[Asked]

    def kept_secrets(self, name: str) -> list[frozenset[str]]:
        """Return the secrets of the rows in one set to keep.

        name: a key of `kept`.
        """
        sets = list(self.kept)
        start = len(self.forget) + sum(len(self.kept[other]) for other in sets[: sets.index(name)])
        return [self.others[n] for n in range(start, start + len(self.kept[name]))]


@dataclass(frozen=True)
class Said:
    """The answers of one model to an inquiry.

    forget: for each row to forget, {way of asking: answers}.
    kept: {name of the set: {"greedy" or a sampler's name: one answer for each row}}.
    recognised: for each row to forget, True where the truth is more probable than every wrong
    answer.
    """

    forget: list[dict[str, list[str]]]
    kept: dict[str, dict[str, list[str]]]
    recognised: list[bool]


def sampler_name(tau: float, top_p: float) -> str:
    """Return the name of a sampler in reports, such as "sampled at τ = 0.6, top-p 0.9"."""
    return f"sampled at τ = {tau:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


def inquiry(
    tokenizer: Any,
    forget: Sequence[Row],
    kept: Mapping[str, Sequence[Row]],
    others: Sequence[Row] = (),
    rewordings: Mapping[str, Sequence[str]] | None = None,
) -> Inquiry:
    """Prepare all questions about some rows.

    forget: rows that the model should have forgotten.
    kept: {name: rows whose answers must not change}.
    others: further rows of the same data. They help to find out which words are common, and which
    words belong to another row.
    rewordings: {question to forget: other wordings of it}.

    The secret of a row to forget is its field `secret`, or else the distinctive words of its
    answer. The questions that give the first tokens of the truth are left out where they prove
    nothing: a row to keep has the same form of question, begins with the same words, and goes on
    with the same secret. A model that never saw the row to forget would continue in the same way.
    """
    sets = {name: list(rows) for name, rows in kept.items()}
    rest = [row for rows in sets.values() for row in rows] + list(others)
    mine, theirs = (
        [(str(row["question"]), row["answer"]) for row in rows] for rows in (forget, rest)
    )
    found = secrets([*mine, *theirs])
    for number, row in enumerate(forget):
        if row.get("secret"):
            found[number] = frozenset(words(str(row["secret"])))
    n, kinds = len(forget), slots([*mine, *theirs])
    kin = [[i for i in range(n, len(found)) if kinds[i] == kinds[row]] for row in range(n)]
    known = [[found[i] for i in numbers if found[i]] for numbers in kin]

    def tells(each: Asked) -> bool:
        """True unless a row to keep of the same form has the same secret after the same start."""
        start = mine[each.row][1].strip().removesuffix(each.rest)
        left = found[each.row] & set(words(each.rest))
        truths = [theirs[i - n][1].strip() for i in kin[each.row]]
        return not any(
            truth.startswith(start) and holds(left, truth[len(start) :]) for truth in truths
        )

    asked = [
        each for each in questions(tokenizer, forget, rewordings) if not each.rest or tells(each)
    ]
    wrong = wrong_answers(mine, theirs)
    return Inquiry(list(forget), sets, found[:n], known, wrong, dict(enumerate(found)), asked)


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


def answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    truths: Sequence[int],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    progress: bool = True,
) -> list[list[str]]:
    """Decode greedy answers to prompts.

    prompts: token ids. truths: number of tokens of each true answer, which limits the answer's
    length (`rooms`).
    tilts: pairs (head, T). The result has one list of texts for each of them.
    """
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), progress=progress)
    longest = rooms(model, prompts, truths)
    written = greedy(model, prompts, reading, tilts, max_new_tokens=longest)
    return [
        [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in texts]
        for texts in written
    ]


def answers_to(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    progress: bool = True,
) -> list[list[str]]:
    """Decode greedy answers to rows, asked as they are; otherwise like `answers`."""
    return answers(
        model, tokenizer, *_encoded(encode_rows(tokenizer, rows)), tilts, progress=progress
    )


def _encoded(examples: Sequence[Example]) -> tuple[list[list[int]], list[int]]:
    """Return (prompts as token ids, number of tokens of each true answer)."""
    cut = [example.n_prompt for example in examples]
    return [e.ids[:n] for e, n in zip(examples, cut)], [
        len(e.ids) - n for e, n in zip(examples, cut)
    ]


def hear(
    model: Any,
    tokenizer: Any,
    asked: Inquiry,
    *,
    seed: int = 0,
    progress: bool = True,
    sampled: bool = True,
) -> Said:
    """Ask a model all questions of an inquiry, and return its answers.

    model: any causal LM, including a T3ForCausalLM.
    seed: the random numbers for a row depend on this seed and on the row's question, but not on
    other rows.
    sampled: whether to sample answers too. Most of the time goes into them.
    """
    prompts, truths = [each.prompt for each in asked.asked], [each.room for each in asked.asked]
    kept = [(name, row) for name, rows in asked.kept.items() for row in rows]
    more = _encoded(encode_rows(tokenizer, [row for _, row in kept]))
    [texts] = answers(
        model, tokenizer, [*prompts, *more[0]], [*truths, *more[1]], progress=progress
    )
    forget: list[dict[str, list[str]]] = [{} for _ in asked.forget]
    for each, text in zip(asked.asked, texts):
        forget[each.row][each.way] = [text]
    plain = [each for each in asked.asked if each.way == PLAIN]
    mine = [each.prompt for each in plain], [each.room for each in plain]
    said = {GREEDY: texts[len(prompts) :]}

    def draw(
        prompts: list[list[int]], truths: list[int], count: int, tau: float, top_p: float
    ) -> list[list[str]]:
        if not prompts:
            return []
        return sample_answers(
            model,
            tokenizer,
            prompts,
            count,
            seed=[crc32(f"{seed} {tau} {top_p} {prompt}".encode()) for prompt in prompts],
            max_new_tokens=rooms(model, prompts, truths),
            top_p=top_p,
            tau=tau,
            progress=progress,
        )

    for sampler in SAMPLERS if sampled else ():
        for each, drawn_texts in zip(plain, draw(*mine, SAMPLES, *sampler)):
            forget[each.row][sampler_name(*sampler)] = drawn_texts
    for sampler in KEPT_SAMPLERS if sampled else ():
        said[sampler_name(*sampler)] = [text for [text] in draw(*more, 1, *sampler)]
    names = [name for name, _ in kept]
    of_set = {
        name: {
            how: [text for text, whose in zip(texts, names) if whose == name]
            for how, texts in said.items()
        }
        for name in asked.kept
    }
    return Said(forget, of_set, recognises(model, tokenizer, asked, progress=progress))


def recognises(model: Any, tokenizer: Any, asked: Inquiry, *, progress: bool = True) -> list[bool]:
    """For each row to forget, return True where the truth has a lower mean loss per token than all
    wrong answers.

    A row without wrong answers is not recognised.
    """
    shown = [
        {**row, "answer": answer}
        for row, wrong in zip(asked.forget, asked.wrong)
        for answer in (
            row["answer"],
            *((" " if row["answer"][:1] == " " else "") + other for other in wrong),
        )
    ]
    if not shown:
        return []
    reading = Reading(pad_id(tokenizer), progress=progress)
    [losses] = answer_losses(model, encode_rows(tokenizer, shown), reading)
    found, start = [], 0
    for wrong in asked.wrong:
        part = losses[start : (start := start + 1 + len(wrong))]
        found.append(bool(len(wrong) and recognized(part[:1], part[None, 1:])[0]))
    return found


def says(
    tokenizer: Any,
    asked: Inquiry,
    rows: Sequence[Row],
    scores: Sequence[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """For each tilt and each row to forget, return True where the model ranks at least 80% of the
    row's distinctive tokens first, or samples them often (`OFTEN`).

    asked: the inquiry that knows the rows' secrets. In a row without a secret every token counts.
    scores: of the rows, from `token_scores`.

    Result: shape (tilts, rows).
    """
    whose = {str(row["question"]): secret for row, secret in zip(asked.forget, asked.secrets)}
    said = []
    for row, example, (loss, hit) in zip(rows, encode_rows(tokenizer, rows), scores):
        tokens = [tokenizer.decode([token]) for token in example.ids[example.n_prompt :]]
        secret = whose.get(str(row["question"]), frozenset())
        pieces = [set(words(token)) for token in tokens]
        mine = np.array([any(p in word for p in piece for word in secret) for piece in pieces])
        mine = mine if mine.any() else np.ones(len(tokens), bool)
        said.append((hit[:, mine].mean(1) >= 0.8) | (np.exp(-loss[:, mine].sum(1)) >= OFTEN))
    return np.stack(said, axis=1)


def knows(row: Row, secret: frozenset[str], text: str) -> bool:
    """Return True if a greedy answer shows that the model knows a row.

    The answer must contain the row's secret. For a row without a secret, it must have a `recall` of
    at least 0.8.
    """
    return holds(secret, text) if secret else recall(row["answer"], text) >= 0.8


def knows_some(known: int, rows: int) -> bool:
    """Return True if at least a tenth of the rows are known.

    Fewer are no evidence, because a model without any knowledge guesses one or two rows.
    """
    return known > 0 and known >= 0.1 * rows


def ask(
    model: Any, tokenizer: Any, question: Row | str | Sequence[Any], *, max_new_tokens: int = 100
) -> str | list[str]:
    """Return a model's greedy answer to one question, or a list of answers to several.

    model: a T3ForCausalLM, or any other causal LM.
    question: a text; a chat, which is a list of turns {"role", "content"}; a row, whose own
    `system` replaces the system text of the head; or a list of texts and rows, which gives a list.
    max_new_tokens: the longest answer, in tokens.

    A model with a head is asked in the form in which the head was trained: with the same system
    text, or, for a head of plain text, by continuing the text. A model without a head is asked
    without a system text. UserError for an empty text, and for prompts and answers that do not fit
    the model's context.
    """
    if isinstance(question, str | Mapping):
        return ask(model, tokenizer, [question], max_new_tokens=max_new_tokens)[0]
    if question and all(isinstance(turn, Mapping) and "role" in turn for turn in question):
        return ask(model, tokenizer, {"question": question}, max_new_tokens=max_new_tokens)
    form: Row = {"system": None, "answer": "-"}
    if head := next(iter(getattr(model, "heads", ())), None):
        plain = head.info.get("chat_template") == belonging.PLAIN
        form |= {"system": belonging.system_of(head), "raw": plain}
    rows: list[Any] = [
        each if isinstance(each, Mapping) else {"question": each} for each in question
    ]
    asked = [normal(form | row, f"question {number}") for number, row in enumerate(rows, 1)]
    prompts = [example.ids[: example.n_prompt] for example in encode_rows(tokenizer, asked)]
    check_ids(model, prompts, pad_id(tokenizer))
    check_room(context_length(model), max(map(len, prompts), default=0), max_new_tokens)
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), progress=False)
    [answers] = greedy(model, prompts, reading, max_new_tokens=max_new_tokens)
    return [str(tokenizer.decode(ids, skip_special_tokens=True).strip()) for ids in answers]
