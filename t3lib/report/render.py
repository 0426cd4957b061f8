"""Tables and figures as people read them: CSV, Markdown, LaTeX (booktabs only), styled HTML, SVG and PNG.

The frames hold unrounded numbers under short names; this module alone decides how they look, under the paper's labels.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from t3lib.files import atomic_write

if TYPE_CHECKING:  # importing Styler needs jinja2, which only the HTML form uses
    from pandas.io.formats.style import Styler

GROUPS = {"retain": "Retain", "wf": "World facts", "ra": "Real authors", "forget": "Forget"}
PARTS = {"prob": "Prob.", "rouge": "ROUGE", "tr": "TR+", "truth_ratio": "Truth ratio"}
COMPARED = {"ours": "ours", "sd": "sd", "paper": "paper", "difference": "diff.", "mark": ""}
LABELS = {
    **{"split": "Split", "method": "Method", "n_seeds": "Seeds", "seed": "Seed", "seeds": "Of seeds", "n": "n"},
    **{"fq": "FQ", "mu_rouge": "MU-ROUGE", "mu": "MU", "ks_statistic": "KS D", "trainable": "# Parameters"},
    **{"epochs": "Epochs", "load_s": "Load (s)", "features_s": "Features (s)", "train_s": "Train (s)"},
    **{"evaluate_s": "Evaluate (s)", "peak_memory_bytes": "Peak memory", "setting": "Setting", "metric": "Metric"},
    **{"verdict": "Verdict", "claim": "Claim", "numbers": "Numbers", "evidence": "Evidence", "printed": "Printed"},
}
VALUES = {"forget05": "5%", "forget10": "10%"}
WHOLE = frozenset(["trainable", "epochs", "seed", "n_seeds", "n"])
UTILITY = tuple(f"{group}_{part}" for group in ("retain", "wf", "ra") for part in ("prob", "rouge", "tr"))
SCORES = frozenset(["fq", "mu_rouge", "mu", "ks_statistic", *UTILITY])
BEST = frozenset(["fq", "mu_rouge", "mu", *UTILITY])  # larger is better: the best of a split is bold
NOT_UNLEARNED = ("Original", "Retrained")  # before unlearning, and the ceiling: never the best row
SHADE = "#e8f0fa"


def header(column: str) -> tuple[str, str]:
    """(group, label) of a column: ("Retain", "Prob.") for retain_prob, ("FQ", "sd") for fq_sd, ("", "FQ") for fq."""
    group, _, part = column.partition("_")
    if group in GROUPS and part in PARTS:
        return GROUPS[group], PARTS[part]
    metric, _, part = column.rpartition("_")
    if metric in LABELS and part in COMPARED:
        return LABELS[metric], COMPARED[part]
    return "", LABELS.get(column, column.replace("_", " "))


def cell(value: Any, column: str) -> str:
    """One value as printed: 3 decimals for scores, whole counts, MB for bytes; no value is an empty cell."""
    if isinstance(value, str):
        return VALUES.get(value, value)
    if pd.isna(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if column == "peak_memory_bytes":
        return f"{value / 1e6:,.0f} MB"
    if column in WHOLE:
        return f"{value:,.0f}"
    if column.endswith("_difference"):
        return f"{value:+.3f}"
    if column in SCORES or column.endswith(("_ours", "_sd", "_paper")):
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if column.endswith("_s") else f"{value:.4g}"


def best_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Frame of booleans: the largest value (as printed) of each score per split among the unlearning methods."""
    mask = pd.DataFrame(False, index=frame.index, columns=frame.columns)
    if "method" not in frame or frame.duplicated(["split", "method"] if "split" in frame else ["method"]).any():
        return mask
    rivals = frame[~frame["method"].isin(NOT_UNLEARNED)]
    groups = rivals.groupby("split", sort=False) if "split" in frame else [("", rivals)]
    for _, group in groups:
        for column in BEST.intersection(frame.columns):
            printed = group[column].astype(float).round(3)
            if printed.notna().sum() > 1:
                mask.loc[printed.index[printed == printed.max()], column] = True
    return mask


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table: numbers flush right, a group's name spelt out in its columns' heads, the best in bold."""
    best = best_cells(frame)
    heads = [" ".join(filter(None, header(column))) for column in frame]
    rule = ["---:" if _is_numeric(frame[column]) else "---" for column in frame]
    lines = [heads, rule]
    for row, bold in zip(frame.itertuples(index=False), best.itertuples(index=False)):
        texts = [cell(value, column).replace("|", "\\|").replace("\n", " ") for value, column in zip(row, frame)]
        lines.append([f"**{text}**" if mark else text for text, mark in zip(texts, bold)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def latex(frame: pd.DataFrame, *, caption: str = "", label: str = "") -> str:
    """A LaTeX table for \\input, with column groups; needs booktabs and graphicx, shades T3 with colortbl.

    >>> "toprule" in latex(pd.DataFrame({"method": ["T3"], "fq": [0.5]}))
    True
    """
    heads = [header(column) for column in frame]
    numeric = [_is_numeric(frame[column]) for column in frame]
    best = best_cells(frame)
    lines = [
        "% \\usepackage{booktabs,graphicx}; for the shaded row also \\usepackage[table]{xcolor}",
        "\\providecommand{\\rowcolor}[2][]{}",
        "\\begin{table}[htbp]\n\\centering\\small",
        *([f"\\caption{{{_tex(caption)}}}"] if caption else []),
        *([f"\\label{{tab:{label}}}"] if label and caption else []),
        *(["\\resizebox{\\linewidth}{!}{%"] if len(heads) > 9 else []),
        f"\\begin{{tabular}}{{{''.join('r' if flag else 'l' for flag in numeric)}}}",
        "\\toprule",
        *_group_heads([group for group, _ in heads]),
        " & ".join(_tex(text) for _, text in heads) + " \\\\",
        "\\midrule",
    ]
    previous = None
    for row, bold in zip(frame.itertuples(index=False), best.itertuples(index=False)):
        record = dict(zip(frame, row))
        if previous is not None and record.get("split") != previous.get("split"):
            lines.append("\\midrule")
        texts = [_tex(cell(value, column)) for column, value in record.items()]
        shade = "\\rowcolor{black!8} " if _is_ours(record) else ""
        lines.append(shade + " & ".join(f"\\textbf{{{t}}}" if b else t for t, b in zip(texts, bold)) + " \\\\")
        previous = record
    lines += ["\\bottomrule", "\\end{tabular}" + ("}" if len(heads) > 9 else ""), "\\end{table}"]
    return "\n".join(lines) + "\n"


def write_table(folder: str | Path, name: str, frame: pd.DataFrame, *, caption: str = "") -> Path:
    """`folder`/`name`.csv with every digit, .md and .tex (booktabs) as people read them; returns the .csv's path."""
    path = Path(folder) / f"{name}.csv"
    texts = {
        ".csv": frame.to_csv(index=False),
        ".md": markdown(frame),
        ".tex": latex(frame, caption=caption, label=name),
    }
    for ending, text in texts.items():
        with atomic_write(path.with_suffix(ending)) as handle:
            handle.write(text)
    return path


