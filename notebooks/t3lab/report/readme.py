"""Write the generated blocks of README.md, results/README.md and results/pages from the results, so
that no number in them is typed by hand, and the figures headline.svg and chosen.svg in
results/pages.

Run `python -m t3lab.report.readme`. A block lies between `<!-- generated:NAME -->` and
`<!-- /generated:NAME -->`.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from runpy import run_path

import pandas as pd
from matplotlib.figure import Figure

from t3lab.names import FAILS, HOLDS, NO_ORDER, NOT_RUN, RESTRICTED
from t3lab.report import departures, details, own, plots, plots_gate, render
from t3lab.report.details import LABELLED, LABELS, TITLES, interval, made, short, table
from t3lab.report.tables import BOTH_DIALS, OURS, OWN_RATE, SHARE, leaders, with_means
from t3lab.results import AUTHOR_ROWS, all_rows, paper_table
from t3lib.baselines.losses import METHODS
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root, read_json

SPLIT = "forget10"
CHANCE = "chance may explain it"  # what a page says for `NO_ORDER`
MARK = re.compile(r"<!-- generated:(\S+) -->")  # the line before a block
PAPER = "The paper, Llama 3.1 8B, TOFU's text"
# Column of a table -> its head. The first two are over worlds.
COLUMNS = {
    "world_forget05": "D over worlds, 5%",
    "world_forget10": "D over worlds, 10%",
    "ks_held_out": "D",
    "paired_r": "row r",
    "paired_gap": "row gap",
    "retain_rouge": "retain: words",
    "retain": "retain: score",
    "unrelated": "unrelated: words",
    "sampled": "kept, sampled",
}
SEARCHED = {"cpu": "studies/cpu-worlds"}
SEARCHED |= {scale: f"profiles/{scale}" for scale in ("tofu-cpu", "smollm")}
HEADLINE = [name for name in COLUMNS if name != "paired_gap"]
DRAWN = ("ks_held_out", "retain", "retain_rouge", "unrelated")
OUR_DIALS = dict(zip(OURS, ("θ = {:g}", "neutral", "θ = {:g}, neutral")))
CLAIMS = (
    "fq-best",
    "mu-rouge-best",
    "more-stable",
    "t5-untempered",
    "generation-kept",
    "five-seconds",
)


def blocks(results: Path) -> dict[str, dict[str, str]]:
    """Return {file: {name of a block: its text}} of the files that people read, by the marks in
    them.

    results: the folder of all results. A block is written by this module, by `details`, `own` or
    `departures`, or by `blocks` in a study's page.py. That of a finished study is a file,
    STUDY/blocks/NAME.md in its folder. UserError for a mark without a block.
    """
    found = {
        "hides": hides(results),
        "claims": claims(results),
        "verdicts": verdicts(results),
        "near": near(results),
        "order": order(results),
        "own": own.summary(results / "studies" / "own"),
        "own-models": own.models(results / "studies" / "own"),
        "own-judged": own.judged(results / "studies" / "own"),
        "own-parts": own.parts(results / "studies" / "own"),
        "own-untouched": own.untouched(results / "studies" / "own"),
        "own-rmu": own.beside_rmu(results / "studies" / "own"),
        "own-tricks-smollm2": own.models(results / "studies" / "own" / "tricks", True, "all"),
        "own-smollm2": own.models(results / "studies" / "own", pretrained=True),
        "departures": departures.listed(results / "profiles" / "cpu"),
        **details.blocks(results),
    }
    for script in sorted(results.glob("*/*/page.py")):
        found |= of_study(results, script.parent.relative_to(results).as_posix())
    for path in sorted(results.glob("*/*/blocks/*.md")):
        found[path.stem] = path.read_text(encoding="utf-8").rstrip("\n")

    # each file has the blocks that its marks name
    root, parts = results.parent, dict[str, dict[str, str]]()
    for path in (root / "README.md", results / "README.md", *sorted(results.glob("pages/*.md"))):
        names = MARK.findall(path.read_text(encoding="utf-8"))
        if missing := [name for name in names if name not in found]:
            raise UserError(f"{path}: nothing writes the block {missing[0]}")
        parts[path.relative_to(root).as_posix()] = {name: found[name] for name in names}
    return parts


def of_study(results: Path, study: str) -> dict[str, str]:
    """Return the blocks that a study's page.py writes. study: its folder in `results`,
    such as "studies/gate".
    """
    blocks: dict[str, str] = run_path(str(results / study / "page.py"))["blocks"](results)
    return blocks


def hides(results: Path) -> str:
    """Write what T3 hides and what it does not, on the split `SPLIT`: sums of rows and means of
    shares over the worlds in which nothing was tuned.

    results: the folder of all results.
    """
    folder = results / "studies" / "cpu-worlds" / "tables"
    each, rivals, texts, asked = (
        pd.read_csv(folder / f"{name}.csv").query("split == @SPLIT and 1 <= world <= 7")
        for name in ("guided_each", "rivals_each", "guided_texts", "rivals_texts")
    )
    shares = pd.concat([each, rivals]).groupby("model")[["recognized", "auc"]].mean()
    texts = pd.concat([texts, asked])
    plain = texts[texts["way"] == "as written"]
    rows = plain.groupby(["tau", "model"])[["rows", "whole"]].sum()
    samples = plain.groupby("tau")["samples"].first()

    whole = f"told whole, of {rows['rows'].max()} rows: greedily"
    ways = {whole: 0.0} | {f"in {samples[tau]} samples at τ = {tau:g}": tau for tau in (1.0, 0.1)}
    found = {way: rows.loc[tau, "whole"].map("{:.0f}".format) for way, tau in ways.items()}
    percent = "{:.0%}".format
    found["recognised among six answers (chance: 17%)"] = shares["recognized"].map(percent)
    found["less probable than an unseen row (chance: 50%)"] = (1 - shares["auc"]).map(percent)
    names = {"T3": "T3", "RMU": "RMU", "Retrained": "retrained", "Original": "before"}
    shown = pd.DataFrame(found).T[[*names]].rename(columns=names)
    return table(shown.rename_axis("asked as learned").reset_index())


def verdicts(results: Path) -> str:
    """Write how many claims of the paper hold at profile cpu: of those about Gaussians and bounds,
    and of those about language models, which have a verdict for each scale.
    """
    path = results / "profiles" / "cpu" / "tables" / "claims.csv"
    found = render.by_claim(pd.read_csv(path))
    theory, models = (
        Counter(
            (here or claim)["verdict"]
            for claim, here in found
            if (here is not None or claim["verdict"] == NOT_RUN) == of_models
        )
        for of_models in (False, True)
    )
    words = {HOLDS: "hold", RESTRICTED: "under a condition", FAILS: "do not"}
    words |= {NO_ORDER: "chance may explain"}
    of_theory, of_models = (
        "none holds, " * (not counts[HOLDS])
        + ", ".join(f"{counts[each]} {said}" for each, said in words.items() if counts[each])
        for counts in (theory, models)
    )
    return (
        f"- **[Claims](results/profiles/cpu/tables/claims.md)** of the paper: of {theory.total()}"
        f" about theory {of_theory}; of {models.total() - models[NOT_RUN]} about language models at"
        f" `cpu` {of_models}."
    )


def headline(results: Path) -> str:
    """Write the tables of the 10% split, ours and the paper's, each after a line that says what was
    unlearned.

    results: the folder of all results. `cpu`, `cpu-worlds`, `tofu-cpu` and `paper` are read.
    """
    parts = []
    for name, scores in leading(results).items():
        run = read_json(
            next((results / "profiles" / name / "runs").glob(f"Retrained--{SPLIT}--*.json"))
        )
        n, references = len(run["truth_ratio"]["forget"]), scores["n_references"].max()
        size = _title(TITLES[name], run["trainable"] / 1e6, n, all_rows(run) or 0)
        plural = "s" if references > 1 else ""
        parts.append(f"{size}, {references:.0f} held-out retrained model{plural}.")
        parts.append(_lines(scores, f"{LABELLED[SPLIT]} split", HEADLINE))
    millions = paper_table(2).set_index("method")["trainable"]["Full Fine-Tuning"] / 1e6
    printed = paper_table(1).query("split == @SPLIT").set_index("method")
    printed = with_means(printed)
    parts.append(f"{_title(PAPER, millions, 400, 4000)}, no held-out retrained models.")
    parts.append(_lines(leaders(printed), f"{LABELLED[SPLIT]} split", ["fq", *HEADLINE]))
    return "\n\n".join(parts)


def leading(results: Path) -> dict[str, pd.DataFrame]:
    """Return {profile: what the headline shows of its Table 1, by method}, on the 10% split. The
    retrained model is last, after T3 with a gate where it ran.
    """
    shown = {}
    for name in made(results):
        scores = _scores(results, name, SPLIT)
        ranked = scores.assign(fq=-scores["ks_held_out"].fillna(scores["ks_statistic"]))
        *first, last = leaders(ranked.drop(index=[*OURS], errors="ignore")).index
        shown[name] = scores.loc[[*first, *scores.index.intersection(OURS[:1]), last]]
    return shown


def searches(results: Path) -> dict[str, pd.DataFrame]:
    """Return {scale: where T3 (least) was chosen, the table `guided_search`}, of the 10% split."""
    tables = {
        scale: pd.read_csv(results / place / "tables" / "guided_search.csv")
        for scale, place in SEARCHED.items()
    }
    return {scale: table[table["split"] == SPLIT] for scale, table in tables.items()}


def headline_figure(results: Path) -> Figure:
    """Draw the tables of `headline` but the paper's, with D over worlds where it was measured."""
    scales = {}
    for name, scores in leading(results).items():
        worlds = scores.get(f"world_{SPLIT}", pd.Series(dtype=object))
        labels = [_label(str(method), row) for method, row in scores.iterrows()]
        # parts of a label that a figure has no room for
        labels = [re.sub(r"\*\*|, learning.*| without.*", "", label) for label in labels]
        drawn = scores.assign(
            ks_held_out=worlds.reindex(scores.index).fillna(scores["ks_held_out"])
        )
        title = TITLES[name] + " (D over worlds; hollow: one world)" * (worlds.size > 0)
        scales[title.replace("`", "")] = drawn.set_axis(labels)
    return plots.headline(scales, {name: COLUMNS[name].replace(": ", ":\n") for name in DRAWN})


