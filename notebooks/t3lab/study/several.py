"""Run several methods on one split in one kernel, as notebooks 02 and 06 do.

The run files of a method are written as soon as it has ended. A method that fails does not stop the
others. What has been trained, scored or sampled is cached, so the next run of the notebook reads it
back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from t3lab.profiles import WORLD, hyper_of, one_line, or_smoke, parameter, seeds_of
from t3lab.results import Run, forget_peak_memory, made_with, write_audit, write_run
from t3lab.study.audit import Sampling, audit_method, dials_of
from t3lab.study.records import run_method
from t3lab.study.study import Study, open_study
from t3lib.core.errors import UserError
from t3lib.tofu import data as tofu

Runs = list[Run]
SAMPLING = TypeAdapter(Sampling)  # checks the types of its fields


@dataclass(frozen=True)
class Work:
    """What several methods share.

    study: one split, opened.
    world: what it was opened with: data, stage, models, evaluation, load and judge.
    settings: maps METHOD, METHOD/SPLIT or METHOD/SPLIT/T to settings, as a profile does.
    seeds: requested seeds of every method (see `profiles.seeds_of`).
    temperatures: values of T for T3, beside its tuned one.
    folder: the results folder.

    UserError for seeds or temperatures that are not lists of numbers.
    """

    study: Study
    world: Mapping[str, Any]
    settings: Mapping[str, dict[str, Any]]
    seeds: Sequence[int]
    temperatures: Sequence[float]
    folder: Path

    def __post_init__(self) -> None:
        parameter("seeds", self.seeds, [1, 2])
        parameter("temperatures", self.temperatures, [1.0, 2.5], empty=True)

    def run(self, methods: Sequence[str]) -> Runs:
        """Train and score the methods; write their run records and return them.

        RuntimeError as of `_each`.
        """

        def run(method: str) -> Runs:
            seeds, settings = seeds_of(method, self.seeds), self._settings(method)
            dials = dials_of(settings, self.temperatures) if method == "T3" else ()
            at = sorted({T for T, _ in dials})
            return list(
                run_method(
                    self.study,
                    method,
                    seeds=seeds,
                    settings=settings,
                    temperatures=at,
                    settings_by_t=self._settings_by_t(),
                )
            )

        return self._each(methods, run, write_run)

    def made(self, seeds: Sequence[int], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return `parameters` and `provenance` of run files.

        seeds, given: entries of `parameters`.
        """
        parameters = {name: self.world[name] for name in WORLD if name != "data"}
        parameters |= {"seeds": list(seeds), **given}
        return made_with(self.study.models["full"], self.world["data"], parameters)

    def _settings(self, method: str, T: float | None = None) -> dict[str, Any]:
        return hyper_of(self.settings, method, self.study.split, T)

    def _settings_by_t(self) -> dict[str, dict[str, Any]]:
        return {f"{T:g}": self._settings("T3", T) for T in self.temperatures}

    def _each(
        self,
        methods: Sequence[str],
        work: Callable[[str], Runs],
        write: Callable[[Path, Run], Any],
        given: Mapping[str, Any] | None = None,
    ) -> Runs:
        """Call work(method) for each method, and write the records that it returns.

        given: further entries of `parameters`. RuntimeError, after all methods were tried, with one
        line that names every method that failed.
        """
        parameter("methods", methods, ["T3"])
        records: Runs = []
        failed: dict[str, Exception] = {}

        for method in methods:
            forget_peak_memory()
            try:
                found = work(method)
            except Exception as error:
                failed[method] = error
                continue
            made = self.made(seeds_of(method, self.seeds), given or {})
            for record in found:
                write(self.folder / "runs", record | made)
            records += found

        if failed:
            lines = [f"{name}: {type(e).__name__}: {e}" for name, e in failed.items()]
            raise RuntimeError("; ".join(lines)) from next(iter(failed.values()))

        return records

    def audit(
        self,
        methods: Sequence[str],
        sampling: Mapping[str, Any],
        unseen_stage: Mapping[str, Any] | None = None,
    ) -> Runs:
        """Audit the methods; write their records, without sampled texts, and return them.

        sampling: fields of `audit.Sampling`; `seeds` are by default the first one only.
        unseen_stage: settings of a second stage, where they differ, whose base models leave some
        rows unseen.
        """
        apart = self.apart(unseen_stage)

        def audit(method: str) -> Runs:
            seeds, settings = seeds_of(method, self.seeds), self._settings(method)
            if method == "Retrained":  # 0 is the reference, others are given or of the stage
                retain, models = tofu.retain_of(self.study.split), self.study.models
                seeds = [s for s in seeds if self.study.stage or f"{retain}-seed{s}" in models]
                seeds = [0, *seeds]
            return list(
                audit_method(
                    self.study,
                    method,
                    seeds=seeds,
                    settings=settings,
                    dials=dials_of(settings, self.temperatures) if method == "T3" else (),
                    settings_by_t=self._settings_by_t(),
                    sampling=self.sampling(sampling),
                    apart=apart,
                )
            )

        given = {"unseen_stage": unseen_stage} if unseen_stage else {}
        return self._each(methods, audit, write_audit, given)

    def yardsticks(
        self, sampling: Mapping[str, Any], unseen_stage: Mapping[str, Any] | None = None
    ) -> Runs:
        """Audit the original model and the retrained reference; write nothing.

        Arguments as of `audit`.
        """
        how, apart = self.sampling(sampling), self.apart(unseen_stage)
        return [
            record
            for method in ("Original", "Retrained")
            for record in audit_method(
                self.study, method, seeds=[0], settings={}, sampling=how, apart=apart
            )
        ]

    def sampling(self, sampling: Mapping[str, Any]) -> Sampling:
        """Make `Sampling` from its fields in a profile, see `audit`."""
        parameter("sampling", sampling, {"samples": 8})
        try:
            return SAMPLING.validate_python({"seeds": self.seeds[:1], **sampling})
        except ValidationError as error:
            raise UserError(f"sampling: {one_line(error)}") from None

    def apart(self, unseen_stage: Mapping[str, Any] | None) -> Study | None:
        """Open the same split of the stage whose base models leave rows unseen.

        unseen_stage: as of `audit`. Returns None if it is empty.
        """
        if not unseen_stage:
            return None
        parameter("unseen_stage", unseen_stage, {"authors": 30})
        stage = {"models": {}, "stage": {**self.world["stage"], **unseen_stage}}
        return open_study(self.study.split, **or_smoke({**self.world, **stage}, {})[0])
