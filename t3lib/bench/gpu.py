"""`t3 bench --gpu`: what only a GPU can say, one table a question, within ten minutes of one H100 or H200.

Weights are random at the paper's shape, so nothing has to be downloaded; a small real run then shows that the GPU and
the CPU reach the same Forget Quality. A table is written anew with every row it gains, so a run that is killed keeps
what it has; a question that a machine cannot answer leaves its reason there, and the others go on.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from t3lib.baselines.losses import LOSSES
from t3lib.bench import cost
from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench.shapes import shape_of
from t3lib.bench.table import head_shape, line
from t3lib.bench.timing import Rows, ceilings, value_row
from t3lib.classifier import fit_heads
from t3lib.errors import UserError, printable
from t3lib.evaluation import numbers, score
from t3lib.features import extract_features
from t3lib.files import atomic_write, write_json
from t3lib.models import checked_device
from t3lib.results import provenance
from t3lib.settings import settings_of
from t3lib.study.study import Study, open_study
from t3lib.study.unlearned import fit_settings

# Bytes a weight of a baseline's training: weights and gradients in float32, autocast's copies and the original in
# bfloat16, and two moments, of 8 bits each where bitsandbytes is there, else in float32.
TRAINED = {"paged_adamw_8bit": 4 + 4 + 2 + 2 + 2, "adamw": 4 + 4 + 2 + 2 + 8}
ROOM = 0.9  # share of the GPU's memory that weights may fill; the rest is for activations


@dataclass(frozen=True)
class Sheet:
    """Where and at which shape to measure, how often and on how much.

    real: keywords of `study.open_study`, and T3's `hyper` and `seeds`. rows: whose features are extracted; an eighth of
    them is evaluated. new_tokens: of one decoding.
    """

    shape: str
    device: str
    real: Mapping[str, Any]
    repeats: int = 3
    rows: int = 256
    new_tokens: int = 32

    @property
    def on_gpu(self) -> bool:
        """False in tests, which run the same code on a CPU."""
        return self.device != "cpu"

    def model(self, layers: int | None = None) -> PreTrainedModel:
        """The shape with random weights, in bfloat16 on a GPU; optionally only its first layers."""
        dtype = "bfloat16" if self.on_gpu else "float32"
        return bench_model.random_model(self.shape, dtype=dtype, device=self.device, layers=layers)


def head(sheet: Sheet) -> Iterator[Rows]:
    """Training a head at the paper's settings: ours, AdamW over all of B, the whole vocabulary; a grid at once."""
    shape, machine = head_shape(sheet.shape), ceilings(sheet.device)
    steps = 2 * shape.per_epoch
    settings: dict[str, Any] = {"device": sheet.device, "repeats": sheet.repeats}
    yield bench_head.head_rows(shape, machine, dense_steps=steps, **settings)
    yield bench_head.grid_rows(shape, machine, **settings)


