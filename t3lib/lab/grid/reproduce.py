"""`t3 reproduce`: a profile's jobs on Dask, one status line each, resumable at any moment.

A job is submitted when the jobs that it reads have ended. What is finished is found out before Dask
is even imported, so that a second call only reads and hashes files.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, content_key, lock, project_root, shipped
from t3lib.lab import profiles
from t3lib.lab.grid import cluster, jobs, runner, status
from t3lib.lab.grid.jobs import Job
from t3lib.lab.grid.runner import Outcome, Place
from t3lib.lab.grid.status import Schedule

LOST = "the scheduler went away; run the same command again to go on"


def reproduce(
    profile: str | Path = "cpu",
    *,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    data: str | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    slurm: str | Path | None = None,
    fresh: bool = False,
    dry_run: bool = False,
    notebooks: Path | None = None,
) -> int:
    """Run what is not finished of a profile; 0 when all of it is, 1 when something failed.
    UserError: bad input.

    only: notebooks; out: results folder, default out/PROFILE; workers, scheduler, slurm: where (see
    `cluster`);
    fresh: run everything again; notebooks: their folder, default the checkout's.
    """
    start = time.monotonic()
    if sum(option is not None for option in (workers, scheduler, slurm)) > 1:
        raise UserError("choose one of --workers, --scheduler and --slurm")
    chosen = profiles.override(
        profiles.load_profile(profile), data=data, methods=methods, splits=splits, seeds=seeds
    )
    root, cache = project_root(), cache_dir().resolve()
    folder, sources = Path(out or root / "out" / chosen["name"]), notebooks or shipped("notebooks")
    _check_apart(folder, cache, sources.resolve())
    # The notebooks start in the root and record their parameters: relative paths keep this
    # machine's folders out.
    inside = folder.resolve().is_relative_to(root)
    shown = os.path.relpath(folder, root) if inside else str(folder.resolve())
    local = scheduler is None and slurm is None
    gpus = cluster.gpu_count() if local else 0
    graph = jobs.build(
        from_root(chosen, root),
        Path(shown),
        only=only,
        folder=sources,
        tuned=profiles.tuned_path(profile),
        device="cuda" if gpus else "cpu",
    )
    name = f"{folder.resolve().name}-{content_key(str(folder.resolve()))}"
    private = cache / "fresh" / name  # for --fresh: what others read stays
    place = Place(
        out=shown,
        notebooks=os.path.relpath(sources, root),
        cache=str(private if fresh else cache),
        marks=cache / "done" / name,
        root=str(root),
        threads=jobs.threads(),
        gpus=gpus,
        wide=bool(chosen["models"]),
    )
    count = cluster.worker_count(workers, int(place.threads))
    known = {} if fresh else cached(graph, place)
    if dry_run:
        print(Schedule(graph, known, place, count, chosen["name"]).plan())
        return 0
    if local and any("world" in job.parameters for job in graph if job.name not in known):
        from t3lib.lab.grid import (
            preflight,
        )  # with the Hub's package, which a finished profile need not wait for

        preflight.check_machine(from_root(chosen, root), root)
    with lock(
        folder / ".lock", wait=False
    ):  # beside the results, which runs with two caches may share
        shutil.rmtree(private, ignore_errors=True)
        for job in graph if fresh else ():
            (place.marks / f"{job.name}.json").unlink(missing_ok=True)
        computed = any(Path(place.cache, kind).is_dir() for kind in ("bases", "scores"))
        whole = (only, methods, splits) == (None, None, None) and not computed
        outcomes = cached(graph, place)
        schedule = Schedule(graph, outcomes, place, count, chosen["name"])
        print(schedule, flush=True)
        if todo := schedule.left:
            place.marks.mkdir(parents=True, exist_ok=True)
            with cluster.client_for(count, scheduler, slurm) as client:
                here = scheduler is None and slurm is None
                at_once = count if here else len(todo)  # elsewhere workers come and go
                outcomes |= run(todo, outcomes, place, client, schedule, at_once)
        return status.finish(schedule, outcomes, place, time.monotonic() - start, whole)


def _check_apart(folder: Path, *others: Path) -> None:
    """UserError when the results folder is a file, or overlaps with a folder that the run reads or
    clears.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: a file is in the way")
    results = folder.resolve()
    for other in others:
        if results.is_relative_to(other) or other.is_relative_to(results):
            raise UserError(
                f"--out {folder}: results must lie apart from {other}, neither inside it nor"
                " around it"
            )


