"""What results/pages shows of the study over worlds."""

from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from t3lab.profiles import load_profile
from t3lab.report.details import LABELLED, LABELS, interval, plus_minus, short, shown, table
from t3lab.report.order import interval as mean_interval
from t3lab.report.tables import OURS, OWN_RATE
from t3lib.baselines.losses import METHODS
from t3lib.own.questions import AS_WRITTEN

ERRORS = {
    "Forget Error": "forget_error",
    "leak": "leak",
    "Retain Error": "retain_error",
    "total variation": "total_variation",
}
# What the page of errors shows of T3: (learning rate, T, w, gate), by split where Forget Quality
# chose another T.
SHOWN = {
    "T3 as Forget Quality chose": {"forget05": (5e-3, 2.5, 1, 1), "forget10": (5e-3, 3, 1, 1)},
    "the same greedy text, T = 1": {"forget05": (5e-3, 1, 2.5, 1), "forget10": (5e-3, 1, 3, 1)},
    "T3 at T = 1, its own rate": dict.fromkeys(LABELLED, (4e-2, 1, 1, 1)),
    "strong f, T = 1.25, gated": dict.fromkeys(LABELLED, (4e-2, 1.25, 1, 0.9)),
}
# Models of the tables that studies/cpu-worlds/doubts.py writes, and how the page names them.
FREE = {
    "the judge again": "the same retrained model again",
    "Retrained": "another retrained model",
    "Original": LABELS["Original"],
}
FORCED = {"Original": LABELS["Original"], "Retrained": FREE["Retrained"]}
FORCED |= {name: name for name in SHOWN if name != "the same greedy text, T = 1"}
SAMPLED = {
    "first rare word": "first_word",
    "ROUGE-L": "rouge",
    "surprise, nats": "surprise",
    "facts": "facts",
}
# What results/README shows. Of the paper's errors a model is a method, or T3's (learning rate, T,
# w, gate).
LEAST, OTHERWISE = "T3 (least)", r"in \d+ other ways"
AGAINST: dict[str, Any] = {
    "Original": "Original",
    "T3": (5e-3, 3, 1, 1),
    OURS[0]: (5e-3, 3, 1, 0.9),
    OWN_RATE: (4e-2, 1, 1, 1),
    LEAST: None,  # as the study of guided labels chose it
    "RMU": "RMU",
    "RMU (least)": None,
    "WGA": "WGA",
    "WGA (least)": None,
    "Retrained": "Retrained",
}
# Differences in the same world.
MINUS = (("T3", "RMU"), (LEAST, "RMU (least)"), (LEAST, "WGA (least)"))
# README shows a few lines and columns, without intervals.
IN_SHORT = (LABELS["Original"], "**T3**", LEAST, "RMU", "RMU (least)", "WGA (least)")
IN_SHORT += (LABELS["Retrained"],)
SHORT = ("D", "Forget Error", "leak", "Retain Error", "word for word", "not fitted", "other ways")
# Measures with their titles: of the table `worlds`, and of the paper's errors.
COLUMNS = {"D": "ks_held_out", "words": "mu_rouge", "score": "retain"}
# rows to forget that leak as learned and otherwise, facts to keep that are told otherwise
OTHER_WAYS = ("greedy", "other ways", "told in other ways")
JUDGED = {
    "Forget Error": "forget_error",
    "leak": "leak",
    "Retain Error": "retain_error",
    "word for word": "kept",
}
STAYING = {n: m for n, m in JUDGED.items() if m != "kept"} | {"stay word for word": "kept_before"}
# Controls: models by their names, and measures where the evaluated rows to keep were not fitted.
CONTROLS = {"Refused": "a list that refuses", "Original": LABELS["Original"]}
CONTROLS |= {name: name for name in ("T3", LEAST, "RMU", "RMU (least)", "WGA (least)")}
CONTROLS |= {"Retrained": LABELS["Retrained"]}
HELD_OUT = {"Retain Error, not fitted": "retain_error", "not fitted": "kept_before"}
GUIDED = {  # (rule, labels): the model's name
    ("chosen", "hard"): "T3 (least)",
    ("margin", "hard"): "T3 (least, margin)",
    ("chosen", "guided"): "T3 (guided)",
    ("margin", "guided"): "T3 (guided, margin)",
}
# Guides that are models: T3 with their labels, and these models by themselves.
TRAINED = [*(f"T3 (guided, {kind})" for kind in ("small", "smaller", "early"))]
TRAINED += [name.replace("T3 (guided, ", "guide (") for name in TRAINED]
AIMS = {
    "leak": "leak at most a retrained model's + 2 standard errors",
    "price": "Retain Error at most 1.15 times a retrained model's",
    "kept": "at least 99% of the answers kept",
    "utility": "Model Utility at most 0.02 below the base's",
    "samples": "at most 2 of 80 rows leak in 64 samples",
    "forget error": "Forget Error at most 1.5 times a retrained model's",
    "distribution": "D that a test does not tell from a retrained model's",
}
UNCHANGED = {
    "score": "score",
    "words": "mu_rouge",
    "Model Utility": "mu",
    "harmless": "harmless",
    "secrets": "secrets",
}
SHOWN_TRAINED = {"D": "ks_statistic", "Model Utility": "mu", "word for word": "kept"}
RIVAL = {"D": "ks_statistic", "words": "mu_rouge", "Model Utility": "mu"}
WAYS = {  # of guided_texts and rivals_texts
    "^as written, sampled at τ = 1$": "64 samples at τ = 1",
    "^as written, sampled at τ = 0.3$": "16 at τ = 0.3",
    "^as written, greedy$": "greedy",
    "^in .* other ways, greedy$": "other ways",
    "^after 4 tokens of the truth, greedy$": "after 4 tokens",
}
WORLDS = range(1, 8)  # in which nothing was tuned
PAIR = ("Divergence Decoding", "", "two models", "no class")
# What a reader chooses from, by its name in the tables of worlds: its name in `speed` and, where
# its fit was timed, in `runtime`; what is beside the base; whether vLLM serves it here; the aim
# that it was tuned by, and the name of the points that were tried.
CHOICE: dict[str, tuple[str, str, str, str, str, str]] = {
    "Original": ("", "", "nothing", "yes", "", ""),
    "T3": ("T3", "T3 (preprocessed)", "head", "yes", "D", "T3"),
    "T3 (least)": ("T3", "T3 (preprocessed)", "head", "yes", "leak, price", "hard"),
    "T3 (guided)": ("T3", "", "head", "yes", "leak, price", "guided"),
    "DD linear (chosen)": (*PAIR, "leak, price", "linear"),
    "DD tempered (chosen)": (*PAIR, "leak, price", "tempered"),
    "T3, the pair as f (chosen)": (*PAIR, "leak, price", "pair as f"),
    "T3, the pair as f (by D)": (*PAIR, "D", "pair as f"),
    "ULD": ("ULD", "ULD", "assistant", "no class", "D", "ULD"),
    "RMU": ("", "RMU", "nothing", "yes", "D", "RMU"),
    "RMU (least)": ("", "RMU", "nothing", "yes", "leak, price", "RMU"),
    "WGA (least)": ("", "WGA", "nothing", "yes", "leak, price", "WGA"),
    "Retrained": ("", "", "nothing", "yes", "", ""),
}
OUT = {"greedy": "greedy", "64 samples at τ = 1": "sampled", "other ways": "other ways"}
MEASURES = {"ks_held_out": "D", "mu_rouge": "MU-ROUGE", "mu": "Model Utility"}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. worlds: means of D and MU-ROUGE with their 95% intervals.
    gate_worlds: gated T3 minus others in the same world, as means over worlds. errors: the paper's
    errors beside a retrained model, as means over worlds with 95% intervals. errors_named,
    errors_doubts, errors_free, errors_identified: see the functions of these names.
    """
    tables = results / "studies" / "cpu-worlds" / "tables"
    methods, columns = [*METHODS, OWN_RATE, *OURS], {}
    means = (
        pd.read_csv(tables / "worlds.csv").set_index(["measure", "split", "method"]).sort_index()
    )
    for measure, split in ((m, s) for m in [*MEASURES][:2] for s in LABELLED):
        ends = means.loc[measure, split].loc[methods, ["mean", "low", "high"]].to_numpy()
        columns[f"{MEASURES[measure]}, {LABELLED[split]}"] = [interval(*e, ".2f") for e in ends]
    each, rows = pd.read_csv(tables / "worlds_each.csv"), []
    for split, rival in ((split, rival) for split in LABELLED for rival in ("T3", "RMU", "WGA")):
        by = each[each["split"] == split].pivot(index="world", columns="method")
        gaps = {title: by[m][OURS[0]] - by[m][rival] for m, title in MEASURES.items()}
        cells = {title: interval(*mean_interval(gap)) for title, gap in gaps.items()}
        rows.append({"T3 (gated) minus": rival, "split": LABELLED[split]} | cells)
    beside = against(tables)
    few = beside.loc[beside.iloc[:, 0].isin(IN_SHORT), [beside.columns[0], *SHORT]]
    return (
        {
            "worlds": shown(means, {"": [LABELS.get(name, name) for name in methods]} | columns),
            "gate_worlds": table(pd.DataFrame(rows), texts=2),
            "against": table(beside),
            "result": table(few.replace(" ± .*", "", regex=True)),
            "errors": table(errors(pd.read_csv(tables / "errors.csv")), texts=2),
            "errors_named": named(pd.read_csv(tables / "errors_each.csv")),
            "errors_doubts": doubts(pd.read_csv(tables / "doubts.csv")),
            "errors_free": free(pd.read_csv(tables / "doubts_free.csv")),
            "errors_identified": identified(pd.read_csv(tables / "identified.csv")),
        }
        | {
            "controls": controls(tables),
            "held_out": held_out(tables.parent / "held-out"),
        }
        | guided(tables)
        | rivals(tables)
        | {"choice": choice(results)}
    )


def against(tables: Path) -> pd.DataFrame:
    """Return what T3 and two baselines hide and keep on the 10% split, as means over `WORLDS` with
    half a 95% interval, and the same of the differences `MINUS` in a world. WGA as Forget Quality
    chose it was not asked in other ways.
    """
    worlds, errors, guided, baselines, kept, held_out, *texts = (
        pd.read_csv(tables / f"{name}.csv").query("split == 'forget10' and world in @WORLDS")
        for name in (
            *("worlds_each", "errors_each", "guided_each", "baselines_each", "kept_ways"),
            *("controls", "guided_texts", "rivals_texts", "baselines_texts"),
        )
    )
    held_out = held_out[(held_out["fitted"] == 0) | held_out["model"].isin([*LABELS])]
    told = pd.concat(texts).assign(share=lambda each: each["leaks"] / each["rows"])
    greedy = told[(told["way"] == AS_WRITTEN) & (told["tau"] == 0)]
    told = told[told["way"].str.fullmatch(OTHERWISE)]
    of_t3 = errors.set_index(["lr", "temperature", "w", "gate"]).sort_index()
    least = pd.concat([guided[guided["model"] == LEAST], baselines])
    least = least.rename(columns={"ks_statistic": "ks_held_out"}).assign(retain=least["score"])

    found = {}
    for name, point in AGAINST.items():
        t3 = isinstance(point, tuple)
        judged = of_t3.loc[point] if t3 else errors[errors["method"] == str(point)]
        parts = [(worlds[worlds["method"] == name], COLUMNS), (judged, JUDGED)]
        if name in {*least["model"]}:
            parts = [(least[least["model"] == name], COLUMNS | JUDGED)]
        parts += [
            (greedy[greedy["model"] == name], {"greedy": "share"}),
            (told[told["model"] == name], {"other ways": "share"}),
            (kept[kept["model"] == name], {"told in other ways": "said"}),
            (held_out[held_out["model"] == name], HELD_OUT),
        ]
        found[name] = {
            title: part.groupby("world")[measure].mean()
            for part, titles in parts
            for title, measure in titles.items()
            if measure in part and len(part)
        }
    lines = [
        {"`cpu`, 10% split": f"**{name}**" if name == "T3" else name}
        | {title: plus_minus(*mean_interval(values)) for title, values in by_world.items()}
        for name, by_world in found.items()
    ]
    for one, other in MINUS:
        gaps = {title: found[one][title] - found[other][title] for title in found[one]}
        cells = {title: plus_minus(*mean_interval(gap), "+.2f") for title, gap in gaps.items()}
        lines.append({"`cpu`, 10% split": f"{one} minus {other}"} | cells)
    shown = pd.DataFrame(lines).replace(LABELS).fillna("")
    order = [shown.columns[0], "D", *JUDGED, *HELD_OUT, *[*COLUMNS][1:], *OTHER_WAYS]
    return shown[order]


def controls(tables: Path) -> str:
    """Write the controls of studies/cpu-worlds/controls.py, as means over worlds with half a 95%
    interval: the paper's errors and what is kept, of methods that were fitted on the evaluated rows
    to keep, and of the same without them.
    """
    each, lines = pd.read_csv(tables / "controls.csv"), []
    for name, shown_as in CONTROLS.items():
        line = {"": shown_as}
        for fitted, columns in ((1, STAYING), (0, HELD_OUT)):
            part = each[(each["model"] == name) & (each["fitted"] == fitted)].set_index("world")
            cells = {title: mean_interval(part[column]) for title, column in columns.items()}
            line |= {title: plus_minus(*cell) if len(part) else "" for title, cell in cells.items()}
        lines.append(line)
    return table(pd.DataFrame(lines))


def held_out(folder: Path) -> str:
    """Write what methods cost whose settings were chosen by rows to keep that nobody fitted, as
    means over `WORLDS` with half a 95% interval, and the differences `MINUS` in a world.

    folder: what guided.py and baselines.py wrote with --held-out.
    """
    each = pd.concat(
        [pd.read_csv(folder / "tables" / f"{n}.csv") for n in ("guided_each", "baselines_each")]
    )
    each = each[each["world"].isin(WORLDS)].set_index(["model", "world"]).sort_index()
    columns = {"D": "ks_statistic"} | STAYING
    names = {LEAST: LEAST, "T3 (guided)": "T3 (guided)"}
    names |= {"RMU (least)": "RMU (least)", "WGA (least)": "WGA (least)"}
    names |= {"Retrained": LABELS["Retrained"]}
    lines = [
        {"": shown_as}
        | {t: plus_minus(*mean_interval(each.loc[name, m])) for t, m in columns.items()}
        for name, shown_as in names.items()
    ]
    for one, other in MINUS[1:]:
        gap = each.loc[one, [*columns.values()]] - each.loc[other, [*columns.values()]]
        cells = {t: plus_minus(*mean_interval(gap[m]), "+.2f") for t, m in columns.items()}
        lines.append({"": f"{one} minus {other}"} | cells)
    return table(pd.DataFrame(lines))


def errors(means: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of the block `errors` from the table of that name."""
    lines = []
    for split, label in LABELLED.items():
        part = means[means["split"] == split]
        of_t3 = part.set_index(["lr", "temperature", "w", "gate"])
        named = {LABELS[name]: part[part["method"] == name].iloc[0] for name in LABELS}
        named |= {name: of_t3.loc[dials[split]] for name, dials in SHOWN.items()}
        named |= {
            name: part[part["method"] == name].iloc[0]
            for name in METHODS[2:-1]
            if name in {*part["method"]}
        }
        for name, one in named.items():
            ends = {
                title: [one[measure + end] for end in ("", "_low", "_high")]
                for title, measure in ERRORS.items()
            }
            cells = {title: interval(*values, ".2f") for title, values in ends.items()}
            more = {"kept": f"{one['kept']:.2f}", "worlds": one["worlds"]}
            lines.append({"": name, "split": label} | cells | more)
    return pd.DataFrame(lines)


