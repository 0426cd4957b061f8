"""Unlearn rows of a person's own model, and measure whether it worked.

The head is fitted on lessons: the rows, their wordings, and neighbours (`lessons`). A probe head is
fitted first, and what it still says becomes further lessons. A fifth of the rows to keep is never
fitted, so that these rows show what the head does to rows like them.

The pair (T, w) is chosen by other ways of asking than those of the fit, and the verdict asks in
sealed ways as well. What the caller gives is used as it is.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from t3lib.classifier.features import Features, encode_within_context
from t3lib.classifier.fit import fit_head, steps_per_epoch
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import encode_rows, templated
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
from t3lib.own.answers import GENERIC, Inquiry, collect_by_tilt, drawn
from t3lib.own.assess import complete, counts_of, headline, inquiry_of, kept_of, report_nothing
from t3lib.own.known import (
    best_other_format,
    check_unseen,
    is_unknown,
    warn_formats,
    warn_unknown,
    would_say,
)
from t3lib.own.leak import said_beyond_others
from t3lib.own.lessons import Request
from t3lib.own.questions import SEALED_KINDS
from t3lib.own.report import Report
from t3lib.own.rows import Rows
from t3lib.own.verdict import NEVER_FITTED, failing, sums
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import plain_base, vocabulary
from t3lib.tofu.likelihood import UNTILTED, token_scores
from t3lib.tofu.reader import Reading

HOLD_OUT = 0.2
OURS = ("gate", "tail", "untrained")  # settings of a head that the paper does not have
FEWEST = 5  # of fewer rows to keep, none is held out
SHORT = 16  # tokens that an answer may have at least, while T and w are chosen
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
    `print(model.report)` shows the verdict. The weights of `model` are not changed.

    NothingToForget, before anything is trained, if the base does not know the rows to forget as
    they are asked.
    UserError for an empty set of rows, a question that is in two sets, a row longer than the base's
    context, and unseen rows that the base knows.
    """
    request = checked_request(model, tokenizer, rows, choices)
    base, tokenizer, rows = request.base, request.tokenizer, request.rows
    inquiry = inquiry_of(tokenizer, rows)
    check_known(request, inquiry)

    features = training_set(request, choices)
    head = fit_own_head(request, features, choices)
    chosen = choose(request, inquiry, head, choices.grid)
    head.temperature, head.w = chosen["T"], chosen["w"]
    describe(head, request, choices, len(features.y))

    # The verdict is on the head as it is returned, in all ways of asking.
    unlearned = T3ForCausalLM(
        base,
        head.to(base.device),
        head.temperature,
        allow_sharpening=choices.allow_sharpening,
    )
    tilts = [*UNTILTED, (head, head.temperature)]
    before, after = collect_by_tilt(base, tokenizer, inquiry, tilts, seed=request.seed)
    report = counts_of(inquiry, before, after)
    report["choice"] = chosen
    unlearned.report = complete(report, inquiry, unlearned, tokenizer, rows)
    head.info["metrics"] = headline(report)
    return unlearned


def checked_request(model: Any, tokenizer: Any, rows: Rows, choices: Choices) -> Request:
    """Check the rows, hold some out, and return what is asked for. A row that is too long is
    refused at once.
    """
    rows = rows.checked()
    base, tokenizer = plain_base(model), templated(tokenizer, choices.template)
    for name, some in (("forget", rows.forget), ("retain", rows.retain)):
        encode_within_context(base, tokenizer, some, name)
    warn_formats(rows)
    return Request(base, tokenizer, hold_out(rows, choices.seed), choices.seed)


def hold_out(rows: Rows, seed: int) -> Rows:
    """Return the same rows with a fifth of the rows to keep in `holdout_retain`, drawn at random.
    None is drawn if rows were given there, or from fewer than `FEWEST`.
    """
    n = len(rows.retain)
    if rows.holdout_retain or n < FEWEST:
        return rows
    held = {*np.random.default_rng(seed).choice(n, round(HOLD_OUT * n), replace=False).tolist()}
    return replace(
        rows,
        retain=[row for number, row in enumerate(rows.retain) if number not in held],
        holdout_retain=[rows.retain[number] for number in sorted(held)],
    )


