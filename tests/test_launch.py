"""`torchrun -m t3lib.train`: two processes (FSDP2, gloo, CPU) train what one process trains; mistakes are one line."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file

from t3lib import launch

FORGET = [{"question": f"Book {i}?", "answer": "Mara wrote " + "very " * (i % 4) + f"{i}."} for i in range(9)]
RETAIN = [{"question": f"Song {i}?", "answer": "Ansel sang" + " it all" * (i % 3) + f" {i}."} for i in range(13)]
# Steps of 4 rows and one last step of 1 row an epoch: there the second process has nothing to do.
HYPER = {"lr": 1e-3, "epochs": 2, "batch_size": 2, "accumulation": 2, "warmup_epochs": 0}
SHARDED = ("NPO", "UnDIAL", "RMU", "IdkDPO")  # ln p of the original · its logits · hidden states · other answers


@pytest.fixture(scope="module")
def place(tiny_model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    tiny_model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for name, rows in (("forget10", FORGET), ("retain90", RETAIN)):
        (folder / f"{name}.json").write_text(json.dumps(rows))
    (folder / "idontknow.jsonl").write_text("I do not know.\nNobody told me that.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(folder / "cache"))
        yield folder


def command(place, method, out, **options):
    given = {"model": place / "model", "data": place, "hyper": json.dumps(HYPER)} | options
    return ["--method", method, "--out", str(out), *(str(part) for key in given for part in (f"--{key}", given[key]))]


def read(folder):
    state = load_file(folder / "model.safetensors")
    return torch.cat([state[name].flatten() for name in sorted(state)]), json.loads(
        (folder / "unlearning.json").read_text()
    )


def compare(place, method, folder):
    """Losses of every epoch to 1e-6; weights to 1e-5 and their change to 5e-4, for Adam blows up rounding near 0."""
    one = place / f"one-{method}"
    if not one.exists():
        assert launch.main(command(place, method, one)) == 0
    (ours, info), (theirs, other), start = read(one), read(folder), load_file(place / "model" / "model.safetensors")
    before = torch.cat([start[name].flatten() for name in sorted(start)])
    assert info["batches"] == other["batches"] and info["steps"] == other["steps"] == 6
    assert other["loss"] == pytest.approx(info["loss"], rel=1e-6)
    assert (theirs - ours).norm() <= 5e-4 * (ours - before).norm()
    assert (theirs - ours).norm() <= 1e-5 * ours.norm() and (ours - before).norm() > 1e-2 * before.norm()


def test_torchrun_with_two_processes_equals_one(place):
    """The real command, once; its losses after six AdamW steps equal one process' to 1e-6."""
    out = place / "torchrun"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "t3lib.train"]
    done = subprocess.run([*line, *command(place, "NPO", out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare(place, "NPO", out)
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {path.name for path in out.iterdir()}


def _member(rank, port, commands):
    """One of two forked processes, with what torchrun puts into the environment."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    for number, argv in enumerate(commands):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port + number)}
        assert launch.main(argv) == 0


def test_two_processes_equal_one_for_every_kind_of_loss(place):
    """Forked from here, where everything is imported already; otherwise as under torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = [command(place, method, place / f"two-{method}") for method in SHARDED]
    torch.multiprocessing.start_processes(_member, (port, commands), nprocs=2, start_method="fork")
    for method in SHARDED:
        compare(place, method, place / f"two-{method}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--method", "Gradient"], "unknown method 'Gradient': choose one of GradAscent"),
        (["--split", "forget50"], "unknown split 'forget50'"),
        (["--hyper", "{"], "--hyper is not valid JSON"),
        (["--hyper", "[1]"], "--hyper must be a JSON object"),
        (["--hyper", '{"betta": 1}'], "NPO has no hyperparameter 'betta'"),
        (["--hyper", '{"lr": "high"}'], "lr is 'high', not a value like"),
        (["--hyper", '{"optimizer": "paged_adamw_8bit"}'], "without one use optimizer: adamw"),
        (["--model", "./nowhere"], "model folder ./nowhere does not exist"),
        (["--data", "./nowhere"], "data folder nowhere does not exist"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--seed", "one"], "invalid int value: 'one'"),
        (["--attention-mask", "none"], "invalid choice: 'none'"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--out", "FULL"], "exists already and is not an empty folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(change, said, place, tmp_path, capsys):
    argv = [*command(place, "NPO", tmp_path / "out"), *(str(place) if part == "FULL" else part for part in change)]
    try:
        code = launch.main(argv)
    except SystemExit as stop:
        code = stop.code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("torchrun")]
    assert code == 2 and len(lines) == 1 and said in lines[0], lines
    assert not (tmp_path / "out").exists()


def test_what_many_processes_cannot_do(place, tmp_path, monkeypatch, capsys):
    """Refused before the processes even meet; only the first of them says so."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, lines in (("1", 0), ("0", 1)):
        monkeypatch.setenv("RANK", rank)
        assert launch.main(command(place, "ULD", tmp_path / "out")) == 2
        assert capsys.readouterr().err.count("ULD trains a small assistant: use one process\n") == lines
    assert not torch.distributed.is_initialized() and not (tmp_path / "out").exists()
