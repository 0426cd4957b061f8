"""`t3 bench`: what T3 costs on this machine, in eight rows.

Weights and rows are random, because cost does not depend on them, so nothing has to be downloaded.
On a CPU the base is float32 and small; `--gpu` measures Llama-3.1-8B's shape in bfloat16.
"""

import gc
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from t3lib.baselines.unlearn import Lesson, unlearn_baseline
from t3lib.classifier.features import extract_features
from t3lib.core.errors import UserError, printable
from t3lib.core.models import DTYPES, quantization
from t3lib.core.rows import Row, encode_rows
from t3lib.lab.bench import cost
from t3lib.lab.bench.head import HeadShape, head_rows
from t3lib.lab.bench.model import decode_rows, random_head, random_model
from t3lib.lab.bench.shapes import shape_of
from t3lib.lab.bench.timing import COLUMNS, interleaved, row
from t3lib.lab.results import peak_memory_bytes, provenance
from t3lib.tofu.likelihood import Reading, answer_losses

TEMPERATURES = (1.0, 1.5, 2.0, 2.5, 3.0)  # of the paper's Table 5
CPU_WEIGHTS = 2e8  # the largest base that a CPU is asked to run


class Bytes:
    """A tokenizer whose tokens are the bytes of the text; no token ends a text."""

    chat_template = None
    bos_token = eos_token = ""
    all_special_tokens: tuple[str, ...] = ()
    pad_token_id = eos_token_id = 0

    def __call__(self, texts: list[str], add_special_tokens: bool = False) -> dict[str, Any]:
        return {"input_ids": [list(text.encode()) for text in texts]}


def letters(count: int) -> list[Row]:
    """Rows of random letters; each letter is a token of `Bytes`, and rows are as long as TOFU's."""
    draw = random.Random(0)
    sizes = {"question": (10, 30), "answer": (20, 60)}
    return [
        {
            field: "".join(draw.choices(ascii_lowercase, k=draw.randint(*size)))
            for field, size in sizes.items()
        }
        for _ in range(count)
    ]  # fmt: skip


def sheet(shape: str, device: str) -> Iterator[dict[str, Any]]:
    """Measure the eight rows one after the other; each has the device and the peak memory in bytes.

    shape: of the base whose head is trained. A CPU runs the shape "58m" in place of a larger base.
    A row that cannot be measured here has the reason as its note. UserError for an unknown shape.
    """
    sizes, gpu = shape_of(shape), device != "cpu"
    base = shape if gpu or cost.parameters(sizes) < CPU_WEIGHTS else "58m"
    name = provenance()["device"]
    dtype = "bfloat16" if gpu else "float32"
    model = cache(lambda: random_model(base, dtype=dtype, device=device))
    head = HeadShape(d=sizes.hidden_size, vocab=sizes.vocab_size)
    questions: dict[str, Callable[[], dict[str, Any]]] = {
        "head training": lambda: head_rows(head, device=device)[0],
        "features": lambda: features_row(model(), base),
        "scoring five temperatures": lambda: temperatures_row(model(), base),
        "decoding overhead, one row": lambda: decode_rows(model())[-1],
        "decoding overhead, 32 rows": lambda: decode_rows(model(), batch=32)[-1],
        "decoding overhead, compiled": lambda: decode_rows(model(), compiled=True)[-1],
        "decoding overhead, NF4 base": lambda: decode_rows(in_4_bits(base, dtype, device))[-1],
        "one step of NPO": lambda: npo_row(device),
    }
    for what, ask in questions.items():
        if what == "decoding overhead, NF4 base":
            model.cache_clear()  # this row and the next make their own base
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            entry = ask()
        except (RuntimeError, ImportError, UserError) as error:  # memory, bitsandbytes, a compiler
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            note = f"not measured: {printable(reason)}"
            entry = dict.fromkeys(COLUMNS) | {"shape": base, "note": note}
        yield entry | {"what": what, "peak_memory_bytes": peak_memory_bytes(), "device": name}


def in_4_bits(name: str, dtype: str, device: str) -> PreTrainedModel:
    """A random model of a named shape in NF4, by way of a folder; ImportError without
    bitsandbytes.
    """
    with TemporaryDirectory() as folder:
        random_model(name, dtype=dtype).save_pretrained(folder)
        options = {"quantization_config": quantization("4bit", dtype), "device_map": device}
        return AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], **options)


def features_row(model: PreTrainedModel, base: str) -> dict[str, Any]:
    """Tokens a second of `extract_features`."""
    rows = letters(256 if model.device.type == "cuda" else 32)
    tokens = sum(len(example.ids) for example in encode_rows(Bytes(), rows))
    work = partial(extract_features, model, Bytes(), rows[::2], rows[1::2], progress=False)
    seconds = interleaved({"": work})[""]
    return row("", base, [tokens / each for each in seconds], "tokens/s")


def temperatures_row(model: PreTrainedModel, base: str) -> dict[str, Any]:
    """How many times as long scores at five temperatures take as scores at one."""
    tilts = [(random_head(model), T) for T in TEMPERATURES]
    examples = encode_rows(Bytes(), letters(32))
    work = partial(answer_losses, model, examples, Reading(0, progress=False))
    seconds = interleaved({n: partial(work, tilts=tilts[:n]) for n in (1, len(tilts))})
    return row("", base, [five / one for one, five in zip(*seconds.values())], "times one")


def npo_row(device: str) -> dict[str, Any]:
    """Seconds of a step of NPO on 4 + 4 rows, the mean of ten: of Llama-3.2-1B's shape on a GPU."""
    name, dtype, optimizer = "tiny", "float32", "adamw"
    if device != "cpu":
        name, dtype, optimizer = "llama-3.2-1b", "bfloat16", "paged_adamw_8bit"
    base, rows = random_model(name, dtype=dtype, device=device), letters(8)
    hyper = {"epochs": 10, "warmup_epochs": 0, "batch_size": 4, "lr": 1e-6, "optimizer": optimizer}
    lesson = Lesson(rows[:4], rows[4:])
    _, info = unlearn_baseline("NPO", base, Bytes(), lesson, settings=hyper, seed=0)
    return row("", f"{name}, {optimizer}", [info["seconds"] / 10])