def named(each: pd.DataFrame) -> str:
    """Return the outcome of the hypothesis that studies/cpu-worlds/errors.py names, as Markdown: in
    the worlds that were run after it was named, and in the others.

    each: the table `errors_each`.
    """
    of_t3 = each[(each["split"] == "forget10") & (each["w"] == 1) & (each["gate"] == 1)]
    points = of_t3.set_index(["lr", "temperature", "world"])["forget_error"].sort_index()
    chosen, untempered = points[5e-3, 3.0], points[4e-2, 1.0]
    larger = chosen > untempered
    seen, unseen = larger.loc[:3], larger.loc[4:]
    p = binomtest(int(unseen.sum()), len(unseen), alternative="greater").pvalue
    worlds = {"world": ["T3 as Forget Quality chose", "T3 at T = 1, its own rate"]} | {
        str(world): [f"{chosen[world]:.2f}", f"{untempered[world]:.2f}"] for world in larger.index
    }
    return (
        f"{table(pd.DataFrame(worlds))}\n\n"
        f"It is larger in {unseen.sum()} of the {len(unseen)} worlds that nobody had looked at"
        f" (sign test, one-sided p = {p:.1g}), and in {seen.sum()} of the {len(seen)} others."
    )


def doubts(each: pd.DataFrame) -> str:
    """Return the Forget Error of each model by judge and sampler, as means over worlds. each: the
    table `doubts`.
    """
    means = each.groupby(["judge", "tau", "model"], sort=False)["forget_error"].mean()
    wide = means.unstack()[list(FORCED)].rename(columns=FORCED).sort_index(ascending=False)
    cells = wide.map(lambda value: f"{value:.2f}").reset_index()
    cells["judge"] = [f"seed {judge}" for judge in cells["judge"]]
    return table(cells.rename(columns={"judge": "judge", "tau": "τ"}), texts=2)


