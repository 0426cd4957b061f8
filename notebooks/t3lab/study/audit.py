"""Audit one method on one split: what do its unlearned models still know of the forget rows?

There is one model for each seed. T3 has one for each seed and (T, w). Retrained has the reference
(seed 0) and retain models of other seeds; all methods are compared with these. Answers are cached
in `.t3cache/audit` by content, like scores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from t3lab.audit import run
from t3lab.audit.leakage import leak_at_k
from t3lab.audit.measures import measures
from t3lab.identity import code_key, environment
from t3lab.results import Run
from t3lab.study.methods import Subject, cost_of, load_models, subject
from t3lab.study.records import record_of
from t3lab.study.study import Answer, Study, cached_answers, timed
from t3lab.world import bases
from t3lab.world.facts import MOST_AUTHORS
from t3lib.baselines.losses import settings_of
from t3lib.core.errors import Diverged, UserError
from t3lib.core.rows import Row
from t3lib.tofu import data as tofu
from t3lib.tofu.likelihood import UNTILTED

# Unseen rows at most. With so many, the number of forget rows decides the error of an AUC.
UNSEEN = 240
NOT_SAMPLED = "not asked: of this method another seed or T was"
Dials = tuple[float, float]  # T, w
Sampler = tuple[float, float]  # its temperature tau, and top_p


@dataclass(frozen=True)
class Sampling:
    """Which models generate samples, and how many. Sampling takes most of an audit's time.

    samples: number of answers to each question.
    rows: number of forget rows that are asked, evenly spaced; 0 for all.
    top_p: see `samples.draw`.
    samplers: pairs (tau, top_p) for further samples for leak@k, from the same models (of Retrained
    from the reference only). tau is the sampler's temperature. further: number of these samples.
    templates: see `run.writings`.
    seeds: of the trainings whose models generate, None for all.

    T3 generates at the (T, w) of smallest T, at the tuned one and at its `twin`. UserError for
    values out of range.
    """

    samples: int = 64
    rows: int = 0
    top_p: float = 1.0
    samplers: tuple[Sampler, ...] = ()
    further: int = 16
    templates: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    __pydantic_config__ = {"extra": "forbid"}  # where a notebook gives the fields

    def __post_init__(self) -> None:
        run.check_samples(self.samples, self.top_p, self.templates)
        for tau, top_p in self.samplers:
            run.check_samples(self.further, top_p)
            if tau <= 0:
                raise UserError(f"a sampler's temperature must be above 0, not {tau:g}")
        if self.rows < 0:
            raise UserError(f"rows must be 0 (all) or more, not {self.rows}")

    def asked(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that are asked."""
        count = min(self.rows or len(rows), len(rows))
        return [rows[number * len(rows) // count] for number in range(count)]

    def writers(self, models: Sequence[Subject], tuned: Dials | None) -> list[Subject]:
        """Return the models that generate samples: baselines by seed, T3 by seed and (T, w).

        Original and Retrained always do. tuned: T3's tuned (T, w), None for other methods.
        """
        every = [(each.T, each.w) for each in models]  # (None, None) for any method but T3
        dials = (min(every), tuned, twin(tuned)) if tuned else every
        some = [each for each in models if self.seeds is None or each.seed in self.seeds]
        return [
            each
            for each in models
            if each.settings is None or each in some and (each.T, each.w) in dials
        ]


def audit_method(
    study: Study,
    method: str,
    *,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    dials: Sequence[Dials] = (),
    settings_by_t: Mapping[str, Mapping[str, Any]] | None = None,
    sampling: Sampling = Sampling(),
    apart: Study | None = None,
) -> Iterator[Run]:
    """Audit a method; yield a run record for each model (`results.RUN_KEYS`, `labels.AUDIT`).

    seeds: of the trainings; those of Retrained are its base models; Original has none.
    settings: of the method, where they differ from the defaults.
    dials: the (T, w) of T3, by default the tuned one; its `twin` is added.
    settings_by_t: settings of T3 tuned for one T, by this T as text ("2.5").
    apart: the same split of a second stage, whose base models leave some rows unseen. Membership is
    then measured on the method's models of that stage. Of Retrained only seed 0 has one there.

    Beside its metrics a record has `errors` {measure: standard error over rows}, `empty` {measure:
    why it has no value}, `leak` (`leak_at_k`, with `tau` and `top_p` for a further sampler),
    `templates` {template: mean recall}, `closest` (the best sample of each row) and `asked`
    (numbers of rows and samples). A training that diverged gives a failed run, and the others are
    audited.
    """
    # models that share their passes, as arguments of `subject`
    groups: list[list[tuple[Any, ...]]]
    groups = [[(seed, settings)] for seed in ([0] if method == "Original" else seeds)]

    tuned = None
    if method == "T3":
        [tuned], by_t = dials_of(settings), settings_by_t or {}
        points = [({**settings, **by_t.get(f"{T:g}", {}), "w": w}, T) for T, w in dials or [tuned]]
        own, (T, w) = {**settings, **by_t.get(f"{tuned[0]:g}", {})}, twin(tuned)
        points += [({**own, "w": w}, T)] if (T, w) != tuned else []
        groups = [[(seed, *point) for seed in seeds for point in points]]

    for group in groups:
        # of Retrained, each further base model in a second stage would cost a training
        further = method == "Retrained" and group[0][0] != 0
        there = study if further or not apart else apart
        models, members = (
            [subject(each, method, *one) for one in group] for each in (study, there)
        )
        try:
            writers = sampling.writers(models, tuned)
            yield from _audited(study, models, writers, there, members, sampling)
        except Diverged:
            both = zip(models, members)
            errors = [cost_of(study, a)["error"] or cost_of(there, b)["error"] for a, b in both]
            for each, error in zip(models, errors):
                if error:
                    yield record_of(study, each, None) | {"error": error}
            if not all(errors):
                whole = [not error for error in errors]
                models, members = ([*compress(each, whole)] for each in (models, members))
                writers = sampling.writers(models, tuned)
                yield from _audited(study, models, writers, there, members, sampling)


def known(study: Study, models: Sequence[Subject]) -> list[dict[str, float]]:
    """Return the audit's measures that need no generated text, {measure: value} for each model.

    The models share their passes. A measure without a value is left out.
    """
    return [record["metrics"] for record in _audited(study, models, [], study, models, Sampling())]


def dials_of(settings: Mapping[str, Any], temperatures: Sequence[float] = ()) -> list[Dials]:
    """Return (T, 1) for some T and T3's own (T, w), sorted.

    settings: of T3. temperatures: values of T.
    """
    tuned = settings_of("T3", settings)
    every = {(float(T), 1.0) for T in temperatures}
    return sorted(every | {(float(tuned["temperature"]), float(tuned["w"]))})


def twin(dials: Dials) -> Dials:
    """(1, w T) for (T, w): the untempered base with the classifier sharpened by the same factor.

    p^(1/T) f^w, sampled at temperature tau, is p^(1/(T tau)) f^(w/tau), which is the twin sampled
    at temperature T tau. So whoever controls the sampler's temperature, or sees logits, can turn T3
    into its twin.
    """
    T, w = dials
    return 1.0, T * w


def shown(
    runs: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the run whose sampled texts the notebook shows, None if there is none.

    It is T3 at its tuned (T, w), otherwise the first run with texts.
    """
    wrote = [run for run in runs if run["closest"]]
    tuned = [
        run for run in wrote if run["method"] == "T3" and (run["T"], run["w"]) in dials_of(settings)
    ]
    return next(iter([*tuned, *wrote]), None)


def unseen_rows(study: Study) -> list[Row] | str:
    """Return rows like the forget rows that no base model learned, or why there are none.

    In the built-in world they are the next authors of the same seed, because a larger world begins
    with the same rows. They are exchangeable with the forget rows. With TOFU they are the retain
    authors after those that the stage selected.
    """
    stage = study.stage
    if stage is None:
        return "the models come from outside: which rows they never saw is not known"
    if stage.data == "builtin":
        authors = min(stage.authors + -(-UNSEEN // stage.questions), MOST_AUTHORS)
        larger = bases.world_of(replace(stage, authors=authors), stage.seed)["full"]
        rows = larger[stage.authors * stage.questions :]
        return rows[:UNSEEN] or "the bases learned every author that the built-in world has"
    rows = tofu.load_rows(stage.data, "retain90")[stage.authors * bases.TOFU_QUESTIONS :]
    return rows[:UNSEEN] or "the bases learned every row of the data"


def _audited(
    study: Study,
    models: Sequence[Subject],
    writers: Sequence[Subject],
    there: Study,
    members: Sequence[Subject],
    sampling: Sampling,
) -> Iterator[Run]:
    """Yield the records of models that share their passes.

    writers: those that generate samples. there: the study whose base models leave rows unseen.
    members: the same models in that study.
    """
    # membership has its own rows and models, everything else those of the study
    forget, unseen = ({"forget": each.evaluation_rows["forget"]} for each in (study, there))
    rows_or_reason = unseen_rows(there)
    unseen |= {} if isinstance(rows_or_reason, str) else {"unseen": rows_or_reason}
    membership = _answers(there, members, run.likelihoods, unseen)
    likelihoods = membership if there is study else _answers(study, models, run.likelihoods, forget)

    draws = {"samples": sampling.samples, "top_p": sampling.top_p}
    how = draws | {"templates": list(sampling.templates)}
    questions = sampling.asked(forget["forget"])
    writings = _answers(study, writers, run.writings, questions, **how)

    drawing = [each for each in writers if each.method != "Retrained" or each.seed == 0]
    further = []
    for tau, top_p in sampling.samplers:
        sampler = {"tau": tau, "top_p": top_p}
        options = {"samples": sampling.further} | sampler
        drawn = _answers(study, drawing, run.draws, questions, **options)
        further.append((sampler, drawn))

    stage = there.stage
    authors = stage.questions if stage and stage.data == "builtin" else bases.TOFU_QUESTIONS
    asked: dict[str, Any] = {name: len(rows) for name, rows in unseen.items()}
    asked |= {"written": len(questions)} | how

    for model, member in zip(models, members):
        scores, texts = likelihoods[model.key], writings.get(model.key)
        more = [
            (sampler, answers[model.key]) for sampler, answers in further if model.key in answers
        ]
        losses = {
            name: answer["losses"] for name, answer in membership[member.key]["scores"].items()
        }
        audit = measures(
            scores["scores"]["forget"],
            rows_or_reason if isinstance(rows_or_reason, str) else losses,
            texts["scores"] if texts else NOT_SAMPLED,
            rows_an_author=authors,
        )
        audit["leak"] += [
            entry | sampler
            for sampler, answer in more
            for entry in leak_at_k(answer["scores"]["samples"], answer["scores"]["leaks"])
        ]

        answers = [scores, *([texts] if texts else []), *(answer for _, answer in more)]
        seconds = sum(answer["seconds"] for answer in answers)
        record = record_of(study, model, None) | {
            "code": code_key("study.audit", lab=True),
            "status": "ok",
            "metrics": audit.pop("values"),
            "asked": asked,
        }
        yield record | audit | {"seconds": record["seconds"] | {"evaluate": seconds}}


def _answers(
    study: Study,
    models: Sequence[Subject],
    question: Callable[..., list[Any]],
    rows: Any,
    **how: Any,
) -> dict[str, Answer]:
    """Return an Answer for the key of each model, from the cache or computed.

    question: a function of `run` that questions models about `rows`. how: its further arguments.
    """
    how |= {"attention_mask": study.scoring.attention_mask}

    def answer(missing: list[int]) -> list[Answer]:
        if models[0].method == "Retrained":
            study.release()
        model, tokenizer, tilts = load_models(study, [models[n] for n in missing])
        return timed(lambda: question(model, tokenizer, rows, tilts or UNTILTED, **how))

    keys = [each.key for each in models]
    code = code_key("audit", "chances", "study.methods", "study.unlearned")
    made_by = [code, environment(study.device)]
    answers = cached_answers("audit", keys, [question.__name__, rows, how, made_by], answer)
    return dict(zip(keys, answers))
