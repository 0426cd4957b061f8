"""Tables, figure and verdict of a study over model widths: rows of `lab.widths` in, tables out.

Rates and T are chosen by Forget Quality against each world's first retrained model (fq) and judged
against its second (fq_held_out).
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from t3lib.core.names import FAILS, HOLDS, NO_ORDER
from t3lib.core.settings import PAPER, TEMPERATURE
from t3lib.lab.report import render
from t3lib.lab.report.look import DARK, GREY, PALETTE, STYLE, T3_COLOUR, log_axis, panels, with_key
from t3lib.tofu.metrics import METRICS

# Settings of the head: as the paper has it, on features divided by their RMS, and with four times
# the steps, which at profile cpu are 1200. The paper's head has 1300.
PLAIN, SCALED, LONG = "as the paper", "features / RMS", "epochs=400"
KEYS = ["d", "world"]
PAPER_WIDTH, PAPER_RATES = 4096, (1e-4, 1e-3)  # of Llama 3.1 8B, and the interval that was searched
WHEN = {"_before": ", before", "_untempered": ", T = 1", "": ", best T"}
POWERS = {"one rate": 0.0, "sqrt(d)": 0.5, "d": 1.0}  # rules: the rate falls with this power of d


def added(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """The table at `path` with these rows, in place of its rows of the same widths and worlds."""
    rows = rows.map(lambda value: float(f"{value:.5g}") if isinstance(value, float) else value)
    if path.is_file():
        before = pd.read_csv(path)
        old = before.set_index(KEYS).index.isin(rows.set_index(KEYS).index)
        rows = pd.concat([before[~old], rows])
    return rows.sort_values(KEYS, kind="stable", ignore_index=True)


def by_rate(grid: pd.DataFrame) -> pd.DataFrame:
    """Each rate at its best T by fq, in every setting, width and world: a row of the grid each."""
    return grid.loc[grid.groupby(["setting", *KEYS, "rate"])["fq"].idxmax()]


def best(grid: pd.DataFrame) -> pd.DataFrame:
    """The table `width_best`: the rate of highest mean fq over worlds, by setting and width.

    T, fq and fq_held_out: means over worlds at this rate, each world at its best T. low, high: the
    lowest and the highest rate whose mean fq_held_out is at most one spread below that of the best
    rate. spread: standard deviation of fq_held_out over worlds at the best rates, root mean square
    over widths.
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
    """What a rule takes the best rate to be inversely proportional to, by width; known before
    training. Where one is not positive, as the lead of a base that knows nothing, there is no rule.
    """
    means = each.groupby("d")[["feature_norm", "feature_sum", "lead"]].mean()
    d = means.index.to_series().astype(float)
    of_features = {"RMS(x)": means["feature_norm"], "sum|x|": means["feature_sum"]}
    of_features["sum|x| / lead"] = means["feature_sum"] / means["lead"]
    return {rule: d**power for rule, power in POWERS.items()} | of_features


