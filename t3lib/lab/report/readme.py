"""The README's generated blocks: no number in it is typed by hand. `python -m
t3lib.lab.report.readme` writes them.

A block lies between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->`; the tables of
`results/` are its source.
"""

import re
import sys
from pathlib import Path

import pandas as pd

from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root, read_json
from t3lib.lab.report.tables import BOTH_DIALS, leaders
from t3lib.lab.results import AUTHOR_ROWS, HELD_OUT, all_rows, paper_table
from t3lib.tofu.metrics import forget_quality_lattice

RESULTS = "results"
SHOWN = ("Original", "Retrained", "T3")
SPLIT = "forget10"
UNLEARN, ABLATION, THEORY = "02_tofu_unlearning", "03_temperature_ablation", "01_synthetic_theory"
COSTS, TABLES = "04_efficiency", "05_paper_tables"
# Artefact of the paper, notebooks that make it, files they leave in results/<profile>/.
PAPER_MAP = (
    ("Table 1, TOFU results", (UNLEARN, TABLES), ("tables/tofu.csv", "tables/tofu_vs_paper.csv")),
    (
        "Table 2, trainable parameters",
        (COSTS, TABLES),
        ("tables/benchmarks_parameters.csv", "tables/parameters.csv"),
    ),
    ("Table 3, runtimes", (UNLEARN, TABLES), ("tables/runtime.csv",)),
    ("Table 4, every seed", (UNLEARN, TABLES), ("tables/tofu_per_seed.csv",)),
    (
        "Table 5, temperature; ablations",
        (ABLATION, TABLES),
        ("tables/temperature.csv", "tables/ablations.csv"),
    ),
    (
        "Remark 3.6, a sharper classifier",
        (ABLATION,),
        ("tables/dials--forget10.csv", "figures/dials--forget10.svg"),
    ),
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
        "claims": findings(
            {
                name: pd.read_csv(results / name / "tables" / "claims.csv", keep_default_na=False)
                for name in ("cpu", "tofu-cpu")
            }
        ),
    }


def headline(results: Path) -> str:
    """The 10% split, ours and the paper's: what was unlearned, then every model with its scores,
    and T3's price.
    """
    titles = {"cpu": "ours, invented authors (`cpu`)", "tofu-cpu": "ours, TOFU's text (`tofu-cpu`)"}
    titles = {
        name: title
        for name, title in titles.items()
        if (results / name / "tables" / "tofu.csv").is_file()
    }
    paper = _scores(results / "paper" / "table1.csv")
    columns = [_column(results / name) for name in titles]
    columns.append(
        [f"{papers_millions():,.0f} million", "400 of 4,000 (20)", "none", *_cells(paper, {})]
    )
    names = ["parameters of the model", "rows to forget (authors)", "retrained models held out"]
    names += ["before unlearning", "baselines that no other baseline beats in both", "**T3**"]
    names += ["T3 with both dials, p^(1/T) f^w"]
    lines = [f"| 10% split | {' | '.join([*titles.values(), 'the paper, Llama 3.1 8B'])} |"]
    lines += ["|---|" + "---|" * len(columns)]
    rows = zip((*names, "retrained without the rows"), zip(*columns, strict=True), strict=True)
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    ours = {
        title: _scores(results / name / "tables" / "tofu.csv") for name, title in titles.items()
    }
    prices = [
        f"{table['mu']['Original']:.2f} to {table['mu']['T3']:.2f}"
        for table in (*ours.values(), paper)
    ]
    legend = (
        "Each cell: Forget Quality against held-out retrained models (in brackets: against the one "
    )
    legend += (
        "that settings were chosen on) and D, the distance that its test sees / MU-ROUGE / Model "
    )
    legend += (
        "Utility, means over seeds. The paper has one retrained model and prints no D. T3's"
        " price is "
    )
    legend += "Model Utility, column by column from "
    return "\n".join([*lines, "", f"{legend}{', '.join(prices)}. {_size_matters(results / 'cpu')}"])


