"""Draw the figures of gated tempering and of T3 tuned by the paper's errors (both ours, not the
paper's): notebook 09_gated_tempering.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from t3lab.names import SPLITS
from t3lab.report.look import DARK, DOTTED, PALETTE, PLAIN, T3_COLOUR, panels, styled, with_key
from t3lab.report.plots_theory import AXES
from t3lab.report.render import SPLIT_LABELS

# What the gate moves: {column: its title, with an arrow where better values lie}.
DIALLED = {
    "fq_held_out": "Forget Quality ↑",
    "ks_held_out": "D ↓",
    "paired_r": "row r ↑",
    "retain_prob": "retain: prob. ↑",
    "mu": "Model Utility ↑",
}
# What the rule of T3 (least) looks at, and what it does not: {column: title}.
JUDGED = {"leak": "leak", "retain_error": "Retain Error", "forget_error": "Forget Error"}


@styled()
def along(answers: Mapping[str, tuple[Sequence[str], Sequence[float]]], gate: float) -> Figure:
    """Draw r(x) before each token of some answers. Tokens with r(x) below the gate are tempered.

    answers: {title: (tokens, r(x) before each)}, one panel for each.
    """
    longest = max(len(tokens) for tokens, _ in answers.values())
    figure, axes = panels(len(answers), 1, (max(3.3, 0.24 * longest), 1.7 * len(answers)))
    for axis, (title, (tokens, kept)) in zip(axes.flat, answers.items()):
        at, r = np.arange(len(tokens)), np.asarray(kept)
        colours = [T3_COLOUR if value < gate else PALETTE[0] for value in r]
        axis.vlines(at, 0, r, colors=colours, lw=1.5)
        axis.scatter(at, r, c=colours, s=14, zorder=3)
        axis.axhline(gate, **DOTTED)
        axis.set_xticks(at, [repr(each)[1:-1] for each in tokens], rotation=60, ha="right")
        axis.set(title=title, ylim=(-0.03, 1.05), xlim=(-0.6, len(tokens) - 0.4), ylabel="r(x)")
    figure.set_label(
        f"r(x) before each token of an answer. Orange: below the gate {gate:g}, so it is tempered."
    )
    return figure


@styled()
def by_errors(searches: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw leak, Retain Error and Forget Error against T, at the learning rate of T3 (least), with
    the paper's labels: one row of panels for each scale.

    searches: {title: table `guided_search` of one split}. A star is the point that was chosen.
    """
    figure, axes = panels(len(searches), len(JUDGED), (6.8, 0.6 + 1.5 * len(searches)))
    for line, (title, search) in zip(axes, searches.items()):
        floor = search[search["labels"] == "Retrained"].iloc[0]
        hard = search[search["labels"] == "hard"]
        [best] = hard[hard["chosen"]].to_dict("records")
        hard = hard[(hard["lr"] == best["lr"]) & (hard["tail"] == best["tail"])]
        cold = hard[hard["temperature"] == 1]  # there a gate changes nothing
        for axis, (column, name) in zip(line, JUDGED.items()):
            for gate, label, look in ((1, "everywhere", "-"), (0.5, "where r(x) < 0.5", "--")):
                hot = hard[(hard["gate"] == gate) & (hard["temperature"] > 1)]
                part = pd.concat([cold, hot]).sort_values("temperature")
                label = f"tempered {label}"
                axis.plot(part["temperature"], part[column], look, color=T3_COLOUR, label=label)
            axis.plot(best["temperature"], best[column], "*", color=DARK, ms=9, label="chosen")
            axis.axhline(floor[column], **DOTTED, label="another retrained model")
            axis.set(title=name, xlabel="T" if title == [*searches][-1] else "")
            if column == "retain_error":
                axis.set(yscale="log", ylim=(0.8 * floor[column], None))
                axis.yaxis.set(major_formatter=PLAIN, minor_formatter=NullFormatter())
            else:
                axis.set_ylim(0)
        line[0].set_ylabel(title)
    return with_key(
        figure,
        "The paper's errors against T at the learning rate of T3 (least), beside a retrained model,"
        " in the search. The rule takes the least Retain Error (nats a token, log scale) among the"
        " points whose leak is near that of another retrained model. It does not look at the Forget"
        " Error.",
    )