def free(each: pd.DataFrame) -> str:
    """Return how far sampled answers are from the judge's, as means over worlds. each: the table
    `doubts_free`.
    """
    parts = []
    for tau, part in each[each["tau"].isin([each["tau"].max(), each["tau"].min()])].groupby("tau"):
        means = part.groupby("model", sort=False)[[*SAMPLED.values()]].mean().reset_index()
        lines = means.assign(model=[FREE.get(name, name) for name in means["model"]])
        parts.append(f"τ = {tau:g}:\n\n{shown(lines, {'': lines['model']} | SAMPLED)}")
    return "\n\n".join(reversed(parts))


def identified(each: pd.DataFrame) -> str:
    """Return what f knows of a retrained model, as means over worlds. each: the table
    `identified`.
    """
    means = each.groupby("model", sort=False).mean().drop(columns="world").reset_index()
    columns = {"": [FREE.get(name, name) for name in means["model"]], "correlation": "correlation"}
    for kind in ("secret", "harmless"):
        columns[f"f, {kind}"] = means[f"f_{kind}"].map("{:.3f}".format)
    for kind in ("secret", "harmless"):
        columns[f"p̂, {kind}"] = means[f"p_{kind}"].map("{:.2f}".format)
    return shown(means, columns)


def guided(tables: Path) -> dict[str, str]:
    """Return the blocks of the page on settings that the paper's errors chose.

    guided_settings: what was chosen. guided: means over worlds 4 to 7. guided_aims: how often each
    aim is met. guided_texts: rows whose secret comes out in free text, as means over worlds.
    guided_trained: as of `trained`.
    """
    search, means, each, texts, others, errors = (
        pd.read_csv(tables / f"{name}.csv")
        for name in (
            *("guided_search", "guided", "guided_each", "guided_texts"),
            *("worlds_each", "errors_each"),
        )
    )
    models = ["Original", "Retrained", "T3", *GUIDED.values()]
    settings = [
        {"": GUIDED[rule, row["labels"]], "split": LABELLED[row["split"]]}
        | {"learning rate": row["lr"], "T": f"{row['temperature']:g}"}
        | {"θ": f"{row['gate']:g}", "ε": f"{row['tail']:g}"}
        for rule in ("chosen", "margin")
        for _, row in search[search[rule]].sort_values(["labels", "split"]).iterrows()
        if (rule, row["labels"]) in GUIDED
    ]

    lines = []
    for split, label in LABELLED.items():
        over = means[(means["among"] == "4-7") & (means["split"] == split)].set_index("model")
        for name in [name for name in models if name in over.index]:
            row = over.loc[name]
            cells = {
                title: interval(*(row[measure + end] for end in ("", "_low", "_high")), ".2f")
                for title, measure in (ERRORS | {"D": "ks_statistic"}).items()
            }
            cells |= {title: short(row[measure]) for title, measure in UNCHANGED.items()}
            lines.append({"": LABELS.get(name, name), "split": label} | cells)
        for name in ("RMU", "WGA"):
            rival = others[(others["method"] == name) & (others["split"] == split)]
            rival = rival[rival["world"] > 3]
            part = errors[(errors["method"] == name) & (errors["split"] == split)]
            part = part[part["world"] > 3]
            cells = {
                title: interval(*mean_interval(part[measure]), ".2f")
                for title, measure in ERRORS.items()
            }
            cells["D"] = interval(*mean_interval(rival["ks_held_out"]), ".2f")
            cells |= {"words": short(rival["mu_rouge"].mean())}
            cells |= {"Model Utility": short(rival["mu"].mean())}
            lines.append({"": name, "split": label} | cells)

    met = []
    for aim in [name for name in means.columns if name.startswith("met_")]:
        cells = {"": AIMS[aim.removeprefix("met_")]}
        for name in GUIDED.values():
            part = means[(means["model"] == name) & (means["among"] == "4-7")]
            part = part[part["sampled"].notna()] if aim == "met_samples" else part
            cells[name] = f"{part[aim].sum():g} of {part['worlds'].sum():g}"
        met.append(cells)
    met.append({"": "**all that are its own, both splits**"} | {
        name: met_together(each[(each["model"] == name) & (each["world"] > 3)], kind)
        for (_, kind), name in GUIDED.items()
    })  # fmt: skip

    counted = texts.assign(way=texts["way"].str.cat(texts["tau"].map(sampler), sep=", "))
    wide = counted[counted["world"] > 3].pivot_table("whole", "way", "model", sort=False)
    wide = wide[[name for name in models if name in wide]].rename(columns=LABELS)
    wide = wide.map("{:.1f}".format).rename_axis(index="", columns=None)
    return {
        "guided_settings": table(pd.DataFrame(settings), texts=2),
        "guided": table(pd.DataFrame(lines).fillna(""), texts=2),
        "guided_aims": table(pd.DataFrame(met)),
        "guided_texts": table(wide.reset_index()),
        "guided_trained": trained(each[each["world"] > 3], counted[counted["world"] > 3]),
    }