def rules(grid: pd.DataFrame, each: pd.DataFrame) -> pd.DataFrame:
    """The table `width_rules`: the rate of a width as each rule predicts it from all other widths.

    A rule says rate · quantity = constant; the constant is the geometric mean over the other
    widths. factor: predicted by best rate. fq_predicted: mean fq_held_out at the tried rate that is
    nearest to the predicted one; lost: how far this is below that of the best rate. Rows of
    `PAPER_WIDTH` are predicted from all widths, and the rate beside them is the paper's.
    """
    tried, found = by_rate(grid), best(grid)
    held = tried.groupby(["setting", "d", "rate"])["fq_held_out"].mean()
    rows = []
    for setting in (PLAIN, SCALED, LONG):
        here = found[found["setting"] == setting].set_index("d")
        for rule, quantity in quantities(each).items():
            if rule not in POWERS and setting == SCALED or not (quantity > 0).all():
                continue
            constant = np.log(here["rate"] * quantity)
            for d, row in here.iterrows():
                rate = float(np.exp(constant.drop(d).mean()) / quantity[d])
                at = held[setting, d]
                fq = at.iloc[np.abs(np.log(at.index / rate)).argmin()]
                ends = (row["low"], row["high"], row["fq_held_out"], fq, row["fq_held_out"] - fq)
                rows.append((setting, rule, d, row["rate"], rate, rate / row["rate"], *ends))
            if rule in POWERS:
                rate = float(np.exp(constant.mean()) / PAPER_WIDTH ** POWERS[rule])
                ratio = rate / PAPER.lr
                rows.append((setting, rule, PAPER_WIDTH, PAPER.lr, rate, ratio, *(np.nan,) * 5))
    names = ["setting", "rule", "d", "rate", "predicted", "factor", "low", "high", "fq_held_out"]
    return pd.DataFrame(rows, columns=[*names, "fq_predicted", "lost"])


def verdict(table: pd.DataFrame, setting: str = LONG) -> tuple[str, str]:
    """(verdict, numbers) of the claim that the paper's learning rates suit its width.

    table: of `rules`. The rule that loses least Forget Quality, on average over widths left out,
    predicts the rate at the paper's width. The claim holds where that lies within the interval that
    the paper searched. There is no order where the rule's rate lies outside low to high at a width
    left out: then no rule is known.
    """
    here = table[(table["setting"] == setting) & table["rule"].isin(POWERS)]
    rule = here.groupby("rule", sort=False)["lost"].mean().idxmin()
    here = here[here["rule"] == rule].set_index("d")
    rate, left_out = here.loc[PAPER_WIDTH, "predicted"], here.drop(PAPER_WIDTH)
    inside = left_out["predicted"].between(left_out["low"], left_out["high"])
    suits = PAPER_RATES[0] <= rate <= PAPER_RATES[1]
    told = (
        f"rule: {rule}; within the range of good rates at {inside.sum()} of {len(inside)} widths"
        f" left out, Forget Quality lost {left_out['lost'].mean():.3f}; predicted for"
        f" d = {PAPER_WIDTH}: {rate:.2g}; the paper: {PAPER.lr:g} of {PAPER_RATES[0]:g} to"
        f" {PAPER_RATES[1]:g}"
    )
    return (HOLDS if suits else FAILS) if inside.all() else NO_ORDER, told


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
    """Best rate with the range of good rates, best T, and utility, against the width."""
    found = best(grid).set_index("setting")
    drawn, [axes] = panels(1, 3, (6.8, 2.5))
    for setting, colour in zip((PLAIN, LONG), (T3_COLOUR, PALETTE[0])):
        here = found.loc[[setting]]
        for axis, value in zip(axes, ("rate", "T")):
            axis.plot(here["d"], here[value], "o-", ms=4, color=colour, label=setting)
        axes[0].vlines(here["d"], here["low"], here["high"], color=colour, alpha=0.4, lw=4)
    axes[0].plot(PAPER_WIDTH, PAPER.lr, "*", color=DARK, ms=8, label="the paper (not fitted)")
    axes[1].plot(PAPER_WIDTH, TEMPERATURE, "*", color=DARK, ms=8)
    means = each.groupby("d").mean(numeric_only=True)
    for measure, dash in (("mu_rouge", "-"), ("mu", "--")):
        for when, colour in (("_before", DARK), ("_untempered", GREY), ("", T3_COLOUR)):
            label = f"{METRICS[measure].title}{WHEN[when]}"
            axes[2].plot(means[measure + when], ls=dash, marker=".", color=colour, label=label)
    for axis, title in zip(axes, ("best learning rate", "best $T$", "utility")):
        log_axis(axis)
        axis.set(title=title, xlabel="width $d$")
    axes[0].set_yscale("log")
    return with_key(drawn, "...", ncols=4)
