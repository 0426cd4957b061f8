"""Figure 1: frozen base (grey), trained head (red) on pooled hidden states; one entry trains, the
vector tilts.
"""

from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from t3lib.lab.report.look import GREY, STYLE, T3_COLOUR, Look

PLAIN, FROZEN, TRAINED = ("white", GREY), ("0.88", GREY), ("#f6d5cc", T3_COLOUR)  # fill and edge
BOXES: tuple[tuple[Any, ...], ...] = (  # left, bottom, width, height, words, look
    (0, 12, 13, 10, "context $x$\ntokens $1…L$", PLAIN),
    (17, 9, 13, 16, "base model\n$p_{\\theta^*}$\nfrozen", FROZEN),
    (40, 22, 12, 10, "LM head\nfrozen", FROZEN),
    (56, 22, 15, 10, "$\\log\\,p(\\cdot\\mid x)\\;/\\;T$\ntemper", PLAIN),
    (40, 2, 12, 10, "mean over\ntokens, $d$", PLAIN),
    (56, 2, 6.5, 10, "$A$\n$h{\\times}d$", TRAINED),
    (64.5, 2, 6.5, 10, "$B$\n$V{\\times}h$", TRAINED),
    (75, 2, 9, 10, "$\\sigma$\n$g_\\phi(x)$", PLAIN),
    (89, 10, 11, 14, "softmax\n$\\hat p(\\cdot\\mid x)$", PLAIN),
)
ARROWS = (  # from, to
    *(
        ((13, 17), (17, 17)),
        ((52, 27), (56, 27)),
        ((52, 7), (56, 7)),
        ((62.5, 7), (64.5, 7)),
        ((71, 7), (75, 7)),
    ),
    *(((30, 20), (40, 27)), ((30, 14), (40, 7)), ((71, 27), (89, 19.5)), ((84, 8.5), (89, 14.5))),
    ((79.5, 2), (79.5, -1.2)),
)
WORDS = (  # x, y, words, colour
    (33.5, 26, "$H_L$", "black"),
    (33, 6.5, "$H_1…H_L$", "black"),
    (63.5, 14, "linear head: $h(d+V)$ weights", T3_COLOUR),
    (79.5, -3.4, "training: cross-entropy of the one entry $[g_\\phi(x)]_y$", T3_COLOUR),
    (88, 29.5, "inference: add\n$\\log\\,g_\\phi(x)$, all $V$ entries", GREY),
)


@rc_context(STYLE)
def architecture() -> Figure:
    """The boxes, arrows and words above, drawn."""
    figure = Figure(
        figsize=(6.8, 2.4),
        layout="constrained",
        label="Figure 1. The base stays frozen; A and B are trained.",
    )
    axis = figure.add_subplot()
    axis.set(xlim=(-0.5, 100.5), ylim=(-4.5, 34))
    axis.set_axis_off()
    for x, y, width, height, words, (fill, edge) in BOXES:
        style = "round,pad=0,rounding_size=1.2"
        axis.add_patch(
            FancyBboxPatch((x, y), width, height, boxstyle=style, fc=fill, ec=edge, lw=1)
        )
        axis.text(
            x + width / 2,
            y + height / 2,
            words,
            ha="center",
            va="center",
            fontsize=8,
            linespacing=1.4,
        )
    for start, end in ARROWS:
        look: Look = {
            "arrowstyle": "-|>",
            "mutation_scale": 8,
            "lw": 0.9,
            "color": "0.25",
            "shrinkA": 0,
            "shrinkB": 0,
        }
        axis.add_patch(FancyArrowPatch(start, end, **look))
    for x, y, words, colour in WORDS:
        axis.text(x, y, words, fontsize=7, color=colour, ha="center", va="center")
    return figure
