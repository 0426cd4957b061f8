"""The audit of methods on a micro stage: complete records, cached answers, and measures that tell models apart."""

import pytest

from t3lib import metrics, results
from t3lib.study import audit, study

STAGE = {"authors": 20, "questions": 4, "hidden": 32, "layers": 2, "heads": 2, "epochs": 3, "vocab": 600}
FAST = {"epochs": 1, "warmup_epochs": 0}
FEW = audit.Sampling(samples=4)


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield study.open_study("forget10", stage=STAGE, evaluation={"max_new_tokens": 6})


@pytest.mark.parametrize("method", ["Original", "Retrained", "NPO", "ULD", "T3"])
def test_every_measure_of_every_kind_of_model(method, stand, tmp_path):
    hyper = {} if method in ("Original", "Retrained") else FAST
    runs = list(audit.audit_method(stand, method, seeds=[0, 1], hyper=hyper, sampling=FEW, progress=False))
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
