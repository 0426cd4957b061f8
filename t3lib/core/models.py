"""Loading causal language models from a folder or the Hub, in any dtype, on any device, in 4 or 8
bits.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel
from transformers.utils import cached_file, logging

from t3lib.core.errors import UserError
from t3lib.core.files import content_key, read_json
from t3lib.core.hub import Place, located
from t3lib.core.progress import watched
from t3lib.core.rows import check_template

Result = TypeVar("Result")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    name: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    load_in: str | None = None,
    revision: str | None = None,
) -> tuple[PreTrainedModel, Any]:
    """Load a causal LM in evaluation mode and its tokenizer, from the Hub or a folder; LoRA
    adapters on their base.

    dtype: float32 | bfloat16 | float16, default the checkpoint's own. device: default cuda if there
    is one, else cpu.
    load_in: "8bit" or "4bit" (NF4) through bitsandbytes. Never runs code that a checkpoint brings
    and never reads pickles. UserError when the name, the dtype or the device cannot be had, and for
    a checkpoint that is damaged or does not hold exactly the weights of its model.
    """
    if dtype not in (None, *DTYPES):
        raise UserError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    device = checked_device(device)
    load = partial(AutoModelForCausalLM.from_pretrained, dtype=DTYPES[dtype] if dtype else "auto")
    if load_in:
        quantised = quantization(load_in, dtype)
        load = partial(load, quantization_config=quantised, device_map={"": device})
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    if not watched():
        logging.disable_progress_bar()  # of Transformers: "Loading weights"
    logging.set_verbosity_error()  # what is wrong with a checkpoint is raised here, not logged
    try:
        place = located(str(name), revision)
        # Left to itself, Transformers asks on a terminal whether to run a checkpoint's code.
        tokenizer = AutoTokenizer.from_pretrained(
            place.name,
            trust_remote_code=False,
            revision=place.commit or "main",
            local_files_only=place.offline,
        )
        check_template(tokenizer)
        model = _load_weights(place, load)
    # of any kind: a stranger's files go through Transformers and the libraries below it
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        raise UserError(f"cannot load model {name}: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    if not load_in:
        model.to(device)  # type: ignore[arg-type]
    for module in model.modules() if load_in == "4bit" else ():
        # For processors with AVX-512 BF16 bitsandbytes repacks weights in tiles of 32 by 64, and
        # fails where a layer is no multiple of them: such a layer stays as it is.
        if getattr(module, "in_features", 64) % 64 or getattr(module, "out_features", 32) % 32:
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    return model.eval(), tokenizer


def _file(place: Place, name: str) -> str | None:
    """Path of one file of a model, downloaded when the Hub has it; None when the model does not."""
    return cached_file(
        place.name,
        name,
        revision=place.commit,
        local_files_only=place.offline,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def _load_weights(place: Place, load: Callable[..., Any]) -> PreTrainedModel:
    """The model of a folder or Hub id; of an adapter, its base with the adapter in it."""
    adapter = _file(place, "adapter_config.json")
    if adapter is None:
        return _load_base(place, load)
    if _file(place, "adapter_model.safetensors") is None:
        raise UserError("the adapter's weights are not in adapter_model.safetensors")
    facts = read_json(adapter)
    base = located(str(facts["base_model_name_or_path"]), facts.get("revision"))
    model = _load_base(base, load)
    where = {"revision": place.commit or "main", "local_files_only": place.offline}
    report = model.load_adapter(place.name, ignore_mismatched_sizes=True, adapter_kwargs=where)
    _check_weights(report.to_dict())
    return model


def _load_base(place: Place, load: Callable[..., Any]) -> PreTrainedModel:
    if _file(place, "adapter_config.json") is not None:
        raise UserError(f"{place.name} holds an adapter beside its base: give each its own folder")
    _check_file_names(place)
    if generation := _file(place, "generation_config.json"):
        # Transformers would pass over a broken one, and with it the token that ends an answer.
        read_json(generation)
    where = {"revision": place.commit or "main", "local_files_only": place.offline}
    model, report = load(
        place.name,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        adapter_kwargs=where,  # else it asks the Hub again for an adapter
        **where,
    )
    _check_weights(report)
    return model


def _check_file_names(place: Place) -> None:
    """UserError unless all weights lie in safetensors files of the model: others may be pickles, or
    anyone's files.
    """
    config = _file(place, "config.json")
    index = (read_json(config) if config else {}).get(
        "transformers_weights"
    ) or "model.safetensors.index.json"
    path = _file(place, index) if index.endswith(".index.json") else None
    names = {index} if path is None else {index, *read_json(path)["weight_map"].values()}
    for name in sorted(names):
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors(\.index\.json)?", name):
            raise UserError(
                f"its weights are said to be in {name!r}: only safetensors files of its own are"
                " read"
            )


def _check_weights(report: Mapping[str, Any]) -> None:
    """UserError naming what a checkpoint lacks, has besides or has in another size; Transformers
    would go on.
    """
    sets = {"missing": report["missing_keys"], "unexpected": report["unexpected_keys"]}
    sets["of another size"] = {name for name, *_ in report["mismatched_keys"]}
    problems = [
        f"{len(names)} weights {what}:"
        f" {', '.join(sorted(names)[:3])}{', …' if len(names) > 3 else ''}"
        for what, names in sets.items()
        if names
    ]
    if problems:
        raise UserError("; ".join(problems))


def checked_device(device: str | None) -> str:
    """The device, by default cuda if there is one, else cpu; UserError when it is no device or not
    on this machine.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        usable = torch.zeros(1, device=device).device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        usable = False
    if not usable:
        raise UserError(
            f"device {device!r} cannot be used on this machine: choose cpu, cuda or cuda:N"
        )
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


