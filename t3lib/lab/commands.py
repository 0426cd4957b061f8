"""Carry out the verbs unlearn, evaluate, audit, generate and tune: load, call the library, say what
was made.

args: the parsed arguments of `cli.parser`, in every function.
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from t3lib.classifier import artefact
from t3lib.classifier.head import T3Head
from t3lib.core import hub
from t3lib.core.errors import UserError, printable
from t3lib.core.files import atomic_write, cache_dir, read_json, write_json
from t3lib.core.models import check_ids, context_length, load_model, pad_id
from t3lib.core.names import HUB_DATA
from t3lib.core.rows import Row, check_disjoint, check_row, encode_rows
from t3lib.core.settings import CHOICES, TEMPERATURE, check_temperature, fit_settings
from t3lib.lab import profiles, results
from t3lib.lab.audit import run
from t3lib.lab.own import evidence, own, rows
from t3lib.lab.own.asking import asked
from t3lib.lab.report import audit as audit_tables
from t3lib.lab.report import own as report
from t3lib.lab.report import render
from t3lib.lab.study import study
from t3lib.lab.study.tune import tune_profile
from t3lib.lab.world import bases
from t3lib.sampler import belonging
from t3lib.sampler.one_call import fit_without_evidence
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import data as tofu
from t3lib.tofu import evaluation
from t3lib.tofu.likelihood import Tilt

# options that only own rows have
OWN_ROWS = ("other", "system", "no_system", "rewordings", "secret_column", "columns")
FOR_OWN_ROWS = "is for own rows (--forget FILE --retain FILE)"
ANSWER = 10_000  # most characters in one line of `t3 generate`


def stage_for(args: argparse.Namespace) -> bases.Stage:
    """Return the stage of the built-in models and rows: the profile's. If --data is a folder, the
    stage reads it.
    """
    profile = profiles.load_profile(args.profile)
    return study.stage_of(args.data or profile["data"], profile["stage"])


def model_of(args: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    name: a Hub id, a folder, or builtin:full, builtin:retain90 or builtin:retain95.
    """
    if name.startswith("builtin:"):
        base = name.removeprefix("builtin:")
        if base not in ("full", "retain90", "retain95"):
            raise UserError(f"--model {name}: builtin models are full, retain90 and retain95")
        name = str(bases.ensure_base(stage_for(args), base))
    folder = Path(name).expanduser()
    if folder.is_dir() and not any(
        (folder / file).is_file() for file in ("config.json", "adapter_config.json")
    ):
        raise UserError(
            f"--model {name}: this folder holds no model, because it has no config.json"
        )
    return load_model(name, dtype=args.dtype, device=args.device, load_in=args.load_in)


def source_of(args: argparse.Namespace) -> tofu.Source:
    """Return where the rows of --split come from: a folder, the Hub, or the built-in stage."""
    # a built-in model knows only the authors that its stage chose, also if --data is a folder
    if args.model.startswith("builtin:"):
        return bases.rows(stage_for(args))
    if args.data in (None, "builtin"):
        raise UserError("--data is needed: hub, or a folder with TOFU's files")
    if args.data == "hub":
        hub.ask(HUB_DATA["path"])
    return args.data


def under_heads(
    args: argparse.Namespace, base: Any, tokenizer: Any, heads: Sequence[T3Head], T: Any
) -> T3ForCausalLM:
    """Put heads on a base, and return the tilted model.

    T: by default the temperature of the first head. UserError for a head that was trained on
    another base or tokenizer.
    """
    placed = [head.to(base.device) for head in heads]
    if args.strength is not None:
        for head in placed:
            head.w = args.strength
    checks: dict[str, Any] = {"tokenizer": tokenizer, "other_base": args.other_base}
    return T3ForCausalLM(base, placed, T, allow_sharpening=args.allow_sharpening, **checks)


