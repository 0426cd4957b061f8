"""The search: best mean Forget Quality, ties by MU-ROUGE, evidence written and loaded over the
profile.
"""

import pytest
import yaml

from t3lab import profiles
from t3lab.study import methods, tune
from t3lib.core.errors import UserError

TINY = {
    "stage": {
        "authors": 20,
        "questions": 8,
        "vocab": 1600,
        "hidden": 16,
        "layers": 1,
        "heads": 2,
        "epochs": 1,
    },
    "splits": ["forget05"],
    "methods": ["Original", "NPO", "T3"],
    "temperatures": [1.0, 2.0],
    "evaluation": {"max_new_tokens": 4},
    "hyper": {"NPO": {"epochs": 3}, "T3": {"epochs": 2, "warmup_epochs": 0}},
    "grids": {
        "NPO": [{"lr": 1e-5}, {"lr": 3e-2}],
        "T3": [{"lr": 1e-5, "temperature": 2.0}, {"lr": 5e-2, "temperature": 2.0}],
    },
}


def trial(name, *fq):
    return {"hyper": {"name": name}, "fq": list(fq), "ks": [0.5] * len(fq)}


def test_the_best_mean_wins_and_a_diverged_point_comes_last():
    made = [
        trial("one lucky seed", 0.9, 0.0),
        trial("both", 0.5, 0.5),
        trial("diverged", 1.0, None),
    ]
    entry = tune.choose(None, "NPO", made, (1, 2))
    assert entry["chosen"] == {"name": "both"} and entry["seeds"] == [1, 2]
    assert [row["fq"] for row in entry["trials"]] == [[0.9, 0.0], [0.5, 0.5], [1.0, None]]
    assert all("mu_rouge" not in row for row in entry["trials"]), "no tie, so nothing is generated"


def test_ties_go_to_mu_rouge(monkeypatch):
    scores = {"low": 0.3, "high": 0.8}

    def runs(study, method, *, seeds, settings):
        return [{"metrics": {"mu_rouge": scores[settings["name"]]}} for _ in seeds]

    monkeypatch.setattr(tune, "run_method", runs)
    entry = tune.choose(
        None,
        "NPO",
        [trial("low", 0.4, 0.6), trial("high", 0.6, 0.4), trial("worse", 0.4, 0.4)],
        (1, 2),
    )
    assert entry["chosen"] == {"name": "high"}
    assert [row.get("mu_rouge") for row in entry["trials"]] == [[0.3, 0.3], [0.8, 0.8], None]


def test_a_search_from_profile_to_tuned_values_and_back(tmp_path, monkeypatch):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))

    def search(**options):
        untuned = profiles.load_profile(path, tuned=False)
        tune.tune_profile(untuned, profiles.tuned_path(path), **options)

    search()
    written = tmp_path / "tuned" / "tiny.yaml"
    entries = yaml.safe_load(written.read_text())
    assert set(entries) == {"NPO/forget05", "T3/forget05", "T3/forget05/1", "T3/forget05/2"}
    assert all(
        len(row["seconds"]) == 2 and min(row["seconds"]) > 0
        for row in entries["NPO/forget05"]["trials"]
    )
    kept = list((tmp_path / "cache" / "unlearned").glob("*/weights.safetensors"))
    assert len(kept) == 2, "the weights of the chosen point, a file a seed"
    for entry in entries.values():
        assert len(entry["trials"]) == 2 and all(len(row["fq"]) == 2 for row in entry["trials"])
        best = max(sum(row["fq"]) for row in entry["trials"])
        assert best == next(
            sum(row["fq"]) for row in entry["trials"] if row["hyper"] == entry["chosen"]
        )
    small, large = (row["ks"] for row in entries["NPO/forget05"]["trials"])
    assert small != large, "the learning rate reached the training"
    assert (
        entries["T3/forget05/1"]["trials"][0]["ks"] != entries["T3/forget05/2"]["trials"][0]["ks"]
    ), "and T the tilt"

    loaded = profiles.load_profile(path)
    assert (
        profiles.hyper_of(loaded["hyper"], "NPO", "forget05")["lr"]
        == entries["NPO/forget05"]["chosen"]["lr"]
    )
    assert (
        profiles.hyper_of(loaded["hyper"], "T3", "forget05", 1.0)["lr"]
        == entries["T3/forget05/1"]["chosen"]["lr"]
    )
    assert "lr" not in profiles.hyper_of(
        profiles.load_profile(path, tuned=False)["hyper"], "NPO", "forget05"
    )

    monkeypatch.setattr(
        methods, "unlearned", lambda *_, **__: pytest.fail("a trial that was made is read back")
    )
    search(methods=["NPO"])
    assert yaml.safe_load(written.read_text()) == entries, "other methods' entries stay"


