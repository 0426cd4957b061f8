"""Unlearn rows of a person's own model, and measure whether it worked.

A head is fitted on lessons: the rows, their wordings, and neighbours (`training`). T and w are
chosen with two heads. The trial head is fitted without what was made of a fifth of the rows. The
final head is fitted on everything. Settings that the caller gives are used as they are.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from t3lib.classifier.features import Features, encode_within_context
from t3lib.classifier.fit import fit_head, steps_per_epoch
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError, printable
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows, templated
from t3lib.core.settings import (
    OWN_ROWS,
    OWN_STEPS,
    OWN_WARMUP,
    FitSettings,
    check,
    check_temperature,
    fit_settings,
)
from t3lib.own import choice, training
from t3lib.own.answers import (
    MOST_KEPT,
    Answers,
    Inquiry,
    build_inquiry,
    collect_by_tilt,
    drawn,
)
from t3lib.own.assess import complete, counts_of, headline, held_out, inquiry_of, unjudged
from t3lib.own.known import check_unseen, is_unknown, says, warn_forms, warn_unknown
from t3lib.own.report import Report
from t3lib.own.rows import Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import plain_base, vocabulary
from t3lib.tofu.likelihood import UNTILTED, Reading, token_scores

HOLD_OUT = 0.2
FEWEST = 5  # from a set with fewer rows, none is held out
SCREENED = 100  # at most so many rows of a set are screened


@dataclass(frozen=True)
class Choices:
    """Settings of the caller. What is None or "auto" is chosen from the evidence.

    temperature: T. strength: w.
    lr: learning rate; by default that of `settings.OWN_ROWS`.
    steps: optimiser steps; by default `settings.OWN_STEPS`.
    untrained: see `T3Head`.
    template: arguments of the chat template, such as {"enable_thinking": False}. The head keeps
    them, and whoever asks with the head uses them.
    seed: decides which rows are held out, the start of the head, and the samples.
    fit: further settings, named as in `settings.FitSettings`.
    allow_sharpening: whether T may be below 1.
    """

    temperature: float | str = "auto"
    strength: float | None = None
    lr: float | None = None
    steps: int | None = None
    untrained: str = "neutral"
    template: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    fit: Mapping[str, Any] = field(default_factory=dict)
    allow_sharpening: bool = False

    def __post_init__(self) -> None:
        check("untrained", self.untrained)
        found: dict[str, Any] = {}
        if self.steps is not None:
            found["steps"] = check("steps", self.steps)
        if self.temperature != "auto":
            T = check_temperature(self.temperature, allow_sharpening=self.allow_sharpening)
            found["temperature"] = T
        if self.strength is not None:
            found["strength"] = check("w", self.strength)
        if unknown := set(self.fit) - {each.name for each in fields(FitSettings)}:
            raise UserError(f"no setting {printable(sorted(unknown)[0])!r}")
        if own := {*self.fit} & {"lr", "seed", "w"}:
            name = min(own)
            mine = "strength" if name == "w" else name
            raise UserError(f"fit: {name} is a choice of its own: Choices({mine}=…)")
        given = {"seed": self.seed} | ({} if self.lr is None else {"lr": self.lr})
        fit = asdict(fit_settings({"warmup_epochs": 0.0} | given | dict(self.fit)))
        found |= {"fit": {name: fit[name] for name in self.fit}}
        found |= {name: fit[name] for name in given}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def grid(self) -> list[tuple[float, float]]:
        """The pairs (T, w) to screen."""
        T = None if isinstance(self.temperature, str) else float(self.temperature)
        return choice.settings(T, self.strength)


class NothingToForget(UserError):
    """The base does not know the rows to forget, so that no head was fitted.

    report: the counts, with the verdict "nothing" and what to check.
    """

    def __init__(self, report: Report) -> None:
        super().__init__("{sentence} Nothing was trained; {next}".format(**report["verdict"]))
        self.report = report


def unlearn(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Rows,
    choices: Choices = Choices(),
    *,
    progress: bool = True,
) -> T3ForCausalLM:
    """Fit a head that makes `model` forget some rows and keep the others.

    The result is a T3ForCausalLM. Its attribute `report` says how well it worked, and
    `print(model.report)` shows the verdict. The weights of `model` are not changed. Before
    training, a warning says whether the base does not know the rows in the form in which they are
    asked.

    NothingToForget, before anything is trained, if the base knows the rows in no form. UserError
    for an empty set of rows, a question that is in two sets, a row longer than the base's context,
    and unseen rows that the base knows.
    """
    rows, seed = rows.checked(), choices.seed
    base, tokenizer = plain_base(model), templated(tokenizer, choices.template)
    for name, some in (("forget", rows.forget), ("retain", rows.retain)):
        encode_within_context(base, tokenizer, some, name)  # a row too long is refused at once

    fit, held, sets = hold_out(
        rows.forget, rows.retain, rows.holdout_forget, rows.holdout_retain, seed
    )
    kept: dict[str, Sequence[Row]] = {"retain": rows.retain} | (
        {"other": rows.other} if rows.other else {}
    )
    warn_forms(rows)
    inquiry = inquiry_of(tokenizer, rows, kept)
    in_no_form = warn_unknown(base, tokenizer, inquiry, progress=progress)
    if in_no_form and is_unknown(base, tokenizer, inquiry, progress=progress):
        report = unjudged(base, tokenizer, inquiry, progress=progress)
        raise NothingToForget(complete(report, inquiry, base, tokenizer, rows))
    check_unseen(base, tokenizer, rows, progress=progress)

    features, without = training_set(base, tokenizer, rows, fit, choices, progress)
    trial = head = fitted(base, tokenizer, without, choices, progress)
    judges = {name: some for name, some in sets.items() if name == "held_out_retain"}
    apart = judges | {name: some for name, some in kept.items() if name == "other" or not judges}
    judged_on = {"forget": sets["forget"], **apart}
    found = screen(base, tokenizer, trial, judged_on, choices.grid, inquiry)
    if held:
        head = fitted(base, tokenizer, features, choices, progress)
        everything = {"forget": rows.forget, **kept}
        second = screen(base, tokenizer, head, everything, choices.grid, inquiry)
        found = [choice.worse(*pair) for pair in zip(found, second)]

    # At most three settings are judged in full, and the best is taken.
    picked = choice.candidates(found)

    def heard(of: T3Head, inquiry: Inquiry) -> list[Answers]:
        """Return the answers of the base and of each picked setting of a head."""
        tilts = [*UNTILTED, *((weighted(of, each.w), each.T) for each in picked)]
        return collect_by_tilt(base, tokenizer, inquiry, tilts, seed=seed, progress=progress)

    before, *said = heard(head, inquiry)
    others = {
        name: drawn(some, MOST_KEPT) for name, some in sets.items() if name.startswith("held")
    }
    of_held = build_inquiry(
        tokenizer, [], others, [*inquiry.forget, *drawn(rows.retain, MOST_KEPT)]
    )
    held_before, *held_said = heard(trial, of_held)
    reports = [
        Report(counts_of(inquiry, before, one) | held_out(of_held, held_before, other))
        for one, other in zip(said, held_said)
    ]
    tried_in_full = [choice.tried(*pair) for pair in zip(picked, reports)]
    number = choice.best(tried_in_full)
    chosen, report = picked[number], reports[number]

    # What the head says of itself, and the report.
    head.temperature, head.w = chosen.T, chosen.w
    head.info |= belonging.origin(base, tokenizer, rows.forget, rows.retain, len(features.y))
    head.info["attention_mask"] = "lengths"
    if choices.template:
        head.info["template"] = dict(choices.template)
    unlearned = T3ForCausalLM(
        base, head.to(base.device), chosen.T, allow_sharpening=choices.allow_sharpening
    )
    report["choice"] = {
        "T": chosen.T,
        "w": chosen.w,
        "lr": head.info["hyperparameters"]["lr"],
        "reason": choice.reason(tried_in_full),
        "tried": tried_in_full,
    }
    unlearned.report = complete(report, inquiry, unlearned, tokenizer, rows)
    head.info["metrics"] = headline(report)
    return unlearned


def training_set(
    base: PreTrainedModel,
    tokenizer: Any,
    rows: Rows,
    fit: Sequence[int],
    choices: Choices,
    progress: bool,
) -> tuple[Features, Features]:
    """Return the features that the final head is fitted on, and those of the trial head.

    fit: numbers of the rows that the trial head is fitted on; the rows to forget count first.
    """
    held, seed = len(fit) < len(rows.forget) + len(rows.retain), choices.seed

    def made_of(some: Sequence[training.Lesson]) -> training.Material:
        return training.material(base, tokenizer, some, progress=progress)

    lessons = training.lessons(base, tokenizer, rows, seed=seed, progress=progress)
    material = made_of(lessons)
    first = fitted(base, tokenizer, material.features, choices, progress)
    if more := training.mined(base, tokenizer, first, lessons, seed=seed, progress=progress):
        material += made_of([*more, lessons[-1]])
    features = material.features
    return features, subset(features, material.of(fit)) if held else features


def fitted(
    base: PreTrainedModel,
    tokenizer: Any,
    features: Features,
    choices: Choices,
    progress: bool,
) -> T3Head:
    """Fit a head, and note on it what the sampler needs to know."""
    settings: dict[str, Any] = OWN_ROWS | dict(choices.fit) | {"seed": choices.seed}
    if choices.lr is not None:
        settings["lr"] = choices.lr
    n_forget, V = int((features.s == 0).sum()), vocabulary(base)
    per_epoch = steps_per_epoch(n_forget, settings["batch_size"])
    epochs = settings.get("epochs", -(-(choices.steps or OWN_STEPS) // per_epoch))
    settings = {"epochs": epochs, "warmup_epochs": OWN_WARMUP * epochs} | settings
    head = fit_head(features, vocab_size=V, progress=progress, **settings)
    head.untrained = choices.untrained
    head.taught = training.secret_tokens(features, V)
    head.has_token = belonging.tokens_known(tokenizer, V)
    return head


def weighted(head: T3Head, w: float) -> T3Head:
    """Return a copy of a head that shares its weights and has another strength w."""
    other = copy.copy(head)
    other.w = w
    return other


def screen(
    base: PreTrainedModel,
    tokenizer: Any,
    head: T3Head,
    rows: Mapping[str, Sequence[Row]],
    grid: Sequence[tuple[float, float]],
    inquiry: Inquiry,
) -> list[choice.Screened]:
    """Score a head by teacher forcing at every (T, w), with one pass of the base.

    rows: {"forget": rows to forget, name: rows to keep}, in this order. At most `SCREENED` rows of
    each set are used, of the rows to forget only those that the inquiry asks.
    grid: the pairs (T, w). The result has one entry for each.
    inquiry: the inquiry that knows the secrets of the rows to forget.
    """
    # Of many rows, some are drawn to be asked.
    forget = drawn([row for row in rows["forget"] if row in inquiry.forget], SCREENED)
    few = {name: drawn(some, SCREENED) for name, some in rows.items()} | {"forget": forget}
    examples = [each for some in few.values() for each in encode_rows(tokenizer, some)]
    heads = {w: weighted(head, w) for _, w in grid}
    tilts: list[Any] = [*UNTILTED, *((heads[w], T) for T, w in grid)]
    scores = token_scores(base, examples, Reading(pad_id(tokenizer)), tilts)
    share = says(tokenizer, inquiry, forget, scores).mean(1)
    whole = np.stack([hit.all(1) for _, hit in scores], axis=1)
    starts = np.cumsum([*map(len, few.values())])
    kept = [name for name in few if name != "forget"]
    parts = {
        name: slice(a, b) for name, a, b in zip(kept, starts, starts[1:]) if whole[0, a:b].any()
    }
    return [
        choice.Screened(
            T,
            w,
            float(share[t]),
            {name: float(whole[t, part][whole[0, part]].mean()) for name, part in parts.items()},
        )
        for t, (T, w) in enumerate(grid, 1)
    ]


def hold_out(
    forget: Sequence[Row],
    retain: Sequence[Row],
    held_forget: Sequence[Row],
    held_retain: Sequence[Row],
    seed: int,
) -> tuple[list[int], list[int], dict[str, list[Row]]]:
    """Choose which rows the trial head is fitted on and which rows it is judged by.

    A fifth of the rows to forget and of the rows to keep are held out. None are held out of a kind
    that has fewer than `FEWEST` rows, or that already has rows to judge by (held_forget,
    held_retain).

    Returns (fit, held, sets). fit and held are row numbers; the rows to forget count first. sets
    maps "forget" and "retain" to the rows that the trial head is fitted on, and "held_out_forget"
    and "held_out_retain" to the rows that judge it, if there are any.
    """
    rows, rng = [*forget, *retain], np.random.default_rng(seed)
    kinds = {"forget": range(len(forget)), "retain": range(len(forget), len(rows))}
    judges = {"forget": list(held_forget), "retain": list(held_retain)}
    held: list[int] = []
    for name, kind in kinds.items():
        if not judges[name] and len(kind) >= FEWEST:
            numbers = rng.choice(len(kind), size=max(1, round(HOLD_OUT * len(kind))), replace=False)
            chosen = [kind.start + int(number) for number in sorted(numbers)]
            judges[name] = [rows[number] for number in chosen]
            held += chosen
    fit = sorted({*range(len(rows))} - {*held})
    sets = {
        name: [rows[number] for number in fit if number in kind] for name, kind in kinds.items()
    }
    return fit, held, sets | {f"held_out_{name}": some for name, some in judges.items() if some}


def subset(features: Features, rows: Sequence[int]) -> Features:
    """Return the features of some rows, renumbered from 0 in ascending order."""
    chosen = torch.as_tensor(sorted(rows))
    mask = torch.isin(features.row, chosen)
    row = torch.searchsorted(chosen, features.row[mask])
    return Features(
        features.x[mask], features.y[mask], row, features.s[chosen], device=features.device
    )
