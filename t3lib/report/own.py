"""The report on a person's own model: one page that loads nothing, and a table of ten lines for the terminal."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t3lib.files import atomic_write, write_json
from t3lib.report.render import TEMPLATES

SETS = {  # set of rows -> its name and its colour; what is held out is drawn dashed
    "forget": ("rows to forget", "#c1272d"),
    "retain": ("rows to keep", "#0072b2"),
    "held_out_forget": ("rows to forget, held out", "#c1272d"),
    "held_out_retain": ("rows to keep, held out", "#0072b2"),
    "other": ("other rows", "#009e73"),
}


def write(report: Mapping[str, Any], folder: str | Path) -> Path:
    """Write report.json and report.html into a folder; returns the page's path."""
    folder, text = Path(folder), page(report)
    write_json(folder / "report.json", report)
    with atomic_write(folder / "report.html") as handle:
        handle.write(text)
    return folder / "report.html"


def rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a set of rows: its name, how many, ROUGE-L and answer probability before and after, and whose head.

    Held-out rows are judged with the trial head, which never saw them, at the w·T that was chosen.
    """
    entries = []
    trial = report.get("trial")
    for name, (label, _) in SETS.items():
        before, after, head = report["before"].get(name), report["after"].get(name), ""
        if before is None and trial is not None:
            before, after, head = trial["before"].get(name), trial["at"].get(name), "trial head"
        if before is not None and after is not None:
            entry = {"name": label, "n": before["n"], "head": head}
            for measure in ("rouge", "prob"):
                entry |= {f"{measure}_before": before[measure], f"{measure}_after": after[measure]}
            entries.append(entry)
    return entries


def table(report: Mapping[str, Any]) -> str:
    """At most ten lines: sets of rows before and after, sampled answers, and the verdict.

    Rows held out are marked "trial": their numbers are of the trial head, which never saw them.
    """
    lines = [f"{'':<33}{'rows':>5}{'ROUGE-L before':>16}{'after':>7}{'probability before':>20}{'after':>7}"]
    for entry in rows(report):
        name = entry["name"] + (" (trial)" if entry["head"] else "")
        lines.append(
            f"{name:<33}{entry['n']:>5}{entry['rouge_before']:>16.3f}{entry['rouge_after']:>7.3f}"
            f"{entry['prob_before']:>20.3f}{entry['prob_after']:>7.3f}"
        )
    if "choice" in report and not any(entry["head"] for entry in rows(report)):
        lines.append("no row is held out, with fewer than five of a kind: nothing shows what further rows lose")
    samples = report["samples"]
    before = f"{samples['before']['own']:>16.3f}" if "before" in samples else f"{'':>16}"
    best = f"forget, best of {samples['after']['k']} sampled"
    lines.append(f"{best:<38}{before}{samples['after']['own']:>7.3f}")
    if "choice" in report:
        lines.append(f"T = {report['choice']['T']:g}, w = {report['choice']['w']:g}: {report['choice']['reason']}")
    lines.append(report["verdict"]["sentence"])
    if report["verdict"]["advice"]:
        lines.append("Try: " + "; ".join(report["verdict"]["advice"]) + ".")
    return "\n".join(lines)


def figure(report: Mapping[str, Any]) -> str:
    """ROUGE-L against w·T as SVG text: the kept head's sets in full lines, held-out rows (trial head) dashed.

    Greedy text depends on w·T alone, and the two heads may have different w. Without a choice of w the axis is T.
    """
    from matplotlib.figure import Figure  # takes seconds: the verbs that draw nothing do not wait for it

    chosen = report.get("choice")
    w, axis = (chosen["w"], "temperature T times strength w") if chosen and chosen["w"] != 1 else (1.0, "temperature T")
    drawing = Figure(figsize=(6, 3.9), layout="constrained")
    axes = drawing.subplots()
    full = [(w * entry["T"], entry) for entry in report["curve"]]
    dashed = [(entry["product"], entry) for entry in report["trial"]["curve"]] if "trial" in report else []
    for line, curve in (("-", full), ("--", dashed)):
        for name, (label, colour) in SETS.items():
            points = [(x, entry[name]["rouge"]) for x, entry in curve if name in entry]
            if points and (line == "-" or name.startswith("held_out")):
                axes.plot(*zip(*points), line, marker="o", markersize=3, color=colour, label=label)
    if chosen:
        x = chosen["T"] * w
        axes.axvline(x, color="#777777", linewidth=1, label=f"chosen {'T' if w == 1 else 'w·T'} = {x:g}")
    axes.set(xlabel=axis, ylabel="ROUGE-L of the greedy answer", ylim=(-0.03, 1.03))
    axes.spines[["top", "right"]].set_visible(False)
    drawing.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def page(report: Mapping[str, Any]) -> str:
    """The report as one HTML file without scripts, links to elsewhere or fonts of its own."""
    drawing = figure(report) if report["curve"] else ""
    return TEMPLATES.get_template("own.html").render(report=report, rows=rows(report), figure=drawing)
