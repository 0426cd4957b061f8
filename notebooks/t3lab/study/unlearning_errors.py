"""The paper's two errors of a study's models, beside one of its retrained models."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from t3lab.identity import code_key, environment
from t3lab.study.methods import Subject, load_models, subject
from t3lab.study.study import Answer, Study, cached_answers, timed
from t3lib.core.files import rows_key
from t3lib.core.models import pad_id
from t3lib.core.rows import encode_rows
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.reader import Reading
from t3lib.tofu.unlearning_errors import RowErrors, errors

SETS = ("forget", "retain")  # evaluation sets whose true answers are read


def errors_of(study: Study, models: Sequence[Subject], judge: int) -> list[dict[str, RowErrors]]:
    """Compute the errors of several models beside one retrained model, from the cache if possible.

    models: of any methods. Those of T3 share one pass of the base.
    judge: seed of the retrained model that stands for p_r.

    Returns for each model {"forget": rows, "retain": rows}, as `errors` in
    `t3lib.tofu.unlearning_errors` does.

    Diverged if the training of a model diverged.
    """
    retrained = subject(study, "Retrained", judge, {})
    rows = {name: rows_key(study.evaluation_rows[name]) for name in SETS}
    made_by = [
        code_key("tofu.unlearning_errors", "study.methods", "study.unlearned"),
        environment(study.device),
    ]
    question = [retrained.key, rows, study.scoring.attention_mask, made_by]

    # models that are read together: all of T3, and each other one alone
    of_t3 = [each for each in models if each.method == "T3"]
    found: dict[str, dict[str, RowErrors]] = {}
    for group in [*([each] for each in models if each.method != "T3"), of_t3]:

        def answer(missing: list[int], group: list[Subject] = group) -> list[Answer]:
            return timed(lambda: _errors(study, [group[n] for n in missing], retrained))

        answers = cached_answers("errors", [each.key for each in group], question, answer)
        found |= {each.key: one["scores"] for each, one in zip(group, answers)}
    return [found[each.key] for each in models]


def rounded(rows: Any) -> Any:
    """Return the errors of every row as run files keep them: the same lists with six digits."""
    if isinstance(rows, dict):
        return {name: rounded(value) for name, value in rows.items()}
    return [float(f"{value:.6g}") for value in rows]


def _errors(
    study: Study, models: Sequence[Subject], retrained: Subject
) -> list[dict[str, RowErrors]]:
    """Read models that share a base, and a retrained model, and return the errors of each."""
    loaded, judge = load_models(study, models), load_models(study, [retrained]).model
    answers: dict[str, Any] = {
        name: encode_rows(study.tokenizer, study.evaluation_rows[name]) for name in SETS
    }
    reading = Reading(pad_id(study.tokenizer), (), study.scoring.attention_mask)
    tilts = loaded.tilts or UNTILTED
    every = errors(loaded.model, {"": judge}, answers, replace(reading), tilts)
    return [each[""] for each in every]
