"""One function per claim about language models. Each reads Tables 1 to 5, the paper's or ours: the same computation.

A claimed order of two means holds where the difference exceeds its standard error over seeds. A claim about all
baselines is refuted by one that ran; to hold, it needs all ten.
"""

from collections.abc import Callable, Sequence

import numpy as np

from t3lib.claims.findings import MISSING, Finding, Gap, Tables, gap, listed, score, seed_sd
from t3lib.names import BASELINES, SPLITS

FULL = tuple(name for name in BASELINES if name != "ULD")  # fine-tune every weight
PERCENT = {"forget05": "5%", "forget10": "10%"}
COMPETITIVE = 0.5  # "competitive Forget Quality" is not defined in the paper: at least half of the split's best
MEANINGFUL = 0.01  # "does not meaningfully exceed"
ZERO = 5e-4  # prints as 0.000


def fq_best(tables: Tables, split: str) -> Finding:
    return _above_all(tables, split, "fq", BASELINES)


def better_in_both(tables: Tables) -> Finding:
    return joined([_above_all(tables, split, column, BASELINES) for split in SPLITS for column in ("fq", "mu_rouge")])


def mu_rouge_best_among_competitive(tables: Tables, split: str) -> Finding:
    rivals, missing = _competitive(tables, split)
    if missing:
        return Finding(None, f"not run: {', '.join(missing)}")
    found = _above_all(tables, split, "mu_rouge", rivals)
    weaker = [name for name in BASELINES if score(tables, split, name, "fq") > 0.05 and name not in rivals]
    beyond = {name: score(tables, split, name, "mu_rouge") for name in weaker}
    mine = score(tables, split, "T3", "mu_rouge")
    above = {name: value for name, value in beyond.items() if value > mine}
    extra = f"; above T3 with FQ over .05 but under half of the best: {listed(above)}" if above else ""
    return found._replace(numbers=f"competitive: {', '.join(rivals) or 'none'}; {found.numbers}{extra}")


def simnpo_has_higher_mu(tables: Tables) -> Finding:
    return joined([_ordered(tables, split, "SimNPO", "T3", "mu") for split in SPLITS])


def probability_is_lowered(tables: Tables) -> Finding:
    return joined([_ordered(tables, split, "Original", "T3", "retain_prob") for split in SPLITS])


def generation_is_kept(tables: Tables) -> Finding:
    """MU-ROUGE of T3 is not below the original model's by more than the standard error."""
    gaps = {split: gap(tables, split, "T3", "Original", "mu_rouge") for split in SPLITS}
    return _from_gaps(gaps, "MU-ROUGE T3 − Original", lambda difference: difference.sign >= 0)


def mu_exceeds_the_original(tables: Tables) -> Finding:
    """Some method has a higher MU than the original model and no higher MU-ROUGE."""
    found, seen = [], False
    for split in SPLITS:
        for name in (*BASELINES, "T3"):
            more, words = (gap(tables, split, name, "Original", column) for column in ("mu", "mu_rouge"))
            seen |= not np.isnan(more.value)
            if more.sign > 0 and words.sign <= 0:
                found.append(f"{PERCENT[split]} {name} MU {more.value:+.3f}, MU-ROUGE {words.value:+.3f}")
    return Finding(bool(found), "; ".join(found) or "no method") if seen else MISSING


def mu_rouge_does_not_exceed_the_original(tables: Tables) -> Finding:
    values = {
        f"{PERCENT[split]} {name}": gap(tables, split, name, "Original", "mu_rouge").value
        for split in SPLITS
        for name in (*BASELINES, "T3")
    }
    known = {name: value for name, value in values.items() if not np.isnan(value)}
    if not known:
        return MISSING
    top = max(known, key=known.__getitem__)
    holds = known[top] <= MEANINGFUL
    if holds and len(known) < len(values):
        return Finding(None, f"not run: {len(values) - len(known)} of {len(values)} rows")
    return Finding(holds, f"largest excess {top} {known[top]:+.3f} (meaningful: above {MEANINGFUL})")


def original_does_not_forget(tables: Tables) -> Finding:
    values = {PERCENT[split]: score(tables, split, "Original", "fq") for split in SPLITS}
    return _threshold(values, "FQ of the original model", lambda value: value < ZERO)


def means_of_the_seeds(tables: Tables) -> Finding:
    """Every FQ, MU-ROUGE and MU of Table 1 is the mean of Table 4 within rounding."""
    whole, seeds = tables["tofu"], tables["tofu_per_seed"]
    if whole is None or seeds is None:
        return MISSING
    columns = ["fq", "mu_rouge", "mu"]
    means = seeds.groupby(["split", "method"])[columns].mean()
    apart = (whole.set_index(["split", "method"])[columns] - means).abs().stack().dropna()
    if apart.empty:
        return MISSING
    worst = sorted(apart[apart > 0.001 + 1e-9].items(), key=lambda item: -item[1])
    told = "; ".join(f"{PERCENT[s]} {method} {column} off by {value:.4f}" for (s, method, column), value in worst)
    return Finding(not worst, told or f"{len(apart)} means agree within {apart.max():.1g}")


