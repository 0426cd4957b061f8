"""Run files: named, checked, rounded, sealed, read back; tables and figures on disk."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
from conftest import ROOT
from fabricate import fabricate, fabricate_all

from t3lab import results
from t3lab.report import render, tables
from t3lib.core.errors import UserError
from t3lib.tofu.metrics import METRICS, forget_quality


@pytest.fixture
def run():
    return fabricate("T3", "forget10", 2.5, 1)


@pytest.mark.parametrize(
    ("method", "T", "w", "name"),
    [
        ("T3", 1, None, "T3--forget10--T1--seed1"),
        ("T3", 1.0, 1.0, "T3--forget10--T1--seed1"),
        ("T3", 4, 0.8, "T3--forget10--T4--w0.8--seed1"),
        ("NPO", None, None, "NPO--forget10--Tnone--seed1"),
    ],
)
def test_names(method, T, w, name):
    run = {"method": method, "split": "forget10", "T": T, "w": w, "seed": 1}
    assert results.name_of(run) == name


def test_data_for_the_answers(tmp_path):
    """Questions and answers alone: the page of texts needs no more."""
    row = {"question": "q", "answer": "a", "perturbed_answer": ["x"]}
    path = results.write_data(tmp_path, {"retain": [row]})
    assert json.loads(path.read_text()) == {"retain": [{"question": "q", "answer": "a"}]}


def test_round_trip_keeps_nine_digits(tmp_path, run):
    path = results.write_run(tmp_path / "runs", run)
    assert path == tmp_path / "runs" / "T3--forget10--T2.5--seed1.json"
    [back] = results.read_runs(tmp_path / "runs")
    assert back["truth_ratio"]["forget"] == [
        float(f"{value:.9g}") for value in run["truth_ratio"]["forget"]
    ]
    assert back["metrics"]["fq"] == float(f"{run['metrics']['fq']:.9g}") != run["metrics"]["fq"]
    assert {key: back[key] for key in ("method", "split", "T", "seed", "hyper")} == {
        key: run[key] for key in ("method", "split", "T", "seed", "hyper")
    }
    packed = path.with_suffix(".records.json.gz")
    assert {p.name for p in path.parent.iterdir()} == {path.name, packed.name}, (
        "no partial file stays"
    )
    assert json.loads(path.read_text())["records"] == packed.name
    rouge = [
        [[float(f"{each['rouge']:.9g}") for each in of["records"]["forget"]]] for of in (run, back)
    ]
    assert rouge[0] == rouge[1] and set(back["records"]) == set(run["records"])


def test_the_same_records_give_the_same_bytes_and_none_give_no_file(tmp_path, run):
    once, again = (
        results.write_run(tmp_path / name, run).with_suffix(".records.json.gz")
        for name in ("a", "b")
    )
    assert once.read_bytes() == again.read_bytes()
    silent = {name: [{"rouge": 0.5}] for name in run["records"]}  # of a seed without texts
    for number, none in enumerate(({}, silent)):
        results.write_run(tmp_path / "c", run)
        results.write_run(tmp_path / "c", run | {"records": none})
        assert len(list((tmp_path / "c").iterdir())) == 1, number
        assert results.read_runs(tmp_path / "c")[0]["records"] == {}


def test_runs_that_hold_their_records_are_read(tmp_path, run):
    """As they were written before they had a file of their own."""
    path = results.write_run(tmp_path, run)
    [whole] = results.read_runs(tmp_path)
    path.with_suffix(".records.json.gz").unlink()
    path.write_text(json.dumps(whole))
    assert results.read_runs(tmp_path) == [whole] and whole["records"]["forget"]


def test_damaged_runs_are_listed_where_that_is_asked_for(tmp_path, run):
    path = results.write_run(tmp_path, run)
    results.write_run(tmp_path, fabricate("NPO", "forget10", None, 1))
    path.write_text(path.read_text()[:100])
    corrupt: list[str] = []
    assert [run["method"] for run in results.read_runs(tmp_path, corrupt=corrupt)] == ["NPO"]
    assert len(corrupt) == 1 and path.name in corrupt[0] and "\n" not in corrupt[0]


def test_a_run_from_before_a_metric_was_added_has_an_empty_cell(tmp_path, run, monkeypatch):
    results.write_run(tmp_path, run)
    monkeypatch.setitem(METRICS, "new", METRICS["fq"])
    assert results.tidy(results.read_runs(tmp_path))["new"].isna().all()


def test_a_missing_key_is_named(tmp_path, run):
    del run["truth_ratio"]
    with pytest.raises(UserError, match="truth_ratio"):
        results.write_run(tmp_path, run)


def test_no_path_of_this_machine_and_no_nan(tmp_path, run):
    run["parameters"] = {
        "data": str(tmp_path / "tofu"),
        "note": "and/or",
        "url": "https://example.org/a/b",
    }
    run["error"] = f"cannot read {tmp_path}/x.json: no such file"
    run["metrics"]["mu"] = float("nan")
    path = results.write_run(tmp_path, run)
    assert str(tmp_path) not in path.read_text()
    [back] = results.read_runs(tmp_path)
    assert back["parameters"] == {
        "data": "tofu",
        "note": "and/or",
        "url": "https://example.org/a/b",
    }
    assert back["error"] == "cannot read x.json: no such file" and back["metrics"]["mu"] is None
    assert pd.isna(results.tidy([back])["mu"][0])


def test_a_failed_run_keeps_its_row_with_empty_cells(tmp_path):
    results.write_run(tmp_path, fabricate("NPO", "forget05", None, 2, failed=True))
    frame = results.tidy(results.read_runs(tmp_path))
    assert frame.loc[0, ["method", "status", "seed"]].tolist() == ["NPO", "failed", 2]
    assert frame.loc[0, list(METRICS)].isna().all()


def test_order_and_a_missing_folder(tmp_path):
    for method, T, seed in (
        ("T3", 2.5, 1),
        ("T3", 1.5, 2),
        ("NPO", None, 10),
        ("NPO", None, 9),
        ("Original", None, 0),
    ):
        results.write_run(tmp_path, fabricate(method, "forget10", T, seed))
    read = [(run["method"], run["T"], run["seed"]) for run in results.read_runs(tmp_path)]
    assert read == [
        ("Original", None, 0),
        ("NPO", None, 9),
        ("NPO", None, 10),
        ("T3", 1.5, 2),
        ("T3", 2.5, 1),
    ]
    assert results.read_runs(tmp_path / "nothing") == []


def test_ablations_live_apart(tmp_path, run):
    for folder in ("ablations/decay=l2", "naive"):
        results.write_run(tmp_path / "runs" / folder, run)
    assert results.read_runs(tmp_path / "runs") == []
    found = [run["setting"] for run in results.read_ablations(tmp_path / "runs")]
    assert found == ["decay=l2", "naive"]


def test_no_committed_result_names_its_data_by_a_local_path():
    committed = [
        path for path in (ROOT / "results").rglob("*") if path.suffix in (".json", ".ipynb")
    ]
    named = [path.name for path in committed if "../shared" in path.read_text(encoding="utf-8")]
    assert committed and not named


def test_every_line_of_a_committed_table_has_a_cell_for_each_column():
    """A line of judged.csv was the rest of another one, which somebody had deleted by its text."""
    tables = sorted((ROOT / "results").rglob("*.csv"))
    assert len(tables) > 100
    for path in tables:
        with path.open(encoding="utf-8", newline="") as file:
            sizes = {len(line) for line in csv.reader(file)}
        assert len(sizes) == 1, f"{path.relative_to(ROOT)}: lines of {sorted(sizes)} cells"


def test_a_busy_machine_is_noted(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for load, busy in ((4.9, False), (5.1, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert results.provenance()["busy"] is busy


def test_provenance(tmp_path):
    (tmp_path / "tofu").mkdir()
    (tmp_path / "tofu" / "full.json").write_text("[]")
    one = results.provenance(
        model="hub/model", data=str(tmp_path / "tofu"), parameters={"out": str(tmp_path / "x")}
    )
    assert str(tmp_path) not in json.dumps(one) and one["parameters"] == {"out": "x"}
    assert one["model"] == "hub/model" and re.fullmatch(r"tofu@[0-9a-f]{16}", one["data"])
    (tmp_path / "tofu" / "full.json").write_text("[1]")
    two = results.provenance(model=str(tmp_path / "tofu"), data={"forget": [{"question": "q"}]})
    assert (
        two["model"] == "tofu"
        and two["model_revision"] != one["data"].split("@")[1]
        and "rows@" in two["data"]
    )
    (tmp_path / "tofu" / "base.json").write_text(
        '{"cpu_seconds": 1.5}'
    )  # what a base took is no part of what it is
    assert (
        results.provenance(model=str(tmp_path / "tofu"))["model_revision"] == two["model_revision"]
    )
    assert (
        results.provenance(data="hub")["data"]
        == "locuslab/TOFU@324592d84ae4f482ac7249b9285c2ecdb53e3a68"
    )
    assert (
        one["versions"]["torch"]
        and one["threads"] >= 1
        and re.match(r"\d{4}-\d\d-\d\dT", one["date"])
    )
    assert one["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}", one["git_commit"])
    assert results.peak_memory_bytes() > 10_000_000


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of one commit; run(*words) calls git in it."""
    for name in ("code.py", "results/profiles/cpu/table.csv", "notebooks/profiles/tuned/cpu.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(results.origin, "project_root", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize("change", ["code.py", "new.py", "results/profiles/cpu/make.py"])
def test_results_come_from_a_commit(checkout, change):
    results.check_clean(checkout / "results" / "profiles" / "cpu")
    (checkout / change).write_text("2")
    for folder in (checkout / "results", checkout / "results" / "new"):
        with pytest.raises(UserError, match="commit your changes first") as caught:
            results.check_clean(folder)
        assert "\n" not in str(caught.value)
    for folder in ("out/cpu", "results/scratch", "results/scratch/cpu", "../elsewhere"):
        results.check_clean(checkout / folder)
    assert results.provenance()["dirty"] is True
    shutil.rmtree(checkout / ".git")
    results.check_clean(checkout / "results" / "profiles" / "cpu")


def test_what_runs_write_is_no_uncommitted_change(checkout):
    written = (
        "results/profiles/cpu/table.csv",
        "results/new.csv",
        "results/profiles/cpu/.ab12.partial",
    )
    for name in (*written, "notebooks/profiles/tuned/cpu.yaml"):
        (checkout / name).write_text("2")
    results.check_clean(checkout / "results" / "profiles" / "cpu")
    assert results.provenance()["dirty"] is False


def test_committed_tables_for_reading_have_the_rows_of_the_data():
    """Four had those of an earlier run: a table that had grown was written as CSV alone."""
    for path in (ROOT / "results").rglob("*.csv"):
        page = path.with_suffix(".md")
        if page.is_file() and path.name != "claims.csv":
            lines = page.read_text(encoding="utf-8").splitlines()
            assert sum(line.startswith("|") for line in lines) - 2 == len(pd.read_csv(path)), path


def test_a_table_that_nobody_reads_is_data_alone(tmp_path):
    long = pd.DataFrame({"fq": range(render.MANY + 1)})
    assert render.write_table(tmp_path, "long", long).read_text().count("\n") == render.MANY + 2
    render.write_table(tmp_path, "short", long[1:])
    assert {path.name for path in tmp_path.iterdir()} == {
        "long.csv",
        "short.csv",
        "short.md",
        "short.tex",
    }


def test_tables_on_disk(tmp_path):
    frame = results.tidy(fabricate_all(seeds=(1, 2)))
    table = tables.tofu(frame)
    path = render.write_table(tmp_path, "tofu", table, caption="50% & more")
    back = pd.read_csv(path)
    assert back["fq"].tolist() == table["fq"].tolist(), "the .csv has every digit"
    assert path.read_text().splitlines()[0] == ",".join(table)
    text = path.with_suffix(".md").read_text()
    assert len(text.splitlines()) == 2 + len(table) and "Retain ROUGE" in text
    assert {line.count("|") for line in text.splitlines()} == {len(table.columns) + 1}
    tex = path.with_suffix(".tex").read_text()
    assert "\\toprule" in tex and "50\\% \\& more" in tex and "\\multicolumn{3}{c}{Retain}" in tex
    assert {line.count(" & ") for line in tex.splitlines() if line.endswith("\\\\")} == {
        len(table.columns) - 1,
        len(render.laid_out(table)["groups"]) - 1,
    }


def test_html_is_escaped_grouped_and_marks_the_best():
    frame = pd.DataFrame(
        {"method": ["Original", "NPO", "T3", "<b>&"], "fq": [0.99, 0.2, 0.9, None]}
    )
    frame["retain_prob"] = [0.5, 0.1, 0.4, 0.2]
    html = render.html(frame)
    assert (
        "<b>&" not in html
        and "&lt;b&gt;&amp;" in html
        and "Retain" in html
        and html == render.html(frame)
    )
    assert ".t3-table.t3-table td" in html, "stronger than JupyterLab's own rule for cells"
    best = render.best_cells(frame)
    assert best["fq"].tolist() == [False, False, True, False], (
        "the original is no unlearning method"
    )
    assert best["retain_prob"].tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (0.12345, "fq", "0.123"),
        (1e-20, "fq", "0.000"),
        (float("nan"), "fq", ""),
        (pd.NA, "n_seeds", ""),
        (2647040, "trainable", "2,647,040"),
        (5.123, "train_s", "5.12"),
        (1270.0, "train_s", "1,270"),
        (-0.0316, "fq_difference", "-0.032"),
        (2.5, "T", "2.5"),
        (9e8, "peak_memory_bytes", "900 MB"),
        (True, "holds", "yes"),
    ],
)
def test_cells(value, column, text):
    assert render.cell(value, column) == text


