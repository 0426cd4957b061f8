"""The generated blocks are current, and the files, headings and commands that the pages name are
there: README.md, results/README.md, the pages in results/pages and others that people write. Their
prose is reviewed by people.
"""

import csv
import re
import shlex
from itertools import product
from math import comb

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy.stats import binomtest, fisher_exact

from t3lab.report import departures, own, plots_gate, readme, render
from t3lab.study.ablations import ABLATIONS
from t3lib import cli
from t3lib.core.errors import UserError
from t3lib.core.files import read_json
from t3lib.own.kept import too_few
from t3lib.tofu.metrics import forget_quality_lattice

RETRAINED = "retrained without the rows"
SPLIT = "forget10"
LEAKING = ("leaking", "leaking_before")  # of own.csv
OWN = ROOT / "results" / "studies" / "own"
DETAIL = ROOT / "results" / "README.md"
PAGES = sorted((ROOT / "results" / "pages").glob("*.md"))
OTHERS = ["ARTIFACT.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
OTHERS += ["notebooks/t3lab/world/README.md", "results/studies/rehearsal/README.md"]
FILES = [ROOT / "README.md", DETAIL, *PAGES, *(ROOT / name for name in OTHERS)]
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]


def prose(text):
    """A text without code, tables and generated blocks."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"<!-- generated:(.*?) -->.*?<!-- /generated:\1 -->", "", text, flags=re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("    ", "|")))


def anchors(text):
    """The anchors that GitHub gives to the headings of a text."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(path, text):
    """The links of a Markdown text that lead nowhere. Links to the web are not followed."""
    links = re.findall(r"\]\(\s*([^)\s]*)\s*\)", text)
    for link in (each for each in links if "://" not in each):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve()
        if not target.exists():
            yield link
        elif anchor and anchor not in anchors(target.read_text("utf-8") if name else text):
            yield link


def test_generated_blocks_are_those_of_the_committed_tables():
    for name, parts in readme.blocks(ROOT / "results").items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for block, content in parts.items():
            again = readme.with_block(text, block, content)
            assert again == text, f"{block} in {name}: run `python -m t3lab.report.readme`"
    with pytest.raises(UserError, match="no place"):
        readme.with_block("# nothing", block, content)


def test_a_mark_that_nothing_writes_is_named(tmp_path):
    (tmp_path / "results").symlink_to(ROOT / "results")
    (tmp_path / "README.md").write_text("<!-- generated:nothing -->\n")
    with pytest.raises(UserError, match="nothing writes the block nothing"):
        readme.blocks(tmp_path / "results")


def cells_of(block, path):
    """The cells of a generated table: {(row, column): text}."""
    mark = f"<!-- generated:{block} -->(.*?)<!-- /"
    head, _, *lines = re.search(mark, TEXTS[path], re.S)[1].strip().splitlines()
    titles = [cell.strip() for cell in head.strip("|").split("|")]
    return {
        (name.strip(" *"), title): cell.strip()
        for name, *row in (line.strip("|").split("|") for line in lines)
        for title, cell in zip(titles[1:], row, strict=True)
    }


def test_the_table_against_rivals_is_of_the_seven_untuned_worlds():
    """By hand: the mean over seeds in a world, then t(6) sd / √7 over the worlds 1 to 7."""
    cells = cells_of("against", DETAIL)
    short = {place: cell.split(" ± ")[0] for place, cell in cells.items()}
    assert cells_of("result", ROOT / "README.md").items() <= short.items()
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "tables"
    errors, guided, worlds = (
        [row for row in csv.DictReader((tables / f"{name}.csv").open()) if row["split"] == SPLIT]
        for name in ("errors_each", "guided_each", "worlds_each")
    )
    untempered = {"method": "T3", "lr": "0.04", "temperature": "1.0", "w": "1.0", "gate": "1.0"}
    for found, wanted, measure, cell in (
        (errors, {"method": "RMU"}, "leak", cells["RMU", "leak"]),
        (errors, untempered, "retain_error", cells["T3 (T = 1)", "Retain Error"]),
        (guided, {"model": "T3 (least)"}, "leak", cells["T3 (least)", "leak"]),
        (guided, {"model": "T3 (least)"}, "ks_statistic", cells["T3 (least)", "D"]),
        (worlds, {"method": "T3"}, "retain", cells["T3", "score"]),
    ):
        means = [
            np.mean(
                [
                    float(row[measure])
                    for row in found
                    if row | wanted == row and int(row["world"]) == n
                ]
            )
            for n in range(1, 8)
        ]
        half = 2.446912 * np.std(means, ddof=1) / 7**0.5
        assert cell == f"{np.mean(means):.2f} ± {half:.2f}", (wanted, measure)


def test_the_sentence_about_forget_quality_is_that_of_the_worlds():
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "tables"
    each = [pd.read_csv(tables / f"{name}.csv") for name in ("guided_each", "baselines_each")]
    each = pd.concat(each).query("split == @SPLIT and 1 <= world <= 7 and forget_quality < 0.05")
    counts = each.groupby("model")["world"].nunique()
    [count] = {counts["T3 (least)"], counts["RMU (least)"]}
    told = f"rejects T3 (least) and RMU (least) in {count} of 7 worlds each."
    assert told in " ".join(TEXTS[ROOT / "results" / "pages" / "least.md"].split())