@styled()
def frontier(table: pd.DataFrame) -> Figure:
    """Draw Forget Error against Retain Error, one line for each gate and one panel for each v_f.

    table: `gate_gaussians` of results/studies/gate. Along a line T rises.
    """
    spikes = sorted(table["v_f"].unique())
    figure, axes = panels(1, len(spikes), (6.8, 2.8))
    named = table.assign(gate=table["gate"].map("gate {:g}".format).replace("gate 1", "T3"))
    order = [*sorted(set(named["gate"]) - {"T3"}), "T3"]
    colours = dict(zip(order, [*sns.color_palette("crest", len(order) - 1), T3_COLOUR]))
    for axis, v_f in zip(axes.flat, spikes):
        for name in order:
            part = named[(named["v_f"] == v_f) & (named["gate"] == name)].sort_values("T")
            x, y = part["retain_error"], part["forget_error"]
            axis.plot(x, y, marker=".", color=colours[name], label=name)
        axis.set(title=f"$v_f$ = {v_f:g}", xlabel=AXES["retain"], ylabel=AXES["forget"])
        axis.set(xscale="log", yscale="log")
    return with_key(
        figure,
        "Forget Error against Retain Error on Gaussians, medians over data sets, as T rises along"
        " each line. Low and left is best. T3 tempers everywhere; gate 0.5 tempers where f < 0.5.",
    )


@styled()
def dial(table: pd.DataFrame) -> Figure:
    """Draw what T3 hides and keeps as the gate moves: one row of panels for each split.

    table: `gate_dial` of results/studies/gate.
    """
    splits = [split for split in SPLITS if split in set(table["split"])]
    size = (6.8, 0.6 + 1.3 * len(splits))
    figure, axes = panels(len(splits), len(DIALLED), size, sharex=True, sharey="col")

    for line, split in zip(axes, splits):
        part = table[table["split"] == split]
        for axis, column in zip(line, DIALLED):
            axis.plot(part["gate"], part[column], color=T3_COLOUR, marker="o", ms=3, mew=0)
            axis.set(xticks=(0, 0.5, 1), ylim=(-0.04, 1.04))
        line[0].set_ylabel(f"{SPLIT_LABELS[split]} split")

    for axis, title in zip(axes[0], DIALLED.values()):
        axis.set_title(title)

    for axis in axes[-1]:
        axis.set_xlabel("gate")

    seeds = int(table["n_seeds"].max())
    figure.set_label(
        "T3 at its tuned learning rate and T as the gate moves from 0 (never tempers) to 1 (the"
        " paper's T3). Forget Quality, D and row r compare with held-out retrained models. Means"
        f" over {seeds} seed{'s' * (seeds != 1)}."
    )

    return figure


@styled()
def speaking(table: pd.DataFrame) -> Figure:
    """Draw what a model that speaks says and keeps as the gate moves: one panel for each story.

    table: `gate` of results/profiles/smollm.
    """
    table = table.dropna(subset=["gate"])
    figure, axes = panels(1, table["story"].nunique(), (6.8, 2.6), sharey=True)
    lines = {
        ("said_in_ways", "asked"): ("said in some way", T3_COLOUR),
        ("as_before", "kept"): ("as before", PALETTE[0]),
        ("as_before_sampled", "kept"): ("as before, sampled", PALETTE[9]),
    }
    for axis, (story, part) in zip(axes.flat, table.groupby("story")):
        for untrained, dash in (("as drawn", "--"), ("neutral", "-")):
            for (column, total), (label, colour) in lines.items():
                some = part[part["untrained"] == untrained].sort_values("gate")
                name = f"{label}, {untrained}"
                share = some[column] / some[total]
                axis.plot(some["gate"], share, dash, color=colour, marker="o", ms=3, label=name)
        axis.set(title=story, xlabel="gate", xticks=(0, 0.5, 0.9, 1), ylim=(-0.04, 1.04))
    axes.flat[0].set_ylabel("share of rows")
    return with_key(
        figure,
        "SmolLM2 with its strong heads at T = 2, as the gate moves from 0 (never tempers) to 1 (the"
        " paper's T3). A row to forget should be said in no way of asking; an answer to keep should"
        " be as before. Tokens of no row are as B began (as drawn) or not tilted (neutral).",
        ncols=3,
    )
