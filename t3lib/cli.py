"""The thin command `t3`: arguments in, library call, one line out. A user's mistake is one line and exit code 2."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t3lib._version import __version__
from t3lib.arguments import Parser
from t3lib.errors import UserError
from t3lib.settings import CHOICES, TEMPERATURE, FitSettings, check_temperature


def main(argv: Sequence[str] | None = None) -> int:
    """Run `t3` with the given arguments; returns the exit code (0 done, 1 a run failed, 2 bad input)."""
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except UserError as error:
        print(f"t3 {args.verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"t3 {args.verb}: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def parser() -> Parser:
    """All verbs and their options."""
    top = Parser(prog="t3", description="Temper-Then-Tilt unlearning: reproduce the paper, unlearn your own model.")
    top.add_argument("--version", action="version", version=f"t3 {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    p = verbs.add_parser("reproduce", help="run the notebooks of a profile and make every table and figure")
    p.add_argument("--profile", default="cpu", help="name in notebooks/profiles or a YAML file (default cpu)")
    p.add_argument("--data", help="builtin, hub or a folder with TOFU's files (default: the profile's)")
    p.add_argument("--only", type=names, help="notebooks to run, e.g. 02_tofu_unlearning,05_paper_tables")
    p.add_argument("--methods", type=names, help="methods to run, e.g. T3,NPO (default: the profile's)")
    p.add_argument("--splits", type=names, help="forget splits, e.g. forget10 (default: the profile's)")
    p.add_argument("--seeds", type=whole_numbers, help="seeds, e.g. 1,2,3 (default: the profile's)")
    p.add_argument("--out", type=Path, help="results folder (default results/PROFILE)")
    where = p.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, help="worker processes on this machine (default: one a core, at most 4)")
    where.add_argument("--scheduler", help="address of a running Dask scheduler, e.g. tcp://host:8786")
    where.add_argument("--slurm", type=Path, help="YAML of dask-jobqueue SLURMCluster options")
    p.add_argument("--fresh", action="store_true", help="ignore what is cached and run everything again")
    p.add_argument("--dry-run", action="store_true", help="print what is cached and what would run, and stop")
    p.set_defaults(run=run_reproduce)

    p = verbs.add_parser("unlearn", help="train a T3 head that makes a model forget some rows")
    model_options(p)
    data_options(p)
    p.add_argument("--forget", type=Path, help="JSON lines with question and answer to forget")
    p.add_argument("--retain", type=Path, help="JSON lines with question and answer to keep")
    p.add_argument("--out", type=Path, required=True, help="folder for the head")
    p.add_argument(
        "--temperature", type=float, default=TEMPERATURE, help="T >= 1 the head is used with (default %(default)s)"
    )
    fit = FitSettings()
    p.add_argument("--rank", type=int, default=fit.rank, help="rank h of the head (default %(default)s)")
    p.add_argument("--lr", type=float, default=fit.lr, help="learning rate (default %(default)s)")
    p.add_argument("--epochs", type=int, default=fit.epochs, help="passes over the forget rows (default %(default)s)")
    p.add_argument(
        "--warmup-epochs", type=int, default=fit.warmup_epochs, help="epochs of linear warm-up (default %(default)s)"
    )
    p.add_argument(
        "--batch-size", type=int, default=fit.batch_size, help="forget-retain pairs a step (default %(default)s)"
    )
    p.add_argument("--weight-decay", type=float, default=fit.weight_decay, help="lambda (default %(default)s)")
    p.add_argument("--decay", choices=CHOICES["decay"], default=fit.decay, help="decoupled or in the loss")
    p.add_argument("--init-b", choices=CHOICES["init_b"], default=fit.init_b, help="start of B")
    p.add_argument("--prior", choices=CHOICES["prior"], default=fit.prior, help="class-imbalance correction")
    p.add_argument(
        "--seed", type=int, default=fit.seed, help="seed of the head and of the retain draws (default %(default)s)"
    )
    attention_option(p)
    p.set_defaults(run=run_unlearn)

    p = verbs.add_parser("evaluate", help="all TOFU metrics of a model, with or without a head, as JSON")
    model_options(p)
    data_options(p)
    p.add_argument("--head", type=Path, help="folder of a T3 head")
    p.add_argument("--temperature", type=temperatures, help="T or a list, e.g. 1,1.5,2 (default: the head's own)")
    p.add_argument(
        "--reference", help="retrained model (id or folder) or the JSON of its evaluation, for Forget Quality"
    )
    p.add_argument("--out", type=Path, required=True, help="JSON file to write")
    p.add_argument("--truth-ratio", choices=CHOICES["truth_ratio"], default=CHOICES["truth_ratio"][0])
    p.add_argument("--max-new-tokens", type=int, default=200)
    attention_option(p)
    p.set_defaults(run=run_evaluate)

    p = verbs.add_parser("generate", help="answers of the base and of the unlearned model, side by side")
    model_options(p)
    p.add_argument("--head", type=Path, required=True, help="folder of a T3 head")
    p.add_argument("--temperature", type=float, help="T (default: the head's own)")
    p.add_argument("--max-new-tokens", type=int, default=100)
    p.add_argument("question", nargs="+", help="one or more questions, each in quotes")
    p.set_defaults(run=run_generate)

    p = verbs.add_parser("tune", help="the paper's hyperparameter search: seeds 1 and 2, best mean Forget Quality")
    p.add_argument("--profile", default="cpu")
    p.add_argument("--data", help="builtin, hub or a folder with TOFU's files (default: the profile's)")
    p.add_argument("--split", type=names, help="forget splits (default: the profile's)")
    p.add_argument("--method", type=names, help="methods (default: all that have a grid in the profile)")
    p.set_defaults(run=run_tune)

    p = verbs.add_parser("bench", help="the cost table: parameters, training, decoding, against their lower bounds")
    p.add_argument("--shape", default="tiny", help="named shape, e.g. llama-3.1-8b")
    p.add_argument("--weights", choices=("random",), default="random", help="cost does not depend on their values")
    p.add_argument("--out", type=Path, help="folder for bench.json and the table")
    p.add_argument("--device", help="cpu, cuda, … (default: a GPU if there is one)")
    p.set_defaults(run=run_bench)
    return top


def model_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", required=True, help="Hub id, folder, or builtin:full, builtin:retain90, builtin:retain95")
    p.add_argument("--profile", default="cpu", help="whose built-in models and rows `builtin` means (default cpu)")
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the checkpoint's own")
    p.add_argument("--device", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")
    p.add_argument("--load-in", choices=("8bit", "4bit"), help="quantise the base with bitsandbytes")
    p.add_argument("--allow-sharpening", action="store_true", help="allow 0 < T < 1")


def data_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--data", help="builtin, hub or a folder with TOFU's files")
    p.add_argument("--split", choices=("forget01", "forget05", "forget10"), help="which authors are forgotten")


def attention_option(p: argparse.ArgumentParser) -> None:
    p.add_argument("--attention-mask", choices=CHOICES["attention_mask"], default=CHOICES["attention_mask"][0],
                   help="openunlearning hides end-of-turn tokens, as published numbers did")  # fmt: skip


def names(text: str) -> list[str]:
    """Comma list of names."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise argparse.ArgumentTypeError("an empty list")
    return found


