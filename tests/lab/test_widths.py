"""The study over widths: a real run at micro size, rules against hand-computed cases."""

import pandas as pd
import pytest
import torch
import yaml

from t3lib.classifier.features import Features
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.names import FAILS, HOLDS, NOT_RUN
from t3lib.lab import cli
from t3lib.lab.report import widths
from t3lib.lab.widths import RATES, TEMPERATURES, margins, reproduce_widths

RATE, FQ = (0.1, 0.01, 0.001), (0.9, 0.8, 0.4)  # FQ: at the best rate, a step and two from it


def three_widths(lost=0.0):
    """Grid and facts of d = 10, 100, 1000 in two worlds: rate · d = 1 is best, T = 2 better than 1.

    With four times the epochs a quarter of every rate does the same.
    lost: how much less the second retrained model gives the best rate than the first.
    """
    grid, each = [], []
    for power, d in enumerate((10, 100, 1000)):
        for world, more in ((0, 0.0), (1, 0.02)):
            facts = {"feature_norm": 2.0, "feature_sum": float(d), "lead": 5.0}
            each.append({"d": d, "world": world} | facts)
            for setting, effort in ((widths.PLAIN, 1), (widths.SCALED, 1), ("epochs=400", 4)):
                for step in range(3):
                    for T in (1.0, 2.0):
                        fq = FQ[abs(step - power)] - (T < 2)
                        row = {"setting": setting, "rate": RATE[step] / effort, "T": T, "fq": fq}
                        row["fq_held_out"] = fq + more - lost * (step == power)
                        grid.append({"d": d, "world": world} | row)
    return pd.DataFrame(grid), pd.DataFrame(each)


def test_the_best_rate_and_the_rates_as_good():
    """Two worlds .02 apart: the spread is .02/√2 = .014; only a rate that loses less is as good."""
    found = widths.best(three_widths()[0]).query("setting == @widths.PLAIN")
    assert found["rate"].tolist() == [0.1, 0.01, 0.001] and set(found["T"]) == {2.0}
    assert found["fq_held_out"].tolist() == pytest.approx([0.91] * 3)
    assert found["spread"].tolist() == pytest.approx([0.02 / 2**0.5] * 3)
    assert found["low"].tolist() == found["high"].tolist() == found["rate"].tolist()
    close = widths.best(three_widths(lost=0.09)[0]).query("setting == @widths.PLAIN")
    assert close["low"].tolist() == [0.01, 0.001, 0.001] and close["high"].iloc[1] == 0.1


def test_rules_predict_the_width_that_is_left_out():
    table = widths.rules(*three_widths()).set_index(["data", "setting", "rule"]).sort_index()
    exact = table.loc[widths.BUILTIN, widths.PLAIN, "d"]
    assert exact["predicted"].tolist() == pytest.approx([0.1, 0.01, 0.001])
    assert exact["lost"].tolist() == pytest.approx([0.0] * 3)
    longer = table.loc[widths.BUILTIN, "epochs=400", "d"]
    assert longer["factor"].tolist() == pytest.approx([1.0] * 3), "its rates were never fitted"
    same = table.loc[widths.BUILTIN, widths.PLAIN, "sum|x|"]
    assert same["predicted"].tolist() == exact["predicted"].tolist()
    root = table.loc[widths.BUILTIN, widths.PLAIN, "sqrt(d)"].iloc[0]
    assert root["factor"] == pytest.approx(10**-0.75)  # √(.01 √100 · .001 √1000) / √10 / .1
    assert root["lost"] == pytest.approx(0.9 - 0.8), "the nearest rate that was tried is .01"
    paper = table.loc[(widths.PAPER_RUN, widths.PLAIN, "d")]
    assert paper["predicted"] == pytest.approx(1 / 4096 / (1300 / 300) ** 0.5)


@pytest.mark.parametrize(
    ("paper", "off", "expected"),
    [(5e-4, 1.0, HOLDS), (5e-3, 1.0, FAILS), (5e-5, 1.0, FAILS), (5e-4, 2.5, NOT_RUN)],
)
def test_a_rule_that_misses_tofus_text_decides_nothing(paper, off, expected):
    """paper: the rate that the best rule predicts for the paper. off: by which factor it misses the
    rate that was tuned on TOFU's text.
    """
    table = widths.rules(*three_widths())
    best, tofu = table["rule"] == "d", table["data"] == widths.TOFU_TEXT
    tuned = table.loc[best & tofu, "rate"].item()
    table.loc[best & (table["data"] == widths.PAPER_RUN), "predicted"] = paper
    table.loc[best & tofu, ["predicted", "factor"]] = off * tuned, off
    found, told = widths.verdict(table)
    assert found == expected and "9 of 9 left-out rates" in told and f"{tuned:g} tuned" in told


def test_margins_are_mean_logits_of_the_true_tokens():
    head = T3Head(2, 3, 1)
    head.A.data, head.B.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [10.0], [-1.0]])
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # z = 1, 2, 3
    features = Features(x, torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), torch.tensor([0, 1]))
    assert margins(head, features) == pytest.approx([(1 * 1 + 2 * 10) / 2, 3 * -1])


def test_two_widths_leave_tables_and_a_figure(tmp_path, monkeypatch):
    """Two micro widths; the second command adds its width to what the first one left."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    few = {widths.PLAIN: {}, widths.SCALED: {}, "epochs=400": {"epochs": 4}}
    monkeypatch.setattr("t3lib.lab.widths.SETTINGS", few)
    monkeypatch.setattr("t3lib.lab.widths.BASE_RATES", (1.0,))
    stage = {"questions": 1, "vocab": 400, "hidden": 16, "heads": 2, "epochs": 1, "batch_size": 32}
    settings = {"stage": stage, "evaluation": {"max_new_tokens": 4}}
    settings["hyper"] = {"T3": {"epochs": 2, "warmup_epochs": 1}}
    profile = tmp_path / "micro.yaml"
    profile.write_text(yaml.safe_dump(settings))
    out = tmp_path / "out"
    for width in (16, 32):
        command = ["reproduce", "--profile", str(profile), "--widths", str(width)]
        assert cli.main([*command, "--worlds", "1", "--out", str(out)]) == 0
    each = pd.read_csv(out / "tables" / "width.csv")
    assert each["d"].tolist() == [16, 32] and each["parameters"].is_monotonic_increasing
    grid = pd.read_csv(out / "tables" / "width_grid.csv")
    grid = grid[grid["setting"] == widths.PLAIN]
    assert len(grid) == 2 * len(RATES) * len(TEMPERATURES)
    for row in each.to_dict("records"):
        here = grid[grid["d"] == row["d"]]
        chosen = here.query("rate == @row['rate'] and T == @row['T']")
        assert row["fq"] == here["fq"].max() == chosen["fq"].item()
        assert row["fq_held_out"] == chosen["fq_held_out"].item()
        assert row["margin_retain"] == chosen["margin_retain"].item()


def test_other_data_and_other_options_are_refused(tmp_path, capsys):
    with pytest.raises(UserError, match="--widths"):
        reproduce_widths("tofu-cpu", [64], [0], tmp_path / "out")
    assert cli.main(["reproduce", "--widths", "64", "--dry-run"]) == 2
    assert "not --dry-run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
