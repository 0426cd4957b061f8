"""The audit of one method on one split: what do its unlearned models still know of the rows to forget?

Which models: one for each seed; of T3 one for each seed and (T, w); of Retrained the reference (seed 0) and retain
models of other seeds, the yardstick of all. Answers are cached by content in `.t3cache/audit`, as scores are.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from t3lib import tofu
from t3lib.audit import run
from t3lib.audit.measures import measures
from t3lib.baselines.train import Diverged
from t3lib.errors import UserError
from t3lib.files import cache_dir, code_key, content_key, lock, model_identity, read_sealed, write_sealed
from t3lib.likelihood import UNTILTED
from t3lib.models import load_model
from t3lib.names import METHODS
from t3lib.study.methods import Tilted, record_of, sharpened
from t3lib.study.study import Asked, Study
from t3lib.study.unlearned import fitted, training_of, unlearned, unlearned_key
from t3lib.world import bases
from t3lib.world.facts import world

UNSEEN = 240  # rows at most that no base saw: then the number of forget rows decides the error of an AUC
DIALS = 3  # (T, w) at most whose answers are sampled
NOT_SAMPLED = "other models of this method write answers"
Dials = tuple[float, float]  # T, w


@dataclass(frozen=True)
class Sampling:
    """How many answers are drawn, and from which models, for that takes most of an audit's time.

    samples: to each question; rows: how many of the forget rows are asked, evenly spaced, 0 for all. top_p: see
    `samples.draw`; templates: see `run.writings`. seeds: of the trainings whose models write, None for all; dials: of
    T3 the (T, w) that write, by default the coldest, the tuned and the hottest.
    """

    samples: int = 64
    rows: int = 0
    top_p: float = 1.0
    templates: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    dials: tuple[Dials, ...] = ()

    def __post_init__(self) -> None:
        run.check_samples(self.samples, self.top_p, self.templates)
        if self.rows < 0:
            raise UserError(f"rows must be 0 (all) or more, not {self.rows}")
        if len(self.dials) > DIALS:
            raise UserError(f"answers are sampled at no more than {DIALS} (T, w), not at {len(self.dials)}")

    def asked(self, rows: Sequence[tofu.Row]) -> list[tofu.Row]:
        """The rows that are asked."""
        count = min(self.rows or len(rows), len(rows))
        return [rows[number * len(rows) // count] for number in range(count)]

    def how(self) -> dict[str, Any]:
        """The part that `run.writings` takes."""
        return {"samples": self.samples, "top_p": self.top_p, "templates": list(self.templates)}


class Subject(NamedTuple):
    """One model to audit: its content key and seed, the settings of its training, and T3's dials."""

    key: str
    seed: int
    hyper: Mapping[str, Any] | None = None  # None: not trained by a method
    T: float | None = None
    w: float | None = None
    writes: bool = True


Ask = Callable[[list[Subject]], Asked]


