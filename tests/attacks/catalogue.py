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
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "tests" / room) for room in ("", "classifier", "lab/grid", "lab/own", "lab")
]

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from conftest import byte_tokenizer  # noqa: E402
from fabricate import fabricate  # noqa: E402
from test_head import HOSTILE, INFO  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from t3lib.classifier import artefact  # noqa: E402
from t3lib.classifier.head import T3Head  # noqa: E402
from t3lib.core import files, models  # noqa: E402
from t3lib.core.errors import UserError, printable  # noqa: E402
from t3lib.core.rows import encode_rows  # noqa: E402
from t3lib.lab import cli, profiles, results  # noqa: E402
from t3lib.lab.grid import jobs  # noqa: E402
from t3lib.lab.own import rows  # noqa: E402
from t3lib.lab.report import own as own_page  # noqa: E402
from t3lib.lab.report import render  # noqa: E402

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


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


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
    head = T3Head(8, 13, 3, seed=7)
    right = files.content_key(
        [head.A.tolist(), head.B.tolist(), head.temperature, head.w, head.prior]
    )

    def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], str]:
        def work(folder: Path) -> str:
            weights = good_head(folder) / artefact.WEIGHTS
            weights.write_bytes(change(weights.read_bytes()))
            return weights_of(folder / "head")

        return work

    def configured(**changes: Any) -> Callable[[Path], str]:
        def work(folder: Path) -> str:
            change_json(good_head(folder) / artefact.CONFIG, **changes)
            return weights_of(folder / "head")

        return work

    def of_dtype(dtype: str) -> Callable[[Path], str]:
        def work(folder: Path) -> str:
            path = good_head(folder) / artefact.WEIGHTS
            odd = {
                name: w.abs().to(getattr(torch, dtype))
                for name, w in safetensors.torch.load_file(path).items()
            }
            safetensors.torch.save_file(odd, path)
            change_json(folder / "head" / artefact.CONFIG, sha256=files.sha256_file(path))
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
    for dtype in (
        "int8",
        "bool",
        "uint16",
        "int64",
        "complex64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e8m0fnu",
    ):
        yield Attack(f"weights of {dtype}", of_dtype(dtype))
    for name in (
        "rank",
        "hidden_size",
        "vocab_size",
        "temperature",
        "w",
        "mu",
        "gamma",
        "prior",
        "init_b",
    ):
        for value in HOSTILE:
            yield Attack(f"{name} {printable(repr(value), 40)}", configured(**{name: value}))
    for name in INFO:
        for value in HOSTILE:
            yield Attack(f"info {name}", configured(info={**INFO, name: value}), right)
    for extra in (
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"_target_": "os.system"},
        {"model_type": "llama"},
    ):
        yield Attack(f"config {extra}", configured(**extra))


# ---- bases --------------------------------------------------------------------------------------


def good_base(folder: Path, **changes: Any) -> Path:
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


