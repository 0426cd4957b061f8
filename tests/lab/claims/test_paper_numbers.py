"""The paper's printed numbers as data: complete, digit for digit, and held against each other."""

import csv
import re

import pandas as pd
from conftest import ROOT

from t3lab.claims import llm
from t3lab.names import SPLITS
from t3lab.report import tables
from t3lab.report.tables import SUMMARY
from t3lab.results import paper_table
from t3lib.tofu.metrics import UTILITY

PRINTED_METHODS = ["Original", *llm.TEN, "T3"]


def texts(number: int) -> list[dict[str, str]]:
    with open(
        ROOT / "results" / "paper" / f"table{number}.csv", encoding="utf-8", newline=""
    ) as handle:
        return list(csv.DictReader(handle))


def test_sums_of_every_table():
    """A changed digit changes a sum."""
    sums = {
        1: [float(paper_table(1)[list((*SUMMARY, *UTILITY))].to_numpy().sum())],
        2: paper_table(2)["trainable"].tolist(),
        3: [float(paper_table(3)["epochs"].sum()), float(paper_table(3)["train_s"].sum())],
        4: [float(paper_table(4)[name].sum()) for name in SUMMARY],
        5: [float(paper_table(5)[name].sum()) for name in SUMMARY],
    }
    assert {number: [round(value, 3) for value in values] for number, values in sums.items()} == {
        1: [154.462],
        2: [8.03e9, 4.19e7, 2.65e6],
        3: [630.0, 14867.21],
        4: [30.662, 66.452, 53.176],
        5: [3.405, 9.152, 5.972],
    }


def test_rows_are_the_papers():
    one, three, four = paper_table(1), paper_table(3), paper_table(4)
    for split in SPLITS:
        assert one[one.split == split].method.tolist() == PRINTED_METHODS
        assert three[three.split == split].method.tolist() == [
            *PRINTED_METHODS[1:-1],
            "T3 (naive)",
            "T3 (preprocessed)",
        ]
        part = four[four.split == split]
        assert part.method.tolist() == [method for method in PRINTED_METHODS[1:] for _ in range(5)]
        assert part.seed.tolist() == [1, 2, 3, 4, 5] * 11
    assert three[["load_s", "features_s", "evaluate_s", "peak_memory_bytes"]].isna().all(axis=None)
    assert (
        one[one.split == "forget05"].iloc[0, 4:].tolist()
        == one[one.split == "forget10"].iloc[0, 4:].tolist()
    )


def test_table_1_is_the_mean_of_table_4_but_for_two_rows():
    found = tables.paper_disagreements(paper_table(1), paper_table(4), tolerance=0.001)
    assert found[["split", "method", "metric"]].values.tolist() == [
        ["forget05", "NPO", "mu_rouge"],
        ["forget10", "NPO", "mu_rouge"],
    ]
    compared = paper_table(4).drop_duplicates(["split", "method"])
    assert len(compared) == 22


def numbers(cells: list[str]) -> list[float]:
    """The number in each LaTeX cell; 8.03 \\times 10^9 included."""
    values = []
    for cell in cells:
        plain = re.sub(r"gray!15|ourcolor|\\cellcolor|[{}$]", " ", cell)
        match = re.search(r"(\d+(?:\.\d+)?)(?:\s*\\times 10\^\s*(\d+))?\s*$", plain.strip())
        assert match, cell
        values.append(float(f"{match[1]}e{match[2] or 0}"))
    return values


def body(source: str, label: str) -> list[list[str]]:
    """Cells of the rows of the tabular that carries `label`, heading rows left out."""
    table = source[: source.index(f"\\label{{{label}}}")].rsplit("\\begin{tabular}", 1)[1]
    rows = re.split(r"\\\\", table.split("\\midrule", 1)[1])
    return [row.split("&") for row in rows if row.count("&")]


def test_every_number_against_the_latex(shared):
    source = "".join(
        path.read_text(encoding="utf-8") for path in sorted((shared / "paper").glob("*.txt"))
    )
    one = paper_table(1)
    found = [numbers(row[2:]) for row in body(source, "tab:tofu-combined")]
    ours = one[~((one.method == "Original") & (one.split == "forget10"))]
    assert found == ours[[*SUMMARY, *UTILITY]].values.tolist() and len(found) == 23
    assert [numbers(row[1:])[0] for row in body(source, "tab:tofu-num-params")] == paper_table(
        2
    ).trainable.tolist()
    pairs = [numbers(row[1:]) for row in body(source, "tab:tofu-runtimes")]
    three = paper_table(3)[["epochs", "train_s"]].values.tolist()
    assert [row[:2] for row in pairs] + [row[2:] for row in pairs] == three
    seeds = [numbers(row[2:]) for row in body(source, "tab:tofu-detailed")]
    four = (
        paper_table(4)[list(SUMMARY)]
        .to_numpy()
        .reshape(22, 5, 3)
        .transpose(0, 2, 1)
        .reshape(22, 15)
    )
    assert seeds == four.tolist()
    five = [numbers(row[1:]) for row in body(source, "tab:temp-ablation")]
    assert five == paper_table(5)[["T", *SUMMARY]].values.tolist()


def test_columns_are_those_of_our_own_tables():
    from t3lab import results

    empty = results.tidy([])
    pairs = {
        1: tables.tofu,
        2: tables.parameters,
        3: tables.runtime,
        4: tables.tofu_per_seed,
        5: tables.temperature,
    }
    for number, make in pairs.items():
        printed = list(paper_table(number))
        assert list(make(empty))[: len(printed)] == printed, number
        assert list(make(empty))[-5:] == list(results.HELD_OUT) or number not in (1, 5)
        assert isinstance(make(empty), pd.DataFrame)
