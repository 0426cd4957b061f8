"""Several methods in one kernel: each has its run files, whatever becomes of the others."""

from dataclasses import replace

import pytest
from conftest import MICRO

from t3lab import results
from t3lab.study import several, unlearned
from t3lab.study.ablations import run_dials
from t3lib.core import files
from t3lib.core.errors import UserError

FAST = {"epochs": 1, "warmup_epochs": 0}
HYPER = {
    "NPO": {"epochs": 1},
    "GradDiff": {"epochs": 1, "alpha_r": 0.77},  # trained by no other test
    "T3": FAST | {"temperature": 3.0},
    "T3/forget10/2": {"rank": 5},
}


@pytest.fixture
def work(opened, tmp_path):
    world = {
        "data": "builtin",
        "stage": MICRO,
        "models": {},
        "evaluation": {},
        "load": {},
        "judge": 0,
    }
    return several.Work(opened, world, HYPER, [1, 2], [2.0], tmp_path)


def test_every_method_has_its_own_seeds_temperatures_and_settings(work):
    runs = work.run(["Original", "Retrained", "T3"])
    written = results.read_runs(work.folder / "runs")
    assert {results.name_of(run) for run in written} == {results.name_of(run) for run in runs}
    asked = {(run["method"], run["T"], run["seed"]): run for run in written}
    dials = [("T3", T, seed) for T in (2.0, 3.0) for seed in (1, 2)]
    assert set(asked) == {
        ("Original", None, 0),
        ("Retrained", None, 1),
        ("Retrained", None, 2),
        *dials,
    }
    assert [asked["T3", T, 1]["hyper"]["rank"] for T in (2.0, 3.0)] == [5, 20]
    seeds = {run["method"]: run["parameters"]["seeds"] for run in written}
    assert seeds == {"Original": [], "Retrained": [1, 2], "T3": [1, 2]}


def test_a_method_that_fails_keeps_no_other_from_running_and_nothing_is_done_twice(
    work, monkeypatch
):
    wrong = replace(work, settings=HYPER | {"GradDiff": {"colour": 1}})
    with pytest.raises(RuntimeError, match="^GradDiff: UserError: .*colour"):
        wrong.run(["Original", "GradDiff", "NPO"])
    first = {path.name for path in work.folder.glob("runs/*.json")}
    assert {name.split("--")[0] for name in first} == {"Original", "NPO"}
    trained, train = [], unlearned.unlearn_baseline
    monkeypatch.setattr(
        unlearned, "unlearn_baseline", lambda *a, **k: trained.append(a[0]) or train(*a, **k)
    )
    runs = work.run(["Original", "GradDiff", "NPO"])
    assert trained == ["GradDiff"] * 2 and len(runs) == 5


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("methods", "T3", r"""methods must be a list such as \["T3"\], not 'T3'"""),
        ("seeds", 1, r"seeds must be a list such as \[1, 2\], not 1"),
        ("seeds", ["1"], r"seeds must be a list such as \[1, 2\], not \['1'\]"),
        ("temperatures", "2.5", r"temperatures must be a list such as \[1.0, 2.5\], not '2.5'"),
        ("temperatures", 2, r"temperatures must be a list such as \[1.0, 2.5\], not 2"),
        ("seeds", [], r"seeds must be a list such as \[1, 2\], not \[\]"),
        ("strengths", 1, r"strengths must be a list such as \[1.0, 2.0\], not 1"),
        ("sampling", "x", r"""sampling must be a mapping such as {"samples": 8}, not 'x'"""),
        ("sampling", {"colour": 1}, "^sampling: colour: Unexpected keyword argument"),
        ("sampling", {"samplers": [[0.5]]}, r"^sampling: samplers.0.1: Field required"),
        ("unseen_stage", 5, r"""unseen_stage must be a mapping such as {"authors": 30}, not 5"""),
        ("unseen_stage", {"authors": "x"}, "stage.authors: should be a valid integer, not 'x'"),
    ],
)
def test_a_notebooks_parameter_of_the_wrong_type_is_one_line(work, name, wrong, said):
    """Papermill's -p gives text and numbers where a notebook has lists and mappings."""
    dials = {"seeds": [1], "temperatures": [1.0], "settings": {}}
    asked = {
        "methods": work.run,
        "sampling": work.sampling,
        "unseen_stage": work.apart,
        "strengths": lambda some: run_dials(work.study, strengths=some, **dials),
    }
    with pytest.raises(UserError, match=said):
        asked.get(name, lambda value: replace(work, **{name: value}))(wrong)


def test_the_audit_writes_the_methods_and_not_the_yardsticks(work):
    sampling = {"samples": 2, "rows": 3, "samplers": [[0.5, 1.0]], "further": 1}
    before, reference = work.yardsticks(sampling)
    assert (before["method"], reference["method"], reference["seed"]) == (
        "Original",
        "Retrained",
        0,
    )
    assert not work.folder.joinpath("runs").exists()
    runs = work.audit(["Retrained", "NPO"], sampling)
    assert [(run["method"], run["seed"]) for run in runs] == [
        *(("Retrained", seed) for seed in (0, 1, 2)),
        *(("NPO", seed) for seed in (1, 2)),
    ]
    assert len(results.read_audits(work.folder / "runs")) == 5
    drawn = [{entry.get("tau") for entry in run["leak"]} for run in runs]
    assert drawn[:3] == [{None, 0.5}, {None}, {None}], "further samplers ask the reference alone"
    assert drawn[3:] == [{None, 0.5}, set()], "of NPO only the first seed writes"


def test_memory_is_measured_anew():
    large = bytearray(300 * 2**20)
    high = results.peak_memory_bytes()
    del large
    results.forget_peak_memory()
    if files.Path("/proc/self/clear_refs").exists():
        assert results.peak_memory_bytes() < high - 200 * 2**20
