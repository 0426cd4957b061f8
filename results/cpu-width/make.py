"""Study how T3's best learning rate, best T and price change with a model's width.

    python results/cpu-width/make.py --widths 64 128 256 512 --worlds 0 1 2

At every width d the models of the built-in world are trained anew, with the rows, depth, epochs and
size of an attention head of profile cpu. A world is a seed of the built-in world: other authors,
other rows, another base and other retrained models. Heads are fitted at every rate of `RATES` and
scored at every T of `TEMPERATURES` on the 10% split. Rate and T are chosen by Forget Quality
against the world's first retrained model (fq) and judged against its second (fq_held_out).

It writes below --out the tables `width_grid` (every rate and T), `width` (a row for each width and
world), `width_best` and `width_rules` (the best rate of each width, and as rules predict it from
the other widths), a figure, and made.json, which says which command and commit made them. On one
core a world takes two minutes at d = 64 and ten at d = 512, and the trials of the base's learning
rate about as long again at each width. What was measured at a width in a world is kept in
--out/measured, and base models in .t3cache, so the same command continues a killed run.
"""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lab import profiles, results, script
from t3lab.report import render
from t3lab.report.look import DARK, DOTTED, PALETTE, STYLE, log_axis, panels, with_key
from t3lab.study.methods import evaluated, run_method, subject
from t3lab.study.study import Study, open_study, stage_of
from t3lab.study.unlearned import head_settings, t3_features
from t3lab.world import bases
from t3lib.classifier.fit import fit_heads
from t3lib.classifier.head import T3Head
from t3lib.cli import Options
from t3lib.core.files import read_json, write_json
from t3lib.core.identity import environment
from t3lib.core.progress import progress_bar
from t3lib.core.settings import PAPER, hyper_of
from t3lib.tofu.evaluation import Report, metrics_of, score
from t3lib.tofu.metrics import forget_quality

SPLIT = "forget10"
RATES = [1e-4 * 2**k for k in range(11)]
TEMPERATURES = [1 + k / 4 for k in range(13)]
PLAIN, SCALED = "as the paper", "features / RMS"
# Settings of the head: what is changed in its training, and √(rank · epochs · steps) in units of
# the plain one's (20, 100, 300). With 8 pairs a step there are 1000 steps. An Adam step moves every
# entry of A and B by about the rate, so u = B A x grows like rank · (rate · path)² · Σ|x_i|. A row
# of B is stepped when its token occurs, and the path is between the number of epochs and of steps.
SETTINGS: dict[str, tuple[float, dict[str, Any]]] = {
    PLAIN: (1.0, {}),
    SCALED: (1.0, {}),
    "rank=5": (0.25**0.5, {"rank": 5}),
    "rank=100": (5**0.5, {"rank": 100}),
    "epochs=25": (0.25, {"epochs": 25, "warmup_epochs": 6.25}),
    "epochs=400": (4.0, {"epochs": 400, "warmup_epochs": 100}),
    "batch_size=8": ((1000 / 300) ** 0.5, {"batch_size": 8}),
}
TOFU_EFFORT = (1300 / 300) ** 0.5  # 100 epochs of the 10% split's 400 rows, 32 a step
RULES = {"one rate": 0.0, "sqrt(d)": 0.5, "d": 1.0}  # the rate falls with this power of d
BUILTIN, TOFU_TEXT, PAPER_RUN = "built-in", "TOFU's text (tofu-cpu)", "the paper"
ELSEWHERE = {TOFU_TEXT: (256, 4e-2), PAPER_RUN: (4096, PAPER.lr)}  # (d, rate that was tuned there)
UTILITY = {"mu_rouge": "MU-ROUGE", "mu": "MU"}
WHEN = {"_before": "before", "_untempered": "T = 1", "": "best T"}
CAPTIONS = {
    "width": (
        "T3 at several widths d of the built-in world's model, 10% split, a row for each world: the"
        " rate and T of highest Forget Quality against the first retrained model, judged against"
        " the second (held out). Utility at this rate and T, with T = 1, and before unlearning."
        " autocast: the base was trained in bfloat16. cpu_seconds: without models that were cached."
    ),
    "width_best": (
        "The best learning rate at every width, over worlds. low to high: rates whose held-out"
        " Forget Quality is within one spread (standard deviation over worlds) of the best rate's."
    ),
    "width_rules": (
        "The best rate of a width, predicted from all other widths by rules of the form rate ·"
        " power of d = constant, and the held-out Forget Quality that the predicted rate loses."
    ),
}
TINY = {"questions": 1, "vocab": 400, "epochs": 1}  # settings of the stage


