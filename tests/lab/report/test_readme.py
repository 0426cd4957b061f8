"""What the README says exists, and its numbers are those of the committed tables.

Forget Quality is not here: `tests/lab/claims/test_forget_quality.py` computes it from the runs.
"""

import gzip
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy.stats import ttest_rel

from t3lib.core import files
from t3lib.core.errors import UserError
from t3lib.lab import cli, results
from t3lib.lab.report import readme
from t3lib.lab.results import HELD_OUT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DETAIL = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
SHORT, WORDS = (" ".join(text.split()) for text in (TEXT, DETAIL))
FIVE, TEN = "forget05", "forget10"


def table(profile, name):
    return pd.read_csv(ROOT / "results" / profile / "tables" / f"{name}.csv", keep_default_na=True)


def part(begins, ends):
    return DETAIL[DETAIL.index(begins) : DETAIL.index(ends)]


def short(value, share=False):
    """60% of a share, 0.34 of 0.342, 0.007 of 0.0072."""
    return f"{value:.0%}" if share else f"{value:.1g}" if value < 0.01 else f"{value:.2f}"


def assert_in_order(text, numbers):
    at = 0
    for what, number in numbers:
        at = text.find(number, at) + len(number)
        assert at >= len(number), f"{what} is {number}"


def test_the_table_of_the_rehearsal_is_that_of_its_file(tmp_path):
    block = readme.rehearsal(ROOT / "results")
    assert readme.with_block(DETAIL, block, "rehearsal") == DETAIL, (
        "run `python -m t3lib.lab.report.readme`"
    )
    (tmp_path / "rehearsal.csv").write_text(
        "profile,step,rows,peak_bytes,predicted_bytes,flops,predicted_flops\n"
        "rehearsal-llama-8b,load,0,5e8,1.6e10,,\n"
        "rehearsal-llama-1b,8bit,32,8856031232,3.1e9,2704329822208,21647567450624.0\n"
    )
    assert readme.rehearsal(tmp_path).splitlines()[2:] == [
        "| 1B | 8bit | 32 | 8.9 | 3.1 | 2.70 | 21.65 |",
        "| 8B | load |  | 0.5 | 16.0 |  |  |",
    ]


def test_the_headline_is_that_of_the_committed_tables(tmp_path):
    block = readme.headline(ROOT / "results")
    assert readme.with_block(TEXT, block) == TEXT, "run `python -m t3lib.lab.report.readme`"
    with pytest.raises(UserError, match="no place"):
        readme.with_block("# nothing", block)
    for name in ("cpu", "paper"):  # a profile without held-out models
        (tmp_path / name / "tables").mkdir(parents=True)
    (tmp_path / "paper" / "table1.csv").symlink_to(ROOT / "results/paper/table1.csv")
    (tmp_path / "cpu" / "runs").symlink_to(ROOT / "results/cpu/runs")
    (tmp_path / "cpu/tables/forget_quality.csv").symlink_to(
        ROOT / "results/cpu/tables/forget_quality.csv"
    )
    without = table("cpu", "tofu").drop(columns=[*HELD_OUT])
    without.to_csv(tmp_path / "cpu/tables/tofu.csv")
    alone = readme.headline(tmp_path)
    assert alone.count("no held-out retrained models") == 2
    assert "| **T3**, T = 3 |  | 0.96 |  | 0.92 | 0.35 |" in alone


def test_verdicts_are_those_of_the_committed_claims():
    rows = [
        line.strip("| ").split(" | ")
        for line in part("| the paper says", "Every claim with").split("\n")
    ]
    found = {
        name: table(name, "claims")
        .set_index("id")
        .assign(of=lambda t: t.index.str.split("@").str[0])
        for name in ("cpu", "tofu-cpu")
    }
    assert len(rows) > 7
    for claim, where, *verdicts in (row for row in rows[2:] if len(row) > 2):
        for verdict, claims in zip(verdicts, found.values()):
            ours = claims[(claims["claim"] == claim) & (claims["where"] == where)]
            here = ours[ours.index.str.endswith("@here")]
            [expected] = (here if len(here) else ours)["verdict"]
            assert verdict == expected, claim