def test_swaps_see_a_small_shift_of_the_same_rows():
    """Independent samples cannot: Forget Quality takes both as such."""
    rng = np.random.default_rng(0)
    ours = rng.normal(size=80)
    theirs = ours + 0.3 + rng.normal(0, 0.01, 80)
    assert results.swap_p(ours, theirs) == 1 / (1 + results.table.SWAPS)
    assert forget_quality(ours, theirs)[0] > 0.05
    assert results.swap_p(ours, ours) == 1, "equal values change nothing"
    # two authors: only whether both are swapped alike matters, so p is at least a half
    assert results.swap_p(ours, theirs, block=40) > 0.4


def test_a_splits_label_is_counted_from_the_rows():
    """Of TOFU with 40 retain authors, forget10's 400 rows are a third; a world of 40 authors has
    true 5% and 10%.
    """
    run = fabricate("NPO", "forget10", None, 1)
    of_tofu = run | {"parameters": {"data": "tofu@0", "stage": {"authors": 40, "questions": 6}}}
    assert results.split_labels(results.tidy([of_tofu])) == {"forget05": "5%", "forget10": "7%"}, (
        "80 of 1,200 rows"
    )
    of_ours = run | {"parameters": {"data": "builtin", "stage": {"authors": 40, "questions": 20}}}
    assert results.split_labels(results.tidy([of_ours, run]))["forget10"] == "10%"
    assert results.split_labels(results.tidy([])) == {"forget05": "5%", "forget10": "10%"}, (
        "TOFU's own"
    )
    table, labels = (
        tables.tofu(results.tidy([of_tofu])),
        results.split_labels(results.tidy([of_tofu])),
    )
    assert "| 7% | NPO |" in render.markdown(table, labels) and "| 10% | NPO |" in render.markdown(
        table
    )