def save_figure(folder: str | Path, name: str, figure: Any) -> Path:
    """`folder`/`name`.svg and .png, atomically and byte for byte the same from run to run; returns the .svg's path."""
    import matplotlib

    path = Path(folder) / f"{name}.svg"
    with matplotlib.rc_context({"svg.hashsalt": "t3lib", "savefig.dpi": 200}):
        for ending, stamp in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending[1:], metadata=stamp, bbox_inches="tight")
            with atomic_write(path.with_suffix(ending), "wb") as handle:
                handle.write(buffer.getvalue())
    return path


def styled(frame: pd.DataFrame, *, caption: str = "") -> "Styler":
    """The table as a pandas Styler (HTML, escaped): groups above their columns, best in bold, T3's rows shaded."""
    shown = pd.DataFrame(
        {column: [cell(value, column) for value in frame[column]] for column in frame}, index=range(len(frame))
    )
    best = best_cells(frame.reset_index(drop=True))
    splits = frame["split"] if "split" in frame else pd.Series("", index=frame.index)
    looks = [
        (f"background:{SHADE};" if _is_ours(record) else "") + ("border-top:1.5px solid #888;" if new else "")
        for record, new in zip(frame.to_dict("records"), splits != splits.shift(fill_value=next(iter(splits), "")))
    ]
    css = pd.DataFrame(
        [[("font-weight:bold;" if b else "") + look for b in row]
         for row, look in zip(best.itertuples(index=False), looks)],
        index=shown.index, columns=shown.columns,
    )  # fmt: skip
    longest = [max(map(len, shown[column]), default=0) for column in shown]  # a table without rows has no strings
    wrapped = [
        {
            "selector": f"td.col{i}",
            "props": f"white-space:normal;overflow-wrap:anywhere;min-width:{12 if n > 50 else 7}em",
        }
        for i, n in enumerate(longest)
        if n > 20
    ]
    heads = [header(column) for column in frame]
    flat = not any(group for group, _ in heads)
    shown.columns = pd.Index([text for _, text in heads]) if flat else pd.MultiIndex.from_tuples(heads)
    css.columns = shown.columns
    right = [
        {"selector": f".col{i}", "props": "text-align:right;font-variant-numeric:tabular-nums"}
        for i, column in enumerate(frame)
        if _is_numeric(frame[column])
    ]
    base = [
        {"selector": "th,td", "props": "padding:.2em .6em;text-align:left;white-space:nowrap"},
        {"selector": "th.col_heading.level0", "props": "text-align:center" if not flat else ""},
        {"selector": "thead", "props": "border-bottom:1px solid #888"},
        {"selector": "caption", "props": "text-align:left;padding:.4em 0"},
    ]
    uuid = f"t3-{abs(hash_text(caption + '|'.join(frame.columns))):x}"
    styler = shown.style.hide(axis="index").format(escape="html").format_index(escape="html", axis=1)
    styler = styler.apply(lambda _: css, axis=None).set_table_styles(base + right + wrapped).set_uuid(uuid)
    return styler.set_caption(caption) if caption else styler


