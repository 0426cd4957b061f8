"""Tables from run files: the paper's rows and columns, means over what ran, empty where nothing
did.
"""

import numpy as np
import pandas as pd
import pytest
from fabricate import TEMPERATURES, fabricate, fabricate_all
from scipy.stats import ks_2samp

from t3lab import results
from t3lab.audit.labels import HIDING
from t3lab.names import SPLITS
from t3lab.report import plots_cost, tables
from t3lib.baselines.losses import METHODS


@pytest.fixture(scope="session")
def frame():
    return results.tidy(fabricate_all())


def with_scores(rows: list[tuple], method="T3", split="forget10") -> pd.DataFrame:
    """A tidy frame of (T, seed, fq, mu_rouge)."""
    runs = results.tidy(
        [fabricate(method, split, T if method == "T3" else None, seed) for T, seed, _, _ in rows]
    )
    return runs.assign(fq=[row[2] for row in rows], mu_rouge=[row[3] for row in rows])


def test_every_row_of_the_paper_in_its_order(frame):
    for table in (tables.tofu(frame), tables.tofu(results.tidy([]))):
        table = table[table["method"] != tables.OWN_RATE]
        assert table["method"].tolist() == list(METHODS) * 2
        assert table["split"].tolist() == [split for split in SPLITS for _ in METHODS]


def test_means_are_the_numpy_means(frame):
    row = tables.tofu(frame)[lambda t: (t.split == "forget10") & (t.method == "NPO")].iloc[0]
    scores = [fabricate("NPO", "forget10", None, seed)["metrics"] for seed in (1, 2, 3)]
    for name in ("fq", "mu_rouge", "mu", "retain_tr", "wf_prob", "ra_rouge"):
        assert row[name] == pytest.approx(np.mean([score[name] for score in scores]), rel=1e-12)
    assert row["n_seeds"] == 3 and pd.isna(row["T"])


def test_seeds_1_and_2_tune_and_mu_rouge_breaks_ties():
    late = with_scores(
        [(1.0, 1, 0.2, 0.5), (1.0, 3, 0.9, 0.5), (2.0, 1, 0.3, 0.5), (2.0, 3, 0.0, 0.5)]
    )
    assert tables.tuned_temperature(late, "forget10") == 2.0, "seed 3 has no say"
    tied = with_scores([(1.0, 1, 0.2, 0.9), (2.0, 1, 0.2, 0.5)])
    assert tables.tuned_temperature(tied, "forget10") == 1.0
    only_late = with_scores([(1.0, 4, 0.2, 0.9), (2.0, 4, 0.3, 0.5)])
    assert tables.tuned_temperature(only_late, "forget10") == 2.0
    assert tables.tuned_temperature(late, "forget05") is None


def test_a_setting_without_one_of_the_seeds_is_not_chosen():
    """Its mean would be over other seeds than those of the settings beside it."""
    lucky = [(1.0, 1, 0.3, 0.5), (1.0, 2, 0.7, 0.5), (2.0, 2, 0.9, 0.5)]  # T = 2 failed with seed 1
    assert tables.tuned_temperature(with_scores(lucky), "forget10") == 1.0
    runs = [fabricate("T3", "forget10", T, seed) | {"w": 0.8} for T, seed, _, _ in lucky]
    for run, (_, _, fq, _) in zip(runs, lucky):
        run["metrics"] |= {"fq": fq}
    table = tables.tofu(results.tidy([*fabricate_all(), *runs]))
    assert set(table[table.method == tables.BOTH_DIALS]["T"]) == {1.0}


def test_what_did_not_run_or_failed_is_empty():
    runs = [
        fabricate("NPO", "forget10", None, 1),
        fabricate("NPO", "forget10", None, 2, failed=True),
    ]
    runs += [fabricate("RMU", "forget10", None, 1, failed=True)]
    table = tables.tofu(results.tidy(runs)).set_index(["split", "method"])
    assert table.loc[("forget10", "NPO"), "n_seeds"] == 1
    assert table.loc[("forget10", "NPO"), "fq"] == runs[0]["metrics"]["fq"]
    for key in (("forget10", "RMU"), ("forget05", "NPO"), ("forget10", "T3")):
        assert table.loc[key].isna().all(), key
    assert len(tables.tofu_per_seed(results.tidy(runs))) == 2 * len(METHODS) + 1


