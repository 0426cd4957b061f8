"""Judge a model: ask it and its base the same questions, count, and write the verdict."""

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from t3lib.core.errors import UserError
from t3lib.core.models import one_thread, precision_of
from t3lib.own import answers, verdict
from t3lib.own.answers import (
    GENERIC,
    Answers,
    Inquiry,
    about_compared,
    build_inquiry,
    collect_answers,
    collect_by_tilt,
    drawn,
    format_of_head,
)
from t3lib.own.kept import stayed
from t3lib.own.known import check_unseen, is_unknown, unheard
from t3lib.own.leak import forgotten
from t3lib.own.questions import AS_WRITTEN, PromptFormat
from t3lib.own.report import Report, judged_as
from t3lib.own.rows import SETS, Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.likelihood import UNTILTED


def assess(model: Any, tokenizer: Any, rows: Rows, *, seed: int = 0) -> Report:
    """Measure what a model still says about rows to forget and rows to keep, and compare it with
    its base.

    model: a T3ForCausalLM with one or several heads. Its base is the model before unlearning. Any
    other causal LM is judged alone.
    rows: `held_out_retain` are rows to keep that no head was fitted on.
    seed: seed of the sampled answers.

    UserError inside a block of `tilt`, where the model is its own base.
    """
    rows = rows.checked()
    if "_tilted_by" in vars(model):
        raise UserError("inside tilt(...) there is no base to compare with: give a T3ForCausalLM")
    tilted = isinstance(model, T3ForCausalLM)
    base, head_format = model.base if tilted else model, None
    if tilted:
        tokenizer = belonging.in_template_of(model.heads[0], tokenizer)
        head_format = format_of_head(model.heads[0])
    for head in model.heads if tilted else ():
        belonging.check_prompt(head, tokenizer, [*rows.forget, *rows.retain])

    with one_thread(base):
        inquiry = inquiry_of(tokenizer, rows, head_format)
        if tilted and is_unknown(base, tokenizer, inquiry):
            return report_nothing(model, tokenizer, rows, inquiry)
        check_unseen(base, tokenizer, inquiry)
        return report_on(model, tokenizer, rows, inquiry, seed=seed)


def report_on(
    model: Any, tokenizer: Any, rows: Rows, inquiry: Inquiry, *, seed: int, **more: Any
) -> Report:
    """Judge a model by an inquiry about some rows. more: further entries of the report."""
    report = counts_of(inquiry, *before_and_after(model, tokenizer, inquiry, seed=seed))
    report.update(more)
    return complete(report, inquiry, model, tokenizer, rows)


def before_and_after(
    model: Any, tokenizer: Any, inquiry: Inquiry, **options: Any
) -> tuple[Answers, Answers]:
    """Return the answers of a model's base and its own; a model without a head is its own base.

    options: as of `answers.collect_by_tilt`.
    """
    if not isinstance(model, T3ForCausalLM):
        of_model = collect_answers(model, tokenizer, inquiry, **options)
        return of_model, of_model

    # One head as it is shares the base's passes.
    head, *more = model.heads
    if not more and (head.gate, head.tail) == (model.gate, model.tail):
        tilts = [*UNTILTED, (head, model.temperature)]
        before, after = collect_by_tilt(model.base, tokenizer, inquiry, tilts, **options)
        return before, after

    before = collect_answers(model.base, tokenizer, inquiry, **options)
    return before, collect_answers(model, tokenizer, inquiry, **options)


def report_nothing(model: Any, tokenizer: Any, rows: Rows, inquiry: Inquiry) -> Report:
    """Ask each question once and report "nothing to forget": the base does not know the rows.

    Other ways of asking and samples are left out, because there is nothing that a model could
    forget.
    """
    once = [each for each in inquiry.questions if each.kind == AS_WRITTEN]
    kept = {name: rows for name, rows in inquiry.kept.items() if name != GENERIC}
    few = replace(inquiry, questions=once, kept=kept)
    report = counts_of(
        few, *before_and_after(model, tokenizer, few, only=lambda each: not each.tau)
    )
    return complete(report, inquiry, model, tokenizer, rows, unknown=True)


def inquiry_of(tokenizer: Any, rows: Rows, head_format: PromptFormat | None = None) -> Inquiry:
    """Prepare the `inquiry` about some rows of each set, drawn at random where there are many.

    head_format: the prompt format in which a head is asked, by default that of most rows.
    """
    sets = {"retain": rows.retain, "other": rows.other, "held_out_retain": rows.held_out_retain}
    kept = {name: drawn(some, answers.MOST_KEPT) for name, some in sets.items() if some}
    forget, unseen = (
        drawn(rows.forget, answers.MOST_FORGET),
        drawn(rows.unseen, answers.CONTROL_ROWS[1]),
    )
    return build_inquiry(tokenizer, forget, kept, unseen, head_format)


def counts_of(inquiry: Inquiry, before: Answers, after: Answers) -> Report:
    """Count the results of every set, without a verdict.

    before, after: answers of the base and of the model. The report keeps those about the rows to
    forget and the control rows.
    """
    of_base, of_model = about_compared(before), about_compared(after)
    forget = forgotten(inquiry, of_base, of_model)
    report = Report({"forget": forget} | kept_of(inquiry, before, after))
    report.texts, report.given = {"base": of_base, "model": of_model}, inquiry.given
    return report


def kept_of(inquiry: Inquiry, before: Answers, after: Answers) -> dict[str, Any]:
    """Count what is kept of every set: {name: the counts of `stayed`}."""
    return {name: stayed(inquiry, name, before, after) for name in inquiry.kept}


def complete(
    report: Report, inquiry: Inquiry, model: Any, tokenizer: Any, rows: Rows, unknown: bool = False
) -> Report:
    """Add the verdict and the provenance to a report, and return it.

    model: what was judged. A report on heads says which, so that it is not taken for another's.
    unknown: True if the base does not know the rows.
    """
    base = model
    if isinstance(model, T3ForCausalLM):
        base = model.base
        report["judged"] = judged_as(model.heads, model)

    report["verdict"] = verdict.verdict(report, unknown=unknown)
    report["unheard"] = unheard(inquiry)
    # Of large sets only some rows were asked.
    counts = {"forget": inquiry.n} | {name: len(some) for name, some in inquiry.kept.items()}
    few = [
        f"{counts[name]} of {len(some)} rows ({name})"
        for name in SETS
        if name in counts and counts[name] < len(some := getattr(rows, name))
    ]
    if few:
        place = 2 if report["verdict"]["next"] else 1  # after the advice
        report["verdict"]["lines"].insert(place, f"asked: {', '.join(few)}, drawn at random")

    report["form"] = belonging.prompt_form(tokenizer, [*rows.forget, *rows.retain])
    report["coverage"] = {
        "ways": report["forget"]["ways"],
        "texts": 0 if unknown else answers.TEXTS,  # of each kind of asking
        "tokens": answers.TOKENS,
        "rows": counts,
    }
    report["base"] = belonging.base_identity(base)
    report["precision"] = precision_of(base)
    report["date"] = datetime.date.today().isoformat()
    return report


def headline(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines of the verdict as {name: text}, for the model card of the head."""
    lines = [line.partition(": ") for line in report["verdict"]["lines"][1:] if ": " in line]
    return {"verdict": report["verdict"]["sentence"]} | {name: text for name, _, text in lines}