def test_the_numbers_that_people_typed_into_readme_are_those_of_the_tables():
    text = " ".join(TEXTS[ROOT / "README.md"].split())
    stories = pd.read_csv(ROOT / "results/profiles/smollm/tables/stories_by_T.csv")
    plain = stories[(stories["w"] == 1) & (stories["gate"] == 1)]

    def one(story, head, T, column):
        rows = plain[(plain["story"] == story) & (plain["head"] == head)]
        return int(rows.loc[rows["T"] == T, column].item())

    learned, known = stories["story"].unique()[::-1]
    assert f"0.0005, {one(learned, 'weak', 4, 'said')} are said even at T = 4" in text
    assert one(learned, "strong", 2, "said") == 0 < one(learned, "strong", 1.5, "said")
    for head in ("stronger", "strongest"):
        assert (one(learned, head, 1, "said"), one(learned, head, 1, "as_before")) == (0, 40)
    stay = [one(known, *at, "as_before") for at in (("weak", 2), ("weak", 1), ("strongest", 1))]
    assert "answers {} stay (at T = 1: {}, and {} with rate 0.04)".format(*stay) in text

    cells = cells_of("against", DETAIL)
    told = (cells[row, "told in other ways"].split()[0] for row in ("RMU", "T3"))
    assert ") ({}; T3 {}).".format(*told) in text
    claims = pd.read_csv(ROOT / "results/profiles/cpu/tables/claims.csv").set_index("id")
    found = claims.loc["t5-untempered@here", "numbers"]
    small, large = re.findall(r"T3 \(T = 1\) (\d) of 7", found)
    assert f"in {large} of 7 worlds (5% split: {small} of 7)" in text

    wide = of_small_models()
    retrained = wide.loc["retrained", "status"].value_counts()
    told = f"of {retrained.sum()} retrained models {retrained['pass']} pass, six get a No."
    assert told in text and retrained["no"] == 6
    assert [*beyond_retrained(wide)] == [-1] and len(wide.loc["new fit"]) == 24
    assert "of 24 small models [one passes](results/pages/own.md), rightly by a judge." in text


def of_small_models():
    """The lines of all small models that learned rows by heart, with a column for each measure."""
    files = (OWN / "own.csv", OWN / "untouched" / "own.csv")
    lines = pd.concat(pd.read_csv(file, dtype=str) for file in files)
    lines = lines[~lines["model"].str.startswith("smollm2")]
    return lines.pivot(index=["choice", "model", "seed"], columns="measure", values="value")


def beyond_retrained(wide):
    """Of each pass, how many facts more the judge gets than of a retrained model."""
    passed = wide.loc["new fit"].query("status == 'pass'")
    return passed["judge"].astype(int) - passed["judge_retrained"].astype(int)


def test_own_models_are_told_as_their_lines_say():
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "own.md"].split())
    wide = of_small_models()
    fits, retrained = wide.loc["new fit"], wide.loc["retrained", "status"].value_counts()
    statuses = fits["status"].value_counts()
    assert (len(fits), statuses["pass"], statuses["cannot tell"]) == (24, 1, 2)
    assert "**Of 24 small models that learned their rows by heart one passes the report," in page
    assert not (beyond_retrained(wide) > 0).any() and "rightly by a judge, and of two it" in page
    assert f"{retrained['pass']} of 24 pass, six get a No." in page and retrained["no"] == 6
    tells = wide.loc["retrained", "leaking"].astype(int)
    assert "six retrained models tell one to four rows" in page
    assert sorted(tells[tells > 0]) == [1, 1, 1, 2, 2, 4]
    counts = [
        [fits.loc[(slice(None), seeds), name].astype(int).sum()
         for name in ("leaking", "rows")]
        for seeds in ([*"345"], [*"012"])
    ]  # fmt: skip
    (fresh, of), (developed, before) = counts
    told = f"{fresh} of {of} rows leak**, and {developed} of {before} where the fit was developed;"
    assert f"**Where nobody had looked {told} chance may explain" in page
    assert fisher_exact([[k, n - k] for k, n in counts]).pvalue > 0.05


def test_more_weight_decay_is_told_as_its_lines_say():
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "own_fits.md"].split())
    wide, kept = of_small_models(), ("held_out_retain_unchanged", "other_unchanged")
    more = wide.loc["more decay"]
    parts = more, wide.loc["new fit"].loc[more.index]
    leaks = [part["leaking"].astype(int).sum() for part in parts]
    stay = [part[[*kept]].astype(int).to_numpy().sum() for part in parts]
    gap = more["leaking"].astype(int) - parts[1]["leaking"].astype(int)
    p = binomtest(int((gap > 0).sum()), int((gap != 0).sum())).pvalue
    assert (
        ((gap < 0).sum(), (gap > 0).sum()) == (5, 1) and leaks[0] < leaks[1] and stay[0] > stay[1]
    )
    told = f"**Fewer rows leak** ({leaks[0]}; by `t3 unlearn` {leaks[1]}: in five models fewer, in"
    assert f"{told} one more, p = {p:.2f})" in page
    assert "more answers stay ({}; {}: more in three models, fewer in five)".format(*stay) in page


