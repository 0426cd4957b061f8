"""Build the paper's tables from run files, one function for each table. No number is typed in.

A tidy frame (`results.tidy`) goes in and a table comes out. Every method of the paper has a row,
whether it ran or not. A missing or failed run gives empty cells. Runs with a `setting` (ablations)
enter only the table `ablations` and, for the setting "naive", `runtime`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import hmean

from t3lab.audit.labels import HIDING
from t3lab.names import SPLITS, TUNING_SEEDS
from t3lab.results import (
    HELD_OUT,
    Nearness,
    against,
    author_rows,
    log_ratios,
    others_of,
    paper_table,
    references,
    rescaled,
    swap_p,
)
from t3lib.baselines.losses import METHODS
from t3lib.tofu import metrics
from t3lib.tofu.metrics import UTILITY

SUMMARY = ("fq", "mu_rouge", "mu")
# columns of the paper's Table 1; our table has every other metric after them
PAPER = (*SUMMARY, *UTILITY)
SCORES = (*PAPER, *(name for name in metrics.METRICS if name not in PAPER))
UNLEARNING = METHODS[2:]
FRAME = ("Original", "T3", "Retrained")  # in every comparison
PAPER_TEMPERATURES = (1.0, 1.5, 2.0, 2.5, 3.0)
ROUNDING = 5e-4  # half a unit of the paper's last printed digit
COUNTS = ("n_seeds", "seed", "trainable", "epochs", "n", "n_references", "reference")
BOTH_DIALS = "T3 (T, w)"  # T3 with a sharpened classifier f^w, at the best T and w
SHARE = "{} (a)"  # a baseline with the best share a of the way from base to unlearned weights
OWN_RATE = "T3 (T = 1)"  # T3 without tempering, at the learning rate that is best for T = 1

# How ln R of a run lies beside held-out retrained models: {column of `tofu`: of `forget_quality`}.
SHAPE = {"ln_r_mean": "mean", "ln_r_sd": "sd", "ks_rescaled": "D_rescaled", "swap_p": "swap_p"}
# The paper's errors (t3lib.tofu.unlearning_errors), and the settings that tell T3's models apart.
ERRORS = ("forget_error", "leak", "retain_error", "total_variation", "recited", "kept")
ERROR_DIALS = ("lr", "w", "gate", "tail")
AUTHORS = 8  # with at least so many, `swap_p` swaps whole authors, else single rows

OURS = (
    "T3 (gated)",
    "T3 (neutral)",
    "T3 (gated, neutral)",
)  # not the paper's: results/studies/gate

# What each table shows, by the name of its file.
CAPTIONS = {
    "claims": "Claims of the paper: does each hold in its own tables, and here?",
    "tofu": (
        "Table 1. Means over seeds, with T3 at its tuned temperature. FQ compares with the"
        " retrained model on which settings were chosen. FQ and KS D, held out, compare with the"
        " other retrained models, whose number is in the column References (0 or empty: there are"
        " none). Row r and row gap compare ln R, the logarithm of the truth ratio, with theirs row"
        " by row: the correlation, and the mean absolute difference. ln R mean and ln R sd describe"
        " it. KS D, rescaled, is D, held out, after ln R was moved and stretched to the mean and sd"
        " of the retrained model on which settings were chosen. Swap p is the median over seeds and"
        " references of the p-value of D by swaps of rows (table forget_quality). T3 (T = 1) does"
        " not temper; a profile may have another learning rate for it. T3 (T, w) also sharpens the"
        " classifier, f^w; the table dials has its w. RMU (a) has the weights at a share a of the"
        " way from the base to RMU; the table search has a."
    ),
    "tofu_vs_paper": (
        "Our Table 1 beside the paper's (Llama 3.1 8B). Our FQ compares with held-out retrained"
        " models, if there are any (References: how many), and FQ, tuned on, with the one on which"
        " settings were chosen. The sign says how far our mean is from the paper's, in units of the"
        " spread (standard deviations over seeds, ours and the paper's combined): = at most one, ≈"
        " at most two, ≠ more."
    ),
    "parameters": "Table 2. Trainable parameters.",
    "runtime": (
        "Table 3. Cost of unlearning on this machine. A cell is empty where the machine was busy,"
        " or where no commit has the code. All seeds of T3 are evaluated together, and each counts"
        " its share of the time. T3 (naive) runs the base at every step: a few steps were timed and"
        " scaled up to all."
    ),
    "tofu_per_seed": "Table 4. Every method and seed.",
    "search": (
        "How the settings of these runs were found: for each method and split the settings that"
        " were tried, how many of them need a training, the seeds of each trial (of coarse trials"
        " only the first), the minutes of all trainings (where they were not recorded: those of"
        " these runs, times trainings and seeds), and what was chosen. edge: a chosen value that"
        " is the lowest or highest of three or more, so that a wider search may find a better one;"
        " for T3 at its other T, too."
        " T3's T and w need no training, and neither does a of RMU (a), the share of the way from"
        " the base's weights to the unlearned ones."
    ),
    "forget_quality": (
        "Every Forget Quality: each run against each retrained model. Reference 0 is the one on"
        " which settings were chosen. mean and sd describe ln R, the logarithm of the truth ratio"
        " R. D_matched is D after the means of ln R were made equal. D_stretched is D after ln R"
        " was multiplied so that it has the sd of reference 0, and D_rescaled after it also has its"
        " mean. Row r and row gap compare row with row: the correlation of ln R, and the mean"
        " absolute difference. swap_p is the p-value of D if the two models' values may be swapped"
        " row by row (with eight or more authors: author by author)."
    ),
    "order": (
        "Is T3 nearer to a retrained model? D is the method's mean over seeds and over the"
        " retrained models that nothing was tuned on, and t3 less is T3's D minus it. Its 95%"
        " interval is from draws of whole authors (as many as there are), the same for both"
        " methods. seen: the smallest difference that this number of authors would show in 80% of"
        " cases. p is two-sided: of RMU on the 10% split, which was named beforehand, as it is; of"
        " all others after Holm's correction."
    ),
    "errors": (
        "The paper's two errors (Eq. 6, 7) beside a retrained model, the judge, by which nothing"
        " was chosen; means over seeds. Forget Error: mean |p_ret - p| of the tokens of forgotten"
        " answers. Leak: the part of it by which they are more probable than under the judge."
        " Retain Error: mean KL(p_ret, p) at answers to keep, in nats a token. Total variation: at"
        " forgotten answers. Recited, kept: shares of answers to forget and to keep that greedy"
        " decoding writes word for word. Retrained is another retrained model: nobody can be asked"
        " to fall below it."
    ),
    "temperature": "Table 5. T3 at every temperature, as means over seeds.",
    "temperature_vs_paper": "Ours beside the paper's Table 5.",
    "dials": (
        "T3's two dials, p^(1/T) f^w: Forget Quality and D, as means over the seeds on which"
        " settings were chosen. lr: the head's learning rate. Rates other than the tuned one were"
        " tried only at T = 1."
    ),
    "ablations": (
        "T3's other choices. Recognized: share of forgotten rows whose true answer is more probable"
        " than five wrong ones. AUC: the chance that a forgotten row is more probable than a row"
        " that no model saw, which is best at 0.5. The table audit has the same for retrained"
        " models. Forget Quality is no fair measure of heads that learn the paraphrases, because it"
        " is computed from them."
    ),
    "audit": (
        "What the models still know of the rows to forget, as means over seeds. Written and Forced"
        " start are measured on each method's first seed only (Retrained: on all). In profile"
        " tofu-cpu, Membership is measured on models that were trained without some further rows."
        " audit.csv also has each value's distance from the retrained models, in units of their"
        " spread. A method that forgot has the distance 0, and both larger and smaller values are"
        " traces."
    ),
    "leak": (
        "leak@k is the expected ROUGE-L recall of the best of k sampled answers to a forgotten"
        " question. It is measured on each method's first seed (Retrained: on all seeds if tau is"
        " 1). tau is the sampler's temperature. top p is the probability of the tokens that are"
        " sampled from (1: all tokens). rows_leaking is the expected number of rows of which one of"
        " k answers gives the fact away: texts about other rows say as much of it at most once in a"
        " hundred times the number of different samples of the row. So counts from different"
        " numbers of samples (in cpu 64 at tau 1, 16 at others) do not compare."
    ),
    "recover": (
        "What comes back of the forgotten rows in an attack. relearning: the model was trained for"
        " some steps on 10% of the rows and judged by the others. quantisation: its weights have 8"
        " or 4 bits (32: as they are). asking: the questions were put in another way. rows leaking:"
        " number of rows, out of rows, of which a sampled answer (asking: the greedy answer)"
        " contains the secret. Recognized: share of rows whose true answer is more probable than"
        " all wrong ones. FQ: mean Forget Quality against held-out retrained models, from fq min to"
        " fq max."
    ),
    "requests": (
        "Authors ask to be forgotten one after the other, by one head for all of them or by one"
        " head for each. rows leaking, Recognized and FQ: as in the table recover, for the rows of"
        " these authors. MU-ROUGE, MU and Retain ROUGE: what the model still answers about"
        " everything else. cpu seconds and bytes: time to fit the heads, and the size of their"
        " weights."
    ),
    "benchmarks": (
        "Cost on this machine: median and quartiles of the repeats. Operations and bytes are"
        " computed by arithmetic."
    ),
    "benchmarks_parameters": "Trainable parameters at Llama-3.1-8B's shape.",
    "synthetic": "The Gaussian experiments: Retain Error and Forget Error.",
    "synthetic_cells": (
        "The classifiers behind the Gaussian experiments: weight decay λ and excess risk δ."
    ),
    "bounds": "Every theorem's bound and the error that it bounds.",
}

# T3's other choices in words, by the `setting` of a run.
SETTINGS = {
    "tuned": "T3 as tuned",
    "T=1,w=1": "no tempering, at this learning rate",
    "T=1,w=2": "no tempering, f^2 for f, at this learning rate",
    "T=1,w=5": "no tempering, f^5 for f, at this learning rate",
    "T=1,w=20": "no tempering, f^20 for f, at this learning rate",
    "decay=l2": "decay in the loss, as L2",
    "init_b=zero": "B starts at zero",
    "decay=l2,init_b=zero": "decay in the loss, B starts at zero",
    "prior=population": "corrected for class imbalance",
    "epoch=fixed": "the same retain rows in every epoch",
    "T=2,w=1": "T = 2",
    "same text,T=2": "T = 2, f^w with the same greedy text",
    "same text,T=1": "T = 1, f^w with the same greedy text",
    "gate=0.99": "gated, θ = .99",
    "gate=0.9": "gated, θ = .9",
    "gate=0.5": "gated, θ = .5",
    "untrained=neutral": "neutral",
    "untrained=neutral,gate=0.9": "neutral, gated, θ = .9",
    "untrained=neutral,gate=0.5": "neutral, gated, θ = .5",
    "paraphrases": "learns the paraphrases too",
    "paraphrases,T=2,w=1": "learns the paraphrases too, T = 2",
}


def tofu(frame: pd.DataFrame, tests: pd.DataFrame | None = None) -> pd.DataFrame:
    """Build Table 1: the mean over seeds of every metric, the paper's columns first. T3 is at its
    tuned T. tests: the table `forget_quality`, from which the columns `SHAPE` are taken.

    T3 without tempering has a row `T3 (T = 1)`, unless 1 is the tuned T. Its learning rate is the
    best at T = 1. T3 with both dials has a row `T3 (T, w)` if it ran, and a baseline whose weights
    were moved back to the base one such as `RMU (a)`. The columns `HELD_OUT` are against the
    retrained models that nothing was tuned on. The row Retrained is the mean over all pairs of
    retrained models.
    """
    main = at_tuned_temperature(frame)
    cold = t3_runs(frame)[lambda runs: (runs["T"] == 1) & runs["fq"].notna()]
    cold = cold.drop(index=main.index, errors="ignore").assign(method=OWN_RATE)
    sharpened = pd.concat([cold, _at_tuned_strength(frame)])
    shown = pd.concat([main, sharpened])
    runs = shown.groupby(["split", "method"])
    means = runs[[*SCORES, *HELD_OUT]].mean()
    if tests is not None:
        means = means.join(_shape(shown, tests))
    means = means.assign(T=runs["T"].first(), n_seeds=runs["fq"].count()).reset_index()
    rows = pd.concat([_rows(METHODS), sharpened[["split", "method"]].drop_duplicates()])
    rows = rows.sort_values("split", key=lambda names: names.map(SPLITS.index), kind="stable")
    columns = ["split", "method", "T", "n_seeds", *SCORES, *HELD_OUT]
    return _table(means, [*columns, *(SHAPE if tests is not None else ())], rows)


def _shape(shown: pd.DataFrame, tests: pd.DataFrame) -> pd.DataFrame:
    """Return the columns `SHAPE` by split and method, over seeds and held-out references.

    shown: the runs behind Table 1, under the names of its rows. tests: the table `forget_quality`.
    """
    keys = ["split", "method", "T", "w", "seed"]
    named = shown[keys].assign(row=shown["method"], method=shown["method"].str.split(" ").str[0])
    both = named.merge(tests[tests["reference"] > 0].astype({"T": float, "w": float}), on=keys)
    by = both.rename(columns={old: new for new, old in SHAPE.items()}).groupby(["split", "row"])
    how = {name: "median" if name == "swap_p" else "mean" for name in SHAPE}
    return by.agg(how).rename_axis(index=["split", "method"])


def parameters(frame: pd.DataFrame) -> pd.DataFrame:
    """Build Table 2: trainable parameters of each unlearning method, which are the same in every
    split, seed and temperature.
    """
    counts = main_runs(frame).groupby("method")["trainable"].max().reset_index()
    return _table(counts, ["method", "trainable"], pd.DataFrame({"method": UNLEARNING}))


def runtime(frame: pd.DataFrame) -> pd.DataFrame:
    """Build Table 3: epochs, mean seconds of each stage, and the largest memory in bytes. T3 is
    both naive and preprocessed. Runs whose seconds cannot be trusted (`timed` in `results.tidy`) do
    not count.

    The first run that needs features computes and caches them, so their seconds are the longest of
    the split's runs. `T3 (preprocessed)` is T3 as it always runs here. `T3 (naive)` comes from runs
    of the setting "naive".
    """
    preprocessed = at_tuned_temperature(frame).replace({"method": {"T3": "T3 (preprocessed)"}})
    naive = frame[frame["setting"] == "naive"].assign(method="T3 (naive)")
    measured = pd.concat([part for part in (preprocessed, naive) if len(part)] or [preprocessed])
    sound = (measured["status"] == "ok") & measured["timed"].astype(bool)
    costs = measured[sound].groupby(["split", "method"])
    table = costs[["load_s", "train_s", "evaluate_s"]].mean()
    table = table.join(costs[["epochs", "features_s", "peak_memory_bytes"]].max()).reset_index()
    longest = t3_runs(frame)[lambda runs: runs["timed"].astype(bool)]
    longest = longest.groupby("split")["features_s"].max()
    cached = table["method"] == "T3 (preprocessed)"
    # as numbers, also where T3 did not run and there is none
    table.loc[cached, "features_s"] = table.loc[cached, "split"].map(longest).astype(float)
    columns = [
        "split",
        "method",
        "epochs",
        "load_s",
        "features_s",
        "train_s",
        "evaluate_s",
        "peak_memory_bytes",
    ]
    return _table(table, columns, _rows((*UNLEARNING[:-1], "T3 (naive)", "T3 (preprocessed)")))


def tofu_per_seed(frame: pd.DataFrame) -> pd.DataFrame:
    """Build Table 4: Forget Quality, MU-ROUGE and MU of every seed. A method without a run keeps
    one empty row.
    """
    return _table(
        at_tuned_temperature(frame), ["split", "method", "T", "seed", *SUMMARY], _rows(METHODS)
    )


def temperature(frame: pd.DataFrame) -> pd.DataFrame:
    """Build Table 5: T3 at every T that ran and at the paper's five, as means over seeds."""
    runs = t3_runs(frame)
    by = runs.groupby(["split", "T"])
    means = by[[*SUMMARY, *HELD_OUT]].mean().assign(n_seeds=by["fq"].count()).reset_index()
    values = sorted({*PAPER_TEMPERATURES, *runs["T"].dropna()})
    rows = pd.DataFrame([(split, T) for split in SPLITS for T in values], columns=["split", "T"])
    return _table(means, ["split", "T", "n_seeds", *SUMMARY, *HELD_OUT], rows)


