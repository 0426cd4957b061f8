"""Sizes of the Llamas whose cost is measured or computed. Imports no torch."""

from typing import Any, NamedTuple

from t3lib.core.errors import UserError


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
