"""Rehearse a profile of large checkpoints on random weights and a few rows.

`t3 reproduce --profile llama-8b --rehearse` prepares a folder: checkpoints of the released model's
exact configuration with random weights, a tokenizer with Llama 3's special tokens and chat
template, a few rows a set under TOFU's file names, and a profile that differs from the real one
only where `derived` says. The ordinary `reproduce` then runs this profile.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import psutil

from t3lib.baselines.losses import LOSSES
from t3lib.core.errors import UserError
from t3lib.core.files import (
    atomic_write,
    cache_dir,
    content_key,
    lock,
    project_root,
    read_yaml,
    write_json,
)
from t3lib.core.settings import hyper_of
from t3lib.lab import profiles
from t3lib.lab.bench import cost, hours
from t3lib.lab.bench.cost import Shape, shape_of
from t3lib.lab.grid import jobs, preflight
from t3lib.lab.grid.reproduce import reproduce

FACTS: dict[str, Any] = read_yaml(Path(__file__).with_name("rehearsal.yaml"))
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
NORM = "model.norm.weight"  # the weights in which the checkpoints of a rehearsal differ
MAKING = "rehearsal.json"  # written last in a checkpoint's folder: how it was made
AUTHORS, QUESTIONS = 40, 10  # of the built-in world, so that every set has at least 20 rows
FIRST_SPECIAL = 128_000  # id of Llama 3's first special token
LEARNED = 2048  # tokens that the tokenizer learns; the rest of Llama's vocabulary is never used
ROWS = 8  # of every set
TOKENS = 8  # of an answer: random weights never end one
SAMPLES = {"rows": 2, "samples": 2}  # of the audit, whose answers are as long as the true ones
EIGHT_BITS = "paged_adamw_8bit"


def rehearse(
    profile: str | Path,
    *,
    shape: str | None = None,
    steps: Sequence[str] | None = None,
    **options: Any,
) -> int:
    """Prepare and reproduce a profile's rehearsal, measure its steps, and return the exit code.

    Args:
        profile: name or file of the profile, as of `reproduce`.
        shape: as of `prepare`.
        steps: measure these steps alone (`bench.steps`), and run no notebook.
        options: of `reproduce`. Unless they say otherwise there is one worker with all cores,
            because every worker would hold the weights.
    """
    path, differences = prepare(profiles.load_profile(profile), shape=shape)
    print("\n".join([f"rehearsal of {profile}, which measures nothing:", *differences]), flush=True)
    if shape is None:
        os.environ.setdefault("T3_THREADS", str(psutil.cpu_count(logical=False) or 1))
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning wastes a shared machine
    if not any(options.get(name) for name in ("scheduler", "slurm")):
        options["workers"] = options.get("workers") or 1
    code = 0 if steps else reproduce(path, **options)
    if options.get("only") or options.get("dry_run"):
        return code
    rehearsed = profiles.load_profile(path)
    folder = Path(options.get("out") or project_root() / "out" / rehearsed["name"]) / "tables"
    if shape is None:
        folder = project_root() / "results"  # the one file there that a rehearsal writes
    left_out = {}
    for line in differences:
        if line.startswith("  without "):
            _, method, why = line.split(maxsplit=2)
            left_out[f"one step of {method}"] = why
    return measure(rehearsed, steps, left_out, folder / "rehearsal.csv") or code


def measure(
    profile: profiles.Profile,
    steps: Sequence[str] | None,
    left_out: Mapping[str, str],
    path: Path,
) -> int:
    """Measure steps of a rehearsal one after the other; return 1 if one failed, otherwise 0.

    Each step runs in its own process, whose peak memory is then that of the step, and adds a row to
    the table. A step that already has a row is not measured again, so the same command continues a
    rehearsal that was killed. Rows of a GPU and of a CPU are kept apart.

    Args:
        profile: the rehearsal's.
        steps: names of `steps_of`; by default all of them.
        left_out: steps that do not fit this machine, with the reason.
        path: the table, results/rehearsal.csv.

    Raises:
        UserError: an unknown step.
    """
    known, failed = [*steps_of(profile), *left_out], 0
    if unknown := [step for step in steps or () if step not in known]:
        raise UserError(f"--steps {unknown[0]!r}: choose of {', '.join(known)}")
    gpu, table = bool(preflight.largest_gpu()), pd.DataFrame(columns=["profile", "step", "device"])
    for step in steps or known:
        if path.is_file():
            table = pd.read_csv(path, dtype=str)  # so that numbers stay as they were written
        here = table[table.device.str.startswith("cpu") != gpu]
        if step in left_out or step in here[here.profile == profile["name"]].step.tolist():
            print(f"{step}: {left_out.get(step, 'measured before')}", flush=True)
            continue
        with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as process:
            try:
                row = process.submit(measured, profile, step).result()
            except Exception as error:  # whatever a library raises, or a killed process
                print(f"{step}: {type(error).__name__}: {error}", flush=True)
                failed = 1
                continue
        with atomic_write(path) as handle:
            handle.write(pd.concat([table, pd.DataFrame([row])])[[*row]].to_csv(index=False))
        print("{step}: {seconds:.0f} s, {peak_bytes:.3g} bytes at most".format(**row), flush=True)
    return failed


def steps_of(profile: profiles.Profile) -> list[str]:
    """Return the names of the steps that a profile's methods have, in running order."""
    trained = [f"one step of {method}" for method in profile["methods"] if method in LOSSES]
    read = ["load", "T3's training", "evaluation", "evaluation of ULD", "audit"]
    return [*read, *trained, "t3 unlearn", "t3 evaluate", "t3 generate", "8bit", "4bit"]


