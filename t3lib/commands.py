"""What the verbs unlearn, evaluate, generate and tune do: load, call the library, say what was made."""

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from t3lib import profiles, results, tofu
from t3lib.errors import UserError, printable
from t3lib.files import cache_dir, read_json, write_json
from t3lib.models import load_model
from t3lib.settings import fit_settings
from t3lib.study import study
from t3lib.world import bases

ANSWER = 10_000  # characters of one line of `t3 generate`


def stage_for(args: argparse.Namespace) -> bases.Stage:
    """The stage that `builtin` means for this command: the profile's, with --data laid over it when it is a folder."""
    profile = profiles.load_profile(args.profile)
    data = getattr(args, "data", None)
    if data in (None, "builtin"):
        data = profile["data"] if data is None else "builtin"
    return study.stage_of(data, profile["stage"])


def model_of(args: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """Load a Hub id, a folder, or builtin:full / builtin:retain90 / builtin:retain95."""
    if name.startswith("builtin:"):
        base = name.removeprefix("builtin:")
        if base not in ("full", "retain90", "retain95"):
            raise UserError(f"--model {name}: builtin models are full, retain90 and retain95")
        name = str(bases.ensure_base(stage_for(args), base))
    model, tokenizer = load_model(name, dtype=args.dtype, device=args.device, load_in=args.load_in)
    return model, tokenizer


def source_of(args: argparse.Namespace) -> tofu.Source:
    """Where the rows of --split come from: a folder, the Hub, or the built-in stage's own rows."""
    builtin = args.model.startswith("builtin:")
    if args.data in (None, "builtin"):
        if not builtin:
            raise UserError("--data is needed: hub, or a folder with TOFU's files")
        return bases.rows(stage_for(args))
    # A built-in model of a folder's stage knows only the authors that the stage chose.
    return bases.rows(stage_for(args)) if builtin else args.data


def unlearn(args: argparse.Namespace) -> None:
    """Train a head on the user's rows and save it; nothing is written unless everything worked."""
    from t3lib.unlearning import unlearn as train_head

    own = args.forget is not None or args.retain is not None
    if own == (args.split is not None):
        raise UserError("give either --forget FILE --retain FILE, or --split with --data")
    if own and (args.forget is None or args.retain is None):
        raise UserError("--forget and --retain belong together")
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise UserError(f"--out {args.out} exists already and is not an empty folder")
    settings = {name: getattr(args, name) for name in vars(fit_settings({})) if hasattr(args, name)}
    fit_settings(settings)  # before anything is loaded
    if own:
        forget, retain = tofu.read_rows(args.forget), tofu.read_rows(args.retain)
    else:
        source = source_of(args)
        forget = tofu.load_rows(source, args.split)
        retain = tofu.load_rows(source, tofu.retain_of(args.split))
    tofu.check_disjoint(forget, retain)
    model, tokenizer = model_of(args, args.model)
    start = time.perf_counter()
    # On disk while the head is trained, for in memory they would grow with the rows; then gone.
    with tempfile.TemporaryDirectory(prefix="rows-", dir=cache_dir("features")) as features:
        unlearned = train_head(
            model,
            tokenizer,
            forget,
            retain,
            temperature=args.temperature,
            attention_mask=args.attention_mask,
            allow_sharpening=args.allow_sharpening,
            split=args.split,
            cache=features,
            **settings,
        )
    head = unlearned.heads[0]
    head.save_pretrained(args.out, overwrite=False)
    print(f"head with {head.num_parameters:,} parameters trained on {len(forget)} forget and {len(retain)} retain rows "
          f"in {time.perf_counter() - start:.1f} s, saved to {args.out}")  # fmt: skip
    print(
        shlex.join(["t3", "generate", "--model", args.model, "--head", str(args.out), printable(forget[0]["question"])])
    )


def evaluate(args: argparse.Namespace) -> None:
    """Every metric of `t3 evaluate`, written as one JSON."""
    from t3lib.evaluation import evaluate as measure
    from t3lib.head import T3Head

    if args.split is None:
        raise UserError("--split is needed: forget01, forget05 or forget10")
    rows = study.evaluation_rows(source_of(args), args.split)
    head = T3Head.from_pretrained(args.head) if args.head else None
    model, tokenizer = model_of(args, args.model)
    settings = {"attention_mask": args.attention_mask, "truth_ratio": args.truth_ratio}
    reference = reference_for(args, rows, settings)
    settings |= {"max_new_tokens": args.max_new_tokens}
    if head is None:
        report = measure(model, tokenizer, rows, reference=reference, **settings)
    else:
        check_head(head, model, tokenizer)
        wanted = args.temperature or [head.temperature]
        reports = measure(model, tokenizer, rows, tilts=[(head, T) for T in wanted], reference=reference, **settings)
        reports = [{"T": T, **report} for T, report in zip(wanted, reports)]
        report = reports[0] if len(reports) == 1 else {"by_temperature": reports}
    from t3lib.cli import arguments_of

    report["provenance"] = results.provenance(model=model, data=rows, parameters=arguments_of(args))
    write_json(args.out, report)
    for line in report.get("by_temperature", [report]):
        print(summary(line))


def check_head(head: Any, model: Any, tokenizer: Any) -> None:
    """Refuse a head of another base or tokenizer before anything is computed with it."""
    from t3lib import artefact

    embeddings = model.get_output_embeddings().weight
    artefact.check_sizes(head, model.config.get_text_config().hidden_size, embeddings.shape[0])
    artefact.check_tokenizer(head, tokenizer)
    artefact.check_base(head, model)


def summary(report: dict[str, Any]) -> str:
    """One line of the headline numbers."""

    def said(value: float | None) -> str:
        return "none" if value is None else f"{value:.4f}"

    at = "" if report.get("T") is None else f"T={report['T']:g}: "
    return (f"{at}Forget Quality {said(report['forget_quality'])} (D {said(report['ks_statistic'])}), "
            f"MU-ROUGE {said(report['mu_rouge'])}, Model Utility {said(report['model_utility'])}")  # fmt: skip


def reference_for(args: argparse.Namespace, rows: dict[str, Any], settings: dict[str, Any]) -> Any:
    """The retrained model's truth ratios: given, or the built-in retain model that belongs to the split."""
    given = args.reference
    if given is None and args.model.startswith("builtin:"):
        given = f"builtin:{tofu.retain_of(args.split)}"
    if given is None:
        print("t3 evaluate: no --reference, so Forget Quality is left empty", file=sys.stderr)
        return None
    if Path(given).suffix == ".json" or Path(given).is_file():
        if not isinstance(found := read_json(given), dict | list):
            raise UserError(f"--reference {given}: not a JSON file written by t3 evaluate")
        return found
    from t3lib.evaluation import evaluate as measure

    model, tokenizer = model_of(args, given)
    return measure(model, tokenizer, {"forget": rows["forget"]}, generate=False, **settings)


def generate(args: argparse.Namespace) -> None:
    """Print the base's and the unlearned model's greedy answers side by side."""
    from t3lib.head import T3Head
    from t3lib.sampler import T3ForCausalLM

    if not all(question.strip() for question in args.question):
        raise UserError("an empty question")
    from t3lib.evaluation import check_room
    from t3lib.models import check_ids, context_length, pad_id

    head = T3Head.from_pretrained(args.head)
    base, tokenizer = model_of(args, args.model)
    check_head(head, base, tokenizer)
    T = head.temperature if args.temperature is None else args.temperature
    unlearned = T3ForCausalLM(base, head, temperature=T, allow_sharpening=args.allow_sharpening)
    prompts = [tofu.encode_prompt(tokenizer, question) for question in args.question]
    check_ids(base, prompts, pad_id(tokenizer))
    check_room(context_length(base), max(map(len, prompts)), args.max_new_tokens)
    for question in args.question:
        print(f"Q          {printable(question, ANSWER)}")
        for name, model in (("base", base), (f"T3 T={T:g}", unlearned)):
            text = answer(model, tokenizer, question, args.max_new_tokens)
            print(f"{name:<10} {printable(text, ANSWER)}")


def answer(model: Any, tokenizer: Any, question: str, max_new_tokens: int) -> str:
    """Greedy answer to one question, without special tokens."""
    import torch

    ids = torch.tensor([tofu.encode_prompt(tokenizer, question)], device=model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()


def tune(args: argparse.Namespace) -> None:
    """The paper's search for each (method, split) of a profile; the choice is laid over the profile from then on."""
    from t3lib.study.tune import tune_profile

    tune_profile(args.profile, splits=args.split, methods=args.method, data=args.data)