def unlearn(args: argparse.Namespace) -> int:
    """Train a head on the rows of a split, or on own rows with a report.

    Nothing is written unless everything succeeds. Returns the exit code.
    """
    if not args.forget and args.split is None:
        raise UserError("give either --forget FILE --retain FILE, or --split with --data")
    if args.steps is not None and args.epochs is not None:
        raise UserError("give either --steps or --epochs")
    check_out(args.out, empty=not args.overwrite)
    names = (*vars(fit_settings({})), "temperature", "steps")
    settings = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    if "epochs" in settings:
        settings.setdefault("warmup_epochs", settings["epochs"] / 4)
    # Wrong settings are named before anything is loaded.
    fixed: dict[str, Any] = {
        name: settings.pop(name)
        for name in ("temperature", "lr", "steps", "seed")
        if name in settings
    }
    fixed |= {"strength": args.strength, "allow_sharpening": args.allow_sharpening}
    choices = own.Choices(**fixed, fit=settings)
    sets: dict[str, Any]
    if args.forget:
        sets = own_rows(
            args, None, "forget", "retain", "other", "unseen", "holdout_forget", "holdout_retain"
        )
        wanted = rows.Rows(**sets, rewordings=rewordings_of(args)).checked()
    else:
        refuse(
            args, ("steps", *OWN_ROWS, "unseen", "holdout_forget", "holdout_retain"), FOR_OWN_ROWS
        )
        settings |= {name: fixed[name] for name in ("temperature", "lr", "seed") if name in fixed}
        settings |= {} if args.strength is None else {"w": args.strength}
        if settings.get("temperature") == "auto":
            raise UserError(f"--temperature auto {FOR_OWN_ROWS}")
        source = source_of(args)
        splits = {"forget": args.split, "retain": tofu.retain_of(args.split)}
        sets = {name: tofu.load_rows(source, split) for name, split in splits.items()}
        check_disjoint(sets["forget"], sets["retain"])
    model, tokenizer = model_of(args, args.model)
    check_system(args.system, tokenizer)
    start = time.perf_counter()
    # Features are kept on disk while the head is trained, because they grow with the rows.
    with tempfile.TemporaryDirectory(prefix="rows-", dir=cache_dir("features")) as features:
        if args.forget:
            unlearned = own.unlearn(model, tokenizer, wanted, replace(choices, cache=features))
            head = unlearned.heads[0]
        else:
            T = settings.pop("temperature", TEMPERATURE)
            check_temperature(T, allow_sharpening=args.allow_sharpening)
            head = fit_without_evidence(
                model,
                tokenizer,
                sets["forget"],
                sets["retain"],
                fit_settings(settings),
                attention_mask=args.attention_mask,
                cache=features,
            )
            head.temperature, head.info["split"] = T, args.split
    head.save_pretrained(args.out, overwrite=args.overwrite)
    n_forget, n_retain = len(sets["forget"]), len(sets["retain"])
    print(
        f"trained a head with {head.num_parameters:,} parameters on {n_forget} rows to forget and"
        f" {n_retain} rows to keep in {time.perf_counter() - start:.1f} s, saved to {args.out}"
    )
    status = write_report(unlearned.report, args.out) if args.forget else 0  # type: ignore[arg-type]
    row = sets["forget"][0]  # plain text has no question, so its first words are given
    print(next_command(args, asked(row) or " ".join(row["answer"].split()[:3])))
    return status


def refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """UserError for an option that this form of a command would ignore.

    names: of the options. why: end of the message.
    """
    for name in names:
        if getattr(args, name) is not None and getattr(args, name) is not False:
            raise UserError(f"--{name.replace('_', '-')} {why}")


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


def own_rows(args: argparse.Namespace, head: T3Head | None, *names: str) -> dict[str, list[Row]]:
    """Read the rows of the files that were given under these option names.

    They are asked in the head's form unless the command gives another. UserError for an attention
    mask that hides tokens, because nobody who uses a model hides them.
    """
    if args.attention_mask != CHOICES["attention_mask"][0]:
        raise UserError(
            f"--attention-mask {args.attention_mask} hides tokens that a model sees in use, so it"
            " is only for --split"
        )
    read = {"columns": args.columns, "secret": None, "system": system_for(args, head)}
    files = {name: file for name in names if (file := getattr(args, name)) is not None}
    secret = {"secret": args.secret_column}
    return {
        name: rows.load(file, **read | (secret if name == "forget" else {}))
        for name, file in files.items()
    }


def system_for(args: argparse.Namespace, head: T3Head | None) -> str | None:
    """Return the system text of questions that have none: the given one, otherwise the head's,
    otherwise None.
    """
    if args.system is not None or args.no_system or head is None:
        return args.system  # type: ignore[no-any-return]
    return belonging.system_of(head)


def rewordings_of(args: argparse.Namespace) -> dict[str, list[str]]:
    """Read the other wordings of the questions to forget."""
    return rows.rewordings(args.rewordings) if args.rewordings else {}


def check_system(system: str | None, tokenizer: Any) -> None:
    """UserError for a system text if the tokenizer has no chat template to put it into."""
    if system is not None and tokenizer.chat_template is None:
        raise UserError(
            "--system: this model's tokenizer has no chat template, so a system text has no place"
        )