def check_known(request: Request, inquiry: Inquiry) -> None:
    """Stop if the base does not know the rows to forget as they are asked (NothingToForget), or if
    it knows the unseen rows (UserError). A warning says in which other format it knows them.
    """
    base, tokenizer, rows = request.base, request.tokenizer, request.rows
    check_unseen(base, tokenizer, rows)
    warn_unknown(base, tokenizer, inquiry)
    if is_unknown(base, tokenizer, inquiry):
        report = report_nothing(base, tokenizer, inquiry)
        if hint := best_other_format(base, tokenizer, inquiry):
            warnings.warn(f"the base knows the rows in another form: {hint}", stacklevel=3)
        raise NothingToForget(complete(report, inquiry, base, tokenizer, rows))


def training_set(request: Request, choices: Choices) -> Features:
    """Return the features that the head is fitted on."""
    made = lessons.make_lessons(request)
    features = lessons.extract_material(request, made)

    # A probe head shows what is still said of the secrets. A kind needs one row to keep as well.
    probe = fit_own_head(request, features, choices)
    if more := lessons.mined(request, probe, made):
        features = lessons.joined(features, lessons.extract_material(request, [*more, made[-1]]))
    return features


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
    request: Request, inquiry: Inquiry, head: T3Head, grid: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Choose a pair (T, w) for a head: {"T", "w", "lr", "reason", "tried"}.

    grid: the pairs to screen. At most three of them are asked, in the ways that are not sealed, and
    the best is taken (`choice.best`). tried: what came out for each of these.
    """
    picked = choice.candidates(screen(request, head, grid, inquiry))
    questions = [
        each for each in inquiry.questions if each.row < inquiry.n and each.kind not in SEALED_KINDS
    ]
    few = replace(inquiry, questions=questions)
    tilts = [*UNTILTED, *((weighted(head, each.w), each.T) for each in picked)]
    before, *answers = collect_by_tilt(
        request.base, request.tokenizer, few, tilts, seed=request.seed, least=SHORT
    )
    tried = []
    for pair, after in zip(picked, answers):
        kept = kept_of(few, before, after)
        every = sums(kept, ["retain", *NEVER_FITTED])
        tried.append(
            {
                "T": pair.T,
                "w": pair.w,
                "said": said_beyond_others(few, after.texts),
                "texts": len(after.texts),
                "failing": len(failing(kept)),
                "changed": every["known_before"] - every["unchanged"],
                "known": every["known_before"],
            }
        )
    chosen = tried[choice.best(tried)]
    return {
        "T": chosen["T"],
        "w": chosen["w"],
        "gate": head.gate,
        "tail": head.tail,
        "lr": head.info["hyperparameters"]["lr"],
        "reason": choice.REASON,
        "tried": tried,
    }


def weighted(head: T3Head, w: float) -> T3Head:
    """Return a copy of a head that shares its weights and has another strength w."""
    other = copy.copy(head)
    other.w = w
    return other


def screen(
    request: Request, head: T3Head, grid: Sequence[tuple[float, float]], inquiry: Inquiry
) -> list[choice.Screened]:
    """Score a head by teacher forcing at every (T, w), with one pass of the base.

    grid: the pairs (T, w). The result has one entry for each.
    inquiry: the inquiry about the rows. At most `SCREENED` rows of each set are used.
    """
    forget = drawn(inquiry.forget, SCREENED)
    sets = {name: inquiry.of(name) for name in inquiry.kept if name != GENERIC}
    few = {"forget": forget} | {name: drawn(some, SCREENED) for name, some in sets.items()}
    examples = [each for some in few.values() for each in encode_rows(request.tokenizer, some)]
    heads = {w: weighted(head, w) for _, w in grid}
    tilts: list[Any] = [*UNTILTED, *((heads[w], T) for T, w in grid)]
    scores = token_scores(request.base, examples, Reading(pad_id(request.tokenizer)), tilts)

    # Of the rows to forget, the share that is still said; of those to keep, how many are whole, of
    # those that the base reproduces whole.
    share = would_say(request.tokenizer, inquiry, forget, scores).mean(1)
    whole = np.stack([hit.all(1) for _, hit in scores], axis=1)
    starts = np.cumsum([*map(len, few.values())])
    parts = {name: slice(a, b) for name, a, b in zip([*few][1:], starts, starts[1:])}
    kept = [
        {name: (int((each & whole[0])[part].sum()), int(whole[0, part].sum()))
         for name, part in parts.items()}
        for each in whole
    ]  # fmt: skip
    return [choice.Screened(T, w, float(share[t]), kept[t]) for t, (T, w) in enumerate(grid, 1)]
