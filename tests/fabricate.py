"""Invented run files of the contract's schema, with numbers from a seed. Defaults of a profile, and
what a head says of its making.
"""

import numpy as np

from t3lab.names import SPLITS
from t3lib.baselines.losses import METHODS
from t3lib.tofu.metrics import METRICS, UTILITY, forget_quality, model_utility, mu_rouge

ROWS = {"forget05": 40, "forget10": 80, "retain": 20, "ra": 12, "wf": 12}
TEMPERATURES = (1.0, 1.5, 2.0, 2.5, 3.0)
SHIFT = dict(zip(METHODS, (1.6, 0.05, *[1.5, 1.0, 0.7, 0.6, 0.9, 0.5, 0.7, 0.45, 0.3, 0.25] * 2)))
SHIFT_AT = dict(zip(TEMPERATURES, (1.3, 0.8, 0.3, 0.1, 0.5)))
MARKUP = "<script>alert('x')</script> & <b>bold</b>"

PROFILE_DEFAULTS = """data: builtin
methods: [Original, NPO, T3]
splits: [forget05, forget10]
seeds: [1, 2]
temperatures: [1.0, 2.0]
search_seeds: [1, 2]
stage: {authors: 20, lr: 0.005}
models: {}
evaluation: {attention_mask: lengths, truth_ratio: geometric, max_new_tokens: 200}
hyper: {NPO: {lr: 1e-5, beta: 0.1}, T3: {lr: 5e-4, temperature: 2.5}}
grids: {}
notebooks: {}
"""
INFO = {  # what a head says of its making
    "base_model": "org/base",
    "base_revision": "abc123",
    "tokenizer_hash": "0123",
    "split": "forget10",
    "seed": 4,
    "hyperparameters": {"lr": 5e-4, "epochs": 100},
    "metrics": {"fq": 0.91, "mu_rouge": 0.62},
}


def fabricate(method: str, split: str, T: float | None, seed: int, *, failed: bool = False) -> dict:
    """One complete run; its Forget Quality and means are really those of its invented rows."""
    rng = np.random.default_rng(
        [METHODS.index(method), SPLITS.index(split), int((T or 0) * 10), seed]
    )
    n = ROWS[split]
    reference = np.exp(np.random.default_rng(n).normal(0, 0.4, n))
    shift = SHIFT[method] if T is None else SHIFT_AT[T]
    ratios = reference * np.exp(-shift + rng.normal(0, 0.15, n) + rng.normal(0, 0.05))
    quality = (
        {}
        if method == "Original"
        else {"retain": 0.25 * shift, "ra": 0.2 * shift, "wf": 0.1 * shift}
    )
    records, scores = {}, {}
    for name in ("forget", "retain", "ra", "wf"):
        size = ROWS[split if name == "forget" else name]
        level = 0.97 - quality.get(name, 0.0)
        rouge = np.clip(rng.normal(level, 0.15, size), 0, 1)
        prob = np.clip(rng.normal(level - 0.1, 0.1, size), 0, 1)
        text = (
            {"generation": MARKUP if name == "forget" else f"{method} says so."}
            if seed <= 1
            else {}
        )
        records[name] = [{"prob": p, "rouge": r, **text} for p, r in zip(prob, rouge)]
        scores |= {
            f"{name}_prob": prob.mean(),
            f"{name}_rouge": rouge.mean(),
            f"{name}_tr": rng.uniform(0.4, 0.7),
        }
    components = {name: float(scores[name]) for name in UTILITY}
    fq, ks_statistic = forget_quality(ratios, reference)
    metrics = components | {
        "fq": fq,
        "ks_statistic": ks_statistic,
        "mu_rouge": mu_rouge(components),
        "mu": model_utility(components),
        "forget_prob": scores["forget_prob"],
        "forget_rouge": scores["forget_rouge"],
    }
    run = {
        "method": method,
        "split": split,
        "T": T,
        "w": 1.0 if method == "T3" else None,
        "seed": seed,
        "status": "ok",
        "error": None,
        "hyper": {"lr": 0.005},
        "trainable": {"Original": 0, "ULD": 40000, "T3": 20 * (128 + 1000)}.get(method, 560000),
        "epochs": 10,
        "seconds": {
            "load": 1.0,
            "features": 2.0 if seed == 1 else 0.0,
            "train": 3.0 + seed,
            "evaluate": 4.0,
        },
        "peak_memory_bytes": 900_000_000,
        "metrics": dict.fromkeys(METRICS, 0.5) | metrics,
        "records": records,
        "code": "0" * 16,
        "truth_ratio": {"forget": ratios, "reference": reference, "retain": [], "ra": [], "wf": []},
        "parameters": {"data": "builtin", "seeds": [1, 2, 3]},
        "provenance": {"git_commit": None, "device": "cpu"},
    }
    if failed:
        run |= {
            "status": "failed",
            "error": "the loss became NaN",
            "metrics": {},
            "records": {},
            "truth_ratio": {},
        }
    return run


def fabricate_all(seeds=(1, 2, 3), methods=METHODS) -> list[dict]:
    """Every method x split x seed, T3 at five temperatures; Original and Retrained once, as they
    have no seeds.
    """
    runs = []
    for split in SPLITS:
        for method in methods:
            own = {"Original": (0,), "Retrained": (1,)}.get(method, seeds)
            for T in TEMPERATURES if method == "T3" else (None,):
                runs += [fabricate(method, split, T, seed) for seed in own]
    return runs