def whole_numbers(text: str) -> list[int]:
    """Comma list of whole numbers: "1,2,3"."""
    try:
        return [int(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 1,2,3") from None


def temperatures(text: str) -> list[float]:
    """Comma list of temperatures: "1,1.5,2"."""
    try:
        return [float(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 1,1.5,2") from None


def run_reproduce(args: argparse.Namespace) -> int:
    from t3lib.grid.reproduce import reproduce

    keys = ("only", "methods", "splits", "seeds", "data", "out", "workers", "scheduler", "slurm", "fresh", "dry_run")
    return reproduce(args.profile, **{key: getattr(args, key) for key in keys})


def run_unlearn(args: argparse.Namespace) -> None:
    from t3lib import commands

    check_temperature(args.temperature, allow_sharpening=args.allow_sharpening)
    commands.unlearn(args)


def run_evaluate(args: argparse.Namespace) -> None:
    from t3lib import commands

    if args.temperature and not args.head:
        raise UserError("--temperature needs --head: without a head the base is evaluated as it is")
    for T in args.temperature or []:
        check_temperature(T, allow_sharpening=args.allow_sharpening)
    commands.evaluate(args)


def run_generate(args: argparse.Namespace) -> None:
    from t3lib import commands

    if args.temperature is not None:
        check_temperature(args.temperature, allow_sharpening=args.allow_sharpening)
    commands.generate(args)


def run_tune(args: argparse.Namespace) -> None:
    from t3lib import commands

    commands.tune(args)


def run_bench(args: argparse.Namespace) -> None:
    from t3lib.bench.table import bench

    bench(args.shape, out=args.out, device=args.device)


def arguments_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments as plain JSON, for provenance."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items() if key != "run"}


if __name__ == "__main__":
    sys.exit(main())
