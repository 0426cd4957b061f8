"""Unlearn rows of a person's own model, and measure whether it worked.

Heads are fitted on lessons: the rows, their wordings, and neighbours (`lessons`). There are three:

1. A probe head is fitted on all lessons; what it still says becomes further lessons.
2. The trial head is fitted without what was made of a fifth of the rows. These rows then show what
   a head does to rows that it never saw.
3. The final head is fitted on everything. Only this head is returned.

The pair (T, w) is chosen with the trial head and the final head. What the caller gives is used as
it is.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from t3lib.classifier.features import Features, encode_within_context
from t3lib.classifier.fit import fit_head, steps_per_epoch
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows, templated
from t3lib.core.settings import (
    OWN_FIT,
    OWN_STEPS,
    OWN_WARMUP,
    FitSettings,
    check,
    check_temperature,
    fit_settings,
)
from t3lib.own import choice, lessons
from t3lib.own.answers import (
    MOST_KEPT,
    Answers,
    Inquiry,
    build_inquiry,
    collect_by_tilt,
    drawn,
)
from t3lib.own.assess import complete, counts_of, headline, held_out, inquiry_of, report_nothing
from t3lib.own.known import check_unseen, is_unknown, warn_formats, warn_unknown, would_say
from t3lib.own.lessons import Request
from t3lib.own.report import Report
from t3lib.own.rows import Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import plain_base, vocabulary
from t3lib.tofu.likelihood import UNTILTED, token_scores
from t3lib.tofu.reader import Reading

HOLD_OUT = 0.2
OURS = ("gate", "tail", "untrained")  # settings of a head that the paper does not have
FEWEST = 5  # from a set with fewer rows, none is held out
SCREENED = 100  # at most so many rows of a set are screened


@dataclass(frozen=True)
class Choices:
    """Settings of the caller. What is None or "auto" is chosen from the evidence.

    temperature: T. strength: w.
    lr: learning rate.
    steps: optimiser steps; by default `settings.OWN_STEPS`.
    untrained, gate, tail: see `T3Head`.
    template: arguments of the chat template, such as {"enable_thinking": False}. The head keeps
    them, and whoever asks with the head uses them.
    seed: decides which rows are held out, the start of the head, and the samples.
    fit: further settings, named as in `settings.FitSettings`.
    allow_sharpening: whether T may be below 1.
    """

    temperature: float | str = "auto"
    strength: float | None = None
    lr: float = OWN_FIT.lr
    steps: int | None = None
    untrained: str = "neutral"
    gate: float = 1.0
    tail: float = 0.0
    template: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    fit: Mapping[str, Any] = field(default_factory=dict)
    allow_sharpening: bool = False

    def __post_init__(self) -> None:
        if taken := {*self.fit} & {"lr", "seed", "w"}:
            name = min(taken)
            mine = "strength" if name == "w" else name
            raise UserError(f"fit: {name} is a choice of its own: Choices({mine}=…)")
        if self.steps is not None and "epochs" in self.fit:
            raise UserError("fit: epochs and steps both say how long to fit: give one of them")
        found: dict[str, Any] = {name: check(name, getattr(self, name)) for name in OURS}
        if self.temperature != "auto":
            T = check_temperature(self.temperature, allow_sharpening=self.allow_sharpening)
            found["temperature"] = T
        if self.strength is not None:
            found["strength"] = check("w", self.strength)
        if self.steps is not None:
            found["steps"] = check("steps", self.steps)

        # Numbers of other libraries become Python's. Without warmup any number of epochs is right.
        given = {"warmup_epochs": 0.0, "lr": self.lr, "seed": self.seed} | dict(self.fit)
        fit = asdict(fit_settings(given))
        found |= {
            "lr": fit["lr"],
            "seed": fit["seed"],
            "fit": {name: fit[name] for name in self.fit},
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def fit_settings_for(self, n_forget: int) -> FitSettings:
        """Return the settings of `fit_head`. n_forget: rows of class 0, which are one epoch."""
        batch_size = self.fit.get("batch_size", OWN_FIT.batch_size)
        steps = self.steps or OWN_STEPS
        epochs = self.fit.get("epochs", -(-steps // steps_per_epoch(n_forget, batch_size)))
        length = {"epochs": epochs, "warmup_epochs": OWN_WARMUP * epochs}
        return replace(OWN_FIT, lr=self.lr, seed=self.seed, **length | dict(self.fit))

    @property
    def grid(self) -> list[tuple[float, float]]:
        """The pairs (T, w) to screen."""
        T = None if isinstance(self.temperature, str) else float(self.temperature)
        return choice.grid_of(T, self.strength)


class NothingToForget(UserError):
    """The base does not know the rows to forget, so that no head was fitted.

    report: the counts, with the verdict "nothing" and what to check.
    """

    def __init__(self, report: Report) -> None:
        super().__init__("{sentence} Nothing was trained; {next}".format(**report["verdict"]))
        self.report = report


def unlearn(
    model: PreTrainedModel, tokenizer: Any, rows: Rows, choices: Choices = Choices()
) -> T3ForCausalLM:
    """Fit a head that makes `model` forget some rows and keep the others.

    The result is a T3ForCausalLM. Its attribute `report` says how well it worked, and
    `print(model.report)` shows the verdict. The weights of `model` are not changed. Before
    training, a warning says whether the base does not know the rows in the prompt format in which
    they are asked.

    NothingToForget, before anything is trained, if the base knows the rows in no prompt format.
    UserError for an empty set of rows, a question that is in two sets, a row longer than the base's
    context, and unseen rows that the base knows.
    """
    request = checked_request(model, tokenizer, rows, choices)
    rows = request.rows
    inquiry = inquiry_of(request.tokenizer, rows, kept_sets(rows))
    check_known(request, inquiry)

    # A trial head, which never sees a fifth of the rows, and a final head.
    trial_rows, held, sets = hold_out(
        rows.forget, rows.retain, rows.holdout_forget, rows.holdout_retain, choices.seed
    )
    features, of_trial = training_set(request, trial_rows, choices)
    trial = head = fit_own_head(request, of_trial, choices)
    if held:
        head = fit_own_head(request, features, choices)

    # T and w, at which both heads forget and keep, and the counts of the final head.
    pair, report = choose(request, inquiry, (trial, head), sets, choices.grid)
    head.temperature, head.w = pair.T, pair.w
    describe(head, request, choices, len(features.y))
    unlearned = T3ForCausalLM(
        request.base,
        head.to(request.base.device),
        pair.T,
        allow_sharpening=choices.allow_sharpening,
    )
    unlearned.report = complete(report, inquiry, unlearned, request.tokenizer, rows)
    head.info["metrics"] = headline(report)
    return unlearned


def checked_request(model: Any, tokenizer: Any, rows: Rows, choices: Choices) -> Request:
    """Check the rows, and return what is asked for. A row that is too long is refused at once."""
    rows = rows.checked()
    base, tokenizer = plain_base(model), templated(tokenizer, choices.template)
    for name, some in (("forget", rows.forget), ("retain", rows.retain)):
        encode_within_context(base, tokenizer, some, name)
    warn_formats(rows)
    return Request(base, tokenizer, rows, choices.seed)


def kept_sets(rows: Rows) -> dict[str, Sequence[Row]]:
    """Return {name: rows to keep} of the sets that a person gave."""
    sets = {"retain": rows.retain, "other": rows.other}
    return {name: some for name, some in sets.items() if some}


def check_known(request: Request, inquiry: Inquiry) -> None:
    """Stop if the base does not know the rows to forget in any prompt format (NothingToForget), or
    if it knows the unseen rows (UserError).
    """
    base, tokenizer, rows = request.base, request.tokenizer, request.rows
    if warn_unknown(base, tokenizer, inquiry) and is_unknown(base, tokenizer, inquiry):
        report = report_nothing(base, tokenizer, inquiry)
        raise NothingToForget(complete(report, inquiry, base, tokenizer, rows))
    check_unseen(base, tokenizer, rows)


def training_set(
    request: Request, trial_rows: Sequence[int], choices: Choices
) -> tuple[Features, Features]:
    """Return the features that the final head is fitted on, and those of the trial head.

    trial_rows: numbers of the rows for the trial head; the rows to forget count first.
    """
    made = lessons.make_lessons(request)
    material = lessons.extract_material(request, made)

    # A probe head shows what is still said of the secrets. A kind needs one row to keep as well.
    probe = fit_own_head(request, material.features, choices)
    if more := lessons.mined(request, probe, made):
        material += lessons.extract_material(request, [*more, made[-1]])

    features, rows = material.features, request.rows
    if len(trial_rows) == len(rows.forget) + len(rows.retain):
        return features, features
    return features, subset(features, material.of(trial_rows))


def fit_own_head(request: Request, features: Features, choices: Choices) -> T3Head:
    """Fit a head, and note on it what the sampler needs to know."""
    V = vocabulary(request.base)
    settings = choices.fit_settings_for(int((features.s == 0).sum()))
    head = fit_head(features, vocab_size=V, **asdict(settings))
    for name in OURS:
        setattr(head, name, getattr(choices, name))
    head.taught = lessons.secret_tokens(features, V)
    head.has_token = belonging.tokens_known(request.tokenizer, V)
    return head


def describe(head: T3Head, request: Request, choices: Choices, tokens: int) -> None:
    """Write on a head what it was fitted on, and the prompt format in which it is asked.

    tokens: number of answer tokens that it was fitted on.
    """
    rows = request.rows
    head.info |= belonging.origin(request.base, request.tokenizer, rows.forget, rows.retain, tokens)
    head.info["attention_mask"] = "lengths"
    if choices.template:
        head.info["template"] = dict(choices.template)


# ---- the choice of T and w ----------------------------------------------------------------------


def choose(
    request: Request,
    inquiry: Inquiry,
    heads: tuple[T3Head, T3Head],
    sets: Mapping[str, Sequence[Row]],
    grid: Sequence[tuple[float, float]],
) -> tuple[choice.Screened, Report]:
    """Choose a pair (T, w) for the final head, and return it with its report.

    heads: the trial head and the final head. sets: as of `hold_out`. grid: the pairs (T, w). At
    most three of them are judged in full, and the best is taken.
    """
    picked = choice.candidates(screened(request, inquiry, heads, sets, grid))
    reports = judged_in_full(request, inquiry, heads, sets, picked)
    tried = [choice.tried(*each) for each in zip(picked, reports)]
    number = choice.best(tried)
    pair, report = picked[number], reports[number]
    report["choice"] = {
        "T": pair.T,
        "w": pair.w,
        "gate": heads[1].gate,
        "tail": heads[1].tail,
        "lr": heads[1].info["hyperparameters"]["lr"],
        "reason": choice.reason(tried),
        "tried": tried,
    }
    return pair, report


def screened(
    request: Request,
    inquiry: Inquiry,
    heads: tuple[T3Head, T3Head],
    sets: Mapping[str, Sequence[Row]],
    grid: Sequence[tuple[float, float]],
) -> list[choice.Screened]:
    """Screen every pair (T, w), and return the worse result of the two heads.

    Arguments as of `choose`.
    The trial head is screened on rows to keep that it never saw, if there are any.
    """
    trial, head = heads
    kept = kept_sets(request.rows)
    unseen = {name: sets[name] for name in ("held_out_retain",) if name in sets}
    apart = unseen | {name: some for name, some in kept.items() if name == "other" or not unseen}
    found = screen(request, trial, {"forget": sets["forget"], **apart}, grid, inquiry)
    if head is trial:
        return found

    everything = {"forget": request.rows.forget, **kept}
    second = screen(request, head, everything, grid, inquiry)
    return [choice.worse(*each) for each in zip(found, second)]


def judged_in_full(
    request: Request,
    inquiry: Inquiry,
    heads: tuple[T3Head, T3Head],
    sets: Mapping[str, Sequence[Row]],
    picked: Sequence[choice.Screened],
) -> list[Report]:
    """Return a report on the final head at each picked pair (T, w).

    Rows that were held out are judged with the trial head. Arguments as of `choose`.
    """
    trial, head = heads

    def answers_of(of: T3Head, inquiry: Inquiry) -> list[Answers]:
        """Return the answers of the base, and of a head at each picked pair (T, w)."""
        tilts = [*UNTILTED, *((weighted(of, each.w), each.T) for each in picked)]
        seed = request.seed
        return collect_by_tilt(request.base, request.tokenizer, inquiry, tilts, seed=seed)

    before, *after = answers_of(head, inquiry)
    others = {
        name: drawn(some, MOST_KEPT) for name, some in sets.items() if name.startswith("held")
    }
    context = [*inquiry.forget, *drawn(request.rows.retain, MOST_KEPT)]
    of_held = build_inquiry(request.tokenizer, [], others, context)
    held_before, *held_after = answers_of(trial, of_held)
    return [
        Report(counts_of(inquiry, before, one) | held_out(of_held, held_before, other))
        for one, other in zip(after, held_after)
    ]


def weighted(head: T3Head, w: float) -> T3Head:
    """Return a copy of a head that shares its weights and has another strength w."""
    other = copy.copy(head)
    other.w = w
    return other


def screen(
    request: Request,
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
    examples = [each for some in few.values() for each in encode_rows(request.tokenizer, some)]
    heads = {w: weighted(head, w) for _, w in grid}
    tilts: list[Any] = [*UNTILTED, *((heads[w], T) for T, w in grid)]
    scores = token_scores(request.base, examples, Reading(pad_id(request.tokenizer)), tilts)

    # Of the rows to forget, the share that is still said; of those to keep, the share that is whole
    # among those that the base reproduces whole.
    share = would_say(request.tokenizer, inquiry, forget, scores).mean(1)
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

    Returns (trial_rows, held, sets). trial_rows and held are row numbers; the rows to forget count
    first. sets maps "forget" and "retain" to the rows that the trial head is fitted on, and
    "held_out_forget" and "held_out_retain" to the rows that judge it, if there are any.
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
    trial_rows = sorted({*range(len(rows))} - {*held})
    sets = {
        name: [rows[number] for number in trial_rows if number in kind]
        for name, kind in kinds.items()
    }
    return (
        trial_rows,
        held,
        sets | {f"held_out_{name}": some for name, some in judges.items() if some},
    )


def subset(features: Features, rows: Sequence[int]) -> Features:
    """Return the features of some rows, renumbered from 0 in ascending order."""
    chosen = torch.as_tensor(sorted(rows))
    mask = torch.isin(features.row, chosen)
    row = torch.searchsorted(chosen, features.row[mask])
    return Features(
        features.x[mask], features.y[mask], row, features.s[chosen], device=features.device
    )
