"""Every Forget Quality that we show, computed again from the truth ratios of the committed runs,
without t3lib.
"""

import csv
import json
from functools import cache

import numpy as np
import pytest
from conftest import ROOT
from scipy.stats import ks_2samp

RESULTS = ROOT / "results"
README, DETAIL = (
    " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    for folder in (ROOT, RESULTS)
)
PROFILES = ("cpu", "tofu-cpu")
HELD_OUT = (1, 2, 3)
# w of the rows of Table 1 that have a dial, or the share a of a baseline's weights
DIALS = {
    "cpu": {("forget05", "T3 (T, w)"): 1.25, ("forget10", "T3 (T, w)"): 0.9},
    "tofu-cpu": {
        ("forget05", "T3 (T, w)"): 0.9,
        ("forget05", "T3 (T = 1, w)"): 2.5,
        ("forget10", "T3 (T, w)"): 1.25,
        ("forget10", "T3 (T = 1, w)"): 3.5,
        ("forget05", "RMU (a)"): 0.95,
        ("forget10", "RMU (a)"): 0.85,
        ("forget05", "NPO (a)"): 1.2,
        ("forget10", "NPO (a)"): 1.05,
        ("forget05", "SimNPO (a)"): 1.2,
        ("forget10", "SimNPO (a)"): 1.2,
        ("forget05", "WGA (a)"): 1.05,
        ("forget10", "WGA (a)"): 1.2,
    },
}


