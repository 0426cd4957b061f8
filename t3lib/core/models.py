"""Load causal language models from a folder or the Hub, and inspect loaded ones."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import cached_file, logging

from t3lib.core import smollm2
from t3lib.core.errors import UserError
from t3lib.core.files import read_json
from t3lib.core.hub import Place, located
from t3lib.core.progress import watched
from t3lib.core.rows import check_template

Result = TypeVar("Result")
# The name under which the installed Transformers passes a key-value cache: as an argument of a
# model, and as a field of its output. Version 5.24 renamed it.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
SMALL = 20_000_000  # parameters, see `one_thread`
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
SMALLER = "load the base smaller (--load-in 8bit or 4bit)"  # advice when memory runs out
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    name: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    load_in: str | None = None,
    revision: str | None = None,
) -> tuple[PreTrainedModel, Any]:
    """Load a causal language model in evaluation mode, and its tokenizer; return both.

    name: a folder, a Hub id or `smollm2`; of a LoRA adapter too, which is loaded on its base.
    dtype: "float32", "bfloat16" or "float16", by default the checkpoint's own; float32 for
    `smollm2` on a processor without bfloat16 instructions, where bfloat16 is slow.
    device: such as "cpu" or "cuda:0", by default cuda if there is one, else cpu.
    load_in: "8bit" or "4bit" (NF4) quantises through bitsandbytes.
    revision: branch, tag or commit on the Hub.

    Code in a checkpoint is never run, and pickled weights are never read. UserError when the model,
    dtype or device is not available, and when a checkpoint is damaged or does not hold exactly the
    weights of its model.
    """
    if dtype not in (None, *DTYPES):
        raise UserError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    device = checked_device(device)
    if str(name) == smollm2.NAME and device == "cpu" and not (load_in or has_bf16(device)):
        dtype = dtype or "float32"

    load = partial(AutoModelForCausalLM.from_pretrained, dtype=DTYPES[dtype] if dtype else "auto")
    if load_in:
        quantised = quantization(load_in, dtype)
        load = partial(load, quantization_config=quantised, device_map={"": device})

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    if not watched():
        logging.disable_progress_bar()  # of Transformers: "Loading weights"
    logging.set_verbosity_error()  # faults of a checkpoint are raised below, not logged
    try:
        place = located(str(name), revision)
        of_base = _base_of(place)
        # An adapter may come without a tokenizer, which is then its base's.
        own = place is of_base or any(_file(place, each) for each in TOKENIZER_FILES)
        source = place if own else of_base
        # Without trust_remote_code=False, Transformers asks on a terminal whether to run code.
        tokenizer = AutoTokenizer.from_pretrained(
            source.name,
            trust_remote_code=False,
            revision=source.commit or "main",
            local_files_only=source.offline,
        )
        check_template(tokenizer)
        model = _load_weights(place, of_base, load)
        if not load_in:
            model.to(device)  # type: ignore[arg-type]
    # Of any kind: files of unknown origin pass through Transformers and the libraries below it.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        if out_of_memory(error):
            reason = f"out of memory: {SMALLER}"
        raise UserError(f"cannot load model {name}: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

    if model.generation_config.eos_token_id is None:  # so that `generate` ends as `eos_ids` says
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    for module in model.modules() if load_in == "4bit" else ():
        # For processors with AVX-512 BF16 bitsandbytes repacks weights in tiles of 32 by 64, and
        # fails where a layer is no multiple of them: such a layer stays as it is.
        if getattr(module, "in_features", 64) % 64 or getattr(module, "out_features", 32) % 32:
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    return model.eval(), tokenizer


def precision_of(model: Any) -> str:
    """Return "4bit" or "8bit" if a model's weights are quantised so, else its dtype ("float32")."""
    for kind in ("4bit", "8bit"):
        if getattr(model, f"is_loaded_in_{kind}", False):
            return kind
    return str(model.dtype).removeprefix("torch.")


