"""`t3 reproduce --widths`: how T3's learning rate, T and price change with a model's width.

At every width d the models of the built-in world are trained anew, with the profile's rows, depth,
epochs and size of an attention head. A world is a seed of the built-in world: other authors, other
rows, another base and other retrained models. Heads are fitted at every rate of `RATES` and scored
at every T of `TEMPERATURES` on the 10% split. Rate and T are chosen by Forget Quality against the
first retrained model and judged against the second.

The result of each width and world is cached, so a killed run continues where it stopped. The tables
and the figure of all widths are written by `report.widths`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from t3lib.classifier.features import Features
from t3lib.classifier.fit import fit_heads
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.files import content_key, project_root, read_json
from t3lib.core.identity import code_key, environment
from t3lib.core.models import pad_id
from t3lib.core.rows import encode_rows
from t3lib.core.settings import hyper_of
from t3lib.lab import profiles, results
from t3lib.lab.report import render, widths
from t3lib.lab.study.methods import evaluated, retrained, run_method, subject
from t3lib.lab.study.study import Study, cached_answers, open_study, stage_of, timed
from t3lib.lab.study.unlearned import head_settings, t3_features
from t3lib.lab.world import bases
from t3lib.tofu.evaluation import Report, metrics_of, score
from t3lib.tofu.likelihood import Reading, answer_positions
from t3lib.tofu.metrics import forget_quality

SPLIT = "forget10"
SEED = 1  # of every head
RATES = tuple(1e-4 * 2**k for k in range(11))
TEMPERATURES = tuple(1 + k / 4 for k in range(13))
BASE_RATES = (0.5, 1.0, 2.0)  # times the profile's rate and √(the profile's width / the width)
LARGE = 512  # from this width on a base has only the two lower rates, and bfloat16 autocast
# What else is changed in the head's training. At profile cpu 100 epochs are 300 steps, with 8 pairs
# a step 1000; the paper's are 1300.
SETTINGS: dict[str, dict[str, Any]] = {
    widths.PLAIN: {},
    widths.SCALED: {},
    "rank=5": {"rank": 5},
    "rank=100": {"rank": 100},
    "epochs=25": {"epochs": 25, "warmup_epochs": 6.25},
    "epochs=400": {"epochs": 400, "warmup_epochs": 100},
    "batch_size=8": {"batch_size": 8},
}


def reproduce_widths(
    profile: str, wanted: Sequence[int], worlds: Sequence[int], out: str | Path | None = None
) -> int:
    """Measure every width in every world, then write the tables and the figure; returns 0.

    wanted: widths d. worlds: seeds of the built-in world. out: results folder, default
    out/PROFILE-width; other widths and worlds that its tables hold stay in them. UserError for a
    profile with other data than the built-in world's.
    """
    chosen = profiles.load_profile(profile)
    if chosen["data"] != "builtin" or chosen["models"]:
        raise UserError(f"--widths: profile {chosen['name']} does not use the built-in world")
    folder = Path(out or project_root() / "out" / f"{chosen['name']}-width")
    hyper = hyper_of(chosen["hyper"], "T3", SPLIT)
    for width in wanted:
        stage, tried = at_width(stage_of("builtin", chosen["stage"]), width)
        for world in worlds:
            found = measured(replace(stage, seed=world), hyper, chosen["evaluation"])
            facts = found["facts"] | {"base_rates": tried}
            grid = pd.DataFrame(found["grid"])
            plain = grid["setting"] == widths.PLAIN  # of the others the best T of each rate is kept
            grid = pd.concat([grid[plain], widths.by_rate(grid[~plain])])
            for name, rows in (("width_grid", grid), ("width", pd.DataFrame([facts]))):
                table = widths.added(folder / "tables" / f"{name}.csv", rows)
                render.write_table(folder / "tables", name, table)
            print("d {d}, world {world}: rate {rate:g}, T {T:g}".format(**facts), flush=True)
    widths.write(folder)
    return 0


def at_width(stage: bases.Stage, width: int) -> tuple[bases.Stage, str]:
    """Return the stage at another width, and as text the final training loss at each learning rate
    that was tried for the base.

    The learning rate with the lowest final loss of the full model in world 0 is taken.
    """
    small = stage.lr * (stage.hidden / width) ** 0.5
    large, heads = width >= LARGE, max(1, width * stage.heads // stage.hidden)
    wide = replace(stage, hidden=width, heads=heads, autocast=large, seed=0)
    tried = {}
    for factor in BASE_RATES[: 2 if large else 3]:
        each = replace(wide, lr=float(f"{small * factor:.3g}"))
        tried[each.lr] = _manifest(bases.ensure_base(each, "full"))["training"]["loss"][-1]
    told = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in tried.items())
    return replace(wide, lr=min(tried, key=tried.__getitem__)), told


def measured(
    stage: bases.Stage, hyper: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `measure(stage, hyper, evaluation)`, from the cache if it is there."""
    key = content_key([asdict(stage), dict(hyper), dict(evaluation)])
    made_by = [code_key(measure, through=True), environment()]
    [entry] = cached_answers(
        "widths", [key], made_by, lambda _: timed(lambda: [measure(stage, hyper, evaluation)])
    )
    found: dict[str, Any] = entry["scores"]
    return found


