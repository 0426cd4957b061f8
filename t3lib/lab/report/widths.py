"""Build the tables, the figure and the verdict of a study over model widths (`lab.widths`).

Rates and T are chosen by Forget Quality against each world's first retrained model (fq) and judged
against its second (fq_held_out).
"""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lib.core.files import read_yaml, shipped
from t3lib.core.names import FAILS, HOLDS, NOT_RUN
from t3lib.core.settings import PAPER
from t3lib.lab.report import render
from t3lib.lab.report.look import DARK, DOTTED, PALETTE, STYLE, log_axis, panels, with_key
from t3lib.lab.report.worlds import TITLES

PLAIN, SCALED = "as the paper", "features / RMS"  # settings of the head, beside those of EFFORT
# √(rank · epochs · steps) of a setting, in units of the plain one's (20, 100, 300 at profile cpu).
# An Adam step moves every entry of A and B by about the rate, so u = B A x grows like
# rank · (rate · path)² · Σ|x_i|; a row of B is stepped when its token occurs, and the path is
# between the number of epochs and that of steps.
EFFORT = {PLAIN: 1.0, SCALED: 1.0, "rank=5": 0.25**0.5, "rank=100": 5**0.5, "epochs=25": 0.25}
EFFORT |= {"epochs=400": 4.0, "batch_size=8": (1000 / 300) ** 0.5}
TOFU_EFFORT = (1300 / 300) ** 0.5  # 100 epochs of the 10% split's 400 rows, 32 a step
PAPER_WIDTH, PAPER_RATES = 4096, (1e-4, 1e-3)  # of Llama 3.1 8B, and the interval that was searched
TUNED, TUNED_WIDTH = "profiles/tuned/tofu-cpu.yaml", 256  # T3 on TOFU's own text
POWERS = {"one rate": 0.0, "sqrt(d)": 0.5, "d": 1.0}  # rules: the rate falls with this power of d
BUILTIN, TOFU_TEXT, PAPER_RUN = "built-in", "TOFU's text (tofu-cpu)", "the paper"
KEYS = ["d", "world"]
WHEN = {"_before": "before", "_untempered": "T = 1", "": "best T"}


