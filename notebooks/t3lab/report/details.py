"""The generated tables of results/README.md and of the pages in results/pages.

Each function reads committed tables below the folder of all results and writes Markdown.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from t3lab.report.order import interval as mean_interval
from t3lab.report.tables import OURS, OWN_RATE
from t3lib.baselines.losses import METHODS
from t3lib.tofu.metrics import forget_quality_lattice

LABELLED = {"forget05": "5%", "forget10": "10%"}
TITLES = {
    "smollm": "Profile `smollm`, TOFU's text taught to SmolLM2",
    "cpu": "Profile `cpu`, invented authors",
    "tofu-cpu": "Profile `tofu-cpu`, TOFU's text",
}
LABELS = {"Original": "before unlearning", "Retrained": "retrained without the rows"}
AUDIT = {
    "recognized_verbatim": "recognised",
    "recognized_paraphrased": "recognised, paraphrased",
    "auc": "AUC",
    "leak": "best sample",
}
STRENGTHS = {
    "tuned": "as tuned",
    "same text,T=2": "T = 2, the same greedy text",
    "same text,T=1": "T = 1, the same greedy text",
    "T=2,w=1": "T = 2, the same f",
    "T=1,w=1": "T = 1, the same f",
}
WORLD_MEASURES = {"ks_held_out": "D", "mu_rouge": "MU-ROUGE", "mu": "Model Utility"}
GATED_TOFU = {  # the same on SmolLM2
    "D": "D",
    "retain_prob": "retain: prob.",
    "retain_rouge": "words",
    "retain_sampled": "words, sampled",
    "wf_rouge": "world facts",
    "kl": "nats a token",
    "same_token": "same token",
}
GATED = {  # measures of T3 with a gate
    "ks_held_out": "D",
    "fq_held_out": "Forget Quality",
    "paired_r": "row r",
    "retain_prob": "retain: prob.",
    "mu": "Model Utility",
    "mu_rouge": "MU-ROUGE",
    "recognized_verbatim": "recognised",
    "auc": "AUC",
}


def made(results: Path) -> list[str]:
    """Return the profiles of `TITLES` that have results."""
    return [name for name in TITLES if (results / name / "tables" / "tofu.csv").is_file()]


def table(frame: pd.DataFrame, texts: int = 1) -> str:
    """Write a Markdown table. Its cells are texts; all but the first columns are at the right.

    texts: the number of columns at the left.
    """
    rule = ["---"] * texts + ["---:"] * (frame.shape[1] - texts)
    lines = [frame.columns, rule, *frame.to_numpy()]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def interval(value: float, low: float, high: float, form: str = "+.2f") -> str:
    """Write a number with the ends of its interval, such as "-0.08 (-0.12 to -0.03)"."""
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def quality(D: float, n: int) -> float:
    """Return the Forget Quality of a distance D between two models on n rows: the p-value of its
    test, at the nearest D that n rows can have.
    """
    rungs = forget_quality_lattice(n)
    return rungs[max(round(D * len(rungs)), 1) - 1]


def scales(results: Path) -> str:
    """Write D and the ROUGE-L of rows to keep of every method at every profile on the 10% split,
    and the mean D in the other worlds on both splits.
    """
    methods, columns = [*METHODS, OWN_RATE, *OURS[:1]], {}
    for name in made(results):
        scores = pd.read_csv(results / name / "tables" / "tofu.csv").query("split == 'forget10'")
        scores = scores.set_index("method")
        if name == "cpu":
            scores = pd.concat([scores, of_ours(results, "forget10")])
        kept = scores.reindex(methods)[["ks_held_out", "retain_rouge"]]
        columns[f"`{name}`"] = [_pair(D, words) for D, words in kept.to_numpy()]
    worlds = pd.read_csv(results / "cpu-worlds" / "tables" / "worlds.csv")
    for split, label in LABELLED.items():
        part = worlds[(worlds["measure"] == "ks_held_out") & (worlds["split"] == split)]
        means = part.set_index("method")["mean"].reindex(methods)
        columns[f"other worlds, {label}"] = means.map(_short).to_list()
    first = [f"**{each}**" if each.startswith("T3") else LABELS.get(each, each) for each in methods]
    return table(pd.DataFrame({"D · words kept": first} | columns))


def of_ours(results: Path, split: str) -> pd.DataFrame:
    """Return the rows of `gate_cpu` on a split for T3 with a gate and neutral tokens, by method,
    with the columns of Table 1.
    """
    lines = pd.read_csv(results / "gate" / "tables" / "gate_cpu.csv")
    lines = lines[(lines["split"] == split) & lines["model"].isin(OURS)]
    return lines.rename(columns={"model": "method", "temperature": "T"}).set_index("method")


def worlds(results: Path) -> str:
    """Write the means of D and MU-ROUGE over the other worlds with their 95% intervals."""
    means = pd.read_csv(results / "cpu-worlds" / "tables" / "worlds.csv")
    methods, columns = [*METHODS, OWN_RATE, *OURS], {}
    for measure, title in (("ks_held_out", "D"), ("mu_rouge", "MU-ROUGE")):
        for split, label in LABELLED.items():
            part = means[(means["measure"] == measure) & (means["split"] == split)]
            part = part.set_index("method").loc[methods]
            columns[f"{title}, {label}"] = [
                interval(mean, low, high, ".2f")
                for mean, low, high in part[["mean", "low", "high"]].to_numpy()
            ]
    return table(pd.DataFrame({"": [LABELS.get(each, each) for each in methods]} | columns))


def price(results: Path) -> str:
    """Write what unlearning changes in answers to questions that have nothing to do with TOFU."""
    lines = pd.read_csv(results / "smollm" / "tables" / "price.csv")
    shown = pd.DataFrame(
        {
            "model": lines["model"],
            "first sentence is SmolLM2's": _of(lines, "unchanged", "of"),
            "sampled": _of(lines, "unchanged_sampled", "of"),
            "nats a token": lines["kl"].map(_short),
            "same most probable token": lines["same_token"].map(_percent),
        }
    )
    return table(shown)


def speed(results: Path) -> str:
    """Write how much slower than its base each method decodes, and the limit by arithmetic."""
    lines = pd.read_csv(results / "speed" / "tables" / "speed.csv").set_index("method")
    methods = [*dict.fromkeys(lines.index)]
    columns = {"": methods}
    for rows, title in ((1, "one row"), (8, "eight rows")):
        part = lines[lines["rows"] == rows].loc[methods]
        columns[title] = [
            interval(middle, low, high, ".2f")
            for middle, low, high in part[["median", "low", "high"]].to_numpy()
        ]
        columns[f"predicted, {title}"] = part["limit"].map("{:.2f}".format).tolist()
    return table(pd.DataFrame(columns))


def strengths(results: Path) -> str:
    """Write what T3 with less tempering and a sharper classifier keeps and hides, at `cpu`."""
    lines = pd.read_csv(results / "cpu" / "tables" / "ablations.csv")
    parts = []
    for split, label in LABELLED.items():
        part = lines[lines["split"] == split].set_index("setting")
        parts += [f"{label} split, T = {part.loc['tuned', 'T']:g} as tuned:", _strengths(part)]
    return "\n\n".join(parts)


def _strengths(part: pd.DataFrame) -> str:
    part = part.reindex([*STRENGTHS]).rename(STRENGTHS)
    columns = {
        "fq_held_out": "Forget Quality",
        "mu_rouge": "MU-ROUGE",
        "mu": "Model Utility",
        "recognized_verbatim": "recognised",
        "auc": "AUC",
    }
    shown = part[[*columns]].map(_short).rename(columns=columns)
    shown.insert(0, "T3", part.index)
    return table(shown)


def gates(results: Path) -> str:
    """Write what T3 with a gate, neutral tokens and both hides and keeps at `cpu`, beside T3 and T3
    without tempering. Forget Quality is that of the mean D.
    """
    tables = results / "gate" / "tables"
    lines, leaks = (pd.read_csv(tables / f"gate_{name}.csv") for name in ("cpu", "leak"))
    n = lines["split"].map(leaks.groupby("split")["rows"].max())
    lines["fq_held_out"] = [quality(D, int(of)) for D, of in zip(lines["ks_held_out"], n)]
    shown = pd.DataFrame({"": lines["model"], "split": lines["split"].map(LABELLED)})
    shown["T, θ"] = [f"{T:g}, {gate:g}" for T, gate in lines[["temperature", "gate"]].to_numpy()]
    for name, title in GATED.items():
        shown[title] = lines[name].map(_short)
    return table(shown, texts=3)


def gate_leaks(results: Path) -> str:
    """Write how many rows leak in 16 samples by the sampler's temperature, at `cpu`: T3 with a gate
    and without, beside the model before unlearning and retrained models.
    """
    ours = pd.read_csv(results / "gate" / "tables" / "gate_leak.csv")
    whole = pd.read_csv(results / "cpu" / "tables" / "leak.csv").rename(columns={"method": "model"})
    ends = whole[(whole["k"] == 16) & whole["model"].isin([*LABELS])]
    lines = pd.concat([ends.replace({"model": LABELS}), ours])
    lines = lines.assign(
        split=lines["split"].map(LABELLED),
        sampler=[_sampler(*each) for each in lines[["tau", "top_p"]].to_numpy(float)],
        count=_of(lines, "rows_leaking", "rows"),
    )
    wide = lines.pivot(index=["split", "model"], columns="sampler", values="count")
    order = lines[["split", "model"]].drop_duplicates().sort_values("split", kind="stable")
    wide = wide.loc[[*map(tuple, order.to_numpy())], lines["sampler"].drop_duplicates()]
    return table(wide.reset_index().rename(columns={"model": ""}), texts=2)


def gate_worlds(results: Path) -> str:
    """Write gated T3's D, MU-ROUGE and Model Utility minus those of others in the same world, as
    means over worlds with 95% intervals.
    """
    each = pd.read_csv(results / "cpu-worlds" / "tables" / "worlds_each.csv")
    rows = []
    for split, label in LABELLED.items():
        by = each[each["split"] == split].pivot(index="world", columns="method")
        for rival in ("T3", "RMU", "WGA"):
            row = {"T3 (gated) minus": LABELS.get(rival, rival), "split": label}
            for measure, title in WORLD_MEASURES.items():
                gap = by[measure][OURS[0]] - by[measure][rival]
                row[title] = interval(*mean_interval(gap))
            rows.append(row)
    return table(pd.DataFrame(rows), texts=2)


def gated(results: Path) -> str:
    """Write what T3 with a gate keeps and says on SmolLM2, in the two stories of notebook 00, and
    what the same head does without one at smaller T.
    """
    tables = results / "smollm" / "tables"
    colder = pd.read_csv(tables / "stories_by_T.csv").query("head == 'strong' and 1 < T < 2")
    lines = pd.concat([pd.read_csv(tables / "gate.csv"), colder])
    parts = []
    for story, part in lines.groupby("story", sort=False):
        names = [
            "SmolLM2" if model == "base" else f"θ = {gate:g}, {untrained}" if pd.isna(T) else
            f"θ = 1, as drawn, T = {T:g}"
            for model, gate, untrained, T in part[["model", "gate", "untrained", "T"]].to_numpy()
        ]  # fmt: skip
        shown = {
            "T = 2": names,
            "said": _of(part, "said", "asked"),
            "said, all ways": _of(part, "said_in_ways", "asked"),
            "as before": _of(part, "as_before", "kept"),
            "as before, sampled": _of(part, "as_before_sampled", "kept"),
            "nats a token": part["kl"].map(_short),
            "tempered there": part["tempered"].map(_percent),
        }
        parts += [f"{story[:1].upper()}{story[1:]}:", table(pd.DataFrame(shown))]
    return "\n\n".join(parts)


def gate_tofu(results: Path) -> str:
    """Write what T3 with a gate and neutral tokens hides, keeps and costs on TOFU's text taught to
    SmolLM2.
    """
    tables = results / "smollm" / "tables"
    lines, leaks = (pd.read_csv(tables / f"gate_tofu{more}.csv") for more in ("", "_leak"))
    shown = pd.DataFrame({"": lines["model"].replace(LABELS)})
    shown["θ"] = [_short(each) if each < 1 else "" for each in lines["gate"]]
    for name, title in GATED_TOFU.items():
        shown[title] = lines[name].map(_short)
    for tau, part in leaks.groupby("tau", sort=False):
        counts = pd.Series(_of(part, "rows_leaking", "rows"), part["model"])
        shown[f"leak, τ = {tau:g}"] = lines["model"].map(counts)
    return table(shown, texts=2)


def entropy(results: Path) -> str:
    """Write how well the entropy of answers tells questions to forget from those to keep."""
    lines = pd.read_csv(results / "gate" / "tables" / "entropy.csv")
    names = lines["model"].replace(LABELS)
    shown = pd.DataFrame({"": names, "split": lines["split"].map(LABELLED)})
    for name, title in {"to_forget": "to forget, nats", "to_keep": "to keep, nats"}.items():
        shown[title] = lines[name].map(_short)
    return table(shown.assign(AUC=lines["auc"].map(_short)), texts=2)


def audits(results: Path) -> str:
    """Write what gives forgotten rows away, by method, on both splits of our profiles."""
    parts = []
    for name in made(results):
        lines = pd.read_csv(results / name / "tables" / "audit.csv").dropna(subset=["leak"])
        for split, part in reversed([*lines.groupby("split")]):
            shown = part[[*AUDIT]].map(_short).rename(columns=AUDIT)
            names = part["method"].replace(LABELS)
            dials = [_dials(T, w) for T, w in part[["T", "w"]].to_numpy(float)]
            shown.insert(0, "", [f"{each}{dial}" for each, dial in zip(names, dials)])
            parts += [f"{TITLES[name]}, {LABELLED[str(split)]} split:", table(shown)]
    return "\n\n".join(parts)


def relearning(results: Path) -> str:
    """Write what a little training on some of the forgotten rows brings back of the others."""
    counts: dict[str, list[str]] = {}
    for name in ("cpu", "tofu-cpu"):
        lines = pd.read_csv(results / name / "tables" / "recover.csv")
        lines = lines[lines["attack"] == "relearning"].sort_values("steps", kind="stable")
        for model, part in lines.groupby("model", sort=False):
            first, last = part.iloc[0], part.iloc[-1]
            shares = [_percent(each["recognized_verbatim"]) for each in (first, last)]
            leaks = f"{first['rows_leaking']:.0f} → {last['rows_leaking']:.0f}"
            counts.setdefault(str(model), [str(model)]).extend(
                [" → ".join(shares), f"{leaks} of {last['rows']:.0f}"]
            )
    heads = ["", "recognised, `cpu`", "leak", "recognised, `tofu-cpu`", "leak"]
    rows = [each + [""] * (len(heads) - len(each)) for each in counts.values()]
    return table(pd.DataFrame(rows, columns=heads))


def requests(results: Path) -> str:
    """Write what one head for everybody keeps, and what one head for each author keeps."""
    lines = pd.read_csv(results / "cpu" / "tables" / "requests.csv")
    cells = [
        f"{row['retain_rouge']:.2f} · {row['fq']:.3f} · {row['rows_leaking']:.0f} "
        f"of {row['rows']:.0f}"
        for _, row in lines.iterrows()
    ]
    wide = lines.assign(cell=cells).pivot(index="heads", columns="authors", values="cell")
    wide = wide.loc[lines["heads"].drop_duplicates()]
    wide.columns = [f"{n} author{'s' if n > 1 else ''}" for n in wide.columns]
    return table(wide.reset_index().rename(columns={"heads": "words kept · Forget Quality · leak"}))


def two_bases(results: Path) -> str:
    """Write what another training of the same base changes, for the settings with a Forget Quality
    of at least 0.05 on one of the two.
    """
    lines = pd.read_csv(results / "tofu-cpu" / "tables" / "two_bases.csv")
    lines = lines[lines[["fq_before", "fq_now"]].max(axis=1) >= 0.05]
    shown = pd.DataFrame(
        {
            "": [
                f"{row['method']}{_dials(row['T'], row['w'])}, {LABELLED[row['split']]}"
                for _, row in lines.iterrows()
            ]
        }
    )
    heads = {"fq": "Forget Quality", "D": "D", "mu_rouge": "MU-ROUGE", "mu": "Model Utility"}
    for key, title in heads.items():
        pairs = lines[[f"{key}_before", f"{key}_now"]].to_numpy()
        shown[title] = [f"{before:.2f} → {now:.2f}" for before, now in pairs]
    return table(shown)


def fixed(results: Path) -> str:
    """Write T3 with redrawn rows to keep beside T3 that sees the same ones in every epoch."""
    lines = pd.read_csv(results / "cpu-fixed" / "tables" / "fixed_epoch.csv")
    shown = pd.DataFrame(
        {
            "rows to keep": lines["setting"],
            "split": lines["split"].map(LABELLED),
            "T": [f"{T:g}" for T in lines["T"]],
            "learning rate": [f"{rate:g}" for rate in lines["lr"]],
            "D": lines["ks_held_out"].map(_short),
            "Forget Quality": lines["fq_held_out"].map(_short),
            "words kept": lines["retain_rouge"].map(_short),
        }
    )
    return table(shown)


def widths(results: Path) -> str:
    """Write the best learning rate and T of T3 at each width of the built-in world's models, and
    Model Utility before unlearning and after it, as means over worlds.
    """
    folder = results / "cpu-width" / "tables"
    lines = pd.read_csv(folder / "width_best.csv").query("setting == 'as the paper'")
    means = pd.read_csv(folder / "width.csv").query("setting == 'as the paper'").groupby("d")
    utility = means[["mu_before", "mu"]].mean().loc[lines["d"]]
    shown = pd.DataFrame(
        {
            "width": lines["d"],
            "best learning rate": [f"{rate:g}" for rate in lines["rate"]],
            "as good": [f"{low:g} to {high:g}" for low, high in lines[["low", "high"]].to_numpy()],
            "best T": lines["T"].map(lambda T: f"{T:.1f}"),
            "Forget Quality": lines["fq_held_out"].map(_short),
            "Model Utility": [f"{before:.2f} → {now:.2f}" for before, now in utility.to_numpy()],
        }
    )
    return table(shown)


def leaks(results: Path) -> str:
    """Write how many rows leak in 16 samples by the sampler's temperature, at `cpu`, 10% split."""
    lines = pd.read_csv(results / "cpu" / "tables" / "leak.csv")
    lines = lines[(lines["split"] == "forget10") & (lines["k"] == 16)]
    lines = lines[lines["method"].isin(["Original", "Retrained", "T3"])]
    dials = [_dials(T, w) for T, w in lines[["T", "w"]].to_numpy(float)]
    lines = lines.assign(
        name=lines["method"].replace(LABELS) + dials,
        sampler=[_sampler(*each) for each in lines[["tau", "top_p"]].to_numpy(float)],
        count=_of(lines, "rows_leaking", "rows"),
    )
    wide = lines.pivot(index="name", columns="sampler", values="count")
    wide = wide.loc[lines["name"].drop_duplicates(), lines["sampler"].drop_duplicates()]
    return table(wide.reset_index().rename(columns={"name": ""}))


