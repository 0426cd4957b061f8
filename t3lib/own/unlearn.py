"""Unlearn rows of a person's own model, and measure whether it worked.

The head is fitted on lessons: the rows, their wordings, and neighbours (`lessons`). A fifth of the
rows to keep is never fitted, so that these rows show what the head does to rows like them.

The strength w is chosen by other ways of asking than those of the fit, and the verdict asks in
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
from t3lib.core.models import one_thread
from t3lib.core.progress import begin_stage, stages
from t3lib.core.rows import templated
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
    Answers,
    Inquiry,
    about_compared,
    collect_answers,
    collect_by_tilt,
)
from t3lib.own.assess import headline, inquiry_of, kept_of, report_nothing, report_on
from t3lib.own.known import (
    best_other_format,
    check_unseen,
    is_unknown,
    warn_formats,
    warn_unheard,
    warn_unknown,
)
from t3lib.own.leak import said_beyond_others
from t3lib.own.lessons import Request
from t3lib.own.questions import SEALED_KINDS, reworded
from t3lib.own.report import Report
from t3lib.own.rows import SETS, Rows, keys_of
from t3lib.own.verdict import FEWEST, NEVER_FITTED, failing, sums
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import plain_base, vocabulary

HOLD_OUT = 0.2
OF_HEAD = ("temperature", "gate", "tail", "untrained")  # settings that need no fit
# Stages of a run with their shares of the time, estimated for ten rows and SmolLM2 on a CPU.
STAGES = {
    "lessons": 0.12,
    "their features": 0.12,
    "the head": 0.01,
    "the choice of w": 0.11,
    "the verdict": 0.64,
}
SHORT = 16  # tokens that an answer may have at least, while w is chosen


@dataclass(frozen=True)
class Choices:
    """Settings of the caller.

    temperature: T. strength: w; None chooses one of `choice.STRENGTHS` from the evidence.
    steps: optimiser steps; None is `settings.OWN_STEPS`.
    untrained, gate, tail: see `T3Head`.
    template: arguments of the chat template, such as {"enable_thinking": False}. The head keeps
    them, and whoever asks with the head uses them.
    seed: decides which rows are held out, the start of the head, and the samples.
    fit: further settings, such as the learning rate lr, named as in `settings.FitSettings`.
    """

    temperature: float = 1.0
    strength: float | None = None
    steps: int | None = None
    untrained: str = "neutral"
    gate: float = 1.0
    tail: float = 0.0
    template: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    fit: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := {*self.fit} & {"seed", "w"}:
            name = min(taken)
            mine = "strength" if name == "w" else name
            raise UserError(f"fit: {name} is a choice of its own: Choices({mine}=…)")
        if self.steps is not None and "epochs" in self.fit:
            raise UserError("fit: epochs and steps both say how long to fit: give one of them")
        found: dict[str, Any] = {name: check(name, getattr(self, name)) for name in OF_HEAD}
        found["temperature"] = check_temperature(self.temperature)
        for name, symbol in {"strength": "w", "steps": "steps"}.items():
            if (value := getattr(self, name)) is not None:
                found[name] = check(symbol, value)

        # Numbers of other libraries become Python's. Without warmup any number of epochs is right.
        fit = asdict(fit_settings({"warmup_epochs": 0.0, "seed": self.seed} | dict(self.fit)))
        found |= {"seed": fit["seed"], "fit": {name: fit[name] for name in self.fit}}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def fit_settings_for(self, n_forget: int) -> FitSettings:
        """Return the settings of `fit_head`. n_forget: rows of class 0, which are one epoch."""
        batch_size = self.fit.get("batch_size", OWN_FIT.batch_size)
        steps = self.steps or OWN_STEPS
        epochs = self.fit.get("epochs", -(-steps // steps_per_epoch(n_forget, batch_size)))
        length = {"epochs": epochs, "warmup_epochs": OWN_WARMUP * epochs}
        return replace(OWN_FIT, seed=self.seed, **length | dict(self.fit))


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
    with stages(STAGES), one_thread(request.base):
        inquiry = inquiry_of(request.tokenizer, request.rows)
        check_known(request, inquiry)
        unlearned, chosen = without_verdict(request, inquiry, choices)

        # The verdict is on the head as it is returned, in all ways of asking.
        begin_stage("the verdict")
        judged = (unlearned, request.tokenizer, request.rows, inquiry)
        unlearned.report = report_on(*judged, seed=request.seed, choice=chosen)
    unlearned.heads[0].info["metrics"] = headline(unlearned.report)
    return unlearned


def without_verdict(
    request: Request, inquiry: Inquiry, choices: Choices
) -> tuple[T3ForCausalLM, dict[str, Any]]:
    """Fit a head, choose its w, and return the unlearned model and the choice.

    The choice: {"T", "w", "gate", "tail", "lr", "tried"}, the last as of `tried_out`, or [] where
    there was one strength to choose from.
    """
    begin_stage("lessons")
    made = lessons.make_lessons(request)
    begin_stage("their features")
    features = lessons.extract_material(request, made)
    begin_stage("the head")
    head = fit_own_head(request, features, choices)
    begin_stage("the choice of w")
    strengths = choice.STRENGTHS if choices.strength is None else (choices.strength,)
    tried = tried_out(request, inquiry, head, strengths) if len(strengths) > 1 else []
    head.w = tried[0]["w"] if tried else strengths[0]
    chosen = {"T": head.temperature, "w": head.w, "gate": head.gate, "tail": head.tail}
    chosen |= {"lr": head.info["hyperparameters"]["lr"], "tried": tried}
    return T3ForCausalLM(request.base, head.to(request.base.device)), chosen


def checked_request(model: Any, tokenizer: Any, rows: Rows, choices: Choices) -> Request:
    """Check the rows, hold some out, and return what is asked for. A row or wording that is too
    long is refused at once.
    """
    rows = rows.checked()
    base, tokenizer = plain_base(model), templated(tokenizer, choices.template)
    for name in SETS:
        encode_within_context(base, tokenizer, getattr(rows, name), name)
    for number, row in enumerate(rows.forget, 1):
        for text in row.get("wordings", ()):
            some = f"forget row {number}, a wording:"
            encode_within_context(base, tokenizer, [reworded(row, text)], some)
    warn_formats(rows)
    rows = hold_out(rows, choices.seed)
    if not (rows.held_out_retain or rows.other):
        warnings.warn(
            f"no row to keep is left out of the fit, so the verdict cannot be a pass: give {FEWEST}"
            " or more (--retain), or some that no head is fitted on (--other)",
            stacklevel=3,
        )
    return Request(base, tokenizer, rows, choices.seed)


def hold_out(rows: Rows, seed: int) -> Rows:
    """Return the same rows with those of a fifth of the questions to keep in `held_out_retain`,
    drawn at random. None is drawn if rows were given there, or from fewer than `FEWEST` questions.
    """
    asked = [keys_of(row)[1] for row in rows.retain]
    n = len(questions := [*dict.fromkeys(asked)])
    if rows.held_out_retain or n < FEWEST:
        return rows
    drawn = np.random.default_rng(seed).choice(n, round(HOLD_OUT * n), replace=False)
    held = {questions[number] for number in drawn}
    fitted, left = (
        [row for row, text in zip(rows.retain, asked) if (text in held) == out]
        for out in (False, True)
    )
    return replace(rows, retain=fitted, held_out_retain=left)


def check_known(request: Request, inquiry: Inquiry) -> None:
    """Stop if the base does not know the rows to forget as they are asked (NothingToForget), or if
    it knows the unseen rows (UserError). A warning says in which other format it knows them.
    """
    base, tokenizer, rows = request.base, request.tokenizer, request.rows
    check_unseen(base, tokenizer, inquiry)
    warn_unknown(base, tokenizer, inquiry)
    warn_unheard(inquiry)
    if is_unknown(base, tokenizer, inquiry):
        report = report_nothing(base, tokenizer, rows, inquiry)
        if hint := best_other_format(base, tokenizer, inquiry):
            warnings.warn(f"the base knows the rows in another form: {hint}", stacklevel=3)
        raise NothingToForget(report)


def fit_own_head(request: Request, features: Features, choices: Choices) -> T3Head:
    """Fit a head, and note on it what the sampler needs to know, what it was fitted on, and the
    prompt format in which it is asked.
    """
    V = vocabulary(request.base)
    settings = choices.fit_settings_for(int((features.s == 0).sum()))
    with one_thread():
        head = fit_head(features, vocab_size=V, **asdict(settings))
    for name in OF_HEAD:
        setattr(head, name, getattr(choices, name))
    head.taught = lessons.secret_tokens(features, V)
    head.has_token = belonging.tokens_known(request.tokenizer, V)

    rows, base = request.rows, (request.base, request.tokenizer)
    head.info |= belonging.origin(*base, rows.forget, rows.retain, len(features.y))
    head.info["attention_mask"] = "lengths"
    if choices.template:
        head.info["template"] = dict(choices.template)
    return head


# ---- the choice of w ----------------------------------------------------------------------------


def tried_out(
    request: Request, inquiry: Inquiry, head: T3Head, strengths: Sequence[float]
) -> list[dict[str, Any]]:
    """Ask a head at all strengths w, in the ways that are not sealed, and return the counts of the
    best few, the best first.

    All strengths answer greedily. The best few are sampled too, one after another, and ranked anew
    (`choice.ranked`). That ends with a strength that says nothing and fails nowhere, because
    samples make no other one better than it.
    """
    few = for_choice(inquiry)
    asked, seed = (request.base, request.tokenizer), request.seed
    tilts = {w: (weighted(head, w), head.temperature) for w in strengths}

    # What the base says of the rows to forget decides nothing here.
    before = collect_answers(*asked, replace(few, questions=[]), seed=seed)
    greedily = collect_by_tilt(*asked, few, [*tilts.values()], only=lambda each: not each.tau)
    answers = dict(zip(tilts, greedily))

    def counts(w: float) -> dict[str, Any]:
        return {"w": w} | choice_counts(few, before, answers[w])

    tried = list[dict[str, Any]]()
    for w in [each["w"] for each in choice.ranked([*map(counts, strengths)])][: choice.SAMPLED]:
        [more] = collect_by_tilt(*asked, few, [tilts[w]], seed=seed, only=lambda s: s.tau > 0)
        answers[w].extend(more)
        tried.append(counts(w))
        if not tried[-1]["said"] and not tried[-1]["failing"]:
            break
    return choice.ranked(tried)


def for_choice(inquiry: Inquiry) -> Inquiry:
    """Return the part of an inquiry by which w is chosen: questions about rows to forget, in ways
    that are not sealed. Answers are read to `SHORT` tokens, or to twice the truth's.
    """
    ways = [
        each for each in inquiry.questions if each.row < inquiry.n and each.kind not in SEALED_KINDS
    ]
    return replace(inquiry, questions=ways, least=SHORT)


def choice_counts(inquiry: Inquiry, before: Answers, after: Answers) -> dict[str, Any]:
    """Return the counts that `choice.ranked` compares, with the numbers of texts and of answers to
    keep that the base knows.

    inquiry: of `for_choice`. before, after: answers of the base and of what is tried.
    """
    kept, texts = kept_of(inquiry, before, after), about_compared(after)
    every = sums(kept, ["retain", *NEVER_FITTED])
    return {
        "said": said_beyond_others(inquiry, texts),
        "texts": len(texts),
        "failing": len(failing(kept)),
        "changed": every["known_before"] - every["unchanged"],
        "known": every["known_before"],
    }


def weighted(head: T3Head, w: float) -> T3Head:
    """Return a copy of a head that shares its weights and has another strength w."""
    other = copy.copy(head)
    other.w = w
    return other
