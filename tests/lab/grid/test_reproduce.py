"""The graph, the keys, the markers and the loop of `t3 reproduce`, with notebooks executed here
instead of in kernels.

What kernels, processes and kill -9 add is in test_faults.py.
"""

import io
import json
import os
import re
import shutil
import threading
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import nbformat
import noop
import pytest

from t3lab import profiles
from t3lab.grid import cluster, jobs, reproduce, runner
from t3lab.grid.runner import Place
from t3lib.core import files
from t3lib.core.errors import UserError

SYNTHETIC, UNLEARN, ABLATION, EFFICIENCY, TABLES = noop.ROLES
AUDIT = "06_audit"


def run_here(source, copy, parameters):
    """The notebook's cells in this process, then its executed copy."""
    scope: dict = {}
    for number, cell in enumerate(nbformat.read(source, 4).cells[1:]):
        exec(cell.source, scope)
        if number == 0:
            scope.update(parameters)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, copy)


@pytest.fixture(scope="module")
def client():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            resources={"slot": 1},
            dashboard_address=None,
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


class Sandbox:
    """Notebooks, profile, cache and results folder of one test."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out"
        self.notebooks = noop.write_notebooks(folder / "notebooks")
        self.ran: list[str] = []
        self.profile()

    def profile(self, **settings):
        self.file = noop.write_profile(self.folder / "mine.yaml", **settings)

    def __call__(self, **options):
        """Run; returns the exit code, what was printed, and the jobs that really ran."""
        del self.ran[:]
        cache = os.environ["T3_CACHE"]
        with redirect_stdout(io.StringIO()) as printed:
            code = reproduce.reproduce(self.file, out=self.out, notebooks=self.notebooks, **options)
        os.environ["T3_CACHE"] = cache  # the worker, which is this process here, set its own
        self.printed = printed.getvalue()
        return code

    def graph(self, **options):
        profile = profiles.load_profile(self.file)
        return {
            job.name: job for job in jobs.build(profile, self.out, folder=self.notebooks, **options)
        }

    def marks(self):
        [marks] = (self.folder / "cache" / "done").iterdir()
        return marks

    def manifest(self):
        return files.read_json(self.out / "manifest.json")["jobs"]


@pytest.fixture
def box(tmp_path, monkeypatch, client):
    os.environ["T3_CACHE"] = str(tmp_path / "cache")  # undone by `same_surroundings`
    os.environ["T3_THREADS"] = "1"
    sandbox = Sandbox(tmp_path)

    def counted(source, copy, parameters):
        sandbox.ran.append(copy.stem)
        run_here(source, copy, parameters)

    @contextmanager
    def here(workers, scheduler):
        yield client

    monkeypatch.setattr(runner, "run_notebook", counted)
    monkeypatch.setattr(cluster, "client_for", here)
    return sandbox


def job(method, split="forget10"):
    return f"{UNLEARN}--{method}--{split}"


# ---- the graph ----------------------------------------------------------------------------------


def all_notebooks(folder):
    for name in ("01_synthetic_theory", "04_efficiency"):
        noop.write_notebook(folder / f"{name}.ipynb", 'out: str = ""\n', "pass")
    noop.write_notebook(folder / "03_temperature_ablation.ipynb", noop.PARAMETERS)


def test_the_graph_of_a_profile_that_trains_its_own_bases(box):
    all_notebooks(box.notebooks)
    box.profile(methods="Original, Retrained, T3", seeds="1, 2, 3, 4, 5")
    profile = profiles.load_profile(box.file) | {"models": {}}
    graph = {job.name: job for job in jobs.build(profile, box.out, folder=box.notebooks)}
    assert [name for name in graph if name.startswith("base")] == [
        f"base--{name}" for name in ("full--seed0", *(f"retain90--seed{n}" for n in range(4)))
    ]
    assert graph[job("Original")].after == ("base--full--seed0", "base--retain90--seed0")
    assert graph[job("Retrained")].after[-3:] == tuple(
        f"base--retain90--seed{n}" for n in (1, 2, 3)
    )
    assert graph["03_temperature_ablation--forget10"].after[-1] == job("T3")
    assert graph["01_synthetic_theory"].after == ()
    assert set(graph["04_efficiency"].after) == {n for n in graph if n[:2] in ("02", "03")}
    others = {each.name for each in graph.values() if each.notebook} - {TABLES}
    assert graph[TABLES].partial and {*graph[TABLES].after} == others
    order = [*graph]
    assert all(order.index(name) < order.index(j.name) for j in graph.values() for name in j.after)


def test_methods_that_a_profile_puts_together_share_a_kernel(box):
    more = (
        "hyper: {NPO: {lr: 0.1}, T3: {lr: 0.2}, T3/forget05: {lr: 0.3}, T3/forget10/2: {lr: 0.4}}"
    )
    more += "\ntogether: {02_tofu_unlearning: [T3, SimNPO, NPO]}"
    methods = "Original, T3, NPO"
    box.profile(methods=methods, splits="forget05, forget10", more=more)
    all_notebooks(box.notebooks)
    graph, several = box.graph(), job("together")
    assert [name for name in graph if name.startswith(UNLEARN) and "forget10" in name] == [
        several,
        job("Original"),
    ]
    given = graph[several].parameters
    assert given["methods"] == ["NPO", "T3"], "those of the profile, in the order of the tables"
    assert given["hyper"] == {"NPO": {"lr": 0.1}, "T3": {"lr": 0.2}, "T3/forget10/2": {"lr": 0.4}}
    assert graph[several].outputs[1:] == (
        "runs/NPO--forget10--*.json*",
        "runs/T3--forget10--*.json*",
    )
    assert graph["03_temperature_ablation--forget10"].after[-1] == several
    assert graph["03_temperature_ablation--forget10"].parameters["methods"] == ["T3"]
    assert box(only=["02"]) == 0 and len(box.ran) == 4
    box.profile(methods=methods, splits="forget05, forget10", more=more.replace("0.3", "0.5"))
    assert box(only=["02"]) == 0 and box.ran == [job("together", "forget05")]
    assert box(only=["02"], methods=["T3"]) == 0 and box.ran == [job("T3"), job("T3", "forget05")]


def test_only_takes_names_and_numbers_and_keeps_the_bases(box):
    assert set(box.graph(only=["05"])) == {TABLES}
    profile = profiles.load_profile(box.file) | {"models": {}}
    names = [job.name for job in jobs.build(profile, box.out, folder=box.notebooks, only=[UNLEARN])]
    assert "base--full--seed0" in names and TABLES not in names


RUNS_OWN = "out methods split seeds data world hyper temperatures stage".split()


@pytest.mark.parametrize(
    ("more", "only", "said"),
    [
        ("notebooks: {05_paper_tables: {colour: red}}", None, "has no parameter colour"),
        ("notebooks: {07_more: {colour: red}}", None, "unknown notebook 07_more"),
        ("together: {09_none: [T3]}", None, "unknown notebook 09_none"),
        *(
            (f"notebooks: {{{UNLEARN}: {{{key}: x}}}}", None, f"cannot set {key}")
            for key in RUNS_OWN
        ),
        *(("", [name], "unknown notebook") for name in ("06", "../02", "02_tofu", "")),
    ],
)
def test_what_is_wrong_in_a_profile_is_said_before_anything_runs(box, more, only, said):
    box.profile(more=more)
    with pytest.raises(UserError, match=said):
        box(only=only)
    assert not box.out.exists() and not box.ran


NO_NOTEBOOKS = ["not json", "[]", "{}", '{"cells": [{"cell_type": "code"}]}', '{"cells": []}']
WRONG_ROLES = [{"each": ["author"]}, {"writes": [], "colour": "red"}, {"reads": []}]
NO_SPLIT = {"each": ["split"], "writes": []}  # in its parameters


@pytest.mark.parametrize("wrong", [*NO_NOTEBOOKS, *WRONG_ROLES, NO_SPLIT])
def test_a_notebook_that_is_wrong_is_named(box, wrong):
    path = box.notebooks / f"{TABLES}.ipynb"
    if isinstance(wrong, str):
        path.write_text(wrong)
    else:
        noop.write_notebook(path, 'out: str = ""', role=wrong)
    with pytest.raises(UserError, match=TABLES):
        box()


def test_a_bad_number_of_threads_is_refused(box, monkeypatch):
    monkeypatch.setenv("T3_THREADS", "two")
    with pytest.raises(UserError, match="T3_THREADS"):
        box()


# ---- keys ---------------------------------------------------------------------------------------


def test_data_models_threads_and_code_are_in_the_key(box, monkeypatch, tmp_path):
    before = box.graph()[job("NPO")].key
    monkeypatch.setenv("T3_THREADS", "2")
    assert box.graph()[job("NPO")].key != before
    monkeypatch.setenv("T3_THREADS", "1")
    assert box.graph()[job("NPO")].key == before
    files.write_json(tmp_path / "models" / "full" / "config.json", {"another": "model"})
    assert box.graph()[job("NPO")].key != before
    data = tmp_path / "data"
    data.mkdir()
    (data / "forget10.json").write_text("[]")
    box.profile(more=f"data: {data}")
    first = box.graph()[job("NPO")].key
    shutil.move(data, tmp_path / "moved")
    box.profile(more=f"data: {tmp_path / 'moved'}")
    assert box.graph()[job("NPO")].key == first  # what is in the folder counts, not where it is
    (tmp_path / "moved" / "forget10.json").write_text("[1]")
    assert box.graph()[job("NPO")].key != first


# ---- running, resuming --------------------------------------------------------------------------


def test_everything_runs_once_and_a_second_call_only_checks(box, monkeypatch):
    assert box() == 0
    lines = box.printed.splitlines()
    assert lines[0] == f"profile mine, 3 jobs: 0 cached, 3 to run, into {box.out}"
    assert re.fullmatch(rf"\[3/3\] done    {TABLES}  \d+\.\d s", lines[3])
    [last] = lines[4:]
    look = f"open {box.out}/notebooks/{TABLES}.ipynb in JupyterLab"
    assert last.startswith("3 done in ") and last.endswith(f" min: {look}")
    assert sorted(box.ran) == sorted([job("Original"), job("NPO"), TABLES])
    entries = box.manifest()
    assert {entry["state"] for entry in entries.values()} == {"done"}
    for entry in entries.values():
        for name, checksum in entry["outputs"].items():
            assert files.sha256_file(box.out / name) == checksum
    before = {path: path.stat().st_mtime_ns for path in box.out.rglob("*") if path.is_file()}
    monkeypatch.setattr(cluster, "client_for", None)  # not even a cluster is started
    assert box() == 0 and not box.ran and "3 cached" in box.printed
    assert {
        path: path.stat().st_mtime_ns for path in box.out.rglob("*") if path.is_file()
    } == before


def test_runs_that_no_job_writes_are_named_and_stay(box):
    """The tables show them too, so that a person must know. A part of a run cannot tell."""
    assert box() == 0 and "no job" not in box.printed
    (box.out / "runs" / "naive").mkdir()
    for name in ("NPO--forget10--Tnone--seed9.json", "naive/T3--forget10--T2--seed1.json"):
        (box.out / "runs" / name).write_text('{"score": 1}')
    line = "(delete and run again): runs/NPO--forget10--Tnone--seed9.json, runs/naive/T3--"
    for part, named in (({}, True), ({"only": ["05"]}, False), ({"seeds": [1, 2]}, False)):
        assert box(**part) == 0 and (line in box.printed) is named
    box.profile(more="notebooks: {02_tofu_unlearning: {fail: [NPO/forget10]}}")
    assert box() == 1 and "runs/naive/T3--" in box.printed
    assert (box.out / "runs" / name).is_file()


def damage(path, how):
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    elif how == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"e", b"f", 1))


@pytest.mark.parametrize("how", ["truncated", "deleted", "altered"])
@pytest.mark.parametrize("what", ["run", "marker", "table", "notebook", "data"])
def test_damage_is_noticed_and_healed(box, what, how):
    """data.json is written by every job of 02; once removed, it never came back. Results without
    their marker, such as committed ones, never count as cached, and a stale run goes.
    """
    write_data = f"write_json(Path(out) / 'data.json', {{'lines': 1}})\n{noop.WORK}"
    noop.write_notebooks(box.notebooks, write_data)
    assert box() == 0
    good = noop.results_of(box.out)
    path = {
        "run": box.out / "runs" / "NPO--forget10--Tnone--seed1.json",
        "marker": box.marks() / f"{job('NPO')}.json",
        "table": box.out / "tables" / "tofu.csv",
        "notebook": box.out / "notebooks" / f"{job('NPO')}.ipynb",
        "data": box.out / "data.json",
    }[what]
    damage(path, how)
    if what == "marker":
        (box.out / "runs" / "NPO--forget10--Tnone--seed9.json").write_text("{}")
    assert box() == 0
    either = [job("Original"), job("NPO")]  # wrote data.json: whichever ended last
    again = {"table": [TABLES], "data": either}.get(what, [job("NPO")])
    (ran,) = box.ran  # what it wrote came out the same, so nothing else runs
    assert ran in again
    assert noop.results_of(box.out) == good and path.is_file()


def test_a_run_of_some_notebooks_leaves_what_the_manifest_says_of_the_others(box):
    assert box() == 0
    before = box.manifest()
    box.profile(methods="Original, NPO", more="notebooks: {05_paper_tables: {}}")
    assert box(only=["05_paper_tables"], fresh=True) == 0
    assert box.ran == [TABLES] and set(box.manifest()) == set(before)


def test_the_tables_alone_are_made_anew_when_what_they_read_changed(box):
    """--only leaves out the jobs whose results the tables show; seen: new runs or a new table of 04
    beside tables that said "cached".
    """
    write = "from t3lib.core.files import write_json\n"
    names = ["runs/naive/NPO--forget10--x.records.json.gz", "tables/benchmarks.csv"]
    cell = write + f"for name in {names}:\n    write_json(f'{{out}}/{{name}}', [1])"
    noop.write_notebook(box.notebooks / "04_efficiency.ipynb", 'out: str = ""', cell)
    assert box() == box(only=["05"]) == 0
    assert box(only=["05"]) == 0 and box.ran == []
    for name in (*names, "runs/NPO--forget10--Tnone--seed1.json"):
        (box.out / name).write_text((box.out / name).read_text() + " ")
        assert box(only=["05"]) == 0 and box.ran == [TABLES], name


def test_what_follows_a_failed_base_is_skipped_and_says_why(box, monkeypatch):
    def no_base(job, place):
        if job.parameters["name"] == "retain90":
            raise RuntimeError("no memory")

    monkeypatch.setattr(runner, "train_base", no_base)
    box.profile(methods="NPO", splits="forget05, forget10")
    text = box.file.read_text().splitlines()
    box.file.write_text("\n".join(line for line in text if not line.startswith("models:")))
    assert box() == 1
    entries, base = box.manifest(), "base--retain90--seed0"
    assert (entries[base]["state"], entries[base]["error"]) == ("failed", "RuntimeError: no memory")
    assert (entries[job("NPO")]["state"], entries[job("NPO")]["error"]) == ("skipped", base)
    assert entries[job("NPO", "forget05")]["state"] == entries[TABLES]["state"] == "done"
    assert f"skipped {job('NPO')}" in box.printed and f"because of {base}" in box.printed


def test_a_failed_job_leaves_no_stale_numbers_in_the_tables(box):
    assert box() == 0
    box.profile(
        more="notebooks: {02_tofu_unlearning: {fail: [NPO/forget10]}}\nhyper: {NPO: {lr: 1.0}}"
    )
    text = (box.notebooks / f"{UNLEARN}.ipynb").read_text()
    noop.write_notebook(
        box.notebooks / f"{UNLEARN}.ipynb", noop.PARAMETERS, noop.UNLEARN, noop.FAIL, noop.WORK
    )
    assert box() == 1 and "NPO" not in (box.out / "tables" / "tofu.csv").read_text()
    (box.notebooks / f"{UNLEARN}.ipynb").write_text(text)


def test_fresh_reads_nothing_and_deletes_nothing(box):
    """Another run may be reading the cache: a fresh run has one of its own."""
    cache, log = box.folder / "cache", box.folder / "seen"
    seen = f"\nopen({str(log)!r}, 'a').write(os.environ['T3_CACHE'] + '\\n')"
    noop.write_notebooks(box.notebooks, noop.WORK + seen)
    assert box() == 0 and set(log.read_text().split()) == {str(cache)}
    others = [path for path in cache.rglob("*") if "done" not in path.parts]
    log.write_text("")
    assert box(fresh=True) == 0 and len(box.ran) == 3
    [private] = set(log.read_text().split())
    assert Path(private).is_relative_to(cache / "fresh") and all(path.exists() for path in others)
    (Path(private) / "runs").mkdir()
    assert box() == 0 and not box.ran
    assert box(fresh=True) == 0 and len(box.ran) == 3 and not (Path(private) / "runs").exists()


def test_results_lie_apart_from_what_a_run_reads(box):
    for out in (box.folder / "cache", box.folder / "cache" / "out", box.folder, box.notebooks):
        with pytest.raises(UserError, match="results must lie apart from"):
            reproduce.reproduce(box.file, out=out, notebooks=box.notebooks)
    with pytest.raises(UserError, match="a file is in the way"):
        reproduce.reproduce(box.file, out=box.file, notebooks=box.notebooks)
    assert not box.ran and not (box.folder / "runs").exists()


def test_two_jobs_that_write_the_same_file_agree_on_it(box):
    """The ablation writes T3's runs again; the second call must not take that for damage to T3's
    own job.
    """
    box.profile(methods="T3")
    all_notebooks(box.notebooks)
    noop.write_notebook(
        box.notebooks / "03_temperature_ablation.ipynb",
        noop.PARAMETERS,
        "from pathlib import Path\nfrom t3lib.core.files import write_json",
        'write_json(Path(out) / "runs" / f"T3--{split}--Tnone--seed1.json", {"score": "of 03"})',
    )
    assert box() == 0 and json.loads(
        (box.out / "runs" / "T3--forget10--Tnone--seed1.json").read_text()
    )
    assert (box.out / "runs" / "T3--forget10--Tnone--seed2.json").is_file()  # 02's own
    assert box() == 0 and not box.ran, box.printed
    damage(box.out / "runs" / "T3--forget10--Tnone--seed1.json", "truncated")
    assert box() == 0 and job("T3") in box.ran
    assert box() == 0 and not box.ran, box.printed


def test_dry_run_prints_the_graph_and_writes_nothing(box):
    assert box(dry_run=True) == 0
    assert "3 to run" in box.printed and not box.out.exists()
    assert box() == 0
    box.profile(more="hyper: {NPO: {lr: 1.0}}")
    assert box(dry_run=True) == 0 and not box.ran
    lines = box.printed.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["cached", "run", "run"]
    assert f"after {job('Original')}, {job('NPO')}" in lines[2]
    assert lines[3:] == [f"profile mine, 3 jobs: 1 cached, 2 to run, into {box.out}"]


def test_results_go_to_a_folder_that_git_ignores_unless_asked(box):
    with redirect_stdout(io.StringIO()) as printed:
        assert reproduce.reproduce(box.file, notebooks=box.notebooks, dry_run=True) == 0
    assert f"into out{os.sep}mine\n" in printed.getvalue()
    assert "/out/" in (files.project_root() / ".gitignore").read_text().splitlines()


def test_a_second_run_on_the_same_results_is_turned_away_whatever_its_cache(box, monkeypatch):
    assert box() == 0
    with files.lock(box.out / ".lock"):
        for cache in ("cache", "another cache"):
            monkeypatch.setenv("T3_CACHE", str(box.folder / cache))
            with pytest.raises(UserError, match="out is in use by another t3 process"):
                box()
    assert box() == 0


def test_a_job_that_a_worker_of_a_killed_runner_is_still_at_is_waited_for(box):
    assert box() == 0
    root = str(files.project_root())
    place = Place(str(box.out), str(box.notebooks), os.environ["T3_CACHE"], box.marks(), root)
    del box.ran[:]
    ended = []
    waiting = threading.Thread(
        target=lambda: ended.append(runner.execute(box.graph()[job("NPO")], [], place))
    )
    with files.lock(place.marks / f"{job('NPO')}.lock"):
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive() and not ended
    waiting.join(300)
    assert not waiting.is_alive() and ended[0].state == "cached" and not box.ran


# ---- what a job reads is in its key -------------------------------------------------------------


def test_the_papers_numbers_and_the_search_are_in_the_key_of_the_tables(monkeypatch, tmp_path):
    """The search may lie outside the checkout; its file is handed to the tables."""
    profile, tuned = profiles.load_profile("smoke"), tmp_path / "tuned" / "mine.yaml"

    def tables():
        return jobs.build(profile, tmp_path, tuned=tuned)[-1]

    alone = tables()
    files.write_json(tuned, {})
    searched = tables()
    assert alone.parameters["tuned"] == "" and alone.key != searched.key
    assert (files.project_root() / searched.parameters["tuned"]).samefile(tuned)
    monkeypatch.setattr(jobs, "folder_key", lambda folder: "other numbers")
    assert tables().key != searched.key


def test_a_job_whose_code_changed_while_it_ran_is_not_done(box, monkeypatch):
    changed = ["likelihood.py"]
    monkeypatch.setattr(runner, "changed_since_import", lambda: changed)
    assert box() == 1
    assert (
        box.manifest()[job("NPO")]["error"]
        == "UserError: t3lib changed while this ran (likelihood.py): run the same command again"
    )
    changed.clear()
    assert box() == 0 and job("NPO") in box.ran