def measured(profile: profiles.Profile, step: str) -> dict[str, Any]:
    """Measure a step in this process (`bench.steps.measure`), the only one that imports torch."""
    from t3lib.lab.bench import steps

    return steps.measure(profile, step)


def end_with_parent() -> None:
    """End this process, even in the middle of a step, when the process that spawned it ends."""

    def watch() -> None:
        connection.wait([parent_process().sentinel])  # type: ignore[union-attr]
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def estimate(profile: profiles.Profile) -> str:
    """Say what a profile of large checkpoints takes on a GPU, "" for one that runs on a CPU."""
    if not profile["gpu"]:
        return ""
    graph = jobs.build(profile, Path(profile["name"]))
    return hours.plan(graph, profile, sizes(config_of(profile)))


def sizes(config: Mapping[str, Any]) -> Shape:
    """Read the shape of a model from its configuration."""
    return Shape(*(config[key] for key in Shape._fields))


def prepare(profile: profiles.Profile, *, shape: str | None = None) -> tuple[Path, list[str]]:
    """Make what a rehearsal needs, in `$T3_CACHE/rehearsal`, unless it is there.

    Args:
        profile: a checked profile whose models are among those of rehearsal.yaml.
        shape: a named shape (`cost.SHAPES`) in place of the model's sizes; the vocabulary stays.

    Returns:
        The rehearsal's profile, a YAML file, and a line for each difference from the real one.

    Raises:
        UserError: an unknown model or shape, or a disk without room for the weights.
    """
    config, name = config_of(profile, shape), profile["name"]
    folder = cache_dir("rehearsal", f"{name}-{content_key([config, ROWS])}")
    models = {which: folder / f"random-weights-{which}" for which in profile["models"]}
    with lock(folder / "lock"):
        write_rows(folder / "random-rows")
        for seed, place in enumerate(models.values()):
            write_checkpoint(place, config, seed, next(iter(models.values())))
    rehearsed, lines = derived(profile, sizes(config))
    rehearsed |= {
        "data": str(folder / "random-rows"),
        "models": {which: str(place) for which, place in models.items()},
    }
    path = folder / f"rehearsal-{name}.yaml"
    write_json(path, {key: value for key, value in rehearsed.items() if key != "name"})
    count = f"{cost.parameters(sizes(config)) / 1e9:.3g}e9"
    return path, [
        f"  weights: {count} random numbers of {config['torch_dtype']} in place of"
        f" {profile['models']['full']}, in {folder}",
        "  tokenizer: Llama 3's special tokens and chat template, words of the built-in world",
        f"  rows: {ROWS} a set, of the built-in world, in place of TOFU's",
        *lines,
    ]


def config_of(profile: profiles.Profile, shape: str | None = None) -> dict[str, Any]:
    """Return the released configuration of a profile's models, at another shape if one is named."""
    named = str(profile["models"].get("full"))
    found = [config for name, config in FACTS["configs"].items() if name in named]
    if not found:
        known = " or ".join(FACTS["configs"])
        raise UserError(f"profile {profile['name']}: a rehearsal needs models of {known}")
    if shape is None:
        return found[0]
    other = shape_of(shape)._asdict()
    kept = {key: value for key, value in found[0].items() if key != "head_dim"}
    return kept | other | {key: kept[key] for key in ("vocab_size", "tie_word_embeddings")}


def derived(profile: profiles.Profile, shape: Shape) -> tuple[profiles.Profile, list[str]]:
    """Return the profile of a rehearsal, still with the real data and models, and a line of text
    for each difference from the real profile.

    A method is left out if its training does not fit the free memory. If only AdamW's moments do
    not fit, they are kept in 8 bits.
    """
    free, lines, methods, hyper = free_memory(), [], [], dict(profile["hyper"])
    for method in profile["methods"]:
        own = hyper_of(hyper, method, profile["splits"][0]).get("optimizer", "adamw")
        needs = {each: cost.training_memory(shape, method, each) for each in (own, EIGHT_BITS)}
        fitting = [optimizer for optimizer, need in needs.items() if need < free]
        most, least = max(needs.values()) / 1e9, min(needs.values()) / 1e9
        if not fitting:
            room = f"{free / 1e9:.0f} GB are free here"
            lines.append(f"  without {method} which needs {least:.0f} GB: {room}")
            continue
        methods.append(method)
        if fitting[0] != own:
            because = f"because it needs {most:.0f} GB otherwise"
            lines.append(f"  {method}: AdamW's moments in 8 bits, {because}")
        for split in profile["splits"] if method in LOSSES else ():
            settings = hyper_of(profile["hyper"], method, split) | {"epochs": 1}
            if method != "ULD":
                settings["optimizer"] = fitting[0]
            if "k" in settings:
                settings["k"] = min(settings["k"], shape.num_hidden_layers)
            hyper[f"{method}/{split}"] = settings
    lines += [
        f"  one seed, one step of every baseline, answers of {TOKENS} tokens",
        f"  in the audit {SAMPLES['samples']} samples of {SAMPLES['rows']} rows",
    ]
    audit = profile["notebooks"].get("06_audit", {})
    audit = audit | {"sampling": audit.get("sampling", {}) | SAMPLES}
    return profile | {
        "gpu": 0,
        "methods": methods,
        "hyper": hyper,
        "seeds": profile["seeds"][:1],
        "evaluation": profile["evaluation"] | {"max_new_tokens": TOKENS},
        "notebooks": profile["notebooks"] | {"06_audit": audit},
    }, lines


