"""`t3 bench` and `t3 bench --gpu`: questions about cost, each answered by rows of measurements beside their bounds.

Weights are random, so nothing has to be downloaded. Without a GPU the rows are one table, and what needs the base runs
at a shape that a CPU can do. With --gpu each question has a table of its own, written anew with every row it gains, so
a run that is killed keeps what it has; a small real run then shows that the GPU and the CPU reach the same Forget
Quality. A question that a machine cannot answer leaves its reason, and the others go on.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from t3lib.baselines.losses import LOSSES
from t3lib.bench import cost
from t3lib.bench import head as bench_head
from t3lib.bench import model as bench_model
from t3lib.bench.head import HeadShape
from t3lib.bench.shapes import shape_of
from t3lib.bench.timing import Rows, ceilings, interleaved, line, row, timed
from t3lib.errors import UserError, printable
from t3lib.files import atomic_write, write_json
from t3lib.models import checked_device
from t3lib.results import peak_memory_bytes, provenance
from t3lib.study.methods import evaluated, subject
from t3lib.study.study import open_study
from t3lib.theory import experiments
from t3lib.theory.logistic import fit_logistic
from t3lib.theory.mixture import GaussianMixture

# Bytes a weight of a baseline's training: weights and gradients in float32, autocast's copies and the original in
# bfloat16, and two moments, of 8 bits each where bitsandbytes is there, else in float32.
TRAINED = {"paged_adamw_8bit": 4 + 4 + 2 + 2 + 2, "adamw": 4 + 4 + 2 + 2 + 8}
ROOM = 0.9  # share of the GPU's memory that weights may fill; the rest is for activations
CPU_WEIGHTS = 2e8  # the largest base that a CPU is asked to run


@dataclass(frozen=True)
class Sheet:
    """What is measured where, how often and on how much.

    shape: whose head is trained. base, trained: shapes of the base that is run and of the one that baselines train.
    rows: whose features are extracted; an eighth of them is evaluated. batches, new_tokens: of decoding. nf4: whether
    on an NF4 base, too. real: of the small real run, keywords of `study.open_study` and T3's `hyper` and `seeds`.
    """

    shape: str
    device: str
    base: str
    trained: str
    repeats: int = 3
    rows: int = 64
    batches: tuple[int, ...] = (1, 8)
    new_tokens: int = 32
    nf4: bool = False
    real: Mapping[str, Any] | None = None

    @property
    def on_gpu(self) -> bool:
        """False on a CPU, where weights are float32 and no baseline is quantised or shortened."""
        return self.device != "cpu"

    @property
    def turns(self) -> int:
        """How often decoding is timed: a few per cent are to be told from noise, of which a CPU has more."""
        return (3 if self.on_gpu else 10) * self.repeats

    @property
    def dtype(self) -> torch.dtype:
        """Of the base."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    def model(self, name: str, layers: int | None = None) -> PreTrainedModel:
        """A shape with random weights, optionally only its first layers."""
        return bench_model.random_model(name, dtype=str(self.dtype)[6:], device=self.device, layers=layers)


def sheet_of(shape: str, device: str | None = None, *, real: Mapping[str, Any] | None = None) -> Sheet:
    """What suits a device, by default a GPU if there is one. On a CPU a large base is replaced by "58m".

    UserError for an unknown shape and for a device that is not there.
    """
    large = cost.linear_weights(shape_of(shape)) > CPU_WEIGHTS
    device = checked_device(device)
    if device != "cpu":
        return Sheet(shape, device, shape, shape, rows=256, batches=(1, 32), nf4=True, real=real)
    return Sheet(shape, device, "58m" if large else shape, "tiny", rows=64 if shape == "tiny" else 16, real=real)


def head_shape(shape: str, **sizes: int) -> HeadShape:
    """The head of a named base at the paper's 5% split (`HeadShape`); for the tiny shape a run of a second."""
    named = shape_of(shape)
    small = {"pairs": 16, "epochs": 10} if shape == "tiny" else {}
    return HeadShape(**{"d": named.hidden_size, "vocab": named.vocab_size} | small | sizes)


