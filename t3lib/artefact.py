"""What a saved head consists of, who it belongs to, and what is refused when it is read back.

A head's folder holds model.safetensors (A and B), config.json (sizes, temperature, prior, provenance, checksum of the
weights) and README.md, a model card. Nothing is pickled, so reading a stranger's head runs none of their code; and what
it says is shown as `errors.printable` shows it.
"""

import hashlib
import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from jinja2 import Environment, PackageLoader
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from t3lib.errors import UserError, printable
from t3lib.files import atomic_write, content_key, lock, model_identity, read_json, sha256_file, write_json
from t3lib.models import HUB_SECONDS
from t3lib.tofu import SYSTEM, Row

if TYPE_CHECKING:
    from t3lib.head import T3Head

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
SHAPES = {"A": ("rank", "hidden_size"), "B": ("vocab_size", "rank")}
PLAIN = "plain text"  # what a head records as its chat template whose rows were prompt and completion, or text
DTYPES = ("F32", "BF16", "F16", "F64")  # as safetensors calls them
BASE_KEYS = ("base_identity", "base_revision", "base_model")  # the first that two sides record says whether they agree


# on disk --------------------------------------------------------------------------------------------------------------


def save(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor], *, overwrite: bool = True) -> None:
    """Write the three files, config.json last: it names the checksum of the weights it belongs to.

    One save at a time: of several at once the last is kept, whole. UserError for settings that are not plain JSON, and
    with overwrite=False for a folder that holds anything by then.
    """
    content = safetensors.torch.save(dict(weights), metadata={"format": "pt"})
    checksum = hashlib.sha256(content).hexdigest()
    config = {**settings, "model_type": "t3-head", "format": FORMAT, "sha256": checksum}
    try:
        json.dumps(config, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"head info must be plain JSON with finite numbers ({error})") from None
    card = model_card(settings)
    with _held(folder):
        if not overwrite and any(folder.iterdir()):
            raise UserError(f"{folder} exists already and is not an empty folder: the head was not saved")
        with atomic_write(folder / WEIGHTS, "wb") as handle:
            handle.write(content)
        with atomic_write(folder / CARD) as handle:
            handle.write(card)
        write_json(folder / CONFIG, config)


