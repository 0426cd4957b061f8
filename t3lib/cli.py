"""The command `t3`: parse arguments, call the library, print a line.

    t3 unlearn | generate | evaluate | serve    your own model and rows   (this module)
    t3 reproduce | compare | tofu               the paper again           (`t3lab.cli`)

Packages offer their verbs, and names of models, as `Offer`s: entry points of the group `t3.verbs`.
A user's mistake gives one line and exit code 2. Torch is imported only when a command needs it.
"""

import argparse
import errno
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from t3lib import __version__
from t3lib.core.errors import UserError, printable
from t3lib.core.settings import (
    OWN_FIT,
    OWN_STEPS,
    check,
    check_temperature,
)

if TYPE_CHECKING:
    from t3lib.classifier.head import T3Head
    from t3lib.own.rows import Rows

Value = TypeVar("Value", str, int, float)
EXIT_CODES = (
    "exit codes: 0 done; 1 a job failed, or results differ; 2 wrong input; "
    "3 a report says that rows leak or that rows to keep changed; 130 interrupted"
)
LABORATORY = ("reproduce", "compare", "tofu")  # verbs that t3lab offers, where it is installed
FILES = ("forget", "retain", "other", "unseen", "holdout")  # options that name a file
ON_HEAD, ROWS = "--model DIR --head head", "--forget forget.jsonl --retain retain.jsonl"
HEADS = "folder or Hub id of a head; several in a comma list are combined"
# What is not there, or no longer, and what to use in its place.
INSTEAD = {
    "--temperature": (
        "there is no --temperature: -T (--temper) is the paper's T, which divides the base's"
        " log-probabilities; the sampler's temperature is another one, and answers here are greedy"
    ),
    "--rewordings": (
        "there is no --rewordings: rows to forget may have a column wordings, with a wording of"
        " the question in each line, or a list of them"
    ),
    "plain": (
        "there is no plain: t3 unlearn fits on wordings and neighbours too; t3 tofu fit and"
        " t3lib.fit_head fit on the rows alone, as the paper does"
    ),
}
SYMBOLS = {"T": "temperature", "w": "strength"}  # names in --set, and in `Choices`
TEMPLATE = "template."  # how names of template arguments begin in --set
ANSWER = 10_000  # most characters in one line of `t3 generate`
# What --set changes, with the default for own rows, by what it means.
SETTINGS = {
    "T": (1, "temperature T, at least 1"),
    "w": ("chosen", "strength w of the classifier, f^w"),
    "lr": (OWN_FIT.lr, "learning rate"),
    "steps": (OWN_STEPS, "optimiser steps"),
    "epochs": ("from steps", "passes over what is to be forgotten, in place of steps"),
    "warmup_epochs": ("a tenth", "epochs in which the learning rate rises (TOFU: a quarter)"),
    "rank": (OWN_FIT.rank, "rank h of the head"),
    "batch_size": (OWN_FIT.batch_size, "pairs of a row to forget and one to keep in a step"),
    "weight_decay": (OWN_FIT.weight_decay, "weight decay"),
    "decay": (OWN_FIT.decay, "weight decay decoupled (adamw) or in the loss (l2)"),
    "init_b": (OWN_FIT.init_b, "initial values of the matrix B: zero or kaiming (random)"),
    "prior": (OWN_FIT.prior, "share of rows to forget that f assumes: balanced or population"),
    "untrained": (
        "neutral",
        "f of tokens that no row taught: neutral (1), or as drawn (the paper)",
    ),
    "template.NAME": ("none", "argument of the chat template, e.g. template.enable_thinking=false"),
}