def test_temperature(frame):
    table = tables.temperature(frame)
    assert table["T"].tolist() == list(TEMPERATURES) * 2 and table["n_seeds"].tolist() == [3] * 10
    extra = results.tidy(fabricate_all(seeds=(1,))).replace({"T": {3.0: 2.25}})
    assert tables.temperature(extra)["T"].tolist() == [1.0, 1.5, 2.0, 2.25, 2.5, 3.0] * 2
    assert tables.temperature(extra).set_index(["split", "T"]).loc[("forget05", 3.0)].isna().all()


def test_parameters_and_runtime(frame):
    assert tables.parameters(frame).set_index("method")["trainable"].to_dict()["T3"] == 20 * (
        128 + 1000
    )
    naive = fabricate("T3", "forget10", 2.5, 1) | {"setting": "naive"}
    naive["seconds"] = {"load": 1.0, "features": None, "train": 99.0, "evaluate": 1.0}
    table = tables.runtime(results.tidy([*fabricate_all(), naive])).set_index(["split", "method"])
    assert table.loc[("forget10", "T3 (naive)"), "train_s"] == 99.0
    assert table.loc[("forget05", "T3 (naive)")].isna().all()
    without = results.tidy([run for run in fabricate_all() if run["method"] != "T3"])
    assert tables.runtime(without)["features_s"].isna().sum() >= 4, "a profile without T3"
    cached = table.loc[("forget10", "T3 (preprocessed)")]
    assert cached["features_s"] == 2.0, (
        "the run that filled the cache counts, not the mean with those that read it"
    )
    assert cached["train_s"] == pytest.approx(5.0) and "T3" not in table.index.get_level_values(
        "method"
    )


@pytest.mark.parametrize("why", ("busy", "dirty"))
def test_seconds_of_a_busy_machine_or_of_unsaved_code_do_not_count(why):
    runs = fabricate_all()
    for run in runs:
        if run["method"] in ("NPO", "T3") and run["seed"] != 2:
            run["provenance"] = {why: True}
    table = tables.runtime(results.tidy(runs)).set_index(["split", "method"])
    assert table.loc[("forget10", "NPO"), "train_s"] == 5.0, "seed 2 alone"
    assert table.loc[("forget10", "T3 (preprocessed)"), "features_s"] == 0.0
    assert table.loc[("forget10", "RMU"), "train_s"] == 5.0
    for run in runs:
        run["provenance"] = {why: True}
    none = results.tidy(runs)
    assert tables.runtime(none)["train_s"].isna().all()
    plots_cost.runtime(none)


def test_ablations_stay_out_of_the_main_tables(frame):
    varied = [fabricate("T3", "forget10", 2.5, seed) | {"setting": "decay=l2"} for seed in (1, 2)]
    varied[1]["metrics"] |= {"auc": 0.25}
    varied += [fabricate("T3", "forget10", 2.5, 1) | {"setting": "tuned"}]
    both = results.tidy([*fabricate_all(), *varied])
    pd.testing.assert_frame_equal(tables.tofu(both), tables.tofu(frame))
    table = tables.ablations(both)
    assert list(table) == [
        "split",
        "setting",
        "T",
        "fq",
        "mu_rouge",
        "mu",
        *HIDING,
        *results.HELD_OUT,
    ]
    assert table["setting"].tolist() == ["tuned", "decay=l2"], "the control comes first"
    assert table["fq"][1] == pytest.approx(np.mean([run["metrics"]["fq"] for run in varied[:2]]))
    assert table["auc"][1] == 0.25 and np.isnan(table["auc"][0]), (
        "a run without rows that nobody saw has none"
    )


def test_forget_quality_shows_its_test_and_why():
    runs = fabricate_all()
    table = tables.forget_quality(runs)
    row = table[(table.method == "NPO") & (table.split == "forget05") & (table.seed == 2)].iloc[0]
    assert row["reference"] == 0
    run = fabricate("NPO", "forget05", None, 2)
    ours, theirs = (np.log(run["truth_ratio"][name]) for name in ("forget", "reference"))
    assert (row["n"], row["D"], row["fq"]) == (
        40,
        run["metrics"]["ks_statistic"],
        run["metrics"]["fq"],
    )
    assert (row["mean"], row["sd"]) == pytest.approx((ours.mean(), ours.std(ddof=1)))
    matched = ks_2samp(ours - ours.mean(), theirs - theirs.mean()).statistic
    assert row["D_matched"] == pytest.approx(matched) and matched < row["D"], (
        "NPO's fault is the mean alone"
    )