def papers_millions() -> float:
    """Millions of parameters of the paper's model."""
    return paper_table(2).set_index("method")["trainable"]["Full Fine-Tuning"] / 1e6


def _scores(path: Path) -> pd.DataFrame:
    """Table 1's rows of the split by method, fq against held-out retrained models where there are
    any.
    """
    table = pd.read_csv(path).query(f"split == '{SPLIT}'").dropna(subset=["fq"]).set_index("method")
    table = table.reindex(columns=list(dict.fromkeys([*table, *HELD_OUT])))
    held = table["fq_held_out"]
    return table.assign(fq=held.fillna(table["fq"]), fq_tuned_on=table["fq"].where(held.notna()))


def _column(folder: Path) -> list[str]:
    """The cells of one profile: size of its model, rows to forget, references, then every model's
    scores.
    """
    scores, tests = (
        _scores(folder / "tables" / "tofu.csv"),
        pd.read_csv(folder / "tables" / "forget_quality.csv"),
    )
    run = read_json(next((folder / "runs").glob(f"Retrained--{SPLIT}--*.json")))
    n, rows = len(run["truth_ratio"]["forget"]), all_rows(run) or 0
    sharpened = (
        tests[(tests["split"] == SPLIT) & (tests["w"] != 1)]
        .dropna(subset=["w"])
        .set_index("T")["w"]
    )
    sizes = [f"{run['trainable'] / 1e6:.1f} million", f"{n} of {rows:,} ({n // AUTHOR_ROWS})"]
    held = scores["n_references"].max()
    return [*sizes, f"{held:.0f}" if held > 0 else "none", *_cells(scores, sharpened.to_dict())]


def _cells(scores: pd.DataFrame, strengths: dict[float, float]) -> list[str]:
    """Original, the best baselines, T3, T3 with both dials, Retrained; strengths: {T: w} of T3's
    second dial.
    """
    best = leaders(scores).index.difference([*SHOWN, BOTH_DIALS], sort=False)
    cells = []
    for names in (["Original"], best, ["T3"], [BOTH_DIALS], ["Retrained"]):
        lines = []
        for name, row in scores.reindex(names).dropna(subset=["fq"]).iterrows():
            label = f"{name}: " if name in best else f"T = {row['T']:g}" if row["T"] > 0 else ""
            label += f", w = {strengths[row['T']]:g}" if name == BOTH_DIALS else ""
            held = (
                f" ({row['fq_tuned_on']:.2f}), D {row['ks_held_out']:.2f}"
                if row["fq_tuned_on"] >= 0
                else ""
            )
            label = label.removesuffix(": ") + ": " if label else ""
            lines.append(f"{label}{row['fq']:.2f}{held} / {row['mu_rouge']:.2f} / {row['mu']:.2f}")
        cells.append("<br>".join(lines))
    return cells


def _size_matters(folder: Path) -> str:
    """What T3's D of a profile is worth with its own n, and with TOFU's 400 rows."""
    table = pd.read_csv(folder / "tables" / "forget_quality.csv").query(
        f"split == '{SPLIT}' and method == 'T3'"
    )
    d = _scores(folder / "tables" / "tofu.csv")["ks_held_out"]["T3"]
    if not d > 0:
        return ""
    worth = {n: forget_quality_lattice(n)[round(d * n) - 1] for n in (int(table["n"].max()), 400)}
    told = " and ".join(f"{value:.2f} with n = {n} rows" for n, value in worth.items())
    return f"Forget Quality falls with the number of rows: a D of {d:.2f} is {told}."


