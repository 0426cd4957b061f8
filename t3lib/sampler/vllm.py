"""T3 as a model class of vLLM: p_hat(y | x) ∝ p(y | x)^(1/T) f(x, y) in its continuous batches.

The head reads mean_t(A H_t), the mean over the context so far. Attention with zero queries gives
all tokens the same weight, so its output is the mean of their values. One more attention layer,
with zero queries, zero keys and the values A H_t, therefore computes this mean from vLLM's own
paged key-value cache. Batching, the prefix cache, chunked prefill and n-gram speculation need
nothing else.

    python -m vllm.entrypoints.openai.api_server --model BASE \\
        --hf-overrides '{"architectures": ["T3LlamaForCausalLM"], "t3_head": "HEAD"}' \\
        --middleware t3lib.sampler.vllm_check.SelfCheck --host 127.0.0.1

BASE is an unmodified model. Its architecture is T3LlamaForCausalLM for Llama models (SmolLM2 is
one) and T3TransformersForCausalLM for all others, which run in vLLM's Transformers backend. t3_head
is the folder or Hub id of a head, or a list of these, whose log f are added. t3_temperature,
t3_gate and t3_tail: T, θ and ε, by default the heads' own. `vllm_rules` says what is refused, and
`vllm_check` is the middleware by which the server asks itself whether it serves T3. With
t3_choose_heads, vllm_xargs of a request may name some of the heads, {"t3_heads": ["HEAD"]}; by
default all are added. vLLM loads this module by name, and no other module of t3lib imports it.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.transformers import TransformersForCausalLM

from t3lib.core.errors import UserError
from t3lib.sampler import belonging
from t3lib.sampler.tilt import tilted
from t3lib.sampler.vllm_rules import check_config, heads_of
from t3lib.sampler.vllm_samplers import JudgedSamplers


class Tilted:
    """Add T3 to one of vLLM's model classes; it comes before that class among the bases.

    The heads are kept in a list, so that vLLM does not expect their weights in the base's files.
    Every rank holds them whole; `check_config` allows one rank.
    """

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        check_config(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        heads, self.t3_temperature, self.t3_gate, self.t3_tail = heads_of(model)
        self.t3_heads = [head.to(vllm_config.device_config.device) for head in heads]
        self.t3_ranks = [head.rank for head in heads]
        self.t3_seen: list[tuple[Tensor, list[int]]] | None = None  # see `vllm_check.Watch`
        size, kv_heads = model.get_head_size(), model.get_num_kv_heads(parallel)
        if sum(self.t3_ranks) > size * kv_heads:
            raise UserError(
                f"the heads have rank {sum(self.t3_ranks)} together, and a token's values in this"
                f" base's cache only {size * kv_heads} numbers: fit a head of a smaller rank"
            )
        # Given vLLM's cache configuration, the layer would inherit the base's sliding window.
        # Without it, the layer reads the whole context, in the model's own dtype.
        self.t3_pool = Attention(
            model.get_num_attention_heads(parallel),
            size,
            1.0,
            num_kv_heads=kv_heads,
            prefix=f"model.layers.{model.get_total_num_hidden_layers()}.t3_pool.attn",
        )

    @property
    def compute_logits_local(self) -> Any:
        """vLLM samples from this instead of `compute_logits` where it exists; it has no tilt."""
        raise AttributeError("T3 has no compute_logits_local: it would leave f out")

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return hidden states and pooled contexts side by side: (tokens, d + sum of ranks).

        vLLM selects rows of them and hands these to `compute_logits`.
        """
        hidden = super().forward(*args, **kwargs)  # type: ignore[misc]
        z = torch.cat([head.project(hidden) for head in self.t3_heads], dim=-1)
        return torch.cat([hidden, pooled(self.t3_pool, z.to(hidden.dtype))], dim=-1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """log p(y | x) / T + log f(x, y), up to a constant in each row (the logarithm of Eq. 5).

        hidden_states: rows of what `forward` returned. Returns (rows, V) in float32; None where the
        base returns none.
        """
        logits = self.t3_logits(hidden_states, range(len(self.t3_heads)))
        JudgedSamplers.logits_of = partial(self.t3_logits, hidden_states)
        if self.t3_seen is not None and logits is not None:
            self.t3_seen.append((hidden_states.clone(), logits.argmax(-1).tolist()))
        return logits

    def t3_logits(
        self, hidden_states: Tensor, numbers: Sequence[int], rows: slice = slice(None)
    ) -> Tensor | None:
        """Do the work of `compute_logits` with some of the heads, for some rows.

        numbers: of the heads, at least one.
        """
        ranks = self.t3_ranks
        width = hidden_states.shape[-1] - sum(ranks)
        hidden, *contexts = hidden_states[rows].split([width, *ranks], dim=-1)
        logits = self.logits_processor(  # type: ignore[attr-defined]
            self.t3_lm_head, hidden.contiguous(), getattr(self.t3_lm_head, "bias", None)
        )
        if logits is None:
            return None
        heads = [self.t3_heads[number] for number in numbers]
        logf = [head.logf(contexts[number]) for head, number in zip(heads, numbers)]
        return tilted(logits, logf, heads, self.t3_temperature, self.t3_gate, self.t3_tail)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the base's weights; UserError if a head was trained on another base.

        The output layer gets a name that only `t3_logits` reads: vLLM could sample from `lm_head`
        and the hidden states, and would leave f out.
        """
        samples: dict[str, Tensor] = {}
        loaded: set[str] = super().load_weights(sampled(weights, samples))  # type: ignore[misc]
        base = sampled_base(self.config, samples)  # type: ignore[attr-defined]
        for head in self.t3_heads:
            belonging.check_base(head, base)
        self.t3_lm_head = self.lm_head  # type: ignore
        del self.lm_head  # type: ignore
        return loaded


class T3LlamaForCausalLM(Tilted, LlamaForCausalLM):
    """T3 on vLLM's own Llama."""


class T3TransformersForCausalLM(Tilted, TransformersForCausalLM):
    """T3 on any dense decoder that vLLM runs in its Transformers backend."""


def pooled(attention: Any, z: Tensor) -> Tensor:
    """mean_{s<=t} z_s for every token t (MeanPool of Section 2.3): z (tokens, n) -> (tokens, n).

    attention: vLLM's causal attention layer. It knows which tokens of a batch belong to one
    request, and keeps the values of earlier steps in its cache. z has n numbers for a token, at
    most kv heads times head size.
    """
    tokens, n = z.shape
    kv_heads, size = attention.num_kv_heads, attention.head_size
    values = F.pad(z, (0, kv_heads * size - n))
    queries = z.new_zeros(tokens, attention.num_heads * size)
    means = attention(queries, torch.zeros_like(values), values)
    # All query heads that share a key-value head return the same mean: use the first of each.
    return means.view(tokens, kv_heads, -1, size)[:, :, 0].reshape(tokens, -1)[:, :n]


def sampled(
    weights: Iterable[tuple[str, Tensor]], samples: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield a base's weights unchanged, and put into `samples` what `weight_keys` reads of them.

    Of a sample `weight_keys` reads every number, so that both have the same hash.
    """
    for name, weight in weights:
        step = weight.numel() // belonging.SAMPLE | 1
        samples[name] = weight.detach().reshape(-1)[::step].clone()
        yield name, weight


def sampled_base(config: Any, samples: dict[str, Tensor]) -> nn.Module:
    """Return a module that `check_base` reads as the base that these samples were taken from.

    config: the base's Transformers configuration. vLLM fuses and shards weights as it loads them,
    so that a key is computed from the samples, in Transformers' order of parameters. If the files
    name their weights otherwise (a quantised base), the module has no key, and the base's files are
    compared.
    """
    base: Any = nn.Module()
    base.config = config
    with torch.device("meta"):
        names = [name for name, _ in AutoModelForCausalLM.from_config(config).named_parameters()]
    if samples.keys() >= set(names):
        for number, name in enumerate(names):
            base.register_parameter(str(number), nn.Parameter(samples[name], requires_grad=False))
    else:
        base.hf_quantizer = True  # type: ignore[assignment]  # `weight_keys` then returns None
    return base
