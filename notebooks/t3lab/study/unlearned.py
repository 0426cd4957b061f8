"""Train an unlearned model, or read it from `.t3cache/unlearned` if it was trained before.

A folder there is named by a content key. It holds info.json (the cost of the training) and the
trained weights as safetensors: all weights of a baseline, its LoRA or that of ULD's assistant, or A
and B of T3's head. None of it becomes part of the results.
"""

import copy
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from t3lab.files import read_sealed
from t3lab.identity import code_key, environment, keep
from t3lab.results import peak_memory_bytes
from t3lab.study.study import Study
from t3lib.baselines.losses import settings_of
from t3lib.baselines.uld import ULDForCausalLM
from t3lib.baselines.unlearn import Task, adapter_of, unlearn_baseline
from t3lib.classifier.features import Features, extract_features
from t3lib.classifier.fit import fit_heads
from t3lib.classifier.head import T3Head
from t3lib.core.errors import Diverged, UserError
from t3lib.core.files import atomic_write, cache_dir, content_key, lock, sha256_file

INFO, WEIGHTS = "info.json", "weights.safetensors"
TENSORS = ("x", "y", "row", "s")  # of `Features`
ROOM = 10  # weights are kept if the disk has room for so many times their size
DIALS = ("temperature", "w", "gate", "tail", "untrained")  # T3's settings that are not trained
# The modules that train; what they are called with is in the key.
HEAD = ("classifier.features", "classifier.fit")
BASELINE = ("baselines.unlearn", "baselines.uld")


def unlearned_key(study: Study, method: str, settings: Mapping[str, Any], seed: int) -> str:
    """Content key of the trained weights: base, rows, settings, seed, code and environment.

    settings: of the method, where they differ from the defaults. T and w of T3 do not count,
    because they are not trained, nor do the other `DIALS`.
    """
    every = settings_of(method, settings)
    decisive = {name: value for name, value in every.items() if name not in DIALS}
    code = code_key(*(HEAD if method == "T3" else BASELINE))
    return content_key(
        [method, decisive, seed, study.task_key, code, environment(study.base.device)]
    )