def findings(claims: dict[str, pd.DataFrame]) -> str:
    """The findings that matter, one a line: the sentences that the functions behind the claims
    write.

    claims: profile -> its table of claims, empty cells as "". A claim about language models has a
    sentence a profile; a claim of the theory is the same everywhere and has one.
    """
    lines: dict[str, list[str]] = {}
    for profile, table in claims.items():
        for row in table[table["plain"] != ""].to_dict("records"):
            here = row["id"].endswith("@here")
            if here or row["id"] not in lines:
                said = f"{f'`{profile}`: ' if here else ''}*{row['verdict']}*. {row['plain']}"
                lines.setdefault(row["id"], [f"- {row['claim']} ({row['where']})"]).append(said)
    return "\n".join(" ".join(said) for said in lines.values())


def minutes(results: Path) -> str:
    """What a cold run of each profile cost here, from the manifest that `t3 reproduce` leaves."""
    rows = []
    for path in sorted(results.glob("*/manifest.json")):
        facts = read_json(path)
        cold, jobs = facts.get("cold") or {}, facts["jobs"]
        if (
            cold.get("jobs") == len(jobs) and "worker_seconds" in cold
        ):  # else some of it came from a cache, and the sum says nothing
            wall, busy, seeds = (
                cold["seconds"] / 60,
                sum(cold["worker_seconds"].values()) / 60,
                len(cold["seeds"]),
            )
            cost = f"{wall:.0f} minutes from nothing ({busy:.0f} worker-minutes)"
            rows.append(
                f"`{path.parent.name}` with {seeds} seed{'s' if seeds != 1 else ''}, {len(jobs)}"
                f" jobs: {cost}"
            )
    if not rows:
        return (
            "The committed results were made in several passes, so no minutes from nothing are"
            " given."
        )
    return (
        "Measured on the machine that made the committed results (2 cores): "
        + "; ".join(rows)
        + "."
    )


def paper_map(manifest: Path) -> str:
    """Each artefact, its notebooks, files and command; with minutes only where a run of cpu from
    nothing tells them.
    """
    cold = read_json(manifest).get("cold") or {}
    spent = {kind: seconds / 60 for kind, seconds in cold.get("worker_seconds", {}).items()}
    rows = ["| in the paper | notebook | file | command |", "|---|---|---|---|"]
    if spent:
        rows = [
            "| in the paper | notebook | file | command | worker-minutes |",
            "|---|---|---|---|---:|",
        ]
    for artefact, notebooks, files in PAPER_MAP:
        links = " → ".join(f"[{name[:2]}](notebooks/{name}.ipynb)" for name in notebooks)
        names = ", ".join(f"`{name}`" for name in files)
        kinds = {*notebooks, "base"} if {UNLEARN, ABLATION} & set(notebooks) else set(notebooks)
        whole = sum(minutes for kind, minutes in spent.items() if kind in kinds)
        cost = f" {max(whole, 1):.0f} |" if spent else ""
        rows.append(
            f"| {artefact} | {links} | {names} | `t3 reproduce --only {','.join(notebooks)}`"
            f" |{cost}"
        )
    return "\n".join(rows)


def gpu(folder: Path) -> str:
    """The rows of `t3 bench --gpu` with their peak memory; cells that no GPU has filled are
    empty.
    """
    rows, devices = ["| on one GPU | wanted | measured | memory |", "|---|---|---:|---:|"], set()
    path = folder / "benchmarks.csv"
    table = pd.read_csv(path).set_index("what") if path.is_file() else pd.DataFrame()
    for words, wanted, what in GPU:
        cells = ["", ""]
        if what in table.index and pd.notna(table.loc[what, "median"]):
            row = table.loc[what]
            cells = [
                f"{row['median']:.3g} {row['unit']}",
                f"{row['peak_memory_bytes'] / 1e9:.0f} GB",
            ]
            devices.add(row["device"])
        rows.append(f"| {words} | {wanted} | {' | '.join(cells)} |")
    measured = (
        f"Measured on {', '.join(sorted(devices))}."
        if devices
        else "Not measured yet: no GPU has run it."
    )
    return "\n".join([*rows, "", measured])


def render(text: str, made: dict[str, str]) -> str:
    """The README with its blocks replaced; UserError when a block has no place or a place no
    block.
    """
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
