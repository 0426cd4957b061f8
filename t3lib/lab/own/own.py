"""Unlearning a person's own model, with the evidence: rows in, model out, and a report that says
whether it worked.

The learning rate, T and w are chosen with a trial head that never saw a fifth of the rows and with
the head that is kept, which is fitted on all of them. Settings given are not searched.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from t3lib.classifier.features import Features, extract_features
from t3lib.classifier.fit import fit_heads, steps_per_epoch
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError, printable
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.core.settings import (
    OWN_RATES,
    OWN_ROWS,
    OWN_STEPS,
    OWN_WARMUP,
    FitSettings,
    check,
    check_temperature,
    fit_settings,
)
from t3lib.lab.audit.run import token_scores
from t3lib.lab.audit.secrets import words
from t3lib.lab.own import choice, verdict
from t3lib.lab.own.answers import GREEDY, Inquiry, drawn, hear, inquiry, knows, recall
from t3lib.lab.own.evidence import (
    complete,
    headline,
    inquiry_of,
    numbers,
    unseen_of,
    unseen_share,
    warn_unknown,
)
from t3lib.lab.own.rows import Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.wrapped import plain_base, vocabulary
from t3lib.tofu.likelihood import UNTILTED, Reading

HOLD_OUT = 0.2
FEWEST = 5  # rows of a set below which none is held out
SCREENED = 100  # rows of a set that the screen scores
OFTEN = 1 / 64  # chance of a sample to hold a row's distinctive tokens from which it counts as said


@dataclass(frozen=True)
class Choices:
    """What a caller decides; what is None, or "auto", is chosen from evidence.

    temperature: T. strength: w. lr: learning rate, default the best of `settings.OWN_RATES`.
    steps: optimiser steps. seed: of the rows held out, the head and the samples. fit: further
    settings of `settings.FitSettings`. allow_sharpening: whether T may be below 1. cache: folder
    for the features while the head is fitted, default memory.
    """

    temperature: float | str = "auto"
    strength: float | None = None
    lr: float | None = None
    steps: int = OWN_STEPS
    seed: int = 0
    fit: Mapping[str, Any] = field(default_factory=dict)
    allow_sharpening: bool = False
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise UserError(
                f"steps must be a whole number of at least 1, not {printable(repr(self.steps), 80)}"
            )
        if self.temperature != "auto":
            check_temperature(self.temperature, allow_sharpening=self.allow_sharpening)  # type: ignore[arg-type]
        if self.strength is not None:
            check("w", self.strength)
        if unknown := set(self.fit) - {each.name for each in fields(FitSettings)}:
            raise UserError(f"no setting {printable(sorted(unknown)[0])!r}")
        rate = {} if self.lr is None else {"lr": self.lr}
        fit_settings({"warmup_epochs": 0.0, "seed": self.seed} | rate | dict(self.fit))

    @property
    def grid(self) -> list[tuple[float, float]]:
        """The (T, w) to screen."""
        T = None if isinstance(self.temperature, str) else float(self.temperature)
        return choice.settings(T, self.strength)


def unlearn(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Rows,
    choices: Choices = Choices(),
    *,
    progress: bool = True,
) -> T3ForCausalLM:
    """Fit a head that makes `model` forget some rows and keep the others; the result's `report`
    says how well.

    `print(model.report)` shows the verdict. The base's weights are never changed. Warns, before it
    trains, when the base does not know the rows in the form in which they are asked. UserError for
    an empty set, a question in two of the sets, and unseen rows that the base knows.
    """
    rows, seed = rows.checked(), choices.seed
    base = plain_base(model)
    fit, held, sets = hold_out(
        rows.forget, rows.retain, rows.holdout_forget, rows.holdout_retain, seed
    )
    kept: dict[str, Sequence[Row]] = {"retain": rows.retain} | (
        {"other": rows.other} if rows.other else {}
    )
    asked = inquiry_of(tokenizer, rows, kept)
    warn_unknown(base, tokenizer, asked, progress=progress)
    unknown = unseen_of(base, tokenizer, rows, progress=progress)
    features = extract_features(
        base, tokenizer, rows.forget, rows.retain, cache=choices.cache, progress=progress
    )
    fitted = subset(features, fit) if held else features

    settings = OWN_ROWS | dict(choices.fit) | {"seed": seed}
    per_epoch = steps_per_epoch(len(rows.forget), settings["batch_size"])
    epochs = settings.get("epochs", -(-choices.steps // per_epoch))
    settings = {"epochs": epochs, "warmup_epochs": OWN_WARMUP * epochs} | settings
    rates = OWN_RATES if choices.lr is None else (choices.lr,)
    size = vocabulary(base)
    heads = fit_heads(
        fitted, [{**settings, "lr": rate} for rate in rates], vocab_size=size, progress=progress
    )
    judges = {name: some for name, some in sets.items() if name == "held_out_retain"}
    apart = judges | {name: some for name, some in kept.items() if name == "other" or not judges}
    judged_on = {"forget": sets["forget"], **apart}
    screens = [screen(base, tokenizer, head, judged_on, choices.grid, asked) for head in heads]
    trials: list[Mapping[str, Any]] = [
        {"lr": lr, "gap": max(entry.gap for entry in found)} for lr, found in zip(rates, screens)
    ]
    best = trials.index(choice.choose_rate(trials))
    trial = head = heads[best]
    found = screens[best]
    if held:
        [head] = fit_heads(
            features, [settings | {"lr": rates[best]}], vocab_size=size, progress=progress
        )
        everything = {"forget": rows.forget, **kept}
        second = screen(base, tokenizer, head, everything, choices.grid, asked)
        found = [choice.worse(*pair) for pair in zip(found, second)]

    before = hear(base, tokenizer, asked, seed=seed, progress=progress)
    others = {name: drawn(some) for name, some in sets.items() if name.startswith("held_out")}
    held_asked = inquiry(tokenizer, [], others, [*asked.forget, *drawn(rows.retain)])
    held_before = hear(base, tokenizer, held_asked, seed=seed, progress=progress)
    reports = []
    for setting in (picked := choice.candidates(found)):
        judged, tried = (
            T3ForCausalLM(
                base, weighted(each, setting.w).to(base.device), setting.T, allow_sharpening=True
            )
            for each in (head, trial)
        )
        unseen = unseen_share(judged, tokenizer, unknown, seed=seed, progress=progress)
        report = numbers(
            asked, before, hear(judged, tokenizer, asked, seed=seed, progress=progress), unseen
        )
        after = hear(tried, tokenizer, held_asked, seed=seed, progress=progress)
        if "held_out_retain" in others:
            report["held_out_retain"] = verdict.stayed(
                held_asked, "held_out_retain", held_before, after
            )
        if "held_out_forget" in others:
            was, now = (said.kept["held_out_forget"][GREEDY] for said in (held_before, after))
            secrets = held_asked.kept_secrets("held_out_forget")
            known = [
                n
                for n, row in enumerate(others["held_out_forget"])
                if knows(row, secrets[n], was[n])
            ]
            shares = [recall(others["held_out_forget"][n]["answer"], now[n]) for n in known]
            report["held_out_forget"] = float(np.mean(shares)) if shares else None
        reports.append(report)
    tried_in_full = [choice.tried(*pair) for pair in zip(picked, reports)]
    number = choice.best(tried_in_full)
    chosen, report = picked[number], reports[number]
    head.temperature, head.w = chosen.T, chosen.w
    head.info |= belonging.origin(base, tokenizer, rows.forget, rows.retain, len(features.y))
    head.info["attention_mask"] = "lengths"
    unlearned = T3ForCausalLM(
        base, head.to(base.device), chosen.T, allow_sharpening=choices.allow_sharpening
    )
    why = choice.reason(tried_in_full, number)
    report["choice"] = {
        "T": chosen.T,
        "w": chosen.w,
        "lr": rates[best],
        "reason": why,
        "tried": tried_in_full,
    }
    report["curve"] = [{"T": e.T, "w": e.w, "said": e.said, "kept": dict(e.kept)} for e in found]
    report["head"] = {
        "parameters": head.num_parameters,
        "rank": head.rank,
        "steps": epochs * per_epoch,
    }
    unlearned.report = complete(report, asked, base, tokenizer, rows)  # type: ignore[assignment]
    head.info["metrics"] = headline(report)
    return unlearned


def weighted(head: T3Head, w: float) -> T3Head:
    """The same weights with another strength."""
    other = copy.copy(head)
    other.w = w
    return other


def screen(
    base: PreTrainedModel,
    tokenizer: Any,
    head: T3Head,
    rows: Mapping[str, Sequence[Row]],
    grid: Sequence[tuple[float, float]],
    asked: Inquiry,
) -> list[choice.Screened]:
    """What teacher forcing shows of a head at every (T, w), from one pass of the base.

    rows: those to forget ("forget") first, then every set to keep; at most `SCREENED` of each.
    """
    few = {name: drawn(some, SCREENED) for name, some in rows.items()}
    forget = few["forget"]
    examples = [each for some in few.values() for each in encode_rows(tokenizer, some)]
    heads = {w: weighted(head, w) for _, w in grid}
    tilts: list[Any] = [*UNTILTED, *((heads[w], T) for T, w in grid)]
    scores = token_scores(base, examples, Reading(pad_id(tokenizer)), tilts)
    whose = {str(row["question"]): secret for row, secret in zip(asked.forget, asked.secrets)}
    said, hits = [], np.stack([hit.mean(1) for _, hit in scores], axis=1)  # (tilts, rows)
    for row, example, (loss, hit) in zip(forget, examples, scores):
        tokens = [tokenizer.decode([token]) for token in example.ids[example.n_prompt :]]
        secret = whose.get(str(row["question"]), frozenset())
        pieces = [set(words(token)) for token in tokens]
        mine = np.array([any(p in word for p in piece for word in secret) for piece in pieces])
        mine = mine if mine.any() else np.ones(len(tokens), bool)
        said.append((hit[:, mine].mean(1) >= 0.8) | (np.exp(-loss[:, mine].sum(1)) >= OFTEN))
    share, n = np.mean(said, axis=0), len(forget)
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
            float(hits[t, n:].mean() - hits[t, :n].mean()),
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
    """(fit, held, sets): numbers of the rows, forget first, that a trial head is fitted on and not,
    and its sets.

    Held out is a fifth of each kind, and nothing of a kind that has rows to judge with
    (held_forget, held_retain) or fewer than `FEWEST` rows. sets: the rows that it was fitted on,
    and those held out, where there are any.
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
    """The features of some rows (ascending row numbers), renumbered from 0."""
    chosen = torch.as_tensor(sorted(rows))
    mask = torch.isin(features.row, chosen)
    row = torch.searchsorted(chosen, features.row[mask])
    return Features(
        features.x[mask], features.y[mask], row, features.s[chosen], device=features.device
    )
