"""Two results folders, run by run and row by row: what makes `t3 compare` say "the same"."""

import copy

import pandas as pd
import pytest
from fabricate import fabricate

from t3lab import results
from t3lab.report.compare import read_table
from t3lib import cli
from t3lib.core.files import project_root

SAME = "the same to the last digit"
TOFU = pd.DataFrame(
    {"split": ["forget05", "forget10"], "method": "T3", "T": 2.5, "n_seeds": 2, "fq": [0.5, None]}
)
PARAMETERS = pd.DataFrame({"method": ["NPO", "T3"], "trainable": [918144, 43520]})
DIALS = pd.DataFrame({"T": 1.0, "w": [1.0, 2.0], "lr": 0.005, "n_seeds": 2, "fq": [0.1, 0.2]})
RUNTIME = pd.DataFrame(
    {"method": ["NPO", "T3"], "epochs": [10, 100], "train_s": [3.0, 1.0], "memory": 1}
)
CLAIMS = pd.DataFrame(
    {
        "id": ["fq-best", "cost"],
        "verdict": "holds",
        "evidence": ["tables/tofu", "tables/runtime"],
        "numbers": ["0.50", "3.1 s"],
    }
)


class Two:
    """Two results folders that are equal until a test changes one of them."""

    def __init__(self, folder, capsys):
        self.a, self.b, self.capsys = folder / "a", folder / "b", capsys
        for seed in (1, 2):
            self.run(seed)
        self.table("parameters", PARAMETERS)

    def run(self, seed, folders="ab", within="", change=lambda run: None):
        """Write a run of NPO, altered by `change`, into both folders or into one."""
        run = copy.deepcopy(fabricate("NPO", "forget10", None, seed))
        ratio(0.5)(run)
        change(run)
        for name in folders:
            results.write_run(getattr(self, name) / "runs" / within, run)

    def table(self, name, ours, theirs=None):
        for folder, table in ((self.a, ours), (self.b, ours if theirs is None else theirs)):
            (folder / "tables").mkdir(parents=True, exist_ok=True)
            table.to_csv(folder / "tables" / f"{name}.csv", index=False)

    def compare(self):
        """Return the exit code, the last line without how much was compared, and the other lines,
        with short folder names.
        """
        code = cli.main(["compare", str(self.a), str(self.b)])
        printed = self.capsys.readouterr()
        *lines, last = (printed.out + printed.err).replace(f"{self.a.parent}/", "").splitlines()
        last, _, self.much = last.partition("; compared: ")
        return code, last, lines


@pytest.fixture
def two(tmp_path, capsys):
    return Two(tmp_path, capsys)


def ratio(value):
    """Return what replaces the first truth ratio of a run."""
    return lambda run: run["truth_ratio"].update(forget=[value, *run["truth_ratio"]["forget"][1:]])


def failed(run):
    run |= {"status": "failed", "error": "it diverged", "metrics": None, "truth_ratio": None}


def test_equal_folders_are_the_same_in_any_order(two):
    two.table("tofu", TOFU.replace(0.5, float("inf")), TOFU.replace(0.5, float("inf"))[::-1])
    assert two.compare() == (0, SAME, ["a: a, b: b"])
    assert two.much == "2 runs, 2 tables of 2"


def test_a_file_that_is_no_table_is_one_line(two):
    two.table("tofu", TOFU, TOFU)
    for text in ("", 'a,b\n1,2\n1,2,3\n"'):
        (two.b / "tables" / "tofu.csv").write_text(text)
        code, last, _ = two.compare()
        assert code == 2 and "b/tables/tofu.csv: not a table (" in last


def test_within_the_tolerance_is_the_same_and_the_sentence_is_true(two):
    two.run(2, "a", change=ratio(0.5 + 2.4e-8))
    two.run(1, within="naive")
    two.run(1, "b", "naive", change=ratio(0.5 + 1e-9))
    code, last, _ = two.compare()
    assert last == "the same within 3e-8 (2 of 3 runs not bit for bit: NPO, naive/NPO)"
    assert code == 0
    two.table("parameters", PARAMETERS, PARAMETERS.assign(trainable=[918144.0000011, 43520]))
    code, last, lines = two.compare()
    assert (code, last) == (1, "1 cell differs in 1 table: parameters")
    assert lines[-1].split() == ["parameters", "NPO", "trainable", "918144", "918144.0000011"]


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "why"),
    [
        ("dials", DIALS, pd.concat([DIALS.assign(lr=0.002), DIALS]), "(2 rows): only in b"),
        ("dials", DIALS.drop(columns="lr"), DIALS, "(4 rows): other columns of settings"),
        ("dials", DIALS, DIALS.assign(n_seeds=1, fq=0.9), "(2 rows): means over other numbers of"),
        ("runtime", RUNTIME, RUNTIME.assign(epochs=None, train_s=None), "(2 rows): seconds"),
        ("claims", CLAIMS, CLAIMS.assign(numbers=["0.50", "2.9 s"]), "(1 row): seconds or memory"),
        ("search", RUNTIME.assign(minutes=1), RUNTIME.assign(minutes=2), "(2 rows): column minut"),
        ("mine", PARAMETERS.assign(share=1), PARAMETERS, "(2 rows): some columns only in a"),
        ("mine", PARAMETERS.assign(trainable=[918144, None]), PARAMETERS, "(1 row): only in b"),
        ("mine", PARAMETERS[:0], PARAMETERS, "(2 rows): only in b"),
    ],
)
def test_what_is_not_compared_is_listed(two, name, ours, theirs, why):
    two.table(name, ours, theirs)
    code, last, lines = two.compare()
    assert (code, last) == (0, SAME)
    assert [line for line in lines if line.startswith(f"not compared: {name} {why}")]


