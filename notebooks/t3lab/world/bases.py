"""Train the base models that unlearning starts from: tiny Llamas on the built-in world or on TOFU.

A stage fixes the rows, the tokenizer and the training. Its base models are `full`, `retain90` and
`retain95`. Those that are trained from scratch also learn the real-author and world-fact rows,
which stand in for pretraining: heads and baselines never see these. Others start from a pretrained
model.
"""

import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from t3lab.files import read_sealed
from t3lab.identity import code_key, environment, keep, still_the_code
from t3lab.world.facts import world
from t3lib.baselines import train
from t3lib.core.errors import UserError
from t3lib.core.files import (
    cache_dir,
    content_key,
    lock,
    model_identity,
    parse_json,
    project_root,
    read_json,
    read_text,
    sha256_file,
    write_json,
)
from t3lib.core.hub import located
from t3lib.core.models import has_bf16, load_model
from t3lib.core.rows import SYSTEM, Row, encode_rows
from t3lib.tofu import data as tofu

NAMES = ("full", "retain90", "retain95")
KNOWLEDGE = ("real_authors_perturbed", "world_facts_perturbed")
TOFU_QUESTIONS = 20  # rows of one author in TOFU
TOFU_FORGET = 20  # authors of forget10
CONTEXT = 1024  # more than TOFU's longest prompt and 200 new tokens
MANIFEST = "base.json"

