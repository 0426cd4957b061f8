"""Ask a model the audit's questions.

This is the only module of the audit that calls models. `likelihoods` shows answers to the model,
and `writings` decodes its own. Both return plain JSON with an entry for each row, which can be
cached. `measures.measures` turns it into numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t3lab.audit.facts import held
from t3lab.audit.recognition import CELLS
from t3lib.core.errors import UserError
from t3lib.core.models import check_ids, context_length, pad_id
from t3lib.core.rows import Example, Row, encode_rows
from t3lib.tofu.evaluation import answer_text, check_room
from t3lib.tofu.likelihood import (
    UNTILTED,
    Tilt,
    answer_losses,
    answer_tokens,
    token_scores,
)
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.reader import Reading
from t3lib.tofu.samples import sample_tilts
from t3lib.tofu.writing import eos_ids, greedy

FORCED = (1, 2, 4, 8)  # numbers of first tokens of the true answer that a prompt gives
GREEDY = "greedy"
Sets = Mapping[str, Sequence[Row]]


def likelihoods(
    model: Any,
    tokenizer: Any,
    sets: Sets,
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    attention_mask: str = "lengths",
) -> list[dict[str, Any]]:
    """Score the true and wrong answers of several sets of rows under every tilt.

    sets: {name: rows}. tilts: pairs (head, T); the base runs once for all of them.

    Returns for every tilt {set: {"cells", "empty", "losses", "hits"}}:
    cells: {cell of `CELLS`: (n, 1 + k)}, the mean −ln p̂ of each row's true answer and of its k
    wrong answers. A cell is left out if a row lacks one of its fields.
    empty: {cell that was left out: the reason}.
    losses, hits: for each row, −ln p̂ of every token of its answer, and whether it is the most
    probable token. The end of turn is left out.

    UserError for rows that are longer than the model's context.
    """
    empty = {
        name: {cell: reason for cell in CELLS if (reason := lacking(rows, cell))}
        for name, rows in sets.items()
    }
    reading = Reading(pad_id(tokenizer), (), attention_mask)

    # the true answers, token by token
    answers = {name: encode_rows(tokenizer, rows) for name, rows in sets.items()}
    true = [example for examples in answers.values() for example in examples]
    _check(model, tokenizer, true)
    scores = token_scores(model, true, reading, tilts)

    # the answers of all cells, each as a whole
    pairs, places = _pairs(sets, empty)
    losses = np.zeros((len(tilts), 0))
    if pairs:
        examples = encode_rows(tokenizer, pairs)
        _check(model, tokenizer, examples)
        losses = answer_losses(model, examples, reading, tilts)

    # scores are in the order of the sets and their rows
    ends, following = eos_ids(model, tokenizer), iter(scores)
    tokens = {
        name: [(answer_tokens(example, ends), *next(following)) for example in examples]
        for name, examples in answers.items()
    }

    def result(t: int, name: str) -> dict[str, Any]:
        cells = [cell for cell in CELLS if cell not in empty[name]]
        return {
            "cells": {cell: losses[t][places[name, cell]].tolist() for cell in cells},
            "empty": empty[name],
            "losses": [loss[t, :n].tolist() for n, loss, _ in tokens[name]],
            "hits": [hit[t, :n].tolist() for n, _, hit in tokens[name]],
        }

    return [{name: result(t, name) for name in sets} for t in range(len(tilts))]


def _pairs(
    sets: Sets, empty: Mapping[str, Mapping[str, str]]
) -> tuple[list[Row], dict[tuple[str, str], list[list[int]]]]:
    """List every pair of a question and an answer that some cell needs, each once.

    empty: {set: {cell that is left out: the reason}}.

    Returns the pairs as rows, and for each set and cell (n, 1 + k) indices of pairs: for each row
    of the set its true answer, then its wrong answers.
    """
    pairs: list[Row] = []
    index: dict[tuple[str, str], int] = {}  # question and answer -> index of the pair

    def place(row: Row, question: Any, answer: str) -> int:
        """Return the index of this question and answer; add them if they are new."""
        if (str(question), answer) not in index:
            pairs.append(row | {"question": question, "answer": answer})
        return index.setdefault((str(question), answer), len(pairs) - 1)

    places = {
        (name, cell): [
            [place(row, row[question], text) for text in (row[answer], *row[wrong])] for row in rows
        ]
        for name, rows in sets.items()
        for cell, (answer, question, wrong) in CELLS.items()
        if cell not in empty[name]
    }
    return pairs, places


def lacking(rows: Sequence[Row], cell: str) -> str:
    """Return why a cell of `CELLS` cannot be filled from these rows, or ""."""
    wrong = CELLS[cell][2]
    for field in (wrong, *CELLS[cell][:2]):
        for number, row in enumerate(rows, 1):
            if not row.get(field):
                return f"row {number} has no {field}"
    if len({len(row[wrong]) for row in rows}) > 1:
        return "the rows have different numbers of perturbed answers"
    return ""


def writings(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    samples: int,
    top_p: float = 1.0,
    templates: Sequence[str] = (),
    attention_mask: str = "lengths",
) -> list[dict[str, Any]]:
    """Decode answers in every way of asking, and score them by ROUGE-L recall of the truth.

    samples: answers sampled for each row. top_p: nucleus of the sampler; 1 is the whole
    distribution.
    templates: texts with "{question}" in them, where the question is put.

    Returns for every tilt a dict of scores, one for each of n rows:
    greedy: (n,), of the greedy answer.
    forced: {m: (n,)}, of the greedy continuation after the first m tokens of the truth, compared
    with the rest of the truth; None if nothing is left.
    templates: {template: (n,)}, of the greedy answer to the question in the template.
    It also has everything that `draws` returns.
    """
    options: dict[str, Any] = {"attention_mask": attention_mask}

    examples, ends = encode_rows(tokenizer, rows), eos_ids(model, tokenizer)
    tasks = _tasks(tokenizer, rows, examples, templates, ends)
    prompts = [task.prompt for task in tasks]
    longest = _longest(model, tokenizer, examples, prompts)

    sampled = draws(model, tokenizer, rows, tilts, samples=samples, top_p=top_p, **options)
    reading = Reading(pad_id(tokenizer), ends, **options)
    texts = greedy(model, prompts, reading, tilts, max_new_tokens=longest)

    results = []
    for texts_of_tilt, samples_of_tilt in zip(texts, sampled):
        # {measure: (n,)}; a row without a task for a measure keeps None
        recalls: dict[str, list[float | None]] = {}
        for task, ids in zip(tasks, texts_of_tilt):
            rest = answer_text(tokenizer, task.rest)
            column = recalls.setdefault(task.what, [None] * len(rows))
            column[task.row] = rouge_l_recall(rest, answer_text(tokenizer, ids)) if rest else None

        result: dict[str, Any] = {"greedy": recalls.pop(GREEDY)} | samples_of_tilt
        result["forced"] = {str(m): recalls.pop(str(m), [None] * len(rows)) for m in FORCED}
        results.append(result | {"templates": recalls})  # only these are left

    return results


def draws(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    samples: int,
    top_p: float = 1.0,
    tau: float = 1.0,
    attention_mask: str = "lengths",
) -> list[dict[str, Any]]:
    """Sample answers and score them.

    samples: answers for each row. top_p: nucleus of the sampler. tau: the sampler's temperature,
    which is not T3's T.

    Returns for every tilt a dict:
    samples: (n, samples), ROUGE-L recall of each answer.
    closest: (n,), the text of the best answer for each row.
    leaks, facts: see `facts.held`.

    No answer is longer, in tokens, than the longest true answer.
    """
    check_samples(samples, top_p)
    examples = encode_rows(tokenizer, rows)
    prompts = [example.prompt for example in examples]
    truths = [answer_text(tokenizer, example.answer) for example in examples]

    texts = sample_tilts(
        model,
        tokenizer,
        prompts,
        samples,
        tilts,
        seed=0,
        max_new_tokens=_longest(model, tokenizer, examples, prompts),
        top_p=top_p,
        tau=tau,
        attention_mask=attention_mask,
    )

    results = []
    for texts_of_tilt in texts:
        scores = [
            [rouge_l_recall(truth, answer) for answer in answers]
            for truth, answers in zip(truths, texts_of_tilt)
        ]
        closest = [answers[int(np.argmax(of))] for answers, of in zip(texts_of_tilt, scores)]
        results.append({"samples": scores, "closest": closest} | held(rows, texts_of_tilt))

    return results


def _longest(
    model: Any, tokenizer: Any, examples: Sequence[Example], prompts: Sequence[Sequence[int]]
) -> int:
    """Return the number of tokens of the longest true answer. UserError if rows or prompts do not
    fit the model's context.
    """
    longest = max(len(example.answer) for example in examples)
    _check(model, tokenizer, examples)
    check_room(context_length(model), max(map(len, prompts)), longest)
    return longest


class _Task(NamedTuple):
    """One greedy answer: its prompt, the measure and the row that it is for, and the expected
    continuation.

    what: a template, the number of given tokens as text, or GREEDY.
    """

    what: str
    row: int
    prompt: list[int]
    rest: list[int]


def _tasks(
    tokenizer: Any,
    rows: Sequence[Row],
    examples: Sequence[Example],
    templates: Sequence[str],
    ends: Sequence[int],
) -> list[_Task]:
    """List all prompts that are answered greedily."""
    tasks = []

    # the question, and the question with the first tokens of its answer
    for row, example in enumerate(examples):
        length = answer_tokens(example, ends)
        starts = {GREEDY: 0} | {str(m): m for m in FORCED if m < length}
        for what, n in starts.items():
            cut = example.n_prompt + n
            tasks.append(_Task(what, row, example.ids[:cut], example.ids[cut:]))

    # the question in every template
    for template in templates:
        worded = [
            row | {"question": template.replace("{question}", str(row["question"]))} for row in rows
        ]
        for row, example in enumerate(encode_rows(tokenizer, worded)):
            cut = example.n_prompt
            tasks.append(_Task(template, row, example.ids[:cut], example.ids[cut:]))

    return tasks


def check_samples(samples: int, top_p: float = 1.0, templates: Sequence[str] = ()) -> None:
    """UserError for fewer than one sample, a top_p outside (0, 1], and a template without
    "{question}".
    """
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p:g}")
    for template in templates:
        if "{question}" not in template:
            raise UserError(f"template {template!r} has no {{question}} in it")


def _check(model: Any, tokenizer: Any, examples: Sequence[Example]) -> None:
    """UserError for token ids that the model does not have, and for rows longer than its
    context.
    """
    check_ids(model, (example.ids for example in examples), pad_id(tokenizer))

    limit, longest = context_length(model), max(len(example.ids) for example in examples)
    if limit is not None and longest > limit:
        raise UserError(f"a row has {longest} tokens, more than the model's context of {limit}")