def training_of(
    study: Study, method: str, settings: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Return the cost of a training; train now if the cache does not have it.

    It has hyper, seconds ("train", for a head also "features"), trainable, epochs,
    peak_memory_bytes and error, which is None unless the training diverged. UserError if t3lib
    changed on disk in the meantime, because nothing is kept then.
    """
    path = cache_dir("unlearned", unlearned_key(study, method, settings, seed)) / INFO
    if not read_sealed(path):
        with suppress(Diverged):
            if method == "T3":
                fitted(study, [(settings, seed)])
            else:
                unlearned(study, method, settings, seed)
    if info := read_sealed(path):
        return info
    raise UserError(f"{method} seed {seed}: t3lib changed while this ran; run it again")


def unlearned(study: Study, method: str, settings: Mapping[str, Any], seed: int) -> Any:
    """Return the model that a baseline trains, from the cache if it is there.

    The study's base is never changed. Diverged if the training diverges, also when it did so
    before; UserError for settings that the method does not have.
    """
    folder = cache_dir("unlearned", unlearned_key(study, method, settings, seed))
    info = read_sealed(folder / INFO) or {}
    if info.get("error"):
        raise Diverged(info["error"])

    trained, log = _kept(study, method, folder, info, seed), info
    if trained is None:
        began = time.perf_counter()
        lora = method == "ULD" or settings_of(method, settings)["lora_rank"]
        model = study.base if lora else copy.deepcopy(study.base)
        mask = study.scoring.attention_mask

        task = Task(study.forget, study.retain, study.idk, study.base, mask)
        try:
            trained, log = unlearn_baseline(
                method, model, study.tokenizer, task, settings=settings, seed=seed
            )
        except Diverged as error:
            log = {"hyper": dict(settings), "trainable": 0, "epochs": None, "error": str(error)}
            _note(folder, log, {"train": time.perf_counter() - began})
            raise

        _keep(folder, trained)
        _note(folder, log, {"train": time.perf_counter() - began})

    # ULD trains an assistant f; the method's model is p / f^strength.
    return (
        ULDForCausalLM(study.base, trained, log["hyper"]["T"], log["hyper"]["filter"])
        if method == "ULD"
        else trained
    )


def drop_weights(study: Study, method: str, settings: Mapping[str, Any], seed: int) -> None:
    """Remove an unlearned model's weights from the cache; its training cost stays known."""
    (cache_dir("unlearned", unlearned_key(study, method, settings, seed)) / WEIGHTS).unlink(
        missing_ok=True
    )


def t3_features(study: Study) -> Features:
    """Return prefix-mean features of all forget and retain rows of a study, cached on disk.

    A cached file is one safetensors file with the tensors of `Features`, and a sealed note beside
    it with its checksum and the seconds that it took.
    """
    note = _features_note(study)
    path = note.with_suffix(".safetensors")
    with lock(note.with_suffix(".lock")):  # another job of this split may be extracting them
        known = read_sealed(note)
        if known and path.is_file() and sha256_file(path) == known["features"]:
            return Features(**load_file(path), device=str(study.base.device))

        began = time.perf_counter()
        features = extract_features(
            study.base,
            study.tokenizer,
            study.forget,
            study.retain,
            attention_mask=study.scoring.attention_mask,
        )
        seconds = time.perf_counter() - began
        with atomic_write(path, "wb") as handle:
            save_file({name: getattr(features, name) for name in TENSORS}, handle.name)
        keep(note, {"seconds": seconds, "features": sha256_file(path)})
    return features


def features_seconds(study: Study) -> float:
    """Return the seconds that extracting a study's features took; 0 if that is not known."""
    return (read_sealed(_features_note(study)) or {"seconds": 0.0})["seconds"]


def _features_note(study: Study) -> Path:
    """Return the cache's note on a study's features, named by base, rows, mask and code."""
    made_by = [code_key("classifier.features"), environment(study.base.device)]
    return cache_dir("features") / f"{content_key([study.task_key, made_by])}.json"


def head_settings(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the settings of T3 that `fit_heads` takes, which are all but `DIALS`."""
    every = settings_of("T3", settings)
    return {name: value for name, value in every.items() if name not in DIALS} | {"seed": seed}


def fitted(study: Study, wanted: Sequence[tuple[Mapping[str, Any], int]]) -> list[T3Head]:
    """Return T3's head for each (settings, seed), from the cache, or fitted and timed alone.

    Diverged if one of them diverges, also when it did so before.
    """
    features = cache(lambda: (t3_features(study), features_seconds(study)))
    heads: dict[str, T3Head] = {}
    keys = [unlearned_key(study, "T3", settings, seed) for settings, seed in wanted]
    for key, (settings, seed) in zip(keys, wanted):
        if key not in heads:
            folder = cache_dir("unlearned", key)
            heads[key] = _kept_head(folder) or _fit(
                study, head_settings(settings, seed), folder, *features()
            )
    return [heads[key] for key in keys]


def _kept_head(folder: Path) -> T3Head | None:
    """Return a cached head, None if it is missing or damaged; Diverged if its training diverged."""
    info = read_sealed(folder / INFO) or {}
    if info.get("error"):
        raise Diverged(info["error"])
    try:
        return T3Head.from_pretrained(folder) if info else None
    except UserError:  # damaged
        return None


def _fit(
    study: Study, settings: dict[str, Any], folder: Path, features: Features, extraction: float
) -> T3Head:
    """Fit one head; write it with its training cost, or the cost and the error if it diverges.

    extraction: seconds of the features.
    """
    began = time.perf_counter()
    size = study.base.get_output_embeddings().weight.shape[0]
    try:
        [head] = fit_heads(features, [settings], vocab_size=size)
    except Diverged as error:
        log = {"hyper": settings, "trainable": 0, "epochs": None, "error": str(error)}
        _note(folder, log, {"features": extraction, "train": time.perf_counter() - began})
        raise
    head.save_pretrained(folder)
    log = {"hyper": settings, "trainable": head.num_parameters, "epochs": settings["epochs"]}
    _note(folder, log, {"features": extraction, "train": time.perf_counter() - began})
    return head


def _note(folder: Path, log: Mapping[str, Any], seconds: dict[str, float]) -> None:
    """Write info.json.

    It is the last file of a folder, so its presence means that the folder is complete.
    """
    info = {name: log.get(name) for name in ("hyper", "trainable", "epochs", "error")} | {
        "seconds": seconds
    }
    weights = sha256_file(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else None
    keep(folder / INFO, info | {"peak_memory_bytes": peak_memory_bytes(), "weights": weights})


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _keep(folder: Path, trained: nn.Module) -> None:
    """Write the weights if the disk has room for `ROOM` times their size."""
    weights = {
        name: weight.detach().cpu().contiguous()
        for name, weight in _trained_weights(trained).items()
    }
    if sum(weight.nbytes for weight in weights.values()) * ROOM < shutil.disk_usage(folder).free:
        with atomic_write(folder / WEIGHTS, "wb") as handle:
            save_file(weights, handle.name)


def _kept(study: Study, method: str, folder: Path, info: Mapping[str, Any], seed: int) -> Any:
    """Return the network as it was trained, None if its weights are missing or damaged."""
    path = folder / WEIGHTS
    if not info or not path.is_file() or sha256_file(path) != info["weights"]:
        return None
    trained = adapter_of(method, study.base, info["hyper"], seed)
    if trained is None:
        trained = copy.deepcopy(study.base).float()  # weights were trained in float32
    trained.eval()
    weights = load_file(path)
    with torch.no_grad():
        for name, weight in _trained_weights(trained).items():
            weight.copy_(weights[name])
    return trained