def bases() -> Iterator[Attack]:
    def weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
        def work(folder: Path) -> None:
            path = good_base(folder) / "model.safetensors"
            tensors = safetensors.torch.load_file(path)
            change(tensors)
            safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
            models.load_model(folder / "base", device="cpu")

        return work

    def file(name: str, content: str | dict[str, Any]) -> Callable[[Path], None]:
        def work(folder: Path) -> None:
            path = good_base(folder) / name
            if isinstance(content, dict):
                change_json(path, **content)
            else:
                path.write_text(content, encoding="latin-1")
            models.load_model(folder / "base", device="cpu")

        return work

    def index(name: str) -> Callable[[Path], None]:
        def work(folder: Path) -> None:
            base = good_base(folder)
            tensors = safetensors.torch.load_file(base / "model.safetensors")
            (base / "model.safetensors").rename(base / "shard.safetensors")
            torch.save(tensors, base / "weights.bin")
            safetensors.torch.save_file(tensors, folder / "outside.safetensors")
            places = dict.fromkeys(tensors, "shard.safetensors") | {"lm_head.weight": name}
            (base / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": places})
            )
            models.load_model(base, device="cpu")

        return work

    with torch.device("meta"):
        names = sorted(LlamaForCausalLM(LlamaConfig(num_hidden_layers=2)).state_dict())
    for name in names:
        yield Attack(f"without {name}", weights(lambda tensors, name=name: tensors.pop(name)))
    yield Attack("a weight too many", weights(lambda tensors: tensors.update(extra=torch.zeros(3))))
    yield Attack(
        "a weight of another size",
        weights(lambda tensors: tensors.update({names[0]: torch.zeros(7, 32)})),
    )
    for name in ("weights.bin", "../outside.safetensors", "/etc/x.safetensors", "a/b.safetensors"):
        yield Attack(f"index names {name}", index(name))
    for name, content in (
        *((name, "{") for name in ("config.json", "tokenizer.json", "generation_config.json")),
        *((name, "[]") for name in ("config.json", "tokenizer_config.json")),
        ("tokenizer.json", "\xff"),
        ("config.json", {"hidden_size": "many"}),
        ("config.json", {"hidden_size": 31}),
        ("config.json", {"num_hidden_layers": -3}),
        ("config.json", {"model_type": "nonesuch"}),
        (
            "config.json",
            {
                "model_type": "evil",
                "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
            },
        ),
        *(
            ("config.json", {"quantization_config": {"quant_method": method}})
            for method in ("gptq", "awq", "hqq")
        ),
        ("config.json", {"transformers_weights": "adapter_model.bin"}),
        *(
            ("chat_template.jinja", text)
            for text in ("{% for %}", "{{ a.b.c }}", "{{ 1 / 0 }}", "{{ range(10**9) }}")
        ),
    ):
        yield Attack(f"{name} {printable(content, 40)}", file(name, content))


# ---- rows ---------------------------------------------------------------------------------------


def own_rows() -> Iterator[Attack]:
    def reading(content: bytes, name: str) -> Callable[[Path], bool]:
        def work(folder: Path) -> bool:
            (folder / name).write_bytes(content)
            found = rows.load(folder / name)
            return len(encode_rows(TOKENIZER, found)) == len(found) > 0

        return work

    for size in (0, 4, 8, 12, 100):
        yield Attack(f"Parquet of {size} bytes", reading((b"PAR1" * 30)[:size], "rows.parquet"))
    for field in ("question", "answer", "prompt", "completion", "text", "messages", "system"):
        for value in (
            None,
            7,
            [],
            {},
            [[]],
            "",
            "\0",
            "\x1b[2J",
            "\ud800",
            "w" * 10**6,
            [{"role": "user"}],
        ):
            whole = (
                {"question": "q", "answer": "a"}
                if field in ("question", "answer", "system")
                else {}
            )
            whole |= {"prompt": "p", "completion": "c"} if field in ("prompt", "completion") else {}
            fine = (field, value) in (("prompt", ""), ("system", None), ("system", ""))
            content = json.dumps(whole | {field: value}).encode()
            yield Attack(
                f"{field} {value!r:.20}", reading(content, "rows.jsonl"), True if fine else REFUSED
            )


# ---- profiles and run files ---------------------------------------------------------------------

ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")
)
PROFILES = {
    "alias bomb": ALIASES,
    "a list in itself": "methods: &a [*a]\n",
    "a mapping in itself": "hyper: &a {T3: *a}\n",
    "a number of 400 digits": f"seeds: [{'9' * 400}]\n",
    "a number of 5000 digits": f"seeds: [{'9' * 5000}]\n",
    "brackets without end": "seeds: " + "[" * 10_000,
    "another key": "password: x\n",
    "out of a notebook": "notebooks: {02_tofu_unlearning: {out: /tmp/elsewhere}}\n",
    "seeds of a notebook": "notebooks: {02_tofu_unlearning: {seeds: [9]}}\n",
    "a method": "methods: [../../etc]\n",
    "a split": "splits: ['forget10/..']\n",
    "text for a list": "seeds: all\n",
    "true for a number": "seeds: [true]\n",
    "NaN": "temperatures: [.nan]\n",
    "a tag": "data: !!python/object/apply:os.system [ls]\n",
    "not a mapping": "- 1\n",
    "a NUL": "data: 'a\0b'\n",
    "not UTF-8": "data: \xff\n",
    "escape sequence": "'\\e[2J': 1\n",
    "a megabyte": "# " + "x" * 2**20 + "\n",
    "two documents": "seeds: [1]\n---\nseeds: [2]\n",
    "a name twice": "seeds: [1]\nseeds: [2]\n",
}


