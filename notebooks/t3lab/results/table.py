"""Collect runs in one table, with how near each is to retrained models.

The table has a row for each run. Runs of two profiles or worlds are refused, and `code_note` says
where runs were made by different code.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from t3lab.audit.labels import HIDING
from t3lab.names import SPLITS
from t3lab.results.runs import all_rows, name_of
from t3lib.core.errors import UserError
from t3lib.tofu.metrics import METRICS, forget_quality

PROFILE = ("data", "stage", "models", "evaluation")  # parameters that all runs of one table share
SECONDS = ("load", "features", "train", "evaluate")
HELD_OUT = ("fq_held_out", "ks_held_out", "paired_r", "paired_gap", "n_references")
SWAPS = 999  # draws of `swap_p`
TINY = np.finfo(float).tiny  # in place of a truth ratio that underflowed to 0, for its logarithm


def tidy(runs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table with one row for each run: names, status, cost, metrics, numbers of rows.

    A failed run has empty metrics. Runs of ablations also have `HIDING`. `HELD_OUT` are the means
    of `Nearness` over those retrained models that nothing was tuned on, and their number; empty if
    there are none. n_forget is the number of forget rows, n_rows that of all rows. timed
    is False if the seconds cannot be trusted, because the machine was busy or no commit has the
    code.
    UserError for runs of two profiles or worlds (`of_one_profile`).
    """
    runs = of_one_profile(runs)
    models = references(runs)
    names = ("method", "split", "T", "w", "seed", "status", "setting", "timed")
    costs = ("trainable", "epochs", *(f"{part}_s" for part in SECONDS), "peak_memory_bytes")
    numbers = (*costs, *METRICS, *HIDING, *HELD_OUT, "n_forget", "n_rows")
    rows = []

    for run in runs:
        row = dict(run["metrics"]) if run["status"] == "ok" else {}
        row |= {key: run.get(key) for key in (*names, "trainable", "epochs", "peak_memory_bytes")}
        row |= {f"{part}_s": (run["seconds"] or {}).get(part) for part in SECONDS}
        row["timed"] = not (run["provenance"].get("dirty") or run["provenance"].get("busy"))
        row["n_forget"], row["n_rows"] = (
            len((run["truth_ratio"] or {}).get("forget", [])) or None,
            all_rows(run),
        )
        if held := _held_out(run, models):
            row |= dict(zip(HELD_OUT, held))
        rows.append(row)

    return pd.DataFrame(rows, columns=[*names, *numbers]).astype(
        dict.fromkeys(("T", "w", *numbers), float)
    )


