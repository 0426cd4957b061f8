"""What `t3 reproduce` prints: the plan, a line for each job, a summary; and manifest.json."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from t3lab.grid.jobs import Job
from t3lab.grid.runner import Outcome, Place
from t3lib.core.errors import UserError, printable
from t3lib.core.files import project_root, read_json, write_json

STATES = ("done", "cached", "failed", "skipped")


def plan(graph: Sequence[Job], known: Mapping[str, Outcome]) -> str:
    """Return a line for each job, with its state and the jobs that it waits for."""
    lines = []
    for job in graph:
        after = ", ".join(job.after) if len(job.after) <= 4 else f"{len(job.after)} jobs"
        state = "cached" if job.name in known else "run"
        lines.append(f"{state:<6} {job.name:<44}{f'  after {after}' if after else ''}".rstrip())
    return "\n".join(lines)


def say(outcome: Outcome, count: int, total: int) -> None:
    """Print the line of a job that ended, the `count`-th of `total`, above the progress bar.

    Such as `[3/24] failed  02_tofu_unlearning--NPO--forget10  3.2 s  cell 7: loss = …`.
    """
    reason = "because of " * (outcome.state == "skipped") + outcome.error
    text = f"{outcome.state:<7} {outcome.name}  {outcome.seconds:.1f} s  {reason}".rstrip()
    with tqdm.external_write_mode():
        print(f"[{count:>{len(str(total))}}/{total}] {text}", flush=True)


def committed(profile: str) -> Path:
    """Return the folder of a profile's committed results; it may not exist."""
    return project_root() / "results" / "profiles" / profile


def finish(
    graph: Sequence[Job],
    outcomes: Mapping[str, Outcome],
    place: Place,
    profile: str,
    seconds: float,
) -> int:
    """Write manifest.json and print the last lines; return 0, or 1 if a job failed or was skipped.

    seconds: of the whole run.
    """
    out = Path(place.root) / place.out
    counts = {state: sum(o.state == state for o in outcomes.values()) for state in STATES}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    earlier = earlier_manifest(out / "manifest.json")
    entries = {job.name: _entry(job, outcomes[job.name]) for job in graph}
    manifest = {
        "profile": profile,
        "threads": int(place.threads),
        "jobs": earlier.get("jobs", {}) | entries,
    }
    if manifest != earlier:  # unchanged when all jobs were cached
        write_json(out / "manifest.json", manifest)
    tables = f"{place.out}/notebooks/05_paper_tables.ipynb"
    there = (Path(place.root) / tables).is_file()
    look = f"open {tables} in JupyterLab" if there else f"{place.out}/notebooks"
    print(f"{summary} in {seconds / 60:.1f} min: {look}", flush=True)
    return int(counts["failed"] + counts["skipped"] > 0)


def name_orphans(graph: Sequence[Job], outcomes: Mapping[str, Outcome], place: Place) -> None:
    """Print a line about files below runs/ that no job of a whole profile writes, if there are any.

    The tables show these as well, so a person should delete them. outcomes: by job. A finished job
    writes what its outcome names, and any other job whatever matches its patterns.
    """
    root = Path(place.root) / place.out
    finished = {name: o for name, o in outcomes.items() if o.state in ("done", "cached")}
    written = {root / name for outcome in finished.values() for name in outcome.outputs}
    patterns = [p for job in graph if job.name not in finished for p in job.outputs]
    written.update(path for pattern in patterns for path in root.glob(pattern))
    orphans = sorted({path for path in root.glob("runs/**/*") if path.is_file()} - written)
    if orphans:
        few = ", ".join(printable(str(path.relative_to(root))) for path in orphans[:3])
        more = ", …" * (len(orphans) > 3)
        print(f"no job of this profile writes (delete and run again): {few}{more}", flush=True)


def earlier_manifest(path: Path) -> dict[str, Any]:
    """Return the earlier manifest, {} if there is none.

    A run of some notebooks (`--only`) keeps its entries of other jobs.
    """
    with suppress(UserError, AttributeError):
        manifest = read_json(path)
        return manifest if isinstance(manifest.get("jobs", {}), dict) else {}
    return {}


def _entry(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Return a job's entry in the manifest; a cached job has the state and the time of its run."""
    entry = asdict(outcome) | {"after": list(job.after)}
    entry["state"] = "done" if outcome.state == "cached" else outcome.state
    return {
        name: value for name, value in entry.items() if name != "name" and value not in ("", {})
    }
