"""What runs the base on the clock: features, evaluation, decoding, one optimisation step of the baselines.

Weights are random: cost does not depend on their values. Rows are random letters, one byte a token, with the lengths of
TOFU's rows, so that nothing has to be downloaded.
"""

import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn
from transformers import AutoModelForCausalLM, CompileConfig, LlamaConfig, PreTrainedModel

from t3lib.baselines.losses import LOSSES
from t3lib.baselines.unlearn import unlearn_baseline
from t3lib.bench import cost
from t3lib.bench.shapes import Shape, shape_of
from t3lib.bench.timing import Rows, Timing, clock, interleaved, row
from t3lib.errors import UserError
from t3lib.features import extract_features
from t3lib.head import T3Head
from t3lib.likelihood import Tilt, answer_losses
from t3lib.models import DTYPES, decoder_of
from t3lib.sampler import T3ForCausalLM
from t3lib.settings import BASELINES, TEMPERATURE
from t3lib.tofu import Row, collate, encode_answers, encode_rows, length_sorted
from t3lib.writing import greedy

TEMPERATURES = (1.0, 1.5, 2.0, 2.5, 3.0)  # the paper's Table 5
HEADS = (1, 4, 16, 64)
MANY = 1000  # forget requests on one base, by arithmetic alone
PROMPT = 8  # tokens before what is decoded: short, so that reading them hardly counts


def random_model(
    name: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0, layers: int | None = None
) -> PreTrainedModel:
    """A Llama of a named shape (`shapes.SHAPES`) with random weights, by default all its layers; device may be meta."""
    sizes = shape_of(name)
    sizes = sizes._replace(num_hidden_layers=layers or sizes.num_hidden_layers)
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    config = LlamaConfig(**sizes._asdict(), max_position_embeddings=8192, rms_norm_eps=1e-5, rope_parameters=rope)
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


def quantise(model: PreTrainedModel) -> None:
    """The linear maps of all layers to NF4 with double quantisation, in place, as `load_model` has them in 4 bits.

    ImportError without bitsandbytes.
    """
    from bitsandbytes.nn import Linear4bit, Params4bit

    for parent in list(decoder_of(model).modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                sizes, dtype = (layer.in_features, layer.out_features), layer.weight.dtype
                small = Linear4bit(*sizes, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta")
                weight: Any = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=small)
                small.weight = weight.to(layer.weight.device)
                setattr(parent, name, small)


def random_head(model: PreTrainedModel, seed: int = 0) -> T3Head:
    """An untrained head for a model, where the model is."""
    shape = Shape.of(model.config)
    return T3Head(shape.hidden_size, shape.vocab_size, seed=seed).to(model.device).eval()


class Bytes:
    """A tokenizer whose tokens are the bytes of the text: enough of one to encode rows. No token ends a text."""

    chat_template = None
    bos_token = eos_token = ""
    all_special_tokens: tuple[str, ...] = ()
    pad_token_id = eos_token_id = 0

    def __call__(self, texts: list[str], add_special_tokens: bool = False) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(text.encode()) for text in texts]}


