"""The audit's questions put to a model: with the sampler, the one module of the audit that calls
models.

`likelihoods` shows the model answers, `writings` lets it write. Both give plain JSON, per row, that
can be cached; `measures` turns it into numbers. `audit_rows` does all of it for a person's own
model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from t3lib.core.errors import UserError
from t3lib.core.models import check_ids, context_length, pad_id, within_memory
from t3lib.core.rows import Example, Row, encode_rows
from t3lib.lab.audit.measures import measures
from t3lib.lab.audit.recognition import CELLS
from t3lib.lab.audit.samples import BATCH_TOKENS, sample_answers
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.evaluation import answer_text, check_room
from t3lib.tofu.likelihood import (
    UNTILTED,
    Reading,
    Tilt,
    answer_losses,
    answer_positions,
    choices,
    default_batch_tokens,
    heads_of,
    target_logp,
)
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.writing import eos_ids, greedy

FORCED = (1, 2, 4, 8)  # how many first tokens of the true answer are given
GREEDY = "greedy"
Sets = Mapping[str, Sequence[Row]]


def likelihoods(
    model: Any,
    tokenizer: Any,
    sets: Sets,
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    attention_mask: str = "lengths",
    progress: bool = True,
) -> list[dict[str, Any]]:
    """For every tilt {set: {"cells", "empty", "losses", "hits"}}, from shared passes of the base
    `model`.

    cells: {cell of `CELLS`: (n, 1 + k)}, mean −ln p̂ of each row's true answer and of its k wrong
    ones; a cell whose fields some row lacks is left out, and `empty` says why. losses, hits: of
    every token of every row's answer, the end of turn left out, −ln p̂ and whether it is the most
    likely token.
    """
    empty = {
        name: {cell: why for cell in CELLS if (why := lacking(rows, cell))}
        for name, rows in sets.items()
    }
    shown: dict[tuple[str, str], int] = {}  # question and answer -> place among the examples
    asked: list[Row] = []

    def place(row: Row, question: Any, answer: str) -> int:
        if (str(question), answer) not in shown:
            asked.append(row | {"question": question, "answer": answer})
        return shown.setdefault((str(question), answer), len(asked) - 1)

    places = {
        (name, cell): [
            [place(row, row[question], text) for text in (row[answer], *row["perturbed_answer"])]
            for row in rows
        ]
        for name, rows in sets.items()
        for cell, (answer, question) in CELLS.items()
        if cell not in empty[name]
    }
    reading = Reading(pad_id(tokenizer), (), attention_mask, progress=progress)
    answers = {name: encode_rows(tokenizer, rows) for name, rows in sets.items()}
    true = [example for part in answers.values() for example in part]
    _check(model, tokenizer, true)
    tokens = iter(
        within_memory(
            lambda size: token_scores(model, true, replace(reading, batch_tokens=size), tilts),
            default_batch_tokens(model),
        )
    )
    scores = {name: [(example, next(tokens)) for example in part] for name, part in answers.items()}
    losses = np.zeros((len(tilts), 0))
    if asked:
        examples = encode_rows(tokenizer, asked)
        _check(model, tokenizer, examples)
        losses = answer_losses(model, examples, reading, tilts)
    ends = eos_ids(model, tokenizer)
    return [
        {
            name: {
                "cells": {
                    cell: losses[t][places[name, cell]].tolist()
                    for cell in CELLS
                    if (name, cell) in places
                },
                "empty": empty[name],
                "losses": [
                    loss[t, : words(example, ends)].tolist() for example, (loss, _) in scores[name]
                ],
                "hits": [
                    hit[t, : words(example, ends)].tolist() for example, (_, hit) in scores[name]
                ],
            }
            for name in sets
        }
        for t in range(len(tilts))
    ]


@torch.no_grad()
def token_scores(
    model: Any,
    examples: Sequence[Example],
    reading: Reading,
    tilts: Sequence[Tilt] = UNTILTED,
) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """One (losses, hits) per example, each (n_tilts, tokens of its answer).

    losses: −ln p_hat(token | prefix); hits: whether the token is the most likely one, so that
    greedy decoding would have written it after this prefix. The last token is the end of turn where
    the template has one.
    """
    lengths = [len(example.ids) - example.n_prompt for example in examples]
    scores = [(np.zeros((len(tilts), n)), np.zeros((len(tilts), n), bool)) for n in lengths]
    for at in answer_positions(model, examples, reading, heads_of(tilts)):
        losses = -target_logp(at, tilts).cpu().double().numpy()
        hits = (choices(at, tilts) == at.target).cpu().numpy()
        for column, (example, step) in enumerate(zip(at.example.tolist(), at.step.tolist())):
            scores[example][0][:, step] = losses[:, column]
            scores[example][1][:, step] = hits[:, column]
    return scores


def lacking(rows: Sequence[Row], cell: str) -> str:
    """Why a cell of `CELLS` cannot be filled from these rows, or ""."""
    for field in ("perturbed_answer", *CELLS[cell]):
        for number, row in enumerate(rows, 1):
            if not row.get(field):
                return f"row {number} has no {field}"
    if len({len(row["perturbed_answer"]) for row in rows}) > 1:
        return "the rows have different numbers of perturbed answers"
    return ""


def words(example: Example, ends: Sequence[int]) -> int:
    """Number of answer tokens without the end of turn; an answer that is nothing else keeps it."""
    length = len(example.ids) - example.n_prompt
    return length - (length > 1 and example.ids[-1] in ends)


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
    progress: bool = True,
) -> list[dict[str, Any]]:
    """For every tilt {"greedy", "forced", "templates"} and its `draws`, ROUGE-L recalls row by row.

    greedy (n,): of the greedy answer. forced {m: (n,)}: of the rest when the first m tokens of the
    true answer are given, None where no more is left. templates {text: (n,)}: of the greedy answer
    to the question put into it at "{question}".
    """
    check_samples(samples, top_p, templates)
    examples, ends = encode_rows(tokenizer, rows), eos_ids(model, tokenizer)
    tasks = _tasks(tokenizer, rows, examples, templates, ends)
    options: dict[str, Any] = {"attention_mask": attention_mask, "progress": progress}
    longest = _longest(model, tokenizer, examples, [task.prompt for task in tasks])
    drawn = draws(model, tokenizer, rows, tilts, samples=samples, top_p=top_p, **options)
    reading = Reading(pad_id(tokenizer), ends, **options)
    prompts = [task.prompt for task in tasks]
    outputs = greedy(model, prompts, reading, tilts, max_new_tokens=longest)
    results = []
    for output, samples_of in zip(outputs, drawn):
        recalls: dict[str, list[float | None]] = {}
        for task, ids in zip(tasks, output):
            rest = answer_text(tokenizer, task.rest)
            column = recalls.setdefault(task.what, [None] * len(rows))
            column[task.row] = rouge_l_recall(rest, answer_text(tokenizer, ids)) if rest else None
        result: dict[str, Any] = {"greedy": recalls.pop(GREEDY)} | samples_of
        result |= {
            "forced": {str(m): recalls.pop(str(m), [None] * len(rows)) for m in FORCED},
            "templates": recalls,
        }
        results.append(result)
    return results


def draws(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    samples: int,
    top_p: float = 1.0,
    attention_mask: str = "lengths",
    progress: bool = True,
) -> list[dict[str, Any]]:
    """For every tilt {"samples": (n, samples) ROUGE-L recalls, "closest": (n,) texts of the best}
    of drawn answers.

    Drawn at sampling temperature 1 from a nucleus of `top_p`. No answer gets more tokens than the
    longest true one.
    """
    check_samples(samples, top_p)
    examples = encode_rows(tokenizer, rows)
    prompts = [example.ids[: example.n_prompt] for example in examples]
    truths = [answer_text(tokenizer, example.ids[example.n_prompt :]) for example in examples]
    how: dict[str, Any] = {
        "attention_mask": attention_mask,
        "progress": progress,
        "seed": 0,
        "top_p": top_p,
    }
    how |= {"max_new_tokens": _longest(model, tokenizer, examples, prompts)}

    def texts(tilted: Any) -> list[list[str]]:
        asked = (tilted, tokenizer, prompts, samples)
        return within_memory(
            lambda size: sample_answers(*asked, batch_tokens=size, **how), BATCH_TOKENS
        )

    results = []
    for head, T in tilts:
        drawn = texts(
            model if head is None else T3ForCausalLM(model, head, T, allow_sharpening=True)
        )
        scores = [
            [rouge_l_recall(truth, answer) for answer in answers]
            for truth, answers in zip(truths, drawn)
        ]
        closest = [answers[int(np.argmax(of))] for answers, of in zip(drawn, scores)]
        results.append({"samples": scores, "closest": closest})
    return results


def _longest(
    model: Any, tokenizer: Any, examples: Sequence[Example], prompts: Sequence[Sequence[int]]
) -> int:
    """Tokens of the longest true answer; UserError for rows or prompts that the model has no room
    for.
    """
    longest = max(len(example.ids) - example.n_prompt for example in examples)
    _check(model, tokenizer, examples)
    check_room(context_length(model), max(map(len, prompts)), longest)
    return longest


class _Task(NamedTuple):
    """A prompt, for which row and measure it is (a template, m of a forced start, GREEDY), and what
    should follow.
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
    """Everything that is answered greedily."""
    tasks = []
    for row, example in enumerate(examples):
        starts = {GREEDY: 0} | {str(m): m for m in FORCED if m < words(example, ends)}
        for what, given in starts.items():
            cut = example.n_prompt + given
            tasks.append(_Task(what, row, example.ids[:cut], example.ids[cut:]))
    for template in templates:
        changed = [
            row | {"question": template.replace("{question}", str(row["question"]))} for row in rows
        ]
        for row, example in enumerate(encode_rows(tokenizer, changed)):
            tasks.append(
                _Task(
                    template, row, example.ids[: example.n_prompt], example.ids[example.n_prompt :]
                )
            )
    return tasks


