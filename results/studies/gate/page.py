"""What results/pages shows of T3 with a gate at profile `cpu`."""

from pathlib import Path

import pandas as pd

from t3lab.report.details import LABELLED, LABELS, counted, sampler, shown, spread

GATED = {
    "D": "ks_held_out",
    "row r": "paired_r",
    "retain: prob.": "retain_prob",
    "Model Utility": "mu",
    "MU-ROUGE": "mu_rouge",
    "recognised": "recognized_verbatim",
    "AUC": "auc",
}


def blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks. gates: what T3 with a gate, neutral tokens and both hides and
    keeps. gate_leaks: rows that leak in 16 samples, by
    sampler. entropy: how well the entropy of answers tells questions to forget from others.
    """
    names = ("gate_cpu", "gate_leak", "entropy")
    lines, ours, told = (
        pd.read_csv(results / "studies" / "gate" / "tables" / f"{n}.csv") for n in names
    )
    dials = [f"{T:g}, {gate:g}" for T, gate in zip(lines["temperature"], lines["gate"])]
    whole = pd.read_csv(results / "profiles" / "cpu" / "tables" / "leak.csv").rename(
        columns={"method": "model"}
    )
    ends = whole[(whole["k"] == 16) & whole["model"].isin([*LABELS])].replace({"model": LABELS})
    leaks = pd.concat([ends, ours]).replace({"split": LABELLED}).sort_values("split", kind="stable")
    leaks = leaks.assign(sampler=sampler(leaks), n=counted(leaks, "rows_leaking", "rows"))
    gated = {"": lines["model"], "split": lines["split"].map(LABELLED), "T, θ": dials} | GATED
    nats = {"to forget, nats": "to_forget", "to keep, nats": "to_keep", "AUC of entropy": "auc"}
    first = {"": told["model"].replace(LABELS), "split": told["split"].map(LABELLED)}
    return {
        "gates": shown(lines, gated, texts=3),
        "gate_leaks": spread(leaks, ["split", "model"], "sampler", "n", {"model": ""}),
        "entropy": shown(told, first | nats, texts=2),
    }
