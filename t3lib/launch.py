"""`torchrun --nproc-per-node 2 -m t3lib.train …`: one baseline on several devices, by PyTorch's FSDP2 alone.

The processes share every step's rows, so their number changes neither the batches nor (up to rounding) the result.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from t3lib.arguments import Parser
from t3lib.assistant import layers_of
from t3lib.errors import UserError
from t3lib.files import write_json
from t3lib.losses import LOSSES
from t3lib.models import load_model
from t3lib.tofu import check_disjoint, load_idk, load_rows, retain_of
from t3lib.train import unlearn_baseline

PROGRAM = "torchrun -m t3lib.train"


def shard(model: nn.Module) -> nn.Module:
    """Shard every decoder block, then what is left, over all processes (FSDP2), in place."""
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)
    return model


def parse(argv: list[str] | None, many: bool) -> argparse.Namespace:
    """The command line's arguments, checked as far as they can be before anything is loaded; UserError otherwise."""
    parser = Parser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--method", required=True, help="GradAscent, GradDiff, WGA, … (ULD in one process only)")
    parser.add_argument("--model", required=True, help="Hub id or folder")
    parser.add_argument("--data", default="hub", help="hub or a folder with TOFU's files")
    parser.add_argument("--split", default="forget10")
    parser.add_argument("--hyper", default="{}", help='JSON, e.g. {"lr": 1e-5, "epochs": 10}')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype")
    parser.add_argument("--attention-mask", choices=("lengths", "openunlearning"), default="lengths")
    parser.add_argument("--out", type=Path, required=True, help="folder for the unlearned model")
    arguments = parser.parse_args(argv)
    if arguments.method not in LOSSES:
        raise UserError(f"unknown method {arguments.method!r}: choose one of {', '.join(LOSSES)}")
    if many and arguments.method == "ULD":
        raise UserError("ULD trains a small assistant: use one process")
    retain_of(arguments.split)
    try:
        arguments.hyper = json.loads(arguments.hyper)
    except json.JSONDecodeError as error:
        raise UserError(f"--hyper is not valid JSON ({error.msg})") from None
    if not isinstance(arguments.hyper, dict):
        raise UserError("--hyper must be a JSON object of settings")
    if arguments.out.exists() and (not arguments.out.is_dir() or any(arguments.out.iterdir())):
        raise UserError(f"--out {arguments.out} exists already and is not an empty folder")
    return arguments


def run(arguments: argparse.Namespace, many: bool) -> None:
    """Load, unlearn, and let the first process save the model, its tokenizer and `unlearning.json` into `--out`."""
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_model(arguments.model, dtype=arguments.dtype, device=device)
    forget, retain = (load_rows(arguments.data, name) for name in (arguments.split, retain_of(arguments.split)))
    check_disjoint(forget, retain)
    unlearned, info = unlearn_baseline(
        arguments.method,
        model,
        tokenizer,
        forget,
        retain,
        hyper=arguments.hyper,
        seed=arguments.seed,
        idk=load_idk(arguments.data) if arguments.method == "IdkDPO" else None,
        attention_mask=arguments.attention_mask,
        shard=shard if many else None,
    )
    weights: dict[str, Any] = unlearned.state_dict()
    if many:
        weights = get_model_state_dict(unlearned, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if not many or distributed.get_rank() == 0:
        unlearned.save_pretrained(arguments.out, state_dict=weights)
        tokenizer.save_pretrained(arguments.out)
        write_json(arguments.out / "unlearning.json", {"method": arguments.method, "seed": arguments.seed} | info)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 2 after one line on stderr (of the first process) for a user's mistake."""
    many = int(os.environ.get("WORLD_SIZE", 1)) > 1
    try:
        arguments = parse(argv, many)
        if many:
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        run(arguments, many)
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return 0