def test_the_first_finding_is_that_of_the_table():
    """README's sentences: which differences are larger than half their interval, and which are
    not.
    """
    cells = cells_of("against", DETAIL)

    def sign(row, column):
        gap, half = map(float, cells[row, column].split(" ± "))
        return 0 if abs(gap) <= half else 1 if gap > 0 else -1

    paper, least = "T3 minus RMU", "T3 (least) minus RMU (least)"
    assert (sign(paper, "D"), sign(paper, "word for word"), sign(paper, "Retain Error")) == (
        0,
        1,
        1,
    )
    assert (sign(least, "Retain Error"), sign(least, "word for word")) == (-1, 1)
    assert sign(least, "not fitted") == 0
    controls = pd.read_csv(ROOT / "results/studies/cpu-worlds/tables/controls.csv")
    price = controls.groupby(["fitted", "model"])["retain_error"].mean()
    unfitted, fitted = (price[n]["T3 (least)"] for n in (0, 1))
    readme = " ".join(TEXTS[ROOT / "README.md"].split())
    assert round(unfitted / fitted) == 2 and 1.4 < unfitted / price[0]["RMU (least)"] < 1.6
    more = f"costs {100 * (fitted / price[1]['Retrained'] - 1):.0f}% more"
    assert f"{more} (unfitted rows: twice as much, half more than RMU)" in readme
    refuse, floor = (
        controls.groupby("model")["forget_error"].mean()[m] for m in ("Refused", "Retrained")
    )
    assert f"(a refusing list: {refuse / floor:.1f};" in readme
    worlds = pd.read_csv(ROOT / "results/studies/cpu-worlds/tables/worlds_each.csv")
    words = worlds[worlds["split"] == SPLIT].groupby("method")["unrelated"].mean()
    assert f"world facts ({words['T3']:.2f}; RMU {words['RMU']:.2f})" in readme
    assert sign(paper, "other ways") == sign(least, "other ways") == 1
    other = {
        row: float(cells[row, "other ways"].split()[0])
        for method in ("T3", "RMU")
        for row in (method, f"{method} (least)")
    }
    assert min(other["T3"], other["T3 (least)"]) >= 0.195, "a fifth or more"
    assert max(other["RMU"], other["RMU (least)"]) <= 0.105, "a tenth or less"
    forget = [float(cells[row, "Forget Error"].split()[0]) for row in ("T3 (least)", RETRAINED)]
    assert round(forget[0] / forget[1]) == 3

    tables = ROOT / "results" / "profiles" / "tofu-cpu" / "tables"
    least = pd.read_csv(tables / "guided_each.csv").set_index("model").loc["T3 (least)"]
    sharper = pd.read_csv(tables / "sharper.csv")
    power = f"f^{sharper.loc[sharper['chosen'], 'w'].item():g}"
    told = f"on TOFU's text (T = {least['temperature']:g} and a gate, or {power})"
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "least.md"].split())
    assert told in page and least["gate"] < 1
    readme, T = " ".join(TEXTS[ROOT / "README.md"].split()), least["temperature"]
    told = f"[{power}](results/pages/least_tofu.md) cost more than T = {T:g} behind a gate"
    search = pd.read_csv(tables / "guided_search.csv").query("chosen and labels == 'hard'")
    prices = (search["retain_error"], sharper.loc[sharper["chosen"], "retain_error"])
    assert told in readme and prices[0].item() < prices[1].item()


def test_what_the_guides_do_is_that_of_the_worlds_where_nothing_was_tuned():
    each = pd.read_csv(ROOT / "results" / "studies" / "cpu-worlds" / "tables" / "guided_each.csv")
    means = each[each["world"] > 3].groupby(["split", "model"]).mean(numeric_only=True)
    small, floor = (means.loc[(SPLIT, m)] for m in ("T3 (guided, small)", "Retrained"))
    ratio = small["forget_error"] / floor["forget_error"]
    told = f"[labels of a small model](results/pages/guided.md) {ratio:.1f} in four worlds, leaking"
    assert told in " ".join(TEXTS[ROOT / "README.md"].split()) and small["leak"] > floor["leak"]
    guides = [f"guide ({kind})" for kind in ("small", "smaller", "early")]
    prices = [
        part.loc[name, "retain_error"] / part.loc["Retrained", "retain_error"]
        for split in ("forget05", "forget10")
        for part, name in product([means.loc[split]], guides)
    ]
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "guided.md"].split())
    assert f"at {min(prices):.0f} to {max(prices):.0f} times a retrained model's price" in page


def test_what_a_pass_shows_is_exact():
    """Of n rows none leaks with chance (1 - q)^n, which is 5% at the bound q."""
    page = TEXTS[ROOT / "results" / "pages" / "works.md"]
    leak, _, stay = page[page.index("What does a pass show?") :].partition("Where all of k")
    for part, shares in ((leak, {10: 26, 40: 7, 100: 3}), (stay, {5: 55, 20: 86})):
        for n, percent in shares.items():
            bound = 0.05 ** (1 / n)
            assert round(100 * (1 - bound if part is leak else bound)) == percent
            assert re.search(rf"{percent}%( of such rows do| do)? if ([nk] is )?{n}\b", part)
    assert "of 8, two may change" in page and not too_few(6, 8) and too_few(5, 8)


