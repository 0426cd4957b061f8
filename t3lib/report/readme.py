"""The README's generated blocks: no number in it is typed by hand. `python -m t3lib.report.readme` writes them anew.

A block lies between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->`; the tables of `results/` are its source.
"""

import re
import sys
from pathlib import Path

import pandas as pd

from t3lib.errors import UserError
from t3lib.files import atomic_write, project_root, read_json
from t3lib.names import VERDICTS
from t3lib.report.tables import leaders
from t3lib.report.verdicts import telling
from t3lib.results import all_rows

RESULTS = "results"
SHOWN = ("Original", "Retrained", "T3")
SPLIT = "forget10"
UNLEARN, ABLATION, THEORY = "02_tofu_unlearning", "03_temperature_ablation", "01_synthetic_theory"
COSTS, TABLES = "04_efficiency", "05_paper_tables"
# Artefact of the paper, notebooks that make it, files they leave in results/<profile>/.
PAPER_MAP = (
    ("Table 1, TOFU results", (UNLEARN, TABLES), ("tables/tofu.csv", "tables/tofu_vs_paper.csv")),
    ("Table 2, trainable parameters", (COSTS, TABLES), ("tables/benchmarks_parameters.csv", "tables/parameters.csv")),
    ("Table 3, runtimes", (UNLEARN, TABLES), ("tables/runtime.csv",)),
    ("Table 4, every seed", (UNLEARN, TABLES), ("tables/tofu_per_seed.csv",)),
    ("Table 5, temperature; ablations", (ABLATION, TABLES), ("tables/temperature.csv", "tables/ablations.csv")),
    ("Remark 3.6, a sharper classifier", (ABLATION,), ("tables/dials--forget10.csv", "figures/dials--forget10.svg")),
    ("Figure 1, the architecture", (TABLES,), ("figures/architecture.svg",)),
    ("Figures 2–5, both synthetic experiments", (THEORY,), ("tables/synthetic.csv", "figures/")),
    ("Theorems 3.3–3.8, lemmas, remarks", (THEORY,), ("tables/bounds.csv",)),
    ("Seconds, operations and bytes", (COSTS,), ("tables/benchmarks.csv",)),
    ("Every checkable claim", (TABLES,), ("tables/claims.csv",)),
)
# What `t3 bench --gpu` measures: in words, what is wanted, and the row of its table.
GPU = (
    ("a head trained at Llama-3.1-8B's shape", "≤ 0.3 s", "head training"),
    ("features", "", "features"),
    ("scoring five temperatures, in times of one", "≤ 1.2", "scoring five temperatures"),
    ("T3 beside the base in a decoding step, one row", "≤ 2%", "decoding overhead, one row"),
    ("the same, 32 rows", "≤ 2%", "decoding overhead, 32 rows"),
    ("one row, both compiled", "≤ 2%", "decoding overhead, compiled"),
    ("one row, NF4 base", "", "decoding overhead, NF4 base"),
    ("one step of NPO at Llama-3.2-1B's shape", "", "one step of NPO"),
)


def blocks(root: Path) -> dict[str, str]:
    """Name -> Markdown of every generated block, from the committed tables below `root`/results."""
    results = root / RESULTS
    return {
        "headline": headline(results),
        "map": paper_map(results / "cpu" / "manifest.json"),
        "minutes": minutes(results),
        "gpu": gpu(results / "gpu"),
        "claims": findings(pd.read_csv(results / "cpu" / "tables" / "claims.csv", keep_default_na=False)),
    }


