"""The fault table: tests report what they injected and what came of it; T3_WRITE_FAULTS=1 writes results/faults.csv."""

import csv
import io
import os

from t3lib.files import atomic_write, lock, project_root

COLUMNS = ("fault", "times injected", "results lost", "wrong results")


def injected(fault: str, expected: dict[str, bytes], found: dict[str, bytes], times: int = 1) -> None:
    """Assert that a fault, injected `times` times, cost no result and made none wrong; put that in the table."""
    lost = len(set(expected) - set(found))
    wrong = sum(expected.get(name) != content for name, content in found.items())
    record(fault, times, lost, wrong)
    assert expected and (lost, wrong) == (0, 0), f"{fault}: {lost} results lost, {wrong} wrong"


def record(fault: str, times: int, lost: int, wrong: int) -> None:
    """Put one row into results/faults.csv, replacing the row of the same fault; `make attacks` counts them all."""
    if os.environ.get("T3_WRITE_FAULTS") != "1":
        return
    path = project_root() / "results" / "faults.csv"
    with lock(project_root() / ".t3cache" / "faults.lock"):
        rows = {}
        if path.is_file():
            rows = {row[COLUMNS[0]]: row for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))}
        rows[fault] = dict(zip(COLUMNS, (fault, times, lost, wrong)))
        ordered = [[str(rows[name][column]) for column in COLUMNS] for name in sorted(rows)]
        with atomic_write(path) as handle:
            csv.writer(handle, lineterminator="\n").writerows([COLUMNS, *ordered])
