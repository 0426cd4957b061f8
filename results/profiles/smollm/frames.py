"""Three frames of notebook 00_explore's slider, for README: the next token at three T.

    python results/profiles/smollm/frames.py

The numbers are those that the slider of the executed copy stores; no model is read. The question is
the first whose secret is in the greedy answer at the smallest T and not at the largest. Each frame
has the tokens that the unlearned model finds likeliest in any of the three, and the beginning of
the greedy answer at this T.
"""

import argparse
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from t3lab import script
from t3lab.report import render
from t3lab.report.look import LARGE, styled
from t3lib.core.files import project_root, read_json

FOLDER = project_root() / "results" / "profiles" / "smollm"
NOTEBOOK = FOLDER / "notebooks" / "00_explore.ipynb"
TEMPERATURES = (1.0, 1.5, 2.0)
SHOWN = 4  # tokens beside the true one
CAPTION = "The next token of SmolLM2 at three T, of notebook 00_explore's slider."
WIDE, LINES = 40, 2  # letters of a line of the answer, and lines
# Colours on a light and on a dark page: letters, frame, the true token, other tokens, p^(1/T).
INKS = {
    "frames": ("#1f2328", "0.8", "#c0392b", "#0757c0", "0.7"),
    "frames-dark": ("#e8eaed", "0.35", "#ff9a92", "#8ab4f8", "0.45"),
}


def stored(notebook: Path) -> dict[str, Any]:
    """Return what the slider over text stores in an executed copy of 00_explore."""
    outputs = [out for cell in read_json(notebook)["cells"] for out in cell.get("outputs", [])]
    pages = ["".join(out["data"].get("text/html", "")) for out in outputs if "data" in out]
    found = re.findall(r'<script type="application/json">(.*?)</script>', "".join(pages), re.S)
    [data] = [each for each in map(json.loads, found) if each["view"] == "language"]
    return data


def frames(data: dict[str, Any]) -> tuple[str, list[str], list[dict[str, Any]]]:
    """Return a title with the text before a question's secret, the tokens that are shown, and for
    each T {"tempered", "unlearned": probabilities of these tokens and of all others, "answer":
    greedy}. The true token is the first one.
    """
    question, secret = next(
        (question, secret)
        for question, secret in zip(data["sides"][0], data["secrets"])
        if secret in answer_at(data, question, TEMPERATURES[0])
        and secret not in answer_at(data, question, TEMPERATURES[-1])
    )
    [place] = [
        each for each in question["places"] if each["words"][each["target"]].strip() == secret
    ]
    logp, logf = np.array(place["logp"]), np.array(place["logf"])
    found = []
    for T in TEMPERATURES:
        at = data["T"].index(T)
        tempered = np.exp(logp / T - place["z"][at])
        unlearned = np.exp(logp / T + logf - place["zf"][at][0])
        answer = answer_at(data, question, T)
        found.append({"T": T, "tempered": tempered, "unlearned": unlearned, "answer": answer})

    likeliest = np.max([each["unlearned"] for each in found], axis=0)
    likeliest[place["target"]] = 2
    order = np.argsort(-likeliest)[: 1 + SHOWN]
    for each in found:
        for name in ("tempered", "unlearned"):
            each[name] = [*each[name][order], 1 - each[name][order].sum()]
    words = [place["words"][n].strip() for n in order]
    f = float(np.exp(logf[place["target"]]))
    title = f"{place['before']} …   grey: p^(1/T), colour: p̂, with f = {f:.2f} for {secret}"
    return title, [*words, "all others"], found


def answer_at(data: dict[str, Any], question: dict[str, Any], T: float) -> str:
    """Return the greedy answer at a T. The first answer of a question is the base's."""
    return question["answers"][1 + data["T"].index(T)][0]


def figure(data: dict[str, Any], ink: tuple[str, ...]) -> Figure:
    """Draw a panel for each T: bars of p^(1/T), and of the unlearned model in front of them."""
    text, frame, true, other, grey = ink
    inked = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), text)
    before, words, found = frames(data)
    with styled(LARGE | inked | {"axes.edgecolor": frame, "grid.color": frame}):
        drawn = Figure(figsize=(8.3, 2.6), layout="constrained", facecolor="none")
        axes = drawn.subplots(1, len(found), sharex=True, sharey=True)
        places = np.arange(len(words))
        for axis, each in zip(axes, found):
            axis.barh(places, each["tempered"], 0.8, color=grey)
            colours = [true, *[other] * (len(words) - 1)]
            axis.barh(places, each["unlearned"], 0.4, color=colours)
            end = max(each["tempered"][0], each["unlearned"][0])
            axis.text(end + 0.02, 0, f"{each['unlearned'][0]:.2f}", color=true, va="center")
            axis.set(
                xlim=(0, 1.2), xticks=[0, 0.5, 1], facecolor="none", title=f"T = {each['T']:g}"
            )
            axis.grid(axis="y", visible=False)
            lines = textwrap.wrap(each["answer"], WIDE, max_lines=LINES, placeholder=" …")
            axis.set_xlabel("\n".join(lines), style="italic")
        axes[0].set_yticks(places, words)
        axes[0].invert_yaxis()
        drawn.suptitle(before, x=0.01, ha="left", fontsize=10)
    return drawn


def make(_: argparse.Namespace) -> None:
    """Draw the frames for a light and a dark page."""
    data = stored(NOTEBOOK)
    for name, ink in INKS.items():
        render.save_figure(FOLDER / "figures" / name, figure(data, ink), CAPTION)


if __name__ == "__main__":
    script.run(make, __doc__, {}, as_jobs=False)
