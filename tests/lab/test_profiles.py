"""Profiles: the defaults are the schema, mistakes are one line, names cannot leave their folder."""

import pytest
from fabricate import PROFILE_DEFAULTS

from t3lab import profiles, results
from t3lab.files import read_yaml
from t3lab.world.bases import Stage
from t3lib.core.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "defaults.yaml").write_text(PROFILE_DEFAULTS)
    return tmp_path


def load(folder, text, name="mine"):
    (folder / f"{name}.yaml").write_text(text)
    return profiles.load_profile(name, folder)


def test_differences_are_laid_over_the_defaults(folder):
    profile = load(
        folder,
        "seeds: [7]\nstage: {authors: 40}\nhyper: {NPO: {lr: 2e-5}, T3/forget05: {lr: 1e-3}}\n",
    )
    assert (
        profile["name"] == "mine"
        and profile["seeds"] == [7]
        and profile["methods"] == ["Original", "NPO", "T3"]
    )
    assert profile["stage"] == {"authors": 40, "lr": 0.005}
    assert profile["hyper"]["NPO"] == {
        "lr": 2e-5,
        "beta": 0.1,
    }  # 2e-5 is a number, though YAML 1.1 says text
    hyper = profile["hyper"]
    assert profiles.hyper_of(hyper, "T3", "forget05") == {"lr": 1e-3, "temperature": 2.5}
    assert profiles.hyper_of(hyper, "T3", "forget10") == {"lr": 5e-4, "temperature": 2.5}
    assert profiles.hyper_of(hyper, "Original", "forget10") == {}


def test_tuned_values_lie_over_the_profile_and_by_temperature_over_both(folder):
    (folder / "tuned").mkdir()
    (folder / "tuned" / "mine.yaml").write_text(
        "T3/forget10: {chosen: {lr: 0.01}, evidence: [{fq: 0.5}]}\nT3/forget10/2: {chosen: {lr:"
        " 0.02}, evidence: []}\n"
    )
    profile = load(folder, "hyper: {T3/forget10: {lr: 0.001, temperature: 2.0}}")
    hyper = profile["hyper"]
    assert profiles.hyper_of(hyper, "T3", "forget10") == {"lr": 0.01, "temperature": 2.0}
    assert profiles.hyper_of(hyper, "T3", "forget10", 2.0) == {"lr": 0.02, "temperature": 2.0}
    assert profiles.hyper_of(hyper, "T3", "forget10", 1.5) == {"lr": 0.01, "temperature": 2.0}
    with pytest.raises(UserError, match="T3/forget10/3.0: should be METHOD, METHOD/SPLIT"):
        load(folder, "hyper: {T3/forget10/3.0: {lr: 0.001}}")  # nobody would read it
    assert load(folder, "hyper: {T3/forget10/2.5: {lr: 0.001}}")
    (folder / "tuned" / "mine.yaml").write_text("T3/forget10: {lr: 0.01}\n")
    with pytest.raises(UserError, match="needs a mapping 'chosen'"):
        profiles.load_profile("mine", folder)


def test_a_profile_may_be_a_file_but_not_with_a_name_that_is_no_folder_name(folder):
    path = folder / "own.yaml"
    path.write_text("seeds: [3]")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "defaults.yaml").write_text(PROFILE_DEFAULTS)
    assert profiles.load_profile(path, elsewhere)["name"] == "own"
    with pytest.raises(UserError, match="a name is"):
        profiles.load_profile(folder / "...yaml", elsewhere)


def test_the_command_line_lies_over_the_file(folder):
    profile = load(folder, "")
    changed = profiles.override(profile, methods=["T3"], splits=["forget10"], seeds=[5])
    assert [changed[name] for name in ("methods", "splits", "seeds")] == [["T3"], ["forget10"], [5]]
    assert profile["seeds"] == [1, 2]


def test_shipped_profiles_load_and_the_schema_knows_every_setting_of_a_stage():
    shipped = sorted(path.stem for path in profiles.profiles_dir().glob("*.yaml"))
    assert {"defaults", "smoke"} <= set(shipped)
    for name in shipped:
        if name != "defaults":
            profile = profiles.load_profile(name)
            if not profile["models"]:
                Stage(data="builtin", **profile["stage"])
    defaults = read_yaml(profiles.profiles_dir() / "defaults.yaml")
    assert set(defaults["stage"]) == set(Stage.__dataclass_fields__) - {"data"}
    assert (
        profiles.METHODS is results.runs.METHODS and profiles.SPLITS is results.runs.SPLITS
    )  # spelled once, in names.py


def test_a_notebook_without_a_stage_takes_profile_smokes_and_replaces_single_values():
    world, hyper = profiles.or_smoke({"evaluation": {"max_new_tokens": 7}}, {"NPO": {"lr": 1.0}})
    smoke = profiles.load_profile("smoke")
    assert world["stage"] == smoke["stage"] and world["data"] == "builtin"
    assert world["evaluation"] == smoke["evaluation"] | {"max_new_tokens": 7}
    assert hyper == smoke["hyper"] | {"NPO": smoke["hyper"]["NPO"] | {"lr": 1.0}}
    own = {"stage": {"authors": 3}}
    world, hyper = profiles.or_smoke(own, {"NPO": {"lr": 1.0}})
    assert (world["stage"], hyper) == (own["stage"], {"NPO": {"lr": 1.0}})


@pytest.mark.parametrize(
    ("world", "hyper", "said"),
    [
        ("x", {}, r"""world must be a mapping such as .*, not 'x'"""),
        ({"colour": 1}, {}, "world: unknown key colour; known: data, stage"),
        ({"stage": 5}, {}, "stage: should be a valid dictionary"),
        ({"stage": {"authors": "x"}}, {}, "stage.authors: should be a valid integer, not 'x'"),
        ({"evaluation": {"max_new_tokens": "x"}}, {}, "max_new_tokens: should be a valid integer"),
        ({"load": {"colour": 1}}, {}, "unknown key load.colour"),
        ({}, 5, r"""hyper must be a mapping such as {"T3": {"lr": 0.001}}, not 5"""),
        ({}, {"T3": 5}, "hyper.T3: should be a valid dictionary, not 5"),
        ({}, {"T33": {}}, "hyper.T33: should be METHOD, METHOD/SPLIT or METHOD/SPLIT/T"),
        ({}, {"T3": {"colour": 1}}, "hyper.T3 has no setting 'colour'"),
    ],
)
def test_a_notebooks_world_and_settings_are_checked_as_a_profile_is(world, hyper, said):
    with pytest.raises(UserError, match=said):
        profiles.or_smoke(world, hyper)


def test_which_seeds_a_method_runs_with():
    wanted = {"Original": [], "Retrained": [1, 2, 3], "NPO": [3, 4, 5, 6]}
    assert {method: profiles.seeds_of(method, [3, 4, 5, 6]) for method in wanted} == wanted
    assert profiles.seeds_of("Retrained", [7, 8]) == [1, 2], "bases have seeds of their own"