def more_stable(tables: Tables, split: str, among: str) -> Finding:
    """T3's standard deviation of Forget Quality over seeds is below that of every rival."""
    rivals, missing = _competitive(tables, split) if among == "competitive" else (list(BASELINES), [])
    spread = {name: seed_sd(tables, split, name, "fq") for name in rivals}
    missing += [name for name, value in spread.items() if np.isnan(value)]
    mine = seed_sd(tables, split, "T3", "fq")
    steadier = {name: value for name, value in spread.items() if value <= mine}
    if np.isnan(mine) or not rivals or (missing and not steadier):
        return Finding(None, "fewer than two seeds, or no rival")
    told = f"as steady or steadier: {listed(steadier)}" if steadier else f"next {listed(_least(spread))}"
    return Finding(not steadier, f"sd of FQ over seeds: T3 {mine:.3f}; {told}")


def untempered_fails(tables: Tables) -> Finding:
    values = {PERCENT[split]: _at(tables, split, "fq").get(1.0, float("nan")) for split in SPLITS}
    return _threshold(values, "FQ at T = 1", lambda value: value < ZERO)


def too_hot_degrades(tables: Tables) -> Finding:
    """At the largest T, FQ and MU are below those at the T with the best FQ."""
    told, verdicts = [], []
    for split in SPLITS:
        fq, mu, words = (_at(tables, split, column) for column in ("fq", "mu", "mu_rouge"))
        if len(fq) < 3:
            return MISSING
        best, last = max(fq, key=fq.__getitem__), max(fq)
        verdicts.append(best != last and fq[last] < fq[best] and mu[last] < mu[best])
        told.append(
            f"{PERCENT[split]} T {best:g} → {last:g}: FQ {fq[best]:.3f} → {fq[last]:.3f}, MU {mu[best]:.3f} → "
            f"{mu[last]:.3f}, MU-ROUGE {words[best]:.3f} → {words[last]:.3f}"
        )
    return Finding(all(verdicts), "; ".join(told))


def interior_temperature_is_best(tables: Tables, split: str) -> Finding:
    fq = _at(tables, split, "fq")
    if len(fq) < 3:
        return MISSING
    best = max(fq, key=fq.__getitem__)
    return Finding(
        min(fq) < best < max(fq), f"best T {best:g}: " + ", ".join(f"FQ({T:g}) = {v:.3f}" for T, v in fq.items())
    )


def best_temperature_is(tables: Tables, expected: float) -> Finding:
    best = {split: _at(tables, split, "fq") for split in SPLITS}
    if any(len(values) < 3 for values in best.values()):
        return MISSING
    tops = {split: max(values, key=values.__getitem__) for split, values in best.items()}
    told = ", ".join(f"{PERCENT[s]} T = {T:g} (FQ {best[s][T]:.3f})" for s, T in tops.items())
    return Finding(all(T == expected for T in tops.values()), f"best: {told}")


def tempering_costs_generation(tables: Tables) -> Finding:
    """MU-ROUGE at the T with the best FQ is below that at T = 1 (means; Table 5 has no seeds)."""
    told, verdicts = [], []
    for split in SPLITS:
        fq, words = _at(tables, split, "fq"), _at(tables, split, "mu_rouge")
        if len(fq) < 3 or 1.0 not in words:
            return MISSING
        best = max(fq, key=fq.__getitem__)
        verdicts.append(words[best] < words[1.0])
        told.append(f"{PERCENT[split]} MU-ROUGE {words[1.0]:.3f} at T = 1, {words[best]:.3f} at T = {best:g}")
    return Finding(all(verdicts), "; ".join(told))


def table_1_row_is_in_table_5(tables: Tables) -> Finding:
    told, verdicts = [], []
    for split in SPLITS:
        fq, mine = _at(tables, split, "fq"), score(tables, split, "T3", "fq")
        if not fq or np.isnan(mine):
            return MISSING
        verdicts.append(abs(max(fq.values()) - mine) < 1e-9)
        told.append(f"{PERCENT[split]} Table 1 {mine:.3f}, best of Table 5 {max(fq.values()):.3f}")
    return Finding(all(verdicts), "; ".join(told))


def reproduces_t3_row(tables: Tables, printed: Tables) -> Finding:
    """T3's FQ and MU-ROUGE are those of the paper within the two tables' seed spread."""
    told, verdicts = [], []
    for split in SPLITS:
        for column in ("fq", "mu_rouge"):
            ours, theirs = (score(source, split, "T3", column) for source in (tables, printed))
            spread = np.hypot(*(np.nan_to_num(seed_sd(source, split, "T3", column)) for source in (tables, printed)))
            if np.isnan(ours):
                return MISSING
            verdicts.append(abs(ours - theirs) <= spread)
            told.append(f"{PERCENT[split]} {column} {ours:.3f} (paper {theirs:.3f}, spread {spread:.3f})")
    return Finding(all(verdicts), "; ".join(told))