def cached(graph: Sequence[Job], place: Place) -> dict[str, Outcome]:
    """Jobs whose markers hold and whose earlier jobs are all finished too."""
    known: dict[str, Outcome] = {}
    for job in graph:
        if all(name in known for name in job.after):
            if outcome := runner.finished(job, runner.run_key(job, place), place):
                known[job.name] = outcome
    return known


def run(
    todo: Sequence[Job],
    known: Mapping[str, Outcome],
    place: Place,
    client: Any,
    show: Any,
    at_once: int,
    work: Any = runner.execute,
) -> dict[str, Outcome]:
    """Submit jobs to a Dask client, each when those before it have ended, and gather how they end.

    show: has `chain` (name -> how long it and the longest chain of jobs behind it took last time)
    and `ended(outcome)`, as `Schedule`. Of the jobs that could start, the one with the longest
    chain does, so that no worker is left with a long job at the end. at_once: how many Dask may
    hold; it gives each to a worker at once, which then has two while another has none. work: does
    one job (tests replace it).
    """
    from distributed import as_completed

    run_id = uuid4().hex[:8]  # keys of another run on the same scheduler must not be ours
    outcomes, waiting = dict(known), list(todo)
    running = as_completed(loop=client.loop)
    jobs_of: dict[str, Job] = {}  # Dask's key -> job

    def end(outcome: Outcome) -> None:
        outcomes[outcome.name] = outcome
        show.ended(outcome)

    def start() -> None:
        for job in sorted(waiting, key=lambda job: -show.chain.get(job.name, 0.0)):
            if not outcomes.keys() >= {*job.after} or running.count() >= at_once:
                continue
            waiting.remove(job)
            before = [outcomes[name] for name in job.after]
            if missing := causes(before, job.partial):
                end(Outcome(job.name, "skipped", error=missing[0]))
                continue
            key = f"{job.name}-{run_id}"
            jobs_of[key] = job
            # a lost worker is Dask's to survive (three times); what a job itself does wrong comes
            # back as an Outcome
            options = {"key": key, "resources": cluster.SLOT, "pure": False}
            priority = show.chain.get(job.name, 0.0)
            running.add(client.submit(work, job, before, place, priority=priority, **options))

    with suppress(OSError, TimeoutError, RuntimeError):  # the client cannot even be asked any more
        client.subscribe_topic(
            place.marks.name, lambda event: print(f"started {event[1]}", flush=True)
        )
        start()
        for future in running:
            if future.status in ("lost", "pending"):  # its worker died, and Dask does it again
                running.add(future)
                continue
            outcome = _outcome(jobs_of[future.key], future)
            if outcome.error == LOST:
                break
            end(outcome)
            start()
    if unfinished := [job.name for job in todo if job.name not in outcomes]:
        print(f"{LOST} ({len(unfinished)} jobs unfinished)", flush=True)
    lost = {name: Outcome(name, "failed", error=LOST) for name in unfinished}
    return {job.name: (outcomes | lost)[job.name] for job in todo}


def causes(before: Sequence[Outcome], partial: bool) -> list[str]:
    """The failed jobs for which a job that comes after these cannot run; partial: see `Role`."""
    failed = [o for o in before if o.state in ("failed", "skipped")]
    if partial and len(failed) < len(before):
        return []
    return [o.name if o.state == "failed" else o.error for o in failed]


def _outcome(job: Job, future: Any) -> Outcome:
    """How an ended future's job ended; it failed when its workers died or the scheduler left."""
    error = LOST
    with suppress(OSError, TimeoutError):
        if future.status == "finished":
            return future.result(timeout=60)
        if future.status == "error":
            error = f"{type(future.exception()).__name__}: {future.exception()}".splitlines()[0]
    return Outcome(job.name, "failed", error=error)


def from_root(profile: dict[str, Any], root: Path) -> dict[str, Any]:
    """The profile with relative folders (as the caller sees them) turned into relative ones as the
    root sees them.
    """

    def seen(name: str) -> str:
        path = Path(name)
        return os.path.relpath(path, root) if path.is_dir() and not path.is_absolute() else name

    models = {name: seen(model) for name, model in profile["models"].items()}
    return profile | {"data": seen(profile["data"]), "models": models}
