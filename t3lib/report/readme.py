"""The README's generated blocks: no number in it is typed by hand. `python -m t3lib.report.readme` writes them anew.

A block lies between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->`; the tables of `results/` are its source.
"""

import re
import sys
from pathlib import Path

import pandas as pd

from t3lib.errors import UserError
from t3lib.files import atomic_write, project_root, read_json
from t3lib.report.verdicts import summary

RESULTS = "results"
SHOWN = ("Original", "Retrained", "T3")
UNLEARN, ABLATION, THEORY = "02_tofu_unlearning", "03_temperature_ablation", "01_synthetic_theory"
COSTS, TABLES = "04_efficiency", "05_paper_tables"
# Artefact of the paper, notebooks that make it, files they leave in results/<profile>/.
PAPER_MAP = (
    ("Table 1, TOFU results", (UNLEARN, TABLES), ("tables/tofu.csv", "tables/tofu_vs_paper.csv")),
    ("Table 2, trainable parameters", (COSTS, TABLES), ("tables/benchmarks_parameters.csv", "tables/parameters.csv")),
    ("Table 3, runtimes", (UNLEARN, TABLES), ("tables/runtime.csv",)),
    ("Table 4, every seed", (UNLEARN, TABLES), ("tables/tofu_per_seed.csv",)),
    ("Table 5, temperature; ablations", (ABLATION, TABLES), ("tables/temperature.csv", "tables/ablations.csv")),
    ("Figure 1, the architecture", (TABLES,), ("figures/architecture.svg",)),
    ("Figures 2–5, both synthetic experiments", (THEORY,), ("tables/synthetic.csv", "figures/")),
    ("Theorems 3.3–3.8, lemmas, remarks", (THEORY,), ("tables/bounds.csv",)),
    ("Cost against size and against its lower bound", (COSTS,), ("tables/benchmarks.csv",)),
    ("Every checkable claim", (TABLES,), ("tables/claims.csv",)),
)


def blocks(root: Path) -> dict[str, str]:
    """Name -> Markdown of every generated block, from the committed tables below `root`/results."""
    results = root / RESULTS
    return {
        "headline": headline(results),
        "map": paper_map(results / "cpu" / "manifest.json"),
        "minutes": minutes(results),
        "claims": summary(pd.read_csv(results / "cpu" / "tables" / "claims.csv", keep_default_na=False)),
    }


def headline(results: Path) -> str:
    """Forget Quality and MU-ROUGE of Original, the best baseline, T3 and retrained models, paper's and ours."""
    rows = ["| | split | " + " | ".join(("Original", "best baseline", "T3", "Retrained")) + " |"]
    rows.append("|---|---|---|---|---|---|")
    sources = [("the paper, Llama 3.1 8B on TOFU", results / "paper" / "table1.csv")]
    sources += [
        (f"ours, profile `{name}`", results / name / "tables" / "tofu.csv")
        for name in ("cpu", "tofu-cpu")
        if (results / name / "tables" / "tofu.csv").is_file()
    ]
    for title, path in sources:
        table = pd.read_csv(path)
        for split, part in table.groupby("split"):
            scores = part.dropna(subset=["fq"]).set_index("method")
            others = scores.drop(index=[name for name in SHOWN if name in scores.index])
            best = others.fq.idxmax() if len(others) else None
            cells = [_cell(scores, "Original"), _cell(scores, best, named=True), _cell(scores, "T3", T=True)]
            rows.append(f"| {title} | {split} | " + " | ".join([*cells, _cell(scores, "Retrained")]) + " |")
    note = "Each cell: Forget Quality / MU-ROUGE, means over seeds; tables with every method, seed and spread: "
    return "\n".join(rows) + f"\n\n{note}[`results/cpu/tables`](results/cpu/tables)."


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
            rows.append(f"`{path.parent.name}` with {seeds} seeds, {len(jobs)} jobs: {cost}")
    return "Measured on the machine that made the committed results (2 cores): " + "; ".join(rows) + "."


def paper_map(manifest: Path) -> str:
    """Each artefact, its notebooks, files and command, and the worker-minutes of the last run of cpu from nothing."""
    cold = read_json(manifest).get("cold") or {}
    spent = {kind: seconds / 60 for kind, seconds in cold.get("worker_seconds", {}).items()}
    rows = ["| in the paper | notebook | file | command | minutes |", "|---|---|---|---|---:|"]
    for artefact, notebooks, files in PAPER_MAP:
        links = " → ".join(f"[{name[:2]}](notebooks/{name}.ipynb)" for name in notebooks)
        names = ", ".join(f"`{name}`" for name in files)
        kinds = {*notebooks, "base"} if {UNLEARN, ABLATION} & set(notebooks) else set(notebooks)
        whole = sum(minutes for kind, minutes in spent.items() if kind in kinds)
        cost = f"{max(whole, 1):.0f}" if spent else ""
        rows.append(f"| {artefact} | {links} | {names} | `t3 reproduce --only {','.join(notebooks)}` | {cost} |")
    return "\n".join(rows)


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


def _cell(scores: pd.DataFrame, method: str | None, *, named: bool = False, T: bool = False) -> str:
    if method is None or method not in scores.index:
        return ""
    row = scores.loc[method]
    name = f"{method} " if named else f"T = {row['T']:g}: " if T and pd.notna(row["T"]) else ""
    quality = f"{row.fq:.2f}" if row.fq >= 0.005 else "0.00"
    return f"{name}{quality} / {row.mu_rouge:.2f}"


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
