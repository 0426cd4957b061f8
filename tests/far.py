"""Imitate two devices on a CPU, far:0 and far:1, and run T3 on a base that is spread over both.

    python tests/far.py MODEL ROWS

A tensor of a far device is computed on the CPU, and an operation on tensors of two devices is an
error, as it is with two GPUs. The last lines say whether T3 gave the same features, text and scores
with the whole base on far:0 and with half of it on far:1. To be run in a process of its own: torch
can have such devices only once, and keeps them.
"""

import sys

import accelerate
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import AutoModelForCausalLM

from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.core.models import load_model
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import data as tofu
from t3lib.tofu.evaluation import Scoring, score

aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}  # what may name two devices
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
HALVES = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1,
          "model.norm": 1, "lm_head": 1}  # fmt: skip


class Far(torch.Tensor):
    """A tensor on a far device. raw: its values, on the CPU."""

    @staticmethod
    def __new__(cls, raw, device):
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, device=device,
        )  # fmt: skip

    def __init__(self, raw, device):
        self.raw = bare(raw)

    def tolist(self):
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})


class FarDevices(TorchDispatchMode):
    """Sees what makes a tensor on a far device of none."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})


def bare(value):
    return value.raw if isinstance(value, Far) else value


def compute(function, args, kwargs):
    """Do an operation on the CPU; its result lies where the arguments lie, or where it is moved."""
    if torch.is_inference_mode_enabled():  # where `to(device)` and the like arrive whole
        made = function.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    # As on a GPU, a number of the CPU may meet anything.
    places = {x.device for x in tensors if isinstance(x, Far) or x.dim()}
    if function in INDEXED:  # with indices of the CPU too
        places -= {torch.device("cpu")}
    if function not in MOVES and len(places) > 1:
        raise RuntimeError(f"{function}: tensors on {[x.device for x in tensors]}")
    far = [x.device for x in tensors if isinstance(x, Far)]
    where = kwargs.get("device") or (far[0] if far else torch.device("cpu"))
    if function is aten.copy_.default:
        where = args[0].device
    if "device" in kwargs:
        kwargs = kwargs | {"device": torch.device("cpu")}
    made = function(*tree_map(bare, args), **tree_map(bare, kwargs))
    known = {id(x.raw): x for x in tensors if isinstance(x, Far)}  # what is changed in place

    def placed(value):
        if not isinstance(value, torch.Tensor) or where.type != "far":
            return value
        return known[id(value)] if id(value) in known else Far(value, where)

    return tree_map(placed, made)


def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return Far(torch.empty_strided(size, stride, dtype=dtype), device)


def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return Far(torch.empty(size, dtype=dtype), device)


def copy_from(source, target, non_blocking=False):
    bare(target).copy_(bare(source))
    return target


def main(place: str, data: str) -> None:
    _setup_privateuseone_for_python_backend("far")
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    rows = [tofu.load_rows(data, name)[:2] for name in ("forget10", "retain90")]
    sets, short = (
        {"forget": tofu.load_rows(data, "forget10_perturbed")[:1]},
        Scoring(max_new_tokens=3),
    )
    tokenizer = load_model(place)[1]
    found: dict[str, list] = {"features": [], "text": [], "scores": []}
    with FarDevices():
        for second in (0, 1):
            base = AutoModelForCausalLM.from_pretrained(place, dtype="auto").eval()
            where = {name: f"far:{second * half}" for name, half in HALVES.items()}
            base = accelerate.dispatch_model(base, where, main_device="far:0", force_hooks=True)
            print(sorted({str(weight.device) for weight in base.parameters()}))
            features = extract_features(base, tokenizer, *rows)
            found["features"].append(features.x.cpu().tolist())
            head = fit_head(features, vocab_size=base.config.vocab_size, epochs=1, warmup_epochs=0)
            tilted = T3ForCausalLM(base, head.to("far:0"), 2.5)
            ids = torch.arange(12).view(2, 6).to("far:0")
            how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 3}
            found["text"].append(tilted.generate(ids, **how).tolist())
            try:
                found["scores"].append(score(base, tokenizer, sets, short, [(head, 2.5)]))
            except RuntimeError as error:
                print("scores:", error)
        try:
            base.lm_head.weight @ base.model.embed_tokens.weight[0]
        except RuntimeError:
            print("two devices do not meet")
    for name, results in found.items():
        print(name, "equal" if len(results) == 2 and results[0] == results[1] else "differ")


if __name__ == "__main__":
    main(*sys.argv[1:])
