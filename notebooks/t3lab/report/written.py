"""Write every table and figure of a results folder in one call, for notebook 05."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from t3lab import results
from t3lab.report import audit, plots, plots_audit, plots_cost, render, tables
from t3lab.report.order import order


@dataclass(frozen=True)
class Written:
    """What was read from a results folder and written back to it.

    folder: of the results. runs: the main runs. frame: all runs as `results.tidy` gives them.
    splits: {split: its name}, such as "5%". damaged: files that could not be read.
    tables, figures: by the name of their file.
    """

    folder: Path
    runs: list[results.Run]
    frame: pd.DataFrame
    splits: dict[str, str]
    damaged: list[str]
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def show(self, name: str, columns: Sequence[str] = (), folded: bool = False) -> render.Html:
        """Show one table with its caption, without rows that did not run.

        columns: only these, if any are given. folded: show only the caption until a reader opens
        the table.
        """
        table, caption = tables.ran(self.tables[name]), tables.CAPTIONS[name]
        table = table[list(columns)] if columns else table
        if not folded:
            return render.html(table, self.splits, caption=caption)
        inside = render.html(table, self.splits)
        return render.Html(f"<details><summary>{escape(caption)}</summary>{inside}</details>")


def write(folder: str | Path, searched: Mapping[str, Mapping[str, Any]]) -> Written:
    """Write tables/ and figures/ of a results folder from its run files.

    searched: the trials behind the methods' settings (`tables.search`). The table of claims is not
    written, because it reads these tables. UserError for runs of two profiles or worlds.
    """
    folder, damaged = Path(folder), list[str]()
    runs = results.read_runs(folder / "runs", corrupt=damaged)
    varied = results.read_ablations(folder / "runs", corrupt=damaged)
    audits = results.read_audits(folder / "runs", corrupt=damaged)

    frame = results.tidy(runs + varied)
    made = Written(folder, runs, frame, results.split_labels(frame), damaged)

    paper = {number: results.paper_table(number) for number in (1, 4, 5)}
    tuned = {split: tables.tuned_temperature(frame, split) for split in made.splits}
    tests = tables.forget_quality(runs)
    found = sorted([*folder.glob("tables/dials--*.csv"), *folder.glob("tables/shares--*.csv")])

    made.tables.update(
        tofu=tables.tofu(frame, tests),
        tofu_per_seed=tables.tofu_per_seed(frame),
        tofu_vs_paper=tables.beside_paper(frame, paper[1], printed_seeds=paper[4]),
        search=tables.search(runs, searched, [pd.read_csv(path) for path in found]),
        forget_quality=tests,
        order=order(runs, tuned),
        temperature=tables.temperature(frame),
        temperature_vs_paper=tables.beside_paper(frame, paper[5]),
        audit=audit.audit(audits),
        leak=audit.leak(audits),
        parameters=tables.parameters(frame),
        runtime=tables.runtime(frame),
        ablations=tables.ablations(frame),
        errors=tables.errors(runs + varied),
    )

    for name, table in made.tables.items():
        render.write_table(folder / "tables", name, table, made.splits)

    made.figures.update(_figures(made, audits))

    for name, figure in made.figures.items():
        render.save_figure(folder / "figures" / f"{name}.svg", figure)

    return made


def _figures(made: Written, audits: list[results.Run]) -> dict[str, Figure]:
    """Draw the figures, by the names of their files. Those of the audit are drawn only if an audit
    was run.
    """
    frame, models = made.frame, audit.models(audits)
    figures = {
        "tradeoff": plots.tradeoff(frame, tables.printed(4)),
        "per_seed": plots.per_seed(frame, tables.printed(4)),
        "temperature": plots.temperature(frame, tables.printed(5)),
        "runtime": plots_cost.runtime(frame, results.paper_table(3)),
        "ablations": plots.ablations(frame, models),
    }
    for split in frame["split"].unique():
        tuned = tables.tuned_temperature(frame, split)

        # the first seed of each method and T, as it was written
        first: dict[tuple[str, float | None], results.Run] = {}
        for run in made.runs:
            if run["split"] == split and run["status"] == "ok" and run["w"] in (None, 1):
                first.setdefault((run["method"], run["T"]), run)

        methods = [run for (name, T), run in first.items() if name != "T3" or tuned == T]
        heated = [run for (name, _), run in first.items() if name == "T3"]
        figures[f"truth_ratios--{split}"] = plots.truth_ratio_cdfs(methods, columns=5)
        figures[f"truth_ratios_by_T--{split}"] = plots.truth_ratio_cdfs(heated, columns=5)

        cold, hot, before = (
            first.get(key) for key in (("T3", 1.0), ("T3", tuned), ("Original", None))
        )
        retrained = results.references(made.runs).get(split, {})
        held_out = [ratios for number, ratios in retrained.items() if number]
        if cold and hot and before and held_out and tuned != 1:
            figures[f"two_numbers--{split}"] = plots.two_numbers(cold, hot, before, held_out)

    if audits:
        asked, leaks = made.tables["audit"], made.tables["leak"]
        figures["leak"] = plots_audit.leak_curves(leaks, models)
        if "T3" in asked["method"].values:
            figures["audit_temperature"] = plots_audit.against_temperature(asked, models)
        figures["audit_frontier"] = plots_audit.frontier(asked, frame[frame["setting"].isna()])

    return figures