def audit_method(
    study: Study,
    method: str,
    *,
    seeds: Sequence[int],
    hyper: Mapping[str, Any],
    dials: Sequence[Dials] = (),
    hyper_by_t: Mapping[str, Mapping[str, Any]] | None = None,
    sampling: Sampling = Sampling(),
    progress: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield one run record (schema: `results.RUN_KEYS`; metrics: `metrics.AUDIT`) for each model of a method.

    seeds: of the trainings; of Retrained those of its bases; Original has none. dials: (T, w) of T3, default its own;
    hyper_by_t: settings tuned for one T, keyed by its text. Besides its metrics a record has `errors` {measure:
    standard error over rows}, `empty` {measure: why it has no value}, `leak` [{k, value, se}], `templates` {template:
    mean recall}, `closest` (the best sample of each row) and `asked`, how many rows and samples. A training that
    diverged is a failed run.
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    if method == "T3":
        groups = [_tilted(study, seeds, hyper, dials, hyper_by_t or {}, sampling)]
    else:
        groups = [_single(study, method, seed, hyper, sampling) for seed in ([0] if method == "Original" else seeds)]
    for subjects, ask in groups:
        try:
            yield from _audited(study, method, subjects, ask, sampling, progress)
        except Diverged:
            yield from (_record(study, method, subject) for subject in subjects)


def grid_of(
    hyper: Mapping[str, Any], temperatures: Sequence[float], sharpness: Sequence[float] = (1.0,)
) -> list[Dials]:
    """Every (T, w) of the two lists, and T3's own."""
    own = Tilted.of(hyper, 0).settings
    every = {(float(T), float(w)) for T in temperatures for w in sharpness}
    return sorted(every | {(float(own["temperature"]), float(own["w"]))})


def unseen_rows(study: Study) -> list[tofu.Row] | str:
    """Rows of the same kind as the forget rows that no base of the stage learned, or why there are none.

    Of the built-in world, people of another seed's world (not those the tokenizer learned from); of TOFU, the authors
    after those that the stage chose.
    """
    stage = study.stage
    if stage is None:
        return "the models come from outside: which rows they never saw is not known"
    if stage.data == "builtin":
        return world(stage.authors, stage.questions, stage.seed + 2)["full"][:UNSEEN]
    rows = tofu.load_rows(stage.data, "retain90")[stage.authors * bases.TOFU_QUESTIONS :]
    return rows[:UNSEEN] or "the bases learned every row of the data"


def _tilted(
    study: Study,
    seeds: Sequence[int],
    hyper: Mapping[str, Any],
    dials: Sequence[Dials],
    hyper_by_t: Mapping[str, Mapping[str, Any]],
    sampling: Sampling,
) -> tuple[list[Subject], Ask]:
    """T3's models, which share the passes of one base."""
    tuned = Tilted.of(hyper, 0).settings
    own = (float(tuned["temperature"]), float(tuned["w"]))
    dials = [(float(T), float(w)) for T, w in dials or [own]]
    few = [(float(T), float(w)) for T, w in sampling.dials] or [min(dials), own, max(dials)]
    subjects = []
    for seed in seeds:
        for T, w in dials:
            job = Tilted.of({**hyper, **hyper_by_t.get(f"{T:g}", {}), "w": w}, seed, T)
            writes = (T, w) in few and (sampling.seeds is None or seed in sampling.seeds)
            subjects.append(Subject(job.key(study), seed, job.settings, T, w, writes))

    def ask(part: list[Subject]) -> Asked:
        heads = fitted(study, [(subject.hyper or {}, subject.seed) for subject in part])
        tilts = [(sharpened(head, subject.w or 1.0), subject.T or 1.0) for head, subject in zip(heads, part)]
        return Asked(study.base, study.tokenizer, tilts)

    return subjects, ask


def _single(
    study: Study, method: str, seed: int, hyper: Mapping[str, Any], sampling: Sampling
) -> tuple[list[Subject], Ask]:
    """The original, a retain model or the model of one training."""
    if method == "Original":
        return [Subject(study.identity["full"], seed)], lambda _: Asked(study.base, study.tokenizer)
    if method == "Retrained":
        folder = _retrained(study, seed)
        key = study.identity[tofu.retain_of(study.split)] if seed == 0 else None
        key = key or content_key([model_identity(folder), study.load_options])
        return [Subject(key, seed)], lambda _: Asked(*load_model(folder, **study.load_options))
    writes = sampling.seeds is None or seed in sampling.seeds
    subject = Subject(unlearned_key(study, method, hyper, seed), seed, hyper, writes=writes)
    return [subject], lambda _: Asked(unlearned(study, method, hyper, seed), study.tokenizer)


def _retrained(study: Study, seed: int) -> str:
    """Folder or Hub id of a retain model; seed 0 is the reference."""
    name = tofu.retain_of(study.split)
    if seed == 0:
        return study.models[name]
    if study.stage is None:
        raise UserError("Retrained of a seed other than 0 needs a stage that trains its own bases")
    return str(bases.ensure_base(study.stage, name, seed=seed))


def _audited(
    study: Study, method: str, subjects: list[Subject], ask: Ask, sampling: Sampling, progress: bool
) -> Iterator[dict[str, Any]]:
    """The records of models that share their passes."""
    unseen = unseen_rows(study)
    rows = {"forget": study.evaluation_rows["forget"]} | ({} if isinstance(unseen, str) else {"unseen": unseen})
    options: dict[str, Any] = {"attention_mask": study.evaluation["attention_mask"]}
    questions = sampling.asked(rows["forget"])
    asked = {name: len(part) for name, part in rows.items()} | {"written": len(questions)} | sampling.how()

    def show(part: list[Subject]) -> list[dict[str, Any]]:
        model, tokenizer, tilts = ask(part)
        return run.likelihoods(model, tokenizer, rows, tilts or UNTILTED, progress=progress, **options)

    def write(part: list[Subject]) -> list[dict[str, Any]]:
        model, tokenizer, tilts = ask(part)
        how = options | sampling.how() | {"progress": progress}
        return run.writings(model, tokenizer, questions, tilts or UNTILTED, **how)

    known = _remembered(subjects, [rows, options], show)
    writers = [subject for subject in subjects if subject.writes]
    written = _remembered(writers, [questions, options, sampling.how()], write)
    for subject in subjects:
        answers, texts = known[subject.key], written.get(subject.key)
        against = unseen if isinstance(unseen, str) else answers["answer"]["unseen"]
        found = measures(answers["answer"]["forget"], against, texts["answer"] if texts else NOT_SAMPLED)
        seconds = answers["seconds"] + (texts["seconds"] if texts else 0.0)
        yield _record(study, method, subject, found | {"asked": asked}, seconds)


def _remembered(
    subjects: Sequence[Subject], question: Any, work: Callable[[list[Subject]], list[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """{key: {"answer", "seconds"}} of each model, from the cache where it was asked this before."""
    question = [question, code_key("audit")]
    folder, names = cache_dir("audit"), {each.key: content_key([each.key, question]) for each in subjects}
    with ExitStack() as stack:  # jobs side by side ask for the original and the reference at the same time
        for name in sorted(names.values()):
            stack.enter_context(lock(folder / f"{name}.lock"))
        kept: dict[str, Any] = {key: read_sealed(folder / f"{name}.json") for key, name in names.items()}
        missing = list({each.key: each for each in subjects if kept[each.key] is None}.values())
        began = time.perf_counter()
        answers = work(missing) if missing else []
        seconds = (time.perf_counter() - began) / max(len(missing), 1)
        for subject, answer in zip(missing, answers):
            kept[subject.key] = {"answer": answer, "seconds": seconds}
            write_sealed(folder / f"{names[subject.key]}.json", kept[subject.key])
    return kept


def _record(
    study: Study, method: str, subject: Subject, found: Mapping[str, Any] | None = None, seconds: float = 0.0
) -> dict[str, Any]:
    """The run record of one model; found: see `measures`, None for a training that diverged."""
    training: dict[str, Any] = {"hyper": {}, "trainable": 0, "epochs": None, "seconds": {}, "error": None}
    if subject.hyper is not None:
        training |= training_of(study, method, subject.hyper, subject.seed) | {"hyper": dict(subject.hyper)}
    record = record_of(study, method, subject.seed, training, None, T=subject.T, w=subject.w)
    if found is None:
        return record
    rest = {name: found[name] for name in ("errors", "empty", "leak", "templates", "closest", "asked")}
    seconds_of = record["seconds"] | {"evaluate": seconds}
    return record | {"status": "ok", "seconds": seconds_of, "metrics": found["values"]} | rest
