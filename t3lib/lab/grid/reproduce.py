"""`t3 reproduce`: run a profile's jobs on Dask and print one line for each.

A job is submitted when the jobs that it reads have ended. Finished jobs are recognised before Dask
is imported, so that a second call only reads and hashes files. An interrupted run continues with
the same command.
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
    """Run the jobs of a profile that are not finished; return 0 if all are then, 1 if any failed.

    profile: name or file. only: names of notebooks.
    methods, splits, seeds, data: replace the profile's.
    out: results folder, by default out/PROFILE.
    workers, scheduler, slurm: where to run, see `cluster`; at most one of them.
    fresh: run everything again. dry_run: only print what is cached and what would run.
    notebooks: their folder, by default the checkout's.

    A run of the whole profile in which every job succeeds also removes the files below runs/ that
    no job writes, and makes again what was made of them.

    UserError for wrong arguments, for a profile that this machine cannot run, and if the results
    folder is in use or overlaps with the cache or the notebooks.
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
    # Notebooks start in the root and record their parameters, so paths relative to it do not show
    # this machine's folders.
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
    private = cache / "fresh" / name  # for --fresh, so that the common cache stays
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
    all_jobs = (only, methods, splits, seeds) == (None, None, None, None)
    others = jobs.on_request(chosen, sources)
    if dry_run:
        print(Schedule(graph, known, place, count, chosen["name"]).plan())
        if orphans := status.orphans(graph, known, place, others) if all_jobs else []:
            print(status.told(orphans, chosen["name"], "would be removed"))
        return 0
    if local and any("world" in job.parameters for job in graph if job.name not in known):
        from t3lib.lab.grid import (
            preflight,
        )  # imported here: the Hub's package takes long

        preflight.check_machine(from_root(chosen, root), root)
    with lock(
        folder / ".lock", wait=False
    ):  # beside the results, because runs with different caches may share them
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
            with cluster.client_for(count, scheduler, slurm) as client, schedule.shown():
                here = scheduler is None and slurm is None
                at_once = count if here else len(todo)  # elsewhere workers come and go
                outcomes |= run(todo, outcomes, place, client, schedule, at_once)
        code = status.finish(schedule, outcomes, place, time.monotonic() - start, whole)
        orphans = status.orphans(graph, outcomes, place, others) if all_jobs else []
        what = "stay until all jobs succeed" if code else "were removed"
        if orphans:
            print(status.told(orphans, chosen["name"], what), flush=True)
        for name in orphans if code == 0 else ():
            (folder / name).unlink()
    if orphans and code == 0:
        return reproduce(
            profile,
            data=data,
            out=out,
            workers=workers,
            scheduler=scheduler,
            slurm=slurm,
            notebooks=notebooks,
        )
    return code


def _check_apart(folder: Path, *others: Path) -> None:
    """Raise UserError if the results folder is a file or overlaps with another folder."""
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
    """Return the outcomes of finished jobs whose earlier jobs are finished too, by name."""
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
    """Submit each job to a Dask client when the jobs before it have ended; return all outcomes.

    todo: jobs in an order in which they can run. known: outcomes of finished jobs.
    show: a `Schedule`, or what has its `chain`, `started` and `ended`. Of the jobs that can start,
    the one with the longest chain starts first, so that no worker ends with a long job.
    at_once: how many jobs Dask may hold. It gives each to a worker immediately, so that with more
    jobs than workers one worker may have two while another has none.
    work: runs one job; tests replace it.
    """
    from distributed import as_completed

    run_id = uuid4().hex[:8]  # so that two runs on one scheduler have different keys
    outcomes, waiting = dict(known), list(todo)
    running = as_completed(loop=client.loop)
    jobs_of: dict[str, Job] = {}  # by Dask's key

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
            # Dask submits a job again when its worker is lost, up to three times. Errors of the job
            # itself come back as an Outcome.
            options = {"key": key, "resources": cluster.SLOT, "pure": False}
            priority = show.chain.get(job.name, 0.0)
            running.add(client.submit(work, job, before, place, priority=priority, **options))

    with suppress(OSError, TimeoutError, RuntimeError):  # the connection is gone
        client.subscribe_topic(place.marks.name, lambda event: show.started(event[1]))
        start()
        for future in running:
            if future.status in ("lost", "pending"):  # its worker died; Dask runs it again
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
    """Return the failed jobs because of which a later job cannot run, [] if it can.

    before: outcomes of the jobs that it reads. partial: see `Role`.
    """
    failed = [o for o in before if o.state in ("failed", "skipped")]
    if partial and len(failed) < len(before):
        return []
    return [o.name if o.state == "failed" else o.error for o in failed]


def _outcome(job: Job, future: Any) -> Outcome:
    """Return the outcome of a job whose future has ended.

    A job fails if Dask gave it up, and with the error LOST if the scheduler is gone.
    """
    error = LOST
    with suppress(OSError, TimeoutError):
        if future.status == "finished":
            return future.result(timeout=60)
        if future.status == "error":
            error = f"{type(future.exception()).__name__}: {future.exception()}".splitlines()[0]
    return Outcome(job.name, "failed", error=error)


def from_root(profile: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the profile with its relative folders written as seen from the root.

    Before, they are as seen from the current folder.
    """

    def seen(name: str) -> str:
        path = Path(name)
        return os.path.relpath(path, root) if path.is_dir() and not path.is_absolute() else name

    models = {name: seen(model) for name, model in profile["models"].items()}
    return profile | {"data": seen(profile["data"]), "models": models}
