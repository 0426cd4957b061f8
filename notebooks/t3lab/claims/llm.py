"""Decide the claims about language models from Tables 1 to 5, the paper's or ours.

Each function is named like its claim, and its docstring says what must be true for the claim to
hold.

The same function reads both. `findings.gap` decides which method is ahead. One baseline that ran
and is ahead refutes a claim about all baselines. For such a claim to hold, all ten must have run.
"""

from collections.abc import Callable
from functools import wraps

import numpy as np
import pandas as pd

from t3lab.claims.findings import (
    Finding,
    Missing,
    Tables,
    gap,
    interval_kind,
    joined,
    listed,
    score,
)
from t3lab.results import paper_table
from t3lib.core.names import SPLITS

# the paper's ten baselines
TEN = tuple(name for name in paper_table(1)["method"].unique() if name not in ("Original", "T3"))
FULL = tuple(name for name in TEN if name != "ULD")  # these fine-tune every weight
REJECTED = 0.05  # a Forget Quality below this rejects: what "zero" must mean for a p-value
FRACTION = 0.1  # "a small fraction"
FINE = 5  # a grid of w is fine if it has at least so many values above 1
SUMMARY = ("fq", "mu_rouge", "mu")


# ---- Tables 1 and 4 -----------------------------------------------------------------------------
def on_both_splits(check: Callable[[Tables, str], Finding]) -> Callable[[Tables], Finding]:
    """Decorate a check of one split so that it is made on both splits and the findings are
    joined.
    """

    @wraps(check)
    def decide(tables: Tables) -> Finding:
        parts = [(tables.splits[split], check(tables, split)) for split in SPLITS]
        return joined([part._replace(numbers=f"{share} {part.numbers}") for share, part in parts])

    return decide


@on_both_splits
def fq_best(tables: Tables, split: str) -> Finding:
    """T3 is ahead of every baseline in Forget Quality."""
    gaps = {name: gap(tables, split, "T3", name, "fq") for name in TEN}
    ran = {name: difference for name, difference in gaps.items() if not np.isnan(difference.value)}
    if not ran:
        raise Missing("fq")
    above, open_ = ([name for name in ran if ran[name].sign == sign] for sign in (-1, 0))
    shown = {name: str(ran[name]) for name in (*above, *open_)}
    told = (
        f"{', '.join(above) or 'none'} ahead of T3; no order between T3 and"
        f" {', '.join(open_) or 'any'}; T3 {score(tables, split, 'T3', 'fq'):.3f}; T3 less"
        f" ({interval_kind(tables)}) {listed(shown, '{} {}') or 'any other: above 0'}"  # type: ignore[arg-type]
    )
    holds = None if not (above or open_) and len(ran) < len(gaps) else not (above or open_)
    return Finding(holds, told, no_order=not above and bool(open_))


@on_both_splits
def nobody_dominates(tables: Tables, split: str) -> Finding:
    """If a baseline is ahead of T3 in Forget Quality or MU-ROUGE, T3 is ahead of it in the
    other.
    """
    gaps = {
        name: [gap(tables, split, "T3", name, column) for column in ("fq", "mu_rouge")]
        for name in TEN
    }
    signs = {
        name: {one.sign for one in pair}
        for name, pair in gaps.items()
        if not np.isnan(sum(g.value for g in pair))
    }
    above = [name for name, pair in signs.items() if -1 in pair and 1 not in pair]
    told = f"better than T3: {', '.join(above) or 'none'} of {len(signs)}"
    return Finding(False if above else True if len(signs) == len(TEN) else None, told)


@on_both_splits
def generation_kept(tables: Tables, split: str) -> Finding:
    """T3's probability of retain answers is below the original's, but its MU-ROUGE is not.

    Its mean MU-ROUGE at the T of best Forget Quality must not be below the one at T = 1 either.
    """
    prob, words = (
        gap(tables, split, "T3", "Original", column) for column in ("retain_prob", "mu_rouge")
    )
    if np.isnan(prob.value + words.value):
        raise Missing("tofu")
    heat = _at(tables, split)
    best, cold = heat["mu_rouge"][heat["fq"].idxmax()], heat["mu_rouge"].get(1.0, np.nan)
    kept = prob.sign < 0 and words.sign >= 0 and not best < cold
    told = (
        f"probability {prob.value:+.3f}, MU-ROUGE {words}; {cold:.3f} at T = 1, {best:.3f} at the"
        " best T"
    )
    return Finding(kept, told)


@on_both_splits
def stable(tables: Tables, split: str) -> Finding:
    """T3's standard deviation over seeds is below every baseline's in Forget Quality, MU-ROUGE and
    Model Utility.
    """
    rows = ("T3", *TEN)
    seeds = {
        column: [tables.numbers("tofu_per_seed", split, name, column) for name in rows]
        for column in SUMMARY
    }
    spread = pd.DataFrame(
        {column: [pd.Series(x).std() for x in values] for column, values in seeds.items()}, rows
    )
    below = {column: [name for name in TEN if x[name] <= x["T3"]] for column, x in spread.items()}
    told = "; ".join(
        f"{column} sd {spread[column]['T3']:.3f}, no larger: {', '.join(below[column])}"
        for column in below
    )
    return Finding(
        False if any(below.values()) else None if spread.isna().any(axis=None) else True, told
    )


