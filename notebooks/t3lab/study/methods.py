"""The models of a method on one split: described, loaded, trained and evaluated."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t3lab.study.study import Loaded, Study
from t3lab.study.unlearned import fitted, training_of, unlearned, unlearned_key
from t3lab.world import bases
from t3lib.baselines.losses import METHODS, settings_of
from t3lib.classifier.head import T3Head
from t3lib.core.errors import Diverged, UserError
from t3lib.core.files import content_key, model_identity, read_json
from t3lib.core.models import load_model
from t3lib.core.rows import rendered
from t3lib.tofu.data import retain_of
from t3lib.tofu.evaluation import Report

OURS = ("gate", "tail", "untrained")  # T3's settings that the paper does not have


class Subject(NamedTuple):
    """One model of a method, as far as it is known without loading it.

    seed: of its training. key: its content key.
    T, w: T3's temperature and exponent, None for others.
    settings: of the training; for T3 all settings, T and w included; None for Original and
    Retrained, which no unlearning method trained.
    """

    method: str
    seed: int
    key: str
    settings: Mapping[str, Any] | None = None
    T: float | None = None
    w: float | None = None


def subject(
    study: Study,
    method: str,
    seed: int,
    settings: Mapping[str, Any],
    T: float | None = None,
) -> Subject:
    """Describe the model of a method for one seed.

    settings: of the method, where they differ from the defaults. T: of T3, by default that of the
    settings; its w is in the settings.
    seed: for Retrained, the seed of the retain base; 0 is the reference.

    Nothing is loaded or trained, except a retain base that is missing. UserError for an unknown
    method or setting, and for a retain base that cannot be trained.
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    if method == "Original":
        return Subject(method, 0, study.identity["full"])

    if method == "Retrained" and seed == 0:
        return Subject(method, 0, study.identity[retain_of(study.split)])
    if method == "Retrained":
        if (name := f"{retain_of(study.split)}-seed{seed}") in study.identity:
            return Subject(method, seed, study.identity[name])
        asked = rendered(study.tokenizer)
        key = content_key([model_identity(retrained(study, seed)), study.load_options, asked])
        return Subject(method, seed, key)

    key = unlearned_key(study, method, settings, seed)
    if method != "T3":
        return Subject(method, seed, key, settings)

    # settings of ours are in the key where they differ, so that older entries stay
    every, defaults = settings_of("T3", settings), settings_of("T3", {})
    T, w = float(every["temperature"] if T is None else T), float(every["w"])
    ours = {name: every[name] for name in OURS if every[name] != defaults[name]}
    key = content_key([key, T, w, *([ours] if ours else [])])

    return Subject(method, seed, key, every | {"temperature": T}, T, w)


def retrained(study: Study, seed: int) -> str:
    """Return the split's retain base of a seed, as a folder or Hub id.

    Seed 0 is the reference; others are trained if they are missing. UserError if the study's models
    were given, and none of this seed.
    """
    name = retain_of(study.split)
    given = study.models.get(f"{name}-seed{seed}" if seed else name)
    if given:
        return given
    if study.stage is None:
        raise UserError(f"Retrained: models were given, but none as {name}-seed{seed}")
    return str(bases.ensure_base(study.stage, name, seed=seed))


def load_models(study: Study, subjects: Sequence[Subject]) -> Loaded:
    """Load or train the models of some subjects.

    Any number of subjects of T3 gives the base with their tilts. For another method there must be
    only one subject.
    """
    [first, *_] = subjects
    if first.method == "Original":
        return Loaded(study.base, study.tokenizer)
    if first.method == "Retrained":
        name = retain_of(study.split) + (f"-seed{first.seed}" if first.seed else "")
        if name in study.models:
            return Loaded(*study.load(name))
        return Loaded(*load_model(retrained(study, first.seed), **study.load_options))
    if first.method != "T3":
        model = unlearned(study, first.method, first.settings or {}, first.seed)
        return Loaded(model, study.tokenizer)
    heads = fitted(study, [(each.settings or {}, each.seed) for each in subjects])
    pairs = zip(heads, subjects)
    tilts = [(dialled(head, each.settings or {}), each.T or 1.0) for head, each in pairs]
    return Loaded(study.base, study.tokenizer, tilts)


def dialled(head: T3Head, settings: Mapping[str, Any]) -> T3Head:
    """Return the head with the w (Remark 3.6), `gate` and `untrained` of T3's settings.

    It is a copy that shares the weights if one of them is another.
    """
    changes = {name: settings[name] for name in ("w", *OURS) if name in settings}
    if all(getattr(head, name) == value for name, value in changes.items()):
        return head
    other = copy.copy(head)
    vars(other).update(changes)
    return other


def evaluated(
    study: Study, models: Sequence[Subject], sets: Sequence[str] = (), generate: bool = True
) -> list[Report]:
    """Evaluate models with `Study.evaluate`; T3's share features and passes of the base.

    Diverged if a training diverges.
    """

    def ask(missing: list[int]) -> Loaded:
        return load_models(study, [models[n] for n in missing])

    return study.evaluate([each.key for each in models], ask, sets, generate)


def reports_of(
    study: Study, models: Sequence[Subject], sets: Sequence[str] = (), generate: bool = True
) -> list[Report | None]:
    """Evaluate models as `evaluated` does; None for each whose training diverged."""
    try:
        return [*evaluated(study, models, sets, generate)]
    except Diverged:
        lost = [cost_of(study, each)["error"] is not None for each in models]
        rest = [each for each, diverged in zip(models, lost) if not diverged]
        reports = iter(evaluated(study, rest, sets, generate) if rest else ())
        return [None if diverged else next(reports) for diverged in lost]


def cost_of(study: Study, model: Subject) -> dict[str, Any]:
    """Return the training cost of a model (`training_of`); for a retain base only its size, which
    is 0 where no script of ours made it.
    """
    if model.settings is not None:
        training = training_of(study, model.method, model.settings, model.seed)
        return training | ({"hyper": model.settings} if model.method == "T3" else {})
    trainable = 0
    if model.method == "Retrained" and model.seed:
        manifest = Path(retrained(study, model.seed), bases.MANIFEST)
        trainable = read_json(manifest)["parameters"] if manifest.is_file() else 0
    return {"hyper": {}, "trainable": trainable, "epochs": None, "seconds": {}, "error": None}
