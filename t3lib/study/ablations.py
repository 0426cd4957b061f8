"""T3 over temperatures (Table 5) and over its other choices: every setting one head training, one shared base pass."""

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from t3lib.settings import settings_of
from t3lib.study.methods import run_t3
from t3lib.study.study import Study

# setting -> what differs from the tuned T3; "temperature" fixes T where the setting is about T itself.
ABLATIONS: dict[str, dict[str, Any]] = {
    "tuned": {},
    "decay=l2": {"decay": "l2"},
    "init_b=zero": {"init_b": "zero"},
    "decay=l2,init_b=zero": {"decay": "l2", "init_b": "zero"},
    "prior=population": {"prior": "population"},
    "epoch=fixed": {"epoch": "fixed"},
    "T=1,w=1": {"temperature": 1.0},
    "T=1,w=2": {"temperature": 1.0, "w": 2.0},
    "T=1,w=5": {"temperature": 1.0, "w": 5.0},
    "T=1,w=20": {"temperature": 1.0, "w": 20.0},
}


def run_temperatures(
    study: Study,
    *,
    seeds: Sequence[int],
    temperatures: Sequence[float],
    hyper: Mapping[str, Any],
    hyper_by_t: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """T3 at every T, as Table 5: T's own hyperparameters (keyed by its text, "2.5") where they were tuned.

    Temperatures with equal hyperparameters share heads, and all of them the base pass.
    """
    settings = {T: dict(hyper) | dict((hyper_by_t or {}).get(format(float(T), "g"), {})) for T in temperatures}
    for own in settings.values():
        own.pop("temperature", None)

    def text(T: float) -> str:
        return repr(sorted(settings[T].items()))

    groups = [sorted(alike) for _, alike in groupby(sorted(temperatures, key=text), key=text)]
    runs = run_t3(study, [(settings[alike[0]], alike) for alike in groups], seeds=seeds)
    return sorted(chain.from_iterable(runs), key=lambda run: (run["T"], run["seed"]))


def run_ablations(study: Study, *, seeds: Sequence[int], hyper: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One run per (setting, seed), each with its `setting`; T is the tuned one unless the setting is about T."""
    changed = [(settings_of("T3", dict(hyper) | change), ()) for change in ABLATIONS.values()]
    made = run_t3(study, changed, seeds=seeds, text_seed=-1)
    return [run | {"setting": setting} for setting, runs in zip(ABLATIONS, made) for run in runs]
