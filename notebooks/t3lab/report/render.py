"""Write tables and figures as people read them: CSV, Markdown, LaTeX (booktabs only), HTML and SVG.

The frames hold unrounded numbers under short names. Only this module decides how they look, under
the paper's labels. The three forms of a table are Jinja templates over one list of its rows
(`laid_out`). pandas' Styler is not used: its LaTeX has no rule under a group of columns nor between
splits, and its HTML has a style rule for each cell.
"""

import io
import re
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from t3lab.audit.labels import AUDIT
from t3lab.report.tables import CAPTIONS, SETTINGS
from t3lab.results import split_labels, tidy
from t3lib.core.files import atomic_write
from t3lib.tofu.metrics import METRICS

if TYPE_CHECKING:  # Matplotlib takes seconds to load, and tables do not need it
    from matplotlib.figure import Figure

SCORES = METRICS | AUDIT
SCORES |= {
    "fq_held_out": METRICS["fq"]._replace(label="FQ, held out"),
    "ks_held_out": METRICS["ks_statistic"]._replace(label="KS D, held out"),
    "fq_tuned_on": METRICS["fq"]._replace(label="FQ, tuned on"),
}
COMPARED = {"ours": "ours", "sd": "sd", "paper": "paper", "difference": "diff.", "mark": ""}
LABELS = {
    "split": "Split",
    "method": "Method",
    "n_seeds": "Seeds",
    "seed": "Seed",
    "seeds": "Of seeds",
    "n": "n",
    "trainable": "# Parameters",
    "epochs": "Epochs",
    "load_s": "Load (s)",
    "features_s": "Features (s)",
    "train_s": "Train (s)",
    "evaluate_s": "Evaluate (s)",
    "peak_memory_bytes": "Peak memory",
    "setting": "Setting",
    "metric": "Metric",
    "verdict": "Verdict",
    "claim": "Claim",
    "numbers": "Numbers",
    "evidence": "Evidence",
    "printed": "Printed",
    "n_references": "References",
    "reference": "Reference",
    "lr": "Learning rate",
    "paired_r": "Row r",
    "paired_gap": "Row gap",
    "ln_r_mean": "ln R mean",
    "ln_r_sd": "ln R sd",
    "ks_rescaled": "KS D, rescaled",
    "swap_p": "Swap p",
    "forget_error": "Forget Error",
    "retain_error": "Retain Error",
    "total_variation": "TV",
    "recited": "Recited",
    "kept": "Kept",
    "judge": "Judge",
}
Splits = Mapping[str, str]
SPLIT_LABELS = split_labels(tidy([]))  # of the whole TOFU; a run counts its own rows
WHOLE = frozenset(["trainable", "epochs", "seed", "n_seeds", "n", "n_references", "reference"])
NOT_UNLEARNED = ("Original", "Retrained")  # rows that are never marked as the best
DPI = 110  # of a figure in a notebook
SHADES = 128  # colours of a figure in a notebook; the palette makes it a third of the size
PLACES = re.compile(rb' (?:d|x|y)="[^"]+"')  # coordinates of an SVG's lines and markers, in points
TOO_FINE = re.compile(rb"(\.\d\d)\d+")  # digits after a hundredth of a point, a third of the file
INDENT = re.compile(rb"(?m)^ +")
# Format of the numbers in a column, by the last part of its name.
FORMS = {"difference": "+.3f", "distance": "+.1f", "s": ".3g"}
FORMS |= dict.fromkeys(("ours", "sd", "paper"), ".3f")
LONG = 20  # texts of more characters may wrap
MANY = 300  # tables of more rows are written as CSV alone
# LaTeX's special characters, and symbols that its fonts have only in formulas.
TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "…": r"\ldots{}",
    }
    | {character: f"${character}$" for character in "<>|"}
    | {
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "≈": r"$\approx$",
        "≠": r"$\neq$",
        "×": r"$\times$",
        "±": r"$\pm$",
    }
    | {"γ": r"$\gamma$", "λ": r"$\lambda$", "−": "$-$", "→": r"$\to$"}
)