def ablations(frame: pd.DataFrame) -> pd.DataFrame:
    """Build the table of T3 as tuned and each of its variations (runs with a setting), as means
    over seeds.
    """
    varied = frame[frame["setting"].notna() & (frame["setting"] != "naive")]
    columns = [*SUMMARY, *HIDING, *HELD_OUT]
    table = varied.groupby(["split", "setting", "T"], dropna=False)[columns].mean().reset_index()
    table = table.assign(varies=table["setting"] != "tuned").sort_values(
        ["split", "varies", "setting", "T"]
    )
    return _table(table, ["split", "setting", "T", *columns])


def search(
    runs: Sequence[Mapping[str, Any]],
    entries: Mapping[str, Mapping[str, Any]],
    dials: Sequence[pd.DataFrame] = (),
) -> pd.DataFrame:
    """Build the table of how the settings were found, one row for each method and split; see its
    caption in `CAPTIONS`.

    entries: {"METHOD/SPLIT": {"chosen", "seeds", "trials"}}, as `t3 tofu tune` writes them. A
    choice has a row only if a main run of the method on the split was made with it. seeds: the
    largest number. T3 at T = 1, with the entry "T3/SPLIT/1", has a row of its own.
    dials: searches after the training, which add rows such as `T3 (T, w)` and `RMU (a)`; see
    `ablations.run_dials` and `results/profiles/tofu-cpu/made.json`.
    """
    columns = ["split", "method", "trials", "trainings", "seeds", "minutes", "chosen", "edge"]
    rows = []
    keys = {method: method for method in UNLEARNING} | {OWN_RATE: "T3"}
    for split, name in ((split, name) for split in SPLITS for name in keys):
        key = f"{keys[name]}/{split}" + ("/1" if name == OWN_RATE else "")
        entry = entries.get(key, {"chosen": {}, "trials": [], "seeds": []})
        # the runs that were made with what was chosen
        chosen = {each: v for each, v in entry["chosen"].items() if each != "temperature"}
        used = [
            run
            for run in runs
            if (run["split"], run["method"], run.get("setting")) == (split, keys[name], None)
            and chosen.items() <= (run["hyper"] or {}).items()
            and (name != OWN_RATE or run["T"] == 1)
        ]
        if entry["trials"] and used:
            row = {"split": split, "method": name, **_spent(entry, used)}
            if name == "T3":
                row["edge"] = ", ".join(filter(None, [row["edge"], *_edges_by_T(entries, key)]))
            rows.append(row)
    for table in dials:
        rows += _searched(table)
    return pd.DataFrame(rows, columns=columns).astype({"trainings": "Int64"})


