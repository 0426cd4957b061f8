"""What results/pages shows of the attacks."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELS, TITLES, percent, spread, table

# Of least.csv: models, and attacks with their titles.
HOSTILE = {"T3 (least)": "T3 (least)", "RMU (least)": "RMU (least)", "Retrained": "retrained"}
SHOWN = {
    "S00 greedy (control)": "as learned, greedy",
    "S01 tau 1, 16 (control)": "16 samples at τ = 1",
    "S05 min-p 0.2, tau 2, 8": "8 samples at τ = 2, min-p 0.2",
    "S08 16 first tokens, then greedy": "16 first tokens, then greedy",
    "C1 choice of six, greedy over tokens": "a decoder that may say one of six answers",
    "C1 choice of six, likeliest": "the likeliest of these six",
    "P01 truth up to its fact, greedy": "after the truth up to its fact",
    "P04 truth up to its last fact word, greedy": "after the truth up to its last word",
    "W05 name doubled a letter": "the name misspelt",
    "W06 surname alone": "the surname alone",
}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. asking: rows that leak from greedy answers by the way of asking,
    of those that the original model answers. relearning: what a little training on some forgotten
    rows brings back of the others. requests: what one head keeps, and one head for each author.
    least_attacked: rows to forget that a hostile reader got of T3 (least) and of others.
    """
    parts, counts = [], {}
    for name in ("cpu", "tofu-cpu"):
        lines = pd.read_csv(results / "profiles" / name / "tables" / "recover.csv")
        parts += [f"{TITLES[name]}, 5% split:", _asking(lines[lines["attack"] == "asking"])]
        again = lines[lines["attack"] == "relearning"].sort_values("steps", kind="stable")
        for model, part in again.groupby("model", sort=False):
            shares, leaks = part["recognized_verbatim"], part["rows_leaking"].map("{:.0f}".format)
            cells = [" → ".join(map(percent, shares.iloc[[0, -1]]))]
            cells += [f"{' → '.join(leaks.iloc[[0, -1]])} of {part['rows'].iloc[-1]:.0f}"]
            counts.setdefault(model, [model]).extend(cells)
    heads = ["", "recognised, `cpu`", "leak", "recognised, `tofu-cpu`", "leak"]
    rows = [each + [""] * (len(heads) - len(each)) for each in counts.values()]
    asked = pd.read_csv(results / "profiles" / "cpu" / "tables" / "requests.csv")
    cells = asked[["retain_rouge", "fq", "rows_leaking", "rows"]].to_numpy()
    asked["cell"] = [f"{w:.2f} · {fq:.3f} · {leak:.0f} of {n:.0f}" for w, fq, leak, n in cells]
    titles = {"heads": "words kept · Forget Quality · leak"}
    titles |= {n: f"{n} author{'s' * (n > 1)}" for n in asked["authors"]}
    least = pd.read_csv(results / "studies" / "attacks" / "least.csv")
    least = least[least["model"].isin(HOSTILE)].groupby(["attack", "model"])[["rows", "told"]].sum()
    hostile = []
    for attack, title in SHOWN.items():
        counts, of = least["told"].unstack().loc[attack], least["rows"].unstack().loc[attack]
        hostile.append([title, f"{of.max():.0f}", *(f"{counts[name]:.0f}" for name in HOSTILE)])
    return {
        "least_attacked": table(pd.DataFrame(hostile, columns=["", "rows", *HOSTILE.values()])),
        "asking": "\n\n".join(parts),
        "relearning": table(pd.DataFrame(rows, columns=heads)),
        "requests": spread(asked, ["heads"], "authors", "cell", titles, texts=1),
    }


def _asking(lines: pd.DataFrame) -> str:
    wide = lines.pivot(index="way", columns="model", values="rows_leaking").astype(int)
    ours = [each for each in wide.columns if each.startswith("T3")]
    wide["worst baseline"] = wide.drop(columns=[*LABELS, *ours]).max(axis=1)
    wide = wide.loc[lines["way"].unique(), ["Original", *ours, "worst baseline", "Retrained"]]
    heads = {"Original": "rows", "Retrained": "retrained"}
    return table(wide.rename(columns=heads).reset_index())
