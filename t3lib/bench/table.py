"""`t3 bench`: the cost table. Every measurement beside its lower bound, with ceilings measured on the same machine.

Weights are random, so nothing gated is needed. On a GPU everything runs at the named shape; on a CPU the head does,
and what needs the base falls back to the shape "58m" when the named one is too large (a baseline's step, to "tiny").
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from t3lib import results
from t3lib.bench import cost
from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench.decode import decode_overhead
from t3lib.bench.head import HeadShape
from t3lib.bench.model import random_model
from t3lib.bench.shapes import shape_of
from t3lib.bench.timing import COLUMNS, ceilings, value_row
from t3lib.errors import UserError
from t3lib.files import write_json
from t3lib.report import render
from t3lib.theory import experiments as synthetic

Rows = list[dict[str, Any]]
CPU_WEIGHTS = 2e8  # the largest base that a CPU is asked to run
CAPTION = "Cost: median seconds on this machine, the processor's own (busy), the lower bound, and busy over it."


def head_shape(shape: str, **sizes: int) -> HeadShape:
    """The head of a named base at the paper's 5% split (`HeadShape`); for the tiny shape a run of a second."""
    named = shape_of(shape)
    small = {"pairs": 16, "epochs": 10} if shape == "tiny" else {}
    return HeadShape(**{"d": named.hidden_size, "vocab": named.vocab_size} | small | sizes)


def base_of(shape: str, device: str) -> tuple[str, Callable[[], PreTrainedModel]]:
    """The name of the base that is run on this device, and a function that makes it: bfloat16 on a GPU."""
    large = cost.linear_weights(shape_of(shape)) > CPU_WEIGHTS
    used = "58m" if device == "cpu" and large else shape
    dtype = "float32" if device == "cpu" else "bfloat16"
    return used, lambda: random_model(used, dtype=dtype, device=device)


def sections(shape: str, *, device: str = "cpu", repeats: int = 3) -> Iterator[Rows]:
    """The rows of the table, one group of measurements after the other."""
    head, tiny = head_shape(shape), shape == "tiny"
    machine = ceilings(device)
    yield [
        value_row("ceiling: matrix product", device, machine.flops / 1e9, "GFLOP/s"),
        value_row("ceiling: memory", device, machine.bytes / 1e9, "GB/s"),
        value_row("threads", device, torch.get_num_threads(), "threads"),
    ]
    steps = 0 if tiny else 2 * head.per_epoch
    yield bench_head.head_rows(head, machine, device=device, repeats=repeats, dense_steps=steps)
    if not tiny:
        more = head_shape(shape, pairs=400)
        yield bench_head.head_rows(more, machine, device=device, repeats=1, dense_steps=steps, full_steps=0)
    few = head_shape(shape, epochs=4)
    yield bench_head.grid_rows(few, machine, device=device, repeats=repeats)
    used, base = base_of(shape, device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    machine = ceilings(device, dtype)
    model = base()
    count = 32 if device != "cpu" else 8 if used == "tiny" else 2
    yield bench_model.feature_rows(model, used, machine, repeats=repeats, count=8 * count)
    yield bench_model.evaluation_rows(model, used, machine, repeats=repeats, count=count)
    yield decode_rows(model, used, repeats)
    del model
    stepped = "tiny" if device == "cpu" else used
    yield bench_model.step_rows(
        (lambda: random_model(stepped)) if device == "cpu" else lambda: _checkpointed(base()), stepped, machine,
        optimizer="adamw" if device == "cpu" else "paged_adamw_8bit",
    )  # fmt: skip
    yield synthetic_rows(20 if tiny else 200)
    yield [value_row("peak memory of the whole process", device, results.peak_memory_bytes() / 1e9, "GB")]


def decode_rows(base: Any, shape: str, repeats: int, new_tokens: int = 32) -> Rows:
    """Milliseconds a token of the base (a model or a configuration) and of T3, and the overhead."""
    made = []
    for entry in decode_overhead(base, batch_sizes=(1, 8), new_tokens=new_tokens, repeats=repeats):
        name = f"decoding, batch of {entry['batch_size']}"
        where = f"{shape} ({entry['parameters'] / 1e6:.0f}M parameters)"
        quartiles = f"quartiles {100 * entry['overhead_low']:+.1f} to {100 * entry['overhead_high']:+.1f}%"
        made += [
            value_row(f"{name}: base", where, entry["base_ms"], "ms/token", f"{entry['clock']} clock"),
            value_row(f"{name}: T3", where, entry["t3_ms"], "ms/token", f"{entry['clock']} clock"),
            value_row("  overhead", where, 100 * entry["overhead"], "%", quartiles),
        ]
    return made


def synthetic_rows(trials: int) -> Rows:
    """Experiments 1 and 2 of the paper, and their fits beside a scikit-learn loop: CPU seconds."""
    made = []
    for entry in synthetic.benchmark(trials=trials).to_dict("records"):
        seconds = {"median": entry["seconds"], "low": entry["seconds"], "high": entry["seconds"], "repeats": 1}
        what = value_row(f"synthetic: {entry['task']}", f"{trials} trials", 0.0, "s")
        made.append(what | seconds | {"busy": entry["cpu_seconds"]})
        if entry["ratio"] > 1:
            made.append(value_row("  scikit-learn / ours", f"{trials} trials", entry["ratio"]))
    return made


def frame_of(rows: Rows) -> pd.DataFrame:
    """The rows as the table `benchmarks`."""
    return pd.DataFrame(rows, columns=COLUMNS)


def bench(shape: str = "tiny", *, out: str | Path | None = None, device: str | None = None) -> Rows:
    """Measure, print line by line, and with `out` write `out`/bench.json and the table `out`/benchmarks.*.

    UserError for an unknown shape, a device that is not there, or a folder that cannot be written.
    """
    shape_of(shape)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"device {device} was asked for, but this machine has no CUDA GPU")
    rows: Rows = []
    for part in sections(shape, device=device):
        rows += part
        for entry in part:
            print(line(entry), flush=True)
    if device == "cpu":
        print("No GPU here: its cells are empty. Run the same command where there is one.")
    if out is not None:
        origin = results.provenance(model=f"random weights, {shape}", data="random")
        write_json(Path(out) / "bench.json", {"rows": rows, "provenance": origin})
        render.write_table(Path(out), "benchmarks", frame_of(rows), caption=CAPTION)
    return rows


def line(entry: dict[str, Any]) -> str:
    """A row as one line of text."""
    parts = f"{entry['what']:<52} {entry['median']:>10.4g} {entry['unit']:<8}"
    if entry["busy"] is not None:
        parts += f" {entry['low']:.4g}…{entry['high']:.4g} ({entry['repeats']}), busy {entry['busy']:.4g}"
    if entry["over_bound"]:
        parts += f", {entry['over_bound']:.1f} x the bound"
    return f"{parts}  {entry['note']}".rstrip()


def _checkpointed(model: PreTrainedModel) -> PreTrainedModel:
    model.gradient_checkpointing_enable()
    return model