def asking(results: Path) -> str:
    """Write how many rows leak from greedy answers by the way of asking, of those that the original
    model answers when asked in this way.
    """
    parts = []
    for name in ("cpu", "tofu-cpu"):
        lines = pd.read_csv(results / name / "tables" / "recover.csv").query("attack == 'asking'")
        wide = lines.pivot(index="way", columns="model", values="rows_leaking").astype(int)
        wide = wide.loc[lines["way"].drop_duplicates()]
        ours = [each for each in wide.columns if each.startswith("T3")]
        wide["worst baseline"] = wide.drop(columns=[*LABELS, *ours]).max(axis=1)
        shown = wide[["Original", *ours, "worst baseline", "Retrained"]].reset_index()
        heads = {"Original": "rows", "Retrained": "retrained"}
        parts += [f"{TITLES[name]}, 5% split:", table(shown.rename(columns=heads))]
    return "\n\n".join(parts)


def untempered(results: Path) -> str:
    """Write the rows recited and kept word for word with and without tempering, at `cpu`."""
    lines = pd.read_csv(results / "untempered" / "tables" / "untempered.csv")
    rows = []
    for (split, T), part in lines.assign(T=lines["T"].fillna(0)).groupby(["split", "T"]):
        sums = part.drop(columns=["split", "T"]).sum()
        rows.append(
            {
                "": f"T3, T = {T:g}" if T else LABELS["Original"],
                "split": LABELLED[str(split)],
                "to forget, recited": f"{sums['forget_recited']:.0f} of {sums['forget_rows']:.0f}",
                "kept": f"{sums['retain_kept']:.0f} of {sums['retain_rows']:.0f}",
                "sampled": f"{sums['retain_kept_sampled']:.0f} of {sums['retain_rows']:.0f}",
            }
        )
    return table(pd.DataFrame(rows), texts=2)


