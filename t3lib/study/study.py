"""One forget split as every method sees it: the base, the rows, the evaluation sets and the retrained reference."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from t3lib import tofu
from t3lib.errors import UserError
from t3lib.evaluation import evaluate
from t3lib.files import cache_dir, content_key, lock, read_json, write_json
from t3lib.models import load_model, revision_of
from t3lib.world import bases

EVALUATION = {"attention_mask": "lengths", "truth_ratio": "geometric", "max_new_tokens": 200}


@dataclass(frozen=True)
class Study:
    """What the notebooks hand to a method. `models` maps full and retainNN to folders or Hub ids.

    `stage` is None when the models were given from outside, so that no further base of it can be trained.
    """

    split: str
    source: tofu.Source
    base: PreTrainedModel
    tokenizer: Any
    forget: list[tofu.Row]
    retain: list[tofu.Row]
    evaluation_rows: dict[str, list[tofu.Row]]
    idk: list[str]
    reference: dict[str, Any]
    evaluation: dict[str, Any]
    stage: bases.Stage | None
    models: dict[str, str]
    load_options: dict[str, Any]
    load_seconds: float
    data_key: str

    def evaluate(self, model: PreTrainedModel, *, rows: dict[str, list[tofu.Row]] | None = None, **options: Any) -> Any:
        """`evaluate` with this study's rows (or some of its sets), reference and settings."""
        settings = self.evaluation | options
        return evaluate(model, self.tokenizer, rows or self.evaluation_rows, reference=self.reference, **settings)


def evaluation_rows(source: tofu.Source, split: str) -> dict[str, list[tofu.Row]]:
    """The four evaluation sets of a split: forget, retain, ra (real authors), wf (world facts)."""
    tofu.retain_of(split)
    names = {"forget": f"{split}_perturbed", "retain": "retain_perturbed"}
    names |= {"ra": "real_authors_perturbed", "wf": "world_facts_perturbed"}
    rows = {key: tofu.load_rows(source, name) for key, name in names.items()}
    for key, name in names.items():
        for number, row in enumerate(rows[key], 1):
            if "perturbed_answer" not in row:
                raise UserError(f"{name} row {number}: perturbed_answer is missing")
    return rows


def question_rows(study: Study) -> dict[str, list[tofu.Row]]:
    """Questions and answers of every evaluation set of both splits, for `results.write_data`.

    The same whichever split the study is of, so that jobs running side by side write the same file.
    """
    forget = {split: tofu.load_rows(study.source, f"{split}_perturbed") for split in ("forget05", "forget10")}
    return forget | {name: study.evaluation_rows[name] for name in ("retain", "ra", "wf")}


def stage_of(data: str, stage: Mapping[str, Any]) -> bases.Stage:
    """The built-in stage: the world's own rows, or real TOFU text from the Hub or a folder."""
    unknown = set(stage) - {field.name for field in fields(bases.Stage)}
    if unknown:
        raise UserError(f"stage: unknown setting {sorted(unknown)[0]!r}")
    place = data if data in ("builtin", "hub") else str(Path(data).expanduser().resolve())
    return bases.Stage(**(dict(stage) | {"data": place}))


def resolve_models(split: str, stage: bases.Stage, given: Mapping[str, str]) -> dict[str, str]:
    """Folders or Hub ids of full and retainNN; whatever is not given is the stage's own base, trained when missing."""
    names = ("full", tofu.retain_of(split))
    return {name: str(given.get(name) or bases.ensure_base(stage, name)) for name in names}


def open_study(
    split: str,
    *,
    data: str = "builtin",
    stage: Mapping[str, Any] | None = None,
    models: Mapping[str, str] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
) -> Study:
    """Load everything a method needs for one forget split; trains the stage's bases when they are not cached.

    With `models` given (the real benchmark) the rows come whole from `data`; otherwise the stage chooses its authors.
    load: options of `load_model` (dtype, device, load_in).
    """
    unknown = set(evaluation or {}) - set(EVALUATION)
    if unknown:
        raise UserError(f"unknown evaluation setting {sorted(unknown)[0]!r}: choose among {', '.join(EVALUATION)}")
    settings = EVALUATION | dict(evaluation or {})
    used = stage_of(data, stage or {})
    source: tofu.Source = data if models else bases.rows(used)
    folders = resolve_models(split, used, models or {})
    start = time.perf_counter()
    base, tokenizer = load_model(folders["full"], **(load or {}))
    seconds = time.perf_counter() - start
    forget, retain = tofu.load_rows(source, split), tofu.load_rows(source, tofu.retain_of(split))
    tofu.check_disjoint(forget, retain)
    rows = evaluation_rows(source, split)
    reference = reference_of(folders[tofu.retain_of(split)], rows, settings, load or {})
    return Study(
        split=split,
        source=source,
        base=base,
        tokenizer=tokenizer,
        forget=forget,
        retain=retain,
        evaluation_rows=rows,
        idk=tofu.load_idk(source),
        reference=reference,
        evaluation=settings,
        stage=None if models else used,
        models=folders,
        load_options=dict(load or {}),
        load_seconds=seconds,
        data_key=content_key([forget, retain, rows]),
    )


def reference_of(
    name: str, rows: dict[str, list[tofu.Row]], settings: Mapping[str, Any], load: Mapping[str, Any]
) -> dict[str, Any]:
    """Teacher-forced evaluation of the retrained model on the forget rows, computed once and cached."""
    key = content_key([name, rows["forget"], dict(settings), dict(load)])
    path = cache_dir("references") / f"{key}.json"
    with lock(path.with_suffix(".lock")):
        if path.is_file():
            return read_json(path)
        model, tokenizer = load_model(name, **load)
        key = revision_of(model) or Path(name).name
        record = evaluate(model, tokenizer, {"forget": rows["forget"]}, generate=False, **settings)
        write_json(path, record | {"reference_model": key})
        return read_json(path)
