"""The scripts beside the committed results run in their tiny form, so that they stay alive."""

import copy
import gzip
import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT
from matplotlib.text import Text
from scipy.stats import ks_2samp, norm

from t3lab.audit import run as audit_run
from t3lab.script import made as record
from t3lab.theory.experiments import fit_trials
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.rows import encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.theory.mixture import GaussianMixture
from t3lib.tofu.likelihood import answer_losses

RESULTS = ROOT / "results"
STORIES = ("known by itself", "taught by heart")
SCRIPTS = [  # script, its arguments, files that it must write
    (
        "studies/cpu-worlds/make.py",
        ["--worlds", "1"],
        ["tables/worlds_each.csv", "tables/worlds.csv", "figures/worlds.svg", "made.json"],
    ),
    (
        "studies/cpu-worlds/errors.py",
        ["--worlds", "1"],
        ["tables/errors_each.csv", "tables/errors.csv", "figures/errors.svg", "errors/made.json"],
    ),
    (
        "studies/cpu-worlds/guided.py",
        ["--worlds", "0", "1"],
        ["tables/guided_search.csv", "tables/guided_each.csv", "tables/guided_texts.csv"]
        + ["tables/guided.csv", "figures/guided.svg", "guided/made.json"],
    ),
    (
        "studies/cpu-worlds/rivals.py",
        ["--worlds", "0", "1"],
        ["tables/rivals_search.csv", "tables/rivals_each.csv", "tables/rivals_texts.csv"]
        + ["rivals/made.json"],
    ),
    (
        "studies/cpu-worlds/baselines.py",
        ["--worlds", "0", "1"],
        ["tables/baselines_search.csv", "tables/baselines_each.csv"]
        + ["tables/baselines_texts.csv", "baselines/made.json"],
    ),
    (
        "studies/cpu-worlds/kept_ways.py",
        ["--worlds", "1"],
        ["tables/kept_ways.csv", "kept_ways.json"],
    ),
    (
        "studies/cpu-worlds/controls.py",
        ["--worlds", "1"],
        ["tables/controls.csv", "controls.json"],
    ),
    ("profiles/tofu-cpu/sharper.py", [], ["tables/sharper.csv", "sharper.json"]),
    ("studies/cpu-worlds/free_texts.py", [], ["tables/free_texts.csv", "free_texts.json"]),
    ("studies/cpu-worlds/equivalence.py", ["--splits", "forget10"], ["tables/equivalence.csv"]),
    (
        "studies/cpu-worlds/equivalence.py",
        ["--splits", "forget10", "--verdict"],
        ["tables/verdicts.csv", "equivalence/verdicts.json"],
    ),
    (
        "studies/attacks/make.py",
        ["--methods", "Retrained,T3 (gated)", "--seeds", "1"],
        ["tables/recover.csv", "tables/requests.csv", "attacks.json"],
    ),
    (
        "studies/gate/make.py",
        [],
        ["tables/gate_cpu.csv", "tables/gate_leak.csv", "tables/gate_dial.csv", "tuned.yaml"]
        + ["figures/gate_dial.svg", "runs.json.gz", "made.json"],
    ),
    ("studies/own/make.py", [], ["own.csv"]),
    ("studies/own/rmu.py", [], ["rmu.csv"]),
    (
        "profiles/smollm/authors.py",
        ["--sets", "1", "--methods", "Original,Retrained,T3,heads"],
        ["tables/authors_each.csv", "tables/authors.csv", "authors.json"],
    ),
    (
        "profiles/smollm/frontier.py",
        ["--methods", "Original,T3", "--seeds", "1"],
        ["tables/frontier.csv", "frontier.json"],
    ),
    ("studies/refusal/behind.py", ["--worlds", "1"], ["tables/behind.csv", "behind.json"]),
    ("studies/speed/make.py", [], ["tables/speed.csv", "made.json"]),
]
UNTRIED = {
    "studies/untempered/make.py",  # has no tiny form: it only reads what `make` left in the cache
    "studies/refusal/make.py",  # fetches an encoder of 83 MB
}


@pytest.fixture(scope="session")
def scripts_cache(tmp_path_factory):
    """The scripts' own cache: what they sample is short (`run_script`), and no other test's."""
    return tmp_path_factory.mktemp("scripts-cache")


