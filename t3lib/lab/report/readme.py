"""The README's headline table: no number in it is typed by hand. `python -m
t3lib.lab.report.readme` writes it.

It lies between `<!-- generated:headline -->` and `<!-- /generated:headline -->`; the tables of
`results/` are its source.
"""

import sys
from pathlib import Path

import pandas as pd

from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root, read_json
from t3lib.lab.report.tables import BOTH_DIALS, leaders
from t3lib.lab.results import AUTHOR_ROWS, HELD_OUT, all_rows, paper_table
from t3lib.tofu.metrics import forget_quality_lattice

SHOWN = ("Original", "Retrained", "T3")
SPLIT = "forget10"
TITLES = {"cpu": "ours, invented authors (`cpu`)", "tofu-cpu": "ours, TOFU's text (`tofu-cpu`)"}
ROWS = (
    "10% split",
    "parameters of the model",
    "rows to forget (authors)",
    "retrained models held out",
    "before unlearning",
    "baselines that no other baseline beats in both",
    "**T3**",
    "T3 with both dials, p^(1/T) f^w",
    "retrained without the rows",
)
START, END = "<!-- generated:headline -->\n", "<!-- /generated:headline -->"
LEGEND = (
    "Each cell: Forget Quality against held-out retrained models (in brackets: against the one that"
    " settings were chosen on) and D, the distance that its test sees / MU-ROUGE / Model Utility,"
    " means over seeds. The paper has one retrained model and prints no D. T3's price is Model"
    " Utility, column by column from "
)


def headline(results: Path) -> str:
    """The 10% split, ours and the paper's: what was unlearned, then every model with its scores,
    and T3's price.

    results: the folder of all results, of which `cpu`, `tofu-cpu` and `paper` are read.
    """
    ran = [name for name in TITLES if (results / name / "tables" / "tofu.csv").is_file()]
    scores = [_scores(results / name / "tables" / "tofu.csv") for name in ran]
    columns = [(TITLES[name], *_column(results / name)) for name in ran]
    scores.append(_scores(results / "paper" / "table1.csv"))
    millions = paper_table(2).set_index("method")["trainable"]["Full Fine-Tuning"] / 1e6
    sizes = ("the paper, Llama 3.1 8B", f"{millions:,.0f} million", "400 of 4,000 (20)", "none")
    columns.append((*sizes, *_cells(scores[-1], {})))
    lines = [f"| {' | '.join(row)} |" for row in zip(ROWS, *columns, strict=True)]
    lines.insert(1, "|---|" + "---|" * len(columns))
    prices = [f"{table['mu']['Original']:.2f} to {table['mu']['T3']:.2f}" for table in scores]
    legend = f"{LEGEND}{', '.join(prices)}. {_size_matters(results / 'cpu')}"
    return "\n".join([*lines, "", legend.strip()])


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
    scores = _scores(folder / "tables" / "tofu.csv")
    tests = pd.read_csv(folder / "tables" / "forget_quality.csv").dropna(subset=["w"])
    run = read_json(next((folder / "runs").glob(f"Retrained--{SPLIT}--*.json")))
    n, rows = len(run["truth_ratio"]["forget"]), all_rows(run) or 0
    sharpened = tests[(tests["split"] == SPLIT) & (tests["w"] != 1)].set_index("T")["w"]
    held = scores["n_references"].max()
    return [
        f"{run['trainable'] / 1e6:.1f} million",
        f"{n} of {rows:,} ({n // AUTHOR_ROWS})",
        f"{held:.0f}" if held > 0 else "none",
        *_cells(scores, sharpened.to_dict()),
    ]


def _cells(scores: pd.DataFrame, strengths: dict[float, float]) -> list[str]:
    """Original, the best baselines, T3, T3 with both dials, Retrained; strengths: {T: w} of T3's
    second dial.
    """
    best = leaders(scores).index.difference([*SHOWN, BOTH_DIALS], sort=False)
    cells = []
    for names in (["Original"], best, ["T3"], [BOTH_DIALS], ["Retrained"]):
        lines = []
        for name, row in scores.reindex(names).dropna(subset=["fq"]).iterrows():
            label = f"{name}: " if name in best else f"T = {row['T']:g}: " if row["T"] > 0 else ""
            if name == BOTH_DIALS:
                label = f"T = {row['T']:g}, w = {strengths[row['T']]:g}: "
            tuned_on, D = f"({row['fq_tuned_on']:.2f})", f"D {row['ks_held_out']:.2f}"
            held = f" {tuned_on}, {D}" if row["fq_tuned_on"] >= 0 else ""
            lines.append(f"{label}{row['fq']:.2f}{held} / {row['mu_rouge']:.2f} / {row['mu']:.2f}")
        cells.append("<br>".join(lines))
    return cells


def _size_matters(folder: Path) -> str:
    """What T3's D of a profile is worth with its own n, and with TOFU's 400 rows."""
    tests = pd.read_csv(folder / "tables" / "forget_quality.csv")
    d = _scores(folder / "tables" / "tofu.csv")["ks_held_out"]["T3"]
    if not d > 0:
        return ""
    n = int(tests.query(f"split == '{SPLIT}' and method == 'T3'")["n"].max())
    worth = {rows: forget_quality_lattice(rows)[round(d * rows) - 1] for rows in (n, 400)}
    told = " and ".join(f"{value:.2f} with n = {rows} rows" for rows, value in worth.items())
    return f"Forget Quality falls with the number of rows: a D of {d:.2f} is {told}."


def with_block(text: str, block: str) -> str:
    """Put the block into the README's text; UserError where it has no place for it."""
    if START not in text or END not in text:
        raise UserError(f"README.md has no place for the block: {START.strip()}")
    return text.partition(START)[0] + START + block + "\n" + END + text.partition(END)[2]


def main() -> int:
    """Write the headline into README.md of the checkout."""
    path = project_root() / "README.md"
    text = with_block(path.read_text(encoding="utf-8"), headline(path.parent / "results"))
    with atomic_write(path) as handle:
        handle.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
