"""Profiles: the defaults are the schema, mistakes are one line, names cannot leave their folder."""

import subprocess
import sys

import pytest
from conftest import ROOT

from t3lab import profiles, results
from t3lab.world.bases import Stage
from t3lib.core import files
from t3lib.core import settings as core_settings
from t3lib.core.errors import UserError

DEFAULTS = """data: builtin
methods: [Original, NPO, T3]
splits: [forget05, forget10]
seeds: [1, 2]
temperatures: [1.0, 2.0]
search_seeds: [1, 2]
stage: {authors: 20, lr: 0.005}
models: {}
evaluation: {attention_mask: lengths, truth_ratio: geometric, max_new_tokens: 200}
hyper: {NPO: {lr: 1e-5, beta: 0.1}, T3: {lr: 5e-4, temperature: 2.5}}
grids: {}
notebooks: {}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "defaults.yaml").write_text(DEFAULTS)
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
    assert core_settings.hyper_of(hyper, "T3", "forget05") == {"lr": 1e-3, "temperature": 2.5}
    assert core_settings.hyper_of(hyper, "T3", "forget10") == {"lr": 5e-4, "temperature": 2.5}
    assert core_settings.hyper_of(hyper, "Original", "forget10") == {}


def test_an_empty_profile_is_the_defaults(folder):
    assert load(folder, "")["methods"] == ["Original", "NPO", "T3"]


def test_tuned_values_lie_over_the_profile_and_by_temperature_over_both(folder):
    (folder / "tuned").mkdir()
    (folder / "tuned" / "mine.yaml").write_text(
        "T3/forget10: {chosen: {lr: 0.01}, evidence: [{fq: 0.5}]}\nT3/forget10/2: {chosen: {lr:"
        " 0.02}, evidence: []}\n"
    )
    profile = load(folder, "hyper: {T3/forget10: {lr: 0.001, temperature: 2.0}}")
    hyper = profile["hyper"]
    assert core_settings.hyper_of(hyper, "T3", "forget10") == {"lr": 0.01, "temperature": 2.0}
    assert core_settings.hyper_of(hyper, "T3", "forget10", 2.0) == {"lr": 0.02, "temperature": 2.0}
    assert core_settings.hyper_of(hyper, "T3", "forget10", 1.5) == {"lr": 0.01, "temperature": 2.0}
    (folder / "tuned" / "mine.yaml").write_text("T3/forget10: {lr: 0.01}\n")
    with pytest.raises(UserError, match="needs a mapping 'chosen'"):
        profiles.load_profile("mine", folder)


@pytest.mark.parametrize(
    "text, message",
    [
        ("sedes: [1]", "unknown key sedes"),
        ("stage: {autors: 3}", "unknown key stage.autors"),
        ("evaluation: {mask: lengths}", "unknown key evaluation.mask"),
        (
            "evaluation: {attention_mask: none}",
            "evaluation.attention_mask: should be 'lengths' or 'openunlearning', not 'none'",
        ),
        (
            "evaluation: {max_new_tokens: many}",
            "evaluation.max_new_tokens: should be a valid integer, not 'many'",
        ),
        ("stage: {authors: 2.5}", "stage.authors: should be a valid integer, not 2.5"),
        ("stage: {authors: true}", "stage.authors: should be a valid integer, not True"),
        ("methods: [T4]", "'SimNPO' or 'T3', not 'T4'"),
        ("methods: T3", "methods: should be a valid list, not 'T3'"),
        ("methods: []", "methods: should hold at least one and each once, not []"),
        ("methods: [T3, T3]", "methods: should hold at least one and each once, not ['T3', 'T3']"),
        ("methods: [[T3]]", "methods.0: should be"),
        ("splits: [forget99]", "splits.0: should be 'forget05' or 'forget10', not 'forget99'"),
        ("splits: [../../etc]", "splits.0: should be 'forget05' or 'forget10', not '../../etc'"),
        ("seeds: [one]", "seeds.0: should be a valid integer, not 'one'"),
        ("seeds: [-1]", "seeds.0: should be greater than or equal to 0, not -1"),
        ("seeds: [true]", "seeds.0: should be a valid integer, not True"),
        ("temperatures: [0.5]", "temperatures.0: should be greater than or equal to 1, not 0.5"),
        (
            "temperatures: [.nan]",
            "temperatures.0: should be less than or equal to 1000000, not nan",
        ),
        (
            "temperatures: [.inf]",
            "temperatures.0: should be less than or equal to 1000000, not inf",
        ),
        (
            "models: {base: x}",
            "models.base: should be full, retain90, retain95 or such as retain90-seed1, not 'base'",
        ),
        ("models: {full: 3}", "models.full: should be a valid string, not 3"),
        (
            "data: no/such/folder",
            "data: should be builtin, customers, hub or a folder that is there, not 'no/such/",
        ),
        ("hyper: {NPO: {gamma: 1}}", "hyper.NPO has no setting 'gamma': choose among accumulation"),
        ("hyper: {NPO: {lr: fast}}", "hyper.NPO: lr must be a number from"),
        ("hyper: {NPO: 3}", "hyper.NPO: should be a valid dictionary, not 3"),
        (
            "hyper: {NPO/forget05/hot: {lr: 1.0}}",
            "should be METHOD, METHOD/SPLIT or METHOD/SPLIT/T",
        ),
        ("hyper: {../NPO: {}}", "should be METHOD, METHOD/SPLIT or METHOD/SPLIT/T, not '../NPO'"),
        ("grids: {NPO: {lr: 1.0}}", "grids.NPO: should be a valid list"),
        ("grids: {NPO: [{beta: 0.1}, {lrr: 1.0}]}", "grids.NPO has no setting 'lrr'"),
        ("grids: {NPO: [{}, {}, {}, {}, {}, {}, {}, {}, {}]}", "at most 8 items"),
        (
            "notebooks: {02_tofu_unlearning: 3}",
            "notebooks.02_tofu_unlearning: should be a valid dictionary, not 3",
        ),
        ("- a\n- b", "must hold a mapping"),
        ("a: [1", "line 1: not valid YAML"),
        ("data: !!python/object/apply:os.system [exit]", "not valid YAML"),
        ("\x00", "not valid YAML"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
            "not valid YAML (line 2: aliases are not read)",
        ),
        ("data: &data [*data]", "aliases are not read"),
        ("stage: {a: " + "[" * 50_000, "not valid YAML"),
        ("seeds: [" + "9" * 400 + "]", "seeds.0: should be less than 2147483648"),
        ("seeds: [" + "9" * 5000 + "]", "not valid YAML"),
        ("hyper: {NPO: {lr: " + "9" * 400 + "}}", "hyper.NPO: lr must be a number"),
        ("hyper: {NPO: {lr: 1e400}}", "hyper.NPO: lr must be a number"),
        ("seeds: [1]\n---\nseeds: [2]", "not valid YAML"),
        ("seeds: [2020-01-01]", "not valid YAML (Object of type date"),
        ("data: " + "x" * 300_000, "data: should be builtin, customers, hub or a folder that"),
        ('models: {full: "\\x1b[2J\\u202e", retain: x}', "models.retain: should be"),
        ('data: "\\x1b[31m"', r"not '\x1b[31m'"),
    ],
)
def test_mistakes_are_one_line(folder, text, message):
    with pytest.raises(UserError) as error:
        load(folder, text)
    assert (
        message in str(error.value)
        and "\n" not in str(error.value).strip()
        and "mine.yaml" in str(error.value)
    )


@pytest.mark.parametrize(
    "name",
    ["../other/mine", "..", "", ".", "a/b", "defaults", "no\nsuch", "-x", "~", "nope", "x\0"],
)
def test_names_that_leave_the_folder_are_refused(folder, name):
    other = folder / "profiles"
    other.mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "mine.yaml").write_text("")
    (other / "defaults.yaml").write_text(DEFAULTS)
    with pytest.raises(UserError):
        profiles.load_profile(name, other)


def test_a_profile_may_be_a_file_but_not_with_a_name_that_is_no_folder_name(folder):
    path = folder / "own.yaml"
    path.write_text("seeds: [3]")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "defaults.yaml").write_text(DEFAULTS)
    assert profiles.load_profile(path, elsewhere)["name"] == "own"
    with pytest.raises(UserError, match="a name is"):
        profiles.load_profile(folder / "...yaml", elsewhere)


def test_the_command_line_is_checked_like_the_file(folder):
    profile = load(folder, "")
    changed = profiles.override(profile, methods=["T3"], splits=["forget10"], seeds=[5])
    assert [changed[name] for name in ("methods", "splits", "seeds")] == [["T3"], ["forget10"], [5]]
    assert profile["seeds"] == [1, 2]
    wrong = [
        ("methods", ["t3"]),
        ("splits", ["10"]),
        ("seeds", [1, 1]),
        ("seeds", []),
        ("data", ""),
        ("data", "no/where"),
    ]
    for bad in (dict([pair]) for pair in wrong):
        with pytest.raises(UserError, match="command line"):
            profiles.override(profile, **bad)


def test_shipped_profiles_load_and_the_schema_knows_every_setting_of_a_stage():
    shipped = sorted(path.stem for path in profiles.profiles_dir().glob("*.yaml"))
    assert {"defaults", "smoke"} <= set(shipped)
    for name in shipped:
        if name != "defaults":
            profile = profiles.load_profile(name)
            if not profile["models"]:
                Stage(data="builtin", **profile["stage"])
    defaults = files.read_yaml(profiles.profiles_dir() / "defaults.yaml")
    assert set(defaults["stage"]) == set(Stage.__dataclass_fields__) - {"data"}
    assert (
        profiles.METHODS is results.METHODS and profiles.SPLITS is results.SPLITS
    )  # spelled once, in names.py


def test_checking_needs_no_torch_and_no_dask():
    heavy = "{'torch', 'distributed', 'papermill', 'pandas'}"
    code = f"import sys, t3lab.grid.reproduce; assert not {heavy} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_notebook_without_a_stage_takes_profile_smokes_and_replaces_single_values():
    world, hyper = profiles.or_smoke({"evaluation": {"max_new_tokens": 7}}, {"NPO": {"lr": 1.0}})
    smoke = profiles.load_profile("smoke")
    assert world["stage"] == smoke["stage"] and world["data"] == "builtin"
    assert world["evaluation"] == smoke["evaluation"] | {"max_new_tokens": 7}
    assert hyper == smoke["hyper"] | {"NPO": smoke["hyper"]["NPO"] | {"lr": 1.0}}
    own = {"stage": {"authors": 3}}
    world, hyper = profiles.or_smoke(own, {"NPO": {"lr": 1.0}})
    assert (world["stage"], hyper) == (own["stage"], {"NPO": {"lr": 1.0}})


def test_which_seeds_a_method_runs_with():
    wanted = {"Original": [], "Retrained": [1, 2, 3], "NPO": [3, 4, 5, 6]}
    assert {method: core_settings.seeds_of(method, [3, 4, 5, 6]) for method in wanted} == wanted
    assert core_settings.seeds_of("Retrained", [7, 8]) == [1, 2], "bases have seeds of their own"