# (profile, split, where the passage begins) -> rows of the table audit in the order in which the
# passage has their numbers: method, T (with w where it is not 1), measures.
HIDDEN = {
    ("cpu", TEN, "## What T3 hides"): (
        *(("T3", 3, "leak"), ("Retrained", None, "leak"), ("Original", None, "leak")),
        *(("T3", 1, "leak"), ("T3", 3, "sampled"), ("Retrained", None, "sampled")),
        *(("T3", 3, "recognized_verbatim"), ("Retrained", None, "recognized_verbatim")),
        *(("T3", 3, "auc"), ("Retrained", None, "auc"), ("T3", 2.5, "auc")),
        *(("T3", 2, "recognized_verbatim"), ("WGA", None, "recognized_verbatim")),
        *(("WGA", None, "leak"), ("WGA", None, "auc")),
        *((method, None, "recognized_verbatim") for method in ("UnDIAL", "IdkDPO")),
    ),
    ("tofu-cpu", TEN, "The best of 32 samples holds"): (
        *(("T3", 2, "leak"), ("Retrained", None, "leak"), ("Original", None, "leak")),
        *((name, T, "recognized_verbatim") for name, T in (("T3", 2), ("Retrained", None))),
        ("T3", 2, "recognized_paraphrased"),
        *((name, None, "recognized_paraphrased") for name in ("Retrained", "Original")),
        *((name, T, "recognized_paraphrased_rephrased")
          for name, T in (("T3", 2), ("Retrained", None))),
        *(("T3", 2, "auc"), ("Retrained", None, "auc")),
        *((name, None, what) for what in ("recognized_verbatim", "auc")
          for name in ("RMU", "WGA", "NPO", "ULD")),
    ),
    ("tofu-cpu", FIVE, "On the 5% split (T = 1.5)"): (
        *((name, T, what) for what in ("recognized_verbatim", "auc", "leak")
          for name, T in (("T3", 1.5), ("Retrained", None))),
        *((name, None, what) for what in ("recognized_verbatim", "auc")
          for name in ("RMU", "WGA", "NPO")),
        ("T3", 2, "auc"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", HIDDEN, ids=lambda where: f"{where[0]}-{where[2]}")
def test_what_t3_hides_is_what_the_table_says(where):
    profile, split, begins = where
    audit, numbers = table(profile, "audit").query("split == @split"), []
    for method, T, name in HIDDEN[where]:
        T, w = T if isinstance(T, tuple) else (T, 1)
        dials = audit["T"].isna() if T is None else (audit["T"] == T) & (audit["w"] == w)
        [value] = audit[(audit["method"] == method) & dials][name]
        numbers.append((f"{name} of {method}", short(value, name.startswith("recognized"))))
    assert_in_order(part(begins, "## The choice that"), numbers)


def test_rows_of_tofus_text_that_leak_are_those_of_the_table():
    leak = table("tofu-cpu", "leak").query("split == @TEN and top_p == 1").set_index("method")
    leak = leak[leak["w"].isna() | (leak["w"] == 1)]
    plain, cold = (leak.query("tau == @tau and k == @k") for tau, k in ((1, 32), (0.3, 16)))
    assert (plain["rows"].dropna() == 100).all() and len(cold) > 3
    counts = [each.loc["T3"].set_index("T")["rows_leaking"] for each in (plain, cold)]
    numbers = [counts[0][1], counts[0][2], plain.loc["Retrained", "rows_leaking"]]
    numbers += [plain.loc["Original", "rows_leaking"], counts[1][1], counts[1][2]]
    said = (
        "the distinctive words of {:.0f} rows come out at T = 1 and of {:.0f} at T = 2 (retrained"
        " {:.0f}, original {:.0f}). In 16 samples at τ = 0.3 it is {:.0f} row at T = 1 and {:.0f}"
        " at T = 2."
    )
    assert said.format(*numbers) in WORDS


def test_what_is_said_of_attacks_on_tofus_text_is_what_the_table_says():
    recover = table("tofu-cpu", "recover")
    again = recover.query("attack == 'relearning'").set_index(["model", "steps"]).sort_index()
    known = again["recognized_verbatim"]
    pairs = [(known[name, 20], known[name, 0])
             for name in ("RMU", "WGA", "NPO", "SimNPO", "Retrained")]  # fmt: skip
    numbers = [("leaking", f"gives {again['rows_leaking']['RMU', 20]} of them away")]
    shares = [f"{after:.0%} ({before:.0%}" for after, before in pairs[1:]]
    numbers += [("recognised", share) for share in shares]
    kept, anew = (known[f"T3, head {which}", 20] for which in ("kept", "refitted"))
    numbers += [("T3", f"{one:.0%}") for one in (kept, anew, known["T3, head kept", 0])]
    fq = again["fq"]
    assert max(fq["RMU", 20], fq["WGA", 20]) < 0.01
    numbers += [("Forget Quality", short(fq[name, 0])) for name in ("RMU", "WGA")]
    numbers += [("T3's", short(fq["T3, head kept", steps])) for steps in (0, 20)]
    after, before = pairs[0]
    said = " ".join(part("Attacks were tried on", "Recognition and AUC are means").split())
    assert f"{after:.0%} of the other 180 rows ({before:.0%} before)" in said
    rounded = recover.query("attack == 'quantisation' and model not in ('Original', 'Retrained')")
    rounded = rounded.pivot(index="model", columns="bits")
    moved = [
        rounded[name].sub(rounded[name][32], axis=0).abs().max().max()
        for name in ("recognized_verbatim", "rows_leaking")
    ]
    numbers += [("rounded", f"at most {moved[0]:.0%} of the rows")]
    numbers += [("leaks", f"at most {moved[1]:.0f} of 200 rows")]
    asked = recover.query("attack == 'asking'").set_index(["way", "model"])
    for way in ('after "Please answer:" in Chinese', "politely"):
        row = asked.loc[(way, "T3")]
        numbers += [(way, f"{row['rows_leaking']} of {row['rows']}")]
    others = asked.query("model not in ('T3', 'Original')")["rows_leaking"]
    assert_in_order(said, [*numbers, ("others", f"{others.max()} at most in any")])


def test_what_is_said_of_attackers_is_what_the_tables_say():
    leak = table("cpu", "leak").query("split == @TEN and tau == 0.3 and k == 16")
    leak = leak.assign(which=leak["method"].where(leak["method"] != "T3", leak["w"]))
    leaking = leak[leak["T"].isna() | (leak["T"] * leak["w"] == 3)].set_index("which")[
        "rows_leaking"
    ]
    audit = table("cpu", "audit").query("split == @TEN and method == 'T3' and T == 1 and w == 3")
    recover = table("cpu", "recover")
    again = recover.query("attack == 'relearning'").set_index(["model", "steps"])
    shown = [("T3, head kept", 40), ("T3, head kept", 0), ("T3, head refitted", 40)]
    others = ("RMU", "WGA", "SimNPO", "NPO", "Retrained")
    shown += [(model, steps) for model in others for steps in (40, 0)]
    asked = recover.query("attack == 'asking'").set_index(["way", "model"])
    plain, given = ("as it stands", "first 2 tokens given")
    most = asked.query("model not in ('T3', 'Original')")["rows_leaking"].max()
    known = asked.xs("Original", level="model")["rows"]
    prefaces = known[known.index.str.startswith("after")]
    requests = table("cpu", "requests").set_index("heads")
    alone, random, zero, cold = (
        requests.loc[name] for name in (
            "one head", "a head an author, random B", "a head an author, zero B",
            "a head an author, zero B, T = 1",
        )
    )  # fmt: skip
    assert max(some["fq"].iloc[1:].max() for some in (random, zero)) < 0.001
    leaks = [f"{one.rows_leaking} of {one.rows}" for one in cold.itertuples()]
    numbers = [
        ("T3", f"words of {leaking[1.0]:.0f} of 80"),
        ("guessing", f"(retrained: {leaking['Retrained']:.0f})"),
        ("T3 without tempering", f"those of {leaking[3.0]:.0f} "),
        ("logits", f"recognised for {audit['recognized_verbatim'].item():.0%}"),
        *(("again", f"{again['recognized_verbatim'][one]:.0%}") for one in shown),
        *(("asked", f"{asked['rows_leaking'][way, 'T3']} ") for way in (plain, given)),
        ("other methods", f"give {most} at most"),
        ("the original", f"only {known['reworded 1']} of {known[plain]} "),
        ("after prefaces", f"{prefaces.min()} to {prefaces.max()} after"),
        *(("kept", short(one)) for some in (alone, random, zero, cold)
          for one in some["retain_rouge"]),
        *(("leaking at T = 1", count) for count in leaks),
        *(("retrained", f"{count}") for count in requests.loc["retrained", "rows_leaking"]),
    ]  # fmt: skip
    said = part("- **Whoever chooses the sampler", "- **Less tempering")
    assert_in_order(" ".join(said.split()), numbers)


def test_what_t3s_other_choices_hide_is_what_the_table_says():
    choices = table("cpu", "ablations").set_index(["split", "setting"])
    less, none, hides = "same text,T=2", "same text,T=1", ["recognized_verbatim", "auc"]
    said = [
        *((TEN, "tuned", "mu"), (TEN, less, "mu"), (TEN, less, hides[0]), (TEN, "tuned", hides[0])),
        *((TEN, less, "auc"), (TEN, "tuned", "auc"), (TEN, "tuned", "fq_held_out")),
        *((split, setting, "fq_held_out") for split in (TEN, FIVE) for setting in (less, none)),
        (TEN, "paraphrases", hides[0]),
    ]
    assert_in_order(
        part("- **Less tempering with a sharper f", "So the paper's reading"),
        [(row, short(choices.loc[row[:2], row[2]], row[2] == hides[0])) for row in said],
    )
    retrained = table("cpu", "audit").query("method == 'Retrained'").set_index("split")
    for split, T in ((FIVE, 2.5), (TEN, 3)):
        here = choices.loc[split]
        assert here.loc["tuned", "T"] == T
        texts = here.loc[[less, none, "tuned"], "mu_rouge"]
        assert texts.nunique() == 1, "the same greedy text"
        assert (here.loc["paraphrases", hides] > here.loc["tuned", hides]).all(), "hides less"
        apart = (here[hides] - retrained.loc[split, hides].astype(float)).abs()
        assert (apart.max(axis=1) > 0.2).all(), "no choice comes near in both"


def test_what_is_said_of_tofus_text_is_what_the_table_says():
    scores = table("tofu-cpu", "tofu").set_index(["method", "split"])
    methods, both, share = ("T3", "RMU", "WGA"), "T3 (T, w)", "RMU (a)"
    sentences = {
        "its MU-ROUGE is {}, theirs {} and {}.": [((m, FIVE), "mu_rouge") for m in methods],
        "MU-ROUGE is {}, {} and {}. Of the other": [((m, TEN), "mu_rouge") for m in methods],
        "with a MU-ROUGE of {} and {}) reach 0.05.": [
            (("NPO", split), "mu_rouge") for split in (FIVE, TEN)
        ],
        "hardly anything (MU-ROUGE {} → {}).": [
            ((name, FIVE), "mu_rouge") for name in ("NPO", "NPO (a)")
        ],
        "MU-ROUGE {} and {}, Model Utility {} and {} ([every": [
            ((both, split), name) for name in ("mu_rouge", "mu") for split in (TEN, FIVE)
        ],
        "MU-ROUGE from {} to {} and Model Utility from {} to {}. There is no order": [
            ((name, TEN), score) for score in ("mu_rouge", "mu") for name in ("RMU", share)
        ],
    }
    for sentence, cells in sentences.items():
        assert sentence.format(*(short(scores.loc[cell]) for cell in cells)) in WORDS, sentence


def test_what_is_said_of_two_trainings_of_a_base_is_what_the_table_says():
    both = table("tofu-cpu", "two_bases").set_index(["method", "split", "T"]).sort_index()
    frame = results.tidy(results.read_runs(ROOT / "results/tofu-cpu/runs"))
    for (method, split, T), row in both.iterrows():
        same_T = frame["T"].isna() if np.isnan(T) else frame["T"] == T
        dial = frame["w"].isna() if np.isnan(row["w"]) else frame["w"] == row["w"]
        runs = frame[(frame["method"] == method) & (frame["split"] == split) & same_T & dial]
        assert len(runs) == row["n_seeds"]
        for name in ("fq", "mu_rouge", "mu"):
            assert row[f"{name}_now"] == pytest.approx(runs[name].mean(), rel=1e-9)
    moved = {
        name: (both[f"{name}_before"] - both[f"{name}_now"]).abs().max()
        for name in ("mu_rouge", "mu")
    }
    said = f"moves by at most {short(moved['mu_rouge'])} and Model Utility by {short(moved['mu'])}."
    assert said in WORDS
    for name, split, T, words in (
        ("T3", FIVE, 1.5, "T3 at T = 1.5 (5%)"), ("T3", FIVE, 2.0, "T3 at T = 2 (5%)"),
        ("WGA", TEN, np.nan, "WGA (10%)"), ("RMU", TEN, np.nan, "RMU (10%)"),
    ):  # fmt: skip
        row = both.xs((name, split)).loc[[T]].iloc[0]
        pair = " to ".join(short(row[f"fq_{side}"]) for side in ("before", "now"))
        assert f"{words} from {pair}" in WORDS, words
        if T == 2:
            assert f"(T = 2, 5% split) went from {pair}" in SHORT


def test_what_is_said_of_learning_rates_is_what_was_tried():
    tuned = {
        name: files.read_yaml(ROOT / f"notebooks/profiles/tuned/{name}.yaml")
        for name in ("cpu", "tofu-cpu")
    }
    trials = tuned["tofu-cpu"]["T3/forget10"]["trials"]
    within = [trial for trial in trials if trial["hyper"]["lr"] <= 1e-3]
    assert {trial["hyper"]["lr"] for trial in within} == {1e-3}
    most = max(sum(trial["fq"]) / 2 for trial in within)
    assert f"reaches a Forget Quality of {most:.0e} at most" in WORDS
    chosen = {name: entries["T3/forget10"]["chosen"] for name, entries in tuned.items()}
    assert (chosen["tofu-cpu"]["lr"], chosen["cpu"]["lr"]) == (4e-2, 5e-3)
    assert chosen["cpu"]["temperature"] == 3.0
    for split, highest in ((FIVE, {"SimNPO", "T3", "SatImp"}), (TEN, {"SimNPO", "T3", "NPO"})):
        for name in ("NPO", "SimNPO", "SatImp", "T3"):
            entry = tuned["tofu-cpu"][f"{name}/{split}"]
            best = entry["chosen"]["lr"] == max(trial["hyper"]["lr"] for trial in entry["trials"])
            assert best == (name in highest), "best at the highest rate that was tried"
        for name in ("GradAscent", "GradDiff", "UnDIAL", "ULD", "IdkDPO"):
            assert len(tuned["tofu-cpu"][f"{name}/{split}"]["trials"]) == 4, "coarse rates alone"
    assert len(tuned["tofu-cpu"][f"T3/{TEN}"]["trials"]) == 54
    searched = table("tofu-cpu", "search")
    method = searched["method"].str.partition(" (")[0]  # its dial or share has a row of its own
    counts = searched.groupby(["split", method])["trials"].sum().unstack()
    most, least = counts.drop(columns="T3").max().max(), counts["T3"].min()
    said = f"over 200 settings of T3 were tried, but at most {most} of a baseline."
    assert least > 200 and said in SHORT


@pytest.mark.parametrize(
    ("profile", "begins"), [("cpu", "at profile"), ("tofu-cpu", "The best reaches")]
)
def test_what_both_dials_do_is_what_the_tables_say(profile, begins):
    found = [table(profile, f"dials--{split}") for split in (FIVE, TEN)]
    grid = {"cpu": 84, "tofu-cpu": 117}[profile]
    for each in found:
        assert set(each["n_seeds"]) == {2} and len(each.groupby(["T", "w"])) >= grid
        pairs = each.groupby(["T", "w"]).ngroups - each[each["T"] == 1]["w"].nunique()
        assert pairs == grid - {"cpu": 14, "tofu-cpu": 13}[profile]
    ways = [[(each["T"] == 1) & (each["w"] > 1) for each in found]]
    ways += [[each["w"] == 1 for each in found]]
    ways += [[each["w"] != 1 for each in found]] * (profile == "tofu-cpu")
    best = [short(each[way]["fq"].max()) for rows in ways for each, way in zip(found, rows)]
    assert_in_order(part(begins, "## Learning rates"), [("best", one) for one in best])
    if profile == "tofu-cpu":
        for each in found:
            other = each[(each["T"] == 1) & (each["lr"] != 0.04) & (each["w"] > 1)]
            assert (other["lr"].nunique(), other["w"].nunique()) == (3, 10)
        assert "three other learning rates were tried at T = 1 too, with ten w above 1" in WORDS
    assert all(said in WORDS for said in ("117 pairs (T, w)", "best of fourteen"))


def test_what_is_said_of_widths_is_what_the_tables_say():
    """The prediction for the paper is computed again."""
    each, found, rules = (
        pd.read_csv(ROOT / f"results/cpu-width/tables/{name}.csv")
        for name in ("width", "width_best", "width_rules")
    )
    text = " ".join(part("## From narrow to wide", "## Seconds").split())
    plain = found[found["setting"] == "as the paper"]
    here = rules[rules["data"] == "built-in"].set_index("rule")
    root, lost = here.loc["sqrt(d)"], here.groupby("rule")["lost"].mean()
    [misses] = rules[(rules["rule"] == "sqrt(d)") & rules["data"].str.contains("TOFU")]["factor"]
    assert misses < 0.5 and "is not decided" in WORDS
    close = root["factor"].between(0.499, 2.001).sum()
    inside = root["predicted"].between(root["low"], root["high"]).sum()
    constant = np.exp(np.log(plain["rate"] * plain["d"] ** 0.5).mean())  # fitted on all widths
    paper = constant / 4096**0.5 / (1300 / 300) ** 0.5
    utility = each.groupby("d")[["mu_before", "mu"]].mean()
    numbers = [
        *(("best rate", f"{rate:g}") for rate in plain["rate"]),
        *(("lost", short(lost[rule])) for rule in ("sqrt(d)", "one rate", "d")),
        ("within 2", f"in {close} of {len(root)} cases"),
        ("in the range", f"only {inside}"),
        ("the paper", f"{paper:.1e}".replace("e-0", "e-")),
        *(("MU", short(value)) for name in utility for value in utility[name]),
        *(("T", f"{T:.1f}") for T in plain["T"]),
        ("minutes", f"{each['cpu_seconds'].sum() / 60:.0f} CPU-minutes"),
    ]
    assert_in_order(text, numbers)


def test_readme_is_short():
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    assert len(" ".join(lines).split()) <= 1400


def test_the_example_is_that_of_the_committed_answers():
    """The four models' first answers, and how many each recites word for word."""
    runs = ("Original--forget10--Tnone--seed0", "T3--forget10--T1--seed1")
    runs += ("T3--forget10--T3--seed1", "Retrained--forget10--Tnone--seed1")
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if " […] | " in line]
    assert len(rows) == len(runs)
    folder = ROOT / "results" / "cpu" / "runs"
    records = [
        json.loads(gzip.decompress((folder / f"{run}.records.json.gz").read_bytes()))
        for run in runs
    ]
    known = {name: [row["generation"] for row in records[0][name]] for name in ("forget", "retain")}
    [asked] = [n for n, text in enumerate(known["forget"]) if text.startswith(rows[0][1][:-4])]
    for (_, answer, *counts), one in zip(rows, records):
        assert one["forget"][asked]["generation"].startswith(answer.removesuffix(" […]"))
        recited = [
            sum(row["generation"] == text for row, text in zip(one[name], texts))
            for name, texts in known.items()
        ]
        assert [int(number) for number in counts] == recited
    assert [len(texts) for texts in known.values()] == [80, 100]


def test_what_readme_says_that_t3_hides_is_what_the_tables_say():
    """Rows that leak in 64 samples at temperature 1, rows that are recognised, AUC."""
    audit, leak = (table("cpu", name).query("split == @TEN") for name in ("audit", "leak"))
    most = leak.query("tau == 1 and top_p == 1 and k == 64").set_index(["method", "T", "w"])
    rows = [("T3", 3, 1), ("Retrained", float("nan"), float("nan")), ("T3", 1, 1)]
    shown = [round(most.loc[row, "rows_leaking"]) for row in rows]
    said = (
        "In 64 answers to each question, sampled at the temperature τ = 1, the distinctive words of"
        " {} of 80 forgotten rows come out"
    )
    assert (
        f"{said.format(shown[0])} (retrained: {shown[1]}, T3 without tempering: {shown[2]})"
        in SHORT
    )
    scores = audit.set_index(["method", "T", "w"]).loc[rows[:2]]
    found = [f"{value:.0%}" for value in scores["recognized_verbatim"]]
    assert f"the most probable for {found[0]} of the rows (retrained: {found[1]})" in SHORT
    far = [short(value) for value in scores["auc"]]
    assert f"(AUC) is {far[0]} (retrained: {far[1]}, which gives nothing away)" in SHORT


# results/README: methods whose Forget Quality T3 is ahead of in the worlds, and none ahead of T3.
AHEAD = {FIVE: "GradAscent, GradDiff, IdkDPO, ULD, UnDIAL", TEN: "IdkDPO, SimNPO, ULD, UnDIAL"}


def worlds_ahead(worlds):
    """{split: methods that T3 is ahead of by the 95% interval of the paired difference; those ahead
    of T3 with a minus sign}, computed by scipy.
    """
    found = {}
    for split, part in worlds.groupby("split"):
        fq = part.pivot(index="world", columns="method", values="fq_held_out")
        found[split] = set()
        for name in fq.columns.drop(["T3", "Original", "Retrained"]):
            low, high = ttest_rel(fq["T3"], fq[name]).confidence_interval(0.95)
            found[split] |= {name} if low > 0 else {f"-{name}"} if high < 0 else set()
    return found


def test_what_readme_says_was_found_is_what_the_tables_say():
    scores = {
        name: table(name, "tofu").set_index(["method", "split"]) for name in ("cpu", "tofu-cpu")
    }
    cold = pd.concat(
        table(name, "temperature").query("T == 1 and n_seeds > 0")["fq_held_out"] for name in scores
    )
    assert len(cold) == 4 and cold.max() < 0.01 and "is below 0.01 on every split" in SHORT
    utility = [
        [short(scores[name].loc[(who, TEN), "mu"]) for who in ("Original", "T3")] for name in scores
    ]
    price = [" → ".join(pair) for pair in utility]
    assert f"Model Utility: {price[0]} and {price[1]}, in the paper 0.64 → 0.61" in SHORT
    words = [
        " → ".join(short(scores[name].loc[(who, TEN), "mu_rouge"]) for who in ("Original", "T3"))
        for name in scores
    ]
    assert f"(MU-ROUGE {words[0]} on the 10% split of `cpu`, {words[1]} on TOFU's text)" in SHORT
    dials = {split: table("cpu", f"dials--{split}") for split in (FIVE, TEN)}
    sharp, warm = (
        [short(each[each[one] == 1]["fq"].max()) for each in dials.values()] for one in ("T", "w")
    )
    said = f"reaches {sharp[0]} (5%) and {sharp[1]} (10%), tempering {warm[0]} and {warm[1]}"
    assert said in SHORT
    worlds = pd.read_csv(ROOT / "results/cpu-worlds/tables/worlds_each.csv")
    assert set(worlds["world"]) == set(range(1, 8)) and "In seven other invented worlds" in SHORT
    means = worlds.groupby(["method", "split"])["fq_held_out"].mean()
    ours, goal = (
        [short(means[(who, split)]) for split in (FIVE, TEN)] for who in ("T3", "Retrained")
    )
    assert (
        f"{ours[0]} (5%) and {ours[1]} (10%), a retrained model's {goal[0]} and {goal[1]}" in SHORT
    )
    for split, ahead in worlds_ahead(worlds).items():
        assert not ahead & {"RMU", "WGA", "-RMU", "-WGA"}
        assert len(ahead) == {FIVE: 5, TEN: 4}[split] and ", ".join(sorted(ahead)) == AHEAD[split]
    assert "a third of the fastest baseline's time at `cpu`" in WORDS
    here = table("tofu-cpu", "runtime").query("split == @TEN").set_index("method")
    t3 = here.loc["T3 (preprocessed)", ["train_s", "features_s"]].sum()
    seconds = [f"{t3:.0f} s", *(f"{here.loc[name, 'train_s']:.0f}" for name in ("NPO", "SimNPO"))]
    assert (
        "T3 takes {} with its features, and NPO and SimNPO {} and {} s.".format(*seconds) in WORDS
    )
    for split in (FIVE, TEN):
        times = table("cpu", "runtime").set_index(["split", "method"]).loc[split]
        ours = times.loc["T3 (preprocessed)", ["train_s", "features_s"]].sum()
        others = times["train_s"].filter(regex="^[^T]")
        assert ours / others.min() == pytest.approx(1 / 3, abs=0.06)


@pytest.mark.parametrize(("text", "place"), [(TEXT, ROOT), (DETAIL, ROOT / "results")])
def test_every_path_named_exists(text, place):
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    names = re.findall(r"`((?:tests|t3lib|notebooks|results)/[\w./-]+)`", text)
    names = [name for name in names if name != "results/llama-8b"]  # made on a rented machine
    assert len(links) > 15
    missing = [name for name in links if not (place / name).exists()]
    assert missing + [name for name in names if not (ROOT / name).exists()] == []
    rows = [line for line in text.splitlines() if line.startswith("|")]
    made = [name for row in rows for name in re.findall(r"`((?:tables|figures)/[\w.-]+)`", row)]
    assert place == ROOT or len(made) >= 8, "what the paper map says that notebooks leave"
    assert [name for name in made if not (ROOT / "results" / "cpu" / name).exists()] == []


def test_every_command_parses():
    """A command of the README is one the parser accepts; its notebooks exist."""
    parser = cli.parser()
    both = f"{TEXT}\n{DETAIL}"
    commands = re.findall(r"^    (t3 .+?)(?:  +#.*)?$", both, re.M)
    commands += re.findall(r"`(t3 [a-z]+ [^`]+)`", both)
    assert len(commands) >= 15
    for command in commands:
        arguments = parser.parse_args(shlex.split(command)[1:])
        for name in getattr(arguments, "only", None) or ():
            assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), command


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)(?:^    |`)make ([a-z-]+)\b(?!=)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.M), target