def references(runs: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return {split: {number: truth ratios (n,) on the forget rows}} of the runs' retrained models.

    Number 0 is a run's reference, on which hyperparameters are chosen. `against` takes that of each
    run itself. The others are runs of the method Retrained, by seed. Nothing was tuned on them.
    """
    found: dict[str, dict[int, Any]] = {}
    for run in runs:
        ratios = run["truth_ratio"] or {}
        if len(ratios.get("reference", ())):
            models = found.setdefault(run["split"], {0: ratios["reference"]})
            if run["method"] == "Retrained":
                models[run["seed"]] = ratios["forget"]
    return found


def others_of(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> dict[int, Any]:
    """Return {number: truth ratios} of the retrained models that a run is compared with.

    models: as of `references`. Number 0 is the run's own reference: a base that was trained on
    another kind of processor can be another model, and so can its reference. A retrained model is
    not compared with itself.
    """
    itself = run["seed"] if run["method"] == "Retrained" else None
    others = {**models.get(run["split"], {})}
    if 0 in others and len((run["truth_ratio"] or {}).get("reference", ())):
        others[0] = run["truth_ratio"]["reference"]
    return {number: others[number] for number in sorted(others) if number != itself}


class Nearness(NamedTuple):
    """How near a model is to a retrained one on the forget rows.

    fq, D: of the Kolmogorov-Smirnov test, which compares the two distributions of truth ratios.
    paired_r: correlation of ln R, the logarithm of the truth ratio, row by row; nan if all rows of
    one model are equal. paired_gap: mean |difference of ln R|, row by row.
    """

    fq: float
    D: float
    paired_r: float
    paired_gap: float


def nearness(ours: Any, theirs: Any) -> Nearness:
    """Compare the truth ratios (n,) of two models on the same forget rows."""
    logs = log_ratios(ours), log_ratios(theirs)
    r = np.corrcoef(*logs)[0, 1] if min(each.std() for each in logs) > 0 else np.nan
    return Nearness(*forget_quality(ours, theirs), float(r), float(abs(logs[0] - logs[1]).mean()))


def rescaled(ours: Any, theirs: Any, move: bool = True) -> np.ndarray:
    """Return ours (n,), multiplied so that it has the standard deviation of theirs.

    move: then also shift it to the mean of theirs.
    """
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    stretched = ours * (theirs.std() / ours.std() if ours.std() > 0 else 1.0)
    return stretched + move * (theirs.mean() - stretched.mean())


def swap_p(ours: Any, theirs: Any, block: int = 1) -> float:
    """Return the p-value of D by swaps: may the two models' values be exchanged row by row?

        p = (1 + number of swaps with D at least as large) / (1 + SWAPS)

    ours, theirs (n,): of two models on the same rows. block: rows that are swapped together, such
    as those of an author. Forget Quality takes both samples as independent, which the same rows are
    not, so it rejects too seldom where the rows of both models correlate. The draws have one seed.
    """
    pooled, n = np.concatenate([ours, theirs]), len(ours)
    order = np.argsort(pooled, kind="stable")
    last = np.append(np.diff(pooled[order]) > 0, True)  # D is read after the last of equal values
    drawn = np.random.default_rng(0).choice(np.array([-1, 1], np.int16), (SWAPS, -(-n // block)))
    signs = np.vstack([np.ones((1, n), np.int16), np.repeat(drawn, block, axis=1)[:, :n]])
    steps = np.hstack([signs, -signs])[:, order].cumsum(axis=1, dtype=np.int16)[:, last]
    D = abs(steps).max(axis=1)
    return float((D >= D[0]).mean())


def log_ratios(ratios: Any) -> np.ndarray:
    """Return the logarithms of truth ratios (n,), finite also where a ratio underflowed to 0."""
    return np.log(np.maximum(np.asarray(ratios, float), TINY))


def against(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> dict[int, Nearness]:
    """Return {number: how near a run is} for each of `others_of`."""
    ours = (run["truth_ratio"] or {}).get("forget", ())
    if not len(ours):
        return {}
    return {number: nearness(ours, theirs) for number, theirs in others_of(run, models).items()}


def _held_out(run: Mapping[str, Any], models: Mapping[str, Mapping[int, Any]]) -> tuple | None:
    """Return the values of `HELD_OUT` for one run; None if no reference is held out.

    Nothing was tuned for a retrained model, so it is compared with number 0 as well. That pair
    counts twice: the mean over all retrained models is then the mean over all their pairs.
    """
    first = 2 if run["method"] == "Retrained" else 0
    near = [(each, 1 if number else first) for number, each in against(run, models).items()]
    near = [(each, weight) for each, weight in near if weight]
    if not near:
        return None
    values, weights = zip(*near)
    return (*np.average(values, axis=0, weights=weights), len(near))


def of_one_profile(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs as a list; UserError if two of them differ in a parameter of `PROFILE`.

    A mean over such runs would describe neither profile. A parameter that a run does not record
    counts as equal, and so does a model: a profile may be given further ones, for another split.
    """
    runs, first = list(runs), dict[tuple[str, str], tuple[Mapping[str, Any], Any]]()
    for run in runs:
        for name in PROFILE:
            value = run["parameters"].get(name)
            if value is None:
                continue
            parts = {"": bool(value), **value} if name == "models" else {"": value}
            for part, given in parts.items():
                other, known = first.setdefault((name, part), (run, given))
                if given != known:
                    names = " and ".join(name_of(each) for each in (other, run))
                    raise UserError(
                        f"runs {names} are of different profiles ({name} differs): give each"
                        " profile a folder of its own"
                    )
    return runs


def code_note(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return a note to print below a table of runs. It names methods whose runs were made by
    different or unknown code, start from different trainings of the base, or were made by code that
    no commit has.

    The note is "" if all runs have the same key of their code and the same base, and come from a
    commit without changes.
    """

    def told(groups: Mapping[str, str]) -> str:
        return "; ".join(f"{key}: {names}" for key, names in groups.items())

    runs, lines = list(runs), list[str]()
    codes = _methods_by(runs, lambda run: run.get("code") or "unknown")
    bases = _methods_by(runs, lambda run: run["provenance"].get("model_revision"))
    changed = _methods_by(runs, lambda run: run["provenance"].get("dirty"))
    if {*codes} == {"unknown"}:
        lines.append("It is not known which code made these runs.")
    elif len(codes) > 1:
        lines.append(f"These runs were made by different code ({told(codes)}).")

    if len(bases) > 1:
        lines.append(f"They start from different trainings of the same base ({told(bases)}).")
    if changed:
        lines.append(
            f"Some or all runs of {changed[True]} were made by code that no commit has, so they"
            " cannot be made again from a checkout."
        )

    return " ".join(lines)


def _methods_by(
    runs: Iterable[Mapping[str, Any]], of: Callable[[Mapping[str, Any]], Any]
) -> dict[Any, str]:
    """Return {of(run): names of the methods of these runs}, without runs where it is empty."""
    groups: dict[Any, dict[str, None]] = {}
    for run in runs:
        groups.setdefault(of(run), {})[run["method"]] = None
    return {key: ", ".join(names) for key, names in groups.items() if key}


def split_labels(frame: pd.DataFrame) -> dict[str, str]:
    """Return {"forget05": "5%", …}: the share of forget rows among all rows.

    frame: as of `tidy`, with its columns n_forget and n_rows. For a split without runs the share is
    that in its name.
    """
    shares = (frame["n_forget"] / frame["n_rows"]).groupby(frame["split"]).max().dropna()
    return {split: f"{shares.get(split, int(split[-2:]) / 100):.0%}" for split in SPLITS}