def retrained(split="forget10", seeds=(1, 2, 3)):
    """Retrained models, and all of their truth ratios by number: 0 is the reference that settings
    are chosen on.
    """
    runs = [fabricate("Retrained", split, None, seed) for seed in seeds]
    models = {0: runs[0]["truth_ratio"]["reference"]} | {
        run["seed"]: run["truth_ratio"]["forget"] for run in runs
    }
    return runs, models


def test_one_retrained_model_holds_none_out():
    frame = results.tidy(
        [fabricate("NPO", "forget10", None, 1), fabricate("T3", "forget10", 2.5, 1)]
    )
    assert frame[list(results.HELD_OUT)].isna().all(axis=None)
    table = tables.tofu(frame)
    assert (
        table["fq_held_out"].isna().all()
        and table["n_references"].isna().all()
        and table["fq"].notna().sum() == 2
    )
    assert tables.on_held_out(frame)["fq"].tolist() == frame["fq"].tolist()


def test_settings_are_chosen_on_the_first_reference_alone():
    """T3's T is that of the best Forget Quality on reference 0, whatever the held-out ones say."""
    others, _ = retrained()
    runs = [*others, *(fabricate("T3", "forget10", T, seed) for T in (2.0, 2.5) for seed in (1, 2))]
    frame = results.tidy(runs)
    frame.loc[frame["T"] == 2.0, "fq_held_out"] = 1.0
    held = tables.on_held_out(tables.at_tuned_temperature(frame)).query("method == 'T3'")
    assert set(held["T"]) == {2.5} and held["fq"].tolist() == held["fq_held_out"].tolist()
    assert (held["fq"] != held["fq_tuned_on"]).all()


@pytest.mark.parametrize(
    ("method", "points", "label", "best"),
    [  # points: (T, w or share of the weights, Forget Quality)
        ("T3", [(2.5, 0.8, 0.3), (1.0, 0.8, 0.2)], tables.BOTH_DIALS, 2.5),
        ("RMU", [(None, 0.8, 0.3), (None, 0.6, 0.2)], "RMU (a)", None),
    ],
)
def test_a_dial_has_its_own_row_at_its_best_on_the_tuning_seeds_and_changes_no_other(
    method, points, label, best
):
    runs = []
    for T, w, fq in points:
        runs += [fabricate(method, "forget10", T, seed) | {"w": w} for seed in (1, 2, 3)]
        for run in runs[-3:]:
            run["metrics"] = run["metrics"] | {"fq": fq}
    if method == "T3":
        tests = tables.forget_quality([*fabricate_all(), *runs])
        assert set(tests[tests.w == 0.8]["T"]) == {1.0, 2.5}, "each has its test"
    both = tables.tofu(results.tidy([*fabricate_all(), *runs]))
    [row] = both[both.method == label].to_dict("records")
    assert (row["split"], row["n_seeds"], row["fq"]) == ("forget10", 3, pytest.approx(0.3))
    assert row["T"] == best or pd.isna(row["T"]) and best is None
    rest = both[both.method != label].reset_index(drop=True)
    plain = tables.tofu(results.tidy(fabricate_all()))
    pd.testing.assert_frame_equal(rest, plain, check_dtype=False)


def test_the_search_of_dials_is_counted_with_its_choice():
    dials = pd.DataFrame(
        [("forget10", T, w, 2, 0.1, fq) for T, w, fq in ((1, 1, 0.9), (1, 2, 0.3), (2, 2, 0.5))],
        columns=["split", "T", "w", "n_seeds", "D", "fq"],
    )
    shares = pd.DataFrame(
        [("forget10", "RMU", a, 2, d, 0.2) for a, d in ((0.7, 0.2), (0.8, 0.1), (1.0, 0.0))],
        columns=["split", "method", "a", "n_seeds", "D", "fq"],
    )
    found = tables.search([], {}, [dials, shares])
    assert found[["method", "trials", "trainings", "seeds", "chosen"]].values.tolist() == [
        ["T3 (T, w)", 3, 0, 2, "T 2, w 2"],
        ["RMU (a)", 3, 0, 2, "a 0.8"],
    ]


