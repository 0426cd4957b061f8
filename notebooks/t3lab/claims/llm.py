"""Decide the claims about language models from Tables 1 to 5, the paper's or ours.

Each function is named like its claim, and its docstring says what must be true for the claim to
hold.

The same function reads both. The paper prints no scores of single rows, so its own claims are
decided by its means; ours about D by the tables `worlds` or `order`. One baseline that ran can
refute a claim about all baselines. For such a claim to hold, all ten must have run.
"""

from collections.abc import Callable
from functools import wraps

import numpy as np
import pandas as pd

from t3lab.claims.findings import Finding, Missing, Tables, joined, less, listed, score
from t3lab.results import paper_table
from t3lib.core.names import SPLITS

# the paper's ten baselines
TEN = tuple(name for name in paper_table(1)["method"].unique() if name not in ("Original", "T3"))
REJECTED = 0.05  # a Forget Quality below this rejects: what "zero" must mean for a p-value
COMPETITIVE = 0.5  # of the highest Forget Quality of all unlearning methods
FRACTION = 0.1  # what "a small fraction" means at most
SAME = 0.005  # means of ROUGE-L that differ by less are called equal
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
    """T3 is nearer to a retrained model (in D) than every baseline, beyond chance (p < 0.05).

    In the paper's tables, T3 has the highest mean Forget Quality.
    """
    means = {name: score(tables, split, name, "fq") for name in ("T3", *TEN)}
    mine, rest = means.pop("T3"), pd.Series(means).dropna()
    if np.isnan(mine) or rest.empty:
        raise Missing("fq")
    try:
        table = less(tables, split)
    except Missing:
        told = f"T3 {mine:.3f}, best other {rest.idxmax()} {rest.max():.3f}"
        holds = bool(mine > rest.max())
        return Finding(holds and (len(rest) == len(TEN) or None), told)
    sure = table["p"] < REJECTED
    above, ahead = table[sure & (table["t3_less"] > 0)], table[sure & (table["t3_less"] < 0)]
    gaps = {
        name: f"{row['t3_less']:+.2f} ({row['t3_low']:+.2f} to {row['t3_high']:+.2f})"
        for name, row in table.drop(index=[*above.index, *ahead.index]).iterrows()
    }
    told = (
        f"nearer than T3: {', '.join(above.index) or 'none'}; T3 is nearer than"
        f" {', '.join(ahead.index) or 'none'}; T3's D less that of the others (95% interval):"
        f" {listed(gaps, '{} {}') or 'none'}"  # type: ignore[arg-type]
    )
    whole = len(table) == len(TEN) or None
    return Finding(
        len(ahead) == len(table) and whole, told, no_order=above.empty and len(ahead) < len(table)
    )


@on_both_splits
def mu_rouge_best(tables: Tables, split: str) -> Finding:
    """Of the methods with at least half of the highest mean Forget Quality, T3 is one and has the
    highest mean MU-ROUGE.
    """
    means = {
        name: [score(tables, split, name, column) for column in SUMMARY[:2]]
        for name in ("T3", *TEN)
    }
    table = pd.DataFrame(means, SUMMARY[:2]).T.dropna()
    if "T3" not in table.index or len(table) < 2:
        raise Missing("tofu")
    some = table[table["fq"] >= COMPETITIVE * table["fq"].max()]["mu_rouge"]
    holds = bool(some.idxmax() == "T3")
    told = f"MU-ROUGE of the competitive: {listed(some.sort_values().to_dict())}"
    return Finding(holds and (len(table) == len(TEN) + 1 or None), told)


@on_both_splits
def generation_kept(tables: Tables, split: str) -> Finding:
    """T3's probability of retain answers is below the original's, but its ROUGE-L is not, neither
    on rows to keep nor on real authors and world facts.
    """
    columns = ("retain_prob", "retain_rouge", "ra_rouge", "wf_rouge")
    pairs = {
        name: [score(tables, split, method, name) for method in ("Original", "T3")]
        for name in columns
    }
    if np.isnan([*pairs.values()]).any():
        raise Missing("tofu")
    down = {name: before - after > SAME for name, (before, after) in pairs.items()}
    told = ", ".join(
        f"{name} {before:.3f} → {after:.3f}" for name, (before, after) in pairs.items()
    )
    return Finding(down.pop("retain_prob") and not any(down.values()), told)


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
def five_seconds(tables: Tables, split: str) -> Finding:
    """With the same retain rows in every epoch, T3 keeps the MU-ROUGE that it has with other rows
    in every epoch.

    The paper's seconds are of the former, and it prints no score of it.
    """
    table = tables["ablations"]
    rows = table[table["split"] == split].set_index("setting")["mu_rouge"]
    fixed = rows.reindex(["tuned", "epoch=fixed"]).dropna()
    if len(fixed) < 2:
        raise Missing("ablations")
    told = f"MU-ROUGE {fixed.iloc[0]:.3f} → {fixed.iloc[1]:.3f} with the same rows in every epoch"
    return Finding(bool(fixed.iloc[0] - fixed.iloc[1] <= SAME), told)


@on_both_splits
def fraction_of_cost(tables: Tables, split: str) -> Finding:
    """T3 takes less time than each baseline if it runs the base at every step as they do
    (naive).
    """
    [mine], rest = _seconds(tables, split, "T3 (naive)"), _seconds(tables, split, *TEN)
    faster = rest[rest <= mine].to_dict()
    told = f"T3 {mine:.3g} s; no slower: {listed(faster, '{} {:.3g} s') or f'none of {len(rest)}'}"
    return Finding(False if faster else True if len(rest) == len(TEN) else None, told)


@on_both_splits
def fraction_preprocessed(tables: Tables, split: str) -> Finding:
    """On saved features, T3 trains in at most a tenth of the seconds of each baseline that trains
    all weights, which is all but ULD.
    """
    full = [name for name in TEN if name != "ULD"]
    [mine], rest = _seconds(tables, split, "T3 (preprocessed)"), _seconds(tables, split, *full)
    features = score(tables, split, "T3 (preprocessed)", "features_s", "runtime")
    told = f"T3 {mine:.3g} s, fastest other {rest.idxmin()} {rest.min():.3g} s"
    told += "" if np.isnan(features) else f"; features {features:.3g} s"
    holds = bool(mine <= FRACTION * rest.min())
    return Finding(holds and (len(rest) == len(full) or None), told)
