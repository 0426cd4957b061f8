"""One method on one split, end to end on a micro stage: every row of Table 1 gives a complete run record."""

import json
import math

import numpy as np
import pytest
from scipy.stats import hmean, ks_2samp

from t3lib import results
from t3lib.errors import UserError
from t3lib.names import METHODS
from t3lib.settings import settings_of
from t3lib.study import ablations, methods, study
from t3lib.world import bases

STAGE = {"authors": 20, "questions": 4, "hidden": 32, "layers": 2, "heads": 2, "epochs": 3, "vocab": 600}
FAST = {"epochs": 1, "warmup_epochs": 0}


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield study.open_study("forget10", stage=STAGE, evaluation={"max_new_tokens": 6})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_complete_run(method, stand, tmp_path):
    hyper = {} if method in ("Original", "Retrained") else dict(FAST)
    before = {name: value.clone() for name, value in stand.base.state_dict().items()}
    runs = list(methods.run_method(stand, method, seeds=[1, 2], hyper=hyper))
    assert len(runs) == (1 if method in ("Original", "Retrained") else 2)
    for run in runs:
        assert run["status"] == "ok", run["error"]
        results.write_run(tmp_path, run | {"parameters": {}, "provenance": {}})
        ratios, metrics = run["truth_ratio"], run["metrics"]
        assert metrics["fq"] == pytest.approx(ks_2samp(ratios["forget"], ratios["reference"]).pvalue, abs=1e-9)
        rouge = [sum(r["rouge"] for r in run["records"][s]) / len(run["records"][s]) for s in ("retain", "ra", "wf")]
        assert metrics["mu_rouge"] == pytest.approx(hmean(rouge) if min(rouge) > 0 else 0.0, abs=1e-6)
        assert [("generation" in r) for r in run["records"]["forget"]] == [run is runs[0]] * len(ratios["forget"])
    assert all((stand.base.state_dict()[name] == value).all() for name, value in before.items()), "the base was changed"
    if len(runs) == 2:
        assert runs[0]["truth_ratio"]["forget"] != runs[1]["truth_ratio"]["forget"], "the seed was ignored"


def test_a_finished_seed_is_read_back_not_run_again(stand, monkeypatch):
    first = list(methods.run_method(stand, "T3", seeds=[1], hyper=FAST))

    def never(*_, **__):
        raise AssertionError("fitted again")

    monkeypatch.setattr(methods, "fit_heads", never)
    assert list(methods.run_method(stand, "T3", seeds=[1], hyper=FAST)) == first
    with pytest.raises(AssertionError, match="fitted again"):
        list(methods.run_method(stand, "T3", seeds=[1], hyper=FAST | {"lr": 1e-3}))


def test_settings_share_one_base_pass_and_score_as_they_would_alone(stand, monkeypatch):
    passes = []
    real = study.evaluate
    monkeypatch.setattr(study, "evaluate", lambda *a, **k: passes.append(len(k["tilts"])) or real(*a, **k))
    hyper = FAST | {"rank": 7}  # settings that no other test has left in the cache
    together = ablations.run_ablations(stand, seeds=[1, 2], hyper=hyper)
    assert passes == [2 * len(ablations.ABLATIONS)]
    for setting, change in ablations.ABLATIONS.items():
        settings = settings_of("T3", hyper | change)
        made = methods._t3(stand, [methods.T3Job(settings, seed) for seed in (1, 2)], True)
        alone = [run["evaluation"]["truth_ratio"]["forget"] for run in made]
        shared = [run["truth_ratio"]["forget"] for run in together if run["setting"] == setting]
        np.testing.assert_allclose(shared, alone, rtol=1e-8)  # records are stored with 9 significant digits


def test_a_temperature_that_02_has_run_is_not_run_again_in_03(stand, monkeypatch):
    hyper = FAST | {"rank": 6, "temperature": 2.0}
    first = list(methods.run_method(stand, "T3", seeds=[1], temperatures=[1.0, 2.0], hyper=hyper))
    monkeypatch.setattr(methods, "fit_heads", lambda *_, **__: pytest.fail("fitted again"))
    assert ablations.run_temperatures(stand, seeds=[1], temperatures=[2.0, 1.0], hyper=hyper) == first


def test_temperatures_share_heads_and_differ(stand):
    runs = ablations.run_temperatures(stand, seeds=[1], temperatures=[2.0, 1.0], hyper=FAST)
    assert [run["T"] for run in runs] == [1.0, 2.0]
    assert runs[0]["truth_ratio"]["forget"] != runs[1]["truth_ratio"]["forget"]
    assert runs[0]["truth_ratio"]["reference"] == runs[1]["truth_ratio"]["reference"]


def test_a_temperature_may_have_its_own_hyperparameters(stand):
    runs = ablations.run_temperatures(
        stand, seeds=[1], temperatures=[1.0, 2.0], hyper=FAST, hyper_by_t={"2": {"rank": 5}}
    )
    assert [run["hyper"]["rank"] for run in runs] == [20, 5]


def test_every_ablation_differs_from_the_tuned_setting(stand):
    hyper = {"epochs": 2, "warmup_epochs": 0, "temperature": 2.0, "lr": 0.01}
    runs = ablations.run_ablations(stand, seeds=[1], hyper=hyper)
    assert [run["setting"] for run in runs] == list(ablations.ABLATIONS)
    tuned, *others = runs
    for run in others:
        assert run["truth_ratio"]["forget"] != tuned["truth_ratio"]["forget"], run["setting"]


def test_a_diverging_baseline_is_a_failed_run_with_empty_cells(stand, monkeypatch):
    def diverge(*_, **__):
        raise methods.Diverged("the loss is nan at step 3 of 9 (epoch 1): stopped")

    monkeypatch.setattr(methods, "unlearn_baseline", diverge)
    [run] = methods.run_method(stand, "NPO", seeds=[7], hyper=FAST)
    assert run["status"] == "failed" and "step 3" in run["error"] and run["metrics"] == {}
    assert math.isnan(results.tidy([run]).fq[0])


@pytest.mark.parametrize(
    ("method", "hyper", "said"),
    [("T4", {}, "unknown method 'T4'"), ("T3", {"lrr": 1}, "no setting 'lrr'"), ("NPO", {"lrr": 1}, "lrr")],
)
def test_unknown_names_are_refused(stand, method, hyper, said):
    with pytest.raises(UserError, match=said):
        list(methods.run_method(stand, method, seeds=[1], hyper=hyper))


def test_unknown_splits_and_settings_are_refused():
    with pytest.raises(UserError, match="unknown split 'forget50'"):
        study.open_study("forget50")
    with pytest.raises(UserError, match="unknown evaluation setting 'mask'"):
        study.open_study("forget10", evaluation={"mask": 1})
    with pytest.raises(UserError, match="unknown setting 'autors'"):
        study.stage_of("builtin", {"autors": 3})


def test_data_of_the_page_is_the_same_from_either_split(stand):
    rows = study.question_rows(stand)
    assert set(rows) == {"forget05", "forget10", "retain", "ra", "wf"}
    assert rows["forget10"] == bases.rows(stand.stage)["forget10_perturbed"]
    json.dumps(rows)