def test_tables_of_other_runs_are_listed_and_the_runs_of_both_compared(two):
    """With seeds 3 and 4 in one folder, every mean over seeds is another."""
    for seed in (3, 4):
        two.run(seed, "b")
    for name in ("ablations", "claims", "leak"):
        two.table(name, CLAIMS, CLAIMS.assign(verdict="does not hold"))
    code, last, lines = two.compare()
    assert (code, last) == (0, SAME)
    assert two.much == "2 runs, 1 table of 4"
    assert lines[1:] == [
        "not compared: ablations (2 rows): made of runs that only one folder has",
        "not compared: claims (2 rows): made of runs that only one folder has",
        "not compared: leak (2 rows): made of runs that only one folder has",
        "not compared: runs (2 rows): only in b",
    ]


@pytest.mark.parametrize(
    ("change", "column"),
    [
        (failed, "status"),
        (lambda run: run["metrics"].update(fq=None), "metrics.fq"),
        (lambda run: run["truth_ratio"]["forget"].append(0.5), "truth_ratio.forget.length"),
        (lambda run: run["hyper"].update(lr=0.01), "hyper.lr"),
        (ratio(0.5 + 1.1e-6), "truth_ratio.forget.0"),
    ],
)
def test_a_run_that_differs(two, change, column):
    two.run(2, "a", change=change)
    code, last, lines = two.compare()
    assert (code, last) == (1, "1 cell differs in 1 table: runs")
    assert lines[-1].split()[:3] == ["runs", "NPO--forget10--Tnone--seed2", column]


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("tofu", TOFU, TOFU.assign(fq=[0.5, 0.1])),  # no number against one
        ("tofu", TOFU, TOFU.assign(T=3.0)),  # no row in common
        ("tofu", TOFU[:1], TOFU.assign(fq="diverged")),
        ("tofu_vs_paper", TOFU.assign(fq_mark="="), TOFU.assign(fq_mark=["≠", "="])),
        ("claims", CLAIMS, CLAIMS.assign(verdict=["does not hold", "holds"])),
        ("mine", CLAIMS[["id"]], CLAIMS[["evidence"]]),  # a table of texts alone
    ],
)
def test_a_table_that_differs(two, name, ours, theirs):
    two.table(name, ours, theirs)
    assert two.compare()[:2] == (1, f"1 cell differs in 1 table: {name}")


def test_nothing_in_common_is_not_the_same(two):
    for path in (two.b / "runs").glob("*.json"):
        path.unlink()
    assert two.compare()[:2] == (0, SAME), "tables alone"
    two.run(3, "b")
    assert two.compare()[0] == 2, "both have runs, but no common one"
    two.a, two.b = two.a.parent / "empty", two.a.parent / "none"
    two.a.mkdir()
    code, last, _ = two.compare()
    assert code == 2 and last == "t3 compare: none: no such folder"
    two.b.mkdir()
    code, last, _ = two.compare()
    assert code == 2 and "empty and none have no run in common" in last


def test_a_damaged_run_is_named(two):
    path = two.a / "runs" / "NPO--forget10--Tnone--seed1.json"
    path.write_text(path.read_text().replace('"trainable": 5', '"trainable": 6'))
    code, last, _ = two.compare()
    assert code == 2 and f"{path.name}: altered or damaged" in last


def test_of_many_cells_some_of_each_table_are_printed(two):
    grid = pd.DataFrame({"k": range(50), "value": 0.5})
    for name in ("bounds", "synthetic"):
        two.table(name, grid, grid.assign(value=0.75))
    code, last, lines = two.compare()
    assert (code, last) == (1, "100 cells differ in 2 tables: bounds, synthetic")
    assert two.much == "2 runs, 3 tables of 3"
    printed = [line.split()[0] for line in lines]
    assert (printed.count("bounds"), printed.count("synthetic")) == (20, 20)


def test_settings_tell_the_rows_of_every_committed_table_apart():
    """Only the tables of bounds repeat them: their rows differ in a risk that was measured."""
    for path in project_root().glob("results/*/*/tables/*.csv"):
        repeated = [row for row in read_table(path) if "(again)" in row]
        assert not repeated or path.stem.startswith("bounds"), path
