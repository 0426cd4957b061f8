"""Draw the figures of the study from a tidy frame (`results.tidy`) or from run files.

The functions return matplotlib figures and read and write no file. A figure's label is its caption
with n: `render.show` prints it, and `render.save_figure` keeps it in the file.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import ks_2samp

from t3lab.report import tables
from t3lab.report.look import (
    COLOURS,
    DOTTED,
    GREY,
    PALETTE,
    PAPER,
    STYLE,
    Look,
    counted,
    few_ticks,
    log_axis,
    method_points,
    of_splits,
    panels,
    splits_of,
    with_key,
)
from t3lib.baselines.losses import METHODS
from t3lib.tofu.metrics import AUDIT, HIDING, METRICS

CAUGHT = 0.05  # with a lower Forget Quality, the test can tell the model from a retrained one


@rc_context(STYLE)
def temperature(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Draw Table 5: Forget Quality, MU-ROUGE and Model Utility of T3 against T, ours and the
    paper's.

    printed: the paper's Table 5 (`tables.printed`). Dotted lines are the model before unlearning.
    """
    main = tables.on_held_out(tables.main_runs(frame))
    splits = splits_of(tables.t3_runs(main))
    sources: list[tuple[pd.DataFrame, Look, Any]] = [(main, {"ls": "-"}, ":")]
    entries = [("ours", {"color": GREY}), ("before unlearning", DOTTED)]
    if printed is not None:
        sources.append((printed, {"ls": "--", "lw": 1, "legend": False}, (0, (1, 4))))
        entries.insert(1, (PAPER, {"color": GREY, "ls": "--", "lw": 1}))
    figure, [axes] = panels(1, 3, (6.8, 2.4))
    for axis, metric in zip(axes, tables.SUMMARY):
        for source, look, dash in sources:
            data, by, markers = of_splits(source.dropna(subset=[metric]), splits)
            t3 = {"data": data[data["method"] == "T3"], "x": "T", "y": metric, "ax": axis}
            sns.lineplot(
                **{**t3, **by, **look},
                style="split",
                style_order=by["hue_order"],
                markers=markers,
                dashes=False,
                errorbar=None,
                ms=4.5,
            )
            if source is main:
                sns.scatterplot(**t3, s=6, alpha=0.5, linewidth=0, legend=False, **by)
            for before in data[data["method"] == "Original"].to_dict("records"):
                colour = by["palette"][before["split"]]
                axis.axhline(before[metric], color=colour, lw=0.8, ls=dash)
        axis.set(xlabel="temperature $T$", ylabel="", title=METRICS[metric].title)
    return with_key(
        figure,
        "Forgetting and keeping against T3's temperature. Lines: means over seeds; dots: every"
        " seed; dotted: before"
        f" unlearning{'' if printed is None else ' (widely dotted: the paper)'}."
        f" {compared_with(main)} {counted(main, paper=printed is not None)}",
        entries,
    )


@rc_context(STYLE)
def dials(search: pd.DataFrame, title: str, n: int) -> Figure:
    """Draw Forget Quality and D against the strength w in p^(1/T) f^w, one line for each
    temperature.

    search: rows of `study.ablations.run_dials` on one split. Of several learning rates at one
    (T, w) the one with the best Forget Quality is drawn; a search without the column lr has one.
    title: name of the split. n: number of its forget rows.
    """
    figure, [axes] = panels(1, 2, (6.8, 2.6))
    best = search.sort_values(["fq", "D"], ascending=[False, True]).drop_duplicates(["T", "w"])
    named = best.sort_values(["T", "w"]).assign(T=lambda rows: rows["T"].map("T = {:g}".format))
    for axis, column, name in zip(axes, ("fq", "D"), ("fq", "ks_statistic")):
        sns.lineplot(
            named,
            x="w",
            y=column,
            hue="T",
            palette="viridis",
            errorbar=None,
            marker=".",
            ms=6,
            mew=0,
            lw=1,
            ax=axis,
        )
        log_axis(axis)
        axis.set(xlabel="strength $w$ of the classifier", ylabel="", title=METRICS[name].title)
    axes[0].axhline(CAUGHT, label=f"Forget Quality {CAUGHT}", **DOTTED)
    seeds = int(search["n_seeds"].max())
    rates = search["lr"].nunique() if "lr" in search else 1
    several = f" At T = 1 each w has the best of {rates} learning rates." if rates > 1 else ""
    return with_key(
        figure,
        f"T3's two dials, p^(1/T) f^w, {title}: can a sharper classifier replace tempering? Below"
        f" the dotted line the test tells the model from a retrained one. n = {n} forget rows,"
        f" means over {seeds} seed{'s' * (seeds != 1)}.{several}",
    )


