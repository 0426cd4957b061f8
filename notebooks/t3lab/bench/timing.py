"""Time T3 beside what it is compared with: a textbook training, the base alone, the published code.

Weights and features are random where only cost is measured, because cost does not depend on their
values. So nothing is downloaded.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import benchmark
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from t3lab.bench.cost import Shape, Work, decode_step, parameters, shape_of
from t3lab.study.study import Study
from t3lib.classifier.features import Features, tokens_of
from t3lib.classifier.fit import learning_rates, plan_steps
from t3lib.classifier.head import T3Head
from t3lib.classifier.pooling import prefix_mean
from t3lib.core.models import DTYPES, decoder_of, pad_id
from t3lib.core.rows import Example, collate, encode_rows
from t3lib.core.settings import TEMPERATURE, FitSettings
from t3lib.sampler.tilt import T3ForCausalLM

ANSWER = 40  # answer tokens of each row of `random_features`
TIMED_STEPS = 20  # of a naive training: its steps cost alike, so these are scaled up to all


def compare(
    what: str, shape: str, works: Mapping[str, Callable[[], object]],
    needs: Mapping[str, Work] | None = None, *, repeats: int, warmup: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time two computations in turns; return rows of the cost table: each of them, and their ratio.

    `torch.utils.benchmark.Timer` runs one computation after the other, and each twice more before
    it counts. Here they take turns, and every other turn runs backwards, so that whatever slows the
    machine down affects both alike. With one CPU thread the process's own clock is read, which
    leaves out the time of other programs; otherwise the wall clock, when the GPU has finished.

    Args:
        what: what both do, the start of each row's name.
        shape: sizes of the problem, in words.
        works: the two computations by name. The ratio is the second's seconds by the first's.
        needs: operations and bytes that a computation needs, by arithmetic, under its name.
        repeats: number of turns that count.
        warmup: number of turns before them.
    """
    one_thread = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    clock = time.process_time if one_thread else benchmark.timer
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warmup + repeats):
        for name, work in list(works.items())[:: -1 if turn % 2 else 1]:
            began = clock()
            work()
            seconds[name].append(clock() - began)
    first, second = seconds
    values = {name: each[warmup:] for name, each in seconds.items()}
    values[f"{second} / {first}"] = [b / a for a, b in zip(values[first], values[second])]
    return [
        {
            "what": f"{what}, {name}",
            "shape": shape,
            "unit": "s" if name in works else "×",
            **{"median": each[0.5], "low": each[0.25], "high": each[0.75], "repeats": repeats},
            **dict(zip(Work._fields, (needs or {}).get(str(name), (None, None)))),
        }
        for name, each in pd.DataFrame(values).quantile([0.25, 0.5, 0.75]).items()
    ]


# ---- training a head --------------------------------------------------------------------------