def test_the_settings_beside_the_chosen_ones_are_those_of_the_searches():
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "tables"
    guided, others = (
        pd.read_csv(tables / f"{name}_search.csv").query("split == @SPLIT")
        for name in ("guided", "baselines")
    )
    best = guided[guided["chosen"] & (guided["labels"] == "hard")].iloc[0]
    same = guided.query("labels == 'hard' and lr == @best.lr")
    tie = same.query("temperature == 1.25 and gate == 0.5 and tail == 0.01").iloc[0]
    assert (
        best["temperature"] == 1 and f"{tie['retain_error']:.3f}" == f"{best['retain_error']:.3f}"
    )
    rmu = others[others["chosen"] & (others["method"] == "RMU")].iloc[0]
    step = others.query(
        "method == 'RMU' and lr == @rmu.lr and alpha_r == @rmu.alpha_r and a > @rmu.a"
    )
    step = step.sort_values("a").iloc[0]
    leaks = [f"{row['leak']:.3f}"[1:] for row in (tie, best, step, rmu)]
    price = f"{step['retain_error'] - rmu['retain_error']:.3f}"[1:]
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "least.md"].split())
    assert "leaks {} in place of {}. RMU's next step leaks {} in place of {}".format(*leaks) in page
    assert f"for {price} nats." in page


def test_the_page_about_tofus_text_is_that_of_both_bases():
    first = ROOT / "results" / "profiles" / "tofu-cpu"
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "least_tofu.md"].split())
    ratios = []
    for folder in (first, first / "another-base"):
        each = pd.read_csv(folder / "tables" / "guided_each.csv").set_index("model")
        prices = each["retain_error"]
        ratios.append(prices[["T3 (least)", "T3 (guided)"]] / prices["Retrained"])
    (one, _), (other, guided) = ratios
    assert f"at {one:.1f} times its Retain Error on one base and at {other:.1f} times" in page
    assert f"{other:.2f} times a retrained model's ({one:.1f} times on the first base)" in page
    assert f"costs {guided:.1f} times as much" in page and other <= 1.15
    assert (
        each.loc["T3 (least)", "forget_quality"] < 0.05 <= each.loc["T3 (guided)", "forget_quality"]
    )

    tables = first / "another-base" / "tables"
    rmu = pd.read_csv(tables / "baselines_each.csv").set_index("model").loc["RMU (least)"]
    points = [pd.read_csv(tables / f"{name}_search.csv") for name in ("baselines", "guided")]
    rmus, t3s = (points[0]["method"] == "RMU").sum(), (points[1]["labels"] == "hard").sum()
    assert f"{rmus} points; T3 (least) had {t3s}" in page
    assert f"{rmu['retain_error'] / each.loc['Retrained', 'retain_error']:.2f} times a" in page
    least = each.loc["T3 (least)"]
    kept = "keeps {:.0%} of the answers word for word, where T3 (least) keeps {:.0%}"
    assert kept.format(rmu["kept_before"], least["kept_before"]) in page
    assert rmu["forget_error"] > least["forget_error"] and rmu["mu_rouge"] > least["mu_rouge"]
    assert (
        f"(p = {rmu['forget_quality']:.2f})" in page and f"*RMU (least)* a = {rmu['a']:g}," in page
    )
    wga = pd.read_csv(tables / "baselines_each.csv").set_index("model").loc["WGA (least)"]
    wgas = (points[0]["method"] == "WGA").sum()
    price = f"costs {wga['retain_error'] / each.loc['Retrained', 'retain_error']:.2f} times as much"
    told = f"**WGA** ({wgas} points) {price} as a retrained model, keeps {wga['kept_before']:.0%},"
    assert f"{told} and D rejects it." in page and wga["forget_quality"] < 0.05
    assert f"*WGA (least)* a = {wga['a']:g}." in page
    hard = points[1][points[1]["chosen"] & (points[1]["labels"] == "hard")].iloc[0]
    assert (hard["temperature"], hard["gate"]) == (2, 0.5)


