"""The least that a computation must cost, by arithmetic: operations, bytes, parameters, memory.

Letters: n tokens, d hidden size, h rank of the head, V vocabulary size, L length of a row, P
weights of the layers' linear maps (`linear_weights`). A multiply-add is 2 operations. Only bytes
that must cross the memory bus are counted, not those that fit into a cache. Imports no torch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from t3lib.core.errors import UserError

# Bits a weight: 4, 8 for the scale of 64 weights, 32 for that of 256 scales (double quantisation).
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)


class Shape(NamedTuple):
    """Sizes of a Llama, under the names that Transformers' configuration gives them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    tie_word_embeddings: bool = False

    @property
    def key_value_size(self) -> int:
        """Width of a layer's keys, and of its values: all key-value heads side by side."""
        return self.hidden_size // self.num_attention_heads * self.num_key_value_heads

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """Return the sizes in a model's configuration."""
        return cls(*(getattr(config.get_text_config(), name) for name in cls._fields))


SHAPES = {
    "llama-3.1-70b": Shape(128256, 8192, 28672, 80, 64, 8),
    "llama-3.1-8b": Shape(128256, 4096, 14336, 32, 32, 8),
    "llama-3.2-1b": Shape(128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True),
    # What one CPU core runs in seconds, and large enough that the base does most of the work.
    "58m": Shape(32000, 512, 1408, 8, 8, 8),
    "tiny": Shape(512, 64, 128, 2, 4, 2),
}


def shape_of(name: str) -> Shape:
    """Return the sizes of a named Llama (`SHAPES`); UserError for an unknown name."""
    if name not in SHAPES:
        raise UserError(f"unknown shape {name!r}: choose one of {', '.join(SHAPES)}")
    return SHAPES[name]


class Work(NamedTuple):
    """The cost of a computation: floating-point operations, and bytes read and written."""

    flops: float
    bytes: float


def head_training(n: float, d: int, h: int, *, itemsize: int = 4) -> Work:
    """Return the work of training a head over n tokens: 4 n d h operations, n d numbers read.

    itemsize: bytes of a number. A step computes Z = X Aᵀ and dA = dZᵀ X and reads X once. A, the
    active rows of B and their moments stay in the processor's cache.
    """
    return Work(4 * n * d * h, n * d * itemsize)


def linear_maps(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Return (inputs, outputs) of one decoder layer's linear maps: q, k, v, o, gate, up, down."""
    d, m, kv = shape.hidden_size, shape.intermediate_size, shape.key_value_size
    return (d, d), (d, kv), (d, kv), (d, d), (d, m), (d, m), (m, d)


def linear_weights(shape: Shape) -> int:
    """Return P, the number of weights in the linear maps of all decoder layers."""
    return shape.num_hidden_layers * sum(a * b for a, b in linear_maps(shape))


def parameters(shape: Shape) -> int:
    """Return the number of all weights of a model: linear maps, embeddings, output layer, norms."""
    d, V = shape.hidden_size, shape.vocab_size
    vocabularies = 1 if shape.tie_word_embeddings else 2
    return linear_weights(shape) + vocabularies * V * d + (2 * shape.num_hidden_layers + 1) * d


def parameter_counts(
    name: str, *, rank: int = 20, lora_rank: int = 32, lora_layers: int = 16
) -> dict[str, int]:  # fmt: skip
    """Return the trainable parameters of the paper's Table 2 at a named shape, {method: number}.

    rank: of T3's head. ULD's assistant has LoRA of rank lora_rank on every linear map of the first
    `lora_layers` layers, with lora_rank × (inputs + outputs) parameters each.
    """
    shape = shape_of(name)
    adapted = min(lora_layers, shape.num_hidden_layers)
    return {
        "Full Fine-Tuning": parameters(shape),
        "ULD": adapted * lora_rank * sum(a + b for a, b in linear_maps(shape)),
        "T3": rank * (shape.hidden_size + shape.vocab_size),
    }


def forward(shape: Shape, lengths: Sequence[int], *, logits: int = 0, itemsize: int = 4) -> Work:
    """Return the work of one pass: Σ 2 L P operations, and Σ 2 L (L + 1) d a layer for attention.

    lengths: L of each row, without padding; attention is causal. logits: number of positions at
    which the output layer runs, with 2 d V operations each. itemsize: bytes of a weight; all
    weights are read once.
    """
    d, V = shape.hidden_size, shape.vocab_size
    weights = linear_weights(shape)
    attention = sum(2 * length * (length + 1) * d for length in lengths) * shape.num_hidden_layers
    flops = 2 * weights * sum(lengths) + attention + 2 * d * V * logits
    return Work(flops, itemsize * (weights + (d * V if logits else 0)))


def training_step(shape: Shape, lengths: Sequence[int], answers: int, *, itemsize: int = 4) -> Work:
    """Return the work of a full fine-tuning step: 3 times a pass's operations, 7 times its bytes.

    answers: number of positions with logits. The backward pass has two products for each one of the
    forward pass. Weights, gradients and AdamW's two moments are read; all but the gradients are
    written.
    """
    once = forward(shape, lengths, logits=answers, itemsize=itemsize)
    return Work(3 * once.flops, 7 * once.bytes)


def decode_step(
    shape: Shape, *, batch: int = 1, itemsize: int = 2, heads: int = 0, rank: int = 20
) -> Work:
    """Return the work of decoding one token in each of `batch` rows, without keys and values.

    These are 2 operations for each row and weight, and every weight is read once. itemsize: bytes
    of the base's numbers. Each of T3's `heads` adds A and B of this rank, in float32.
    """
    weights = linear_weights(shape) + shape.hidden_size * shape.vocab_size
    tilt = heads * rank * (shape.hidden_size + shape.vocab_size)
    return Work(2 * batch * (weights + tilt), itemsize * weights + 4 * tilt)


def t3_memory(
    shape: Shape, *, bits: float = NF4_BITS, batch_tokens: int = 8192, batch: int = 32,
    context: int = 512, answer_tokens: int = 16_000, rank: int = 20,
) -> tuple[float, float]:  # fmt: skip
    """Return the bytes of T3 on a GPU: (the base's weights, the most held at once).

    The weights of the layers' linear maps take `bits` each, all others 16, because bitsandbytes
    quantises only the linear maps. Three stages follow each other, so the peak is the weights and
    the largest stage.
    Features: the residual stream and the widest MLP of a pass of `batch_tokens`, one layer's
    dequantised weights, float32 pooled states.
    Head training: features of `answer_tokens` tokens; A, B, gradients and AdamW's moments in
    float32.
    Decoding: keys and values of `batch` rows of `context` tokens, float32 logits with their tilt.
    """
    d, m, V = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    linear = linear_weights(shape)
    weights = linear * bits / 8 + 2 * (parameters(shape) - linear)
    features = batch_tokens * (2 * (4 * d + 3 * m) + 3 * 4 * d) + 2 * d * m
    training = answer_tokens * 4 * d + 4 * 4 * rank * (d + V)
    cached = 2 * 2 * shape.num_hidden_layers * shape.key_value_size * batch * context
    return weights, weights + max(features, training, cached + 4 * 4 * batch * V)
