"""The catalogue of attacks, by kind: what is done, and what must come of it. `run.py` tries them
all.
"""

import gzip
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "tests" / room) for room in ("", "classifier", "lab/grid", "lab/own", "lab")
]

import torch  # noqa: E402
from conftest import byte_tokenizer  # noqa: E402
from fabricate import fabricate  # noqa: E402
from test_head import INFO  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from t3lab import results  # noqa: E402
from t3lib import cli  # noqa: E402
from t3lib.classifier import artefact  # noqa: E402
from t3lib.classifier.head import T3Head  # noqa: E402
from t3lib.core import files  # noqa: E402
from t3lib.core.errors import UserError  # noqa: E402

torch.set_num_threads(1)
REFUSED = object()  # nothing good may come of it
TOKENIZER = byte_tokenizer()


class Attack(NamedTuple):
    """work(empty folder) -> what must equal `expected`; a UserError is as good unless
    `must_work`.
    """

    name: str
    work: Callable[[Path], Any]
    expected: Any = REFUSED
    must_work: bool = False


def flipped(content: bytes, bit: int) -> bytes:
    """The bytes with one bit turned."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# ---- heads --------------------------------------------------------------------------------------


def good_head(folder: Path) -> Path:
    T3Head(8, 13, 3, seed=7, info=INFO).save_pretrained(folder / "head")
    return folder / "head"


def weights_of(folder: Path) -> str:
    """A key of what a saved head tilts with."""
    head = T3Head.from_pretrained(folder)
    return files.content_key(
        [head.A.tolist(), head.B.tolist(), head.temperature, head.w, head.prior]
    )


def heads() -> Iterator[Attack]:
    def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], str]:
        def work(folder: Path) -> str:
            weights = good_head(folder) / artefact.WEIGHTS
            weights.write_bytes(change(weights.read_bytes()))
            return weights_of(folder / "head")

        return work

    for _ in range(200):
        bit = random.randrange(8 * 300)
        yield Attack(
            f"bit {bit} of the weights", damaged(lambda content, bit=bit: flipped(content, bit))
        )
    for _ in range(40):
        size = random.randrange(300)
        yield Attack(
            f"weights cut to {size} bytes", damaged(lambda content, size=size: content[:size])
        )


# ---- a base to unlearn --------------------------------------------------------------------------


def good_base(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ends = {
        f"{name}_token_id": getattr(TOKENIZER, f"{name}_token_id") for name in ("bos", "eos", "pad")
    }
    config = LlamaConfig(vocab_size=len(TOKENIZER), max_position_embeddings=512, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    TOKENIZER.save_pretrained(folder / "base")
    return folder / "base"


# ---- run files ----------------------------------------------------------------------------------


def run_files() -> Iterator[Attack]:
    endings = (".json", results.PACKED)  # a run, and beside it what it tells of every row

    def work(folder: Path, ending: str, change: Callable[[bytes], bytes]) -> Any:
        path = results.write_run(folder, fabricate("NPO", "forget10", None, 1))
        right = results.read_runs(folder)
        damaged = path.with_suffix(ending)
        damaged.write_bytes(change(damaged.read_bytes()))
        return results.read_runs(folder) == right

    def turned(content: bytes, place: float) -> bytes:
        return flipped(content, int(8 * len(content) * place))

    def cut(content: bytes, place: float) -> bytes:
        return content[: int(len(content) * place)]

    for name, change, count, expected in (("bit", turned, 150, True), ("cut", cut, 15, REFUSED)):
        for place, ending in product([random.random() for _ in range(count)], endings):
            yield Attack(
                f"{name} at {place:.3f} of *{ending}",
                lambda folder, change=change, place=place, ending=ending: work(
                    folder, ending, lambda content: change(content, place)
                ),
                expected,
            )
    for content in (
        b"",
        b"null",
        gzip.compress(b"[" * 200_000),
        gzip.compress(bytes(results.LARGEST + 1), 1),
        b"x",
    ):
        yield Attack(
            f"records {content[:9]!r}",
            lambda folder, new=content: work(folder, results.PACKED, lambda _: new),
        )
    for name in ("", ".", "..", "/etc/passwd", "other.records.json.gz", None, 1):
        yield Attack(
            f"records named {name!r}",
            lambda folder, name=name: work(
                # fmt: skip
                folder,
                ".json",
                lambda content: json.dumps(json.loads(content) | {"records": name}).encode(),
            ),
        )


# ---- several at once, signals, disks, places ----------------------------------------------------


def forked(work: Callable[[], Any]) -> int:
    """A child that runs work: exits with 0, 2 for a UserError, 1 for any other error."""
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


def several() -> Iterator[Attack]:
    def saved_at_once(folder: Path) -> bool:
        options = [T3Head(64, 300, 8, seed=seed, temperature=1 + seed) for seed in range(6)]
        options[0].save_pretrained(folder)
        children = [
            forked(lambda h=head: [h.save_pretrained(folder) for _ in range(10)] and 0)
            for head in options
        ]
        same = []
        for _ in range(30):
            head = T3Head.from_pretrained(folder)
            same.append(torch.equal(head.A, options[int(head.temperature) - 1].A))
        return all(same) and [ended(child) for child in children] == [0] * 6

    def one_out(folder: Path) -> list[int]:
        argv = unlearning(folder)
        children = [forked(lambda: cli.main(argv)) for _ in range(3)]
        codes = sorted(ended(child) for child in children)
        T3Head.from_pretrained(folder / "head")
        return codes

    for number in range(3):
        yield Attack(f"six processes save one head, {number}", saved_at_once, True, must_work=True)
    yield Attack("three t3 unlearn with one --out", one_out, [2, 2, 3], must_work=True)


def unlearning(folder: Path) -> list[str]:
    """The command line of `t3 unlearn` on a tiny base; it ends with 3, for a random model knows
    nothing.
    """
    os.environ["T3_CACHE"] = str(folder / "cache")
    for name in ("forget", "retain"):
        entries = [{"question": f"{name} {i}?", "answer": f"{name}, book {i}."} for i in range(4)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, entries)))
    argv = [
        "unlearn",
        "--model",
        str(good_base(folder)),
        "--out",
        str(folder / "head"),
        "--set",
        "steps=20",
    ]
    return [
        *argv,
        *(
            word
            for name in ("forget", "retain")
            for word in (f"--{name}", str(folder / f"{name}.jsonl"))
        ),
    ]


def signals() -> Iterator[Attack]:
    def work(folder: Path, number: signal.Signals, seconds: float) -> list[str]:
        argv = unlearning(folder)
        child = forked(lambda: cli.main(argv))
        time.sleep(seconds)
        os.kill(child, number)
        ended(child)
        left = [path.name for path in folder.rglob("*.partial")]
        if (folder / "head" / artefact.CONFIG).exists():
            T3Head.from_pretrained(folder / "head")
        elif (folder / "head").exists() and number == signal.SIGINT:
            left += [path.name for path in (folder / "head").iterdir()]
        if number == signal.SIGINT:
            left += [path.name for path in (folder / "cache" / "features").glob("*")]
        return left

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        for seconds in (0.1, 0.5, 1.0, 2.0):
            moment = seconds * random.uniform(0.8, 1.2)
            yield Attack(
                f"{number.name} after {moment:.1f} s",
                lambda folder, n=number, s=moment: work(folder, n, s),
                [],
                must_work=True,
            )


def disks() -> Iterator[Attack]:
    def full(
        folder: Path, room: int, write: Callable[[Path], Any], again: Callable[[Path], Any]
    ) -> tuple[int, bool]:
        write(folder)
        before = again(folder)

        def limited() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            write(folder)

        code = ended(forked(limited))
        return code, again(folder) == before and not list(folder.rglob("*.partial"))

    def nobody(folder: Path) -> int:
        T3Head(8, 13, 3).save_pretrained(folder)
        folder.chmod(0o755)

        def stranger() -> None:
            os.setuid(65534)
            T3Head(8, 13, 3, seed=8).save_pretrained(folder)

        return ended(forked(stranger))

    def named(folder: Path, name: str) -> bool:
        T3Head(8, 13, 3).save_pretrained(folder / name)
        return T3Head.from_pretrained(folder / name).rank == 3

    head = T3Head(64, 300, 8)
    for room in (0, 10, 500, 2000, 9000):
        write = lambda folder: head.save_pretrained(folder)  # noqa: E731
        yield Attack(f"head, room for {room} bytes", lambda folder, room=room, write=write: full(
            folder, room, write, weights_of), (2, True), must_work=True)  # fmt: skip
    for room in (0, 10, 500, 2000):
        run = fabricate("NPO", "forget10", None, 1)
        save = lambda folder, run=run: results.write_run(folder, run)  # noqa: E731
        yield Attack(f"run, room for {room} bytes", lambda folder, room=room, write=save: full(
            folder, room, write, results.read_runs), (2, True), must_work=True)  # fmt: skip
    if os.getuid() == 0:
        yield Attack("a folder of another user", nobody, 2, must_work=True)
    for name in (
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
    ):
        yield Attack(
            f"folder {name!r:.20}",
            lambda folder, name=name: named(folder, name),
            True,
            must_work=True,
        )


KINDS: dict[str, Callable[[], Iterator[Attack]]] = {
    "damaged heads": heads,
    "damaged run files": run_files,
    "several processes at once": several,
    "signals while t3 unlearn runs": signals,
    "full disks, folders of others, odd names": disks,
}