def added(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Add rows to the table at `path`, and return the whole table.

    They replace rows of the same widths and worlds. Numbers are rounded to five digits.
    """
    rows = rows.map(lambda value: float(f"{value:.5g}") if isinstance(value, float) else value)
    if path.is_file():
        before = pd.read_csv(path)
        old = before.set_index(KEYS).index.isin(rows.set_index(KEYS).index)
        rows = pd.concat([before[~old], rows])
    return rows.sort_values(KEYS, kind="stable", ignore_index=True)


def by_rate(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a grid in which each rate has its best T by fq, in every setting, width
    and world.
    """
    return grid.loc[grid.groupby(["setting", *KEYS, "rate"])["fq"].idxmax()]


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


def quantities(each: pd.DataFrame) -> dict[str, pd.Series]:
    """Return {rule: quantity by width}. A rule says that the best rate is inversely proportional to
    its quantity.

    each: the table `width`. All quantities are known before a head is trained. A quantity that is
    not positive is left out, such as the lead of a base that knows nothing.
    """
    means = each.groupby("d")[["feature_norm", "feature_sum", "lead"]].mean()
    d = means.index.to_series().astype(float)
    found = {rule: d**power for rule, power in POWERS.items()}
    found |= {"RMS(x)": means["feature_norm"], "sum|x|": means["feature_sum"]}
    found["sqrt(sum|x|)"] = means["feature_sum"] ** 0.5
    found["sqrt(sum|x| / lead)"] = (means["feature_sum"] / means["lead"].clip(0)) ** 0.5
    return {rule: values for rule, values in found.items() if np.isfinite(values).all()}


def rules(grid: pd.DataFrame, each: pd.DataFrame) -> pd.DataFrame:
    """Build the table `width_rules`: the best rate of each width as each rule predicts it from the
    other widths.

    grid, each: the tables `width_grid` and `width`. A rule says rate · `EFFORT` · quantity =
    constant. The constant is the geometric mean over the other widths in the plain setting. Scaled
    features have their own constant. Nothing is fitted to rank, epochs and steps.

    factor: the predicted rate divided by the best rate. fq_predicted: mean fq_held_out at the tried
    rate that is nearest to the predicted one. lost: how much lower this is than at the best rate.
    The last rows are predicted from all widths: for TOFU's text, whose rate was tuned, and for the
    paper.
    """
    found = best(grid).set_index(["setting", "d"])
    held = by_rate(grid).groupby(["setting", "d", "rate"])["fq_held_out"].mean()
    tuned = read_yaml(shipped("notebooks") / TUNED)["T3/forget10"]["chosen"]["lr"]
    elsewhere = {TOFU_TEXT: (TUNED_WIDTH, tuned), PAPER_RUN: (PAPER_WIDTH, PAPER.lr)}
    rows = []
    for rule, quantity in quantities(each).items():
        for (setting, d), row in found.iterrows():
            if setting == SCALED and rule not in POWERS:
                continue
            fitted = found.loc[SCALED if setting == SCALED else PLAIN, "rate"]
            constant = np.exp(np.log(fitted * quantity).drop(d).mean())
            rate = constant / quantity[d] / EFFORT[setting]
            at = held[setting, d]
            nearest = at.iloc[np.abs(np.log(at.index / rate)).argmin()]
            judged = (*row[["low", "high", "fq_held_out"]], nearest, row["fq_held_out"] - nearest)
            rows.append((BUILTIN, setting, rule, d, row["rate"], rate, *judged))
        constant = np.exp(np.log(found.loc[PLAIN, "rate"] * quantity).mean())
        for data, (d, known) in elsewhere.items() if rule in POWERS else ():
            rate = constant / d ** POWERS[rule] / TOFU_EFFORT
            rows.append((data, PLAIN, rule, d, known, rate, *(np.nan,) * 5))
    names = ["data", "setting", "rule", "d", "rate", "predicted", "low", "high", "fq_held_out"]
    table = pd.DataFrame(rows, columns=[*names, "fq_predicted", "lost"])
    table.insert(6, "factor", table["predicted"] / table["rate"])
    return table.sort_values("data", key=lambda data: data != BUILTIN, kind="stable")


def best_rule(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the rule that loses least Forget Quality on average, indexed by data.

    table: of `rules`. Only the rules in `POWERS` are compared.
    """
    here = table[table["rule"].isin(POWERS)]
    rule = here.groupby("rule", sort=False)["lost"].mean().idxmin()
    return here[here["rule"] == rule].set_index("data")


def verdict(table: pd.DataFrame) -> tuple[str, str]:
    """Decide the claim that the paper's learning rates suit its width; return (verdict, numbers as
    text).

    table: of `rules`. The best rule predicts the rate for the paper. The claim holds if this rate
    lies within the interval that the paper searched. Nothing is decided if the rule misses the
    tuned rate of TOFU's text by more than a factor of 2.
    """
    rows = best_rule(table)
    here, there, paper = rows.loc[[BUILTIN]], rows.loc[TOFU_TEXT], rows.loc[PAPER_RUN]
    inside = here["predicted"].between(here["low"], here["high"])
    suits = PAPER_RATES[0] <= paper["predicted"] <= PAPER_RATES[1]
    told = (
        f"rate · √(rank · epochs · steps) · {paper['rule']} = constant: {inside.sum()} of"
        f" {len(here)} left-out rates within the range of good ones, Forget Quality lost"
        f" {here['lost'].mean():.3f}; TOFU's text at d = {there['d']}: {there['predicted']:.2g}"
        f" predicted, {there['rate']:g} tuned; the paper at d = {paper['d']}:"
        f" {paper['predicted']:.2g} predicted, {paper['rate']:g} chosen from {PAPER_RATES[0]:g} to"
        f" {PAPER_RATES[1]:g}"
    )
    decides = 0.5 <= there["factor"] <= 2
    return (HOLDS if suits else FAILS) if decides else NOT_RUN, told


def write(folder: Path) -> None:
    """Write `width_best`, `width_rules` and the figure from the other two tables of a folder."""
    grid, each = (
        pd.read_csv(folder / "tables" / f"{name}.csv") for name in ("width_grid", "width")
    )
    render.write_table(folder / "tables", "width_best", best(grid))
    if grid["d"].nunique() > 1:  # else there is none to predict a width from
        render.write_table(folder / "tables", "width_rules", rules(grid, each))
        render.save_figure(folder / "figures" / "width.svg", figure(grid, each))


@rc_context(STYLE)
def figure(grid: pd.DataFrame, each: pd.DataFrame) -> Figure:
    """Draw the best rate times `EFFORT` in every setting, the best T, and utility, against the
    width.
    """
    found, table = best(grid), rules(grid, each)
    found["path"] = found["rate"] * found["setting"].map(EFFORT)
    drawn, axes = panels(1, 3, (6.8, 2.9))
    rate, heat, utility = axes.flat
    shared = {"x": "d", "hue": "setting", "hue_order": [*EFFORT], "palette": PALETTE[: len(EFFORT)]}
    sns.lineplot(found, y="path", marker="o", ms=4, ax=rate, **shared)
    sns.lineplot(found, y="T", marker="o", ms=4, ax=heat, legend=False, **shared)
    line = best_rule(table)
    power = POWERS[line["rule"].iloc[0]]
    d = np.array([each["d"].min(), PAPER_WIDTH])
    level = line.loc[PAPER_RUN, "predicted"] * TOFU_EFFORT
    rate.plot(d, level * (PAPER_WIDTH / d) ** power, label="rule", **DOTTED)
    for (data, row), marker in zip(line.loc[[TOFU_TEXT, PAPER_RUN]].iterrows(), "Xp"):
        rate.plot(row["d"], row["rate"] * TOFU_EFFORT, marker, color=DARK, label=data)
    measured = each.melt(
        ["d", "world"], [f"{m}{when}" for m in ("mu_rouge", "mu") for when in WHEN]
    )
    parts = measured["variable"].str.extract("(mu_rouge|mu)(.*)")
    measured = measured.assign(measure=parts[0].map(TITLES), when=parts[1].map(WHEN))
    sns.lineplot(measured, x="d", y="value", hue="when", style="measure", errorbar=None, ax=utility)
    for axis, title in zip(axes.flat, ("best rate · effort", "best $T$", "utility")):
        log_axis(axis)
        axis.set(title=title, xlabel="width $d$", ylabel="")
    rate.set_yscale("log")
    return with_key(
        drawn,
        "Best learning rate, T and price of T3 against the width d of the built-in world's model,"
        f" 10% split, means over {each['world'].nunique()} worlds. Left: the rate times"
        " √(rank · epochs · steps), relative to the paper's settings at profile cpu, with the rule"
        " that predicts best; TOFU's text and the paper are not fitted. Right: MU-ROUGE and Model"
        " Utility before unlearning, at the best rate with T = 1, and with the best T.",
        ncols=4,
    )
