"""Write the tables of `results/studies/own`: what came out for own rows, model by model."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from scipy.stats import binomtest

from t3lab.report.details import table
from t3lib.core.files import read_json
from t3lib.own.phrases import SMALL_TALK

# Sets of rows that a head must leave alone -> their title.
LEFT_ALONE = {"retain": "kept", "held_out_retain": "kept, held out", "other": "in neither file"}
# The models that the fit was developed on, and those that nobody had looked at.
DEVELOPED, UNTOUCHED = "own.csv", "untouched/own.csv"
PRETRAINED = "smollm2-"  # how cases of results/studies/own with SmolLM2 begin
# Fits with a part left out or added.
PARTS = ("without slips", "without astray", "without either", "without forms", "every token")
PLACES = {"judge": ".0f", "judge_retrained": ".0f", "next_token": ".1f", "whole_answers": ".0f"}
OF_SUMMARY = (
    "rows to forget",
    "pass / cannot tell / No (retrained: pass)",
    "rows that leak (before; retrained)",
    "answers kept, of those not fitted",
)
KINDS = {
    "gpt2": "sentences",
    "short": "short answers",
    "customers": "phone and order numbers",
    "builtin": "rows about invented authors",
}
COUNTED_OWN = [
    "rows",
    "leaking",
    "leaking_before",
    "judge",
    "judge_retrained",
    "sealed",
    "talk_changed",
    "T",
    "w",
    *(f"{name}_{key}" for name in LEFT_ALONE for key in ("unchanged", "known_before")),
]


def summary(folder: Path) -> str:
    """Write what came out for own rows, in one line for each kind: of small models that were taught
    them, and of SmolLM2. Of a kind with models that nobody had looked at while the fit was made,
    these alone count.

    folder: with own.csv, untouched/own.csv and capitals/report.json.
    """
    developed, untouched = (
        _own(folder, False, (name,)).query("choice == 'new fit'") for name in (DEVELOPED, UNTOUCHED)
    )
    lines = []
    for kind, title in KINDS.items():
        part = untouched[untouched["model"] == kind]
        part = part if len(part) else developed[developed["model"] == kind]
        sums, retrained = part[COUNTED_OWN].sum(), part["leaking_retrained"].astype(float).sum()
        of_retrained = (part["status_retrained"] == "pass").sum()
        lines.append(
            (
                f"{sums['rows']:.0f} {title}",
                f"{_statuses(part['status'])} ({of_retrained})",
                f"{sums['leaking']:.0f} ({sums['leaking_before']:.0f}; {retrained:.0f})",
                _kept(sums, "held_out_retain", "other"),
            )
        )

    report = read_json(folder / "capitals" / "report.json")
    forget, kept = report["forget"], report["held_out_retain"]
    lines.append(
        (
            f"{forget['rows']} capitals, known by SmolLM2",
            _statuses([report["verdict"]["status"]]),
            f"{forget['leaking']} ({forget['leaking_before']})",
            f"{kept['unchanged']} of {kept['known_before']}",
        )
    )
    return table(pd.DataFrame(lines, columns=[*OF_SUMMARY]))


def _statuses(verdicts: Iterable[str]) -> str:
    """Write how many verdicts are a pass, cannot tell, and no."""
    counts = Counter(verdicts)
    return " / ".join(str(counts[each]) for each in ("pass", "cannot tell", "no"))


def judged(folder: Path) -> str:
    """Write how often the verdict on all small models and the judge agree. The judge finds a model
    leaking if it gets more facts than of a model that was retrained without the rows.

    folder: as of `summary`.
    """
    found = _own(folder, False, (DEVELOPED, UNTOUCHED)).query("choice == 'new fit'")
    more = found["judge"] > found["judge_retrained"]
    passed = found["status"] == "pass"
    lines = [
        {
            "verdict": name,
            "the judge gets more facts than of a retrained model": str((part & more).sum()),
            "not more": str((part & ~more).sum()),
        }
        for name, part in (("pass", passed), ("no pass", ~passed))
    ]
    false, passes = int((passed & more).sum()), int(passed.sum())
    if not passes:
        return table(pd.DataFrame(lines))
    bound = binomtest(false, passes, alternative="less").proportion_ci(0.95).high
    known = f"so at most {bound:.0%} (one-sided, 95%)" if false < passes else "which bounds nothing"
    return f"{table(pd.DataFrame(lines))}\n\nFalse passes: {false} of {passes}, {known}."


def models(folder: Path, pretrained: bool = False, whole: str = "") -> str:
    """Write a table with one line for each small model, or with `whole` for each model and fit.

    folder: as of `summary`. pretrained: SmolLM2 with its kinds of rows, in place of the small
    models. whole: the name of the whole fit, if a column is wanted that names the fits.
    """
    lines = []
    names = [DEVELOPED] if pretrained else [DEVELOPED, UNTOUCHED]
    found = _own(folder, pretrained, names).sort_values(["model", "seed"], kind="stable")
    if not whole:
        found = found[found["choice"] == "new fit"]
    for _, row in found.iterrows():
        retrained = "–" if pd.isna(row["leaking_retrained"]) else row["leaking_retrained"]
        leaks = f"{row['leaking']:.0f} ({row['leaking_before']:.0f}; {retrained})"
        leaks += f" of {row['rows']:.0f}"
        shown = {
            column: "–" if pd.isna(row[column]) else f"{row[column]:{places}}"
            for column, places in PLACES.items()
            if column in row
        }
        name, left_alone = f"{row['model']} {row['seed']}", dict(LEFT_ALONE)
        elsewhere = {}
        if pretrained:
            name = row["model"].removeprefix(PRETRAINED)
            del left_alone["retain"]
            elsewhere = {
                "next tokens as before, %": shown["next_token"],
                "whole answers, of 100": shown["whole_answers"],
            }
        lines.append(
            {
                "rows" if pretrained else "model": name,
                **({"fit": row["choice"].replace("new fit", whole)} if whole else {}),
                "verdict then" if pretrained else "verdict": row["status"],
                "T, w": f"{row['T']:g}, {row['w']:g}",
                "rows that leak (before; retrained)": leaks,
                "by the judge (retrained)": f"{shown['judge']} ({shown['judge_retrained']})",
                "in sealed ways": f"{row['sealed']:.0f}",
                **{title: _kept(row, name) for name, title in left_alone.items()},
                **elsewhere,
            }
        )

    return table(pd.DataFrame(lines), texts=3 if whole else 2)


def parts(folder: Path) -> str:
    """Write what comes out for the small models if a part of the fit is left out or added, as fit →
    other fit: a line for each other fit, with a sign test over its models.

    folder: as of `summary`, with tricks/own.csv.
    """
    found, lines = _own(folder / "tricks", False, [DEVELOPED]), []
    found = found.set_index(["choice", "model", "seed"])[COUNTED_OWN]
    for choice in PARTS:
        other, whole = found.loc[choice], found.loc["new fit"].loc[found.loc[choice].index]
        gap = other["leaking"] - whole["leaking"]
        more, fewer = int((gap > 0).sum()), int((gap < 0).sum())
        p = binomtest(more, more + fewer).pvalue if more + fewer else 1.0
        both = [each.groupby("model").sum() for each in (whole, other)]
        sums = [each.sum() for each in both]
        lines.append(
            {
                "the fit": choice,
                **{
                    title: " → ".join(f"{each['leaking'][kind]:.0f}" for each in both)
                    if kind in other.index
                    else "–"
                    for kind, title in KINDS.items()
                },
                "more / fewer leak": f"{more} / {fewer} of {len(gap)} (p = {p:.2f})",
                "facts, by the judge": " → ".join(f"{each['judge']:.0f}" for each in sums),
                "kept, not fitted": " → ".join(
                    f"{each['held_out_retain_unchanged'] + each['other_unchanged']:.0f}"
                    for each in sums
                ),
            }
        )
    return table(pd.DataFrame(lines))


def beside_rmu(folder: Path) -> str:
    """Compare T3 and RMU on the small models that RMU was trained on, in the table of `_compared`,
    both by the verdict of the day on which RMU was judged.

    folder: as of `summary`, with rmu.csv and tricks/own.csv.
    """
    names = {"T3": "new fit", "RMU": "RMU", "RMU (keeping)": "RMU (keeping)"}
    return _compared(_own(folder, False, ("tricks/own.csv", "rmu.csv")), names)


def untouched(folder: Path) -> str:
    """Compare the fit with a fit of more weight decay, in the table of `_compared`, on models that
    were made after both had been fixed.

    folder: as of `summary`, with untouched/own.csv.
    """
    names = {"as `t3 unlearn`": "new fit", "more decay": "more decay"}
    return _compared(_own(folder, False, (UNTOUCHED,)), names)


def _compared(found: pd.DataFrame, of_method: dict[str, str]) -> str:
    """Write a line for each kind of rows and method, over the models that all methods have. What
    the base and the retrained model say is read from the first method's lines.

    of_method: {name of a method: its choice in the table}.
    """
    indexed = {name: part.set_index(["model", "seed"]) for name, part in found.groupby("choice")}
    first, *others = (indexed[choice] for choice in of_method.values())
    models, lines = first.index, list[dict[str, str]]()
    for each in others:
        models = models.intersection(each.index)
    for kind in [each for each in KINDS if each in models]:
        of = first.loc[models].loc[kind][COUNTED_OWN].sum()
        for name, choice in of_method.items():
            part = indexed[choice].loc[models].loc[kind]
            sums = part[COUNTED_OWN].sum()
            lines.append(
                {
                    "rows to forget": f"{sums['rows']:.0f} {KINDS[kind]}",
                    "method": name,
                    "pass / cannot tell / No": _statuses(part["status"]),
                    "rows that leak (before)": f"{sums['leaking']:.0f}"
                    f" ({of['leaking_before']:.0f})",
                    "facts that the judge gets (retrained)": f"{sums['judge']:.0f}"
                    f" ({of['judge_retrained']:.0f})",
                    "answers kept": _kept(sums, "retain"),
                    "kept, not fitted": _kept(sums, "held_out_retain", "other"),
                    "unrelated prompts changed": f"{sums['talk_changed']:.0f} of"
                    f" {len(SMALL_TALK) * len(part)}",
                }
            )
    return table(pd.DataFrame(lines), texts=2)


def _own(folder: Path, pretrained: bool, names: Iterable[str]) -> pd.DataFrame:
    """Return the lines of some files with a column for each measure. What the retrained models have
    of it is in the columns leaking_retrained and status_retrained.
    """
    lines = pd.concat(pd.read_csv(folder / name, dtype=str) for name in names)
    lines = lines[lines["model"].str.startswith(PRETRAINED) == pretrained]
    wide = lines.pivot(index=["choice", "model", "seed"], columns="measure", values="value")
    retrained = wide.reindex(["retrained"], level="choice").droplevel("choice")
    wide = wide.drop(index="retrained", errors="ignore").reset_index()
    of_retrained = retrained.reindex(columns=["leaking", "status"]).add_suffix("_retrained")
    wide = wide.join(of_retrained, on=["model", "seed"])
    counted = dict.fromkeys([*COUNTED_OWN, *(PLACES if pretrained else ())])
    return wide.assign(**wide.reindex(columns=[*counted]).astype(float))


def _kept(counts: pd.Series, *names: str) -> str:
    """Write how many answers of these sets stay, of those that the base knew."""
    stay, of = (
        sum(counts[f"{name}_{key}"] for name in names) for key in ("unchanged", "known_before")
    )
    return f"{stay:.0f} of {of:.0f}"