def make(widths: Sequence[int], worlds: Sequence[int], out: Path, tiny: bool) -> None:
    """Measure the widths and worlds that `out` does not have, then write all tables and the figure.

    tiny: models that know nothing, few rates and two settings of the head, to try the script.
    """
    results.check_clean(out)
    profile = profiles.load_profile("cpu")
    settings, rates = ([PLAIN, SCALED], RATES[::4]) if tiny else ([*SETTINGS], RATES)
    stage = stage_of("builtin", profile["stage"] | (TINY if tiny else {}))
    for d, world in progress_bar([*product(widths, worlds)], desc="widths and worlds"):
        path = out / "measured" / f"d{d}-world{world}.json"
        if not path.is_file():
            wide, losses = at_width(stage, d)
            write_json(
                path,
                measure(replace(wide, seed=world), profile, settings, rates)
                | {"base_rates": losses},
            )
            print(f"width {d}, world {world}: measured", flush=True)
    measured = [read_json(path) for path in (out / "measured").glob("d*.json")]
    grid = rounded([row for one in measured for row in one.pop("grid")])
    each = rounded(measured)
    made = {"width": each, "width_grid": grid, "width_best": best(grid)}
    if each["d"].nunique() > 1:  # else there is none to predict a width from
        made["width_rules"] = rules(grid, made["width_best"])
        drawn = figure(made["width_best"], made["width_rules"], each)
        render.save_figure(out / "figures" / "width.svg", drawn)
    for name, table in made.items():
        render.write_table(out / "tables", name, table, caption=CAPTIONS.get(name))
    made_by = {"command": shlex.join(["python", *sys.argv]), "commits": [*each["commit"].unique()]}
    write_json(out / "made.json", made_by)


