"""Write `results/<profile>/index.html`, one page that says what was run and what came out.

It is made from the files of a folder alone. The page opens without a server and loads nothing:
styles, script, figures and answers are inside it. Links lead to the CSV files, runs and executed
notebooks beside it. The template escapes every text that a model or a data set wrote, and the
browser of answers sets it as text, so no text can become markup.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from t3lib.core.files import atomic_write, read_json
from t3lib.core.names import SPLITS, VERDICTS
from t3lib.lab import results
from t3lib.lab.report import render, tables
from t3lib.own.audit.secrets import holds, secrets, words

# Figure 1 of the paper, drawn by hand: frozen base, trained head.
ARCHITECTURE = Path(__file__).with_name("templates") / "architecture.svg"
# Width in points. A narrower figure is shown beside another, because across the whole page its
# letters would be huge.
SMALL = 350
COPIES = (".ipynb", ".html")  # suffixes of executed notebooks
# The notebook that writes the page is still running, so its copy has a temporary name.
RUNNING = {"05_paper_tables.partial.ipynb": "05_paper_tables.ipynb"}
SETS = {
    "forget": "rows to forget",
    "retain": "rows to keep",
    "ra": "real authors",
    "wf": "world facts",
}

# Columns that the page leaves to the CSV file, because they fit on no screen: {table: pattern}.
LEFT_OUT = {
    "": r"_distance$",
    "audit": r"_distance$|_rephrased$|^extraction_strength$|^forced_",
    "tofu": r"_prob$|_tr$|^forget_truth_ratio$",
}


class Part(NamedTuple):
    """One part of the page.

    words: explanation, one paragraph a line. figures: glob patterns. tables: shown open. folded:
    tables that are shown closed.
    """

    key: str
    title: str
    words: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()


STORY = (  # on the page, the answers come after the first part and the claims after the last
    Part(
        "temper", "Why temper",
        "Without tempering (T = 1) the classifier cannot outvote a memorised answer, and the "
        "forgotten rows still show. A higher T hides them, and one that is too high flattens what "
        "should stay. T3's settings are tuned for each T.\n"
        "Could a sharper classifier, f^w, do without tempering? Neither T nor w needs new "
        "training, so many pairs of them are tried.",
        ("temperature", "dials*", "tradeoff"), ("temperature",), ("temperature_vs_paper", "dials*"),
    ),
    Part(
        "table-1", "Every method",
        "One seed says little about Forget Quality, so the first figure has every seed. The curves "
        "below it are what Forget Quality compares: for each value, the share of forgotten "
        "questions with a lower truth ratio. Here they are compared with the retrained model on "
        "which settings were chosen.",
        ("per_seed", "truth_ratios--*", "truth_ratios_by_T--*"), ("tofu",),
        ("tofu_vs_paper", "tofu_by_seeds", "tofu_per_seed", "forget_quality", "search"),
    ),
    Part(
        "audit", "The audit",
        "Forget Quality asks one question, and the audit asks others. A method that forgot does "
        "what retrained models do, neither more nor less.\n"
        "Recognized: the share of forgotten rows whose true answer is more probable than each of "
        "five wrong ones.\n"
        "Membership: the chance (AUC) that a forgotten row is more probable than a row that no "
        "model ever saw. 0.5 is perfect. Min-k looks only at the least probable words.\n"
        "Memorized: the share of the true answer's tokens that the model ranks first when it reads "
        "the tokens before them.\n"
        "Written: how much of the true answer (ROUGE-L recall) is in the greedy answer, in one "
        "sample and in the best of many. Facts: the share of rows of which one sample has every "
        "word of the fact.",
        ("audit*", "leak*"), ("audit",), ("leak",),
    ),
    Part(
        "costs", "What it costs",
        "T3 (preprocessed) trains on features, the base's hidden states, which are computed once "
        "and stored. T3 (naive) runs the base again at every step. Operations (FLOPs) and bytes "
        "are computed by arithmetic: they are what a computation needs at least.",
        ("runtime", "cost_*"), ("runtime", "parameters"), ("benchmarks*",),
    ),
    Part(
        "choices", "T3's other choices",
        "T3 as tuned, and then with one other choice at a time: no tempering, with or without a "
        "classifier f that is sharpened to f^w instead; less tempering, with the w that leaves "
        "greedy text as it is; other weight decay and another start of the classifier's matrices "
        "A and B; a correction for the share of forgotten rows; the same rows to keep in every "
        "epoch; and a classifier that also learns the paraphrased answers.",
        ("ablations",), ("ablations",),
    ),
    Part(
        "theory", "The theory, computed",
        "The paper's experiments on densities in one dimension: p_r to keep, a spike p_f of "
        "variance v_f to forget, and p, the mixture that was learned. A classifier is fitted to n "
        "samples. The partition function normalises the unlearned density, and the paper "
        "approximates it.\n"
        "Retain Error: how much was lost, the KL divergence from p_r to the unlearned density. "
        "Forget Error: how much of the spike is left, the mean distance from p_r under p_f.",
        ("figure*", "bounds", "slopes"), (), ("synthetic*", "bounds"),
    ),
)  # fmt: skip


def write(folder: str | Path, *, title: str = "", to: Path | None = None) -> Path:
    """Write index.html from a folder's runs/, tables/*.csv, figures/*.svg and data.json, and return
    its path.

    title: by default it has the folder's name as the profile.
    to: folder that the page is written into; by default the results folder. It must hold copies of
    the files that the page links to.

    Missing files are left out. Damaged run files are named on the page.
    """
    folder = Path(folder)
    to = to or folder
    corrupt: list[str] = []
    runs = results.read_runs(folder / "runs", corrupt=corrupt)
    texts = read_json(folder / "data.json") if (folder / "data.json").is_file() else {}
    manifest = read_json(folder / "manifest.json") if (folder / "manifest.json").is_file() else {}
    frame = results.tidy(runs)
    notes = {"": results.code_note(runs)}
    notes |= {
        "audit": results.code_note(results.read_audits(folder / "runs", corrupt=corrupt)),
        "ablations": results.code_note(results.read_ablations(folder / "runs", corrupt=corrupt)),
    }
    parts = [_part(folder, part, results.split_labels(frame), notes) for part in STORY]
    page = render.TEMPLATES.get_template("page.html").render(
        title=title or f"T3 companion: results of profile {folder.resolve().name}",
        run=_what_was_run(frame, runs, manifest),
        headline=headlines(frame),
        architecture=embedded(ARCHITECTURE),
        parts=[part for part in parts if part["figures"] or part["tables"]],
        first=STORY[0].key,
        answers=answers(runs, texts),
        labels={
            "sets": SETS,
            "splits": results.split_labels(frame),
            "tuned": {split: tables.tuned_temperature(frame, split) for split in SPLITS},
        },
        claims=_claims(folder / "tables" / "claims.csv"),
        verdicts=VERDICTS,
        provenance=_provenance(runs),
        failed=[
            f"{results.name_of(run)}: {run['error']}" for run in runs if run["status"] == "failed"
        ],
        corrupt=[Path(line.partition(": ")[0]).name for line in corrupt],
        notebooks=sorted(
            {
                RUNNING.get(path.name, path.name)
                for path in (to / "notebooks").glob("*.*")
                if path.suffix in COPIES
            }
        ),
        linked=[
            place
            for place in ("tables", "runs", "figures", "notebooks")
            if to == folder and (to / place).is_dir()
        ],
    )
    with atomic_write(to / "index.html") as handle:
        handle.write(page)
    return to / "index.html"


def answers(runs: Sequence[Mapping[str, Any]], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the answers of all runs that keep text.

    texts: the content of data.json. A run with other rows is left out. Of several seeds the first
    counts.

    Returns {split: {set: {q: questions, a: true answers, s: the distinctive words of each true
    answer in alphabetical order, by: {model: {g: answers, r: ROUGE-L recalls, n: how many of the
    distinctive words each answer contains, h: True for an answer that counts as the true one}}}}}.
    T3 at w = 1 is named "T3, T = 1" and so on.

    What is distinctive, and how many of the words an answer needs, are decided by
    `audit.secrets`, within each set. A true answer such as "Yes." has no distinctive words.
    """
    found: dict[str, Any] = {}
    for run in sorted(runs, key=lambda run: run["T"] or 0):
        if run["status"] != "ok" or run["w"] not in (None, 1):
            continue
        label = run["method"] if run["T"] is None else f"{run['method']}, T = {run['T']:g}"
        for part in SETS:
            rows, records = (
                texts.get(run["split"] if part == "forget" else part, []),
                run["records"].get(part, []),
            )
            if not rows or len(rows) != len(records) or "generation" not in records[0]:
                continue
            of_split = found.setdefault(run["split"], {})
            if part not in of_split:
                of_split[part] = _questions(rows)
            if label not in of_split[part]["by"]:
                of_split[part]["by"][label] = _judged(records, of_split[part]["s"])
    return found