def foreign_profiles() -> Iterator[Attack]:
    def work(folder: Path, text: str) -> None:
        source = profiles.profiles_dir()
        (folder / "defaults.yaml").write_text((source / "defaults.yaml").read_text())
        (folder / "mine.yaml").write_text(text, encoding="latin-1")
        jobs.build(profiles.load_profile("mine", folder), folder / "out")

    for name, text in PROFILES.items():
        yield Attack(name, lambda folder, text=text: work(folder, text))


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


# ---- text of others -----------------------------------------------------------------------------

TEXTS = (
    *(
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</td></table><h1>",
        "{{ 7 * 7 }}",
        "| a | b |",
    ),
    *(
        "\x1b[2J\x1b]0;title\x07",
        "\u202edesrever\u2066",
        "\x9b31m",
        "\0",
        "a\rb\nc",
        "\ud800",
        "x" * 10**6,
    ),
)


def foreign_text() -> Iterator[Attack]:
    import pandas as pd

    for text in TEXTS:
        yield Attack(
            "in a line",
            lambda _, text=text: printable(text).isprintable() and len(printable(text)) <= 200,
            True,
        )
        card = {"info": {**INFO, "split": text, "metrics": {text: text}}}
        config = T3Head(8, 13, 3).config | card
        yield Attack(
            "in a model card",
            lambda _, config=config: "<script" not in artefact.model_card(config),
            True,
        )
        if text != "\ud800":  # no table can hold it
            table = pd.DataFrame({"method": [text], "claim": [text]})
            yield Attack(
                "in a table", lambda _, table=table: unmarked("<h1>" + render.html(table)), True
            )
        yield Attack(
            "in a report", lambda _, text=text: unmarked(own_page.report_page(report_with(text)), 1), True
        )


def report_with(text: str) -> dict[str, Any]:
    """A report on a model alone whose every foreign text is this one."""
    row = dict.fromkeys(("question", "truth", "base", "answer", "worst", "worst_way"), text)
    each = [row | {"leaks": True, "worst_share": 1.0, "misdirected": True}]
    verdict = {"success": False, "sentence": text, "lines": [text, text + " "]}
    report = {
        "verdict": verdict,
        "forget": {"each": each},
        "retain": {"changed": [row]},
        "date": text,
    }
    report |= {
        "asked": {"ways": [text], "samples": 1},
        "form": {"system": text},
        "base": {"base_model": text},
    }
    return report | {"command": text}


def unmarked(html: str, scripts: int = 0) -> bool:
    return html.count("<script") == scripts and "<img" not in html and html.count("<h1>") == 1


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

    def threads_of_a_cache(folder: Path) -> bool:
        path, torn = folder / "x.json", []
        files.write_json(path, [0] * 5000)

        def write(number: int) -> None:
            for _ in range(20):
                files.write_json(path, [number] * 5000)
                torn.append(len(set(files.read_json(path))) != 1)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return not any(torn) and [entry.name for entry in folder.iterdir()] == ["x.json"]

    def one_out(folder: Path) -> list[int]:
        argv = unlearning(folder)
        children = [forked(lambda: cli.main(argv)) for _ in range(3)]
        codes = sorted(ended(child) for child in children)
        T3Head.from_pretrained(folder / "head")
        return codes

    for number in range(3):
        yield Attack(f"six processes save one head, {number}", saved_at_once, True, must_work=True)
        yield Attack(
            f"eight threads write one file, {number}", threads_of_a_cache, True, must_work=True
        )
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
        "--steps",
        "20",
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
    "heads from strangers, damaged heads": heads,
    "bases: weights, index, config, tokenizer, template": bases,
    "rows: every field, damaged Parquet": own_rows,
    "profiles": foreign_profiles,
    "run files": run_files,
    "text of others on terminals and pages": foreign_text,
    "several processes and threads at once": several,
    "signals while t3 unlearn runs": signals,
    "full disks, folders of others, odd names": disks,
}
