"""The measured steps of a rehearsal at the tiny shape, and the table that they go to."""

import pandas as pd
import pytest

from t3lib.lab import profiles, rehearse
from t3lib.lab.bench import steps


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("T3_THREADS", "1")
        patch.setattr(rehearse, "ROWS", 2)
        path, _ = rehearse.prepare(profiles.load_profile("llama-8b"), shape="tiny")
        yield profiles.load_profile(path)


@pytest.mark.parametrize("step", ["features", "head", "scores", "answers", "one step of NPO"])
def test_a_step_needs_the_operations_that_arithmetic_says(step, profile, tmp_path):
    """Counted are padding, and the prompts that the system text makes alike once instead of twice.

    Without the head and the products over the vocabulary the scores had 1.48 times as many.
    """
    row = steps.measure(profile, step, str(tmp_path))
    assert row["flops"] / row["predicted_flops"] == pytest.approx(1, abs=0.25)
    assert row["seconds"] > 0 and row["peak_bytes"] > 1e8 and row["predicted_bytes"] > 0


def test_a_step_runs_in_a_process_of_its_own_and_a_failure_is_a_note(profile):
    [loaded] = steps.measured(profile, ["load"])
    assert (loaded["step"], loaded["note"]) == ("load", None) and loaded["peak_bytes"] > 1e8
    broken = profile | {"models": {"full": "/nowhere"}}
    [failed] = steps.measured(broken, ["load"])
    assert failed["note"] and failed["seconds"] is None


def test_a_step_measured_again_takes_the_place_of_the_earlier_row(tmp_path):
    path = tmp_path / "rehearsal.csv"
    for step, seconds in (("load", 1.0), ("head", 2.0), ("load", 3.0)):
        steps.add({"profile": "p", "step": step, "seconds": seconds}, path)
    found = pd.read_csv(path)
    assert list(found.columns) == list(steps.COLUMNS)
    assert found[["step", "seconds"]].values.tolist() == [["head", 2.0], ["load", 3.0]]