@rc_context(STYLE)
def truth_ratio_cdfs(runs: Iterable[Mapping[str, Any]], *, columns: int = 4) -> Figure:
    """Draw the two truth-ratio distributions behind each Forget Quality, one panel for each run.

    The black bar is the KS distance D. Forget Quality is its p-value and depends on nothing else.
    The horizontal axis is logarithmic and wider than the range of the retrained model. Failed runs
    have no panel. columns: most panels in a row.
    """
    shown = [run for run in runs if len((run["truth_ratio"] or {}).get("reference", []))]
    rows = max(1, -(-len(shown) // columns))
    columns = max(1, -(-len(shown) // rows))  # six panels are two rows of three, not five and one
    figure, axes = panels(rows, columns, (6.8, 0.4 + 1.5 * rows), sharey=True)
    for axis, run in zip(axes.flat, shown):
        ratios = [np.asarray(run["truth_ratio"][name], float) for name in ("reference", "forget")]
        for values, colour, dash in zip(ratios, (GREY, COLOURS[run["method"]]), ("--", "-")):
            sns.ecdfplot(x=values, color=colour, ls=dash, lw=1.1, ax=axis)
        test = ks_2samp(*ratios, method="asymp")  # gives D and its place; the p-value is in the run
        bar = [float((values <= test.statistic_location).mean()) for values in ratios]
        axis.plot([test.statistic_location] * 2, bar, color="black", lw=2.2)
        T, p = "" if run["T"] is None else f" at $T={run['T']:g}$", run["metrics"]["fq"]
        quality = f"{p:.3f}" if p >= 5e-4 else f"{p:.0e}".replace("e-0", "e-")
        axis.set_title(f"{run['method']}{T}\nFQ {quality}, D {test.statistic:.3f}", pad=3)
        log_axis(axis)
        low, high = np.quantile(ratios[0][ratios[0] > 0], [0.005, 0.995]) * (0.4, 2.5)
        axis.set(xlim=(low, high), ylim=(0, 1.02), yticks=(0, 0.5, 1), ylabel="")
        axis.xaxis.set_major_locator(few_ticks(low, high))
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    figure.supxlabel("truth ratio of a forget row" if shown else "no finished runs", fontsize=8)
    figure.supylabel("share of rows below", fontsize=8)
    n = sorted({len(run["truth_ratio"]["forget"]) for run in shown})
    return with_key(
        figure,
        "What Forget Quality looks at: the cumulative distributions of the truth ratios after"
        " unlearning and of the retrained model. D is their largest distance."
        f" n = {', '.join(map(str, n)) or 0} forget rows in each panel, one seed each.",
        [
            ("retrained without the forget rows", {"color": GREY, "ls": "--"}),
            ("after unlearning (one colour for each method)", {"color": COLOURS["T3"]}),
            ("D", {"color": "black", "lw": 2.2}),
        ],
        "upper center",
    )


@rc_context(STYLE)
def tradeoff(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Draw every method's forgetting against its MU-ROUGE. Large marks are means, small ones single
    seeds. Top right is best.

    printed: the paper's Table 4 (`tables.printed`), for a second row of panels. D is drawn in place
    of Forget Quality if at most one mean Forget Quality is above CAUGHT. Its axis then has 0 at the
    top.
    """
    ours = tables.on_held_out(tables.at_tuned_temperature(frame))
    splits = splits_of(ours)
    sources = [(splits, "ours", ours)]
    if printed is not None:
        sources.append((splits_of(frame[:0]), "paper", printed))
    figure, axes = panels(
        len(sources), len(splits), (6.8, 0.5 + 2.5 * len(sources)), sharex=True, sharey="row"
    )
    for row, (names, source, data) in zip(axes, sources):
        metric = _forgetting(data)
        for axis, split in zip(row, splits):
            seeds = data[data["split"] == split]
            means = seeds.groupby("method")[["mu_rouge", metric]].mean().reset_index()
            method_points(axis, seeds, "mu_rouge", metric, 10, alpha=0.4, legend=False)
            method_points(axis, means, "mu_rouge", metric, 60)
            axis.set(xlabel="MU-ROUGE", ylabel=METRICS[metric].title)
            axis.set_title(f"{names[split]}, {source}")
            axis.label_outer()
        row[0].yaxis.set_inverted(not METRICS[metric].larger_is_better)
    return with_key(
        figure,
        "Forgetting against keeping: every method (large: mean) and every seed (small). Top right"
        f" is best. {compared_with(ours)} {counted(ours, paper=printed is not None)}",
        place="right center",
        ncols=1,
        labelspacing=0.8,
    )


@rc_context(STYLE)
def per_seed(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Draw Table 4: forgetting of every seed and its mean, ours above the paper's.

    D is drawn in place of Forget Quality if at most one mean Forget Quality is above CAUGHT. The
    paper prints no D and is then left out.
    """
    ours = tables.on_held_out(tables.at_tuned_temperature(frame))
    metric, splits, sources = _forgetting(ours), splits_of(ours), {"ours": ours}
    if printed is not None and metric == "fq":
        sources[PAPER] = printed
    both = pd.concat([part.assign(source=name) for name, part in sources.items()])
    methods = [method for method in METHODS if method in set(both["method"])]
    by = {
        **{"x": metric, "y": "method", "order": methods},
        **{"hue": "source", "hue_order": [*sources]},
        "palette": [PALETTE[0], "0.6"][: len(sources)],
    }
    mark = {"marker": "|", "ls": "none", "ms": 9, "mew": 1.6}
    figure, axes = panels(
        1, len(splits), (6.8, 0.6 + 0.2 * max(4, len(methods))), sharex=True, sharey=True
    )
    for axis, (split, name) in zip(axes.flat, splits.items()):
        here = {"data": both[both["split"] == split].dropna(subset=[metric]), "ax": axis}
        sns.stripplot(**here, **by, dodge=True, jitter=False, size=3.5, alpha=0.8)
        sns.pointplot(
            **here, **by, dodge=0.4 * (len(sources) > 1), errorbar=None, legend=False, **mark
        )
        axis.set(title=name, xlabel=f"{METRICS[metric].title} of a seed", ylabel="")
    return with_key(
        figure,
        f"{METRICS[metric].title} seed by seed. {compared_with(ours)}"
        f" {counted(ours, paper=len(sources) > 1)}",
        [("mean", {"color": GREY} | mark)],
    )


@rc_context(STYLE)
def ablations(frame: pd.DataFrame, audited: pd.DataFrame | None = None) -> Figure:
    """Draw T3's other choices, one in each row: the measures of Table 1, recognition and AUC. Small
    marks are single seeds, large ones means.

    frame: runs with a `setting` (`results.read_ablations`). The first row is T3 as tuned, whose
    values are dotted lines.
    audited: `audit.models`. Its retrained models are the yardstick of recognition and AUC.
    """
    varied = frame[frame["setting"].isin(tables.SETTINGS)].replace({"setting": tables.SETTINGS})
    settings = [name for name in tables.SETTINGS.values() if name in set(varied["setting"])]
    levels = [("as tuned", ":", varied[varied["setting"] == tables.SETTINGS["tuned"]])]
    if audited is not None and len(audited):
        retrained = audited[audited["method"] == "Retrained"]
        levels.append(("retrained models", "--", retrained))
    measures = (*tables.SUMMARY, HIDING[0], HIDING[-1])
    shown = [name for name in measures if varied[name].notna().any()] or ["fq"]
    splits = splits_of(varied)
    data, by, markers = of_splits(varied, splits)
    by |= {"y": "setting", "order": settings}
    figure, axes = panels(
        1, len(shown), (1.9 + 1.15 * len(shown), 0.8 + 0.2 * max(4, len(settings))), sharey=True
    )
    for axis, metric in zip(axes.flat, shown):
        here = {"data": data.dropna(subset=[metric]), "x": metric, "ax": axis, **by}
        sns.stripplot(**here, dodge=True, jitter=False, size=2.4, alpha=0.5, legend=False)
        sns.pointplot(
            **here,
            dodge=0.4 * (len(splits) > 1),
            errorbar=None,
            ls="none",
            ms=4,
            markers=markers,
        )
        for _, dash, level in levels:
            found = level.reindex(columns=["split", metric]).groupby("split")[metric].mean()
            for split, value in found.items():
                axis.axvline(value, color=by["palette"][splits[split]], lw=0.8, ls=dash)
        title = (METRICS | AUDIT)[metric].title.replace(", ", ",\n")
        axis.set(xlabel=title.replace("Membership ", "Membership\n"), ylabel="")
        axis.xaxis.set_major_locator(MaxNLocator(3))
    goal = "In the last two panels neither end is best: a method that forgot is where retrained"
    goal += " models are. "
    return with_key(
        figure,
        "T3's other choices. Large marks are means over seeds, small ones single seeds. Dotted: T3"
        " as tuned."
        f" {goal if {*HIDING} & {*shown} else ''}{counted(varied)}",
        [(name, DOTTED | {"ls": dash}) for name, dash, _ in levels],
    )


def compared_with(runs: pd.DataFrame) -> str:
    """Write a sentence for captions: which retrained models Forget Quality and D of these runs are
    compared with.
    """
    if (most := runs["n_references"].max()) > 0:
        others = f"on which nothing was tuned (mean over {most:.0f})"
        return f"Ours compare with retrained models {others}."
    return "Ours compare with the retrained model on which settings were chosen: none is held out."


def _forgetting(runs: pd.DataFrame) -> str:
    """Return the measure that separates the methods: "fq", or "ks_statistic" if at most one mean
    Forget Quality is above CAUGHT.
    """
    means = runs[runs["method"].isin(tables.UNLEARNING)].groupby(["split", "method"])["fq"].mean()
    caught = "ks_statistic" in runs and len(means) and (means > CAUGHT).sum() <= 1
    return "ks_statistic" if caught else "fq"
