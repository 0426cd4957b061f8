"""What a saved head consists of, who it belongs to, and what is refused when it is read back.

A head's folder holds model.safetensors (A and B), config.json (sizes, temperature, prior, provenance, checksum of the
weights) and README.md, a model card. Nothing is pickled, so reading a stranger's head runs none of their code.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from t3lib.errors import UserError
from t3lib.files import atomic_write, content_key, read_json, sha256_file, write_json

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1


class Head(Protocol):
    """What the checks below read of a head."""

    hidden_size: int
    vocab_size: int
    info: dict[str, Any]


def save(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write the three files, config.json last: it names the checksum of the weights it belongs to."""
    content = safetensors.torch.save(dict(weights), metadata={"format": "pt"})
    checksum = hashlib.sha256(content).hexdigest()
    config = {**settings, "model_type": "t3-head", "format": FORMAT, "sha256": checksum}
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"head info must be plain JSON with finite numbers ({error})") from None
    with atomic_write(folder / WEIGHTS, "wb") as handle:
        handle.write(content)
    with atomic_write(folder / CARD) as handle:
        handle.write(model_card(settings))
    write_json(folder / CONFIG, config)


def load(name: str | Path, *, local_files_only: bool, **download: Any) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Read a head's config (constructor arguments only) and weights from a folder or the Hub, verified.

    Returns (settings, weights, where they came from). Raises UserError for anything missing, altered or foreign.
    """
    paths = {file: _find(name, file, local_files_only=local_files_only, **download) for file in (CONFIG, WEIGHTS)}
    settings = read_json(paths[CONFIG])
    if not isinstance(settings, dict) or settings.pop("model_type", None) != "t3-head":
        raise UserError(f"{paths[CONFIG]}: not the config of a T3 head (model_type is not 't3-head')")
    if settings.pop("format", None) != FORMAT:
        raise UserError(f"{paths[CONFIG]}: written by another version of t3lib (format is not {FORMAT})")
    if not isinstance(settings.get("info"), dict):
        raise UserError(f"{paths[CONFIG]}: 'info' must be a JSON object")
    if settings.pop("sha256", None) != sha256_file(paths[WEIGHTS]):
        raise UserError(f"{paths[WEIGHTS]}: truncated, altered or of another save (its checksum is not config.json's)")
    try:
        weights = safetensors.torch.load_file(paths[WEIGHTS])
    except safetensors.SafetensorError as error:
        raise UserError(f"{paths[WEIGHTS]}: not a readable safetensors file ({error})") from None
    return settings, weights, str(paths[CONFIG].parent)


def _find(name: str | Path, file: str, **download: Any) -> Path:
    if Path(name).is_dir():
        path = Path(name) / file
        if not path.is_file():
            raise UserError(f"{name}: no {file}; a head's folder holds {WEIGHTS}, {CONFIG} and {CARD}")
        return path
    try:
        return Path(hf_hub_download(str(name), file, **download))
    except (HfHubHTTPError, HFValidationError, EntryNotFoundError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"no head at {name}: not a folder here, and not on the Hub ({reason[0]})") from None


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits over the map token -> id: a head indexes the vocabulary by id, so this is what must agree."""
    return content_key(tokenizer.get_vocab())


def base_identity(model: nn.Module) -> dict[str, str | None]:
    """{base_model, base_revision} of a loaded base: the Hub id and commit, or a folder and a hash of its weights.

    A folder's hash covers size, start, middle and end of each safetensors file (3 MB each): any retraining changes it.
    """
    config: Any = model.config
    name = getattr(config, "name_or_path", "") or None
    revision = getattr(config, "_commit_hash", None)
    if name and Path(name).is_dir():
        revision = content_key([_sample(path) for path in sorted(Path(name).glob("*.safetensors"))])
        name = str(Path(name))
    return {"base_model": name, "base_revision": revision}