def _spent(entry: Mapping[str, Any], used: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what one search cost and chose: the cells of a row of `search` but its names.

    used: the runs that were made with the choice.
    """
    tried, chosen = [trial["hyper"] for trial in entry["trials"]], entry["chosen"]
    fits = {tuple(sorted((k, v) for k, v in each.items() if k != "temperature")) for each in tried}
    known = [trial.get("seconds", [np.nan]) for trial in entry["trials"]]
    seconds, each = sum(map(sum, known)), [run["seconds"] for run in used]
    if np.isnan(seconds):
        seconds = np.mean([one["train"] for one in each]) * len(fits) * len(entry["seeds"])
        seconds += max(one.get("features") or 0.0 for one in each)
    return {
        "trials": len(tried),
        "trainings": len(fits),
        "seeds": len(entry["seeds"]),
        "minutes": seconds / 60,
        "chosen": ", ".join(
            f"{name} {value if isinstance(value, str) else f'{value:g}'}"
            for name, value in sorted(chosen.items())
        ),
        "edge": ", ".join(_edges(entry)),
    }


def _edges(entry: Mapping[str, Any]) -> list[str]:
    """Return the chosen values of a search that are the lowest or highest of three or more."""
    chosen, tried = entry["chosen"], [trial["hyper"] for trial in entry["trials"]]
    values = {  # without words, and without settings that a trial does not have
        name: {hyper[name] for hyper in tried if isinstance(hyper.get(name), int | float)}
        for name in chosen
    }
    return [
        f"{name} {'lowest' if chosen[name] == min(values[name]) else 'highest'}"
        for name in sorted(chosen)
        if len(values[name]) > 2 and chosen[name] in (min(values[name]), max(values[name]))
    ]


def _edges_by_T(entries: Mapping[str, Mapping[str, Any]], key: str) -> list[str]:
    """Return the edges of T3's searches at other T than the chosen one, such as "lr lowest at T =
    3, 4". T3 at T = 1 has a row of its own.

    key: "T3/SPLIT"; the others are "T3/SPLIT/T".
    """
    found: dict[str, list[float]] = {}
    for name, entry in entries.items():
        T = entry["chosen"].get("temperature")
        if name.startswith(f"{key}/") and T not in (1, entries[key]["chosen"]["temperature"]):
            for edge in _edges(entry):
                found.setdefault(edge, []).append(T)
    return [
        f"{edge} at T = {', '.join(f'{T:g}' for T in sorted(each))}" for edge, each in found.items()
    ]


def _searched(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the row of `search` for one search after the training, which needs no training."""
    dial = "a" if "a" in table else "w"
    ranked = table.sort_values(["fq", "D"], ascending=[False, True], kind="stable")
    return [
        {
            "split": best["split"],
            "method": SHARE.format(best["method"]) if dial == "a" else BOTH_DIALS,
            "trials": len(table),
            "trainings": 0,
            "seeds": best["n_seeds"],
            "chosen": ", ".join(
                f"{name} {best[name]:g}" for name in ("T", "w", "a") if name in best
            ),
        }
        for best in ranked[ranked[dial] != 1][:1].to_dict("records")
    ]


def errors(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the table of the paper's errors: means over seeds of each model, see its caption."""
    models = ["split", "method", "setting", "T", *ERROR_DIALS]
    rows = []
    for run in runs:
        if measured := run.get("unlearning_errors"):
            settings = run["hyper"] if run["method"] == "T3" else {}
            names = {name: run.get(name) for name in models} | {
                name: settings.get(name) for name in ERROR_DIALS
            }
            rows.append(names | {"judge": measured["judge"]} | measured["means"])

    frame = pd.DataFrame(rows, columns=[*models, "judge", *ERRORS])
    by = frame.groupby([*models, "judge"], dropna=False, sort=False)
    means = by[[*ERRORS]].mean().assign(n_seeds=by.size()).reset_index()
    columns = [*models, "n_seeds", "judge", *ERRORS]
    return means[columns].sort_values("split", kind="stable", ignore_index=True)


def forget_quality(runs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the table of every Forget Quality, one row for each run and each retrained model.

    runs: run files (`read_runs`).
    reference: number of the retrained model (`results.references`). Two retrained models are
    compared once.
    n: forget rows. D: the KS statistic, of which fq is the p-value.
    mean, sd: of ln R, the logarithm of the run's truth ratios.
    D_matched: D after the mean of ln R was moved to the reference's. It shows what spread and shape
    alone contribute.
    D_stretched, D_rescaled: D after ln R was given the sd, or mean and sd, of reference 0's.
    swap_p: see `results.swap_p`. Whole authors are swapped if there are at least `AUTHORS`.
    paired_r, paired_gap: see `results.Nearness`.
    """
    models, rows = references(runs), []
    names = ("split", "method", "T", "w", "seed")
    for run in runs:
        others = others_of(run, models)
        author = author_rows(run)
        for number, near in against(run, models).items():
            if run["method"] == "Retrained" and number > run["seed"]:
                continue
            ours, theirs = map(log_ratios, (run["truth_ratio"]["forget"], others[number]))

            matched = metrics.forget_quality(ours - ours.mean(), theirs - theirs.mean())[1]

            row = dict(zip(names, (run[name] for name in names)))
            row |= {"reference": number, "n": len(ours), **near._asdict()}
            row |= {"mean": ours.mean(), "sd": ours.std(ddof=1), "D_matched": matched}

            if 0 in others:
                onto = log_ratios(others[0])
                for name, move in (("D_stretched", False), ("D_rescaled", True)):
                    row[name] = metrics.forget_quality(rescaled(ours, onto, move), theirs)[1]
            row["swap_p"] = swap_p(ours, theirs, author if len(ours) >= AUTHORS * author else 1)
            rows.append(row)

    shape = ["mean", "sd", "D_matched", "D_stretched", "D_rescaled", "swap_p"]
    table = pd.DataFrame(rows, columns=[*names, "reference", "n", *Nearness._fields, *shape])

    return table.sort_values(
        "split", key=lambda splits: splits.map(SPLITS.index), kind="stable", ignore_index=True
    )


def on_held_out(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with fq and ks_statistic against the held-out retrained models, if there are
    any.

    The new column fq_tuned_on is Forget Quality against the retrained model that settings were
    chosen on. Select T (`at_tuned_temperature`) before, because T was chosen on that model.
    """
    fq, d = (runs[held].fillna(runs[name]) for held, name in zip(HELD_OUT, ("fq", "ks_statistic")))
    return runs.assign(fq=fq, ks_statistic=d, fq_tuned_on=runs["fq"])


def beside_paper(
    frame: pd.DataFrame, printed: pd.DataFrame, *, printed_seeds: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Build the table of our numbers beside the printed ones: our mean, sd and seeds, the printed
    mean, the difference and a mark.

    printed: the paper's Table 1, or Table 5 by T. printed_seeds: its Table 4, for the paper's
    spread.

    Our Forget Quality is `on_held_out`, with fq_tuned_on beside it. The spread is sqrt(sd_ours² +
    sd_paper²). Marks: "=" within one spread and the paper's rounding, "≈" within two, "≠" beyond. A
    mark is empty if a number or our spread is missing.
    """
    if "method" in printed:
        keys, runs = ["split", "method"], on_held_out(at_tuned_temperature(frame))
        table = _rows(METHODS).merge(_spread(runs, keys), how="left")
    else:
        keys, runs = ["split", "T"], on_held_out(t3_runs(frame))
        table = printed[keys].merge(_spread(runs, keys), how="outer")

    others = runs.groupby(keys)[["fq_tuned_on", "n_references"]].mean().reset_index()
    table = table.merge(others, how="left", on=keys)
    table = table.merge(printed[[*keys, *SUMMARY]], how="left", on=keys)
    theirs = (
        None
        if printed_seeds is None
        else table[keys].merge(_spread(printed_seeds, keys), how="left")
    )

    for name in SUMMARY:
        sd_paper = 0.0 if theirs is None else theirs[f"{name}_sd"].fillna(0)
        spread = (table[f"{name}_sd"] ** 2 + sd_paper**2) ** 0.5
        table[f"{name}_paper"] = table[name]
        table[f"{name}_difference"] = table[f"{name}_ours"] - table[name]
        table[f"{name}_mark"] = [_mark(d, s) for d, s in zip(table[f"{name}_difference"], spread)]

    parts = ("ours", "sd", "paper", "difference", "mark")
    scores = [f"{name}_{part}" for name in SUMMARY for part in parts]

    return _table(table, [*keys, "n_seeds", "n_references", "fq_tuned_on", *scores])


def printed(number: int) -> pd.DataFrame:
    """Return the paper's Table 4 or 5 for a figure: with a method in every row, and with Original's
    rows of Table 1.
    """
    table = paper_table(number)
    original = paper_table(1).query("method == 'Original'")
    return pd.concat([original, table if "method" in table else table.assign(method="T3")])


def paper_disagreements(
    table1: pd.DataFrame, table4: pd.DataFrame, *, tolerance: float = 0.001
) -> pd.DataFrame:
    """Return the rows of the paper's Table 1 whose printed mean is not the mean of Table 4's seeds,
    within `tolerance`.
    """
    means = table4.groupby(["split", "method"])[list(SUMMARY)].mean().reset_index()
    both = table1.merge(means, on=["split", "method"], suffixes=("", "_seeds"))
    rows = [
        (row["split"], row["method"], name, row[name], row[f"{name}_seeds"])
        for row in both.to_dict("records")
        for name in SUMMARY
        if abs(row[name] - row[f"{name}_seeds"]) > tolerance + 1e-9
    ]
    return pd.DataFrame(rows, columns=["split", "method", "metric", "table1", "table4"])


def leaders(means: pd.DataFrame) -> pd.DataFrame:
    """Select from a table of means by method what a reader wants first: Original, the best
    baselines, T3, Retrained.

    The best baselines, those with a share of weights among them, are those that no other baseline
    beats in both fq and mu_rouge, with the best fq first. What did not run is left out.
    """
    ran = means.dropna(subset=["fq"])
    ours = [OWN_RATE, BOTH_DIALS]
    rivals = ran.drop(index=[*FRAME, *ours], errors="ignore").sort_values("fq", ascending=False)
    most = rivals["mu_rouge"].cummax().shift(fill_value=-1.0)
    names = ("Original", *rivals.index[rivals["mu_rouge"] > most], "T3", *ours, "Retrained")
    return ran.reindex([name for name in names if name in ran.index])


def ran(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the rows of a table that hold no number of ours, such as a method or a temperature that
    did not run.
    """
    if "n_seeds" in table:
        return table[table["n_seeds"].notna()]
    numbers = table.drop(columns=["split", "method", "seeds", "setting"], errors="ignore")
    return table[(numbers.notna() & (numbers != "")).any(axis=1)] if "method" in table else table


def main_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the runs that are no ablation and have w = 1."""
    return frame[frame["setting"].isna() & (frame["w"].fillna(1) == 1)]


def with_means(scores: pd.DataFrame) -> pd.DataFrame:
    """Add the harmonic mean of the three numbers of the retain set, and the mean ROUGE-L of real
    authors and world facts.
    """
    kept = scores[["retain_prob", "retain_rouge", "retain_tr"]]
    unrelated = scores[["ra_rouge", "wf_rouge"]].mean(axis=1)
    return scores.assign(retain=hmean(kept.clip(lower=0), axis=1), unrelated=unrelated)


def t3_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Select T3's main runs, at every temperature."""
    return main_runs(frame)[lambda runs: runs["method"] == "T3"]


def at_tuned_temperature(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the main runs, and of T3 only those at the split's tuned T."""
    runs = main_runs(frame)
    tuned = (
        runs["split"]
        .map({split: tuned_temperature(frame, split) for split in SPLITS})
        .astype(float)
    )
    return runs[(runs["method"] != "T3") | (runs["T"] == tuned)]


def _at_tuned_strength(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the runs with w other than 1, of T3 only those at each split's best (T, w).

    The best are those with the best mean Forget Quality over seeds 1 and 2. They are named
    `T3 (T, w)`, `RMU (a)` and so on.
    """
    others = frame[frame["setting"].isna() & (frame["w"].fillna(1) != 1) & frame["fq"].notna()]
    parts = [others[:0]]
    for (_, method), runs in others.groupby(["split", "method"]):
        dials, name = (["T", "w"], BOTH_DIALS) if method == "T3" else (["w"], SHARE.format(method))
        means = _tuning_runs(runs, dials).groupby(dials, as_index=False)["fq"].mean()
        best = (runs[dials] == means.loc[means["fq"].idxmax(), dials]).all(axis=1)
        parts.append(runs[best].assign(method=name))
    return pd.concat(parts)


def tuned_temperature(frame: pd.DataFrame, split: str) -> float | None:
    """Return T3's tuned T: the one with the best mean Forget Quality over seeds 1 and 2, ties
    broken by MU-ROUGE.

    Without these seeds it is over all seeds. Without runs it is None.
    """
    runs = t3_runs(frame)[lambda runs: (runs["split"] == split) & runs["fq"].notna()]
    means = _tuning_runs(runs, ["T"]).groupby("T")[["fq", "mu_rouge"]].mean()
    return float(means.sort_values(["fq", "mu_rouge"]).index[-1]) if len(means) else None


def _tuning_runs(runs: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """Select the runs of seeds 1 and 2 at the settings that ran with most of these seeds; without
    such runs, return all.

    settings: the columns that make up a setting. One that failed with a seed is left out, because
    its mean would be over other seeds.
    """
    tuning = runs[runs["seed"].isin(TUNING_SEEDS)]
    tuning = tuning if len(tuning) else runs
    count = tuning.groupby(settings)["seed"].transform("nunique")
    return tuning[count == count.max()]


def _rows(methods: Sequence[str]) -> pd.DataFrame:
    """Return a row for every split and method, in the paper's order."""
    return pd.DataFrame(
        [(split, method) for split in SPLITS for method in methods], columns=["split", "method"]
    )


def _table(
    table: pd.DataFrame, columns: Sequence[str], rows: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the columns of a table in this order, with a row for each row of `rows` if given.
    Counts are whole numbers, and a count of no seeds is empty.
    """
    table = table if rows is None else rows.merge(table, how="left")
    table = (
        table[list(columns)]
        .astype({name: "Int64" for name in COUNTS if name in columns})
        .reset_index(drop=True)
    )
    return table.replace({"n_seeds": {0: pd.NA}})


def _spread(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return mean (`_ours`), standard deviation over seeds (`_sd`, n − 1) and number of seeds of
    each group.
    """
    named = {
        f"{name}_{part}": (name, how)
        for name in SUMMARY
        for part, how in (("ours", "mean"), ("sd", "std"))
    }
    return frame.groupby(keys).agg(n_seeds=("fq", "count"), **named).reset_index()


def _mark(difference: float, spread: float) -> str:
    if pd.isna(difference) or pd.isna(spread):
        return ""
    beyond = abs(difference) - ROUNDING
    return "=" if beyond <= spread else "≈" if beyond <= 2 * spread else "≠"