def write_report(numbers: dict[str, Any], folder: Path) -> int:
    """Write and print the report on own rows, and return the exit code: 3 if it says that the
    unlearning failed.

    numbers: a `Report`.
    """
    path = report.save_report(numbers, folder)
    print("\n".join(numbers["verdict"]["lines"]))
    if "choice" in numbers:
        print("T = {T:g}, w = {w:g}, learning rate {lr:g}: {reason}".format(**numbers["choice"]))
    print(f"report: {path}")
    return 0 if numbers["verdict"]["success"] else 3


def next_command(args: argparse.Namespace, question: str) -> str:
    """Return the `t3 generate` command that asks the unlearned model, with the same base, loaded in
    the same way.
    """
    builtin = ["profile", "data"] if args.model.startswith("builtin:") else []
    words = ["t3", "generate", "--head", str(args.out)]
    # the head knows the system text
    for name in ["model", *builtin, "dtype", "device", "load_in"]:
        if (value := getattr(args, name)) is not None:
            words += [f"--{name.replace('_', '-')}", value]
    words += ["--allow-sharpening"] * args.allow_sharpening
    return shlex.join([*words, "--", printable(question)])


def assess(args: argparse.Namespace) -> int:
    """Carry out `t3 evaluate` on own rows: report on a model, or on several heads combined on one
    base.
    """
    check_out(args.out)
    if (args.out / artefact.CONFIG).exists() and not args.overwrite:
        raise UserError(
            f"--out {args.out} holds a head and maybe its report: choose another folder, or"
            " --overwrite"
        )
    if len(args.temperature or []) > 1:
        raise UserError("--temperature: give one T for own rows")
    refuse(
        args,
        ("reference", "truth_ratio", "max_new_tokens"),
        "is not used with --forget and --retain",
    )
    names = [] if args.head is None else args.head.split(",")
    if not all(name.strip() for name in names):
        raise UserError(f"--head {args.head!r}: an empty name")
    heads = [T3Head.from_pretrained(name) for name in names]
    sets = own_rows(
        args, heads[0] if heads else None, "forget", "retain", "other", "holdout", "unseen"
    )
    held = {"holdout_retain": sets.pop("holdout", ())}
    wanted = rows.Rows(**sets, **held, rewordings=rewordings_of(args)).checked()  # type: ignore[arg-type]
    model, tokenizer = model_of(args, args.model)
    check_system(args.system, tokenizer)
    if heads:
        model = under_heads(args, model, tokenizer, heads, args.temperature and args.temperature[0])
    return write_report(evidence.assess(model, tokenizer, wanted), args.out)


def evaluate(args: argparse.Namespace) -> int:
    """Carry out `t3 evaluate`: compute every metric and write them as one JSON file."""
    if args.forget:
        return assess(args)
    if args.split is None:
        raise UserError(
            "--split is needed: forget01, forget05 or forget10; or own rows: --forget FILE --retain"
            " FILE"
        )
    refuse(args, (*OWN_ROWS, "holdout", "unseen"), FOR_OWN_ROWS)
    for name in ("truth_ratio", "max_new_tokens"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(evaluation.Scoring, name))
    scoring = evaluation.Scoring(
        args.attention_mask, args.truth_ratio, args.max_new_tokens,
        allow_sharpening=args.allow_sharpening,
    )  # fmt: skip
    wanted_rows = study.evaluation_rows(source_of(args), args.split)
    head = T3Head.from_pretrained(args.head) if args.head else None
    model, tokenizer = model_of(args, args.model)
    tilts: list[Tilt] | None = None
    if head is not None:
        tilts = [(head, T) for T in args.temperature or [head.temperature]]
        under_heads(args, model, tokenizer, [head], tilts[0][1])  # before anything is computed
    reference = reference_for(args, wanted_rows, replace(scoring, generate=False))
    report = evaluation.evaluate(
        model, tokenizer, wanted_rows, scoring, tilts=tilts, reference=reference
    )
    reports = [report] if tilts is None else report
    record = reports[0] if len(reports) == 1 else {"by_temperature": reports}
    asked = {name: value for name, value in vars(args).items() if name not in ("run", "parser")}
    record["provenance"] = results.provenance(model=model, data=wanted_rows, parameters=asked)
    write_json(args.out, record)
    for each in reports:
        print(summary(each))
    return 0


def summary(report: dict[str, Any]) -> str:
    """Return one line with the headline numbers of an evaluation."""
    names = ("forget_quality", "ks_statistic", "mu_rouge", "model_utility")
    fq, D, mu_rouge, mu = (
        "none" if report[name] is None else f"{report[name]:.4f}" for name in names
    )
    at = "" if report.get("T") is None else f"T={report['T']:g}: "
    return f"{at}Forget Quality {fq} (D {D}), MU-ROUGE {mu_rouge}, Model Utility {mu}"