def trained(each: pd.DataFrame, texts: pd.DataFrame) -> str:
    """Return a table of T3 with labels of trained models, and of these models: means over worlds.

    each: the table `guided_each`. texts: `guided_texts`, in whose `way` the sampler is, too.
    """
    whole = texts.pivot_table("whole", "model", "way")
    ways = {name: whole.filter(regex=way).iloc[:, 0] for way, name in WAYS.items()}
    columns, lines = ERRORS | SHOWN_TRAINED, []
    for split, label in LABELLED.items():
        means = each[each["split"] == split].groupby("model")[[*columns.values()]].mean()
        for name in ("Retrained", "T3 (guided)", *TRAINED):
            cells = {title: short(means.loc[name, of]) for title, of in columns.items()}
            free = (
                {title: f"{of[name]:.1f}" for title, of in ways.items()}
                if split == "forget10"
                else {}
            )
            lines.append({"": LABELS.get(name, name), "split": label} | cells | free)
    return table(pd.DataFrame(lines).fillna(""), texts=2)


def rivals(tables: Path) -> dict[str, str]:
    """Return the blocks of the page on neighbours.

    rivals_settings: what was chosen in world 0. rivals: means over other worlds, 10% split;
    rivals_5: 5% split. rivals_worlds: which these are.
    rivals_texts: rows whose secret comes out in free text. equivalence: losses of forgotten answers
    beside retrained models.
    """
    search, ours, theirs, *texts, equal = (
        pd.read_csv(tables / f"{name}.csv")
        for name in (
            *("rivals_search", "guided_each", "rivals_each", "guided_texts", "rivals_texts"),
            "equivalence",
        )
    )
    settings = [
        {"": rival(row["kind"], rule), "split": LABELLED[row["split"]], "pair": row["size"]}
        | {"α or k": f"{row['rank'] or row['alpha']:g}", "T": f"{row['temperature']:g}"}
        for rule in ("chosen", "by D")
        for _, row in search[search[rule]].iterrows()
    ]

    # in the order of the settings, whatever was measured last
    theirs, *texts = (
        frame.sort_values(
            "model", key=lambda name: ~name.str.startswith("DD linear"), kind="stable"
        )
        for frame in (theirs, *texts)
    )
    measured = pd.MultiIndex.from_frame(theirs[["world", "split"]])
    same = pd.MultiIndex.from_frame(ours[["world", "split"]]).isin(measured)
    each = pd.concat([ours[same], theirs])
    others = [*TRAINED, GUIDED["margin", "hard"], GUIDED["margin", "guided"]]
    each = each[~each["model"].isin(others)]
    worlds = {*theirs.loc[theirs["split"] == "forget10", "world"]}
    lines: dict[str, list[dict[str, str]]] = {split: [] for split in LABELLED}
    for (split, name), part in each.groupby(["split", "model"], sort=False):
        cells = {title: short(part[m].mean()) for title, m in (ERRORS | RIVAL).items()}
        kept = {"word for word": short(part["kept"].mean())}
        lines[split].append({"": LABELS.get(name, name)} | cells | kept)

    told = pd.concat(texts)
    told = told[told["world"].isin(worlds) & ~told["model"].isin(others)]
    told = told.assign(way=told["way"].str.cat(told["tau"].map(sampler), sep=", "))
    told["way"] = told["way"].replace(WAYS, regex=True)
    wide = told.pivot_table("whole", "model", "way", sort=False)[[*WAYS.values()]]
    wide = wide.rename(LABELS).map("{:.1f}".format).rename_axis(index="", columns=None)

    part = equal[equal["split"] == "forget10"]
    rows = []
    for name, one in part.groupby("model", sort=False):
        cells = {"": LABELS.get(name, name)}
        for _, row in one.iterrows():
            cells[f"gap, {row['wording']}"] = f"{row['gap']:+.2f} ± {2 * row['gap_se']:.2f}"
            cells[f"within, {row['wording']}"] = f"{row['within']:.0%}"
        rows.append(cells)
    return {
        "rivals_settings": table(pd.DataFrame(settings), texts=3),
        "rivals": table(pd.DataFrame(lines["forget10"])),
        **({"rivals_5": table(pd.DataFrame(lines["forget05"]))} if lines["forget05"] else {}),
        "rivals_worlds": f"Worlds {', '.join(map(str, sorted(worlds)))}; 10% split:",
        "rivals_texts": table(wide.reset_index()),
        "equivalence": table(pd.DataFrame(rows)),
    }