TEMPLATES = Environment(
    loader=PackageLoader(__package__),
    autoescape=select_autoescape(),  # for .html; the other templates use the filters below
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEX_TEMPLATES = TEMPLATES.overlay(  # LaTeX uses braces and percent signs itself
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
)
# keys keep their order
TEMPLATES.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
TEMPLATES.filters["tex"] = lambda text: text.translate(TEX)
TEMPLATES.filters["markdown"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
TEMPLATES.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", "<br>")


def header(column: str) -> tuple[str, str]:
    """Return (group, label) of a column, such as ("Retain", "Prob.") for retain_prob, ("FQ", "sd")
    for fq_sd, or ("", "FQ") for fq.
    """
    if column in SCORES:
        return SCORES[column].group, SCORES[column].label
    metric, _, part = column.rpartition("_")
    if metric in AUDIT and part == "distance":
        return AUDIT[metric].group, f"{AUDIT[metric].label}, spreads away"
    if metric in SCORES and part in COMPARED:
        return SCORES[metric].label, COMPARED[part]
    return "", LABELS.get(column, column.replace("_", " "))


def cell(value: Any, column: str) -> str:
    """Format one value: 3 decimals for scores, whole counts, MB for bytes. A missing value is an
    empty cell.
    """
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if column == "peak_memory_bytes":
        return f"{value / 1e6:,.0f} MB"
    if column in WHOLE or (abs(value) >= 1000 and column not in SCORES):
        return f"{value:,.0f}"
    form = ".3f" if column in SCORES else FORMS.get(column.rpartition("_")[2], ".4g")
    return format(value, form)


def best_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of booleans that marks the best value, as printed, of each score and split
    among the unlearning methods.
    """
    mask = pd.DataFrame(False, index=frame.index, columns=frame.columns)
    keys = [name for name in ("split", "method") if name in frame]
    if "method" not in keys or frame.duplicated(keys).any():
        return mask
    rivals = frame[~frame["method"].isin(NOT_UNLEARNED)]
    ranked = {name: SCORES[name].larger_is_better for name in SCORES if name not in AUDIT}
    for column in [name for name in frame if ranked.get(name) is not None]:
        scores = rivals[column].astype(float).round(3) * (1 if ranked[column] else -1)
        of_split = scores.groupby(rivals["split"] if "split" in keys else np.zeros(len(rivals)))
        alone = of_split.transform("count") < 2
        mask.loc[rivals.index, column] = (scores == of_split.transform("max")) & ~alone
    return mask


def laid_out(frame: pd.DataFrame, splits: Splits = SPLIT_LABELS, **more: str) -> dict[str, Any]:
    """Prepare a table for the templates: its columns, groups of columns and rows of texts.

    splits: {split: what is printed} (`results.split_labels`). more: caption, label and note. groups
    are (name, first, last), counted from 1.
    """
    if "forget_error" in frame:  # its leak is not the audit's, the ROUGE-L of the best sample
        frame = frame.rename(columns={"leak": "Leak"})
    best = best_cells(frame.reset_index(drop=True)).to_numpy()
    shown = frame.replace({"split": dict(splits), "setting": SETTINGS})
    texts = [
        [cell(value, column) for value, column in zip(row, frame)]
        for row in shown.itertuples(index=False)
    ]
    longest = [max(map(len, column)) for column in zip(*texts)] or [0] * frame.shape[1]
    columns = [
        {
            "group": header(name)[0],
            "label": header(name)[1],
            "number": _is_numeric(frame[name]),
            "long": width > LONG,
        }
        for name, width in zip(frame, longest)
    ]
    parts = groupby(enumerate(columns, start=1), key=lambda numbered: numbered[1]["group"])
    spans = [(name, [place for place, _ in part]) for name, part in parts]
    names = frame.reindex(columns=["split", "method"], fill_value="")
    new = names["split"].ne(names["split"].shift()) & (np.arange(len(frame)) > 0)
    ours, keys = names["method"].str.startswith("T3"), ("texts", "best", "ours", "new")
    return {
        "columns": columns,
        "groups": [(name, places[0], places[-1]) for name, places in spans],
        "rows": [dict(zip(keys, row)) for row in zip(texts, best, ours, new)],
        "named": list(frame).index("method") if "method" in frame else 0,  # heads each row
        **{"caption": "", "label": "", "note": "", **more},
    }


def markdown(frame: pd.DataFrame, splits: Splits = SPLIT_LABELS) -> str:
    """Write a Markdown table: numbers at the right, the name of a group in the head of each of its
    columns, the best values in bold.
    """
    return TEMPLATES.get_template("table.md").render(laid_out(frame, splits))


def claims_page(frame: pd.DataFrame) -> str:
    """Write the table of claims in Markdown: verdict, claim, and a line for each piece of evidence.

    frame: from `claims.table.claims_table`. A claim about the paper's model also has the verdict of
    the same comparison on these runs.
    """
    claims = by_claim(frame)
    counts = Counter((on_these_runs or row)["verdict"] for row, on_these_runs in claims)
    return TEMPLATES.get_template("claims.md").render(claims=claims, counts=counts)


def by_claim(frame: pd.DataFrame) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return each claim with the same comparison on these runs, or None; see `claims_page`."""
    rows = frame.fillna("").to_dict("records")
    here = {row["id"]: row for row in rows if row["id"].endswith("@here")}
    return [(row, here.get(f"{row['id']}@here")) for row in rows if row["id"] not in here]


def latex(
    frame: pd.DataFrame, splits: Splits = SPLIT_LABELS, *, caption: str = "", label: str = ""
) -> str:
    """Write a LaTeX table for \\input, with groups of columns. It needs booktabs, graphicx and, for
    T3's shade, colortbl.

    >>> "toprule" in latex(pd.DataFrame({"method": ["T3"], "fq": [0.5]}))
    True
    """
    return TEX_TEMPLATES.get_template("table.tex").render(
        laid_out(frame, splits, caption=caption, label=label)
    )


class Html(str):
    """A text that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"HTML of {len(self)} characters"


def html(
    frame: pd.DataFrame, splits: Splits = SPLIT_LABELS, *, caption: str = "", note: str = ""
) -> Html:
    """Write the table as escaped HTML: groups above their columns, the best values in bold, T3's
    rows shaded. An index with names becomes columns, and columns of several levels one.

    note: a line below the table.
    """
    if frame.columns.nlevels > 1:
        frame = frame.set_axis([" ".join(map(str, names)) for names in frame.columns], axis=1)
    if any(frame.index.names):
        frame = frame.reset_index()
    frame = frame.rename(columns=str)
    return Html(
        TEMPLATES.get_template("table.html").render(
            laid_out(frame, splits, caption=caption, note=note)
        )
    )


def write_table(
    folder: str | Path,
    name: str,
    frame: pd.DataFrame,
    splits: Splits = SPLIT_LABELS,
    *,
    caption: str | None = None,
) -> Path:
    """Write a table as `folder`/`name`.csv with every digit, and as .md and .tex for reading.
    Return the path of the .csv.

    caption: by default the one in `CAPTIONS` under the table's name, if any. A table of more than
    `MANY` rows is only drawn and not read, so it is written as .csv alone. An earlier run's .md
    and .tex are then deleted.
    """
    path = Path(folder) / f"{name}.csv"
    caption = CAPTIONS.get(name.split("--")[0], "") if caption is None else caption
    texts = {".csv": frame.to_csv(index=False)}
    if len(frame) <= MANY:
        texts |= {
            ".md": claims_page(frame) if name == "claims" else markdown(frame, splits),
            ".tex": latex(frame, splits, caption=caption, label=name),
        }
    for ending, text in texts.items():
        with atomic_write(path.with_suffix(ending)) as handle:
            handle.write(text)
    for ending in {".md", ".tex"} - texts.keys():
        path.with_suffix(ending).unlink(missing_ok=True)
    return path


def save_figure(path: str | Path, figure: "Figure", caption: str = "") -> Path:
    """Write a figure as `path` with the suffix .svg, and return this path.

    The same figure gives the same bytes in every run. The file is written atomically. The caption,
    by default the figure's label, becomes the title in the file. The ground is white, unless the
    figure has none.
    """
    from matplotlib.colors import to_rgba

    from t3lab.report.look import styled

    stamp = {"Title": caption or figure.get_label(), "Date": None, "Creator": None}
    path = Path(path).with_suffix(".svg")
    buffer = io.BytesIO()
    ground = "white" if to_rgba(figure.get_facecolor())[3] else "none"
    with styled({"svg.hashsalt": "t3lib", "savefig.facecolor": ground}):
        figure.savefig(buffer, format="svg", metadata=stamp, bbox_inches="tight")
    with atomic_write(path, "wb") as handle:
        handle.write(compact(buffer.getvalue()))
    return path


def compact(svg: bytes) -> bytes:
    """Round the coordinates of an SVG file's lines and markers to hundredths of a point, and remove
    the indentation of its lines. Its texts stay.
    """
    return PLACES.sub(lambda place: TOO_FINE.sub(rb"\1", place[0]), INDENT.sub(b"", svg))


def with_palette(png: bytes) -> bytes:
    """Reduce a PNG file to `SHADES` colours."""
    from PIL import Image

    picture, buffer = Image.open(io.BytesIO(png)).convert("RGB"), io.BytesIO()
    picture.quantize(SHADES, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def show(figure: "Figure", path: str | Path | None = None, caption: str = "") -> None:
    """Show a figure with its caption in the notebook, as a PNG that every viewer can draw.

    path: if given, the figure is also saved there (.svg). caption: by default the figure's label.
    """
    from IPython import display  # imported here, because only a notebook needs it

    caption = caption or str(figure.get_label())
    if path is not None:
        save_figure(path, figure, caption)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None}, bbox_inches="tight")
    picture = display.Image(with_palette(buffer.getvalue()), alt=caption)
    display.display(picture, display.Markdown(f"*{caption}*"))


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