def test_guides_that_are_trained_are_told_as_the_tables_say():
    folder = ROOT / "results" / "profiles" / "tofu-cpu" / "another-base"
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "least_tofu.md"].split())
    each = pd.read_csv(folder / "tables" / "guided_each.csv").set_index("model")
    guides = each.loc[[f"T3 (guided, {name})" for name in ("small", "smaller", "early")]]
    ngrams, floor, early = each.loc["T3 (guided)"], each.loc["Retrained"], guides.iloc[2]
    errors = ["forget_error", "retain_error"]
    assert (guides[errors] < ngrams[errors]).all(axis=None)
    assert (guides["harmless"] > ngrams["harmless"]).all()
    ratios = early[errors] / floor[errors]
    assert "{:.1f} times its Forget Error, {:.1f} times its Retain Error,".format(*ratios) in page
    assert (
        abs(early["leak"] - floor["leak"]) < 0.005 and guides["retain_error"].idxmin() == early.name
    )
    assert (early["gate"], early["temperature"]) == (0.5, 4) and "behind θ = .5 at T = 4" in page
    assert [*(guides["forget_quality"] < 0.05)] == [False, True, True]
    price = guides.iloc[0]["retain_error"] / floor["retain_error"]
    assert f"costs {price:.1f} times as much." in page
    made = read_json(folder / "guided" / "made.json")["trainings"]
    whole = made.pop("a retrained model")
    shares = [f"{each['cpu_seconds'] / whole['cpu_seconds']:.0%}" for each in made.values()]
    assert "They take {}, {} and {} of a".format(*shares) in page
    parts = [round(whole["parameters"] / each["parameters"]) for each in made.values()]
    assert parts == [3, 8, 1] and made["early"]["epochs"] / whole["epochs"] == 3 / 16
    search = pd.read_csv(folder / "tables" / "guided_search.csv")["labels"].value_counts()
    assert {search[kind] for kind in ("small", "smaller", "early")} == {400}


def test_free_text_on_tofus_text_is_that_of_the_table():
    """By hand: Fisher's exact test of 100 rows and 100 is a sum of hypergeometric chances."""
    tables = ROOT / "results" / "profiles" / "tofu-cpu" / "another-base" / "tables"
    texts = pd.read_csv(tables / "free_texts.csv").set_index(["model", "way", "tau"])
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "least_tofu.md"].split())

    def p(one, other, n=100):
        both = [comb(n, k) * comb(n, one + other - k) for k in range(one + other + 1)]
        return sum(each for each in both if each <= both[one]) / sum(both)

    assert set(texts["rows"]) == {100}
    cells = cells_of("free_texts_tofu", ROOT / "results" / "pages" / "least_tofu.md")
    shown = {model for model, _ in cells}
    assert len(shown) == len(texts.index.unique("model")) == 7 and "T3" in shown
    written = texts.xs("as written", level="way")["whole"]
    fewest, most = written["RMU (least)"].min(), written["RMU (least)"].max()
    assert f"As written RMU (least) tells {fewest} to {most} rows whole, T3 hardly one." in page
    assert written[["T3", "T3 (least)", "T3 (guided)"]].max() == 1
    told = texts["leaks"].droplevel("tau").drop("as written", level="way")
    second = [told[name, "as a second turn"] for name in ("T3 (least)", "Original")]
    assert "T3 (least) hides hardly anything** ({} rows, {} before)".format(*second) in page
    least, rmu, floor = (
        told[name, "in 13 other ways"] for name in ("T3 (least)", "RMU (least)", "Retrained")
    )
    assert f"gives away {least} of 100, RMU {rmu}, a retrained model {floor} (" in page
    assert f"p = {p(least, floor):.4f}, picked after looking;" in page and 2.5 < least / floor < 3.5
    of = texts.xs("as written", level="way")["leaks"].unstack("tau")
    by_rule = ["T3 (least)", "T3 (guided)", "RMU (least)"]
    wga = told["WGA (least)", "in 13 other ways"]
    assert f"WGA (least) gives away least of the four that the rule chose**, {wga} in" in page
    assert (texts["whole"].xs("WGA (least)") == 0).all() and "no row whole" in page
    ways = texts["leaks"].unstack("model")[["WGA (least)", *by_rule]].sum()
    assert ways.idxmin() == "WGA (least)"
    more = of.loc[["T3", *by_rule]] > of.loc["Retrained"]
    assert more.mean(axis=None) > 0.7, "at most samplers"


def test_rmu_on_own_rows_is_told_as_its_lines_say():
    folder = ROOT / "results" / "studies" / "own"
    page = " ".join(TEXTS[ROOT / "results" / "pages" / "own.md"].split())
    lines = pd.concat(
        pd.read_csv(folder / name, dtype=str) for name in ("rmu.csv", "tricks/own.csv")
    )

    def values(model, choice, measure):
        same = (lines["model"] == model) & (lines["choice"] == choice)
        return lines.loc[same & (lines["measure"] == measure), "value"].astype(int)

    minutes = values("gpt2", "RMU", "seconds").mean() / 60
    assert round(minutes) == 9 and "take nine minutes of a core for sentences" in page
    assert f"T3's fit {values('gpt2', 'new fit', 'seconds').mean():.0f} seconds." in page
    for measure in ("leaking", "retain_unchanged", "held_out_retain_unchanged", "other_unchanged"):
        one, other = (values("gpt2", fit, measure).sum() for fit in ("new fit", "RMU (keeping)"))
        assert abs(one - other) <= 3
    leaking, before = (values("short", "RMU (keeping)", each).sum() for each in LEAKING)
    assert leaking > before / 2 and values("short", "new fit", "leaking").sum() == 0
    for kind in ("gpt2", "short"):
        changed = [values(kind, fit, "talk_changed") for fit in ("new fit", "RMU (keeping)")]
        assert changed[1].sum() / len(changed[1]) > 2 * changed[0].mean()