def free_memory() -> float:
    """Return the bytes that training may use here: those of the largest GPU, otherwise the free
    memory.
    """
    return preflight.largest_gpu() * 1e9 or float(psutil.virtual_memory().available)


def write_rows(folder: Path) -> None:
    """Write the first rows of every set of the built-in world, as JSON lines in TOFU's files."""
    from t3lib.lab.world import bases

    # The tokenizer learns from this world too, and finds it in the cache.
    drawn = bases.world_of(bases.Stage(authors=AUTHORS, questions=QUESTIONS), seed=0)
    for name, rows in drawn.items():
        with atomic_write(folder / f"{name}.json") as handle:
            handle.writelines(json.dumps(row) + "\n" for row in rows[:ROWS])


def write_checkpoint(folder: Path, config: Mapping[str, Any], seed: int, shared: Path) -> None:
    """Write a folder as the Hub has it: config, generation config, tokenizer and safetensors.

    Weights are drawn file by file, a file for each layer, so that no more than one is in memory.
    All but the final norm's are those of the folder `shared`, as links to the same files. The
    tokenizer is a copy.

    Args:
        folder: where to write, unless it is complete already.
        config: what config.json says.
        seed: of the final norm's weights; seed 0 draws all others too.
        shared: the folder of seed 0.

    Raises:
        UserError: a disk without room for the weights.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    if (folder / MAKING).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", FACTS["generation"])
    if seed:
        for name in TOKENIZER:
            (folder / name).write_bytes((shared / name).read_bytes())
    else:
        write_tokenizer(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    dtype, scale = getattr(torch, config["torch_dtype"]), config["initializer_range"]
    total = sum(shape.numel() for shape in shapes.values()) * dtype.itemsize
    if not seed and total > (free := psutil.disk_usage(str(folder)).free):
        raise UserError(
            f"{folder}: {total / 1e9:.0f} GB of weights do not fit the disk's"
            f" {free / 1e9:.0f}; set T3_CACHE"
        )
    files: dict[str, dict[str, Any]] = {}  # the embeddings, each layer, the norm, the output layer
    for name, shape in shapes.items():
        files.setdefault(f"{'.'.join(name.split('.')[:3])}.safetensors", {})[name] = shape
    for number, (file, part) in enumerate(files.items(), 1):
        (folder / file).unlink(missing_ok=True)
        if seed and NORM not in part:
            os.link(shared / file, folder / file)
            continue
        draw = torch.Generator().manual_seed(1000 * number + seed)
        for name, shape in part.items():
            noise = torch.empty(shape, dtype=dtype).normal_(generator=draw).mul_(scale)
            part[name] = noise.add_(1) if "norm" in name else noise
        save_file(part, folder / file, metadata={"format": "pt"})
        part.update(dict.fromkeys(part))  # no more than one file's weights in memory
    where = {name: file for file, part in files.items() for name in part}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    write_json(folder / "model.safetensors.index.json", index)
    write_json(folder / MAKING, {"weights": "random", "seed": seed})


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with Llama 3's size, ids of special tokens and chat template.

    It cuts text as the built-in stage's does. Tokens up to id 127,999 that it has not learned stand
    for no text, so that no text has them.
    """
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    from t3lib.lab.world import bases

    learned = bases.tokenizer_for(
        bases.Stage(authors=AUTHORS, questions=QUESTIONS, vocab=LEARNED)
    ).backend_tokenizer
    facts = json.loads(learned.to_str())
    facts["added_tokens"] = []
    words = [word for word in facts["model"]["vocab"] if word not in bases.SPECIAL_TOKENS]
    words += [f"<unused{number}>" for number in range(len(words), FIRST_SPECIAL)]
    facts["model"]["vocab"] = {word: number for number, word in enumerate(words)}
    whole = Tokenizer.from_str(json.dumps(facts))
    named = FACTS["special_tokens"]
    reserved = [f"<|reserved_special_token_{n}|>" for n in range(3, 259 - len(named))]
    whole.add_special_tokens([AddedToken(token, special=True) for token in (*named, *reserved)])
    PreTrainedTokenizerFast(
        tokenizer_object=whole,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|eot_id|>",  # as in OpenUnlearning's checkpoints
        chat_template=FACTS["chat_template"],
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
