"""The study repeated in worlds: a real run at micro size, tables against hand-computed cases."""

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from t3lib.core.errors import UserError
from t3lib.core.files import read_json
from t3lib.lab.report import worlds
from t3lib.lab.results import read_runs
from t3lib.lab.worlds import reproduce_worlds

VALUES = {"T3": [0.5, 0.7, 0.9], "RMU": [0.6, 0.6, 0.6], "NPO": [0.1, 0.2, 0.3]}
VALUES["Retrained"] = [1.0, 1.0, 1.0]


def each_world() -> pd.DataFrame:
    """Four methods in three worlds: every measure has the same values, D one minus them."""
    rows = [
        (world, "forget10", method, np.nan, 1 - value, value, value, value)
        for method, values in VALUES.items()
        for world, value in enumerate(values, 1)
    ]
    return pd.DataFrame(rows, columns=["world", "split", "method", "T", *worlds.MEASURES])


def test_the_interval_is_students():
    values = np.array([0.2, 0.5, 0.9, 0.4])
    expected = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert worlds.interval(values) == pytest.approx((values.mean(), *expected))
    assert np.isnan(worlds.interval(values[:1])[1:]).all(), "one world has no spread"


@pytest.mark.parametrize("measure", worlds.MEASURES)
def test_first_counts_worlds_and_differences_are_within_a_world(measure):
    table = worlds.summary(each_world()).query("measure == @measure").set_index("method")
    assert table["first"].dropna().to_dict() == {"T3": 2, "RMU": 1, "NPO": 0}
    sign = -1 if measure == "ks_held_out" else 1
    assert table.loc["RMU", "t3_less"] == pytest.approx(sign * 0.1)
    assert table.loc["RMU", "t3_low"] < 0 < table.loc["RMU", "t3_high"], "no order with RMU"
    paired = stats.ttest_rel(VALUES["T3"], VALUES["NPO"]).confidence_interval(0.95)
    ends = sorted(sign * end for end in paired)
    assert tuple(table.loc["NPO", ["t3_low", "t3_high"]]) == pytest.approx(ends)
    assert np.isnan(table.loc["T3", "t3_less"]) and set(table["worlds"]) == {3}


def test_a_method_that_is_missing_in_a_world_is_compared_in_the_others():
    table = worlds.summary(each_world().query("not (method == 'RMU' and world == 3)"))
    row = table.query("method == 'RMU' and measure == 'mu'").iloc[0]
    assert row["worlds"] == 2 and row["t3_less"] == pytest.approx(0.0)


def test_two_worlds_leave_tables_and_a_figure(tmp_path, monkeypatch):
    """Two micro worlds, three methods: each has its own rows; tables hold the runs' numbers."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    stage = {"questions": 1, "vocab": 400, "hidden": 16, "heads": 2, "epochs": 1, "batch_size": 32}
    settings = {"stage": stage, "evaluation": {"max_new_tokens": 4}, "splits": ["forget10"]}
    settings["hyper"] = {"T3": {"epochs": 2, "warmup_epochs": 1, "temperature": 2.0}}
    methods = ["Original", "Retrained", "T3"]
    settings["together"] = {"02_tofu_unlearning": methods}
    profile = tmp_path / "micro.yaml"
    profile.write_text(yaml.safe_dump(settings))
    out = tmp_path / "out"
    assert reproduce_worlds(str(profile), [1, 2], out, methods=methods, workers=1) == 0
    each = pd.read_csv(out / "tables" / "worlds_each.csv")
    assert sorted(zip(each["world"], each["method"])) == [(w, m) for w in (1, 2) for m in methods]
    questions = [read_json(out / f"world{world}" / "data.json") for world in (1, 2)]
    assert questions[0] != questions[1], "another world has other rows"
    [mu] = [run["metrics"]["mu"] for run in read_runs(out / "world2/runs") if run["method"] == "T3"]
    assert each.query("world == 2 and method == 'T3'")["mu"].item() == pytest.approx(mu)
    assert each["ks_held_out"].notna().all(), "the second retrained model is the reference"
    assert (out / "tables" / "worlds.csv").is_file()
    assert (out / "figures" / "worlds.svg").is_file()


@pytest.mark.parametrize(
    ("profile", "seeds"), [("cpu", [0, 1]), ("cpu", [2, 2]), ("tofu-cpu", [1])]
)
def test_world_0_and_other_data_are_refused(profile, seeds, tmp_path):
    with pytest.raises(UserError, match="--worlds"):
        reproduce_worlds(profile, seeds, tmp_path / "out")
    assert not (tmp_path / "out").exists()