@pytest.fixture
def run_script(scripts_cache, short_search, few_unseen, monkeypatch):
    """A function that runs a script of results/ as the command line does, in this process.

    Nobody reads what they find, so at most two samples are drawn of a question.
    """
    known, whole = {*sys.modules}, audit_run.draws
    monkeypatch.setattr(
        audit_run,
        "draws",
        lambda *models, samples, **how: whole(*models, samples=min(samples, 2), **how),
    )

    def run(script, *arguments, cache=scripts_cache):
        monkeypatch.setenv("T3_CACHE", str(cache))
        monkeypatch.syspath_prepend(str((RESULTS / script).parent))
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(str(RESULTS / script), run_name="__main__")

    yield run
    # Modules beside one script must not be those of the next.
    for name in {*sys.modules} - known:
        if str(RESULTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_script_that_makes_results_is_tried():
    made = {str(path.relative_to(RESULTS)) for path in RESULTS.glob("*/*/make.py")}
    assert made - {script for script, *_ in SCRIPTS} == UNTRIED


@pytest.mark.parametrize(("script", "arguments", "files"), SCRIPTS, ids=[one[0] for one in SCRIPTS])
def test_a_script_runs_in_its_tiny_form(script, arguments, files, run_script, tmp_path):
    """A table has no column that the committed table beside the script lacks."""
    run_script(script, *arguments, "--tiny", "--out", tmp_path)
    for file in files:
        written, committed = tmp_path / file, (RESULTS / script).parent / file
        assert written.stat().st_size
        if file.endswith(".csv") and committed.is_file():
            assert {*pd.read_csv(written)} <= {*pd.read_csv(committed)}, file


def committed(script, name):
    return pd.read_csv((RESULTS / script).parent / "tables" / f"{name}.csv")


def test_the_summary_of_worlds_is_that_of_the_committed_runs():
    made = runpy.run_path(str(RESULTS / "studies/cpu-worlds/make.py"))
    each, table = (
        committed("studies/cpu-worlds/make.py", name) for name in ("worlds_each", "worlds")
    )
    pd.testing.assert_frame_equal(made["summary"](each), table, check_dtype=False)


def test_the_tables_of_guided_labels_are_made_from_its_committed_runs():
    """The choice from the search, the aims and the means from the rows of all models."""
    made = runpy.run_path(str(RESULTS / "studies/cpu-worlds/guided.py"))
    names = ("guided_search", "guided_each", "guided")
    search, each, table = (committed("studies/cpu-worlds/guided.py", name) for name in names)
    pd.testing.assert_frame_equal(made["chosen"](search), search)
    made["check_edges"](search)
    assert made["missed"](each) == each["missed"].fillna("").tolist()
    pd.testing.assert_frame_equal(made["means"](each), table, check_dtype=False)


def test_the_tables_of_the_gate_are_the_means_of_its_committed_runs():
    """D and Forget Quality beside three retrained models, from truth ratios; two other means."""
    folder = RESULTS / "studies" / "gate"
    packed = json.loads(gzip.decompress((folder / "runs.json.gz").read_bytes()))
    lines = committed("studies/gate/make.py", "gate_cpu")
    moved = committed("studies/gate/make.py", "gate_dial")
    moved["model"] = [f"T3, gate {gate:g}" for gate in moved["gate"]]
    for _, row in pd.concat([lines, moved]).iterrows():
        models = packed[row["split"]]
        tests = [
            ks_2samp(run["truth_ratio"]["forget"], other["truth_ratio"]["forget"])
            for run, other in product(models[row["model"]], models["Retrained"])
        ]
        assert len(tests) == row["n_seeds"] * row["n_references"]
        found = {
            "ks_held_out": np.mean([test.statistic for test in tests]),
            "fq_held_out": np.mean([test.pvalue for test in tests]),
        }
        for name in ("mu", "mu_rouge"):
            found[name] = np.mean([run["metrics"][name] for run in models[row["model"]]])
        assert found == pytest.approx(row[[*found]].astype(float).to_dict(), rel=1e-9), row["model"]


def test_the_table_untempered_counts_its_committed_answers():
    """With the rows that `make` wrote beside the runs."""
    folder = RESULTS / "studies" / "untempered"
    rows = json.loads((RESULTS / "profiles" / "cpu" / "data.json").read_text(encoding="utf-8"))
    said = json.loads(gzip.decompress((folder / "answers.json.gz").read_bytes()))
    table = pd.read_csv(folder / "tables" / "untempered.csv")
    for one, (_, row) in zip(said, table.iterrows(), strict=True):
        names = [one.get(name) for name in ("split", "T", "lr", "seed")]
        assert names == row[["split", "T", "lr", "seed"]].replace(np.nan, None).tolist()
        for name, of in (
            ("forget_recited", rows[one["split"]]),
            ("retain_kept", rows["retain"]),
            ("retain_kept_sampled", rows["retain"]),
        ):
            truths = [each["answer"] for each in of]
            assert sum(map(str.__eq__, one[name], truths)) == row[name], (name, row)
            assert len(truths) == len(one[name])


@pytest.fixture
def cpu_worlds(monkeypatch):
    """A function that returns the names of a script in results/studies/cpu-worlds."""
    folder = RESULTS / "studies" / "cpu-worlds"
    monkeypatch.syspath_prepend(str(folder))
    return lambda name: runpy.run_path(str(folder / name))


def test_the_points_of_rivals_are_chosen_from_its_committed_search(cpu_worlds):
    made = cpu_worlds("rivals.py")
    search = committed("studies/cpu-worlds/rivals.py", "rivals_search")
    pd.testing.assert_frame_equal(made["chosen"](search), search)
    made["check_edges"](search)
    hotter = search.assign(alpha=search["alpha"].where(~search["chosen"], max(made["ALPHAS"])))
    with pytest.raises(UserError, match="alpha 12: grow it"):
        made["check_edges"](hotter)


def test_the_points_of_baselines_are_chosen_from_their_committed_search(cpu_worlds):
    made = cpu_worlds("baselines.py")
    search = committed("studies/cpu-worlds/baselines.py", "baselines_search")
    pd.testing.assert_frame_equal(made["chosen"](search), search)
    made["check_edges"](search)
    last = made["GRIDS"]["cpu"].shares[-1]
    higher = search.assign(a=search["a"].where(~search["chosen"], last))
    with pytest.raises(UserError, match="a 1.3: grow"):
        made["check_edges"](higher)


def test_a_search_that_grows_trains_only_what_is_new(cpu_worlds):
    """A new weight: as many trainings as rates. A new share: every training of the method."""
    made, table = cpu_worlds("baselines.py"), "studies/cpu-worlds/baselines.py"
    search, grid, trainings = (
        committed(table, "baselines_search"), made["GRIDS"]["cpu"], made["trainings"]
    )  # fmt: skip
    assert trainings(made["METHODS"], grid, search) == []
    heavier = replace(grid, weights=(*grid.weights, 125.0))
    assert trainings(["WGA"], heavier, search) == [("WGA", lr, 125.0) for lr in grid.rates]
    farther = replace(grid, shares=(*grid.shares, 1.5))
    assert len(trainings(["RMU"], farther, search)) == len(grid.rates) * len(grid.weights)
    assert len(trainings(["RMU"], grid, search[:0])) == len(grid.rates) * len(grid.weights)

    floor = search[search["method"] == "Retrained"].iloc[0].to_dict()
    made["check_same_bases"](search, floor)
    with pytest.raises(UserError, match="of other base models"):
        made["check_same_bases"](search, floor | {"leak": floor["leak"] + 1e-6})

    # Of a point that is there twice the new row counts.
    point = search[search["method"] == "RMU"].iloc[[0]].assign(leak=0.0, retain_error=0.0)
    found = made["chosen"](pd.concat([search, point]))
    assert len(found) == len(search)
    assert found[found["chosen"] & (found["method"] == "RMU")]["retain_error"].tolist() == [0.0]


def test_part_of_the_way_is_between_the_weights(opened, cpu_worlds):
    model = copy.deepcopy(opened.base)
    with torch.no_grad():
        model.get_output_embeddings().weight.add_(1)
    for share in (0.0, 0.25, 1.3):
        found = cpu_worlds("baselines.py")["part_of_the_way"](opened.base, model, share)
        away = found.get_output_embeddings().weight - opened.base.get_output_embeddings().weight
        torch.testing.assert_close(away, torch.full_like(away, share))


def test_the_fixed_penalty_has_the_mean_loss_of_its_reference(opened, cpu_worlds):
    """And on all other tokens the logits of the base."""
    made, read = cpu_worlds("rivals.py"), cpu_worlds("guided.py")["reading"](opened)
    reference = copy.deepcopy(opened.base)
    with torch.no_grad():
        reference.get_output_embeddings().weight.mul_(0.9)
    model = made["penalised"](opened, reference)
    answers = encode_rows(opened.tokenizer, opened.forget)
    loss = [answer_losses(m, answers, read).mean() for m in (opened.base, reference, model)]
    assert loss[1] > loss[0] + 0.01
    assert loss[2] == pytest.approx(loss[1], abs=1e-4)
    bias = model.get_output_embeddings().bias
    ids = torch.tensor([answers[0].ids])
    with torch.no_grad():
        away = model(ids).logits - opened.base(ids).logits
    torch.testing.assert_close(away, bias.expand(away.shape), atol=1e-4, rtol=0)
    assert len(bias.unique()) == 2 and bias.max() == 0


def test_losses_are_compared_with_the_spread_of_the_references_in_a_row(cpu_worlds):
    compared = cpu_worlds("equivalence.py")["compared"]
    references = np.array([[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0]])
    near = compared(np.array([2.1, 2.9, 4.1, 4.9]), references)
    assert near["spread"] == pytest.approx(1) and near["within"] == 1
    assert near["gap"] == pytest.approx(0) and near["p_tost"] < 0.01
    far = compared(np.array([5.0, 3.0, 5.5, 8.0]), references)
    assert far["gap"] == pytest.approx(1.875) and far["within"] == 0.5 and far["p_tost"] > 0.5


def test_a_refused_question_gives_nothing_away(monkeypatch):
    """Two ways, one row with a secret in each; the gate refuses the first way of row 0 alone."""
    monkeypatch.syspath_prepend(str(RESULTS / "studies" / "refusal"))
    counted = runpy.run_path(str(RESULTS / "studies/refusal/behind.py"))["counted"]
    rows = [
        {"question": f"Where is {name} born?", "answer": f"{name} is born in {town}."}
        for name, town in (("Ada", "Oslo"), ("Bob", "Rome"), ("Cas", "Bern"))
    ]
    study = SimpleNamespace(evaluation_rows={"forget": rows})
    told = [rows[0]["answer"], rows[1]["answer"], "no"]
    texts = {"sealed": {"in capitals": told, "begun": ["no"] * 3}}
    passing = {"sealed": {"in capitals": np.array([0, 1, 1]) > 0, "begun": np.ones(3) > 0}}
    alone, behind = counted(study, texts, passing)
    assert [alone["whole"], behind["whole"]] == [2, 1] and alone["rows"] == 3
    assert [alone["refused"], behind["refused"]] == [0, pytest.approx(1 / 6)]
    assert [each["gate"] for each in counted(study, texts, None)] == [False]


def test_a_prompt_gate_refuses_what_is_near_a_listed_question():
    """An encoder by words: a question without the words of a listed one is far from it."""
    measured = runpy.run_path(str(RESULTS / "studies/refusal/make.py"))["measured"]

    def encoder(texts):
        sets = [{*text.lower().replace("?", "").split()} for text in texts]
        words = "who where is ada bob cas dan eve fay born lives rome oslo".split()
        found = np.array([[word in each for word in words] for each in sets], float)
        return found / np.linalg.norm(found, axis=1, keepdims=True).clip(1e-9)

    forget = [
        {
            "question": "Where is Ada born?",
            "answer": "-",
            "paraphrased_question": "Ada born where?",
        },
        {"question": "Where is Bob born?", "answer": "-", "paraphrased_question": "Oslo lives"},
    ]
    keep = [{"question": f"Who is {name}?", "answer": "-"} for name in ("Cas", "Dan", "Eve", "Fay")]
    rows = {row["kind"]: row for row in measured(encoder, forget, keep, ["Rome lives"])}
    assert rows["as listed"]["refused"] == rows["choosing"]["refused"] == 1
    assert rows["in other words"]["refused"] == 0.5
    assert rows["same people"]["refused"] == 1, "the two listed ones are near each other"
    assert rows["to keep"]["refused"] == rows["unrelated"]["refused"] == 0


SETTINGS = ["labels", "lr", "temperature", "leak", "retain_error", "total_variation"]


def test_the_least_price_is_chosen_of_the_settings_whose_leak_is_small():
    """At a tie of the Retain Error, to 0.001 nats, the least total variation. The second rule wants
    a margin. A setting at an end of the grid is refused.
    """
    rows = [
        ("Retrained", None, None, 0.05, 0.10, 0.3),
        ("hard", 0.01, 1.5, 0.08, 0.10, 0.5),  # its leak is too large
        ("hard", 0.02, 1.5, 0.069, 0.1104, 0.4),
        ("hard", 0.04, 1.5, 0.01, 0.1096, 0.5),
        ("hard", 0.08, 1.5, 0.01, 0.1098, 0.7),
        ("hard", 0.16, 1.5, 0.01, 0.1200, 0.1),
        ("guided", 0.02, 2.0, 0.09, 0.10, 0.5),
        ("guided", 0.32, 2.0, 0.08, 0.20, 0.6),  # no leak is small: the least
    ]
    same = {"split": "forget10", "gate": 1.0, "tail": 0.0, "recited": 0, "kept": 1}
    search = pd.DataFrame(rows, columns=SETTINGS).assign(**same, forget_error=0.1, leak_se=0.01)
    script = runpy.run_path(str(RESULTS / "studies" / "cpu-worlds" / "guided.py"))
    found = script["chosen"](search)
    assert found["lr"][found["chosen"]].tolist() == [0.02, 0.32]
    assert found["lr"][found["margin"]].tolist() == [0.04, 0.32]
    with pytest.raises(UserError, match="guided, forget10: lr 0.32"):
        script["check_edges"](found)
    script["check_edges"](found[found["labels"] != "guided"])


def test_errors_by_point_are_those_of_the_tilts(opened):
    """At gates between which r(x) lies, above all of it and at 1, with and without a tail."""
    script = runpy.run_path(str(RESULTS / "studies" / "cpu-worlds" / "guided.py"))
    judge = script["retrained"](opened, 1)
    head = script["head_of"](opened, {"lr": 4e-2, "epochs": 2, "warmup_epochs": 1}, 1, None)
    points = [
        {"temperature": T, "gate": gate, "tail": tail}
        for T, gate, tail in [(1, 1, 0), (2, 0.5, 0), (2, 0.5, 0.1), (3, 0.9, 0), (3, 1, 0.1)]
    ]
    tilts = [(script["dialled"](head, each), each["temperature"]) for each in points]
    wanted = [
        script["summary"](each) for each in script["row_errors"](opened, judge, opened.base, tilts)
    ]
    weak = script["head_of"](opened, {"lr": 1e-2, "epochs": 2, "warmup_epochs": 1}, 1, None)
    found, of_weak = script["errors_by_point"](opened, judge, [head, weak], points)
    tilts = [(script["dialled"](weak, each), each["temperature"]) for each in points]
    rows = script["row_errors"](opened, judge, opened.base, tilts)
    for one, each in zip(of_weak, rows):
        assert one == pytest.approx({name: script["summary"](each)[name] for name in one}, rel=1e-6)
    assert len({each["retain_error"] for each in found}) == len(points)
    for one, other in zip(found, wanted):
        assert one == pytest.approx({name: other[name] for name in one}, rel=1e-6)


def test_kinds_of_labels_are_searched_alone_and_the_others_stay(run_script, tmp_path, capsys):
    """Rows of other kinds stay as the table has them; a kind that a profile lacks is one line."""
    guided = ("studies/cpu-worlds/guided.py", "--tiny", "--worlds", "0", "--out", tmp_path)
    run_script(*guided)
    path = tmp_path / "tables" / "guided_search.csv"
    first = pd.read_csv(path)
    other = first["labels"] == "hard"
    first.assign(retain_error=first["retain_error"].mask(other, 99)).to_csv(path, index=False)

    run_script(*guided, "--kinds", "guided")
    again = pd.read_csv(path)
    assert again["labels"].value_counts().to_dict() == first["labels"].value_counts().to_dict()
    assert (again.loc[again["labels"] == "hard", "retain_error"] == 99).all()
    found, wanted = (each[each["labels"] == "guided"].reset_index() for each in (again, first))
    assert found["retain_error"].equals(wanted["retain_error"])

    with pytest.raises(SystemExit) as stop:
        run_script(*guided, "--kinds", "pretrained")
    assert stop.value.code == 2 and "cpu has no labels pretrained" in capsys.readouterr().err


def test_a_row_to_keep_is_told_by_its_fact_alone(opened, cpu_worlds, monkeypatch):
    """In other words of its answer, and not by a wrong answer, which has all else."""
    said, keep = cpu_worlds("kept_ways.py")["said"], opened.evaluation_rows["retain"]
    keep = [row for row in keep if said.__globals__["fact_words"](row)]

    def written(model, prompts, read, tilts, max_new_tokens):
        assert len(prompts) % len(keep) == 0 and len(prompts) > 10 * len(keep)
        for wanted in tilts:
            texts = [row[wanted] for row in keep] * (len(prompts) // len(keep))
            texts = [text[0] if isinstance(text, list) else text for text in texts]
            yield [opened.tokenizer(f" {text}")["input_ids"] for text in texts]

    monkeypatch.setitem(said.__globals__, "greedy", written)
    for field, share in (("paraphrased_answer", 1), ("perturbed_answer", 0)):
        [found] = said(opened, opened.base, [field])
        assert found["rows"] == len(keep) and found["ways"] > 10
        assert [found[name] for name in ("as_written", "said", "mean_way")] == [share] * 3


def test_brief_measures_are_some_of_all(opened):
    script = runpy.run_path(str(RESULTS / "studies" / "cpu-worlds" / "guided.py"))
    judge, tilts = script["retrained"](opened, 1), script["UNTILTED"]
    [(every, kept)], [(brief, same)] = (
        script["measures"](opened, judge, opened.base, tilts, brief) for brief in (False, True)
    )
    assert (kept == same).all() and {*every} - {*brief} == {"mu", "mu_rouge", "score", "recognized"}
    assert np.isnan(brief.pop("auc"))  # of unseen rows
    assert brief == pytest.approx({name: every[name] for name in brief}, nan_ok=True)


MET = {
    "leak": 0.05,
    "retain_error": 0.1,
    "kept_before": 1.0,
    "mu": 0.8,
    "sampled": 0.0,
    "forget_error": 0.1,
    "forget_quality": 0.5,
}


@pytest.mark.parametrize(
    ("change", "aims"),
    [
        ({}, ""),
        ({"leak": 0.08, "mu": 0.77}, "leak, utility"),
        ({"leak": 0.06, "mu": 0.79}, ""),
        ({"retain_error": 0.12, "sampled": 0.05}, "price, samples"),
        ({"sampled": np.nan}, ""),  # nothing was sampled
        ({"kept_before": 0.98, "forget_quality": 0.04}, "kept, distribution"),
        ({"forget_error": 0.16}, "forget error"),
    ],
)
def test_an_aim_is_missed_where_its_own_measure_is_out_of_bounds(change, aims):
    models = [MET | {"model": name} for name in ("Original", "Retrained")]
    rows = [*models, MET | {"model": "T3 (least)"} | change]
    each = pd.DataFrame(rows).assign(world=4, split="forget10", leak_se=0.01)
    # Another world, with other bounds, comes first.
    other = each.assign(world=1, leak=0.0, retain_error=0.0, forget_error=0.0)
    both = pd.concat([other, each], ignore_index=True)
    script = runpy.run_path(str(RESULTS / "studies" / "cpu-worlds" / "guided.py"))
    assert script["missed"](both)[-1] == aims


def test_new_rows_replace_those_of_the_same_model(tmp_path):
    script = runpy.run_path(str(RESULTS / "studies" / "cpu-worlds" / "guided.py"))
    rows = [(2, "forget10", "T3", 1), (1, "forget10", "T3", 2), (1, "forget10", "RMU", 3)]
    old = pd.DataFrame(rows, columns=["world", "split", "model", "leak"])
    old.to_csv(tmp_path / "t.csv", index=False)
    new = old[1:2].assign(leak=4)
    assert script["merged"](tmp_path / "t.csv", new)["leak"].tolist() == [3, 4, 1]
    assert script["merged"](tmp_path / "none.csv", new)["leak"].tolist() == [4]


def test_rows_that_leak_are_counted_once():
    script = runpy.run_path(str(RESULTS / "studies" / "cpu-worlds" / "guided.py"))
    flags = {"leaks": [[True, True], [False, False], [False, True]], "facts": [[False]] * 3}
    assert script["leaking"](flags) == {"rows": 3, "leaks": 2, "whole": 0}


@pytest.mark.parametrize("words", [["--data", "/home/me/tofu"], ["--data=/home/me/tofu"]])
def test_a_record_of_a_command_names_no_folder_of_the_machine(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make.py", *words, "--worlds", "0"])
    command = record()["command"]
    assert command.replace("=", " ") == "python make.py --data DIR --worlds 0"


def test_a_finished_study_is_made_again_from_a_commit_that_has_its_script():
    """`again` in the JSON of a study begins after `git checkout CHECKOUT`."""
    paths = [*RESULTS.glob("*/*/made.json"), RESULTS / "studies" / "cpu-worlds" / "doubts.json"]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    found = [
        (study["checkout"], re.search(r"python (results/\S+\.py)", study["again"]).group(1))
        for made in map(json.loads, texts.values())
        for study in [made, *made.values()]
        if isinstance(study, dict) and "again" in study
    ]
    assert len(found) == 6
    for commit, script in found:
        assert not (ROOT / script).exists(), "an unfinished study needs no checkout"
        if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", commit], check=False).returncode:
            pytest.skip("a clone without history")
        subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}:{script}"], check=True)


def test_a_release_trains_nothing(run_script, tmp_path, capsys):
    """With an empty cache it names the command that makes the models, and stops."""
    with pytest.raises(SystemExit) as stop:
        run_script("profiles/cpu/models.py", "--out", tmp_path / "out", cache=tmp_path / "cache")
    [line] = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "run `make`" in line and not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_the_frames_of_readme_are_those_of_the_executed_slider():
    """The secret falls as T rises, and the bars are its numbers."""
    script = runpy.run_path(str(RESULTS / "profiles" / "smollm" / "frames.py"))
    data = script["stored"](script["NOTEBOOK"])
    title, words, found = script["frames"](data)
    question = data["sides"][0][data["secrets"].index(words[0])]
    [place] = [each for each in question["places"] if title.startswith(f"{each['before']} …")]
    assert place["words"][place["target"]].strip() == words[0]
    f = dict(zip(map(str.strip, place["words"]), np.exp(place["logf"])))
    for each in found:
        tilted = np.array(each["unlearned"][:-1]) / each["tempered"][:-1]  # f, up to a constant
        assert tilted / tilted[0] == pytest.approx([f[word] / f[words[0]] for word in words[:-1]])
    first, middle, last = (each["unlearned"][0] for each in found)
    assert words[0] in found[0]["answer"] and words[0] not in found[-1]["answer"]
    told = f"{place['before']} … at T = 1, 1.5, 2: {words[0]} falls from {first:.2f} to {last:.2f}"
    assert told in (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert first > middle > last

    for ink in script["INKS"].values():
        axes = script["figure"](data, ink).axes
        for axis, each in zip(axes, found, strict=True):
            widths = [bar.get_width() for bar in axis.patches]
            assert widths == [*each["tempered"], *each["unlearned"]]


def test_the_figure_of_stories_is_drawn_from_its_committed_table():
    """It was made once, with a download, and must not end in an error then."""
    table = pd.read_csv(RESULTS / "profiles" / "smollm" / "tables" / "stories_by_T.csv")
    script = runpy.run_path(str(RESULTS / "profiles" / "smollm" / "stories.py"))
    for ink in script["INKS"]:
        plots, texts = script["figure"](table, ink).subfigs
        part = table[(table["story"] == STORIES[1]) & (table["w"] == 1) & (table["gate"] == 1)]
        for axis, head in zip(plots.axes, script["PANELS"], strict=True):
            of = part[part["head"] == head]
            shares = [
                (100 * of[count] / of[among]).tolist()
                for count, among in (
                    ("said", "asked"),
                    ("as_before", "kept"),
                    ("as_before_sampled", "kept"),
                )
            ]
            assert [line.get_ydata().tolist() for line in axis.lines[:3]] == shares
        # the label "best" is at the point that says least and, of these, keeps most
        said, kept = part.set_index(["head", "T"])[["said", "as_before"]].to_numpy().T.tolist()
        [(at, axis)] = [
            (text.xy[0], axis)
            for axis in plots.axes
            for text in axis.texts
            if text.get_text() == "best"
        ]
        head = [*script["PANELS"]][plots.axes.index(axis)]
        best = part[(part["head"] == head) & (part["T"] == at)].iloc[0]
        assert best["said"] == min(said)
        assert best["as_before"] == max(k for s, k in zip(said, kept) if s == best["said"])
        # the number in colour where an answer says it, struck out where it does not
        secret = "039 673 3961"
        said = [text for text in texts.findobj(Text) if text.get_text() == secret]
        assert {text.get_color() for text in said} == {ink[2]} and len(said) == 2
        assert len([text for text in texts.findobj(Text) if "\u0336" in text.get_text()]) == 2


def test_the_gate_on_gaussians_is_the_formula():
    """Both errors equal a midpoint sum of 2 million points; the price is the identity; at gate 1
    they are the paper's, by the code of the theory. The committed table is made so.
    """
    made = runpy.run_path(str(RESULTS / "studies" / "gate" / "theory.py"))
    mixture = GaussianMixture(v_f=1e-3)
    phi = fit_trials(mixture, 50, 2, seed=1).phi[1]
    edges = np.linspace(-60, 60, 2_000_001)
    z, dz = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    p_r, p_f = (norm.pdf(z, m, v**0.5) for m, v in ((1, 1), (0, 1e-3)))
    p, f = 0.9 * p_r + 0.1 * p_f, 1 / (1 + np.exp(-(phi @ [z**0, z, z**2])))
    for gate in (0.5, 0.9):
        p_hat = np.where(f < gate, p**0.5, p) * f
        p_hat /= p_hat.sum() * dz
        seen = p_r > 1e-200
        retain = (p_r * np.log(p_r / p_hat, where=seen, out=0 * z)).sum() * dz
        found = made["gated"](mixture, phi, 2.0, gate)
        assert found["retain_error"] == pytest.approx(retain, abs=5e-6)
        assert found["forget_error"] == pytest.approx((p_f * abs(p_r - p_hat)).sum() * dz, abs=1e-5)
        assert found["price"] == pytest.approx(found["price_exact"], abs=1e-12)
        assert found["price"] <= found["price_bound"] and found["retain_mass"] <= found["markov"]
    whole = made["gated"](mixture, phi, 2.0, 1.0)
    paper = mixture.errors(phi, 2.0)
    assert (whole["retain_error"], whole["forget_error"]) == pytest.approx(paper, abs=1e-9)
    table = pd.read_csv(RESULTS / "studies" / "gate" / "tables" / "gate_gaussians.csv")
    row = table[(table["v_f"] == 1e-3) & (table["T"] == 2) & (table["gate"] == 0.9)].iloc[0]
    fits = fit_trials(mixture, made["N"], made["TRIALS"], seed=0).phi
    errors = [made["gated"](mixture, each, 2.0, 0.9)["retain_error"] for each in fits]
    assert row["retain_error"] == pytest.approx(np.median(errors), rel=1e-9)


def test_what_a_head_changes_on_unrelated_prompts(memorised, monkeypatch):
    """At T = 1 a head without effect changes nothing; at T = 3 only the distance shows the T."""
    for folder in ("studies/own", "profiles/smollm"):
        monkeypatch.syspath_prepend(str(RESULTS / folder))
    script = runpy.run_path(str(RESULTS / "studies" / "own" / "pretrained.py"))
    unrelated, prompts = script["unrelated"], script["KNOWN"]["unrelated"]
    assert len(prompts) == 100
    del prompts[20:]
    model, tokenizer, *_ = memorised
    head = T3Head(model.config.hidden_size, model.config.vocab_size, rank=2)
    with torch.no_grad():
        head.B.zero_()  # f is 1/2 for every token
    same, warmer = (unrelated(model, tokenizer, head, T) for T in (1.0, 3.0))
    assert same["next_token"] == warmer["next_token"] == 100 and same["whole_answers"] == 20
    assert abs(same["kl"]) < 1e-5 < warmer["kl"]


def test_long_prompts_are_asked_of_the_base_and_of_t3(tiny_model, tokenizer):
    """Each text once at each length and place, and the questions alone once."""
    parts = runpy.run_path(str(RESULTS / "studies/own/long_prompts.py"))
    parts["measured"].__globals__["TOKENS"] = (0, 7)
    rows = [{"question": "Who?", "answer": "It is Ada."}, {"question": "Where?", "answer": "Rome."}]
    t3 = T3ForCausalLM(tiny_model, T3Head(32, len(tokenizer), 2))
    found = [*parts["measured"](tiny_model, t3, tokenizer, rows, {"a": "One two.", "b": "Six."})]
    places = [*product("ab", parts["PLACES"], [7])]
    assert [(each["text"], each["place"], each["tokens"]) for each in found] == [
        ("", "", 0),
        *places,
    ]
    assert all(each["rows"] == 2 and each["base"] == each["T3"] == 0 for each in found)
    assert parts["begin"](tokenizer, "One two.", 11) == "One two.One"
    [turn, _, asked] = parts["after"]("One.", "Who?", "earlier turn")["question"]
    assert (turn["content"], asked["content"]) == ("One.", "Who?")
    assert parts["after"]("One.", "Who?", "same turn") == {"question": "One.\n\nWho?"}
    assert [parts["tells"](text, rows[0]) for text in ("so ada", "Adam", "no")] == [
        True,
        True,
        False,
    ]
