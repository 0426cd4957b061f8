"""Draw the figures of the study from a tidy frame (`results.tidy`) or from run files.

The functions return matplotlib figures and read and write no file. A figure's label is its caption
with n: `render.show` prints it, and `render.save_figure` keeps it in the file.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import ks_2samp

from t3lab.audit.labels import AUDIT, HIDING
from t3lab.report import tables
from t3lab.report.look import (
    BAND,
    COLOURS,
    DARK,
    DOTTED,
    GREY,
    LARGE,
    LIGHT,
    PALETTE,
    PAPER,
    PLAIN,
    T3_COLOUR,
    Look,
    better,
    counted,
    few_ticks,
    label_ends,
    log_axis,
    method_points,
    of_splits,
    panels,
    splits_of,
    styled,
    with_key,
)
from t3lab.results import log_ratios, rescaled
from t3lib.baselines.losses import METHODS
from t3lib.tofu.metrics import METRICS

CAUGHT = 0.05  # with a lower Forget Quality, the test can tell the model from a retrained one


@styled()
def temperature(frame: pd.DataFrame, printed: pd.DataFrame | None = None) -> Figure:
    """Draw Table 5: Forget Quality, MU-ROUGE and Model Utility of T3 against T, ours and the
    paper's, one row of panels for each split.

    printed: the paper's Table 5 (`tables.printed`). Dotted lines are the model before unlearning.
    The grey band reaches from the lowest to the highest retrained model.
    """
    main = tables.on_held_out(tables.main_runs(frame))
    splits = splits_of(tables.t3_runs(main))
    sources = [("T3", main, T3_COLOUR, "o")]
    if printed is not None:  # below ours
        sources.insert(0, (PAPER, printed, LIGHT, "s"))
    size = (6.8, 0.7 + 1.5 * len(splits))
    figure, axes = panels(len(splits), 3, size, sharex=True, sharey="col")
    band = ""

    for row, (split, title) in zip(axes, splits.items()):
        for axis, metric in zip(row, tables.SUMMARY):
            for name, source, colour, marker in sources:
                rows = source[source["split"] == split].dropna(subset=[metric])
                t3 = rows[rows["method"] == "T3"]
                means = t3.groupby("T")[metric].mean()
                axis.plot(means, color=colour, marker=marker, ms=4, mew=0, label=name)
                axis.scatter(t3["T"], t3[metric], s=4, color=colour, linewidth=0)
                for level in rows.loc[rows["method"] == "Original", metric]:
                    axis.axhline(level, label="before unlearning", **DOTTED | {"color": colour})

            retrained = rows.loc[rows["method"] == "Retrained", metric]  # of ours, the last source
            if len(retrained):
                axis.axhspan(retrained.min(), retrained.max(), **BAND)
                band = "; grey band: from the lowest to the highest retrained model"
        row[0].set_ylabel(title)

    for column, metric in zip(axes.T, tables.SUMMARY):
        column[0].set_title(METRICS[metric].title)
        column[-1].set_xlabel("temperature $T$")

    return with_key(
        figure,
        "Forgetting and keeping against T3's temperature. Lines: means over seeds; dots: every"
        f" seed; dotted: before unlearning{band}. {compared_with(main)}"
        f" {counted(main, paper=printed is not None)}",
    )


@styled()
def dials(search: pd.DataFrame, title: str, n: int) -> Figure:
    """Draw Forget Quality and D against the strength w in p^(1/T) f^w, one line for each
    temperature.

    search: rows of `study.ablations.run_dials` on one split. Of several learning rates at one
    (T, w) the one with the best Forget Quality is drawn; a search without the column lr has one.
    title: name of the split. n: number of its forget rows.
    """
    figure, [axes] = panels(1, 2, (6.8, 2.4))
    # of several learning rates the best one at each (T, w)
    best = search.sort_values(["fq", "D"], ascending=[False, True]).drop_duplicates(["T", "w"])
    lines = dict([*best.sort_values("w").groupby("T")])
    colours = dict(zip(lines, sns.color_palette("viridis", len(lines))))

    for axis, column, name in zip(axes, ("fq", "D"), ("fq", "ks_statistic")):
        for T, line in lines.items():
            axis.plot(line["w"], line[column], color=colours[T], lw=1, marker=".", ms=6, mew=0)
        log_axis(axis)
        axis.set(xlabel="strength $w$ of the classifier", title=METRICS[name].title)

    axes[0].axhline(CAUGHT, **DOTTED)
    side = {"xycoords": ("axes fraction", "data"), "color": GREY, "fontsize": 7}
    axes[0].annotate(f"{CAUGHT}", (1, CAUGHT), **side)
    # The lines of D are far from each other on the left, between the panels.
    axes[1].yaxis.tick_right()
    axes[1].spines[["left", "right"]].set_visible([False, True])
    ends = [(f"T = {T:g}", line["D"].iloc[0], colours[T]) for T, line in lines.items()]
    label_ends(axes[1], ends, left=True)

    seeds = int(search["n_seeds"].max())
    rates = search["lr"].nunique() if "lr" in search else 1
    several = f" At T = 1 each w has the best of {rates} learning rates." if rates > 1 else ""
    figure.set_label(
        f"T3's two dials, p^(1/T) f^w, {title}: can a sharper classifier replace tempering? Below"
        f" the dotted line the test tells the model from a retrained one. n = {n} forget rows,"
        f" means over {seeds} seed{'s' * (seeds != 1)}.{several}"
    )

    return figure


@styled(LARGE)
def headline(scales: Mapping[str, pd.DataFrame], columns: Mapping[str, str]) -> Figure:
    """Draw the headline tables as dots: one row of panels for each scale, one column for each
    measure, and a line at the value of the last row, the retrained model.

    scales: {name: its rows, with the label of each method as index}. A cell is a number, or a mean
    over worlds with the ends of its interval; beside such cells a number is a hollow dot. columns:
    {measure: its title}. Of D (ks_held_out) less is better, of all others more.
    """
    counts = [len(rows) for rows in scales.values()]
    size = (5.8, 1.1 + 0.35 * len(scales) + 0.2 * sum(counts))
    share: Look = {"sharex": "col", "sharey": "row", "height_ratios": counts}
    share["width_ratios"] = [1.4 if name == "ks_held_out" else 1 for name in columns]
    figure, axes = panels(len(scales), len(columns), size, **share)

    for line, (scale, rows) in zip(axes, scales.items()):
        colours = [T3_COLOUR if "T3" in name else DARK for name in rows.index]
        for axis, (measure, title) in zip(line, columns.items()):
            cells = [cell if isinstance(cell, tuple) else (cell,) for cell in rows[measure]]
            for place, ((value, *ends), colour) in enumerate(zip(cells, colours)):
                fill = colour if len(cells[place]) == max(map(len, cells)) else "white"
                axis.plot(value, place, "o", color=colour, mfc=fill, ms=5)
                axis.plot(ends, [place] * len(ends), color=colour, lw=1.5)
            axis.axvline(cells[-1][0], color=GREY, lw=1, zorder=0)
            less = measure == "ks_held_out"
            axis.set(
                xlim=(-0.04, 0.75 if less else 1.06), xticks=(0, 0.3, 0.6) if less else (0, 0.5, 1)
            )
            axis.set_title(f"{better(title, not less)}\n" if line[0] is axes[0, 0] else " ")
            axis.xaxis.set_major_formatter(PLAIN)
        line[0].set(yticks=range(len(rows)), yticklabels=rows.index, ylim=(len(rows) - 0.5, -0.5))
        # A scale's name is wider than its panel, so it is not part of the layout.
        line[0].annotate(
            scale,
            (0.01, 1),
            (0, 5),
            xycoords=("figure fraction", "axes fraction"),
            textcoords="offset points",
            fontweight="bold",
        ).set_in_layout(False)

    shown = ", ".join(title.replace("\n", " ") for title in columns.values())
    figure.set_label(
        f"The methods of the headline tables on the 10% split: {shown}. The vertical line is the"
        " retrained model. Where D was measured in several worlds, the dot is its mean over them,"
        " with a 95% interval, and a hollow dot is the one world in which settings were chosen."
    )

    return figure


@styled()
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

        # beyond the retrained model, but not as far as the farthest row
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


@styled()
def two_numbers(
    untempered: Mapping[str, Any],
    tempered: Mapping[str, Any],
    original: Mapping[str, Any],
    held_out: Iterable[Any],
) -> Figure:
    """Draw distributions of ln R beside those of held-out retrained models, as they are and with
    another mean or spread.

    untempered, tempered: runs of T3 at T = 1 and at its tuned T. original: the run of the model
    before unlearning. held_out: truth ratios (n,) of retrained models. The reference of each run
    gives k, the quotient of both standard deviations, and the mean and spread of the second panel.
    """
    theirs = [log_ratios(each) for each in held_out]
    onto, cold, hot, before = (
        log_ratios(run["truth_ratio"][name])
        for run, name in (
            (original, "reference"),
            (untempered, "forget"),
            (tempered, "forget"),
            (original, "forget"),
        )
    )

    k = cold.std() / onto.std()
    red, blue = {"color": T3_COLOUR}, {"color": PALETTE[0]}
    shown = [
        [
            ("$T=1$", cold, blue | {"ls": ":"}),
            (f"$T=1$, divided by {k:.1f}", cold / k, blue),
            (f"$T={tempered['T']:g}$", hot, red),
        ],
        [
            ("before unlearning", before, {"color": DARK, "ls": ":"}),
            ("the same, moved and stretched", rescaled(before, onto), {"color": DARK}),
        ],
    ]

    figure, axes = panels(1, 2, (6.8, 2.4), sharex=True, sharey=True)
    for axis, title, lines in zip(axes.flat, ("T3", "the model that forgot nothing"), shown):
        for each in theirs:
            sns.ecdfplot(x=each, color=LIGHT, lw=2, ax=axis)
        for label, values, look in lines:
            D = np.mean([ks_2samp(values, each, method="asymp").statistic for each in theirs])
            sns.ecdfplot(x=values, label=f"{label}: D {D:.2f}", lw=1.1, ax=axis, **look)

        axis.set(title=title, ylabel="", xlabel="ln R of a forgotten row", ylim=(0, 1.02))
        axis.set_xlim(*np.quantile(np.concatenate(theirs), [0, 1]) + (-1, 1))
        axis.legend(loc="lower right")
    figure.supylabel("share of rows below", fontsize=8)
    figure.set_label(
        "Two numbers make most of D: the mean of ln R, the logarithm of the truth ratio, and its"
        " spread. Grey: held-out retrained models, from which D is counted. k, mean and spread"
        f" are those of the retrained model on which settings were chosen. n = {len(cold)} rows,"
        " one seed."
    )
    return figure


@styled()
def tradeoff(frame: pd.DataFrame, printed: pd.DataFrame) -> Figure:
    """Draw every method's forgetting against its MU-ROUGE. Large marks are means, small ones single
    seeds. Top right is best.

    printed: the paper's Table 4 (`tables.printed`), for a second row of panels. D is drawn in place
    of Forget Quality if at most one mean Forget Quality is above CAUGHT. Its axis then has 0 at the
    top.
    """
    ours = tables.on_held_out(tables.at_tuned_temperature(frame))
    splits = splits_of(ours)
    sources = [(splits, "ours", ours), (splits_of(frame[:0]), "paper", printed)]
    figure, axes = panels(2, len(splits), (6.8, 5.5), sharex=True, sharey="row")

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
        f" is best. {compared_with(ours)} {counted(ours, paper=True)}",
        place="right center",
        ncols=1,
        labelspacing=0.8,
    )


@styled()
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


@styled()
def ablations(frame: pd.DataFrame, audited: pd.DataFrame | None = None) -> Figure:
    """Draw T3's other choices, one in each row: the measures of Table 1, recognition and AUC. Small
    marks are single seeds, large ones means.

    frame: runs with a `setting` (`results.read_ablations`). The first row is T3 as tuned, whose
    values are dotted lines.
    audited: `audit.models`. Its retrained models are the yardstick of recognition and AUC.
    """
    # the levels that the settings are compared with
    varied = frame[frame["setting"].isin(tables.SETTINGS)].replace({"setting": tables.SETTINGS})
    settings = [name for name in tables.SETTINGS.values() if name in set(varied["setting"])]
    levels = [("as tuned", ":", varied[varied["setting"] == tables.SETTINGS["tuned"]])]
    if audited is not None and len(audited):
        retrained = audited[audited["method"] == "Retrained"]
        levels.append(("retrained models", "--", retrained))

    # a panel for each measure that was taken
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
        score = (METRICS | AUDIT)[metric]
        title = score.title.replace(", ", ",\n").replace("Membership ", "Membership\n")
        axis.set(xlabel=better(title, score.larger_is_better), ylabel="")
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
