"""One forget split with everything that a method needs: base, rows, evaluation sets, reference.

Scores are cached in `.t3cache` by content, apart from training and from metrics. Scoring the same
model again reads the cache, and a changed metric needs neither training nor a model.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from transformers import PreTrainedModel

from t3lab.files import read_sealed
from t3lab.identity import code_key, environment, keep
from t3lab.names import SOURCES, SPLITS
from t3lab.results import peak_memory_bytes
from t3lab.world import bases
from t3lib.core import hub
from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, content_key, lock, model_identity, rows_key
from t3lib.core.models import load_model
from t3lib.core.names import HUB_DATA
from t3lib.core.rows import Row, check_disjoint, rendered
from t3lib.tofu import data as tofu
from t3lib.tofu.evaluation import Report, Scoring, metrics_of, score
from t3lib.tofu.likelihood import Tilt

EVALUATION = ("attention_mask", "truth_ratio", "max_new_tokens")  # fields of `Scoring` in a profile
TOGETHER = 25  # tilts in one pass of generation; a killed run loses at most one pass


class Answer(TypedDict):
    """One model's answer to the question of `cached_answers`, with its share of the cost.

    scores: any JSON.
    """

    scores: Any
    seconds: float
    peak_memory_bytes: int


class Loaded(NamedTuple):
    """A model to score, and its tokenizer.

    tilts: for T3 the model is the base, and these tilts of it are scored in one pass.
    """

    model: Any
    tokenizer: Any
    tilts: Sequence[Tilt] | None = None


@dataclass(frozen=True)
class Study:
    """One forget split, opened by `open_study`: what every method starts from.

    split: such as "forget10". source: where its rows come from. base, tokenizer: the original
    model.
    forget, retain: rows to train on. evaluation_rows: rows of the four sets forget, retain, ra, wf.
    idk: "I don't know" answers.
    reference: the retrained model's evaluation on the forget rows.
    scoring: settings of the evaluation.
    judge: seed of the retrained model that stands for p_r in the paper's errors; 0 measures none.
    stage: the stage of the base models. None if the models were given, so that no further base can
    be trained.
    models: {"full", "retainNN", "retainNN-seedS"}: folder or Hub id of each model.
    identity: a content key of each of these models, of the way it is loaded and of its prompts.
    load_options: options of `load_model`. load_seconds: how long loading the base took.
    load: loads one of `models`, with its tokenizer. held: the base under "full" while it is in
    memory. Call `release` before another model is loaded: a device may have room for one of 8B.
    device: where models are loaded.
    """

    split: str
    source: tofu.Source
    tokenizer: Any
    forget: list[Row]
    retain: list[Row]
    evaluation_rows: dict[str, list[Row]]
    idk: list[str]
    reference: Report
    scoring: Scoring
    judge: int
    stage: bases.Stage | None
    models: dict[str, str]
    identity: dict[str, str]
    load_options: dict[str, Any]
    load_seconds: float
    load: Callable[[str], tuple[PreTrainedModel, Any]]
    held: dict[str, PreTrainedModel]
    device: torch.device

    @property
    def base(self) -> PreTrainedModel:
        """The model before unlearning; loaded again after `release`."""
        if not self.held:
            self.held["full"], _ = self.load("full")
        return self.held["full"]

    def release(self) -> None:
        """Free the base's memory for another model; `base` loads it again where it is needed."""
        self.held.clear()

    @cached_property
    def task_key(self) -> str:
        """Content key of a method's input: base, rows, "I don't know" answers, attention mask."""
        rows = [rows_key(self.forget), rows_key(self.retain), self.idk]
        return content_key([self.identity["full"], rows, self.scoring.attention_mask])

    def evaluate(
        self,
        keys: Sequence[str],
        ask: Callable[[list[int]], Loaded],
        sets: Sequence[str] = (),
        generate: bool = True,
    ) -> list[Report]:
        """Evaluate models (`evaluation.evaluate`); return a report for each.

        keys, ask: see `scored`. sets: names of evaluation sets, by default all four. generate:
        False skips texts. A report also has the `seconds` and `peak_memory_bytes` that scoring
        took.
        """
        rows = {name: self.evaluation_rows[name] for name in sets or self.evaluation_rows}
        scoring = replace(self.scoring, generate=generate)
        return [
            {**each, **metrics_of(each["scores"], self.reference, scoring.truth_ratio)}
            for each in scored(keys, ask, rows, scoring, self.device)
        ]


