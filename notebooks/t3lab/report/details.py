"""Tables of results/README.md and of the pages in results/pages, as Markdown.

`shown` and `spread` write any of them. What a study beside the notebooks shows is in its own
`page.py` (results/*/*/page.py). The functions of the second half write what the tables of profiles
show: each reads committed tables below the folder of all results.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from t3lab.report.tables import OURS, OWN_RATE
from t3lib.baselines.losses import METHODS

LABELLED = {"forget05": "5%", "forget10": "10%"}
TITLES = {
    "smollm": "Profile `smollm`, TOFU's text taught to SmolLM2",
    "cpu": "Profile `cpu`, invented authors",
    "tofu-cpu": "Profile `tofu-cpu`, TOFU's text",
}
LABELS = {"Original": "before unlearning", "Retrained": "retrained without the rows"}
AUDIT = {
    "recognised": "recognized_verbatim",
    "recognised, paraphrased": "recognized_paraphrased",
    "AUC": "auc",
    "best sample": "leak",
}
STRENGTHS = {
    "tuned": "as tuned",
    "same text,T=2": "T = 2, the same greedy text",
    "same text,T=1": "T = 1, the same greedy text",
    "T=2,w=1": "T = 2, the same f",
    "T=1,w=1": "T = 1, the same f",
}
KEPT = {"D": "ks_held_out", "MU-ROUGE": "mu_rouge", "Model Utility": "mu"}
HIDDEN = {"recognised": "recognized_verbatim", "AUC": "auc"}


# ---- any table ----------------------------------------------------------------------------------
def table(frame: pd.DataFrame, texts: int = 1) -> str:
    """Write a Markdown table. Its cells are texts; all but the first columns are at the right.

    texts: the number of columns at the left.
    """
    rule = ["---"] * texts + ["---:"] * (frame.shape[1] - texts)
    lines = [frame.columns, rule, *frame.to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def shown(lines: pd.DataFrame, columns: Mapping[str, Any], texts: int = 1) -> str:
    """Write some columns of a table as Markdown.

    columns: {head: texts, or the name of a column of numbers, which get two decimals}. texts: see
    `table`.
    """
    cells = {
        head: [*(lines[each].map(short) if isinstance(each, str) else each)]
        for head, each in columns.items()
    }
    return table(pd.DataFrame(cells), texts)


def spread(
    lines: pd.DataFrame,
    index: Sequence[str],
    columns: str,
    values: str,
    titles: Mapping[Any, str],
    texts: int = 2,
) -> str:
    """Write texts by the columns `index` (rows) and `columns`, both in the order of the lines.

    values: the column of the texts. titles: of columns, where another name is shown. texts: see
    `table`.
    """
    wide = lines.pivot(index=[*index], columns=columns, values=values)
    order = pd.MultiIndex.from_frame(lines[[*index]].drop_duplicates())
    wide = wide.set_axis(pd.MultiIndex.from_frame(wide.index.to_frame())).loc[order]
    return table(wide[lines[columns].unique()].reset_index().rename(columns=titles), texts)


def plus_minus(mean: float, low: float, high: float, form: str = ".2f") -> str:
    """Write a mean with half its interval, such as "0.15 ± 0.04"."""
    return f"{mean:{form}} ± {(high - low) / 2:.2f}"


def interval(value: float, low: float, high: float, form: str = "+.2f") -> str:
    """Write a number with the ends of its interval, such as "-0.08 (-0.12 to -0.03)"."""
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def short(value: float) -> str:
    """Write a number with two decimals; "" for a missing one."""
    return "" if pd.isna(value) else f"{value:.2f}"


def percent(value: float) -> str:
    """Write a share in percent; "" for a missing one."""
    return "" if pd.isna(value) else f"{value:.0%}"


def counted(lines: pd.DataFrame, name: str, whole: str) -> list[str]:
    """Write a column of counts and that of what they are counted among, such as "3 of 40"."""
    pairs = lines[[name, whole]].to_numpy(float)
    return ["" if pd.isna(n) else f"{n:.0f} of {of:.0f}" for n, of in pairs]


def sampler(lines: pd.DataFrame) -> list[str]:
    """Name the sampler of each line by its columns tau and top_p, such as "τ = 1, top-p 0.9"."""
    pairs = lines[["tau", "top_p"]].to_numpy(float)
    return [f"τ = {tau:g}" + f", top-p {top_p:g}" * int(top_p < 1) for tau, top_p in pairs]


def named(lines: pd.DataFrame) -> list[str]:
    """Name the model of each line by its columns method, T and w, such as "T3, T = 2, w = 0.9"."""
    return [
        LABELS.get(method, method)
        + ("" if pd.isna(T) else f", T = {T:g}" + f", w = {w:g}" * (w != 1))
        for method, T, w in lines[["method", "T", "w"]].itertuples(index=False)
    ]


# ---- what the tables of profiles show -----------------------------------------------------------
def made(results: Path) -> list[str]:
    """Return the profiles of `TITLES` that have results."""
    return [
        name for name in TITLES if (results / "profiles" / name / "tables" / "tofu.csv").is_file()
    ]


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks that show the tables of profiles."""
    return {
        "scales": scales(results),
        "strengths": strengths(results),
        "dials": dials(results),
        "two_numbers": two_numbers(results),
        "audits": audits(results),
        "leaks": leaks(results),
        "seconds": seconds(results),
    }