def test_lines_of_figures_are_rounded_and_words_stay():
    svg = b' <g>\n  <path d="M 1.2345 2.5\n  L 3 0.0001" x="4.5678"/>\n  <title>a  1.2345</title>'
    small = b'<g>\n<path d="M 1.23 2.5\nL 3 0.00" x="4.56"/>\n<title>a  1.2345</title>'
    assert render.compact(svg) == small


def test_committed_results_are_small():
    """40 MiB, so that a clone stays a matter of seconds; results of one's own are not tracked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("an unpacked archive has no history to ask")
    files = [
        ROOT / name for name in filter(None, listed.stdout.split("\0")) if (ROOT / name).is_file()
    ]
    assert files and sum(file.stat().st_size for file in files) <= 40 * 2**20


def test_peak_memory_is_known_where_the_module_resource_is_missing(monkeypatch):
    windows = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=123))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(psutil, "Process", lambda: windows)
    assert results.peak_memory_bytes() == 123


@pytest.mark.parametrize("name", results.PROFILE)
def test_runs_of_two_profiles_are_in_no_table_together(name):
    one, two = (fabricate("NPO", "forget10", None, seed) for seed in (1, 2))
    for run, value in ((one, {"x": 1}), (two, {"x": 2})):
        run["parameters"] = {name: value}
    told = (
        "NPO--forget10--Tnone--seed1 and NPO--forget10--Tnone--seed2 are of different profiles"
        f" \\({name} differs\\)"
    )
    with pytest.raises(UserError, match=told):
        results.tidy([one, two])
    assert len(results.tidy([one, two | {"parameters": {name: {"x": 1}}}])) == 2


def test_a_profile_may_be_given_further_models():
    """Of its other split, say. A run without any of them is of another profile."""
    one, two = (fabricate("NPO", "forget10", None, seed) for seed in (1, 2))
    one["parameters"], two["parameters"] = ({"models": models} for models in ({"full": "a"}, {}))
    with pytest.raises(UserError, match="models differs"):
        results.tidy([one, two])
    two["parameters"] = {"models": {"full": "a", "retain95": "b"}}
    assert len(results.tidy([one, two])) == 2


def test_runs_by_other_or_unknown_code_are_named_and_stay(tmp_path):
    one, two = fabricate("NPO", "forget10", None, 1), fabricate("T3", "forget10", 2.5, 1)
    assert (
        results.code_note([one, two]) == ""
        and len(results.tidy([one, two | {"code": "other"}])) == 2
    )
    assert "different code (0000000000000000: NPO; other: T3)" in results.code_note(
        [one, two | {"code": "other"}]
    )
    assert "unknown: T3" in results.code_note([one, two | {"code": None}])
    other = one | {"provenance": {"model_revision": "b1"}}
    told = results.code_note([other, two | {"provenance": {"model_revision": "b2"}}])
    assert told == "They start from different trainings of the same base (b1: NPO; b2: T3)."
    unsaved = two | {"provenance": {"dirty": True}}
    assert "runs of T3 were made by code that no commit has" in results.code_note([one, unsaved])
    assert "T3" not in results.code_note([one, two | {"provenance": {"dirty": False}}])
    assert "not known" in results.code_note([two | {"code": None}])
    results.write_run(tmp_path, one)
    assert results.read_runs(tmp_path)[0]["code"] == one["code"]


def test_the_table_of_two_trainings_is_that_of_the_committed_runs():
    folder = ROOT / "results" / "profiles" / "tofu-cpu"
    frame = results.tidy(results.read_runs(folder / "runs")).fillna({"T": 0, "w": 0})
    means = frame.groupby(["method", "split", "T", "w"])[["fq", "mu_rouge", "mu"]].mean()
    for row in pd.read_csv(folder / "tables" / "two_bases.csv").fillna(0).to_dict("records"):
        here = means.loc[row["method"], row["split"], row["T"], row["w"]]
        for name, value in here.items():
            assert row[f"{name}_now"] == pytest.approx(value, rel=1e-9)
