"""Decide the claims about language models from Tables 1 to 5, the paper's or ours.

Each function is named like its claim, and its docstring says what must be true for the claim to
hold.

The same function reads both, by the same standard. Claims about the best method are decided by
differences with an interval: of ours over worlds or over draws of authors, of the paper over its
seeds. One baseline that ran can refute a claim about all baselines. For such a claim to hold, all
ten must have run.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps

import numpy as np
import pandas as pd
from scipy.stats import binomtest, ttest_1samp
from scipy.stats import f as fisher

from t3lab.claims.findings import D, Finding, Missing, Tables, gaps, joined, less, listed
from t3lab.names import SPLITS
from t3lab.report.order import PRINTED as ROWS
from t3lab.report.order import interval
from t3lab.report.tables import OWN_RATE
from t3lab.results import paper_table

# the paper's ten baselines
TEN = tuple(name for name in paper_table(1)["method"].unique() if name not in ("Original", "T3"))
REJECTED = 0.05  # a Forget Quality below this rejects: what "zero" must mean for a p-value
FRACTION = 0.1  # what "a small fraction" means at most
SAME = 0.005  # means of ROUGE-L that differ by less are called equal
TRIED = "at the rates that were tried"  # a restriction
NOISE = 0.2  # two runs' seconds differed by less, but for one method of ten (28%)


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
    """T3 is nearer to a retrained model (in D) than every baseline, beyond chance (p < 0.05)."""
    table = less(tables, split)
    sure = table["p"] < REJECTED
    above, ahead = table[sure & (table["t3_less"] > 0)], table[sure & (table["t3_less"] < 0)]
    idle = ahead.index.intersection(_not_unlearning(tables, split))
    uncounted = f", and than {', '.join(idle)}, which did not unlearn" if len(idle) else ""
    told = (
        f"nearer than T3: {', '.join(above.index) or 'none'}; T3 is nearer than"
        f" {', '.join(ahead.index.difference(idle, sort=False)) or 'none'}{uncounted};"
        " T3's D less that of the others (95% interval):"
        f" {gaps(table.drop(index=[*above.index, *ahead.index])) or 'none'}"
    )
    holds = len(ahead) == len(table) and (len(table) == len(TEN) or None)
    return Finding(holds, told, no_order=above.empty and len(ahead) < len(table))


def _not_unlearning(tables: Tables, split: str) -> list[str]:
    """Return the methods whose D has gone at most a tenth of the way from the original's to that of
    a retrained model. There are none where the original is not farther, as a base that learned
    nothing, and none of the paper's, which prints no D of the original.
    """
    for name in ("worlds_each", "tofu"):
        with suppress(Missing):
            table = tables[name].query("split == @split")
            if D in table and {"Original", "Retrained"} <= {*table["method"]}:
                each = table.groupby("method")[D].mean()
                way = each["Original"] - each.drop("Original")
                return [*way.index[(way <= FRACTION * way["Retrained"]) & (way["Retrained"] > 0)]]
    return []


@on_both_splits
def mu_rouge_best(tables: Tables, split: str) -> Finding:
    """T3's MU-ROUGE is higher than that of every competitive baseline, by more than its 95%
    interval. T3 is competitive itself: no baseline is nearer to a retrained model beyond chance. If
    one of them stands at an end of what was tried, the claim is restricted to that.
    """
    rivals, nearer, whole = _rivals(tables, split)
    words = less(tables, split, "mu_rouge").reindex(rivals).dropna(subset="t3_less")
    behind, ahead = words["t3_high"] < 0, words["t3_low"] > 0
    told = f"T3's MU-ROUGE less that of the competitive: {gaps(words)}"
    holds = bool(ahead.all() and not nearer) and (len(words) == len(rivals) and whole or None)
    if holds and (ends := [name for name in rivals if _edge(tables, split, name)]):
        return Finding(False, f"{told} ({', '.join(ends)}: at an end of the rates)", TRIED)
    return Finding(holds, told, no_order=not (nearer or behind.any()))


@on_both_splits
def more_stable(tables: Tables, split: str) -> Finding:
    """T3's D varies less than that of every competitive baseline, over worlds or the paper's seeds.

    F-tests of the variances, p < 0.05. To refute, p is corrected for the number of baselines.
    """
    rivals, _, whole = _rivals(tables, split)
    groups = tables["worlds_each"].query("split == @split").groupby("method")[D]
    spread, count = groups.std().reindex(["T3", *rivals]).dropna(), groups.count()
    mine, rest = spread["T3"], spread.drop(index="T3")
    p = fisher.cdf((mine / rest) ** 2, count["T3"] - 1, count[rest.index] - 1)
    refuted = bool(((1 - p) * len(rest) < REJECTED).any())
    over = "worlds" if "world" in tables["worlds_each"] else "seeds"
    told = f"sd of D over {count['T3']} {over}: {listed(spread.sort_values().to_dict())}"
    return Finding(bool((p < REJECTED).all()) and whole, told, no_order=not refuted)


def _rivals(tables: Tables, split: str) -> tuple[list[str], bool, bool | None]:
    """Return the competitive baselines: T3 is not nearer to a retrained model beyond chance. Also
    return whether one of them is nearer beyond chance, and whether all ten ran (True or None).
    """
    table = less(tables, split)
    ahead = (table["p"] < REJECTED) & (table["t3_less"] < 0)
    rivals = table[~ahead]
    return [*rivals.index], bool((rivals["p"] < REJECTED).any()), len(table) == len(TEN) or None


def mu_unreliable(tables: Tables) -> Finding:
    """On some split a method's Model Utility exceeds the original's beyond the spread of its seeds
    (95%) and its MU-ROUGE does not, and on none a method's MU-ROUGE exceeds the original's.

    The claim says what can happen. If neither is seen, it stays undecided.
    """
    table = tables["tofu"][lambda rows: rows["method"].isin(["Original", "T3", *TEN])]
    table = table.set_index(["split", "method"])[["mu", "mu_rouge"]].dropna()
    if table.groupby("split").size().reindex(SPLITS, fill_value=0).min() < 2:
        raise Missing("tofu")
    before = table.xs("Original", level="method")
    above = table.sub(before, level="split") > SAME
    seeds = tables["tofu_per_seed"].groupby(["split", "method"])["mu"]
    lowest = seeds.apply(lambda values: interval(values)[1]).reindex(table.index)
    above["mu"] &= lowest.sub(before["mu"], level="split") > 0
    rows = {"MU alone": above["mu"] & ~above["mu_rouge"], "MU-ROUGE": above["mu_rouge"]}
    told = f"original {listed(before.loc[SPLITS[-1]].to_dict())}; higher in " + "; ".join(
        f"{name}: {', '.join(f'{m} ({tables.splits[s]})' for s, m in table.index[some]) or 'none'}"
        for name, some in rows.items()
    )
    holds = False if rows["MU-ROUGE"].any() else bool(rows["MU alone"].any()) or None
    return Finding(holds, told)


def generation_kept(tables: Tables) -> Finding:
    """T3's probability of retain answers is below the original's, but tempering loses no words.

    T3 loses words if its ROUGE-L is below that at T = 1 beyond chance: MU-ROUGE over worlds (95%
    interval) if there are worlds, else by question on three sets (t-tests, p < 0.05 together). If
    only a mean is lower, by more than `SAME`, there is no order. The paper prints means alone, and
    not at T = 1; there a lower mean than the original's counts. Splits whose tuned T is 1 are left
    out.
    """
    parts = {split: _words_kept(tables, split) for split in SPLITS}
    tempered = [
        part._replace(numbers=f"{tables.splits[split]} {part.numbers}")
        for split, part in parts.items()
        if part.holds is not None
    ]
    return joined(tempered) if tempered else Finding(None)


def _words_kept(tables: Tables, split: str) -> Finding:
    """Decide `generation_kept` on one split; holds is None where the tuned T is 1."""
    table = tables["tofu"][lambda rows: rows["split"] == split].set_index("method")
    names = ["retain_prob", "retain_rouge", "ra_rouge", "wf_rouge"]
    table = table.reindex(["Original", OWN_RATE, "T3"], columns=["T", *names])
    before, cold, after = (row for _, row in table[names].iterrows())
    if before.isna().any() or after.isna().any():
        raise Missing("tofu")
    down = np.fmin(before, cold) - after > SAME  # without T = 1, as in the paper, nan
    told = ", ".join(
        f"{name} {before[name]:.3f} → {after[name]:.3f}"
        + ("" if np.isnan(cold[name]) else f" (T = 1: {cold[name]:.3f})")
        for name in names
    )
    T, lost = table.loc["T3", "T"], down.drop("retain_prob").any()
    sure, how = _lost_words(tables, split, T)
    less_likely = before["retain_prob"] - after["retain_prob"] > SAME
    holds = bool(less_likely and not (lost if sure is None else sure or lost))
    chance = sure is False and bool(lost and less_likely)
    return Finding(None if T == 1 else holds, f"{told}{how}", no_order=chance)


def _lost_words(tables: Tables, split: str, T: float) -> tuple[bool | None, str]:
    """Return whether T3 at T writes fewer words than at T = 1 beyond chance, and the evidence; None
    and "" where neither worlds nor texts of both tell it.
    """
    with suppress(Missing):
        rows = tables["worlds"].query(
            "split == @split and measure == 'mu_rouge' and method == @OWN_RATE"
        )
        if len(rows):
            row = rows.iloc[0]
            low, high = row["t3_low"], row["t3_high"]
            shown = f"{row['t3_less']:+.3f} ({low:+.3f} to {high:+.3f})"
            return bool(high < 0), f"; over worlds MU-ROUGE less that of T = 1: {shown}"
    written = {
        run["T"]: run
        for run in tables.runs
        if (run["method"], run["split"], run["w"]) == ("T3", split, 1) and run["records"]
    }
    if not {1.0, T} <= {*written}:
        return None, ""
    told, p = [], []
    for name in ("retain", "ra", "wf"):
        hot, cold = (
            np.array([row["rouge"] for row in written[at]["records"][name]]) for at in (T, 1.0)
        )
        less = hot - cold
        p.append(ttest_1samp(less, 0, alternative="less").pvalue if less.any() else 1.0)
        told.append(f"{name} {less.mean():+.3f} (n = {len(less)}, p = {p[-1]:.2g})")
    sure = bool(min(p) * len(p) < REJECTED)
    seed = written[T]["seed"]
    return sure, f"; ROUGE-L less that at T = 1, by question, seed {seed}: {', '.join(told)}"


# ---- Table 5 and T3's other choices -------------------------------------------------------------
def _by_T(tables: Tables, split: str) -> pd.Series:
    """Return the Forget Quality of Table 5 by T, against held-out retrained models if there are
    any. Missing with fewer than three T.
    """
    rows = tables["temperature"][lambda rows: rows["split"] == split].set_index("T").sort_index()
    fq = rows.get("fq_held_out", rows["fq"]).fillna(rows["fq"]).dropna()
    if len(fq) < 3:
        raise Missing("temperature")
    return fq


@on_both_splits
def t5_untempered(tables: Tables, split: str) -> Finding:
    """At T = 1, at its own learning rate, the test rejects: Forget Quality is below 0.05, over
    worlds in more than half of them. With fewer rows than the paper's a test that does not reject
    gives no order. If it rejects at the highest rate that was tried, the claim is restricted to the
    rates that were tried.
    """
    rows = tables["temperature"].query("split == @split and T == 1")
    if rows.empty:
        raise Missing("temperature")
    row, n, edge = rows.iloc[0], ROWS[split], _edge(tables, split, OWN_RATE)

    # our own world, then held-out models, then other worlds: the best evidence there is
    found, told = [row["fq"]], "FQ at T = 1: {:.2g}"
    if not np.isnan(row.get("fq_held_out", np.nan)):
        with suppress(Missing):
            n = tables["forget_quality"].query("split == @split")["n"].max()
        found, told = [row["fq_held_out"]], f"FQ at T = 1: {{:.2g}} with {n} rows"
        with suppress(Missing):
            each = tables["worlds_each"].reindex(columns=["split", "method", "fq_held_out"])
            each = each.query("split == @split").set_index("method")

            counts = (each["fq_held_out"] < REJECTED).groupby(level=0).agg(["sum", "size"])
            if OWN_RATE in counts.index:
                found = [*each.loc[OWN_RATE, "fq_held_out"]]
                shown = [OWN_RATE, "T3", "Retrained"]
                told = f"rejected with {n} rows in worlds: " + ", ".join(
                    f"{name} {hit:g} of {of:g}"
                    for name, (hit, of) in counts.reindex(shown).dropna().iterrows()
                )

    rejected = bool(np.mean(np.array(found) < REJECTED) > 0.5)
    holds = None if np.isnan(found).any() else rejected and not edge
    few = not rejected and n < ROWS[split]
    note = f" ({edge} that was tried)" if edge else ""
    return Finding(holds, told.format(*found) + note, TRIED * bool(edge and rejected), few)


def _edge(tables: Tables, split: str, method: str) -> str:
    """Return which of a method's chosen values is the first or last that was tried, or "". It is ""
    of the paper's methods, whose search it does not print.
    """
    with suppress(Missing):
        edges = tables["search"].set_index(["split", "method"])["edge"].dropna()
        return str(edges.get((split, method), ""))
    return ""


@on_both_splits
def t5_interior(tables: Tables, split: str) -> Finding:
    """Some T inside the range has a better Forget Quality than the lowest and than the highest T.

    One T is better than another if the test rejects the other alone (Forget Quality below 0.05). If
    neither the inside nor an end is better, there is no order. If T = 1 is rejected at the highest
    rate that was tried, the claim is restricted to the rates that were tried.
    """
    fq, edge = _by_T(tables, split), _edge(tables, split, OWN_RATE)
    inside, ends = fq.iloc[1:-1].max() >= REJECTED, fq.iloc[[0, -1]] >= REJECTED
    told = f"best T {fq.idxmax():g}: {listed(fq.to_dict(), 'FQ({:g}) = {:.3f}')}"
    found = Finding(bool(inside and not ends.any()), told, no_order=bool(inside or not ends.any()))
    if found.holds and edge:
        return Finding(False, f"{told} (T = 1: {edge} that was tried)", TRIED)
    return found


@on_both_splits
def forget_error_tempered(tables: Tables, split: str) -> Finding:
    """With a retrained model in the place of p_r, the Forget Error of T3 at the T that Forget
    Quality chose is lower than at T = 1, each with its own learning rate: in more worlds than
    chance explains (sign test, p < 0.05). What the same head has at its best T is told beside it.
    """
    chosen = tables["search"].query("split == @split").set_index("method")["chosen"]
    if not {"T3", OWN_RATE} <= {*chosen.index}:
        raise Missing("search")
    points = tables["errors_each"].query("split == @split and w == 1 and gate == 1")
    values = points.set_index(["lr", "temperature", "world"])["forget_error"].sort_index()
    warm, cold = (_settings(chosen[name]) for name in ("T3", OWN_RATE))
    keys = [(each["lr"], each["temperature"]) for each in (cold, warm)]
    if not {*keys} <= {*values.index.droplevel("world")}:
        raise Missing("errors_each")
    before, after = (values[key] for key in keys)
    T = warm["temperature"]

    def lower(than: pd.Series, each: pd.Series) -> tuple[int, bool]:
        """The number of worlds in which a Forget Error is lower, and whether beyond chance."""
        count = int((each < than).sum())
        test = binomtest(count, len(each), alternative="greater")
        return count, bool(test.pvalue < REJECTED)

    count, sure = lower(before, after)
    told = (
        f"T = 1 → {T:g}: {before.mean():.2f} → {after.mean():.2f}, lower in {count} of"
        f" {len(after)} worlds"
    )

    # the head of the chosen T at all T
    head = values[warm["lr"]].unstack("world")
    if 1.0 in head.index:
        best = head.mean(axis=1).idxmin()
        of, _ = lower(head.loc[1.0], head.loc[best])
        told += (
            f"; the same head: {head.loc[1.0].mean():.2f} → {head.loc[best].mean():.2f} at T ="
            f" {best:g}, lower in {of}"
        )
    return Finding(sure, told, no_order=not sure and not lower(after, before)[1])


def _settings(chosen: str) -> dict[str, float]:
    """Read the column `chosen` of the table `search`, such as "lr 0.04, temperature 1"."""
    pairs = (each.rsplit(" ", 1) for each in chosen.split(", "))
    return {name: float(value) for name, value in pairs}


# ---- Tables 2 and 3 -----------------------------------------------------------------------------
def _cost(tables: Tables, split: str, mine: str, others: Sequence[str], share: float) -> Finding:
    """Decide whether T3's training takes less than a share of the seconds of each other method.
    Within `NOISE` of the bound there is no order.

    mine: T3's name in the table `runtime`.
    """
    rows = tables["runtime"][lambda rows: rows["split"] == split]
    seconds = rows.set_index("method")["train_s"].dropna()
    rest = seconds[seconds.index.isin(others)]
    if mine not in seconds or rest.empty:
        raise Missing("runtime")
    ratio = (share * rest / seconds[mine]).sort_values()  # above 1 where the claim holds
    fast, close = ratio[ratio * (1 + NOISE) <= 1], ratio[(ratio - 1).abs() < NOISE]
    told = [f"T3 {seconds[mine]:.3g} s"]
    for name, some in (("too fast", fast), ("too close to tell", close)):
        told.append(f"{name}: {listed(rest[some.index].to_dict(), '{} {:.3g} s') or 'none'}")
    numbers = "; ".join([*told, f"fastest {rest.idxmin()} {rest.min():.3g} s"])
    if len(fast) or len(close):
        return Finding(False, numbers, no_order=fast.empty)
    return Finding(len(rest) == len(others) or None, numbers)


@on_both_splits
def five_seconds(tables: Tables, split: str) -> Finding:
    """With the same retain rows in every epoch, at a rate and T searched for it, T3 keeps the
    MU-ROUGE that it has with other rows in every epoch.

    The paper's seconds are of the former, and it prints no score of it.
    """
    table = tables["fixed_epoch"][lambda rows: rows["split"] == split].set_index("setting")
    kept = table["mu_rouge"].to_dict()
    told = "; ".join(
        f"{name}: MU-ROUGE {row['mu_rouge']:.3f}, FQ {row['fq_held_out']:.2f}, T = {row['T']:g},"
        f" rate {row['lr']:g}"
        for name, row in table.iterrows()
    )
    return Finding(kept.pop("redrawn") - max(kept.values()) <= SAME, told)


@on_both_splits
def fraction_of_cost(tables: Tables, split: str) -> Finding:
    """T3 takes less time than each baseline if it runs the base at every step as they do
    (naive).
    """
    return _cost(tables, split, "T3 (naive)", TEN, 1.0)


@on_both_splits
def fraction_preprocessed(tables: Tables, split: str) -> Finding:
    """On saved features, T3 trains in at most a tenth of the seconds of each baseline that trains
    all weights, which is all but ULD.
    """
    full = [name for name in TEN if name != "ULD"]
    return _cost(tables, split, "T3 (preprocessed)", full, FRACTION)
