"""Unlearning a person's own model, with the evidence: rows in, model out, and a report that says whether it worked.

The learning rate, T and w are chosen with a trial head that never saw a fifth of the rows; the head that is kept is
then fitted on all of them. Every number of the report belongs to one of the two. Settings given are not searched.
"""

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from t3lib import belonging
from t3lib.audit import choice
from t3lib.audit.answers import drawn, measure
from t3lib.audit.evidence import assess, headline
from t3lib.audit.membership import distance
from t3lib.audit.rows import checked_sets
from t3lib.audit.run import token_scores
from t3lib.audit.separation import separation, subset
from t3lib.classifier import fit_heads, steps_per_epoch
from t3lib.errors import UserError, printable
from t3lib.features import Features, extract_features
from t3lib.head import T3Head
from t3lib.likelihood import UNTILTED, answer_losses
from t3lib.models import pad_id
from t3lib.sampler import T3ForCausalLM
from t3lib.settings import OWN_RATES, OWN_ROWS, OWN_STEPS, OWN_WARMUP, FitSettings, check_temperature, fit_settings
from t3lib.tofu import Row, encode_rows
from t3lib.wrapped import plain_base, vocabulary

HOLD_OUT = 0.2
FEWEST = 5  # rows of a set below which none is held out


def unlearn(
    model: PreTrainedModel,
    tokenizer: Any,
    forget: Sequence[Row],
    retain: Sequence[Row],
    *,
    temperature: float | str = "auto",
    lr: float | None = None,
    steps: int = OWN_STEPS,
    seed: int = 0,
    holdout_forget: Sequence[Row] = (),
    holdout_retain: Sequence[Row] = (),
    other: Sequence[Row] = (),
    unseen: Sequence[Row] = (),
    attention_mask: str = "lengths",
    allow_sharpening: bool = False,
    cache: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> T3ForCausalLM:
    """Fit a head that makes `model` forget some rows and keep the others; the result's `report` says how well.

    forget, retain: rows with question and answer. temperature: T, or "auto" to choose T and w from evidence (see
    `choice`). lr: default the best of `settings.OWN_RATES`. steps: optimiser steps. holdout_forget, holdout_retain:
    rows to judge with, instead of a fifth of the given ones. other: rows that must not change. unseen: rows like the
    forgotten ones that the model never saw; with them T is where forgotten rows are as likely as unseen ones. Further
    settings are those of `settings.FitSettings`. The base's weights are never changed.

    Warns, before it trains, when the model does not know the rows to forget. UserError for an empty set, a question
    in two of the sets, a setting out of range.
    """
    asked = {"steps": steps, "temperature": temperature, "allow_sharpening": allow_sharpening, "seed": seed}
    check_settings(asked | settings | ({} if lr is None else {"lr": lr}))
    wanted = None if isinstance(temperature, str) else float(temperature)
    forget, retain, holdout_forget, holdout_retain, other, unseen = checked_sets({
        "forget": forget, "retain": retain, "holdout_forget": holdout_forget, "holdout_retain": holdout_retain,
        "other": other, "unseen": unseen,
    }).values()  # fmt: skip
    base, ended = plain_base(model), {"": time.perf_counter()}  # when each part ended
    common: dict[str, Any] = {"attention_mask": attention_mask, "progress": progress}
    fit, held, sets = hold_out(forget, retain, holdout_forget, holdout_retain, seed)
    [(known, _)] = measure(base, tokenizer, {"forget": drawn(forget)}, **common)
    if not choice.knows(known["forget"]):
        warnings.warn(f"{choice.nothing_to_forget(known['forget'])} Try: {choice.OTHER_FORM}.", stacklevel=2)
    ended["before"] = time.perf_counter()
    features = extract_features(base, tokenizer, forget, retain, cache=cache, **common)
    fitted, unfitted = subset(features, fit) if held else features, None
    if "held_out_forget" in sets and "held_out_retain" in sets:
        files = (sets["held_out_forget"], sets["held_out_retain"]) if holdout_forget or holdout_retain else ()
        unfitted = extract_features(base, tokenizer, *files, **common) if files else subset(features, held)
    ended["features"] = time.perf_counter()

    settings = OWN_ROWS | settings | {"seed": seed}
    per_epoch = steps_per_epoch(len(forget), settings["batch_size"])
    epochs = settings.get("epochs", -(-steps // per_epoch))
    settings = {"epochs": epochs, "warmup_epochs": OWN_WARMUP * epochs} | settings
    rates = OWN_RATES if lr is None else (lr,)
    apart = {"other": drawn(other)} if other else {}
    counts = {name: len(some) for name, some in sets.items() if name.startswith("held_out")} | {"unseen": len(unseen)}
    sets = {name: drawn(some) for name, some in sets.items()} | apart
    whole = {"forget": drawn(forget), "retain": drawn(retain)} | apart
    trials, heads = search(base, tokenizer, fitted, sets, settings, rates, **common)
    best = choice.choose_rate(trials)
    trial = heads[[entry["lr"] for entry in trials].index(best["lr"])]
    ended["search"] = time.perf_counter()
    head = trial
    if held:
        [head] = fit_heads(features, [settings | {"lr": best["lr"]}], vocab_size=vocabulary(base), progress=progress)
    ended["fit"] = time.perf_counter()

    evidence = choose(base, tokenizer, (trial, sets), (head, whole), drawn(unseen), wanted, **common)
    head.temperature, head.w = evidence["T"], evidence["w"]
    ended["choice"] = time.perf_counter()
    head.info |= belonging.origin(base, tokenizer, forget, retain, len(features.y))
    unlearned = T3ForCausalLM(base, head.to(base.device), head.temperature, allow_sharpening=allow_sharpening)
    report = assess(unlearned, tokenizer, forget, retain, other=other, seed=seed, **common)
    ended["report"] = time.perf_counter()
    report["choice"] = {name: evidence[name] for name in ("T", "w", "reason", "division")}
    report["search"] = {"trials": trials, "lr": best["lr"], "steps": epochs * per_epoch}
    report["separation"] = {"fitted": separation(head, features), "held_out": unfitted and separation(trial, unfitted)}
    report["trial"] = {name: evidence[name] for name in ("before", "at", "curve")}
    report["rows"] |= counts
    report["verdict"] = choice.verdict(report["after"], report["before"], evidence["at"], evidence["before"])
    report["head"] = {"parameters": head.num_parameters, "bytes": 4 * head.num_parameters, "rank": head.rank}
    report["seconds"] = dict(zip(list(ended)[1:], np.diff(list(ended.values())).tolist()))
    head.info["metrics"] = headline(report)
    unlearned.report = report  # type: ignore[assignment]
    return unlearned


Judged = tuple[T3Head, Mapping[str, Sequence[Row]]]  # a head and the rows it is judged on


def choose(
    base: PreTrainedModel, tokenizer: Any, trial: Judged, kept: Judged, unseen: Sequence[Row], wanted: float | None,
    *, attention_mask: str, progress: bool,
) -> dict[str, Any]:  # fmt: skip
    """T and w at which both the trial head and the head that is kept forget and keep, with what decided.

    {T, w, reason, division, before, curve, at}: before and curve are the trial head's, `at` its entry at the choice.
    wanted: a T that is given, which is then only measured.
    """
    w = trial[0].w
    products = tuple(sorted({*choice.PRODUCTS, *([wanted * w] if wanted else [])}))
    options: dict[str, Any] = {"attention_mask": attention_mask, "progress": progress}

    def measured(head: T3Head, sets: Mapping[str, Sequence[Row]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        tilts: list[Any] = [UNTILTED[0], *((head, product / w) for product in products)]
        before, *curve = (scores for scores, _ in measure(base, tokenizer, sets, tilts, **options))
        return before, [entry | {"product": product, "T": product / w} for product, entry in zip(products, curve)]

    before, curve = measured(*trial)
    T, reason, division = wanted or 1.0, "given", []
    if wanted is None:
        both = curve if trial[0] is kept[0] else [choice.worse(*pair) for pair in zip(curve, measured(*kept)[1])]
        product, reason = choice.choose_product(both, before)
        T = product / w
        if unseen:
            division = divide(base, tokenizer, kept[0], kept[1]["forget"], unseen, product, attention_mask)
            chosen = choice.choose_temperature(division)
            T, w = chosen["T"], chosen["w"]
            reason += f"; T divides it where forget rows are as likely as unseen ones (D = {chosen['D']:.2f})"
    at = next(entry for entry in curve if np.isclose(entry["product"], T * w))
    return {"T": T, "w": w, "reason": reason, "division": division, "before": before, "curve": curve, "at": at}


def divide(
    base: PreTrainedModel, tokenizer: Any, head: T3Head, forget: Sequence[Row], unseen: Sequence[Row], product: float,
    attention_mask: str,
) -> list[dict[str, float]]:  # fmt: skip
    """Two-sample KS distance D of forget rows' losses under p^(1/T) f^(product/T) to unseen rows' under the base."""
    common: dict[str, Any] = {"pad_id": pad_id(tokenizer), "attention_mask": attention_mask, "progress": False}
    [fresh] = answer_losses(base, encode_rows(tokenizer, unseen), **common)
    tilts = []
    for T in choice.PRODUCTS:
        weighted = copy.copy(head)
        weighted.w = product / T
        tilts.append((weighted, T))
    losses = answer_losses(base, encode_rows(tokenizer, forget), tilts=tilts, **common)
    sizes = {"n": len(forget), "n_unseen": len(unseen)}
    return [{"T": T, "w": head.w, "D": distance(loss, fresh)} | sizes for (head, T), loss in zip(tilts, losses)]


def search(
    base: PreTrainedModel, tokenizer: Any, fitted: Features, sets: Mapping[str, Sequence[Row]],
    settings: Mapping[str, Any], rates: Sequence[float], *, attention_mask: str, progress: bool,
) -> tuple[list[dict[str, Any]], list[T3Head]]:  # fmt: skip
    """One trial head per learning rate, fitted together, and what `choice.choose_rate` looks at; no text is written."""
    wanted = [{**settings, "lr": rate} for rate in rates]
    heads = fit_heads(fitted, wanted, vocab_size=vocabulary(base), progress=progress)
    if len(rates) == 1:
        return [{"lr": rates[0], "separation": None}], heads
    kept = sets.get("held_out_retain", sets["retain"])
    examples = encode_rows(tokenizer, [*sets["forget"], *kept])
    tilts = [(head, product / head.w) for head in heads for product in choice.PRODUCTS]
    scores = token_scores(base, examples, tilts, pad_id=pad_id(tokenizer), attention_mask=attention_mask)
    shares = np.stack([hits.mean(1) for _, hits in scores], axis=1)  # (tilts, rows)
    first = len(sets["forget"])
    gap = (shares[:, first:].mean(1) - shares[:, :first].mean(1)).reshape(len(heads), -1)
    return [{"lr": rate, "separation": float(best)} for rate, best in zip(rates, gap.max(1))], heads


def hold_out(
    forget: Sequence[Row], retain: Sequence[Row], held_forget: Sequence[Row], held_retain: Sequence[Row], seed: int
) -> tuple[list[int], list[int], dict[str, list[Row]]]:
    """(fit, held, sets): numbers of the rows, forget first, that a trial head is fitted on and not, and its sets.

    Held out is a fifth of each kind, and nothing of a kind that has rows to judge with (held_forget, held_retain) or
    fewer than `FEWEST` rows. sets: the rows that it was fitted on, and those held out, where there are any.
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
    sets = {name: [rows[number] for number in fit if number in kind] for name, kind in kinds.items()}
    return fit, held, sets | {f"held_out_{name}": some for name, some in judges.items() if some}


def check_settings(settings: Mapping[str, Any]) -> None:
    """UserError for settings of `unlearn` that no head could be fitted with: checked before a model is loaded."""
    steps = settings.get("steps", 1)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UserError(f"steps must be a whole number of at least 1, not {printable(repr(steps), 80)}")
    if settings.get("temperature", "auto") != "auto":
        check_temperature(settings["temperature"], allow_sharpening=settings.get("allow_sharpening", False))
    known = {field.name for field in fields(FitSettings)}
    fit_settings({"warmup_epochs": 0.0} | {name: value for name, value in settings.items() if name in known})
