"""Divergence Decoding: two small models steer a frozen base (arXiv 2605.31293).

    p̂(y | x)  ∝  p(y | x)^(1/T) (q(y | x) / r(y | x))^α

q is a small model that never saw the rows to forget, r one of the same size that did. T = 1 is the
published method. It is ULD's product (`t3lib.baselines.uld`) with the pair as its assistant, so
that it decodes in the same modes.
"""

import copy
from typing import Any

from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from t3lib.baselines.uld import ULDForCausalLM
from t3lib.core.errors import UserError
from t3lib.core.models import CACHE


class Pair(PreTrainedModel, GenerationMixin):
    """Two causal LMs of one shape as one model, whose logits are log r - log q.

    r, q: with the same configuration. Their keys and values lie in one cache, r's layers first.
    UserError for two shapes.
    """

    base_model_prefix = "r"
    _is_stateful = False

    def __init__(self, r: PreTrainedModel, q: PreTrainedModel) -> None:
        config = copy.deepcopy(r.config)
        layers, other = config.num_hidden_layers, q.config
        if (config.vocab_size, layers) != (other.vocab_size, other.num_hidden_layers):
            raise UserError("the two small models must have the same shape and vocabulary")
        config.num_hidden_layers = 2 * layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types * 2
        super().__init__(config)
        self.r, self.q, self.layers = r, q, layers

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return attn_implementation  # both models have checked theirs

    def get_decoder(self) -> Any:
        """Return r's decoder."""
        return self.r.get_decoder()

    def get_output_embeddings(self) -> Any:
        """Return r's output layer, which has the vocabulary's size."""
        return self.r.get_output_embeddings()

    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return log r - log q, (B, L or logits_to_keep, V) in float32; arguments as usual."""
        cache, parts = past_key_values if cache is None else cache, (None, None)
        if cache is not None:
            parts = (cache.layers[: self.layers], cache.layers[self.layers :])
        logr, logq = (
            model(input_ids=input_ids, **kwargs, **({CACHE: Cache(layers=own)} if own else {}))
            .logits.float()
            .log_softmax(-1)
            for model, own in zip((self.r, self.q), parts)
        )
        return CausalLMOutputWithPast(logits=logr - logq)  # type: ignore[arg-type]


class DivergenceForCausalLM(ULDForCausalLM):
    """p̂(y | x) ∝ p(y | x)^(1/T) (q(y | x) / r(y | x))^α, frozen, as a Transformers model.

    base, q, r: causal LMs with the same vocabulary. dials: of `steer`. UserError as of ULD.
    """

    def __init__(
        self, base: PreTrainedModel, q: PreTrainedModel, r: PreTrainedModel, **dials: Any
    ) -> None:
        super().__init__(base, Pair(r, q))
        self.dials = dials

    def quotient(self, logits: Tensor, assistant_logits: Tensor) -> Tensor:
        """Return `steer` of p's logits by those of the pair; (..., V) each."""
        return steer(logits, assistant_logits, **self.dials)


def steer(
    logits: Tensor,
    against: Tensor,
    *,
    alpha: float = 1.0,
    temperature: float = 1.0,
    rank: int = 0,
    bounded: bool = False,
) -> Tensor:
    """log p(y | x) / T + α log (q(y | x) / r(y | x)), not normalised, in float32.

    logits: of p. against: log r - log q. Both are (..., V), and so is the result.
    rank: k, in place of α: the k tokens of the smallest q / r get the k-th largest logit of p. The
    published code forbids these tokens where texts are written, and replaces their logits where
    given answers are scored. Here the second rule holds for both, so that what is written is what
    was judged.
    bounded: f = q / (q + r) in place of q / r, as T3's f with equally many rows of both kinds.
    """
    logits = logits.float() / temperature
    if rank:
        kth = logits.topk(rank, dim=-1).values[..., -1:]
        lowest = against.topk(rank, dim=-1).indices
        return logits.scatter(-1, lowest, kth.expand(lowest.shape))
    return logits + alpha * (logsigmoid(-against) if bounded else -against)