BOS, EOT, PAD = "<|begin_of_text|>", "<|eot_id|>", "<|finetune_right_pad_id|>"
SPECIAL_TOKENS = [BOS, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", EOT, PAD]
# The pattern by which Llama 3 splits text before BPE: contractions, words, digits in threes,
# punctuation, line ends, spaces. It splits after the blank line that follows a header, so the
# tokens of a prompt are always a prefix of those of the chat.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] +"
    " '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if"
    " add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Stage:
    """Rows and training of one set of base models; the defaults are those of defaults.yaml.

    data: "builtin", "customers" (the rows in notebooks/sample/customers), "hub", or a folder with
    TOFU's files.
    start: name of the pretrained model that the bases start from; "" for a new Llama of the sizes
    below, with a tokenizer of its own.
    authors: number of authors in the built-in world; with TOFU, number of retain authors beside the
    20 authors of forget10.
    forget_authors: with TOFU, how many of the last authors of forget10 are its forget10 here, half
    of which are forget05; 0 for all.
    questions, seed: rows of each author, and seed, of the built-in world; not used with TOFU.
    vocab: largest size of the tokenizer's vocabulary.
    hidden, layers, heads: size of the Llama.
    epochs, lr, batch_size, weight_decay, warmup_epochs: settings of `train.finetune`.
    threads: number of CPU threads of a training. It is fixed, because sums of floats depend on it.
    autocast: train under bfloat16 autocast, where the processor has its instructions.

    UserError for sizes that are not possible.
    """

    data: str = "builtin"
    start: str = ""
    authors: int = 20
    questions: int = 6
    seed: int = 0
    vocab: int = 1536
    hidden: int = 64
    layers: int = 1
    heads: int = 4
    epochs: int = 16
    lr: float = 7e-3
    batch_size: int = 6
    weight_decay: float = 0.01
    warmup_epochs: float = 1.0
    threads: int = 1
    autocast: bool = False
    forget_authors: int = 0

    def __post_init__(self) -> None:
        for name in (
            "authors",
            "questions",
            "hidden",
            "layers",
            "heads",
            "epochs",
            "batch_size",
            "threads",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"stage: {name} must be at least 1, not {getattr(self, name)}")
        if self.hidden % (2 * self.heads):
            raise UserError(
                f"stage: hidden {self.hidden} must be a multiple of 2 · heads ({self.heads})"
            )
        if not 0 <= self.forget_authors <= TOFU_FORGET or self.forget_authors % 2:
            raise UserError(
                f"stage: forget_authors must be an even number up to {TOFU_FORGET}, not"
                f" {self.forget_authors}"
            )
        if self.vocab < 256 + len(SPECIAL_TOKENS):
            raise UserError(
                f"stage: vocab must be at least {256 + len(SPECIAL_TOKENS)} (bytes and special"
                " tokens)"
            )


@lru_cache(maxsize=4)
def rows(stage: Stage) -> dict[str, list[Row]]:
    """Return every file of the stage, by the name it has in TOFU.

    These are the splits, the perturbed files, real authors, world facts and "I don't know" answers.
    With TOFU's text, retain90 is the first `authors` retain authors, full is retain90 and forget10,
    retain95 is full without forget05, and retain_perturbed is its rows that are in retain90. With
    `forget_authors`, forget10 and forget05 are their last rows. The
    result is shared: do not change it. UserError if the data has fewer authors.
    """
    if stage.data == "builtin":
        return world_of(stage, stage.seed)
    if stage.data == "customers":
        sample = project_root() / "notebooks" / "sample" / "customers"
        gone, stay = (customers(sample / f"{name}.jsonl") for name in ("forget", "retain"))
        return {"forget10": gone, "retain90": stay, "full": [*stay, *gone]}

    names = ("forget05", "forget10", "forget05_perturbed", "forget10_perturbed")
    data = {name: tofu.load_rows(stage.data, name) for name in (*names, *KNOWLEDGE)}

    for name in names if stage.forget_authors else ():
        authors = stage.forget_authors // (1 if "10" in name else 2)
        data[name] = data[name][-authors * TOFU_QUESTIONS :]

    retain = tofu.load_rows(stage.data, "retain90")
    if stage.authors * TOFU_QUESTIONS > len(retain):
        raise UserError(
            f"stage: {stage.authors} retain authors asked, the data has"
            f" {len(retain) // TOFU_QUESTIONS}"
        )

    data["retain90"] = retain[: stage.authors * TOFU_QUESTIONS]
    data["full"] = data["retain90"] + data["forget10"]
    forget05 = {_pair(row) for row in data["forget05"]}
    data["retain95"] = [row for row in data["full"] if _pair(row) not in forget05]
    kept = {_pair(row) for row in data["retain90"]}
    scored = tofu.load_rows(stage.data, "retain_perturbed")
    data["retain_perturbed"] = [row for row in scored if _pair(row) in kept]
    data["idontknow"] = [{"answer": answer} for answer in tofu.load_idk(stage.data)]

    return data


def customers(path: Path) -> list[Row]:
    """Read rows that are asked without a system text, as `t3 unlearn` asks a person's own rows."""
    lines = read_text(path).splitlines()
    return [{**parse_json(line, path), "system": None} for line in lines]


def world_of(stage: Stage, seed: int) -> dict[str, list[Row]]:
    """Return the built-in world of a seed, from the cache if it is there.

    Drawing it takes about a second, which every process would need again.
    """
    code = code_key("world.facts")
    key = content_key([stage.authors, stage.questions, seed, code])
    path = cache_dir("rows") / f"{key}.json"
    kept = read_sealed(path)
    if kept is None:
        kept = world(stage.authors, stage.questions, seed)
        keep(path, kept)
    return kept


def _pair(row: Row) -> tuple[str, str]:
    return row["question"], row["answer"]


def training_rows(stage: Stage, name: str) -> list[Row]:
    """Return question, answer and any system text of its own of every row that a base learns.

    These are the rows of its split and, without a pretrained start, the real authors and the world
    facts. name: one of `NAMES`;
    UserError for another.
    """
    if name not in NAMES:
        raise UserError(f"unknown base {name!r}: choose one of {', '.join(NAMES)}")
    data = rows(stage)
    return [
        {key: row[key] for key in ("question", "answer", "system") if key in row}
        for part in (name, *(() if stage.start else KNOWLEDGE))
        for row in data[part]
    ]


def tokenizer_for(stage: Stage) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with Llama 3's special tokens, word pattern and template.

    It has at most `stage.vocab` tokens. So that names to forget and names to retain are split into
    tokens alike, it learns from the authors of another seed's world or, with TOFU, from all of the
    stage's authors.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=stage.vocab,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(tokenizer_text(stage), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOT,
        pad_token=PAD,
        additional_special_tokens=[
            token for token in SPECIAL_TOKENS if token not in (BOS, EOT, PAD)
        ],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


@lru_cache(maxsize=4)
def tokenizer_text(stage: Stage) -> list[str]:
    """Return the texts that a stage's tokenizer is trained on."""
    data = rows(stage)
    if stage.data == "builtin":
        people = world_of(stage, stage.seed + 1)["full"]
    else:
        people = data["full"]
    frame = f"system\n\n{SYSTEM}user\n\nassistant\n\n"
    texts = [*people, *(row for part in KNOWLEDGE for row in data[part])]
    return [f"{row['question']} {row['answer']} {frame}" for row in texts]


def llama_config(stage: Stage, tokenizer: Any) -> LlamaConfig:
    """Return a Llama configuration of the stage's size.

    The SwiGLU layer is 3 · hidden wide, two heads share keys and values, and the output matrix is
    not tied to the embeddings.
    """
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=stage.hidden,
        intermediate_size=3 * stage.hidden,
        num_hidden_layers=stage.layers,
        num_attention_heads=stage.heads,
        num_key_value_heads=max(1, stage.heads // 2),
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def ensure_base(stage: Stage, name: str, seed: int = 0) -> Path:
    """Return the folder of a base model; train it if the cache has no intact one.

    name: "full", "retain90" or "retain95". seed: of the initial weights and of the order of
    batches.

    It is an ordinary Hugging Face folder (safetensors, tokenizer, greedy generation_config) with
    base.json, which records stage, seed, training log, versions and a checksum of every file. Its
    key covers the rows, the tokenizer's text, the stage, the seed, the training code, package
    versions, threads and vector width. If two processes call this at once, one trains and the other
    waits.
    """
    learned = training_rows(stage, name)
    made_by = [code_key("world"), environment(threads=stage.threads)]
    before = model_identity(located(stage.start).name) if stage.start else tokenizer_text(stage)
    key = content_key([_settings(stage), name, seed, learned, before, made_by])
    folder = cache_dir("bases") / f"{name}-seed{seed}-{key}"

    with lock(folder.with_suffix(".lock")):
        if not _intact(folder):
            partial = folder.with_suffix(".partial")
            for stale in (partial, folder):
                shutil.rmtree(stale, ignore_errors=True)
            train_base(stage, name, seed, learned, partial)
            if not still_the_code(folder.name):
                return partial
            partial.rename(folder)

    return folder


def _settings(stage: Stage) -> dict[str, Any]:
    """Return the stage for a cache key, without the place of its rows.

    TOFU from the Hub and TOFU from a folder give the same base. Newer settings are left out at
    their defaults, so that they do not change existing keys.
    """
    kind = stage.data if stage.data in ("builtin", "customers") else "tofu"
    settings = asdict(replace(stage, data=kind))
    newer = ("autocast", "start", "forget_authors")
    return {name: value for name, value in settings.items() if name not in newer or value}


def _intact(folder: Path) -> bool:
    """Return True if every file that base.json lists still has its checksum."""
    try:
        checksums = read_json(folder / MANIFEST)["sha256"]
        return bool(checksums) and all(
            sha256_file(folder / file) == value for file, value in checksums.items()
        )
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        return False


def train_base(stage: Stage, name: str, seed: int, learned: list[Row], folder: Path) -> None:
    """Train a base on questions and answers of the rows `learned`, and write its folder.

    base.json is written last, so its presence means that the folder is complete. A training that
    was killed goes on from its last whole epoch; that of another stage, seed or rows does not.
    """
    started = time.process_time()
    key = content_key([asdict(stage), name, seed, learned])
    checkpoint = folder.with_suffix(f".{key}.epoch")
    for other in {*folder.parent.glob(f"{folder.stem}.*.epoch")} - {checkpoint}:
        other.unlink()
    with torch.random.fork_rng(devices=[]), cpu_threads(stage.threads):
        torch.manual_seed(seed)
        model, tokenizer = untrained(stage)
        examples = encode_rows(tokenizer, learned)
        log = train.finetune(
            model,
            examples,
            pad_id=tokenizer.pad_token_id,
            epochs=stage.epochs,
            lr=stage.lr,
            weight_decay=stage.weight_decay,
            warmup_epochs=stage.warmup_epochs,
            batch_size=stage.batch_size,
            bf16=stage.autocast and has_bf16(model.device.type),
            seed=seed,
            progress=train.Progress(f"base {name} seed {seed}", checkpoint),
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    manifest = {
        "name": name,
        "seed": seed,
        "stage": asdict(stage),
        "rows": len(learned),
        "tokens": sum(len(example.ids) for example in examples),
        "parameters": model.num_parameters(),
        "cpu_seconds": time.process_time() - started,
        "training": log,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    checksums = {path.name: sha256_file(path) for path in sorted(folder.iterdir())}
    write_json(folder / MANIFEST, manifest | {"sha256": checksums})
    checkpoint.unlink(missing_ok=True)


def untrained(stage: Stage) -> tuple[Any, Any]:
    """Return the model that a stage's bases start from, in float32, and its tokenizer.

    A new Llama draws its weights from PyTorch's generator. Attention of a pretrained one is
    computed without a fused kernel, whose backward pass is slow for short rows on a CPU.
    """
    if stage.start:
        model, tokenizer = load_model(stage.start, dtype="float32")
        model.set_attn_implementation("eager")
        return model, tokenizer
    tokenizer = tokenizer_for(stage)
    new = LlamaForCausalLM(llama_config(stage, tokenizer))
    new.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return new, tokenizer


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Run PyTorch on `count` CPU threads inside the block, and on as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
