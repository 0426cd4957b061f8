"""Damage anywhere in a file, several processes at once, signals, full disks, odd places."""

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fabricate import fabricate
from model_inputs import Change, damaged, read_head
from other_inputs import NAME, PACKED, read_runs
from row_inputs import unlearning
from table import Case, command

from t3lab import results
from t3lib.classifier import artefact
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError


def turned(place: float, content: bytes) -> bytes:
    """The bytes with one bit turned. place: of 0 to 1."""
    number = int(8 * len(content) * place)
    changed = bytearray(content)
    changed[number // 8] ^= 1 << number % 8
    return bytes(changed)


def cut_off(place: float, content: bytes) -> bytes:
    return content[: int(len(content) * place)]


def damage() -> list[Case]:
    """One bit of a file turned, or its end cut off, anywhere."""
    draw = random.Random(7).random

    def changes(name: str, bits: int, cuts: int) -> list[Change]:
        how = [turned] * bits + [cut_off] * cuts
        return [damaged(partial(each, draw()), name=name) for each in how]

    heads = changes(artefact.WEIGHTS, 200, 40)
    runs = changes(f"{NAME}.json", 150, 15) + changes(PACKED, 150, 15)
    return [
        *(Case(f"head {n}", partial(read_head, change)) for n, change in enumerate(heads)),
        *(Case(f"run file {n}", partial(read_runs, each), True) for n, each in enumerate(runs)),
    ]


def forked(work: Callable[[], Any]) -> int:
    """A child that runs work: it exits with its result or 0, 2 for a UserError, else 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.dup2(2, 1)
            code = work() or 0
        except UserError:
            code = 2
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """The exit code of a child, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def saved_at_once(folder: Path) -> bool:
    options = [T3Head(64, 300, 8, seed=seed, temperature=1 + seed) for seed in range(6)]
    options[0].save_pretrained(folder)

    def save(head: T3Head) -> None:
        for _ in range(10):
            head.save_pretrained(folder)

    children = [forked(partial(save, head)) for head in options]
    found = [T3Head.from_pretrained(folder) for _ in range(30)]
    same = [torch.equal(head.A, options[int(head.temperature) - 1].A) for head in found]
    return all(same) and [ended(child) for child in children] == [0] * 6


def trained(words: Sequence[Any]) -> int:
    """Fit a head in a child, although a random model does not know the rows to forget."""
    with mock.patch("t3lib.own.unlearn.is_unknown", return_value=False):
        return forked(partial(command, *words))


def one_out(folder: Path) -> list[int]:
    words = unlearning(folder, steps=20)
    codes = sorted(ended(child) for child in [trained(words) for _ in range(3)])
    T3Head.from_pretrained(folder / "out")
    return codes


def several() -> list[Case]:
    """Processes that write the same head at once."""
    return [
        *(Case(f"six processes, {n}", saved_at_once, True, None) for n in range(3)),
        Case("three t3 unlearn with one --out", one_out, [2, 2, 3], None),
    ]


def signalled(number: signal.Signals, seconds: float, folder: Path) -> list[str]:
    """Names of what a signal to `t3 unlearn` leaves half-written."""
    child = trained(unlearning(folder, steps=20))
    time.sleep(seconds)
    os.kill(child, number)
    ended(child)
    for path in folder.rglob("*.partial") if number == signal.SIGKILL else ():
        path.unlink()  # which nobody reads
    out, left = folder / "out", []
    if (out / artefact.CONFIG).exists():
        T3Head.from_pretrained(out)
    elif number == signal.SIGINT:
        left = [*out.glob("*")]
    return [path.name for path in left]


def signals() -> list[Case]:
    """Ctrl-C, a closed terminal, kill and kill -9 while `t3 unlearn` runs."""
    draw = random.Random(7)
    moments = [seconds * draw.uniform(0.8, 1.2) for seconds in (0.1, 0.5, 1.0, 2.0)]
    return [
        Case(f"{sign.name} after {moment:.1f} s", partial(signalled, sign, moment), [], None)
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
        for moment in moments
    ]


def full(write: Callable[[Path], Any], room: int, folder: Path) -> tuple[int, bool]:
    """The exit code of a second write on a disk with room for so many bytes, and whether all that
    the first wrote is as before.
    """

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        write(folder)

    write(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code = ended(forked(limited))
    return code, all(path.read_bytes() == content for path, content in before.items())


def of_another_user(folder: Path) -> int:
    T3Head(8, 13, 3).save_pretrained(folder)
    folder.chmod(0o755)

    def stranger() -> None:
        os.setuid(65534)
        T3Head(8, 13, 3, seed=8).save_pretrained(folder)

    return ended(forked(stranger))


def named(name: str, folder: Path) -> int:
    T3Head(8, 13, 3).save_pretrained(folder / name)
    return T3Head.from_pretrained(folder / name).rank


def places() -> list[Case]:
    """Full disks, folders of others, odd names."""
    head, run = T3Head(64, 300, 8), fabricate("NPO", "forget10", None, 1)
    writes = {head.save_pretrained: (0, 10, 500, 2000, 9000)}
    writes[partial(results.write_run, run=run)] = (0, 10, 500, 2000)
    names = (
        "a b",
        "-x",
        "é\u202e",
        "a\nb",
        "'\"$(x)`",
        "%s{}",
        "x" * 200,
        "~",
        "a/../b",
        "ends.json",
    )
    stranger = Case("a folder of another user", of_another_user, 2, None)
    return [
        *(
            Case(f"room for {room} bytes", partial(full, write, room), (2, True), None)
            for write, rooms in writes.items()
            for room in rooms
        ),
        *(Case(f"folder {name!r:.20}", partial(named, name), 3, None) for name in names),
        *([stranger] if os.getuid() == 0 else []),
    ]