# ---- ablations ------------------------------------------------------------------------------------------------------
def sharpening_is_no_substitute(tables: Tables) -> Finding:
    """Every f^w with w > 1 at T = 1 has a lower FQ than tuned T3 in the table of ablations."""
    table = tables["ablations"]
    if table is None:
        return MISSING
    told, verdicts = [], []
    for split, part in table.groupby("split"):
        fq = part.dropna(subset=["fq"]).groupby("setting")["fq"].max()
        sharp = fq[fq.index.str.match(r"T=1,w=(?!1$)")]
        if "tuned" in fq and len(sharp):
            verdicts.append(bool((sharp < fq["tuned"]).all()))
            told.append(f"{PERCENT[str(split)]} tuned {fq['tuned']:.3f}, {listed(sharp.to_dict())}")
    return Finding(all(verdicts), "; ".join(told)) if verdicts else MISSING


def never_run(tables: Tables) -> Finding:
    """A sweep that no notebook of this project makes."""
    return MISSING


# ---- pieces ---------------------------------------------------------------------------------------------------------
def _above_all(tables: Tables, split: str, column: str, rivals: Sequence[str]) -> Finding:
    """T3 above every rival, each by more than the standard error of the difference."""
    mine = score(tables, split, "T3", column)
    gaps = {name: gap(tables, split, "T3", name, column) for name in rivals}
    ran = {name: difference for name, difference in gaps.items() if not np.isnan(difference.value)}
    if np.isnan(mine) or not ran:
        return MISSING
    near = min(ran, key=lambda name: ran[name].value)
    best = f"best other {near} {mine - ran[near].value:.3f}, gap {ran[near]}"
    told = f"{PERCENT[split]} {column}: T3 {mine:.3f}, {best}"
    if any(difference.sign < 1 for difference in ran.values()):
        beaten = all(difference.value > 0 for difference in ran.values())
        return Finding(False, told, close=beaten and len(ran) == len(gaps))
    return Finding(True, told) if len(ran) == len(gaps) else Finding(None, f"{told}; not all baselines ran")


def _ordered(tables: Tables, split: str, high: str, low: str, column: str) -> Finding:
    difference = gap(tables, split, high, low, column)
    if np.isnan(difference.value):
        return MISSING
    told = f"{PERCENT[split]} {column}: {high} − {low} = {difference}"
    return Finding(difference.sign > 0, told, close=difference.value > 0 and difference.sign < 1)


def _from_gaps(gaps: dict[str, Gap], what: str, good: Callable[[Gap], bool]) -> Finding:
    if any(np.isnan(difference.value) for difference in gaps.values()):
        return MISSING
    told = ", ".join(f"{PERCENT[split]} {difference}" for split, difference in gaps.items())
    return Finding(all(good(difference) for difference in gaps.values()), f"{what}: {told}")


def _threshold(values: dict[str, float], what: str, good: Callable[[float], bool]) -> Finding:
    if any(np.isnan(value) for value in values.values()):
        return MISSING
    told = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    return Finding(all(good(value) for value in values.values()), f"{what}: {told}")


def joined(parts: Sequence[Finding]) -> Finding:
    """Every part holds; one refuted part refutes, else one missing part leaves the claim open."""
    refuted = [part for part in parts if part.holds is False]
    told = "; ".join(part.numbers for part in (refuted or parts) if part.numbers)
    if refuted:
        return Finding(False, told, close=all(p.holds is not None for p in parts) and all(p.close for p in refuted))
    return Finding(True, told) if all(part.holds for part in parts) else Finding(None, told)


def _competitive(tables: Tables, split: str) -> tuple[list[str], list[str]]:
    """Baselines with at least half of the split's best FQ, and those that have none."""
    fq = {name: score(tables, split, name, "fq") for name in (*BASELINES, "T3")}
    missing = [name for name, value in fq.items() if np.isnan(value)]
    best = max((value for value in fq.values() if not np.isnan(value)), default=0.0)
    return [name for name in BASELINES if fq[name] >= COMPETITIVE * best], missing


def _at(tables: Tables, split: str, column: str) -> dict[float, float]:
    """T -> the mean of a column of Table 5."""
    table = tables["temperature"]
    if table is None:
        return {}
    part = table[(table["split"] == split) & table["fq"].notna()].sort_values("T")
    return dict(zip(part["T"].astype(float), part[column].astype(float), strict=True))


def _least(values: dict[str, float]) -> dict[str, float]:
    name = min(values, key=values.__getitem__)
    return {name: values[name]}
