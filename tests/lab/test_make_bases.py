"""Base models that a profile names: made once by a script, known by their content."""

import pytest
import yaml

from t3lab import make_bases
from t3lib.core import files
from t3lib.core.errors import UserError


@pytest.fixture
def profile(tmp_path):
    """A profile of one tiny base, in a folder that is not there yet."""
    stage = {"authors": 20, "questions": 1, "epochs": 1, "batch_size": 32, "hidden": 32}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"stage": stage, "models": {"full": str(tmp_path / "full")}}))
    return path


def test_a_base_is_trained_once_and_says_by_what(profile, tmp_path):
    [folder] = make_bases.make_bases(profile)
    made = files.read_json(folder / "base.json")
    assert made["seconds"] >= 0 and made["command"].startswith("python ")
    assert made["provenance"]["git_commit"] and made["training"]["epochs"] == 1
    before = files.model_identity(folder)
    stamp = (folder / "base.json").stat().st_mtime_ns
    assert make_bases.make_bases(profile, ["full"]) == [folder]
    assert (folder / "base.json").stat().st_mtime_ns == stamp
    assert files.model_identity(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "full.lock", "tiny.yaml"]


def test_a_base_that_the_profile_does_not_name_is_refused(profile):
    with pytest.raises(UserError, match="is not given 'retain95': choose of full"):
        make_bases.make_bases(profile, ["retain95"])
