"""The bases that unlearning starts from: tiny Llamas trained from scratch on the built-in world or
on real TOFU text.

One stage fixes the rows, the tokenizer and the training. Its bases `full`, `retain90` and
`retain95` also learn the real-author and world-fact rows, which stand in for pretraining: heads and
baselines never see those.
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

from t3lib.baselines import train
from t3lib.core.errors import UserError
from t3lib.core.files import (
    cache_dir,
    content_key,
    lock,
    read_json,
    read_sealed,
    sha256_file,
    write_json,
)
from t3lib.core.identity import code_key, environment, keep, keyed, still_the_code
from t3lib.core.rows import SYSTEM, Row, encode_rows
from t3lib.lab.world.facts import world
from t3lib.tofu import data as tofu

NAMES = ("full", "retain90", "retain95")
KNOWLEDGE = ("real_authors_perturbed", "world_facts_perturbed")
TOFU_QUESTIONS = 20  # rows of one author in TOFU
CONTEXT = 1024  # longest TOFU prompt plus 200 new tokens, with room
MANIFEST = "base.json"

BOS, EOT, PAD = "<|begin_of_text|>", "<|eot_id|>", "<|finetune_right_pad_id|>"
SPECIAL_TOKENS = [BOS, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", EOT, PAD]
# How Llama 3 cuts text before BPE: contractions, words, digits by threes, punctuation, line ends,
# spaces. The blank line after a header is cut from whatever follows, so a prompt's tokens are
# always a prefix of the chat's.
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
    """Rows and training of one set of bases; the defaults are the smoke scale.

    data: "builtin", "hub", or a folder with TOFU's files. authors: all authors of the built-in
    world, or how many retain authors of TOFU stand beside the 20 of forget10. questions, seed: of
    the built-in world alone. vocab: most tokens the tokenizer may learn. epochs … warmup_epochs:
    settings of `train.finetune`. threads: CPU threads of one training, fixed because sums of floats
    depend on them. autocast: train under bfloat16 autocast.
    """

    data: str = "builtin"
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
        if self.vocab < 256 + len(SPECIAL_TOKENS):
            raise UserError(
                f"stage: vocab must be at least {256 + len(SPECIAL_TOKENS)} (bytes and special"
                " tokens)"
            )


@lru_cache(maxsize=4)
def rows(stage: Stage) -> dict[str, list[Row]]:
    """Every file of the stage by TOFU's file stem: the splits, the perturbed files, real authors,
    world facts, idk.

    With TOFU's text: retain90 = the first `authors` retain authors, full = those + forget10,
    retain95 = full − forget05, retain_perturbed = its rows that are in retain90. Treat the result
    as read-only: it is shared.
    """
    if stage.data == "builtin":
        return world_of(stage, stage.seed)
    names = ("forget05", "forget10", "forget05_perturbed", "forget10_perturbed")
    data = {name: tofu.load_rows(stage.data, name) for name in (*names, *KNOWLEDGE)}
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


@keyed
def world_of(stage: Stage, seed: int) -> dict[str, list[Row]]:
    """The built-in world of a seed; kept in the cache, since drawing it takes a second in every
    process.
    """
    code = code_key("t3lib.lab.world.facts.world")
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
    """Question and answer of every row that the base `name` learns: its split, real authors, world
    facts.
    """
    if name not in NAMES:
        raise UserError(f"unknown base {name!r}: choose one of {', '.join(NAMES)}")
    data = rows(stage)
    return [
        {"question": row["question"], "answer": row["answer"]}
        for part in (name, *KNOWLEDGE)
        for row in data[part]
    ]


def tokenizer_for(stage: Stage) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `stage.vocab` tokens with Llama 3's special tokens, word pattern
    and chat shape.

    Names to forget and names to keep are cut into pieces alike: it learns from people of another
    seed's world or, on TOFU, from all of the stage's authors.
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
    """What the tokenizer of a stage learns from."""
    data = rows(stage)
    if stage.data == "builtin":
        people = world_of(stage, stage.seed + 1)["full"]
    else:
        people = data["full"]
    frame = f"system\n\n{SYSTEM}user\n\nassistant\n\n"
    texts = [*people, *(row for part in KNOWLEDGE for row in data[part])]
    return [f"{row['question']} {row['answer']} {frame}" for row in texts]


def llama_config(stage: Stage, tokenizer: Any) -> LlamaConfig:
    """Transformers' own Llama at the stage's size: SwiGLU of 3 · hidden, grouped keys, output
    matrix of its own.
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


@keyed
def ensure_base(stage: Stage, name: str, seed: int = 0) -> Path:
    """Folder of the base `name` (full | retain90 | retain95), trained now unless an intact one is
    in the cache.

    The folder is an ordinary Hugging Face one (safetensors, tokenizer, greedy generation_config)
    plus base.json, which records stage, seed, training log, versions and a checksum of every file.
    Its key covers the rows, the tokenizer's text, the stage, the seed, the training code, package
    versions and vector width. A damaged folder is trained again. Two processes may ask at once: one
    trains, the other waits. seed: initial weights and batch order.
    """
    learned = training_rows(stage, name)
    made_by = [code_key("t3lib.lab.world.bases.train_base"), environment(threads=stage.threads)]
    key = content_key([_settings(stage), name, seed, learned, tokenizer_text(stage), made_by])
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
    """The stage without the place its rows came from: TOFU from the Hub and from a folder give one
    base.

    A setting that came later is there only where it is used, so that bases of before stay.
    """
    settings = asdict(replace(stage, data="builtin" if stage.data == "builtin" else "tofu"))
    return {name: value for name, value in settings.items() if name != "autocast" or value}


def _intact(folder: Path) -> bool:
    """Whether every file that base.json lists is there with the checksum it had when it was
    written.
    """
    try:
        checksums = read_json(folder / MANIFEST)["sha256"]
        return bool(checksums) and all(
            sha256_file(folder / file) == value for file, value in checksums.items()
        )
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        return False


def train_base(stage: Stage, name: str, seed: int, learned: list[Row], folder: Path) -> None:
    """Train a base on question and answer of the rows `learned` and write its folder, base.json
    last.
    """
    started = time.process_time()
    tokenizer = tokenizer_for(stage)
    examples = encode_rows(tokenizer, learned)
    with torch.random.fork_rng(devices=[]), cpu_threads(stage.threads):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama_config(stage, tokenizer))
        log = train.finetune(
            model,
            examples,
            pad_id=tokenizer.pad_token_id,
            epochs=stage.epochs,
            lr=stage.lr,
            weight_decay=stage.weight_decay,
            warmup_epochs=stage.warmup_epochs,
            batch_size=stage.batch_size,
            bf16=stage.autocast,
            seed=seed,
            progress=f"base {name} seed {seed}",
        )
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
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


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """PyTorch on `count` CPU threads inside the block, as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