@cache
def runs(profile):
    """{(split, method, T, w, seed): truth ratios on the forget rows}; T and w are None where there
    are none. Under (key, "reference") are those of the run's own reference, number 0.
    """
    found = {}
    for path in sorted((RESULTS / profile / "runs").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        key = tuple(run[name] for name in ("split", "method", "T", "w", "seed"))
        found[key] = run["truth_ratio"]["forget"]
        found[key, "reference"] = run["truth_ratio"]["reference"]
        if run["method"] == "Retrained":
            found[(run["split"], "Retrained", None, None, 0)] = run["truth_ratio"]["reference"]
    return found


@cache
def test_of(profile, key, reference):
    """(D, p) of a run against the retrained model with this number."""
    held_out = (key[0], "Retrained", None, None, reference)
    theirs = runs(profile)[held_out if reference else (key, "reference")]
    test = ks_2samp(runs(profile)[key], theirs)
    return test.statistic, test.pvalue


test_of.__test__ = False  # a helper


def values(profile, split, method, T=None, w=None, references=HELD_OUT, seeds=range(1, 6)):
    """Forget Quality of every seed and reference: an array (seeds, references)."""
    w = w or (1.0 if method == "T3" else None)
    keys = [key for seed in seeds if (key := (split, method, T, w, seed)) in runs(profile)]
    return np.array(
        [[test_of(profile, key, reference)[1] for reference in references] for key in keys]
    )


def audited(measure, T):
    """What the committed audit has of T3 on the 10% split: the mean of three seeds."""
    with open(RESULTS / "cpu" / "tables" / "audit.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["split"], row["method"]) == (TEN, "T3")]
    (row,) = (row for row in rows if (row["T"], row["w"]) == (str(T), "1.0"))
    return float(row[measure])


def said(number):
    """0.82 of 0.8216, and 87 of 86.7: a share in percent has no decimals."""
    return f"{number:.2f}" if number < 1 else f"{number:.0f}"


def pairs(profile, split):
    """Forget Quality of the six pairs of four retrained models."""
    models = [(split, "Retrained", None, None, number) for number in range(4)]
    return [test_of(profile, one, other)[1] for one in models for other in range(one[-1])]


def rows_of(profile, name):
    with open(RESULTS / profile / "tables" / f"{name}.csv", encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_row_of_the_table(profile):
    table, seen = rows_of(profile, "forget_quality"), set()
    for row in table:
        T, w = (float(row[name]) if row[name] else None for name in ("T", "w"))
        key = (row["split"], row["method"], T, w, int(row["seed"]))
        d, p = test_of(profile, key, int(row["reference"]))
        assert (float(row["D"]), float(row["fq"])) == pytest.approx((d, p), rel=1e-9), key
        assert int(row["n"]) == len(runs(profile)[key])
        seen.add((key, int(row["reference"])))
    others = [key for key in runs(profile) if len(key) == 5 and key[1] != "Retrained"]
    assert len(seen) == len(table) == 4 * len(others) + 2 * 6, (
        "each run against four references, and six pairs a split"
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_held_out_means_of_table_1_and_table_5(profile):
    for row in rows_of(profile, "tofu"):
        T = float(row["T"]) if row["T"] else None
        method, _, dial = row["method"].partition(" (")
        split, w = row["split"], DIALS[profile].get((row["split"], row["method"]))
        if method == "Retrained":
            assert float(row["fq_held_out"]) == pytest.approx(
                np.mean(pairs(profile, split)), rel=1e-9
            )
            continue
        seeds = (0,) if method == "Original" else range(1, 6)
        assert bool(dial) == bool(w), "the dial of each row that has one"
        ours = values(profile, split, method, T, w, seeds=seeds)
        assert float(row["fq_held_out"]) == pytest.approx(ours.mean(), rel=1e-9) and len(
            ours
        ) == int(row["n_seeds"])
        assert row["n_references"] == "3"
    for row in (row for row in rows_of(profile, "temperature") if row["n_seeds"]):
        ours = values(profile, row["split"], "T3", float(row["T"]))
        assert float(row["fq_held_out"]) == pytest.approx(ours.mean(), rel=1e-9)


def mean(*where, **which):
    return values(*where, **which).mean()


def tuned(*where):
    """On the reference that settings were chosen on."""
    return mean(*where, references=(0,))


FIVE, TEN = "forget05", "forget10"
# T3's best (T, w) and RMU's best share of its weights on TOFU's text, by split
BOTH, SHARE = {FIVE: (1.5, 0.9), TEN: (1.5, 1.25)}, {FIVE: 0.95, TEN: 0.85}
SENTENCES = {
    "the order at cpu": lambda: (
        (
            "T3 falls from the highest mean of all methods, {}, to {}, below UnDIAL's {} and"
            " SimNPO's {}."
        ),
        (
            tuned("cpu", FIVE, "T3", 2.5),
            *(mean("cpu", FIVE, *method) for method in (("T3", 2.5), ("UnDIAL",), ("SimNPO",))),
        ),
    ),
    "TOFU's text, 5% split": lambda: (
        "there is no order between T3, RMU and WGA ({}, {} and {}).",
        [mean("tofu-cpu", FIVE, *method) for method in (("T3", 1.5), ("RMU",), ("WGA",))],
    ),
    "TOFU's text, 10% split": lambda: (
        "T3 ({}) is ahead of RMU ({}), and there is no order with WGA ({}),",
        [mean("tofu-cpu", TEN, *method) for method in (("T3", 2.0), ("RMU",), ("WGA",))],
    ),
    "WGA's seeds": lambda: (
        "whose three seeds lie between {} and {}.",
        [end(values("tofu-cpu", TEN, "WGA").mean(axis=1)) for end in (min, max)],
    ),
    "the other baselines": lambda: (
        "only ULD on the 5% split ({}) and NPO ({} on the 5% split and {} on the 10% split,",
        [mean("tofu-cpu", FIVE, "ULD"), *(mean("tofu-cpu", split, "NPO") for split in (FIVE, TEN))],
    ),
    "shares of NPO's weights": lambda: (
        "(a = 1.2 on the 5% split: {} → {}),",
        [mean("tofu-cpu", FIVE, "NPO", None, w) for w in (None, 1.2)],
    ),
    "a share of NPO's weights on the 10% split": lambda: (
        "a = 1.05 does not help it ({} → {}).",
        [mean("tofu-cpu", TEN, "NPO", None, w) for w in (None, 1.05)],
    ),
    "pairs of retrained models": lambda: (
        ("their six pairs score from {} to {} on the 5% split and from {} to {} on the 10% split."),
        [end(pairs("tofu-cpu", split)) for split in (FIVE, TEN) for end in (min, max)],
    ),
    "both dials": lambda: (
        "Their Forget Quality is {} and {} (on the model tuned on: {} and {})",
        [
            score("tofu-cpu", split, "T3", *BOTH[split])
            for score in (mean, tuned)
            for split in (TEN, FIVE)
        ],
    ),
    "a share of RMU's weights": lambda: (
        "It raises RMU's Forget Quality from {} to {},",
        [mean("tofu-cpu", TEN, "RMU", None, w) for w in (None, SHARE[TEN])],
    ),
    "a share on the 5% split": lambda: (
        "its Forget Quality is {} instead of {}.",
        [mean("tofu-cpu", FIVE, "RMU", None, w) for w in (SHARE[FIVE], None)],
    ),
    "no T does both": lambda: (
        (
            "T = 2.5 has an AUC of {}, but a Forget Quality of {} instead of {}, and at T = 2 the"
            " answer is still found for {}% of the rows, with a Forget Quality of {}."
        ),
        [
            audited("auc", 2.5),
            *(mean("cpu", TEN, "T3", T) for T in (2.5, 3.0)),
            100 * audited("recognized_verbatim", 2.0),
            mean("cpu", TEN, "T3", 2.0),
        ],
    ),
}
IN_README = {
    "held-out references": lambda: (
        "on the 5% split of `cpu` T3 falls from the highest mean, {}, to {},",
        [tuned("cpu", FIVE, "T3", 2.5), mean("cpu", FIVE, "T3", 2.5)],
    ),
    "T3 and RMU": lambda: (
        "On TOFU's text it is ahead of RMU on the 10% split ({} against {}),",
        [mean("tofu-cpu", TEN, *method) for method in (("T3", 2.0), ("RMU",))],
    ),
    "RMU's dial": lambda: (
        "RMU rises to {} with",
        [mean("tofu-cpu", TEN, "RMU", None, SHARE[TEN])],
    ),
    "the headline's T3": lambda: (
        "| **T3**, T = 3 | {} | {} | {} | 0.92 | 0.35 |",
        [score("cpu", TEN, "T3", 3.0) for score in (mean, tuned, distance)],
    ),
    "the headline's T3 on TOFU's text": lambda: (
        "| **T3**, T = 2 | {} | {} | {} | 0.81 | 0.75 |",
        [score("tofu-cpu", TEN, "T3", 2.0) for score in (mean, tuned, distance)],
    ),
    "the headline's retrained models": lambda: (
        "| retrained without the rows | {} | {} | 0.09 | 1.00 | 0.87 |",
        [np.mean(pairs("cpu", TEN)), mean("cpu", TEN, "Retrained", references=(0,))],
    ),
}


def distance(profile, split, method, T):
    keys = [key for key in runs(profile) if key[:4] == (split, method, T, 1.0)]
    return np.mean([test_of(profile, key, number)[0] for key in keys for number in HELD_OUT])


@pytest.mark.parametrize("name", [*SENTENCES, *IN_README])
def test_what_is_said_of_forget_quality(name):
    for text, sentences in ((DETAIL, SENTENCES), (README, IN_README)):
        if name in sentences:
            sentence, numbers = sentences[name]()
            assert sentence.format(*map(said, numbers)) in text


def order(profile, split, ours, theirs):
    """+1 or −1 where no run of one method is behind any of the other's, against every held-out
    reference; else 0.
    """
    a, b = (values(profile, split, *method) for method in (ours, theirs))
    return int((a.min(axis=0) >= b.max(axis=0)).all()) - int((a.max(axis=0) <= b.min(axis=0)).all())


def test_orders_that_are_named_hold_for_every_run_and_reference():
    assert order("tofu-cpu", TEN, ("T3", 2.0), ("RMU",)) == 1
    unordered = [(FIVE, ("T3", 1.5), (name,)) for name in ("RMU", "WGA")]
    unordered += [(TEN, ("T3", 2.0), ("WGA",)), (TEN, ("T3", *BOTH[TEN]), ("RMU", None, 0.85))]
    assert [order("tofu-cpu", *case) for case in unordered] == [0] * 4


def test_the_other_baselines_are_caught_on_tofus_text():
    others = ("GradAscent", "GradDiff", "SatImp", "UnDIAL", "IdkDPO", "NPO", "SimNPO", "ULD")
    above = [
        (name, split)
        for name in others
        for split in (FIVE, TEN)
        if mean("tofu-cpu", split, name) >= 0.05
    ]
    assert above == [("NPO", FIVE), ("NPO", TEN), ("ULD", FIVE)]
    shares = [mean("tofu-cpu", split, "SimNPO", None, 1.2) for split in (FIVE, TEN)]
    assert max(shares) < 0.05, "SimNPO stays below 0.05 at the share that was best"
