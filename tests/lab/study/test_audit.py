"""The audit of methods on a micro stage: complete records, cached answers, and measures that tell
models apart.
"""

from functools import wraps

import numpy as np
import pytest
from conftest import MICRO

from t3lab import results
from t3lab.audit import run
from t3lab.audit.labels import AUDIT
from t3lab.audit.membership import auc_error_by_author
from t3lab.study import audit, study
from t3lab.world import bases
from t3lab.world.facts import world
from t3lib.core import files
from t3lib.core.errors import UserError

FAST = {"epochs": 1, "warmup_epochs": 0}
FEW = audit.Sampling(samples=4)


@pytest.mark.parametrize("method", ["Original", "Retrained", "NPO", "ULD", "T3"])
def test_every_measure_of_every_kind_of_model(method, opened, tmp_path):
    settings = {} if method in ("Original", "Retrained") else FAST
    runs = list(audit.audit_method(opened, method, seeds=[0, 1], settings=settings, sampling=FEW))
    seeds = {"Original": [0], "T3": [0, 0, 1, 1]}  # each of T3's models has a twin
    assert [found["seed"] for found in runs] == seeds.get(method, [0, 1])
    for found in runs:
        assert found["status"] == "ok"
        assert set(found["metrics"]) | set(found["empty"]) == set(AUDIT)
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
        audit.audit_method(opened, "T3", seeds=[1], settings=settings, dials=dials, sampling=FEW)
    )
    wrote = [(each["T"], each["w"]) for each in runs if each["closest"]]
    assert wrote == [(1.0, 1.0), (2.0, 1.0), (1.0, 2.0)], "the coldest, its own and its twin"
    assert audit.shown(runs, settings)["T"] == 2.0
    assert audit.shown(runs[2:], settings)["w"] == 2.0, "where the tuned one did not write"
    assert audit.shown([each | {"closest": []} for each in runs], settings) is None


def test_further_samplers_draw_beside_the_first(opened, monkeypatch):
    """Their leak@k is marked with tau and top_p; all else, and what is asked for it, stays as it is
    without.
    """
    options = {"seeds": [0], "settings": {}}
    [plain] = audit.audit_method(opened, "Original", sampling=FEW, **options)

    def writings(*_, **__):
        pytest.fail("asked again")

    monkeypatch.setattr(run, "writings", writings)
    asked, draws = [], run.draws

    @wraps(draws)
    def drawing(*given, attention_mask, **how):
        asked.append(how)
        return draws(*given, **how)

    monkeypatch.setattr(run, "draws", drawing)
    [both] = audit.audit_method(
        opened,
        "Original",
        sampling=audit.Sampling(samples=4, samplers=((1.0, 0.5), (0.3, 1.0)), further=2),
        **options,
    )
    leak, further = both["leak"][:3], both["leak"][3:]
    assert leak == plain["leak"]
    changed = {name for name in both if both[name] != plain[name]}
    assert changed <= {"leak", "seconds"}
    marked = [(each["k"], each["tau"], each["top_p"]) for each in further]
    assert marked == [(1, 1.0, 0.5), (2, 1.0, 0.5), (1, 0.3, 1.0), (2, 0.3, 1.0)]
    assert further[0]["value"] != leak[0]["value"] != further[2]["value"]
    assert asked == [
        {"samples": 2, "top_p": top_p, "tau": tau} for tau, top_p in ((1.0, 0.5), (0.3, 1.0))
    ]
    with pytest.raises(UserError, match="above 0"):
        audit.Sampling(samplers=((0.0, 1.0),))


def test_unseen_rows_are_the_next_authors_of_the_same_world(opened):
    """Forget rows and unseen rows are exchangeable, and no base and no tokenizer saw these."""
    stage, unseen = opened.stage, audit.unseen_rows(opened)
    larger = world(stage.authors + len(unseen) // stage.questions, stage.questions, stage.seed)
    assert larger["full"][: stage.authors * stage.questions] == opened.source["full"]
    assert unseen == larger["full"][stage.authors * stage.questions :]
    texts = " ".join(bases.tokenizer_text(stage))
    assert len(unseen) == audit.UNSEEN and not any(row["answer"] in texts for row in unseen)


def test_errors_of_membership_are_by_author(opened):
    """A micro author has four rows."""
    rows, unseen = opened.evaluation_rows["forget"], audit.unseen_rows(opened)
    [found] = audit.audit_method(opened, "Original", seeds=[0], settings={}, sampling=FEW)
    [shown] = run.likelihoods(opened.base, opened.tokenizer, {"forget": rows, "unseen": unseen})
    losses = [[*map(np.mean, shown[name]["losses"])] for name in ("forget", "unseen")]
    assert opened.stage.questions == 4
    assert found["errors"]["auc"] == pytest.approx(auc_error_by_author(*losses, 4))


def test_a_twin_is_what_a_sampler_leaves_of_t3():
    """T3 at (T, w) sampled at tau is its twin sampled at tau T (test_theory has the identity), so
    only the product w T protects anything from whoever sets tau.
    """
    assert audit.twin((2.5, 0.8)) == (1.0, 2.0)


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
    """Membership, and nothing else, is measured on the models of that stage: heads, bases,
    weights.
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
    options = {"sampling": audit.Sampling(samples=1, rows=2)}
    for method in ("Retrained", "T3", "NPO"):
        options |= {"seeds": [0], "settings": {} if method == "Retrained" else FAST}
        here, *_ = audit.audit_method(opened, method, **options)
        both, *_ = audit.audit_method(opened, method, apart=apart, **options)
        assert (
            here["empty"]["auc"]
            == here["empty"]["auc_min_k"]
            == "the bases learned every row of the data"
        )
        there, *_ = audit.audit_method(apart, method, **options)
        for name in ("auc", "auc_min_k"):
            assert both["metrics"].pop(name) == there["metrics"][name] and name not in both["empty"]
        assert both["metrics"] == here["metrics"] and both["asked"] == here["asked"] | {
            "unseen": 40
        }
    options |= {"seeds": [1], "settings": {}}
    [second] = audit.audit_method(opened, "Retrained", apart=apart, **options)
    assert second["empty"]["auc"] == "the bases learned every row of the data", (
        "one retrained base a stage apart"
    )
