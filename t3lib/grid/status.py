"""What `t3 reproduce` says: the plan, a line per job, report.md and manifest.json in the results folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t3lib.errors import UserError
from t3lib.files import atomic_write, read_json, write_json
from t3lib.grid.jobs import Job
from t3lib.grid.runner import Outcome, Place, read_mark


class Lines:
    """Prints one line per ended job, counting them."""

    def __init__(self, total: int) -> None:
        self.total, self.ended = total, 0

    def __call__(self, outcome: Outcome) -> None:
        self.ended += 1
        print(f"[{self.ended:>{len(str(self.total))}}/{self.total}] {line(outcome)}", flush=True)


def line(outcome: Outcome) -> str:
    """`failed  02_tofu_unlearning--NPO--forget10  3.2 s  cell 7: loss = 1 / 0: ZeroDivisionError: …`"""
    why = f"because of {outcome.error}" if outcome.state == "skipped" else ": ".join(filter(None, _why(outcome)))
    return f"{outcome.state:<7} {outcome.name}  {outcome.seconds:.1f} s  {why}".rstrip()


def _why(outcome: Outcome) -> tuple[str, str]:
    return outcome.cell, outcome.error


def plan(graph: Sequence[Job], known: Mapping[str, Outcome], place: Place, workers: int) -> str:
    """The graph: what is cached, what will run, after what, and how long it took when it last ran."""
    lines, seconds = [], 0.0
    ends: dict[str, float] = {}
    unknown = 0
    for job in graph:
        mark = read_mark(place.marks / f"{job.name}.json")
        last = mark["seconds"] if mark else None
        state = "cached" if job.name in known else "run"
        cost = 0.0 if state == "cached" else last or 0.0
        unknown += state == "run" and last is None
        seconds += cost
        ends[job.name] = cost + max((ends[name] for name in job.after), default=0.0)
        took = f"{last:.0f} s" if last is not None else "?"
        after = f"  after {', '.join(job.after)}" if 0 < len(job.after) <= 4 else f"  after {len(job.after)} jobs"
        lines.append(f"{state:<6} {job.name:<44} {took:>7}{after if job.after else ''}")
    # No schedule beats the total shared by all workers, nor the longest chain.
    estimate = max([seconds / workers, *ends.values()])
    note = f" (and {unknown} jobs that never ran here)" if unknown else ""
    count = sum(job.name not in known for job in graph)
    lines.append(f"{len(graph)} jobs: {len(graph) - count} cached, {count} to run")
    lines.append(f"estimate: {estimate:.0f} s on {workers} worker{'s' * (workers > 1)}{note}")
    return "\n".join(lines)


def finish(
    graph: Sequence[Job],
    outcomes: Mapping[str, Outcome],
    place: Place,
    profile: str,
    seconds: float,
    *,
    whole: bool = True,
) -> int:
    """Write report.md and manifest.json, print the last line; 0, or 1 when something failed or was skipped.

    whole: the graph is all of the profile's, so that its seconds, with no job cached, are those of a run from nothing.
    """
    out = Path(place.root) / place.out
    counts = {
        state: sum(o.state == state for o in outcomes.values()) for state in ("done", "cached", "failed", "skipped")
    }
    earlier = _earlier(out / "manifest.json")
    entries = earlier.get("jobs", {}) | {job.name: _entry(job, outcomes[job.name]) for job in graph}
    # What a run from nothing costs is known only where no job was cached (a base itself may still have been).
    from_nothing = whole and counts["done"] == len(graph)
    cold = _cold(graph, entries, seconds) if from_nothing else earlier.get("cold")
    manifest = {"profile": profile, "threads": int(place.threads), "cold": cold, "jobs": entries}
    if not _same(out / "manifest.json", manifest):  # a mere check leaves the files, and git, alone
        write_json(out / "manifest.json", manifest)
        with atomic_write(out / "report.md") as handle:
            handle.write(_markdown(graph, outcomes, profile, counts))
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    print(f"{said} in {seconds:.0f} s: {place.out}/report.md", flush=True)
    return 1 if counts["failed"] or counts["skipped"] else 0


def _entry(job: Job, outcome: Outcome) -> dict[str, Any]:
    state = "done" if outcome.state == "cached" else outcome.state
    entry: dict[str, Any] = {"state": state, "key": outcome.key, "seconds": outcome.seconds, "after": list(job.after)}
    if outcome.state in ("failed", "skipped"):
        return entry | {"because" if state == "skipped" else "error": outcome.error, "cell": outcome.cell}
    return entry | {"outputs": outcome.outputs}


def _cold(graph: Sequence[Job], entries: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the whole took on the clock, and the workers' seconds by kind of job: "base" or a notebook's name."""
    busy: dict[str, float] = {}
    for job in graph:
        kind = job.notebook or job.kind
        busy[kind] = round(busy.get(kind, 0.0) + entries[job.name]["seconds"], 1)
    seeds: list[int] = max((job.parameters.get("seeds", []) for job in graph if job.notebook), key=len, default=[])
    return {"jobs": len(graph), "seeds": seeds, "seconds": round(seconds, 1), "worker_seconds": busy}


def _earlier(path: Path) -> dict[str, Any]:
    """An earlier manifest: a run of some notebooks (`--only`) leaves what the others left."""
    try:
        found = read_json(path) if path.is_file() else {}
        return {"jobs": dict(found["jobs"]), "cold": found.get("cold")} if found else {}
    except (UserError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def _same(path: Path, manifest: dict[str, Any]) -> bool:
    try:
        return path.is_file() and read_json(path) == manifest
    except UserError:
        return False


def _markdown(graph: Sequence[Job], outcomes: Mapping[str, Outcome], profile: str, counts: Mapping[str, int]) -> str:
    """The report: counts, then every job with its notebook linked, failures with their cell and line."""
    head = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    rows = [f"# {profile}: {head}", "", "| job | state | seconds | what happened |", "|---|---|---:|---|"]
    for job in graph:
        outcome = outcomes[job.name]
        name, note = job.name, ""
        if job.kind == "notebook" and outcome.state in ("done", "cached"):
            name = f"[{job.name}](notebooks/{job.name}.ipynb)"
        if outcome.state == "failed":
            note = ": ".join(filter(None, _why(outcome)))
            if job.kind == "notebook":
                name = f"[{job.name}](notebooks/{job.name}.partial.ipynb)"
        if outcome.state == "skipped":
            note = f"because {outcome.error} failed"
        rows.append(f"| {name} | {outcome.state} | {outcome.seconds:.1f} | {note.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"
