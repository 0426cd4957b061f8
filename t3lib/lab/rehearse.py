"""Rehearse a profile of large checkpoints on random weights and a few rows.

`t3 reproduce --profile llama-8b --rehearse` prepares a folder: checkpoints of the released model's
exact configuration with random weights, a tokenizer with Llama 3's special tokens and chat
template, a few rows a set under TOFU's file names, and a profile that differs from the real one
only where `derived` says. The ordinary `reproduce` then runs this profile.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

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
from t3lib.core.names import SPLITS
from t3lib.core.settings import hyper_of
from t3lib.lab import profiles
from t3lib.lab.bench import cost, hours, steps
from t3lib.lab.bench.shapes import Shape, shape_of
from t3lib.lab.grid import jobs, preflight
from t3lib.lab.grid.reproduce import reproduce
from t3lib.lab.world.facts import world

FACTS: dict[str, Any] = read_yaml(Path(__file__).with_name("rehearsal.yaml"))
SHARD = 4 * 10**9  # bytes of one file of weights at most
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
NORM = "model.norm.weight"  # the weights in which the checkpoints of a rehearsal differ
MAKING = "rehearsal.json"  # written last in a checkpoint's folder: how it was made
AUTHORS, QUESTIONS = 40, 10  # of the built-in world, so that every set has at least 20 rows
FIRST_SPECIAL = 128_000  # id of Llama 3's first special token
LEARNED = 2048  # tokens that the tokenizer learns; the rest of Llama's vocabulary is never used
ROWS = 8  # of every set
TOKENS, SAMPLES = 8, 2  # of an answer, and answers to a question: random weights never end one


def rehearse(profile: str | Path, *, shape: str | None = None, **options: Any) -> int:
    """Prepare and reproduce the rehearsal of a profile; the exit code is `reproduce`'s.

    Args:
        profile: name or file of the profile, as of `reproduce`.
        shape: as of `prepare`.
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
    code = reproduce(path, **options)
    if not options.get("only") and not options.get("dry_run"):
        measured = profiles.load_profile(path)
        folder = Path(options.get("out") or project_root() / "out" / measured["name"])
        together = [folder / "tables" / "rehearsal.csv"]
        if shape is None:  # the one file in results/ that a rehearsal writes
            together.append(project_root() / "results" / "rehearsal.csv")
        for row in steps.measured(measured):
            for path in together:
                steps.add(row, path)
    return code


def estimate(profile: profiles.Profile) -> str:
    """Say what a profile of large checkpoints takes on a GPU, "" for one that runs on a CPU."""
    if not profile["gpu"]:
        return ""
    graph = jobs.build(profile, Path(profile["name"]))
    return hours.plan(graph, profile, sizes(config_of(profile)))


def sizes(config: Mapping[str, Any]) -> Shape:
    """The sizes in a configuration."""
    return Shape(*(config[key] for key in Shape._fields))


