"""The paper's tables from run files: one function each, tidy frame in (`results.tidy`), table out, no number typed.

Every method of the paper has its row whether it ran or not; what did not run, or failed, is an empty cell. Runs with a
`setting` (ablations) enter only `ablations` and, for the setting "naive", `runtime`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from t3lib.metrics import UTILITY, forget_quality_lattice
from t3lib.names import METHODS, SPLITS

SUMMARY = ("fq", "mu_rouge", "mu")
UNLEARNING = METHODS[2:]
TUNING_SEEDS = (1, 2)  # the paper: "we tune hyperparameters using random seeds 1 and 2"
ROUNDING = 5e-4  # half a unit of the paper's last printed digit
COUNTS = ("n_seeds", "seed", "trainable", "epochs", "n")


def tofu(frame: pd.DataFrame, *, chosen: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Table 1: mean over seeds of Forget Quality, MU-ROUGE, MU and the nine components; T3 at its tuned T.

    `chosen` maps a split to its T; a split it does not name takes `chosen_temperature`.
    """
    shown = _at_chosen(frame, chosen)
    means = shown.groupby(["split", "method"])[[*SUMMARY, *UTILITY]].mean().reset_index()
    counts = shown.groupby(["split", "method"]).agg(T=("T", "first"), n_seeds=("fq", "count")).reset_index()
    table = _all_rows(METHODS).merge(counts, how="left").merge(means, how="left")
    table.loc[table["n_seeds"] == 0, "n_seeds"] = None
    return _columns(table, ["split", "method", "T", "n_seeds", *SUMMARY, *UTILITY])


def parameters(frame: pd.DataFrame) -> pd.DataFrame:
    """Table 2: trainable parameters per unlearning method (the same in every split, seed and temperature)."""
    counts = _main(frame).groupby("method")["trainable"].max().reset_index()
    return _columns(pd.DataFrame({"method": UNLEARNING}).merge(counts, how="left"), ["method", "trainable"])