def measure(
    stage: bases.Stage, hyper: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure T3 in one world at one width.

    stage: the world and the sizes of its models. hyper: T3's settings without rate and T.
    evaluation: as in a profile.

    Returns {"facts": a row of the table `width`, "grid": rows of the table `width_grid`}. MU-ROUGE
    and Model Utility are measured at the chosen rate and T, at the chosen rate with T = 1, and
    before unlearning.
    """
    study = open_study(SPLIT, stage=asdict(stage), evaluation=evaluation)
    [held] = evaluated(study, [subject(study, "Retrained", 1, {})], ["forget"], generate=False)
    began = time.process_time()
    features = t3_features(study)
    norm = float(features.x.square().mean().sqrt())
    grid: list[dict[str, Any]] = []
    for setting, changes in SETTINGS.items():
        unit = norm if setting == widths.SCALED else 1.0
        heads = fit_heads(
            replace(features, x=features.x / unit),
            [head_settings({**hyper, **changes, "lr": rate}, SEED) for rate in RATES],
            vocab_size=study.base.get_output_embeddings().weight.shape[0],
        )
        for head in heads:
            head.A.data /= unit
        grid += [{"setting": setting} | row for row in tempered(study, features, heads, held)]
    best = max((row for row in grid if row["setting"] == widths.PLAIN), key=lambda row: row["fq"])
    settings = {**hyper, "lr": best["rate"], "temperature": best["T"]}
    [before] = run_method(study, "Original", seeds=[], settings={})
    at_best, cold = run_method(
        study, "T3", seeds=[SEED], settings=settings, temperatures=[best["T"], 1.0]
    )
    utility = {"": at_best, "_untempered": cold, "_before": before}
    places = [*study.models.values(), retrained(study, 1)]
    commit = results.provenance()["git_commit"]
    seconds = sum(_manifest(place)["cpu_seconds"] for place in places)
    facts = {
        **{"layers": stage.layers, "parameters": study.base.num_parameters(), "split": SPLIT},
        **best,
        **{
            f"{m}{when}": run["metrics"][m]
            for m in ("mu_rouge", "mu")
            for when, run in utility.items()
        },
        "fq_retrained": held["forget_quality"],
        "feature_norm": norm,
        "feature_sum": float(features.x.abs().sum(1).mean()),
        "lead": lead(study),
        **{
            "base_lr": stage.lr,
            "base_loss": _manifest(study.models["full"])["training"]["loss"][-1],
        },
        **{"autocast": stage.autocast, "vectors": environment()[-1]},
        **{"cpu_seconds": seconds + time.process_time() - began, "commit": commit},
    }
    where = {"d": stage.hidden, "world": stage.seed}
    return {"facts": where | facts, "grid": [where | row for row in grid]}


def tempered(
    study: Study, features: Features, heads: Sequence[T3Head], held: Report
) -> list[dict[str, Any]]:
    """Score every head at every T, and return one row for each.

    A row has the rate, T, Forget Quality and D against both retrained models, and the head's
    margins. held: evaluation of the second retrained model on the forget rows.
    """
    tilts = [(head, T) for head in heads for T in TEMPERATURES]
    forget, scoring = study.evaluation_rows["forget"], replace(study.scoring, generate=False)
    margin = {head: margins(head, features) for head in heads}
    rows = []
    for (head, T), each in zip(
        tilts, score(study.base, study.tokenizer, {"forget": forget}, scoring, tilts)
    ):
        report = metrics_of(each, study.reference, scoring.truth_ratio)
        p, distance = forget_quality(*(one["truth_ratio"]["forget"] for one in (report, held)))
        row = {"rate": head.info["hyperparameters"]["lr"], "T": T, "fq": report["forget_quality"]}
        row |= {"ks_statistic": report["ks_statistic"], "fq_held_out": p, "ks_held_out": distance}
        rows.append(row | dict(zip(("margin_forget", "margin_retain"), margin[head])))
    return rows


@torch.no_grad()
def margins(head: T3Head, features: Features) -> list[float]:
    """Return the mean logit u of the true next token over all answer tokens, first of the forget
    rows and then of the retain rows.
    """
    u = (head.project(features.x) * head.B[features.y]).sum(1)
    kind = features.s[features.row]
    return [float(u[kind == wanted].mean()) for wanted in (0, 1)]


def lead(study: Study) -> float:
    """Return by how many nats the base prefers a true token to the best other token, as a mean over
    all answer tokens of the forget rows.
    """
    leads = []
    examples = encode_rows(study.tokenizer, study.forget)
    for at in answer_positions(study.base, examples, Reading(pad_id(study.tokenizer))):
        target = at.target[:, None]
        others = at.logits.scatter(1, target, -torch.inf).max(1).values
        leads.append(at.logits.gather(1, target)[:, 0] - others)
    return float(torch.cat(leads).mean())


def _manifest(base: str | Path) -> dict[str, Any]:
    manifest: dict[str, Any] = read_json(Path(base) / bases.MANIFEST)
    return manifest