def pad_id(tokenizer: Any) -> int:
    """The padding id: the tokenizer's own, else its end-of-sequence id, as the reference does."""
    for value in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if value is not None:
            return value
    raise UserError("the tokenizer has neither a padding nor an end-of-sequence token")


def check_ids(model: PreTrainedModel, tokens: Iterable[Sequence[int]], pad: int) -> None:
    """UserError where a token, or the padding, has no embedding: a tokenizer that grew while the
    model did not.
    """
    rows = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    largest = max((max(ids) for ids in tokens if len(ids)), default=0)
    for what, value in (("uses token", largest), ("pads with token", pad)):
        if value >= rows:
            advice = (
                "model.resize_token_embeddings(len(tokenizer)), or the tokenizer the model was"
                " trained with"
            )
            raise UserError(
                f"the tokenizer {what} {value}, the model has {rows} embeddings: {advice}"
            )


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The inner model whose output's `last_hidden_state` (B, L, d) is taken after the final norm.

    UserError for a family that names itself, or its output layer, as its decoder.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    if decoder is model or decoder is model.get_output_embeddings():
        raise UserError(
            f"{type(model).__name__} does not say which part of it gives the last hidden states"
        )
    return decoder


def context_length(model: PreTrainedModel) -> int | None:
    """How many tokens the model's positions reach, if its configuration says."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def weights_key(model: PreTrainedModel) -> str:
    """16 hex digits of a loaded model as it is now: its configuration and the bytes of its weights.

    Weights that are not in memory (offloaded) count by the model's name and revision.
    """
    config = model.config.to_dict()
    source = [config.pop("_name_or_path", None), getattr(model.config, "_commit_hash", None)]
    for name in ("transformers_version", "_attn_implementation_autoset"):
        config.pop(name, None)
    digest, facts = hashlib.sha256(), []
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            facts.append([name, tensor.dtype, tensor.shape, source if tensor.is_meta else None])
            if not tensor.is_meta:
                raw = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(raw.view(torch.uint8).numpy().data)
    return content_key([config, facts, digest.hexdigest()])


def within_memory(work: Callable[[int], Result], batch_tokens: int, *, least: int = 128) -> Result:
    """work(batch_tokens), tried again with half as many tokens a batch, and a warning, whenever
    memory runs out.

    UserError when less than `least` tokens would be left.
    """
    while True:
        try:
            return work(batch_tokens)
        except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
            said = re.search("allocate memory|out of memory", str(error), re.IGNORECASE)
            if isinstance(error, RuntimeError) and not said:
                raise
        # Outside `except`, so that the failed pass's tensors are free before the next one.
        if batch_tokens // 2 < least:
            advice = "load the base smaller (--load-in 8bit or 4bit)"
            raise UserError(
                f"out of memory even with batches of {max(batch_tokens, least)} tokens: {advice}"
            )
        batch_tokens //= 2
        warnings.warn(
            f"out of memory: going on with batches of {batch_tokens} tokens", stacklevel=2
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