def audit_rows(
    model: Any,
    tokenizer: Any,
    sets: Sets,
    tilts: Sequence[Tilt] = UNTILTED,
    *,
    samples: int,
    ks: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """For every tilt {set: `measures` of its rows}; the set "unseen", rows the model never saw, is
    the yardstick.

    A model that forgot answers about the forgotten rows as it answers about unseen ones. ks: of
    leak@k, default powers of two. UserError without unseen rows, and for a k larger than the
    samples.
    """
    check_samples(samples)
    if not sets.get("unseen"):
        raise UserError(
            "an audit needs unseen rows: like the forgotten ones, and never seen by the model"
        )
    if bad := [k for k in ks if not 1 <= k <= samples]:
        raise UserError(f"leak@k needs k between 1 and the {samples} samples, not {bad[0]}")
    shown = likelihoods(model, tokenizer, sets, tilts)
    written = {
        name: writings(model, tokenizer, rows, tilts, samples=samples)
        for name, rows in sets.items()
    }

    def audit(name: str, t: int) -> dict[str, Any]:
        losses = {"forget": shown[t][name]["losses"], "unseen": shown[t]["unseen"]["losses"]}
        none = "these are the unseen rows"
        return measures(shown[t][name], none if name == "unseen" else losses, written[name][t], ks)

    return [{name: audit(name, t) for name in sets} for t in range(len(tilts))]


def check_samples(samples: int, top_p: float = 1.0, templates: Sequence[str] = ()) -> None:
    """UserError for fewer than one sample, a share that is none, and a template without a place for
    the question.
    """
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p:g}")
    for template in templates:
        if "{question}" not in template:
            raise UserError(f"template {template!r} has no {{question}} in it")


def _check(model: Any, tokenizer: Any, examples: Sequence[Example]) -> None:
    """UserError for tokens that the model does not have and for more of them than its context
    holds.
    """
    check_ids(model, (example.ids for example in examples), pad_id(tokenizer))
    limit, longest = context_length(model), max(len(example.ids) for example in examples)
    if limit is not None and longest > limit:
        raise UserError(f"a row has {longest} tokens, more than the model's context of {limit}")
