"""The report on a person's own model: report.json, one page that loads nothing, and report.csv, a
line a row.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t3lib.core.files import atomic_write, write_json
from t3lib.lab.report.render import TEMPLATES

SETS = {  # set of rows to keep -> its name and its colour
    "retain": ("rows to keep", "#0072b2"),
    "held_out_retain": ("rows to keep, held out", "#56b4e9"),
    "other": ("other rows", "#009e73"),
}
COLUMNS = (
    "set",
    "question",
    "truth",
    "base",
    "answer",
    "worst",
    "worst_way",
    "leaks",
    "misdirected",
    "recognised",
)


def save_report(report: Mapping[str, Any], folder: str | Path) -> Path:
    """Write report.json, report.html and report.csv into a folder; returns the page's path."""
    folder, text = Path(folder), report_page(report)
    write_json(folder / "report.json", report)
    with atomic_write(folder / "report.csv") as handle:
        handle.write(report_csv(report))
    with atomic_write(folder / "report.html") as handle:
        handle.write(text)
    return folder / "report.html"


def changed(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows to keep whose answer is another one than before, of every set."""
    return [
        {"set": SETS[name][0], **row}
        for name in SETS
        if name in report
        for row in report[name]["changed"]
    ]


def report_csv(report: Mapping[str, Any]) -> str:
    """All rows to forget, worst first, and the changed rows to keep, as CSV."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, extrasaction="ignore", restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(
        [{"set": "forget", **row} for row in report["forget"]["each"]] + changed(report)
    )
    return text.getvalue()


def choice_figure(report: Mapping[str, Any]) -> str:
    """The choice as SVG text: what each product w·T leaves of the rows, greedy, and what the judged
    settings sample.
    """
    from matplotlib.figure import (
        Figure,
    )  # takes seconds: the verbs that draw nothing do not wait for it

    chosen, curve = report["choice"], {}
    for entry in report["curve"]:  # greedy text depends on the product alone
        curve[round(entry["T"] * entry["w"], 9)] = entry
    products = sorted(curve)
    drawing = Figure(figsize=(6, 3.9), layout="constrained")
    axes = drawing.subplots()
    said = [curve[product]["said"] for product in products]
    axes.plot(
        products, said, marker="o", markersize=3, color="#c1272d", label="rows to forget still said"
    )
    for name, (label, colour) in SETS.items():
        shares = [curve[product]["kept"].get(name) for product in products]
        if None not in shares:
            axes.plot(
                products, shares, marker="o", markersize=3, color=colour, label=f"{label}, greedy"
            )
    for entry in chosen["tried"]:
        mark = "D" if (entry["T"], entry["w"]) == (chosen["T"], chosen["w"]) else "x"
        share = entry["warm"] / max(entry["known"], 1)
        name = f"T = {entry['T']:g}, w = {entry['w']:.3g}: all to keep, sampled"
        axes.plot(
            entry["T"] * entry["w"],
            share,
            linestyle="none",
            label=name,
            marker=mark,
            color="#777777",
        )
    axes.set(xlabel="temperature T times strength w", ylabel="share of rows", ylim=(-0.03, 1.03))
    axes.spines[["top", "right"]].set_visible(False)
    drawing.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def report_page(report: Mapping[str, Any]) -> str:
    """The report as one HTML file that loads nothing: no link to elsewhere, no font; one short
    script sorts tables.
    """
    drawing = choice_figure(report) if "choice" in report else ""
    return TEMPLATES.get_template("own.html").render(
        report=report, changed=changed(report), figure=drawing
    )