def headline(results: Path) -> str:
    """Original, the best baseline, T3 and a retrained model on the 10% split, ours and the paper's, and T3's price."""
    sources = {
        "ours, invented authors (`cpu`)": results / "cpu" / "tables" / "tofu.csv",
        f"ours, TOFU's text (`tofu-cpu`{_forgotten(results / 'tofu-cpu')})": results
        / "tofu-cpu"
        / "tables"
        / "tofu.csv",
        "the paper, Llama 3.1 8B": results / "paper" / "table1.csv",
    }
    tables = {
        title: pd.read_csv(path).query(f"split == '{SPLIT}'") for title, path in sources.items() if path.is_file()
    }
    columns = [_column(table.dropna(subset=["fq"]).set_index("method")) for table in tables.values()]
    best = "best baseline (by Forget Quality, of those that keep half of MU-ROUGE)"
    names = ("before unlearning", best, "**T3**", "retrained without the rows")
    lines = [f"| 10% split | {' | '.join(tables)} |", "|---|" + "---|" * len(tables)]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in zip(names, zip(*columns))]
    ours = tables["ours, invented authors (`cpu`)"].set_index("method")
    before, after = ours.loc["Original"], ours.loc["T3"]
    legend = (
        "Each cell: Forget Quality / MU-ROUGE / Model Utility, means over seeds. T3's price is in the last two: at "
    )
    legend += f"profile `cpu` MU-ROUGE goes from {before.mu_rouge:.2f} to {after.mu_rouge:.2f}, Model Utility from "
    return "\n".join([*lines, "", f"{legend}{before.mu:.2f} to {after.mu:.2f}."])


def _forgotten(folder: Path) -> str:
    """ ", 400 of 4,000 rows forgotten", counted from the runs: a stage of TOFU may hold a part of its authors."""
    run = next((read_json(path) for path in (folder / "runs").glob(f"Original--{SPLIT}--*.json")), None)
    rows = run and all_rows(run)
    return f", {len(run['truth_ratio']['forget'])} of {rows:,} rows forgotten" if run and rows else ""


def _column(scores: pd.DataFrame) -> list[str]:
    """The cells of one source: Original, the best baseline with its name, T3 with its T, Retrained."""
    best = next(iter(leaders(scores, 1).index.difference(SHOWN)), "")
    labels = {"Original": "", best: f"{best}: ", "T3": "", "Retrained": ""}
    if "T3" in scores.index and pd.notna(scores.loc["T3", "T"]):
        labels["T3"] = f"T = {scores.loc['T3', 'T']:g}: "
    return [
        f"{label}{scores.loc[name, 'fq']:.2f} / {scores.loc[name, 'mu_rouge']:.2f} / {scores.loc[name, 'mu']:.2f}"
        if name in scores.index
        else ""
        for name, label in labels.items()
    ]


def findings(claims: pd.DataFrame) -> str:
    """At most three sentences a group of claims: the verdicts counted, then two that tell most (`verdicts.telling`).

    claims: the table of that name, empty cells as "". A claim about language models is counted as our runs decide it;
    its `scale` is the paper's model, or "here: …".
    """
    about_models = claims["scale"].str.match("Llama|here")
    here = claims["id"].str.endswith("@here")
    # Greedy text is a theorem, and what it says is about language models.
    told_there = claims["where"].str.match(r"Section 4|Table|Appendix F")
    groups = {
        "The theory and the Gaussian experiments": (~about_models, ~told_there),
        "Language models, asked of our own runs": (about_models & here, told_there),
    }
    lines = []
    for title, (counted, told) in groups.items():
        counts = claims[counted]["verdict"].value_counts()
        verdicts = ", ".join(_count(counts[verdict], verdict) for verdict in VERDICTS if verdict in counts)
        sentences = [f"Of {counted.sum()} claims {verdicts}.", *telling(claims[told])[:2]]
        lines.append(f"**{title}.** {' '.join(sentences)}")
    return "\n\n".join(lines)


def _count(number: int, verdict: str) -> str:
    """ "1 holds", "3 hold", "2 do not hold", "4 not run at this scale"."""
    plural = verdict.replace("holds", "hold", 1).replace("does not", "do not")
    return f"{number} {verdict if number == 1 else plural}"


