"""Try T3 at the size of a Llama, with random weights, on one GPU or on the CPU.

    python results/rehearsal/make.py --device cuda
    python results/rehearsal/make.py --device cuda --shape llama-3.2-1b
    python results/rehearsal/make.py --tiny

It shows what breaks on a GPU, how fast T3 is there and how much memory it takes, before hours are
paid for. It says nothing about forgetting. Nothing is downloaded: the weights are random numbers
in the exact configuration of Llama-3.1-8B or Llama-3.2-1B, and the rows are random words.

Every step has a process of its own, so that its peak memory is the step's, and writes one JSON file
when it ends. A step that has its file is not run again, so the same command continues where it was
stopped. A step that fails leaves `STEP.failed.txt` and is tried again by the next call. Send back
the whole folder.

    tests       the tests of sampler and classifier that can run on a GPU (see tests/families.py);
                the peak memory in its file is that of the process that waits for pytest
    features    the features of 200 rows of about 90 tokens (on a CPU of 16 rows)
    head        one head, on random features of the size of the paper's 5% split
    decoding    the base and T3 in turns, one text and 32 texts (on a CPU one): tokens a second
    evaluation  all metrics of 100 rows (on a CPU of 8 rows), for the base and for T3

By arithmetic T3 in 16 bits holds 18.3 GB at the size of 8B and 3.2 GB at that of 1B. The folder
llama-3.1-8b-h200 has what an H200 measured: its steps but the tests were called one after the other
in one process, in a minute. `--device cpu --shape llama-3.2-1b` took 14 minutes on one thread of a
busy CPU, without the tests, and held 3.4 GB. `--tiny` takes half a minute on two CPU cores.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from t3lab import results
from t3lab.bench import cost, timing
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.files import atomic_write, write_json
from t3lib.core.rows import encode_rows
from t3lib.tofu.evaluation import Scoring, evaluate
from t3lib.tofu.metrics import SETS

ROOT = Path(__file__).resolve().parents[2]
ROPE = {"llama-3.1-8b": 8.0, "llama-3.2-1b": 32.0}  # factor by which Llama 3's context is stretched
QUESTION, ANSWER = 50, 36  # words; TOFU's rows have about as many tokens in Llama's vocabulary
SPECIAL = ["<s>", "</s>", "<unk>"]
NEW_TOKENS = 32  # of each decoded text
TESTS = [
    "tests/sampler/test_sampler_matrix.py",
    "tests/sampler/test_unlearning.py",
    "tests/classifier/test_features.py",
]


class Size(NamedTuple):
    """What the steps work on.

    rows: rows to forget, and as many to keep, whose features are computed; a quarter of this number
    in each of the four sets that are scored.
    pairs, epochs: of the head's training, rows to forget and as many to keep.
    batches: numbers of texts that are decoded together. tests: arguments of pytest.
    """

    shape: str
    device: str
    dtype: str
    rows: int
    pairs: int
    epochs: int
    batches: tuple[int, ...]
    tests: list[str]


TINY = Size(
    "tiny",
    "cpu",
    "float32",
    4,
    4,
    2,
    (1, 2),
    [*TESTS, "-k", "test_it_tilts_away_from_the_forget_rows_and_leaves_the_base_alone"],
)


def run_tests(size: Size) -> dict[str, Any]:
    """Run pytest with the models on the device; RuntimeError with its last lines if one fails."""
    command = [sys.executable, "-m", "pytest", "-rf", "-p", "no:cacheprovider", *size.tests]
    environment = os.environ | {"T3_TEST_DEVICE": size.device}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode:
        raise RuntimeError("\n".join(lines[-200:]) + done.stderr)
    return {"command": " ".join(command[1:]), "last_line": lines[-1]}


def features(size: Size) -> dict[str, Any]:
    """Time one pass of the base over rows to forget and to keep, which gives their features."""
    base, tokenizer = model_of(size), tokenizer_of(size)
    forget, retain = (random_rows(size, size.rows, seed) for seed in (0, 1))
    extract_features(base, tokenizer, forget[:1], retain[:1], progress=False)  # the first is slow
    began = time.perf_counter()
    found = extract_features(base, tokenizer, forget, retain, progress=False)
    seconds = time.perf_counter() - began
    tokens = sum(len(example.ids) for example in encode_rows(tokenizer, forget + retain))
    return {
        "tokens": tokens,
        "answer_tokens": len(found.y),
        "pass_seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }


def head(size: Size) -> dict[str, Any]:
    """Time the training of one head on random features."""
    shape = cost.shape_of(size.shape)
    given = timing.random_features(
        shape.hidden_size, shape.vocab_size, size.pairs, device=size.device
    )
    settings = {"epochs": size.epochs, "warmup_epochs": size.epochs / 4, "epoch": "fixed"}
    began = time.perf_counter()
    fit_head(given, vocab_size=shape.vocab_size, progress=False, **settings)
    return {"answer_tokens": len(given.y), "training_seconds": time.perf_counter() - began}


def decoding(size: Size) -> dict[str, Any]:
    """Time the base and T3 in turns; medians, and the quartiles of their ratio."""
    base, found = model_of(size), {}
    for batch in size.batches:
        rows = timing.decode_rows(base, batch=batch, new_tokens=NEW_TOKENS, repeats=5)
        plain, tilted, ratio = rows
        found[f"texts_{batch}"] = {
            "base_tokens_per_second": batch * NEW_TOKENS / plain["median"],
            "t3_tokens_per_second": batch * NEW_TOKENS / tilted["median"],
            "t3_seconds_by_base": [ratio[name] for name in ("low", "median", "high")],
        }
    return found


def evaluation(size: Size) -> dict[str, Any]:
    """Time every metric of a few rows, for the base and for T3 with a random head at T = 2.5."""
    base, tokenizer = model_of(size), tokenizer_of(size)
    sets = {name: random_rows(size, size.rows // 4, seed) for seed, name in enumerate(SETS)}
    untrained = T3Head(base.config.hidden_size, base.config.vocab_size).to(base.device)
    scoring = Scoring(max_new_tokens=NEW_TOKENS, progress=False)
    began = time.perf_counter()
    reports = evaluate(base, tokenizer, sets, scoring, tilts=[(None, 1.0), (untrained, 2.5)])
    seconds = time.perf_counter() - began
    return {
        "rows_scored": sum(map(len, sets.values())),
        "evaluation_seconds": seconds,
        "mu_rouge": [report["mu_rouge"] for report in reports],
        "model_utility": [report["model_utility"] for report in reports],
    }


STEPS = {
    "tests": run_tests,
    "features": features,
    "head": head,
    "decoding": decoding,
    "evaluation": evaluation,
}


def model_of(size: Size) -> PreTrainedModel:
    """Build the model with random weights on the device, in Llama 3's released configuration."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": ROPE.get(size.shape, 8.0),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    released = {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_parameters": rope}
    return timing.random_model(size.shape, dtype=size.dtype, device=size.device, **released)