def _questions(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return one set of `answers`, without the answers of any model."""
    pairs = [(row["question"], row["answer"]) for row in rows]
    return {
        "q": [question for question, _ in pairs],
        "a": [answer for _, answer in pairs],
        "s": [sorted(secret) for secret in secrets(pairs)],
        "by": {},
    }


def _judged(
    records: Sequence[Mapping[str, Any]], distinctive: Sequence[Sequence[str]]
) -> dict[str, list[Any]]:
    """Return one model's answers to the questions of a set, as in `answers`.

    records: of the run, in the order of the questions. distinctive: words of each true answer.
    """
    generated = [record["generation"] for record in records]
    said = [frozenset(words(text)) for text in generated]
    secret = [frozenset(each) for each in distinctive]
    return {
        "g": generated,
        "r": [round(record["rouge"], 3) for record in records],
        "n": [len(own & there) for own, there in zip(secret, said)],
        "h": [holds(own, there) for own, there in zip(secret, said)],
    }


def _what_was_run(
    frame: pd.DataFrame, runs: Sequence[Mapping[str, Any]], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Collect the facts for the first lines of the page."""
    first = runs[0]["parameters"].get("data", "") if runs else ""
    data = "the built-in world of invented authors" if first == "builtin" else "TOFU's text"
    cold = manifest.get("cold") or {}
    return {
        "runs": len(runs),
        "failed": int((frame["status"] == "failed").sum()),
        "methods": frame["method"].nunique(),
        "seeds": frame[frame["method"].isin(tables.UNLEARNING)]["seed"].nunique(),
        "data": data,
        "minutes": cold["seconds"] / 60 if cold else None,
    }


def headlines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the headline numbers of each split that ran."""
    return [_headline(frame, split) for split in SPLITS if (frame["split"] == split).any()]


def _headline(frame: pd.DataFrame, split: str) -> dict[str, Any]:
    """Return the numbers of Original, the best baselines, T3 and Retrained on a split, and the
    sizes behind them.
    """
    runs = tables.at_tuned_temperature(frame)[
        lambda runs: (runs["split"] == split) & runs["fq"].notna()
    ]
    runs = tables.on_held_out(runs)
    by = runs.groupby("method")
    means = (
        by[["fq", "fq_tuned_on", "ks_statistic", "mu_rouge", "mu"]].mean().assign(T=by["T"].first())
    )
    rows = {row["method"]: row for row in tables.leaders(means).reset_index().to_dict("records")}
    return {
        "split": results.split_labels(frame)[split],
        "seeds": int(by["seed"].nunique().max()) if len(runs) else 0,
        "n": int(runs["n_forget"].max()) if len(runs) else 0,
        "references": 0 if runs["n_references"].isna().all() else int(runs["n_references"].max()),
        "rows": rows.values(),
        **{method.lower(): rows.get(method) for method in tables.FRAME},
    }


def _part(
    folder: Path, part: Part, splits: Mapping[str, str], notes: Mapping[str, str]
) -> dict[str, Any]:
    """Collect the figures and tables of a part that the folder holds. Tables of runs come with
    their `results.code_note`.
    """
    figures = [
        path
        for pattern in part.figures
        for path in sorted((folder / "figures").glob(f"{pattern}.svg"))
    ]
    shown: list[dict[str, Any]] = []
    for names, folded in ((part.tables, False), (part.folded, True)):
        for path in (
            path for pattern in names for path in sorted((folder / "tables").glob(f"{pattern}.csv"))
        ):
            frame = tables.ran(pd.read_csv(path, keep_default_na=False, na_values=[""]))
            name, _, split = path.stem.partition("--")
            columns = len(frame.columns)
            frame = frame.loc[:, ~frame.columns.str.contains(LEFT_OUT.get(name, LEFT_OUT[""]))]
            caption = tables.CAPTIONS.get(name, path.stem.replace("_", " "))
            caption += f" {splits[split]} split." if split in splits else ""
            if len(frame):
                note = (
                    notes.get("audit" if path.stem == "leak" else path.stem, notes[""])
                    if "split" in frame
                    else ""
                )
                html = Markup(render.html(frame, splits, caption=caption, note=note))
                shown.append(
                    {
                        "name": path.stem,
                        "caption": caption,
                        "html": html,
                        "folded": folded,
                        "left_out": columns - len(frame.columns),
                    }
                )
    return part._asdict() | {"figures": [embedded(path) for path in figures], "tables": shown}


def embedded(path: Path) -> dict[str, Any]:
    """Read a figure: its content as base64, its caption (the title that `save_figure` wrote into
    the file), and whether it is small.
    """
    text = path.read_text(encoding="utf-8")
    title = re.search(r"<dc:title>(.*?)</dc:title>", text, re.S)
    caption = unescape(title[1]) if title else path.stem.replace("_", " ").replace("--", ", ")
    width = re.search(r"<svg[^>]*\swidth=\"([\d.]+)pt\"", text)
    source = base64.b64encode(text.encode()).decode("ascii")
    return {
        "caption": caption,
        "name": path.stem,
        "source": source,
        "small": bool(width and float(width[1]) < SMALL),
    }


def _claims(path: Path) -> list[dict[str, str]]:
    """Return the rows of the table of claims."""
    if not path.is_file():
        return []
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")


def _provenance(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return each fact about the runs' origin with all values that occur."""
    facts: dict[str, set[str]] = {}
    for run in runs:
        origin = run["provenance"] or {}
        for key in ("git_commit", "dirty", "device", "threads", "model", "model_revision", "data"):
            facts.setdefault(key, set()).add(str(origin.get(key)))
        facts.setdefault("date", set()).add(str(origin.get("date"))[:10])
        for package, version in (origin.get("versions") or {}).items():
            facts.setdefault(package, set()).add(str(version))
    return {key.replace("_", " "): ", ".join(sorted(values)) for key, values in facts.items()}
