"""One function per claim about language models, named as the claim is: Tables 1 to 5, the paper's or ours.

The same function reads both. One method leads another where `findings.gap` says so. A claim about all baselines is
refuted by one that ran and is not behind; to hold, it needs all ten.
"""

from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np
import pandas as pd

from t3lib.bench.cost import parameter_counts
from t3lib.claims.findings import Finding, Missing, Tables, gap, joined, listed, printed_tables, score
from t3lib.metrics import AUDIT
from t3lib.names import BASELINES, SPLITS

FULL = tuple(name for name in BASELINES if name != "ULD")  # fine-tune every weight
COMPETITIVE = 0.5  # "competitive Forget Quality" is not defined in the paper: at least half of the split's best
MEANINGFUL = 0.01  # "does not meaningfully exceed"
REJECTED = 0.05  # a Forget Quality below this is a test that rejects: what "zero" must mean for a p-value
FRACTION = 0.1  # "a small fraction"
FINE = 5  # a grid of w is fine with so many values of w > 1
SUMMARY, AUDITED = ("fq", "mu_rouge", "mu"), ("sampled", "leak", "auc")
SPREADS = 2.0  # of the retrained models: what is so near is not told from them


# ---- Tables 1 and 4 --------------------------------------------------------------------------------------------------
def on_both_splits(check: Callable[[Tables, str], Finding]) -> Callable[[Tables], Finding]:
    """A check of one split, asked for on both."""

    @wraps(check)
    def decide(tables: Tables) -> Finding:
        parts = [(tables.splits[split], check(tables, split)) for split in SPLITS]
        return joined([part._replace(numbers=f"{share} {part.numbers}") for share, part in parts])

    return decide


def _leads(tables: Tables, split: str, column: str, rivals: Sequence[str]) -> Finding:
    """T3 leads every rival."""
    mine = score(tables, split, "T3", column)
    gaps = {name: gap(tables, split, "T3", name, column) for name in rivals}
    ran = {name: difference for name, difference in gaps.items() if not np.isnan(difference.value)}
    if not ran:
        raise Missing(column)
    near = min(ran, key=lambda name: ran[name].value)
    told = f"{column}: T3 {mine:.3f}, best other {near} {mine - ran[near].value:.3f}, gap {ran[near]}"
    beaten = all(difference.value > 0 for difference in ran.values())
    if beaten and len(ran) < len(gaps):
        return Finding(None, f"{told}; not all baselines ran")
    return Finding(all(difference.sign > 0 for difference in ran.values()), told, close=beaten)


@on_both_splits
def fq_best(tables: Tables, split: str) -> Finding:
    """T3 leads every baseline in Forget Quality."""
    finding = _leads(tables, split, "fq", BASELINES)
    rival = max(BASELINES, key=lambda name: np.nan_to_num(score(tables, split, name, "fq"), nan=-1.0))
    words = score(tables, split, rival, "mu_rouge")
    told = f"{rival} has a higher mean Forget Quality than T3, with MU-ROUGE {words:.2f}."
    if finding.close:
        told = "T3 has the highest mean Forget Quality, but its lead is within chance (Welch's test, 5%)."
    return finding._replace(plain=f"On the {tables.splits[split]} split {told}" if finding.holds is False else "")


@on_both_splits
def words_best(tables: Tables, split: str) -> Finding:
    """T3 leads in MU-ROUGE every baseline with at least half of the split's best Forget Quality."""
    fq = {name: score(tables, split, name, "fq") for name in (*BASELINES, "T3")}
    if missing := [name for name, value in fq.items() if np.isnan(value)]:
        return Finding(None, f"not run: {', '.join(missing)}")
    rivals = [name for name in BASELINES if fq[name] >= COMPETITIVE * max(fq.values())]
    finding = _leads(tables, split, "mu_rouge", rivals) if rivals else Finding(True)
    return finding._replace(numbers=f"competitive: {', '.join(rivals) or 'none'}; {finding.numbers}")


@on_both_splits
def nobody_dominates(tables: Tables, split: str) -> Finding:
    """No baseline leads T3 in one of Forget Quality and MU-ROUGE without T3 leading it in the other."""
    signs = {}
    for name in BASELINES:
        pair = [gap(tables, split, "T3", name, column) for column in ("fq", "mu_rouge")]
        if not np.isnan(pair[0].value + pair[1].value):
            signs[name] = {pair[0].sign, pair[1].sign}
    above = [name for name, pair in signs.items() if -1 in pair and 1 not in pair]
    told = f"better than T3: {', '.join(above) or 'none'} of {len(signs)}"
    return Finding(False if above else True if len(signs) == len(BASELINES) else None, told)