def choice(results: Path) -> str:
    """Write what a reader who must choose compares: `CHOICE` in the worlds of the rivals on the 10%
    split, with half a 95% interval, what each was tuned by and at how many points, its time, and
    the prompt gate.
    """
    tables = results / "studies" / "cpu-worlds" / "tables"
    ours, theirs, others, *texts = (
        pd.read_csv(tables / f"{name}.csv").query("split == 'forget10'")
        for name in (
            *("guided_each", "rivals_each", "baselines_each"),
            *("guided_texts", "rivals_texts", "baselines_texts"),
        )
    )
    refusal = results / "studies" / "refusal" / "tables"
    behind = pd.read_csv(refusal / "behind.csv").assign(
        share=lambda each: each["leaks"] / each["rows"]
    )
    behind = behind.groupby(["gate", "model", "kind"])["share"]
    points = tried(tables)
    speed = pd.read_csv(results / "studies" / "speed" / "tables" / "speed.csv")
    speed = speed[speed["rows"] == 8].set_index("method")["median"]
    times = pd.read_csv(results / "profiles" / "cpu" / "tables" / "runtime.csv")
    times = times[times["split"] == "forget10"].set_index("method")[["features_s", "train_s"]]
    worlds = {*theirs["world"]}
    each = pd.concat([ours, theirs, others])
    each = each[each["world"].isin(worlds)]
    told = pd.concat(texts, ignore_index=True)
    told = told[told["world"].isin(worlds)].assign(share=told["leaks"] / told["rows"])
    told["way"] = told["way"].str.cat(told["tau"].map(sampler), sep=", ")
    told["way"] = told["way"].replace(WAYS, regex=True).replace(OUT)

    lines = []
    for name, (step, fit, beside, vllm, aim, search) in CHOICE.items():
        mine = told[told["model"] == name].groupby("way")["share"]
        cells = {"tuned by": f"{aim} ({points[aim, search]})" if aim else ""}
        cells |= {way: plus_minus(*mean_interval(mine.get_group(way))) for way in OUT.values()}
        if (0, name, "sealed") in behind.groups:
            cells["sealed"] = plus_minus(*mean_interval(behind.get_group((0, name, "sealed"))))
        part = each[each["model"] == name]
        kept = {
            title: plus_minus(*mean_interval(part[measure]))
            for title, measure in {"word for word": "kept", "score": "score"}.items()
        }
        cost = {
            "a step": f"{speed[step]:.2f}" if step else "1",
            "fit, s": f"{times.loc[fit].sum():.1f}" if fit else "",
            "beside the base": beside,
            "vLLM": vllm,
        }
        lines.append({"": LABELS.get(name, name)} | cells | kept | cost)

    # a listed question that the gate refuses leaks nothing, whatever is behind it; one to keep that
    # it lets pass gets the base's answer
    refused = pd.read_csv(refusal / "refusal.csv").query("set.str.contains('built-in, forget10')")
    refused = refused.groupby("kind")["refused"].mean()
    gates = []
    for name, model in (("prompt gate", "Original"), ("gate, T3 (least) behind it", LEAST)):
        gate = {"": name} | dict.fromkeys(("greedy", "sampled"), f"{1 - refused['as listed']:.2f}")
        for kind, way in (("choosing", "other ways"), ("sealed", "sealed")):
            gate[way] = plus_minus(*mean_interval(behind.get_group((1, model, kind))))
        gates.append(gate)
    gates[0] |= {"word for word": f"{1 - refused['to keep']:.2f}", "a step": "1"}
    gates[0] |= {"beside the base": "encoder"}
    least = lines[[*CHOICE].index(LEAST)]
    gates[1] |= {name: least[name] for name in ("tuned by", "a step", "fit, s")}
    gates[1] |= {"beside the base": "encoder, head"}
    shown = pd.DataFrame([*lines[:-1], *gates, lines[-1]]).fillna("")
    order = [*shown.columns]
    order.insert(order.index("other ways") + 1, order.pop(order.index("sealed")))
    return table(shown[order], texts=2)


