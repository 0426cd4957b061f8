"""`t3 reproduce`: run a profile's jobs on Dask and print one line for each.

Finished jobs are recognised first, so that a second call only reads and hashes files and starts no
cluster. An interrupted run continues with the same command.
"""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from t3lab import profiles
from t3lab.grid import cluster, jobs, runner, status
from t3lab.grid.jobs import Job
from t3lab.grid.runner import Outcome, Place
from t3lab.profiles import Profile
from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, content_key, lock, project_root


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
    fresh: bool = False,
    dry_run: bool = False,
    notebooks: Path | None = None,
) -> int:
    """Run the jobs of a profile that are not finished; return 0 if all are then, 1 if any failed.

    profile: name or file. only: names of notebooks.
    methods, splits, seeds, data: replace the profile's.
    out: results folder, by default out/PROFILE.
    workers, scheduler: number of workers on this machine, or address of a running Dask scheduler.
    fresh: run everything again. dry_run: only print what is cached and what would run.
    notebooks: their folder, by default the checkout's.

    A run of the whole profile also names the files below runs/ that no job writes.

    UserError for wrong arguments, for a profile that this machine cannot run, and if the results
    folder is in use or overlaps with the cache or the notebooks.
    """
    start = time.monotonic()
    if workers is not None and scheduler is not None:
        raise UserError("choose one of --workers and --scheduler")

    root, cache = project_root(), cache_dir().resolve()
    chosen = profiles.load_profile(profile)
    chosen = profiles.override(chosen, data=data, methods=methods, splits=splits, seeds=seeds)
    chosen = from_root(chosen, root)

    folder, sources = Path(out or root / "out" / chosen["name"]), notebooks or root / "notebooks"
    _check_apart(folder, cache, sources.resolve())
    # Notebooks start in the root and record their parameters, so paths relative to it do not show
    # this machine's folders.
    inside = folder.resolve().is_relative_to(root)
    shown = os.path.relpath(folder, root) if inside else str(folder.resolve())

    gpus = cluster.gpu_count() if scheduler is None else 0
    graph = jobs.build(
        chosen,
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

    outcomes = {} if fresh else cached(graph, place)
    todo = [job for job in graph if job.name not in outcomes]
    heading = (
        f"profile {chosen['name']}, {len(graph)} jobs: {len(outcomes)} cached, {len(todo)} to run,"
        f" into {shown}"
    )
    if dry_run:
        print(status.plan(graph, outcomes), heading, sep="\n")
        return 0

    if scheduler is None and any("world" in job.parameters for job in todo):
        from t3lab.grid import preflight  # imported here: the Hub's package takes long

        preflight.check_machine(chosen, root)

    count = cluster.worker_count(workers, int(place.threads))

    # The lock lies beside the results, because runs with different caches may share them.
    with lock(folder / ".lock", wait=False):
        shutil.rmtree(private, ignore_errors=True)
        for job in graph if fresh else ():
            (place.marks / f"{job.name}.json").unlink(missing_ok=True)
        print(heading, flush=True)
        if todo:
            place.marks.mkdir(parents=True, exist_ok=True)
            with cluster.client_for(count, scheduler) as client:
                at_once = len(todo) if scheduler else count  # elsewhere workers come and go
                outcomes |= cluster.run(todo, outcomes, place, client, at_once)
        seconds = time.monotonic() - start
        code = status.finish(graph, outcomes, place, chosen["name"], seconds)
        if (only, methods, splits, seeds) == (None, None, None, None):
            status.name_orphans(graph, outcomes, place)

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


def from_root(profile: Profile, root: Path) -> Profile:
    """Return the profile with its relative folders written as seen from the root.

    Before, they are as seen from the current folder.
    """

    def seen(name: str) -> str:
        path = Path(name)
        return os.path.relpath(path, root) if path.is_dir() and not path.is_absolute() else name

    models = {name: seen(model) for name, model in profile["models"].items()}
    return profile | {"data": seen(profile["data"]), "models": models}
