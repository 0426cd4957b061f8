"""The verbs of `t3` that regenerate the paper: reproduce, compare and tofu.

`t3lib.cli` finds `PAPER` by the entry point in notebooks/pyproject.toml. Torch is imported only
when a verb needs it.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from t3lib.cli import (
    Offer,
    Parser,
    add_model,
    check_dials,
    check_out,
    in_template_of,
    load_model,
    setting,
    template_of,
    under_heads,
    verb,
)
from t3lib.core.errors import UserError, printable
from t3lib.core.settings import (
    CHOICES,
    TEMPERATURE,
    check,
    check_temperature,
    fit_settings,
)

if TYPE_CHECKING:
    from t3lib.tofu.data import Source

Value = TypeVar("Value", str, int, float)
SPLITS = ("forget01", "forget05", "forget10")
NAMES = {  # OpenUnlearning's name of a metric of the paper: where the metric is in an evaluation
    "forget_quality": ("forget_quality",),
    "forget_Q_A_Prob": ("forget", "prob"),
    "forget_Q_A_ROUGE": ("forget", "rouge"),
    "forget_Truth_Ratio": ("forget", "truth_ratio"),
    "model_utility": ("model_utility",),
}
BUILTIN = ("full", "retain90", "retain95")


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


def add_verbs(verbs: Any) -> None:
    """Add the verbs to the result of `add_subparsers`."""
    p = verb(
        verbs,
        "reproduce",
        "run the notebooks of a profile, and write its tables and figures",
        reproduce,
        "--profile smoke",
    )
    profile = "name in notebooks/profiles or a YAML file (default %(default)s)"
    p.add_argument("--profile", default="cpu", help=profile)
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
    p.add_argument(
        "--workers",
        type=int,
        help="worker processes on this machine (default: one for each GPU or physical core)",
    )
    p.add_argument("--scheduler", help="address of a running Dask scheduler, e.g. tls://host:8786")
    p.add_argument("--fresh", action="store_true", help="ignore the cache and run everything again")
    p.add_argument("--dry-run", action="store_true", help="print what is cached and what would run")

    p = verb(
        verbs, "compare", "compare two folders of results", compare, "out/cpu results/profiles/cpu"
    )
    p.add_argument("a", type=Path, metavar="A", help="a results folder")
    p.add_argument(
        "b",
        type=Path,
        metavar="B",
        nargs="?",
        help="the folder to compare with (default: the committed results of A's profile)",
    )

    p = verb(verbs, "tofu", "one model on one split of TOFU: fit, evaluate, tune", no_verb)
    add_tofu_verbs(p.add_subparsers(dest="what", metavar="fit|evaluate|tune", parser_class=type(p)))


def add_tofu_verbs(verbs: Any) -> None:
    """Add the verbs of `t3 tofu` to the result of `add_subparsers`."""
    on = "--model builtin:full --split forget10"

    p = verb(verbs, "fit", "train a T3 head on a split", fit, f"{on} --out head")
    add_split(p)
    p.add_argument("--out", type=Path, required=True, help="folder for the head")
    p.add_argument("--overwrite", action="store_true", help="replace the head in --out")
    p.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    p.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="change one of the paper's settings, e.g. --set T=2 --set lr=1e-3",
    )

    p = verb(
        verbs,
        "evaluate",
        "compute every metric of a split",
        evaluate,
        f"{on} --head head --out f10.json",
    )
    add_split(p)
    ratios = CHOICES["truth_ratio"]
    p.add_argument("--head", help="folder or Hub id of a head (default: the model as it is)")
    p.add_argument(
        "-T",
        "--temper",
        type=numbers,
        help="the paper's T, or a list, e.g. 1,1.5,2 (default: the head's own)",
    )
    p.add_argument("-w", "--strength", type=float, help="strength w (default: the head's own)")
    p.add_argument(
        "--reference",
        help="for Forget Quality: a retrained model, or the JSON file of its evaluation by this"
        " command or by OpenUnlearning (TOFU_EVAL.json)",
    )
    p.add_argument("--out", type=Path, required=True, help="JSON file to write")
    p.add_argument(
        "--openunlearning",
        type=Path,
        metavar="FILE",
        help="also write the evaluation as OpenUnlearning does, e.g. TOFU_EVAL.json",
    )
    p.add_argument("--truth-ratio", choices=ratios, default=ratios[0], help="mean of wrong answers")
    p.add_argument("--max-new-tokens", type=int, default=200, help="longest answer (default 200)")

    p = verb(
        verbs,
        "tune",
        "search hyperparameters of a profile's methods",
        tune,
        "--profile cpu --split forget10 --method NPO",
    )
    p.add_argument("--profile", default="cpu", help="name or YAML file (default %(default)s)")
    p.add_argument("--data", help="builtin, hub or a folder (default: the profile's)")
    p.add_argument("--split", type=names, help="splits to tune on (default: the profile's)")
    p.add_argument("--method", type=names, help="methods (default: all that have a grid)")

    gone = verbs.add_parser("audit", add_help=False)  # without help, so that no list shows it
    gone.set_defaults(run=no_audit, parser=gone, refuses=True)


def add_split(p: Parser) -> None:
    """Add the options that name a model, a split and where its rows come from."""
    add_model(p)
    masks = CHOICES["attention_mask"]
    p.add_argument("--split", choices=SPLITS, required=True, help="1, 5 or 10 percent to forget")
    p.add_argument(
        "--data", help="hub or a folder with TOFU's files (default: those of a builtin model)"
    )
    p.add_argument(
        "--attention-mask",
        choices=masks,
        default=masks[0],
        help="openunlearning hides end-of-turn tokens, as published code does",
    )


def no_verb(args: argparse.Namespace) -> int:
    """UserError: `t3 tofu` alone does nothing."""
    raise UserError("give fit, evaluate or tune")


def no_audit(args: argparse.Namespace) -> int:
    """UserError: `t3 tofu audit` is gone."""
    raise UserError("notebook 06 audits models instead: t3 reproduce --only 06_audit")


# ---- the paper ----------------------------------------------------------------------------------


def reproduce(args: argparse.Namespace) -> int:
    """Carry out `t3 reproduce`, and compare with the committed results of the profile."""
    from t3lab.grid import reproduce as grid
    from t3lab.grid.status import committed
    from t3lab.profiles import load_profile
    from t3lab.report.compare import compare
    from t3lab.results import check_clean
    from t3lib.core.files import project_root

    if args.out and not args.dry_run:
        check_clean(args.out)
    every = "only methods splits seeds data out workers scheduler fresh dry_run".split()
    code = grid.reproduce(args.profile, **{name: getattr(args, name) for name in every})

    name = load_profile(args.profile)["name"]
    out, theirs = args.out or project_root() / "out" / name, committed(name)
    if args.dry_run or not (theirs / "tables").is_dir() or out.resolve() == theirs.resolve():
        return code
    try:
        _, lines = compare(out, theirs)
    except UserError as error:  # such as results that have no run in common
        lines = [printable(error, 1000)]  # it names two folders
    print(f"beside results/profiles/{name}: {lines[-1]} (t3 compare {os.path.relpath(out)})")

    return code


def compare(args: argparse.Namespace) -> int:
    """Carry out `t3 compare`. Returns 1 if something that both folders have differs."""
    from t3lab.grid.status import committed, earlier_manifest
    from t3lab.report.compare import compare

    other = args.b
    if other is None and args.a.is_dir():
        profile = str(earlier_manifest(args.a / "manifest.json").get("profile", "unknown"))
        other = committed(profile)
        if not (other / "tables").is_dir():
            raise UserError(f"no results of profile {profile} are committed: give two folders")
    differs, lines = compare(args.a, other or args.a)
    print(*lines, sep="\n")
    return int(differs)


# ---- one model on one split of TOFU -------------------------------------------------------------


def builtin(name: str, data: str | None = None) -> Path:
    """Train a built-in model unless it is cached or given, and return its folder.

    name: builtin:full, builtin:retain90 or builtin:retain95, and @PROFILE (default smoke).
    data: a folder with TOFU's files in place of the profile's data.
    """
    from t3lab.profiles import load_profile
    from t3lab.world import bases
    from t3lib.core.files import project_root

    base = name.removeprefix("builtin:").partition("@")[0]
    if base not in BUILTIN:
        raise UserError(f"--model {name}: builtin models are {', '.join(BUILTIN)}")
    given = load_profile(name.partition("@")[2] or "smoke")["models"].get(base)
    return project_root() / given if given else bases.ensure_base(stage_of(name, data), base)


def stage_of(name: str, data: str | None) -> Any:
    """Return the stage of a built-in model, see `builtin`."""
    from t3lab import profiles
    from t3lab.study import study

    profile = profiles.load_profile(name.partition("@")[2] or "smoke")
    return study.stage_of(data or profile["data"], profile["stage"])


def model_of(args: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """Load a model and its tokenizer; a built-in one on the rows of --data."""
    is_builtin = name.startswith("builtin:")
    return load_model(args, str(builtin(name, args.data)) if is_builtin else name)


def source_of(args: argparse.Namespace) -> "Source":
    """Return where the rows of --split come from: a folder, the Hub, or the built-in stage."""
    from t3lab.world import bases
    from t3lib.core import hub
    from t3lib.core.names import HUB_DATA

    # a built-in model knows only the authors that its stage chose, also if --data is a folder
    if args.model.startswith("builtin:"):
        return bases.rows(stage_of(args.model, args.data))
    if args.data in (None, "builtin"):
        raise UserError("--data is needed: hub, or a folder with TOFU's files")
    if args.data == "hub":
        hub.check_dataset(HUB_DATA["path"])
    source: Source = args.data
    return source


def fit(args: argparse.Namespace) -> None:
    """Carry out `t3 tofu fit`: train a head on the rows of a split."""
    check_out(args.out, empty=not args.overwrite)

    # the settings are checked before torch is imported
    given = {"seed": args.seed} | dict(args.set)
    template = template_of(given)
    T = check_temperature(given.pop("T", TEMPERATURE))
    ours = {name: check(name, given.pop(name)) for name in ("gate", "tail") if name in given}
    if "steps" in given:
        raise UserError("--set steps is for own rows: a split counts epochs")
    if "epochs" in given:
        given.setdefault("warmup_epochs", given["epochs"] / 4)
    settings = fit_settings(given)

    from t3lib.core.rows import check_disjoint, templated
    from t3lib.tofu import data
    from t3lib.tofu.fit import fit_on_rows

    source = source_of(args)

    forget, retain = (
        data.load_rows(source, part) for part in (args.split, data.retain_of(args.split))
    )
    check_disjoint(forget, retain)
    model, tokenizer = model_of(args, args.model)
    tokenizer = templated(tokenizer, template)
    head = fit_on_rows(
        model, tokenizer, forget, retain, settings, attention_mask=args.attention_mask
    )

    # what only a head decides: no training depends on it
    head.temperature, head.info["split"] = T, args.split
    for name, value in ours.items():
        setattr(head, name, value)
    if template:
        head.info["template"] = template
    head.save_pretrained(args.out, overwrite=args.overwrite)
    print(
        f"trained a head with {head.num_parameters:,} parameters on {len(forget)} rows to forget"
        f" and {len(retain)} rows to keep, saved to {args.out}"
    )


def evaluate(args: argparse.Namespace) -> None:
    """Carry out `t3 tofu evaluate`: compute every metric and write them as one JSON file."""
    temperatures = args.temper
    for args.temper in temperatures or [None]:  # each is checked before torch is imported
        check_dials(args)
    for path in filter(None, (args.out, args.openunlearning)):
        if path.is_dir():
            raise UserError(f"{path} is a folder: name a file")
    if args.openunlearning and len(temperatures or []) > 1:
        raise UserError("--openunlearning: such a file holds one model, so give one T")

    from t3lab import results
    from t3lab.study import study
    from t3lib.classifier.head import T3Head
    from t3lib.core.files import write_json
    from t3lib.tofu import evaluation
    from t3lib.tofu.suite import AS_THERE, SUITE, logs_of

    if args.openunlearning and not AS_THERE.items() <= vars(args).items():
        options = " and ".join(
            f"--{name.replace('_', '-')} {how}" for name, how in AS_THERE.items()
        )
        raise UserError(f"--openunlearning: its numbers are computed with {options}")

    scoring = evaluation.Scoring(args.attention_mask, args.truth_ratio, args.max_new_tokens)
    source = source_of(args)
    rows = study.evaluation_rows(source, args.split)
    unseen, why = unseen_rows(args.split, source)
    scored = {"forget": rows["forget"], "unseen": unseen}
    head = T3Head.from_pretrained(args.head) if args.head else None
    model, tokenizer = model_of(args, args.model)
    tilts: Any = None
    if head is not None:
        tokenizer = in_template_of(head, tokenizer)
        under_heads(args, model, tokenizer, [head])  # checks them before anything is computed
        tilts = [(head, T) for T in temperatures or [head.temperature]]

    reference = reference_for(args, scored, replace(scoring, generate=False), head)
    report = evaluation.evaluate(model, tokenizer, rows, scoring, tilts=tilts, reference=reference)
    reports: list[Any] = [report] if tilts is None else report
    found = reference.get(SUITE) if isinstance(reference, Mapping) else None
    known_by = found.get("mia_min_k") if isinstance(found, Mapping) else None

    for each, tilt in zip(reports, tilts or [(None, 1.0)]):
        known = measured((model, tokenizer), scored, args.attention_mask, tilt, known_by)
        each[SUITE] = {name: reduce(getitem, place, each) for name, place in NAMES.items()} | known

    record = reports[0] if len(reports) == 1 else {"by_temperature": reports}
    asked = {name: value for name, value in vars(args).items() if name not in ("run", "parser")}
    asked["temper"] = temperatures
    record["provenance"] = results.provenance(model=model, data=rows, parameters=asked)
    write_json(args.out, record)
    if args.openunlearning:
        write_json(args.openunlearning, logs_of(reports[0]))

    for each in reports:
        print(summary(each))

    if why:
        empty = f"{args.parser.prog}: privleak and mia_* stay empty: {why}"
        print(empty, file=sys.stderr)


def summary(report: Mapping[str, Any]) -> str:
    """Return one line with the headline numbers of an evaluation."""
    keys = ("forget_quality", "ks_statistic", "mu_rouge", "model_utility")
    fq, D, mu_rouge, mu = ("none" if report[key] is None else f"{report[key]:.4f}" for key in keys)
    at = "" if report.get("T") is None else f"T={report['T']:g}: "
    return f"{at}Forget Quality {fq} (D {D}), MU-ROUGE {mu_rouge}, Model Utility {mu}"


def reference_for(
    args: argparse.Namespace, rows: Mapping[str, Any], scoring: Any, head: Any = None
) -> Any:
    """Return the truth ratios of a retrained model, or None without one.

    It is the model or file of --reference, or the built-in retrained model of the split. A model is
    asked with the template arguments of `head`.
    """
    from t3lib.core.files import read_json
    from t3lib.tofu import data, evaluation
    from t3lib.tofu.suite import SUITE, read_logs

    name = args.reference
    if name is None and args.model.startswith("builtin:"):
        profile = args.model.partition("@")[2] or "smoke"
        name = f"builtin:{data.retain_of(args.split)}@{profile}"

    if name is None:
        print(f"{args.parser.prog}: no --reference: Forget Quality stays empty", file=sys.stderr)
        return None

    if Path(name).suffix == ".json" or Path(name).is_file():
        records = read_json(name)
        if isinstance(records, dict) and "forget_truth_ratio" in records:
            return read_logs(records)
        if not isinstance(records, dict | list):
            raise UserError(f"--reference {name}: not a JSON file written by t3 tofu evaluate")
        return records

    model, tokenizer = model_of(args, name)
    tokenizer = tokenizer if head is None else in_template_of(head, tokenizer)
    report = evaluation.evaluate(model, tokenizer, {"forget": rows["forget"]}, scoring)
    known = measured((model, tokenizer), rows, scoring.attention_mask)

    return report | {SUITE: known}


def unseen_rows(split: str, source: "Source") -> tuple[list[Any], str]:
    """Return the split's rows that no model saw, TOFU's holdoutNN, and why there are none or ""."""
    from t3lib.tofu import data

    try:
        return data.load_rows(source, split.replace("forget", "holdout")), ""
    except (UserError, ValueError) as error:  # ValueError: the Hub's data set has no such part
        return [], printable(error)


def measured(
    loaded: tuple[Any, Any],
    rows: Mapping[str, Any],
    mask: str,
    tilt: Any = (None, 1.0),
    reference: float | None = None,
) -> dict[str, float | None]:
    """Return the measures of `suite` for a model, or for a head on it.

    loaded: model and tokenizer. rows: {"forget", "unseen"}. mask: the attention mask. tilt: head
    and T. reference: mia_min_k of a retrained model.
    """
    from t3lib.core.models import pad_id
    from t3lib.tofu import suite
    from t3lib.tofu.reader import Reading
    from t3lib.tofu.writing import eos_ids

    model, tokenizer = loaded
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), mask)
    forget, unseen = (
        suite.score_answers(model, tokenizer, rows[name], reading, tilt)
        for name in ("forget", "unseen")
    )
    return suite.suite(forget, unseen, 0.5 if reference is None else reference)


def tune(args: argparse.Namespace) -> None:
    """Carry out `t3 tofu tune`: search the hyperparameters of each method and split of a profile.

    The choice is written beside the profile and used from then on.
    """
    from t3lab import profiles
    from t3lab.study.tune import tune_profile

    profile = profiles.load_profile(args.profile, tuned=False)
    profile = profiles.override(profile, data=args.data, methods=args.method, splits=args.split)
    path = profiles.tuned_path(args.profile)
    tune_profile(profile, path, methods=args.method)


PAPER = Offer("the paper again (in a checkout)", add_verbs, {"builtin": builtin})