def tried(tables: Path) -> dict[tuple[str, str], int]:
    """Return {(aim, method or kind): number of points that were searched for it} on one split."""
    found = {}
    for name, column in (("guided", "labels"), ("rivals", "kind"), ("baselines", "method")):
        search = pd.read_csv(tables / f"{name}_search.csv").query("split == 'forget10'")
        counts = search[column].value_counts()
        found |= {("leak, price", str(kind)): int(n) for kind, n in counts.items()}
        if name == "rivals":  # the same points were ranked by D
            found |= {("D", str(kind)): int(n) for kind, n in counts.items()}
    profile = load_profile("cpu")
    found |= {("D", method): len(points) for method, points in profile["grids"].items()}
    found["D", "T3"] *= len(profile["temperatures"])
    return found


def rival(kind: str, rule: str) -> str:
    """Return the name of a kind of point and of the rule that chose it, as the tables have it."""
    name = "T3, the pair as f" if kind == "pair as f" else f"DD {kind}"
    return f"{name} ({rule})"


def met_together(each: pd.DataFrame, kind: str) -> str:
    """Count the worlds in which a model misses none of its own aims on both splits.

    each: its rows of `guided_each`. kind: of labels; two aims are for guided labels alone.
    """
    missed = each["missed"].fillna("")
    if kind == "hard":
        missed = missed.str.replace("(, )?(forget error|distribution)", "", regex=True)
    by_world = (missed == "").groupby(each["world"]).all()
    return f"{by_world.sum()} of {len(by_world)} worlds"


def sampler(tau: float) -> str:
    """Return a sampler's name. tau: its temperature, 0 for greedy decoding."""
    return f"sampled at τ = {tau:g}" if tau else "greedy"
