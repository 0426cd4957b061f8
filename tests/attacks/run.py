"""`make attacks`: everything of the catalogue, one after the other; writes results/faults.md, a row
a kind.

An attack is survived when its result is right, or it is refused in one printable line and older
results still stand. It is lost when it ends in a traceback, a hang or a damaged older result, and
wrong when it silently gives another result.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from catalogue import KINDS, REFUSED, Attack
from runs import PATIENCE, SLOW

from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root

ALL = KINDS | SLOW
SECONDS = 60  # only a hang takes that long
COLUMNS = ("kind", "tried", "survived", "lost", "wrong")


def outcome(attack: Attack, folder: Path, seconds: int) -> tuple[str, str]:
    """("survived" | "lost" | "wrong", what was seen); lost, too, after so many seconds without an
    end.
    """

    def hang(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    try:
        result = attack.work(folder)
    except UserError as error:
        line = str(error)
        good = line.isprintable() and len(line) <= 2000 and not attack.must_work
        return ("survived" if good else "lost"), f"refused: {line[:200]}"
    except BaseException as error:  # a traceback, whatever its kind, is what must not be
        return "lost", f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.alarm(0)
    return (
        "wrong" if attack.expected is REFUSED or result != attack.expected else "survived"
    ), repr(result)[:200]


def survived(kind: str, attacks: list[Attack]) -> Counter:
    """How often each verdict came; what did not survive is printed."""
    counts, begin = Counter(), time.perf_counter()
    for attack in attacks:
        with tempfile.TemporaryDirectory() as folder:
            verdict, seen = outcome(attack, Path(folder), 4 * PATIENCE if kind in SLOW else SECONDS)
        counts[verdict] += 1
        if verdict != "survived":
            print(f"{kind}: {attack.name}: {verdict} ({seen})")
    print(f"{kind}: {dict(counts)}, {time.perf_counter() - begin:.0f} s", flush=True)
    return counts


def main(kinds: list[str], every: int = 1) -> int:
    """Try the kinds that are named, or all. every N: only each N-th quick attack, and the table
    stays as it is.
    """
    random.seed(7)
    chosen = {kind: list(ALL[kind]())[::every] for kind in kinds or (ALL if every == 1 else KINDS)}
    counts = {kind: survived(kind, attacks) for kind, attacks in chosen.items()}
    if every == 1:
        write_table(counts)
    return 1 if any(set(verdicts) - {"survived"} for verdicts in counts.values()) else 0


def write_table(counts: dict[str, Counter]) -> None:
    """results/faults.md with new rows for these kinds."""
    table = project_root() / "results" / "faults.md"
    cells = [
        line.strip("| \n").split(" | ")
        for line in table.read_text(encoding="utf-8").splitlines()[2:]
    ]
    rows = {kind: numbers for kind, *numbers in cells}
    rows |= {
        kind: [each.total(), *(each[name] for name in COLUMNS[2:])] for kind, each in counts.items()
    }
    rows = {kind: rows[kind] for kind in ALL if kind in rows}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---:|---:|---:|---:|"]
    lines += [
        "| " + " | ".join(map(str, [kind, *numbers])) + " |" for kind, numbers in rows.items()
    ]
    with atomic_write(table) as handle:
        handle.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*ALL, []], metavar="KIND", help="default: all")
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        help="N: only each N-th quick attack, and the table stays as it is",
    )
    given = parser.parse_args()
    sys.exit(main(given.kinds, given.every))