def of_ours(results: Path, split: str) -> pd.DataFrame:
    """Return the rows of `gate_cpu` on a split for T3 with a gate and neutral tokens, by method,
    with the columns of Table 1.
    """
    lines = pd.read_csv(results / "studies" / "gate" / "tables" / "gate_cpu.csv")
    lines = lines[(lines["split"] == split) & lines["model"].isin(OURS)]
    return lines.rename(columns={"model": "method", "temperature": "T"}).set_index("method")


def scales(results: Path) -> str:
    """Write a table of D and one of the ROUGE-L of rows to keep, for every method at every profile
    on the 10% split, and as means over the other worlds with half a 95% interval.
    """
    methods = [*METHODS, OWN_RATE, *OURS[:1]]
    names = [f"**{each}**" if each.startswith("T3") else LABELS.get(each, each) for each in methods]
    worlds = pd.read_csv(results / "studies" / "cpu-worlds" / "tables" / "worlds.csv")
    worlds = worlds.set_index(["measure", "split", "method"]).sort_index()

    tables = []
    for measure, title in {"ks_held_out": "D", "retain_rouge": "words kept"}.items():
        columns = {title: names}
        for name in made(results):
            scores = pd.read_csv(results / "profiles" / name / "tables" / "tofu.csv").query(
                "split == 'forget10'"
            )
            ours = [of_ours(results, "forget10")] if name == "cpu" else []
            scores = pd.concat([scores.set_index("method"), *ours]).reindex(methods)
            columns[f"`{name}`"] = scores[measure].map(short).to_list()
        for split, label in LABELLED.items():
            if (measure, split) in worlds.index.droplevel("method"):
                ends = worlds.loc[measure, split].reindex(methods)[["mean", "low", "high"]]
                columns[f"other worlds, {label}"] = [
                    "" if pd.isna(each).any() else plus_minus(*each) for each in ends.to_numpy()
                ]
        tables.append(table(pd.DataFrame(columns)))
    return "\n\n".join(tables)


def strengths(results: Path) -> str:
    """Write what T3 with less tempering and a sharper classifier keeps and hides, at `cpu`."""
    lines, parts = pd.read_csv(results / "profiles" / "cpu" / "tables" / "ablations.csv"), []
    for split, label in LABELLED.items():
        part = lines[lines["split"] == split].set_index("setting").reindex([*STRENGTHS])
        parts.append(f"{label} split, T = {part.loc['tuned', 'T']:g} as tuned:")
        parts.append(shown(part, {"T3": STRENGTHS.values()} | KEPT | HIDDEN))
    return "\n\n".join(parts)