def load(name: str | Path, **download: Any) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Read a head's config (constructor arguments only) and weights from a folder or the Hub, verified.

    Returns (settings, {"A", "B"} of the sizes that the settings name, where they came from). Raises UserError for
    anything missing, altered or foreign.
    """
    if not Path(name).is_dir():
        return _read(*_download(str(name), **download))
    for file in (CONFIG, WEIGHTS):
        if not (Path(name) / file).is_file():
            raise UserError(f"{name}: no {file}; a head's folder holds {WEIGHTS}, {CONFIG} and {CARD}")
    with _held(Path(name)):  # not between two files of a save
        return _read(Path(name) / CONFIG, Path(name) / WEIGHTS)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a lock on a head's folder. The lock file lies in the system's folder for temporary files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot use {folder} as a head's folder: {error.strerror or error}") from None
    place = Path(tempfile.gettempdir()) / f"t3-head-{content_key(folder.resolve())}.lock"
    with ExitStack() as held:
        with suppress(OSError):  # the lock file is another user's: the checksum still tells a torn head
            held.enter_context(lock(place))
        yield


def _download(name: str, *, local_files_only: bool = False, **download: Any) -> list[Path]:
    """config.json and the weights from the Hub; when it does not answer, those that it gave before."""
    reason = ""
    if not local_files_only:
        try:  # asked once, for a download asks a Hub that does not answer again and again
            who = {key: download.get(key) for key in ("revision", "token")}
            HfApi().model_info(name, timeout=HUB_SECONDS, **who)  # type: ignore[arg-type]
        except (HfHubHTTPError, HFValidationError):
            pass  # an answer: what it means, the download says
        except Exception:  # whatever its HTTP library raises
            local_files_only, reason = True, "the Hub cannot be reached"
    try:
        download["local_files_only"] = local_files_only
        return [Path(hf_hub_download(name, file, **download)) for file in (CONFIG, WEIGHTS)]
    except (HfHubHTTPError, HFValidationError, EntryNotFoundError, LocalEntryNotFoundError, OSError) as error:
        reason = reason or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"no head at {name}: not a folder here, and not on the Hub ({reason})") from None


def _read(config: Path, weights: Path) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    settings, where = read_json(config), str(config.parent)
    if not isinstance(settings, dict) or settings.pop("model_type", None) != "t3-head":
        raise UserError(f"{config}: not the config of a T3 head (model_type is not 't3-head')")
    if settings.pop("format", None) != FORMAT:
        raise UserError(f"{config}: written by another version of t3lib (format is not {FORMAT})")
    if not isinstance(settings.get("info"), dict):
        raise UserError(f"{config}: 'info' must be a JSON object")
    try:
        if settings.pop("sha256", None) != sha256_file(weights):
            raise UserError(f"{weights}: truncated, altered or of another save (its checksum is not config.json's)")
        with safetensors.safe_open(weights, framework="pt") as file:
            return settings, {name: _tensor(file, name, settings, where) for name in SHAPES}, where
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{weights}: not a readable safetensors file ({error})") from None


def _tensor(file: Any, name: str, settings: Mapping[str, Any], where: str) -> Tensor:
    """A or B of an open file, once its size, kind of number and values are known to be good."""
    shape = [settings.get(size) for size in SHAPES[name]]
    saved = file.get_slice(name) if name in set(file.keys()) else None
    if saved is None or saved.get_shape() != shape:  # before anything of these sizes is allocated
        raise UserError(f"{where}: {name} should be {shape} by its config, found {saved and saved.get_shape()}")
    if saved.get_dtype() not in DTYPES:
        raise UserError(f"{where}: {name} holds {saved.get_dtype()}, not one of {', '.join(DTYPES)}")
    tensor: Tensor = file.get_tensor(name)
    if not tensor.isfinite().all():
        raise UserError(f"{where}: {name} holds NaN or infinity")
    return tensor


# whose it is ----------------------------------------------------------------------------------------------------------


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits over the map token -> id: a head indexes the vocabulary by id, so this is what must agree."""
    return content_key(tokenizer.get_vocab())


def base_identity(model: nn.Module) -> dict[str, str | None]:
    """{base_model, base_revision, base_identity} of a loaded base: its name, its Hub commit and its `model_identity`,
    each None where it has none, as a model made in memory.
    """
    config: Any = model.config
    name = getattr(config, "name_or_path", "") or None
    commit = getattr(config, "_commit_hash", None)
    identity = model_identity(name, commit) if name and (commit or Path(name).is_dir()) else None
    return {"base_model": name, "base_revision": commit, "base_identity": identity}


def origin(
    base: nn.Module, tokenizer: PreTrainedTokenizerBase, forget: Sequence[Row], retain: Sequence[Row], tokens: int
) -> dict[str, Any]:
    """What a head records of its training: the base's identity, the tokenizer's hash, the form of the prompts, numbers
    of rows and of the answer `tokens` it was fitted on.
    """
    counts = {"n_forget": len(forget), "n_retain": len(retain), "answer_tokens": tokens}
    form = prompt_form(tokenizer, [*forget, *retain])
    return base_identity(base) | {"tokenizer_hash": tokenizer_hash(tokenizer)} | form | counts


