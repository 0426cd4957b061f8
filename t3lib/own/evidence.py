"""Evidence for a report: the model with its head and the base are asked the same questions."""

import datetime
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from t3lib.classifier.artefact import Report
from t3lib.core.errors import UserError
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.own import answers, asking, verdict
from t3lib.own.answers import Inquiry, Said, drawn, hear, inquiry, knows, knows_some
from t3lib.own.audit.run import token_scores
from t3lib.own.composing import composed_rouge
from t3lib.own.rows import Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.likelihood import Reading

FEW = 30  # rows of a set that the base is asked about before any training
Sets = Mapping[str, Sequence[Row]]


def assess(
    model: Any, tokenizer: Any, rows: Rows, *, seed: int = 0, progress: bool = True
) -> Report:
    """Measure what a model still says about rows to forget and rows to keep, and compare it with
    its base.

    model: a T3ForCausalLM with one or several heads. Its base is the model before unlearning. Any
    other causal LM is judged alone. A UserWarning says if several heads together lose rows to keep
    that each of them alone keeps.
    rows: `holdout_retain` are rows to keep that no head was fitted on.
    seed: seed of the sampled answers.
    """
    rows = rows.checked()
    if isinstance(model, T3ForCausalLM) and len(model.heads) > 1:
        composed_rouge(model, tokenizer, drawn(rows.retain), progress=progress)
    return judge(model, tokenizer, rows, seed=seed, progress=progress)


def judge(
    model: Any, tokenizer: Any, rows: Rows, *, seed: int = 0, progress: bool = True
) -> Report:
    """Do the same as `assess` for rows that were checked before. There may be no rows to keep."""
    tilted = isinstance(model, T3ForCausalLM)
    for head in model.heads if tilted else ():
        belonging.check_prompt(head, tokenizer, [*rows.forget, *rows.retain])
    base = model.base if tilted else model
    sets = {"retain": rows.retain, "other": rows.other, "held_out_retain": rows.holdout_retain}
    asked = inquiry_of(tokenizer, rows, {name: some for name, some in sets.items() if some})
    if tilted and is_unknown(base, tokenizer, asked, progress=progress):
        report = unjudged(model, tokenizer, asked, progress=progress)
        return complete(report, asked, base, tokenizer, rows)
    unknown = unseen_of(base, tokenizer, rows, progress=progress)
    before = hear(base, tokenizer, asked, seed=seed, progress=progress)
    after = hear(model, tokenizer, asked, seed=seed, progress=progress) if tilted else before
    unseen = unseen_share(model, tokenizer, unknown, seed=seed, progress=progress)
    report = numbers(asked, before, after, unseen)
    return complete(report, asked, base, tokenizer, rows)


def is_unknown(base: Any, tokenizer: Any, asked: Inquiry, *, progress: bool = True) -> bool:
    """Return True if the base knows less than a tenth of the rows to forget, in this form.

    It knows a row that it answers, or whose distinctive words it finds so likely that samples would
    say them. Nothing else is asked, so this takes much less time than judging a head.
    """
    [texts] = answers.answers_to(base, tokenizer, asked.forget, progress=progress)
    known = np.array(list(map(knows, asked.forget, asked.secrets, texts)), bool)
    reading = Reading(pad_id(tokenizer), progress=progress)
    scores = token_scores(base, encode_rows(tokenizer, asked.forget), reading)
    known |= answers.says(tokenizer, asked, asked.forget, scores)[0]
    return not knows_some(int(known.sum()), len(known))


def unjudged(
    model: T3ForCausalLM, tokenizer: Any, asked: Inquiry, *, progress: bool = True
) -> Report:
    """Count the results of rows that the base does not know, and write the verdict.

    Every question is asked once as it stands, because there is nothing that a model could forget.
    """
    plain = replace(asked, asked=[each for each in asked.asked if each.way == asking.PLAIN])
    before, after = (
        hear(each, tokenizer, plain, sampled=False, progress=progress)
        for each in (model.base, model)
    )
    report = numbers(plain, before, after)
    report["verdict"] = verdict.nothing(report["forget"])
    return report


def inquiry_of(tokenizer: Any, rows: Rows, kept: Sets) -> Inquiry:
    """Prepare the `inquiry` about at most 2,000 rows of each set.

    kept: {name: rows to keep}.
    """
    sets = {name: drawn(some) for name, some in kept.items()}
    return inquiry(tokenizer, drawn(rows.forget), sets, drawn(rows.unseen), rows.rewordings)


def numbers(asked: Inquiry, before: Said, after: Said, unseen: float = 0.0) -> Report:
    """Count the results of every set, without a verdict.

    before, after: answers of the base and of the model.
    unseen: share of unseen rows that the model says, from 0 to 1 (`unseen_share`).
    """
    kept = {name: verdict.stayed(asked, name, before, after) for name in asked.kept}
    forget = verdict.forgotten(asked, before, after, unseen)
    return Report({"forget": forget, "recognition": forget.pop("recognition"), **kept})