def tokenizer_of(size: Size) -> PreTrainedTokenizerFast:
    """Make a tokenizer of the model's vocabulary, whose tokens are the words w3, w4 and so on."""
    words = SPECIAL + [f"w{n}" for n in range(3, cost.shape_of(size.shape).vocab_size)]
    ids = {word: n for n, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bos, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=eos, unk_token=unk
    )


def random_rows(size: Size, count: int, seed: int) -> list[dict[str, Any]]:
    """Draw rows of random words; a few words are frequent, as in real text (Zipf's law)."""
    draw, vocab = np.random.default_rng(seed), cost.shape_of(size.shape).vocab_size

    def text(length: int) -> str:
        numbers = (vocab ** draw.random(length)).astype(int).clip(3, vocab - 1)
        return " ".join(f"w{n}" for n in numbers)

    return [
        {
            "question": text(QUESTION),
            "answer": text(ANSWER),
            "paraphrased_answer": text(ANSWER),
            "perturbed_answer": [text(ANSWER) for _ in range(5)],
        }
        for _ in range(count)
    ]


def measure(step: str, size: Size) -> dict[str, Any]:
    """Run one step in this process, and return all that its file holds."""
    began = time.perf_counter()
    found = STEPS[step](size)
    return {
        "step": step,
        **size._asdict(),
        **found,
        "seconds": time.perf_counter() - began,
        "peak_memory_bytes": results.peak_memory_bytes(),
        "predicted_memory_bytes": cost.t3_memory(cost.shape_of(size.shape), bits=16)[1],
        "provenance": results.provenance(model="random weights", data="random words"),
    }


def end_with_parent() -> None:
    """End this process when the one that started it is killed: its model holds the GPU's memory."""

    def watch() -> None:
        connection.wait([parent_process().sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def main() -> int:
    """Run the steps that have no file yet, and return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", choices=list(ROPE), default="llama-3.1-8b")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument(
        "--minutes", type=float, default=25, help="start no step later than this (default 25)"
    )
    parser.add_argument("--out", type=Path, help="default: out/rehearsal/SHAPE-DEVICE")
    args = parser.parse_args()
    gpu = args.device == "cuda" and not args.tiny
    if gpu and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: --device cpu or --tiny needs none")
    rows, batches = (100, (1, 32)) if gpu else (8, (1,))
    real = Size(args.shape, args.device, "bfloat16", rows, 200, 100, batches, TESTS)
    size = TINY if args.tiny else real
    out = args.out or ROOT / "out" / "rehearsal" / f"{size.shape}-{size.device}"
    # A process that was forked cannot use a GPU. On the CPU forking saves the imports.
    context = get_context("spawn" if gpu else "forkserver")
    if not gpu:
        context.set_forkserver_preload(["t3lab.bench.timing", "t3lib.tofu.evaluation"])
    failed, began = False, time.monotonic()
    for step in STEPS:
        path, why = out / f"{step}.json", out / f"{step}.failed.txt"
        if path.is_file():
            print(f"{step}: has its file", flush=True)
            continue
        if time.monotonic() - began > 60 * args.minutes:
            print(f"{step}: not started, {args.minutes:g} minutes are over", flush=True)
            continue
        try:
            with ProcessPoolExecutor(1, context, end_with_parent) as process:
                found = process.submit(measure, step, size).result()
        except Exception as error:  # whatever a library raises, or a killed process
            with atomic_write(why) as handle:
                handle.write(traceback.format_exc())
            print(f"{step}: {type(error).__name__}, see {why}", flush=True)
            failed = True
            continue
        write_json(path, found)
        why.unlink(missing_ok=True)
        memory = found["peak_memory_bytes"] / 1e9
        print(f"{step}: {found['seconds']:.0f} s, {memory:.1f} GB at most", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