def test_what_nobody_fitted_costs_where_it_was_chosen_so():
    cells = cells_of("held_out", ROOT / "results" / "pages" / "least.md")
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "held-out" / "tables"
    each = [pd.read_csv(tables / f"{name}_each.csv") for name in ("guided", "baselines")]
    price = (
        pd.concat(each)
        .query("1 <= world <= 7")
        .pivot(index="world", columns="model", values="retain_error")
    )
    gap = price["T3 (least)"] - price["RMU (least)"]
    half = 2.446912 * gap.std(ddof=1) / 7**0.5
    told = cells["T3 (least) minus RMU (least)", "Retain Error"]
    assert told == f"{gap.mean():+.2f} ± {half:.2f}"
    for name in ("guided", "baselines"):  # the rule of guided.py, by hand
        search = pd.read_csv(tables / f"{name}_search.csv")
        kind = "labels" if name == "guided" else "method"
        floor = search[search[kind] == "Retrained"].iloc[0]
        few = search[search["leak"] <= floor["leak"] + 2 * floor["leak_se"]]
        for _, part in few[few[kind] != "Retrained"].groupby(kind):
            assert (
                part.loc[part["chosen"], "retain_error"].item() < part["retain_error"].min() + 1e-3
            )


def test_the_share_of_answers_that_t3_unlearn_changes_is_that_of_the_small_models():
    fits = of_small_models().loc["new fit"]
    known, same = (
        sum(fits[f"{name}_{key}"].astype(int).sum() for name in ("held_out_retain", "other"))
        for key in ("known_before", "unchanged")
    )
    of = f"of the answers that it was not fitted on ({len(fits)} models"
    assert f"changes {1 - same / known:.0%} {of}" in " ".join(
        TEXTS[ROOT / "results" / "pages" / "neighbours.md"].split()
    )


@pytest.mark.parametrize("choice", own.PARTS)
def test_the_sign_test_of_another_fit_is_that_of_the_models(choice):
    """By hand, from the lines of own.csv: a sum of binomial chances."""
    told: dict[tuple[str, ...], dict[str, int]] = {}
    with (ROOT / "results" / "studies" / "own" / "tricks" / "own.csv").open() as file:
        for line in csv.DictReader(file):
            if line["measure"] == "leaking" and not line["model"].startswith("smollm2"):
                of_model = told.setdefault((line["model"], line["seed"]), {})
                of_model[line["choice"]] = int(line["value"])
    pairs = {model: each for model, each in told.items() if choice in each}
    gaps = [each[choice] - each["new fit"] for each in pairs.values()]
    more, fewer = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    n, most = more + fewer, max(more, fewer)
    p = min(1, 2 * sum(comb(n, k) for k in range(most, n + 1)) / 2**n)
    cells = cells_of("own-parts", ROOT / "results" / "pages" / "own_fits.md")
    signs = f"{more} / {fewer} of {len(pairs)} (p = {p:.2f})"
    assert cells[choice, "more / fewer leak"] == signs
    numbers = [each for (kind, _), each in pairs.items() if kind == "customers"]
    leaks = [sum(each[name] for each in numbers) for name in ("new fit", choice)]
    assert cells[choice, "phone and order numbers"] == f"{leaks[0]} → {leaks[1]}"


def test_cold_samples_of_least_are_those_of_the_table():
    """By hand: Fisher's exact test is a sum of hypergeometric chances."""
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "tables"
    texts = pd.read_csv(tables / "guided_texts.csv").query(
        "split == @SPLIT and 1 <= world <= 7 and way == 'as written'"
    )
    counts = texts.groupby(["model", "tau"])[["whole", "rows"]].sum()
    (one, n), (other, _) = (counts.loc[m, 0.3] for m in ("T3 (least)", "Retrained"))
    both = [comb(n, k) * comb(n, one + other - k) for k in range(one + other + 1)]
    p = sum(both[one:]) / sum(both)
    warm = [counts.loc[(m, 1.0), "whole"] for m in ("T3 (least)", "Retrained")]
    told = f"{one} of {n} rows away whole, of a retrained model {other} (Fisher,"
    told += f" one-sided, p = {p:.4f}, the smallest of four),"
    text = " ".join(TEXTS[ROOT / "results" / "pages" / "least.md"].split())
    assert told.replace("0.", ".") in text
    assert f"64 at τ = 1 give {warm[0]} and {warm[1]}." in text
    medium = [counts.loc[(m, 0.6), "whole"] for m in ("T3 (least)", "Retrained")]
    assert f"at 0.6 {medium[0]} and {medium[1]};" in text


