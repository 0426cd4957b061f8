"""Two results folders, cell by cell."""

import numpy as np
import pandas as pd
import pytest
from fabricate import fabricate

from t3lib.core.errors import UserError
from t3lib.lab import results
from t3lib.lab.report.compare import compare, equal_runs, means

TABLE = pd.DataFrame(
    {
        "split": ["forget05", "forget10"],
        "method": "T3",
        "fq": [0.5, None],
        "mark": ["=", ""],
        "train_s": [1.0, 2.0],
    }
)


def write(folder, **tables):
    (folder / "tables").mkdir(parents=True)
    for name, table in tables.items():
        table.to_csv(folder / "tables" / f"{name}.csv", index=False)
    return folder


def test_equal_folders_have_no_difference_and_clocks_do_not_count(tmp_path):
    a = write(tmp_path / "a", tofu=TABLE)
    b = write(tmp_path / "b", tofu=TABLE.assign(train_s=9.0)[::-1])
    assert compare(a, b).cells.empty, "rows are matched by their keys, not by their place"
    assert compare(a, b, clocks=True).cells["column"].tolist() == ["train_s", "train_s"]


def test_every_cell_that_differs_is_named(tmp_path):
    other = TABLE.assign(fq=[0.75, 0.1], mark=["≠", ""])
    found = compare(write(tmp_path / "a", tofu=TABLE), write(tmp_path / "b", tofu=other)).cells
    assert found[["row", "column", "a", "b"]].values.tolist() == [
        ["forget05, T3", "fq", "0.5", "0.75"],
        ["forget10, T3", "fq", "", "0.1"],
        ["forget05, T3", "mark", "=", "≠"],
    ]
    assert found["difference"][0] == 0.25 and found["difference"][1:].isna().all()


def test_within_the_tolerance_is_equal(tmp_path):
    near = TABLE.assign(fq=[0.5 + 1e-12, None])
    assert compare(write(tmp_path / "a", tofu=TABLE), write(tmp_path / "b", tofu=near)).cells.empty


def test_a_table_without_rows(tmp_path):
    a, b = write(tmp_path / "a", ablations=TABLE[:0]), write(tmp_path / "b", ablations=TABLE[:0])
    assert compare(a, b).cells.empty
    assert compare(a, write(tmp_path / "c", ablations=TABLE[:1])).alone == [
        "1 rows of b's table ablations"
    ]


def test_rows_and_tables_that_one_lacks(tmp_path):
    a, b = write(tmp_path / "a", tofu=TABLE, bounds=TABLE), write(tmp_path / "b", tofu=TABLE[:1])
    found = compare(a, b)
    assert found.cells.empty
    assert found.alone == ["table bounds of a"], "a row of empty cells says nothing"
    with pytest.raises(UserError, match="no tables"):
        compare(a, tmp_path / "nothing")


def test_means_are_those_of_the_seeds_that_both_have(tmp_path):
    seeds = {"a": (1, 2), "b": (1, 2, 3)}
    quality = {name: {} for name in seeds}
    for name, those in seeds.items():
        for seed in those:
            for method, T in (("NPO", None), ("T3", 2.0), ("T3", 3.0)):
                run = fabricate(method, "forget10", T, seed)
                run["metrics"]["fq"] += 0.01 if name == "a" else 0.0
                results.write_run(tmp_path / name / "runs", run)
                quality[name][method, T, seed] = run["metrics"]["fq"]
    results.write_run(tmp_path / "b" / "runs", fabricate("WGA", "forget05", None, 1))
    found = means(tmp_path / "a", tmp_path / "b")
    assert found[["split", "method", "seeds"]].values.tolist() == [
        ["forget10", "NPO", 2],
        ["forget10", "T3", 2],
    ]
    best = max((2.0, 3.0), key=lambda T: sum(quality["b"]["T3", T, seed] for seed in (1, 2)))
    for row, (method, T) in zip(found.to_dict("records"), (("NPO", None), ("T3", best))):
        ours, theirs = ([quality[name][method, T, seed] for seed in (1, 2)] for name in ("a", "b"))
        assert row["fq a"] == pytest.approx(np.mean(ours)) and row["fq b"] == pytest.approx(
            np.mean(theirs)
        )
        assert row["fq a"] - row["fq b"] == pytest.approx(0.01, abs=1e-6)
        assert row["fq sd"] == pytest.approx(np.std(theirs, ddof=1), abs=1e-6)
    assert means(tmp_path / "a", tmp_path / "nothing").empty


def test_equal_runs_are_those_whose_every_digit_is_equal(tmp_path):
    for name, seeds in (("a", (1, 2, 3)), ("b", (1, 2, 4))):
        for seed in seeds:
            run = fabricate("NPO", "forget10", None, seed)
            if (name, seed) == ("b", 2):
                run["truth_ratio"]["forget"][0] *= 1 + 1e-6
            results.write_run(
                tmp_path / name / "runs", run | {"seconds": {"train": len(name + str(seed))}}
            )
    assert equal_runs(tmp_path / "a", tmp_path / "b") == (1, 2)
    assert equal_runs(tmp_path / "a", tmp_path / "nothing") == (0, 0)


def test_what_only_one_folder_has_is_named_and_is_no_difference(tmp_path):
    """Three seeds beside five were 3,046 cells that differ, although every run was equal."""
    tables = {
        "a": TABLE.assign(n_seeds=3, seed=1),
        "b": pd.concat([TABLE.assign(n_seeds=5, seed=1)] * 2),
    }
    for name, seeds in (("a", (1,)), ("b", (1, 2))):
        write(
            tmp_path / name, tofu=tables[name], claims=tables[name].assign(numbers=name), same=TABLE
        )
        for seed in seeds:
            results.write_run(tmp_path / name / "runs", fabricate("NPO", "forget10", None, seed))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.cells.empty and equal_runs(tmp_path / "a", tmp_path / "b") == (1, 1)
    assert found.alone == [
        "1 runs of b (seeds 2)",
        "1 rows of a's table tofu",
        "2 rows of b's table tofu",
    ]