def scored(
    keys: Sequence[str],
    ask: Callable[[list[int]], Loaded],
    rows: Mapping[str, list[Row]],
    scoring: Scoring,
    device: Any,
) -> list[Answer]:
    """Score models on evaluation sets (`evaluation.score`), from the cache where possible.

    keys: content keys of the models.
    ask(missing): loads the models at these indices of `keys`.
    rows: of each evaluation set. scoring: settings of the evaluation. device: of the models.
    """

    def answer(missing: list[int]) -> list[Answer]:
        model, tokenizer, tilts = ask(missing)
        return timed(lambda: score(model, tokenizer, rows, scoring, tilts))

    longest = scoring.max_new_tokens if scoring.generate else None  # None without texts
    keyed_rows = {name: rows_key(part) for name, part in rows.items()}
    question = [keyed_rows, scoring.attention_mask, longest]
    made_by = [
        code_key("tofu.evaluation", "study.methods", "study.unlearned"),
        environment(device),
    ]
    return cached_answers(
        "scores", keys, [question, made_by], answer, together=TOGETHER if scoring.generate else 0
    )


def timed(answer: Callable[[], list[Any]]) -> list[Answer]:
    """Call answer() and time it; the values that it returns share the seconds equally."""
    began = time.perf_counter()
    answers = answer()
    seconds = (time.perf_counter() - began) / len(answers)
    memory = peak_memory_bytes()
    return [Answer(scores=each, seconds=seconds, peak_memory_bytes=memory) for each in answers]


def cached_answers(
    folder: str,
    keys: Sequence[str],
    question: Sequence[Any],
    answer: Callable[[list[int]], list[Answer]],
    *,
    together: int = 0,
) -> list[Answer]:
    """Return each model's answer to one question, from the cache where it is there.

    folder: name of the cache's folder.
    keys: content keys of the models.
    question: content of the question, with keys of the code and the environment that answer it.
    answer(missing): computes the answers of the models at these indices of `keys`.
    together: number of models that one call of `answer` gets, 0 for all. What is computed by a call
    is written to the cache when it ends.

    Jobs that run at the same time and need the same model wait for each other.
    """
    paths = [cache_dir(folder) / f"{content_key([key, question])}.json" for key in keys]
    with ExitStack() as stack:
        for path in sorted(set(paths)):  # in one order, so that jobs cannot deadlock
            stack.enter_context(lock(path.with_suffix(".lock")))
        kept: dict[Path, Any] = {path: read_sealed(path) for path in paths}
        missing = [
            n for n, path in enumerate(paths) if kept[path] is None and path not in paths[:n]
        ]
        size = together or max(len(missing), 1)
        for start in range(0, len(missing), size):
            part = missing[start : start + size]
            for n, entry in zip(part, answer(part)):
                kept[paths[n]] = entry
                keep(paths[n], dict(entry))
    return [kept[path] for path in paths]


def evaluation_rows(source: tofu.Source, split: str) -> dict[str, list[Row]]:
    """Load the four evaluation sets of a split: forget, retain, ra and wf.

    ra are the real authors, wf the world facts. UserError for a row without wrong answers.
    """
    tofu.retain_of(split)
    names = {"forget": f"{split}_perturbed", "retain": "retain_perturbed"}
    names |= {"ra": "real_authors_perturbed", "wf": "world_facts_perturbed"}
    rows = {key: tofu.load_rows(source, name) for key, name in names.items()}
    for key, name in names.items():
        for number, row in enumerate(rows[key], 1):
            if "perturbed_answer" not in row:
                raise UserError(f"{name} row {number}: perturbed_answer is missing")
    return rows