def test_rows_that_are_told_whole_are_counted_alike_at_every_temperature():
    """Shares of facts stood beside rows that leak, which a hot sampler seldom makes."""
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "tables"
    texts = pd.concat(pd.read_csv(tables / f"{n}.csv") for n in ("guided_texts", "rivals_texts"))
    texts = texts[(texts["split"] == SPLIT) & texts["world"].between(1, 7)]
    texts = texts[texts["way"] == "as written"]

    def whole(model, tau):
        of = texts[(texts["model"] == model) & (texts["tau"] == tau)]
        return int(of["whole"].sum())

    cells = cells_of("hides", ROOT / "results" / "pages" / "audit.md")
    greedy, warm, cold, seen, _ = dict.fromkeys(row for row, _ in cells)
    for tau, row in ((0.0, greedy), (1.0, warm), (0.1, cold)):
        for model in ("T3", "RMU", "Retrained"):
            assert cells[row, model.replace("Ret", "ret")] == str(whole(model, tau))
        assert (f"τ = {tau:g}" in row) == (tau > 0)
    text = " ".join(TEXTS[ROOT / "README.md"].split())
    told = [(cells[greedy, name], cells[cold, name]) for name in ("T3", "retrained")]
    assert "of 553 rows T3 tells {} whole greedily, {} in 16 cold samples".format(*told[0]) in text
    assert "(a retrained model {} and {}),".format(*told[1]) in text
    known = [cells[seen, name] for name in ("T3", "retrained")]
    assert "recognises {} of their answers among six ({}; chance 17%)".format(*known) in text
    samples = texts.groupby("tau")["samples"].agg(["min", "max"])
    for tau, row in ((1.0, warm), (0.1, cold)):
        assert f"in {samples.loc[tau, 'min']} samples" in row
        assert samples.loc[tau, "min"] == samples.loc[tau, "max"]


def test_differences_and_other_ways_are_those_of_the_worlds():
    """By hand, as above: of the same world, and of rows and of facts in at least one way."""
    cells = cells_of("against", DETAIL)
    tables = ROOT / "results" / "studies" / "cpu-worlds" / "tables"
    each, texts, rivals, kept = (
        pd.read_csv(tables / f"{name}.csv").query("split == @SPLIT and 1 <= world <= 7")
        for name in ("errors_each", "guided_texts", "baselines_texts", "kept_ways")
    )
    t3 = each.query("lr == 0.005 and temperature == 3 and w == 1 and gate == 1")
    rmu = each[each["method"] == "RMU"]
    errors = [part.groupby("world")["retain_error"].mean() for part in (t3, rmu)]
    ways = pd.concat([texts, rivals]).query("way == 'in 13 other ways'").set_index("world")
    least = [ways[ways["model"] == f"{name} (least)"] for name in ("T3", "RMU")]
    leaks = [part["leaks"] / part["rows"] for part in least]
    told = [kept[kept["model"] == name].set_index("world")["said"] for name in ("T3", "RMU")]
    for row, column, (one, other) in (
        ("T3 minus RMU", "Retain Error", errors),
        ("T3 (least) minus RMU (least)", "other ways", leaks),
        ("T3 minus RMU", "told in other ways", told),
    ):
        gap = one - other
        half = 2.446912 * gap.std(ddof=1) / 7**0.5
        assert cells[row, column] == f"{gap.mean():+.2f} ± {half:.2f}", (row, column)


def of_finished(study, block):
    """The rows of a finished study's block, as lists of cells."""
    lines = (ROOT / "results" / study / "blocks" / f"{block}.md").read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_blocks_of_finished_studies_are_those_of_their_tables():
    """Nothing writes them any more."""
    tables = ROOT / "results" / "studies" / "cpu-width" / "tables"
    best, each = (
        pd.read_csv(tables / f"{name}.csv").query("setting == 'as the paper'").set_index("d")
        for name in ("width_best", "width")
    )
    utility = each.groupby("d")[["mu_before", "mu"]].mean().map("{:.2f}".format)
    for d, *cells in of_finished("studies/cpu-width", "widths"):
        row = best.loc[int(d)]
        assert cells == [
            *(f"{row['rate']:g}", f"{row['low']:g} to {row['high']:g}", f"{row['T']:.1f}"),
            *(f"{row['fq_held_out']:.2f}", " → ".join(utility.loc[int(d)])),
        ]
    lines = pd.read_csv(ROOT / "results" / "profiles" / "tofu-cpu" / "tables" / "two_bases.csv")
    lines = lines[lines[["fq_before", "fq_now"]].max(axis=1) >= 0.05].to_dict("records")
    for row, (_, *cells) in zip(lines, of_finished("profiles/tofu-cpu", "two-bases"), strict=True):
        pairs = [(row[f"{n}_before"], row[f"{n}_now"]) for n in ("fq", "D", "mu_rouge", "mu")]
        assert cells == [f"{before:.2f} → {now:.2f}" for before, now in pairs]


def test_forgetting_names_the_smallest_d_that_the_test_rejects():
    page = (ROOT / "results" / "pages" / "forgetting.md").read_text(encoding="utf-8")
    least = [(1 + np.argmax(forget_quality_lattice(n) < 0.05)) / n for n in (40, 80, 160, 200, 400)]
    assert " and ".join(", ".join(f"{D:.3f}" for D in least).rsplit(", ", 1)) in page