def near(results: Path) -> str:
    """Write how near every method is to held-out retrained models, by distribution and row by row,
    on both splits of our profiles.
    """
    parts = []
    for name, split in ((name, split) for name in made(results) for split in LABELLED):
        scores = _scores(results, name, split).dropna(subset=["ks_held_out"])
        if scores.empty:
            continue
        columns = [column for column in COLUMNS if not column.startswith("world")]
        parts += [f"{TITLES[name]}, {LABELLED[split]} split:", _lines(scores, "", columns)]
    return "\n\n".join(parts)


def order(results: Path) -> str:
    """Write T3's D minus each baseline's with its 95% interval: over the worlds, and on TOFU's text
    over draws of authors.
    """
    worlds = pd.read_csv(results / "studies" / "cpu-worlds" / "tables" / "worlds.csv")
    worlds = worlds[worlds["measure"] == "ks_held_out"]
    sources = {
        "worlds": worlds,
        "TOFU's text": pd.read_csv(results / "profiles/tofu-cpu/tables/order.csv"),
    }
    methods, columns = METHODS[2:-1], {}
    for (name, part), split in product(sources.items(), LABELLED):
        rows = part[part["split"] == split].set_index("method").loc[[*methods]]
        ends = map(interval, rows["t3_less"], rows["t3_low"], rows["t3_high"])
        shown = [f"**{each}**" if p < 0.05 else each for each, p in zip(ends, rows["p"])]
        columns[f"{name}, {LABELLED[split]}"] = shown
    return table(pd.DataFrame({"T3's D minus that of": methods} | columns))