def minutes(results: Path) -> str:
    """What a cold run of each profile cost here, from the manifest that `t3 reproduce` leaves."""
    rows = []
    for path in sorted(results.glob("*/manifest.json")):
        facts = read_json(path)
        cold, jobs = facts.get("cold") or {}, facts["jobs"]
        if (
            cold.get("jobs") == len(jobs) and "worker_seconds" in cold
        ):  # else some of it came from a cache, and the sum says nothing
            wall, busy, seeds = cold["seconds"] / 60, sum(cold["worker_seconds"].values()) / 60, len(cold["seeds"])
            cost = f"{wall:.0f} minutes from nothing ({busy:.0f} worker-minutes)"
            rows.append(f"`{path.parent.name}` with {seeds} seed{'s' if seeds != 1 else ''}, {len(jobs)} jobs: {cost}")
    if not rows:
        return "The committed results were made in several passes, so no minutes from nothing are given."
    return "Measured on the machine that made the committed results (2 cores): " + "; ".join(rows) + "."


def paper_map(manifest: Path) -> str:
    """Each artefact, its notebooks, files and command; with minutes only where a run of cpu from nothing tells them."""
    cold = read_json(manifest).get("cold") or {}
    spent = {kind: seconds / 60 for kind, seconds in cold.get("worker_seconds", {}).items()}
    rows = ["| in the paper | notebook | file | command |", "|---|---|---|---|"]
    if spent:
        rows = ["| in the paper | notebook | file | command | worker-minutes |", "|---|---|---|---|---:|"]
    for artefact, notebooks, files in PAPER_MAP:
        links = " → ".join(f"[{name[:2]}](notebooks/{name}.ipynb)" for name in notebooks)
        names = ", ".join(f"`{name}`" for name in files)
        kinds = {*notebooks, "base"} if {UNLEARN, ABLATION} & set(notebooks) else set(notebooks)
        whole = sum(minutes for kind, minutes in spent.items() if kind in kinds)
        cost = f" {max(whole, 1):.0f} |" if spent else ""
        rows.append(f"| {artefact} | {links} | {names} | `t3 reproduce --only {','.join(notebooks)}` |{cost}")
    return "\n".join(rows)


def gpu(folder: Path) -> str:
    """The rows of `t3 bench --gpu` with their peak memory; cells that no GPU has filled are empty."""
    rows, devices = ["| on one GPU | wanted | measured | memory |", "|---|---|---:|---:|"], set()
    path = folder / "benchmarks.csv"
    table = pd.read_csv(path).set_index("what") if path.is_file() else pd.DataFrame()
    for words, wanted, what in GPU:
        cells = ["", ""]
        if what in table.index and pd.notna(table.loc[what, "median"]):
            row = table.loc[what]
            cells = [f"{row['median']:.3g} {row['unit']}", f"{row['peak_memory_bytes'] / 1e9:.0f} GB"]
            devices.add(row["device"])
        rows.append(f"| {words} | {wanted} | {' | '.join(cells)} |")
    measured = f"Measured on {', '.join(sorted(devices))}." if devices else "Not measured yet: no GPU has run it."
    return "\n".join([*rows, "", measured])


def render(text: str, made: dict[str, str]) -> str:
    """The README with its blocks replaced; UserError when a block has no place or a place no block."""
    found = re.findall(r"<!-- generated:(\w+) -->", text)
    if sorted(found) != sorted(made):
        raise UserError(f"README.md has the blocks {sorted(found)}, not {sorted(made)}")
    for name, block in made.items():
        start, end = f"<!-- generated:{name} -->\n", f"<!-- /generated:{name} -->"
        before, _, rest = text.partition(start)
        text = before + start + block + "\n" + end + rest.partition(end)[2]
    return text


def main() -> int:
    """Write the blocks into README.md of the checkout."""
    root = project_root()
    path = root / "README.md"
    text = render(path.read_text(encoding="utf-8"), blocks(root))
    with atomic_write(path) as handle:
        handle.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
