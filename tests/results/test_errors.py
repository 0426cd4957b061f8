"""The committed tables of errors, computed again from the committed errors of every row, without
t3lib.
"""

import csv
import gzip
import json
import runpy
from functools import cache
from math import comb

import numpy as np
import pytest
from conftest import ROOT

FOLDER = ROOT / "results" / "studies" / "cpu-worlds"
NAMES = {"forget": ("forget_error", "leak", "total_variation"), "retain": ("retain_error",)}
SPREAD = {"forget": "recited", "retain": "kept"}


@cache
def table(name):
    with open(FOLDER / "tables" / f"{name}.csv", encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@cache
def rows_of(world):
    """{split: {model: {"forget" or "retain": {measure: a number for each row}}}}"""
    return json.loads(gzip.decompress((FOLDER / "errors" / f"world{world}.json.gz").read_bytes()))


def name_of(row):
    dials = [
        f"{each} {float(row[each]):g}" for each in ("lr", "temperature", "w", "gate") if row[each]
    ]
    return ", ".join([row["method"], *dials])


def again(row):
    """The measures of a row of errors_each from the numbers of its rows."""
    found = {}
    for part, values in rows_of(row["world"])[row["split"]][name_of(row)].items():
        tokens = np.array(values["tokens"])
        for name in NAMES[part]:
            found[name] = (tokens * values[name]).sum() / tokens.sum()
        found[SPREAD[part]] = np.mean(np.array(values["likeliest"]) == 1)
    return found


def test_every_row_of_the_table_is_that_of_the_files():
    rows = table("errors_each")
    for row in rows:
        found = again(row)
        assert len(found) == 6
        for name, value in found.items():
            assert float(row[name]) == pytest.approx(value, rel=1e-4, abs=1e-6), (name, row)
    assert {row["world"] for row in rows} == {*map(str, range(12))} and len(rows) > 400
    for world in range(12):
        assert len(rows_of(str(world))["forget10"]["Original"]["forget"]["tokens"]) == 80


def test_the_means_over_worlds():
    for row in table("errors"):
        dials = ("split", "method", "lr", "temperature", "w", "gate")
        part = [each for each in table("errors_each") if all(each[n] == row[n] for n in dials)]
        assert int(row["worlds"]) == len(part)
        for name in (*NAMES["forget"], *NAMES["retain"]):
            mean = np.mean([float(each[name]) for each in part])
            assert float(row[name]) == pytest.approx(mean, rel=1e-9)


def test_the_named_hypothesis_as_the_page_prints_it():
    """Forget Error of T3 at T = 3, rate 5e-3, against T = 1, rate 4e-2, on the 10% split."""

    def forget_error(lr, T):
        return {
            row["world"]: again(row)["forget_error"]
            for row in table("errors_each")
            if (row["split"], row["lr"], row["temperature"]) == ("forget10", lr, T)
            and (row["w"], row["gate"]) == ("1.0", "1.0")
        }

    chosen, untempered = forget_error("0.005", "3.0"), forget_error("0.04", "1.0")
    larger = {int(world): chosen[world] > untempered[world] for world in chosen}
    seen, unseen = ([larger[w] for w in larger if (w > 3) == new] for new in (False, True))
    n, k = len(unseen), sum(unseen)
    p = sum(comb(n, more) for more in range(k, n + 1)) / 2**n
    text = (ROOT / "results/pages/errors.md").read_text(encoding="utf-8")
    assert (
        f"in {k} of the {n} worlds that nobody had looked at (sign test, one-sided p = {p:.1g})"
        in text
    )
    assert f"and in {sum(seen)} of the {len(seen)} others" in text


def test_what_a_file_has_of_other_models_stays(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))  # for the script beside it
    keep = runpy.run_path(str(FOLDER / "errors.py"))["keep"]
    path = tmp_path / "errors" / "world1.json.gz"
    keep(path, {"forget10": {"T3": 1, "RMU": 1}})
    keep(path, {"forget10": {"RMU": 2}})
    assert json.loads(gzip.decompress(path.read_bytes())) == {"forget10": {"T3": 1, "RMU": 2}}