def prepare(profile: profiles.Profile, *, shape: str | None = None) -> tuple[Path, list[str]]:
    """Make what a rehearsal needs, in `$T3_CACHE/rehearsal`, unless it is there.

    Args:
        profile: a checked profile whose models are among those of rehearsal.yaml.
        shape: a named shape (`shapes.SHAPES`) in place of the model's sizes; the vocabulary stays.

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
    """The profile as it is rehearsed, but for data and models, and a line for each difference.

    A method whose training does not fit the memory that is free here is left out. Where AdamW's
    moments are what does not fit, they are kept in 8 bits.
    """
    free, lines = free_memory(), []
    methods, hyper = [], dict(profile["hyper"])
    for method in profile["methods"]:
        wanted = {
            hyper_of(profile["hyper"], method, split).get("optimizer", "adamw")
            for split in profile["splits"]
        }
        need = {
            optimizer: cost.training_memory(shape, method, optimizer)
            for optimizer in (*sorted(wanted), "paged_adamw_8bit")
        }
        fitting = [optimizer for optimizer, bytes in need.items() if bytes < free]
        if not fitting:
            lines.append(
                f"  without {method}, which needs {min(need.values()) / 1e9:.0f} GB:"
                f" {free / 1e9:.0f} GB are free here"
            )
            continue
        methods.append(method)
        if method in ("Original", "T3"):
            continue
        if fitting[0] not in wanted:
            lines.append(
                f"  {method}: AdamW's moments in 8 bits, because it needs"
                f" {max(need.values()) / 1e9:.0f} GB otherwise"
            )
        for split in SPLITS:
            settings = hyper_of(profile["hyper"], method, split) | {"epochs": 1}
            settings |= {} if method == "ULD" else {"optimizer": fitting[0]}
            if "k" in settings:
                settings["k"] = min(settings["k"], shape.num_hidden_layers)
            hyper[f"{method}/{split}"] = settings
    audit = profile["notebooks"].get("06_audit", {})
    sampling = audit.get("sampling", {}) | {"samples": SAMPLES}
    lines.append(
        f"  one seed, one step of every baseline, answers of {TOKENS} tokens, {SAMPLES} samples"
    )
    return profile | {
        "gpu": 0,
        "methods": methods,
        "hyper": hyper,
        "seeds": profile["seeds"][:1],
        "evaluation": profile["evaluation"] | {"max_new_tokens": TOKENS},
        "notebooks": profile["notebooks"] | {"06_audit": audit | {"sampling": sampling}},
    }, lines


def free_memory() -> float:
    """Bytes that a training may take here: of the largest GPU, else of the memory that is free."""
    return preflight.largest_gpu() * 1e9 or float(psutil.virtual_memory().available)


def write_rows(folder: Path) -> None:
    """Write the first rows of every set of the built-in world, as JSON lines in TOFU's files."""
    for name, rows in world(AUTHORS, QUESTIONS).items():
        with atomic_write(folder / f"{name}.json") as handle:
            handle.writelines(json.dumps(row) + "\n" for row in rows[:ROWS])


def write_checkpoint(folder: Path, config: Mapping[str, Any], seed: int, shared: Path) -> None:
    """Write a folder as the Hub has it: config, generation config, tokenizer and safetensors.

    Weights are drawn shard by shard, so that no more than one is in memory. All but the final
    norm's are those of the folder `shared`, as links to the same files. The tokenizer is a copy.

    Args:
        folder: where to write, unless it is complete already.
        config: what config.json says.
        seed: of the final norm's weights; seed 0 draws all others too.
        shared: the folder of seed 0.
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
    dtype = getattr(torch, config["torch_dtype"])
    parts = [[name for name in part if name != NORM] for part in shards(shapes)] + [[NORM]]
    check_room(folder, 0 if seed else sum(shape.numel() for shape in shapes.values()) * 2)
    where: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        where |= dict.fromkeys(names, file)
        (folder / file).unlink(missing_ok=True)
        if seed and names != [NORM]:
            os.link(shared / file, folder / file)
            continue
        draw = torch.Generator().manual_seed(1000 * number + seed)
        weights = {}
        for name in names:
            noise = torch.empty(shapes[name], dtype=dtype).normal_(generator=draw)
            scale = config["initializer_range"]
            weights[name] = noise.mul_(scale).add_(1) if "norm" in name else noise.mul_(scale)
        save_file(weights, folder / file, metadata={"format": "pt"})
    total = sum(shape.numel() for shape in shapes.values()) * dtype.itemsize
    index = {"metadata": {"total_size": total}, "weight_map": where}
    write_json(folder / "model.safetensors.index.json", index)
    write_json(folder / MAKING, {"weights": "random", "seed": seed})


def shards(shapes: Mapping[str, Any]) -> list[list[str]]:
    """Names of weights in files of at most `SHARD` bytes, in the model's order."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        size += 2 * shape.numel()
        if size > SHARD and parts[-1]:
            parts.append([])
            size = 2 * shape.numel()
        parts[-1].append(name)
    return parts


def check_room(folder: Path, needed: float) -> None:
    """UserError where the disk has no room for so many bytes."""
    free = psutil.disk_usage(str(folder)).free
    if free < needed:
        raise UserError(
            f"{folder}: {needed / 1e9:.0f} GB of weights do not fit the disk's"
            f" {free / 1e9:.0f}; set T3_CACHE"
        )


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