def base(sheet: Sheet) -> Iterator[Rows]:
    """Features a second, and the evaluation of all temperatures and of five seeds against one."""
    model = sheet.model()
    machine = ceilings(sheet.device, model.dtype)
    yield [
        value_row("ceiling: matrix product", str(model.dtype), machine.flops / 1e12, "TFLOP/s"),
        value_row("ceiling: memory", str(model.dtype), machine.bytes / 1e9, "GB/s"),
    ]
    yield bench_model.feature_rows(model, sheet.shape, machine, repeats=sheet.repeats, count=sheet.rows)
    yield bench_model.evaluation_rows(model, sheet.shape, machine, repeats=sheet.repeats, count=sheet.rows // 8)


def decoding(sheet: Sheet) -> Iterator[Rows]:
    """What the tilt adds to a decoding step, for one row and for 32; then the same on an NF4 base."""
    model = sheet.model()
    for name in (sheet.shape, f"{sheet.shape}, NF4"):
        if name != sheet.shape:
            bench_model.quantise(model)
        settings: dict[str, Any] = {"batch_sizes": (1, 32), "new_tokens": sheet.new_tokens}
        yield bench_model.decode_rows(model, name, 3 * sheet.repeats, **settings)


def baselines(sheet: Sheet) -> Iterator[Rows]:
    """One step of each baseline: float32 weights, bfloat16 autocast; fewer layers where not all of them fit."""
    optimizer = "paged_adamw_8bit" if sheet.on_gpu and find_spec("bitsandbytes") else "adamw"
    layers, name = shape_of(sheet.shape).num_hidden_layers, f"{sheet.shape}, {optimizer}"
    if sheet.on_gpu:
        room = ROOM * torch.cuda.get_device_properties(sheet.device).total_memory
        fitting = cost.layers_within(shape_of(sheet.shape), room / TRAINED[optimizer])
        name += f", {fitting} of {layers} layers" if fitting < layers else ""
        layers = fitting
    machine = ceilings(sheet.device, torch.bfloat16 if sheet.on_gpu else torch.float32)
    for method in LOSSES:
        yield bench_model.step_rows(
            lambda: sheet.model(layers), name, machine, methods=[method], optimizer=optimizer, warmup=int(sheet.on_gpu)
        )


def agreement(sheet: Sheet) -> Iterator[Rows]:
    """T3's Forget Quality of a small real run, each seed on the CPU and on the device, from the same base."""
    options = {name: value for name, value in sheet.real.items() if name not in ("hyper", "seeds")}
    T = settings_of("T3", sheet.real["hyper"])["temperature"]
    for device in dict.fromkeys(("cpu", sheet.device)):
        study = open_study(load={"device": device}, **options)
        where = f"{study.split}, T = {T:g}, {len(study.evaluation_rows['forget'])} rows, on {device}"
        for seed, report in zip(sheet.real["seeds"], forget_reports(study, sheet.real)):
            note = f"D = {report['ks_statistic']:.4f}"
            yield [value_row(f"Forget Quality, seed {seed}", where, report["forget_quality"], "", note)]


def forget_reports(study: Study, real: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The teacher-forced evaluation of the forget rows for each seed; nothing comes from a cache."""
    T, seeds = settings_of("T3", real["hyper"])["temperature"], real["seeds"]
    quiet: dict[str, Any] = {"attention_mask": study.evaluation["attention_mask"], "progress": False}
    features = extract_features(study.base, study.tokenizer, study.forget, study.retain, **quiet)
    settings, vocabulary = [fit_settings(real["hyper"], seed) for seed in seeds], study.base.config.vocab_size
    tilts = [(head, T) for head in fit_heads(features, settings, vocab_size=vocabulary, progress=False)]
    rows = {"forget": study.evaluation_rows["forget"]}
    scores = score(study.base, study.tokenizer, rows, tilts=tilts, generate=False, **quiet)
    kind = study.evaluation["truth_ratio"]
    return [numbers(each, reference=study.reference, truth_ratio=kind) for each in scores]


QUESTIONS: dict[str, Callable[[Sheet], Iterator[Rows]]] = {
    "head": head,
    "base": base,
    "decoding": decoding,
    "baselines": baselines,
    "agreement": agreement,
}


def write_sheet(sheet: Sheet, folder: Path) -> None:
    """Ask every question and write its rows to `folder`/NAME.csv, and where they come from to NAME.json.

    Beside the columns of the cost table each row has the most GPU memory held while it was measured, and the device's
    name. UserError for an unknown shape and for a device that is not there.
    """
    shape_of(sheet.shape)
    checked_device(sheet.device)
    for name, question in QUESTIONS.items():
        origin = provenance(model=f"random weights, {sheet.shape}", data="random letters")
        write_json(folder / f"{name}.json", origin)
        rows = []
        for entry in measured(question(sheet), on_gpu=sheet.on_gpu):
            print(line(entry), flush=True)
            rows.append(entry | {"device": origin["device"]})
            with atomic_write(folder / f"{name}.csv") as handle:
                handle.write(pd.DataFrame(rows).to_csv(index=False))


def measured(parts: Iterator[Rows], *, on_gpu: bool) -> Iterator[dict[str, Any]]:
    """The rows of a question with the GPU memory held for them at most; what ends it early becomes its last row."""
    try:
        while True:
            if on_gpu:
                gc.collect()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            if (part := next(parts, None)) is None:
                return
            peak = torch.cuda.max_memory_allocated() if on_gpu else None
            yield from (entry | {"peak_memory_bytes": peak} for entry in part)
    except (RuntimeError, ImportError, UserError) as error:  # too little memory, no bitsandbytes, no data
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        yield value_row("not measured", "", None, "", printable(reason)) | {"peak_memory_bytes": None}
