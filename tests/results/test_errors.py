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
import pandas as pd
import pytest
from conftest import ROOT

FOLDER = ROOT / "results" / "studies" / "cpu-worlds"
TOFU, SMOLLM = (ROOT / "results" / "profiles" / name for name in ("tofu-cpu", "smollm"))
NAMES = {"forget": ("forget_error", "leak", "total_variation"), "retain": ("retain_error",)}
AGAIN = SMOLLM / "another-base"
SPREAD = {"forget": "recited", "retain": "kept"}


@cache
def table(name, folder=FOLDER):
    with open(folder / "tables" / f"{name}.csv", encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@cache
def rows_of(world, folder=FOLDER):
    """{split: {model: {"forget" or "retain": {measure: a number for each row}}}}"""
    return json.loads(gzip.decompress((folder / "errors" / f"world{world}.json.gz").read_bytes()))


def name_of(row):
    dials = [
        f"{each} {float(row[each]):g}" for each in ("lr", "temperature", "w", "gate") if row[each]
    ]
    return ", ".join([row["method"], *dials])


def again(row, folder=FOLDER):
    """The measures of a row of errors_each from the numbers of its rows."""
    found = {}
    for part, values in rows_of(row["world"], folder)[row["split"]][name_of(row)].items():
        tokens = np.array(values["tokens"])
        for name in NAMES[part]:
            found[name] = (tokens * values[name]).sum() / tokens.sum()
        found[SPREAD[part]] = np.mean(np.array(values["likeliest"]) == 1)
    return found


@pytest.mark.parametrize("folder", [FOLDER, TOFU, SMOLLM, AGAIN], ids=lambda folder: folder.name)
def test_every_row_of_the_table_is_that_of_the_files(folder):
    rows = table("errors_each", folder)
    for row in rows:
        found = again(row, folder)
        assert len(found) == 6
        for name, value in found.items():
            assert float(row[name]) == pytest.approx(value, rel=1e-4, abs=1e-6), (name, row)
    sizes = {FOLDER: (range(12), 80, 400), TOFU: (range(1), 400, 10), SMOLLM: (range(1), 160, 10)}
    sizes[AGAIN] = sizes[SMOLLM]
    worlds, n, least = sizes[folder]
    assert {row["world"] for row in rows} == {*map(str, worlds)} and len(rows) > least
    for world in worlds:
        of_base = rows_of(str(world), folder)["forget10"]["Original"]
        assert len(of_base["forget"]["tokens"]) == n


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


def test_controls_have_the_errors_of_the_tables_that_other_scripts_wrote():
    """Of each world: the base, T3 and RMU of errors_each, and T3 (least) of guided_each. What
    refuses has the base's Retain Error and no leak.
    """
    controls = {
        (row["world"], row["model"]): row for row in table("controls") if row["fitted"] == "1"
    }
    errors = {
        (row["world"], row["method"], row["lr"], row["temperature"]): row
        for row in table("errors_each")
        if row["split"] == "forget10" and row["w"] in ("", "1.0") and row["gate"] in ("", "1.0")
    }
    guided = {
        (row["world"], row["model"]): row
        for row in table("guided_each")
        if row["split"] == "forget10"
    }
    for n in range(1, 8):
        world = str(n)
        pairs = [(controls[world, m], errors[world, m, "", ""]) for m in ("Original", "RMU")]
        pairs.append((controls[world, "T3"], errors[world, "T3", "0.005", "3.0"]))
        pairs.append((controls[world, "T3 (least)"], guided[world, "T3 (least)"]))
        for found, wanted in pairs:
            for name in (*NAMES["forget"], *NAMES["retain"]):
                assert float(found[name]) == pytest.approx(float(wanted[name]), rel=1e-4, abs=1e-6)
        refused, hot = controls[world, "Refused"], controls[world, "T3"]
        assert refused["retain_error"] == controls[world, "Original"]["retain_error"]
        assert float(refused["leak"]) == 0
        # the mean of p_ret, and that of |p_ret - p| where p is small: as near as p is
        gap = float(refused["forget_error"]) - float(hot["forget_error"])
        assert -float(hot["leak"]) - 1e-6 <= gap <= 0.1


def test_what_a_file_has_of_other_models_stays(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))  # for the script beside it
    keep = runpy.run_path(str(FOLDER / "errors.py"))["keep"]
    path = tmp_path / "errors" / "world1.json.gz"
    keep(path, {"forget10": {"T3": 1, "RMU": 1}})
    keep(path, {"forget10": {"RMU": 2}})
    assert json.loads(gzip.decompress(path.read_bytes())) == {"forget10": {"T3": 1, "RMU": 2}}


def test_a_split_made_anew_leaves_the_rows_of_the_other(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    without = runpy.run_path(str(FOLDER / "errors.py"))["without"]
    known = [(0, split, method) for split in ("forget05", "forget10") for method in ("RMU", "T3")]
    each = pd.DataFrame(known, columns=["world", "split", "method"])
    left = without(each, [(0, "forget10", "T3", 0.1)])
    assert [*left.itertuples(index=False, name=None)] == known[:3]
    assert [*without(each[:0], [known[0]]).columns] == [*each.columns]


def test_what_weaker_heads_without_tempering_do_on_smollm():
    """The sentences of pages/pretrained_errors.md."""
    rows = {
        tuple(float(row[each]) for each in ("lr", "temperature", "w", "gate")): row
        for row in table("errors_each", AGAIN)
        if row["method"] == "T3"
    }

    def of(rate, T=1.0, w=1.0, gate=1.0, *, measure="forget_error"):
        return float(rows[rate, T, w, gate][measure])

    tuned = {name: of(2e-3, 1.5, measure=name) for name in ("forget_error", "leak", "retain_error")}
    assert of(1e-2) < tuned["forget_error"] and of(5e-3) < tuned["forget_error"] < of(2e-2)
    assert abs(of(1e-2, measure="leak") - tuned["leak"]) < 0.005
    assert of(1e-2, measure="retain_error") < tuned["retain_error"] / 2
    assert of(2e-3, 1.5, gate=0.9, measure="retain_error") < 0.075
    assert min(of(rate) for rate in (1e-3, 2e-3, 5e-3, 1e-2, 2e-2)) == of(2e-3)
    assert f"{of(2e-3):.2f} {of(2e-3, measure='leak'):.2f}" == "0.28 0.18"

    texts = table("free_texts", AGAIN)
    told = {(row["model"], row["way"], row["tau"]): int(row["leaks"]) for row in texts}
    floor = {key[1:]: leaks for key, leaks in told.items() if key[0] == "Retrained"}
    second, tempered = "as a second turn", ("T3", "T3 (least)")
    assert [told[name, second, "0.0"] for name in (*tempered, "Retrained", "Original")] == [
        8,
        7,
        4,
        13,
    ]
    mine = [row for row in texts if row["model"].startswith("T3") and row["way"] != second]
    assert len(mine) == 4 * 8 and {row["rows"] for row in texts} == {"20"}
    assert all(int(row["leaks"]) <= floor[row["way"], row["tau"]] + 1 for row in mine)
    assert {row["whole"] for row in texts if row["model"].startswith("T3")} == {"0"}
