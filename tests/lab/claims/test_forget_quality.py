"""The committed tables of Forget Quality, computed again from the truth ratios of the committed
runs, without t3lib.
"""

import csv
import json
from functools import cache

import numpy as np
import pytest
import yaml
from conftest import ROOT
from scipy.stats import ks_2samp

RESULTS = ROOT / "results"
PROFILES = ("cpu", "tofu-cpu")
HELD_OUT = (1, 2, 3)
# w of the rows of Table 1 that have a dial, or the share a of a baseline's weights
DIALS = {
    "cpu": {("forget05", "T3 (T, w)"): 1.25, ("forget10", "T3 (T, w)"): 0.9},
    "tofu-cpu": {
        ("forget05", "T3 (T, w)"): 0.9,
        ("forget10", "T3 (T, w)"): 1.25,
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
    for path in sorted((RESULTS / "profiles" / profile / "runs").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        key = tuple(run[name] for name in ("split", "method", "T", "w", "seed"))
        found[key] = run["truth_ratio"]["forget"]
        found[key, "reference"] = run["truth_ratio"]["reference"]
        if run["method"] == "Retrained":
            found[(run["split"], "Retrained", None, None, 0)] = run["truth_ratio"]["reference"]
    return found


def pair_of(profile, key, reference):
    """Truth ratios of a run and of the retrained model with this number."""
    held_out = (key[0], "Retrained", None, None, reference)
    return runs(profile)[key], runs(profile)[held_out if reference else (key, "reference")]


@cache
def test_of(profile, key, reference):
    """(D, p) of a run against the retrained model with this number."""
    test = ks_2samp(*pair_of(profile, key, reference))
    return test.statistic, test.pvalue


test_of.__test__ = False  # a helper


def values(profile, split, method, T=None, w=None, references=HELD_OUT, seeds=range(1, 6)):
    """Forget Quality of every seed and reference: an array (seeds, references)."""
    w = w or (1.0 if method == "T3" else None)
    keys = [key for seed in seeds if (key := (split, method, T, w, seed)) in runs(profile)]
    return np.array(
        [[test_of(profile, key, reference)[1] for reference in references] for key in keys]
    )


def pairs(profile, split):
    """Forget Quality of the six pairs of four retrained models."""
    models = [(split, "Retrained", None, None, number) for number in range(4)]
    return [test_of(profile, one, other)[1] for one in models for other in range(one[-1])]


def rows_of(profile, name):
    with open(
        RESULTS / "profiles" / profile / "tables" / f"{name}.csv", encoding="utf-8", newline=""
    ) as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_row_of_the_table(profile):
    table, seen = rows_of(profile, "forget_quality"), set()
    for row in table:
        T, w = (float(row[name]) if row[name] else None for name in ("T", "w"))
        key = (row["split"], row["method"], T, w, int(row["seed"]))
        d, p = test_of(profile, key, int(row["reference"]))
        assert (float(row["D"]), float(row["fq"])) == pytest.approx((d, p), rel=1e-9), key
        ours, theirs = map(np.log, pair_of(profile, key, int(row["reference"])))
        if min(ours.std(), theirs.std(), np.exp(ours).min()) > 0:
            paired = float(row["paired_r"]), float(row["paired_gap"])
            by_row = np.corrcoef(ours, theirs)[0, 1], abs(ours - theirs).mean()
            assert paired == pytest.approx(by_row, rel=1e-6), key
            onto = np.log(pair_of(profile, key, 0)[1])
            moved = (ours - ours.mean()) / ours.std() * onto.std() + onto.mean()
            assert float(row["D_rescaled"]) == pytest.approx(ks_2samp(moved, theirs).statistic)
            wide = ks_2samp(ours * (onto.std() / ours.std()), theirs).statistic
            assert float(row["D_stretched"]) == pytest.approx(wide)
        assert int(row["n"]) == len(runs(profile)[key])
        seen.add((key, int(row["reference"])))
    others = [key for key in runs(profile) if len(key) == 5 and key[1] != "Retrained"]
    assert len(seen) == len(table) == 4 * len(others) + 2 * 6, (
        "each run against four references, and six pairs a split"
    )


def swapped(ours, theirs, block, draws=400):
    """Share of exchanges of the two models, block by block, that have at least their D."""
    rng, before = np.random.default_rng(7), ks_2samp(ours, theirs).statistic
    blocks, at_least = np.arange(len(ours)) // block, 0
    for _ in range(draws):
        swap = rng.random(blocks.max() + 1)[blocks] < 0.5
        one, other = np.where(swap, theirs, ours), np.where(swap, ours, theirs)
        at_least += ks_2samp(one, other).statistic >= before - 1e-12
    return at_least / draws


@pytest.mark.parametrize(
    ("profile", "split", "block"), [("cpu", "forget10", 1), ("tofu-cpu", "forget10", 20)]
)
def test_p_values_of_swaps(profile, split, block):
    """Of single rows at `cpu`, which has four authors, and of whole authors on TOFU's text."""
    for method in ("RMU", "SimNPO"):
        [row] = [
            row
            for row in rows_of(profile, "forget_quality")
            if (row["split"], row["method"], row["seed"], row["reference"], row["w"])
            == (split, method, "1", "1", "")
        ]
        ours, theirs = pair_of(profile, (split, method, None, None, 1), 1)
        assert float(row["swap_p"]) == pytest.approx(swapped(ours, theirs, block), abs=0.08)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_shape_of_ln_R_in_table_1(profile):
    """Means over seeds and held-out references, of swap_p the median."""
    tests = rows_of(profile, "forget_quality")
    for row in rows_of(profile, "tofu"):
        if row["method"] in ("RMU", "T3", "Retrained"):
            part = [
                {name: float(each[name]) for name in ("mean", "sd", "D_rescaled", "swap_p")}
                for each in tests
                if (each["split"], each["method"], each["T"])
                == (row["split"], row["method"], row["T"])
                and each["w"] in ("", "1.0")
                and each["reference"] != "0"
            ]
            for name, old in {
                "ln_r_mean": "mean",
                "ln_r_sd": "sd",
                "ks_rescaled": "D_rescaled",
            }.items():
                assert float(row[name]) == pytest.approx(np.mean([each[old] for each in part]))
            assert float(row["swap_p"]) == pytest.approx(
                np.median([each["swap_p"] for each in part])
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
        assert (dial not in ("", "T = 1)")) == bool(w), "the dial of each row that has one"
        ours = values(profile, split, method, T, w, seeds=seeds)
        assert float(row["fq_held_out"]) == pytest.approx(ours.mean(), rel=1e-9) and len(
            ours
        ) == int(row["n_seeds"])
        assert row["n_references"] == "3"
    for row in (row for row in rows_of(profile, "temperature") if row["n_seeds"]):
        ours = values(profile, row["split"], "T3", float(row["T"]))
        assert float(row["fq_held_out"]) == pytest.approx(ours.mean(), rel=1e-9)


@pytest.mark.parametrize(("profile", "equal", "most"), [("cpu", 16, 0.1), ("tofu-cpu", 20, 0.04)])
def test_chosen_trials_are_the_committed_runs(profile, equal, most):
    """D of the chosen trials of the search, against D of the runs with these settings and seeds."""
    path = ROOT / "notebooks" / "profiles" / "tuned" / f"{profile}.yaml"
    tuned = yaml.safe_load(path.read_text(encoding="utf-8"))
    apart = {}
    for name, entry in tuned.items():
        method, split, *at_T = name.split("/")
        if not at_T:
            [trial] = [each for each in entry["trials"] if each["hyper"] == entry["chosen"]]
            T, w = entry["chosen"].get("temperature"), 1.0 if method == "T3" else None
            keys = [(split, method, T, w, seed) for seed in entry["seeds"]]
            d = [test_of(profile, key, 0)[0] for key in keys]
            apart[name] = np.abs(np.subtract(trial["ks"], d)).max()
    values = np.array([*apart.values()])
    assert len(values) == 22 and (values < 1e-9).sum() == equal, apart
    assert values.max() == pytest.approx(most), apart
    if profile == "tofu-cpu":
        assert {name for name, d in apart.items() if d > 1e-9} == {"ULD/forget05", "ULD/forget10"}