def test_the_headline_figure_has_every_method_and_value_of_the_tables(tmp_path):
    figure, scales = readme.headline_figure(ROOT / "results"), readme.leading(ROOT / "results")
    rows = np.reshape(figure.axes, (-1, len(readme.DRAWN)))
    titles = [axis.get_title(loc="left").split("\n")[-2] for axis in rows[0]]
    assert titles == ["← better", *["better →"] * 3]
    for axes, scores in zip(rows, scales.values(), strict=True):
        named = [label.get_text() for label in axes[0].get_yticklabels()]
        assert len(named) == len({*named}) == len(scores)
        assert all(("T3" in name) == ("T3" in method) for name, method in zip(named, scores.index))
        for axis, measure in zip(axes, readme.DRAWN):
            dots = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
            values = scores[measure].tolist()
            if measure == "ks_held_out" and "world_forget10" in scores:
                worlds = [
                    each[0] if isinstance(each, tuple) else None
                    for each in scores["world_forget10"]
                ]
                values = [D if over is None else over for over, D in zip(worlds, values)]
            assert dots == values
    drawn = render.save_figure(tmp_path / "headline", figure)
    texts = [
        path.read_text(encoding="utf-8")
        for path in (drawn, ROOT / "results" / "pages" / "headline.svg")
    ]
    # In the files, letters are paths with their text as a comment, and dots are uses of one path.
    words, again = (re.findall("<!-- .+? -->", text) for text in texts)
    assert words == again, "run `python -m t3lab.report.readme`"
    places, again = (re.findall('<use .*?x="(.+?)" y="(.+?)"', text) for text in texts)
    assert np.allclose(np.array(places, float), np.array(again, float), atol=1)


def test_the_figure_of_chosen_points_has_them_and_the_errors_of_their_rate(tmp_path):
    searches = readme.searches(ROOT / "results")
    figure = plots_gate.by_errors(searches)
    rows = np.reshape(figure.axes, (len(searches), -1))
    for axes, search in zip(rows, searches.values(), strict=True):
        [best] = search[search["chosen"] & (search["labels"] == "hard")].to_dict("records")
        for axis, column in zip(axes, plots_gate.JUDGED, strict=True):
            [star] = [line for line in axis.lines if line.get_marker() == "*"]
            assert star.get_xydata().tolist() == [[best["temperature"], best[column]]]
            curve = axis.lines[0].get_xydata()
            same = search[(search["lr"] == best["lr"]) & (search["labels"] == "hard")]
            for T, value in curve:
                [line] = same[
                    (same["temperature"] == T)
                    & (same["gate"] == 1)
                    & (same["tail"] == best["tail"])
                ].to_dict("records")
                assert value == line[column]
            assert len(curve) == same["temperature"].nunique()
    drawn = render.save_figure(tmp_path / "chosen", figure).read_text(encoding="utf-8")
    again = (ROOT / "results" / "pages" / "chosen.svg").read_text(encoding="utf-8")
    words = [re.findall("<!-- .+? -->", text) for text in (drawn, again)]
    assert words[0] == words[1], "run `python -m t3lab.report.readme`"


def test_every_departure_names_a_test_that_is_there_or_is_a_setting_of_a_profile():
    for each in departures.DEPARTURES:
        path, _, test = each.test.partition("::")
        assert (ROOT / path).is_file() or not path, each.here
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8") if test else each.change
        assert not each.setting or each.setting in ABLATIONS


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_link_and_path_leads_somewhere(path):
    text = TEXTS[path]
    assert [*broken(path, text)] == []
    names = re.findall(r"`((?:tests|t3lib|notebooks|results)/[\w./-]+)`", text)
    names = [name for name in names if name != "results/llama-8b"]  # made on a rented machine
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_a_link_that_leads_nowhere_is_found():
    text = "# One two\n[a](#one-two) [b](#one) [c](README.md) [d](README.md#none)\n[e](gone.md)"
    assert [*broken(ROOT / "new.md", text)] == ["#one", "README.md#none", "gone.md"]


def test_the_paper_map_names_what_notebooks_leave():
    rows = [line for text in TEXTS.values() for line in text.splitlines() if line.startswith("|")]
    made = [name for row in rows for name in re.findall(r"`((?:tables|figures)/[\w.-]+)`", row)]
    assert len(made) >= 8
    assert [
        name for name in made if not (ROOT / "results" / "profiles" / "cpu" / name).exists()
    ] == []


@pytest.mark.parametrize("path", [DETAIL, *PAGES], ids=NAMES[1 : len(PAGES) + 2])
def test_a_page_is_short_begins_with_its_finding_and_is_listed(path):
    text = TEXTS[path]
    assert len(prose(text).split()) <= (600 if path == DETAIL else 900)
    if path != DETAIL:
        assert re.match(r"# .+\n\n\*\*[^*]+\*\*\n\n", text), "a title, then a finding in bold"
        assert f"](pages/{path.name})" in TEXTS[DETAIL]


def test_every_command_parses():
    """A command of these pages is one the parser accepts; its notebooks exist."""
    parser = cli.parser()
    text = re.sub(r"\\\n *", "", "\n".join(TEXTS[path] for path in FILES[: len(PAGES) + 2]))
    commands = re.findall(r"^    (t3 .+?)(?:  +#.*)?$", text, re.M)
    commands += re.findall(r"`(t3\s[a-z]+\s[^`]+)`", text)
    assert len(commands) >= 15
    for command in commands:
        arguments = parser.parse_args(shlex.split(command)[1:])
        for name in getattr(arguments, "only", None) or ():
            assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), command
