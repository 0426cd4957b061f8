"""`make attacks`: every case of every kind, one after the other; writes faults.md.

python tests/attacks/run.py [--every N]     N: each N-th case, no whole runs, and no table
"""

import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / room) for room in ("", "lab/grid")]

from faults import damage, places, several, signals  # noqa: E402
from model_inputs import of_heads, of_models  # noqa: E402
from other_inputs import of_calls, of_commands, of_the_lab  # noqa: E402
from row_inputs import given_rows, own_rows, tofu_files  # noqa: E402
from runs import PATIENCE, whole_runs  # noqa: E402
from table import outcome  # noqa: E402

from t3lib.core.files import atomic_write  # noqa: E402

TABLES = (own_rows, given_rows, tofu_files, of_models, of_heads, of_the_lab, of_calls, of_commands)
KINDS = (*TABLES, damage, several, signals, places, whole_runs)
HEADINGS = ("kind", "tried", "survived", "lost", "wrong")


def hang(*_: object) -> None:
    raise TimeoutError("no end")


def main(every: int) -> int:
    """Return 1 if a case is not survived."""
    signal.signal(signal.SIGALRM, hang)
    random.seed(7)
    rows = [HEADINGS, ("---", *["---:"] * 4)]
    for kind in KINDS[: None if every == 1 else -1]:
        counts, what = Counter[str](), (kind.__doc__ or "").split(".")[0]
        for case in kind()[::every]:
            signal.alarm(4 * PATIENCE if kind is whole_runs else 60)  # only a hang takes that long
            with tempfile.TemporaryDirectory() as folder:
                verdict, seen = outcome(case, Path(folder))
            signal.alarm(0)
            counts[verdict] += 1
            if verdict != "survived":
                print(f"{what}: {case.name}: {verdict} ({seen})")
        print(f"{what}: {dict(counts)}", flush=True)
        rows.append((what, counts.total(), *(counts[each] for each in HEADINGS[2:])))
    if every == 1:
        with atomic_write(ROOT / "results" / "studies" / "tried" / "faults.md") as handle:
            handle.write("".join(f"| {' | '.join(map(str, row))} |\n" for row in rows))
    return int(any(row[3:] != (0, 0) for row in rows[2:]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[2]) if "--every" in sys.argv else 1))
