"""The audit of methods on a micro stage: complete records, cached answers, and measures that tell
models apart.
"""

import pytest
from conftest import MICRO

from t3lib.core import files
from t3lib.lab import results
from t3lib.lab.audit import run
from t3lib.lab.study import audit, study
from t3lib.lab.world import bases
from t3lib.tofu import metrics

FAST = {"epochs": 1, "warmup_epochs": 0}
FEW = audit.Sampling(samples=4)


@pytest.mark.parametrize("method", ["Original", "Retrained", "NPO", "ULD", "T3"])
def test_every_measure_of_every_kind_of_model(method, opened, tmp_path):
    settings = {} if method in ("Original", "Retrained") else FAST
    runs = list(
        audit.audit_method(
            opened, method, seeds=[0, 1], settings=settings, sampling=FEW, progress=False
        )
    )
    assert [found["seed"] for found in runs] == ([0] if method == "Original" else [0, 1])
    for found in runs:
        assert found["status"] == "ok"
        assert set(found["metrics"]) | set(found["empty"]) == set(metrics.AUDIT)
        assert all(0 <= value <= 1 for value in found["metrics"].values())
        assert [entry["k"] for entry in found["leak"]] == [1, 2, 4]
        assert found["leak"][0]["value"] == pytest.approx(found["metrics"]["sampled"])
        assert found["leak"][-1]["value"] == pytest.approx(found["metrics"]["leak"])
        path = results.write_audit(tmp_path, found | {"parameters": {}, "provenance": {}})
        assert "closest" not in path.read_text()
    assert len(results.read_audits(tmp_path)) == len(runs)


def test_a_person_is_shown_t3_at_its_own_temperature(opened):
    """The sample texts of notebook 06 once were those of T = 1, the first run that wrote."""
    settings = FAST | {"temperature": 2.0}
    dials = audit.dials_of(settings, [1.0, 4.0])
    runs = list(
        audit.audit_method(
            opened, "T3", seeds=[1], settings=settings, dials=dials, sampling=FEW, progress=False
        )
    )
    assert [each["T"] for each in runs if each["closest"]] == [1.0, 2.0, 4.0]
    assert audit.shown(runs, settings)["T"] == 2.0
    assert audit.shown(runs[2:], settings)["T"] == 4.0, "where the tuned one did not write"
    assert audit.shown([each | {"closest": []} for each in runs], settings) is None


def test_a_nucleus_is_drawn_beside_the_whole_distribution(opened, monkeypatch):
    """Its leak@k is marked with its top_p; all else, and what is asked for it, stays as it is
    without.
    """
    options = {"seeds": [0], "settings": {}, "progress": False}
    [plain] = audit.audit_method(opened, "Original", sampling=FEW, **options)

    def writings(*_, **__):
        pytest.fail("asked again")

    monkeypatch.setattr(run, "writings", writings)
    [both] = audit.audit_method(
        opened, "Original", sampling=audit.Sampling(samples=4, nucleus=0.5), **options
    )
    leak, further = both["leak"][:3], both["leak"][3:]
    assert leak == plain["leak"]
    changed = {name for name in both if both[name] != plain[name]}
    assert changed <= {"leak", "seconds"}
    assert [(each["k"], each["top_p"]) for each in further] == [(1, 0.5), (2, 0.5), (4, 0.5)]
    assert [each["value"] for each in further] != [each["value"] for each in leak]


@pytest.fixture(scope="module")
def tofu_folder(tmp_path_factory):
    """18 retain authors and 2 to forget, as TOFU's files: 20 rows an author."""
    folder = tmp_path_factory.mktemp("tofu")
    for name, rows in bases.rows(bases.Stage(authors=20, questions=20)).items():
        if name != "idontknow":
            files.write_json(folder / f"{name}.json", rows)
    (folder / "idontknow.jsonl").write_text("I don't know.")
    return folder


def test_membership_of_a_stage_that_holds_authors_out(tofu_folder, tmp_path, monkeypatch):
    """The stage's bases learn every row but its twin's; a baseline has no model there, so its cells
    say why.
    """
    monkeypatch.setenv("T3_CACHE", str(tmp_path))
    whole = MICRO | {"authors": 18, "epochs": 1}
    opened, apart = (
        study.open_study(
            "forget10", data=str(tofu_folder), stage=stage, evaluation={"max_new_tokens": 6}
        )
        for stage in (whole, whole | {"authors": 16})
    )
    assert isinstance(audit.unseen_rows(opened), str)
    unseen = audit.unseen_rows(apart)
    assert len(unseen) == 40
    learned = {
        row["question"] for name in bases.NAMES for row in bases.training_rows(apart.stage, name)
    }
    assert not learned & {row["question"] for row in unseen}
    texts = " ".join(bases.tokenizer_text(apart.stage))
    assert not any(row["answer"] in texts for row in unseen), "nor does its tokenizer"
    for method in ("Original", "Retrained", "T3", "NPO"):
        settings = FAST if method in ("T3", "NPO") else {}
        options = {
            "seeds": [0],
            "settings": settings,
            "sampling": audit.Sampling(samples=1, rows=2),
            "progress": False,
        }
        [here] = audit.audit_method(opened, method, **options)
        [both] = audit.audit_method(opened, method, apart=apart, **options)
        assert (
            here["empty"]["auc"]
            == here["empty"]["auc_min_k"]
            == "the bases learned every row of the data"
        )
        if method == "NPO":
            assert both["empty"] == here["empty"]
            continue
        [there] = audit.audit_method(apart, method, **options)
        for name in ("auc", "auc_min_k"):
            assert both["metrics"].pop(name) == there["metrics"][name] and name not in both["empty"]
        assert both["metrics"] == here["metrics"] and both["asked"] == here["asked"] | {
            "unseen": 40
        }
    [second] = audit.audit_method(opened, "Retrained", apart=apart, **options | {"seeds": [1]})
    assert second["empty"]["auc"] == "the bases learned every row of the data", (
        "one retrained base a stage apart"
    )
