"""The command `t3`: parse arguments, call the library, print a line.

A user's mistake gives one line and exit code 2. Torch is imported only when a command needs it.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn, TypeVar

from t3lib import __version__
from t3lib.core.errors import UserError, printable
from t3lib.core.settings import CHOICES, TEMPERATURE, FitSettings, check_temperature

Value = TypeVar("Value", str, int, float)
FILES = (
    *("forget", "retain", "other", "unseen", "rewordings"),
    *("holdout", "holdout_forget", "holdout_retain"),
)  # options that take a file of rows or a Hub data set
UNSEEN = "rows that are like those to forget but that the model never saw"
FEW = 40  # t3 compare lists at most so many cells without --cells
EXIT_CODES = (
    "exit codes: 0 done; 1 a job failed, or results differ; 2 wrong input; "
    "3 a report says that rows leak or that rows to keep changed; 130 interrupted"
)


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports a wrong argument in one line, without a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        print(f"{self.prog}: {printable(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `t3` with these arguments, and return the exit code (`EXIT_CODES`).

    argv: by default the arguments of the process.
    """
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(message, 2000)}\n"
    args, unknown = parser().parse_known_args(argv)
    if unknown:
        args.parser.error(f"unknown arguments: {' '.join(unknown)}")
    try:
        return args.run(args) or 0
    except (UserError, ConnectionError) as error:
        print(f"t3 {args.verb}: {printable(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"t3 {args.verb}: interrupted; run the same command again to continue", file=sys.stderr
        )
        return 130


