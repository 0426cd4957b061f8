"""The training of one base in a process of its own, so that its memory goes back and a kill takes it along."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from t3lib.errors import UserError
from t3lib.files import atomic_write


def train_apart(parameters: dict[str, Any], listing: Path, log: Path, *, fork: bool) -> None:
    """Train the base of a job's parameters (stage, name, seed) and write its files' paths to `listing`.

    Its output goes to `log`, whose last line is the RuntimeError of a training that failed. fork: as `warm.forked`.
    """
    for path in (log, listing):
        path.unlink(missing_ok=True)

    def request(parent: int) -> list[str]:
        return [json.dumps([parameters, str(listing), parent])]

    if fork:
        from t3lib.grid import warm

        for _ in range(2):  # once more if the process that forks was killed, and took the training along
            used = warm.nursery()
            warm.forked(warm.TRAINER, request, preload=warm.STUDY, log=str(log)).wait()
            if listing.is_file() or used.process.poll() is None:
                break
    else:
        with open(log, "wb") as handle:
            command = [sys.executable, "-m", "t3lib.grid.trainer", *request(os.getpid())]
            subprocess.run(command, stdout=handle, stderr=handle)
    if not listing.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
        raise RuntimeError(lines[-1] if lines else "the training process was killed")


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends (PR_SET_PDEATHSIG), and end now if it already has."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)
        if os.getppid() != parent:
            os._exit(1)


def main() -> int:
    """Train one base in this process: argument [stage and name and seed, list file to write, parent]."""
    parameters, listing, parent = json.loads(sys.argv[1])
    die_with(parent)
    from t3lib.world import bases

    try:
        folder = bases.ensure_base(bases.Stage(**parameters["stage"]), parameters["name"], parameters["seed"])
    except (UserError, TypeError) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    files = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
    with atomic_write(listing) as handle:  # that it is there says that the training went through
        handle.write("\n".join(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