def claims(results: Path) -> str:
    """Write the verdicts of the claims `CLAIMS` by the paper's own tables and at our profiles."""
    verdicts = {
        name: pd.read_csv(
            results / "profiles" / name / "tables" / "claims.csv", dtype=str
        ).set_index("id")
        for name in made(results)
    }
    rows = verdicts["cpu"].reindex(CLAIMS).dropna(subset=["claim"])
    columns = {"the paper says": rows["claim"], "where": rows["where"]}
    columns["its own tables"] = rows["printed"].fillna("no score").replace(NO_ORDER, CHANCE)
    for name, each in verdicts.items():
        said = each["verdict"].reindex([f"{claim}@here" for claim in rows.index])
        said = said.fillna("not run").replace(NO_ORDER, CHANCE)
        columns[f"here: `{name}`"] = said.set_axis(rows.index)
    return table(pd.DataFrame(columns), texts=len(columns))


def _scores(results: Path, name: str, split: str) -> pd.DataFrame:
    """Return our Table 1 of a profile and split by method, with what `COLUMNS` adds and a column
    `dials`, such as "w = 0.9". That of T3 without tempering is the learning rate of its runs. At
    `cpu` T3 with a gate and with neutral tokens has further rows.
    """
    folder = results / "profiles" / name / "tables"
    scores = pd.read_csv(folder / "tofu.csv").query("split == @split").set_index("method")
    if name == "cpu":
        ours = details.of_ours(results, split)
        gates = ours["gate"].items()
        ours["dials"] = [OUR_DIALS[str(each)].format(gate) for each, gate in gates]
        scores = pd.concat([scores, ours])

    tests = pd.read_csv(folder / "forget_quality.csv").query("split == @split and w != 1")
    # what was set after the training: w of T3, the share a of a baseline's weights
    for method, dialled in tests.dropna(subset=["w"]).groupby("method"):
        label, dial = (BOTH_DIALS, "w") if method == "T3" else (SHARE.format(method), "a")
        at = dialled if method != "T3" else dialled[dialled["T"].isin(scores["T"].filter([label]))]
        scores.loc[scores.index == label, "dials"] = f"{dial} = {at['w'].iloc[-1]:g}"

    # T3 without tempering has a learning rate of its own
    for run in sorted((results / "profiles" / name / "runs").glob(f"T3--{split}--T1--seed*.json"))[
        :1
    ]:
        rate = read_json(run)["hyper"]["lr"]
        scores.loc[scores.index == OWN_RATE, "dials"] = f"learning rate {rate:g}"

    # the mean D over the other worlds, with its interval
    over = results / "studies" / f"{name}-worlds" / "tables" / "worlds.csv"
    if over.is_file():
        worlds = pd.read_csv(over).query("measure == 'ks_held_out'")
        for label, part in worlds.groupby("split"):
            ends = list(zip(part["mean"], part["low"], part["high"]))
            scores[f"world_{label}"] = pd.Series(ends, part["method"]).reindex(scores.index)

    # answers to keep that one sample still says word for word
    kept = results / "studies" / "untempered" / "tables" / "untempered.csv"
    if name == "cpu" and kept.is_file():
        counts = pd.read_csv(kept).query("split == @split")
        shares = counts["retain_kept_sampled"] / counts["retain_rows"]
        means = shares.groupby(counts["T"].fillna(0)).mean()
        at = {"Original": 0.0, OWN_RATE: 1.0, "T3": scores.loc["T3", "T"]}
        scores["sampled"] = pd.Series({each: means.get(T) for each, T in at.items()})

    return with_means(scores)