def dialled(*points):
    """Runs of three seeds at each (T, w, fq) of the 10% split, beside all others."""
    runs = [
        fabricate("T3", "forget10", T, seed) | {"w": w} for T, w, _ in points for seed in (1, 2, 3)
    ]
    for run, fq in zip(runs, [fq for *_, fq in points for _ in range(3)]):
        run["metrics"] |= {"fq": fq}
    return tables.tofu(results.tidy([*fabricate_all(), *runs])).query("split == 'forget10'")


def test_t3_without_tempering_has_a_row_of_its_own_unless_that_is_the_best_t():
    table = dialled((1.5, 1.5, 0.6)).set_index("method")
    assert table.loc[tables.OWN_RATE, ["T", "n_seeds"]].tolist() == [1.0, 3]
    assert table.loc[tables.BOTH_DIALS, "T"] == 1.5 and table.loc["T3", "T"] == 2.5
    runs = [fabricate("T3", "forget10", 1.0, seed) for seed in (1, 2)]
    assert tables.OWN_RATE not in set(tables.tofu(results.tidy(runs))["method"])


def test_a_search_is_shown_where_the_runs_were_made_with_its_choice():
    runs = [fabricate("NPO", "forget10", None, 1), fabricate("T3", "forget10", 2.5, 1)]
    npo, t3 = (run["hyper"] for run in runs)
    assert npo and t3
    trials = [
        {"hyper": npo, "seconds": [60.0, 30.0]},
        {"hyper": npo | {"lr": 0.1}, "seconds": [90.0, 60.0]},
    ]
    heads = [
        {"hyper": t3 | {"lr": lr, "temperature": T}, "fq": [0.1]}
        for T in (1.0, 2.5, 4.0)
        for lr in (0.001, 0.002, t3["lr"])
    ]
    entries = {
        "NPO/forget10": {"chosen": npo, "seeds": [1, 2], "trials": trials},
        "NPO/forget05": {"chosen": npo, "seeds": [1, 2], "trials": trials},  # no run of that split
        "T3/forget10": {"chosen": t3 | {"temperature": 2.5}, "seeds": [1], "trials": heads},
        "T3/forget10/4": {
            "chosen": t3 | {"temperature": 4.0},
            "seeds": [1],
            "trials": heads[-3:],
        },
    }
    table = tables.search(runs, entries)
    columns = ["split", "method", "trials", "trainings", "seeds", "edge"]
    assert table[columns].values.tolist() == [
        ["forget10", "NPO", 2, 2, 2, ""],
        ["forget10", "T3", 9, 3, 1, "lr highest, lr highest at T = 4"],
    ]
    words = {"optimizer": "adamw", "c": 3.0}  # a word, and a value that two trials do not have
    fine = [{"hyper": npo | words | {"c": c}, "seconds": [1.0]} for c in (1.0, 2.0, 3.0)]
    entries["NPO/forget10"] = {"chosen": npo | words, "seeds": [1], "trials": [*trials, *fine]}
    runs[0]["hyper"] = npo | words
    found = tables.search(runs, entries).set_index("method").loc["NPO"]
    assert "c 3" in found["chosen"] and "optimizer adamw" in found["chosen"]
    assert found["edge"] == "c highest"
    assert table["minutes"].tolist() == pytest.approx([4.0, (3 * 4.0 + 2.0) / 60]), (
        "what was not recorded is reckoned: three trainings, and features once"
    )
    name, value = next(iter(npo.items()))
    assert f"{name} {value:g}" in table["chosen"][0] and "temperature 2.5" in table["chosen"][1]
    other = {"NPO/forget10": entries["NPO/forget10"] | {"chosen": npo | {name: value + 1}}}
    assert tables.search(runs, other).empty, "another choice than these runs'"
    assert list(tables.search([], entries).columns) == list(table.columns)


def test_forget_quality_of_failed_or_missing_runs_is_empty():
    failed, sound = (
        fabricate("NPO", "forget05", None, 1, failed=True),
        fabricate("RMU", "forget05", None, 1),
    )
    assert len(tables.forget_quality([])) == len(tables.forget_quality([failed])) == 0
    assert tables.forget_quality([failed, sound])["method"].tolist() == ["RMU"]


