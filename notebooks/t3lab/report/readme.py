"""Write the README's headline table from the tables of `results/`, so that no number in it is typed
by hand.

Run `python -m t3lab.report.readme`. The table lies between `<!-- generated:headline -->` and
`<!-- /generated:headline -->`.
"""

import sys
from pathlib import Path

import pandas as pd

from t3lab.report.tables import BOTH_DIALS, leaders
from t3lab.results import AUTHOR_ROWS, all_rows, paper_table
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, project_root, read_json

SPLIT = "forget10"
TITLES = {"cpu": "Profile `cpu`, invented authors", "tofu-cpu": "Profile `tofu-cpu`, TOFU's text"}
PAPER = "The paper, Llama 3.1 8B, TOFU's text"
HEAD = ("10% split", "Forget Quality, held out", "Forget Quality, tuned on", "D", "MU-ROUGE", "MU")
COLUMNS = ("fq_held_out", "fq", "ks_held_out", "mu_rouge", "mu")
START, END = "<!-- generated:headline -->\n", "<!-- /generated:headline -->"
LABELS = {"Original": "before unlearning", "Retrained": "retrained without the rows"}


def headline(results: Path) -> str:
    """Write the tables of the 10% split, ours and the paper's, each after a line that says what was
    unlearned.

    results: the folder of all results. `cpu`, `tofu-cpu` and `paper` are read.
    """
    found = [name for name in TITLES if (results / name / "tables" / "tofu.csv").is_file()]
    parts = [_profile(results / name, TITLES[name]) for name in found]
    millions = paper_table(2).set_index("method")["trainable"]["Full Fine-Tuning"] / 1e6
    printed = _lines(pd.read_csv(results / "paper" / "table1.csv"), {})
    parts.append([_title(PAPER, millions, 400, 4000, 0), *printed])
    return "\n\n".join("\n".join(part) for part in parts)


def _profile(folder: Path, title: str) -> list[str]:
    """Return the lines of one of our profiles."""
    scores = pd.read_csv(folder / "tables" / "tofu.csv")
    tests = pd.read_csv(folder / "tables" / "forget_quality.csv").dropna(subset=["w"])
    dialled = tests[(tests["split"] == SPLIT) & (tests["w"] != 1)]
    strengths = {
        (row["method"], row["T"]): row["w"] for row in dialled.fillna(0).to_dict("records")
    }
    run = read_json(next((folder / "runs").glob(f"Retrained--{SPLIT}--*.json")))
    n, references = len(run["truth_ratio"]["forget"]), scores.get("n_references", pd.Series([0]))
    head = _title(title, run["trainable"] / 1e6, n, all_rows(run) or 0, int(references.max()))
    return [head, *_lines(scores, strengths)]


def _title(title: str, millions: float, n: int, rows: int, references: int) -> str:
    """Say what was unlearned: size of the model, rows to forget, and number of held-out retrained
    models.

    millions: of parameters. n: rows to forget, of `rows` rows in all.
    """
    size = f"{millions:,.1f}".removesuffix(".0") + " million parameters"
    held = f"{references or 'no'} held-out retrained models"
    return (
        f"{title}: {size}, {n} of {rows:,} rows ({n // AUTHOR_ROWS} authors) to forget, {held}.\n"
    )


def _lines(scores: pd.DataFrame, strengths: dict[tuple[str, float], float]) -> list[str]:
    """Return the lines of one table: Original, each baseline that no other beats, T3, T3 with both
    dials, Retrained.

    scores: rows of Table 1. strengths: {(method, T): w} of T3 with both dials, and of baselines
    with a share of weights {(method, 0): a}. Without a held-out retrained model the column Forget
    Quality is empty.
    """
    table = scores[(scores["split"] == SPLIT) & scores["fq"].notna()].set_index("method")
    table = table.reindex(columns=list(dict.fromkeys([*table, *COLUMNS])))
    shown = leaders(table.assign(fq=table["fq_held_out"].fillna(table["fq"]))).index
    lines = [HEAD, ("---", *["---:"] * len(COLUMNS))]
    for name, row in table.loc[shown].iterrows():
        label = LABELS.get(str(name), str(name))
        if row["T"] > 0:
            both = f", w = {strengths['T3', row['T']]:g}" if name == BOTH_DIALS else ""
            label = f"**T3**, T = {row['T']:g}{both}"
        elif (method := label.removesuffix(" (a)")) != label:
            label = f"{method}, a = {strengths[method, 0]:g}"
        values = (row[column] for column in COLUMNS)
        lines.append((label, *("" if pd.isna(value) else f"{value:.2f}" for value in values)))
    return [f"| {' | '.join(line)} |" for line in lines]


def with_block(text: str, block: str) -> str:
    """Return a README's text with the block in its place; UserError if it has no such place."""
    if START not in text or END not in text:
        raise UserError(f"README.md has no place for the block: {START.strip()}")
    return text.partition(START)[0] + START + block + "\n" + END + text.partition(END)[2]


def main() -> int:
    """Write the headline into the README.md of the checkout."""
    path = project_root() / "README.md"
    text = with_block(path.read_text(encoding="utf-8"), headline(path.parent / "results"))
    with atomic_write(path) as handle:
        handle.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