def prompt_form(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> dict[str, str | None]:
    """{chat_template, system}: the form in which the rows' questions are asked, which a head depends on.

    chat_template: a digest of the tokenizer's, "none" where it has none, `PLAIN` where all rows are plain text. system:
    the system text of most rows, a conversation's own one before any other; None where there is no template.
    """
    chats = [row for row in rows if not row.get("raw")]
    if not chats or tokenizer.chat_template is None:
        return {"chat_template": "none" if chats else PLAIN, "system": None}
    texts: Counter[str] = Counter()
    for row in chats:
        turn = {} if isinstance(row["question"], str) else row["question"][0]
        texts[turn["content"] if turn.get("role") == "system" else row.get("system", SYSTEM)] += 1
    return {"chat_template": content_key(tokenizer.chat_template), "system": texts.most_common(1)[0][0]}


def system_of(head: "T3Head") -> str:
    """The system text that a head records, else the one that is used everywhere."""
    system = head.info.get("system")
    return system if isinstance(system, str) else SYSTEM


def check_prompt(head: "T3Head", tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]) -> None:
    """Warn when the head records another chat template, or another system text, than these rows are asked with."""
    present = prompt_form(tokenizer, rows)
    for key, what in (("chat_template", "chat template"), ("system", "system text")):
        recorded = head.info.get(key)
        if recorded is not None and recorded != present[key]:
            values = f"{printable(recorded, 80)!r}, not {printable(present[key], 80)!r}"
            warnings.warn(f"the head was trained with the {what} {values}: it may not forget here", stacklevel=3)
            return


def check_sizes(head: "T3Head", hidden_size: int, vocab_size: int) -> None:
    """UserError unless the head was made for this hidden size and this vocabulary (rows of the output embedding)."""
    if head.hidden_size != hidden_size:
        raise UserError(f"the head is for hidden size {head.hidden_size}, the base model has {hidden_size}")
    if head.vocab_size != vocab_size:
        raise UserError(
            f"the head is for a vocabulary of {head.vocab_size}, the base model has {vocab_size}: another model, "
            "or one whose embeddings were resized after the head was trained"
        )


def check_tokenizer(head: "T3Head", tokenizer: PreTrainedTokenizerBase) -> None:
    """UserError when the head records another tokenizer's hash."""
    recorded = head.info.get("tokenizer_hash")
    if recorded is not None and recorded != (present := tokenizer_hash(tokenizer)):
        hashes = f"hash {printable(recorded, 40)}, this one {present}"
        raise UserError(f"the head was trained with another tokenizer ({hashes})")


def check_base(head: "T3Head", model: nn.Module) -> None:
    """Warn when the head records another base, or another state of it, than the one loaded.

    Reads every byte of the base's folder (once in a process), but only for a head that records a base.
    """
    if not any(head.info.get(key) for key in BASE_KEYS):
        return
    present = base_identity(model)
    if key := _differing(head.info, present):
        both = (head.info, present)
        trained, loaded = (f"{printable(info.get('base_model'))} ({key} {printable(info[key])})" for info in both)
        message = f"the head was trained on {trained}, the base is {loaded}: unlearning may fail silently"
        warnings.warn(message, stacklevel=3)


def check_same_base(heads: Iterable["T3Head"]) -> None:
    """UserError when two heads record different bases: their log f must not be added."""
    first, *others = (head.info for head in heads)
    for other in others:
        if key := _differing(first, other) or _differing(first, other, ["tokenizer_hash"]):
            values = f"{printable(first[key], 60)} and {printable(other[key], 60)}"
            raise UserError(f"these heads were trained for different bases ({key} {values})")


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str] = BASE_KEYS) -> str | None:
    """The first of `keys` that both record, if they record different things there."""
    for key in keys:
        if one.get(key) is not None and other.get(key) is not None:
            return key if one[key] != other[key] else None
    return None


# the model card -------------------------------------------------------------------------------------------------------


def model_card(settings: Mapping[str, Any]) -> str:
    """The README.md of a head: whose it is, how it was made, what it scores, how to load it."""
    whitespace: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    pages = Environment(loader=PackageLoader("t3lib"), autoescape=True, **whitespace)
    pages.filters["cell"] = _cell
    name = settings["info"].get("base_model")
    plain = isinstance(name, str) and re.fullmatch(r"[\w./~-]{1,200}", name)  # else it stands in the table alone
    page = pages.get_template("head_card.md.j2")
    return page.render(settings, base=name if plain else "", on_hub=plain and name[0] not in "/.~")


def _cell(value: Any) -> str:
    """A value in a cell of a Markdown table: printable, and nothing in it is markup (the template escapes HTML's)."""
    return "not recorded" if value is None else re.sub(r"([\\`|\[\]])", r"\\\1", printable(value))