def hash_text(text: str) -> int:
    """A small number that depends on nothing but the text (Python's own hash changes from process to process)."""
    return sum((i + 1) * byte for i, byte in enumerate(text.encode())) % 2**32


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _is_ours(record: dict[str, Any]) -> bool:
    return str(record.get("method", "")).startswith("T3")


def _group_heads(groups: list[str]) -> list[str]:
    """The row of column-group names with its partial rules; nothing when no column has a group."""
    if not any(groups):
        return []
    spans: list[list[Any]] = []
    for index, group in enumerate(groups, start=1):
        if spans and spans[-1][0] == group:
            spans[-1][2] = index
        else:
            spans.append([group, index, index])
    cells = [f"\\multicolumn{{{b - a + 1}}}{{c}}{{{_tex(group)}}}" for group, a, b in spans]
    rules = " ".join(f"\\cmidrule(lr){{{a}-{b}}}" for group, a, b in spans if group)
    return [" & ".join(cells) + " \\\\", rules]


def _tex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    symbols = {"≤": "$\\leq$", "≥": "$\\geq$", "≈": "$\\approx$", "≠": "$\\neq$", "×": "$\\times$", "±": "$\\pm$",
               "γ": "$\\gamma$", "λ": "$\\lambda$", "−": "$-$", "→": "$\\to$", "…": "\\ldots{}",
               "<": "$<$", ">": "$>$", "|": "$|$"}  # fmt: skip
    plain = {character: "\\" + character for character in "&%$#_{}"}
    return "".join((special | symbols | plain).get(character, character) for character in text)
