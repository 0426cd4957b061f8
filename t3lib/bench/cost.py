"""What a computation must cost at least: floating-point operations, bytes, parameters, memory. Arithmetic, no torch.

Letters: n tokens, d width, h rank of the head, V vocabulary, L length. A multiply-add is 2 operations. Bytes are
those that have to cross the memory bus once; whatever fits a cache is not counted, so every bound is a true one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from t3lib.bench.shapes import Shape, shape_of

ADAM_BYTES = 28  # a float32 parameter and step: read p, g, m, v; write p, m, v


class Work(NamedTuple):
    """Operations and bytes of memory traffic that a computation cannot do without."""

    flops: float
    bytes: float

    def times(self, k: float) -> "Work":
        """The same k times over."""
        return Work(k * self.flops, k * self.bytes)


class Ceilings(NamedTuple):
    """What a machine does at best: operations a second in a large matrix product, bytes a second read."""

    flops: float
    bytes: float


def total(works: Iterable[Work]) -> Work:
    """Computations one after the other."""
    flops, moved = zip(*works)
    return Work(sum(flops), sum(moved))


def lower_bound(work: Work, machine: Ceilings) -> float:
    """max(flops / peak, bytes / bandwidth) in seconds: no program is faster, were both perfectly overlapped."""
    return max(work.flops / machine.flops, work.bytes / machine.bytes)


def head_step(n: int, d: int, h: int, *, itemsize: int = 4) -> Work:
    """4 n d h operations, n d numbers: one step of head training, Z = X Aᵀ and dA = dZᵀ X with one reading of X.

    The active rows of B, their moments and A stay in the processor's cache.
    """
    return Work(4 * n * d * h, n * d * itemsize)


def dense_step(n: int, d: int, h: int, V: int, *, itemsize: int = 4) -> Work:
    """`head_step` with AdamW over all h (d + V) parameters: 28 bytes each."""
    return Work(head_step(n, d, h).flops + 12 * h * (d + V), n * d * itemsize + ADAM_BYTES * h * (d + V))


def full_vocabulary_step(n: int, d: int, h: int, V: int, *, itemsize: int = 4) -> Work:
    """`dense_step` with logits Z Bᵀ of all tokens, and their gradients dZ and dB: 6 n h V operations more.

    The (n, V) logits and their gradient are written and read once each.
    """
    rows = dense_step(n, d, h, V, itemsize=itemsize)
    return Work(rows.flops + 6 * n * h * V, rows.bytes + 16 * n * V)


def linear_maps(shape: Shape) -> tuple[tuple[int, int], ...]:
    """(inputs, outputs) of the linear maps of one decoder layer: q, k, v, o, gate, up, down."""
    d, m, kv = shape.hidden_size, shape.intermediate_size, shape.key_value_size
    return (d, d), (d, kv), (d, kv), (d, d), (d, m), (d, m), (m, d)


def linear_weights(shape: Shape) -> int:
    """Weights of the linear maps of all decoder layers."""
    return shape.num_hidden_layers * sum(a * b for a, b in linear_maps(shape))


def parameters(shape: Shape) -> int:
    """All weights of a model: linear maps, embeddings, output layer, two norms a layer and the last one."""
    d, V = shape.hidden_size, shape.vocab_size
    return (
        linear_weights(shape) + (1 if shape.tie_word_embeddings else 2) * V * d + (2 * shape.num_hidden_layers + 1) * d
    )


def layers_within(shape: Shape, weights: float) -> int:
    """How many of a shape's layers a model of at most so many weights has; at least 1."""
    outside = parameters(shape._replace(num_hidden_layers=0))
    layer = parameters(shape._replace(num_hidden_layers=1)) - outside
    return max(1, min(shape.num_hidden_layers, int((weights - outside) // layer)))


def parameter_counts(name: str, *, rank: int = 20, lora_rank: int = 32, lora_layers: int = 16) -> dict[str, int]:
    """Trainable parameters of the paper's Table 2 at a named shape, as {method: number}.

    ULD's assistant has LoRA on every linear map of the first `lora_layers` layers: rank × (inputs + outputs) each.
    """
    shape = shape_of(name)
    return {
        "Full Fine-Tuning": parameters(shape),
        "ULD": min(lora_layers, shape.num_hidden_layers) * lora_rank * sum(a + b for a, b in linear_maps(shape)),
        "T3": rank * (shape.hidden_size + shape.vocab_size),
    }


def forward(shape: Shape, lengths: Sequence[int], *, logits: int = 0, itemsize: int = 4) -> Work:
    """Σ_i 2 L_i P + 2 L_i (L_i + 1) d a layer (causal attention): one pass over unpadded rows, weights read once.

    P = `linear_weights`; logits: positions at which the output layer runs, 2 d V operations each.
    """
    d, V = shape.hidden_size, shape.vocab_size
    weights = linear_weights(shape)
    attention = sum(2 * length * (length + 1) * d for length in lengths) * shape.num_hidden_layers
    flops = 2 * weights * sum(lengths) + attention + 2 * d * V * logits
    return Work(flops, itemsize * (weights + (d * V if logits else 0)))


def training_step(shape: Shape, lengths: Sequence[int], answers: int, *, itemsize: int = 4) -> Work:
    """Three passes' operations (forward, two products backward); weights, gradients and Adam's moments cross once."""
    once = forward(shape, lengths, logits=answers, itemsize=itemsize)
    return Work(3 * once.flops, 7 * once.bytes)


def decode_step(
    shape: Shape, *, batch: int = 1, context: int = 0, itemsize: int = 2, heads: int = 0, rank: int = 20
) -> Work:
    """One decoding step: all weights read once, keys and values of `context` tokens a row, and A and B of every head.

    The base in numbers of `itemsize` bytes, the heads in float32. Of a tilt only its weights count: at batch 1 the rest
    fits a cache.
    """
    weights = linear_weights(shape) + shape.hidden_size * shape.vocab_size
    tilt = heads * rank * (shape.hidden_size + shape.vocab_size)
    cached = batch * context * 2 * shape.num_hidden_layers * shape.key_value_size
    return Work(2 * batch * (weights + tilt), itemsize * (weights + cached) + 4 * tilt)


def heads_within(shape: Shape, share: float, *, rank: int = 20, itemsize: int = 2) -> int:
    """How many heads add at most `share` to the bytes that a decoding step of one row reads."""
    alone, one = (decode_step(shape, itemsize=itemsize, heads=heads, rank=rank).bytes for heads in (0, 1))
    return int(share * alone / (one - alone))


def feature_bytes(tokens: int, d: int, itemsize: int = 2) -> int:
    """Bytes of the cached features of `tokens` answer tokens."""
    return tokens * d * itemsize


def nf4_bytes(weights: int, block: int = 64, blocks: int = 256) -> float:
    """4 bits a weight, 8 a block of 64 for its scale, 32 for 256 scales' own (double quantisation): 4.127 bits."""
    return weights * (4 + 8 / block + 32 / (block * blocks)) / 8


def nf4_memory(
    shape: Shape, *, batch_tokens: int = 8192, batch: int = 32, context: int = 512, answer_tokens: int = 16_000,
    rank: int = 20,
) -> dict[str, float]:  # fmt: skip
    """Bytes on the GPU of T3 on an NF4 base, part by part: weights, features, head training, generation.

    Embeddings, output layer and norms stay in bfloat16 (bitsandbytes quantises the layers' linear maps only). Working
    memory: the residual stream and the widest MLP of a pass of `batch_tokens`, one layer's weights dequantised, float32
    pooled states; keys and values of `batch` rows of `context` tokens; float32 logits with their tilt.
    """
    d, m, V, layers = shape.hidden_size, shape.intermediate_size, shape.vocab_size, shape.num_hidden_layers
    return {
        "weights, NF4": nf4_bytes(linear_weights(shape)),
        "embeddings, output layer, norms, bf16": 2 * (parameters(shape) - linear_weights(shape)),
        "features: a pass of the base": batch_tokens * (2 * (4 * d + 3 * m) + 3 * 4 * d) + 2 * d * m,
        "head training: tokens, A, B, Adam": answer_tokens * 4 * d + 4 * 4 * rank * (d + V),
        "generation: keys and values, logits": 2 * 2 * layers * shape.key_value_size * batch * context
        + 4 * 4 * batch * V,
    }


def peak_of(parts: Mapping[str, float]) -> float:
    """Most bytes held at once: the weights, and the largest of the stages, which follow each other."""
    weights = sum(value for name, value in parts.items() if name.startswith(("weights", "embeddings")))
    return weights + max(value for name, value in parts.items() if not name.startswith(("weights", "embeddings")))
