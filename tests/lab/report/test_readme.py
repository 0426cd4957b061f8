"""What the README says exists, and its numbers are those of the committed tables."""

import re
import shlex

import pandas as pd
import pytest
from conftest import ROOT

from t3lib.core import files
from t3lib.core.errors import UserError
from t3lib.lab import cli
from t3lib.lab.report import readme

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_generated_blocks_are_those_of_the_committed_tables():
    assert readme.render(TEXT, readme.blocks(ROOT)) == TEXT, (
        "run `python -m t3lib.lab.report.readme`"
    )


def test_what_t3_hides_is_what_the_table_says():
    """The numbers of that section, by method, T and measure, in the order in which they are
    written.
    """
    said = (
        *(
            ("T3", 3, "leak"),
            ("Retrained", None, "leak"),
            ("Original", None, "leak"),
            ("T3", 1, "leak"),
        ),
        *(("T3", 3, "sampled"), ("Retrained", None, "sampled")),
        *(("T3", 3, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(
            ("T3", 3, "auc"),
            ("Retrained", None, "auc"),
            ("T3", 2.5, "auc"),
            ("T3", 2, "recognized_verbatim"),
        ),
        *(("WGA", None, "recognized_verbatim"), ("WGA", None, "leak"), ("WGA", None, "auc")),
        *((method, None, "recognized_verbatim") for method in ("UnDIAL", "IdkDPO")),
        "tofu-cpu",
        *(("T3", 2, "leak"), ("Retrained", None, "leak"), ("Original", None, "leak")),
        *(("T3", 2, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(("T3", 2, "auc"), ("Retrained", None, "auc")),
        *(("RMU", None, "recognized_verbatim"), ("RMU", None, "leak")),
        "On the 5% split T3",
        *(("T3", 2, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(("T3", 2, "auc"), ("Retrained", None, "auc")),
        *(("T3", 2, "leak"), ("Retrained", None, "leak")),
        *(("T3", (1.5, 1.5), name) for name in ("recognized_verbatim", "auc", "leak")),
        "tofu-cpu, on",
        *(("T3", (1.5, 1.5), name) for name in ("recognized_verbatim", "auc", "leak")),
    )
    tables = {
        name: pd.read_csv(ROOT / "results" / name / "tables" / "audit.csv")
        for name in ("cpu", "tofu-cpu")
    }
    table = tables["cpu"].query("split == 'forget10'")
    text, at = TEXT[TEXT.index("## What T3 hides") : TEXT.index("## Reproduce the paper")], 0
    for one in said:
        if one == "tofu-cpu":
            table, at = tables[one].query("split == 'forget10'"), text.index("TOFU's own text")
            continue
        if one == "tofu-cpu, on":
            table = tables["tofu-cpu"].query("split == 'forget10'")
            continue
        if isinstance(one, str):
            table, at = tables["tofu-cpu"].query("split == 'forget05'"), text.index(one) + len(one)
            continue
        method, T, name = one
        T, w = T if isinstance(T, tuple) else (T, 1)
        dials = table["T"].isna() if T is None else (table["T"] == T) & (table["w"] == w)
        [value] = table[(table["method"] == method) & dials][name]
        number = (
            f"{value:.0%}" if name.startswith("recognized") else f"{value:.2f}".removeprefix("0")
        )
        at = text.find(number, at) + len(number)
        assert at >= len(number), f"{name} of {method} is {number}"


def test_what_t3s_other_choices_hide_is_what_the_table_says():
    table = pd.read_csv(ROOT / "results/cpu/tables/ablations.csv").set_index(["split", "setting"])
    less, none = "same text,T=2", "same text,T=1"
    said = [("forget10", *pair) for pair in (
        ("tuned", "mu"), (less, "mu"), (less, "recognized_verbatim"), ("tuned", "recognized_verbatim"), (less, "auc"),
        ("tuned", "auc"), ("tuned", "fq_held_out"), (less, "fq_held_out"), (none, "fq_held_out"),
    )]  # fmt: skip
    said += [("forget05", setting, "fq_held_out") for setting in (less, none)]
    said += [("forget10", "paraphrases", "recognized_verbatim")]
    text, at = (
        TEXT[
            TEXT.index("- Less tempering with a sharper f") : TEXT.index("So the paper's reading")
        ],
        0,
    )
    for split, setting, name in said:
        value = table.loc[(split, setting), name]
        digits = f"{value:.1g}" if value < 0.01 else f"{value:.2f}"
        number = f"{value:.0%}" if name.startswith("recognized") else digits.removeprefix("0")
        at = text.find(number, at) + len(number)
        assert at >= len(number), f"{name} of {setting} on {split} is {number}"
    stays = table.loc["forget05"]["fq_held_out"]
    assert f"{stays[less]:.2f}" == f"{stays['tuned']:.2f}", "stays"
    for split, T in (("forget05", 2.5), ("forget10", 3)):
        tuned = table.loc[(split, "tuned")]
        assert tuned["T"] == T
        for setting in (less, none):
            assert table.loc[(split, setting), "mu_rouge"] == tuned["mu_rouge"], (
                "the same greedy text"
            )
        hides = table.loc[split][["recognized_verbatim", "auc"]]
        assert (hides.loc["paraphrases"] > hides.loc["tuned"]).all(), "hides less"
    audit = (
        pd.read_csv(ROOT / "results/cpu/tables/audit.csv")
        .query("method == 'Retrained'")
        .set_index("split")
    )
    for split, retrained in audit[["recognized_verbatim", "auc"]].iterrows():
        apart = (table.loc[split][["recognized_verbatim", "auc"]] - retrained).abs()
        assert (apart.max(axis=1) > 0.2).all(), "no choice comes near in both"


def test_what_is_said_of_tofus_text_is_what_the_table_says():
    """All but Forget Quality, which `tests/lab/claims/test_forget_quality.py` computes from the
    runs.
    """
    folder = ROOT / "results" / "tofu-cpu" / "tables"
    table = pd.read_csv(folder / "tofu.csv").set_index(["method", "split"])
    words, ten, five = " ".join(TEXT.split()), "forget10", "forget05"

    def said(column, *rows):
        return tuple(f"{table.loc[row, column]:.2f}".removeprefix("0") for row in rows)

    dials = [("T3 (T, w)", ten), ("T3 (T, w)", five)]
    for sentence in (
        "MU-ROUGE ({} against {})".format(*said("mu_rouge", ("RMU", five), ("T3", five))),
        "whose MU-ROUGE is {}, {} and {};".format(
            *said("mu_rouge", *((name, ten) for name in ("T3", "WGA", "RMU")))
        ),
        "MU-ROUGE {} and {}, Model Utility {} and {}, above RMU's {} and {}".format(
            *said("mu_rouge", *dials), *said("mu", *dials), *said("mu", ("RMU", ten), ("RMU", five))
        ),
    ):
        assert sentence in words, sentence
    tried = [pd.read_csv(folder / f"dials--{split}.csv") for split in (five, ten)]
    assert (
        all(len(each) == 117 and set(each["n_seeds"]) == {2} for each in tried)
        and "117 pairs" in TEXT
    )


def test_orders_that_the_text_names_are_those_of_the_claims():
    rows = {
        name: pd.read_csv(ROOT / f"results/{name}/tables/claims.csv", index_col="id")
        for name in ("cpu", "tofu-cpu")
    }
    ours = {name: table.loc["fq-best@here"] for name, table in rows.items()}
    assert ours["cpu"]["verdict"] == "no order" and ours["tofu-cpu"]["verdict"] == "does not hold"
    five, ten = ours["tofu-cpu"]["plain"].split("10% split")
    assert "RMU ahead of T3" in five and "no order between T3 and WGA, RMU" in ten


def test_what_is_said_of_learning_rates_is_what_was_tried():
    tuned = {
        name: files.read_yaml(ROOT / f"notebooks/profiles/tuned/{name}.yaml")
        for name in ("cpu", "tofu-cpu")
    }
    within = [
        trial
        for trial in tuned["tofu-cpu"]["T3/forget10"]["trials"]
        if trial["hyper"]["lr"] <= 1e-3
    ]
    assert {trial["hyper"]["lr"] for trial in within} == {1e-3}
    assert (
        f"reaches a Forget Quality of {max(sum(t['fq']) / 2 for t in within):.0e} at most"
        in " ".join(TEXT.split())
    )
    chosen = {name: entries["T3/forget10"]["chosen"] for name, entries in tuned.items()}
    assert (chosen["tofu-cpu"]["lr"], chosen["cpu"]["lr"], chosen["cpu"]["temperature"]) == (
        2e-2,
        5e-3,
        3.0,
    )
    for name in ("NPO", "SatImp", "SimNPO", "UnDIAL", "RMU", "WGA"):
        entry = tuned["tofu-cpu"][f"{name}/forget10"]
        rates = [trial["hyper"]["lr"] for trial in entry["trials"]]
        assert entry["chosen"]["lr"] == max(rates) and len(rates) == 4 and entry["seeds"] == [1], (
            name
        )


def test_what_a_sharper_classifier_does_is_what_the_tables_say():
    text = TEXT[
        TEXT.index("Could a sharper classifier") : TEXT.index("Every claim with its sentence")
    ]
    dials = {share: pd.read_csv(ROOT / f"results/cpu/tables/dials--{split}.csv")
             for share, split in (("5%", "forget05"), ("10%", "forget10"))}  # fmt: skip
    for share, table in dials.items():
        sharpened, tempered = table[table["T"] == 1], table[table["w"] == 1]
        assert (
            len(sharpened) == 14
            and set(table["n_seeds"]) == {2}
            and "fourteen" in text
            and "two seeds" in text
        )
        best = (
            f"{sharpened['fq'].max():.1g}"
            if sharpened["fq"].max() < 0.01
            else f"{sharpened['fq'].max():.2f}"
        )
        assert f"{best.removeprefix('0')} on the {share} split" in text
        assert f"{tempered['fq'].max():.2f}".removeprefix("0") in text.split("tempering", 2)[2]


def test_what_both_dials_do_on_tofus_text_is_what_the_tables_say():
    text = TEXT[
        TEXT.index("On TOFU's text the best of thirteen") : TEXT.index(
            "Every claim with its sentence"
        )
    ]
    said = [float(number) for number in re.findall(r" (\.\d+)", text)]
    tables = [
        pd.read_csv(ROOT / f"results/tofu-cpu/tables/dials--{split}.csv")
        for split in ("forget05", "forget10")
    ]
    assert [len(table[table["T"] == 1]) for table in tables] == [13, 13] and {
        *tables[0]["n_seeds"]
    } == {2}
    chosen = [(table["T"] == 1, table["w"] == 1, table["T"] > 0) for table in tables]
    best = [table[rows]["fq"].max() for rows in zip(*chosen) for table, rows in zip(tables, rows)]
    assert said == [float(f"{value:.2f}" if value > 0.01 else f"{value:.1g}") for value in best]


def test_a_block_without_a_place_is_an_error():
    with pytest.raises(UserError, match="blocks"):
        readme.render("# nothing", {"headline": "x"})
    changed = readme.render("<!-- generated:a -->\nold\n<!-- /generated:a -->", {"a": "new"})
    assert changed == "<!-- generated:a -->\nnew\n<!-- /generated:a -->"


def test_cells_that_need_a_gpu_are_empty_until_one_has_filled_them(tmp_path):
    empty = readme.gpu(tmp_path)
    assert empty.count("|  |  |") == len(readme.GPU) and "no GPU has run it" in empty
    one, two, nf4 = (
        "decoding overhead, one row",
        "decoding overhead, 32 rows",
        "decoding overhead, NF4 base",
    )
    rows = [(one, 1.25, "%", 17e9), (two, 0.5, "%", 18e9), (nf4, None, None, 18e9)]
    table = pd.DataFrame(rows, columns=["what", "median", "unit", "peak_memory_bytes"])
    table.assign(device="NVIDIA H100").to_csv(tmp_path / "benchmarks.csv", index=False)
    found = readme.gpu(tmp_path)
    assert (
        "one row | ≤ 2% | 1.25 % | 17 GB |" in found and "32 rows | ≤ 2% | 0.5 % | 18 GB |" in found
    )
    assert "one row, NF4 base |  |  |  |" in found and "Measured on NVIDIA H100." in found


def test_every_path_named_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).exists(), link
    for name in re.findall(r"`((?:tests|t3lib|notebooks|results)/[\w./-]+)`", TEXT):
        assert (ROOT / name).exists(), name


def test_minutes_stand_in_the_paper_map_where_a_run_from_nothing_tells_them(tmp_path):
    files.write_json(tmp_path / "some.json", {"cold": None})
    assert "minutes" not in readme.paper_map(tmp_path / "some.json")
    files.write_json(
        tmp_path / "all.json",
        {"cold": {"worker_seconds": {"04_efficiency": 120.0, "05_paper_tables": 60}}},
    )
    table = readme.paper_map(tmp_path / "all.json")
    assert "| worker-minutes |" in table and "--only 04_efficiency,05_paper_tables` | 3 |" in table


def test_every_table_and_figure_of_the_paper_map_is_committed():
    rows = [
        line
        for line in TEXT.splitlines()
        if line.startswith("|") and "tables/" in line or "figures/" in line
    ]
    named = [name for line in rows for name in re.findall(r"`((?:tables|figures)/[\w.-]+)`", line)]
    assert len(named) >= 8
    for name in named:
        assert (ROOT / "results" / "cpu" / name).exists(), name


def test_every_command_parses():
    """A command of the README is one the parser accepts; its notebooks exist."""
    parser = cli.parser()
    commands = re.findall(r"^    (t3 .+?)(?:  +#.*)?$", TEXT, re.M) + re.findall(
        r"`(t3 [a-z]+ [^`]+)`", TEXT
    )
    assert len(commands) >= 10
    for command in commands:
        arguments = parser.parse_args(shlex.split(command)[1:])
        for name in getattr(arguments, "only", None) or ():
            assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), command


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)(?:^    |`)make ([a-z-]+)\b(?!=)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_findings_are_the_sentences_of_the_claims_with_their_verdicts():
    columns = ["id", "where", "claim", "verdict", "plain"]
    cpu = [
        ("bound", "Theorem 3.4", "A bound.", "holds", ""),
        ("greedy", "Section 4.1", "Greedy text tells.", "does not hold", "It cannot."),
        ("best", "Table 1", "It is best.", "not run at this scale", ""),
        ("best@here", "Table 1", "It is best.", "no order", "A and B."),
    ]
    other = [cpu[1], ("best@here", "Table 1", "It is best.", "does not hold", "C ahead.")]
    made = {
        name: pd.DataFrame(rows, columns=columns)
        for name, rows in (("cpu", cpu), ("tofu-cpu", other))
    }
    assert readme.findings(made).split("\n") == [
        "- Greedy text tells. (Section 4.1) *does not hold*. It cannot.",
        "- It is best. (Table 1) `cpu`: *no order*. A and B. `tofu-cpu`: *does not hold*. C ahead.",
    ]
    lines = (
        TEXT.partition("<!-- generated:claims -->")[2]
        .partition("<!-- /generated:claims -->")[0]
        .strip()
        .split("\n")
    )
    assert 6 <= len(lines) <= 9, "findings, not counts"


def test_the_headline_says_what_a_profile_without_held_out_models_has(tmp_path):
    for name in ("cpu", "paper"):
        (tmp_path / name / "tables").mkdir(parents=True)
    (tmp_path / "paper" / "table1.csv").write_text((ROOT / "results/paper/table1.csv").read_text())
    (tmp_path / "cpu" / "runs").symlink_to(ROOT / "results/cpu/runs")
    table = pd.read_csv(ROOT / "results/cpu/tables/tofu.csv").drop(
        columns=["fq_held_out", "ks_held_out", "n_references"]
    )
    table.to_csv(tmp_path / "cpu/tables/tofu.csv")
    tests = pd.read_csv(ROOT / "results/cpu/tables/forget_quality.csv")
    tests.to_csv(tmp_path / "cpu/tables/forget_quality.csv")
    rows = readme.headline(tmp_path).split("\n")
    assert "| retrained models held out | none | none |" in rows
    assert "T = 3: 0.96 / 0.92 / 0.35" in next(row for row in rows if row.startswith("| **T3**"))