def _file(place: Place, name: str) -> str | None:
    """Return the path of one file of a model, downloaded if need be; None if there is none."""
    return cached_file(
        place.name,
        name,
        revision=place.commit,
        local_files_only=place.offline,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def _base_of(place: Place) -> Place:
    """Return where the base of an adapter is; of any other model its own place."""
    if (adapter := _file(place, "adapter_config.json")) is None:
        return place
    facts = read_json(adapter)
    return located(str(facts["base_model_name_or_path"]), facts.get("revision"))


def _load_weights(place: Place, base: Place, load: Callable[..., Any]) -> PreTrainedModel:
    """Load the model at a place; for an adapter, load its base and put the adapter into it."""
    if base is place:
        return _load_base(place, load)
    if _file(place, "adapter_model.safetensors") is None:
        raise UserError("the adapter's weights are not in adapter_model.safetensors")
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
        # Transformers would ignore a broken file, and with it the token that ends an answer.
        read_json(generation)
    where = {"revision": place.commit or "main", "local_files_only": place.offline}
    model, report = load(
        place.name,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        adapter_kwargs=where,  # without it the Hub is asked again for an adapter
        **where,
    )
    _check_weights(report)
    model.config._commit_hash = place.commit  # Transformers no longer notes it
    return model


def _check_file_names(place: Place) -> None:
    """Raise UserError unless all weights lie in the model's own safetensors files.

    Other names could be pickles, or files from elsewhere on the disk.
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
    """Raise UserError for missing, unexpected or wrongly sized weights.

    report: what Transformers says of a load. By itself it would only warn.
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
    """Return the device (default: cuda if present, else cpu); UserError if it cannot be used."""
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


def has_bf16(device: str) -> bool:
    """Return True if a device, "cpu" or a GPU's name, has instructions for bfloat16."""
    if device != "cpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capable: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capable.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def quantization(load_in: str, dtype: str | None = None) -> BitsAndBytesConfig:
    """Return bitsandbytes settings for load_in "8bit" or "4bit" (NF4 with double quantisation).

    dtype: of the computation in 4 bit, by default "bfloat16". UserError for another `load_in`.
    """
    # On processors with AVX-512 BF16 it warns that a faster kernel would need another package.
    logging.get_logger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
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
    """Return the tokenizer's padding id, else its end-of-sequence id; UserError without either."""
    for value in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if value is not None:
            return value
    raise UserError("the tokenizer has neither a padding nor an end-of-sequence token")


def check_ids(model: PreTrainedModel, tokens: Iterable[Sequence[int]], pad: int) -> None:
    """Raise UserError if a token or the padding id has no embedding in the model.

    This happens when tokens were added to the tokenizer but not to the model.
    It also raises where the embeddings are offloaded: inputs go to the device they are on.
    """
    embeddings = cast(torch.Tensor, model.get_input_embeddings().weight)
    if embeddings.is_meta:
        raise UserError(
            "the model's embeddings are offloaded: load it with a device_map that leaves them on a"
            " device; all other weights may be offloaded to the CPU or to disk"
        )
    rows = len(embeddings)
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
    """Return the inner model; its `last_hidden_state` (B, L, d) comes after the final norm.

    UserError for a model family that names itself, or its output layer, as its decoder, because its
    hidden states cannot be found.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    if decoder is model or decoder is model.get_output_embeddings():
        raise UserError(
            f"{type(model).__name__} does not say which part of it gives the last hidden states"
        )
    return decoder


def cache_of(output: Any) -> Any:
    """Return the key-value cache in a model's output; None if there is none."""
    return getattr(output, CACHE, None)


def forward_arguments(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments that a language model's forward takes.

    A forward(*args, **kwargs), as subclasses and patches define it, is taken to pass them on to the
    next class above that names them. The result is empty if no class names `input_ids`.
    """
    above = (cls.forward for cls in type(model).__mro__ if hasattr(cls, "forward"))
    named = (inspect.signature(forward).parameters for forward in (model.forward, *above))
    return frozenset(next((names for names in named if "input_ids" in names), ()))


def context_length(model: PreTrainedModel) -> int | None:
    """Return the number of positions in the model's configuration; None if it gives none."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside a block: every module is in evaluation mode, and then as before."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def one_thread(model: PreTrainedModel | None = None) -> Iterator[None]:
    """Compute with one thread of torch inside a block, so that results do not depend on the number.

    More threads wait for each other for longer than they compute, where tensors are small.

    model: if it is given, threads are left alone unless it is small (`SMALL`) and on a CPU.
    """
    before = torch.get_num_threads()
    if model is None or (model.device.type == "cpu" and model.num_parameters() <= SMALL):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def out_of_memory(error: Exception) -> bool:
    """Return True if an error says that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, MemoryError) or bool(
        re.search("allocate memory|out of memory", str(error), re.IGNORECASE)
    )


def within_memory(work: Callable[[int], Result], batch_tokens: int, *, least: int = 128) -> Result:
    """Call work(batch_tokens); when memory runs out, warn and retry with half as many tokens.

    batch_tokens: number of tokens in a batch after padding. UserError when fewer than `least`
    tokens would be left.
    """
    while True:
        try:
            return work(batch_tokens)
        except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
            if not out_of_memory(error):
                raise
        # Outside `except`, so that the failed pass's tensors are free before the next one.
        if batch_tokens // 2 < least:
            raise UserError(
                f"out of memory even with batches of {max(batch_tokens, least)} tokens: {SMALLER}"
            )
        batch_tokens //= 2
        warnings.warn(
            f"out of memory: going on with batches of {batch_tokens} tokens", stacklevel=2
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
