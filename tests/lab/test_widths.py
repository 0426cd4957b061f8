"""The study over widths: a real run at micro size, rules against hand-computed cases."""

import pandas as pd
import pytest
import torch
import yaml

from t3lib.classifier.features import Features
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.lab import cli
from t3lib.lab.report.widths import PLAIN
from t3lib.lab.widths import RATES, TEMPERATURES, margins, reproduce_widths


def test_margins_are_mean_logits_of_the_true_tokens():
    head = T3Head(2, 3, 1)
    head.A.data, head.B.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [10.0], [-1.0]])
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # z = 1, 2, 3
    features = Features(x, torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), torch.tensor([0, 1]))
    assert margins(head, features) == pytest.approx([(1 * 1 + 2 * 10) / 2, 3 * -1])


def test_two_widths_leave_tables_and_a_figure(tmp_path, monkeypatch):
    """Two micro widths; the second command adds its width to what the first one left."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
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
    grid = grid[grid["setting"] == PLAIN]
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
