"""The evidence of a report: a model with a head and its base, asked the same questions."""

import datetime
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from t3lib.core.errors import UserError
from t3lib.core.rows import Row
from t3lib.lab.own import answers, asking, verdict
from t3lib.lab.own.answers import Inquiry, Said, drawn, hear, inquiry, knows, knows_some
from t3lib.lab.own.rows import Rows
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.composing import composed_rouge

FEW = 30  # rows of a set whose answers are looked at before anything is trained
Sets = Mapping[str, Sequence[Row]]


class Report(dict[str, Any]):
    """report.json as a mapping; `print(report)` shows the verdict."""

    def __str__(self) -> str:
        return "\n".join(self["verdict"]["lines"])


def assess(
    model: Any, tokenizer: Any, rows: Rows, *, seed: int = 0, progress: bool = True
) -> Report:
    """What a model says of rows to forget and to keep, beside what its base says, as a `Report`.

    model: a T3ForCausalLM (one head or several), whose base is the model before; or any other
    causal LM, which is then judged alone. Rows of `holdout_retain` are rows to keep that no head
    was fitted on. A UserWarning says so where several heads lose rows to keep that each keeps.
    """
    rows = rows.checked()
    if isinstance(model, T3ForCausalLM) and len(model.heads) > 1:
        composed_rouge(model, tokenizer, drawn(rows.retain), progress=progress)
    return judge(model, tokenizer, rows, seed=seed, progress=progress)


def judge(
    model: Any, tokenizer: Any, rows: Rows, *, seed: int = 0, progress: bool = True
) -> Report:
    """`assess` of rows that are known to be good; there may be none to keep."""
    tilted = isinstance(model, T3ForCausalLM)
    for head in model.heads if tilted else ():
        belonging.check_prompt(head, tokenizer, [*rows.forget, *rows.retain])
    base = model.base if tilted else model
    sets = {"retain": rows.retain, "other": rows.other, "held_out_retain": rows.holdout_retain}
    asked = inquiry_of(tokenizer, rows, {name: some for name, some in sets.items() if some})
    unknown = unseen_of(base, tokenizer, rows, progress=progress)
    before = hear(base, tokenizer, asked, seed=seed, progress=progress)
    after = hear(model, tokenizer, asked, seed=seed, progress=progress) if tilted else before
    unseen = unseen_share(model, tokenizer, unknown, seed=seed, progress=progress)
    report = numbers(asked, before, after, unseen)
    return complete(report, asked, base, tokenizer, rows)


def inquiry_of(tokenizer: Any, rows: Rows, kept: Sets) -> Inquiry:
    """The `inquiry` about at most 2,000 rows of each set."""
    sets = {name: drawn(some) for name, some in kept.items()}
    return inquiry(tokenizer, drawn(rows.forget), sets, drawn(rows.unseen), rows.rewordings)


def numbers(asked: Inquiry, before: Said, after: Said, unseen: float = 0.0) -> Report:
    """The counts of every set, without a verdict."""
    kept = {name: verdict.stayed(asked, name, before, after) for name in asked.kept}
    forget = verdict.forgotten(asked, before, after, unseen)
    return Report({"forget": forget, "recognition": forget.pop("recognition"), **kept})


def complete(report: Report, asked: Inquiry, base: Any, tokenizer: Any, rows: Rows) -> Report:
    """Add the verdict and the report's provenance."""
    kept = {name: report[name] for name in verdict.EXACT if name in report}
    forget = report["forget"] | {"recognition": report["recognition"]}
    report["verdict"] = verdict.verdict(forget, kept, report.get("held_out_forget"))
    given = {"forget": rows.forget, "retain": rows.retain, "other": rows.other}
    for name, some in given.items():
        if len(some) > answers.MOST_ROWS:
            lines = report["verdict"]["lines"]
            lines.insert(
                0, f"asked: {answers.MOST_ROWS} of {len(some)} rows ({name}), drawn at random"
            )
    report["form"] = belonging.prompt_form(tokenizer, [*rows.forget, *rows.retain])
    counts = {"forget": len(asked.forget)} | {name: len(some) for name, some in asked.kept.items()}
    report["asked"] = {"ways": report["forget"]["ways"], "samples": answers.SAMPLES, "rows": counts}
    report["base"] = belonging.base_identity(base)
    report["command"] = " ".join(sys.argv) if sys.argv[0].endswith("t3") else None
    report["date"] = datetime.date.today().isoformat()
    return report


def unseen_of(base: Any, tokenizer: Any, rows: Rows, *, progress: bool = True) -> Inquiry | None:
    """The inquiry about the unseen rows, None without any.

    UserError where the base answers more of them than guessing would give: then it saw them, and
    they show nothing.
    """
    if not rows.unseen:
        return None
    asked = inquiry(tokenizer, drawn(rows.unseen), {}, [*rows.forget, *rows.retain])
    [texts] = answers.answers_to(base, tokenizer, asked.forget, progress=progress)
    known = sum(map(knows, asked.forget, asked.secrets, texts))
    if known > max(1, len(texts) / 4):
        raise UserError(
            f"--unseen: the base answers {known} of {len(texts)} rows that it is said never to have"
            " seen"
        )
    return asked


def unseen_share(
    model: Any, tokenizer: Any, asked: Inquiry | None, *, seed: int = 0, progress: bool = True
) -> float:
    """Share of the unseen rows that a model says all the same: what guessing gives. 0 without such
    rows.
    """
    if asked is None:
        return 0.0
    said = hear(model, tokenizer, asked, seed=seed, progress=progress)
    found = verdict.forgotten(asked, said, said)
    judged = found["rows"] - found["judged_by_recognition"]
    return float(found["leaking"] / judged) if judged else 0.0


def warn_unknown(base: Any, tokenizer: Any, asked: Inquiry, *, progress: bool = True) -> None:
    """Warn, before anything is trained, where the base does not know rows in the form in which they
    are asked.

    Of rows to forget the other forms are tried, and the one is named in which the base knows most
    of them.
    """

    def known_of(rows: Sequence[Row], secrets: Sequence[frozenset[str]]) -> int:
        [texts] = answers.answers_to(base, tokenizer, rows[:FEW], progress=progress)
        return sum(map(knows, rows[:FEW], secrets, texts))

    few = asked.forget[:FEW]
    if not knows_some(known := known_of(few, asked.secrets), len(few)):
        hint = form_of(base, tokenizer, few, asked.secrets)
        advice = (
            f"It knows them asked otherwise: {hint}"
            if hint
            else "It knows them in no other form that was tried"
        )
        said = f"Nothing to forget: the base answers {known} of {len(few)} rows to forget"
        warnings.warn(f"{said}. {advice}.", stacklevel=3)
    for name, rows in asked.kept.items():
        known, n = known_of(rows, asked.kept_secrets(name)), min(FEW, len(rows))
        if not knows_some(known, n):
            warnings.warn(
                f"the base answers {known} of {n} rows ({name}): they will not show whether"
                " anything is kept",
                stacklevel=3,
            )


def form_of(
    base: Any, tokenizer: Any, rows: Sequence[Row], secrets: Sequence[frozenset[str]]
) -> str | None:
    """The other form of these rows in which the base knows most of them, in words; None where it
    knows none.
    """
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
    """The report's numbers for the head's model card: a line each."""
    lines = [line.partition(": ") for line in report["verdict"]["lines"] if ": " in line]
    return {"verdict": report["verdict"]["sentence"]} | {
        name: text for name, _, text in lines[:-1] if name != "No"
    }