@dataclass(frozen=True)
class Offer:
    """What a package adds to `t3`: the object of one of its entry points in the group `t3.verbs`.

    title: heading of its verbs in `t3 --help`.
    add: adds the verbs with `verb`; called with the result of `add_subparsers`.
    models: {kind: function from a name KIND:REST, given as --model, to the model's folder}.
    """

    title: str
    add: Callable[[Any], None]
    models: Mapping[str, Callable[[str], Path]] = field(default_factory=dict)


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports a wrong argument in one line, without a page of usage."""

    purpose = ""  # of a verb, in half a sentence

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        print(f"{self.prog}: {printable(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `t3` with these arguments, and return the exit code (`EXIT_CODES`).

    argv: by default the arguments of the process. Its output is then UTF-8, unless a terminal with
    another encoding shows it.
    """
    for stream in (sys.stdout, sys.stderr) if argv is None else ():
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
    try:
        try:
            return run(argv)
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        if argv is None:  # what is left to print has no place
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader of a pipe, such as `head`, has closed it
            return 141
        print(f"t3: cannot write: {error.strerror}", file=sys.stderr)
        return 1


def run(argv: Sequence[str] | None) -> int:
    """Carry out a command, with one line for a user's mistake, and return the exit code."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(message, 2000)}\n"
    args, unknown = parser().parse_known_args(argv)
    if unknown and "refuses" not in args:
        hints = (INSTEAD[name] for word in unknown if (name := word.split("=")[0]) in INSTEAD)
        args.parser.error(next(hints, f"unknown arguments: {' '.join(unknown)}"))
    try:
        return args.run(args) or 0
    except BrokenPipeError:
        raise
    except (UserError, ConnectionError) as error:
        print(f"{args.parser.prog}: {printable(error)}", file=sys.stderr)
        return 2
    except UnicodeEncodeError:
        print(f"{args.parser.prog}: an argument is no text in UTF-8", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        what = f"{printable(error.filename, 80)}: {error.strerror}"
        print(f"{args.parser.prog}: {what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "; run the same command again to continue" if args.verb in LABORATORY else ""
        ended = "stopped" if args.run is serve else f"interrupted{again}"
        print(f"{args.parser.prog}: {ended}", file=sys.stderr)
        return 130


def parser() -> Parser:
    """Build the parser with the verbs of all packages that offer some, and their options."""
    top = Parser(prog="t3", epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"t3 {__version__}")
    verbs = top.add_subparsers(
        dest="verb", required=True, metavar="VERB", parser_class=Parser, help=argparse.SUPPRESS
    )

    lines, listed = ["Temper-Then-Tilt unlearning.\n"], set[str]()
    for offer in offers():
        with one_line_if_broken(offer.title):
            offer.add(verbs)
        added = {name: p for name, p in verbs.choices.items() if name not in listed}
        lines += [f"{offer.title}:", *(f"  {name:<11}{p.purpose}" for name, p in added.items()), ""]
        listed |= added.keys()
    if not listed:
        top.error("no verbs are installed: pip install t3lib again, in a checkout with -e")

    # Where t3lab is not installed, its verbs say where they come from.
    for name in (name for name in LABORATORY if name not in listed):
        absent = verb(
            verbs, name, "regenerates the paper, in the project's checkout", needs_a_checkout
        )
        absent.set_defaults(refuses=True)
        lines.append(f"  {name:<11}{absent.purpose}")
    top.description = "\n".join(lines)
    return top


def offers() -> list[Offer]:
    """Load what the installed packages offer, t3lib's own first.

    One line on stderr for a package whose offer cannot be loaded.
    """
    found, loaded = entry_points(group="t3.verbs"), list[Offer]()
    for entry in sorted(found, key=lambda entry: (entry.module != __name__, entry.name)):
        with one_line_if_broken(entry.value):
            offer = entry.load()
            if not isinstance(offer, Offer):
                raise TypeError("not an Offer of t3lib.cli")
            loaded.append(offer)
    return loaded


@contextmanager
def one_line_if_broken(package: str) -> Iterator[None]:
    """Turn any error of another package into one line on stderr, and go on without the package."""
    try:
        yield
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        print(f"t3: left out the verbs of {package}: {printable(why)}", file=sys.stderr)


def add_verbs(verbs: Any) -> None:
    """Add the verbs on your own model and rows to the result of `add_subparsers`."""
    add_unlearn(verbs)
    add_generate(verbs)
    add_evaluate(verbs)
    add_serve(verbs)


def add_unlearn(verbs: Any) -> None:
    """Add `t3 unlearn`."""
    p = verb(
        verbs,
        "unlearn",
        "train a head that makes a model forget some rows, and report how well it works",
        unlearn,
        f"--model DIR {ROWS} --out head",
    )
    p.description = (
        f"{p.description} T3 suppresses answers and erases nothing: the base still has the rows,"
        " and a head is as confidential as the rows."
    )
    add_model(p)
    add_rows(p)
    add_system(p)
    p.add_argument(
        "--out",
        type=folder,
        required=True,
        help="folder for the head; the report goes to OUT-report",
    )
    p.add_argument(
        "--overwrite", action="store_true", help="replace the head in --out and its report"
    )
    p.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    p.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="change how the head is fitted, e.g. --set T=2.5 --set rank=10; --set help lists all",
    )


def add_generate(verbs: Any) -> None:
    """Add `t3 generate`."""
    p = verb(
        verbs,
        "generate",
        "print the answers of the base and of the unlearned model",
        generate,
        f'{ON_HEAD} "Who wrote the book?"',
    )
    add_model(p)
    add_head(p, required=True)
    add_system(p)
    p.add_argument(
        "--max-new-tokens", type=int, default=100, help="longest answer (default %(default)s)"
    )
    p.add_argument("question", nargs="+", help="one or more questions, each in quotes")


def add_evaluate(verbs: Any) -> None:
    """Add `t3 evaluate`."""
    p = verb(
        verbs,
        "evaluate",
        "report what a model, with or without heads, still says of some rows",
        evaluate,
        f"{ON_HEAD} {ROWS} --out report",
    )
    add_model(p)
    add_head(p)
    add_rows(p)
    add_system(p)
    p.add_argument("--holdout", metavar="FILE", help="rows to keep that no head was fitted on")
    p.add_argument("--out", type=folder, required=True, help="folder for the report")
    p.add_argument(
        "--overwrite", action="store_true", help="allow a report in a folder that holds a head"
    )


def add_serve(verbs: Any) -> None:
    """Add `t3 serve`."""
    p = verb(
        verbs,
        "serve",
        "answer requests over HTTP, as OpenAI's API does, with the unlearned model",
        serve,
        ON_HEAD,
    )
    add_model(p)
    p.add_argument("--head", required=True, help=HEADS)
    p.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default %(default)s, which only this machine reaches)",
    )
    p.add_argument(
        "--port",
        type=int,
        default=8000,
        help="port to listen on; 0: any free one (default %(default)s)",
    )
    p.add_argument(
        "--allow-samplers",
        action="store_true",
        help="let clients choose every temperature and top_p: a colder sampler undoes T",
    )
    p.add_argument(
        "--completions",
        action="store_true",
        help="answer /v1/completions too, which has no chat template",
    )


def verb(
    verbs: Any,
    name: str,
    purpose: str,
    run: Callable[[argparse.Namespace], int | None],
    example: str = "",
) -> Parser:
    """Add a verb to the result of `add_subparsers`, and return its parser.

    run: called with the parsed arguments; returns the exit code, or None for 0.
    """
    p: Parser = verbs.add_parser(
        name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}."
    )
    p.purpose = purpose
    p.epilog = example and f"example: {p.prog} {example}"
    p.set_defaults(run=run, parser=p)
    return p


def add_model(p: Parser) -> None:
    """Add the options that name a model and say how it is loaded."""
    p.add_argument(
        "--model",
        required=True,
        help="Hub id or folder; in a checkout also builtin:full@PROFILE,"
        " builtin:retain90@PROFILE and builtin:retain95@PROFILE (default profile smoke)",
    )
    p.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="number format of the weights (default: the checkpoint's own)",
    )
    p.add_argument("--device", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")
    p.add_argument(
        "--load-in", choices=("8bit", "4bit"), help="quantise the model with bitsandbytes"
    )


def add_head(p: Parser, *, required: bool = False) -> None:
    """Add the options that name heads and their T and w."""
    p.add_argument("--head", required=required, help=HEADS)
    p.add_argument("-T", "--temper", type=float, help="the paper's T (default: the head's own)")
    p.add_argument(
        "-w",
        "--strength",
        type=float,
        help="strength w of the classifier, f^w (default: the head's own)",
    )


def add_rows(p: Parser) -> None:
    """Add the options that name files of rows, as a group of their own in the help."""
    group = p.add_argument_group(
        "your own rows", "FILE: JSON, JSON lines, CSV, Parquet, or the name of a Hub data set"
    )

    def file(name: str, what: str, required: bool = False) -> None:
        group.add_argument(name, metavar="FILE", required=required, help=what)

    file("--forget", "rows to forget", required=True)
    file("--retain", "rows to keep", required=True)
    file("--other", "further rows that must not change; no head is trained on them")
    file("--unseen", "rows like those to forget that the model never saw")
    group.add_argument(
        "--secret-column",
        metavar="NAME",
        help="column of --forget with the words that must not be said",
    )
    group.add_argument(
        "--columns",
        type=columns,
        help="column names of your files, e.g. question=user_query,answer=agent_reply",
    )


def add_system(p: Parser) -> None:
    """Add the two options for the system text of questions that have none of their own."""
    group = p.add_mutually_exclusive_group()
    group.add_argument(
        "--system", help="system text of every question (default: the head's, or none)"
    )
    group.add_argument(
        "--no-system",
        action="store_true",
        help="ask without a system text, also if the head was trained with one",
    )


def needs_a_checkout(args: argparse.Namespace) -> int:
    """UserError: only the checkout has the laboratory, which regenerates the paper."""
    raise UserError(
        f"{', '.join(LABORATORY)} and builtin models come with t3lab, which regenerates the paper"
        " and needs the project's checkout: git clone it and run make"
    )


# ---- values of options --------------------------------------------------------------------------


def setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE of --set, or print all names for "help" and exit."""
    if text == "help":
        for name, (default, what) in SETTINGS.items():
            print(f"  {name:<14}{what} (default {default})")
        raise SystemExit(0)
    name, sign, value = text.partition("=")
    if name in INSTEAD:
        raise argparse.ArgumentTypeError(INSTEAD[name])
    if not sign or (name not in SETTINGS and not name.startswith(TEMPLATE)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=VALUE with a name among {', '.join(SETTINGS)}"
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # text such as zero


def template_of(given: dict[str, Any]) -> dict[str, Any]:
    """Take the template arguments out of the values of --set, and return them by name."""
    names = [name for name in given if name.startswith(TEMPLATE)]
    return {name.removeprefix(TEMPLATE): given.pop(name) for name in names}


def columns(text: str) -> dict[str, str]:
    """Parse a list such as question=user_query,answer=agent_reply: {name: column of the file}."""
    pairs = [part.split("=", 1) for part in text.split(",")]
    if not all(len(pair) == 2 and all(map(str.strip, pair)) for pair in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of pairs like question=Frage,answer=Antwort"
        )
    return {name.strip(): column.strip() for name, column in pairs}


def folder(text: str) -> Path:
    """Parse the name of a folder; `~` is the user's own."""
    return Path(text).expanduser()


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


# ---- your own model and rows --------------------------------------------------------------------


def unlearn(args: argparse.Namespace) -> int:
    """Carry out `t3 unlearn`: fit a head on own rows, write it, then its report.

    No head is written unless it was fitted and judged. Returns the exit code.
    """
    check_files(args)
    check_out(args.out, empty=not args.overwrite)
    given = {SYMBOLS.get(name, name): value for name, value in args.set}
    template = template_of(given)
    if {"steps", "epochs"} <= given.keys():
        raise UserError("--set: give either steps or epochs")
    from t3lib.own import unlearn as own
    from t3lib.own.report import report_folder

    check_out(report_folder(args.out), empty=not args.overwrite)

    # What `Choices` has a field for, and what it passes on to the fit.
    choosable = {each.name for each in fields(own.Choices)}
    named = {name: given.pop(name) for name in choosable & given.keys()}
    choices = own.Choices(**named, template=template, seed=args.seed, fit=given)

    wanted: Any = rows_of(args, None)
    model, tokenizer = load_model(args, args.model)
    check_system(args.system, tokenizer)

    start = time.perf_counter()
    try:
        unlearned = own.unlearn(model, tokenizer, wanted, choices)
    except own.NothingToForget as error:
        return write_report(error.report, report_folder(args.out))
    unlearned.save_pretrained(args.out, overwrite=args.overwrite)
    print(
        f"trained a head with {unlearned.head.num_parameters:,} parameters on"
        f" {len(wanted.forget)} rows to forget and {len(wanted.retain)} rows to keep in"
        f" {time.perf_counter() - start:.1f} s, saved to {args.out}"
    )
    return write_report(unlearned.report, report_folder(args.out))


def generate(args: argparse.Namespace) -> None:
    """Carry out `t3 generate`: print the base's and the unlearned model's greedy answers."""
    if not all(question.strip() for question in args.question):
        raise UserError("an empty question")
    check_dials(args)

    heads = heads_of(args)
    base, tokenizer = load_model(args, args.model)
    tokenizer = in_template_of(heads[0], tokenizer)
    unlearned = under_heads(args, base, tokenizer, heads)
    check_system(args.system, tokenizer)
    from t3lib.core.rows import check_row
    from t3lib.own.answers import ask
    from t3lib.sampler import belonging

    # Questions are asked in the form in which the head was trained.
    in_head_form = args.system is None and not args.no_system
    form = {
        "answer": "-",
        "system": system_for(args, heads[0]),
        "raw": in_head_form and heads[0].info.get("chat_template") == belonging.PLAIN,
    }
    rows = [
        check_row({"question": question, **form}, f"question {number}")
        for number, question in enumerate(args.question, 1)
    ]
    belonging.check_prompt(heads[0], tokenizer, rows)

    how = {"max_new_tokens": args.max_new_tokens}
    before, after = (ask(model, tokenizer, rows, **how) for model in (base, unlearned))

    strengths = ", ".join(f"{head.w:g}" for head in unlearned.heads)
    ours = {"gate": 1, "tail": 0}  # the paper's T3 has these values
    dials = {name: getattr(unlearned, name) for name in ours}
    further = [f", {name} = {dials[name]:g}" for name in ours if dials[name] != ours[name]]
    label = f"T3 (T = {unlearned.temperature:g}, w = {strengths}{''.join(further)})"
    width = len(label)
    for question, plain, tilted in zip(args.question, before, after):
        print(f"{'Q':<{width}} {printable(question, ANSWER)}")
        for name, text in (("base", plain), (label, tilted)):
            print(f"{name:<{width}} {printable(text, ANSWER)}")


def evaluate(args: argparse.Namespace) -> int:
    """Carry out `t3 evaluate`: report on a model, or on heads combined on it, and own rows."""
    check_files(args)
    check_dials(args)
    check_out(args.out)
    if (args.out / "config.json").exists() and not args.overwrite:
        raise UserError(f"--out {args.out} holds a head: choose another folder, or --overwrite")

    heads = heads_of(args)
    wanted = rows_of(args, heads[0] if heads else None)
    model, tokenizer = load_model(args, args.model)
    check_system(args.system, tokenizer)
    if heads:
        tokenizer = in_template_of(heads[0], tokenizer)
        model = under_heads(args, model, tokenizer, heads)
    from t3lib.own.assess import assess

    return write_report(assess(model, tokenizer, wanted), args.out)


def serve(args: argparse.Namespace) -> None:
    """Carry out `t3 serve`: answer requests until Ctrl-C."""
    args.temper = args.strength = None  # reports judge a head's own T and w
    heads = heads_of(args)
    from t3lib.own import serve as server

    name = model_name(args, args.model)
    adapted = find_spec("vllm") and (Path(name).expanduser() / "adapter_config.json").is_file()
    but = "vLLM serves no base with an adapter" if adapted else ""
    with_vllm = not args.load_in and server.vllm_here(but)
    if with_vllm:
        folder, config, tokenizer = server.described(name)
        with_vllm = server.vllm_here(server.too_wide([head.rank for head in heads], config))

    # The port is bound before a model is loaded, which may take minutes.
    place = server.listening(args.host, args.port)
    names = [os.path.expanduser(name.strip()) for name in args.head.split(",")]
    options = {"completions": args.completions, "any_sampler": args.allow_samplers}
    port = place.getsockname()[1]  # --port 0 takes any that is free
    url = f"http://{args.host}:{port}/v1"

    if with_vllm:
        rules = server.rules_of(names, heads, tokenizer, config, most=server.MOST, **options)
        place.close()
        print(server.greeting(rules, url), flush=True)
        dtype = args.dtype or str(config.dtype or "auto").removeprefix("torch.")
        given = {"host": args.host, "port": port, "dtype": dtype}
        return server.run_vllm(folder, names, rules, config, **given)

    base, tokenizer = load_model(args, name)
    unlearned = under_heads(args, base, tokenizer, heads)
    rules = server.rules_of(names, heads, tokenizer, base.config, most=1, **options)
    print(server.greeting(rules, url), flush=True)
    server.run_transformers(unlearned, rules, place)


OWN = Offer("your own model and rows", add_verbs)


# ---- shared by the verbs ------------------------------------------------------------------------


def check_files(args: argparse.Namespace) -> None:
    """UserError for a file that is not there, before torch is imported."""
    for name in FILES:
        file = Path(getattr(args, name, None) or "").expanduser()
        if file.suffix in (".csv", ".tsv", ".json", ".jsonl", ".parquet") and not file.exists():
            raise UserError(f"--{name} {file}: no such file")


def check_dials(args: argparse.Namespace) -> None:
    """UserError for a T or w without a head or out of range, before torch is imported."""
    for name, value in (("-T", args.temper), ("-w", args.strength)):
        if value is not None and not args.head:
            raise UserError(f"{name} needs --head: without a head the base is asked as it is")
    if args.temper is not None:
        check_temperature(args.temper)
    if args.strength is not None:
        check("w", args.strength)


def check_out(out: Path, *, empty: bool = False) -> None:
    """UserError if --out cannot be a folder, before anything is computed.

    empty: also refuse a folder that is not empty.
    """
    try:
        if out.exists() and (not out.is_dir() or empty and any(out.iterdir())):
            why = "is not empty: --overwrite replaces it" if out.is_dir() else "is not a folder"
            raise UserError(f"--out {out} exists already and {why}")
        place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        if not os.access(place, os.W_OK | os.X_OK) or not place.is_dir():
            raise UserError(f"--out {out}: {place} is no folder that can be written to")
    except OSError as error:
        raise UserError(f"--out {printable(str(out), 80)}: {error.strerror or error}") from None


def model_name(args: argparse.Namespace, name: str) -> str:
    """Return the Hub id or folder of a model; the package that offers the name makes the folder.

    name: a Hub id, a folder, or a name that a package offers, such as builtin:NAME@PROFILE of the
    laboratory. UserError for a folder without a model.
    """
    kind, colon, _ = name.partition(":")
    offered = [offer.models for offer in offers() if kind in offer.models] if colon else []
    if offered:
        name = str(offered[0][kind](name))
    elif colon and kind == "builtin":
        needs_a_checkout(args)
    folder = Path(name).expanduser()
    if folder.is_dir() and not any(
        (folder / file).is_file() for file in ("config.json", "adapter_config.json")
    ):
        raise UserError(
            f"--model {name}: this folder holds no model, because it has no config.json"
        )
    return name


def load_model(args: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """Load a model, named as in `model_name`, and its tokenizer."""
    name = model_name(args, name)
    from t3lib.core import models

    return models.load_model(name, dtype=args.dtype, device=args.device, load_in=args.load_in)


def heads_of(args: argparse.Namespace) -> list["T3Head"]:
    """Read the heads of --head, [] without any."""
    from t3lib.classifier.head import T3Head

    wanted = [] if args.head is None else args.head.split(",")
    if not all(name.strip() for name in wanted):
        raise UserError(f"--head {args.head!r}: an empty name")
    return [T3Head.from_pretrained(name.strip()) for name in wanted]


def under_heads(
    args: argparse.Namespace, base: Any, tokenizer: Any, heads: Sequence["T3Head"]
) -> Any:
    """Put heads on a base with T and w of the command, and return the tilted model.

    UserError for a head that was trained on another base or tokenizer.
    """
    from t3lib.sampler.tilt import T3ForCausalLM

    placed = [head.to(base.device) for head in heads]
    if args.strength is not None:
        for head in placed:
            head.w = args.strength
    return T3ForCausalLM(base, placed, args.temper, tokenizer=tokenizer)


def in_template_of(head: "T3Head", tokenizer: Any) -> Any:
    """Return the tokenizer with the head's template arguments, which are printed."""
    from t3lib.sampler import belonging

    if template := head.info.get("template"):
        print(f"template arguments of the head: {printable(json.dumps(template))}", file=sys.stderr)
    return belonging.in_template_of(head, tokenizer)


def rows_of(args: argparse.Namespace, head: "T3Head | None") -> "Rows":
    """Read all files of rows, and check them together.

    Questions are asked in the head's form unless the command gives another.
    """
    from t3lib.own import rows

    read: dict[str, Any] = {"columns": args.columns, "system": system_for(args, head), "tell": True}
    sets: dict[str, Any] = {}
    for name in FILES:
        file = getattr(args, name, None)
        if file is not None:
            secret = args.secret_column if name == "forget" else None
            sets[name] = rows.load(file, **read, secret=secret)
    if "holdout" in sets:
        sets["holdout_retain"] = sets.pop("holdout")
    return rows.Rows(**sets).checked()


def system_for(args: argparse.Namespace, head: "T3Head | None") -> str | None:
    """Return the system text of questions that have none: the given one, otherwise the head's,
    which is printed, otherwise None.
    """
    if args.system is not None or args.no_system or head is None:
        return args.system  # type: ignore[no-any-return]
    from t3lib.sampler import belonging

    if (system := belonging.system_of(head)) is not None:
        print(f"system text of the head: {printable(repr(system))}", file=sys.stderr)
    return system


def check_system(system: str | None, tokenizer: Any) -> None:
    """UserError for a system text if the tokenizer has no chat template to put it into."""
    if system is not None and tokenizer.chat_template is None:
        raise UserError(
            "--system: this model's tokenizer has no chat template, so a system text has no place"
        )


def write_report(found: Mapping[str, Any], folder: Path) -> int:
    """Write and print the report on own rows, and return the exit code: 3 if it says that the
    unlearning failed.
    """
    from t3lib.own import report

    path = report.save_report(found, folder)
    print("\n".join(found["verdict"]["lines"]))
    if "choice" in found:
        from t3lib.own import choice

        print("T = {T:g}, w = {w:g}, learning rate {lr:g}: {reason}".format(**found["choice"]))
        print(choice.table(found["choice"]["tried"], found["choice"]))
    print(f"report: {path}")
    return 0 if found["verdict"]["success"] else 3
