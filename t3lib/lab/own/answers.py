"""What a model answers: in every way of asking, when sampled, and among wrong answers; and `ask`,
one question.
"""

import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from t3lib.core.models import context_length, pad_id
from t3lib.core.rows import Example, Row, encode_rows
from t3lib.lab.audit.recognition import recognized
from t3lib.lab.audit.samples import sample_answers
from t3lib.lab.audit.secrets import UNSPACED, holds, secrets, slots, words, wrong_answers
from t3lib.lab.own.asking import PLAIN, SAMPLERS, Asked, questions
from t3lib.lab.own.rows import normal
from t3lib.sampler import belonging
from t3lib.tofu.likelihood import UNTILTED, Reading, Tilt, answer_losses
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.writing import eos_ids, greedy

MOST_ROWS = 2000  # rows of a set that are asked
SAMPLES = 16  # answers drawn to each question to forget, at each sampler
KEPT_SAMPLERS = ((0.6, 0.9), (1.0, 1.0))  # at which one answer is drawn to each question to keep
GREEDY = "greedy"


def drawn(rows: Sequence[Row], most: int = MOST_ROWS, seed: int = 0) -> list[Row]:
    """At most `most` of the rows, drawn without replacement, in their own order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), most))]


def recall(truth: str, text: str) -> float:
    """ROUGE-L recall of a truth's words in a text, whatever their script: rouge_score knows the
    letters a to z alone.

    A word with another letter counts as one number; where a script has no spaces, and in a truth
    without any word (an emoji), each character does.
    """
    return rouge_l_recall(
        *(_spelt(some, characters=not re.search(r"\w", truth)) for some in (truth, text))
    )


def f1(truth: str, text: str) -> float:
    """ROUGE-L F1 of a text: words of the truth that it lacks count, and words that it has
    besides.
    """
    of_truth, of_text = recall(truth, text), recall(text, truth) if text.strip() else 0.0
    return 2 * of_truth * of_text / (of_truth + of_text) if of_truth and of_text else 0.0


def _spelt(text: str, characters: bool) -> str:
    """The text with whatever rouge_score would pass over written in digits."""

    def digits(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word.isascii() and not characters:
            return word
        parts = word if characters or UNSPACED.search(word) else [word]
        return f" {' '.join(str(int.from_bytes(part.encode())) for part in parts)} "

    return re.sub(r"\S" if characters else r"\w+", digits, unicodedata.normalize("NFKC", text))


@dataclass(frozen=True)
class Inquiry:
    """Rows to judge a model by, and what is asked.

    forget (n rows) with their `secrets`; `known`: for each the secrets of rows to keep of the same
    slot; `wrong`: other answers to recognise the truth among; `others`: secrets of all rows by
    number, the forgotten ones first; `asked`: the questions. kept: {name: rows} that must not
    change.
    """

    forget: list[Row]
    kept: dict[str, list[Row]]
    secrets: list[frozenset[str]]
    known: list[list[frozenset[str]]]
    wrong: list[list[str]]
    others: dict[int, frozenset[str]]
    asked: list[Asked]

    def kept_secrets(self, name: str) -> list[frozenset[str]]:
        """The secrets of the rows of one set to keep."""
        sets = list(self.kept)
        start = len(self.forget) + sum(len(self.kept[other]) for other in sets[: sets.index(name)])
        return [self.others[n] for n in range(start, start + len(self.kept[name]))]


@dataclass(frozen=True)
class Said:
    """What a model said to an inquiry.

    forget: for each row {way: texts}; kept: {name: {decoding: one text a row}}; recognised: for
    each row to forget whether its truth is likelier than every wrong answer.
    """

    forget: list[dict[str, list[str]]]
    kept: dict[str, dict[str, list[str]]]
    recognised: list[bool]


def sampler_name(tau: float, top_p: float) -> str:
    """How a report names a sampler."""
    return f"sampled at τ = {tau:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


def inquiry(
    tokenizer: Any,
    forget: Sequence[Row],
    kept: Mapping[str, Sequence[Row]],
    others: Sequence[Row] = (),
    rewordings: Mapping[str, Sequence[str]] | None = None,
) -> Inquiry:
    """The questions about some rows; `others`: further rows of the same data, for what is common
    and what is another's.

    A row's `secret`, where it brings one, counts instead of the distinctive words that are found.
    The truth's first tokens are not given where a row to keep of the same slot begins alike and
    goes on with the same secret: then a model that never saw the row goes on like that, too.
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
        """Whether no row to keep of the same slot has the same secret after the same start."""
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
    """New tokens for each answer: twice its truth's, at least 16, but no more than the model's
    context leaves.
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
    """Greedy answers to prompts whose true answers have so many tokens: one list of texts for every
    tilt.
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
    """`answers` to rows as they stand."""
    return answers(
        model, tokenizer, *_encoded(encode_rows(tokenizer, rows)), tilts, progress=progress
    )


def _encoded(examples: Sequence[Example]) -> tuple[list[list[int]], list[int]]:
    """(prompts, tokens of the true answers)."""
    cut = [example.n_prompt for example in examples]
    return [e.ids[:n] for e, n in zip(examples, cut)], [
        len(e.ids) - n for e, n in zip(examples, cut)
    ]


def hear(
    model: Any, tokenizer: Any, asked: Inquiry, *, seed: int = 0, progress: bool = True
) -> Said:
    """Ask a model (any causal LM, T3ForCausalLM included) all questions of an inquiry.

    What is drawn for a row depends on `seed` and its question, not on the other rows.
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

    for sampler in SAMPLERS:
        for each, drawn_texts in zip(plain, draw(*mine, SAMPLES, *sampler)):
            forget[each.row][sampler_name(*sampler)] = drawn_texts
    for sampler in KEPT_SAMPLERS:
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
    """Whether each truth to forget has a lower loss a token than all its wrong answers."""
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


def knows(row: Row, secret: frozenset[str], text: str) -> bool:
    """Whether a greedy answer shows that a model knows a row: it says its secret, or without one
    most of its words.
    """
    return holds(secret, text) if secret else recall(row["answer"], text) >= 0.8


def knows_some(known: int, rows: int) -> bool:
    """Whether so many known rows are evidence: at least a tenth, for a guess or two is right
    without any knowledge.
    """
    return known > 0 and known >= 0.1 * rows


def ask(model: Any, tokenizer: Any, question: Row | str, *, max_new_tokens: int = 100) -> str:
    """A model's greedy answer to a row or a question, in the form that its head was trained in.

    model: a T3ForCausalLM, or any causal LM, which is asked without a system text. question: a row,
    whose own `system` counts, or a text; what a head of plain text is asked is continued as it
    stands. UserError for text that is empty.
    """
    head = next(iter(getattr(model, "heads", ())), None)
    row: Row = {"question": question} if isinstance(question, str) else {**question}
    if head is not None:
        row = {
            "system": belonging.system_of(head),
            "raw": head.info.get("chat_template") == belonging.PLAIN,
        } | row
    row = normal({"system": None, "answer": "-"} | row, "the question")
    [example] = encode_rows(tokenizer, [row])
    prompt = example.ids[: example.n_prompt]
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), progress=False)
    [[ids]] = greedy(model, [prompt], reading, max_new_tokens=max_new_tokens)
    return str(tokenizer.decode(ids, skip_special_tokens=True).strip())