def head(sheet: Sheet) -> Iterator[Rows]:
    """Training a head: ours, AdamW over all of B, the whole vocabulary; at the 10% split; a grid at once."""
    shape, machine = head_shape(sheet.shape), ceilings(sheet.device)
    yield [
        row("ceiling: matrix product", sheet.device, machine.flops / 1e9, "GFLOP/s"),
        row("ceiling: memory", sheet.device, machine.bytes / 1e9, "GB/s"),
        row("threads", sheet.device, torch.get_num_threads(), "threads"),
    ]
    where: dict[str, Any] = {"device": sheet.device}
    steps = 0 if sheet.shape == "tiny" else 2 * shape.per_epoch
    yield bench_head.head_rows(shape, machine, repeats=sheet.repeats, dense_steps=steps, **where)
    if sheet.shape != "tiny":
        more = head_shape(sheet.shape, pairs=400)
        yield bench_head.head_rows(more, machine, repeats=1, dense_steps=steps, full_steps=0, **where)
    yield bench_head.grid_rows(head_shape(sheet.shape, epochs=4), machine, repeats=sheet.repeats, **where)


def base(sheet: Sheet) -> Iterator[Rows]:
    """Features a second, and the evaluation of all temperatures and of five seeds against one."""
    model, machine = sheet.model(sheet.base), ceilings(sheet.device, sheet.dtype)
    yield bench_model.feature_rows(model, sheet.base, machine, repeats=sheet.repeats, count=sheet.rows)
    yield bench_model.evaluation_rows(model, sheet.base, machine, repeats=sheet.repeats, count=sheet.rows // 8)


def decoding(sheet: Sheet) -> Iterator[Rows]:
    """What the tilt adds to a decoding step, for one row and for many; then the same on an NF4 base."""
    model = sheet.model(sheet.base)
    settings: dict[str, Any] = {"batch_sizes": sheet.batches, "new_tokens": sheet.new_tokens}
    yield bench_model.decode_rows(model, sheet.base, sheet.turns, **settings)
    if sheet.nf4:
        bench_model.quantise(model)
        yield bench_model.decode_rows(model, f"{sheet.base}, NF4", sheet.turns, **settings)


def compiled(sheet: Sheet) -> Iterator[Rows]:
    """What the tilt adds to a decoding step of one row where torch has compiled the base's, and T3's."""
    settings: dict[str, Any] = {"batch_sizes": (1,), "new_tokens": sheet.new_tokens, "compiled": True}
    yield bench_model.decode_rows(sheet.model(sheet.base), sheet.base, sheet.turns, **settings)


def baselines(sheet: Sheet) -> Iterator[Rows]:
    """One step of each baseline: float32 weights, bfloat16 autocast; fewer layers where not all of them fit."""
    optimizer = "paged_adamw_8bit" if sheet.on_gpu and find_spec("bitsandbytes") else "adamw"
    shape = shape_of(sheet.trained)
    layers, name = shape.num_hidden_layers, f"{sheet.trained}, {optimizer}"
    if sheet.on_gpu:
        room = ROOM * torch.cuda.get_device_properties(sheet.device).total_memory
        fitting = cost.layers_within(shape, room / TRAINED[optimizer])
        name += f", {fitting} of {layers} layers" if fitting < layers else ""
        layers = fitting
    machine, warmup = ceilings(sheet.device, sheet.dtype), int(sheet.on_gpu)
    for method in LOSSES:
        settings: dict[str, Any] = {"methods": [method], "optimizer": optimizer, "warmup": warmup}
        yield bench_model.step_rows(lambda: sheet.model(sheet.trained, layers), name, machine, **settings)


def synthetic(sheet: Sheet) -> Iterator[Rows]:
    """The paper's two Gaussian experiments."""
    yield synthetic_rows(20 if sheet.shape == "tiny" else 200)


def synthetic_rows(trials: int, seed: int = 0) -> Rows:
    """Experiments 1 and 2 of the paper, and their cells' fits beside a scikit-learn loop over the same data and λ.

    Both solvers fit the two-class data sets down to gradients of 1e-8 (ours further); lbfgs is scikit-learn's fastest
    solver here. Without scikit-learn its rows are left out.
    """
    where, problems = f"{trials} trials", []
    whole = timed(lambda: experiments.experiments(trials=trials, seed=seed), repeats=1, warmup=0)
    for v_f, n in sorted({(v, 50) for v in experiments.V_F} | {(1e-3, n) for n in experiments.N}):
        one = experiments.fit_trials(GaussianMixture(v_f=v_f), n, trials, seed)
        both = one.s.min(axis=1) != one.s.max(axis=1)
        problems.append((one.z[both], one.s[both], one.lam))
    works: dict[str, Callable[[], object]] = {"batched Newton": lambda: [fit_logistic(*each) for each in problems]}

    def one_by_one() -> None:
        for z, s, lam in problems:
            model = LogisticRegression(C=1 / (2 * z.shape[1] * lam), fit_intercept=False, tol=1e-8, max_iter=10_000)
            for z_i, s_i in zip(z, s, strict=True):
                model.fit(np.stack([np.ones_like(z_i), z_i, z_i**2], axis=1), s_i)

    with suppress(ImportError):
        from sklearn.linear_model import LogisticRegression

        works["scikit-learn loop"] = one_by_one
    fits = interleaved(works, repeats=1, warmup=0)
    rows = [row("synthetic: experiments 1 and 2", where, whole)]
    rows += [row(f"synthetic: fits, {name}", where, timing) for name, timing in fits.items()]
    if len(fits) > 1:
        ratio = fits["scikit-learn loop"].cost / fits["batched Newton"].cost
        rows.append(row("  scikit-learn / ours", where, ratio))
    return rows


def agreement(sheet: Sheet) -> Iterator[Rows]:
    """T3's Forget Quality of a small real run, each seed on the CPU and on the device, from the same base."""
    real = sheet.real or {}
    options = {name: value for name, value in real.items() if name not in ("hyper", "seeds")}
    for device in dict.fromkeys(("cpu", sheet.device)):
        study = open_study(load={"device": device}, **options)
        models = [subject(study, "T3", seed, real["hyper"]) for seed in real["seeds"]]
        where = f"{study.split}, T = {models[0].T:g}, {len(study.evaluation_rows['forget'])} rows, on {device}"
        for model, report in zip(models, evaluated(study, models, sets=["forget"], generate=False)):
            note = f"D = {report['ks_statistic']:.4f}"
            yield [row(f"Forget Quality, seed {model.seed}", where, report["forget_quality"], "", note)]


Question = Callable[[Sheet], Iterator[Rows]]
COSTS: tuple[Question, ...] = (head, base, decoding, baselines)


def bench(sheet: Sheet) -> Rows:
    """The rows of the cost table."""
    rows = [entry for question in (*COSTS, compiled, synthetic) for entry in measured(question, sheet)]
    if not sheet.on_gpu:
        print("No GPU here: its cells are empty. Run `t3 bench --gpu` where there is one.")
    return [*rows, row("peak memory of the whole process", sheet.device, peak_memory_bytes() / 1e9, "GB")]


def write_sheet(sheet: Sheet, folder: Path) -> None:
    """Ask what needs a GPU: a question's rows go to `folder`/NAME.csv, where they come from to NAME.json.

    Beside the columns of the cost table each row has the most GPU memory held while it was measured, and the device's
    name.
    """
    for question in (*COSTS, agreement, compiled):  # the least of them last
        origin = provenance(model=f"random weights, {sheet.shape}", data="random letters")
        write_json(folder / f"{question.__name__}.json", origin)
        rows = []
        for entry in measured(question, sheet):
            rows.append(entry | {"device": origin["device"]})
            with atomic_write(folder / f"{question.__name__}.csv") as handle:
                handle.write(pd.DataFrame(rows).to_csv(index=False))


def measured(question: Question, sheet: Sheet) -> Iterator[dict[str, Any]]:
    """The rows of a question, each printed when it comes, with the GPU memory held for them at most.

    What ends the question early becomes its last row.
    """
    parts = question(sheet)
    part: Rows | None = []
    while part is not None:
        if sheet.on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            part = next(parts, None)
        except (RuntimeError, ImportError, UserError) as error:  # too little memory, no bitsandbytes, compiler or data
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            part = [row(f"not measured: {question.__name__}", "", None, "", printable(reason))]
        peak = torch.cuda.max_memory_allocated() if sheet.on_gpu else None
        for entry in part or ():
            print(line(entry), flush=True)
            yield entry | {"peak_memory_bytes": peak}