def question_rows(study: Study) -> dict[str, list[Row]]:
    """Return questions and answers of all evaluation sets of both splits, for `write_data`.

    The result does not depend on the study's split, so that jobs running at the same time write the
    same file.
    """
    forget = {split: tofu.load_rows(study.source, f"{split}_perturbed") for split in SPLITS}
    return forget | {name: study.evaluation_rows[name] for name in ("retain", "ra", "wf")}


def stage_of(data: str, stage: Mapping[str, Any]) -> bases.Stage:
    """Make a stage from its settings in a profile.

    data: one of `SOURCES` or a folder with TOFU's files. UserError for
    an unknown setting, and if the Hub cannot be reached.
    """
    unknown = set(stage) - {field.name for field in fields(bases.Stage)}
    if unknown:
        raise UserError(f"stage: unknown setting {sorted(unknown)[0]!r}")
    if data == "hub":
        hub.check_dataset(HUB_DATA["path"])
    place = data if data in SOURCES else str(Path(data).expanduser().resolve())
    return bases.Stage(**(dict(stage) | {"data": place}))


def open_study(
    split: str,
    *,
    data: str = "builtin",
    stage: Mapping[str, Any] | None = None,
    models: Mapping[str, str] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    judge: int = 0,
) -> Study:
    """Load everything a method needs for one forget split; train base models that are not cached.

    data, stage: see `stage_of`.
    models: folders or Hub ids of "full" and "retainNN", and of further retained models as
    "retainNN-seedS". If any model is given (the real benchmark), all rows of `data` are used and
    the first two must be there, unless the stage has `forget_authors`. Otherwise the stage selects
    the authors, and a missing model is its own base.
    evaluation: those settings of `Scoring` that a profile may change. load: options of `load_model`
    (dtype, device, load_in). judge: as of `Study`.

    UserError for an unknown setting, and for data or models that are missing or cannot be loaded.
    """
    models, unknown = models or {}, set(evaluation or {}) - set(EVALUATION)
    if unknown:
        raise UserError(
            f"unknown evaluation setting {sorted(unknown)[0]!r}: choose among"
            f" {', '.join(EVALUATION)}"
        )

    load = dict(load or {})
    scoring = Scoring(**(evaluation or {}))
    used, retrained = stage_of(data, stage or {}), tofu.retain_of(split)
    of_stage = bool(used.forget_authors or not models)
    source: tofu.Source = bases.rows(used) if of_stage else data
    places = {name: place for name, place in models.items() if retrained in name}

    for name in ("full", retrained):
        if name not in models and not of_stage:
            raise UserError(f"models: {name} is missing, and a base of the stage is no other's")
        places[name] = str(models.get(name) or bases.ensure_base(used, name))

    found = {name: hub.located(place) for name, place in places.items()}
    places = {name: place.name for name, place in found.items()}
    commits = {name: place.commit for name, place in found.items()}

    def loaded(name: str) -> tuple[Any, Any]:
        return load_model(places[name], revision=commits[name], **load)

    start = time.perf_counter()
    held: dict[str, PreTrainedModel] = {}
    held["full"], tokenizer = loaded("full")
    seconds, device = time.perf_counter() - start, held["full"].device
    forget, retain = tofu.load_rows(source, split), tofu.load_rows(source, retrained)
    check_disjoint(forget, retain)
    rows = evaluation_rows(source, split)
    asked = rendered(tokenizer)
    identity = {
        name: content_key([model_identity(place, commits[name]), load, asked])
        for name, place in places.items()
    }

    def reference(_: list[int]) -> Loaded:
        held.clear()
        return Loaded(*loaded(retrained))

    wanted = {"forget": rows["forget"]}, replace(scoring, generate=False), device
    [entry] = scored([identity[retrained]], reference, *wanted)

    return Study(
        split=split,
        source=source,
        tokenizer=tokenizer,
        forget=forget,
        retain=retain,
        evaluation_rows=rows,
        idk=tofu.load_idk(source),
        reference=metrics_of(entry["scores"], truth_ratio=scoring.truth_ratio),
        scoring=scoring,
        judge=judge,
        stage=None if models else used,
        models=places,
        identity=identity,
        load_options=load,
        load_seconds=seconds,
        load=loaded,
        held=held,
        device=device,
    )
