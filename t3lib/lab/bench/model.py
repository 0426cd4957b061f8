"""Time decoding: a base with random weights, alone and with T3.

Weights are random, because the cost does not depend on their values, so nothing has to be
downloaded.
"""

from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from t3lib.classifier.head import T3Head
from t3lib.core.models import DTYPES
from t3lib.core.settings import TEMPERATURE
from t3lib.lab.bench import cost
from t3lib.lab.bench.shapes import Shape, shape_of
from t3lib.lab.bench.timing import Rows, interleaved, row
from t3lib.sampler.tilt import T3ForCausalLM

PROMPT = 8  # tokens before the decoded ones: so few that reading them hardly counts


def random_model(
    name: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> PreTrainedModel:  # fmt: skip
    """Build a Llama of a named shape (`shapes.SHAPES`) with random weights.

    device: "meta" takes no memory. UserError for an unknown shape.
    """
    config = LlamaConfig(
        **shape_of(name)._asdict(),
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


def decode_rows(
    base: PreTrainedModel, *, batch: int = 1, new_tokens: int = 16, repeats: int = 10
) -> Rows:  # fmt: skip
    """Time decoding steps of the base and of T3 in turns.

    Returns a row for each, and one for T3's overhead in per cent. A step decodes one token in each
    of `batch` rows.
    """
    ids = (torch.arange(batch * PROMPT) % 256).view(batch, PROMPT).to(base.device)
    shape, rows = Shape.of(base.config), []
    head = T3Head(shape.hidden_size, shape.vocab_size).to(base.device).eval()
    models = {"base": base, "T3": T3ForCausalLM(base, head, TEMPERATURE)}
    works = {name: partial(decode, each, ids, new_tokens) for name, each in models.items()}
    seconds = interleaved(works, repeats=repeats)
    where = f"{cost.parameters(shape) / 1e6:.3g}M weights, batch of {batch}"
    for heads, (name, spent) in enumerate(seconds.items()):
        work = cost.decode_step(shape, batch=batch, itemsize=base.dtype.itemsize, heads=heads)
        steps = [seconds_of / new_tokens for seconds_of in spent]
        rows.append(row(f"decoding step, {name}", where, steps, work=work))
    added = [100 * (ours / alone - 1) for alone, ours in zip(*seconds.values())]
    return [*rows, row("decoding step, T3's overhead", where, added, "%")]


def decode(model: Any, ids: torch.Tensor, new_tokens: int) -> None:
    """Decode exactly `new_tokens` tokens greedily after each of the prompts ids (B, L)."""
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
        pad_token_id=0, max_new_tokens=new_tokens,
    )  # fmt: skip
    assert written.shape[1] == ids.shape[1] + new_tokens, "else the time means nothing"