def random_features(
    d: int, vocab: int, pairs: int, *, device: str = "cpu", seed: int = 0
) -> Features:
    """Draw features of size d for `pairs` rows to forget and as many to keep, ANSWER tokens a row.

    Target tokens are log-uniform over the vocabulary (Zipf's law): the cost of a training depends
    on how many of its tokens are ever a target.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = torch.arange(2 * pairs)
    n = len(rows) * ANSWER
    y = (vocab ** torch.rand(n, generator=draw, dtype=torch.float64)).long() - 1
    x = torch.randn(n, d, generator=draw).to(device)
    row_of, s = rows.repeat_interleave(ANSWER), (rows >= pairs).long()
    return Features(x, y.clamp(0, vocab - 1), row_of, s, device=device)


def textbook(features: Features, vocab: int, fit: FitSettings) -> T3Head:
    """Train a head by Eq. 3 in the usual way: autograd, and AdamW over all of A and B.

    Only the rows of B that belong to targets are gathered for a step. Up to rounding it is the head
    that `fit_head` trains.

    Args:
        features: of the rows to forget and to keep.
        vocab: number of tokens in the vocabulary.
        fit: settings of the training, with `epoch="fixed"`.
    """
    head = T3Head(features.x.shape[1], vocab, fit.rank, seed=fit.seed).to(features.x.device)
    optimiser = torch.optim.AdamW(head.parameters(), weight_decay=fit.weight_decay, fused=True)
    plan = plan_steps(features.s, epochs=1, batch_size=fit.batch_size, epoch="fixed", seed=fit.seed)
    tensors = (features.x, features.y, features.s[features.row].float())
    steps = (tokens_of(rows, features.starts) for rows in plan)
    batches = [[each[tokens].to(features.x.device) for each in tensors] for tokens in steps]
    rates = learning_rates(fit.lr, round(fit.warmup_epochs * len(plan)), fit.epochs * len(plan))
    for (x, y, s), rate in zip(cycle(batches), rates):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        logit = (F.linear(x, head.A) * F.embedding(y, head.B)).sum(1)
        F.binary_cross_entropy_with_logits(logit, s).backward()
        optimiser.step()
    return head.eval()


@torch.inference_mode()
def naive(study: Study, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of T3 with the seconds of the published code, which runs the base at every step.

    run: a run of T3 on the study's split. The head would be the same, so only the seconds differ,
    and the records are left out. The base's passes in the first TIMED_STEPS steps are timed by the
    wall clock and scaled up to all steps; `timed_steps` is [timed, all].
    """
    examples = encode_rows(study.tokenizer, [*study.forget, *study.retain])
    kinds = (torch.arange(len(examples)) >= len(study.forget)).long()
    plan = {name: run["hyper"][name] for name in ("epochs", "batch_size", "epoch")}
    steps = plan_steps(kinds, **plan, seed=run["seed"])
    timed = steps[:TIMED_STEPS]
    began = benchmark.timer()
    for rows in timed:
        pooled(study, [examples[row] for row in rows])
    passes = (benchmark.timer() - began) / len(timed) * len(steps)
    seconds = run["seconds"] | {"features": None, "train": run["seconds"]["train"] + passes}
    return {
        **run,
        "setting": "naive",
        "timed_steps": [len(timed), len(steps)],
        "records": {},
        "seconds": seconds,
    }


def pooled(study: Study, examples: Sequence[Example]) -> Tensor:
    """Return the features of every prefix of some rows: (rows, L, d)."""
    batch = collate(examples, pad_id(study.tokenizer), study.scoring.attention_mask)
    ids, mask = (batch[name].to(study.base.device) for name in ("input_ids", "attention_mask"))
    hidden = decoder_of(study.base)(input_ids=ids, attention_mask=mask, use_cache=False)
    return prefix_mean(hidden.last_hidden_state, mask)


# ---- decoding ---------------------------------------------------------------------------------


def random_model(
    name: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0, **config: Any
) -> PreTrainedModel:  # fmt: skip
    """Build a Llama of a named shape (`cost.SHAPES`) with random weights.

    device: "meta" takes no memory. config: further settings of `LlamaConfig`. UserError for an
    unknown shape.
    """
    settings = LlamaConfig(**shape_of(name)._asdict() | {"max_position_embeddings": 8192} | config)
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(settings, dtype=DTYPES[dtype]).eval()


def decode_rows(
    base: PreTrainedModel, *, batch: int = 1, new_tokens: int = 16, repeats: int = 10
) -> list[dict[str, Any]]:  # fmt: skip
    """Time the base and T3 in turns, each decoding `new_tokens` tokens in each of `batch` rows.

    Returns the rows of `compare`.
    """
    shape = Shape.of(base.config)
    head = T3Head(shape.hidden_size, shape.vocab_size).to(base.device).eval()
    models = {"base": base, "T3": T3ForCausalLM(base, head, TEMPERATURE)}
    works = {name: partial(decode, model, batch, new_tokens) for name, model in models.items()}
    needs = {
        name: Work(*(new_tokens * each for each in decode_step(
            shape, batch=batch, itemsize=base.dtype.itemsize, heads=heads
        )))
        for heads, name in enumerate(models)
    }  # fmt: skip
    sizes = f"{parameters(shape) / 1e6:.3g}M weights, batch of {batch}"
    return compare(f"decoding {new_tokens} tokens", sizes, works, needs, repeats=repeats)


def decode(model: Any, batch: int, new_tokens: int) -> None:
    """Decode exactly `new_tokens` tokens greedily in each of `batch` rows, after 8 given tokens.

    So few are given that reading them hardly counts.
    """
    ids = (torch.arange(batch * 8) % 256).view(batch, 8).to(model.device)
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
        pad_token_id=0, max_new_tokens=new_tokens,
    )  # fmt: skip
    assert written.shape[1] == 8 + new_tokens, "else the time means nothing"