def rounded(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table in the order of widths and worlds, with numbers of five digits."""
    table = pd.DataFrame(rows).sort_values(["d", "world"], kind="stable", ignore_index=True)
    return table.map(lambda value: float(f"{value:.5g}") if isinstance(value, float) else value)


def at_width(stage: bases.Stage, width: int) -> tuple[bases.Stage, str]:
    """Return the stage at another width, and as text the final training loss at each learning rate
    that was tried for the base.

    The learning rate with the lowest final loss of the full model in world 0 is taken. From d = 512
    on a base has only the two lower rates, and is trained under bfloat16 autocast.
    """
    heads = max(1, width * stage.heads // stage.hidden)
    wide = replace(stage, hidden=width, heads=heads, autocast=width >= 512, seed=0)
    factors = (0.5, 1.0) if wide.autocast else (0.5, 1.0, 2.0)
    rates = [float(f"{x * stage.lr * (stage.hidden / width) ** 0.5:.3g}") for x in factors]
    loss = [last_loss(bases.ensure_base(replace(wide, lr=rate), "full")) for rate in rates]
    losses = ", ".join(f"{rate:g}: {value:.4f}" for rate, value in zip(rates, loss))
    return replace(wide, lr=rates[int(np.argmin(loss))]), losses


def last_loss(base: str | Path) -> float:
    """Read the final training loss of a base model."""
    return float(read_json(Path(base) / bases.MANIFEST)["training"]["loss"][-1])


def measure(
    stage: bases.Stage, profile: profiles.Profile, settings: Sequence[str], rates: Sequence[float]
) -> dict[str, Any]:
    """Measure T3 in one world at one width.

    stage: the world and the sizes of its models. settings: names in `SETTINGS`. rates: of the
    heads.

    Returns a row of the table `width`, and under "grid" the rows of the table `width_grid`: of
    settings other than the plain one only the best T of each rate. Utility is measured at the
    chosen rate and T, at the chosen rate with T = 1, and before unlearning.
    """
    began = time.process_time()
    hyper = hyper_of(profile["hyper"], "T3", SPLIT)
    study = open_study(SPLIT, stage=asdict(stage), evaluation=profile["evaluation"])
    [held] = evaluated(study, [subject(study, "Retrained", 1, {})], ["forget"], generate=False)
    features = t3_features(study)
    norm = float(features.x.square().mean().sqrt())
    rows: list[dict[str, Any]] = []
    for setting in settings:
        unit = norm if setting == SCALED else 1.0
        heads = fit_heads(
            replace(features, x=features.x / unit),
            [head_settings(hyper | SETTINGS[setting][1] | {"lr": rate}, seed=1) for rate in rates],
            vocab_size=study.base.get_output_embeddings().weight.shape[0],
        )
        for head in heads:
            head.A.data /= unit
        where = {"d": stage.hidden, "world": stage.seed, "setting": setting}
        rows += [where | row for row in tempered(study, heads, held)]
    chosen = max((row for row in rows if row["setting"] == PLAIN), key=lambda row: row["fq"])
    grid = pd.DataFrame(rows)
    plain = grid["setting"] == PLAIN
    grid = pd.concat([grid[plain], by_rate(grid[~plain])])
    [before] = run_method(study, "Original", seeds=[], settings={})
    tuned, dials = hyper | {"lr": chosen["rate"], "temperature": chosen["T"]}, [chosen["T"], 1.0]
    at_best, cold = run_method(study, "T3", seeds=[1], settings=tuned, temperatures=dials)
    runs = {"": at_best, "_untempered": cold, "_before": before}
    return {
        "d": stage.hidden,
        "world": stage.seed,
        "layers": stage.layers,
        "parameters": study.base.num_parameters(),
        "split": SPLIT,
        **chosen,
        **{f"{m}{when}": run["metrics"][m] for m in UTILITY for when, run in runs.items()},
        "fq_retrained": held["forget_quality"],
        "feature_norm": norm,
        "feature_sum": float(features.x.abs().sum(1).mean()),
        "base_lr": stage.lr,
        "base_loss": last_loss(study.models["full"]),
        "autocast": stage.autocast,
        "vectors": environment()[-1],
        "cpu_seconds": time.process_time() - began,
        "commit": results.provenance()["git_commit"],
        "grid": grid.to_dict("records"),
    }


def tempered(study: Study, heads: Sequence[T3Head], held: Report) -> Iterator[dict[str, Any]]:
    """Score every head at every T; yield rate, T, Forget Quality and D against both retrained
    models for each.

    held: evaluation of the second retrained model on the forget rows.
    """
    tilts = list(product(heads, TEMPERATURES))
    rows, scoring = (
        {"forget": study.evaluation_rows["forget"]},
        replace(study.scoring, generate=False),
    )
    scores = score(study.base, study.tokenizer, rows, scoring, tilts)
    for (head, T), each in zip(tilts, scores):
        report = metrics_of(each, study.reference, scoring.truth_ratio)
        p, distance = forget_quality(*(one["truth_ratio"]["forget"] for one in (report, held)))
        yield {
            "rate": head.info["hyperparameters"]["lr"],
            "T": T,
            "fq": report["forget_quality"],
            "ks_statistic": report["ks_statistic"],
            "fq_held_out": p,
            "ks_held_out": distance,
        }


def by_rate(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a grid in which each rate has its best T by fq, in every setting, width
    and world.
    """
    return grid.loc[grid.groupby(["setting", "d", "world", "rate"])["fq"].idxmax()]


def best(grid: pd.DataFrame) -> pd.DataFrame:
    """Build the table `width_best`: for each setting and width the rate with the highest mean fq
    over worlds.

    grid: the table `width_grid`. T, fq, fq_held_out: means over worlds at this rate, each world at
    its best T. low, high: the lowest and the highest rate whose mean fq_held_out is at most one
    spread below that of the best rate. spread: standard deviation of fq_held_out over worlds at the
    best rates, as the root mean square over widths.
    """
    at = by_rate(grid)
    means = at.groupby(["setting", "d", "rate"])[["T", "fq", "fq_held_out"]].mean().reset_index()
    rows = means.loc[means.groupby(["setting", "d"])["fq"].idxmax()]
    chosen = at.merge(rows[["setting", "d", "rate"]])
    variance = chosen.groupby(["setting", "d"])["fq_held_out"].var().groupby("setting").mean()
    rows = rows.assign(spread=rows["setting"].map(variance**0.5).fillna(0.0))
    near = means.merge(rows, on=["setting", "d"], suffixes=("", "_best"))
    near = near[near["fq_held_out"] >= near["fq_held_out_best"] - near["spread"]]
    ends = near.groupby(["setting", "d"])["rate"].agg(low="min", high="max")
    return rows.merge(ends.reset_index())


def rules(grid: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Build the table `width_rules`: the best rate of each width as each rule predicts it from the
    other widths.

    grid, found: the tables `width_grid` and `width_best`. A rule says rate · effort · power of d =
    constant, with the effort of `SETTINGS`. The constant is the geometric mean over the other
    widths in the plain setting. Scaled features have their own constant. Nothing is fitted to rank,
    epochs and steps.

    factor: the predicted rate divided by the best rate. fq_predicted: mean fq_held_out at the tried
    rate that is nearest to the predicted one. lost: how much lower this is than at the best rate.
    The last rows are predicted from all widths: for TOFU's text, whose rate was tuned, and for the
    paper.
    """
    held = by_rate(grid).groupby(["setting", "d", "rate"])["fq_held_out"].mean()
    rates = found.set_index(["setting", "d"])["rate"]
    rows = []
    for rule, power in RULES.items():
        for row in found.to_dict("records"):
            setting, d = row["setting"], row["d"]
            fitted = rates[SCALED if setting == SCALED else PLAIN].drop(d)
            constant = np.exp(np.log(fitted * fitted.index**power).mean())
            rate = constant / d**power / SETTINGS[setting][0]
            nearest = np.abs(np.log(held[setting, d].index / rate)).argmin()
            predicted = {"predicted": rate, "fq_predicted": held[setting, d].iloc[nearest]}
            rows.append(row | predicted | {"data": BUILTIN, "rule": rule})
        constant = np.exp(np.log(rates[PLAIN] * rates[PLAIN].index ** power).mean())
        for data, (d, tuned) in ELSEWHERE.items():
            predicted = {"rate": tuned, "predicted": constant / d**power / TOFU_EFFORT}
            rows.append({"data": data, "setting": PLAIN, "rule": rule, "d": d} | predicted)
    table = pd.DataFrame(rows).sort_values("data", key=lambda data: data != BUILTIN, kind="stable")
    table["factor"] = table["predicted"] / table["rate"]
    table["lost"] = table["fq_held_out"] - table["fq_predicted"]
    return table[
        ["data", "setting", "rule", "d", "rate", "predicted", "factor"]
        + ["low", "high", "fq_held_out", "fq_predicted", "lost"]
    ]


@rc_context(STYLE)
def figure(found: pd.DataFrame, table: pd.DataFrame, each: pd.DataFrame) -> Figure:
    """Draw the best rate times effort in every setting, the best T, and utility, against the
    width. The rule of the width alone that loses least Forget Quality is drawn.

    found, table, each: the tables `width_best`, `width_rules` and `width`.
    """
    effort = found["setting"].map(lambda name: SETTINGS[name][0])
    of_width = table.loc[table["data"] == PAPER_RUN, "rule"]  # others need a model's features
    rule = table.groupby("rule", sort=False)["lost"].mean()[of_width].idxmin()
    [paper] = table[(table["rule"] == rule) & (table["data"] == PAPER_RUN)].itertuples()
    drawn, axes = panels(1, 3, (6.8, 2.9))
    rate, heat, utility = axes.flat
    look = {"hue_order": [*SETTINGS], "palette": PALETTE[: len(SETTINGS)], "marker": "o", "ms": 4}
    sns.lineplot(found, x="d", y=found["rate"] * effort, hue="setting", ax=rate, **look)
    sns.lineplot(found, x="d", y="T", hue="setting", ax=heat, legend=False, **look)
    d = np.array([each["d"].min(), paper.d])
    rate.plot(
        d, paper.predicted * TOFU_EFFORT * (paper.d / d) ** RULES[rule], label="rule", **DOTTED
    )
    for (data, (width, tuned)), marker in zip(ELSEWHERE.items(), "Xp"):
        rate.plot(width, tuned * TOFU_EFFORT, marker, color=DARK, label=data)
    measured = each.melt(["d", "world"], [f"{m}{when}" for m in UTILITY for when in WHEN])
    parts = measured["variable"].str.extract("(mu_rouge|mu)(.*)")
    measured = measured.assign(measure=parts[0].map(UTILITY), when=parts[1].map(WHEN))
    sns.lineplot(measured, x="d", y="value", hue="when", style="measure", errorbar=None, ax=utility)
    for line in [each for each in utility.lines if each.get_label() in ("when", "measure")]:
        line.remove()  # seaborn's headings within its legend
    for axis, title in zip(axes.flat, ("best rate × effort", "best $T$", "utility")):
        log_axis(axis)
        axis.set(title=title, xlabel="width $d$", ylabel="")
    rate.set_yscale("log")
    return with_key(
        drawn,
        "Best learning rate, T and price of T3 against the width d of the built-in world's model,"
        f" 10% split, means over {each['world'].nunique()} worlds. Left: the rate times"
        " √(rank · epochs · steps), relative to the paper's settings at profile cpu, with the rule"
        " of the width that predicts best; TOFU's text and the paper are not fitted. Right:"
        " MU-ROUGE and Model Utility before unlearning, at the best rate with T = 1, and with the"
        " best T.",
        ncols=4,
    )


OPTIONS: Options = {
    "--widths": {"type": int, "nargs": "+", "default": [64, 128, 256, 512]},
    "--worlds": {"type": int, "nargs": "+", "default": [0, 1, 2]},
    "--out": {"type": Path, "default": Path("out/cpu-width")},
    "--tiny": {"action": "store_true", "help": "try the script in seconds"},
}

if __name__ == "__main__":
    script.run(lambda args: make(**vars(args)), "Study T3 at several widths of a model.", OPTIONS)