@on_both_splits
def generation_kept(tables: Tables, split: str) -> Finding:
    """T3's retain probability is below the original's. Its MU-ROUGE is not, nor at the best T below T = 1's (means)."""
    prob, words = (gap(tables, split, "T3", "Original", column) for column in ("retain_prob", "mu_rouge"))
    if np.isnan(prob.value + words.value):
        raise Missing("tofu")
    heat = _at(tables, split)
    best, cold = heat["mu_rouge"][heat["fq"].idxmax()], heat["mu_rouge"].get(1.0, np.nan)
    kept = prob.sign < 0 and words.sign >= 0 and not best < cold
    told = f"probability {prob.value:+.3f}, MU-ROUGE {words}; {cold:.3f} at T = 1, {best:.3f} at the best T"
    plain = "Tempering costs generated text: with T3 MU-ROUGE is lower than before unlearning, beyond chance."
    return Finding(kept, told, plain=plain if words.sign < 0 else "")


def mu_exceeds(tables: Tables) -> Finding:
    """Some method leads the original model in MU and does not in MU-ROUGE, on either split."""
    found, seen = [], False
    for split in SPLITS:
        for name in (*BASELINES, "T3"):
            more, words = (gap(tables, split, name, "Original", column) for column in ("mu", "mu_rouge"))
            seen |= not np.isnan(more.value)
            if more.sign > 0 and words.sign <= 0:
                found.append(f"{tables.splits[split]} {name} MU {more.value:+.3f}, MU-ROUGE {words.value:+.3f}")
    return Finding(bool(found) if seen else None, "; ".join(found) or "no method")


@on_both_splits
def mu_rouge_faithful(tables: Tables, split: str) -> Finding:
    """No method's MU-ROUGE exceeds the original model's by more than .01."""
    excess = {name: gap(tables, split, name, "Original", "mu_rouge").value for name in (*BASELINES, "T3")}
    known = {name: value for name, value in excess.items() if not np.isnan(value)}
    if not known:
        raise Missing("tofu")
    top = max(known, key=known.__getitem__)
    holds = known[top] <= MEANINGFUL and (len(known) == len(excess) or None)
    return Finding(holds, f"largest excess {top} {known[top]:+.3f}; {len(known)} of {len(excess)} methods ran")


def seed_means(tables: Tables) -> Finding:
    """Every FQ, MU-ROUGE and MU of Table 1 is the mean of Table 4 within rounding."""
    keys, columns = ["split", "method"], list(SUMMARY)
    means = tables["tofu_per_seed"].groupby(keys)[columns].mean()
    apart = (tables["tofu"].set_index(keys)[columns] - means).abs().stack().dropna().sort_values(ascending=False)
    if apart.empty:
        raise Missing("tofu")
    worst = apart[apart > 0.001 + 1e-9]
    told = "; ".join(f"{tables.splits[s]} {name} {column} off by {gap:.4f}" for (s, name, column), gap in worst.items())
    return Finding(worst.empty, told or f"{len(apart)} means agree within {apart.max():.1g}")


@on_both_splits
def stable(tables: Tables, split: str) -> Finding:
    """T3's standard deviation over seeds is below every baseline's in FQ, MU-ROUGE and MU."""
    steadier, missing, told = [], 0, []
    for column in SUMMARY:
        seeds = {name: tables.numbers("tofu_per_seed", split, name, column) for name in ("T3", *BASELINES)}
        mine, *rest = (float(pd.Series(values).std()) for values in seeds.values())  # nan with fewer than two seeds
        others = dict(zip(BASELINES, rest))
        below = [name for name, value in others.items() if value <= mine]
        missing += int(np.isnan([mine, *others.values()]).sum())
        steadier += below
        told.append(f"{column} sd {mine:.3f}, no larger: {', '.join(below) or 'none'}")
    return Finding(False if steadier else None if missing else True, "; ".join(told))


# ---- Table 5 and the ablations ---------------------------------------------------------------------------------------
def _at(tables: Tables, split: str) -> pd.DataFrame:
    """Table 5 of a split by T; Missing with fewer than three temperatures."""
    table = tables["temperature"]
    part = table[(table["split"] == split) & table["fq"].notna()].sort_values("T").set_index("T")[list(SUMMARY)]
    if len(part) < 3:
        raise Missing("temperature")
    return part


@on_both_splits
def t5_untempered(tables: Tables, split: str) -> Finding:
    """The Forget Quality at T = 1 is that of a rejected test, below .05."""
    fq = _at(tables, split)["fq"].get(1.0, np.nan)
    return Finding(None if np.isnan(fq) else bool(fq < REJECTED), f"FQ at T = 1: {fq:.3g}")


@on_both_splits
def t5_interior(tables: Tables, split: str) -> Finding:
    """The T of best Forget Quality is neither the lowest nor the highest."""
    fq = _at(tables, split)["fq"]
    told = f"best T {fq.idxmax():g}: {listed(fq.to_dict(), 'FQ({:g}) = {:.3f}')}"
    return Finding(bool(fq.index[0] < fq.idxmax() < fq.index[-1]), told)


@on_both_splits
def t5_best(tables: Tables, split: str) -> Finding:
    """T = 2.5 has the best Forget Quality, and it is Table 1's."""
    fq, first = _at(tables, split)["fq"], score(tables, split, "T3", "fq")
    told = f"best T = {fq.idxmax():g} (FQ {fq.max():.3f}, Table 1 {first:.3f})"
    return Finding(bool(fq.idxmax() == 2.5 and abs(fq.max() - first) < 1e-9), told)