def test_t3_without_a_temperature_is_tried_at_every_one(tmp_path, monkeypatch):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    grids = {"T3": [{"lr": 1e-3}, {"lr": 5e-2}]}
    path.write_text(
        yaml.safe_dump(TINY | {"methods": ["T3"], "grids": grids, "temperatures": [1.0, 2.0, 4.0]})
    )
    tune.tune_profile(profiles.load_profile(path, tuned=False), profiles.tuned_path(path))
    entry = yaml.safe_load(profiles.tuned_path(path).read_text())["T3/forget05"]
    tried = {(row["hyper"]["lr"], row["hyper"]["temperature"]) for row in entry["trials"]}
    assert (
        tried == {(lr, T) for lr in (1e-3, 5e-2) for T in (1.0, 2.0, 4.0)}
        and len(entry["trials"]) == 6
    )


def test_a_learning_rate_that_diverges_is_a_failed_trial_and_the_others_are_chosen_from(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    absurd = {"lr": 1.0, "weight_decay": 1e6, "epochs": 8}
    grids = {"T3": [absurd, {"lr": 1e-3}, {"lr": 5e-2}]}
    path.write_text(yaml.safe_dump(TINY | {"methods": ["T3"], "grids": grids}))
    tune.tune_profile(profiles.load_profile(path, tuned=False), profiles.tuned_path(path))
    entries = yaml.safe_load(profiles.tuned_path(path).read_text())
    for name in ("T3/forget05", "T3/forget05/1", "T3/forget05/2"):
        scores = {row["hyper"]["lr"]: row["fq"] for row in entries[name]["trials"]}
        assert scores.pop(1.0) == [None, None] and entries[name]["chosen"]["lr"] in scores
        assert len(scores) == 2 and None not in sum(scores.values(), [])


def test_a_method_without_a_grid_is_named():
    profile = profiles.load_profile("cpu", tuned=False)
    with pytest.raises(UserError, match="smoke: grids has no points for NPO"):
        tune.grids_of(profiles.load_profile("smoke", tuned=False), "NPO", "forget05")
    grids = [tune.grids_of(profile, method, "forget10") for method in profile["methods"][2:]]
    assert {tuple(map(len, parts)) for parts in grids} == {(0, 8)}, "one budget, one grid"


def test_only_points_with_all_seeds_can_be_chosen():
    made = [trial("coarse, lucky", 0.9), trial("fine", 0.4, 0.2), trial("finer", 0.4, 0.3)]
    assert tune.choose(None, "NPO", made, (1, 2))["chosen"] == {"name": "finer"}


def test_a_finer_grid_is_tried_with_all_seeds_and_the_coarse_one_with_the_first(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    tuned = profiles.tuned_path(path)
    grids = {"NPO": [{"lr": 1e-5}, {"lr": 3e-2}], "NPO/forget05": [{"lr": 3e-2}, {"lr": 4e-2}]}
    path.write_text(yaml.safe_dump(TINY | {"methods": ["NPO"], "grids": grids}))

    tune.tune_profile(profiles.load_profile(path, tuned=False), tuned)
    entry = yaml.safe_load(tuned.read_text())["NPO/forget05"]
    tried = {row["hyper"]["lr"]: len(row["fq"]) for row in entry["trials"]}
    assert tried == {1e-5: 1, 3e-2: 2, 4e-2: 2} and entry["chosen"]["lr"] in (3e-2, 4e-2)
