"""`t3 reproduce`: a profile's jobs on Dask, one status line each, resumable at any moment.

The futures are the graph: a job is submitted with the futures of the jobs it reads. What is finished is found out
before Dask is even imported, so that a second call only reads and hashes files.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from t3lib import profiles
from t3lib.errors import UserError
from t3lib.files import cache_dir, lock, project_root, shipped
from t3lib.grid import cluster, jobs, runner
from t3lib.grid import status as report
from t3lib.grid.jobs import Job
from t3lib.grid.runner import Outcome, Place

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
    """Run what is not finished of a profile; 0 when all of it is, 1 when something failed. UserError: bad input.

    only: notebooks; out: results folder, default results/PROFILE; workers, scheduler, slurm: where (see `cluster`);
    fresh: run everything again; notebooks: their folder, default the checkout's.
    """
    start = time.monotonic()
    root = project_root()
    chosen = profiles.override(profiles.load_profile(profile), data=data, methods=methods, splits=splits, seeds=seeds)
    folder = Path(out) if out is not None else root / "results" / chosen["name"]
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: a file is in the way")
    # The notebooks start in the root and record their parameters: relative paths keep this machine's folders out.
    shown = Path(os.path.relpath(folder, root) if folder.resolve().is_relative_to(root) else folder.resolve())
    place = Place(
        str(shown),
        str(os.path.relpath(notebooks or shipped("notebooks"), root)),
        str(cache_dir().resolve()),
        str(root),
        jobs.threads(),
        fresh,
        cluster.gpu_count() if scheduler is None and slurm is None else 0,
        warm=scheduler is None,
    )
    graph = jobs.build(_from_root(chosen, root), shown, only=only, folder=notebooks)
    known = {} if fresh else cached(graph, place)
    if dry_run:
        print(report.plan(graph, known, place, workers or cluster.default_workers()))
        return 0
    place.marks.mkdir(parents=True, exist_ok=True)
    try:
        with lock(place.marks / "lock", wait=False):
            known = {} if fresh else cached(graph, place)  # another run may just have finished
            outcomes = _all(graph, known, place, workers, scheduler, slurm)
            seconds = time.monotonic() - start
            whole = (only, methods, splits) == (None, None, None)
            return report.finish(graph, outcomes, place, chosen["name"], seconds, whole=whole)
    except UserError as error:
        if "in use by another" in str(error):
            raise UserError(
                f"{folder} is in use by another t3 reproduce: wait for it, or choose another --out"
            ) from None
        raise


def cached(graph: Sequence[Job], place: Place) -> dict[str, Outcome]:
    """Jobs whose markers hold and whose earlier jobs are all finished too."""
    known: dict[str, Outcome] = {}
    for job in graph:
        if all(name in known for name in job.after):
            before = [known[name] for name in job.after]
            if outcome := runner.finished(job, runner.run_key(job, before), place):
                known[job.name] = outcome
    return known


def _all(
    graph: Sequence[Job],
    known: dict[str, Outcome],
    place: Place,
    workers: int | None,
    scheduler: str | None,
    slurm: str | Path | None,
) -> dict[str, Outcome]:
    say = report.Lines(len(graph))
    for outcome in known.values():
        say(outcome)
    todo = [job for job in graph if job.name not in known]
    if not todo:
        return known
    if place.fresh:
        runner.forget_finished(place)
    with cluster.client_for(workers, scheduler, slurm) as client:
        return known | run(todo, known, place, client, say)


def run(
    todo: Sequence[Job], known: dict[str, Outcome], place: Place, client: Any, say: Any, work: Any = runner.execute
) -> dict[str, Outcome]:
    """Submit jobs to a Dask client and gather how each ended, in any order; `work` does one job (tests replace it).

    A job that runs with what there is (`partial`) is submitted when all before it have ended: Dask would pass it the
    error of a job whose workers died.
    """
    from distributed import as_completed

    run_id = uuid4().hex[:8]  # keys of another run on the same scheduler must not be ours
    futures: dict[str, Any] = {}
    names: dict[str, str] = {}
    outcomes = dict(known)
    waiting = [job for job in todo if job.partial]

    def submit(job: Job) -> Any:
        before = [futures.get(name, outcomes.get(name)) for name in job.after]
        if job.partial:
            before = [outcomes[name] for name in job.after]
        key = f"{job.name}-{run_id}"
        names[key] = job.name
        # a lost worker is Dask's to survive (three times); what a job itself does wrong comes back as an Outcome
        options = {"key": key, "resources": cluster.SLOT, "priority": -len(futures), "pure": False}
        futures[job.name] = client.submit(work, job, before, place, **options)
        return futures[job.name]

    try:
        ended = as_completed([submit(job) for job in todo if not job.partial], loop=client.loop)
        for job in [job for job in waiting if set(job.after) <= set(outcomes)]:
            waiting.remove(job)
            ended.add(submit(job))
        for future in ended:
            name = names[future.key]
            outcomes[name] = _settle(name, future, outcomes, todo)
            if outcomes[name].error != LOST:
                say(outcomes[name])
            for job in [job for job in waiting if set(job.after) <= set(outcomes)]:
                waiting.remove(job)
                ended.add(submit(job))
    except (OSError, TimeoutError, RuntimeError):  # the client cannot even be asked any more
        pass
    unfinished = [job.name for job in todo if job.name not in outcomes or outcomes[job.name].error == LOST]
    if unfinished:
        print(f"{LOST} ({len(unfinished)} jobs unfinished)", flush=True)
    return {job.name: outcomes.get(job.name, Outcome(job.name, "failed", error=LOST)) for job in todo}


def _settle(name: str, future: Any, outcomes: dict[str, Outcome], todo: Sequence[Job]) -> Outcome:
    """The Outcome of an ended future; a job whose workers died or whose scheduler left has failed."""
    if future.status == "finished":
        with suppress(OSError, TimeoutError):
            return future.result(timeout=60)
    if future.status in ("cancelled", "lost", "finished"):
        return Outcome(name, "failed", error=LOST)
    after = next(job.after for job in todo if job.name == name)
    causes = [
        outcomes[other] for other in after if other in outcomes and outcomes[other].state in ("failed", "skipped")
    ]
    if causes:
        return Outcome(name, "skipped", error=causes[0].name if causes[0].state == "failed" else causes[0].error)
    error = future.exception()
    return Outcome(name, "failed", error=f"{type(error).__name__}: {error}".splitlines()[0])


def _from_root(profile: dict[str, Any], root: Path) -> dict[str, Any]:
    """The profile with relative folders (as the caller sees them) turned into relative ones as the root sees them."""

    def seen(name: str) -> str:
        path = Path(name)
        return os.path.relpath(path, root) if path.is_dir() and not path.is_absolute() else name

    models = {name: seen(model) for name, model in profile["models"].items()}
    return profile | {"data": seen(profile["data"]), "models": models}
