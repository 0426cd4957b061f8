"""Loading causal language models: a Hub id, a folder, or random weights of a named shape; dtype, device, 4/8-bit."""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from t3lib.errors import UserError
from t3lib.files import content_key
from t3lib.progress import watched

Result = TypeVar("Result")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Sizes only: cost does not depend on the values of the weights.
SHAPES: dict[str, dict[str, int]] = {
    "llama-3.1-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "llama-3.2-1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "58m": {  # what one CPU core runs in seconds, and large enough that the base's own work dominates
        "vocab_size": 32000,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def load_model(
    name: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    load_in: str | None = None,
    revision: str | None = None,
) -> tuple[PreTrainedModel, Any]:
    """Load a causal LM in evaluation mode and its tokenizer from the Hub or a folder.

    dtype: float32 | bfloat16 | float16, default the checkpoint's own. device: default cuda if there is one, else cpu.
    load_in: "8bit" or "4bit" (NF4) through bitsandbytes. Never runs code that a checkpoint brings and
    never reads pickles. UserError when the name, the dtype or the device cannot be had.
    """
    if dtype not in (None, *DTYPES):
        raise UserError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    if str(name).startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise UserError(f"model folder {name} does not exist")
    device = checked_device(device)
    options: dict[str, Any] = {"dtype": DTYPES[dtype] if dtype else "auto", "revision": revision or "main"}
    if load_in:
        options |= {"quantization_config": quantization(load_in, dtype), "device_map": {"": device}}
    name = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else str(name)
    if not watched():
        logging.disable_progress_bar()  # of Transformers: "Loading weights"
    try:
        # Left to itself, Transformers asks on a terminal whether to run a checkpoint's code.
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision or "main", trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: weights of other sizes than the config's
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot load model {name}: {reason}") from None
    except Exception as error:  # safetensors raises its own type for a truncated file
        if type(error).__name__ != "SafetensorError":
            raise
        raise UserError(f"cannot load model {name}: damaged safetensors file ({error})") from None
    if not load_in:
        model.to(device)  # type: ignore[arg-type]
    return model.eval(), tokenizer


def checked_device(device: str | None) -> str:
    """The device, by default cuda if there is one, else cpu; UserError when it is no device or not on this machine."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {device} was asked for, but this machine has no CUDA GPU")
    try:
        usable = torch.zeros(1, device=device).device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        usable = False
    if not usable:
        raise UserError(f"device {device!r} cannot be used on this machine: choose cpu, cuda or cuda:N")
    return device


def quantization(load_in: str, dtype: str | None = None) -> BitsAndBytesConfig:
    """bitsandbytes settings for "8bit" or "4bit" (NF4 with double quantisation)."""
    if load_in == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    if load_in == "4bit":
        compute = DTYPES[dtype] if dtype else torch.bfloat16
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute,
        )
    raise UserError(f"unknown load_in {load_in!r}: choose 8bit or 4bit")


def config_of_shape(shape: str) -> LlamaConfig:
    """Configuration of a Llama of a named shape (`SHAPES`)."""
    if shape not in SHAPES:
        raise UserError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
    sizes: dict[str, Any] = dict(SHAPES[shape])
    return LlamaConfig(
        **sizes,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=shape == "llama-3.2-1b",
    )


def random_model(
    shape: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0, layers: int | None = None
) -> PreTrainedModel:
    """A Llama of the named shape with random weights, optionally only its first `layers`; device may be meta."""
    config = config_of_shape(shape)
    if layers is not None:
        config.num_hidden_layers = layers
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


def pad_id(tokenizer: Any) -> int:
    """The padding id: the tokenizer's own, else its end-of-sequence id, as the reference does."""
    for value in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if value is not None:
            return value
    raise UserError("the tokenizer has neither a padding nor an end-of-sequence token")


def check_ids(model: PreTrainedModel, tokens: Iterable[Sequence[int]], pad: int) -> None:
    """UserError where a token, or the padding, has no embedding: a tokenizer that grew while the model did not."""
    rows = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    largest = max((max(ids) for ids in tokens if len(ids)), default=0)
    for what, value in (("uses token", largest), ("pads with token", pad)):
        if value >= rows:
            advice = "model.resize_token_embeddings(len(tokenizer)), or the tokenizer the model was trained with"
            raise UserError(f"the tokenizer {what} {value}, the model has {rows} embeddings: {advice}")


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The inner model whose output's `last_hidden_state` (B, L, d) is taken after the final norm."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def context_length(model: PreTrainedModel) -> int | None:
    """How many tokens the model's positions reach, if its configuration says."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def revision_of(model: PreTrainedModel) -> str | None:
    """The Hub commit the weights came from; None for folders and random weights."""
    return getattr(model.config, "_commit_hash", None)


def config_from_folder(name: str | Path) -> Any:
    """Only the configuration of a model, without its weights."""
    return AutoConfig.from_pretrained(str(name), trust_remote_code=False)


COLUMNS = 509  # prime, so that exchanged rows of a weight matrix fall into other columns


def weights_key(model: PreTrainedModel) -> str:
    """16 hex digits of a loaded model, whatever changed it since: its configuration and weights, wherever they are.

    Every tensor is viewed as 64-bit words in rows of 509, whose column sums modulo 2^64 are hashed: one pass over the
    memory, and no single changed weight escapes. Weights that are not in memory (offloaded) count by name and revision.
    """
    config = model.config.to_dict()
    source = [config.pop("_name_or_path", None), getattr(model.config, "_commit_hash", None)]
    for name in ("transformers_version", "_attn_implementation_autoset"):
        config.pop(name, None)
    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    sums = {name: _column_sums(tensor) for name, tensor in state.items() if not tensor.is_meta}
    return content_key([config, sums, source if len(sums) < len(state) else None])


def _column_sums(tensor: torch.Tensor) -> list[Any]:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() // (8 * COLUMNS) * 8 * COLUMNS
    words = raw[:whole].view(torch.int64).reshape(-1, COLUMNS).sum(0)
    return [list(tensor.shape), str(tensor.dtype), words.tolist(), raw[whole:].tolist()]


def within_memory(work: Callable[[int], Result], batch_tokens: int, *, least: int = 128) -> Result:
    """work(batch_tokens), tried again with half as many tokens a batch, and a warning, whenever memory runs out.

    UserError when less than `least` tokens would be left.
    """
    while True:
        try:
            return work(batch_tokens)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if not memory and not re.search("allocate memory|out of memory", str(error), re.IGNORECASE):
                raise
        # Outside `except`, so that the failed pass's tensors are free before the next one.
        if batch_tokens // 2 < least:
            advice = "load the base smaller (--load-in 8bit or 4bit)"
            raise UserError(f"out of memory even with batches of {max(batch_tokens, least)} tokens: {advice}")
        batch_tokens //= 2
        warnings.warn(f"out of memory: going on with batches of {batch_tokens} tokens", stacklevel=2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