def parser() -> Parser:
    """Build the parser with all verbs and their options."""
    top = Parser(
        prog="t3",
        description=(
            "Temper-Then-Tilt unlearning. To reproduce the paper: reproduce, compare, page, tune,"
            " bench. To unlearn and check your own model: unlearn, generate, evaluate, audit."
        ),
        epilog=EXIT_CODES,
    )
    top.add_argument("--version", action="version", version=f"t3 {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(
        name: str, help: str, example: str, run: Callable[[argparse.Namespace], int | None]
    ) -> Parser:
        p = verbs.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=f"example: t3 {name} {example}",
        )
        p.set_defaults(run=run, parser=p)
        return p

    p = verb("reproduce", "run the notebooks of a profile, and write its tables, figures and page",
             "--profile smoke --workers 2", reproduce)  # fmt: skip
    p.add_argument(
        "--profile",
        default="cpu",
        help="name in notebooks/profiles or a YAML file (default %(default)s)",
    )
    p.add_argument(
        "--data", help="builtin, hub or a folder with TOFU's files (default: the profile's)"
    )
    p.add_argument(
        "--only",
        type=names,
        help="run only these notebooks, e.g. 02_tofu_unlearning,05_paper_tables",
    )
    p.add_argument(
        "--methods", type=names, help="run only these methods, e.g. T3,NPO (default: the profile's)"
    )
    p.add_argument(
        "--splits", type=names, help="forget splits, e.g. forget10 (default: the profile's)"
    )
    p.add_argument("--seeds", type=whole_numbers, help="seeds, e.g. 1,2,3 (default: the profile's)")
    p.add_argument(
        "--out", type=Path, help="results folder (default out/PROFILE, which git ignores)"
    )
    where = p.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        type=int,
        help="worker processes on this machine (default: one for each GPU or physical core)",
    )
    where.add_argument(
        "--scheduler", help="address of a running Dask scheduler, e.g. tls://host:8786"
    )
    where.add_argument(
        "--slurm", type=Path, help="YAML file with options of dask-jobqueue (jobqueue.slurm)"
    )
    p.add_argument("--fresh", action="store_true", help="ignore the cache and run everything again")
    p.add_argument(
        "--dry-run",
        action="store_true",
        help="print what is cached, what would run and how long it would take",
    )
    p.add_argument(
        "--rehearse",
        metavar="SHAPE",
        nargs="?",
        const="",
        help="try every step with random weights and 8 rows in each set; SHAPE: a smaller model",
    )
    p.add_argument(
        "--steps",
        type=names,
        help="with --rehearse: measure these steps alone, e.g. '8bit,t3 generate,one step of NPO'",
    )

    p = verb(
        "unlearn",
        "train a T3 head that makes a model forget some rows, and report how well it works",
        # fmt: skip
        "--model DIR --forget forget.jsonl --retain retain.jsonl --out head",
        command,
    )
    model_options(p)
    split_options(p)
    rows = own_rows_options(p)
    rows.add_argument("--unseen", metavar="FILE", help=UNSEEN)
    rows.add_argument(
        "--holdout-forget",
        metavar="FILE",
        help="judge by these rows instead of a fifth of --forget",
    )
    rows.add_argument(
        "--holdout-retain",
        metavar="FILE",
        help="judge by these rows instead of a fifth of --retain",
    )
    rows.add_argument(
        "--steps", type=int, help="optimiser steps in training the head (default 1000)"
    )
    p.add_argument(
        "--out", type=Path, required=True, help="folder for the head and, with own rows, the report"
    )
    p.add_argument("--overwrite", action="store_true", help="replace the head in --out")
    p.add_argument(
        "--temperature",
        type=temperature,
        help=f"temperature T, at least 1 (default {TEMPERATURE}; own rows: auto, which chooses it)",
    )
    p.add_argument(
        "-w",
        "--strength",
        type=float,
        help="strength w of the classifier, f^w (default 1; own rows: chosen)",
    )
    head, fit = p.add_argument_group("fitting the head"), FitSettings()
    for flag, default, help in (
        ("--rank", fit.rank, "rank h of the head (default {:g})"),
        ("--lr", fit.lr, "learning rate (default {:g}; own rows: the best of five)"),
        (
            "--epochs",
            fit.epochs,
            "passes over the rows to forget (default {:g}; own rows: --steps counts)",
        ),
        (
            "--batch-size",
            fit.batch_size,
            "pairs of a row to forget and one to keep in a step (default {:g})",
        ),
        ("--weight-decay", fit.weight_decay, "weight decay lambda (default {:g})"),
        ("--seed", fit.seed, "seed of everything random (default {:g})"),
    ):
        head.add_argument(flag, type=type(default), help=help.format(default))
    head.add_argument(
        "--warmup-epochs", type=float, help="epochs of linear warm-up (default: a quarter of all)"
    )
    head.add_argument(
        "--decay",
        choices=CHOICES["decay"],
        help="weight decay decoupled (adamw) or in the loss (l2)",
    )
    head.add_argument(
        "--init-b",
        choices=CHOICES["init_b"],
        help="initial values of the matrix B: random (kaiming) or zero (own rows: zero)",
    )
    head.add_argument(
        "--prior",
        choices=CHOICES["prior"],
        help="share of rows to forget that f assumes: a half (balanced) or their true share"
        " (population)",
    )

    p = verb(
        "evaluate",
        "measure a model with or without a head: TOFU's metrics, or a report on own rows",
        # fmt: skip
        "--model builtin:full --head head --split forget10 --out report.json",
        command,
    )
    model_options(p)
    split_options(p)
    rows = own_rows_options(p)
    rows.add_argument("--holdout", metavar="FILE", help="rows to keep that no head was fitted on")
    rows.add_argument("--unseen", metavar="FILE", help=UNSEEN)
    rows.add_argument(
        "--overwrite", action="store_true", help="allow a report in a folder that holds a head"
    )
    head_options(p)
    p.add_argument(
        "--head", help="folder of a T3 head; own rows: several in a comma list are combined"
    )
    p.add_argument(
        "--temperature",
        type=numbers,
        help="T; for a split also a list, e.g. 1,1.5,2 (default: the head's own)",
    )
    p.add_argument(
        "--reference",
        help="for Forget Quality: a retrained model, or the JSON file of its evaluation",
    )
    p.add_argument(
        "--out",
        type=Path,
        required=True,
        help="a split: JSON file to write; own rows: folder for the report",
    )
    ratios = CHOICES["truth_ratio"]
    p.add_argument(
        "--truth-ratio",
        choices=ratios,
        help=f"mean over wrong answers, for a split (default {ratios[0]})",
    )
    p.add_argument("--max-new-tokens", type=int, help="longest answer, for a split (default 200)")

    p = verb(
        "audit",
        "measure what a model still knows of forgotten rows, compared with rows it never saw",
        # fmt: skip
        "--model DIR --head head --forget forget.jsonl --unseen unseen.jsonl --out audit",
        command,
    )
    model_options(p)
    own_rows_options(p).add_argument("--unseen", metavar="FILE", help=UNSEEN)
    p.set_defaults(attention_mask=CHOICES["attention_mask"][0])
    head_options(p)
    p.add_argument(
        "--head", type=Path, help="folder of a T3 head (default: audit the model as it is)"
    )
    p.add_argument("--temperature", type=float, help="T (default: the head's own)")
    p.add_argument(
        "--samples",
        type=int,
        default=64,
        help="answers sampled for each question (default %(default)s)",
    )
    p.add_argument(
        "--k",
        type=whole_numbers,
        help="the k of leak@k, e.g. 1,8,64, at most --samples (default: powers of two)",
    )
    p.add_argument(
        "--out", type=Path, required=True, help="folder for audit.json, audit.md and the report"
    )

    p = verb("generate", "print the answers of the base and of the unlearned model",
             '--model builtin:full --head head "Who wrote the book?"', command)  # fmt: skip
    model_options(p)
    p.add_argument("--head", type=Path, required=True, help="folder of a T3 head")
    p.add_argument("--temperature", type=float, help="T (default: the head's own)")
    head_options(p)
    system_options(p)
    p.add_argument(
        "--max-new-tokens", type=int, default=100, help="longest answer (default %(default)s)"
    )
    p.add_argument("question", nargs="+", help="one or more questions, each in quotes")

    p = verb(
        "tune",
        "search hyperparameters for the best mean Forget Quality, and write them for the profile",
        "--profile cpu --split forget10 --method NPO",
        command,
    )
    p.add_argument(
        "--profile",
        default="cpu",
        help="name in notebooks/profiles or a YAML file (default %(default)s)",
    )
    p.add_argument(
        "--data", help="builtin, hub or a folder with TOFU's files (default: the profile's)"
    )
    p.add_argument("--split", type=names, help="forget splits to tune on (default: the profile's)")
    p.add_argument(
        "--method", type=names, help="methods (default: all that have a grid in the profile)"
    )
    p.add_argument(
        "--fine",
        action="store_true",
        help="try only the finer grids (METHOD/SPLIT in the profile), and keep earlier trials",
    )

    p = verb(
        "bench",
        "measure what T3 costs on this machine, with random weights",
        "--shape llama-3.1-8b --out bench",
        command,
    )
    p.add_argument(
        "--shape", help="shape of the base, e.g. 58m (default tiny; with --gpu llama-3.1-8b)"
    )
    p.add_argument("--weights", choices=("random",), default="random",
                   help="always random: the cost does not depend on the values")  # fmt: skip
    p.add_argument(
        "--gpu", action="store_true", help="measure on a GPU in bfloat16, which takes minutes"
    )
    p.add_argument(
        "--out",
        type=Path,
        # fmt: skip
        help="folder for bench.json and the table (default with --gpu: results/gpu)",
    )
    p.add_argument("--device", help="cpu, cuda, … (default: a GPU if there is one)")

    p = verb(
        "compare",
        "compare two folders of results: each method's means, and the cells that differ",
        "out/cpu results/cpu",
        compare,
    )
    p.add_argument("a", type=Path, metavar="A", help="a results folder")
    p.add_argument(
        "b",
        type=Path,
        metavar="B",
        nargs="?",
        help="the folder to compare with (default: the committed results of A's profile)",
    )
    p.add_argument(
        "--tolerance",
        type=float,
        default=1e-9,
        help="numbers that differ by at most this are equal (default %(default)g)",
    )
    p.add_argument("--clocks", action="store_true", help="also compare seconds and memory")
    p.add_argument("--cells", action="store_true", help="list every cell that differs")

    p = verb(
        "page",
        "write index.html, the page of a results folder, from the files in it",
        "results/cpu",
        page,
    )
    p.add_argument("folder", type=Path, metavar="DIR", help="results folder")
    return top