def test_the_baselines_shown_are_those_that_no_other_beats_in_both():
    """No threshold: what forgets best is shown though it hardly writes, and so is what writes
    best.
    """
    scores = {
        "Original": (0.0, 1.0), "NPO": (0.3, 0.7), "SatImp": (0.9, 0.02), "WGA": (0.1, 0.5),
        "RMU": (0.05, 0.8), "ULD": (0.3, 0.6), "T3": (0.8, 0.9), "T3 (T, w)": (0.95, 0.9),
        "T3 (T = 1)": (0.94, 0.95), "IdkDPO": (np.nan, np.nan),
    }  # fmt: skip
    means = pd.DataFrame.from_dict(scores, orient="index", columns=["fq", "mu_rouge"])
    assert tables.leaders(means).index.tolist() == [
        "Original",
        "SatImp",
        "NPO",
        "RMU",
        "T3",
        "T3 (T = 1)",
        "T3 (T, w)",
    ]


def test_ours_beside_printed():
    ours = with_scores([(None, 1, 0.10, 0.5), (None, 2, 0.20, 0.5), (None, 3, 0.30, 0.5)], "NPO")
    printed = pd.DataFrame(
        {"split": ["forget10"], "method": ["NPO"], "fq": [0.25], "mu_rouge": [0.501], "mu": [0.0]}
    )
    row = tables.beside_paper(ours, printed).set_index(["split", "method"]).loc[("forget10", "NPO")]
    assert (
        row["fq_ours"] == pytest.approx(0.2)
        and row["fq_sd"] == pytest.approx(0.1)
        and row["n_seeds"] == 3
    )
    assert row["fq_difference"] == pytest.approx(-0.05) and row["fq_mark"] == "="
    assert row["mu_rouge_mark"] == "≠", "no spread at all, and a difference beyond the rounding"
    for fq, mark in ((0.35, "≈"), (0.41, "≠")):
        assert tables.beside_paper(ours, printed.assign(fq=fq)).query("method == 'NPO'")[
            "fq_mark"
        ].tolist() == ["", mark]
    seeds = pd.DataFrame(
        {"split": "forget10", "method": "NPO", "fq": [0.0, 0.5], "mu_rouge": 0.5, "mu": 0.0}
    )
    wide = tables.beside_paper(ours, printed.assign(fq=0.41), printed_seeds=seeds).query(
        "method == 'NPO'"
    )
    assert wide["fq_mark"].tolist() == ["", "="], "the paper's own spread counts too"


def test_ours_is_against_held_out_references_with_the_other_beside_it():
    others, _ = retrained()
    frame = results.tidy([*others, *(fabricate("NPO", "forget10", None, seed) for seed in (1, 2))])
    row = (
        tables.beside_paper(frame, results.paper_table(1))
        .set_index(["split", "method"])
        .loc[("forget10", "NPO")]
    )
    npo = tables.tofu(frame).set_index(["split", "method"]).loc[("forget10", "NPO")]
    assert (row["fq_ours"], row["fq_tuned_on"]) == pytest.approx((npo["fq_held_out"], npo["fq"]))
    assert row["n_references"] == 3 and row["fq_ours"] != row["fq_tuned_on"]
    assert row["fq_difference"] == pytest.approx(row["fq_ours"] - row["fq_paper"])


def test_compare_by_temperature(frame):
    table = tables.beside_paper(frame, results.paper_table(5))
    assert table[["split", "T"]].values.tolist() == [
        [split, T] for split in SPLITS for T in TEMPERATURES
    ]
    assert table["fq_paper"].tolist() == results.paper_table(5)["fq"].tolist()
    empty = tables.beside_paper(results.tidy([]), results.paper_table(5))
    assert empty["fq_ours"].isna().all() and (empty["fq_mark"] == "").all()


def test_rows_of_what_did_not_run_are_not_shown():
    """In the files every method has its row; a person sees those that ran, also where the paper
    printed a number.
    """
    few = results.tidy(
        [
            run
            for run in fabricate_all(seeds=(1,))
            if (run["method"], run["split"]) == ("T3", "forget10")
        ]
    )
    for table in (
        tables.tofu(few),
        tables.temperature(few),
        tables.beside_paper(few, results.paper_table(1)),
    ):
        shown = tables.ran(table)
        assert len(shown) < len(table) and set(shown["split"]) == {"forget10"}
    assert set(tables.ran(tables.runtime(few))["method"]) == {"T3 (preprocessed)"}