def _sample(path: Path, block: int = 2**20) -> list[Any]:
    size = path.stat().st_size
    with open(path, "rb") as handle:
        parts = []
        for start in (0, size // 2, max(0, size - block)):
            handle.seek(start)
            parts.append(handle.read(block).hex())
    return [size, content_key(parts)]


def check_sizes(head: Head, hidden_size: int, vocab_size: int) -> None:
    """UserError unless the head was made for this hidden size and this vocabulary (rows of the output embedding)."""
    if head.hidden_size != hidden_size:
        raise UserError(f"the head is for hidden size {head.hidden_size}, the base model has {hidden_size}")
    if head.vocab_size != vocab_size:
        raise UserError(
            f"the head is for a vocabulary of {head.vocab_size}, the base model has {vocab_size}: another model, "
            "or one whose embeddings were resized after the head was trained"
        )


def check_tokenizer(head: Head, tokenizer: PreTrainedTokenizerBase) -> None:
    """UserError when the head records another tokenizer's hash."""
    recorded = head.info.get("tokenizer_hash")
    if recorded is not None and recorded != (found := tokenizer_hash(tokenizer)):
        raise UserError(f"the head was trained with another tokenizer (hash {recorded}, this one {found})")


def check_base(head: Head, identity: Mapping[str, str | None]) -> None:
    """Warn when the head records another base, or another revision of it, than the one loaded."""
    name, revision = head.info.get("base_model"), head.info.get("base_revision")
    if revision is not None and identity["base_revision"] is not None:
        if revision != identity["base_revision"]:
            warnings.warn(
                f"the head was trained on {name} at revision {revision}, the base is {identity['base_model']} at "
                f"{identity['base_revision']}: unlearning may fail silently",
                stacklevel=3,
            )
    elif name is not None and identity["base_model"] is not None and name != identity["base_model"]:
        warnings.warn(f"the head was trained on {name}, the base is {identity['base_model']}", stacklevel=3)


def check_same_base(heads: Iterable[Head]) -> None:
    """UserError when two heads record different bases: their log f must not be added."""
    seen: dict[str, str] = {}
    for head in heads:
        for key in ("base_revision", "base_model", "tokenizer_hash"):
            value = head.info.get(key)
            if value is not None and seen.setdefault(key, value) != value:
                raise UserError(f"these heads were trained for different bases ({key} {seen[key]} and {value})")
            if key == "base_revision" and value is not None:
                break


def model_card(settings: Mapping[str, Any]) -> str:
    """The README.md of a head: whose it is, how it was made, what it scores, how to load it."""
    info = settings["info"]
    front = ["---", "library_name: t3lib", "tags: [unlearning, t3]"]
    if info.get("base_model") and not Path(str(info["base_model"])).is_absolute():
        front.append(f"base_model: {json.dumps(info['base_model'])}")
    facts = {
        "Base model": info.get("base_model"),
        "Base revision": info.get("base_revision"),
        "Tokenizer (hash of its vocabulary)": info.get("tokenizer_hash"),
        "Split": info.get("split"),
        "Seed": info.get("seed"),
        "Temperature T": settings["temperature"],
        "Rank h": settings["rank"],
        "Hidden size d, vocabulary": f"{settings['hidden_size']}, {settings['vocab_size']}",
        "Prior": settings["prior"]
        + (f" (gamma {settings['gamma']}, mu {settings['mu']})" if settings["gamma"] else ""),
    }
    rows = [f"| {name} | {'not recorded' if value is None else value} |" for name, value in facts.items()]
    tables = []
    for title, key in (("Hyperparameters", "hyperparameters"), ("Metrics", "metrics")):
        values = info.get(key) or {}
        tables += [f"## {title}", ""]
        rows_of = [f"| {name} | {value} |" for name, value in values.items()]
        tables += ["| name | value |", "|---|---|", *rows_of, ""] if values else ["Not recorded.", ""]
    return "\n".join(
        [
            *front,
            "---",
            "# A T3 unlearning head",
            "",
            "Temper-Then-Tilt unlearning (arXiv 2602.10217): the frozen base's next-token distribution is tempered by",
            "T, then tilted by this low-rank classifier. The base is not part of these files and is never changed.",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
            *tables,
            "## Use",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM",
            "from t3lib import T3ForCausalLM",
            "",
            f"base = AutoModelForCausalLM.from_pretrained({json.dumps(info.get('base_model') or 'BASE')})",
            'model = T3ForCausalLM.from_pretrained("THIS_HEAD", base=base)  # then model.generate(...) as usual',
            "```",
            "",
        ]
    )