def complete(report: Report, asked: Inquiry, base: Any, tokenizer: Any, rows: Rows) -> Report:
    """Add the verdict, unless it is there, and the provenance to a report, and return it."""
    kept = {name: report[name] for name in verdict.EXACT if name in report}
    forget, samples = report["forget"] | {"recognition": report["recognition"]}, 0
    if "verdict" not in report:
        report["verdict"] = verdict.verdict(forget, kept, report.get("held_out_forget"))
        samples = answers.SAMPLES
    given = {"forget": rows.forget, "retain": rows.retain, "other": rows.other}
    for name, some in given.items():
        if len(some) > answers.MOST_ROWS:
            lines = report["verdict"]["lines"]
            lines.insert(
                0, f"asked: {answers.MOST_ROWS} of {len(some)} rows ({name}), drawn at random"
            )
    report["form"] = belonging.prompt_form(tokenizer, [*rows.forget, *rows.retain])
    counts = {"forget": len(asked.forget)} | {name: len(some) for name, some in asked.kept.items()}
    report["asked"] = {"ways": report["forget"]["ways"], "samples": samples, "rows": counts}
    report["base"] = belonging.base_identity(base)
    report["command"] = " ".join(sys.argv) if sys.argv[0].endswith("t3") else None
    report["date"] = datetime.date.today().isoformat()
    return report


def unseen_of(base: Any, tokenizer: Any, rows: Rows, *, progress: bool = True) -> Inquiry | None:
    """Prepare the inquiry about the unseen rows, or return None without such rows.

    UserError where the base answers more than a quarter of them and more than one. Then it probably
    saw these rows, and they cannot show what guessing gives.
    """
    if not rows.unseen:
        return None
    asked = inquiry(tokenizer, drawn(rows.unseen), {}, [*rows.forget, *rows.retain])
    [texts] = answers.answers_to(base, tokenizer, asked.forget, progress=progress)
    known = sum(map(knows, asked.forget, asked.secrets, texts))
    if known > max(1, len(texts) / 4):
        raise UserError(
            f"--unseen: the base answers {known} of {len(texts)} rows, so it has seen these rows"
        )
    return asked


def unseen_share(
    model: Any, tokenizer: Any, asked: Inquiry | None, *, seed: int = 0, progress: bool = True
) -> float:
    """Return the share of unseen rows whose secret the model says anyway, which is what guessing
    gives. Without unseen rows it is 0.
    """
    if asked is None:
        return 0.0
    said = hear(model, tokenizer, asked, seed=seed, progress=progress)
    found = verdict.forgotten(asked, said, said)
    judged = found["rows"] - found["judged_by_recognition"]
    return float(found["leaking"] / judged) if judged else 0.0


def warn_unknown(base: Any, tokenizer: Any, asked: Inquiry, *, progress: bool = True) -> bool:
    """Warn, before any training, about rows that the base does not know in the form in which they
    are asked.

    Where this concerns the rows to forget, other forms are tried, and the warning names the one in
    which the base knows most rows. Returns True if it knows the first of them in no form.
    """

    def known_of(rows: Sequence[Row], secrets: Sequence[frozenset[str]]) -> int:
        [texts] = answers.answers_to(base, tokenizer, rows[:FEW], progress=progress)
        return sum(map(knows, rows[:FEW], secrets, texts))

    few, in_no_form = asked.forget[:FEW], False
    if not knows_some(known := known_of(few, asked.secrets), len(few)):
        hint = form_of(base, tokenizer, few, asked.secrets)
        in_no_form = not hint
        advice = (
            f"It knows them in another form: {hint}"
            if hint
            else "It knows them in none of the other forms that were tried"
        )
        said = f"Nothing to forget: the base answers {known} of {len(few)} rows to forget"
        warnings.warn(f"{said}. {advice}.", stacklevel=3)
    for name, rows in asked.kept.items():
        known, n = known_of(rows, asked.kept_secrets(name)), min(FEW, len(rows))
        if not knows_some(known, n):
            warnings.warn(
                f"the base answers {known} of {n} rows ({name}), so these rows cannot show"
                " whether anything is kept",
                stacklevel=3,
            )
    return in_no_form


def form_of(
    base: Any, tokenizer: Any, rows: Sequence[Row], secrets: Sequence[frozenset[str]]
) -> str | None:
    """Return the other form in which the base knows most of these rows, in words, or None."""
    template = tokenizer.chat_template is not None
    forms: dict[str, list[Row]] = {}
    for row in rows:
        for name, other in asking.other_forms(row, template):
            forms.setdefault(name, []).append(other)
    counts = {}
    for name, others in forms.items():
        try:
            [texts] = answers.answers_to(base, tokenizer, others, progress=False)
        except UserError:  # a template that cannot render it
            continue
        counts[name] = sum(map(knows, others, secrets, texts))
    best, known = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
    return f"{best} ({known} of {len(rows)} rows)" if knows_some(known, len(rows)) else None


def headline(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines of the verdict as {name: text}, for the model card of the head."""
    lines = [line.partition(": ") for line in report["verdict"]["lines"] if ": " in line]
    return {"verdict": report["verdict"]["sentence"]} | {
        name: text for name, _, text in lines[:-1] if name != "No"
    }