def reference_for(
    args: argparse.Namespace, rows: dict[str, Any], scoring: evaluation.Scoring
) -> Any:
    """Return the truth ratios of a retrained model, or None without one.

    It is the model or file of --reference, or the built-in retrained model of the split.
    """
    name = args.reference
    if name is None and args.model.startswith("builtin:"):
        name = f"builtin:{tofu.retain_of(args.split)}"
    if name is None:
        print("t3 evaluate: no --reference, so Forget Quality stays empty", file=sys.stderr)
        return None
    if Path(name).suffix == ".json" or Path(name).is_file():
        records = read_json(name)
        if not isinstance(records, dict | list):
            raise UserError(f"--reference {name}: not a JSON file written by t3 evaluate")
        return records
    model, tokenizer = model_of(args, name)
    return evaluation.evaluate(model, tokenizer, {"forget": rows["forget"]}, scoring)


def audit(args: argparse.Namespace) -> int:
    """Carry out `t3 audit`: measure what a model knows of forgotten rows, without and with its
    head, and print a verdict.
    """
    run.check_samples(args.samples)
    head = T3Head.from_pretrained(args.head) if args.head else None
    sets = rows.checked_sets(own_rows(args, head, "forget", "unseen", "retain", "other"))
    model, tokenizer = model_of(args, args.model)
    judged = model
    tilts: list[Tilt] = [(None, 1.0)]
    if head is not None:
        T = head.temperature if args.temperature is None else args.temperature
        judged = under_heads(args, model, tokenizer, [head], T)
        tilts.append((head, T))
    found = run.audit_rows(model, tokenizer, sets, tilts, samples=args.samples, ks=args.k or ())
    named = dict(zip(["before", "after"] if head else [""], found))
    asked_with = {"samples": args.samples, "temperature": tilts[-1][1] if head else None}
    origin = results.provenance(model=model, data=sets, parameters=asked_with)
    write_json(args.out / "audit.json", {"audit": named, "provenance": origin})
    table = audit_tables.of_rows(named)
    with atomic_write(args.out / "audit.md") as handle:
        handle.write(render.markdown(table))
    print(table.to_string(index=False, na_rep="", float_format="{:.3f}".format))
    for name, why in sorted(
        {each for sets in named.values() for each in sets["forget"]["empty"].items()}
    ):
        print(f"empty: {name}: {why}")
    numbers = evidence.judge(
        judged, tokenizer, rows.Rows(**{"retain": (), **sets}, rewordings=rewordings_of(args))
    )
    status = write_report(numbers, args.out)
    return status if head else 0


def generate(args: argparse.Namespace) -> None:
    """Print the base's and the unlearned model's greedy answers."""
    if not all(question.strip() for question in args.question):
        raise UserError("an empty question")
    head = T3Head.from_pretrained(args.head)
    base, tokenizer = model_of(args, args.model)
    unlearned = under_heads(args, base, tokenizer, [head], args.temperature)
    check_system(args.system, tokenizer)
    system = system_for(args, head)
    plain = (
        args.system is None
        and not args.no_system
        and head.info.get("chat_template") == belonging.PLAIN
    )
    begun = [
        {"question": question, "answer": "-", "system": system, "raw": plain}
        for question in args.question
    ]
    begun = [check_row(row, f"question {number}") for number, row in enumerate(begun, 1)]
    belonging.check_prompt(head, tokenizer, begun)
    prompts = [example.ids[: example.n_prompt] for example in encode_rows(tokenizer, begun)]
    check_ids(base, prompts, pad_id(tokenizer))
    evaluation.check_room(context_length(base), max(map(len, prompts)), args.max_new_tokens)
    for question, ids in zip(args.question, prompts):
        print(f"Q          {printable(question, ANSWER)}")
        for name, model in (("base", base), (f"T3 T={unlearned.temperature:g}", unlearned)):
            text = answer(model, tokenizer, ids, args.max_new_tokens)
            print(f"{name:<10} {printable(text, ANSWER)}")


def answer(model: Any, tokenizer: Any, prompt: list[int], max_new_tokens: int) -> str:
    """Return the greedy answer to one prompt on one line, without special tokens.

    prompt: token ids.
    """
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens
    )
    return printable(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True), 4000)


def tune(args: argparse.Namespace) -> None:
    """Search the hyperparameters of each method and split of a profile.

    The choice is written beside the profile and used from then on.
    """
    profile = profiles.load_profile(args.profile, tuned=False)
    profile = profiles.override(profile, data=args.data, methods=args.method, splits=args.split)
    path = profiles.tuned_path(args.profile)
    tune_profile(profile, path, methods=args.method, fine=args.fine)
