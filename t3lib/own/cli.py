"""The verbs of `t3` on your own model and rows: unlearn, generate, evaluate and serve.

`t3lib.cli` finds `OWN` by the entry point in pyproject.toml. Torch is imported only when a verb
needs it.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t3lib.cli import (
    Offer,
    Parser,
    add_model,
    base_name,
    check_dials,
    check_out,
    in_template_of,
    load_model,
    model_name,
    setting,
    template_of,
    under_heads,
    verb,
)
from t3lib.core.errors import UserError, printable

if TYPE_CHECKING:
    from t3lib.classifier.head import T3Head
    from t3lib.own.rows import Rows

# options that name a file, and their sets
FILES = {name: name for name in ("forget", "retain", "other", "unseen")}
FILES["holdout"] = "held_out_retain"
ON_HEAD, ROWS = "--head head", "--forget forget.jsonl --retain retain.jsonl"
HEADS = "folder or Hub id of a head; several in a comma list are combined"
SYMBOLS = {"T": "temperature", "w": "strength"}  # names in --set, and in `Choices`
EXITS = (
    "Exit code 0 is a pass: no row is told beyond guessing in any kind of asking (Fisher's exact"
    " test, Holm at 5%), and no test shows that under 95% of answers to keep stay (of 8, two may"
    " change). 3: rows leak or answers changed (No); the base tells under two thirds of the rows"
    " (not counting what T3 guesses), in too few ways, or no row to keep that was left out of the"
    " fit (Cannot tell); it knows under a tenth of the rows (Nothing to forget)."
)
ANSWER = 10_000  # most characters in one line of `t3 generate`


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
        f" and a head is as confidential as the rows. {EXITS}"
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
    add_model(p, required=False)
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
        f"{ON_HEAD} {ROWS} --other other.jsonl --out report",
    )
    p.description = f"{p.description} {EXITS}"
    add_model(p, required=False)
    add_head(p)
    add_rows(p)
    add_system(p)
    p.add_argument("--holdout", metavar="FILE", help="rows to keep that no head was fitted on")
    p.add_argument("--out", type=folder, required=True, help="folder for the report")
    p.add_argument(
        "--overwrite",
        action="store_true",
        help="allow a report in a folder that holds a head, or in place of the head's own report",
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
    p.ended = "stopped"
    add_model(p, required=False, dtype="that of the head's report")
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
        help="let clients choose every temperature, top_p and length: a colder sampler undoes T",
    )
    p.add_argument(
        "--completions",
        action="store_true",
        help="answer /v1/completions too, which has no chat template",
    )
    p.add_argument(
        "--unjudged",
        action="store_true",
        help="serve heads whose report's verdict is no pass, or that have no report of their own",
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

    about = "rows to forget; a column wordings may have other ways of asking, one a line"
    file("--forget", about, required=True)
    file("--retain", "rows to keep", required=True)
    file("--other", "further rows that must not change; no head is trained on them")
    file("--unseen", "rows like those to forget that the model never saw")
    group.add_argument(
        "--secret-column",
        metavar="NAME",
        help="column of --forget with the words that must not be said (default: secret, if there)",
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


# ---- values of options --------------------------------------------------------------------------


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


# ---- what the verbs do --------------------------------------------------------------------------


def unlearn(args: argparse.Namespace) -> int:
    """Carry out `t3 unlearn`: fit a head on own rows, write it, then its report.

    No head is written unless it was fitted and judged. Returns the exit code.
    """
    check_files(args)
    check_out(args.out, empty=not args.overwrite)
    given = {SYMBOLS.get(name, name): value for name, value in args.set}
    template = template_of(given)
    from t3lib.own import unlearn as own
    from t3lib.own.report import report_folder

    check_out(report_folder(args.out), empty=not args.overwrite)

    # What `Choices` has a field for, and what it passes on to the fit.
    named = {each.name: given.pop(each.name) for each in fields(own.Choices) if each.name in given}
    choices = own.Choices(**named, template=template, seed=args.seed, fit=given)

    wanted = rows_of(args, None)
    model, tokenizer = load_model(args, args.model)
    check_system(args.system, tokenizer)

    start = time.perf_counter()
    try:
        unlearned = own.unlearn(model, tokenizer, wanted, choices)
    except own.NothingToForget as error:
        return write_report(error.report, report_folder(args.out))
    head, seconds = unlearned.head, time.perf_counter() - start
    unlearned.save_pretrained(args.out, overwrite=args.overwrite)
    print(
        f"trained a head with {head.num_parameters:,} parameters on {head.info['n_forget']} rows to"
        f" forget and {head.info['n_retain']} rows to keep; trained and judged in {seconds:.1f} s,"
        f" saved to {args.out}"
    )
    return write_report(unlearned.report, report_folder(args.out))


def generate(args: argparse.Namespace) -> None:
    """Carry out `t3 generate`: print the base's and the unlearned model's greedy answers."""
    if not all(question.strip() for question in args.question):
        raise UserError("an empty question")
    check_dials(args)

    heads = heads_of(args)
    base, tokenizer = load_model(args, *base_name(args, heads))
    tokenizer = in_template_of(heads[0], tokenizer)
    unlearned = under_heads(args, base, tokenizer, heads)
    check_system(args.system, tokenizer)
    from t3lib.core.rows import check_row
    from t3lib.own.answers import TOKENS, ask, format_of_head
    from t3lib.sampler import belonging

    # Questions are asked in the form in which the head was trained. Plain text has no system text.
    form = {
        "answer": "-",
        "system": system_for(args, heads[0]),
        "raw": args.system is None and format_of_head(heads[0]).raw,
    }
    rows = [
        check_row({"question": question, **form}, f"question {number}")
        for number, question in enumerate(args.question, 1)
    ]
    belonging.check_prompt(heads[0], tokenizer, rows)

    if args.max_new_tokens > TOKENS:
        print(f"no answer was judged beyond {TOKENS} tokens", file=sys.stderr)
    how = {"max_new_tokens": args.max_new_tokens}
    before, after = (ask(model, tokenizer, rows, **how) for model in (base, unlearned))

    # The paper's T3 has gate 1 and tail 0, which are not shown.
    label = (
        f"T3 (T = {unlearned.temperature:g}"
        f", w = {', '.join(f'{head.w:g}' for head in unlearned.heads)}"
        f"{f', gate = {unlearned.gate:g}' * (unlearned.gate != 1)}"
        f"{f', tail = {unlearned.tail:g}' * (unlearned.tail != 0)})"
    )
    for question, plain, tilted in zip(args.question, before, after):
        for name, text in (("Q", question), ("base", plain), (label, tilted)):
            print(f"{name:<{len(label)}} {printable(text, ANSWER)}")


def evaluate(args: argparse.Namespace) -> int:
    """Carry out `t3 evaluate`: report on a model, or on heads combined on it, and own rows."""
    check_files(args)
    check_dials(args)
    check_out(args.out)
    if (args.out / "config.json").exists() and not args.overwrite:
        raise UserError(f"--out {args.out} holds a head: choose another folder, or --overwrite")
    heads = heads_of(args)
    from t3lib.own.report import report_folder

    beside = [report_folder(name).resolve() for name in head_names(args)]
    if args.out.resolve() in beside and any(args.out.glob("report.json")) and not args.overwrite:
        why = "has the report by which t3 serve decides"
        raise UserError(f"--out {args.out} {why}: choose another folder, or --overwrite")
    wanted = rows_of(args, heads[0] if heads else None)
    model, tokenizer = load_model(args, *base_name(args, heads))
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
    from t3lib.core.models import precision_of
    from t3lib.own import gate
    from t3lib.own import serve as server
    from t3lib.sampler.belonging import prompt_form

    names = head_names(args)
    verdict = partial(
        gate.verdict_rules, names, heads, unjudged=args.unjudged, any_sampler=args.allow_samplers
    )
    judged = verdict()["precision"]  # before a model is loaded, which is loaded so
    if judged and not (args.dtype or args.load_in):
        setattr(args, "load_in" if judged.endswith("bit") else "dtype", judged)
    named, revision = base_name(args, heads)
    name = model_name(args, named)
    adapted = find_spec("vllm") and (Path(name).expanduser() / "adapter_config.json").is_file()
    but = "vLLM serves no base with an adapter" if adapted else ""
    with_vllm = server.vllm_here(but) and not args.load_in
    if with_vllm:
        found, config, tokenizer = gate.described(name, revision)
        with_vllm = server.vllm_here(server.too_wide([head.rank for head in heads], config))

    # The port is bound before a model is loaded, which may take minutes.
    place = server.listening(args.host, args.port)
    port = place.getsockname()[1]  # --port 0 takes any that is free
    host = f"[{args.host}]" if ":" in args.host else args.host  # of IPv6
    url = f"http://{host}:{port}/v1"
    if with_vllm:
        if args.device:
            raise UserError("--device: vLLM chooses by itself (or set CUDA_VISIBLE_DEVICES)")
        precision = args.dtype or str(config.dtype or "auto").removeprefix("torch.")
    else:
        base, tokenizer = load_model(args, name, revision)
        config, unlearned = base.config, under_heads(args, base, tokenizer, heads)
        precision = precision_of(base)
    template = prompt_form(tokenizer, [{"question": "Who?", "answer": "-"}])["chat_template"]
    rules = verdict(precision, template) | gate.prompt_rules(
        names[0], heads, tokenizer, config, completions=args.completions
    )
    print(server.greeting(rules, url, name), flush=True)
    if not with_vllm:
        return server.run_local(unlearned, rules, place)

    place.close()
    server.run_vllm(found, names, rules, config, host=args.host, port=port, dtype=precision)


# ---- shared by the verbs ------------------------------------------------------------------------


def check_files(args: argparse.Namespace) -> None:
    """UserError for a file that is not there, before torch is imported."""
    for name in FILES:
        file = Path(getattr(args, name, None) or "").expanduser()
        if file.suffix in (".csv", ".tsv", ".json", ".jsonl", ".parquet") and not file.exists():
            raise UserError(f"--{name} {file}: no such file")


def head_names(args: argparse.Namespace) -> list[str]:
    """Return the folders or Hub ids that --head names, [] without any."""
    names = [] if args.head is None else [name.strip() for name in args.head.split(",")]
    if not all(names):
        raise UserError(f"--head {args.head!r}: an empty name")
    return [*map(os.path.expanduser, names)]


def heads_of(args: argparse.Namespace) -> list["T3Head"]:
    """Read the heads of --head, [] without any."""
    from t3lib.classifier.head import T3Head

    return [*map(T3Head.from_pretrained, head_names(args))]


def rows_of(args: argparse.Namespace, head: "T3Head | None") -> "Rows":
    """Read all files of rows, and check them together.

    Questions are asked in the head's form unless the command gives another.
    """
    from t3lib.own import rows

    read: dict[str, Any] = {"columns": args.columns, "system": system_for(args, head), "tell": True}
    sets: dict[str, Any] = {
        field: rows.load(file, **read, secret=args.secret_column if name == "forget" else None)
        for name, field in FILES.items()
        if (file := getattr(args, name, None)) is not None
    }
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
    """UserError for a system text that the tokenizer's prompts have no place for."""
    from t3lib.core.rows import prompt

    if system is None or tokenizer.chat_template and not system:
        return
    if not tokenizer.chat_template or system.strip() not in prompt(tokenizer, "Who?", system):
        why = "its chat template takes none" if tokenizer.chat_template else "no chat template"
        raise UserError(f"--system: this model's prompts have no place for one ({why})")


def write_report(found: Mapping[str, Any], folder: Path) -> int:
    """Write and print the report on own rows, and return the exit code: 3 if it says that the
    unlearning failed.
    """
    from t3lib.own import report

    path = report.save_report(found, folder)
    print("\n".join(found["verdict"]["lines"]))
    if "choice" in found:
        print("T = {T:g}, w = {w:g}, learning rate {lr:g}".format(**found["choice"]))
    print(f"report: {path}")
    return 0 if found["verdict"]["success"] else 3


OWN = Offer("your own model and rows", add_verbs)
