"""What `t3 reproduce` says: the plan, a bar, a line for each job, and manifest.json."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from t3lib.core.errors import UserError, printable
from t3lib.core.files import project_root, read_json, write_json
from t3lib.lab.grid.jobs import Job
from t3lib.lab.grid.runner import Outcome, Place

STATES = ("done", "cached", "failed", "skipped")


@dataclass
class Schedule:
    """The jobs that a run still has to do (`left`), and how long each took by the last manifest.

    The manifest is the one in the results folder, or else the committed one. Its seconds are
    multiplied by `pace`, which is how long the jobs of this run took compared with them. `chain`
    adds to a job's seconds those of the longest chain of jobs that wait for it.
    """

    graph: Sequence[Job]
    known: Mapping[str, Outcome]
    place: Place
    workers: int
    profile: str

    def __post_init__(self) -> None:
        self.left = [job for job in self.graph if job.name not in self.known]
        self.seconds: dict[str, float] = {}
        self.took: dict[str, float] = {}  # in this run, by the jobs that `seconds` has
        self.begun, self.pace = dict[str, float](), 1.0
        self.bar: Any = None
        for folder in (committed(self.profile), Path(self.place.root) / self.place.out):
            entries = earlier_manifest(folder / "manifest.json").get("jobs", {}).items()
            done = {name: entry for name, entry in entries if entry.get("state") == "done"}
            self.seconds |= {name: entry["seconds"] for name, entry in done.items()}
        self.chain: dict[str, float] = {}
        for job in reversed(self.graph):
            waiting = (self.chain[later.name] for later in self.graph if job.name in later.after)
            self.chain[job.name] = self.seconds.get(job.name, 0.0) + max(waiting, default=0.0)

    def rest(self) -> float:
        """Return the seconds of work that are left; jobs without a time count nothing."""
        now, rest = time.monotonic(), 0.0
        for name in (job.name for job in self.left if job.name in self.seconds):
            whole = self.pace * self.seconds[name]
            rest += max(whole - (now - self.begun.get(name, now)), 0.05 * whole)
        return rest

    def remaining(self) -> str:
        """Return the time that the jobs left will take with all workers, such as "at least 5 min".

        It says "at least" if some of them have no known time, and "unknown" if all have none.
        """
        known = sum(job.name in self.seconds for job in self.left)
        if self.left and not known:
            return "unknown"
        return "at least " * (known < len(self.left)) + _clock(self.rest() / self.workers)

    def __str__(self) -> str:
        count = len(self.left)
        return (
            f"profile {self.profile}, {len(self.graph)} jobs: {len(self.graph) - count} cached,"
            f" {count} to run, into {self.place.out}\nestimate: {self.remaining()} ({self.workers}"
            f" worker{'s' * (self.workers > 1)})"
        )

    def plan(self) -> str:
        """Return a line for each job, with its state and the jobs that it waits for."""
        lines = []
        for job in self.graph:
            after = ", ".join(job.after) if len(job.after) <= 4 else f"{len(job.after)} jobs"
            state = "run" if job in self.left else "cached"
            lines.append(f"{state:<6} {job.name:<44}{f'  after {after}' if after else ''}".rstrip())
        return "\n".join([*lines, str(self)])

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar that moves every second, on a terminal, while the block runs."""
        from t3lib.core.progress import progress_bar

        over, start = Event(), time.monotonic()
        form = "{percentage:3.0f}%|{bar:30}| {elapsed}{postfix}"
        with progress_bar(total=1.0, leave=False, bar_format=form) as self.bar:

            def tick() -> None:
                while not over.wait(1.0):
                    spent, left = time.monotonic() - start, self.rest() / self.workers
                    self.bar.n = left and spent / (spent + left)
                    self.bar.set_postfix_str(f"{self.remaining()} left")

            Thread(target=tick, daemon=True).start()
            try:
                yield
            finally:
                over.set()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.clear()
        print(text, flush=True)

    def started(self, name: str) -> None:
        """Print that a job began on a worker."""
        self.begun[name] = time.monotonic()
        self.say(f"started {name}")

    def ended(self, outcome: Outcome) -> None:
        """Print the line of a job that ended, and the time that the others will take."""
        self.left = [job for job in self.left if job.name != outcome.name]
        if outcome.state == "done" and outcome.name in self.seconds:
            self.took[outcome.name] = outcome.seconds
            usual = sum(self.seconds[name] for name in self.took)
            self.pace = sum(self.took.values()) / usual if usual else 1.0
        count, rest = len(self.graph), f"  {self.remaining()} left" * bool(self.left)
        place = f"[{count - len(self.left):>{len(str(count))}}/{count}]"
        self.say(f"{place} {line(outcome)}{rest}")