# ---- Table 5 and the ablations ------------------------------------------------------------------
def _at(tables: Tables, split: str) -> pd.DataFrame:
    """Return Table 5 of a split by T. Forget Quality is against held-out retrained models if there
    are any. Missing with fewer than three T.
    """
    table = tables["temperature"]
    table = table.assign(fq=table.get("fq_held_out", table["fq"]).fillna(table["fq"]))
    part = (
        table[(table["split"] == split) & table["fq"].notna()]
        .sort_values("T")
        .set_index("T")[list(SUMMARY)]
    )
    if len(part) < 3:
        raise Missing("temperature")
    return part


@on_both_splits
def t5_untempered(tables: Tables, split: str) -> Finding:
    """At T = 1 the Forget Quality is below 0.05, so the test rejects."""
    fq = _at(tables, split)["fq"].get(1.0, np.nan)
    holds = None if np.isnan(fq) else bool(fq < REJECTED)
    return Finding(holds, f"FQ at T = 1: {fq:.2g}")


@on_both_splits
def t5_interior(tables: Tables, split: str) -> Finding:
    """The T of best Forget Quality is neither the lowest nor the highest."""
    fq = _at(tables, split)["fq"]
    told = f"best T {fq.idxmax():g}: {listed(fq.to_dict(), 'FQ({:g}) = {:.3f}')}"
    return Finding(bool(fq.index[0] < fq.idxmax() < fq.index[-1]), told)


@on_both_splits
def t5_too_hot(tables: Tables, split: str) -> Finding:
    """At the largest T, Forget Quality, MU-ROUGE and Model Utility are all below those at the T of
    best Forget Quality.
    """
    heat = _at(tables, split)
    best, last = heat.loc[heat["fq"].idxmax()], heat.iloc[-1]
    moves = ", ".join(f"{column} {best[column]:.3f} → {last[column]:.3f}" for column in SUMMARY)
    return Finding(bool((last < best).all()), f"T {best.name:g} → {last.name:g}: {moves}")


@on_both_splits
def sharpening_on_tofu(tables: Tables, split: str) -> Finding:
    """At T = 1, every sharpened classifier f^w, at every learning rate that was tried, has a lower
    Forget Quality than f at its best T above 1.

    Missing with fewer than five values of w above 1. A table without the column lr has one rate.
    """
    part = tables[f"dials--{split}"].dropna(subset=["fq"])
    cold = part[(part["T"] == 1) & (part["w"] > 1)]
    tempered = part[(part["T"] > 1) & (part["w"] == 1)].set_index("T")["fq"]
    if cold["w"].nunique() < FINE or tempered.empty:
        raise Missing("dials")
    best, count = cold.loc[cold["fq"].idxmax()], cold["w"].nunique()
    rates = cold["lr"].nunique() if "lr" in cold else 1
    rate = f" with lr = {best['lr']:g} of {rates}" if rates > 1 else ""
    told = (
        f"T = {tempered.idxmax():g}: {tempered.max():.2g}, best w = {best['w']:g} of {count}{rate}:"
        f" {best['fq']:.2g}"
    )
    return Finding(bool(best["fq"] < tempered.max()), told)


# ---- Tables 2 and 3 -----------------------------------------------------------------------------
def _seconds(tables: Tables, split: str, *names: str) -> pd.Series:
    """Return the seconds of training in Table 3 by method. Missing if none of the methods ran."""
    seconds = pd.Series(
        {name: score(tables, split, name, "train_s", "runtime") for name in names}
    ).dropna()
    if seconds.empty:
        raise Missing("runtime")
    return seconds


@on_both_splits
def small_fraction_of_time(tables: Tables, split: str) -> Finding:
    """T3 with features and training takes less than a tenth of the seconds of every full
    fine-tuning.

    The paper prints no seconds for features, so its own table decides about training alone.
    """
    [train], rest = _seconds(tables, split, "T3 (preprocessed)"), _seconds(tables, split, *FULL)
    features = score(tables, split, "T3 (preprocessed)", "features_s", "runtime")
    extra = "" if np.isnan(features) else f" and {features:.3g} s for features"
    told = f"T3 {train:.3g} s{extra}, {rest.idxmin()} {rest.min():.3g} s"
    holds = bool(train + np.nan_to_num(features) < FRACTION * rest.min())
    return Finding(holds and (len(rest) == len(FULL) or None), told)


@on_both_splits
def fraction_of_cost(tables: Tables, split: str) -> Finding:
    """T3 takes less time than each baseline if it runs the base at every step as they do
    (naive).
    """
    [mine], rest = _seconds(tables, split, "T3 (naive)"), _seconds(tables, split, *TEN)
    faster = rest[rest <= mine].to_dict()
    told = f"T3 {mine:.3g} s; no slower: {listed(faster, '{} {:.3g} s') or f'none of {len(rest)}'}"
    return Finding(False if faster else True if len(rest) == len(TEN) else None, told)
