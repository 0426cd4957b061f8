"""What runs the base on the clock: features, evaluation, one optimisation step of the baselines.

Weights are random: cost does not depend on their values. Rows are random letters, one byte a token, with the lengths of
TOFU's rows, so that nothing has to be downloaded.
"""

import random
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from t3lib.baselines.losses import LOSSES
from t3lib.baselines.unlearn import unlearn_baseline
from t3lib.bench import cost
from t3lib.bench.shapes import Shape, shape_of
from t3lib.bench.timing import Timing, interleaved, row, value_row
from t3lib.features import extract_features
from t3lib.greedy import tilted_greedy
from t3lib.head import T3Head
from t3lib.likelihood import Tilt, answer_losses
from t3lib.models import DTYPES, decoder_of
from t3lib.settings import BASELINES
from t3lib.tofu import Row, collate, encode_answers, encode_rows, length_sorted
from t3lib.wrapped import vocabulary

Rows = list[dict[str, Any]]
TEMPERATURES = (1.0, 1.5, 2.0, 2.5, 3.0)  # the paper's Table 5
SETS = {"forget": "forget10_perturbed", "retain": "retain_perturbed", "ra": "real_authors_perturbed"}
SETS |= {"wf": "world_facts_perturbed"}


def config_of_shape(name: str) -> LlamaConfig:
    """Configuration of a Llama of a named shape (`shapes.SHAPES`); UserError for an unknown name."""
    return LlamaConfig(
        **shape_of(name)._asdict(),
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


def random_model(
    name: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0, layers: int | None = None
) -> PreTrainedModel:
    """A Llama of a named shape with random weights, optionally only its first `layers`; device may be meta."""
    config = config_of_shape(name)
    if layers is not None:
        config.num_hidden_layers = layers
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


class Bytes:
    """A tokenizer whose tokens are the bytes of the text: enough of one to encode rows. No token ends a text."""

    chat_template = None
    bos_token = eos_token = ""
    all_special_tokens: tuple[str, ...] = ()
    pad_token_id = eos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


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
    rows, sizes = letters(count), Shape.of(model.config)
    examples = encode_rows(Bytes(), rows)
    lengths = [len(example.ids) for example in examples]
    batches = [
        {name: tensor.to(model.device) for name, tensor in collate([examples[i] for i in part], 0).items()}
        for part in length_sorted(lengths, batch_tokens)
    ]
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "progress": False}

    @torch.inference_mode()
    def alone() -> None:
        for batch in batches:
            decoder_of(model)(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)

    def cached() -> None:
        with tempfile.TemporaryDirectory() as folder:
            extract_features(model, Bytes(), rows[::2], rows[1::2], cache=folder, **options)

    both = interleaved(
        {
            "alone": alone,
            "features": lambda: extract_features(model, Bytes(), rows[::2], rows[1::2], **options),
            "cached": cached,
        },
        repeats=repeats,
    )
    work = cost.forward(sizes, lengths, itemsize=model.dtype.itemsize)
    made = [
        row("decoder alone", shape, both["alone"], work=work, machine=machine),
        row("features", shape, both["features"], work=work, machine=machine),
        row("features, to an empty cache", shape, both["cached"], work=work, machine=machine),
    ]
    tokens, first = sum(lengths), both["alone"].cost
    return made + [
        value_row("  throughput of features", shape, tokens / both["features"].cost, "tokens/s"),
        value_row("  features / decoder alone, throughput", shape, first / both["features"].cost),
        value_row("  cached / decoder alone, throughput", shape, first / both["cached"].cost),
    ]


def evaluation_rows(
    model: PreTrainedModel, shape: str, machine: cost.Ceilings, *, count: int = 16, seeds: int = 5, repeats: int = 3,
    new_tokens: int = 40,
) -> Rows:  # fmt: skip
    """All temperatures of one head, and of `seeds` heads, against one (T, seed): teacher-forced, then generation."""
    rows = letters(count)
    examples = [e for r in rows for e in encode_answers(Bytes(), r["question"], [r["answer"], *r["others"]])]
    width, V = model.config.get_text_config().hidden_size, vocabulary(model)
    heads = [T3Head(width, V, seed=seed).to(model.device).eval() for seed in range(seeds)]
    plans: dict[str, list[Tilt]] = {
        "1 T": [(heads[0], 2.5)],
        f"{len(TEMPERATURES)} T": [(heads[0], T) for T in TEMPERATURES],
        f"{len(TEMPERATURES)} T x {seeds} seeds": [(head, T) for head in heads for T in TEMPERATURES],
    }
    prompts = [examples[7 * i].ids[: examples[7 * i].n_prompt] for i in range(count)]
    generation: dict[str, Any] = {"eos_ids": [0], "max_new_tokens": new_tokens}

    def score(tilts: list[Tilt]) -> Any:
        return lambda: answer_losses(model, examples, pad_id=0, tilts=tilts, progress=False)

    def write(tilts: list[Tilt]) -> Any:
        return lambda: tilted_greedy(model, prompts, tilts, pad_id=0, progress=False, **generation)

    unique = [len(example.ids) - example.n_prompt for example in examples]
    lengths = [len(prompt) for prompt in prompts]  # each prompt once, all answers after it
    work = cost.forward(Shape.of(model.config), lengths + unique, logits=sum(unique), itemsize=model.dtype.itemsize)
    made: Rows = []
    for kind, make, bound in (("scoring", score, work), ("generation", write, None)):
        found = interleaved({name: make(tilts) for name, tilts in plans.items()}, repeats=repeats)
        first = found["1 T"].cost
        for name, timing in found.items():
            made.append(row(f"{kind}, {name}", shape, timing, work=bound, machine=machine))
            if name != "1 T":
                made.append(value_row(f"  {name} / 1 T", shape, timing.cost / first))
    return made


def step_rows(
    model_of: Any, shape: str, machine: cost.Ceilings, *, methods: Sequence[str] = tuple(LOSSES), batch: int = 4,
    steps: int = 2, bf16: bool = False, optimizer: str = "adamw",
) -> Rows:  # fmt: skip
    """Seconds of one optimisation step of each baseline, and the most memory held: model_of() gives a fresh base.

    On a GPU use `optimizer="paged_adamw_8bit"` and a bfloat16 base for Llama-3.1-8B's shape on one card.
    """
    made: Rows = []
    rows = letters(2 * batch)
    lengths = [len(example.ids) for example in encode_rows(Bytes(), rows)]
    hyper = {"epochs": steps, "warmup_epochs": 0, "batch_size": batch, "lr": 1e-6, "bf16": bf16, "optimizer": optimizer}
    for method in methods:
        model = model_of()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        _, info = unlearn_baseline(
            method, model, Bytes(), rows[:batch], rows[batch:], hyper=hyper, seed=0, idk=["I do not know."]
        )
        seconds = info["seconds"] / info["steps"]
        read = lengths if LOSSES[method].retain and BASELINES[method]["alpha_r"] else lengths[:batch]
        work = cost.training_step(Shape.of(model.config), read, len(read), itemsize=model.dtype.itemsize)
        bound = None if method in ("ULD", "RMU") else work  # they run, or train, a part of the layers only
        note = f"{len(read)} rows; mean of {steps} steps, wall clock"
        if torch.cuda.is_available():
            note += f"; peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB"
        timing = Timing((seconds,), (seconds,))
        made.append(row(f"one step of {method}", shape, timing, work=bound, machine=machine, note=note))
    return made
