"""What `t3 reproduce` says: the plan, a line per job, report.md and manifest.json in the results
folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root, read_json, write_json
from t3lib.lab.grid.jobs import Job
from t3lib.lab.grid.runner import Outcome, Place

STATES = ("done", "cached", "failed", "skipped")


class Schedule:
    """Jobs that a run has to do; how long each takes is what the last manifest says, here or
    committed.
    """

    def __init__(
        self,
        graph: Sequence[Job],
        known: Mapping[str, Outcome],
        place: Place,
        workers: int,
        profile: str,
    ) -> None:
        self.graph, self.workers, self.profile, self.out = graph, workers, profile, place.out
        self.left = [job for job in graph if job.name not in known]
        self.seconds: dict[str, float] = {}
        for folder in (committed(profile), Path(place.root) / place.out):
            entries = earlier_manifest(folder / "manifest.json").get("jobs", {})
            self.seconds |= {
                name: entry["seconds"]
                for name, entry in entries.items()
                if entry.get("state") == "done"
            }

    def remaining(self) -> str:
        """Time for what is left, shared by all workers; jobs without a time count nothing and add
        "at least".
        """
        times = [self.seconds.get(job.name) for job in self.left]
        known = [time for time in times if time is not None]
        at_least = "at least " * (len(known) < len(times))
        return f"{at_least}{_clock(sum(known) / self.workers)}" if known or not times else "unknown"

    def __str__(self) -> str:
        count = len(self.left)
        return (
            f"profile {self.profile}, {len(self.graph)} jobs: {len(self.graph) - count} cached,"
            f" {count} to run, into {self.out}\nestimate: {self.remaining()} ({self.workers}"
            f" worker{'s' * (self.workers > 1)})"
        )

    def plan(self) -> str:
        """The graph: what is cached, what will run and after what."""
        left = {job.name for job in self.left}
        lines = []
        for job in self.graph:
            after = ", ".join(job.after) if len(job.after) <= 4 else f"{len(job.after)} jobs"
            state = "run" if job.name in left else "cached"
            lines.append(f"{state:<6} {job.name:<44}{f'  after {after}' if after else ''}".rstrip())
        return "\n".join([*lines, str(self)])

    def ended(self, outcome: Outcome) -> None:
        """Print the line of a job that ended, and how long the others may take."""
        self.left = [job for job in self.left if job.name != outcome.name]
        count = len(self.graph)
        rest = f"  {self.remaining()} left" if self.left else ""
        print(
            f"[{count - len(self.left):>{len(str(count))}}/{count}] {line(outcome)}{rest}",
            flush=True,
        )


def committed(profile: str) -> Path:
    """Folder of the results that come with the project; not every profile has one."""
    return project_root() / "results" / profile


def line(outcome: Outcome) -> str:
    """`failed  02_tofu_unlearning--NPO--forget10  3.2 s  cell 7: loss = 1 / 0: ZeroDivisionError:
    …`
    """
    return (
        f"{outcome.state:<7} {outcome.name}  {outcome.seconds:.1f} s  {_reason(outcome)}".rstrip()
    )


def finish(
    graph: Sequence[Job],
    outcomes: Mapping[str, Outcome],
    place: Place,
    profile: str,
    seconds: float,
    *,
    whole: bool = True,
) -> int:
    """Write report.md and manifest.json, print the last line; 0, or 1 when something failed or was
    skipped.

    whole: the graph is all of the profile's and the cache held no models and scores before, so that
    the seconds, with no job cached, are those of a run from nothing.
    """
    out = Path(place.root) / place.out
    counts = {state: sum(o.state == state for o in outcomes.values()) for state in STATES}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    earlier = earlier_manifest(out / "manifest.json")
    entries = earlier.get("jobs", {}) | {job.name: _entry(job, outcomes[job.name]) for job in graph}
    # What a run from nothing costs is known only where no job was cached.
    cold = (
        _cold(graph, entries, seconds)
        if whole and counts["done"] == len(graph)
        else earlier.get("cold")
    )
    manifest = {"profile": profile, "threads": int(place.threads), "cold": cold, "jobs": entries}
    if manifest != earlier:  # a mere check leaves the files, and git, alone
        write_json(out / "manifest.json", manifest)
        with atomic_write(out / "report.md") as handle:
            handle.write(_markdown(graph, outcomes, f"{profile}: {summary}"))
    page = next(
        (name for name in ("index.html", "report.md") if (out / name).is_file()), "report.md"
    )
    print(f"{summary} in {_clock(seconds)}: {place.out}/{page}", flush=True)
    if (committed(profile) / "tables").is_dir() and out.resolve() != committed(profile).resolve():
        print(f"beside the committed results: t3 compare {place.out}", flush=True)
    return 1 if counts["failed"] or counts["skipped"] else 0


def earlier_manifest(path: Path) -> dict[str, Any]:
    """An earlier manifest, {} when there is none: a run of some notebooks (`--only`) leaves what
    the others left.
    """
    try:
        manifest = read_json(path) if path.is_file() else {}
        return manifest if isinstance(manifest.get("jobs", {}), dict) else {}
    except (UserError, AttributeError):
        return {}


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _reason(outcome: Outcome) -> str:
    if outcome.state == "skipped":
        return f"because of {outcome.error}"
    return ": ".join(filter(None, (outcome.cell, outcome.error)))


def _entry(job: Job, outcome: Outcome) -> dict[str, Any]:
    state = "done" if outcome.state == "cached" else outcome.state
    entry: dict[str, Any] = {
        "state": state,
        "key": outcome.key,
        "seconds": outcome.seconds,
        "after": list(job.after),
    }
    if outcome.state in ("failed", "skipped"):
        return entry | {
            "because" if state == "skipped" else "error": outcome.error,
            "cell": outcome.cell,
        }
    return entry | {"outputs": outcome.outputs}


def _cold(graph: Sequence[Job], entries: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the whole took on the clock, and the workers' seconds by kind of job: "base" or a
    notebook's name.
    """
    busy: dict[str, float] = {}
    for job in graph:
        kind = job.notebook or job.kind
        busy[kind] = round(busy.get(kind, 0.0) + entries[job.name]["seconds"], 1)
    seeds: list[int] = max(
        (job.parameters.get("seeds", []) for job in graph if job.notebook), key=len, default=[]
    )
    return {
        "jobs": len(graph),
        "seeds": seeds,
        "seconds": round(seconds, 1),
        "worker_seconds": busy,
    }


def _markdown(graph: Sequence[Job], outcomes: Mapping[str, Outcome], title: str) -> str:
    """The report: counts, then every job with its notebook linked, failures with their cell and
    line.
    """
    rows = [f"# {title}", "", "| job | state | seconds | what happened |", "|---|---|---:|---|"]
    for job in graph:
        outcome = outcomes[job.name]
        copy = {"done": ".ipynb", "cached": ".ipynb", "failed": ".partial.ipynb"}.get(outcome.state)
        name = (
            f"[{job.name}](notebooks/{job.name}{copy})"
            if copy and job.kind == "notebook"
            else job.name
        )
        note = _reason(outcome).replace("|", r"\|")
        rows.append(f"| {name} | {outcome.state} | {outcome.seconds:.1f} | {note} |")
    return "\n".join(rows) + "\n"