def _title(title: str, millions: float, n: int, rows: int) -> str:
    """Say what was unlearned: the size of the model and the rows to forget.

    millions: of parameters. n: rows to forget, of `rows` rows in all.
    """
    size = f"{millions:,.1f}".removesuffix(".0") + " million parameters"
    return f"{title}: {size}, {n} of {rows:,} rows ({n // AUTHOR_ROWS} authors) to forget"


def _lines(scores: pd.DataFrame, head: str, columns: Sequence[str]) -> str:
    """Write rows of Table 1, without columns that are empty.

    scores: by method, with T and perhaps `dials`.
    """
    columns = [name for name in columns if name in scores and scores[name].notna().any()]
    shown = scores[columns].map(_cell)
    shown.insert(0, head, [_label(str(name), row) for name, row in scores.iterrows()])
    return table(shown.rename(columns=COLUMNS | {"fq": "Forget Quality"}))


def _cell(value: float | tuple[float, float, float]) -> str:
    return interval(*value, form=".2f") if isinstance(value, tuple) else short(value)


def _label(name: str, row: Mapping[str, object]) -> str:
    dials = "" if pd.isna(row.get("dials")) else f", {row['dials']}"
    if name.startswith("T3"):
        return f"**T3**, T = {row['T']:g}{dials}"
    return LABELS.get(name, name.removesuffix(" (a)") + dials)


def with_block(text: str, name: str, block: str) -> str:
    """Return a README's text with a block in its place; UserError if it has no such place."""
    start, end = f"<!-- generated:{name} -->\n", f"<!-- /generated:{name} -->"
    if start not in text or end not in text:
        raise UserError(f"there is no place for the block: {start.strip()}")
    return text.partition(start)[0] + start + block + "\n" + end + text.partition(end)[2]


def main() -> int:
    """Write every block and both figures into the files of the checkout."""
    root = project_root()
    pages = root / "results" / "pages"
    render.save_figure(pages / "headline.svg", headline_figure(root / "results"))
    render.save_figure(pages / "chosen.svg", plots_gate.by_errors(searches(root / "results")))
    for name, parts in blocks(root / "results").items():
        text = (root / name).read_text(encoding="utf-8")
        for block, content in parts.items():
            text = with_block(text, block, content)
        with atomic_write(root / name) as handle:
            handle.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