def dials(results: Path) -> str:
    """Write what dials that need no training change on TOFU's text: w for T3, a for a baseline."""
    folder = results / "profiles" / "tofu-cpu" / "tables"
    scores, search = (pd.read_csv(folder / f"{name}.csv") for name in ("tofu", "search"))
    scores, search = (each.set_index(["split", "method"]) for each in (scores, search))
    dialled = [key for key in scores.index if key[1].endswith(("(T, w)", "(a)"))]
    plain = [(split, name.partition(" (")[0]) for split, name in dialled]
    columns = {
        "": [f"{name}, {LABELLED[split]}" for split, name in plain],
        "chosen": search.loc[dialled, "chosen"],
    }
    for title, name in KEPT.items():
        pairs = zip(scores.loc[plain, name], scores.loc[dialled, name])
        columns[title] = [f"{before:.2f} → {now:.2f}" for before, now in pairs]
    return shown(scores, columns, texts=2)


def two_numbers(results: Path) -> str:
    """Write what is left of D after the spread, and the mean and spread, of ln R were matched, for
    each profile on the 10% split.
    """
    parts = []
    for name in made(results):
        folder = results / "profiles" / name / "tables"
        scores, tests = (pd.read_csv(folder / f"{n}.csv") for n in ("tofu", "forget_quality"))
        scores = scores[(scores["split"] == "forget10") & scores["ks_rescaled"].notna()]

        # the mean over retrained models that no setting was chosen on
        tests = tests[(tests["split"] == "forget10") & (tests["reference"] > 0)]
        tests = tests[tests["w"].fillna(1) == 1].fillna({"T": 0}).groupby(["method", "T"])
        stretched = tests["D_stretched"].mean()

        # a dial of another w or share has a row of its own elsewhere
        lines = scores[~scores["method"].str.contains(r"\(a\)|, w\)")].fillna({"T": 0})
        lines = lines.assign(method=lines["method"].str.split(" ").str[0], w=1.0)
        pairs = zip(lines["method"], lines["T"])
        lines = lines.assign(stretched=[stretched[pair] for pair in pairs])

        names = named(lines.replace({"T": {0: None}}).astype({"T": float}))
        columns = {"": names, "mean of ln R": "ln_r_mean", "sd of ln R": "ln_r_sd"}
        columns |= {"D": "ks_held_out", "spread matched": "stretched", "both": "ks_rescaled"}
        parts += [f"{TITLES[name]}, 10% split:", shown(lines, columns | {"p, swaps": "swap_p"})]
    return "\n\n".join(parts)


def audits(results: Path) -> str:
    """Write what gives forgotten rows away, by method, on both splits of our profiles."""
    parts = []
    for name in made(results):
        lines = pd.read_csv(results / "profiles" / name / "tables" / "audit.csv").dropna(
            subset=["leak"]
        )
        for split, part in reversed([*lines.groupby("split")]):
            parts.append(f"{TITLES[name]}, {LABELLED[str(split)]} split:")
            parts.append(shown(part, {"": named(part)} | AUDIT))
    return "\n\n".join(parts)


def leaks(results: Path) -> str:
    """Write how many rows leak in 16 samples by the sampler's temperature, at `cpu`, 10% split."""
    lines = pd.read_csv(results / "profiles" / "cpu" / "tables" / "leak.csv")
    lines = lines[(lines["split"] == "forget10") & (lines["k"] == 16)]
    lines = lines[lines["method"].isin(["Original", "Retrained", "T3"])]
    counts = counted(lines, "rows_leaking", "rows")
    lines = lines.assign(name=named(lines), sampler=sampler(lines), count=counts)
    return spread(lines, ["name"], "sampler", "count", {"name": ""}, texts=1)


def seconds(results: Path) -> str:
    """Write the seconds of every method's training, with T3's features."""
    columns = {}
    for name in ("cpu", "tofu-cpu"):
        lines = pd.read_csv(results / "profiles" / name / "tables" / "runtime.csv").fillna(
            {"features_s": 0}
        )
        both = (lines["train_s"] + lines["features_s"]).groupby([lines["split"], lines["method"]])
        for split, label in LABELLED.items():
            columns[f"`{name}`, {label}"] = both.first()[split]
    frame = pd.DataFrame(columns).reindex(lines["method"].unique())
    cells = frame.map(lambda each: "" if pd.isna(each) else f"{each:.1f}")
    return shown(frame, {"seconds": frame.index} | dict(cells.items()))