@on_both_splits
def t5_too_hot(tables: Tables, split: str) -> Finding:
    """At the largest T, FQ, MU-ROUGE and MU are all below those at the T of best FQ."""
    heat = _at(tables, split)
    best, last = heat.loc[heat["fq"].idxmax()], heat.iloc[-1]
    moves = ", ".join(f"{column} {best[column]:.3f} → {last[column]:.3f}" for column in SUMMARY)
    return Finding(bool((last < best).all()), f"T {best.name:g} → {last.name:g}: {moves}")


@on_both_splits
def sharpening_on_tofu(tables: Tables, split: str) -> Finding:
    """On a fine grid of w (five values above 1) every f^w at T = 1 has a lower Forget Quality than f at its best T."""
    part = tables[f"dials--{split}"].dropna(subset=["fq"])
    fq = part[(part["T"] == 1) & (part["w"] > 1)].set_index("w")["fq"]
    tempered = part[(part["T"] > 1) & (part["w"] == 1)].set_index("T")["fq"]
    if len(fq) < FINE or tempered.empty:
        raise Missing("dials")
    told = f"T = {tempered.idxmax():g}: {tempered.max():.3f}, best w = {fq.idxmax():g} of {len(fq)}: {fq.max():.3f}"
    return Finding(bool(fq.max() < tempered.max()), told)


@on_both_splits
def imbalance_on_tofu(tables: Tables, split: str) -> Finding:
    """With Appendix D's correction (`prior=population`) Forget Quality is not below tuned T3's (means; T as tuned)."""
    fq = tables["ablations"].query("split == @split").dropna(subset=["fq"]).groupby("setting")["fq"].max()
    if not {"tuned", "prior=population"} <= set(fq.index):
        raise Missing("ablations")
    told = f"FQ corrected {fq['prior=population']:.3f}, not corrected {fq['tuned']:.3f}"
    return Finding(bool(fq["prior=population"] >= fq["tuned"]), told)


# ---- The audit -------------------------------------------------------------------------------------------------------
@on_both_splits
def samples_retain(tables: Tables, split: str) -> Finding:
    """At the tuned T, T3's samples, the best of them and its AUC are within SPREADS spreads of retrained models'."""
    T = score(tables, split, "T3", "T")
    rows = tables["audit"].query("split == @split and method == 'T3' and T == @T and w == 1")
    apart = rows[[f"{name}_distance" for name in AUDITED]].dropna().to_numpy()
    if not len(apart):
        raise Missing("audit")
    far = dict(zip(AUDITED, apart[0]))
    told = [f"{AUDIT[name].title} {rows.iloc[0][name]:.3f} ({far[name]:+.1f} spreads)" for name in AUDITED]
    return Finding(bool((abs(apart[0]) <= SPREADS).all()), f"T = {T:g}: {', '.join(told)}")


# ---- Tables 2 and 3 --------------------------------------------------------------------------------------------------
def share_t3(tables: Tables) -> Finding:
    """The three numbers of the paper's Table 2 are those of the model's shapes, and T3's is 0.03% of all."""
    printed = printed_tables()["parameters"].set_index("method")["trainable"]
    counts = parameter_counts("llama-3.1-8b")
    same = all(f"{counts[name]:.2e}" == f"{printed[name]:.2e}" for name in counts)
    share = counts["T3"] / counts["Full Fine-Tuning"]
    told = f"{listed(counts, '{} {:,}')} by the shapes; T3 trains {share:.4%}"
    return Finding(same and round(100 * share, 2) == 0.03, told)


def _seconds(tables: Tables, split: str, *names: str) -> pd.Series:
    """Seconds of training in Table 3 by method; Missing where none of them ran."""
    seconds = pd.Series({name: score(tables, split, name, "train_s", "runtime") for name in names}).dropna()
    if seconds.empty:
        raise Missing("runtime")
    return seconds


@on_both_splits
def small_fraction_of_time(tables: Tables, split: str) -> Finding:
    """T3 on stored features trains in less than a tenth of the seconds of every full fine-tuning."""
    [mine], rest = _seconds(tables, split, "T3 (preprocessed)"), _seconds(tables, split, *FULL)
    features = score(tables, split, "T3 (preprocessed)", "features_s", "runtime")
    extra = "" if np.isnan(features) else f" after {features:.3g} s for features"
    told = f"T3 {mine:.3g} s{extra}, {rest.idxmin()} {rest.min():.3g} s: {mine / rest.min():.2g}×"
    return Finding(False if mine >= FRACTION * rest.min() else True if len(rest) == len(FULL) else None, told)


@on_both_splits
def fraction_of_cost(tables: Tables, split: str) -> Finding:
    """In the baselines' own loop, the base read at every step (naive), T3 takes less time than each baseline."""
    [mine], rest = _seconds(tables, split, "T3 (naive)"), _seconds(tables, split, *BASELINES)
    faster = rest[rest <= mine].to_dict()
    told = f"T3 {mine:.3g} s; no slower: {listed(faster, '{} {:.3g} s') or f'none of {len(rest)}'}"
    return Finding(False if faster else True if len(rest) == len(BASELINES) else None, told)