def model_options(p: argparse.ArgumentParser) -> None:
    """Add the options of every verb that loads a model."""
    model = p.add_argument_group("the model")
    names = "Hub id, folder, or builtin:full, builtin:retain90, builtin:retain95"
    model.add_argument("--model", required=True, help=names)
    model.add_argument(
        "--profile",
        default="cpu",
        help="profile of the built-in models and rows (default cpu)",
    )
    model.add_argument("--data", help="builtin, hub or a folder with TOFU's files")
    model.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="number format of the weights (default: the checkpoint's own)",
    )
    model.add_argument("--device", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")
    model.add_argument(
        "--load-in", choices=("8bit", "4bit"), help="quantise the model with bitsandbytes"
    )
    p.add_argument(
        "--allow-sharpening", action="store_true", help="allow 0 < T < 1, which sharpens"
    )


def split_options(p: argparse.ArgumentParser) -> None:
    """Add the options of every verb that reads the rows of a split."""
    split = p.add_argument_group("a split of TOFU's rows")
    split.add_argument(
        "--split",
        choices=("forget01", "forget05", "forget10"),
        help="the share of authors to forget: 1, 5 or 10 percent",
    )
    p.add_argument(
        "--attention-mask",
        choices=CHOICES["attention_mask"],
        default=CHOICES["attention_mask"][0],
        # fmt: skip
        help="for a split; openunlearning hides end-of-turn tokens, as published code does",
    )


def own_rows_options(p: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for own rows, and return their group, to which a verb can add more."""
    rows = p.add_argument_group(
        "your own rows", "FILE: JSON, JSON lines, CSV, Parquet, or the name of a Hub data set"
    )
    rows.add_argument("--forget", metavar="FILE", help="rows to forget")
    rows.add_argument("--retain", metavar="FILE", help="rows to keep")
    rows.add_argument(
        "--other",
        metavar="FILE",
        help="further rows whose answers must not change; the head is not trained on them",
    )
    rows.add_argument(
        "--rewordings",
        metavar="FILE",
        help="rows with question and rewording: other ways to ask a question to forget",
    )
    rows.add_argument(
        "--secret-column",
        metavar="NAME",
        help="column of --forget with the words that must not be said",
    )
    rows.add_argument(
        "--columns",
        type=columns,
        help="column names of your files, e.g. question=user_query,answer=agent_reply",
    )
    system_options(rows)
    return rows


def system_options(p: argparse._ActionsContainer) -> None:
    """Add the options for the system text of questions that have none of their own."""
    system = p.add_mutually_exclusive_group()
    system.add_argument(
        "--system", help="system text of every question (default: the head's, or none)"
    )
    system.add_argument(
        "--no-system",
        action="store_true",
        help="ask without a system text, also if the head was trained with one",
    )


def head_options(p: argparse.ArgumentParser) -> None:
    """Add the options of the verbs that load a head."""
    p.add_argument(
        "-w",
        "--strength",
        type=float,
        help="strength w of the classifier, f^w (default: the head's own)",
    )
    p.add_argument(
        "--other-base",
        action="store_true",
        help="allow a head that was trained on another base",
    )


def columns(text: str) -> dict[str, str]:
    """Parse a list such as question=user_query,answer=agent_reply: {name: column of the file}."""
    pairs = [part.split("=", 1) for part in text.split(",")]
    if not all(len(pair) == 2 and all(map(str.strip, pair)) for pair in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of pairs like question=Frage,answer=Antwort"
        )
    return {name.strip(): column.strip() for name, column in pairs}


def temperature(text: str) -> float | str:
    """Parse a number or "auto"."""
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def comma(kind: type[Value], example: str) -> Callable[[str], list[Value]]:
    """Return a parser of a comma list with at least one value.

    kind: type of the values. example: what an error asks for.
    """

    def read(text: str) -> list[Value]:
        try:
            if values := [kind(part.strip()) for part in text.split(",") if part.strip()]:
                return values
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {example}")

    return read


names = comma(str, "names like T3,NPO")
whole_numbers = comma(int, "whole numbers like 1,2,3")
numbers = comma(float, "numbers like 1,1.5,2")


def reproduce(args: argparse.Namespace) -> int:
    """Run `t3 reproduce`, with its options --rehearse and --dry-run."""
    from t3lib.lab.grid.reproduce import reproduce
    from t3lib.lab.results import check_clean

    if args.out and not args.dry_run:
        check_clean(args.out)
    keys = (
        "only",
        "methods",
        "splits",
        "seeds",
        "data",
        "out",
        "workers",
        "scheduler",
        "slurm",
        "fresh",
        "dry_run",
    )
    options = {key: getattr(args, key) for key in keys}
    if args.rehearse is not None:
        from t3lib.lab.rehearse import rehearse

        return rehearse(args.profile, shape=args.rehearse or None, steps=args.steps, **options)
    if args.steps:
        raise UserError("--steps needs --rehearse")
    code = reproduce(args.profile, **options)
    if args.dry_run:
        from t3lib.lab.profiles import load_profile, override
        from t3lib.lab.rehearse import estimate

        chosen = {key: options[key] for key in ("data", "methods", "splits", "seeds")}
        if told := estimate(override(load_profile(args.profile), **chosen)):
            print(told)
    return code


def command(args: argparse.Namespace) -> int | None:
    """Run a verb of `t3lib.lab.commands`.

    Everything that the arguments alone can show to be wrong is checked before torch is imported.
    """
    temperature = getattr(args, "temperature", None)
    own = [name for name in ("forget", "retain") if getattr(args, name, None)]
    if args.verb == "audit":
        if missing := [name for name in ("forget", "unseen") if getattr(args, name) is None]:
            raise UserError(
                f"--{missing[0]} FILE is needed: an audit compares forgotten rows with rows that"
                " the model never saw"
            )
        if bad := [k for k in args.k or [] if not 1 <= k <= args.samples]:
            raise UserError(
                f"--k {bad[0]}: leak@k needs k between 1 and the {args.samples} samples"
            )
        if temperature is not None and not args.head:
            raise UserError(
                "--temperature needs --head: without a head the model is audited as it is"
            )
    elif len(own) == 1:
        raise UserError("--forget and --retain belong together")
    elif own and args.split:
        raise UserError("give either --forget FILE --retain FILE, or --split with --data")
    for name in ("temperature", "strength", "other_base"):
        if args.verb == "evaluate" and getattr(args, name) not in (None, False) and not args.head:
            raise UserError(
                f"--{name.replace('_', '-')} needs --head: without a head the base is evaluated as"
                " it is"
            )
    for T in (
        temperature
        if isinstance(temperature, list)
        else []
        if temperature in (None, "auto")
        else [temperature]
    ):
        check_temperature(T, allow_sharpening=args.allow_sharpening)
    for name in FILES:
        file = Path(getattr(args, name, None) or "")
        if file.suffix in (".csv", ".json", ".jsonl", ".parquet") and not file.exists():
            raise UserError(f"--{name.replace('_', '-')} {file}: no such file")
    commands = import_module("t3lib.lab.commands")
    run: Callable[[argparse.Namespace], int | None] = getattr(commands, args.verb)
    return run(args)


def compare(args: argparse.Namespace) -> int:
    """Run `t3 compare`. Returns 1 if a run or a cell that both folders have differs."""
    from t3lib.lab.grid.status import committed, earlier_manifest
    from t3lib.lab.report.compare import compare, equal_runs, means

    other = args.b
    if other is None:
        profile = earlier_manifest(args.a / "manifest.json").get("profile")
        if not isinstance(profile, str):
            raise UserError(
                f"{args.a} holds no manifest.json that names its profile: give two folders"
            )
        other = committed(profile)
        if not (other / "tables").is_dir():
            raise UserError(f"no results of profile {profile} are committed: give two folders")
    cells, alone = compare(args.a, other, tolerance=args.tolerance, clocks=args.clocks)
    table = means(args.a, other)
    if not table.empty:
        print(
            "means over the seeds that both have; sd: over these seeds in"
            f" b\n{table.round(3).to_string(index=False)}\n"
        )
    equal, both = equal_runs(args.a, other)
    if both:
        print(f"{both} runs are in both folders, and {equal} of them are equal to the last digit")
    listed = args.cells or len(cells) <= FEW
    if listed and not cells.empty:
        print(cells.map(lambda value: printable(str(value), 40)).to_string(index=False))
    more = "" if listed else f", in {cells['table'].nunique()} tables; --cells lists them"
    print(f"cells that differ between {args.a} (a) and {other} (b): {len(cells)}{more}")
    if alone:
        print(f"not compared, because only one folder has it: {printable('; '.join(alone), 2000)}")
    return 1 if len(cells) or equal < both else 0


def page(args: argparse.Namespace) -> None:
    """Run `t3 page`."""
    from t3lib.lab.report.page import write

    if not (args.folder / "runs").is_dir():
        raise UserError(f"{args.folder}: not a results folder, because it has no runs/")
    print(write(args.folder))
