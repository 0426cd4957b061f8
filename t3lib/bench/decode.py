"""What T3 costs while decoding: milliseconds a token of the base and of the same base under a head, side by side.

The two are timed in turns (base, T3, T3, base, …), so that a machine that warms up, throttles or is shared slows both
alike; the overhead is the median of the turns' ratios. On one CPU thread the clock counts the process's own time, which
other processes cannot lengthen by taking turns; otherwise it is the wall's. Weights are random: cost does not depend on
their values.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from t3lib.bench.model import config_of_shape
from t3lib.errors import UserError
from t3lib.head import T3Head
from t3lib.models import DTYPES
from t3lib.sampler import T3ForCausalLM
from t3lib.wrapped import vocabulary

PROMPT = 8  # tokens: short, so that reading it hardly counts


@torch.no_grad()
def decode_overhead(
    config_or_model: PretrainedConfig | PreTrainedModel | str,
    batch_sizes: Sequence[int] = (1, 8),
    new_tokens: int = 32,
    repeats: int = 9,
    *,
    rank: int = 20,
    dtype: str = "float32",
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Time greedy decoding of the base and of T3 in turns; one row a batch size.

    config_or_model: a model, or a configuration or a shape's name (`shapes.SHAPES`), built with random weights of
    `dtype` on `device` (default cuda if there is one). rank: the head's h. options: further arguments of `generate`,
    for instance {"cache_implementation": "static"}; code compiles in an untimed first turn.
    Row: batch_size, base_ms and t3_ms (medians over `repeats`, milliseconds a step, in which every row of the batch
    gets one token), overhead (median over turns of t3 / base − 1), overhead_low and overhead_high (its quartiles),
    parameters, head_parameters, new_tokens, repeats, dtype, device, threads, clock ("process" or "wall").
    Raises UserError for a batch size, new_tokens or repeats below 1 and for an unknown shape or dtype.
    """
    for name, least in {
        "new_tokens": new_tokens,
        "repeats": repeats,
        "batch_sizes": min(batch_sizes, default=0),
    }.items():
        if least < 1:
            raise UserError(f"{name} must be at least 1, not {least}")
    base = _model(config_or_model, dtype, device)
    head = T3Head(base.config.get_text_config().hidden_size, vocabulary(base), rank).to(base.device)
    tilted = T3ForCausalLM(base, head, 2.5)
    rows = []
    for batch_size in batch_sizes:
        ids = torch.randint(vocabulary(base), (batch_size, PROMPT), generator=torch.Generator().manual_seed(0))
        ids = ids.to(base.device)
        turns: list[tuple[float, float]] = []
        for turn in range(repeats + 1):
            pair = [base, tilted] if turn % 2 == 0 else [tilted, base]
            spent = {id(model): _milliseconds(model, ids, new_tokens, options or {}) for model in pair}
            turns.append((spent[id(base)], spent[id(tilted)]))
        turns = turns[1:]  # the first one warms up
        ratios = [t3 / own - 1 for own, t3 in turns]
        low, middle, high = statistics.quantiles(ratios, n=4) if repeats > 1 else ratios * 3
        rows.append(
            {
                "batch_size": batch_size,
                "base_ms": statistics.median(own for own, _ in turns),
                "t3_ms": statistics.median(t3 for _, t3 in turns),
                "overhead": middle,
                "overhead_low": low,
                "overhead_high": high,
                "parameters": sum(weight.numel() for weight in base.parameters()),
                "head_parameters": head.num_parameters,
                "new_tokens": new_tokens,
                "repeats": repeats,
                "dtype": str(base.dtype).removeprefix("torch."),
                "device": torch.cuda.get_device_name(base.device) if base.device.type == "cuda" else base.device.type,
                "threads": torch.get_num_threads(),
                "clock": "process" if _clock(ids) is time.process_time else "wall",
            }
        )
    return rows


def _model(given: PretrainedConfig | PreTrainedModel | str, dtype: str, device: str | None) -> PreTrainedModel:
    if isinstance(given, PreTrainedModel):
        return given
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    config = config_of_shape(given) if isinstance(given, str) else given
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


def _milliseconds(model: Any, ids: torch.Tensor, new_tokens: int, options: Mapping[str, Any]) -> float:
    """Milliseconds a step of one greedy `generate` without an end token."""
    clock = _clock(ids)
    _finish(ids)
    began = clock()
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    _finish(ids)
    spent = clock() - began
    if made.shape[1] != ids.shape[1] + new_tokens:
        raise AssertionError(
            f"{made.shape[1] - ids.shape[1]} tokens were made, not {new_tokens}: the time means nothing"
        )
    return spent * 1000 / new_tokens


def _clock(ids: torch.Tensor) -> Callable[[], float]:
    alone = ids.device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def _finish(ids: torch.Tensor) -> None:
    if ids.device.type == "cuda":
        torch.cuda.synchronize(ids.device)
