"""What the README says exists, and its numbers are those of the committed tables."""

import re
import shlex

import pandas as pd
import pytest
from conftest import ROOT

from t3lib import cli, files
from t3lib.errors import UserError
from t3lib.report import readme
from t3lib.results import read_runs, tidy

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_generated_blocks_are_those_of_the_committed_tables():
    assert readme.render(TEXT, readme.blocks(ROOT)) == TEXT, "run `python -m t3lib.report.readme`"


def test_what_t3_hides_is_what_the_table_says():
    """The numbers of that section, by method, T and measure, in the order in which they are written."""
    said = (
        *(("T3", 3, "leak"), ("Retrained", None, "leak"), ("Original", None, "leak"), ("T3", 1, "leak")),
        *(("T3", 3, "sampled"), ("Retrained", None, "sampled")),
        *(("T3", 3, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(("T3", 3, "auc"), ("Retrained", None, "auc"), ("T3", 2, "auc"), ("T3", 2.5, "auc")),
        *(("WGA", None, "recognized_verbatim"), ("WGA", None, "leak"), ("WGA", None, "auc")),
        *((method, None, "recognized_verbatim") for method in ("UnDIAL", "IdkDPO")),
        "tofu-cpu",
        *(("T3", 2, "leak"), ("Retrained", None, "leak"), ("Original", None, "leak")),
        *(("T3", 2, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(("T3", 2, "auc"), ("Retrained", None, "auc"), ("T3", 6, "auc")),
        *(("RMU", None, "recognized_verbatim"), ("RMU", None, "leak")),
        "On the 5% split T3",
        *(("T3", 2, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(("T3", 2, "auc"), ("Retrained", None, "auc")),
        *(("T3", 2, "leak"), ("Retrained", None, "leak")),
        *(("T3", (1.5, 1.5), name) for name in ("recognized_verbatim", "auc", "leak")),
        "tofu-cpu, on",
        *(("T3", (1.5, 1.5), name) for name in ("recognized_verbatim", "auc", "leak")),
    )
    tables = {name: pd.read_csv(ROOT / "results" / name / "tables" / "audit.csv") for name in ("cpu", "tofu-cpu")}
    assert tables["tofu-cpu"].query("split == 'forget10' and method == 'T3'").set_index("T")["auc"].idxmin() == 6
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
        number = f"{value:.0%}" if name.startswith("recognized") else f"{value:.2f}".removeprefix("0")
        at = text.find(number, at) + len(number)
        assert at >= len(number), f"{name} of {method} is {number}"


def test_what_t3s_other_choices_hide_is_what_the_table_says():
    table = pd.read_csv(ROOT / "results/cpu/tables/ablations.csv").set_index(["split", "setting"])
    less, none = "same text,T=2", "same text,T=1"
    said = [("forget10", *pair) for pair in (
        ("tuned", "mu"), (less, "mu"), (less, "recognized_verbatim"), ("tuned", "recognized_verbatim"), (less, "auc"),
        ("tuned", "auc"), ("tuned", "fq"), (less, "fq"), (none, "fq"),
    )]  # fmt: skip
    said += [("forget05", setting, "fq") for setting in ("tuned", less, none)]
    said += [("forget10", "paraphrases", "recognized_verbatim")]
    text, at = TEXT[TEXT.index("- Less tempering with a sharper f") : TEXT.index("So the paper's reading")], 0
    for split, setting, name in said:
        value = table.loc[(split, setting), name]
        digits = f"{value:.1g}" if value < 0.01 else f"{value:.2f}"
        number = f"{value:.0%}" if name.startswith("recognized") else digits.removeprefix("0")
        at = text.find(number, at) + len(number)
        assert at >= len(number), f"{name} of {setting} on {split} is {number}"
    for split, T in (("forget05", 2.5), ("forget10", 3)):
        tuned = table.loc[(split, "tuned")]
        assert tuned["T"] == T
        for setting in (less, none):
            assert table.loc[(split, setting), "mu_rouge"] == tuned["mu_rouge"], "the same greedy text"
        hides = table.loc[split][["recognized_verbatim", "auc"]]
        assert (hides.loc["paraphrases"] > hides.loc["tuned"]).all(), "hides less"
    audit = pd.read_csv(ROOT / "results/cpu/tables/audit.csv").query("method == 'Retrained'").set_index("split")
    for split, retrained in audit[["recognized_verbatim", "auc"]].iterrows():
        apart = (table.loc[split][["recognized_verbatim", "auc"]] - retrained).abs()
        assert (apart.max(axis=1) > 0.2).all(), "no choice comes near in both"


def test_what_is_said_of_tofus_text_is_what_the_table_says():
    text = TEXT[TEXT.index("RMU passes T3") : TEXT.index("Every method, seed and spread")]
    folder = ROOT / "results" / "tofu-cpu" / "tables"
    table = pd.read_csv(folder / "tofu.csv").set_index(["method", "split"])
    splits = ("forget10", "forget05")
    said = [(method, split, "fq") for split in splits for method in ("RMU", "T3")]
    said += [(method, split, "mu_rouge") for method in ("RMU", "T3") for split in splits]
    said += [("WGA", split, column) for column in ("fq", "mu_rouge") for split in splits]
    numbers = [table.loc[(method, split), column] for method, split, column in said]
    seeds = pd.read_csv(folder / "tofu_per_seed.csv").query("method == 'WGA' and split == 'forget10'")["fq"]
    others = table["fq"].drop(["Original", "Retrained", "T3", "RMU", "WGA"], level="method")
    assert len(seeds) == 3 and list(others[others >= 0.05].index) == [("ULD", "forget05")]
    at = 0
    dials = tidy(read_runs(folder.parent / "runs")).query("method == 'T3' and w != 1")
    both = [dials[dials["split"] == split][column].mean() for column in ("fq", "mu_rouge") for split in splits]
    fresh = [dials[(dials["split"] == split) & (dials["seed"] == 3)]["fq"].item() for split in splits]
    for value in (*numbers, seeds.min(), seeds.max(), others.max(), *both, *fresh):
        number = f"{value:.2f}".removeprefix("0")
        at = text.find(number, at) + len(number)
        assert at >= len(number), number
    pairs = pd.read_csv(folder / "tofu_per_seed.csv").query("method == 'Retrained'").groupby("split")["fq"]
    assert list(pairs.size()) == [3, 3] and "mean of three pairs" in text
    for split in ("forget05", "forget10"):
        for value in (pairs.min()[split], pairs.max()[split]):
            number = f"{value:.2f}".removeprefix("0")
            at = text.find(number, at) + len(number)
            assert at >= len(number), number
    assert (table.loc["RMU", "fq"] > table.loc["T3", "fq"]).all()
    baselines = table["fq"].drop(["Original", "Retrained", "T3"], level="method")
    assert [mean >= baselines.xs(split, level="split").max() for mean, split in zip(both, splits)] == [True, True]
    tried = [pd.read_csv(folder / f"dials--{split}.csv") for split in splits]
    assert all(len(each) == 117 and set(each["n_seeds"]) == {2} for each in tried) and "117 pairs" in text
    assert set(dials["T"]) == set(dials["w"]) == {1.5} and len(dials) == 6
    above = table.loc["WGA", "fq"] > table.loc["T3", "fq"]
    assert above["forget10"] and not above["forget05"]


def test_what_a_sharper_classifier_does_is_what_the_tables_say():
    text = TEXT[TEXT.index("Could a sharper classifier") : TEXT.index("Every claim with its sentence")]
    dials = {share: pd.read_csv(ROOT / f"results/cpu/tables/dials--{split}.csv")
             for share, split in (("5%", "forget05"), ("10%", "forget10"))}  # fmt: skip
    for share, table in dials.items():
        sharpened, tempered = table[table["T"] == 1], table[table["w"] == 1]
        assert len(sharpened) == 14 and set(table["n_seeds"]) == {2} and "fourteen" in text and "two seeds" in text
        best = f"{sharpened['fq'].max():.1g}" if sharpened["fq"].max() < 0.01 else f"{sharpened['fq'].max():.2f}"
        assert f"{best.removeprefix('0')} on the {share} split" in text
        assert f"{tempered['fq'].max():.2f}".removeprefix("0") in text.split("tempering", 2)[2]


def test_what_both_dials_do_on_tofus_text_is_what_the_tables_say():
    text = TEXT[TEXT.index("On TOFU's text the best of thirteen") : TEXT.index("Every claim with its sentence")]
    said = [float(number) for number in re.findall(r" (\.\d+)", text)]
    tables = [pd.read_csv(ROOT / f"results/tofu-cpu/tables/dials--{split}.csv") for split in ("forget05", "forget10")]
    assert [len(table[table["T"] == 1]) for table in tables] == [13, 13] and {*tables[0]["n_seeds"]} == {2}
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
    one, two, nf4 = "decoding overhead, one row", "decoding overhead, 32 rows", "decoding overhead, NF4 base"
    rows = [(one, 1.25, "%", 17e9), (two, 0.5, "%", 18e9), (nf4, None, None, 18e9)]
    table = pd.DataFrame(rows, columns=["what", "median", "unit", "peak_memory_bytes"])
    table.assign(device="NVIDIA H100").to_csv(tmp_path / "benchmarks.csv", index=False)
    found = readme.gpu(tmp_path)
    assert "one row | ≤ 2% | 1.25 % | 17 GB |" in found and "32 rows | ≤ 2% | 0.5 % | 18 GB |" in found
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
        tmp_path / "all.json", {"cold": {"worker_seconds": {"04_efficiency": 120.0, "05_paper_tables": 60}}}
    )
    table = readme.paper_map(tmp_path / "all.json")
    assert "| worker-minutes |" in table and "--only 04_efficiency,05_paper_tables` | 3 |" in table


def test_every_table_and_figure_of_the_paper_map_is_committed():
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and "tables/" in line or "figures/" in line]
    named = [name for line in rows for name in re.findall(r"`((?:tables|figures)/[\w.-]+)`", line)]
    assert len(named) >= 8
    for name in named:
        assert (ROOT / "results" / "cpu" / name).exists(), name


def test_every_command_parses():
    """A command of the README is one the parser accepts; its notebooks exist."""
    parser = cli.parser()
    commands = re.findall(r"^    (t3 .+?)(?:  +#.*)?$", TEXT, re.M) + re.findall(r"`(t3 [a-z]+ [^`]+)`", TEXT)
    assert len(commands) >= 10
    for command in commands:
        arguments = parser.parse_args(shlex.split(command)[1:])
        for name in getattr(arguments, "only", None) or ():
            assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), command


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)(?:^    |`)make ([a-z-]+)\b(?!=)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_findings_are_at_most_three_sentences_a_group():
    rows = [
        ("bound", "Theorem 3.4", "exact", "holds", ""),
        ("gain", "Section 3.4", "exact", "does not hold", "The guarantee shows no gain."),
        ("greedy", "Section 4.1", "exact", "does not hold", "Greedy text cannot tell."),
        ("best", "Table 1", "Llama 3.1 8B", "not run at this scale", "The lead is within chance."),
        ("best@here", "Table 1", "here: tiny", "holds", "The lead is within chance."),
        ("cost", "Table 3", "Llama 3.1 8B", "not run at this scale", "It is cheap."),
        ("worse", "Abstract; Section 4.2", "Llama 3.1 8B", "not run at this scale", ""),
        ("worse@here", "Abstract; Section 4.2", "here: tiny", "does not hold", ""),
    ]
    text = readme.findings(pd.DataFrame(rows, columns=["id", "where", "scale", "verdict", "plain"]))
    theory, models = text.split("\n\n")
    assert "Of 3 claims 1 holds, 2 do not hold. The guarantee shows no gain. (Section 3.4)" in theory
    assert "Of 2 claims 1 holds, 1 does not hold. Greedy text cannot tell. (Section 4.1) The lead" in models
    assert "cheap" not in models