def letters(count: int, *, question: int = 20, answer: int = 40, seed: int = 0) -> list[Row]:
    """Rows with random questions and answers, half to one and a half times as long as said, and 6 further answers."""
    draw = random.Random(seed)

    def text(mean: int) -> str:
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(mean // 2, mean + mean // 2)))

    return [
        {"question": text(question), "answer": text(answer), "others": [text(answer) for _ in range(6)]}
        for _ in range(count)
    ]


def feature_rows(
    model: PreTrainedModel, shape: str, machine: cost.Ceilings, *, count: int = 64, repeats: int = 3,
    batch_tokens: int = 8192,
) -> Rows:  # fmt: skip
    """Tokens a second of feature extraction, with and without its cache on disk, against the decoder's pass alone."""
    rows = letters(count)
    examples = encode_rows(Bytes(), rows)
    lengths = [len(example.ids) for example in examples]
    batches = [
        {name: tensor.to(model.device) for name, tensor in collate([examples[i] for i in part], 0).items()}
        for part in length_sorted(lengths, batch_tokens)
    ]

    @torch.inference_mode()
    def alone() -> None:
        for batch in batches:
            decoder_of(model)(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)

    def features(cache: str | None = None) -> None:
        options: dict[str, Any] = {"batch_tokens": batch_tokens, "progress": False, "cache": cache}
        extract_features(model, Bytes(), rows[::2], rows[1::2], **options)

    def cached() -> None:
        with tempfile.TemporaryDirectory() as folder:
            features(folder)

    timings = interleaved({"alone": alone, "features": features, "cached": cached}, repeats=repeats)
    first, streamed, kept = (timings[name] for name in ("alone", "features", "cached"))
    work = cost.forward(Shape.of(model.config), lengths, itemsize=model.dtype.itemsize)
    return [
        row("decoder alone", shape, first, work=work, machine=machine),
        row("features", shape, streamed, work=work, machine=machine),
        row("features, to an empty cache", shape, kept, work=work, machine=machine),
        row("  throughput of features", shape, sum(lengths) / streamed.cost, "tokens/s"),
        row("  features / decoder alone, throughput", shape, first.cost / streamed.cost),
        row("  cached / decoder alone, throughput", shape, first.cost / kept.cost),
    ]


def evaluation_rows(
    model: PreTrainedModel, shape: str, machine: cost.Ceilings, *, count: int = 16, seeds: int = 5, repeats: int = 3,
    new_tokens: int = 40,
) -> Rows:  # fmt: skip
    """All temperatures of one head, and of `seeds` heads, against one (T, seed): teacher-forced, then generation."""
    examples = [e for r in letters(count) for e in encode_answers(Bytes(), r["question"], [r["answer"], *r["others"]])]
    prompts = [example.ids[: example.n_prompt] for example in examples[::7]]
    heads = [random_head(model, seed) for seed in range(seeds)]
    plans: dict[str, list[Tilt]] = {
        "1 T": [(heads[0], TEMPERATURE)],
        f"{len(TEMPERATURES)} T": [(heads[0], T) for T in TEMPERATURES],
        f"{len(TEMPERATURES)} T x {seeds} seeds": [(head, T) for head in heads for T in TEMPERATURES],
    }

    quiet: dict[str, Any] = {"pad_id": 0, "progress": False}

    def score(tilts: list[Tilt]) -> Callable[[], object]:
        return lambda: answer_losses(model, examples, tilts=tilts, **quiet)

    def write(tilts: list[Tilt]) -> Callable[[], object]:
        return lambda: greedy(model, prompts, tilts, eos_ids=[0], max_new_tokens=new_tokens, **quiet)

    answers = [len(example.ids) - example.n_prompt for example in examples]
    lengths = [len(prompt) for prompt in prompts] + answers  # each prompt once, all answers after it
    work = cost.forward(Shape.of(model.config), lengths, logits=sum(answers), itemsize=model.dtype.itemsize)
    rows: Rows = []
    for kind, make, bound in (("scoring", score, work), ("generation", write, None)):
        timings = interleaved({name: make(tilts) for name, tilts in plans.items()}, repeats=repeats)
        for name, timing in timings.items():
            rows.append(row(f"{kind}, {name}", shape, timing, work=bound, machine=machine))
            if name != "1 T":
                rows.append(row(f"  {name} / 1 T", shape, timing.cost / timings["1 T"].cost))
    return rows


def decode_rows(
    base: PreTrainedModel, shape: str, repeats: int, *, batch_sizes: Sequence[int] = (1, 8), new_tokens: int = 32,
    compiled: bool = False,
) -> Rows:  # fmt: skip
    """Milliseconds a step of greedy decoding, where each row of a batch gets one token: of the base, and under T3."""
    rows: Rows = []
    how = "compiled decoding" if compiled else "decoding"
    for batch_size in batch_sizes:
        settings: dict[str, Any] = {"new_tokens": new_tokens, "repeats": repeats, "compiled": compiled}
        timings = decode_timings(base, batch_size=batch_size, **settings)
        for name, timing in (("base", timings[0]), ("T3", timings[1])):
            step = 1000 * statistics.median(timing.busy) / new_tokens
            note = f"{clock()} clock"
            rows.append(row(f"{how}, batch of {batch_size}: {name}", shape, step, "ms/token", note))
        low, middle, high = (100 * (ratio - 1) for ratio in timings[1].over(timings[0]))
        rows.append(row("  overhead", shape, middle, "%", f"quartiles {low:+.1f} to {high:+.1f}%"))
    return rows


def decode_timings(
    base: PreTrainedModel, *, heads: Sequence[int] = (1,), batch_size: int = 1, new_tokens: int = 32, repeats: int = 9,
    compiled: bool = False,
) -> dict[int, Timing]:  # fmt: skip
    """Greedy decoding of `new_tokens` tokens under so many heads, in turns with the base alone, which is number 0.

    UserError for a number below 1. compiled: as in `decoding`.
    """
    if min(repeats, new_tokens, batch_size, *heads) < 1:
        raise UserError("repeats, heads, batch size and new tokens must be at least 1")
    added = [random_head(base, seed) for seed in range(max(heads))]
    models: dict[int, Any] = {0: base} | {n: T3ForCausalLM(base, added[:n], TEMPERATURE) for n in heads}
    ids = (torch.arange(batch_size * PROMPT) % 256).view(batch_size, PROMPT).to(base.device)
    works = {n: decoding(model, ids, new_tokens, compiled=compiled) for n, model in models.items()}
    return interleaved(works, repeats=repeats)  # whose first turn, which compiles, is not counted


def decoding(model: Any, ids: torch.Tensor, new_tokens: int, *, compiled: bool = False) -> Callable[[], None]:
    """A greedy `generate` of exactly `new_tokens` tokens after ids (B, L), to be timed.

    compiled: every step but the prompt's by torch.compile over a static cache, for which a CPU needs a C++ compiler.
    The first call compiles. UserError where torch has been told not to.
    """
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    options |= {"max_new_tokens": new_tokens}
    if compiled:
        options |= {"cache_implementation": "static", "compile_config": CompileConfig(fullgraph=True)}
        options["compile_config"]._compile_all_devices = True  # else generate compiles on a GPU alone

    def work() -> None:
        written = model.generate(ids, attention_mask=torch.ones_like(ids), **options).shape[1] - ids.shape[1]
        assert written == new_tokens, f"{written} tokens, not {new_tokens}: the time means nothing"
        if compiled and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
            raise UserError("torch has compiled nothing (TORCHDYNAMO_DISABLE?)")

    return work


def scale(base: PreTrainedModel, name: str, repeats: int, *, heads: Sequence[int] = HEADS) -> pd.DataFrame:
    """What many heads cost in decoding one row, as columns shape, heads, overhead, low, high (per cent), how.

    Measured on `base`, in turns with the base alone (median and quartiles); by arithmetic at its shape and at those of
    8B and 70B: bytes of weights that a step reads, the base's in bfloat16 there. A head is one forget request.
    """
    measured = decode_timings(base, heads=heads, repeats=repeats)
    rows: list[tuple[Any, ...]] = []
    for n in heads:
        low, middle, high = (100 * (ratio - 1) for ratio in measured[n].over(measured[0]))
        rows.append((name, n, middle, low, high, "measured"))
    for shape, itemsize in ((name, base.dtype.itemsize), ("llama-3.1-8b", 2), ("llama-3.1-70b", 2)):
        alone = cost.decode_step(shape_of(shape), itemsize=itemsize).bytes
        for n in (*heads, MANY):
            added = cost.decode_step(shape_of(shape), itemsize=itemsize, heads=n).bytes / alone - 1
            rows.append((shape, n, 100 * added, None, None, "bytes of weights"))
    return pd.DataFrame(rows, columns=["shape", "heads", "overhead", "low", "high", "how"])


def step_rows(
    model_of: Callable[[], PreTrainedModel], shape: str, machine: cost.Ceilings, *,
    methods: Sequence[str] = tuple(LOSSES), batch: int = 4, steps: int = 2, optimizer: str = "adamw", warmup: int = 0,
) -> Rows:  # fmt: skip
    """Seconds of one optimisation step of each baseline: model_of() gives a fresh base.

    The mean of `steps` steps, after `warmup` trainings of as many that are not counted. On a GPU use
    `optimizer="paged_adamw_8bit"` and a bfloat16 base for Llama-3.1-8B's shape on one card.
    """
    data = letters(2 * batch)
    lengths = [len(example.ids) for example in encode_rows(Bytes(), data)]
    settings = {"epochs": steps, "warmup_epochs": 0, "batch_size": batch, "lr": 1e-6, "optimizer": optimizer}

    def train(method: str) -> tuple[float, Shape]:
        """Nothing of a training outlives it: two bases may be more than a GPU holds."""
        options: dict[str, Any] = {"hyper": settings, "seed": 0, "idk": ["I do not know."]}
        model = model_of()
        _, info = unlearn_baseline(method, model, Bytes(), data[:batch], data[batch:], **options)
        return info["seconds"] / steps, Shape.of(model.config)

    rows: Rows = []
    for method in methods:
        mean, sizes = [train(method) for _ in range(warmup + 1)][-1]
        read = lengths if BASELINES[method].get("alpha_r") else lengths[:batch]
        work = cost.training_step(sizes, read, len(read))
        bound = None if method in ("ULD", "RMU") else work  # they run, or train, a part of the layers only
        note = f"{len(read)} rows; mean of {steps} steps, wall clock"
        timing = Timing((mean,), (mean,))
        rows.append(row(f"one step of {method}", shape, timing, work=bound, machine=machine, note=note))
    return rows