def committed(profile: str) -> Path:
    """Return the folder of a profile's committed results; it may not exist."""
    return project_root() / "results" / profile


def line(outcome: Outcome) -> str:
    """Return a job's line: `failed  02_tofu_unlearning--NPO--forget10  3.2 s  cell 7: loss = …`."""
    because = "because of " * (outcome.state == "skipped")
    reason = because + ": ".join(filter(None, (outcome.cell, outcome.error)))
    return f"{outcome.state:<7} {outcome.name}  {outcome.seconds:.1f} s  {reason}".rstrip()


def finish(
    schedule: Schedule, outcomes: Mapping[str, Outcome], place: Place, seconds: float, whole: bool
) -> int:
    """Write manifest.json and print the last lines; return 0, or 1 if a job failed or was skipped.

    seconds: of the whole run. whole: True if the graph is all of the profile's and the cache had no
    models and scores before. If no job was cached either, the manifest records the seconds as those
    of a run from nothing.
    """
    out = Path(place.root) / place.out
    counts = {state: sum(o.state == state for o in outcomes.values()) for state in STATES}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    earlier = earlier_manifest(out / "manifest.json")
    entries = {job.name: _entry(job, outcomes[job.name]) for job in schedule.graph}
    cold = earlier.get("cold")
    if whole and counts["done"] == len(entries):
        cold = _cold(schedule.graph, outcomes, seconds)
    manifest = {
        "profile": schedule.profile,
        "threads": int(place.threads),
        "cold": cold,
        "jobs": earlier.get("jobs", {}) | entries,
    }
    if manifest != earlier:  # unchanged when all jobs were cached
        write_json(out / "manifest.json", manifest)
    page = "index.html" if (out / "index.html").is_file() else "manifest.json"
    print(f"{summary} in {_clock(seconds)}: {place.out}/{page}", flush=True)
    theirs = committed(schedule.profile)
    if (theirs / "tables").is_dir() and out.resolve() != theirs.resolve():
        print(f"beside the committed results: t3 compare {place.out}", flush=True)
    return int(counts["failed"] + counts["skipped"] > 0)


def orphans(
    graph: Sequence[Job], outcomes: Mapping[str, Outcome], place: Place, others: Sequence[str]
) -> list[str]:
    """Return the files below runs/ that no job of a whole profile writes.

    outcomes: by job. A finished job writes what its outcome names, and any other job whatever
    matches its patterns. others: patterns of what is written on request.
    """
    root = Path(place.root) / place.out
    finished = {name: o for name, o in outcomes.items() if o.state in ("done", "cached")}
    written = {root / name for outcome in finished.values() for name in outcome.outputs}
    patterns = [p for job in graph if job.name not in finished for p in job.outputs]
    written.update(path for pattern in (*patterns, *others) for path in root.glob(pattern))
    found = (path for path in root.glob("runs/**/*") if path.is_file() and path not in written)
    return sorted(str(path.relative_to(root)) for path in found)


def told(names: Sequence[str], profile: str, what: str) -> str:
    """Return a line with the first three of some orphans and what becomes of them."""
    files = f"{len(names)} file{'s' * (len(names) > 1)} below runs/"
    few = ", ".join(map(printable, names[:3])) + ", …" * (len(names) > 3)
    return f"{files} that no job of profile {profile} writes {what}: {few}"


def earlier_manifest(path: Path) -> dict[str, Any]:
    """Return the earlier manifest, {} if there is none.

    A run of some notebooks (`--only`) keeps its entries of other jobs.
    """
    with suppress(UserError, AttributeError):
        manifest = read_json(path)
        return manifest if isinstance(manifest.get("jobs", {}), dict) else {}
    return {}


def _clock(seconds: float) -> str:
    """Return seconds as text, in minutes from 100 s on."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _entry(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Return a job's entry in the manifest; a cached job has the state and the time of its run."""
    entry = asdict(outcome) | {"after": list(job.after)}
    entry["state"] = "done" if outcome.state == "cached" else outcome.state
    return {
        name: value for name, value in entry.items() if name != "name" and value not in ("", {})
    }


def _cold(graph: Sequence[Job], outcomes: Mapping[str, Outcome], seconds: float) -> dict[str, Any]:
    """Return the seconds of a run from nothing, and the workers' seconds by notebook or "base"."""
    busy: dict[str, float] = {}
    for job in graph:
        kind = job.notebook or job.kind
        busy[kind] = round(busy.get(kind, 0.0) + outcomes[job.name].seconds, 1)
    seeds = max((job.parameters.get("seeds", []) for job in graph), key=len)
    return {
        "jobs": len(graph),
        "seeds": seeds,
        "seconds": round(seconds, 1),
        "worker_seconds": busy,
    }
