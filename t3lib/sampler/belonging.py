"""Check that a head is used with the base, the tokenizer and the prompts that it was trained for.

A head fits one base (its weights and the adapter on them), one vocabulary and one form of prompt.
Weights are compared as they are loaded, so that neither a name nor a folder stands for them.
Another base or vocabulary is refused. Another form of prompt, with which the head may still forget,
gives a warning.
"""

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from t3lib.core import smollm2
from t3lib.core.errors import UserError, printable
from t3lib.core.files import cache_dir, content_key, model_identity, read_json, write_json
from t3lib.core.models import pad_id
from t3lib.core.rows import SYSTEM, Row, encode_rows, rendered, templated

# Recorded instead of a chat template by a head whose rows were plain text.
PLAIN = "plain text"
WEIGHTS = "base_weights"
# The first of these that both head and base record is compared.
BASE_KEYS = (WEIGHTS, "base_identity", "base_revision", "base_model")
ADAPTER = "base_adapter"
SAMPLE = 256  # about so many numbers of every weight tensor are compared


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash the map token -> id to 16 hex digits; a head indexes the vocabulary by these ids."""
    return content_key(tokenizer.get_vocab())


def tokens_known(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> torch.Tensor | None:
    """Return which ids of a base's vocabulary stand for a token, (V,) bool; None if all do.

    Vocabularies are often padded, so that the base has more ids than its tokenizer has tokens.
    """
    ids = [number for number in tokenizer.get_vocab().values() if number < vocab_size]
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids] = True
    return None if known.all() else known


def base_identity(model: nn.Module) -> dict[str, Any]:
    """Describe a loaded base by its name, its files and its weights, each None if there is none.

    The keys: base_model (`name_of`), base_revision (its Hub commit), base_identity
    (`model_identity`), base_weights (`weight_keys`) and base_adapter (`adapter_key`).
    """
    config: Any = model.config
    name = getattr(config, "name_or_path", "") or None
    commit = getattr(config, "_commit_hash", None)
    identity = model_identity(name, commit) if name and (commit or Path(name).is_dir()) else None
    return {
        "base_model": name_of(name),
        "base_revision": commit,
        "base_identity": identity,
        **weights_identity(model),
    }


def name_of(base: str | None) -> str | None:
    """Return a Hub id as it is, and only the last name of a folder: a head is shown to others."""
    name = smollm2.named(base)
    is_path = name and (os.path.isabs(name) or os.path.isdir(name))
    return os.path.basename(os.path.abspath(name)) if name and is_path else name


def place_of(identity: Mapping[str, Any]) -> Path | None:
    """Return the file in the cache that keeps the folder of a base, by its `base_identity`.

    None for a base of which neither weights nor files are known. UserError where there can be no
    cache.
    """
    key = identity.get(WEIGHTS) or identity.get("base_identity")
    return cache_dir("places") / f"{content_key(key)}.json" if key else None


def weights_identity(model: nn.Module) -> dict[str, Any]:
    """Describe the weights of a loaded base alone, from memory: {base_weights, base_adapter}."""
    return {WEIGHTS: weight_keys(model), ADAPTER: adapter_key(model)}


def weight_keys(model: nn.Module) -> list[str] | None:
    """Hash a sample of every weight tensor, in the model's order; two keys of 16 hex digits.

    The sample is taken at regular distances and rounded to bfloat16: directly in the first key, by
    way of float16 in the second. Bases that share a key are the same weights, loaded in float32,
    bfloat16 or float16. A base of float32 that is loaded in float16 once and in bfloat16 once
    shares no key. Names and adapters do not count.

    None for weights that are quantised or not in memory: their files have to be compared.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        return None
    added = {id(weight) for _, layer in adapted_layers(model) for _, weight in added_to(layer)}
    digests = hashlib.sha256(), hashlib.sha256()

    for weight in model.parameters():
        if id(weight) in added:
            continue
        plain = type(weight.data) is torch.Tensor and not weight.is_meta
        if not (plain and weight.is_floating_point() and weight.dtype.itemsize > 1):
            return None
        # An odd distance does not stay in one column of a matrix.
        sample = weight.detach().reshape(-1)[:: weight.numel() // SAMPLE | 1].cpu()
        for digest, values in zip(digests, (sample, sample.half())):
            digest.update(_bfloat16_bytes(values))
    return [digest.hexdigest()[:16] for digest in digests]


def _bfloat16_bytes(values: torch.Tensor) -> bytes:
    """Return the bytes of a tensor rounded to bfloat16, in which a base may have been loaded."""
    rounded = values.detach().to("cpu", torch.bfloat16).contiguous()
    return rounded.view(torch.int16).numpy().tobytes()


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield place and module of every layer that PEFT has put around a layer of the base."""
    for place, layer in model.named_modules():
        if hasattr(layer, "base_layer") or hasattr(layer, "original_module"):
            yield place, layer


def added_to(layer: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return names and values of the parameters of an adapted layer that are not the base's."""
    inner = ("base_layer", "original_module")
    return [each for each in layer.named_parameters() if not each[0].startswith(inner)]


def adapter_key(model: nn.Module) -> str | None:
    """Hash the weights of the active PEFT adapters to 16 hex digits; None if there is none.

    The weights are hashed as bfloat16, so that a base loaded in half precision is the same base.
    Adapters that are merged into the base's weights do not count.
    """
    digests = {}
    for place, layer in adapted_layers(model):
        if getattr(layer, "disable_adapters", False) or getattr(layer, "merged", False):
            continue
        active = set(getattr(layer, "active_adapters", ()))
        for name, weight in added_to(layer):
            if used := active & {*name.split(".")}:
                raw = _bfloat16_bytes(weight)
                scale = [(getattr(layer, "scaling", {}) or {}).get(adapter) for adapter in used]
                words = [word for word in f"{place}.{name}".split(".") if word not in used]
                digests[".".join(words)] = [hashlib.sha256(raw).hexdigest(), scale]
    return content_key(digests) if digests else None


def origin(
    base: Any,
    tokenizer: PreTrainedTokenizerBase,
    forget: Sequence[Row],
    retain: Sequence[Row],
    tokens: int,
) -> dict[str, str | int | None]:
    """Return what a head records of its training, for its `info`.

    This is the base's identity, the tokenizer's hash, the form of the prompts (`prompt_form`), the
    prompt of one fixed question (which shows, for example, a date in the template), the number of
    rows and the number of answer `tokens` it was fitted on. The base's folder, which a head does
    not name, is kept in the cache (`place_of`).
    """
    identity, folder = base_identity(base), base.config.name_or_path
    if os.path.isdir(folder or "") and identity["base_model"] != smollm2.NAME:
        with suppress(UserError):  # without a cache the head is still a head
            if place := place_of(identity):
                write_json(place, {"folder": os.path.abspath(folder)})
    return {
        **identity,
        "tokenizer_hash": tokenizer_hash(tokenizer),
        **prompt_form(tokenizer, [*forget, *retain]),
        "prompt": rendered(tokenizer),
        "n_forget": len(forget),
        "n_retain": len(retain),
        "answer_tokens": tokens,
    }


def prompt_form(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> dict[str, str | None]:
    """Return the form of the rows' prompts, which a head depends on: {chat_template, system}.

    chat_template: a digest of the tokenizer's template; "none" if there is none; `PLAIN` if all
    rows are plain text.
    system: the system text of most rows, or None without a template. A conversation's own system
    turn takes precedence over the row's `system`.
    """
    chats = [row for row in rows if not row.get("raw")]
    if not chats or tokenizer.chat_template is None:
        return {"chat_template": "none" if chats else PLAIN, "system": None}
    return {
        "chat_template": content_key(tokenizer.chat_template),
        "system": Counter(map(system_text, chats)).most_common(1)[0][0],
    }


def system_text(row: Row) -> str | None:
    """Return the system text of a row of question and answer. A conversation's own system turn
    takes precedence over the row's `system`.
    """
    turn = {} if isinstance(row["question"], str) else row["question"][0]
    text: str | None = (
        turn["content"] if turn.get("role") == "system" else row.get("system", SYSTEM)
    )
    return text


def shared_dial(heads: Sequence[Any], name: str, given: float | None, advice: str) -> float:
    """Return a dial of several heads: the given value, or else the one that all have.

    name: such as "temperature". UserError if they differ; advice: what its message asks for.
    """
    values: list[float] = [getattr(head, name) for head in heads]
    if given is None and len({*values}) > 1:
        listed = ", ".join(f"{value:g}" for value in values)
        raise UserError(f"these heads have different {name}s ({listed}): give {advice}")
    return values[0] if given is None else given


def system_of(head: Any) -> str | None:
    """Return the system text that a head records, or None if it records that there was none.

    For a head that records nothing about it, TOFU's `SYSTEM`.
    """
    system = head.info.get("system", SYSTEM)
    return system if isinstance(system, str) else None


def in_template_of(head: Any, tokenizer: Any) -> Any:
    """Return the tokenizer with the template arguments that a head records (`rows.templated`)."""
    return templated(tokenizer, head.info.get("template") or {})


def base_of(head: Any) -> tuple[str, str | None]:
    """Return name and commit of the base that a head was trained on, for `models.load_model`.

    A folder's name is that of the folder in which the base was when the head was trained here.
    UserError if the head records no name, or a folder that is not here.
    """
    name, place = head.info.get("base_model"), None
    if not isinstance(name, str) or not name:
        raise UserError(
            "the head does not say which base it was trained on: give it (--model, base=)"
        )
    with suppress(UserError):
        place = place_of(head.info)
    if place and place.is_file() and os.path.isdir(folder := read_json(place)["folder"]):
        return folder, None
    here = name == smollm2.NAME or os.path.isdir(name)
    if not here and not re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        raise UserError(
            f"the head's base, {printable(name)}, is not here: give it (--model, base=)"
        )
    return name, head.info.get("base_revision")


def check_prompt(head: Any, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> None:
    """Warn if the head was trained with another chat template, system text or attention mask.

    rows: the rows that are to be asked. The mask "openunlearning" counts as another one if it hides
    a token of these rows' prompts.
    """
    info, present, wrong = head.info, prompt_form(tokenizer, rows), []
    for key, what in (("chat_template", "chat template"), ("system", "system text")):
        if {"chat_template", key} <= info.keys() and info[key] != present[key]:
            values = (printable(repr(value), 80) for value in (info[key], present[key]))
            wrong.append(f"the {what} {', not '.join(values)}")

    if isinstance(info.get("prompt"), str) and info["prompt"] != rendered(tokenizer):
        wrong.append("a chat template that renders another prompt (a date in it?)")

    if info.get("attention_mask") == "openunlearning":
        padding, examples = pad_id(tokenizer), encode_rows(tokenizer, rows)
        if any(padding in example.prompt for example in examples):
            hidden = "hides tokens that everybody else shows the model"
            wrong.append(f"the attention mask openunlearning, which {hidden}")

    if wrong:
        what = f"the head was trained with {wrong[0]}"
        warnings.warn(f"{what}: it may not forget here", stacklevel=3)


def check_sizes(head: Any, hidden_size: int, vocab_size: int) -> None:
    """Raise UserError unless the head was made for this hidden size and this vocabulary size.

    vocab_size: rows of the base's output embedding.
    """
    if head.hidden_size != hidden_size:
        raise UserError(
            f"the head is for hidden size {head.hidden_size}, the base model has {hidden_size}"
        )
    if head.vocab_size != vocab_size:
        raise UserError(
            f"the head is for a vocabulary of {head.vocab_size}, the base model has {vocab_size}:"
            " another model, or one whose embeddings were resized after the head was trained"
        )


def check_tokenizer(head: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError if the head records the hash of another tokenizer."""
    recorded = head.info.get("tokenizer_hash")
    if recorded is not None and recorded != (present := tokenizer_hash(tokenizer)):
        hashes = f"hash {printable(recorded, 40)}, this one {present}"
        raise UserError(f"the head was trained with another tokenizer ({hashes})")


def check_base(head: Any, model: nn.Module) -> None:
    """Raise UserError if the head records another base, revision or adapter than the loaded ones.

    Loaded weights are compared. Where `weight_keys` of either base is None, every byte of the
    base's folder is hashed (once in a process). So a quantised base is known by its files alone,
    whatever the head's base became in memory. A head that records no base at all fits every one.
    """
    if ADAPTER not in head.info and not any(head.info.get(key) for key in BASE_KEYS):
        return
    present = weights_identity(model)
    if not (present[WEIGHTS] and head.info.get(WEIGHTS)):
        present = base_identity(model)
    if key := _differing(head.info, present):
        both = (head.info, base_identity(model))
        # The same files: float16 and bfloat16 round float32 differently, so that neither key fits.
        files = key == WEIGHTS and both[0].get("base_identity") == both[1]["base_identity"]
        hint = " (of the same files: changed in memory, or float16 here and bfloat16 there)"
        trained, loaded = (
            f"{printable(info.get('base_model'))} ({key} {printable(info[key])})" for info in both
        )
        raise UserError(
            f"the head was trained on {trained}, the base is {loaded}{hint if files else ''}:"
            " unlearning may fail silently; use its own base (--model; the adapter's folder, if"
            " it has one), or say in Python that you mean this one (other_base=True)"
        )


def check_same_base(heads: Iterable[Any]) -> None:
    """Raise UserError if two heads record different bases: their log f must not be added."""
    first, *others = (head.info for head in heads)
    for other in others:
        if key := _differing(first, other) or _differing(first, other, ["tokenizer_hash"]):
            values = f"{printable(first[key], 60)} and {printable(other[key], 60)}"
            raise UserError(f"these heads were trained for different bases ({key} {values})")


def _differing(
    one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str] = BASE_KEYS
) -> str | None:
    """Return the name of an entry in which two records of a base differ, or None.

    Only the first of `keys` that both record is compared, and the adapter if both record one.
    """
    for key in keys:
        if one.get(key) is not None and other.get(key) is not None:
            values = one[key], other[key]
            if all(isinstance(value, list) for value in values):  # of weights one key is enough
                values = any(value in other[key] for value in one[key]), True
            if values[0] != values[1]:
                return key
            break
    both = ADAPTER in one and ADAPTER in other
    return ADAPTER if both and one[ADAPTER] != other[ADAPTER] else None