def runtime(frame: pd.DataFrame, *, chosen: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Table 3: epochs, mean seconds per stage and the largest memory; T3 both naive and preprocessed.

    Features are computed by the first run that needs them and cached, so their time is the longest of the split's
    runs. `T3 (preprocessed)` is T3 as it always runs here; `T3 (naive)` comes from runs of the setting "naive".
    """
    shown = _at_chosen(frame, chosen).replace({"method": {"T3": "T3 (preprocessed)"}})
    naive = frame[frame["setting"] == "naive"].assign(method="T3 (naive)")
    measured = pd.concat([part for part in (shown, naive) if len(part)] or [shown])
    costs = measured[measured["status"] == "ok"].groupby(["split", "method"])
    table = costs[["load_s", "train_s", "evaluate_s"]].mean()
    table = table.join(costs[["epochs", "features_s", "peak_memory_bytes"]].max()).reset_index()
    longest = _main(frame)[lambda runs: runs["method"] == "T3"].groupby("split")["features_s"].max()
    cached = table["method"] == "T3 (preprocessed)"
    table.loc[cached, "features_s"] = table.loc[cached, "split"].map(longest)
    names = (*UNLEARNING[:-1], "T3 (naive)", "T3 (preprocessed)")
    columns = ["split", "method", "epochs", "load_s", "features_s", "train_s", "evaluate_s", "peak_memory_bytes"]
    return _columns(_all_rows(names).merge(table, how="left"), columns)


def tofu_per_seed(frame: pd.DataFrame, *, chosen: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Table 4: Forget Quality, MU-ROUGE and MU of every seed; a method without a run keeps one empty row."""
    table = _all_rows(METHODS).merge(_at_chosen(frame, chosen), how="left")
    return _columns(table, ["split", "method", "T", "seed", *SUMMARY])


def temperature(frame: pd.DataFrame) -> pd.DataFrame:
    """Table 5: T3 at every T that ran (and the paper's five), means over seeds."""
    runs = _main(frame)[lambda rows: rows["method"] == "T3"]
    means = runs.groupby(["split", "T"]).agg(
        n_seeds=("fq", "count"), **{name: (name, "mean") for name in SUMMARY}
    )  # fmt: skip
    values = sorted({1.0, 1.5, 2.0, 2.5, 3.0, *runs["T"].dropna()})
    keys = pd.DataFrame([(split, T) for split in SPLITS for T in values], columns=["split", "T"])
    table = keys.merge(means.reset_index(), how="left")
    table.loc[table["n_seeds"] == 0, "n_seeds"] = None
    return _columns(table, ["split", "T", "n_seeds", *SUMMARY])


def ablations(frame: pd.DataFrame) -> pd.DataFrame:
    """T3 as tuned and each of its variations (the runs that have a setting), means over the seeds of each."""
    varied = frame[frame["setting"].notna() & (frame["setting"] != "naive")]
    table = varied.groupby(["split", "setting", "T"], dropna=False)[["fq", "mu_rouge"]].mean().reset_index()
    table = table.assign(varies=table["setting"] != "tuned").sort_values(["split", "varies", "setting", "T"])
    return _columns(table, ["split", "setting", "T", "fq", "mu_rouge"])


def forget_quality(frame: pd.DataFrame, *, chosen: Mapping[str, float] | None = None) -> pd.DataFrame:
    """The test behind each Forget Quality: KS statistic D, rows n and exact two-sided p, per method and seed."""
    runs = _at_chosen(frame, chosen).rename(columns={"n_forget": "n"})
    table = _all_rows(METHODS).merge(runs, how="left")
    return _columns(table, ["split", "method", "T", "seed", "n", "ks_statistic", "fq"])


def by_seeds(frame: pd.DataFrame, *, chosen: Mapping[str, float] | None = None) -> pd.DataFrame:
    """All seeds beside those that chose nothing: seeds 1 and 2 tuned the hyperparameters, the others are fresh."""
    shown = _at_chosen(frame, chosen)
    tuned_on = shown["seed"].isin(TUNING_SEEDS) & shown["method"].isin(UNLEARNING)
    parts = [("all", shown), ("fresh", shown[~tuned_on])]
    rows = [_spread(part, ["split", "method"]).assign(seeds=name) for name, part in parts]
    keys = _all_rows(METHODS).merge(pd.DataFrame({"seeds": ["all", "fresh"]}), how="cross")
    table = keys.merge(pd.concat(rows), how="left")
    columns = [
        "split",
        "method",
        "seeds",
        "n_seeds",
        *(f"{name}_{part}" for name in SUMMARY for part in ("ours", "sd")),
    ]
    return _columns(table, columns)


def compare(
    frame: pd.DataFrame,
    printed: pd.DataFrame,
    *,
    printed_seeds: pd.DataFrame | None = None,
    chosen: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Ours beside printed (Table 1, or Table 5 by T): our mean, sd and seeds, the printed mean, difference and mark.

    The spread is sqrt(sd_ours^2 + sd_paper^2), the paper's from its per-seed table where given. Marks: "=" within one
    spread (and the paper's rounding), "≈" within two, "≠" beyond; empty where a number or our spread is missing.
    """
    keys = ["split", "method"] if "method" in printed else ["split", "T"]
    if "method" in printed:
        table = _all_rows(METHODS).merge(_spread(_at_chosen(frame, chosen), keys), how="left")
    else:
        table = printed[keys].merge(_spread(_main(frame)[lambda runs: runs["method"] == "T3"], keys), how="outer")
    table = table.merge(printed[[*keys, *SUMMARY]], how="left", on=keys)
    theirs = _spread(printed_seeds, keys).set_index(keys) if printed_seeds is not None else None
    index = pd.MultiIndex.from_frame(table[keys])
    for name in SUMMARY:
        table[f"{name}_paper"] = table[name]
        table[f"{name}_difference"] = table[f"{name}_ours"] - table[name]
        other = theirs[f"{name}_sd"].reindex(index).to_numpy() if theirs is not None else 0.0
        spread = (table[f"{name}_sd"] ** 2 + pd.Series(other, index=table.index).fillna(0) ** 2) ** 0.5
        table[f"{name}_mark"] = [_mark(d, s) for d, s in zip(table[f"{name}_difference"], spread)]
    parts = ("ours", "sd", "paper", "difference", "mark")
    return _columns(table, [*keys, "n_seeds", *(f"{name}_{part}" for name in SUMMARY for part in parts)])


def paper_disagreements(table1: pd.DataFrame, table4: pd.DataFrame, *, tolerance: float = 0.001) -> pd.DataFrame:
    """Rows of the paper's Table 1 whose printed mean is not the mean of its Table 4's seeds within `tolerance`."""
    means = table4.groupby(["split", "method"])[list(SUMMARY)].mean().reset_index()
    both = table1.merge(means, on=["split", "method"], suffixes=("", "_seeds"))
    rows = [
        (row["split"], row["method"], name, row[name], row[f"{name}_seeds"])
        for row in both.to_dict("records")
        for name in SUMMARY
        if abs(row[name] - row[f"{name}_seeds"]) > tolerance + 1e-9
    ]
    return pd.DataFrame(rows, columns=["split", "method", "metric", "table1", "table4"])


def chosen_temperature(frame: pd.DataFrame, split: str) -> float | None:
    """T3's tuned T: best mean Forget Quality over seeds 1 and 2, ties by MU-ROUGE; without them, over all seeds."""
    runs = _main(frame)[lambda rows: (rows["method"] == "T3") & (rows["split"] == split) & rows["fq"].notna()]
    tuning = runs[runs["seed"].isin(TUNING_SEEDS)]
    means = (tuning if len(tuning) else runs).groupby("T")[["fq", "mu_rouge"]].mean()
    return float(means.sort_values(["fq", "mu_rouge"]).index[-1]) if len(means) else None


def printed_ks_statistic(fq: float, n: int) -> float | None:
    """The D that a Forget Quality printed with 3 decimals stands for; None when several would print the same."""
    matches = np.flatnonzero(abs(forget_quality_lattice(n) - fq) <= 5.01e-4) + 1
    return float(matches[0] / n) if len(matches) == 1 else None


def _main(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["setting"].isna()]


def _at_chosen(frame: pd.DataFrame, chosen: Mapping[str, float] | None) -> pd.DataFrame:
    """The main runs, of T3 only those at the split's tuned T."""
    T = {split: (chosen or {}).get(split) or chosen_temperature(frame, split) for split in SPLITS}
    runs = _main(frame)
    return runs[(runs["method"] != "T3") | (runs["T"] == runs["split"].map(T).astype(float))]


def _all_rows(methods: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame([(split, method) for split in SPLITS for method in methods], columns=["split", "method"])


def _columns(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The named columns, in this order, counts as whole numbers that may be empty."""
    return table[list(names)].astype({name: "Int64" for name in COUNTS if name in names}).reset_index(drop=True)


def _spread(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean (`_ours`), standard deviation over seeds (`_sd`, n-1) and number of seeds per group."""
    named = {f"{name}_{part}": (name, how) for name in SUMMARY for part, how in (("ours", "mean"), ("sd", "std"))}
    table = frame.groupby(keys).agg(n_seeds=("fq", "count"), **named).reset_index()
    table["n_seeds"] = table["n_seeds"].astype("Int64").replace(0, pd.NA)
    return table


def _mark(difference: float, spread: float) -> str:
    if pd.isna(difference) or pd.isna(spread):
        return ""
    beyond = abs(difference) - ROUNDING
    return "=" if beyond <= spread else "≈" if beyond <= 2 * spread else "≠"