def dials(results: Path) -> str:
    """Write what dials that need no training change on TOFU's text: w for T3, a for a baseline."""
    folder = results / "tofu-cpu" / "tables"
    scores, search = pd.read_csv(folder / "tofu.csv"), pd.read_csv(folder / "search.csv")
    chosen = search.set_index(["split", "method"])["chosen"]
    rows = []
    for split, label in LABELLED.items():
        part = scores[scores["split"] == split].set_index("method")
        for name in [name for name in part.index if name.endswith(("(T, w)", "(a)"))]:
            plain = part.loc[name.partition(" (")[0]]
            both = [plain, part.loc[name]]
            rows.append(
                {
                    "": f"{plain.name}, {label}",
                    "chosen": chosen[split, name],
                    "Forget Quality": _change(both, "fq_held_out"),
                    "MU-ROUGE": _change(both, "mu_rouge"),
                    "Model Utility": _change(both, "mu"),
                }
            )
    return table(pd.DataFrame(rows), texts=2)


def _change(rows: Sequence[pd.Series], name: str) -> str:
    return " → ".join(f"{row[name]:.2f}" for row in rows)


def seconds(results: Path) -> str:
    """Write the seconds of every method's training, with T3's features."""
    columns = {}
    for name in ("cpu", "tofu-cpu"):
        lines = pd.read_csv(results / name / "tables" / "runtime.csv")
        for split, label in LABELLED.items():
            part = lines[lines["split"] == split].set_index("method")
            columns[f"`{name}`, {label}"] = part["train_s"] + part["features_s"].fillna(0)
    frame = pd.DataFrame(columns).reindex(part.index)
    shown = frame.map(lambda each: "" if pd.isna(each) else f"{each:.1f}")
    shown.insert(0, "seconds", frame.index)
    return table(shown)


def _dials(T: float, w: float) -> str:
    if pd.isna(T):
        return ""
    return f", T = {T:g}" + (f", w = {w:g}" if w != 1 else "")


def _sampler(tau: float, top_p: float) -> str:
    return f"τ = {tau:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


def _pair(first: float, second: float) -> str:
    return "" if pd.isna(first) else f"{first:.2f} · {second:.2f}"


def _short(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.0%}"


def _of(lines: pd.DataFrame, name: str, whole: str) -> list[str]:
    pairs = lines[[name, whole]].to_numpy(float)
    return ["" if pd.isna(n) else f"{n:.0f} of {of:.0f}" for n, of in pairs]
